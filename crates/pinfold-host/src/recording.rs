//! A host that records every access and its result.
//!
//! It wraps another host. A capture then contains exactly what a discovery read, and tests can
//! check what was accessed. It only supports reading, so a recording of a live host cannot change
//! it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pinfold_model::{CpuSet, Policy, Tid};

use crate::{Host, HostError, SnapshotHost};

/// Kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// [`Host::read`].
    Read,
    /// [`Host::list`].
    List,
    /// [`Host::link`].
    Link,
    /// [`Host::exists`].
    Exists,
    /// [`Host::link_count`].
    LinkCount,
    /// [`Host::affinity`].
    Affinity,
    /// [`Host::policy`].
    Policy,
}

/// An access to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The kind of access.
    pub operation: Operation,
    /// The path, or the TID.
    pub path: String,
}

/// A host that records every access.
pub struct RecordingHost<'h> {
    inner: &'h dyn Host,
    notes: Mutex<Notes>,
}

#[derive(Default)]
struct Notes {
    accesses: Vec<Access>,
    tree: SnapshotHost,
}

impl<'h> RecordingHost<'h> {
    /// Wraps `inner`.
    pub fn new(inner: &'h dyn Host) -> Self {
        Self { inner, notes: Mutex::default() }
    }

    /// The accesses so far, in order.
    pub fn accesses(&self) -> Vec<Access> {
        self.notes().accesses.clone()
    }

    /// The machine as it was seen: the tree gives the same results for reads, lists, links and
    /// existence. Link counts, affinity and policy are recorded as accesses only, because a tree
    /// has no threads.
    #[must_use]
    pub fn into_tree(self) -> SnapshotHost {
        self.notes.into_inner().unwrap_or_else(PoisonError::into_inner).tree
    }

    // The notes are consistent even if a thread panicked between two accesses, so poisoning is
    // ignored.
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, operation: Operation, path: &str, keep: impl FnOnce(&mut SnapshotHost)) {
        let mut notes = self.notes();
        notes.accesses.push(Access { operation, path: path.to_owned() });
        keep(&mut notes.tree);
    }

    /// Records the links in a path and returns the path without them, so that the tree resolves the
    /// path as the host did.
    fn place(&self, path: &str) -> String {
        let mut place = String::new();
        let mut links = 0;
        let mut todo: Vec<String> = path.split('/').rev().map(str::to_owned).collect();
        while let Some(name) = todo.pop() {
            match name.as_str() {
                "" | "." => continue,
                ".." => {
                    place.truncate(place.rfind('/').unwrap_or(0));
                    continue;
                }
                _ => {}
            }
            let next = format!("{place}/{name}");
            match self.inner.link(&next) {
                Ok(target) if links < 40 => {
                    links += 1;
                    self.notes().tree.insert_link(&next, &target);
                    if target.starts_with('/') {
                        place.clear();
                    }
                    todo.extend(target.split('/').rev().map(str::to_owned));
                }
                Ok(_) | Err(_) => place = next,
            }
        }
        if place.is_empty() { "/".to_owned() } else { place }
    }
}

impl Host for RecordingHost<'_> {
    fn read(&self, path: &str) -> Result<Vec<u8>, HostError> {
        let answer = self.inner.read(path);
        let place = answer.is_ok().then(|| self.place(path));
        self.note(Operation::Read, path, |tree| {
            if let (Ok(content), Some(place)) = (&answer, &place) {
                tree.insert_file(place, content.clone());
            }
        });
        self.note_unread(path, answer.as_ref().err());
        answer
    }

    fn list(&self, path: &str) -> Result<Vec<String>, HostError> {
        let answer = self.inner.list(path);
        let place = answer.is_ok().then(|| self.place(path));
        self.note(Operation::List, path, |tree| {
            if let (Ok(names), Some(place)) = (&answer, &place) {
                tree.insert_dir(place);
                for name in names {
                    tree.insert_bare(&format!("{}/{name}", place.trim_end_matches('/')));
                }
            }
        });
        self.note_unread(path, answer.as_ref().err());
        answer
    }

    fn link(&self, path: &str) -> Result<String, HostError> {
        let answer = self.inner.link(path);
        // The links in the parent's path, then the link itself as stored.
        let trimmed = path.trim_end_matches('/');
        let (parent, name) = trimmed.rsplit_once('/').unwrap_or(("", trimmed));
        let place = answer.is_ok().then(|| self.place(parent));
        self.note(Operation::Link, path, |tree| {
            if let (Ok(target), Some(place)) = (&answer, &place) {
                tree.insert_link(&format!("{}/{name}", place.trim_end_matches('/')), target);
            }
        });
        answer
    }

    fn exists(&self, path: &str) -> bool {
        let answer = self.inner.exists(path);
        let place = answer.then(|| self.place(path));
        self.note(Operation::Exists, path, |tree| {
            if let Some(place) = &place {
                tree.insert_bare(place);
            }
        });
        answer
    }

    fn link_count(&self, path: &str) -> Result<u64, HostError> {
        let answer = self.inner.link_count(path);
        let place = answer.is_ok().then(|| self.place(path));
        self.note(Operation::LinkCount, path, |tree| {
            if let Some(place) = &place {
                tree.insert_bare(place);
            }
        });
        answer
    }

    fn affinity(&self, tid: Tid) -> Result<CpuSet, HostError> {
        self.note(Operation::Affinity, &tid.to_string(), |_| {});
        self.inner.affinity(tid)
    }

    fn policy(&self, tid: Tid) -> Result<Policy, HostError> {
        self.note(Operation::Policy, &tid.to_string(), |_| {});
        self.inner.policy(tid)
    }

    fn is_live(&self) -> bool {
        self.inner.is_live()
    }
}

impl RecordingHost<'_> {
    /// A file that exists but cannot be read is stored in the capture as a name.
    fn note_unread(&self, path: &str, error: Option<&HostError>) {
        if error.is_some() && self.inner.exists(path) {
            let place = self.place(path);
            self.notes().tree.insert_bare(&place);
        }
    }
}

#[cfg(test)]
mod tests;
