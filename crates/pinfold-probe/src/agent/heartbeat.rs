//! A thread that sends heartbeats to the supervised programs of a guest.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Agent, AgentError};

/// Interval of heartbeats: well below the 1.5 s after which supervised programs pause.
pub(crate) const BEAT: Duration = Duration::from_millis(400);

/// Sends heartbeats until it is dropped. If this process is stopped, the heartbeats stop too, and
/// the loads of the guest pause until it continues.
#[derive(Debug)]
pub struct Heartbeat {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// Starts sending heartbeats.
    ///
    /// # Errors
    /// [`AgentError::Connect`] if the thread cannot be created.
    pub fn start(agent: &Arc<Agent>) -> Result<Self, AgentError> {
        Self::start_while(agent, || true)
    }

    /// As [`Heartbeat::start`], and closes the connection when the callback, which is called with
    /// each heartbeat, returns false: then every call that waits for the guest returns
    /// [`AgentError::Gone`].
    ///
    /// # Errors
    /// As [`Heartbeat::start`].
    pub fn start_while(agent: &Arc<Agent>, goes_on: fn() -> bool) -> Result<Self, AgentError> {
        let (stop, stopped) = mpsc::channel();
        let name = agent.name.clone();
        let agent = Arc::clone(agent);
        let thread = std::thread::Builder::new()
            .name("agent-heartbeat".to_owned())
            .spawn(move || {
                // The call that waits for results reports the loss of the guest.
                while agent.heartbeat().is_ok()
                    && stopped.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout)
                {
                    if !goes_on() {
                        agent.disconnect();
                    }
                }
            })
            .map_err(|source| AgentError::Connect { name, source })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            match thread.join() {
                Ok(()) | Err(_) => {} // a panic has been printed; no code depends on the thread
            }
        }
    }
}
