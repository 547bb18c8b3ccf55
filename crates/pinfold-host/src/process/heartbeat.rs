//! Heartbeats to a child on its standard input.

use std::io::{ErrorKind, Write as _};
use std::process::ChildStdin;

use rustix::fs::OFlags;

use crate::HostError;

/// The writing end of a child's standard input, in non-blocking mode.
#[derive(Debug)]
pub struct Heartbeat {
    pipe: ChildStdin,
}

impl Heartbeat {
    /// Sends heartbeats through this pipe.
    ///
    /// # Errors
    /// [`HostError::File`] if the pipe cannot be set to non-blocking mode.
    pub fn over(pipe: ChildStdin) -> Result<Self, HostError> {
        rustix::fs::fcntl_getfl(&pipe)
            .and_then(|flags| rustix::fs::fcntl_setfl(&pipe, flags | OFlags::NONBLOCK))
            .map_err(|errno| HostError::file("set up", "a pipe", errno))?;
        Ok(Self { pipe })
    }

    /// Sends one byte. False if the pipe has no reader; a full pipe counts as success, because
    /// unread heartbeats are in it.
    pub fn send(&mut self, byte: u8) -> bool {
        match self.pipe.write_all(&[byte]) {
            Ok(()) => true,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }
}
