//! Prevents the vCPUs that a booting guest does not use yet from preempting its first one.
//!
//! A kernel patches itself tens of thousands of times while it boots, and flushes the translation
//! of a page each time. On Arm the flush is broadcast, and TCG wakes the threads of all vCPUs for
//! it, started or not. A thread of `SCHED_BATCH` does not preempt another when it wakes
//! (`sched(7)`): it runs when the first vCPU has used its slice, and then handles many flushes at
//! once. `SCHED_IDLE` is not suitable: such a thread may hold QEMU's lock and then not run for
//! seconds while another task uses its CPU.

use pinfold_host::{Host as _, HostError, HostMut as _, LiveHost};
use pinfold_model::{Policy, Role, Tid};
use pinfold_vm::threads::DiscoveredVm;

/// Threads with `SCHED_BATCH` until [`BatchPriority::end`].
pub struct BatchPriority<'a> {
    host: &'a LiveHost,
    former: Vec<(Tid, Policy)>,
}

impl<'a> BatchPriority<'a> {
    /// Sets `SCHED_BATCH` for all vCPUs except the first, and except those whose plan sets a
    /// policy: the watchdog must be able to remove real-time policies.
    pub fn all_but_first(host: &'a LiveHost, found: &DiscoveredVm) -> Result<Self, HostError> {
        let mut yielding = Self { host, former: Vec::new() };
        let others = found
            .threads
            .iter()
            .filter(|thread| matches!(&thread.role, Role::Vcpu(index) if *index > 0));
        for thread in others {
            let tid = thread.task.tid;
            let policy = host.policy(tid)?;
            if let Policy::Other { nice } = policy {
                yielding.former.push((tid, policy));
                host.set_policy(tid, Policy::Batch { nice })?;
            }
        }
        Ok(yielding)
    }

    /// Restores their policies.
    pub fn end(self) -> Result<(), HostError> {
        self.former.into_iter().try_for_each(|(tid, policy)| self.host.set_policy(tid, policy))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use pinfold_host::process;
    use pinfold_model::TaskId;
    use pinfold_vm::threads::VmThread;

    use super::*;

    #[test]
    fn all_but_the_first_yield_and_get_back_what_they_had() {
        let host = LiveHost::new().unwrap();
        thread::scope(|scope| {
            let mut ends = Vec::new();
            let mut threads = Vec::new();
            for role in [Role::Vcpu(0), Role::Vcpu(1), Role::Vcpu(2), Role::Emulator] {
                let (report, reported) = mpsc::channel();
                let (end, ended) = mpsc::channel::<()>();
                scope.spawn(move || {
                    report.send(process::own_tid()).unwrap();
                    ended.recv().unwrap_err();
                });
                ends.push(end);
                let task = TaskId { tid: reported.recv().unwrap(), start_time: 0 };
                threads.push(VmThread { task, role, name: String::new() });
            }
            let policies =
                || threads.iter().map(|one| host.policy(one.task.tid).unwrap()).collect::<Vec<_>>();
            // One thread has another policy, which it keeps.
            host.set_policy(threads[2].task.tid, Policy::Idle).unwrap();
            host.set_policy(threads[1].task.tid, Policy::Other { nice: 3 }).unwrap();
            let before = policies();
            let found = DiscoveredVm {
                pid: process::own_pid(),
                threads: threads.clone(),
                accelerator: None,
                vcpus: 3,
                max_vcpus: 3,
                findings: Vec::new(),
                roll: None,
            };
            let yielding = BatchPriority::all_but_first(&host, &found).unwrap();
            let mut expected = before.clone();
            expected[1] = Policy::Batch { nice: 3 };
            assert_eq!(policies(), expected);
            yielding.end().unwrap();
            assert_eq!(policies(), before);
        });
    }
}
