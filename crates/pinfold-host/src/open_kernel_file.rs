//! A file of the kernel that stays open, so that each reading is one system call.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

use crate::HostError;

/// Bytes that are read at most; files of `/proc` about one thread are shorter.
const MOST: usize = 2048;

/// A file of the kernel that stays open. A thread's file stays that of this thread: it fails once
/// the thread has ended, even if its number is used again.
#[derive(Debug)]
pub struct OpenKernelFile {
    descriptor: OwnedFd,
    path: String,
}

impl OpenKernelFile {
    /// Opens a file.
    ///
    /// # Errors
    /// [`HostError`] if it cannot be opened.
    pub fn open(path: &str) -> Result<Self, HostError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| HostError::file("open", path, errno))?;
        Ok(Self { descriptor, path: path.to_owned() })
    }

    /// The first bytes of its present contents, as text.
    ///
    /// # Errors
    /// [`HostError`] if it cannot be read, for instance because its thread has ended.
    pub fn read(&self) -> Result<String, HostError> {
        let mut buffer = [0; MOST];
        let count = rustix::io::pread(&self.descriptor, &mut buffer, 0)
            .map_err(|errno| HostError::file("read", &self.path, errno))?;
        Ok(String::from_utf8_lossy(&buffer[..count]).into_owned())
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }
}
