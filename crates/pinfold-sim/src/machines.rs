//! Machines for tests.

use pinfold_model::{CpuSet, PuId};

use super::{CgroupVersion, SimBuilder, SimHost, SimTask};

impl SimHost {
    /// A builder for a machine; see [`SimBuilder`].
    pub fn builder(version: CgroupVersion, pus: u32) -> SimBuilder {
        SimBuilder::new(version, pus)
    }

    /// Two CPUs, cpuset as v1 (all tasks in the root group) next to an empty v2 hierarchy, with
    /// init, a few kernel threads (one movable, the others bound), a daemon with two threads, and a
    /// shell.
    #[must_use]
    pub fn v1_two_pus() -> Self {
        kernel_threads(SimBuilder::new(CgroupVersion::V1, 2), 2)
            .task(SimTask::new(300, "sshd"))
            .task(SimTask::new(310, "rsyslogd"))
            .task(SimTask::new(311, "in:imuxsock").thread_of(310))
            .task(SimTask::new(400, "bash").child_of(300))
            .build()
    }

    /// Eight CPUs (four cores with two threads), cgroup v2 in systemd's layout, with cpuset enabled
    /// at the root: `init.scope`, `system.slice/ssh.service`, `user.slice/…`.
    #[must_use]
    pub fn v2_eight_pus() -> Self {
        let none = CpuSet::new;
        kernel_threads(SimBuilder::new(CgroupVersion::V2, 8).smt(2), 8)
            .group("/init.scope", none(), none())
            .group("/system.slice", none(), none())
            .group("/user.slice", none(), none())
            .task(SimTask::new(1, "systemd").child_of(0).started(1).in_group("/init.scope"))
            .task(SimTask::new(100, "pinfold").in_group("/user.slice/session-1.scope"))
            .task(SimTask::new(300, "sshd").in_group("/system.slice/ssh.service"))
            .task(SimTask::new(310, "rsyslogd").in_group("/system.slice/rsyslog.service"))
            .task(
                SimTask::new(311, "in:imuxsock")
                    .thread_of(310)
                    .in_group("/system.slice/rsyslog.service"),
            )
            .task(SimTask::new(400, "bash").in_group("/user.slice/session-1.scope").child_of(300))
            .build()
    }
}

fn kernel_threads(builder: SimBuilder, pus: u32) -> SimBuilder {
    let movable = SimTask::new(10, "rcu_preempt").kernel_thread();
    (0..pus).fold(builder.task(movable), |builder, pu| {
        let bound = CpuSet::single(PuId(pu));
        builder
            .task(SimTask::new(20 + pu, &format!("ksoftirqd/{pu}")).unmovable(bound.clone()))
            .task(SimTask::new(50 + pu, &format!("migration/{pu}")).unmovable(bound))
    })
}
