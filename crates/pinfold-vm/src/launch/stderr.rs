//! The hypervisor's standard error output: stored for error messages, passed on after the start.
//!
//! A thread reads it to the end, because the hypervisor would block on a full pipe.

use std::io::{Read as _, Write as _};
use std::process::ChildStderr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use pinfold_host::{Clock as _, HostError, SystemClock};

/// Number of stored bytes.
const KEPT: usize = 64 << 10;
/// Maximum wait for the remaining output of a program that has ended: one of its helpers may keep
/// the pipe open.
const LAST_WORDS_NS: u64 = 500_000_000;
const NAP_NS: u64 = 1_000_000;

/// Reader of one standard error output.
pub(super) struct StderrReader {
    kept: Arc<Mutex<StderrTail>>,
    reader: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct StderrTail {
    bytes: Vec<u8>,
    pass_on: bool,
}

impl StderrReader {
    pub(super) fn follow(stream: Option<ChildStderr>) -> Result<Self, HostError> {
        let kept = Arc::new(Mutex::new(StderrTail::default()));
        let Some(stream) = stream else {
            return Ok(Self { kept, reader: None });
        };
        let shared = Arc::clone(&kept);
        let reader = std::thread::Builder::new()
            .name("vm-stderr".to_owned())
            .spawn(move || read(stream, &shared))
            .map_err(|source| HostError::Process { program: "a thread".to_owned(), source })?;
        Ok(Self { kept, reader: Some(reader) })
    }

    /// Writes the stored output to Pinfold's own standard error, and passes on everything that
    /// follows.
    pub(super) fn pass_on(&self) {
        let mut kept = lock(&self.kept);
        kept.pass_on = true;
        show(&kept.bytes);
    }

    /// The output so far.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&lock(&self.kept).bytes).trim_end().to_owned()
    }

    /// The complete output of a program that has ended.
    pub(super) fn last_message(&self) -> String {
        let deadline = SystemClock.now_ns().saturating_add(LAST_WORDS_NS);
        while self.reader.as_ref().is_some_and(|reader| !reader.is_finished())
            && SystemClock.now_ns() < deadline
        {
            SystemClock.sleep_ns(NAP_NS);
        }
        self.text()
    }
}

fn read(mut stream: ChildStderr, kept: &Mutex<StderrTail>) {
    let mut chunk = [0; 4096];
    loop {
        let part = match stream.read(&mut chunk) {
            Ok(0) => return,
            Ok(count) => &chunk[..count],
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let mut kept = lock(kept);
        if kept.pass_on {
            show(part);
        }
        kept.bytes.extend_from_slice(part);
        let surplus = kept.bytes.len().saturating_sub(KEPT);
        kept.bytes.drain(..surplus);
    }
}

/// The bytes are valid even if the reader panicked.
fn lock(kept: &Mutex<StderrTail>) -> MutexGuard<'_, StderrTail> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// If Pinfold's own standard error is closed, the program's is still read.
fn show(bytes: &[u8]) {
    match std::io::stderr().write_all(bytes) {
        Ok(()) | Err(_) => {}
    }
}
