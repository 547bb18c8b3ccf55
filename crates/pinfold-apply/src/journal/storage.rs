//! The directory of the journals, as a trait.
//!
//! There are two implementations: the state directory, and in tests a directory on a full disk.

use pinfold_host::HostError;
use pinfold_host::files::{Lock, StateDir};

/// Operations on the journal directory; documented at [`StateDir`].
pub(crate) trait Storage: Send + Sync {
    fn path_of(&self, name: &str) -> String;
    fn list(&self) -> Result<Vec<String>, HostError>;
    fn mark(&self) -> Result<u64, HostError>;
    fn contains(&self, name: &str) -> bool;
    fn read(&self, name: &str) -> Result<Vec<u8>, HostError>;
    fn append(&self, name: &str, content: &[u8]) -> Result<(), HostError>;
    fn append_unsynced(&self, name: &str, content: &[u8]) -> Result<(), HostError>;
    fn replace(&self, name: &str, content: &[u8], room: u64) -> Result<(), HostError>;
    fn release_room(&self, name: &str) -> Result<(), HostError>;
    fn remove(&self, name: &str) -> Result<(), HostError>;
    fn lock(&self, name: &str) -> Result<Option<Lock>, HostError>;
}

impl Storage for StateDir {
    fn path_of(&self, name: &str) -> String {
        self.path_of(name)
    }

    fn list(&self) -> Result<Vec<String>, HostError> {
        self.list()
    }

    fn mark(&self) -> Result<u64, HostError> {
        self.change_time_ns()
    }

    fn contains(&self, name: &str) -> bool {
        self.contains(name)
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, HostError> {
        self.read(name)
    }

    fn append(&self, name: &str, content: &[u8]) -> Result<(), HostError> {
        self.append(name, content)
    }

    fn append_unsynced(&self, name: &str, content: &[u8]) -> Result<(), HostError> {
        self.append_unsynced(name, content)
    }

    fn replace(&self, name: &str, content: &[u8], room: u64) -> Result<(), HostError> {
        self.replace_with_room(name, content, room)
    }

    fn release_room(&self, name: &str) -> Result<(), HostError> {
        self.release_room(name)
    }

    fn remove(&self, name: &str) -> Result<(), HostError> {
        self.remove(name)
    }

    fn lock(&self, name: &str) -> Result<Option<Lock>, HostError> {
        self.lock(name)
    }
}
