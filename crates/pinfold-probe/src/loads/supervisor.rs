//! The thread of a [`super::HostLoads`], which owns the child processes.

use std::io::{Read as _, Write as _};
use std::process::ChildStdin;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pinfold_host::SystemClock;
use pinfold_host::process::{Child, Spawn, Stdio, describe};
use pinfold_model::TaskId;

use super::{BEAT, LoadError, LoadSpec, Placement};

/// Time (ns) that a load has to end after its standard input was closed.
const END_PATIENCE_NS: u64 = 3_000_000_000;

struct Load {
    name: &'static str,
    child: Child,
    stdin: Option<ChildStdin>,
}

pub(super) struct LoadSupervisor {
    loads: Vec<Load>,
    beat: Duration,
}

impl LoadSupervisor {
    /// Starts all loads; if one fails, dropping this value kills those that were started.
    pub(super) fn start(
        program: &str,
        specs: &[LoadSpec],
        placement: &Placement,
    ) -> Result<Self, LoadError> {
        let loads = specs
            .iter()
            .map(|spec| {
                let mut spawn = Spawn::new(program)
                    .args(spec.argv())
                    .stdin(Stdio::Pipe)
                    .stdout(Stdio::Null)
                    .stderr(Stdio::Pipe)
                    .own_group()
                    .die_with_parent(true)
                    .cgroup_files(placement.cgroup_files.clone());
                if let Some(mask) = &placement.affinity {
                    spawn = spawn.affinity(mask.clone());
                }
                let mut child = spawn
                    .start()
                    .map_err(|source| LoadError::Start { name: spec.name(), source })?;
                let stdin = child.stdin();
                Ok(Load { name: spec.name(), child, stdin })
            })
            .collect::<Result<Vec<Load>, LoadError>>()?;
        let beat = specs.iter().map(|spec| spec.life.beat()).min().unwrap_or(BEAT);
        Ok(Self { loads, beat })
    }

    pub(super) fn processes(&self) -> Vec<TaskId> {
        self.loads.iter().map(|load| load.child.task()).collect()
    }

    /// Sends heartbeats until the other end of `stopped` is dropped, then ends all loads.
    pub(super) fn beat_until(mut self, stopped: &Receiver<()>, trouble: &Mutex<Option<LoadError>>) {
        loop {
            self.loads.retain_mut(|load| match load.beat() {
                Ok(()) => true,
                Err(error) => {
                    note(trouble, error);
                    false
                }
            });
            if stopped.recv_timeout(self.beat) != Err(RecvTimeoutError::Timeout) {
                break;
            }
        }
        // Close all inputs first, then wait for each load: this takes only the time of the slowest.
        for load in &mut self.loads {
            drop(load.stdin.take());
        }
        for load in &mut self.loads {
            if let Err(error) = load.end() {
                note(trouble, error);
            }
        }
    }
}

/// Only the first error is kept.
fn note(trouble: &Mutex<Option<LoadError>>, error: LoadError) {
    trouble.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
}

impl Load {
    fn beat(&mut self) -> Result<(), LoadError> {
        if self.child.try_wait()?.is_some() {
            return Err(self.report_end()?);
        }
        // A pipe without a reader means that the load is ending; the next heartbeat detects its
        // end.
        match self.stdin.as_mut().map(|stdin| stdin.write_all(b"\n")) {
            None | Some(Ok(()) | Err(_)) => Ok(()),
        }
    }

    fn end(&mut self) -> Result<(), LoadError> {
        match self.child.wait_for(&SystemClock, END_PATIENCE_NS)? {
            Some(status) if !status.success() => Err(self.report_end()?),
            Some(_) => Ok(()),
            // It did not end in time. It is our own child, and its state need not be preserved.
            None => self.child.kill().map(|_| ()).map_err(LoadError::from),
        }
    }

    fn report_end(&mut self) -> Result<LoadError, LoadError> {
        let status = self.child.wait()?;
        let mut message = Vec::new();
        if let Some(mut stderr) = self.child.stderr()
            && let Err(error) = stderr.read_to_end(&mut message)
        {
            message = format!("its message cannot be read: {error}").into_bytes();
        }
        let message = String::from_utf8_lossy(&message).trim().to_owned();
        Ok(LoadError::Ended { name: self.name, how: describe(status), message })
    }
}
