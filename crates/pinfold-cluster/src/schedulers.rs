//! The batch systems of this program.

use crate::documents::Options;
use crate::scheduler::Kind;
use crate::slurm;

/// All batch systems.
pub const KINDS: &[Kind] = &[slurm::KIND];

/// The batch system of a run; a store that names none is for the first one.
pub fn kind_of(options: &Options) -> &'static Kind {
    KINDS.iter().find(|kind| options.scheduler.as_deref() == Some(kind.name)).unwrap_or(&KINDS[0])
}

/// The batch system that started this process; the first one if none did.
#[must_use]
pub fn kind_here() -> &'static Kind {
    KINDS.iter().find(|kind| (kind.is_here)()).unwrap_or(&KINDS[0])
}
