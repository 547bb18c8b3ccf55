//! The two doors of the engine: what places and runs a workload, and who watches.

use pinfold_model::Figure;

use super::cells::{Cell, Cells};
use super::design::TrialSlot;
use super::file::Study;

/// One start that is to be made: a placement, a virtual node or a machine, and the trials in it.
#[derive(Clone, Copy, Debug)]
pub struct StartRequest<'a> {
    /// The study.
    pub study: &'a Study,
    /// All its cells.
    pub cells: &'a Cells,
    /// The trials, in this order. All agree in what is not shared.
    pub trials: &'a [TrialSlot],
}

/// A trial of a start, as its runner sees it. A second look at a cell is like the first.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The study.
    pub study: &'a Study,
    /// The cell.
    pub cell: &'a Cell,
    /// Block, from 0.
    pub block: u32,
}

impl<'a> StartRequest<'a> {
    /// Its trials.
    pub fn wanted(&self) -> impl Iterator<Item = Wanted<'a>> + use<'a> {
        let (study, cells) = (self.study, self.cells);
        let trials = self.trials.iter();
        trials.map(move |slot| Wanted { study, cell: &cells.all[slot.cell], block: slot.block })
    }
}

/// What a trial measured.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialResult {
    /// Raw samples; `t_full` among them.
    pub figures: Vec<Figure>,
    /// Time that the workload itself took, its warm-up runs too (ns).
    pub work_ns: u64,
}

/// A trial that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TrialError {
    /// True if no trial can succeed: the run stops, this one is not recorded.
    pub fatal: bool,
    /// What happened, with the program's own words if it had any.
    pub message: String,
    /// What the user can do next.
    pub hint: Option<String>,
}

impl TrialError {
    /// A failure of this trial alone.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { fatal: false, message: message.into(), hint: None }
    }

    /// A failure that every trial would share.
    pub fn fatal(message: impl Into<String>) -> Self {
        Self { fatal: true, message: message.into(), hint: None }
    }

    /// The same failure with a way out.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// With the next trial.
    GoOn,
    /// Not: take everything back and return.
    Stop,
}

/// Told of each trial of a start when it ends, by its place in the request.
pub type Finished<'f> = dyn FnMut(usize, Result<TrialResult, TrialError>) -> Next + 'f;

/// Places, runs, measures, and takes all back.
pub trait Runner {
    /// Why a cell cannot be run on this host; `None` if it can.
    fn refusal(&self, study: &Study, cell: &Cell) -> Option<String>;

    /// Makes one start. `finished` is called after each trial. It is over when this returns:
    /// no process, load, pin or slowed core is left.
    ///
    /// # Errors
    /// [`TrialError`] if the start itself failed; trials that were not told of have then failed.
    fn start(
        &mut self,
        request: &StartRequest<'_>,
        finished: &mut Finished<'_>,
    ) -> Result<(), TrialError>;
}

/// What has just happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A trial was measured and saved.
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
    /// No further block begins.
    Ends {
        /// Why.
        reason: String,
    },
}

/// Where the run is.
#[derive(Clone, Debug, PartialEq)]
pub struct Update<'a> {
    /// What has just happened.
    pub event: Event,
    /// Block, from 0.
    pub block: u32,
    /// The cell's name.
    pub name: &'a str,
    /// Trials that have ended, in all sessions.
    pub done: u64,
    /// Trials of the whole run.
    pub total: u64,
    /// Time left (seconds), from what was measured once something was.
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
