//! Why threads did not run although they could have: each gap above a bound, with its causes.
//!
//! [`start`] observes threads with [`pinfold_host::GapTracer`]; [`attribute`] divides each gap among
//! what was on its CPU; [`record`] stores a [`GapReport`] and reads it again. Net times: an interrupt
//! inside a softirq inside a thread counts once. What no event explains is the rest of a gap.
//!
//! Not covered: exits that are shorter than the bound (see `pinfold exits`), and sleep in the guest or
//! under TCG that ends with an event of another thread (see [`crate::locks`]).

pub mod attribute;
mod by_cause;
mod cause;
mod figures;
mod lasting;
mod names;
mod queued;
pub mod record;
mod remedy;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use pinfold_host::{
    Clock, GapTotals, GapTracer, Host, HostError, RawGap, TracedThread, with_causes,
};
use pinfold_model::text::count_noun;
use pinfold_model::{Role, TaskId, Tid};
use serde::{Deserialize, Serialize};

pub use self::by_cause::{CauseTime, by_cause};
pub use self::cause::Cause;
use self::lasting::Observation;
use self::names::Names;
use self::queued::Delays;
pub use self::remedy::{Place, Remedy};
use crate::quotas::Quotas;
use crate::traced_threads::{TracedThreads, WatchError};

/// Gaps beyond this number are counted, not kept: an observation of a day must fit.
const MOST: usize = 100_000;
/// The same for the slices of all gaps.
const MOST_SLICES: usize = 4_000_000;

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
    /// Name of its machine, process or group; empty if only one is observed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub subject: String,
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
    /// As [`Gap::subject`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub subject: String,
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

/// The name of what is observed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubjectName {
    /// As [`Gap::subject`].
    pub name: String,
    /// The options that name it, as shell text; empty for processes and groups.
    pub selector: String,
}

impl Summary {
    /// The options that name the machine of a gap; empty for processes and groups.
    #[must_use]
    pub fn selector_of(&self, subject: &str) -> &str {
        let named = self.subjects.iter().find(|named| named.name == subject);
        named.map_or(&self.selector, |named| &named.selector)
    }
}

/// What is to be observed: a machine, a process, or a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// Its name.
    pub name: SubjectName,
    /// Its threads.
    pub threads: Vec<(TaskId, Role)>,
}

impl Subject {
    /// Threads without a name.
    #[must_use]
    pub fn of_threads(threads: Vec<(TaskId, Role)>) -> Self {
        Self { threads, ..Self::default() }
    }
}

/// The result of an observation, except the gaps themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// What was observed.
    pub subject: String,
    /// The options that name it, as shell text; empty if several are observed.
    pub selector: String,
    /// Each of them, if several are observed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subjects: Vec<SubjectName>,
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

impl GapReport {
    /// Counts the gaps that are shorter than this bound as those below the bound of the
    /// observation, which must not be higher.
    pub fn raise_bound(&mut self, over_ns: u64) {
        for gap in self.gaps.extract_if(.., |gap| gap.length_ns < over_ns) {
            let mut threads = self.summary.threads.iter_mut();
            let Some(thread) =
                threads.find(|thread| thread.tid == gap.tid && thread.subject == gap.subject)
            else {
                continue;
            };
            thread.shorter = thread.shorter.saturating_add(1);
            thread.shorter_ns = thread.shorter_ns.saturating_add(gap.length_ns);
            let power = usize::try_from(gap.length_ns.checked_ilog2().unwrap_or(0)).unwrap_or(0);
            let last = thread.histogram.len().saturating_sub(1);
            if let Some(bucket) = thread.histogram.get_mut(power.min(last)) {
                *bucket = bucket.saturating_add(1);
            }
        }
        self.summary.over_ns = over_ns;
    }
}

/// What is observed.
#[derive(Debug)]
struct Watched {
    name: SubjectName,
    threads: TracedThreads,
}

impl Watched {
    /// Its threads that are to be traced.
    fn traced(&self, owner: u32) -> Vec<TracedThread> {
        let follows_processes = self.threads.threads.iter().all(|(_, role)| *role == Role::Task);
        let tids = self.threads.tids().into_iter();
        tids.map(|tid| TracedThread { tid, owner, follows_processes }).collect()
    }
}

/// An observation in progress.
#[derive(Debug)]
pub struct GapWatch {
    tracer: GapTracer,
    subjects: Vec<Watched>,
    roles: BTreeMap<Tid, Role>,
    raw: Vec<RawGap>,
    slices: usize,
    dropped: u64,
    quotas: Quotas,
    names: Names,
    delays: Delays,
    /// For how long each thread had run at the start.
    ran_ns: BTreeMap<Tid, u64>,
    over_ns: u64,
    began_ns: u64,
}

/// Starts to observe gaps of at least `over_ns` of the threads of these subjects, of the other
/// threads of their machines, and of the threads that they will create.
///
/// # Errors
/// [`GapsError`].
pub fn start(
    host: &dyn Host,
    clock: &dyn Clock,
    subjects: &[Subject],
    over_ns: u64,
) -> Result<GapWatch, GapsError> {
    let mut watched = Vec::new();
    for subject in subjects {
        let threads = TracedThreads::read(host, &subject.threads)?;
        watched.push(Watched { name: subject.name.clone(), threads });
    }
    if watched.is_empty() {
        return Err(WatchError::NoThreads.into());
    }
    let traced: Vec<TracedThread> =
        (0_u32..).zip(&watched).flat_map(|(owner, subject)| subject.traced(owner)).collect();
    let open = GapTracer::open(host, &traced, over_ns);
    let mut tracer = open.map_err(|error| GapsError::Unavailable { why: with_causes(&error) })?;
    let mut roles = BTreeMap::new();
    for (owner, subject) in (0_u32..).zip(&watched) {
        let others = subject.threads.others(host).map_err(WatchError::Host)?;
        for (_, tid) in &others {
            let thread = TracedThread { tid: *tid, owner, follows_processes: false };
            tracer.add(&thread).map_err(WatchError::Host)?;
        }
        roles.extend(subject.threads.with_others(&others));
    }
    let mut quotas = Quotas::new(host);
    roles.keys().for_each(|tid| quotas.add(host, *tid));
    quotas.sample(host, clock.now_ns());
    let delays = Delays::read(host, roles.keys().copied());
    let ran_ns = lasting::run_times(host, roles.keys().copied());
    Ok(GapWatch {
        tracer,
        subjects: watched,
        roles,
        raw: Vec::new(),
        slices: 0,
        dropped: 0,
        quotas,
        names: Names::new(host),
        delays,
        ran_ns,
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
        self.delays.compare(host, &gaps);
        for gap in gaps {
            self.quotas.add(host, gap.tid);
            self.names.learn(host, &gap);
            if self.raw.len() < MOST && self.slices < MOST_SLICES {
                self.slices += gap.slices.len();
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
        let ended_ns = clock.now_ns();
        let duration_ns = ended_ns.saturating_sub(self.began_ns);
        for subject in &self.subjects {
            let others = subject.threads.others(host)?;
            self.roles.extend(subject.threads.with_others(&others));
        }
        let states = lasting::states(host, self.roles.keys().copied());
        let ran_at_end_ns = lasting::run_times(host, self.roles.keys().copied());
        let owners = Owners { roles: self.roles, subjects: self.subjects };
        let (mut raw, dropped, over_ns) = (self.raw, self.dropped, self.over_ns);
        let (mut quotas, mut names, mut delays) = (self.quotas, self.names, self.delays);
        let (last, totals) = self.tracer.close(host)?;
        delays.compare(host, &last);
        quotas.sample(host, clock.now_ns());
        names.machines = machines;
        let observation = Observation {
            ran_ns: &self.ran_ns,
            ran_at_end_ns: &ran_at_end_ns,
            states: &states,
            began_ns: self.began_ns,
            ended_ns,
        };
        let open = lasting::open_gaps(host, clock, &totals, &observation);
        for gap in last.into_iter().chain(open) {
            names.learn(host, &gap);
            raw.push(gap);
        }
        let context = attribute::Context {
            names: &names,
            quotas: &quotas,
            queued: delays.waits(),
            began_ns: self.began_ns,
        };
        let gaps = attribute::gaps(&raw, &context, &|gap| ThreadName {
            subject: owners.subject(gap.owner),
            role: owners.role(gap.tid, gap.process, gap.owner),
        });
        let threads = totals.threads.iter().map(|thread| ThreadGaps {
            subject: owners.subject(thread.owner),
            tid: thread.tid.0,
            role: owners.role(thread.tid, thread.process, thread.owner),
            has_ended: thread.has_ended,
            shorter: thread.count,
            shorter_ns: thread.sum_ns,
            histogram: thread.buckets.clone(),
        });
        let summary = Summary {
            over_ns,
            duration_ns,
            threads: threads.collect(),
            lost: missing(&totals, dropped, owners.count_gone(), &quotas),
            calls: totals.calls,
            run_ns: totals.run_ns,
            ..owners.summary()
        };
        Ok(GapReport { summary, gaps })
    }

    /// Sets how exits that KVM handles are named: by the reason of [`pinfold_host::ExitKey`].
    pub fn name_exits(&mut self, name: fn(u64) -> String) {
        self.names.exits = name;
    }

    /// When the observation began: [`Gap::at_ns`] counts from here.
    #[must_use]
    pub fn began_ns(&self) -> u64 {
        self.began_ns
    }
}

/// Whose a thread is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadName {
    /// As [`Gap::subject`].
    pub subject: String,
    /// Its role.
    pub role: String,
}

/// Which subject has which threads.
struct Owners {
    roles: BTreeMap<Tid, Role>,
    subjects: Vec<Watched>,
}

impl Owners {
    fn get(&self, owner: u32) -> Option<&Watched> {
        self.subjects.get(usize::try_from(owner).ok()?)
    }

    fn subject(&self, owner: u32) -> String {
        let several = self.get(owner).filter(|_| self.subjects.len() > 1);
        several.map(|subject| subject.name.name.clone()).unwrap_or_default()
    }

    fn role(&self, tid: Tid, process: Tid, owner: u32) -> String {
        if let Some(role) = self.roles.get(&tid) {
            return role.to_string();
        }
        let subject = self.get(owner);
        subject.map_or(Role::Task, |subject| subject.threads.role_of_others(process)).to_string()
    }

    fn count_gone(&self) -> u32 {
        let all = self.subjects.iter().map(|subject| subject.threads.gone);
        all.fold(0, u32::saturating_add)
    }

    /// With the names only.
    fn summary(&self) -> Summary {
        let names: Vec<SubjectName> =
            self.subjects.iter().map(|subject| subject.name.clone()).collect();
        match names.as_slice() {
            [only] => Summary { selector: only.selector.clone(), ..Summary::default() },
            _ => Summary { subjects: names, ..Summary::default() },
        }
    }
}

/// What the result does not have, as sentences.
fn missing(totals: &GapTotals, dropped: u64, gone: u32, quotas: &Quotas) -> Vec<String> {
    let mut lost = Vec::new();
    let counts = [
        (totals.lost, "gap", "lost because the kernel's buffer was full: raise --over"),
        (dropped, "gap", "dropped, because there were too many: raise --over or lower --seconds"),
        (
            totals.lost_pages,
            "part",
            "of long gaps lost, because the kernel's buffer was full: not explained",
        ),
        (totals.unwatched, "new thread", "not observed, because the BPF map was full"),
        (totals.missed, "event", "of the host nested in another of the same kind"),
        (gone.into(), "thread", "that had exited before the observation began"),
    ];
    let counts = counts.iter().filter(|(count, ..)| *count > 0);
    lost.extend(counts.map(|(count, noun, what)| format!("{} {what}", count_noun(*count, noun))));
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
