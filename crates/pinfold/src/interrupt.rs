//! Ctrl-C and SIGTERM set a flag; whoever works looks at it between two steps.
//!
//! A second ctrl-C changes nothing: what is under way takes little time and must be
//! finished or undone. Who waits meanwhile is woken by a [`bell`].

use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::{Exit, Failure};

static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(false)));
static REREAD: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(false)));

/// Both ends; the second is the signals'.
static BELL: LazyLock<Option<(UnixStream, UnixStream)>> = LazyLock::new(|| {
    let ends = UnixStream::pair().ok()?;
    ends.0.set_nonblocking(true).ok()?;
    Some(ends)
});

/// From here on ctrl-C and SIGTERM set the flag.
pub fn install() -> Result<(), Failure> {
    [SIGINT, SIGTERM].into_iter().try_for_each(|signal| catch(signal, &STOP))
}

/// From here on SIGHUP asks to read everything again.
pub fn install_reread() -> Result<(), Failure> {
    catch(SIGHUP, &REREAD)
}

fn catch(signal: i32, flag: &Arc<AtomicBool>) -> Result<(), Failure> {
    let failure =
        |error: std::io::Error| Failure::new(Exit::Host, format!("cannot catch signals: {error}"));
    signal_hook::flag::register(signal, Arc::clone(flag)).map_err(failure)?;
    if let Some((_, ours)) = &*BELL {
        let ours = ours.try_clone().map_err(failure)?;
        signal_hook::low_level::pipe::register(signal, ours).map_err(failure)?;
    }
    Ok(())
}

/// Can be read from when a signal came that was caught, also one that came before the wait.
pub fn bell() -> Option<BorrowedFd<'static>> {
    BELL.as_ref().map(|(here, _)| here.as_fd())
}

/// Silences the bell until the next signal.
pub fn silence() {
    let mut room = [0; 64];
    if let Some((here, _)) = &*BELL {
        let mut here = here;
        while here.read(&mut room).is_ok_and(|count| count == room.len()) {}
    }
}

/// True once for each SIGHUP.
pub fn reread() -> bool {
    REREAD.swap(false, Ordering::Relaxed)
}

/// The flag.
pub fn flag() -> &'static AtomicBool {
    &STOP
}

/// True once the user asked to stop.
pub fn requested() -> bool {
    STOP.load(Ordering::Relaxed)
}
