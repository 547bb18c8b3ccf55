//! The loop of the collector: submits tasks, merges results, prints the progress, and cleans up
//! when it is stopped.

use std::collections::BTreeMap;

use pinfold_host::files::{self, Lock};
use pinfold_host::{Clock as _, SystemClock};
use pinfold_model::Command;
use pinfold_model::text::count_noun;
use pinfold_run::message::say;
use pinfold_run::study::Display;
use pinfold_run::{Exit, Failure, host};
use pinfold_study::store::{OpenRun, RunId, Store};
use pinfold_study::study::{Event, Progress, TrialSlot, Update};

use crate::collector::{Accepted, Collector, Failed, Limits, Lost, PartAttempt};
use crate::documents::{OWN_VERSION, Options, failure_of};
use crate::scheduler::{ClusterOffer, Rejection, Scheduler};
use crate::shared_folder::SharedFolder;
use crate::wait_limit::WaitLimit;

/// Maximum delay of the result of a task that ended successfully.
pub const GRACE_NS: u64 = 90_000_000_000;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is missing in this run.
    Finished(RunId),
    /// The rest is left to the scheduler.
    Detached,
}

/// A run in progress.
pub struct RunContext<'a, 'd> {
    pub scheduler: &'a dyn Scheduler,
    pub options: &'a Options,
    pub offer: &'a ClusterOffer,
    pub detach: bool,
    pub state: Option<&'a str>,
    pub display: Display<'d>,
}

impl RunContext<'_, '_> {
    /// Runs the tasks of a run, or submits them.
    pub fn run_tasks(
        self,
        store: &mut Store,
        run: OpenRun,
        folder: &mut SharedFolder<'_>,
        patience: &mut WaitLimit<'_>,
    ) -> Result<Outcome, Failure> {
        let state = host::state(self.state)?;
        let lock = state.lock(&format!("cluster-{}", self.options.key))?;
        let Some(_lock): Option<Lock> = lock else {
            return Err(Failure::new(Exit::Host, "another pinfold process is collecting this run")
                .with_hint("wait until it exits"));
        };
        // Half of the controller's limit: other users submit jobs too.
        let most_out = (self.offer.max_jobs as usize / 2).max(1);
        let limits = Limits { most_out, grace_ns: GRACE_NS };
        let key = self.options.key.as_str();
        let collector =
            patience.with_store(|| Collector::open(store, run, key, OWN_VERSION, limits))?;
        let mut collecting = CollectorState {
            scheduler: self.scheduler,
            store,
            run,
            collector,
            folder,
            patience,
            is_short: false,
            progress: self.display.progress,
            began_ns: SystemClock.now_ns(),
            merged: 0,
        };
        (self.display.begins)(collecting.store, run.id())?;
        let outcome = collecting.until_done(self.detach);
        collecting.progress.finish();
        match outcome {
            Ok(true) => collecting.finish().map(|()| Outcome::Finished(run.id())),
            Ok(false) => {
                collecting.report_detached();
                Ok(Outcome::Detached)
            }
            Err(failure) => Err(collecting.cancel_outstanding(failure)),
        }
    }
}

/// The state of the loop.
struct CollectorState<'t, 'f, 's> {
    scheduler: &'t dyn Scheduler,
    store: &'t mut Store,
    run: OpenRun,
    collector: Collector,
    folder: &'t mut SharedFolder<'f>,
    patience: &'t mut WaitLimit<'s>,
    progress: &'t mut dyn Progress,
    /// True if it was reported that the scheduler accepts no more tasks.
    is_short: bool,
    began_ns: u64,
    /// Number of trials that were merged in this session.
    merged: u64,
}

impl CollectorState<'_, '_, '_> {
    fn report_detached(&self) {
        let (out, kept) = (self.collector.count_outstanding(), self.collector.count_kept_back());
        let kept = match kept {
            0 => String::new(),
            kept => format!("; this also submits the remaining {kept}"),
        };
        let resume = Command::new("study resume").arg(self.store.path());
        let (scheduler, tasks) = (self.scheduler.name(), count_noun(out, "task"));
        say(&format!("{scheduler} has {tasks}; collect the results with `{resume}`{kept}"));
    }

    /// True when all is done, false when the rest is left to the scheduler.
    fn until_done(&mut self, detach: bool) -> Result<bool, Failure> {
        loop {
            let polled = self.folder.poll();
            if self.patience.accept_answer(polled)?.is_none() {
                continue;
            }
            let came = self.collect()?;
            let look = self.folder.classify_tasks(&mut self.collector);
            let moves = came || look.running > 0 || !look.lost.is_empty();
            if moves {
                self.patience.reset_timeout();
            }
            for lost in look.lost {
                self.handle_lost(&lost)?;
            }
            if self.collector.is_done() {
                return Ok(true);
            }
            self.submit()?;
            if detach {
                return Ok(false);
            }
            if !moves {
                self.waits(look.pending)?;
            }
            self.patience.pause()?;
        }
    }

    /// Called when no task runs; checks the patience.
    fn waits(&mut self, mut pending: BTreeMap<String, usize>) -> Result<(), Failure> {
        let kept = self.collector.count_kept_back();
        if kept > 0 {
            pending.insert(self.patience.no_room(), kept);
        }
        self.patience.check_timeout(&pending)
    }

    /// Submits tasks as far as the scheduler accepts them.
    fn submit(&mut self) -> Result<(), Failure> {
        let mut refusal = None;
        loop {
            let now = SystemClock.now_ns();
            let asks = self.collector.to_submit(now);
            if asks.is_empty() {
                break;
            }
            let before = self.collector.count_outstanding();
            match self.submit_parts(&asks) {
                Ok(()) => {
                    if before == 0 {
                        // No task was there that could have run until now.
                        self.patience.reset_timeout();
                    }
                    self.collector.note_accepted(now);
                }
                Err(failure) => {
                    let taken = self.collector.count_outstanding().saturating_sub(before);
                    refusal =
                        Some(self.reduce_queue_limit(asks.len().saturating_sub(taken), failure)?);
                }
            }
        }
        self.report_room(refusal);
        Ok(())
    }

    fn submit_parts(&mut self, asks: &[PartAttempt]) -> Result<(), Failure> {
        let (collector, store, run) = (&mut self.collector, &mut *self.store, self.run);
        let patience = &*self.patience;
        self.folder.submit(asks, &mut |tasks| {
            patience.with_store(|| collector.record_submission(&mut *store, run, tasks))
        })
    }

    /// The scheduler accepted none of this number of tasks: fewer are tried, and later more again.
    /// Returns its message, or the failure itself if waiting does not help.
    fn reduce_queue_limit(&mut self, left: usize, failure: Failure) -> Result<String, Failure> {
        let is_least = left <= 1 && self.collector.count_outstanding() == 0;
        match self.scheduler.classify_rejection(&failure.message) {
            Some(Rejection::NoRoom) => {}
            Some(Rejection::Unnamed) if !is_least => {}
            Some(Rejection::Unnamed | Rejection::ArrayTooLarge) | None => return Err(failure),
        }
        self.collector.note_refusal(left, SystemClock.now_ns());
        Ok(failure.message)
    }

    /// Reports once that the scheduler accepts no more tasks, and once that it does again.
    fn report_room(&mut self, refusal: Option<String>) {
        let (out, kept) = (self.collector.count_outstanding(), self.collector.count_kept_back());
        match (refusal, kept) {
            (Some(why), 1..) if !self.is_short => {
                say(&format!(
                    "note: {why}; {} submitted, {kept} more follow when the queue has room",
                    count_noun(out, "task")
                ));
                self.is_short = true;
            }
            (None, 0) if self.is_short => {
                let scheduler = self.scheduler.name();
                say(&format!("note: {scheduler} accepts tasks again; all tasks are submitted"));
                self.is_short = false;
            }
            (Some(_) | None, _) => {}
        }
    }

    /// Merges the available results; true if there were any.
    fn collect(&mut self) -> Result<bool, Failure> {
        let mut came = false;
        loop {
            let results = self.folder.collect()?;
            if results.is_empty() {
                return Ok(came);
            }
            came = true;
            let (collector, store, run) = (&mut self.collector, &mut *self.store, self.run);
            let outcomes =
                self.patience.with_store(|| collector.accept(&mut *store, run, &results))?;
            let (mut fatal, mut last) = (None, None);
            for ((from, _), outcome) in results.iter().zip(outcomes) {
                match outcome {
                    Accepted::Merged { part, node, trials, failed } => {
                        files::remove(from)?;
                        self.merged += trials as u64;
                        self.report_part(part, &node, &failed)?;
                        last = Some((part, node));
                    }
                    Accepted::Known { part } => {
                        files::remove(from)?;
                        say(&format!("note: {from}: part {part} is already in the store"));
                    }
                    Accepted::Refused(error) => {
                        let why = pinfold_host::with_causes(&error);
                        self.folder.refuse(from, &why)?;
                        say(&format!("warning: {from} was refused: {why}"));
                        if error.ends_the_study() {
                            fatal.get_or_insert_with(|| failure_of(&error));
                        }
                    }
                }
            }
            if let Some((part, node)) = last {
                self.report(part, &node, Event::Done);
            }
            if let Some(failure) = fatal {
                return Err(failure);
            }
        }
    }

    fn report_part(
        &mut self,
        part: u32,
        node: &str,
        failed: &[(TrialSlot, String)],
    ) -> Result<(), Failure> {
        for (slot, message) in failed {
            let loaded = self.collector.study();
            let name = format!("{} on {node}", loaded.cells.all[slot.cell].name(&loaded.study));
            self.report(part, &name, Event::Failed { message: message.clone() });
        }
        let last = failed.last().map_or("", |(_, message)| message.as_str());
        self.collector.keeps_failing(&format!("part {part} on {node}"), last).map_err(Failure::from)
    }

    fn handle_lost(&mut self, lost: &Lost) -> Result<(), Failure> {
        let now = SystemClock.unix_seconds();
        let (collector, store, run) = (&mut self.collector, &mut *self.store, self.run);
        let outcome =
            self.patience.with_store(|| collector.handle_failure(&mut *store, run, lost, now))?;
        let PartAttempt { part, .. } = lost.ask;
        let block = self.collector.parts().block_of(part) + 1;
        let on = if lost.node.is_empty() { String::new() } else { format!(" on {}", lost.node) };
        let name = format!("part {part} (of block {block}){on}");
        let message = lost.reason.clone();
        match outcome {
            Failed::Again => self.report(part, &name, Event::Retries { message }),
            Failed::Recorded => {
                self.report(part, &name, Event::Failed { message });
                let kept = self.collector.keeps_failing(&name, &lost.reason);
                return kept.map_err(Failure::from);
            }
            Failed::Ignored => {}
        }
        Ok(())
    }

    fn report(&mut self, part: u32, name: &str, event: Event) {
        let (done, total) = self.collector.progress();
        let trial_s = match self.merged {
            0 => self.collector.predicted_s() / total.max(1) as f64,
            merged => {
                SystemClock.now_ns().saturating_sub(self.began_ns) as f64 / 1e9 / merged as f64
            }
        };
        let left_s = total.saturating_sub(done) as f64 * trial_s;
        let block = self.collector.parts().block_of(part);
        self.progress.update(&Update { event, block, name, done, total, left_s });
    }

    /// Removes tasks that were cancelled, as if they had not been submitted.
    fn revert(&mut self) -> Result<(), Failure> {
        let taken = self.collector.withdraw_all(self.store, self.run);
        taken.map_err(Failure::from)
    }

    /// Cancels the outstanding tasks; merged results are kept.
    fn cancel_outstanding(&mut self, failure: Failure) -> Failure {
        if failure.exit == Exit::Input {
            return self.detach_after_failure(failure);
        }
        let trouble = match self.folder.cancel() {
            Err(error) => Some(format!("cannot cancel its tasks: {}", error.message)),
            Ok(()) => self.revert().err().map(|error| {
                let why = error.message;
                format!(
                    "cannot record that its tasks are cancelled, so they count as failed: {why}"
                )
            }),
        };
        let (done, total) = self.collector.progress();
        let path = self.store.path();
        let message = match failure.exit {
            Exit::Interrupted => format!(
                "interrupted after {done} of {total} trials, the tasks are cancelled; the results \
                 so far are stored in {path}"
            ),
            Exit::No | Exit::Input | Exit::Host | Exit::Vm | Exit::Residue | Exit::NoProgram => {
                failure.message
            }
        };
        let hint = failure.hint.unwrap_or_else(|| {
            format!("continue with `{}`", Command::new("study resume").arg(path))
        });
        let failed = Failure::new(failure.exit, message).with_hint(hint);
        match trouble {
            None => failed,
            Some(why) => Failure { message: format!("{}; and {why}", failed.message), ..failed },
        }
    }

    /// Called after an error of the store; the results of the tasks are kept for later.
    fn detach_after_failure(&self, failure: Failure) -> Failure {
        let message = format!(
            "{}; its tasks continue, and their results stay in the shared directory",
            failure.message
        );
        let path = self.store.path();
        let hint = format!("when that is fixed: `{}`", Command::new("study resume").arg(path));
        Failure { message, ..failure }.with_hint(hint)
    }

    fn finish(&mut self) -> Result<(), Failure> {
        let now = SystemClock.unix_seconds();
        let (store, run) = (&mut *self.store, self.run);
        self.patience.with_store(|| Ok(store.finish_run(run, now)?))?;
        // Its results are no longer needed: a stop rule made the blocks unnecessary.
        if self.collector.count_outstanding() > 0 {
            self.folder.cancel()?;
        }
        if let Some(left) = self.folder.close()? {
            say(&format!("note: {left}"));
        }
        Ok(())
    }
}
