//! The socket that Pinfold speaks QMP over: in a directory of its own, gone afterwards.
//!
//! Who may connect to a QMP socket may do anything that QEMU may. The directory above it is
//! therefore private (mode 0700, ours, no link); QEMU makes the socket inside. Directories of
//! processes that were killed are swept away by the next start and by `pinfold undo`.

use pinfold_host::files::{self, Held, Owned, StateDir};
use pinfold_host::{HostError, LiveHost};
use std::sync::atomic::{AtomicU32, Ordering};

/// Tells apart the sockets of one process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A place for a socket; removed with what is in it when dropped.
pub(super) struct Socket {
    pub(super) path: String,
    /// True if it is to stay.
    pub(super) keep: bool,
    directory: String,
    _held: Held,
}

impl Socket {
    /// A fresh directory in `parent`, by default Pinfold's run-time directory.
    pub(super) fn new(parent: Option<&str>) -> Result<Self, HostError> {
        let parent = match parent {
            Some(parent) => parent.to_owned(),
            None => files::runtime_dir()?,
        };
        let parent = StateDir::open(&parent)?;
        let host = LiveHost::new()?;
        Owned::Sockets.remove_orphans(&host, parent.path())?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = parent.path_of(&Owned::Sockets.name(&host, number)?);
        StateDir::open(&directory)?;
        let held = Owned::hold(&directory)?;
        Ok(Self { path: format!("{directory}/qmp"), keep: false, directory, _held: held })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !self.keep {
            // What cannot be removed now is swept away by the next start.
            match files::remove_tree(&self.directory) {
                Ok(()) | Err(_) => {}
            }
        }
    }
}
