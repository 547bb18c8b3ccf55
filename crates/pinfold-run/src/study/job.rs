//! One run of a workload: a child process whose output is collected, with a signal at its
//! end.
//!
//! Nothing here blocks, because the calling thread may have other work (the turns of a method of
//! slowing). Two threads read the output to its end, a third supervises the time limit; each of
//! them gives the signal.

use std::io::{Read, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use pinfold_host::process::{Child, Spawn, Stdio, describe};
use pinfold_host::{Clock as _, SystemClock};
use pinfold_study::study::TrialError;

use crate::Failure;

/// Maximum length of the output (bytes).
const MOST_BYTES: u64 = 64 << 20;
/// Time that a child has to exit after its output has ended (ns).
const END_NS: u64 = 2_000_000_000;

/// Signals an event of a job.
pub struct EndSignal {
    here: UnixStream,
    there: UnixStream,
}

impl EndSignal {
    pub fn new() -> std::io::Result<Self> {
        let (here, there) = UnixStream::pair()?;
        here.set_nonblocking(true)?;
        Ok(Self { here, there })
    }

    /// Readable after a signal.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.here.as_fd()
    }

    /// Resets the signal.
    pub fn silence(&self) {
        let mut room = [0; 16];
        let mut here = &self.here;
        while here.read(&mut room).is_ok_and(|count| count == room.len()) {}
    }
}

/// Result of a run.
pub struct JobResult {
    pub stdout: String,
    pub stderr: String,
    /// Time from its start to the end of its output (ns).
    pub elapsed_ns: u64,
}

/// The contents of a stream, and when it ended.
type StreamOutput = (Vec<u8>, u64);

/// A run in progress. Dropping it kills its process group.
pub struct Job {
    child: Child,
    readers: Vec<JoinHandle<StreamOutput>>,
    /// Number of streams that have ended.
    done: Arc<AtomicUsize>,
    /// Dropped to end the thread that supervises the limit.
    _limit: mpsc::Sender<()>,
    began_ns: u64,
    limit_ns: u64,
}

fn notify(stream: &mut UnixStream) {
    // The receiver may be gone.
    match stream.write_all(b".") {
        Ok(()) | Err(_) => {}
    }
}

fn gather(
    stream: Option<impl Read + Send + 'static>,
    end_signal: &EndSignal,
    done: &Arc<AtomicUsize>,
) -> std::io::Result<JoinHandle<StreamOutput>> {
    let done = Arc::clone(done);
    let mut end_signal = end_signal.there.try_clone()?;
    Ok(std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(stream) = stream {
            // The data read so far are evaluated.
            match stream.take(MOST_BYTES).read_to_end(&mut bytes) {
                Ok(_) | Err(_) => {}
            }
        }
        let ended_ns = SystemClock.now_ns();
        done.fetch_add(1, Ordering::SeqCst);
        notify(&mut end_signal);
        (bytes, ended_ns)
    }))
}

impl Job {
    /// Starts the run.
    pub fn start(spawn: Spawn, limit_ns: u64, end_signal: &EndSignal) -> Result<Self, TrialError> {
        fn trial_error(error: &dyn std::fmt::Display) -> TrialError {
            TrialError::from_message(format!("cannot run it: {error}"))
        }
        let began_ns = SystemClock.now_ns();
        let mut child = spawn
            .env("LC_ALL", "C")
            .stdout(Stdio::Pipe)
            .stderr(Stdio::Pipe)
            .own_group()
            .start()
            .map_err(|error| TrialError::from_message(Failure::from(error).message))?;
        let done = Arc::new(AtomicUsize::new(0));
        let stdout =
            gather(child.stdout(), end_signal, &done).map_err(|error| trial_error(&error))?;
        let stderr =
            gather(child.stderr(), end_signal, &done).map_err(|error| trial_error(&error))?;
        let (limit, over) = mpsc::channel::<()>();
        let mut late = end_signal.there.try_clone().map_err(|error| trial_error(&error))?;
        std::thread::spawn(move || {
            if over.recv_timeout(Duration::from_nanos(limit_ns)) == Err(RecvTimeoutError::Timeout) {
                notify(&mut late);
            }
        });
        let readers = vec![stdout, stderr];
        Ok(Self { child, readers, done, _limit: limit, began_ns, limit_ns })
    }

    /// The child process.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Resets the start time: the process waited at a gate until it was placed.
    pub fn begins_now(&mut self) {
        self.began_ns = SystemClock.now_ns();
    }

    /// The result, if it has ended; an error if it reached the time limit or failed.
    pub fn poll_result(&mut self) -> Option<Result<JobResult, TrialError>> {
        if self.done.load(Ordering::SeqCst) == self.readers.len() {
            return Some(self.collect());
        }
        let so_far = SystemClock.now_ns().saturating_sub(self.began_ns);
        if so_far < self.limit_ns {
            return None;
        }
        let killed = self.child.kill();
        let limit_s = self.limit_ns as f64 / 1e9;
        let message = match killed {
            Ok(_) => format!("it did not finish within {limit_s} s"),
            Err(error) => {
                format!("it did not finish within {limit_s} s and could not be killed: {error}")
            }
        };
        Some(Err(TrialError::from_message(message)))
    }

    fn collect(&mut self) -> Result<JobResult, TrialError> {
        let mut streams = Vec::new();
        let mut ended_ns = self.began_ns;
        for reader in self.readers.drain(..) {
            let gathered = reader.join();
            let (bytes, at) =
                gathered.map_err(|_| TrialError::from_message("cannot read its output"))?;
            ended_ns = ended_ns.max(at);
            streams.push(bytes);
        }
        let waited = self.child.wait_for(&SystemClock, END_NS);
        let status = waited.map_err(|error| TrialError::from_message(error.to_string()))?;
        let [stdout, stderr] = <[Vec<u8>; 2]>::try_from(streams)
            .map_err(|_| TrialError::from_message("cannot read its output"))?;
        let printed = String::from_utf8_lossy(&stderr);
        let said = printed.trim().lines().next_back().unwrap_or("").to_owned();
        match status {
            Some(status) if status.success() => {}
            Some(status) => {
                let said = if said.is_empty() { said } else { format!(": {said}") };
                return Err(TrialError::from_message(format!("{}{said}", describe(status))));
            }
            None => {
                return Err(TrialError::from_message("it closed its output but did not exit"));
            }
        }
        if stdout.len().max(stderr.len()) as u64 >= MOST_BYTES {
            return Err(TrialError::from_message(format!(
                "it printed more than {MOST_BYTES} bytes"
            )));
        }
        Ok(JobResult {
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: printed.into_owned(),
            elapsed_ns: ended_ns.saturating_sub(self.began_ns),
        })
    }
}
