//! Waiting for a cluster, with a limited rate of queries and an optional timeout.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_host::{Clock as _, SystemClock};
use pinfold_model::text::{count_noun, select_verb};
use pinfold_run::message::say;
use pinfold_run::{Exit, Failure, interrupt, time};
use pinfold_study::RunError;
use pinfold_study::store::StoreError;

use crate::scheduler::Scheduler;

/// The shortest interval between two queries.
const SHORTEST_NS: u64 = 500_000_000;
/// The longest interval.
const LONGEST_NS: u64 = 30_000_000_000;
/// Maximum delay of the reaction to a signal.
const LOOK_NS: u64 = 50_000_000;
/// Queries take at most 1/`SHARE` of the time.
const SHARE: u64 = 20;
/// Maximum wait for a store that another process has locked, if no patience is set.
const LOCKED_NS: u64 = 60_000_000_000;
/// Maximum time of retries if the controller does not respond.
const SILENCE_NS: u64 = 300_000_000_000;
/// Delay of the next attempt for the first node after a rejection.
const ROOM_NS: u64 = 15_000_000_000;

/// Limits the time without progress.
pub struct WaitLimit<'a> {
    scheduler: &'a dyn Scheduler,
    limit_ns: Option<u64>,
    since_ns: u64,
    asked_ns: u64,
    /// Since when the scheduler does not respond.
    silent_ns: Option<u64>,
    reported: BTreeSet<String>,
}

impl<'a> WaitLimit<'a> {
    /// Without progress for this time (ns), the caller must give up.
    pub fn new(scheduler: &'a dyn Scheduler, limit_ns: Option<u64>) -> Self {
        let now = SystemClock.now_ns();
        let reported = BTreeSet::new();
        Self { scheduler, limit_ns, since_ns: now, asked_ns: now, silent_ns: None, reported }
    }

    /// Reason why tasks are not submitted, in addition to the scheduler's reasons for pending ones.
    pub fn no_room(&self) -> String {
        format!("{} accepts no more jobs", self.scheduler.name())
    }

    /// Called when a task runs, or has ended.
    pub fn reset_timeout(&mut self) {
        self.since_ns = SystemClock.now_ns();
    }

    /// Called when no task runs, with the reasons of pending ones.
    ///
    /// # Errors
    /// [`Failure`] when the patience is over.
    pub fn check_timeout(&mut self, pending: &BTreeMap<String, usize>) -> Result<(), Failure> {
        let no_room = self.no_room();
        for (reason, count) in pending {
            let is_usual = self.scheduler.is_usual_pending_reason(reason) || *reason == no_room;
            if !is_usual && self.reported.insert(reason.clone()) {
                let (tasks, verb) =
                    (count_noun(*count, "task"), select_verb(*count, "waits", "wait"));
                let command = self.scheduler.node_command();
                say(&format!("warning: {tasks} {verb}: {reason} (`{command}` may show why)"));
            }
        }
        let waited_ns = SystemClock.now_ns().saturating_sub(self.since_ns);
        if self.limit_ns.is_none_or(|limit_ns| waited_ns <= limit_ns) {
            return Ok(());
        }
        let reasons: Vec<String> =
            pending.iter().map(|(reason, count)| format!("{count} × {reason}")).collect();
        Err(Failure::new(
            Exit::Host,
            format!(
                "no task ran or finished for {}; waiting: {}",
                time::wait(waited_ns),
                if reasons.is_empty() { "none".to_owned() } else { reasons.join(", ") }
            ),
        )
        .with_hint(format!(
            "see `{}` for nodes that are down; continue later with `pinfold study resume`",
            self.scheduler.node_command()
        )))
    }

    /// Waits until the scheduler may be queried again: queries take at most a twentieth of the
    /// time.
    ///
    /// # Errors
    /// [`Failure`] after a signal.
    pub fn pause(&mut self) -> Result<(), Failure> {
        let took_ns = SystemClock.now_ns().saturating_sub(self.asked_ns);
        sleep_interruptible((took_ns * SHARE).clamp(SHORTEST_NS, LONGEST_NS))?;
        self.asked_ns = SystemClock.now_ns();
        Ok(())
    }

    /// The output of the scheduler; `None`, after a pause, if it does not respond: the caller must
    /// retry.
    ///
    /// # Errors
    /// [`Failure`] if it does not respond for too long.
    pub fn accept_answer<T>(&mut self, answer: Result<T, Failure>) -> Result<Option<T>, Failure> {
        let failure = match answer {
            Ok(answer) => {
                self.silent_ns = None;
                return Ok(Some(answer));
            }
            Err(failure) => failure,
        };
        let now = SystemClock.now_ns();
        if self.silent_ns.is_none() {
            say(&format!("warning: {}; trying again", failure.message));
        }
        if now.saturating_sub(*self.silent_ns.get_or_insert(now)) > SILENCE_NS {
            return Err(failure);
        }
        self.pause()?;
        Ok(None)
    }

    /// Waits until the scheduler may accept a single task.
    ///
    /// # Errors
    /// [`Failure`] when the patience is over, or after a signal.
    pub fn wait_for_room(&mut self) -> Result<(), Failure> {
        self.check_timeout(&[(self.no_room(), 1)].into())?;
        sleep_interruptible(self.limit_ns.map_or(ROOM_NS, |limit_ns| limit_ns.min(ROOM_NS)))
    }

    /// Runs an operation on the store; while another process has locked it, retries as long as the
    /// patience permits. Results stay where they are in the meantime.
    ///
    /// # Errors
    /// [`Failure`] of the operation.
    pub fn with_store<T>(
        &self,
        mut work: impl FnMut() -> Result<T, RunError>,
    ) -> Result<T, Failure> {
        let limit_ns = self.limit_ns.unwrap_or(LOCKED_NS);
        let (began_ns, limit) = (SystemClock.now_ns(), time::wait(limit_ns));
        let mut reported = false;
        loop {
            let result = work();
            let Err(RunError::Store(error @ StoreError::Locked { .. })) = result else {
                return result.map_err(Failure::from);
            };
            let so_far_ns = SystemClock.now_ns().saturating_sub(began_ns);
            if so_far_ns >= limit_ns {
                let failure = Failure::from(error);
                let message = format!("{} (waited for {})", failure.message, time::wait(so_far_ns));
                return Err(Failure { message, ..failure });
            }
            if !std::mem::replace(&mut reported, true) {
                say(&format!("note: {error}; waiting for it, up to {limit}"));
            }
            sleep_interruptible(LOOK_NS)?;
        }
    }
}

/// Waits; fails as interrupted after a signal.
fn sleep_interruptible(lasts_ns: u64) -> Result<(), Failure> {
    let until = SystemClock.now_ns() + lasts_ns;
    while SystemClock.now_ns() < until {
        if interrupt::is_requested() {
            return Err(Failure::new(Exit::Interrupted, "interrupted"));
        }
        SystemClock.sleep_ns(LOOK_NS);
    }
    Ok(())
}
