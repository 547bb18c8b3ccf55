//! What every method can do.

use pinfold_model::{PuId, Speed};

use crate::SpeedError;
use crate::calibrate::Costs;

/// What a core of a vnode has had since the method started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreAccount {
    /// The core's PU.
    pub pu: PuId,
    /// Time that the vnode's tasks had the core or wanted it, as far as the method can tell.
    pub wanted_ns: u64,
    /// Part of it that was taken away.
    pub taken_ns: u64,
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

    /// Hears what the witness found.
    ///
    /// # Errors
    /// [`SpeedError::Calibration`] if it could not work on a core.
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

    /// What the cores have had, by ascending PU; empty if the method keeps no account.
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
