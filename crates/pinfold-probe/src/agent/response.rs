//! What comes of a request: a program's output and end, or why there is none.

use std::fmt;
use std::io;

use super::{NS_PER_S, PORT};

/// Why a guest did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The stream could not be opened.
    #[error("cannot connect to the agent of {name}")]
    Connect {
        /// The guest, by its socket.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// The other side did not say HELLO in time.
    #[error("the agent of {name} did not answer within {} s", seconds(*waited_ns))]
    Silent {
        /// The guest, by its socket.
        name: String,
        /// For how long.
        waited_ns: u64,
    },
    /// The other side does not speak the protocol.
    #[error("{name} is not an agent that can be used: {why}")]
    Protocol {
        /// The guest, by its socket.
        name: String,
        /// What came instead.
        why: String,
    },
    /// The guest ended or its stream broke.
    #[error("the guest behind {name} is gone: {why}")]
    Gone {
        /// The guest, by its socket.
        name: String,
        /// How that showed.
        why: String,
    },
    /// A program took too long; it was killed.
    #[error("{what} in the guest behind {name} did not end within {} s", seconds(*waited_ns))]
    Timeout {
        /// The guest, by its socket.
        name: String,
        /// The program.
        what: String,
        /// For how long.
        waited_ns: u64,
    },
    /// The agent refused a request.
    #[error("the agent of {name} refused {what}: {why}")]
    Refused {
        /// The guest, by its socket.
        name: String,
        /// What was asked.
        what: String,
        /// Its answer.
        why: String,
    },
    /// A request that cannot be written as a frame.
    #[error("{what} cannot be sent to a guest: {why}")]
    Unsendable {
        /// What was asked.
        what: String,
        /// Why.
        why: &'static str,
    },
}

/// Seconds for a message: `0.2`, `60`.
fn seconds(ns: u64) -> String {
    let tenths = ns / (NS_PER_S / 10);
    match tenths % 10 {
        0 => (tenths / 10).to_string(),
        rest => format!("{}.{rest}", tenths / 10),
    }
}

impl AgentError {
    /// What the user can do next.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            AgentError::Connect { .. } | AgentError::Silent { .. } => Some(format!(
                "look at the guest's console: it must run pinload as init and have the \
                 virtio-serial port {PORT}"
            )),
            AgentError::Protocol { .. } => {
                Some("the guest's pinload is of another version: build the guest again".to_owned())
            }
            AgentError::Gone { .. } => {
                Some("look at the guest's console and QEMU's own messages".to_owned())
            }
            AgentError::Timeout { .. }
            | AgentError::Refused { .. }
            | AgentError::Unsendable { .. } => None,
        }
    }
}

/// How a program in the guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(u32),
    /// By this signal.
    Signal(u32),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exit code {code}"),
            Exit::Signal(signal) => write!(f, "killed by signal {signal}"),
        }
    }
}

/// What a program in the guest gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// How it ended.
    pub exit: Exit,
    /// What it wrote to standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error.
    pub stderr: Vec<u8>,
}

impl Output {
    /// True if it ended by itself with code 0.
    #[must_use]
    pub fn success(&self) -> bool {
        self.exit == Exit::Code(0)
    }

    /// Standard output as text; bytes that are not UTF-8 become U+FFFD.
    #[must_use]
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text; bytes that are not UTF-8 become U+FFFD.
    #[must_use]
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}
