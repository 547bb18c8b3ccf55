//! The vCPUs that a booting guest does not use yet give way to its first.
//!
//! A kernel patches itself tens of thousands of times while it starts, and flushes the translation
//! of a page each time. On Arm that is broadcast, and QEMU's translator wakes the threads of all
//! vCPUs for it, started or not. A thread that yields (`SCHED_IDLE`) is mostly still awake when the
//! next flush comes, and then does the work of many at once.

use std::thread;

use pinfold_host::{Host as _, HostError, HostMut as _, LiveHost, process};
use pinfold_model::{Policy, Role, Tid};
use pinfold_vm::threads::Found;

/// Threads that yield until they are told not to.
pub struct Yielding<'a> {
    host: &'a LiveHost,
    former: Vec<(Tid, Policy)>,
}

impl<'a> Yielding<'a> {
    /// Has all vCPUs but the first yield; none where this process could not take that back.
    pub fn all_but_first(host: &'a LiveHost, found: &Found) -> Result<Self, HostError> {
        let mut yielding = Self { host, former: Vec::new() };
        if !can_be_taken_back(host) {
            return Ok(yielding);
        }
        let is_other = |role: &Role| matches!(role, Role::Vcpu(index) if *index > 0);
        let others = found.threads.iter().filter(|thread| is_other(&thread.role));
        for thread in others {
            let tid = thread.task.tid;
            yielding.former.push((tid, host.policy(tid)?));
            host.set_policy(tid, Policy::Idle)?;
        }
        Ok(yielding)
    }

    /// Gives them back what they had.
    pub fn end(self) -> Result<(), HostError> {
        self.former.into_iter().try_for_each(|(tid, policy)| self.host.set_policy(tid, policy))
    }
}

/// Without `CAP_SYS_NICE` a thread that yields does so for ever (`sched(7)`, `RLIMIT_NICE`): tried
/// on a thread of our own.
fn can_be_taken_back(host: &LiveHost) -> bool {
    let attempt = || {
        let own = process::own_tid();
        let former = host.policy(own)?;
        host.set_policy(own, Policy::Idle)?;
        host.set_policy(own, former)
    };
    thread::scope(|scope| matches!(scope.spawn(attempt).join(), Ok(Ok(()))))
}
