//! The protocol between the supervisor of a platform and the other commands: one line of JSON in
//! each direction, on a Unix socket in the state directory that only the same user and root can
//! access.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::{Exit, Failure, host, interrupt};
use pinfold_host::files::StateDir;
use pinfold_host::{ControlSocket, SystemClock, proc_stat, process};
use pinfold_model::{Command, CpuSet, TaskId, Tid};
use serde::{Deserialize, Serialize};

use super::status::is_platform;

/// Name of the socket in the state directory.
const SOCKET: &str = "emulate.sock";
/// The file with the reason why the last platform ended by itself.
const EXIT_REASON_FILE: &str = "emulate.last";
/// Limits on concurrent clients, their time, and the length of a request.
const MAX_CALLERS: usize = 8;
const TIMEOUT_NS: u64 = 2_000_000_000;
const MAX_LINE: usize = 4096;
/// Timeout for a response: ending a platform with many vnodes takes time.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(60);
const ANSWER_AFTER: Duration = Duration::from_secs(10);
/// Interval of checking whether the supervisor is stopped.
const SLICE: Duration = Duration::from_millis(500);

/// A request to the supervisor.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SupervisorRequest {
    /// The status of all vnodes.
    Status,
    /// Changes a speed.
    Set {
        /// Its name.
        vnode: String,
        /// As in a platform file.
        speed: String,
        /// Only of this CPU.
        pu: Option<u32>,
    },
    /// Where a process of a vnode starts.
    Enter {
        /// Its name.
        vnode: String,
    },
    /// The same for the client itself, which becomes a process of the vnode.
    Join {
        /// Its name.
        vnode: String,
    },
    /// Adds running processes to a vnode.
    Attach {
        /// Its name.
        vnode: String,
        /// What the user named.
        what: String,
        /// The groups and processes.
        members: Vec<Member>,
        /// The name of the network namespace in which they are, if it was named.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        netns: Option<String>,
    },
    /// Ends the platform.
    Down,
}

/// A group or a process that joins a vnode.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Member {
    /// A cgroup, by its path in version 2.
    Group {
        /// The path below the mount.
        path: String,
    },
    /// A process and its children.
    Process {
        /// Its PID.
        pid: u32,
        /// Its start time in clock ticks since boot, so that another process with the same PID is
        /// not taken for it.
        start_time: u64,
    },
}

impl SupervisorRequest {
    fn patience(&self) -> Duration {
        match self {
            Self::Down => SHUTDOWN_TIMEOUT,
            Self::Status
            | Self::Set { .. }
            | Self::Enter { .. }
            | Self::Join { .. }
            | Self::Attach { .. } => ANSWER_AFTER,
        }
    }
}

/// A response of the supervisor.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SupervisorResponse {
    /// The error, and a hint.
    Refused {
        /// The message of the failure.
        why: String,
        /// Its hint.
        hint: Option<String>,
        /// Its exit code.
        exit: u8,
    },
    /// Response to [`SupervisorRequest::Status`].
    Status(serde_json::Value),
    /// Response to [`SupervisorRequest::Set`] and [`SupervisorRequest::Attach`].
    Done,
    /// Response to [`SupervisorRequest::Enter`] and [`SupervisorRequest::Join`].
    Enter(Enter),
    /// Response to [`SupervisorRequest::Down`]: what was undone.
    Down(String),
}

/// Where a process of a vnode starts.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Enter {
    /// Name of the vnode; empty from a supervisor of an older version.
    #[serde(default)]
    pub vnode: String,
    /// The files of its cgroups into which its number is written.
    pub files: Vec<String>,
    /// Its CPUs as a list.
    pub pus: String,
    /// True if no cpuset restricts it to these CPUs, only the mask of each process.
    pub needs_mask: bool,
    /// The node of its memory.
    pub memory_node: Option<u32>,
}

impl SupervisorResponse {
    pub(crate) fn from_failure(failure: &Failure) -> Self {
        Self::Refused {
            why: failure.message.clone(),
            hint: failure.hint.clone(),
            exit: failure.exit.code(),
        }
    }

    /// The failure for a response of an unexpected kind.
    fn unexpected_response(self) -> Failure {
        Failure::new(Exit::Host, format!("unexpected reply from the supervisor: {self:?}"))
            .with_hint(format!(
                "it may be another version of Pinfold: end it with that version's `{}`",
                Command::new("emulate down")
            ))
    }

    /// The status of all vnodes.
    pub fn status(self) -> Result<serde_json::Value, Failure> {
        if let Self::Status(status) = self { Ok(status) } else { Err(self.unexpected_response()) }
    }

    /// For a request whose response has no contents.
    pub fn expect_empty(self) -> Result<(), Failure> {
        if let Self::Done = self { Ok(()) } else { Err(self.unexpected_response()) }
    }

    /// Where a process of a vnode starts.
    pub fn enter(self) -> Result<Enter, Failure> {
        if let Self::Enter(enter) = self { Ok(enter) } else { Err(self.unexpected_response()) }
    }

    /// What was undone.
    pub fn down(self) -> Result<String, Failure> {
        if let Self::Down(reported) = self { Ok(reported) } else { Err(self.unexpected_response()) }
    }
}

/// Path of the socket.
pub fn socket(state: &StateDir) -> String {
    state.path_of(SOCKET)
}

/// Sends a request to the supervisor; `None` if there is none.
pub fn ask(
    state: &StateDir,
    ask: &SupervisorRequest,
) -> Result<Option<SupervisorResponse>, Failure> {
    ask_process(state, ask, None)
}

/// As [`ask`], but only the process with this PID: a supervisor of another start does not count.
pub fn ask_process(
    state: &StateDir,
    ask: &SupervisorRequest,
    only: Option<Tid>,
) -> Result<Option<SupervisorResponse>, Failure> {
    let (stream, pid) = match ControlSocket::connect(&socket(state)) {
        Ok(found) => found,
        Err(error) => {
            return match error.errno().map(std::io::Error::from_raw_os_error).map(|e| e.kind()) {
                Some(ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
                Some(ErrorKind::WouldBlock) => Err(silent(supervisor(state)?)),
                Some(_) | None => Err(Failure::from(error)),
            };
        }
    };
    if only.is_some_and(|only| only != pid) {
        return Ok(None);
    }
    let mut line = serde_json::to_string(ask).map_err(|error| connection_failure(&error))?;
    line.push('\n');
    let mut writer = &stream;
    writer.write_all(line.as_bytes()).map_err(|error| connection_failure(&error))?;
    let answer = hear(&stream, pid, ask)?.map_err(|error| connection_failure(&error))?;
    let answer: SupervisorResponse =
        serde_json::from_str(&answer).map_err(|error| connection_failure(&error))?;
    match answer {
        SupervisorResponse::Refused { why, hint, exit } => {
            let failure = Failure::new(Exit::from_code(exit.into()).unwrap_or(Exit::Host), why);
            Err(match hint {
                Some(hint) => failure.with_hint(hint),
                None => failure,
            })
        }
        answer @ (SupervisorResponse::Status(_)
        | SupervisorResponse::Done
        | SupervisorResponse::Enter(_)
        | SupervisorResponse::Down(_)) => Ok(Some(answer)),
    }
}

fn connection_failure(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Exit::Host, format!("the supervisor does not reply: {error}")).with_hint(format!(
        "end it (its process is `pinfold emulate up`), then run `{}`",
        Command::new("undo --left")
    ))
}

/// The response of a process. A process that is stopped, or does not respond in time, is a failure
/// that names it.
fn hear(
    mut stream: &UnixStream,
    pid: Tid,
    ask: &SupervisorRequest,
) -> Result<std::io::Result<String>, Failure> {
    let (mut line, mut room) = (Vec::new(), [0; 4096]);
    let mut waited = Duration::ZERO;
    if let Err(error) = stream.set_read_timeout(Some(SLICE)) {
        return Ok(Err(error));
    }
    while !line.ends_with(b"\n") {
        // Changes and undos are waited for.
        if matches!(ask, SupervisorRequest::Status) {
            interrupt::check()?;
        }
        match stream.read(&mut room) {
            Ok(0) => break,
            Ok(count) => line.extend(room.iter().take(count)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                waited += SLICE;
                if waited >= ask.patience() || state_of(pid)? == Some('T') {
                    return Err(silent(Some(pid)));
                }
            }
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(String::from_utf8(line).map_err(|error| std::io::Error::new(ErrorKind::InvalidData, error)))
}

/// The state letter of a process; `None` if it has ended.
fn state_of(pid: Tid) -> Result<Option<char>, Failure> {
    let stat = proc_stat::read(&host::live()?, pid)?;
    Ok(stat.map(|stat| stat.state))
}

/// The failure for a supervisor that exists and does not respond.
fn silent(pid: Option<Tid>) -> Failure {
    let Some(pid) = pid else {
        return Failure::new(Exit::Host, "the supervisor does not reply");
    };
    let reported = match state_of(pid) {
        Ok(Some('T' | 't')) => "it is stopped",
        Ok(Some('D')) => "it waits in the kernel (state D)",
        Ok(Some(_)) => "it runs or sleeps",
        Ok(None) | Err(_) => "it has just ended",
    };
    let text = format!("the supervisor (process {pid}) does not reply: {reported}");
    Failure::new(Exit::Host, text).with_hint(format!(
        "continue it: kill -CONT {pid}; or kill it: kill -KILL {pid}, then `{}`",
        Command::new("undo --left")
    ))
}

/// Journals of active platforms, each with its supervisor and whether it runs.
fn platforms(state: &StateDir) -> Result<Vec<(String, TaskId, bool)>, Failure> {
    let (host, clock) = (host::live()?, SystemClock);
    let mut found = Vec::new();
    for summary in host::journals(state, &clock)?.list()? {
        let Ok(Some(record)) = summary.record else { continue };
        if record.has_ended() || !is_platform(&record.header.plan) {
            continue;
        }
        record.require_here(&host)?;
        let supervisor = record.header.supervisor;
        let here = record.is_of_this_boot(&host)?;
        let alive = process::task_alive(&host, supervisor)?;
        found.push((summary.id, supervisor, here && alive));
    }
    Ok(found)
}

/// The process of the running supervisor.
fn supervisor(state: &StateDir) -> Result<Option<Tid>, Failure> {
    let running = platforms(state)?.into_iter().find(|(_, _, runs)| *runs);
    Ok(running.map(|(_, supervisor, _)| supervisor.tid))
}

/// As [`ask`], with a failure if there is no platform.
pub fn require(
    state: &StateDir,
    question: &SupervisorRequest,
) -> Result<SupervisorResponse, Failure> {
    if let Some(answer) = ask(state, question)? {
        return Ok(answer);
    }
    require_none_left(state)?;
    let reported = match last_message(state) {
        None => "no platform is up".to_owned(),
        Some(words) => format!("no platform is up; the last one failed: {words}"),
    };
    Err(Failure::new(Exit::No, reported)
        .with_hint(format!("start one with `{}`", Command::new("emulate up PLATFORM.toml"))))
}

/// Fails if a supervisor has exited without reverting its changes.
pub fn require_none_left(state: &StateDir) -> Result<(), Failure> {
    let left = platforms(state)?.into_iter().filter(|(_, _, runs)| !runs);
    let left: Vec<String> = left.map(|(id, _, _)| id).collect();
    if left.is_empty() {
        return Ok(());
    }
    let text = format!(
        "the supervisor has exited, but its changes are still active (journal {})",
        left.join(", ")
    );
    Err(Failure::new(Exit::No, text)
        .with_hint(format!("`{}` reverts it", Command::new("undo --left"))))
}

/// The cgroups and CPUs of a vnode of the active platform.
pub fn place_of(state: &StateDir, vnode: &str) -> Result<(Vec<String>, CpuSet), Failure> {
    let ask = SupervisorRequest::Enter { vnode: vnode.to_owned() };
    let Enter { files, pus, .. } = require(state, &ask)?.enter()?;
    let strange = |what: &str| {
        Failure::new(Exit::Host, format!("cannot parse the supervisor's reply: {what}"))
    };
    let pus = CpuSet::parse_list(&pus).map_err(|error| strange(&error.to_string()))?;
    Ok((files, pus))
}

/// Why the last platform ended without a request; `None` if it did not.
fn last_message(state: &StateDir) -> Option<String> {
    let words = state.read(EXIT_REASON_FILE).ok()?;
    Some(String::from_utf8_lossy(&words).trim().to_owned())
}

/// Stores why a platform ended. A failed write cannot be reported.
pub(crate) fn store_exit_reason(state: &StateDir, failure: &Failure) {
    let hint = failure.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
    match state.replace(EXIT_REASON_FILE, format!("{}{hint}\n", failure.message).as_bytes()) {
        Ok(()) | Err(_) => {}
    }
}

/// Removes the reason of an earlier platform.
pub(crate) fn remove_exit_reason(state: &StateDir) -> Result<(), Failure> {
    if state.contains(EXIT_REASON_FILE) {
        state.remove(EXIT_REASON_FILE).map_err(Failure::from)
    } else {
        Ok(())
    }
}

/// The supervisor's side.
pub(crate) struct Listener {
    socket: ControlSocket,
    callers: Vec<Caller>,
}

/// A connected client.
pub(crate) struct Caller {
    stream: UnixStream,
    line: Vec<u8>,
    until: u64,
}

impl Listener {
    pub(crate) fn open(state: &StateDir) -> Result<Self, Failure> {
        let socket = ControlSocket::at(&socket(state))?;
        Ok(Self { socket, callers: Vec::new() })
    }

    /// File descriptors that are readable when there is a request.
    pub(crate) fn sources(&self) -> Vec<BorrowedFd<'_>> {
        let callers = self.callers.iter().map(|caller| caller.stream.as_fd());
        let socket = (self.callers.len() < MAX_CALLERS).then(|| self.socket.as_fd());
        socket.into_iter().chain(callers).collect()
    }

    /// True if a client has connected, whose time may run out.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.callers.is_empty()
    }

    /// The complete requests received so far, without waiting. Clients that are slow or send too
    /// much are disconnected.
    pub(crate) fn hear(&mut self, now: u64) -> Vec<(Caller, Result<SupervisorRequest, Failure>)> {
        while self.callers.len() < MAX_CALLERS
            && let Some(stream) = self.socket.accept()
        {
            if stream.set_nonblocking(true).is_ok() {
                let until = now.saturating_add(TIMEOUT_NS);
                self.callers.push(Caller { stream, line: Vec::new(), until });
            }
        }
        let mut received = Vec::new();
        for mut caller in std::mem::take(&mut self.callers) {
            match caller.read() {
                Message::Line => {
                    let ask = serde_json::from_slice(&caller.line).map_err(|error| {
                        Failure::new(Exit::Input, format!("not a request: {error}"))
                    });
                    received.push((caller, ask));
                }
                Message::Part if now < caller.until => self.callers.push(caller),
                Message::Part | Message::Gone => {}
            }
        }
        received
    }
}

enum Message {
    Line,
    Part,
    Gone,
}

impl Caller {
    /// Reads all that was sent. A client that has disconnected has reported that nothing was done,
    /// for example because this process was stopped: its request is void.
    fn read(&mut self) -> Message {
        let mut room = [0; 1024];
        loop {
            match self.stream.read(&mut room) {
                Ok(0) => return Message::Gone,
                Ok(count) => self.line.extend(room.iter().take(count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let is_whole = self.line.ends_with(b"\n");
                    return if is_whole { Message::Line } else { Message::Part };
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Message::Gone,
            }
            if self.line.len() > MAX_LINE {
                return Message::Gone;
            }
        }
    }

    /// The process of the client.
    pub(crate) fn process(&self) -> Result<Tid, Failure> {
        Ok(ControlSocket::peer_of(&self.stream)?)
    }

    /// Sends the response and closes the connection. A client that has disconnected needs no
    /// response.
    pub(crate) fn answer(mut self, answer: &SupervisorResponse) {
        let Ok(mut line) = serde_json::to_vec(answer) else { return };
        line.push(b'\n');
        // A line that does not fit into the socket buffer is read while it is written.
        let patient = self
            .stream
            .set_nonblocking(false)
            .and_then(|()| self.stream.set_write_timeout(Some(Duration::from_millis(50))));
        match patient.and_then(|()| self.stream.write_all(&line)) {
            Ok(()) | Err(_) => {}
        }
    }
}
