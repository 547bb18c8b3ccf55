//! A running child process.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{ChildStderr, ChildStdin, ChildStdout, ExitStatus};

use pinfold_model::{TaskId, Tid};

use super::Signaled;
use crate::{Clock, HostError};

const FIRST_NAP_NS: u64 = 500_000;
const LONGEST_NAP_NS: u64 = 20_000_000;

/// A child process. Dropping it kills and reaps it, unless it was detached.
#[derive(Debug)]
pub struct Child {
    program: String,
    task: TaskId,
    inner: std::process::Child,
    ended: Option<ExitStatus>,
    own_group: bool,
    detached: bool,
}

impl Child {
    pub(super) fn new(
        program: String,
        task: TaskId,
        inner: std::process::Child,
        own_group: bool,
    ) -> Self {
        Self { program, task, inner, ended: None, own_group, detached: false }
    }

    pub(super) fn set_start_time(&mut self, start_time: u64) {
        self.task.start_time = start_time;
    }

    /// Its PID.
    pub fn pid(&self) -> Tid {
        self.task.tid
    }

    /// Its start time in clock ticks since boot.
    #[must_use]
    pub fn start_time(&self) -> u64 {
        self.task.start_time
    }

    /// Its main thread, identified by PID and start time.
    pub fn task(&self) -> TaskId {
        self.task
    }

    /// Name of the program that was started.
    #[must_use]
    pub fn program(&self) -> &str {
        &self.program
    }

    /// The writing end of its standard input, once, if it was piped.
    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.inner.stdin.take()
    }

    /// The reading end of its standard output, once, if it was piped.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.inner.stdout.take()
    }

    /// The reading end of its standard error, once, if it was piped.
    pub fn stderr(&mut self) -> Option<ChildStderr> {
        self.inner.stderr.take()
    }

    /// Its exit status, if it has ended.
    ///
    /// # Errors
    /// [`HostError::Process`] if it cannot be waited for.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, HostError> {
        if self.ended.is_none() {
            self.ended = self.inner.try_wait().map_err(|source| self.fault(source))?;
        }
        Ok(self.ended)
    }

    /// Waits until it ends. Closes its standard input first, unless that was taken.
    ///
    /// # Errors
    /// [`HostError::Process`] if it cannot be waited for.
    pub fn wait(&mut self) -> Result<ExitStatus, HostError> {
        if let Some(status) = self.ended {
            return Ok(status);
        }
        let status = self.inner.wait().map_err(|source| self.fault(source))?;
        self.ended = Some(status);
        Ok(status)
    }

    /// Waits at most for the timeout.
    ///
    /// # Errors
    /// [`HostError::Process`] if it cannot be waited for.
    pub fn wait_for(
        &mut self,
        clock: &dyn Clock,
        ns: u64,
    ) -> Result<Option<ExitStatus>, HostError> {
        let end = clock.now_ns().saturating_add(ns);
        let mut nap = FIRST_NAP_NS;
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(Some(status));
            }
            let left = end.saturating_sub(clock.now_ns());
            if left == 0 {
                return Ok(None);
            }
            clock.sleep_ns(nap.min(left));
            nap = (nap * 2).min(LONGEST_NAP_NS);
        }
    }

    /// Asks it to end (`SIGTERM`). A child that has already ended is no error.
    ///
    /// # Errors
    /// [`HostError::Thread`] if the signal cannot be sent.
    pub fn terminate(&mut self) -> Result<(), HostError> {
        self.signal(Signaled::Terminate)
    }

    /// Kills it (`SIGKILL`), with its process group if it has its own, and reaps it.
    ///
    /// # Errors
    /// [`HostError`] if the signal cannot be sent or the child cannot be waited for.
    pub fn kill(&mut self) -> Result<ExitStatus, HostError> {
        if self.own_group {
            // Also if the child itself has ended: a group ID is not reused while a member lives,
            // and the PID is not reused while the child is not reaped.
            if self.ended.is_none() {
                kill_group(self.task.tid)?;
            }
        } else {
            self.signal(Signaled::Kill)?;
        }
        self.wait()
    }

    /// Sends it a signal. A child that has already ended is no error.
    ///
    /// # Errors
    /// [`HostError::Thread`] if the signal cannot be sent.
    pub fn signal(&mut self, signal: Signaled) -> Result<(), HostError> {
        // Its PID cannot be reused until try_wait or wait reaps it.
        if self.try_wait()?.is_some() {
            return Ok(());
        }
        super::signal(self.task.tid, signal)
    }

    /// Lets it continue when this value is dropped.
    #[must_use]
    pub fn detach(mut self) -> TaskId {
        self.detached = true;
        self.task
    }

    fn fault(&self, source: std::io::Error) -> HostError {
        HostError::Process { program: self.program.clone(), source }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.detached || self.ended.is_some() {
            return;
        }
        // An error means that the child no longer exists; there is no caller to report it to.
        match self.kill() {
            Ok(_) | Err(_) => {}
        }
    }
}

fn kill_group(leader: Tid) -> Result<(), HostError> {
    let pid = i32::try_from(leader.0)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .ok_or_else(|| fail(&leader, rustix::io::Errno::INVAL))?;
    match rustix::process::kill_process_group(pid, rustix::process::Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(errno) => Err(fail(&leader, errno)),
    }
}

fn fail(leader: &Tid, errno: rustix::io::Errno) -> HostError {
    HostError::Thread { call: "kill", tid: leader.0, source: errno.into() }
}

/// Describes an exit status, as a sentence without full stop: `exit code 1`, `killed by signal 9`.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}
