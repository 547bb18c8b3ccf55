//! The interface of a method.

use std::collections::BTreeMap;

use pinfold_model::{CpuSet, PuId, Speed};

use crate::SpeedError;
use crate::cost::{Cost, Costs};

/// Statistics of a core since the method started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreAccount {
    /// The core's CPU.
    pub pu: PuId,
    /// Time for which the vnode's tasks ran or were runnable there, as far as the method knows
    /// (ns).
    pub wanted_ns: u64,
    /// Part of it that the method took (ns).
    pub taken_ns: u64,
    /// CPU time of the vnode's tasks there (ns), with what the method took of it; `None` if the
    /// method does not know it.
    pub ran_ns: Option<u64>,
}

/// What a method currently takes on a core, and the expected overhead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreShare {
    /// Share of the time that is taken, in millionths, without the overhead.
    pub share: u32,
    /// Period in nanoseconds.
    pub period_ns: u64,
    /// Share of the time that a task which never sleeps has as CPU time, in millionths.
    pub left: u32,
    /// The cost in use.
    pub cost: Cost,
    /// True if the cost is known.
    pub is_known: bool,
    /// True if the cost was measured fully.
    pub is_measured: bool,
}

/// Whose CPU time contains what a method takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargedTo {
    /// That of the vnode's tasks.
    Tasks,
    /// That of the method's own threads ([`Emulation::helper_times`]).
    Helpers,
}

/// The account of a method's own thread since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HelperTime {
    /// Its CPU time (ns).
    pub ran_ns: u64,
    /// What it counts as taken (ns).
    pub taken_ns: u64,
    /// Number of periods.
    pub turns: u64,
}

impl HelperTime {
    /// What it did since an earlier account.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            ran_ns: self.ran_ns.saturating_sub(earlier.ran_ns),
            taken_ns: self.taken_ns.saturating_sub(earlier.taken_ns),
            turns: self.turns.saturating_sub(earlier.turns),
        }
    }
}

/// A running method of one vnode.
///
/// Dropping it stops it; [`Emulation::stop`] also reports errors.
pub trait Emulation {
    /// The period for taking a share of `millionths`, if the overhead is to be measured there;
    /// `None` if not. Call it before the first [`Emulation::set`].
    fn calibration_period(&self, millionths: u32) -> Option<u64> {
        let _unused = millionths;
        None
    }

    /// Whose CPU time contains what it takes, which shows the overhead next to other tasks too;
    /// `None` if only an idle CPU shows it.
    fn charged_to(&self) -> Option<ChargedTo> {
        None
    }

    /// The account of its own threads on each core; empty without such threads.
    ///
    /// # Errors
    /// [`SpeedError::Host`].
    fn helper_times(&self) -> Result<BTreeMap<PuId, HelperTime>, SpeedError> {
        Ok(BTreeMap::new())
    }

    /// Takes this share of all cores from now on, without correction for the overhead. Only for
    /// shares for which [`Emulation::calibration_period`] returns a period.
    ///
    /// # Errors
    /// [`SpeedError::Host`].
    fn steal_share(&mut self, millionths: u32) -> Result<(), SpeedError> {
        let _unused = millionths;
        Ok(())
    }

    /// What it currently takes on each core. Empty if it takes nothing, or if its overhead is not
    /// measured.
    fn taken_shares(&self) -> BTreeMap<PuId, CoreShare> {
        BTreeMap::new()
    }

    /// Keeps the periods as they are during a reference run.
    fn hold_periods(&mut self, is_held: bool) {
        let _unused = is_held;
    }

    /// Replaces the costs. [`Emulation::set`] has to follow.
    ///
    /// # Errors
    /// [`SpeedError::Host`].
    fn replace_costs(&mut self, costs: &BTreeMap<PuId, Cost>) -> Result<(), SpeedError> {
        let _unused = costs;
        Ok(())
    }

    /// The current costs, including what the method measured itself.
    fn costs(&self) -> Costs {
        Costs::new()
    }

    /// The CPUs where the method's own cost is not known, so that its statistics lack it.
    fn uncalibrated_cpus(&self) -> CpuSet {
        CpuSet::new()
    }

    /// Sets the initial costs; those of missing cores are unknown.
    ///
    /// # Errors
    /// [`SpeedError::Host`].
    fn set_costs(&mut self, costs: &Costs) -> Result<(), SpeedError> {
        let _unused = costs;
        Ok(())
    }

    /// Checks whether [`Emulation::set`] would accept these speeds.
    ///
    /// # Errors
    /// [`SpeedError::OutOfReach`].
    fn check_speeds(&self, speeds: &[(PuId, Speed)]) -> Result<(), SpeedError> {
        let _unused = speeds;
        Ok(())
    }

    /// Sets the speed of these cores, from now on.
    ///
    /// # Errors
    /// [`SpeedError::OutOfReach`], and nothing is changed; [`SpeedError::Host`].
    fn set(&mut self, speeds: &[(PuId, Speed)]) -> Result<(), SpeedError>;

    /// Does what is due and sends a heartbeat. Returns the time of the next call.
    ///
    /// # Errors
    /// [`SpeedError::Host`] if the host refuses an operation.
    fn tick(&mut self, now_ns: u64) -> Result<u64, SpeedError>;

    /// Statistics of the cores by ascending CPU; empty if the method has none.
    ///
    /// # Errors
    /// [`SpeedError::Host`].
    fn observe(&self) -> Result<Vec<CoreAccount>, SpeedError>;

    /// Notes on its measurements and its current state, in words (`cost 5.1 µs`).
    fn notes(&self) -> Vec<String>;

    /// Stops the method; the vnode is at full speed again.
    ///
    /// # Errors
    /// [`SpeedError::Host`] with the first error.
    fn stop(&mut self) -> Result<(), SpeedError>;
}
