//! Which gaps were waits for a CPU by the kernel's own account: `run_delay` of
//! `/proc/PID/task/TID/schedstat` grew by their length.
//!
//! <https://docs.kernel.org/scheduler/sched-stats.html>

use std::collections::{BTreeMap, BTreeSet};

use pinfold_host::{GapKind, Host, RawGap, paths, schedstat};
use pinfold_model::Tid;

/// The account of each thread, as last read.
#[derive(Clone, Debug, Default)]
pub struct Delays {
    last_ns: BTreeMap<Tid, u64>,
    queued: BTreeSet<(Tid, u64)>,
}

impl Delays {
    /// The accounts of these threads now.
    pub fn read(host: &dyn Host, tids: impl Iterator<Item = Tid>) -> Self {
        let last_ns = tids.filter_map(|tid| Some((tid, run_delay_ns(host, tid)?))).collect();
        Self { last_ns, queued: BTreeSet::new() }
    }

    /// Compares the accounts with gaps that ended since they were last read. Only the threads of
    /// these gaps are read.
    pub fn compare(&mut self, host: &dyn Host, gaps: &[RawGap]) {
        let mut waits: BTreeMap<Tid, Vec<&RawGap>> = BTreeMap::new();
        for gap in gaps.iter().filter(|gap| wait_ns(gap) > 0) {
            waits.entry(gap.tid).or_default().push(gap);
        }
        for (tid, waits) in waits {
            // It has ended: nothing is known of it.
            let Some(now_ns) = run_delay_ns(host, tid) else { continue };
            // A new thread began at 0.
            let before_ns = self.last_ns.insert(tid, now_ns).unwrap_or(0);
            let sum_ns = waits.iter().fold(0_u64, |sum, gap| sum.saturating_add(wait_ns(gap)));
            // The account does not include the interrupt that preempted the thread.
            if now_ns.saturating_sub(before_ns) >= sum_ns - sum_ns / 10 {
                self.queued.extend(waits.iter().map(|gap| (tid, gap.until_ns)));
            }
        }
    }

    /// The threads and the ends of the gaps that were waits.
    pub fn waits(&self) -> &BTreeSet<(Tid, u64)> {
        &self.queued
    }
}

/// For how long it was runnable without a CPU.
fn wait_ns(gap: &RawGap) -> u64 {
    let from_ns = match gap.kind {
        GapKind::Waiting { .. } => gap.from_ns,
        GapKind::Stopped | GapKind::Blocked | GapKind::Awaiting => {
            gap.woken_ns.unwrap_or(gap.until_ns)
        }
        GapKind::Interrupted | GapKind::Unseen | GapKind::Exit => gap.until_ns,
    };
    gap.until_ns.saturating_sub(from_ns)
}

/// `None` if the thread has ended, or the kernel does not count.
fn run_delay_ns(host: &dyn Host, tid: Tid) -> Option<u64> {
    let text = host.read_text(&paths::task_schedstat(tid, tid)).ok()?;
    schedstat::parse(&text).ok().map(|times| times.delay_ns)
}
