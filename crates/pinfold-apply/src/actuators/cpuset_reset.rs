//! How a v2 `cpuset.cpus` becomes empty again, which means "as the parent".
//!
//! Before Linux 7.0 the kernel refuses the empty list (`ENOSPC`) while the group has tasks
//! (`validate_change` in `kernel/cgroup/cpuset.c`). The group then gets an explicit list of all of
//! its parent's CPUs and of the offline CPUs (the kernel refuses only CPUs that can never exist).
//! This has the same effect at once. When everything else is undone:
//! 1. If a step had enabled the controller for the group, it is disabled again and the list is
//!    gone.
//! 2. If no other program has settings in the sibling groups, the controller is disabled and
//!    enabled again for the parent's children, whose lists are then empty. If Pinfold is killed
//!    between the two, the next undo notices it, because files are missing that the journal names.
//! 3. Else the explicit list stays: the same effect until the parent gets other CPUs, but not the
//!    same bytes. This is reported.

use std::io::ErrorKind;

use pinfold_host::{HostError, paths};
use pinfold_model::{CpuSet, Finding};

use super::controllers::{DISABLE, ENABLE, has_cpuset};
use super::{Reverted, UndoContext};
use crate::cpusets::{self, Cpusets};
use crate::files::Files;
use crate::tasks;

const EMPTY: &[u8] = b"\n";

/// Gives a group its parent's CPUs: by an empty list, or temporarily by an explicit one.
pub(super) fn restore(
    past: &UndoContext<'_>,
    cpusets: &Cpusets,
    group: &str,
) -> Result<Reverted, HostError> {
    let path = paths::cpuset_cpus(group);
    match past.host.write(&path, EMPTY) {
        Ok(()) => return Ok(Reverted::Restored),
        Err(error) if is_full(&error) => {}
        Err(error) => return Err(error),
    }
    let mut all = cpusets.effective(past.host, cpusets.parent(group))?;
    // Offline CPUs are in no effective list, and the group is to have them when they come online.
    all.add(&offline(past)?);
    past.host.write(&path, all.to_string().as_bytes())?;
    Ok(Reverted::Later)
}

/// CPUs that are possible and not online.
fn offline(past: &UndoContext<'_>) -> Result<CpuSet, HostError> {
    match &past.possible {
        Some(possible) => Ok(possible.difference(&cpusets::list(past.host, &paths::cpu_online())?)),
        None => Ok(CpuSet::new()),
    }
}

/// Empties the explicit list of a group, if possible.
pub(super) fn finish(past: &UndoContext<'_>, path: &str) -> Result<Reverted, HostError> {
    let Some(cpusets) = &past.cpusets else { return Ok(Reverted::Gone) };
    let group = path.rsplit_once('/').map_or(path, |(group, _)| group);
    let Some(now) = tasks::ignore_gone(past.host.read(path))? else {
        return Ok(Reverted::Restored);
    };
    // The reset for a sibling group may have emptied this list too.
    if now.trim_ascii().is_empty() {
        return Ok(Reverted::Restored);
    }
    let parent = cpusets.parent(group);
    let why = match obstacle(past.host, cpusets, parent, &|path: &str, value: &[u8]| {
        is_ours(past, cpusets, path, value)
    })? {
        Some(why) => why,
        // An older kernel would overwrite the masks of all tasks below.
        None if !past.masks_survive => "creating the group again would lose masks".to_owned(),
        None => {
            let control = paths::cgroup_subtree_control(parent);
            past.host.write(&control, DISABLE)?;
            past.host.write(&control, ENABLE)?;
            return Ok(Reverted::Restored);
        }
    };
    let all = String::from_utf8_lossy(&now);
    let text = format!(
        "{path} was empty and is now {}, which has the same effect: the kernel does not accept an \
         empty list while the group has tasks, and {why}",
        all.trim()
    );
    let hint = "it becomes empty when the group is created again, at the latest after a reboot";
    Ok(Reverted::Near(Finding::note("cgroup cpuset", text).with_hint(hint)))
}

/// Enables the controller again if an undo was killed after disabling it.
pub(super) fn repair(
    past: &UndoContext<'_>,
    cpusets: &Cpusets,
    group: &str,
) -> Result<(), HostError> {
    let parent = cpusets.parent(group);
    let control = paths::cgroup_subtree_control(parent);
    let is_cut = group != cpusets.root()
        && past.host.exists(group)
        && !past.host.exists(&paths::cpuset_cpus(group))
        && !past.has_enabled(parent)
        && past.host.exists(&control);
    if is_cut { past.host.write(&control, ENABLE) } else { Ok(()) }
}

/// Whether a list with this path and content was written by Pinfold.
type WrittenByPinfold<'a> = dyn Fn(&str, &[u8]) -> Result<bool, HostError> + 'a;

/// The reason why the controller cannot be disabled and enabled for a group's children without
/// losing settings. Values that are `ours` do not count.
pub(crate) fn obstacle<F: Files + ?Sized>(
    host: &F,
    cpusets: &Cpusets,
    parent: &str,
    ours: &WrittenByPinfold<'_>,
) -> Result<Option<String>, HostError> {
    for child in cpusets.children(host, parent)? {
        let control = paths::cgroup_subtree_control(&child);
        if host.file(&control)?.is_some_and(|bytes| has_cpuset(&bytes)) {
            return Ok(Some(format!("{child} has the controller in use below it")));
        }
        let cpus = paths::cpuset_cpus(&child);
        let held = host.file(&cpus)?;
        let held = held.filter(|bytes| !bytes.trim_ascii().is_empty());
        if let Some(bytes) = held
            && !ours(&cpus, &bytes)?
        {
            return Ok(Some(format!("{cpus} holds a setting of another program")));
        }
        let others = [paths::cpuset_mems(&child), paths::cpuset_cpus_exclusive(&child)];
        for path in others {
            let held = host.file(&path)?;
            if held.is_some_and(|bytes| !bytes.trim_ascii().is_empty()) {
                return Ok(Some(format!("{path} holds a setting of another program")));
            }
        }
        let partition = host.file(&paths::cpuset_partition(&child))?;
        if partition.is_some_and(|bytes| bytes.trim_ascii() != b"member") {
            return Ok(Some(format!("{child} is a partition")));
        }
    }
    Ok(None)
}

/// True if a list of Pinfold's is all of its parent's CPUs, the nearest equivalent to empty.
pub(super) fn is_all(
    past: &UndoContext<'_>,
    cpusets: &Cpusets,
    path: &str,
    value: &[u8],
) -> Result<bool, HostError> {
    let Some((group, _)) = path.rsplit_once('/') else { return Ok(false) };
    if past.written_values(path).next().is_none() {
        return Ok(false);
    }
    let shown = cpusets::parse(path, value)?;
    let all = tasks::ignore_gone(cpusets.effective(past.host, cpusets.parent(group)))?;
    let offline = offline(past)?;
    Ok(all.is_some_and(|all| all.union(&offline) == shown.union(&offline)))
}

/// True if a list is one that a step wrote, or its equivalent.
pub(super) fn is_ours(
    past: &UndoContext<'_>,
    cpusets: &Cpusets,
    path: &str,
    value: &[u8],
) -> Result<bool, HostError> {
    Ok(past.wrote(path, value)? || is_all(past, cpusets, path, value)?)
}

fn is_full(error: &HostError) -> bool {
    let HostError::File { source, .. } = error else { return false };
    source.kind() == ErrorKind::StorageFull
}
