//! A simulated machine: a tree, threads, cgroups, and the kernel's rules for changing them.
//!
//! A temporary directory accepts every write and proves nothing. This machine refuses what the
//! kernel refuses, with the kernel's error number, and each file shows what the kernel would show.
//! Apply and undo are tested with it at every step. It simulates cpuset of cgroup v1 and v2
//! (`kernel/cgroup/cpuset.c`), the core rules of both (`kernel/cgroup/cgroup.c`), affinity and
//! policy (`kernel/sched/syscalls.c`), and tunables under `/proc/sys`, `/proc/irq` and `/sys` that
//! are declared as writable. The caller is root. Faults can be injected, and every change is
//! counted, so that a test can stop at each.

mod bandwidth;
mod build;
mod cgroup;
mod domains;
mod freezer;
mod host_impl;
mod parse;
mod proc_files;
mod real_time;
mod resctrl;
mod setting_backend;
mod state;
mod task;
#[cfg(test)]
mod tests;
mod v1;
mod v2;

use std::sync::{Mutex, MutexGuard, PoisonError};

use pinfold_model::{CpuSet, PuId, Tid};
use rustix::io::Errno;

pub use build::SimBuilder;
pub use cgroup::CgroupVersion;
use pinfold_host::Host as _;
pub use task::{SimPages, SimTask};

use state::{Held, Machine};

/// What a writable file accepts, and how it shows its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knob {
    /// Any text.
    Text,
    /// An integer; anything else is `EINVAL`.
    Integer,
    /// A hexadecimal CPU mask; one without an online CPU is `EINVAL`.
    Mask,
    /// A CPU list; one without an online CPU is `EINVAL`.
    List,
    /// A list that cannot be changed: `EIO`, as for a managed interrupt.
    Managed,
    /// One of several words, shown as `always [madvise] never`; other words are `EINVAL`.
    Choice,
    /// Whether this CPU is online, `0` or `1`; taking the last one offline is `EBUSY`.
    Online(PuId),
    /// `on` or `off`; `off` leaves only this number of first CPUs online, one per core.
    Smt(u32),
    /// A cpufreq governor: one of those in `scaling_available_governors` of the same directory.
    Governor,
    /// A frequency in kHz, accepted only under the governor `userspace`.
    Frequency,
    /// A number of huge pages; there is memory for this number only.
    Pool(u64),
    /// A number that is rounded down to a multiple of this step, as some drivers do.
    Steps(u64),
}

/// A simulated machine.
#[derive(Debug)]
pub struct SimHost {
    state: Mutex<State>,
}

#[derive(Clone, Debug)]
struct State {
    machine: Machine,
    faults: Vec<(String, i32)>,
    /// Number of changes that are still accepted, and the error of later ones.
    stop: Option<(usize, i32)>,
    changes: Vec<String>,
}

impl Clone for SimHost {
    /// A second machine in the same state, independent of the first.
    fn clone(&self) -> Self {
        Self { state: Mutex::new(self.state().clone()) }
    }
}

impl SimHost {
    /// A builder for a machine; see [`SimBuilder`].
    #[must_use]
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

    fn of(machine: Machine) -> Self {
        let state = State { machine, faults: Vec::new(), stop: None, changes: Vec::new() };
        Self { state: Mutex::new(state) }
    }

    /// Makes every operation fail whose description contains this text. A description is the
    /// trait's method and its arguments: `write /sys/fs/cgroup/cpuset/a/tasks 42`,
    /// `set_affinity 42`, `read /proc/42/stat`.
    pub fn fail_on(&self, part: &str, errno: i32) {
        self.state().faults.push((part.to_owned(), errno));
    }

    /// Accepts this number of further changes, then refuses all.
    pub fn fail_after(&self, changes: usize, errno: i32) {
        self.state().stop = Some((changes, errno));
    }

    /// Removes all injected faults.
    pub fn clear_faults(&self) {
        let mut state = self.state();
        state.faults.clear();
        state.stop = None;
    }

    /// Descriptions of the changes made so far, in order.
    #[must_use]
    pub fn changes(&self) -> Vec<String> {
        self.state().changes.clone()
    }

    /// Adds a task. Its group must exist, otherwise it is in the root. A task with the same TID is
    /// replaced.
    pub fn add_task(&self, task: SimTask) {
        let mut state = self.state();
        let machine = &mut state.machine;
        let mut groups = vec!["/".to_owned(); machine.hierarchies.len()];
        let index = machine.cpuset_index;
        if machine.hierarchies[index].groups.contains_key(&task.group) {
            groups[index].clone_from(&task.group);
        }
        machine.newest = task.tid;
        machine.tasks.insert(task.tid, Held { task, groups });
    }

    /// Creates a process with its parent's groups, mask and policy. False if the parent does not
    /// exist.
    pub fn fork(&self, parent: Tid, child: Tid) -> bool {
        self.spawn_task(parent, |parent, start_time| SimTask {
            tid: child,
            tgid: child,
            ppid: parent.tgid,
            start_time,
            ..parent
        })
    }

    /// Creates a thread with the groups, mask and policy of its creator. False if the creator does
    /// not exist.
    pub fn clone_thread(&self, creator: Tid, thread: Tid) -> bool {
        self.spawn_task(creator, |creator, start_time| SimTask {
            tid: thread,
            start_time,
            ..creator
        })
    }

    fn spawn_task(&self, from: Tid, make: impl FnOnce(SimTask, u64) -> SimTask) -> bool {
        let mut state = self.state();
        let machine = &mut state.machine;
        let latest = machine.tasks.values().map(|held| held.task.start_time).max().unwrap_or(0);
        let Some(held) = machine.tasks.get(&from).cloned() else {
            return false;
        };
        let task = make(held.task, latest + 1);
        machine.newest = task.tid;
        machine.tasks.insert(task.tid, Held { task, groups: held.groups });
        true
    }

    /// Ends a thread. With the first thread its whole process ends, whose children are reparented
    /// to init.
    pub fn exit(&self, tid: Tid) {
        let mut state = self.state();
        state.machine.tasks.retain(|_, held| held.task.tid != tid && held.task.tgid != tid);
        for held in state.machine.tasks.values_mut().filter(|held| held.task.ppid == tid) {
            held.task.ppid = Tid(1);
        }
    }

    /// The current state of a task.
    #[must_use]
    pub fn task(&self, tid: Tid) -> Option<SimTask> {
        let state = self.state();
        let index = state.machine.cpuset_index;
        state.machine.tasks.get(&tid).map(|held| {
            let mut task = held.task.clone();
            task.group.clone_from(&held.groups[index]);
            task
        })
    }

    /// Changes a task without any rule (counters, name, state), as the kernel itself would. Its
    /// group and TID stay. False if there is no such task.
    pub fn edit_task(&self, tid: Tid, edit: impl FnOnce(&mut SimTask)) -> bool {
        let mut state = self.state();
        let Some(held) = state.machine.tasks.get_mut(&tid) else {
            return false;
        };
        edit(&mut held.task);
        held.task.tid = tid;
        true
    }

    /// Takes CPUs offline or online, so that these are online.
    pub fn set_online(&self, online: &CpuSet) {
        self.state().machine.set_online(online);
    }

    /// Creates a file without any rule, as the kernel or another program would.
    pub fn set_file(&self, path: &str, content: &str) {
        self.state().machine.tree.insert_file(path, content);
    }

    /// Everything that a change could modify, as text: each group's writable files, each other
    /// writable file, each task's groups, mask and policy. Equal snapshots mean equal machines.
    #[must_use]
    pub fn snapshot(&self) -> String {
        let state = self.state();
        let machine = &state.machine;
        let mut text = String::new();
        for (index, hierarchy) in machine.hierarchies.iter().enumerate() {
            for group in hierarchy.groups.keys() {
                for name in machine.file_names(index, group) {
                    // Members are shown with the tasks below.
                    if matches!(name.as_str(), "tasks" | "cgroup.procs" | "cgroup.threads") {
                        continue;
                    }
                    if let Ok(content) = machine.read_group_file(index, group, &name) {
                        let path = format!("{}{group}", hierarchy.mount);
                        text.push_str(&format!(
                            "{}/{name}: {content:?}\n",
                            path.trim_end_matches('/')
                        ));
                    }
                }
            }
        }
        for path in machine.knobs.keys() {
            if let Ok(content) = machine.tree.read_text(path) {
                text.push_str(&format!("{path}: {content:?}\n"));
            }
        }
        text.push_str(&machine.resctrl_text());
        for (setting, kept) in &machine.settings {
            text.push_str(&format!("{setting}: {:?}, by file {:?}\n", kept.value, kept.drop_in));
        }
        for (tid, held) in &machine.tasks {
            text.push_str(&format!(
                "task {tid} ({}): groups {}, mask {}, policy {}\n",
                held.task.comm,
                held.groups.join(" "),
                machine.mask(held).intersection(&machine.online),
                held.task.policy
            ));
        }
        text
    }

    // A test that panicked while holding the lock has failed anyway.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks for injected faults, then queries the machine.
    fn ask<T>(
        &self,
        description: &str,
        answer: impl FnOnce(&Machine) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let state = self.state();
        state.planted(description)?;
        answer(&state.machine)
    }

    /// Checks for injected faults, then makes the change and counts it.
    fn alter(
        &self,
        description: String,
        change: impl FnOnce(&mut Machine) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut state = self.state();
        state.planted(&description)?;
        if let Some((left, errno)) = &mut state.stop {
            if *left == 0 {
                return Err(Errno::from_raw_os_error(*errno));
            }
            *left -= 1;
        }
        state.machine.changing(change)?;
        state.changes.push(description);
        Ok(())
    }
}

impl State {
    fn planted(&self, description: &str) -> Result<(), Errno> {
        match self.faults.iter().find(|(part, _)| description.contains(part.as_str())) {
            Some((_, errno)) => Err(Errno::from_raw_os_error(*errno)),
            None => Ok(()),
        }
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
