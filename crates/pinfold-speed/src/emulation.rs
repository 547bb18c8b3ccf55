//! What every method can do.

use std::collections::BTreeMap;

use pinfold_model::{PuId, Speed};

use crate::SpeedError;
use crate::calibrate::{Cost, Costs};

/// What a core of a vnode has had since the method started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreAccount {
    /// The core's CPU.
    pub pu: PuId,
    /// Time that the vnode's tasks had the core or wanted it, as far as the method can tell.
    pub wanted_ns: u64,
    /// Part of it that was taken away.
    pub taken_ns: u64,
}

/// What a method takes on a core now, and what it believes that to cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Millionths of the time that are taken, the cost not included.
    pub share: u32,
    /// Length of a turn.
    pub period_ns: u64,
    /// Millionths of the time that a task which never sleeps has by its own account.
    pub left: u32,
    /// The cost that counts.
    pub cost: Cost,
    /// True if that was measured.
    pub is_known: bool,
}

/// A method at work on one vnode.
///
/// Dropping it ends it; [`Emulation::stop`] also tells what failed.
pub trait Emulation {
    /// Length of a turn while so many millionths are taken, if a witness is to look what that
    /// costs; `None` if not. Before the first [`Emulation::set`].
    fn turn_to_witness(&self, millionths: u32) -> Option<u64> {
        let _unused = millionths;
        None
    }

    /// Takes so many millionths of the time from now on, of all cores, whatever it costs; only as many
    /// as [`Emulation::turn_to_witness`] has a turn for.
    ///
    /// # Errors
    /// [`SpeedError::Host`].
    fn take(&mut self, millionths: u32) -> Result<(), SpeedError> {
        let _unused = millionths;
        Ok(())
    }

    /// What it takes on each core now; none where it takes nothing, or its cost is not measured.
    fn turns(&self) -> BTreeMap<PuId, Turn> {
        BTreeMap::new()
    }

    /// Has other costs from now on. [`Emulation::set`] has to follow.
    ///
    /// # Errors
    /// [`SpeedError::Host`].
    fn renew(&mut self, costs: &BTreeMap<PuId, Cost>) -> Result<(), SpeedError> {
        let _unused = costs;
        Ok(())
    }

    /// The costs that it has, with what it has seen of them itself.
    fn costs(&self) -> BTreeMap<PuId, Cost> {
        BTreeMap::new()
    }

    /// Begins with these costs; those of a core that is missing are not known.
    ///
    /// # Errors
    /// [`SpeedError::Host`].
    fn learn(&mut self, costs: &Costs) -> Result<(), SpeedError> {
        let _unused = costs;
        Ok(())
    }

    /// Whether [`Emulation::set`] would take these speeds.
    ///
    /// # Errors
    /// [`SpeedError::OutOfReach`].
    fn can(&self, speeds: &[(PuId, Speed)]) -> Result<(), SpeedError> {
        let _unused = speeds;
        Ok(())
    }

    /// Sets the speed of each core, from now on.
    ///
    /// # Errors
    /// [`SpeedError::OutOfReach`], then nothing is changed; [`SpeedError::Host`].
    fn set(&mut self, speeds: &[(PuId, Speed)]) -> Result<(), SpeedError>;

    /// Does what is due, and vouches for the supervisor. Returns when to be called next.
    ///
    /// # Errors
    /// [`SpeedError::Host`] if the host refuses what it took before.
    fn turn(&mut self, now_ns: u64) -> Result<u64, SpeedError>;

    /// What the cores have had, by ascending CPU; empty if the method keeps no account.
    ///
    /// # Errors
    /// [`SpeedError::Host`].
    fn observe(&self) -> Result<Vec<CoreAccount>, SpeedError>;

    /// In words: what it has measured of itself and how it works now (`cost 5.1 µs`).
    fn notes(&self) -> Vec<String>;

    /// Ends it; the vnode is at full speed again.
    ///
    /// # Errors
    /// [`SpeedError::Host`] with what could not be ended.
    fn stop(&mut self) -> Result<(), SpeedError>;
}
