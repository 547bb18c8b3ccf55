//! A folder in memory for one tuning run: initramfs, disks, sockets, console.
//!
//! It lies on `/dev/shm`, so that the guest's disks are memory and only QEMU is measured.
//! It is made with mode 0700, checked against links and foreign owners, and removed at the
//! end; folders of runs that were killed are removed by the next run and by `pinfold undo`.

use pinfold_host::files::{self, Held, Owned, StateDir};
use pinfold_host::{Host, HostError, paths};

/// The folder; removed when dropped.
pub struct Scratch {
    path: String,
    _held: Held,
}

impl Scratch {
    /// Makes it.
    ///
    /// # Errors
    /// [`HostError`] if shared memory is not there or full.
    pub fn new(host: &dyn Host) -> Result<Self, HostError> {
        let memory = Owned::Memory.folder()?;
        Owned::Memory.remove_orphans(host, &memory)?;
        let path = format!("{memory}/{}", Owned::Memory.name(host, 0)?);
        StateDir::open(&path)?;
        Ok(Self { _held: Owned::hold(&path)?, path })
    }

    /// How the paths of all such folders begin.
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
        // It holds nothing that anybody needs, and the next run removes what stays.
        if let Err(error) = files::remove_tree(&self.path) {
            crate::output::say(&format!("pinfold: {error}"));
        }
    }
}
