//! Temporary folders of one run of the benchmarks.

use pinfold_host::files::{self, StateDir};
use pinfold_host::{HostError, paths, process};

/// A private folder; removed when dropped.
pub struct Scratch {
    path: String,
}

impl Scratch {
    /// A folder in memory.
    pub fn in_memory() -> Result<Self, HostError> {
        Self::create_in(&paths::shared_memory())
    }

    /// A folder in the user's cache directory, which is on disk.
    pub fn on_disk() -> Result<Self, HostError> {
        Self::create_in(&files::cache_dir()?)
    }

    /// A folder that a program of another user can access.
    pub fn for_others() -> Result<Self, HostError> {
        Self::create_in(&std::env::temp_dir().to_string_lossy())
    }

    fn create_in(parent: &str) -> Result<Self, HostError> {
        let path = format!("{parent}/pinfold-bench-{}", process::own_pid());
        StateDir::open(&path)?;
        Ok(Self { path })
    }

    /// Its path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Path of a file in it.
    pub fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It has no data to keep; a rest that cannot be removed is left to the system.
        if files::remove_tree(&self.path).is_err() {}
    }
}
