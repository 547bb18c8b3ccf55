//! One lock over the choice of CPUs and the journal that claims them.
//!
//! A plan avoids the CPUs that the journals of the state directory claim. Two commands that start
//! at the same time would choose the same CPUs if one could plan before the journal of the other
//! exists.

use pinfold_apply::JOURNALS;
use pinfold_host::files::{Lock, StateDir};
use pinfold_host::{Clock as _, SystemClock};

use crate::{Exit, Failure, interrupt};

const NAME: &str = "start.lock";

/// The lock is held while a machine starts, which takes seconds.
const TIMEOUT_NS: u64 = 60_000_000_000;
const PAUSE_NS: u64 = 20_000_000;
/// The longest pause: hundreds of machines that start at the same time ask in turn.
const LONGEST_PAUSE_NS: u64 = 400_000_000;

/// The lock of a state directory, held from reading the claims until the journal is written.
#[derive(Debug)]
pub struct StartLock {
    _lock: Lock,
}

impl StartLock {
    /// Waits for the lock.
    ///
    /// # Errors
    /// [`Failure`] if another process holds it for a minute, if a stop is requested, or if the file
    /// cannot be created.
    pub fn wait(state: &StateDir) -> Result<Self, Failure> {
        Self::wait_at_most(state, TIMEOUT_NS)?.ok_or_else(|| {
            let text = "another pinfold process has been starting a placement for a minute";
            Failure::new(Exit::Host, text)
                .with_hint("wait until its machine has started, or stop that process")
        })
    }

    /// Waits for the lock, at most for this time (ns). `None` if another process still holds it.
    ///
    /// # Errors
    /// [`Failure`] if a stop is requested, or if the file cannot be created.
    pub fn wait_at_most(state: &StateDir, patience_ns: u64) -> Result<Option<Self>, Failure> {
        let journals = StateDir::open(&state.path_of(JOURNALS))?;
        let end = SystemClock.now_ns().saturating_add(patience_ns);
        let mut pause_ns = PAUSE_NS;
        loop {
            if let Some(lock) = journals.lock(NAME)? {
                return Ok(Some(Self { _lock: lock }));
            }
            interrupt::check()?;
            if SystemClock.now_ns() >= end {
                return Ok(None);
            }
            SystemClock.sleep_ns(pause_ns);
            pause_ns = (pause_ns + pause_ns / 8).min(LONGEST_PAUSE_NS);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn the_second_start_waits_for_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state").to_string_lossy().into_owned();
        let state = StateDir::open(&path).unwrap();
        let is_released = AtomicBool::new(false);
        let first = StartLock::wait(&state).unwrap();
        assert!(StateDir::open(&state.path_of(JOURNALS)).unwrap().lock(NAME).unwrap().is_none());
        std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                let _lock = StartLock::wait(&StateDir::open(&path).unwrap()).unwrap();
                is_released.load(Ordering::SeqCst)
            });
            is_released.store(true, Ordering::SeqCst);
            drop(first);
            assert!(second.join().unwrap());
        });
    }

    #[test]
    fn a_caller_with_little_time_goes_on_without_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state").to_string_lossy()).unwrap();
        let first = StartLock::wait(&state).unwrap();
        assert!(StartLock::wait_at_most(&state, PAUSE_NS).unwrap().is_none());
        drop(first);
        assert!(StartLock::wait_at_most(&state, PAUSE_NS).unwrap().is_some());
    }
}
