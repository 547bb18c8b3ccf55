//! A thread that beats for a guest's supervised programs.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Agent, AgentError};

/// Well below the 1.5 s after which supervised programs pause.
pub(crate) const BEAT: Duration = Duration::from_millis(400);

/// Beats until it is dropped. If this process is stopped, so is the beat, and the guest's
/// loads pause until it goes on.
#[derive(Debug)]
pub struct Heartbeat {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// Begins to beat.
    ///
    /// # Errors
    /// [`AgentError::Connect`] if there can be no further thread.
    pub fn start(agent: &Arc<Agent>) -> Result<Self, AgentError> {
        Self::start_while(agent, || true)
    }

    /// The same, and hangs up when it is not to go on, which is asked with each beat: then every
    /// call that waits for the guest returns [`AgentError::Gone`].
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
                // A guest that is gone is told by whatever waits for its results.
                while agent.heartbeat().is_ok()
                    && stopped.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout)
                {
                    if !goes_on() {
                        agent.hang_up();
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
                Ok(()) | Err(_) => {} // a panic there has been printed; nothing depends on it now
            }
        }
    }
}
