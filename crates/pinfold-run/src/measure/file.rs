//! The file or device that `io` reads, and folders for files of reference tools.

use std::sync::atomic::{AtomicU32, Ordering};

use pinfold_host::files::{self, OwnedLock, StateDir, TemporaryKind};
use pinfold_probe::benchmarks::IoTarget;

use crate::{Exit, Failure, host};

/// Larger than the internal cache of a disk for one reader, small enough to be written quickly.
const FILE_BYTES: usize = 64 << 20;

/// Number of the next folder: two in one process must differ.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A folder in the cache directory, removed when dropped.
pub struct Folder {
    directory: StateDir,
    _held: OwnedLock,
}

impl Folder {
    /// Creates the folder, and removes those of processes that were killed.
    pub fn new() -> Result<Self, Failure> {
        let parent = TemporaryKind::Measured.folder()?;
        files::make_dirs(&parent)?;
        let host = host::live()?;
        TemporaryKind::Measured.remove_orphans(&host, &parent)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = TemporaryKind::Measured.name(&host, number)?;
        let path = format!("{parent}/{name}");
        let directory = StateDir::open(&path)?;
        let held = TemporaryKind::hold(&path)?;
        Ok(Self { directory, _held: held })
    }

    /// The folder.
    pub fn directory(&self) -> &StateDir {
        &self.directory
    }

    /// The file or device from the command line, else a file in this folder.
    pub fn target(&self, named: Option<&str>) -> Result<IoTarget, Failure> {
        let Some(path) = named else { return self.own_file() };
        if files::is_dir(path) {
            return Err(Failure::new(Exit::Input, format!("--file {path} is a directory"))
                .with_hint("name a file or a block device"));
        }
        if !files::exists(path) {
            return Err(Failure::new(Exit::Input, format!("--file {path} does not exist")));
        }
        Ok(target_of(path))
    }

    fn own_file(&self) -> Result<IoTarget, Failure> {
        let path = self.directory.path_of("blocks");
        // Not zeros: a file system may store those as holes, and then nothing is read.
        let bytes: Vec<u8> = (0..FILE_BYTES).map(|place| (place % 251).to_le_bytes()[0]).collect();
        files::write_atomic(&path, &bytes)?;
        Ok(IoTarget::File(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The next measurement removes the rest.
        match files::remove_tree(self.directory.path()) {
            Ok(()) | Err(_) => {}
        }
    }
}

/// A device if the path is in `/dev`, else a file.
pub fn target_of(path: &str) -> IoTarget {
    if path.starts_with("/dev/") && !path.starts_with("/dev/shm/") {
        IoTarget::Device(path.to_owned())
    } else {
        IoTarget::File(path.to_owned())
    }
}
