//! What an interruption costs beside the time that is meant to be taken.
//!
//! A witness, a thread that does nothing but read the clock, spins on every core of the vnode
//! at once, in its groups, while the method works as it will later: the cost of one core alone
//! is wrong on two. What it sees missing, less what was meant to be taken, is the cost.

use std::collections::BTreeMap;
use std::thread;

use pinfold_host::Clock;
use pinfold_model::{CpuSet, PuId};

use crate::{Release, SpeedError};

/// Gaps that a witness saw, in nanoseconds, by PU.
pub type Gaps = BTreeMap<PuId, Vec<u64>>;

/// Programs that are started for a method.
pub trait Outside: Sync {
    /// Runs a witness thread on each of these PUs, in the groups whose
    /// `cgroup.procs` are given; the window is for how long, and from what length gaps are told.
    ///
    /// # Errors
    /// [`SpeedError::Outside`].
    fn gaps(
        &self,
        entries: &[String],
        pus: &CpuSet,
        window_ns: (u64, u64),
    ) -> Result<Gaps, SpeedError>;

    /// Starts a thread that burns CPU time on one PU in these groups until it is dropped, or
    /// this process ends.
    ///
    /// # Errors
    /// [`SpeedError::Outside`].
    fn burn(&self, entries: &[String], pu: PuId) -> Result<Box<dyn Burner>, SpeedError>;

    /// Starts a process that calls [`release`](crate::release) when it has not heard a beat for
    /// 100 ms, or when its pipe closes: nobody stays frozen or stopped behind a supervisor
    /// that was killed or stopped.
    ///
    /// # Errors
    /// [`SpeedError::Outside`].
    fn sentinel(&self, what: Release) -> Result<Box<dyn Sentinel>, SpeedError>;
}

/// A sentinel that was started; it ends when this is dropped, and releases once more before.
pub trait Sentinel {
    /// Tells it that the supervisor works.
    ///
    /// # Errors
    /// [`SpeedError::Outside`] if it is gone.
    fn beat(&mut self) -> Result<(), SpeedError>;
}

/// A burner that was started; it ends when this is dropped.
pub trait Burner {
    /// Its process.
    fn pid(&self) -> pinfold_model::Tid;
}

/// The witness looks for so long.
const WITNESS_NS: u64 = 600_000_000;
/// How often the methods are told meanwhile that their supervisor works.
const BEAT_NS: u64 = 10_000_000;

/// Where a witness is to look.
pub(crate) struct Look {
    pub(crate) entries: Vec<String>,
    pub(crate) pus: CpuSet,
    pub(crate) floor_ns: u64,
}

/// Has witnesses look in all vnodes at once, as all of them will run at once.
pub(crate) fn witness(
    (outside, clock): (&dyn Outside, &dyn Clock),
    looks: &[Look],
    beat: &mut dyn FnMut() -> Result<(), SpeedError>,
) -> Result<Vec<Gaps>, SpeedError> {
    thread::scope(|scope| {
        let looking: Vec<_> = looks
            .iter()
            .map(|look| {
                let window_ns = (WITNESS_NS, look.floor_ns);
                scope.spawn(move || outside.gaps(&look.entries, &look.pus, window_ns))
            })
            .collect();
        while looking.iter().any(|one| !one.is_finished()) {
            beat()?;
            clock.sleep_ns(BEAT_NS);
        }
        let panicked = |_| SpeedError::Outside { what: "the witness", why: "it panicked".into() };
        looking.into_iter().map(|one| one.join().map_err(panicked)?).collect()
    })
}

/// Mean of what lies between the 5th and the 95th percentile: what disturbs the witness from
/// outside now and then is not the method's cost. `None` of fewer than 20.
pub(crate) fn trimmed_mean(values: &[u64]) -> Option<u64> {
    if values.len() < 20 {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let cut = sorted.len() / 20;
    let kept = sorted.get(cut..sorted.len() - cut)?;
    let sum: u64 = kept.iter().sum();
    sum.checked_div(u64::try_from(kept.len()).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outliers_do_not_count() {
        let mut values: Vec<u64> = vec![100; 95];
        values.extend([9_000_000; 5]);
        assert_eq!(trimmed_mean(&values), Some(100));
        assert_eq!(trimmed_mean(&values[..19]), None);
        assert_eq!(trimmed_mean(&[]), None);
    }
}
