//! Waiting for a cluster: politely, and not for ever if it was so asked.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_host::{Clock as _, SystemClock};
use pinfold_study::study::cluster::slurm::waits_as_usual;

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

/// How long nothing may happen.
pub struct Patience {
    limit_ns: Option<u64>,
    since_ns: u64,
    asked_ns: u64,
    told: BTreeSet<String>,
}

impl Patience {
    pub fn new(limit_ns: Option<u64>) -> Self {
        let now = SystemClock.now_ns();
        Self { limit_ns, since_ns: now, asked_ns: now, told: BTreeSet::new() }
    }

    /// Something runs, or has ended.
    pub fn moves(&mut self) {
        self.since_ns = SystemClock.now_ns();
    }

    /// Nothing runs, and tasks wait for these reasons.
    pub fn waits(&mut self, pending: &BTreeMap<String, usize>) -> Result<(), Failure> {
        for (reason, count) in pending {
            if !waits_as_usual(reason) && self.told.insert(reason.clone()) {
                say(&format!("warning: {count} task(s) wait: {reason} (`sinfo -R` may tell why)"));
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
        let until = SystemClock.now_ns() + (took_ns * SHARE).clamp(SHORTEST_NS, LONGEST_NS);
        while SystemClock.now_ns() < until {
            if interrupt::requested() {
                return Err(Failure::new(Exit::Interrupted, "interrupted"));
            }
            SystemClock.sleep_ns(LOOK_NS);
        }
        self.asked_ns = SystemClock.now_ns();
        Ok(())
    }
}
