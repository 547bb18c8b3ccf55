//! Why threads did not run although they could have: each gap above a bound, with its causes.
//!
//! [`start`] observes threads with [`pinfold_host::GapTracer`]; [`attribute`] divides each gap among
//! what was on its CPU; [`record`] stores a [`GapReport`] and reads it again. Net times: an interrupt
//! inside a softirq inside a thread counts once. What no event explains is the rest of a gap.
//!
//! Not covered: exits that are shorter than the bound (see `pinfold exits`), and sleep in the guest or
//! under TCG that ends with an event of another thread (see [`crate::locks`]).

pub mod attribute;
mod cause;
mod figures;
mod names;
pub mod record;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use pinfold_host::{Clock, GapTotals, GapTracer, Host, HostError, RawGap, with_causes};
use pinfold_model::{Role, TaskId, Tid};
use serde::{Deserialize, Serialize};

pub use self::cause::Cause;
use self::names::Names;
use crate::quotas::Quotas;
use crate::traced_threads::{TracedThreads, WatchError};

/// Gaps beyond this number are counted, not kept: an observation of a day must fit.
const MOST: usize = 100_000;

/// Why gaps cannot be observed.
#[derive(Debug, thiserror::Error)]
pub enum GapsError {
    /// There are no such threads.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// The kernel refuses, or lacks a part.
    #[error("gaps cannot be observed here: {why}")]
    Unavailable {
        /// Its error.
        why: String,
    },
}

/// What a part of a gap was spent with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// The cause.
    pub cause: Cause,
    /// Net time (ns).
    pub ns: u64,
}

/// One gap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gap {
    /// The thread.
    pub tid: u32,
    /// Its role.
    pub role: String,
    /// Begin, from the start of the observation (ns); 0 if it began before.
    pub at_ns: u64,
    /// Length (ns).
    pub length_ns: u64,
    /// The CPU on which it then ran.
    pub cpu: u32,
    /// Migrations.
    pub moves: u32,
    /// True if it had not ended when the observation did: it is longer.
    pub is_open: bool,
    /// True if it was found by a late tick: it may have begun earlier.
    pub is_at_least: bool,
    /// Its parts, the longest first.
    pub parts: Vec<Part>,
}

impl Gap {
    /// Time that no part explains (ns).
    #[must_use]
    pub fn unexplained_ns(&self) -> u64 {
        let known = self.parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.ns));
        self.length_ns.saturating_sub(known)
    }

    /// The cause that explains at least half of it; `None` if none does.
    #[must_use]
    pub fn cause(&self) -> Option<&Cause> {
        let longest = self.parts.first()?;
        (longest.ns.saturating_mul(2) >= self.length_ns).then_some(&longest.cause)
    }
}

/// Gaps of a thread below the bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadGaps {
    /// The thread.
    pub tid: u32,
    /// Its role.
    pub role: String,
    /// True if it exited meanwhile.
    pub has_ended: bool,
    /// Their number.
    pub shorter: u64,
    /// Their sum (ns).
    pub shorter_ns: u64,
    /// Their number by ⌊log₂ ns⌋.
    pub histogram: Vec<u64>,
}

/// The result of an observation, except the gaps themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// What was observed.
    pub subject: String,
    /// The options that name it, as shell text.
    pub selector: String,
    /// The online CPUs.
    pub cpus: String,
    /// The bound (ns).
    pub over_ns: u64,
    /// Length of the observation (ns).
    pub duration_ns: u64,
    /// The threads.
    pub threads: Vec<ThreadGaps>,
    /// What is missing, as sentences.
    pub lost: Vec<String>,
    /// Calls of the BPF programs on all CPUs.
    pub calls: u64,
    /// Their time on all CPUs (ns); 0 if the kernel did not count.
    pub run_ns: u64,
}

/// The result of an observation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GapReport {
    /// All but the gaps.
    pub summary: Summary,
    /// The gaps, in order of their begin.
    pub gaps: Vec<Gap>,
}

/// An observation in progress.
#[derive(Debug)]
pub struct GapWatch {
    tracer: GapTracer,
    watched: TracedThreads,
    roles: BTreeMap<Tid, Role>,
    raw: Vec<RawGap>,
    dropped: u64,
    quotas: Quotas,
    names: Names,
    over_ns: u64,
    began_ns: u64,
}

/// Starts to observe gaps of at least `over_ns` of these threads, of the other threads of their
/// machines, and of the threads that they will create.
///
/// # Errors
/// [`GapsError`].
pub fn start(
    host: &dyn Host,
    clock: &dyn Clock,
    threads: &[(TaskId, Role)],
    over_ns: u64,
) -> Result<GapWatch, GapsError> {
    let watched = TracedThreads::read(host, threads)?;
    let is_group = threads.iter().all(|(_, role)| *role == Role::Task);
    let open = GapTracer::open(host, &watched.tids(), over_ns, is_group);
    let mut tracer = open.map_err(|error| GapsError::Unavailable { why: with_causes(&error) })?;
    let others = watched.others(host).map_err(WatchError::Host)?;
    for (_, tid) in &others {
        tracer.add(*tid).map_err(WatchError::Host)?;
    }
    let roles: BTreeMap<Tid, Role> = watched.with_others(&others).collect();
    let mut quotas = Quotas::new(host);
    roles.keys().for_each(|tid| quotas.add(host, *tid));
    quotas.sample(host, clock.now_ns());
    Ok(GapWatch {
        tracer,
        watched,
        roles,
        raw: Vec::new(),
        dropped: 0,
        quotas,
        names: Names::default(),
        over_ns,
        began_ns: clock.now_ns(),
    })
}

impl GapWatch {
    /// How often [`GapWatch::poll`] is to be called (ns): quotas are seen with this resolution, and
    /// the buffer of the kernel must not fill.
    pub const POLL_NS: u64 = 20_000_000;

    /// Takes the gaps that ended, and samples the quotas.
    pub fn poll(&mut self, host: &dyn Host, clock: &dyn Clock) {
        let gaps = self.tracer.take();
        // After the gaps were taken: what throttled them is then in the sample.
        self.quotas.sample(host, clock.now_ns());
        self.keep(host, gaps);
    }

    fn keep(&mut self, host: &dyn Host, gaps: Vec<RawGap>) {
        for gap in gaps {
            self.quotas.add(host, gap.tid);
            self.names.learn(host, &gap);
            if self.raw.len() < MOST {
                self.raw.push(gap);
            } else {
                self.dropped += 1;
            }
        }
    }

    /// Ends the observation. `machines` are names of machines by process.
    ///
    /// # Errors
    /// [`HostError`] if the kernel's statistics cannot be read.
    pub fn stop(
        mut self,
        host: &dyn Host,
        clock: &dyn Clock,
        machines: BTreeMap<Tid, String>,
    ) -> Result<GapReport, HostError> {
        self.poll(host, clock);
        let duration_ns = clock.now_ns().saturating_sub(self.began_ns);
        let others = self.watched.others(host)?;
        let (known, dropped) = (std::mem::take(&mut self.raw), self.dropped);
        let Self { tracer, watched, mut roles, mut quotas, mut names, over_ns, began_ns, .. } =
            self;
        let (last, totals) = tracer.close(host)?;
        quotas.sample(host, clock.now_ns());
        names.machines = machines;
        roles.extend(watched.with_others(&others));
        let role = |tid: Tid, process: Tid| match roles.get(&tid) {
            Some(role) => role.to_string(),
            None => watched.role_of_others(process).to_string(),
        };
        let mut raw = known;
        for gap in last.into_iter().chain(totals.open.clone()) {
            names.learn(host, &gap);
            raw.push(gap);
        }
        let context = attribute::Context { names: &names, quotas: &quotas, began_ns };
        let gaps = attribute::gaps(&raw, &context, &role);
        let threads = totals.threads.iter().map(|thread| ThreadGaps {
            tid: thread.tid.0,
            role: role(thread.tid, thread.process),
            has_ended: thread.has_ended,
            shorter: thread.count,
            shorter_ns: thread.sum_ns,
            histogram: thread.buckets.clone(),
        });
        let summary = Summary {
            over_ns,
            duration_ns,
            threads: threads.collect(),
            lost: missing(&totals, dropped, watched.gone, &quotas),
            calls: totals.calls,
            run_ns: totals.run_ns,
            ..Summary::default()
        };
        Ok(GapReport { summary, gaps })
    }
}

/// What the result does not have, as sentences.
fn missing(totals: &GapTotals, dropped: u64, gone: u32, quotas: &Quotas) -> Vec<String> {
    let mut lost = Vec::new();
    let counts = [
        (totals.lost, "gaps were lost because the kernel's buffer was full: raise --over"),
        (
            dropped,
            "gaps were dropped, because there were too many: raise --over or lower --seconds",
        ),
        (totals.unwatched, "new threads were not observed, because the BPF map was full"),
        (totals.missed, "events of the host were nested in another of the same kind"),
        (gone.into(), "threads had exited before the observation began"),
    ];
    lost.extend(
        counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}")),
    );
    if !totals.absent.is_empty() {
        lost.push(format!("this kernel lacks the events {}", totals.absent.join(", ")));
    }
    if totals.hides_addresses {
        lost.push(
            "the kernel hides addresses (kernel.kptr_restrict), so functions have no names, and \
             stalls outside Linux (hypervisor, firmware) are not found"
                .to_owned(),
        );
    }
    lost.extend(quotas.absent.clone());
    lost
}
