//! The interface of a study to the code that places and runs a workload.

use pinfold_model::Figure;

use super::cells::{Cell, Cells};
use super::design::TrialSlot;
use super::file::Study;
use crate::engine::{NextStep, TrialError};

/// A request for one start: a placement, a virtual node or a machine, with its trials.
#[derive(Clone, Copy, Debug)]
pub struct StartRequest<'a> {
    /// The study of the trials.
    pub study: &'a Study,
    /// All its cells.
    pub cells: &'a Cells,
    /// The trials, in this order. They differ only in shared factors.
    pub trials: &'a [TrialSlot],
}

/// A trial as the runner sees it. A twin cannot be distinguished from its cell.
#[derive(Clone, Copy, Debug)]
pub struct TrialRequest<'a> {
    /// The study of the trial.
    pub study: &'a Study,
    /// The cell of the trial.
    pub cell: &'a Cell,
    /// Block, from 0.
    pub block: u32,
}

impl<'a> StartRequest<'a> {
    /// The trials of the request.
    pub fn requests(&self) -> impl Iterator<Item = TrialRequest<'a>> + use<'a> {
        let (study, cells) = (self.study, self.cells);
        let trials = self.trials.iter();
        trials.map(move |slot| TrialRequest {
            study,
            cell: &cells.all[slot.cell],
            block: slot.block,
        })
    }
}

/// Result of a trial.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialResult {
    /// Raw samples, including `t_full`.
    pub figures: Vec<Figure>,
    /// Duration of the workload itself, including its warm-up runs (ns).
    pub work_ns: u64,
}

/// Called with each trial of a start when it ends, by its index in the request.
pub type Finished<'f> = dyn FnMut(usize, Result<TrialResult, TrialError>) -> NextStep + 'f;

/// Places, runs and measures a workload, and undoes all changes.
pub trait Runner {
    /// Why a cell cannot be run on this host; `None` if it can.
    fn refusal(&self, study: &Study, cell: &Cell) -> Option<String>;

    /// Runs one start. `finished` is called after each trial. When this returns, no process, load,
    /// pinning or slowed core is left.
    ///
    /// # Errors
    /// [`TrialError`] if the start itself failed; trials that were not passed to `finished` have
    /// then failed.
    fn start(
        &mut self,
        request: &StartRequest<'_>,
        finished: &mut Finished<'_>,
    ) -> Result<(), TrialError>;
}
