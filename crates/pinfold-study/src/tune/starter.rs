//! The interface of a tuning run to the code that starts and measures a machine.

use pinfold_model::LoadState;

use crate::engine::TrialError;
use crate::store::{CellResult, Phase};

/// A request for one start.
#[derive(Clone, Debug, PartialEq)]
pub struct StartRequest {
    /// Index of the candidate whose plan is used. For the baseline's twin this is the baseline's:
    /// the starter cannot distinguish them.
    pub candidate: usize,
    /// Phase of the run.
    pub phase: Phase,
    /// Block, from 0.
    pub block: u32,
    /// Load states to measure, in this order.
    pub load_states: Vec<LoadState>,
    /// Observation time of each benchmark, per load state (seconds).
    pub observation_s: f64,
}

/// Result of a start.
#[derive(Clone, Debug, PartialEq)]
pub struct StartResult {
    /// One per load state of the request, in any order.
    pub cells: Vec<CellResult>,
}

/// Starts the virtual machine under a candidate's plan, measures, and undoes all changes.
pub trait Starter {
    /// Runs one start. When this returns, no machine, load or pinning is left.
    ///
    /// # Errors
    /// [`TrialError`] with the cause.
    fn start(&mut self, request: &StartRequest) -> Result<StartResult, TrialError>;
}
