//! How tasks reach the nodes, and how their results are returned: array jobs, and a file for each
//! result in a folder that all nodes share.
//!
//! ```text
//! DIR/pinfold-KEY/            0700, created by the submitting process
//!     pinfold                 the program, unless the nodes have their own
//!     job.json                the study, and the properties of the first node
//!     out/17_3.txt            output of a task
//!     results/0/3-1.json      part 3, attempt 1; a thousand parts per folder
//! ```
//!
//! A result is written atomically (a temporary file, `fsync`, rename), merged, and removed when the
//! store has it. A rejected result is renamed to `.refused`.

use std::collections::BTreeMap;

use pinfold_host::files::{self, StateDir};
use pinfold_host::{Clock as _, SystemClock};
use pinfold_run::message::say;
use pinfold_run::{Exit, Failure};

use pinfold_study::store::TaskRecord;

use crate::arrays::{Batch, arrays};
use crate::collector::{Collector, Lost, PartAttempt};
use crate::documents::JobDocument;
use crate::scheduler::{
    BatchJob, ClusterOffer, JobRequest, QueuedTask, Rejection, Scheduler, TaskState,
};
use crate::wait_limit::WaitLimit;

/// Number of parts whose results are in the same folder.
const SHARD: u32 = 1000;
/// Maximum number of results that are read at a time.
const BATCH: usize = 256;

/// Path of the result of a part.
pub fn result_path(results: &str, part: u32, attempt: u32) -> String {
    format!("{results}/{}/{part}-{attempt}.json", part / SHARD)
}

/// Path of the result of the first node's check.
pub fn scout_path(results: &str) -> String {
    format!("{results}/scout.json")
}

/// Called with tasks as soon as they are submitted.
pub type SubmissionCallback<'n> = dyn FnMut(&[TaskRecord]) -> Result<(), Failure> + 'n;

/// The state of the tasks.
#[derive(Debug)]
pub struct TaskStates {
    /// Number of running tasks.
    pub running: usize,
    /// Number of pending tasks, by reason.
    pub pending: BTreeMap<String, usize>,
    /// Tasks that ended without a result.
    pub lost: Vec<Lost>,
}

/// What the tasks of a run need.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Key of the run.
    pub key: &'a str,
    /// Path of the program on the nodes; `None` to copy this program into the folder.
    pub program: Option<&'a str>,
    /// State directory of the nodes' Pinfold.
    pub state: Option<&'a str>,
    /// The requirements of each job.
    pub job: JobRequest,
    /// What the cluster offers.
    pub offer: &'a ClusterOffer,
    /// Maximum delay of the result of a task that ended successfully (ns).
    pub grace_ns: u64,
}

/// The tasks of a run, with their folder.
pub struct SharedFolder<'a> {
    scheduler: &'a dyn Scheduler,
    folder: String,
    /// The arguments before `study worker`.
    program: Vec<String>,
    job: JobRequest,
    at_once: Option<u32>,
    max_array: u32,
    grace_ns: u64,
    queue: Vec<QueuedTask>,
    /// Why results were rejected, by part and attempt.
    refused: BTreeMap<(u32, u32), String>,
}

impl<'a> SharedFolder<'a> {
    /// Creates the folder, and copies the program into it.
    ///
    /// # Errors
    /// [`Failure`] if the folder is not usable.
    pub fn open(
        scheduler: &'a dyn Scheduler,
        shared: &str,
        request: &Request<'_>,
    ) -> Result<Self, Failure> {
        let fine = shared.starts_with('/')
            && !shared.chars().any(|c| c.is_control() || c == '\\' || c == '%');
        if !fine || !files::is_dir(shared) {
            let why = if fine { "is not a directory here" } else { "is not a plain absolute path" };
            return Err(Failure::new(Exit::Input, format!("--shared: {shared} {why}"))
                .with_hint("name a directory of the shared file system, such as /home/me/runs"));
        }
        let folder = format!("{}/pinfold-{}", shared.trim_end_matches('/'), request.key);
        StateDir::open(&folder)?;
        for name in ["out", "results"] {
            files::make_dirs(&format!("{folder}/{name}"))?;
        }
        let path = match request.program {
            Some(path) => path.to_owned(),
            None => {
                let path = format!("{folder}/pinfold");
                files::write_program(&path, &own_program()?)?;
                path
            }
        };
        let mut program = vec![path];
        if let Some(state) = request.state {
            program.extend(["--state-dir".to_owned(), state.to_owned()]);
        }
        Ok(Self {
            scheduler,
            folder,
            program,
            job: request.job.clone(),
            at_once: request.offer.at_once,
            max_array: request.offer.max_array,
            grace_ns: request.grace_ns,
            queue: Vec::new(),
            refused: BTreeMap::new(),
        })
    }

    fn results(&self) -> String {
        format!("{}/results", self.folder)
    }

    /// The program of a task, with its arguments.
    fn worker(&self, words: &[&str]) -> Vec<String> {
        let (job, out) = (format!("{}/job.json", self.folder), self.results());
        let fixed = ["study", "worker", "--job", &job, "--out", &out];
        let words = fixed.into_iter().chain(words.iter().copied()).map(str::to_owned);
        self.program.iter().cloned().chain(words).collect()
    }

    /// Submits one array job and returns its id.
    fn submit_array(&self, attempt: u32, batch: &Batch) -> Result<u64, Failure> {
        let (offset, number) = (batch.offset.to_string(), attempt.to_string());
        let program = self.worker(&["--offset", &offset, "--attempt", &number]);
        self.submit_batch(&program, &batch.elements, self.at_once)
    }

    fn submit_batch(
        &self,
        program: &[String],
        elements: &[u32],
        at_once: Option<u32>,
    ) -> Result<u64, Failure> {
        let output = format!("{}/out", self.folder);
        let batch = BatchJob { program, output: &output, array_indices: elements, at_once };
        self.scheduler.submit(&self.job, &batch)
    }

    /// Uses shorter arrays from now on, if this is why the array was rejected.
    fn shorten(&mut self, refused: &Batch, failure: Failure) -> Result<(), Failure> {
        let largest = refused.elements.iter().max().copied().unwrap_or(0);
        if self.scheduler.classify_rejection(&failure.message) != Some(Rejection::ArrayTooLarge)
            || largest == 0
        {
            return Err(failure);
        }
        self.max_array = largest.div_ceil(2);
        let most = self.max_array;
        say(&format!("note: {}; arrays have at most {most} tasks from here on", failure.message));
        Ok(())
    }

    /// The last message of a task.
    fn read_last_message(&self, name: &str) -> Option<String> {
        let bytes = files::read(&format!("{}/out/{name}.txt", self.folder)).ok()?;
        self.scheduler.last_message(&String::from_utf8_lossy(&bytes))
    }

    /// Description for the user.
    pub fn describe(&self) -> String {
        format!("array jobs; program, study and results go through {}", self.folder)
    }

    /// Writes the job of the following tasks.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be written.
    pub fn write_job(&mut self, job: &JobDocument) -> Result<(), Failure> {
        let text = job.to_json().map_err(|e| Failure::from_error(Exit::Host, &e, None))?;
        Ok(files::write_atomic(&format!("{}/job.json", self.folder), text.as_bytes())?)
    }

    /// Runs the check of one node and returns its result.
    ///
    /// # Errors
    /// [`Failure`] if the node gave none.
    pub fn scout(&mut self, patience: &mut WaitLimit<'_>) -> Result<String, Failure> {
        let job = self.submit_batch(&self.worker(&["--scout"]), &[], None)?;
        let path = scout_path(&self.results());
        let mut ended_ns = None;
        loop {
            let Some(queue) = patience.accept_answer(self.scheduler.queue(&self.job.name))? else {
                continue;
            };
            if files::exists(&path) {
                let text = files::read_text(&path)?;
                files::remove(&path)?;
                return Ok(text);
            }
            let line = queue.iter().find(|line| line.job == job);
            match line.map(|line| &line.state) {
                Some(TaskState::Pending(reason)) => {
                    patience.check_timeout(&[(reason.clone(), 1)].into())?
                }
                Some(TaskState::Running) => patience.reset_timeout(),
                Some(TaskState::Ended(state)) => {
                    let node = line.map_or("", |line| line.node.as_str());
                    let how = self.scheduler.describe_end(state, &job.to_string());
                    let why = self.read_last_message(&job.to_string());
                    return Err(scout_failed(node, &how, why.as_deref()));
                }
                Some(TaskState::Completed) | None => {
                    let now = SystemClock.now_ns();
                    if now.saturating_sub(*ended_ns.get_or_insert(now)) > self.grace_ns {
                        let node = line.map_or("a node", |line| line.node.as_str());
                        return Err(Failure::new(
                            Exit::Host,
                            format!("{node} wrote its result, but it is not in {path} here"),
                        )
                        .with_hint(
                            "name a directory with --shared that the nodes and this host share",
                        ));
                    }
                }
            }
            patience.pause()?;
        }
    }

    /// Submits tasks, up to the first that is not accepted.
    ///
    /// # Errors
    /// [`Failure`] with the scheduler's message.
    pub fn submit(
        &mut self,
        asks: &[PartAttempt],
        note: &mut SubmissionCallback<'_>,
    ) -> Result<(), Failure> {
        let mut left = asks.to_vec();
        while let Some((attempt, batch)) = arrays(&left, self.max_array).into_iter().next() {
            let job = match self.submit_array(attempt, &batch) {
                Ok(job) => job,
                Err(failure) => {
                    self.shorten(&batch, failure)?;
                    continue;
                }
            };
            let tasks = batch.tasks(attempt, job, SystemClock.unix_seconds());
            if let Err(failure) = note(&tasks) {
                // They are not recorded, so they would be submitted once more.
                self.scheduler.cancel_job(job)?;
                return Err(failure);
            }
            left.retain(|ask| {
                !tasks.iter().any(|task| (task.part, task.attempt) == (ask.part, ask.attempt))
            });
        }
        Ok(())
    }

    /// Queries the state of the tasks.
    ///
    /// # Errors
    /// [`Failure`] if the scheduler does not respond.
    pub fn poll(&mut self) -> Result<(), Failure> {
        self.queue = self.scheduler.queue(&self.job.name)?;
        Ok(())
    }

    /// Available results: file and text. If there are many, some of them.
    ///
    /// # Errors
    /// [`Failure`] if they cannot be read.
    pub fn collect(&mut self) -> Result<Vec<(String, String)>, Failure> {
        let results = self.results();
        let mut found = Vec::new();
        for shard in list(&results)? {
            let folder = format!("{results}/{shard}");
            if !files::is_dir(&folder) {
                continue;
            }
            for name in list(&folder)? {
                if found.len() >= BATCH {
                    return Ok(found);
                }
                if name.starts_with('.') || !name.ends_with(".json") {
                    continue;
                }
                let path = format!("{folder}/{name}");
                let bytes = files::read(&path)?;
                found.push((path, String::from_utf8_lossy(&bytes).into_owned()));
            }
        }
        Ok(found)
    }

    /// Renames the file of a rejected result; its task has failed for this reason.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be renamed.
    pub fn refuse(&mut self, path: &str, why: &str) -> Result<(), Failure> {
        if let Some(place) = parse_result_name(path) {
            self.refused.insert(place, why.to_owned());
        }
        Ok(files::rename(path, &format!("{path}.refused"))?)
    }

    /// The tasks that ended without a result, by the last poll.
    pub fn classify_tasks(&self, collector: &mut Collector) -> TaskStates {
        let seen = collector.compare_queue(&self.queue, SystemClock.now_ns());
        let (running, pending) = (seen.running, seen.pending);
        let mut look = TaskStates { running, pending, lost: Vec::new() };
        for one in seen.ended {
            let name = format!("{}_{}", one.job, one.element);
            let refused = self.refused.get(&(one.ask.part, one.ask.attempt));
            let reason = match (one.state, refused) {
                (_, Some(why)) => format!("its result was refused: {why}"),
                (Some(TaskState::Completed), None) => {
                    "it succeeded, but its result did not arrive".to_owned()
                }
                (Some(TaskState::Ended(state)), None) => self.scheduler.describe_end(&state, &name),
                (Some(TaskState::Pending(_) | TaskState::Running) | None, None) => {
                    let scheduler = self.scheduler.name();
                    format!("{scheduler} has no record of the task, and it wrote no result")
                }
            };
            let reason = match self.read_last_message(&name).filter(|_| refused.is_none()) {
                Some(words) => format!("{reason}: {words}"),
                None => reason,
            };
            look.lost.push(Lost { ask: one.ask, node: one.node, reason });
        }
        look
    }

    /// Cancels everything that was submitted.
    ///
    /// # Errors
    /// [`Failure`] if the scheduler does not respond.
    pub fn cancel(&mut self) -> Result<(), Failure> {
        self.scheduler.cancel(&self.job.name)
    }

    /// Cleans up after the last result; returns a message on what is left behind.
    ///
    /// # Errors
    /// [`Failure`] if something cannot be removed.
    pub fn close(&mut self) -> Result<Option<String>, Failure> {
        let folder = self.results();
        for shard in files::list(&folder)? {
            let path = format!("{folder}/{shard}");
            let names = if files::is_dir(&path) { files::list(&path) } else { Ok(vec![shard]) };
            let names = names?;
            if names.iter().any(|name| name.ends_with(".refused")) {
                return Ok(Some(format!("refused results are stored in {folder}")));
            }
        }
        files::remove_tree(&self.folder)?;
        Ok(None)
    }
}

fn list(path: &str) -> Result<Vec<String>, Failure> {
    files::list(path).map_err(Failure::from)
}

/// Contents of this program.
fn own_program() -> Result<Vec<u8>, Failure> {
    let path = std::env::current_exe()
        .map_err(|error| Failure::new(Exit::Host, format!("cannot find this program: {error}")))?;
    Ok(files::read(&path.to_string_lossy())?)
}

/// The failure if the first node could not report its properties.
fn scout_failed(node: &str, how: &str, said: Option<&str>) -> Failure {
    let node = if node.is_empty() { "the first node" } else { node };
    let said = said.map_or_else(String::new, |said| format!(": {said}"));
    Failure::new(Exit::Host, format!("{node} could not check the study, {how}{said}"))
}

/// Part and attempt of a result's file.
fn parse_result_name(path: &str) -> Option<(u32, u32)> {
    let name = path.rsplit('/').next()?.strip_suffix(".json")?;
    let (part, attempt) = name.split_once('-')?;
    Some((part.parse().ok()?, attempt.parse().ok()?))
}
