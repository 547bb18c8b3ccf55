//! Transport without a shared file system: one `srun` from this host for each task.
//!
//! `srun --bcast` copies this program to the node (like `sbcast`, but from this host: the `sbcast`
//! of a batch job would read the node's own disk). The job is the task's standard input, and the
//! result its standard output. The output of a batch job would stay on its node. So the tasks end
//! with this process.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, Sender};

use pinfold_host::process::{Output, describe};
use pinfold_host::{Clock as _, SystemClock};
use pinfold_run::{Exit, Failure};
use pinfold_study::store::TaskRecord;

use super::{
    Collected, Lost, Note, Request, TaskStates, Transport, own_path, pending_of, scout_failed,
};
use crate::collector::{Ask, Collector};
use crate::documents::JobDocument;
use crate::feed::fed;
use crate::patience::Patience;
use crate::scheduler::{AttachedEnd, JobRequest, QueuedTask, Scheduler, TaskState};

/// The result of an attached process.
type ProcessResult = (Option<Ask>, Result<Output, Failure>);

/// The tasks of this process.
pub struct Attached<'a> {
    scheduler: &'a dyn Scheduler,
    key: String,
    program: Option<String>,
    state: Option<String>,
    request: JobRequest,
    job: String,
    given: (Sender<ProcessResult>, Receiver<ProcessResult>),
    /// Tasks that have ended, with a result to be merged or rejected.
    ended: BTreeMap<String, (Ask, Output)>,
    lost: Vec<Lost>,
    refused: Vec<(Ask, String)>,
    queue: Vec<QueuedTask>,
}

impl<'a> Attached<'a> {
    /// No tasks yet.
    #[must_use]
    pub fn new(scheduler: &'a dyn Scheduler, request: &Request<'_>) -> Self {
        Self {
            scheduler,
            key: request.key.to_owned(),
            program: request.program.map(str::to_owned),
            state: request.state.map(str::to_owned),
            request: request.job.clone(),
            job: String::new(),
            given: mpsc::channel(),
            ended: BTreeMap::new(),
            lost: Vec::new(),
            refused: Vec::new(),
            queue: Vec::new(),
        }
    }

    /// Starts a task in a separate thread.
    fn start(&mut self, ask: Option<Ask>) -> Result<(), Failure> {
        let name = ask.map_or("scout".to_owned(), |ask| format!("{}-{}", ask.part, ask.attempt));
        let copy = match self.program {
            Some(_) => None,
            None => Some(format!("/tmp/pinfold-{}-{name}", self.key)),
        };
        let mut words = Vec::new();
        match &self.program {
            Some(path) => words.push(path.clone()),
            None => words.push(own_path()?),
        }
        if let Some(state) = &self.state {
            words.extend(["--state-dir".to_owned(), state.clone()]);
        }
        words.extend(["study", "worker", "--job", "-", "--out", "-"].map(str::to_owned));
        words.extend(copy.as_ref().map(|_| "--remove-self".to_owned()));
        match ask {
            None => words.push("--scout".to_owned()),
            Some(Ask { part, attempt }) => {
                words.push(format!("--part={part}"));
                words.push(format!("--attempt={attempt}"));
            }
        }
        let spawn = self.scheduler.attached(&self.request, copy.as_deref()).args(words);
        let (job, given) = (self.job.clone(), self.given.0.clone());
        std::thread::spawn(move || {
            let output = fed(spawn, job.as_bytes(), &|_| false);
            // The receiver is gone if the study was interrupted.
            match given.send((ask, output)) {
                Ok(()) | Err(_) => {}
            }
        });
        Ok(())
    }

    fn end_of(&self, output: &Output) -> AttachedEnd {
        self.scheduler.attached_end(&output.stderr_text())
    }

    /// Why a task gave no result.
    fn reason(&self, output: &Output) -> String {
        let text = output.stderr_text();
        let end = self.scheduler.attached_end(&text);
        let how = end.reason.map_or_else(|| describe(output.status), str::to_owned);
        match self.scheduler.last_message(&text) {
            Some(words) => format!("{how}: {words}"),
            None => how,
        }
    }

    fn receive(&mut self) {
        while let Ok((ask, output)) = self.given.1.try_recv() {
            let Some(ask) = ask else { continue };
            match output {
                Ok(output) if !output.stdout.is_empty() => {
                    let name = format!("the task of part {} (attempt {})", ask.part, ask.attempt);
                    self.ended.insert(name, (ask, output));
                }
                Ok(output) => match self.end_of(&output).refusal {
                    Some(why) => self.refused.push((ask, why)),
                    None => {
                        let (node, reason) = (self.end_of(&output).node, self.reason(&output));
                        self.lost.push(Lost { ask, node, reason });
                    }
                },
                Err(failure) => {
                    self.lost.push(Lost { ask, node: String::new(), reason: failure.message });
                }
            }
        }
    }
}

impl Transport for Attached<'_> {
    fn describe(&self) -> String {
        let program = match &self.program {
            Some(path) => format!("the nodes' own {path}"),
            None => "this program, sent to each node".to_owned(),
        };
        format!("srun, no shared folder: {program}; results come by its output")
    }

    fn give(&mut self, job: &JobDocument) -> Result<(), Failure> {
        self.job = job.to_json().map_err(|e| Failure::from_error(Exit::Host, &e, None))?;
        Ok(())
    }

    fn scout(&mut self, patience: &mut Patience<'_>) -> Result<String, Failure> {
        self.start(None)?;
        loop {
            if let Ok((_, output)) = self.given.1.try_recv() {
                let output = output?;
                if output.stdout.is_empty() {
                    let end = self.end_of(&output);
                    if let Some(why) = end.refusal {
                        return Err(Failure::new(Exit::Host, why));
                    }
                    let why = self.scheduler.last_message(&output.stderr_text());
                    let how = describe(output.status);
                    return Err(scout_failed(&end.node, &how, why.as_deref()));
                }
                return Ok(output.stdout_text());
            }
            if patience.received(self.poll())?.is_none() {
                continue;
            }
            match pending_of(&self.queue) {
                pending if pending.is_empty() => patience.moves(),
                pending => patience.waits(&pending)?,
            }
            patience.pause()?;
        }
    }

    fn submit(&mut self, asks: &[Ask], note: &mut Note<'_>) -> Result<(), Failure> {
        let now = SystemClock.unix_seconds();
        for ask in asks {
            self.start(Some(*ask))?;
            let Ask { part, attempt } = *ask;
            note(&[TaskRecord {
                part,
                attempt,
                job: 0,
                element: 0,
                submitted_unix_s: now,
                failed: None,
            }])?;
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<(), Failure> {
        self.queue = self.scheduler.queue(&self.request.name)?;
        Ok(())
    }

    fn collect(&mut self) -> Result<Vec<(String, String)>, Failure> {
        self.receive();
        Ok(self
            .ended
            .iter()
            .map(|(name, (_, output))| (name.clone(), output.stdout_text()))
            .collect())
    }

    fn settle(&mut self, from: &str, taken: Collected<'_>) -> Result<(), Failure> {
        let ended = self.ended.remove(from);
        if let (Some((ask, output)), Collected::No(why)) = (ended, taken) {
            // If a task failed in the middle of its result, its error is more useful than the
            // incomplete result.
            let reason = if output.status.success() {
                format!("its result was refused: {why}")
            } else {
                self.reason(&output)
            };
            self.lost.push(Lost { ask, node: self.end_of(&output).node, reason });
        }
        Ok(())
    }

    fn judge(&mut self, _: &mut Collector) -> Result<TaskStates, Failure> {
        Ok(TaskStates {
            running: self.queue.iter().filter(|line| line.state == TaskState::Running).count(),
            pending: pending_of(&self.queue),
            lost: std::mem::take(&mut self.lost),
            refused: std::mem::take(&mut self.refused),
        })
    }

    fn cancel(&mut self) -> Result<(), Failure> {
        self.scheduler.cancel(&self.request.name)
    }

    fn outlives(&self) -> bool {
        false
    }

    fn close(&mut self) -> Result<Option<String>, Failure> {
        Ok(None)
    }
}
