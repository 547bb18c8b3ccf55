//! The result of a request: the output and exit status of a program, or an error.

use std::fmt;
use std::io;

use super::{NS_PER_S, PORT};

/// Why a guest did not execute a request.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The stream could not be opened.
    #[error("cannot connect to the agent of {name}")]
    Connect {
        /// Name of the guest's socket.
        name: String,
        /// Error of the socket.
        source: io::Error,
    },
    /// The agent did not send HELLO in time.
    #[error("the agent of {name} did not answer within {} s", seconds(*waited_ns))]
    Silent {
        /// Name of the guest's socket.
        name: String,
        /// Time waited (ns).
        waited_ns: u64,
    },
    /// The peer does not implement the protocol.
    #[error("{name} is not a usable agent: {why}")]
    Protocol {
        /// Name of the guest's socket.
        name: String,
        /// What was received instead.
        why: String,
    },
    /// The guest ended or its stream broke.
    #[error("lost the connection to the guest behind {name}: {why}")]
    Gone {
        /// Name of the guest's socket.
        name: String,
        /// How this was detected.
        why: String,
    },
    /// A program reached its timeout and was killed.
    #[error("{what} in the guest behind {name} did not end within {} s", seconds(*waited_ns))]
    Timeout {
        /// Name of the guest's socket.
        name: String,
        /// The program that was killed.
        what: String,
        /// Time waited (ns).
        waited_ns: u64,
    },
    /// The agent refused a request.
    #[error("the agent of {name} refused {what}: {why}")]
    Refused {
        /// Name of the guest's socket.
        name: String,
        /// The request that was refused.
        what: String,
        /// The reason that the agent gave.
        why: String,
    },
    /// A request cannot be encoded as a frame.
    #[error("cannot send {what} to the guest: {why}")]
    Unsendable {
        /// The request that was not sent.
        what: String,
        /// Why it cannot be encoded.
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
    /// A hint for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            AgentError::Connect { .. } | AgentError::Silent { .. } => Some(format!(
                "check the guest's console: it must run pinload as init and have the virtio-serial \
                 port {PORT}"
            )),
            AgentError::Protocol { .. } => {
                Some("the guest's pinload is another version: build the guest again".to_owned())
            }
            AgentError::Gone { .. } => {
                Some("check the guest's console and QEMU's own messages".to_owned())
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
    /// It exited with this code.
    Code(u32),
    /// It was killed by this signal.
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

/// Result of a program in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its exit status.
    pub exit: Exit,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
}

impl Output {
    /// True if the program exited with code 0.
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
