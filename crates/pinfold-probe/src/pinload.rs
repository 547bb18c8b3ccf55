//! The embedded program, and a place on disk from which it can be run.
//!
//! It is put into the cache directory rather than the runtime directory, because `/run` is
//! often mounted `noexec`. The directory is checked to be ours alone. Each process has
//! its own copy and removes it when done; copies of processes that were killed are removed
//! by the next one.

use std::os::unix::fs::PermissionsExt as _;

use pinfold_host::files::{self, Held, Owned, StateDir};
use pinfold_host::{Clock as _, HostError, LiveHost, SystemClock, process};

/// The program itself: static, runs on any Linux of this architecture, also as a guest's init.
pub static BINARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pinload"));

const FIRST_RUN_NS: u64 = 30_000_000_000;
/// `ETXTBSY`, the same on all architectures that Linux runs on.
const TEXT_BUSY: i32 = 26;

/// A copy of the program on disk, removed when this value is dropped.
#[derive(Debug)]
pub struct Pinload {
    directory: StateDir,
    name: String,
    _held: Held,
}

impl Pinload {
    /// Puts it into the user's cache directory.
    ///
    /// # Errors
    /// [`HostError`] if the directory is not ours alone or the file cannot be written.
    pub fn install() -> Result<Self, HostError> {
        Self::install_in(&format!("{}/bin", files::cache_dir()?))
    }

    /// Puts it into this directory, which is made if it is not there.
    ///
    /// # Errors
    /// As [`Pinload::install`].
    pub fn install_in(directory: &str) -> Result<Self, HostError> {
        let (directory, host) = (StateDir::open(directory)?, LiveHost::new()?);
        Owned::Program.remove_orphans(&host, directory.path())?;
        // A number of its own for each value: two in one process must not share a file.
        let mut number = 0;
        let mut name = Owned::Program.name(&host, number)?;
        while directory.contains(&name) {
            number += 1;
            name = Owned::Program.name(&host, number)?;
        }
        directory.create_new(&name, BINARY)?;
        let held = Owned::hold(&directory.path_of(&name))?;
        let installed = Self { directory, name, _held: held };
        let path = installed.path();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).map_err(
            |source| HostError::File { operation: "make executable", path, value: None, source },
        )?;
        installed.first_run()?;
        Ok(installed)
    }

    /// Runs it once, which shows a `noexec` mount here rather than later.
    ///
    /// A thread that forks while the file is being written hands the open file to its child, and
    /// until that child has its own program, ours is "busy". After one run that cannot come back.
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

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> String {
        self.directory.path_of(&self.name)
    }
}

impl Drop for Pinload {
    fn drop(&mut self) {
        // A copy that stays behind is removed by the next process.
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
        let stale = "pinload-4194999-1-0"; // above every kernel's largest process number
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
        // An interpreter segment would name the dynamic loader.
        let needle = b"/ld-linux";
        let dynamic = BINARY.windows(needle.len()).take(4096).any(|window| window == needle);
        assert!(BINARY.starts_with(b"\x7fELF") && !dynamic);
    }
}
