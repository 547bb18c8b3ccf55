//! Each signal that would end the process (ctrl-C, SIGTERM, SIGHUP of a closed terminal, …) sets a
//! flag; the commands check it between steps.
//!
//! A second signal has no effect: the current step is short, and must be completed or undone. A
//! waiting thread is woken through [`signal_fd`].

use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use pinfold_host::process::{self, Signaled};
use pinfold_host::{files, paths};
use signal_hook::consts::{SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use crate::{Exit, Failure};

static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(false)));
static CHILD: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(false)));
static REREAD: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(false)));

/// The signals by which a user, a terminal or job control ends a program, except `SIGPIPE`.
const ENDING: [(i32, Signaled); 7] = [
    (SIGINT, Signaled::Interrupt),
    (SIGTERM, Signaled::Terminate),
    (SIGHUP, Signaled::HangUp),
    (SIGQUIT, Signaled::Quit),
    (SIGALRM, Signaled::Alarm),
    (SIGUSR1, Signaled::User1),
    (SIGUSR2, Signaled::User2),
];

/// One flag for each of those signals; the last one is for `SIGPIPE`.
static FORWARDED: LazyLock<[Arc<AtomicBool>; ENDING.len() + 1]> = LazyLock::new(Default::default);

/// Both ends of the socket pair; the signals write to the second.
static SIGNAL_PIPE: LazyLock<Option<(UnixStream, UnixStream)>> = LazyLock::new(|| {
    let ends = UnixStream::pair().ok()?;
    ends.0.set_nonblocking(true).ok()?;
    Some(ends)
});

/// Installs handlers: each signal that would end this process sets the flag.
pub fn install() -> Result<(), Failure> {
    install_all_but(None)
}

/// As [`install`], but SIGHUP requests a reload.
pub fn install_with_reread() -> Result<(), Failure> {
    install_all_but(Some(SIGHUP))?;
    catch(SIGHUP, &REREAD)
}

fn install_all_but(other: Option<i32>) -> Result<(), Failure> {
    for (signal, _) in ENDING {
        if Some(signal) != other && is_not_ignored(signal)? {
            catch(signal, &STOP)?;
        }
    }
    catch_pipe(&STOP)
}

/// Installs handlers that set a separate flag for each signal, to forward it to a command. The
/// signals do not end this process.
pub fn install_forward() -> Result<(), Failure> {
    let [flags @ .., pipe] = &*FORWARDED;
    for ((signal, _), flag) in ENDING.iter().zip(flags) {
        if is_not_ignored(*signal)? {
            catch(*signal, flag)?;
        }
    }
    catch_pipe(pipe)
}

/// The signals received since the last call, to be forwarded.
pub fn take_forwarded() -> Vec<Signaled> {
    let signals = ENDING.into_iter().map(|(_, signal)| signal).chain([Signaled::Pipe]);
    let came = signals.zip(&*FORWARDED).filter(|(_, flag)| flag.swap(false, Ordering::Relaxed));
    came.map(|(signal, _)| signal).collect()
}

/// False for a signal that was ignored when this process was started (`nohup`). SIGINT and SIGTERM
/// are always handled: shells start background jobs with SIGINT ignored, but `kill -INT` must work.
fn is_not_ignored(signal: i32) -> Result<bool, Failure> {
    if signal == SIGINT || signal == SIGTERM {
        return Ok(true);
    }
    let path = paths::own_status();
    let text = files::read_text(&path)?;
    let mask = text.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let mask = mask.ok_or_else(|| {
        Failure::new(Exit::Host, format!("{path} does not list the ignored signals"))
    })?;
    Ok(mask & (1 << (signal - 1)) == 0)
}

/// Makes it readable when a child ends.
pub fn install_child() -> Result<(), Failure> {
    catch(SIGCHLD, &CHILD)
}

fn catch_pipe(flag: &Arc<AtomicBool>) -> Result<(), Failure> {
    let Some((_, ours)) = &*SIGNAL_PIPE else { return Ok(()) };
    let ours = ours.try_clone().map_err(|error: std::io::Error| {
        Failure::new(Exit::Host, format!("cannot catch signals: {error}"))
    })?;
    process::catch_pipe_signal(Arc::clone(flag), ours).map_err(Failure::from)
}

fn catch(signal: i32, flag: &Arc<AtomicBool>) -> Result<(), Failure> {
    signal_hook::flag::register(signal, Arc::clone(flag)).map_err(failure)?;
    if let Some((_, ours)) = &*SIGNAL_PIPE {
        let ours = ours.try_clone().map_err(failure)?;
        signal_hook::low_level::pipe::register(signal, ours).map_err(failure)?;
    }
    Ok(())
}

fn failure(error: std::io::Error) -> Failure {
    Failure::new(Exit::Host, format!("cannot catch signals: {error}"))
}

/// Readable after a handled signal, including one before the wait.
pub fn signal_fd() -> Option<BorrowedFd<'static>> {
    SIGNAL_PIPE.as_ref().map(|(here, _)| here.as_fd())
}

/// Resets it until the next signal.
pub fn drain_signal_pipe() {
    let mut room = [0; 64];
    if let Some((here, _)) = &*SIGNAL_PIPE {
        let mut here = here;
        while here.read(&mut room).is_ok_and(|count| count == room.len()) {}
    }
}

/// True once for each SIGHUP.
pub fn reread() -> bool {
    REREAD.swap(false, Ordering::Relaxed)
}

/// The flag that a signal sets.
pub fn flag() -> &'static AtomicBool {
    &STOP
}

/// Fails if the user requested a stop.
pub fn check() -> Result<(), Failure> {
    if is_requested() { Err(Failure::new(Exit::Interrupted, "interrupted")) } else { Ok(()) }
}

/// True if the user requested a stop.
pub fn is_requested() -> bool {
    STOP.load(Ordering::Relaxed)
}
