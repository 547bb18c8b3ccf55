//! The engine's door of a tuning run: what starts and measures a machine.

use pinfold_model::LoadState;

use crate::engine::TrialError;
use crate::store::{CellResult, Phase};

/// One start that is to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct StartRequest {
    /// Index of the candidate whose plan is to be used. For the baseline's twin this is
    /// the baseline's: the starter cannot tell them apart.
    pub candidate: usize,
    /// Part of the run.
    pub phase: Phase,
    /// Block, from 0.
    pub block: u32,
    /// Load states to measure, in this order.
    pub load_states: Vec<LoadState>,
    /// Time that each ruler looks, per load state (seconds).
    pub observation_s: f64,
}

/// What a start measured.
#[derive(Clone, Debug, PartialEq)]
pub struct StartResult {
    /// One per load state of the request, in any order.
    pub cells: Vec<CellResult>,
}

/// Starts the virtual machine under a candidate's plan, measures, and takes all back.
pub trait Starter {
    /// Makes one start. It is over when this returns: no machine, load or pin is left.
    ///
    /// # Errors
    /// [`TrialError`] with what happened.
    fn start(&mut self, request: &StartRequest) -> Result<StartResult, TrialError>;
}
