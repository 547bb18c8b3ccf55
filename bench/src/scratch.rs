//! Folders of one run of the benchmarks, gone when it ends.

use pinfold_host::files::{self, StateDir};
use pinfold_host::{HostError, paths, process};

/// A folder of ours alone; removed when dropped.
pub struct Scratch {
    path: String,
}

impl Scratch {
    /// One in memory.
    pub fn in_memory() -> Result<Self, HostError> {
        Self::below(&paths::shared_memory())
    }

    /// One where the user's caches are, which is the disk.
    pub fn on_disk() -> Result<Self, HostError> {
        Self::below(&files::cache_dir()?)
    }

    /// One where a program that runs as another user can be given a folder.
    pub fn for_others() -> Result<Self, HostError> {
        Self::below(&std::env::temp_dir().to_string_lossy())
    }

    fn below(parent: &str) -> Result<Self, HostError> {
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
        // It holds nothing that anybody needs; what cannot be removed is left to the system.
        if files::remove_tree(&self.path).is_err() {}
    }
}
