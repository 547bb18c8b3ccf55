//! The paths that a journal may name.
//!
//! Undo reads a file before it writes it, and a path of a damaged journal may lead to a pipe, where
//! reading never ends. Only tunables and files of groups are read; the host checks once more, on
//! the open file, that it is one of the kernel.

use pinfold_host::{Host, HostError, mountinfo, paths};
use pinfold_model::Undo;

/// Fails if the undo of a step names a path at which no tunable and no group is.
pub(super) fn require(host: &dyn Host, undo: &Undo) -> Result<(), HostError> {
    let Some(path) = path_of(undo) else { return Ok(()) };
    let has_dots = path.split('/').any(|part| part == ".." || part == ".");
    if !has_dots
        && (paths::CHANGEABLE.iter().any(|root| path.starts_with(root)) || is_in_mount(host, path)?)
    {
        return Ok(());
    }
    let why = "the journal names this path, but it belongs to no tunable or cgroup; it was not \
               changed";
    Err(HostError::Unexpected { path: path.to_owned(), why: why.to_owned() })
}

fn path_of(undo: &Undo) -> Option<&str> {
    match undo {
        Undo::WriteFile { path, .. } | Undo::RemoveGroup { path } => Some(path),
        Undo::MoveTasks { mount, .. } => Some(mount),
        Undo::ContinueProcesses { group, .. } => Some(group),
        Undo::SetAffinity { .. }
        | Undo::SetPolicy { .. }
        | Undo::WriteSetting { .. }
        | Undo::LeavePages { .. } => None,
    }
}

/// True for a path in a cgroup hierarchy or in resctrl, wherever it is mounted.
fn is_in_mount(host: &dyn Host, path: &str) -> Result<bool, HostError> {
    let file = paths::own_mountinfo();
    let mounts = mountinfo::parse(&host.read_text(&file)?).map_err(|error| error.at(&file))?;
    let mut groups =
        mounts.iter().filter(|one| matches!(one.kind.as_str(), "cgroup" | "cgroup2" | "resctrl"));
    Ok(groups.any(|one| {
        let below = path.strip_prefix(one.path.trim_end_matches('/'));
        below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }))
}
