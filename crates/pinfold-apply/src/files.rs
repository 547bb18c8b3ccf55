//! Files of a host, where a missing one is no error.
//!
//! Two things have them: a host, with their present content, and a
//! [`HostState`](crate::host_state::HostState), with the content that it found.

use pinfold_host::{Host, HostError};

use crate::tasks;

/// Files and directories by absolute path.
pub(crate) trait Files {
    /// The content of a file; `None` if it does not exist.
    fn file(&self, path: &str) -> Result<Option<Vec<u8>>, HostError>;

    /// The content of a file that must exist.
    fn read_required(&self, path: &str) -> Result<Vec<u8>, HostError>;

    /// The names in a directory; empty if it does not exist.
    fn names(&self, path: &str) -> Result<Vec<String>, HostError>;

    /// True if the path exists.
    fn exists(&self, path: &str) -> bool;
}

impl<H: Host + ?Sized> Files for H {
    fn file(&self, path: &str) -> Result<Option<Vec<u8>>, HostError> {
        tasks::ignore_gone(self.read(path))
    }

    fn read_required(&self, path: &str) -> Result<Vec<u8>, HostError> {
        self.read(path)
    }

    fn names(&self, path: &str) -> Result<Vec<String>, HostError> {
        Ok(tasks::ignore_gone(self.list(path))?.unwrap_or_default())
    }

    fn exists(&self, path: &str) -> bool {
        Host::exists(self, path)
    }
}
