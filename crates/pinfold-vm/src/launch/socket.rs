//! Pinfold's control socket of a machine: in a private directory, removed afterwards.
//!
//! A process that can connect to the socket can do everything that the hypervisor can. So the
//! parent directory is private (mode 0700, owned by this user, no symbolic link); the hypervisor
//! creates the socket in it. The next start and `pinfold undo` remove directories of processes that
//! were killed.

use pinfold_host::files::{self, OwnedLock, StateDir, TemporaryKind};
use pinfold_host::{HostError, LiveHost};
use std::sync::atomic::{AtomicU32, Ordering};

/// Number that distinguishes the sockets of one process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A directory for a socket; removed with its content when dropped.
pub(super) struct Socket {
    pub(super) path: String,
    /// True if the directory is kept on drop.
    pub(super) keep: bool,
    directory: String,
    _held: OwnedLock,
}

impl Socket {
    /// Creates a directory in `parent`, by default Pinfold's run-time directory; `name` is the file
    /// name of the socket.
    pub(super) fn new(parent: Option<&str>, name: &str) -> Result<Self, HostError> {
        let parent = match parent {
            Some(parent) => parent.to_owned(),
            None => files::runtime_dir()?,
        };
        let parent = StateDir::open(&parent)?;
        let host = LiveHost::new()?;
        TemporaryKind::Sockets.remove_orphans(&host, parent.path())?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = parent.path_of(&TemporaryKind::Sockets.name(&host, number)?);
        StateDir::open(&directory)?;
        let held = TemporaryKind::hold(&directory)?;
        Ok(Self { path: format!("{directory}/{name}"), keep: false, directory, _held: held })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !self.keep {
            // If it cannot be removed now, the next start removes it.
            match files::remove_tree(&self.directory) {
                Ok(()) | Err(_) => {}
            }
        }
    }
}
