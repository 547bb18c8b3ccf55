//! The embedded program, and a copy of it on disk that can be executed.
//!
//! The copy is in the cache directory and not in the runtime directory, because `/run` is often
//! mounted `noexec`. Only the user may have access to the directory, and this is checked. Each
//! process writes its own copy and removes it at its end; copies of processes that were killed are
//! removed by the next process.

use std::os::unix::fs::PermissionsExt as _;

use pinfold_host::files::{self, OwnedLock, StateDir, TemporaryKind};
use pinfold_host::{Clock as _, HostError, LiveHost, SystemClock, process};

/// The program: static, runs on any Linux of this architecture, also as the init of a guest.
pub static BINARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pinload"));

const FIRST_RUN_NS: u64 = 30_000_000_000;
/// `ETXTBSY`, which has the same value on all Linux architectures.
const TEXT_BUSY: i32 = 26;

/// A copy of the program on disk, removed when this value is dropped.
#[derive(Debug)]
pub struct Pinload {
    directory: StateDir,
    name: String,
    _held: OwnedLock,
}

impl Pinload {
    /// Writes the program into the user's cache directory.
    ///
    /// # Errors
    /// [`HostError`] if other users can access the directory, or the file cannot be written.
    pub fn install() -> Result<Self, HostError> {
        Self::install_in(&format!("{}/bin", files::cache_dir()?))
    }

    /// Writes the program into this directory, and creates the directory if needed.
    ///
    /// # Errors
    /// As [`Pinload::install`].
    pub fn install_in(directory: &str) -> Result<Self, HostError> {
        let (directory, host) = (StateDir::open(directory)?, LiveHost::new()?);
        TemporaryKind::Program.remove_orphans(&host, directory.path())?;
        // Each value has its own number: two values in one process must not share a file.
        let mut number = 0;
        let mut name = TemporaryKind::Program.name(&host, number)?;
        while directory.contains(&name) {
            number += 1;
            name = TemporaryKind::Program.name(&host, number)?;
        }
        directory.create_new(&name, BINARY)?;
        let held = TemporaryKind::hold(&directory.path_of(&name))?;
        let installed = Self { directory, name, _held: held };
        let path = installed.path();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).map_err(
            |source| HostError::File { operation: "make executable", path, value: None, source },
        )?;
        installed.first_run()?;
        Ok(installed)
    }

    /// Runs the program once, to detect a `noexec` mount early.
    ///
    /// A thread that forks while the file is being written passes the open file to its child. Until
    /// the child calls `exec`, executing the file fails with `ETXTBSY`. After one successful run
    /// this cannot happen again.
    fn first_run(&self) -> Result<(), HostError> {
        let path = self.path();
        let end = SystemClock.now_ns().saturating_add(FIRST_RUN_NS);
        loop {
            match process::capture(&path, ["--version"], FIRST_RUN_NS) {
                Ok(output) if output.status.success() => return Ok(()),
                Ok(output) => {
                    let why = format!("does not run here ({})", process::describe(output.status));
                    return Err(HostError::Unexpected { path, why });
                }
                Err(error) if error.errno() == Some(TEXT_BUSY) && SystemClock.now_ns() < end => {
                    SystemClock.sleep_ns(5_000_000);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Path of the copy.
    pub fn path(&self) -> String {
        self.directory.path_of(&self.name)
    }
}

impl Drop for Pinload {
    fn drop(&mut self) {
        // The next process removes a copy that could not be removed.
        match self.directory.remove(&self.name) {
            Ok(()) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use pinfold_host::process::capture;

    use super::*;

    #[test]
    fn the_copy_runs_and_goes_and_stale_ones_go_too() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("bin");
        let place = place.to_str().unwrap();
        let stale = "pinload-4194999-1-0"; // above the largest process number of any kernel
        StateDir::open(place).unwrap().create_new(stale, b"old").unwrap();
        let first = Pinload::install_in(place).unwrap();
        let second = Pinload::install_in(place).unwrap();
        assert_ne!(first.path(), second.path());
        let output = capture(&first.path(), ["--version"], 10_000_000_000).unwrap();
        assert!(output.stdout_text().starts_with("pinload "), "{output:?}");
        drop((first, second));
        assert_eq!(StateDir::open(place).unwrap().list().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn the_program_is_static() {
        // An interpreter segment would contain the name of the dynamic loader.
        let needle = b"/ld-linux";
        let dynamic = BINARY.windows(needle.len()).take(4096).any(|window| window == needle);
        assert!(BINARY.starts_with(b"\x7fELF") && !dynamic);
    }
}
