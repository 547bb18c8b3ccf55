//! Ctrl-C and SIGTERM set a flag; whoever works looks at it between two steps.
//!
//! A second ctrl-C changes nothing: what is under way takes little time and must be
//! finished or undone. Who waits meanwhile is woken by a [`bell`].

use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use pinfold_host::process::Signaled;
use pinfold_host::{Host, paths};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

use crate::common;
use crate::failure::{Exit, Failure};

static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(false)));
static CHILD: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(false)));
static REREAD: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(false)));

static FORWARDED: LazyLock<[(i32, Signaled, Arc<AtomicBool>); 3]> = LazyLock::new(|| {
    [
        (SIGINT, Signaled::Interrupt, Arc::default()),
        (SIGTERM, Signaled::Terminate, Arc::default()),
        (SIGHUP, Signaled::HangUp, Arc::default()),
    ]
});

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

/// From here on SIGHUP sets the flag too: a closed terminal ends what works there in good order.
/// Who was told to ignore it (`nohup`) goes on.
pub fn install_hang_up(host: &dyn Host) -> Result<(), Failure> {
    if is_ignored(host, SIGHUP)? { Ok(()) } else { catch(SIGHUP, &STOP) }
}

/// From here on these signals set flags of their own, to be handed on to a command, and nothing
/// ends by them here.
pub fn install_forward(host: &dyn Host) -> Result<(), Failure> {
    for (signal, _, flag) in FORWARDED.iter() {
        if *signal != SIGHUP || !is_ignored(host, SIGHUP)? {
            catch(*signal, flag)?;
        }
    }
    Ok(())
}

/// The signals that came since the last call and are to be handed on.
pub fn forwarded() -> Vec<Signaled> {
    let came = FORWARDED.iter().filter(|(_, _, flag)| flag.swap(false, Ordering::Relaxed));
    came.map(|(_, signal, _)| *signal).collect()
}

/// True if this process was started with a signal ignored.
fn is_ignored(host: &dyn Host, signal: i32) -> Result<bool, Failure> {
    let path = paths::own_status();
    let text = host.read_text(&path).map_err(|error| common::host_failure(&error))?;
    let mask = text.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let mask = mask.ok_or_else(|| {
        Failure::new(Exit::Host, format!("{path} does not tell which signals are ignored"))
    })?;
    Ok(mask & (1 << (signal - 1)) != 0)
}

/// From here on the bell rings when a child ends.
pub fn install_child() -> Result<(), Failure> {
    catch(SIGCHLD, &CHILD)
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
