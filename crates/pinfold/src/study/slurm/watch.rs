//! Waiting for a cluster: politely, and not for ever if it was so asked.

use pinfold_model::text::{agree, counted};
use std::collections::{BTreeMap, BTreeSet};

use pinfold_host::{Clock as _, SystemClock};
use pinfold_study::store::StoreError;
use pinfold_study::study::StudyError;
use pinfold_study::study::cluster::slurm::waits_as_usual;

use super::super::{store_failure, study_failure};
use crate::failure::{Exit, Failure};
use crate::output::say;
use crate::{interrupt, time};

/// The shortest time between two questions to Slurm.
const SHORTEST_NS: u64 = 500_000_000;
/// The longest.
const LONGEST_NS: u64 = 30_000_000_000;
/// A signal is seen within this time.
const LOOK_NS: u64 = 50_000_000;
/// Asking Slurm takes at most this part of the time.
const SHARE: u64 = 20;
/// A store that another process holds is waited for so long, where no patience was given.
const LOCKED_NS: u64 = 60_000_000_000;
/// A controller that does not answer is asked again for so long.
const SILENCE_NS: u64 = 300_000_000_000;
/// So long after a refusal the first node is asked for again.
const ROOM_NS: u64 = 15_000_000_000;

/// Why tasks are not even submitted, beside Slurm's reasons for those that are.
pub const NO_ROOM: &str = "Slurm takes no more jobs";

/// How long nothing may happen.
pub struct Patience {
    limit_ns: Option<u64>,
    since_ns: u64,
    asked_ns: u64,
    /// Since when Slurm does not answer.
    silent_ns: Option<u64>,
    reported: BTreeSet<String>,
}

impl Patience {
    pub fn new(limit_ns: Option<u64>) -> Self {
        let now = SystemClock.now_ns();
        Self { limit_ns, since_ns: now, asked_ns: now, silent_ns: None, reported: BTreeSet::new() }
    }

    /// Something runs, or has ended.
    pub fn moves(&mut self) {
        self.since_ns = SystemClock.now_ns();
    }

    /// Nothing runs, and tasks wait for these reasons.
    pub fn waits(&mut self, pending: &BTreeMap<String, usize>) -> Result<(), Failure> {
        for (reason, count) in pending {
            if !waits_as_usual(reason) && reason != NO_ROOM && self.reported.insert(reason.clone())
            {
                let (tasks, verb) = (counted(*count, "task"), agree(*count, "waits", "wait"));
                say(&format!("warning: {tasks} {verb}: {reason} (`sinfo -R` may show why)"));
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
                "for {} no task ran and none ended; waiting: {}",
                time::wait(waited_ns),
                if reasons.is_empty() { "none".to_owned() } else { reasons.join(", ") }
            ),
        )
        .with_hint(
            "see `sinfo -R` for nodes that are down; go on later with `pinfold study resume`",
        ))
    }

    /// Waits until Slurm may be asked again: questions take a twentieth of the time.
    pub fn pause(&mut self) -> Result<(), Failure> {
        let took_ns = SystemClock.now_ns().saturating_sub(self.asked_ns);
        rest((took_ns * SHARE).clamp(SHORTEST_NS, LONGEST_NS))?;
        self.asked_ns = SystemClock.now_ns();
        Ok(())
    }

    /// What Slurm answered; `None`, after a pause, while it does not: it is to be asked again.
    pub fn received<T>(&mut self, answer: Result<T, Failure>) -> Result<Option<T>, Failure> {
        let failure = match answer {
            Ok(answer) => {
                self.silent_ns = None;
                return Ok(Some(answer));
            }
            Err(failure) => failure,
        };
        let now = SystemClock.now_ns();
        if self.silent_ns.is_none() {
            say(&format!("warning: {}; asking again", failure.message));
        }
        if now.saturating_sub(*self.silent_ns.get_or_insert(now)) > SILENCE_NS {
            return Err(failure);
        }
        self.pause()?;
        Ok(None)
    }

    /// Waits until there may be room for a single task.
    pub fn wait_for_room(&mut self) -> Result<(), Failure> {
        self.waits(&[(NO_ROOM.to_owned(), 1)].into())?;
        rest(self.limit_ns.map_or(ROOM_NS, |limit_ns| limit_ns.min(ROOM_NS)))
    }

    /// Works on the store; while another process holds it, again and again, as long as patience
    /// lasts. Nothing is lost meanwhile: what came stays where it is.
    pub fn with_store<T>(
        &self,
        mut work: impl FnMut() -> Result<T, StudyError>,
    ) -> Result<T, Failure> {
        let limit_ns = self.limit_ns.unwrap_or(LOCKED_NS);
        let (began_ns, limit) = (SystemClock.now_ns(), time::wait(limit_ns));
        let mut reported = false;
        loop {
            let result = work();
            let Err(StudyError::Store(error @ StoreError::Locked { .. })) = &result else {
                return result.map_err(|error| study_failure(&error));
            };
            let so_far_ns = SystemClock.now_ns().saturating_sub(began_ns);
            if so_far_ns >= limit_ns {
                let failure = store_failure(error);
                let message = format!("{}, for {} now", failure.message, time::wait(so_far_ns));
                return Err(Failure { message, ..failure });
            }
            if !std::mem::replace(&mut reported, true) {
                say(&format!("note: {error}; waiting for it, up to {limit}"));
            }
            rest(LOOK_NS)?;
        }
    }
}

/// Waits, but not when a signal came.
fn rest(lasts_ns: u64) -> Result<(), Failure> {
    let until = SystemClock.now_ns() + lasts_ns;
    while SystemClock.now_ns() < until {
        if interrupt::requested() {
            return Err(Failure::new(Exit::Interrupted, "interrupted"));
        }
        SystemClock.sleep_ns(LOOK_NS);
    }
    Ok(())
}
