//! The two doors of the engine: what starts and measures a machine, and who watches.

use pinfold_model::LoadState;

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

/// How bad a failed start is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartFailure {
    /// This start failed; another attempt or another candidate may do.
    Failed,
    /// No start can succeed: QEMU is missing, a right is missing. The run stops, the
    /// start is not recorded.
    Fatal,
}

/// A start that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StartError {
    /// How bad it is.
    pub failure: StartFailure,
    /// What happened, with QEMU's own words if it had any.
    pub message: String,
    /// What the user can do next.
    pub hint: Option<String>,
}

impl StartError {
    /// A failure of this start alone.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { failure: StartFailure::Failed, message: message.into(), hint: None }
    }

    /// A failure that every start would share.
    pub fn fatal(message: impl Into<String>) -> Self {
        Self { failure: StartFailure::Fatal, message: message.into(), hint: None }
    }

    /// The same failure with a way out.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Starts the virtual machine under a candidate's plan, measures, and takes all back.
pub trait Starter {
    /// Makes one start. It is over when this returns: no machine, load or pin is left.
    ///
    /// # Errors
    /// [`StartError`] with what happened.
    fn start(&mut self, request: &StartRequest) -> Result<StartResult, StartError>;
}

/// What has just happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A start begins.
    Begins,
    /// It was measured and saved.
    Done,
    /// It failed and is tried once more.
    Retries {
        /// The first attempt's message.
        message: String,
    },
    /// It failed again; that is recorded.
    Failed {
        /// The last message.
        message: String,
    },
    /// It cannot win any more and is not started again.
    Dropped {
        /// Name of the one that it cannot beat.
        leader: String,
        /// Median ratio to its number.
        ratio: f64,
    },
    /// The screening has ended; these go on (baseline and twin besides).
    Kept {
        /// Names.
        names: Vec<String>,
    },
}

/// Where the run is.
#[derive(Clone, Debug, PartialEq)]
pub struct Update<'a> {
    /// What has just happened.
    pub event: Event,
    /// Part of the run.
    pub phase: Phase,
    /// Block, from 0.
    pub block: u32,
    /// Name of the candidate; empty for [`Event::Kept`].
    pub name: &'a str,
    /// Starts that have ended, in all sessions.
    pub done: u32,
    /// Starts of the whole run, as far as it is known.
    pub total: u32,
    /// Time left (seconds), from the measured durations once there are some.
    pub left_s: f64,
}

/// Watches a run.
pub trait Progress {
    /// Called at each [`Event`].
    fn update(&mut self, update: &Update<'_>);
}

impl<F: FnMut(&Update<'_>)> Progress for F {
    fn update(&mut self, update: &Update<'_>) {
        self(update);
    }
}
