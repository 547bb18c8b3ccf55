//! A folder in memory for one tuning run: initramfs, disks, sockets, console.
//!
//! It is on `/dev/shm`, so that the guest's disks are in memory and only QEMU is measured. It has
//! mode 0700, is checked for links and other owners, and is removed at the end; the next run and
//! `pinfold undo` remove folders of runs that were killed.

use pinfold_host::files::{self, OwnedLock, StateDir, TemporaryKind};
use pinfold_host::{Host, HostError, paths};

/// The folder; removed when dropped.
pub struct Scratch {
    path: String,
    _held: OwnedLock,
}

impl Scratch {
    /// Creates the folder.
    ///
    /// # Errors
    /// [`HostError`] if shared memory is not available or full.
    pub fn new(host: &dyn Host) -> Result<Self, HostError> {
        let memory = TemporaryKind::Memory.folder()?;
        TemporaryKind::Memory.remove_orphans(host, &memory)?;
        let path = format!("{memory}/{}", TemporaryKind::Memory.name(host, 0)?);
        StateDir::open(&path)?;
        Ok(Self { _held: TemporaryKind::hold(&path)?, path })
    }

    /// Common prefix of the paths of these folders.
    pub fn prefix() -> String {
        format!("{}/pinfold-", paths::shared_memory())
    }

    /// Path of a file in it.
    pub fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It has no data to keep, and the next run removes the rest.
        if let Err(error) = files::remove_tree(&self.path) {
            crate::message::say(&format!("pinfold: {error}"));
        }
    }
}
