//! Transport through a folder that all nodes share: array jobs, a file for each result.
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

use super::{Collected, Lost, Note, Request, TaskStates, Transport, own_program, scout_failed};
use crate::arrays::{Batch, arrays};
use crate::collector::{Ask, Collector};
use crate::documents::JobDocument;
use crate::patience::Patience;
use crate::scheduler::{BatchJob, JobRequest, NotTaken, QueuedTask, Scheduler, TaskState};

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

/// The transport, with its folder.
pub struct Shared<'a> {
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

impl<'a> Shared<'a> {
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
            let why = if fine { "is no folder here" } else { "is no plain absolute path" };
            return Err(Failure::new(Exit::Input, format!("--shared: {shared} {why}"))
                .with_hint("name a folder of the shared file system, such as /home/me/runs"));
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
        let batch = BatchJob { program, output: &output, elements, at_once };
        self.scheduler.submit(&self.job, &batch)
    }

    /// Uses shorter arrays from now on, if this is why the array was rejected.
    fn shorten(&mut self, refused: &Batch, failure: Failure) -> Result<(), Failure> {
        let largest = refused.elements.iter().max().copied().unwrap_or(0);
        if self.scheduler.not_taken(&failure.message) != Some(NotTaken::ArrayTooLarge)
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
    fn words_of(&self, name: &str) -> Option<String> {
        let bytes = files::read(&format!("{}/out/{name}.txt", self.folder)).ok()?;
        self.scheduler.last_message(&String::from_utf8_lossy(&bytes))
    }
}

impl Transport for Shared<'_> {
    fn describe(&self) -> String {
        format!("array jobs; program, study and results go through {}", self.folder)
    }

    fn give(&mut self, job: &JobDocument) -> Result<(), Failure> {
        let text = job.to_json().map_err(|e| Failure::from_error(Exit::Host, &e, None))?;
        Ok(files::write_atomic(&format!("{}/job.json", self.folder), text.as_bytes())?)
    }

    fn scout(&mut self, patience: &mut Patience<'_>) -> Result<String, Failure> {
        let job = self.submit_batch(&self.worker(&["--scout"]), &[], None)?;
        let path = scout_path(&self.results());
        let mut ended_ns = None;
        loop {
            let Some(queue) = patience.received(self.scheduler.queue(&self.job.name))? else {
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
                    patience.waits(&[(reason.clone(), 1)].into())?
                }
                Some(TaskState::Running) => patience.moves(),
                Some(TaskState::Ended(state)) => {
                    let node = line.map_or("", |line| line.node.as_str());
                    let how = self.scheduler.ended(state, &job.to_string());
                    let why = self.words_of(&job.to_string());
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
                            "the folder of --shared is not one that nodes and this host share; \
                             leave --shared out, and results come through srun",
                        ));
                    }
                }
            }
            patience.pause()?;
        }
    }

    fn submit(&mut self, asks: &[Ask], note: &mut Note<'_>) -> Result<(), Failure> {
        let mut left = asks.to_vec();
        while let Some((attempt, batch)) = arrays(&left, self.max_array).into_iter().next() {
            let job = match self.submit_array(attempt, &batch) {
                Ok(job) => job,
                Err(failure) => {
                    self.shorten(&batch, failure)?;
                    continue;
                }
            };
            let tasks = batch.tasks(attempt, (job, SystemClock.unix_seconds()));
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

    fn poll(&mut self) -> Result<(), Failure> {
        self.queue = self.scheduler.queue(&self.job.name)?;
        Ok(())
    }

    fn collect(&mut self) -> Result<Vec<(String, String)>, Failure> {
        let results = self.results();
        let list = |path: &str| files::list(path).map_err(Failure::from);
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

    fn settle(&mut self, from: &str, taken: Collected<'_>) -> Result<(), Failure> {
        let done = match taken {
            Collected::Yes => files::remove(from),
            Collected::No(why) => {
                if let Some(place) = place_of(from) {
                    self.refused.insert(place, why.to_owned());
                }
                files::rename(from, &format!("{from}.refused"))
            }
        };
        Ok(done?)
    }

    fn judge(&mut self, collector: &mut Collector) -> Result<TaskStates, Failure> {
        let seen = collector.seen(&self.queue, SystemClock.now_ns());
        let (running, pending) = (seen.running, seen.pending);
        let mut look = TaskStates { running, pending, lost: Vec::new(), refused: Vec::new() };
        for one in seen.ended {
            let name = format!("{}_{}", one.job, one.element);
            let refused = self.refused.get(&(one.ask.part, one.ask.attempt));
            let reason = match (one.state, refused) {
                (_, Some(why)) => format!("its result was refused: {why}"),
                (Some(TaskState::Completed), None) => {
                    "it ended well, but its result did not arrive".to_owned()
                }
                (Some(TaskState::Ended(state)), None) => self.scheduler.ended(&state, &name),
                (Some(TaskState::Pending(_) | TaskState::Running) | None, None) => {
                    let scheduler = self.scheduler.name();
                    format!("{scheduler} no longer knows it, and it gave nothing")
                }
            };
            let reason = match self.words_of(&name).filter(|_| refused.is_none()) {
                Some(words) => format!("{reason}: {words}"),
                None => reason,
            };
            look.lost.push(Lost { ask: one.ask, node: one.node, reason });
        }
        Ok(look)
    }

    fn cancel(&mut self) -> Result<(), Failure> {
        self.scheduler.cancel(&self.job.name)
    }

    fn outlives(&self) -> bool {
        true
    }

    fn close(&mut self) -> Result<Option<String>, Failure> {
        let folder = self.results();
        for shard in files::list(&folder)? {
            let path = format!("{folder}/{shard}");
            let names = if files::is_dir(&path) { files::list(&path) } else { Ok(vec![shard]) };
            let names = names?;
            if names.iter().any(|name| name.ends_with(".refused")) {
                return Ok(Some(format!("refused results are kept in {folder}")));
            }
        }
        files::remove_tree(&self.folder)?;
        Ok(None)
    }
}

/// Part and attempt of a result's file.
fn place_of(path: &str) -> Option<(u32, u32)> {
    let name = path.rsplit('/').next()?.strip_suffix(".json")?;
    let (part, attempt) = name.split_once('-')?;
    Some((part.parse().ok()?, attempt.parse().ok()?))
}
