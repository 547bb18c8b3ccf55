//! Services that the methods need from outside of this crate, and the results of reference runs.

use std::collections::BTreeMap;

use pinfold_model::{CpuSet, PuId};

use crate::cleanup::Cleanup;
use crate::error::SpeedError;
use crate::stored_costs::{Calibration, Calibrations};

/// Results of a reference run, by CPU.
pub type Throughput = BTreeMap<PuId, ReferenceRun>;

/// Result of a thread that never sleeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReferenceRun {
    /// Windows of equal length.
    pub windows: Vec<Window>,
    /// Its own time in the whole run (ns): the time without interruptions.
    pub total_own_ns: u64,
    /// CPU time of the thread (ns).
    pub cpu_ns: u64,
    /// Elapsed time (ns).
    pub elapsed_ns: u64,
}

/// A time window of a reference run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Amount of work.
    pub units: u64,
    /// Own time (ns): the time without interruptions.
    pub own_ns: u64,
    /// Length (ns).
    pub span_ns: u64,
}

impl ReferenceRun {
    /// True if no other task ran on the CPU (CPU time of at least 90 %).
    pub(crate) fn was_alone(&self) -> bool {
        self.had(1_000_000)
    }

    /// True if other tasks took at most a fiftieth of the CPU.
    pub(crate) fn had_all(&self) -> bool {
        self.cpu_ns.saturating_mul(50) >= self.elapsed_ns.saturating_mul(49)
    }

    /// True if it got at least nine tenths of this share of the time, in millionths.
    pub(crate) fn had(&self, millionths: u32) -> bool {
        let least = u128::from(self.elapsed_ns) * u128::from(millionths) * 9;
        u128::from(self.cpu_ns) * 10_000_000 >= least
    }

    /// Own time per second of CPU time (ns), which does not depend on other tasks; `None` if it had
    /// less than a fiftieth of the CPU.
    pub(crate) fn own_per_cpu_second(&self) -> Option<u64> {
        let had_enough = self.cpu_ns > 0 && self.cpu_ns.saturating_mul(50) >= self.elapsed_ns;
        let rate = u128::from(self.total_own_ns) * 1_000_000_000 / u128::from(self.cpu_ns.max(1));
        u64::try_from(rate).ok().filter(|rate| had_enough && *rate > 0)
    }

    /// Own time per second of elapsed time (ns), if it got all of the time but for a fiftieth of
    /// this share, in millionths.
    pub(crate) fn unloaded_work_rate(&self, millionths: u32) -> Option<u64> {
        let least = u128::from(self.elapsed_ns) * u128::from(millionths) * 49;
        let had_it = u128::from(self.cpu_ns) * 50_000_000 >= least;
        let rate = u128::from(self.total_own_ns) * 1_000_000_000;
        let rate = rate.checked_div(u128::from(self.elapsed_ns))?;
        u64::try_from(rate).ok().filter(|_| had_it)
    }

    /// A time in a window as a share of the window, in millionths.
    pub(crate) fn free(&self, own_ns: u64) -> u32 {
        let span_ns = self.windows.first().map_or(0, |window| window.span_ns);
        let free = own_ns.saturating_mul(1_000_000).checked_div(span_ns).unwrap_or(0);
        u32::try_from(free.min(1_000_000)).unwrap_or(0)
    }

    /// The median of its own time per window; `None` with fewer than four windows.
    pub(crate) fn own_ns(&self) -> Option<u64> {
        median(self.windows.iter().map(|window| window.own_ns).collect())
    }
}

/// How thoroughly costs are measured before a vnode starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// In 0.04 s, unless a cost is stored; more while the vnode runs.
    Brief,
    /// For about 8 s, unless a cost is stored that was measured so.
    Full,
    /// For about 8 s in any case.
    Again,
}

/// Services that methods need from outside of this crate: helper programs, and storage for measured
/// costs.
pub trait HelperSpawner: Sync {
    /// The costs that were measured on this machine since its boot; empty if they are not stored.
    fn load_calibrations(&self) -> Calibrations {
        Calibrations::default()
    }

    /// How thoroughly costs are measured before a vnode starts.
    fn effort(&self) -> Effort {
        Effort::Full
    }

    /// Stores a measured cost.
    fn store_calibration(&self, calibration: &Calibration) {
        let _unused = calibration;
    }

    /// Reports a message about the start to the user.
    fn report(&self, message: &str) {
        let _unused = message;
    }

    /// Starts the same as [`HelperSpawner::measure_throughput`] in the background, with lower priority than
    /// every other task. `None` if costs are not measured while vnodes run.
    ///
    /// # Errors
    /// [`SpeedError::HelperSpawner`].
    fn start_reference_run(
        &self,
        entries: &[String],
        pus: &CpuSet,
        duration_ns: u64,
    ) -> Result<Option<Box<dyn BackgroundReferenceRun>>, SpeedError> {
        let _unused = (entries, pus, duration_ns);
        Ok(None)
    }

    /// Runs a reference thread on each of these CPUs for `duration_ns`, in the groups with these
    /// `cgroup.procs` files, and returns the results.
    ///
    /// # Errors
    /// [`SpeedError::HelperSpawner`].
    fn measure_throughput(
        &self,
        entries: &[String],
        pus: &CpuSet,
        duration_ns: u64,
    ) -> Result<Throughput, SpeedError>;

    /// Starts a thread that burns CPU time on one CPU in these groups. It ends when it is dropped,
    /// or when this process ends or is stopped.
    ///
    /// # Errors
    /// [`SpeedError::HelperSpawner`].
    fn spawn_burner(&self, entries: &[String], pu: PuId) -> Result<Box<dyn Burner>, SpeedError>;

    /// Starts a watchdog process that calls [`release`](crate::release) after 100 ms without a
    /// heartbeat, or when its pipe is closed. Thus no task stays frozen or stopped if the
    /// supervisor is killed or stopped.
    ///
    /// # Errors
    /// [`SpeedError::HelperSpawner`].
    fn spawn_watchdog(&self, what: Cleanup) -> Result<Box<dyn Watchdog>, SpeedError>;
}

/// A running watchdog; when it is dropped, it releases once more and ends.
pub trait Watchdog {
    /// Sends a heartbeat.
    ///
    /// # Errors
    /// [`SpeedError::HelperSpawner`] if the watchdog has ended.
    fn beat(&mut self) -> Result<(), SpeedError>;
}

/// A running reference run; it ends when this is dropped.
pub trait BackgroundReferenceRun {
    /// The results, once it has ended.
    ///
    /// # Errors
    /// [`SpeedError::HelperSpawner`] with the reason if it failed.
    fn poll(&mut self) -> Result<Option<Throughput>, SpeedError>;
}

/// A running burner; it ends when this is dropped.
pub trait Burner {
    /// Checks that it is still running.
    ///
    /// # Errors
    /// [`SpeedError::HelperSpawner`] with how it ended; reported once.
    fn check(&self) -> Result<(), SpeedError>;
}

fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied().filter(|_| values.len() >= 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_needs_some_windows() {
        assert_eq!(median(vec![1, 2, 3]), None);
        assert_eq!(median(vec![4, 1, 9, 2]), Some(4));
    }
}
