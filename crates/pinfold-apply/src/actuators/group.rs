//! A cgroup directory of ours.
//!
//! Only directories whose name begins with ours are ever removed, whatever the journal says.
//! A group is removed when it is empty: whoever is still in it is moved out first, again and
//! again, because what forks meanwhile is born inside (bounded, with a pause for the ending).

use pinfold_host::{Host, HostError, HostMut, paths};
use std::io::ErrorKind;

use super::{Reverted, Shown, Taken, UndoContext, cgroup_procs};

/// What the names of our groups begin with.
pub(crate) const PREFIX: &str = "pinfold-";

/// Tries to empty and remove a group, and the pause between two of them.
const TRIES: usize = 50;
const PAUSE_NS: u64 = 4_000_000;

pub(super) fn take(host: &dyn HostMut, path: &str) -> Result<Taken, HostError> {
    host.make_dir(path)?;
    Ok(Taken::Done(Vec::new()))
}

pub(super) fn verify(host: &dyn Host, path: &str) -> Shown {
    if host.exists(&paths::cgroup_procs(path)) {
        Shown::AsAsked
    } else {
        Shown::Other {
            wanted: "a cgroup".to_owned(),
            found: "a directory without files".to_owned(),
        }
    }
}

pub(super) fn revert(past: &UndoContext<'_>, path: &str) -> Result<Reverted, HostError> {
    let name = path.rsplit('/').next().unwrap_or(path);
    if !name.starts_with(PREFIX) {
        let why = "the journal asks to remove a group that is not Pinfold's".to_owned();
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
            // Somebody in it is just ending, or it has groups of somebody else in it.
            past.clock.sleep_ns(PAUSE_NS);
        }
    }
    last.map_or(Ok(Reverted::Nothing), Err)
}

fn is_busy(error: &HostError) -> bool {
    let HostError::File { source, .. } = error else { return false };
    source.kind() == ErrorKind::ResourceBusy
}
