//! Child processes: the only place that starts any.
//!
//! A [`Child`] is killed when it is dropped, unless it was detached: nothing that Pinfold
//! starts outlives it by accident. What a child must have from its first instruction on
//! (affinity, cgroup, policy, the wish to die with its parent) is set between `fork` and
//! `exec` by [`Spawn`]. Nothing here looks at other processes' files: that is [`crate::Host`]'s.

mod child;
mod heartbeat;
mod output;
mod spawn;
#[cfg(test)]
mod tests;

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pinfold_model::{Policy, PuId, TaskId, Tid};
use rustix::mm::MlockAllFlags;
use rustix::process::{Pid, Signal};

pub use child::{Child, describe};
pub use heartbeat::Heartbeat;
pub use output::{Output, capture};
pub use spawn::{Spawn, Stdio};

use crate::{Host, HostError, proc_stat, raw};

/// Signals that Pinfold sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signaled {
    /// `SIGTERM`: please end.
    Terminate,
    /// `SIGKILL`: end now.
    Kill,
    /// `SIGINT`: as from the terminal.
    Interrupt,
    /// `SIGHUP`: the terminal is gone.
    HangUp,
    /// `SIGQUIT`: end, and dump core.
    Quit,
    /// `SIGALRM`.
    Alarm,
    /// `SIGUSR1`.
    User1,
    /// `SIGUSR2`.
    User2,
    /// `SIGPIPE`.
    Pipe,
    /// `SIGSTOP`: stop running.
    Stop,
    /// `SIGCONT`: run again.
    Continue,
}

impl Signaled {
    pub(crate) fn number(self) -> Signal {
        match self {
            Signaled::Terminate => Signal::TERM,
            Signaled::Kill => Signal::KILL,
            Signaled::Interrupt => Signal::INT,
            Signaled::HangUp => Signal::HUP,
            Signaled::Quit => Signal::QUIT,
            Signaled::Alarm => Signal::ALARM,
            Signaled::User1 => Signal::USR1,
            Signaled::User2 => Signal::USR2,
            Signaled::Pipe => Signal::PIPE,
            Signaled::Stop => Signal::STOP,
            Signaled::Continue => Signal::CONT,
        }
    }
}

/// True if the effective user is root.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The effective user's number.
#[must_use]
pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The number of this process.
#[must_use]
pub fn own_pid() -> Tid {
    tid_of(rustix::process::getpid())
}

/// The number of the calling thread.
#[must_use]
pub fn own_tid() -> Tid {
    tid_of(rustix::thread::gettid())
}

/// The CPU that the calling thread is on.
#[must_use]
pub fn own_pu() -> PuId {
    PuId(u32::try_from(rustix::thread::sched_getcpu()).unwrap_or(u32::MAX))
}

/// Has the calling thread run before other threads of its class (nice -20), but none that it
/// starts: on a busy machine others would keep it for longer than whoever waits for it can wait.
///
/// # Errors
/// [`HostError::Thread`]: `EPERM` without `CAP_SYS_NICE`.
pub fn hasten() -> Result<(), HostError> {
    raw::sched_getattr(Tid(0))
        .map(|current| current.with_policy(Policy::Other { nice: -20 }).not_inherited())
        .and_then(|attr| raw::sched_setattr(Tid(0), &attr))
        .map_err(|source| HostError::Thread { call: "sched_setattr", tid: own_tid().0, source })
}

/// Keeps the memory of this process, also what is to come, from being paged out: a real-time
/// thread that waits for a page is late (`mlockall(2)`).
///
/// # Errors
/// [`HostError::Process`] without the right, or if there is too little memory.
pub fn lock_memory() -> Result<(), HostError> {
    rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE).map_err(|errno| {
        HostError::Process { program: "mlockall".to_owned(), source: errno.into() }
    })
}

/// From here on a `SIGPIPE` from another process sets the flag and rings the bell. One that a
/// write of this process raises stays without effect: the write fails with `EPIPE`.
///
/// # Errors
/// [`HostError::Process`] if the kernel refuses the handler.
pub fn catch_pipe_signal(flag: Arc<AtomicBool>, bell: UnixStream) -> Result<(), HostError> {
    raw::pipe_signal::catch(flag, bell)
        .map_err(|source| HostError::Process { program: "sigaction".to_owned(), source })
}

/// Sends a signal to a process.
///
/// The caller must know that the process is its own child and not yet waited for; for others
/// check [`task_alive`] directly before, because numbers are used again.
///
/// # Errors
/// [`HostError::Thread`]: `ESRCH` if it is gone, `EPERM` without the right, `EINVAL` for 0.
pub fn signal(pid: Tid, signal: Signaled) -> Result<(), HostError> {
    let fail = |errno: rustix::io::Errno| HostError::Thread {
        call: "kill",
        tid: pid.0,
        source: errno.into(),
    };
    let target = i32::try_from(pid.0)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| fail(rustix::io::Errno::INVAL))?;
    rustix::process::kill_process(target, signal.number()).map_err(fail)
}

/// True if this very thread (not a later one with its number) exists and has not ended.
///
/// # Errors
/// [`HostError`] if its state cannot be read for another reason than that it is gone.
pub fn task_alive(host: &dyn Host, task: TaskId) -> Result<bool, HostError> {
    proc_stat::is_alive(host, &crate::paths::process_stat(task.tid), task)
}

/// The program that a shell would run: `name` itself if it has a slash, else the first
/// executable file of that name in `PATH`.
#[must_use]
pub fn find_program(name: &str) -> Option<String> {
    let is_program = |path: &str| {
        std::fs::metadata(path)
            .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        return is_program(name).then(|| name.to_owned());
    }
    if name.is_empty() {
        return None;
    }
    // Without a PATH, a shell's own.
    let path = std::env::var("PATH").unwrap_or_default();
    let path = if path.is_empty() { "/usr/local/bin:/usr/bin:/bin".to_owned() } else { path };
    path.split(':')
        .filter(|directory| directory.starts_with('/'))
        .map(|directory| format!("{}/{name}", directory.trim_end_matches('/')))
        .find(|candidate| is_program(candidate))
}

fn tid_of(pid: Pid) -> Tid {
    Tid(pid.as_raw_nonzero().get().unsigned_abs())
}
