//! User files and Pinfold's own files: state, journal, store, cache, reports.
//!
//! Kernel files are accessed through [`crate::Host`]. The files here are on a disk and have other
//! requirements: a file is complete after a crash (write, `fsync`, rename), and no other user can
//! have created it ([`StateDir`]), because root executes what the journal contains.

mod append_file;
mod dirs;
mod examples;
mod owned_temporaries;
mod state;
mod temporary;
#[cfg(test)]
mod tests;
mod text;
mod user_file;

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

pub use append_file::{FileReader, NewFile, open};
pub use dirs::{
    cache_dir, default_state_dir, is_runtime_dir, own_placed_dir, placed_dir_seen_by, placed_dirs,
    runtime_dir,
};
pub use owned_temporaries::{OwnedLock, TemporaryKind, orphans, remove_orphan, temporaries};
pub use state::{Lock, StateDir, identity, is_filled_file_of, require_own};
pub use text::text;
pub(crate) use user_file::why_not_regular;
pub use user_file::{read, read_input};

use crate::HostError;

/// Reads a whole file as text.
///
/// # Errors
/// As [`read`] and [`text`].
pub fn read_text(path: &str) -> Result<String, HostError> {
    text(path, read(path)?)
}

/// Creates or replaces a file atomically: readers see the old content or the whole new content,
/// also after a power failure. Its mode is 0666 minus the umask; a link is replaced, not followed.
///
/// # Errors
/// [`HostError::File`]; the old content is then unchanged.
pub fn write_atomic(path: &str, content: &[u8]) -> Result<(), HostError> {
    put(path, content, Mode::from_raw_mode(0o666))
}

/// Same as [`write_atomic`] for an executable: its mode is 0777 minus the umask.
///
/// # Errors
/// As [`write_atomic`].
pub fn write_program(path: &str, content: &[u8]) -> Result<(), HostError> {
    put(path, content, Mode::from_raw_mode(0o777))
}

fn put(path: &str, content: &[u8], mode: Mode) -> Result<(), HostError> {
    let fail = |errno| HostError::file("write", path, errno);
    // A rename would put a file in the place of a device or a pipe.
    if let Some(why) = why_not_plain(path) {
        let why = format!("{why}; nothing was written");
        return Err(HostError::Unexpected { path: path.to_owned(), why });
    }
    let (parent, name) = split(path).ok_or_else(|| fail(Errno::ISDIR))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(parent, flags, Mode::empty()).map_err(fail)?;
    replace_in(&directory, name, content, mode, 0).map_err(fail)
}

/// Creates a directory and its parents (0777 minus the umask), durable across a power failure.
///
/// # Errors
/// [`HostError::File`], also if a path component is not a directory.
pub fn make_dirs(path: &str) -> Result<(), HostError> {
    make_dirs_as(path, Mode::from_raw_mode(0o777))
}

fn make_dirs_as(path: &str, mode: Mode) -> Result<(), HostError> {
    let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
    for end in ends.filter(|end| *end > 0) {
        let part = &path[..end];
        match rustix::fs::mkdir(part, mode) {
            Ok(()) => {
                sync_parent(part).map_err(|errno| HostError::file("make directory", path, errno))?
            }
            Err(Errno::EXIST) => {}
            // An existing ancestor that is read-only or belongs to another user is no obstacle.
            Err(_) if is_dir(part) => {}
            Err(errno) => return Err(HostError::file("make directory", path, errno)),
        }
    }
    if is_dir(path) { Ok(()) } else { Err(HostError::file("make directory", path, Errno::NOTDIR)) }
}

/// Why the path is neither a file on a disk nor a directory, if it exists: a pipe, a device, or a
/// file of the kernel, whose reading may wait for ever (`/proc/kmsg`).
pub fn why_not_plain(path: &str) -> Option<&'static str> {
    // `NonBlock` and no reading: opening a pipe without a writer would wait.
    let stat = rustix::fs::stat(path).ok()?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        // Opening it fails at once.
        FileType::Directory => return None,
        FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Symlink
        | FileType::Unknown => return Some("it is not a regular file"),
    }
    let kind = u64::try_from(rustix::fs::statfs(path).ok()?.f_type).unwrap_or(0);
    OF_KERNEL.contains(&kind).then_some("it is a file of the kernel")
}

/// `f_type` of procfs, sysfs, debugfs, tracefs and of cgroup versions 1 and 2.
const OF_KERNEL: [u64; 6] = [0x9fa0, 0x6265_6572, 0x6462_6720, 0x7472_6163, 0x27_e0eb, 0x6367_7270];

/// True if the path exists; false for a dangling link.
pub fn exists(path: &str) -> bool {
    rustix::fs::stat(path).is_ok()
}

/// True if the path is a directory.
#[must_use]
pub fn is_dir(path: &str) -> bool {
    rustix::fs::stat(path)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Size of a file in bytes; `None` if it cannot be read.
pub fn size(path: &str) -> Option<u64> {
    rustix::fs::stat(path).ok().and_then(|stat| u64::try_from(stat.st_size).ok())
}

/// True if the path is a regular file.
#[must_use]
pub fn is_file(path: &str) -> bool {
    rustix::fs::stat(path)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

/// Lists the entries of a directory by name, sorted.
///
/// # Errors
/// [`HostError::File`] if it cannot be read.
pub fn list(path: &str) -> Result<Vec<String>, HostError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .and_then(names_of)
        .map_err(|errno| HostError::file("list", path, errno))
}

/// Removes a file or link.
///
/// # Errors
/// [`HostError::File`] if it does not exist or cannot be removed.
pub fn remove(path: &str) -> Result<(), HostError> {
    rustix::fs::unlink(path).map_err(|errno| HostError::file("remove", path, errno))
}

/// Removes a directory with all its content; links in it are removed, not followed.
///
/// # Errors
/// [`HostError::File`] if an entry cannot be removed.
pub fn remove_tree(path: &str) -> Result<(), HostError> {
    std::fs::remove_dir_all(path).map_err(|source| HostError::file("remove", path, source))
}

/// Renames a file or directory within a file system; an existing file is replaced.
///
/// # Errors
/// [`HostError::File`] if it cannot be renamed.
pub fn rename(from: &str, to: &str) -> Result<(), HostError> {
    rustix::fs::rename(from, to).map_err(|errno| HostError::file("rename", from, errno))
}

/// The absolute path of an existing file or directory, without links.
///
/// # Errors
/// [`HostError::File`] if it does not exist or cannot be reached.
pub fn canonical(path: &str) -> Result<String, HostError> {
    std::fs::canonicalize(path)
        .map(|found| found.to_string_lossy().into_owned())
        .map_err(|source| HostError::file("find", path, source))
}

/// Creates a file in a directory that has no name and ends with its descriptor.
///
/// # Errors
/// [`HostError::File`] if it cannot be created.
pub fn create_unnamed(directory: &str) -> Result<OwnedFd, HostError> {
    let path = format!("{directory}/.pinfold-{}", std::process::id());
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::open(path.as_str(), flags, Mode::from_raw_mode(0o600))
        .map_err(|errno| HostError::file("create", &path, errno))?;
    remove(&path)?;
    Ok(file)
}

/// Waits until all written data of all programs is on the disks.
pub fn sync_disks() {
    rustix::fs::sync();
}

/// Splits the path of a file into directory and name.
fn split(path: &str) -> Option<(&str, &str)> {
    let (parent, name) = match path.rsplit_once('/') {
        None => (".", path),
        Some(("", name)) => ("/", name),
        Some((parent, name)) => (parent, name),
    };
    (!matches!(name, "" | "." | "..")).then_some((parent, name))
}

/// The entries of an open directory by name, sorted.
fn names_of(directory: OwnedFd) -> Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::new(directory)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Writes and syncs a temporary file next to the target, and renames it over the target.
/// `room` is the number of bytes that are reserved after the content.
fn replace_in(
    directory: &OwnedFd,
    name: &str,
    content: &[u8],
    mode: Mode,
    room: u64,
) -> Result<(), Errno> {
    let temporary = temporary::name(name);
    // Left over from a killed process with the same PID.
    match rustix::fs::unlinkat(directory, &temporary, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let done = rustix::fs::openat(directory, &temporary, flags, mode)
        .and_then(|file| {
            owned_temporaries::mark_in_use(&file);
            write_all(&file, content)
                .and_then(|()| reserve(&file, content.len(), room))
                .and_then(|()| rustix::fs::fsync(&file))
        })
        .and_then(|()| rustix::fs::renameat(directory, &temporary, directory, name));
    if let Err(errno) = done {
        // The first error is reported; the temporary file is removed if possible.
        match rustix::fs::unlinkat(directory, &temporary, AtFlags::empty()) {
            Ok(()) | Err(_) => return Err(errno),
        }
    }
    sync_directory(directory)
}

/// Reserves space after the end of a file, if the file system supports that.
fn reserve(file: &OwnedFd, end: usize, room: u64) -> Result<(), Errno> {
    if room == 0 {
        return Ok(());
    }
    let end = u64::try_from(end).unwrap_or(u64::MAX);
    match rustix::io::retry_on_intr(|| {
        rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, end, room)
    }) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn write_all(file: impl AsFd, content: &[u8]) -> Result<(), Errno> {
    let mut rest = content;
    while !rest.is_empty() {
        match rustix::io::write(&file, rest) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => rest = &rest[count..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Makes a new name in the directory durable. Some file systems do not support that and return
/// EINVAL.
fn sync_directory(directory: impl AsFd) -> Result<(), Errno> {
    match rustix::fs::fsync(directory) {
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// The same for a new directory. A directory in which this process may create entries but not list
/// them cannot be synced.
fn sync_parent(path: &str) -> Result<(), Errno> {
    let Some((parent, _)) = split(path.trim_end_matches('/')) else { return Ok(()) };
    match open_dir(parent, OFlags::empty()) {
        Ok(directory) => sync_directory(&directory),
        Err(Errno::ACCESS) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Opens a directory (the current one for an empty path), for `*at` calls.
fn open_dir(path: &str, extra: OFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | extra;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}
