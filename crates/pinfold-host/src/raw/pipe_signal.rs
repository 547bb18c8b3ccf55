//! Handles `SIGPIPE` from other processes, and ignores the `SIGPIPE` that a write of this process
//! raises.
//!
//! The kernel sends the signal to the thread that writes to a pipe without a reader, with the PID
//! of that thread's own process as sender; `kill -PIPE` has the sender's PID.
//! <https://man7.org/linux/man-pages/man2/sigaction.2.html>

use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

struct SignalRequest {
    flag: Arc<AtomicBool>,
    wake: UnixStream,
    own: i32,
}

static ASKED: OnceLock<SignalRequest> = OnceLock::new();

/// Sets the flag and writes to `wake` when another process sends `SIGPIPE`; only the first call has
/// an effect.
pub(crate) fn catch(flag: Arc<AtomicBool>, wake: UnixStream) -> io::Result<()> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    if ASKED.set(SignalRequest { flag, wake, own }).is_err() {
        return Ok(());
    }
    // SAFETY: all zeros is a valid `sigaction`: no flags, an empty mask, the default action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: `action` is valid, and its handler only does what a signal handler may do (below).
    match unsafe { libc::sigaction(libc::SIGPIPE, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_signal(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let Some(asked) = ASKED.get() else { return };
    // SAFETY: with `SA_SIGINFO` the kernel passes a valid `siginfo_t`; it fills in the sender for a
    // signal of `kill(2)` and of a failed write.
    let sender = unsafe { (*info).si_pid() };
    if sender == asked.own {
        return;
    }
    asked.flag.store(true, Ordering::Relaxed);
    // SAFETY: the address of this thread's `errno` is valid as long as the thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above. The interrupted code may be about to read errno, so it is restored below.
    let before = unsafe { *errno };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let wake = asked.wake.as_raw_fd();
    // SAFETY: `send` is async-signal-safe, the socket is open as long as the process, and one byte
    // is read from a static. If the socket is full, its reader will wake up anyway.
    unsafe { libc::send(wake, b"x".as_ptr().cast(), 1, flags) };
    // SAFETY: as above.
    unsafe { *errno = before };
}
