//! The socket of a QMP connection: connecting with a deadline, lines of limited length, message
//! types.
//!
//! This module knows the format of messages, not the meaning of commands.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use pinfold_host::{Clock, files, paths, proc_stat};
use pinfold_model::{Tid, escape};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use serde_json::{Value, json};

use super::Event;
use crate::hypervisor::Version;
use crate::qemu::QmpError;
use crate::qemu::queries::version_from;

/// Maximum length of a line: `query-cpus-fast` of 4096 vCPUs gives about 1 MB.
const MAX_LINE: usize = 8 << 20;
/// Number of characters shown of an invalid greeting.
const SHOWN: usize = 80;
/// Number of characters shown of QEMU's error message.
const SHOWN_OF_ERROR: usize = 300;

/// One message from QEMU.
pub(super) enum Message {
    Greeting(Version),
    Event(Event),
    Return { id: Option<u64>, value: Value },
    Error { id: Option<u64>, class: String, message: String },
}

/// Result of reading a line.
pub(super) enum Line {
    /// A complete line, without its end.
    Complete(Vec<u8>),
    /// The deadline passed after these bytes.
    Partial(Vec<u8>),
    /// The other side closed the connection after these bytes.
    Closed(Vec<u8>),
}

/// A connected socket and the bytes that were read ahead.
pub(super) struct Wire {
    stream: UnixStream,
    path: String,
    clock: Box<dyn Clock + Send>,
    ahead: Vec<u8>,
    /// Number of bytes of `ahead` that are known to contain no line end.
    searched: usize,
}

impl Wire {
    pub(super) fn connect(
        path: &str,
        timeout_ns: u64,
        clock: Box<dyn Clock + Send>,
    ) -> Result<Self, QmpError> {
        let stream = connect_within(path, timeout_ns)
            .map_err(|errno| QmpError::Connect { path: path.to_owned(), source: errno.into() })?;
        Ok(Self::over(stream, path, clock))
    }

    pub(super) fn over(stream: UnixStream, path: &str, clock: Box<dyn Clock + Send>) -> Self {
        Self { stream, path: path.to_owned(), clock, ahead: Vec::new(), searched: 0 }
    }

    /// The process that listens at the other end (`SO_PEERCRED`); `None` if the kernel does not
    /// report it, or if it is in another PID namespace.
    pub(super) fn peer(&self) -> Option<Tid> {
        let credentials = sockopt::socket_peercred(&self.stream).ok()?;
        u32::try_from(credentials.pid.as_raw_pid()).ok().filter(|pid| *pid > 0).map(Tid)
    }

    /// The user ID of that process; `None` if the kernel does not report it.
    pub(super) fn peer_user(&self) -> Option<u32> {
        Some(sockopt::socket_peercred(&self.stream).ok()?.uid.as_raw())
    }

    /// The error for a missing answer: the process at the other end may be stopped.
    pub(super) fn timeout_error(&self, otherwise: QmpError) -> QmpError {
        match self.peer().filter(|pid| {
            let text = files::read_text(&paths::process_stat(*pid)).ok();
            let stat = text.and_then(|text| proc_stat::parse(&text).ok());
            stat.is_some_and(|stat| matches!(stat.state, 'T' | 't'))
        }) {
            Some(pid) => QmpError::Stopped { path: self.path.clone(), pid },
            None => otherwise,
        }
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn deadline(&self, timeout_ns: u64) -> u64 {
        self.clock.now_ns().saturating_add(timeout_ns)
    }

    /// Time until the deadline; at least a millisecond, because zero means no timeout to the
    /// kernel.
    fn remaining_time(&self, deadline: u64) -> Duration {
        Duration::from_nanos(deadline.saturating_sub(self.clock.now_ns()).max(1_000_000))
    }

    /// Leaves the CPUs to other tasks for this time.
    pub(super) fn pause(&self, ns: u64) {
        self.clock.sleep_ns(ns);
    }

    pub(super) fn send(
        &mut self,
        message: &[u8],
        deadline: u64,
        during: &str,
    ) -> Result<(), QmpError> {
        let left = self.remaining_time(deadline);
        let sent =
            self.stream.set_write_timeout(Some(left)).and_then(|()| self.stream.write_all(message));
        sent.map_err(|source| {
            if is_timeout(source.kind()) {
                let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
                self.timeout_error(QmpError::NoAnswer { command: during.to_owned(), seconds })
            } else {
                self.fail(source, during)
            }
        })
    }

    /// Reads one line; empty lines are skipped. Nothing is read after the deadline, so that a peer
    /// that sends continuously cannot block the caller; complete lines received before are still
    /// returned.
    pub(super) fn line(&mut self, deadline: u64, during: &str) -> Result<Line, QmpError> {
        loop {
            if let Some(line) = self.line_ahead() {
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Ok(Line::Complete(line));
            }
            if self.ahead.len() > MAX_LINE {
                return Err(QmpError::TooLong { path: self.path.clone(), limit: MAX_LINE });
            }
            if self.clock.now_ns() >= deadline {
                return Ok(Line::Partial(self.ahead.clone()));
            }
            match self.read_more(deadline) {
                Ok(0) => return Ok(Line::Closed(self.ahead.clone())),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_timeout(error.kind()) => {}
                Err(error) => return Err(self.fail(error, during)),
            }
        }
    }

    fn fail(&self, source: std::io::Error, during: &str) -> QmpError {
        if matches!(source.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) {
            self.fail_closed(during)
        } else {
            QmpError::Socket { path: self.path.clone(), source }
        }
    }

    fn read_more(&mut self, deadline: u64) -> std::io::Result<usize> {
        let mut chunk = [0; 16 << 10];
        self.stream.set_read_timeout(Some(self.remaining_time(deadline)))?;
        let count = self.stream.read(&mut chunk)?;
        self.ahead.extend_from_slice(&chunk[..count]);
        Ok(count)
    }

    /// Takes a complete line from the bytes that were read ahead.
    fn line_ahead(&mut self) -> Option<Vec<u8>> {
        match self.ahead[self.searched..].iter().position(|&byte| byte == b'\n') {
            None => {
                self.searched = self.ahead.len();
                None
            }
            Some(offset) => {
                let rest = self.ahead.split_off(self.searched + offset + 1);
                self.searched = 0;
                Some(std::mem::replace(&mut self.ahead, rest))
            }
        }
    }

    pub(super) fn fail_closed(&self, during: &str) -> QmpError {
        QmpError::Closed { path: self.path.clone(), during: during.to_owned() }
    }

    pub(super) fn not_qmp(&self, line: &[u8]) -> QmpError {
        let said = start_of(String::from_utf8_lossy(line).trim(), SHOWN);
        QmpError::NotQmp { path: self.path.clone(), said }
    }
}

/// The first characters of a text, up to `most`.
fn start_of(text: &str, most: usize) -> String {
    let mut start: String = text.chars().take(most).collect();
    if start.len() < text.len() {
        start.push('…');
    }
    start
}

/// Connects with a deadline. A plain connect(2) waits forever on a socket whose backlog is full,
/// which happens soon if QEMU is busy; but it respects the send timeout.
fn connect_within(path: &str, timeout_ns: u64) -> rustix::io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let timeout = Duration::from_nanos(timeout_ns.max(1_000_000));
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(timeout))?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket.into())
}

/// True for the errors of read(2) and write(2) after a timeout.
fn is_timeout(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Nanoseconds as whole seconds, rounded up, for messages.
pub(super) fn seconds(ns: u64) -> u64 {
    ns.div_ceil(1_000_000_000)
}

/// Formats a command as one line.
pub(super) fn request(command: &str, arguments: Option<Value>, id: u64) -> Vec<u8> {
    let mut message = json!({"execute": command, "id": id});
    if let Some(arguments) = arguments {
        message["arguments"] = arguments;
    }
    format!("{message}\n").into_bytes()
}

/// Parses a message of any type; `None` for other data.
pub(super) fn parse(line: &[u8]) -> Option<Message> {
    let value: Value = serde_json::from_slice(line).ok()?;
    let id = value.get("id").and_then(Value::as_u64);
    if let Some(greeting) = value.get("QMP") {
        return version_from("the greeting", greeting.get("version")?).ok().map(Message::Greeting);
    }
    if let Some(name) = shown_text(&value, "event") {
        let data = value.get("data").cloned().unwrap_or(Value::Null);
        return Some(Message::Event(Event { name, data }));
    }
    if let Some(error) = value.get("error") {
        let class = shown_text(error, "class")?;
        return Some(Message::Error { id, class, message: shown_text(error, "desc")? });
    }
    value.get("return").map(|value| Message::Return { id, value: value.clone() })
}

/// Text from an unknown peer is shown to the user: on one line, without terminal control
/// characters.
fn shown_text(value: &Value, key: &str) -> Option<String> {
    Some(escape::name(&start_of(&text(value, key)?, SHOWN_OF_ERROR)).into_owned())
}

fn text(value: &Value, key: &str) -> Option<String> {
    value.get(key)?.as_str().map(str::to_owned)
}
