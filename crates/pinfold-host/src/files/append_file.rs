//! Files that grow while a command runs, and are read one part at a time.

use std::fs::File;
use std::io::BufReader;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

use super::user_file;
use crate::HostError;

/// A new file to which records are added.
#[derive(Debug)]
pub struct NewFile {
    descriptor: OwnedFd,
    path: String,
}

impl NewFile {
    /// Creates a file for its owner only.
    ///
    /// # Errors
    /// [`HostError`] if it exists, also as a link, or cannot be created.
    pub fn create(path: &str) -> Result<Self, HostError> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::APPEND | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| HostError::file("create", path, errno))?;
        Ok(Self { descriptor, path: path.to_owned() })
    }

    /// Adds bytes at its end.
    ///
    /// # Errors
    /// [`HostError`] if they cannot be written, for instance because the disk is full.
    pub fn append(&mut self, mut bytes: &[u8]) -> Result<(), HostError> {
        while !bytes.is_empty() {
            let count = rustix::io::write(&self.descriptor, bytes)
                .map_err(|errno| HostError::file("append to", &self.path, errno))?;
            bytes = bytes.get(count..).unwrap_or_default();
        }
        Ok(())
    }
}

/// Reads a file one part at a time.
pub type FileReader = BufReader<File>;

/// Opens a regular file of any size that the user names, to read it one part at a time.
///
/// # Errors
/// [`HostError`] if it cannot be opened or is not a regular file.
pub fn open(path: &str) -> Result<FileReader, HostError> {
    user_file::open_regular(path).map(|file| BufReader::new(File::from(file)))
}
