//! Runs a program and collects its output.

use std::os::fd::AsFd as _;
use std::process::ExitStatus;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::{Heartbeat, Spawn, Stdio};
use crate::{Clock as _, HostError, SystemClock};

/// Output of a program that has ended.
#[derive(Clone, Debug)]
pub struct Output {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
}

impl Output {
    /// Standard output as text; bytes that are not UTF-8 become U+FFFD.
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text; bytes that are not UTF-8 become U+FFFD.
    #[must_use]
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

/// Runs a program to its end, with empty standard input, `LC_ALL=C` and its own process group,
/// which is killed at the timeout.
///
/// # Errors
/// [`HostError::Process`] if it cannot be started or read; `ETIMEDOUT` if it took too long (or a
/// descendant keeps its output open).
pub fn capture<A: AsRef<std::ffi::OsStr>>(
    program: &str,
    args: impl IntoIterator<Item = A>,
    timeout_ns: u64,
) -> Result<Output, HostError> {
    Spawn::new(program).args(args).capture(timeout_ns)
}

impl Spawn {
    /// Same as [`capture`] for a child with further settings, such as affinity or cgroups.
    ///
    /// # Errors
    /// As [`capture`] and [`Spawn::start`].
    pub fn capture(self, timeout_ns: u64) -> Result<Output, HostError> {
        self.stdin(Stdio::Null).collect(timeout_ns, u64::MAX, &mut |_| {})
    }

    /// The same, and passes standard output to a callback as it arrives.
    ///
    /// # Errors
    /// As [`Spawn::capture`].
    pub fn output_with_callback(
        self,
        timeout_ns: u64,
        received: &mut dyn FnMut(&[u8]),
    ) -> Result<Output, HostError> {
        self.stdin(Stdio::Null).collect(timeout_ns, u64::MAX, received)
    }

    /// The same for a child that needs heartbeats: it gets one byte on its standard input every
    /// `beat_ns`. While this process is stopped, it gets none.
    ///
    /// # Errors
    /// As [`Spawn::capture`].
    pub fn output_with_heartbeat(self, timeout_ns: u64, beat_ns: u64) -> Result<Output, HostError> {
        self.stdin(Stdio::Pipe).collect(timeout_ns, beat_ns, &mut |_| {})
    }

    fn collect(
        self,
        timeout_ns: u64,
        beat_ns: u64,
        received: &mut dyn FnMut(&[u8]),
    ) -> Result<Output, HostError> {
        let program = self.program.clone();
        let fail =
            |errno: Errno| HostError::Process { program: program.clone(), source: errno.into() };
        let end = SystemClock.now_ns().saturating_add(timeout_ns);
        let mut child =
            self.env("LC_ALL", "C").stdout(Stdio::Pipe).stderr(Stdio::Pipe).own_group().start()?;
        let mut beat = child.stdin().map(Heartbeat::over).transpose()?;
        let mut streams = Streams { stdout: child.stdout(), stderr: child.stderr() };
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while streams.stdout.is_some() || streams.stderr.is_some() {
            let left = end.saturating_sub(SystemClock.now_ns());
            if left == 0 {
                child.kill()?;
                return Err(fail(Errno::TIMEDOUT));
            }
            // A child that does not read any more is about to end; its streams will show that.
            if let Some(beat) = &mut beat {
                beat.send(b'.');
            }
            let (out_ready, err_ready) = streams.ready(left.min(beat_ns)).map_err(fail)?;
            if out_ready {
                let before = stdout.len();
                read_some(&mut streams.stdout, &mut stdout)
                    .map_err(|source| HostError::Process { program: program.clone(), source })?;
                received(&stdout[before..]);
            }
            if err_ready {
                read_some(&mut streams.stderr, &mut stderr)
                    .map_err(|source| HostError::Process { program: program.clone(), source })?;
            }
        }
        match child.wait_for(&SystemClock, end.saturating_sub(SystemClock.now_ns()))? {
            Some(status) => Ok(Output { status, stdout, stderr }),
            None => {
                child.kill()?;
                Err(fail(Errno::TIMEDOUT))
            }
        }
    }
}

struct Streams {
    stdout: Option<std::process::ChildStdout>,
    stderr: Option<std::process::ChildStderr>,
}

impl Streams {
    /// Waits until a stream has data or has ended.
    fn ready(&self, timeout_ns: u64) -> Result<(bool, bool), Errno> {
        let mut fds = Vec::with_capacity(2);
        fds.extend(
            self.stdout.as_ref().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)),
        );
        let has_out = !fds.is_empty();
        fds.extend(
            self.stderr.as_ref().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)),
        );
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout_ns / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(timeout_ns % 1_000_000_000).unwrap_or(0),
        };
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        let out_ready = has_out && ready.next().unwrap_or(false);
        let err_ready = ready.next().unwrap_or(false);
        Ok((out_ready, err_ready))
    }
}

/// Reads the available data; an ended stream becomes `None`.
fn read_some(stream: &mut Option<impl std::io::Read>, bytes: &mut Vec<u8>) -> std::io::Result<()> {
    let Some(open) = stream else { return Ok(()) };
    let mut part = [0; 16_384];
    match open.by_ref().read(&mut part) {
        Ok(0) => *stream = None,
        Ok(count) => bytes.extend_from_slice(&part[..count]),
        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
        Err(error) => return Err(error),
    }
    Ok(())
}
