//! QMP over a Unix socket: QEMU's control protocol, one JSON message per line.
//!
//! ```text
//! ← {"QMP": {"version": {…}, "capabilities": ["oob"]}}        the greeting
//! → {"execute": "qmp_capabilities", "id": 1}
//! ← {"return": {}, "id": 1}
//! ← {"event": "STOP", "timestamp": {…}}                        at any time, between replies
//! → {"execute": "query-status", "id": 2}
//! ← {"return": {…}, "id": 2}    or    {"error": {"class": …, "desc": …}, "id": 2}
//! ```
//! The negotiation is sent together with the first commands, and independent commands are sent
//! together: QEMU answers in order, and every wait for an answer costs an iteration of its main
//! loop.
//!
//! A QEMU socket serves one client at a time: a second client can connect, but is greeted only
//! after the first has disconnected. So no answer is a possible answer, and every operation has a
//! deadline. The other side may be any program, if the user named the wrong socket: the length of
//! lines and the number of stored events are limited, and no input is assumed to be well formed.
//!
//! Specification: <https://www.qemu.org/docs/master/interop/qmp-spec.html>.

mod wire;

use std::any::Any;
use std::collections::VecDeque;
use std::os::unix::net::UnixStream;

use pinfold_host::Clock;
use pinfold_model::Tid;
use serde_json::Value;

use self::wire::{Line, Message, Wire};
use super::QmpError;
use super::queries::QmpTransport;
use crate::VmError;
use crate::hypervisor::{Monitor, Version};

/// Maximum number of stored events; the oldest are dropped first.
const MAX_EVENTS: usize = 256;

/// Maximum size of an event's data; larger data is dropped. QEMU's own are a few hundred bytes.
const MAX_EVENT: usize = 64 << 10;

/// Time limit of a check for received events.
const GLANCE_NS: u64 = 1_000_000;

/// Time during which this thread leaves the CPUs to QEMU after sending. QEMU passes each command
/// from its monitor thread to its main loop. The kernel tends to wake both on the sender's CPU,
/// because it takes a message on a socket for a synchronous hand-over.
const PAUSE_NS: u64 = 100_000;

/// An event that QEMU sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Name of the event: `SHUTDOWN`, `STOP`, `DEVICE_DELETED`, …
    pub name: String,
    /// Data of the event; `null` if it has none.
    pub data: Value,
}

/// A QMP connection.
pub struct Qmp {
    wire: Wire,
    version: Version,
    events: VecDeque<Event>,
    last_id: u64,
    timeout_ns: u64,
    negotiated: bool,
}

/// A command and its arguments.
type Command<'c> = (&'c str, Option<Value>);

impl Qmp {
    /// Connects and checks the greeting. `timeout_ns` limits each of these and each later command.
    /// The rest of the negotiation is sent with the first command.
    ///
    /// # Errors
    /// [`QmpError::Connect`] if no process listens, [`QmpError::Silent`] if no greeting arrives
    /// (another client is connected), [`QmpError::NotQmp`] if other data arrives,
    /// [`QmpError::Closed`] if QEMU ends meanwhile.
    pub fn connect(
        path: &str,
        timeout_ns: u64,
        clock: impl Clock + Send + 'static,
    ) -> Result<Self, VmError> {
        Self::greet(Wire::connect(path, timeout_ns, Box::new(clock))?, timeout_ns)
    }

    /// The same over a connected socket; `path` is used in error messages.
    ///
    /// # Errors
    /// As [`Qmp::connect`].
    pub fn from_stream(
        stream: UnixStream,
        path: &str,
        timeout_ns: u64,
        clock: impl Clock + Send + 'static,
    ) -> Result<Self, VmError> {
        Self::greet(Wire::over(stream, path, Box::new(clock)), timeout_ns)
    }

    fn greet(mut wire: Wire, timeout_ns: u64) -> Result<Self, VmError> {
        let version = greeting(&mut wire, timeout_ns)?;
        let events = VecDeque::new();
        Ok(Self { wire, version, events, last_id: 0, timeout_ns, negotiated: false })
    }

    /// The connection behind a monitor, if it is one.
    pub fn downcast_monitor(monitor: &mut dyn Monitor) -> Option<&mut Self> {
        let monitor: &mut dyn Any = monitor;
        monitor.downcast_mut()
    }

    /// Path of the socket.
    #[must_use]
    pub fn path(&self) -> &str {
        self.wire.path()
    }

    /// Waits until one of the named events arrives and removes it from the stored ones; `None`
    /// after `timeout_ns`. Other events are kept.
    ///
    /// # Errors
    /// [`QmpError::Closed`] if QEMU ends, [`QmpError::NotQmp`] if the data is no QMP message.
    pub fn wait_event(
        &mut self,
        names: &[&str],
        timeout_ns: u64,
    ) -> Result<Option<Event>, VmError> {
        if let Some(place) = self.events.iter().position(|event| is_wanted(names, event)) {
            return Ok(self.events.remove(place));
        }
        self.run(&[], None)?;
        let deadline = self.wire.deadline(timeout_ns);
        loop {
            match self.message(deadline, "waiting for an event")? {
                None => return Ok(None),
                Some(Message::Event(event)) if is_wanted(names, &event) => return Ok(Some(event)),
                Some(Message::Event(event)) => self.keep(event),
                // Late replies to commands that timed out.
                Some(Message::Greeting(_) | Message::Return { .. } | Message::Error { .. }) => {}
            }
        }
    }

    /// Takes all events that have arrived, with a wait of at most 1 ms.
    ///
    /// # Errors
    /// As [`Qmp::wait_event`].
    pub fn take_events(&mut self) -> Result<Vec<Event>, VmError> {
        self.run(&[], None)?;
        let deadline = self.wire.deadline(GLANCE_NS);
        while let Some(message) = self.message(deadline, "reading events")? {
            if let Message::Event(event) = message {
                self.keep(event);
            }
        }
        Ok(self.events.drain(..).collect())
    }

    fn keep(&mut self, event: Event) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// The next message, or `None` at the deadline.
    fn message(&mut self, deadline: u64, during: &str) -> Result<Option<Message>, QmpError> {
        match self.wire.line(deadline, during)? {
            Line::Complete(line) => match wire::parse(&line) {
                Some(Message::Event(Event { name, .. })) if line.len() > MAX_EVENT => {
                    Ok(Some(Message::Event(Event { name, data: Value::Null })))
                }
                Some(message) => Ok(Some(message)),
                None => Err(self.wire.not_qmp(&line)),
            },
            Line::Partial(_) => Ok(None),
            Line::Closed(_) => Err(self.wire.fail_closed(during)),
        }
    }
}

fn is_wanted(names: &[&str], event: &Event) -> bool {
    names.contains(&event.name.as_str())
}

impl Qmp {
    /// Sends commands in one write, after the negotiation if that is still pending, and reads their
    /// replies. Without commands, only negotiates. `meanwhile`, if given, is called while QEMU
    /// executes them.
    fn run(
        &mut self,
        commands: &[Command<'_>],
        meanwhile: Option<&mut dyn FnMut()>,
    ) -> Result<Vec<Value>, VmError> {
        let negotiation: &[Command<'_>] =
            if self.negotiated { &[] } else { &[("qmp_capabilities", None)] };
        let mut sent = Vec::with_capacity(commands.len() + 1);
        let mut text = Vec::new();
        for (command, arguments) in negotiation.iter().chain(commands) {
            self.last_id += 1;
            sent.push((*command, self.last_id));
            text.extend(wire::request(command, arguments.clone(), self.last_id));
        }
        let Some((last, _)) = sent.last() else { return Ok(Vec::new()) };
        self.wire.send(&text, self.wire.deadline(self.timeout_ns), last)?;
        let (negotiations, commands) = sent.split_at(negotiation.len());
        for (command, id) in negotiations {
            self.reply(command, *id)?;
            self.negotiated = true;
        }
        if let Some(meanwhile) = meanwhile {
            self.wire.pause(PAUSE_NS);
            meanwhile();
        }
        commands.iter().map(|(command, id)| self.reply(command, *id)).collect()
    }

    /// Waits for the reply to a command that was sent.
    fn reply(&mut self, command: &str, id: u64) -> Result<Value, VmError> {
        let deadline = self.wire.deadline(self.timeout_ns);
        loop {
            match self.message(deadline, command)? {
                None => {
                    let seconds = wire::seconds(self.timeout_ns);
                    let command = command.to_owned();
                    return Err(self
                        .wire
                        .timeout_error(QmpError::NoAnswer { command, seconds })
                        .into());
                }
                Some(Message::Event(event)) => self.keep(event),
                Some(Message::Return { id: Some(of), value }) if of == id => return Ok(value),
                // An error without an ID answers a message that QEMU could not parse. Replies are
                // in order, so it belongs to this command.
                Some(Message::Error { id: of, class, message }) if of.is_none_or(|of| of == id) => {
                    let command = command.to_owned();
                    return Err(QmpError::Refused { command, class, message }.into());
                }
                // Late replies to commands that timed out.
                Some(Message::Greeting(_) | Message::Return { .. } | Message::Error { .. }) => {}
            }
        }
    }
}

impl QmpTransport for Qmp {
    fn execute(&mut self, command: &str, arguments: Option<Value>) -> Result<Value, VmError> {
        let replies = self.run(&[(command, arguments)], None)?;
        replies.into_iter().next().ok_or_else(|| {
            let why = "there is no reply".to_owned();
            QmpError::Answer { command: command.to_owned(), why }.into()
        })
    }

    fn execute_all(
        &mut self,
        commands: &[&str],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Vec<Value>, VmError> {
        let commands: Vec<Command<'_>> = commands.iter().map(|command| (*command, None)).collect();
        self.run(&commands, Some(meanwhile))
    }

    fn set_command_timeout(&mut self, timeout_ns: u64) {
        self.timeout_ns = timeout_ns;
    }

    fn greeted_version(&self) -> Option<&Version> {
        Some(&self.version)
    }

    fn peer_process(&self) -> Option<Tid> {
        self.wire.peer()
    }

    fn peer_owner(&self) -> Option<u32> {
        self.wire.peer_user()
    }
}

/// Reads the greeting, or returns the reason why there is none.
fn greeting(wire: &mut Wire, timeout_ns: u64) -> Result<Version, QmpError> {
    let deadline = wire.deadline(timeout_ns);
    let line = match wire.line(deadline, "the greeting")? {
        Line::Complete(line) => line,
        Line::Partial(start) if start.is_empty() => {
            let seconds = wire::seconds(timeout_ns);
            return Err(
                wire.timeout_error(QmpError::Silent { path: wire.path().to_owned(), seconds })
            );
        }
        Line::Closed(start) if start.is_empty() => return Err(wire.fail_closed("the greeting")),
        Line::Partial(start) | Line::Closed(start) => return Err(wire.not_qmp(&start)),
    };
    match wire::parse(&line) {
        Some(Message::Greeting(version)) => Ok(version),
        _ => Err(wire.not_qmp(&line)),
    }
}

#[cfg(test)]
mod tests;
