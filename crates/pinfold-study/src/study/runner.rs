//! The engine's door of a study: what places and runs a workload.

use pinfold_model::Figure;

use super::cells::{Cell, Cells};
use super::design::TrialSlot;
use super::file::Study;
use crate::engine::{Next, TrialError};

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
