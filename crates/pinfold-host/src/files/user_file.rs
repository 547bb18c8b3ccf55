//! Files that the user names: a request, a capture, a domain.
//!
//! Reading always ends, whatever the path is: only a regular file is read, up to a maximum size.
//! `-` is standard input, with the same maximum size and a timeout; `example:NAME` is an example of
//! the documentation.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::examples;
use crate::HostError;

/// Maximum size of a file; a capture of a machine with 8192 CPUs has a quarter of it.
pub(super) const MAX_BYTES: usize = 256 << 20;
/// Longest silence on standard input.
const INPUT_TIMEOUT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Reads a whole file, standard input if the path is `-`, or the example if it is `example:NAME`.
///
/// # Errors
/// [`HostError::File`]; [`HostError::Unexpected`] if it is not a regular file, if it is too large,
/// if there is no such example, or if standard input is silent for ten seconds.
pub fn read(path: &str) -> Result<Vec<u8>, HostError> {
    if path == "-" {
        return read_input("standard input", MAX_BYTES);
    }
    if let Some(example) = examples::read(path) {
        return example;
    }
    let file = open_regular(path)?;
    let stat = rustix::fs::fstat(&file).map_err(|errno| HostError::file("read", path, errno))?;
    if usize::try_from(stat.st_size).is_ok_and(|size| size > MAX_BYTES) {
        return Err(too_large(path, MAX_BYTES));
    }
    read_bounded(&file, path, Wait::No, MAX_BYTES)
}

/// Reads standard input, which errors call `name`, up to so many bytes.
///
/// # Errors
/// [`HostError::File`]; [`HostError::Unexpected`] if it has more, or is silent for ten seconds.
pub fn read_input(name: &str, most: usize) -> Result<Vec<u8>, HostError> {
    read_bounded(&io::stdin(), name, Wait::ForWriter, most)
}

/// Opens a regular file.
pub(super) fn open_regular(path: &str) -> Result<OwnedFd, HostError> {
    let fail = |errno| HostError::file("read", path, errno);
    // NONBLOCK: opening a pipe without a writer would block.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file: OwnedFd = rustix::fs::open(path, flags, Mode::empty()).map_err(fail)?;
    let stat = rustix::fs::fstat(&file).map_err(fail)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind == FileType::Directory {
        return Err(fail(Errno::ISDIR));
    }
    if let Some(kind) = why_not_regular(kind) {
        let why = format!("is {kind}: name a regular file, or - for standard input");
        return Err(fail_unexpected(path, why));
    }
    Ok(file)
}

/// What a file is that is not a regular one.
pub(crate) fn why_not_regular(kind: FileType) -> Option<&'static str> {
    match kind {
        FileType::RegularFile => None,
        FileType::Directory => Some("a directory"),
        FileType::Fifo => Some("a pipe"),
        FileType::Socket => Some("a socket"),
        FileType::CharacterDevice | FileType::BlockDevice => Some("a device"),
        FileType::Symlink | FileType::Unknown => Some("not a file"),
    }
}

enum Wait {
    ForWriter,
    No,
}

fn read_bounded(
    file: &impl AsFd,
    path: &str,
    wait: Wait,
    most: usize,
) -> Result<Vec<u8>, HostError> {
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        if matches!(wait, Wait::ForWriter)
            && !has_come(file).map_err(|errno| HostError::file("read", path, errno))?
        {
            return Err(fail_unexpected(path, format!("no data for {} s", INPUT_TIMEOUT.tv_sec)));
        }
        match rustix::io::read(file, &mut buffer) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend(buffer.iter().take(count)),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(HostError::file("read", path, errno)),
        }
        if bytes.len() > most {
            return Err(too_large(path, most));
        }
    }
}

/// Waits for data or end of file.
fn has_come(file: &impl AsFd) -> Result<bool, Errno> {
    let mut fds = [PollFd::new(file, PollFlags::IN)];
    loop {
        match rustix::event::poll(&mut fds, Some(&INPUT_TIMEOUT)) {
            Err(Errno::INTR) => {}
            answer => return Ok(answer? > 0),
        }
    }
}

pub(super) fn too_large(path: &str, most: usize) -> HostError {
    let why = format!("is larger than {} MiB, the limit for such files", most >> 20);
    fail_unexpected(path, why)
}

fn fail_unexpected(path: &str, why: String) -> HostError {
    HostError::Unexpected { path: path.to_owned(), why }
}
