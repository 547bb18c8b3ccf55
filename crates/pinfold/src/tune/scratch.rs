//! A folder in memory for one tuning run: initramfs, disks, sockets, console.
//!
//! It lies on `/dev/shm`, so that the guest's disks are memory and only QEMU is measured.
//! It is made with mode 0700, checked against links and foreign owners, and removed at the
//! end; folders of runs that were killed are removed by the next run.

use pinfold_host::user::{self, StateDir};
use pinfold_host::{Host, HostError, paths, process};
use pinfold_model::Tid;

const PREFIX: &str = "pinfold-";

/// The folder; removed when dropped.
pub struct Scratch {
    path: String,
}

impl Scratch {
    /// Makes it.
    ///
    /// # Errors
    /// [`HostError`] if shared memory is not there or full.
    pub fn new(host: &dyn Host) -> Result<Self, HostError> {
        remove_stale(host)?;
        let path = format!("{}/{PREFIX}{}", paths::shared_memory(), process::own_pid());
        StateDir::open(&path)?;
        Ok(Self { path })
    }

    /// Path of a file in it.
    pub fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It holds nothing that anybody needs, and the next run removes what stays.
        if let Err(error) = user::remove_tree(&self.path) {
            crate::output::say(&format!("pinfold: {error}"));
        }
    }
}

/// Removes folders of ours whose process is gone.
fn remove_stale(host: &dyn Host) -> Result<(), HostError> {
    let memory = paths::shared_memory();
    for name in user::list(&memory)? {
        let Some(pid) = name.strip_prefix(PREFIX).and_then(|pid| pid.parse().ok()) else {
            continue;
        };
        let path = format!("{memory}/{name}");
        let alive = host.exists(&paths::process_stat(Tid(pid)));
        if !alive && StateDir::open(&path).is_ok() {
            user::remove_tree(&path)?;
        }
    }
    Ok(())
}
