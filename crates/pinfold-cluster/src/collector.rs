//! The collector: which parts are submitted, returned, and retried.
//!
//! Its state is the store and the scheduler's queue: opened again after a crash, it knows which
//! parts were submitted, returned and failed. A task without a result is submitted once more; after
//! that its trials are recorded as failed, with the reason.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_study::RunError;
use pinfold_study::store::{NewNodeResult, OpenRun, Store, TaskRecord, TrialRecord};
use pinfold_study::study::{
    self, EarlyEnd, Loaded, MAX_FAILURES_IN_A_ROW, Prediction, TrialSlot, predict,
};

use super::documents::{
    ResultContent, ResultError, TaskResult, check_part, read_result, study_digest,
};
use super::parts::{Part, Parts};
use super::queue_limit::QueueLimit;
use super::scheduler::{QueuedTask, TaskState};

/// A part to be submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PartAttempt {
    /// Number of the part.
    pub part: u32,
    /// Attempt, 1 or 2.
    pub attempt: u32,
}

/// Limits on the submitted tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of submitted tasks that have not ended.
    pub most_out: usize,
    /// Maximum delay of the result of a task that ended successfully (ns).
    pub grace_ns: u64,
}

/// How a result was handled.
#[derive(Debug)]
pub enum Accepted {
    /// It was added to the store.
    Merged {
        /// Number of the part.
        part: u32,
        /// Name of the node.
        node: String,
        /// Number of trials.
        trials: usize,
        /// The failed trials, with their error messages.
        failed: Vec<(TrialSlot, String)>,
    },
    /// The store had it already.
    Known {
        /// Number of the part.
        part: u32,
    },
    /// It was rejected.
    Refused(ResultError),
}

/// A task that ended without a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedTask {
    /// Its part and attempt.
    pub ask: PartAttempt,
    /// Id of the array job.
    pub job: u64,
    /// Index in the array.
    pub element: u32,
    /// Its node; empty if it had none.
    pub node: String,
    /// Its last state; `None` if the scheduler does not know it any more.
    pub state: Option<TaskState>,
}

/// A task that ended without a result.
#[derive(Debug)]
pub struct Lost {
    /// Its part and attempt.
    pub ask: PartAttempt,
    /// Its node; empty if it is not known.
    pub node: String,
    /// Why it gave no result.
    pub reason: String,
}

/// How a part is handled whose task failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// It is submitted once more.
    Again,
    /// Its trials are recorded as failed.
    Recorded,
    /// The task was not (or no longer) one of the run.
    Ignored,
}

/// The state of the tasks according to the scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStates {
    /// Number of running tasks.
    pub running: usize,
    /// Number of pending tasks, by reason.
    pub pending: BTreeMap<String, usize>,
    /// Tasks that ended without a result.
    pub ended: Vec<EndedTask>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartState {
    Waiting { attempt: u32 },
    Out { attempt: u32, job: u64, element: u32, ended_ns: Option<u64> },
    Done,
}

/// Collects the results of a run.
pub struct Collector {
    loaded: Loaded,
    prediction: Prediction,
    parts: Parts,
    room: QueueLimit,
    grace_ns: u64,
    /// Key of the run, digest of its study, version of this program.
    marks: (String, String, String),
    at: Vec<PartState>,
    waiting: BTreeSet<u32>,
    out: BTreeSet<u32>,
    /// Missing parts of each block.
    missing: Vec<u32>,
    /// Number of trials in the store.
    done: u64,
    spent_ns: u64,
    /// Number of consecutive parts without a successful trial.
    failures_in_a_row: u32,
    /// Blocks below this may be submitted.
    horizon: u32,
    /// The parts of those blocks that were requested.
    blocks: BTreeMap<u32, Vec<Part>>,
}

impl Collector {
    /// Opens a run of the store, with its state.
    ///
    /// # Errors
    /// [`RunError`] if the run is not one of a study, or the store cannot be read.
    pub fn open(
        store: &mut Store,
        run: OpenRun,
        key: &str,
        pinfold: &str,
        limits: Limits,
    ) -> Result<Self, RunError> {
        let loaded = Loaded::read(store, run.id())?;
        let prediction = predict(&loaded.study, &loaded.cells, &loaded.facts)?;
        let parts = Parts::new(&loaded.study, &loaded.cells);
        let digest = study_digest(&loaded.record.toml, &loaded.record.form);
        let count = parts.count();
        let mut collector = Self {
            marks: (key.to_owned(), digest, pinfold.to_owned()),
            at: vec![PartState::Waiting { attempt: 1 }; count as usize],
            waiting: (0..count).collect(),
            out: BTreeSet::new(),
            missing: vec![parts.per_block(); loaded.study.repetitions as usize],
            done: 0,
            spent_ns: 0,
            failures_in_a_row: 0,
            horizon: 0,
            blocks: BTreeMap::new(),
            loaded,
            prediction,
            parts,
            room: QueueLimit::new(limits.most_out),
            grace_ns: limits.grace_ns,
        };
        for (_, record) in store.trials(run.id())? {
            collector.done += 1;
            collector.spent_ns += record.duration_ns;
            if let Some(part) = collector.parts.part_of(TrialSlot::from_record(&record)) {
                collector.mark_done(part);
            }
        }
        for task in store.tasks(run.id())? {
            collector.remember(&task);
        }
        collector.widen(store, run)?;
        Ok(collector)
    }

    fn remember(&mut self, task: &TaskRecord) {
        let Some(at) = self.at.get_mut(task.part as usize) else { return };
        if *at == PartState::Done {
            return;
        }
        let (part, attempt) = (task.part, task.attempt);
        if task.failed.is_some() {
            *at = PartState::Waiting { attempt: attempt + 1 };
            self.out.remove(&part);
            self.waiting.insert(part);
        } else {
            *at = PartState::Out { attempt, job: task.job, element: task.element, ended_ns: None };
            self.waiting.remove(&part);
            self.out.insert(part);
        }
    }

    /// The study and its cells.
    pub fn study(&self) -> &Loaded {
        &self.loaded
    }

    /// The division of the blocks into parts.
    #[must_use]
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Number of trials in the store, and of the whole run.
    pub fn progress(&self) -> (u64, u64) {
        (self.done, self.prediction.block_trials * u64::from(self.last_block()))
    }

    /// Predicted duration on a single node (seconds).
    #[must_use]
    pub fn predicted_s(&self) -> f64 {
        self.prediction.seconds()
    }

    fn last_block(&self) -> u32 {
        self.loaded.early.as_ref().map_or(self.prediction.blocks, |early| early.blocks)
    }

    /// True if nothing is missing.
    pub fn is_done(&self) -> bool {
        self.missing.iter().take(self.last_block() as usize).all(|missing| *missing == 0)
    }

    /// The parts that may be submitted now, in order.
    #[must_use]
    pub fn to_submit(&self, now_ns: u64) -> Vec<PartAttempt> {
        let room = self.room.at(now_ns).saturating_sub(self.out.len());
        self.waiting
            .range(..self.end())
            .filter_map(|part| match self.at.get(*part as usize)? {
                PartState::Waiting { attempt } => {
                    Some(PartAttempt { part: *part, attempt: *attempt })
                }
                PartState::Out { .. } | PartState::Done => None,
            })
            .take(room)
            .collect()
    }

    /// Parts below this may be submitted.
    fn end(&self) -> u32 {
        self.horizon.saturating_mul(self.parts.per_block())
    }

    /// Number of parts that are held back because the scheduler accepts no more tasks.
    pub fn count_kept_back(&self) -> usize {
        if self.room.is_short() { self.waiting.range(..self.end()).count() } else { 0 }
    }

    /// Called when the scheduler rejected this number of tasks: fewer are tried next, and no more
    /// for some time.
    pub fn note_refusal(&mut self, asked: usize, now_ns: u64) {
        self.room.shrink(self.out.len(), asked, now_ns);
    }

    /// Called when the scheduler accepted all submitted tasks.
    pub fn note_accepted(&mut self, now_ns: u64) {
        self.room.grow(self.out.len(), now_ns);
    }

    /// Records that these tasks were submitted.
    ///
    /// # Errors
    /// [`RunError`] if the store failed.
    pub fn record_submission(
        &mut self,
        store: &mut Store,
        run: OpenRun,
        tasks: &[TaskRecord],
    ) -> Result<(), RunError> {
        store.save_tasks(run, tasks)?;
        tasks.iter().for_each(|task| self.remember(task));
        Ok(())
    }

    /// Number of outstanding tasks.
    pub fn count_outstanding(&self) -> usize {
        self.out.len()
    }

    /// Outstanding tasks: part, attempt, job.
    #[must_use]
    pub fn outstanding(&self) -> Vec<(PartAttempt, u64)> {
        self.out
            .iter()
            .filter_map(|part| match self.at.get(*part as usize)? {
                PartState::Out { attempt, job, .. } => {
                    Some((PartAttempt { part: *part, attempt: *attempt }, *job))
                }
                PartState::Waiting { .. } | PartState::Done => None,
            })
            .collect()
    }

    /// Removes the outstanding tasks, which the collector cancelled.
    ///
    /// # Errors
    /// [`RunError`] if the store failed.
    pub fn withdraw_all(&mut self, store: &mut Store, run: OpenRun) -> Result<(), RunError> {
        let asks: Vec<PartAttempt> = self.outstanding().iter().map(|(ask, _)| *ask).collect();
        self.forget(store, run, &asks)
    }

    /// Removes tasks as if they had never been submitted.
    ///
    /// # Errors
    /// [`RunError`] if the store failed.
    pub fn forget(
        &mut self,
        store: &mut Store,
        run: OpenRun,
        asks: &[PartAttempt],
    ) -> Result<(), RunError> {
        let tasks: Vec<(u32, u32)> = asks.iter().map(|ask| (ask.part, ask.attempt)).collect();
        store.forget_tasks(run, &tasks)?;
        for PartAttempt { part, attempt } in asks {
            if self.out.remove(part) {
                self.at[*part as usize] = PartState::Waiting { attempt: *attempt };
                self.waiting.insert(*part);
            }
        }
        Ok(())
    }

    /// Adds results to the store: each is checked, and merged unless the store has it already.
    ///
    /// # Errors
    /// [`RunError`]: the store failed (then none of them is added), or several consecutive parts
    /// failed.
    pub fn accept(
        &mut self,
        store: &mut Store,
        run: OpenRun,
        results: &[(String, String)],
    ) -> Result<Vec<Accepted>, RunError> {
        let mut outcomes = Vec::with_capacity(results.len());
        let mut deliveries = Vec::new();
        for (_, text) in results {
            match self.check(text) {
                Ok(delivery) => {
                    outcomes.push(Accepted::Known { part: delivery.part });
                    deliveries.push((outcomes.len() - 1, delivery));
                }
                Err(error) => {
                    outcomes.push(Accepted::Refused(error));
                }
            }
        }
        let (places, deliveries): (Vec<usize>, Vec<NewNodeResult>) = deliveries.into_iter().unzip();
        let saved = store.save_deliveries(run, &deliveries)?;
        for ((place, delivery), saved) in places.into_iter().zip(&deliveries).zip(saved) {
            self.mark_done(delivery.part);
            if !saved {
                continue;
            }
            let mut failed = Vec::new();
            for (record, _) in &delivery.trials {
                self.done += 1;
                self.spent_ns += record.duration_ns;
                if let Some(message) = record.error.as_ref().filter(|_| !record.ok) {
                    failed.push((TrialSlot::from_record(record), message.clone()));
                }
            }
            self.count_failures(failed.len() == delivery.trials.len());
            outcomes[place] = Accepted::Merged {
                part: delivery.part,
                node: delivery.node.clone(),
                trials: delivery.trials.len(),
                failed,
            };
        }
        self.widen(store, run)?;
        Ok(outcomes)
    }

    fn check(&mut self, text: &str) -> Result<NewNodeResult, ResultError> {
        let (key, digest, own) = &self.marks;
        let TaskResult { head, given } = read_result(text, key, digest, own)?;
        let (Some(part), ResultContent::Trials(trials)) = (head.part, given) else {
            return Err(wrong("is missing".to_owned()));
        };
        let count = self.parts.count();
        let known = self.part(part).ok_or_else(|| wrong(format!("is {part}, of {count}")))?;
        check_part(known, &trials)?;
        Ok(NewNodeResult {
            part,
            attempt: head.attempt,
            node: head.node,
            origin: head.origin,
            job: head.job,
            mask: head.mask,
            began_unix_s: head.began_unix_s,
            trials,
        })
    }

    /// A part with its trials.
    pub fn part(&mut self, number: u32) -> Option<&Part> {
        if number >= self.parts.count() {
            return None;
        }
        let block = self.parts.block_of(number);
        let (study, cells) = (&self.loaded.study, &self.loaded.cells);
        let parts =
            self.blocks.entry(block).or_insert_with(|| self.parts.block(study, cells, block));
        parts.iter().find(|part| part.number == number)
    }

    fn mark_done(&mut self, part: u32) {
        let Some(at) = self.at.get_mut(part as usize) else { return };
        if *at == PartState::Done {
            return;
        }
        *at = PartState::Done;
        self.waiting.remove(&part);
        self.out.remove(&part);
        let block = self.parts.block_of(part);
        if let Some(missing) = self.missing.get_mut(block as usize) {
            *missing = missing.saturating_sub(1);
            if *missing == 0 {
                self.blocks.remove(&block);
            }
        }
    }

    fn count_failures(&mut self, all_failed: bool) {
        self.failures_in_a_row = if all_failed { self.failures_in_a_row + 1 } else { 0 };
    }

    /// An error after several consecutive failed parts.
    ///
    /// # Errors
    /// [`RunError::KeepsFailing`].
    pub fn keeps_failing(&self, name: &str, message: &str) -> Result<(), RunError> {
        if self.failures_in_a_row < MAX_FAILURES_IN_A_ROW {
            Ok(())
        } else {
            Err(RunError::KeepsFailing {
                count: self.failures_in_a_row,
                what: "part",
                name: name.to_owned(),
                message: message.to_owned(),
            })
        }
    }

    /// Compares the outstanding tasks with the scheduler's queue.
    pub fn compare_queue(&mut self, queue: &[QueuedTask], now_ns: u64) -> SchedulerStates {
        let reported: BTreeMap<(u64, u32), &QueuedTask> =
            queue.iter().map(|line| ((line.job, line.element.unwrap_or(0)), line)).collect();
        let mut seen = SchedulerStates::default();
        for part in &self.out {
            let Some(PartState::Out { attempt, job, element, ended_ns }) =
                self.at.get_mut(*part as usize)
            else {
                continue;
            };
            let line = reported.get(&(*job, *element));
            let state = match line.map(|line| &line.state) {
                Some(TaskState::Running) => {
                    seen.running += 1;
                    continue;
                }
                Some(TaskState::Pending(reason)) => {
                    *seen.pending.entry(reason.clone()).or_default() += 1;
                    continue;
                }
                Some(state @ TaskState::Ended(_)) => Some(state.clone()),
                // Its result may be delayed by the file system.
                ended @ (Some(TaskState::Completed) | None) => {
                    let since = *ended_ns.get_or_insert(now_ns);
                    if now_ns.saturating_sub(since) < self.grace_ns {
                        continue;
                    }
                    ended.cloned()
                }
            };
            seen.ended.push(EndedTask {
                ask: PartAttempt { part: *part, attempt: *attempt },
                job: *job,
                element: *element,
                node: line.map_or_else(String::new, |line| line.node.clone()),
                state,
            });
        }
        seen
    }

    /// Handles a task that ended without a result: it is submitted once more, or its trials are
    /// recorded as failed.
    ///
    /// # Errors
    /// [`RunError`] if the store failed.
    pub fn handle_failure(
        &mut self,
        store: &mut Store,
        run: OpenRun,
        lost: &Lost,
        now_unix_s: u64,
    ) -> Result<Failed, RunError> {
        let Lost { ask, node, reason } = lost;
        let Some(PartState::Out { attempt, job, element, .. }) =
            self.at.get(ask.part as usize).copied()
        else {
            return Ok(Failed::Ignored);
        };
        if attempt != ask.attempt {
            return Ok(Failed::Ignored);
        }
        if attempt >= 2 {
            let error = match node.as_str() {
                "" => reason.clone(),
                node => format!("on {node}: {reason}"),
            };
            let trials = self.part(ask.part).into_iter().flat_map(Part::trials);
            let records = trials.map(|(slot, position)| TrialRecord {
                block: slot.block,
                cell: slot.cell,
                start: slot.start,
                twin: slot.twin,
                position,
                node: node.clone(),
                ok: false,
                attempts: attempt,
                error: Some(error.clone()),
                began_unix_s: now_unix_s,
                duration_ns: 0,
                work_ns: 0,
            });
            let records: Vec<TrialRecord> = records.collect();
            store.save_trials(run, &records)?;
            self.done += records.len() as u64;
            self.mark_done(ask.part);
            self.count_failures(true);
            self.widen(store, run)?;
        }
        let task = TaskRecord {
            part: ask.part,
            attempt,
            job,
            element,
            submitted_unix_s: now_unix_s,
            failed: Some(reason.clone()),
        };
        store.save_tasks(run, std::slice::from_ref(&task))?;
        self.remember(&task);
        Ok(if attempt >= 2 { Failed::Recorded } else { Failed::Again })
    }

    /// Permits more blocks to start; a study with a budget or a stop rule runs block by block.
    fn widen(&mut self, store: &mut Store, run: OpenRun) -> Result<(), RunError> {
        let study = &self.loaded.study;
        if study.stop.is_none() && study.budget_ns.is_none() {
            self.horizon = self.prediction.blocks;
            return Ok(());
        }
        let at_least = study.stop.as_ref().map_or(1, |stop| stop.at_least).max(1);
        let whole = self.missing.iter().take_while(|missing| **missing == 0).count();
        let whole = u32::try_from(whole).unwrap_or(u32::MAX);
        // A block that has started is completed.
        let begun = self.missing.iter().rposition(|missing| *missing < self.parts.per_block());
        let begun = begun.map_or(0, |block| u32::try_from(block + 1).unwrap_or(u32::MAX));
        self.horizon = self.horizon.max(begun).max(at_least);
        if self.loaded.early.is_some() || whole < self.horizon || whole >= self.prediction.blocks {
            self.horizon = self.horizon.min(self.last_block());
            return Ok(());
        }
        let spent = study::Spent { blocks: whole, ns: self.spent_ns };
        match study::reason_to_stop(store, run, &self.loaded, spent)? {
            Some(reason) => {
                let early = EarlyEnd { blocks: whole, reason };
                early.save(store, run)?;
                self.loaded.early = Some(early);
                self.horizon = whole;
            }
            None => self.horizon = (whole + 1).min(self.prediction.blocks),
        }
        Ok(())
    }
}

fn wrong(why: String) -> ResultError {
    ResultError::Value { field: "part".to_owned(), why }
}
