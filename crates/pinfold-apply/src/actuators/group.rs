//! A cgroup directory that Pinfold made.
//!
//! Only directories with Pinfold's name prefix are ever removed, whatever the journal contains. A
//! group is removed when it is empty. Remaining tasks are moved out first, repeatedly, because
//! children of tasks that fork meanwhile start in the group (a bounded number of tries, with a
//! pause).

use pinfold_host::{Host, HostError, HostMut, paths};
use std::io::ErrorKind;

use super::{ChangeOutcome, ReadBack, Reverted, UndoContext, cgroup_procs};

/// Prefix of the names of Pinfold's groups.
pub(crate) const PREFIX: &str = "pinfold-";

/// Maximum number of tries to empty and remove a group, and the pause between two tries.
const TRIES: usize = 50;
const PAUSE_NS: u64 = 4_000_000;

pub(super) fn apply(host: &dyn HostMut, path: &str) -> Result<ChangeOutcome, HostError> {
    host.make_dir(path)?;
    Ok(ChangeOutcome::Done(Vec::new()))
}

pub(super) fn verify(host: &dyn Host, path: &str) -> ReadBack {
    if host.exists(&paths::cgroup_procs(path)) {
        ReadBack::AsAsked
    } else {
        ReadBack::Other {
            wanted: "a cgroup".to_owned(),
            found: "a directory without files".to_owned(),
        }
    }
}

pub(super) fn revert(past: &UndoContext<'_>, path: &str) -> Result<Reverted, HostError> {
    let name = path.rsplit('/').next().unwrap_or(path);
    if !name.starts_with(PREFIX) {
        let why = "the journal lists a group for removal that Pinfold did not create".to_owned();
        return Err(HostError::Untrusted { path: path.to_owned(), why });
    }
    if !past.host.exists(path) {
        return Ok(Reverted::Nothing);
    }
    let mut last = None;
    for _ in 0..TRIES {
        let moved = cgroup_procs::evacuate(past, path)?;
        match past.host.remove_dir(path) {
            Ok(()) => return Ok(Reverted::Restored),
            Err(error) if error.is_gone() => return Ok(Reverted::Nothing),
            Err(error) if is_busy(&error) => last = Some(error),
            Err(error) => return Err(error),
        }
        if moved == 0 {
            // A task in it is about to exit, or it contains groups of another program.
            past.clock.sleep_ns(PAUSE_NS);
        }
    }
    last.map_or(Ok(Reverted::Nothing), Err)
}

fn is_busy(error: &HostError) -> bool {
    let HostError::File { source, .. } = error else { return false };
    source.kind() == ErrorKind::ResourceBusy
}
