//! Transport without a shared file system: one `srun` from this host for each task.
//!
//! `srun --bcast` copies this program to the node (like `sbcast`, but from this host: the `sbcast`
//! of a batch job would read the node's own disk). The job is the task's standard input, and the
//! result its standard output. The output of a batch job would stay on its node. So the tasks end
//! with this process.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, Sender};

use pinfold_cluster::scheduler::{QueuedTask, TaskState};
use pinfold_cluster::slurm::{Wish, complaint, not_taken, srun_end};
use pinfold_cluster::{Ask, Collector, JobDocument};
use pinfold_host::process::{Output, Spawn, describe};
use pinfold_host::{Clock as _, SystemClock};
use pinfold_run::{Exit, Failure};
use pinfold_study::store::TaskRecord;

use super::client::{Slurm, fed, said};
use super::transport::{Look, Lost, Note, Taken, Transport, pending_of};
use super::watch::Patience;

/// The result of an `srun`.
type Given = (Option<Ask>, Result<Output, Failure>);

/// The tasks of this process.
pub struct Stream<'a> {
    slurm: &'a Slurm,
    key: String,
    program: Option<String>,
    state: Option<String>,
    wish: Wish,
    job: String,
    given: (Sender<Given>, Receiver<Given>),
    /// Tasks that have ended, with a result to be merged or rejected.
    ended: BTreeMap<String, (Ask, Output)>,
    lost: Vec<Lost>,
    refused: Vec<(Ask, String)>,
    queue: Vec<QueuedTask>,
}

impl<'a> Stream<'a> {
    pub fn new(
        slurm: &'a Slurm,
        (key, program, state): (&str, Option<&str>, Option<&str>),
        wish: Wish,
    ) -> Self {
        Self {
            slurm,
            key: key.to_owned(),
            program: program.map(str::to_owned),
            state: state.map(str::to_owned),
            wish,
            job: String::new(),
            given: mpsc::channel(),
            ended: BTreeMap::new(),
            lost: Vec::new(),
            refused: Vec::new(),
            queue: Vec::new(),
        }
    }

    /// Starts an `srun` in a separate thread.
    fn start(&mut self, ask: Option<Ask>) -> Result<(), Failure> {
        let name = ask.map_or("scout".to_owned(), |ask| format!("{}-{}", ask.part, ask.attempt));
        let copy = match self.program {
            Some(_) => None,
            None => Some(format!("/tmp/pinfold-{}-{name}", self.key)),
        };
        let mut words = self.wish.srun(copy.as_deref());
        match &self.program {
            Some(path) => words.push(path.clone()),
            None => words.push(super::own_path()?),
        }
        if let Some(state) = &self.state {
            words.extend(["--state-dir".to_owned(), state.clone()]);
        }
        words.extend(["study", "worker", "--job", "-", "--out", "-"].map(str::to_owned));
        words.extend(copy.map(|_| "--remove-self".to_owned()));
        match ask {
            None => words.push("--scout".to_owned()),
            Some(Ask { part, attempt }) => {
                words.push(format!("--part={part}"));
                words.push(format!("--attempt={attempt}"));
            }
        }
        let (srun, job) = (self.slurm.srun().to_owned(), self.job.clone());
        let given = self.given.0.clone();
        std::thread::spawn(move || {
            let output = fed(Spawn::new(&srun).args(words), job.as_bytes(), &|_| false);
            // The receiver is gone if the study was interrupted.
            match given.send((ask, output)) {
                Ok(()) | Err(_) => {}
            }
        });
        Ok(())
    }

    fn receive(&mut self) {
        while let Ok((ask, output)) = self.given.1.try_recv() {
            let Some(ask) = ask else { continue };
            match output {
                Ok(output) if !output.stdout.is_empty() => {
                    let name = format!("the task of part {} (attempt {})", ask.part, ask.attempt);
                    self.ended.insert(name, (ask, output));
                }
                Ok(output) => match refusal(&output) {
                    Some(why) => self.refused.push((ask, why)),
                    None => {
                        let (node, reason) = (node_of(&output), reason(&output));
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

/// The message of `srun` if Slurm accepted no more jobs: then no node had the task.
fn refusal(output: &Output) -> Option<String> {
    let said = output.stderr_text();
    not_taken(&said).map(|_| complaint("srun", &said).0)
}

/// Why an `srun` gave no result.
fn reason(output: &Output) -> String {
    let text = output.stderr_text();
    let how = srun_end(&text).0.map_or_else(|| describe(output.status), str::to_owned);
    match said(&text) {
        Some(words) => format!("{how}: {words}"),
        None => how,
    }
}

/// The node, if `srun` names it.
fn node_of(output: &Output) -> String {
    srun_end(&output.stderr_text()).1.unwrap_or_default().to_owned()
}

impl Transport for Stream<'_> {
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

    fn scout(&mut self, patience: &mut Patience) -> Result<String, Failure> {
        self.start(None)?;
        loop {
            if let Ok((_, output)) = self.given.1.try_recv() {
                let output = output?;
                if output.stdout.is_empty() {
                    if let Some(why) = refusal(&output) {
                        return Err(Failure::new(Exit::Host, why));
                    }
                    let why = said(&output.stderr_text());
                    let (node, how) = (node_of(&output), describe(output.status));
                    return Err(super::scout_failed(&node, &how, why.as_deref()));
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
        self.queue = self.slurm.queue(&self.wish.name)?;
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

    fn settle(&mut self, from: &str, taken: Taken<'_>) -> Result<(), Failure> {
        let ended = self.ended.remove(from);
        if let (Some((ask, output)), Taken::No(why)) = (ended, taken) {
            // If a task failed in the middle of its result, its error is more useful than the
            // incomplete result.
            let reason = match output.status.success() {
                true => format!("its result was refused: {why}"),
                false => reason(&output),
            };
            self.lost.push(Lost { ask, node: node_of(&output), reason });
        }
        Ok(())
    }

    fn judge(&mut self, _: &mut Collector) -> Result<Look, Failure> {
        let running = |line: &&QueuedTask| line.state == TaskState::Running;
        Ok(Look {
            running: self.queue.iter().filter(running).count(),
            pending: pending_of(&self.queue),
            lost: std::mem::take(&mut self.lost),
            refused: std::mem::take(&mut self.refused),
        })
    }

    fn cancel(&mut self) -> Result<(), Failure> {
        self.slurm.cancel(&self.wish.name)
    }

    fn outlives(&self) -> bool {
        false
    }

    fn close(&mut self) -> Result<Option<String>, Failure> {
        Ok(None)
    }
}
