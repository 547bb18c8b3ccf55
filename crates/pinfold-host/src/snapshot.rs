//! A captured machine, held in memory.
//!
//! The text form is an archive that is readable in a diff. A path takes one line; content lines
//! start with a tab (shown as blanks here):
//!
//! ```text
//! pinfold-capture 1
//! file /sys/devices/system/cpu/online
//!         0-7
//! link /sys/class/net/eth0 -> ../../devices/pci0000:00/net/eth0
//! dir /sys/fs/resctrl
//! bare /dev/kvm
//! ```
//!
//! `bare` is a name that exists but was not read. A backslash escapes (`\\`, `\x1b`); at the end of
//! a line it means that the file does not end in a newline. Links resolve inside the tree, whatever
//! they point to: no access can reach the machine on which Pinfold runs. A tree has no threads, so
//! affinity and policy are `ENOSYS`.

mod text;

use std::collections::{BTreeMap, VecDeque};

use pinfold_model::{CpuSet, Policy, Tid};
use rustix::io::Errno;

pub use text::TreeError;

use crate::{Host, HostError};

/// Number of links that Linux follows in one path (`MAXSYMLINKS`).
const MAX_LINKS: u32 = 40;

/// The longest path in a tree (`PATH_MAX`), and the most components in it. The limit is needed
/// because counting and dropping a tree are recursive; no kernel file is half as deep.
const MAX_PATH: usize = 4096;
const MAX_DEPTH: usize = 128;

/// A captured machine.
///
/// ```
/// use pinfold_host::{Host, SnapshotHost};
///
/// let mut host = SnapshotHost::new();
/// host.insert_file("/sys/devices/system/cpu/online", "0-3\n");
/// assert_eq!(host.read_text("/sys/devices/system/cpu/online")?, "0-3\n");
/// assert!(!host.exists("/proc"));
/// # Ok::<(), pinfold_host::HostError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotHost {
    root: Directory,
}

type Directory = BTreeMap<String, Node>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    File(Vec<u8>),
    Link(String),
    Directory(Directory),
    /// Exists, but was not read.
    ExistsOnly,
}

impl SnapshotHost {
    /// An empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    /// A tree with these files.
    pub fn from_files<P, B>(files: impl IntoIterator<Item = (P, B)>) -> Self
    where
        P: AsRef<str>,
        B: Into<Vec<u8>>,
    {
        let mut tree = Self::new();
        for (path, content) in files {
            tree.insert_file(path.as_ref(), content);
        }
        tree
    }

    /// True if a tree can contain the path; longer or deeper paths are omitted.
    pub fn holds(path: &str) -> bool {
        path.len() <= MAX_PATH && names_of(path).len() <= MAX_DEPTH
    }

    /// Inserts a file and its parent directories; replaces an existing entry.
    pub fn insert_file(&mut self, path: &str, content: impl Into<Vec<u8>>) {
        self.insert(path, Node::File(content.into()));
    }

    /// Inserts a symbolic link and its parent directories.
    pub fn insert_link(&mut self, path: &str, target: &str) {
        self.insert(path, Node::Link(target.to_owned()));
    }

    /// Inserts a directory; an existing directory keeps its entries.
    pub fn insert_dir(&mut self, path: &str) {
        if !Self::holds(path) {
            return;
        }
        directory_at(&mut self.root, &names_of(path));
    }

    /// Records that the path exists; an existing entry stays.
    pub fn insert_bare(&mut self, path: &str) {
        if self.node(&names_of(path)).is_none() {
            self.insert(path, Node::ExistsOnly);
        }
    }

    /// Removes an entry with everything below it. True if it existed.
    pub fn remove(&mut self, path: &str) -> bool {
        let names = names_of(path);
        let Some((last, parents)) = names.split_last() else {
            return false;
        };
        let mut directory = &mut self.root;
        for name in parents {
            match directory.get_mut(name) {
                Some(Node::Directory(inner)) => directory = inner,
                Some(Node::File(_) | Node::Link(_) | Node::ExistsOnly) | None => return false,
            }
        }
        directory.remove(last).is_some()
    }

    /// Number of entries that are not directories.
    pub fn len(&self) -> usize {
        fn count(directory: &Directory) -> usize {
            directory
                .values()
                .map(|node| match node {
                    Node::Directory(inner) => count(inner),
                    Node::File(_) | Node::Link(_) | Node::ExistsOnly => 1,
                })
                .sum()
        }
        count(&self.root)
    }

    /// True if the tree has no entries except directories.
    pub fn is_empty(&self) -> bool {
        self.root.is_empty()
    }

    fn insert(&mut self, path: &str, node: Node) {
        if !Self::holds(path) {
            return;
        }
        let names = names_of(path);
        if let Some((last, parents)) = names.split_last() {
            directory_at(&mut self.root, parents).insert(last.clone(), node);
        }
    }

    fn node(&self, names: &[String]) -> Option<Found<'_>> {
        let mut found = Found::Directory(&self.root);
        for name in names {
            let Found::Directory(directory) = found else {
                return None;
            };
            found = match directory.get(name)? {
                Node::Directory(inner) => Found::Directory(inner),
                Node::File(content) => Found::File(content),
                Node::Link(target) => Found::Link(target),
                Node::ExistsOnly => Found::Bare,
            };
        }
        Some(found)
    }

    /// Resolves a path to components; the last link is followed only if `last_link` says so.
    fn resolve(&self, path: &str, last_link: LastLink) -> Result<Vec<String>, Errno> {
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        let mut todo: VecDeque<String> = path.split('/').map(str::to_owned).collect();
        let mut place: Vec<String> = Vec::new();
        let mut links = 0;
        while let Some(name) = todo.pop_front() {
            if !matches!(self.node(&place), Some(Found::Directory(_))) {
                return Err(self.not_a_directory(&place));
            }
            match name.as_str() {
                "" | "." => continue,
                ".." => {
                    place.pop();
                    continue;
                }
                _ => place.push(name),
            }
            let last = todo.is_empty();
            match self.node(&place) {
                None => return Err(Errno::NOENT),
                Some(Found::Link(target)) if !last || last_link == LastLink::Follow => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::LOOP);
                    }
                    place.pop();
                    if target.starts_with('/') {
                        place.clear();
                    }
                    for part in target.split('/').rev() {
                        todo.push_front(part.to_owned());
                    }
                }
                Some(_) => {}
            }
        }
        Ok(place)
    }

    /// A bare name may have been a directory, of which nothing was read.
    fn not_a_directory(&self, place: &[String]) -> Errno {
        if matches!(self.node(place), Some(Found::Bare)) { Errno::NODATA } else { Errno::NOTDIR }
    }

    fn find(&self, path: &str, operation: &'static str) -> Result<Found<'_>, HostError> {
        self.resolve(path, LastLink::Follow)
            .and_then(|place| self.node(&place).ok_or(Errno::NOENT))
            .map_err(|errno| HostError::file(operation, path, errno))
    }

    /// The content of a file for writing; links are followed.
    ///
    /// # Errors
    /// The errno of `open(2)`; `ENODATA` for a file without recorded content.
    pub fn file_mut(&mut self, path: &str) -> Result<&mut Vec<u8>, Errno> {
        let names = self.resolve(path, LastLink::Follow)?;
        let (last, parents) = names.split_last().ok_or(Errno::ISDIR)?;
        match directory_at(&mut self.root, parents).get_mut(last) {
            Some(Node::File(content)) => Ok(content),
            Some(Node::Directory(_)) => Err(Errno::ISDIR),
            Some(Node::ExistsOnly | Node::Link(_)) => Err(Errno::NODATA),
            None => Err(Errno::NOENT),
        }
    }

    /// The path without links, `.` and `..`.
    ///
    /// # Errors
    /// The errno of `realpath(3)`.
    pub fn canonical(&self, path: &str) -> Result<String, Errno> {
        self.resolve(path, LastLink::Follow).map(|names| format!("/{}", names.join("/")))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LastLink {
    Follow,
    Keep,
}

enum Found<'t> {
    File(&'t [u8]),
    Link(&'t str),
    Directory(&'t Directory),
    Bare,
}

/// The components of a path; `.` and `..` are resolved without following links.
fn names_of(path: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => {
                names.pop();
            }
            name => names.push(name.to_owned()),
        }
    }
    names
}

/// The directory with these components; it is created if missing and replaces any other entry.
fn directory_at<'d>(root: &'d mut Directory, names: &[String]) -> &'d mut Directory {
    names.iter().fold(root, |directory, name| {
        let node =
            directory.entry(name.clone()).or_insert_with(|| Node::Directory(Directory::new()));
        if !matches!(node, Node::Directory(_)) {
            *node = Node::Directory(Directory::new());
        }
        match node {
            Node::Directory(inner) => inner,
            Node::File(_) | Node::Link(_) | Node::ExistsOnly => {
                unreachable!("made a directory above")
            }
        }
    })
}

impl Host for SnapshotHost {
    fn read(&self, path: &str) -> Result<Vec<u8>, HostError> {
        let errno = match self.find(path, "read")? {
            Found::File(content) if !path.ends_with('/') => return Ok(content.to_vec()),
            Found::File(_) => Errno::NOTDIR,
            Found::Directory(_) => Errno::ISDIR,
            Found::Bare | Found::Link(_) => Errno::NODATA,
        };
        Err(HostError::file("read", path, errno))
    }

    fn list(&self, path: &str) -> Result<Vec<String>, HostError> {
        let errno = match self.find(path, "list")? {
            Found::Directory(directory) => return Ok(directory.keys().cloned().collect()),
            Found::File(_) => Errno::NOTDIR,
            Found::Bare | Found::Link(_) => Errno::NODATA,
        };
        Err(HostError::file("list", path, errno))
    }

    fn link(&self, path: &str) -> Result<String, HostError> {
        self.resolve(path, LastLink::Keep)
            .and_then(|place| match self.node(&place) {
                Some(Found::Link(target)) => Ok(target.to_owned()),
                Some(Found::Bare) => Err(Errno::NODATA),
                Some(Found::File(_) | Found::Directory(_)) => Err(Errno::INVAL),
                None => Err(Errno::NOENT),
            })
            .map_err(|errno| HostError::file("read link", path, errno))
    }

    fn exists(&self, path: &str) -> bool {
        self.find(path, "find").is_ok()
    }

    fn link_count(&self, path: &str) -> Result<u64, HostError> {
        Ok(match self.find(path, "count links of")? {
            Found::Directory(directory) => {
                2 + directory
                    .values()
                    .filter(|node: &&Node| matches!(node, Node::Directory(_)))
                    .map(|_| 1_u64)
                    .sum::<u64>()
            }
            Found::File(_) | Found::Link(_) | Found::Bare => 1,
        })
    }

    fn affinity(&self, tid: Tid) -> Result<CpuSet, HostError> {
        Err(no_threads("sched_getaffinity", tid))
    }

    fn policy(&self, tid: Tid) -> Result<Policy, HostError> {
        Err(no_threads("sched_getattr", tid))
    }

    fn is_live(&self) -> bool {
        false
    }
}

fn no_threads(call: &'static str, tid: Tid) -> HostError {
    HostError::Thread { call, tid: tid.0, source: Errno::NOSYS.into() }
}

#[cfg(test)]
mod tests;
