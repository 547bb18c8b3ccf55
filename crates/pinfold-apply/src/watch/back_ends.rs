//! When to query the roles because of a process that serves a machine and was started again.
//!
//! No event that a watch receives reports the end or the start of such a process: it is no thread
//! of the machine, and none of the machine's threads creates it. So the known ones are counted, and
//! while one is missing the roles are queried.

use std::collections::BTreeSet;

use pinfold_host::Host;
use pinfold_model::{Role, Tid};

use crate::tasks::{self, Target};

/// How many times the roles are queried for a process that has ended: its owner may have stopped
/// it, so that none follows.
const MAX_QUERIES: u32 = 100;

/// State of the search for processes outside a machine's own.
#[derive(Debug, Default)]
pub(super) struct BackEnds {
    /// Number of processes that run or are missing.
    expected: usize,
    /// How many times the roles were queried since the last one ended.
    asked: u32,
}

impl BackEnds {
    /// True if the roles should be queried because a process is missing. `threads` are those of the
    /// machine's own process.
    pub(super) fn are_missing(
        &mut self,
        host: &dyn Host,
        target: &Target,
        threads: &BTreeSet<Tid>,
    ) -> bool {
        let running = count_processes(host, target, threads);
        if running >= self.expected || self.asked >= MAX_QUERIES {
            *self = Self { expected: running, asked: 0 };
            return false;
        }
        self.asked += 1;
        true
    }
}

/// Number of processes of the known worker threads that are not among `threads`. One that cannot be
/// read counts as ended, which also causes a query.
fn count_processes(host: &dyn Host, target: &Target, threads: &BTreeSet<Tid>) -> usize {
    let mut known: BTreeSet<Tid> = threads.clone();
    let mut processes = 0;
    for (task, role) in &target.threads {
        let is_outside = *role == Role::Worker && !known.contains(&task.tid);
        if is_outside && tasks::is_alive(host, *task).is_ok_and(|alive| alive) {
            processes += 1;
            known.extend(tasks::threads_of(host, task.tid).unwrap_or_default());
        }
    }
    processes
}
