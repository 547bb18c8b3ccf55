//! `pinfold undo`: reverts active placements, also after a crash.

use pinfold_model::Tid;
use pinfold_run::undo::{self, Selection};
use pinfold_run::{Failure, host};

use crate::cli::UndoArgs;

/// Undoes one placement, or all, or all without a live process that is responsible for them.
pub fn undo(arguments: &UndoArgs, state: Option<&str>) -> Result<(), Failure> {
    if let Some(pid) = arguments.reset {
        return undo::reset(Tid(pid), &host::state(state)?);
    }
    let selection = match &arguments.id {
        _ if arguments.left => Selection::Left,
        Some(wanted) => Selection::Named(wanted),
        None if arguments.all => Selection::All,
        None => Selection::Only,
    };
    undo::undo(selection, state)
}
