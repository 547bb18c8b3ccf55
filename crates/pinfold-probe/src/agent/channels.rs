//! Received data sorted by channel, and waiting for it.
//!
//! The reading thread fills it; any number of threads can wait for it. The end of the stream is an
//! event like any other, and wakes all waiting threads.

use std::collections::HashMap;
use std::io::Read;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::frame::{self, Event};
use super::{Exit, Output};

/// Upper limit for the output of one program; benchmarks print far less.
const OUTPUT_LIMIT: usize = 256 << 20;

/// The result of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Hello(String),
    Exit(Exit),
    Refused(String),
    Gone(String),
    Timeout,
}

#[derive(Debug, Default)]
struct Channel {
    what: String,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    end: Option<End>,
}

#[derive(Debug, Default)]
struct State {
    hello: Option<String>,
    gone: Option<String>,
    channels: HashMap<u32, Channel>,
}

#[derive(Debug, Default)]
pub(super) struct ChannelBuffers {
    state: Mutex<State>,
    changed: Condvar,
}

impl ChannelBuffers {
    /// Reads to the end of the stream, in a thread of its own.
    pub(super) fn read_all(&self, mut input: impl Read) {
        loop {
            match frame::read(&mut input) {
                Ok(Some((channel, event))) => self.deliver(channel, event),
                Ok(None) => return self.end("its stream ended"),
                Err(error) => return self.end(&error.to_string()),
            }
        }
    }

    /// Opens a channel before the request for it is sent.
    pub(super) fn expect(&self, channel: u32, what: &str) {
        let entry = Channel { what: what.to_owned(), ..Channel::default() };
        self.lock().channels.insert(channel, entry);
    }

    /// Records that the stream has ended. Only the first reason is kept.
    pub(super) fn end(&self, why: &str) {
        self.lock().gone.get_or_insert_with(|| why.to_owned());
        self.changed.notify_all();
    }

    /// Why the stream has ended; `None` if it has not.
    pub(super) fn end_reason(&self) -> Option<String> {
        self.lock().gone.clone()
    }

    /// Discards the last HELLO, so that the next one can be awaited.
    pub(super) fn forget_hello(&self) {
        self.lock().hello = None;
    }

    pub(super) fn wait_hello(&self, timeout_ns: u64) -> End {
        self.wait(timeout_ns, |state| state.hello.clone().map(End::Hello))
    }

    pub(super) fn wait_end(&self, channel: u32, timeout_ns: u64) -> End {
        self.wait(timeout_ns, |state| match state.channels.get(&channel) {
            Some(entry) => entry.end.clone(),
            None => Some(End::Refused("another request already waits for its end".to_owned())),
        })
    }

    /// Waits until a program has printed this text on its standard error, or has ended; true if it
    /// has printed it.
    pub(super) fn wait_printed(&self, channel: u32, text: &str, timeout_ns: u64) -> bool {
        let has =
            |entry: &Channel| entry.stderr.windows(text.len()).any(|it| it == text.as_bytes());
        self.wait(timeout_ns, |state| match state.channels.get(&channel) {
            Some(entry) if has(entry) => Some(End::Refused(String::new())),
            Some(entry) => entry.end.clone(),
            None => Some(End::Refused("another request already waits for its end".to_owned())),
        });
        self.lock().channels.get(&channel).is_some_and(has)
    }

    pub(super) fn wait_gone(&self, timeout_ns: u64) -> bool {
        matches!(self.wait(timeout_ns, |_| None), End::Gone(_))
    }

    /// Takes the output of a channel and closes the channel.
    pub(super) fn take(&self, channel: u32, exit: Exit) -> Output {
        let entry = self.lock().channels.remove(&channel).unwrap_or_default();
        Output { exit, stdout: entry.stdout, stderr: entry.stderr }
    }

    /// Closes a channel and discards what is received for it later. Returns the name of its
    /// program.
    pub(super) fn forget(&self, channel: u32) -> String {
        self.lock().channels.remove(&channel).map_or_else(|| "a program".to_owned(), |c| c.what)
    }

    fn wait(&self, timeout_ns: u64, answer: impl Fn(&State) -> Option<End>) -> End {
        let answered = |state: &State| {
            // Data received before the end is still returned.
            answer(state).or_else(|| state.gone.clone().map(End::Gone))
        };
        let (state, _) = self
            .changed
            .wait_timeout_while(self.lock(), Duration::from_nanos(timeout_ns), |state| {
                answered(state).is_none()
            })
            .unwrap_or_else(PoisonError::into_inner);
        answered(&state).unwrap_or(End::Timeout)
    }

    fn deliver(&self, channel: u32, event: Event) {
        let mut state = self.lock();
        if channel == 0 {
            match event {
                Event::Hello(text) => state.hello = Some(text),
                Event::Error(why) => {
                    state.gone.get_or_insert(format!("it refused the connection: {why}"));
                }
                Event::Out(_) | Event::Err(_) | Event::ExitCode(_) | Event::ExitSignal(_) => {}
            }
        } else if let Some(entry) = state.channels.get_mut(&channel) {
            entry.apply_event(event);
        }
        drop(state);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Channel {
    fn apply_event(&mut self, event: Event) {
        match event {
            Event::Out(bytes) => add(&mut self.stdout, &bytes),
            Event::Err(bytes) => add(&mut self.stderr, &bytes),
            Event::ExitCode(code) => self.end = Some(End::Exit(Exit::Code(code))),
            Event::ExitSignal(signal) => self.end = Some(End::Exit(Exit::Signal(signal))),
            Event::Error(why) => self.end = Some(End::Refused(why)),
            Event::Hello(_) => {}
        }
    }
}

fn add(output: &mut Vec<u8>, bytes: &[u8]) {
    let room = OUTPUT_LIMIT.saturating_sub(output.len());
    output.extend_from_slice(&bytes[..bytes.len().min(room)]);
}
