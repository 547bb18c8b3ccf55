//! The client of the guest agent: `pinload` as the init of a guest, at the other end of a byte
//! stream.
//!
//! A frame has, in both directions, the payload length and a channel (both u32, little-endian), a
//! kind and the payload; `pinload/src/frame.h` defines the protocol. One thread reads the stream
//! and sorts it by channel. So several programs can run in the guest at the same time, and threads
//! can share an [`Agent`] (for example a heartbeat during a measurement). When the stream ends or
//! is malformed, every waiting call returns at once with the reason.

mod channels;
mod frame;
mod heartbeat;
mod response;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pinfold_host::Clock;

pub use frame::Hello;
pub(crate) use heartbeat::BEAT;
pub use heartbeat::Heartbeat;
pub use response::{AgentError, Exit, Output};

use channels::{ChannelBuffers, End};
use frame::{FRAME_LIMIT, Kind};

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000 * NS_PER_MS;
/// Time that one write may block before the guest counts as dead.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);
/// Time that a program has to end after its standard input was closed.
const STOP_PATIENCE_NS: u64 = 3 * NS_PER_S;
/// Interval at which a wait for HELLO checks whether it should continue.
const HELLO_TURN_NS: u64 = 200 * NS_PER_MS;
const FILE_PIECE: usize = 256 * 1024;
const FILE_PATIENCE_NS: u64 = 60 * NS_PER_S;
const SIGKILL: u8 = 9;

/// Name of the virtio-serial port on which the agent of a guest listens.
pub const PORT: &str = "org.pinfold.agent";

/// The channel of a program that runs in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChannelId(u32);

/// A connection to the agent of a guest. Dropping it closes the connection and ends the programs
/// that run in the guest.
pub struct Agent {
    name: String,
    hello: Hello,
    mailbox: Arc<ChannelBuffers>,
    sender: Mutex<Sender>,
    socket: Option<UnixStream>,
    reader: Option<JoinHandle<()>>,
}

/// The counter is locked together with the stream, because channel numbers must be sent in
/// ascending order.
struct Sender {
    stream: Box<dyn Write + Send>,
    last_channel: u32,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").field("name", &self.name).field("hello", &self.hello).finish()
    }
}

impl Agent {
    /// Connects to the UNIX socket of a guest's port and waits for HELLO.
    ///
    /// Retries until the timeout if the socket does not exist yet or refuses the connection.
    ///
    /// # Errors
    /// [`AgentError::Connect`], [`AgentError::Silent`], [`AgentError::Protocol`] or
    /// [`AgentError::Gone`].
    pub fn connect(path: &str, timeout_ns: u64, clock: &dyn Clock) -> Result<Self, AgentError> {
        Self::connect_while(path, timeout_ns, &|| true, clock)
    }

    /// As [`Agent::connect`], and gives up when the callback, which is called repeatedly, returns
    /// false.
    ///
    /// # Errors
    /// As [`Agent::connect`].
    pub fn connect_while(
        path: &str,
        timeout_ns: u64,
        waits: &dyn Fn() -> bool,
        clock: &dyn Clock,
    ) -> Result<Self, AgentError> {
        let end = clock.now_ns().saturating_add(timeout_ns);
        let socket = loop {
            match UnixStream::connect(path) {
                Ok(socket) => break socket,
                Err(error) if clock.now_ns() >= end || !waits() => {
                    return Err(AgentError::Connect { name: path.to_owned(), source: error });
                }
                Err(_) => clock.sleep_ns(20 * NS_PER_MS),
            }
        };
        let left_ns = end.saturating_sub(clock.now_ns());
        Self::over_connected(socket, path)?.greet(left_ns, waits)
    }

    /// As [`Agent::connect`], over a socket that is connected already.
    ///
    /// # Errors
    /// As [`Agent::connect`].
    pub fn over_socket(
        socket: UnixStream,
        name: &str,
        timeout_ns: u64,
    ) -> Result<Self, AgentError> {
        Self::over_connected(socket, name)?.greet(timeout_ns, &|| true)
    }

    fn over_connected(socket: UnixStream, name: &str) -> Result<Self, AgentError> {
        let fail = |source| AgentError::Connect { name: name.to_owned(), source };
        socket.set_write_timeout(Some(WRITE_PATIENCE)).map_err(fail)?;
        let input = socket.try_clone().map_err(fail)?;
        let output = socket.try_clone().map_err(fail)?;
        Self::begin(input, output, Some(socket), name)
    }

    /// As [`Agent::connect`], over any pair of streams, such as the pipes of a child process. The
    /// reader must reach its end when the writer is dropped; `name` appears in error messages.
    ///
    /// # Errors
    /// As [`Agent::connect`].
    pub fn over<R, W>(input: R, output: W, name: &str, timeout_ns: u64) -> Result<Self, AgentError>
    where
        R: Read + Send + 'static,
        W: Write + Send + 'static,
    {
        Self::begin(input, output, None, name)?.greet(timeout_ns, &|| true)
    }

    fn begin<R, W>(
        input: R,
        output: W,
        socket: Option<UnixStream>,
        name: &str,
    ) -> Result<Self, AgentError>
    where
        R: Read + Send + 'static,
        W: Write + Send + 'static,
    {
        let mailbox = Arc::new(ChannelBuffers::default());
        let inbox = Arc::clone(&mailbox);
        let reader = std::thread::Builder::new()
            .name("agent-reader".to_owned())
            .spawn(move || inbox.read_all(input))
            .map_err(|source| AgentError::Connect { name: name.to_owned(), source })?;
        Ok(Self {
            name: name.to_owned(),
            hello: Hello::default(),
            mailbox,
            sender: Mutex::new(Sender { stream: Box::new(output), last_channel: 0 }),
            socket,
            reader: Some(reader),
        })
    }

    /// Waits for the agent's first message.
    fn greet(mut self, timeout_ns: u64, waits: &dyn Fn() -> bool) -> Result<Self, AgentError> {
        self.hello = self.await_hello(timeout_ns, waits)?; // an error drops it and ends the reader
        Ok(self)
    }

    fn await_hello(&self, timeout_ns: u64, waits: &dyn Fn() -> bool) -> Result<Hello, AgentError> {
        let mut waited_ns = 0;
        let end = loop {
            let turn_ns = HELLO_TURN_NS.min(timeout_ns - waited_ns);
            let end = self.mailbox.wait_hello(turn_ns);
            waited_ns += turn_ns;
            if !matches!(end, End::Timeout) || waited_ns >= timeout_ns || !waits() {
                break end;
            }
        };
        let text = match end {
            End::Hello(text) => text,
            End::Timeout => {
                return Err(AgentError::Silent { name: self.name.clone(), waited_ns });
            }
            End::Gone(why) => return Err(self.fail_gone(why)),
            End::Exit(_) | End::Refused(_) => {
                return Err(self.protocol("no HELLO was received".to_owned()));
            }
        };
        Hello::parse(&text).map_err(|why| self.protocol(why))
    }

    /// What the agent reported about itself and its guest.
    #[must_use]
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Makes the guest bring all its CPUs online, until the timeout or until the callback returns
    /// false. [`Agent::hello`] then has the CPUs that are online. An agent that is not init changes
    /// nothing.
    ///
    /// # Errors
    /// As [`Agent::connect`].
    pub fn bring_cpus_online(
        &mut self,
        timeout_ns: u64,
        waits: &dyn Fn() -> bool,
    ) -> Result<(), AgentError> {
        self.mailbox.forget_hello();
        self.send(Kind::Online, 0, &[])?;
        self.hello = self.await_hello(timeout_ns, waits)?;
        Ok(())
    }

    /// Runs a program to its end, with an empty standard input.
    ///
    /// `argv[0]` without a slash is a `pinload` subcommand. A program with `--supervised` keeps its
    /// standard input open and needs a [`Heartbeat`].
    ///
    /// # Errors
    /// [`AgentError::Refused`] if it cannot be started, [`AgentError::Timeout`] if it was killed at
    /// the timeout, [`AgentError::Gone`] if the guest ended. A program that fails is not an error:
    /// see [`Output::success`].
    pub fn run<S: AsRef<str>>(&self, argv: &[S], timeout_ns: u64) -> Result<Output, AgentError> {
        let channel = self.start(argv)?;
        if !argv.iter().any(|argument| argument.as_ref() == "--supervised") {
            self.close(channel)?;
        }
        self.wait(channel, timeout_ns)
    }

    /// Starts a program and returns while it runs.
    ///
    /// # Errors
    /// [`AgentError::Unsendable`] or [`AgentError::Gone`]. [`Agent::wait`] or [`Agent::stop`]
    /// report whether the program could be started.
    pub fn start<S: AsRef<str>>(&self, argv: &[S]) -> Result<ChannelId, AgentError> {
        let mut payload = Vec::new();
        for argument in argv {
            payload.extend_from_slice(argument.as_ref().as_bytes());
            payload.push(0);
        }
        let what = argv.first().map_or("", AsRef::as_ref);
        let refuse =
            |why| Err(AgentError::Unsendable { what: format!("the program {what:?}"), why });
        if what.is_empty() {
            return refuse("it has no name");
        }
        if payload.iter().filter(|byte| **byte == 0).count() != argv.len() {
            return refuse("an argument holds NUL");
        }
        if payload.len() > FRAME_LIMIT {
            return refuse("its arguments exceed 1 MiB");
        }
        self.open(Kind::Run, &payload, what)
    }

    /// Waits for the end of a program.
    ///
    /// # Errors
    /// As [`Agent::run`].
    pub fn wait(&self, channel: ChannelId, timeout_ns: u64) -> Result<Output, AgentError> {
        match self.mailbox.wait_end(channel.0, timeout_ns) {
            End::Exit(exit) => Ok(self.mailbox.take(channel.0, exit)),
            End::Refused(why) => {
                let what = self.mailbox.forget(channel.0);
                Err(AgentError::Refused { name: self.name.clone(), what, why })
            }
            End::Gone(why) => Err(self.fail_gone(why)),
            End::Hello(_) => Err(self.protocol("HELLO was received twice".to_owned())),
            End::Timeout => {
                let what = self.mailbox.forget(channel.0);
                self.send(Kind::Kill, channel.0, &[SIGKILL])?;
                Err(AgentError::Timeout { name: self.name.clone(), what, waited_ns: timeout_ns })
            }
        }
    }

    /// True if the program has ended (or was refused, or the guest is gone), so that
    /// [`Agent::wait`] returns at once.
    pub fn has_ended(&self, channel: ChannelId) -> bool {
        self.ends_within(channel, 0)
    }

    /// As [`Agent::has_ended`], but waits up to the timeout (ns) for it; the program is not
    /// stopped.
    #[must_use]
    pub fn ends_within(&self, channel: ChannelId, timeout_ns: u64) -> bool {
        !matches!(self.mailbox.wait_end(channel.0, timeout_ns), End::Timeout)
    }

    /// Waits until a program has printed this text on its standard error, has ended, or the timeout
    /// (ns) is over; true if it has printed it.
    pub fn prints_within(&self, channel: ChannelId, text: &str, timeout_ns: u64) -> bool {
        self.mailbox.wait_printed(channel.0, text, timeout_ns)
    }

    /// Ends a program: closes its standard input, which ends supervised programs, and kills it if
    /// it has not ended after 3 s.
    ///
    /// # Errors
    /// As [`Agent::run`], without the timeout.
    pub fn stop(&self, channel: ChannelId) -> Result<Output, AgentError> {
        self.close(channel)?;
        if matches!(self.mailbox.wait_end(channel.0, STOP_PATIENCE_NS), End::Timeout) {
            self.send(Kind::Kill, channel.0, &[SIGKILL])?;
        }
        self.wait(channel, 10 * STOP_PATIENCE_NS)
    }

    /// Writes to the standard input of a program.
    ///
    /// # Errors
    /// [`AgentError::Gone`].
    pub fn write(&self, channel: ChannelId, bytes: &[u8]) -> Result<(), AgentError> {
        bytes.chunks(FRAME_LIMIT).try_for_each(|piece| self.send(Kind::Stdin, channel.0, piece))
    }

    /// Closes the standard input of a program.
    ///
    /// # Errors
    /// [`AgentError::Gone`].
    pub fn close(&self, channel: ChannelId) -> Result<(), AgentError> {
        self.send(Kind::Close, channel.0, &[])
    }

    /// Sends a signal (by its number in the guest) to a program and its descendants.
    ///
    /// # Errors
    /// [`AgentError::Gone`].
    pub fn kill(&self, channel: ChannelId, signal: u8) -> Result<(), AgentError> {
        self.send(Kind::Kill, channel.0, &[signal])
    }

    /// Sends a heartbeat to every supervised program.
    ///
    /// # Errors
    /// [`AgentError::Gone`].
    pub fn heartbeat(&self) -> Result<(), AgentError> {
        self.send(Kind::Heartbeat, 0, &[])
    }

    /// Writes a file in the guest, and replaces an existing one.
    ///
    /// # Errors
    /// [`AgentError::Refused`] with the guest's reason, [`AgentError::Gone`],
    /// [`AgentError::Unsendable`] if the path is not absolute or contains NUL.
    pub fn send_file(&self, path: &str, mode: u32, content: &[u8]) -> Result<(), AgentError> {
        if !path.starts_with('/') || path.contains('\0') || path.len() > 4095 {
            let why = "its path must be absolute, shorter than 4 KiB and without NUL";
            return Err(AgentError::Unsendable { what: format!("the file {path:?}"), why });
        }
        fn frame_of(piece: &[u8], mode: u32, path: &str) -> Vec<u8> {
            [path.as_bytes(), &[0], &mode.to_le_bytes(), piece].concat()
        }
        let (first, rest) = content.split_at(content.len().min(FILE_PIECE));
        let channel = self.open(Kind::File, &frame_of(first, mode, path), path)?;
        for piece in rest.chunks(FILE_PIECE) {
            self.send(Kind::File, channel.0, &frame_of(piece, mode, path))?;
        }
        self.close(channel)?;
        self.wait(channel, FILE_PATIENCE_NS).map(|_| ())
    }

    /// Closes the connection: every waiting call, in any thread, returns [`AgentError::Gone`] at
    /// once.
    pub fn disconnect(&self) {
        self.mailbox.end("this side has disconnected");
        if let Some(socket) = &self.socket {
            // A socket that is no longer connected needs no shutdown.
            match socket.shutdown(Shutdown::Both) {
                Ok(()) | Err(_) => {}
            }
        }
    }

    /// Makes the guest sync its disks and power off; returns when the request is sent.
    ///
    /// # Errors
    /// [`AgentError::Gone`] if the guest has ended already.
    pub fn shutdown(&self) -> Result<(), AgentError> {
        self.send(Kind::Shutdown, 0, &[])
    }

    /// Waits until the stream has ended, as it does after [`Agent::shutdown`]; false at the
    /// timeout.
    pub fn wait_gone(&self, timeout_ns: u64) -> bool {
        self.mailbox.wait_gone(timeout_ns)
    }

    fn open(&self, kind: Kind, payload: &[u8], what: &str) -> Result<ChannelId, AgentError> {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = sender.last_channel.checked_add(1).ok_or_else(|| AgentError::Unsendable {
            what: what.to_owned(),
            why: "all channel numbers are used",
        })?;
        sender.last_channel = channel;
        self.mailbox.expect(channel, what);
        self.put(&mut sender, kind, channel, payload)?;
        Ok(ChannelId(channel))
    }

    fn send(&self, kind: Kind, channel: u32, payload: &[u8]) -> Result<(), AgentError> {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        self.put(&mut sender, kind, channel, payload)
    }

    fn put(
        &self,
        sender: &mut Sender,
        kind: Kind,
        channel: u32,
        payload: &[u8],
    ) -> Result<(), AgentError> {
        if let Some(why) = self.mailbox.end_reason() {
            return Err(self.fail_gone(why));
        }
        let bytes = frame::encode(kind, channel, payload);
        sender.stream.write_all(&bytes).and_then(|()| sender.stream.flush()).map_err(|error| {
            // A partial frame may have been sent, so the stream cannot be used any more.
            self.mailbox.end(&format!("it takes no requests ({error})"));
            self.fail_gone(self.mailbox.end_reason().unwrap_or_default())
        })
    }

    fn fail_gone(&self, why: String) -> AgentError {
        AgentError::Gone { name: self.name.clone(), why }
    }

    fn protocol(&self, why: String) -> AgentError {
        AgentError::Protocol { name: self.name.clone(), why }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let Some(socket) = &self.socket else {
            return; // this value drops the writer, which ends the reader
        };
        // The reader of a socket that is no longer connected has ended.
        match socket.shutdown(Shutdown::Both) {
            Ok(()) | Err(_) => {}
        }
        if let Some(reader) = self.reader.take() {
            match reader.join() {
                Ok(()) | Err(_) => {} // a panic has been printed; no code depends on the thread
            }
        }
    }
}
