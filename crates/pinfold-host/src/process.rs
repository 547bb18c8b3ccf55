//! Child processes; no other code starts any.
//!
//! A [`Child`] is killed when it is dropped, unless it was detached, so that nothing that Pinfold
//! starts outlives it by accident. [`Spawn`] sets everything that a child needs from its first
//! instruction on (affinity, cgroup, policy, parent-death signal) between `fork` and `exec`. Files
//! of other processes are read through [`crate::Host`], not here.

mod child;
mod heartbeat;
mod output;
mod signal;
mod spawn;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pinfold_model::{Policy, PuId, TaskId, Tid};
use rustix::io::Errno;
use rustix::mm::MlockAllFlags;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, WaitOptions};

pub use child::{Child, describe};
pub use heartbeat::Heartbeat;
pub use output::{Output, capture};
pub use signal::Signaled;
pub use spawn::{Spawn, Stdio};

use crate::{Host, HostError, proc_stat, raw};

/// The end of a process that is not a child of this one, as a descriptor (`pidfd`) that is readable
/// when the process has ended.
/// <https://man7.org/linux/man-pages/man2/pidfd_open.2.html>
#[derive(Debug)]
pub struct ProcessEnd(OwnedFd);

impl ProcessEnd {
    /// `None` if this process (not a later one with the same PID) has ended.
    ///
    /// # Errors
    /// [`HostError::Thread`] for a thread that is no process, or on a kernel before 5.3;
    /// [`HostError`] if the state of the process cannot be read.
    pub fn read(host: &dyn Host, process: TaskId) -> Result<Option<Self>, HostError> {
        let pid = i32::try_from(process.tid.0).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| fail(process, Errno::INVAL))?;
        let end = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(end) => end,
            Err(Errno::SRCH) => return Ok(None),
            Err(errno) => return Err(fail(process, errno)),
        };
        // Checked while the descriptor holds the PID.
        Ok(task_alive(host, process)?.then_some(Self(end)))
    }
}

fn fail(process: TaskId, errno: Errno) -> HostError {
    HostError::Thread { call: "pidfd_open", tid: process.tid.0, source: errno.into() }
}

impl AsFd for ProcessEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// True if the effective user is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Number of times that ended children of this process, and theirs, lost the CPU to another task
/// (`ru_nivcsw`). <https://man7.org/linux/man-pages/man2/getrusage.2.html>
#[must_use]
pub fn involuntary_switches_of_children() -> u64 {
    raw::involuntary_switches_of_children()
}

/// Effective user ID.
pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// PID of this process.
#[must_use]
pub fn own_pid() -> Tid {
    tid_of(rustix::process::getpid())
}

/// TID of the calling thread.
pub fn own_tid() -> Tid {
    tid_of(rustix::thread::gettid())
}

/// The CPU on which the calling thread runs.
#[must_use]
pub fn own_pu() -> PuId {
    PuId(u32::try_from(rustix::thread::sched_getcpu()).unwrap_or(u32::MAX))
}

/// Gives the calling thread nice value -20, which its future threads do not inherit. On a busy
/// machine, other threads could otherwise delay it for longer than its waiting callers can
/// tolerate.
///
/// # Errors
/// [`HostError::Thread`]: `EPERM` without `CAP_SYS_NICE`.
pub fn raise_priority() -> Result<(), HostError> {
    raw::sched_getattr(Tid(0))
        .map(|current| current.with_policy(Policy::Other { nice: -20 }).not_inherited())
        .and_then(|attr| raw::sched_setattr(Tid(0), &attr))
        .map_err(|source| HostError::Thread { call: "sched_setattr", tid: own_tid().0, source })
}

/// Locks all current and future memory of this process (`mlockall(2)`), because a page fault would
/// delay a real-time thread.
///
/// # Errors
/// [`HostError::Process`] without permission, or if there is too little memory.
pub fn lock_memory() -> Result<(), HostError> {
    rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE).map_err(|errno| {
        HostError::Process { program: "mlockall".to_owned(), source: errno.into() }
    })
}

/// Installs a handler for `SIGPIPE` from another process, which sets `flag` and writes to `wake`.
/// The signal of a failed write of this process has no effect: the write fails with `EPIPE`.
///
/// # Errors
/// [`HostError::Process`] if the kernel refuses the handler.
pub fn catch_pipe_signal(flag: Arc<AtomicBool>, wake: UnixStream) -> Result<(), HostError> {
    raw::pipe_signal::catch(flag, wake)
        .map_err(|source| HostError::Process { program: "sigaction".to_owned(), source })
}

/// Makes this process the parent of its descendants whose parents end (`PR_SET_CHILD_SUBREAPER`).
/// They must be reaped: [`reap`].
///
/// # Errors
/// [`HostError::Process`] if the kernel refuses it.
pub fn become_subreaper() -> Result<(), HostError> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|errno| HostError::Process { program: "prctl".to_owned(), source: errno.into() })
}

/// True if a child of this process has ended and is not yet reaped.
pub fn has_ended_child() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(rustix::process::waitid(WaitId::All, options), Ok(Some(_)))
}

/// Reaps an adopted child that has ended. Not for a [`Child`], which reaps itself.
pub fn reap(pid: Tid) {
    let Some(pid) = i32::try_from(pid.0).ok().and_then(Pid::from_raw) else { return };
    // A process that is no child, or was reaped, needs nothing.
    match rustix::process::waitpid(Some(pid), WaitOptions::NOHANG) {
        Ok(_) | Err(_) => {}
    }
}

/// Sends a signal to a process.
///
/// The process must be the caller's own child that is not yet reaped. For other processes call
/// [`task_alive`] directly before, because PIDs are reused.
///
/// # Errors
/// [`HostError::Thread`]: `ESRCH` if it no longer exists, `EPERM` without permission, `EINVAL` for
/// 0.
pub fn signal(pid: Tid, signal: Signaled) -> Result<(), HostError> {
    fn fail(pid: &Tid, errno: rustix::io::Errno) -> HostError {
        HostError::Thread { call: "kill", tid: pid.0, source: errno.into() }
    }

    let target = i32::try_from(pid.0)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| fail(&pid, rustix::io::Errno::INVAL))?;
    rustix::process::kill_process(target, signal.number()).map_err(|errno| fail(&pid, errno))
}

/// True if this thread (not a later one with the same TID) exists and has not ended.
///
/// # Errors
/// [`HostError`] if its state cannot be read for a reason other than that it no longer exists.
pub fn task_alive(host: &dyn Host, task: TaskId) -> Result<bool, HostError> {
    proc_stat::is_alive(host, &crate::paths::process_stat(task.tid), task)
}

/// Finds a program like a shell: `name` itself if it contains a slash, else the first executable
/// file with that name in `PATH`.
pub fn find_program(name: &str) -> Option<String> {
    if name.contains('/') {
        return is_program(name).then(|| name.to_owned());
    }
    if name.is_empty() {
        return None;
    }
    // Without a PATH, the default of a shell.
    let path = std::env::var("PATH").unwrap_or_default();
    let path = if path.is_empty() { "/usr/local/bin:/usr/bin:/bin".to_owned() } else { path };
    path.split(':')
        .filter(|directory| directory.starts_with('/'))
        .map(|directory| format!("{}/{name}", directory.trim_end_matches('/')))
        .find(|candidate| is_program(candidate))
}

fn is_program(path: &str) -> bool {
    std::fs::metadata(path)
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn tid_of(pid: Pid) -> Tid {
    Tid(pid.as_raw_nonzero().get().unsigned_abs())
}
