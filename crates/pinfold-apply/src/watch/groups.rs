//! The cpuset groups of a machine's threads, and the content of their files at the last check.
//!
//! A thread's CPUs are limited by its group and all groups above it. A program that writes to one
//! of their files takes CPUs from the machine without changing a mask. Only the files that programs
//! write are compared; the effective result shows in the masks.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_host::mountinfo::Version;
use pinfold_host::{Host, HostError, paths};
use pinfold_model::{Change, Tid};

use super::WatchEvent;
use super::attribution::LikelyCause;
use crate::cpusets::{Cpusets, is_pin_group};
use crate::journal::Record;
use crate::tasks;

/// Name of the main thread's group in events.
const MACHINE: &str = "the group of the machine";

/// The groups as of the last check.
#[derive(Debug, Default)]
pub(super) struct Groups {
    cpusets: Option<Cpusets>,
    /// Group of the main thread.
    group: Option<String>,
    files: BTreeMap<String, String>,
}

impl Groups {
    /// Reads the groups of a process's threads.
    pub(super) fn from_host(host: &dyn Host, pid: Tid) -> Result<Self, HostError> {
        let Some(cpusets) = Cpusets::find(host)? else { return Ok(Self::default()) };
        let group = cpusets.group_of(host, pid)?;
        let mut groups = BTreeSet::new();
        for tid in tasks::threads_of(host, pid)? {
            if let Some(group) = cpusets.group_of(host, tid)? {
                groups.extend(cpusets.lineage(&group));
            }
        }
        let mut files = BTreeMap::new();
        for path in groups.iter().flat_map(|group| written_files(cpusets.version(), group)) {
            if let Some(text) = read(host, &path)? {
                files.insert(path, text);
            }
        }
        Ok(Self { cpusets: Some(cpusets), group, files })
    }

    /// The main thread's group.
    pub(super) fn group(&self) -> Option<&str> {
        self.group.as_deref()
    }

    /// The files that are compared.
    pub(super) fn paths(&self) -> impl Iterator<Item = &String> {
        self.files.keys()
    }

    /// True if the main thread's group and the content of every file are unchanged.
    pub(super) fn are_same(&self, host: &dyn Host, pid: Tid) -> Result<bool, HostError> {
        let Some(cpusets) = &self.cpusets else { return Ok(true) };
        if cpusets.group_of(host, pid)? != self.group {
            return Ok(false);
        }
        for (path, text) in &self.files {
            if read(host, path)?.as_ref() != Some(text) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reports what has changed, and stores the present state for the next comparison.
    pub(super) fn changes(
        &mut self,
        host: &dyn Host,
        pid: Tid,
        clues: &LikelyCause<'_>,
    ) -> Result<Vec<WatchEvent>, HostError> {
        let old = std::mem::replace(self, Self::from_host(host, pid)?);
        let mut events = Vec::new();
        if old.group != self.group {
            events.push(WatchEvent::Groups {
                what: MACHINE.to_owned(),
                before: name(&old.group),
                after: name(&self.group),
                clue: clues.of_group(self.group.as_deref())?,
            });
        }
        for (path, before) in old.files {
            let after = read(host, &path)?;
            let group = path.rsplit_once('/').map(|(group, _)| group);
            // A pin through libvirt, which the comparison with the plan reports, or the end of its
            // thread.
            let is_pin = group.is_some_and(|group| {
                is_pin_group(group) && (after.is_none() || path == paths::cpuset_cpus(group))
            });
            if is_pin || after.as_ref() == Some(&before) {
                continue;
            }
            events.push(WatchEvent::Groups {
                clue: clues.of_group(group)?,
                what: path,
                before: content_text(before),
                after: after.map_or_else(|| "gone".to_owned(), content_text),
            });
        }
        Ok(events)
    }
}

/// True for a change that is a step of the placement itself.
pub(super) fn is_own(event: &WatchEvent, record: &Record) -> bool {
    let WatchEvent::Groups { what, after, .. } = event else { return false };
    record.steps().any(|(_, step)| match &step.change {
        Change::WriteFile { path, value } => {
            path == what && content_text(String::from_utf8_lossy(value).trim().to_owned()) == *after
        }
        Change::MoveTasks { group, .. } => what == MACHINE && group == after,
        Change::SetAffinity { .. }
        | Change::SetPolicy { .. }
        | Change::WriteSetting { .. }
        | Change::MakeGroup { .. }
        | Change::MovePages { .. }
        | Change::SignalProcesses { .. } => false,
    })
}

fn name(group: &Option<String>) -> String {
    group.clone().unwrap_or_else(|| "none".to_owned())
}

/// The files of a group through which programs limit its CPUs.
fn written_files(version: Version, group: &str) -> Vec<String> {
    let both = [paths::cpuset_cpus(group), paths::cpuset_mems(group)];
    let second = [paths::cpuset_partition(group), paths::cpuset_cpus_exclusive(group)];
    match version {
        Version::V1 => both.to_vec(),
        Version::V2 => both.into_iter().chain(second).collect(),
    }
}

fn read(host: &dyn Host, path: &str) -> Result<Option<String>, HostError> {
    Ok(tasks::ignore_gone(host.read_text(path))?.map(|text| text.trim_end().to_owned()))
}

fn content_text(text: String) -> String {
    if text.is_empty() { "nothing of its own".to_owned() } else { text }
}
