//! What the events of an observation do not tell at its end: gaps of threads that had no event,
//! because they began before and last on, and the task of a CPU that was not switched.

use std::collections::BTreeMap;

use pinfold_host::{
    Clock, GapKind, GapSlice, GapTotals, Host, Occupant, OtherTask, RawGap, ShortGaps, paths,
    proc_stat, proc_status, schedstat,
};
use pinfold_model::{PuId, Tid};

/// For how long the tasks of a CPU are compared (ns): several ticks, in which the one that runs is
/// counted.
const COMPARED_NS: u64 = 20_000_000;

/// The observation.
pub struct Observation<'a> {
    /// How long each thread had run at its begin.
    pub ran_ns: &'a BTreeMap<Tid, u64>,
    /// The same directly before its end: until the programs are detached, a thread may run again.
    pub ran_at_end_ns: &'a BTreeMap<Tid, u64>,
    /// The states of the threads directly before its end.
    pub states: &'a BTreeMap<Tid, char>,
    /// Begin and end.
    pub began_ns: u64,
    /// See `began_ns`.
    pub ended_ns: u64,
}

/// For how long each of these threads has run.
pub fn run_times(host: &dyn Host, tids: impl Iterator<Item = Tid>) -> BTreeMap<Tid, u64> {
    tids.filter_map(|tid| Some((tid, run_ns(host, tid)?))).collect()
}

/// The states of these threads, such as `R`; threads that have ended are missing.
pub fn states(host: &dyn Host, tids: impl Iterator<Item = Tid>) -> BTreeMap<Tid, char> {
    let stats = tids.filter_map(|tid| proc_stat::read(host, tid).ok().flatten());
    stats.map(|stat| (stat.tid, stat.state)).collect()
}

/// The gaps that have not ended: those with events, and those that began before the observation.
pub fn open_gaps(
    host: &dyn Host,
    clock: &dyn Clock,
    totals: &GapTotals,
    observation: &Observation<'_>,
) -> Vec<RawGap> {
    let mut unswitched = BTreeMap::new();
    let seen = totals.open.iter().cloned();
    let mut open: Vec<RawGap> = Vec::new();
    for mut gap in seen {
        gap.slices.extend(last_slice(host, clock, totals, &gap, &mut unswitched));
        open.push(gap);
    }
    let unseen = totals.threads.iter().filter(|thread| thread.is_unseen && !thread.has_ended);
    for mut gap in unseen.filter_map(|thread| observation.gap(host, thread)) {
        gap.slices.extend(last_slice(host, clock, totals, &gap, &mut unswitched));
        // Without a tick, a thread that runs all the time looks like one that waits: the task that
        // runs must be another one.
        if !is_waiting(&gap) || !gap.slices.is_empty() {
            open.push(gap);
        }
    }
    open
}

/// What is on the CPU for which a gap waits at its end, if the gap does not have it yet.
fn last_slice(
    host: &dyn Host,
    clock: &dyn Clock,
    totals: &GapTotals,
    gap: &RawGap,
    unswitched: &mut BTreeMap<PuId, Option<Occupant>>,
) -> Option<GapSlice> {
    if !is_waiting(gap) || gap.slices.iter().any(|slice| slice.until_ns == gap.until_ns) {
        return None;
    }
    let (since_ns, occupant) = match totals.running.get(&gap.cpu) {
        Some(slice) => (slice.from_ns, slice.occupant.clone()),
        None => {
            let found = unswitched.entry(gap.cpu);
            (0, found.or_insert_with(|| running_on(host, clock, gap.cpu)).clone()?)
        }
    };
    let from_ns = since_ns.max(gap.from_ns).max(gap.arrived_ns);
    let is_own = matches!(&occupant, Occupant::Task(task) if task.tid == gap.tid);
    (!is_own && from_ns < gap.until_ns).then_some(GapSlice {
        from_ns,
        until_ns: gap.until_ns,
        occupant,
    })
}

/// True if it waits for a CPU at its end.
fn is_waiting(gap: &RawGap) -> bool {
    match gap.kind {
        GapKind::Waiting { .. } => true,
        GapKind::Stopped | GapKind::Blocked | GapKind::Awaiting => gap.woken_ns.is_some(),
        GapKind::Interrupted | GapKind::Unseen | GapKind::Exit => false,
    }
}

impl Observation<'_> {
    /// The gap of a thread without events, if it did not just sleep or run all the time.
    fn gap(&self, host: &dyn Host, thread: &ShortGaps) -> Option<RawGap> {
        let ran = self.ran_ns.get(&thread.tid);
        let has_not_run = ran.is_some() && ran == self.ran_at_end_ns.get(&thread.tid);
        let kind = match self.states.get(&thread.tid)? {
            'T' | 't' => GapKind::Stopped,
            'D' => GapKind::Blocked,
            'R' if has_not_run => GapKind::Waiting { is_preempted: true },
            _ => return None,
        };
        let stat = proc_stat::read(host, thread.tid).ok().flatten()?;
        let status = host.read_text(&paths::process_status(thread.tid)).ok()?;
        Some(RawGap {
            tid: thread.tid,
            process: proc_status::parse(&status).ok()?.tgid,
            from_ns: self.began_ns,
            until_ns: self.ended_ns,
            woken_ns: None,
            arrived_ns: self.began_ns,
            cpu: PuId(stat.processor),
            kind,
            is_throttled: false,
            moves: 0,
            waker: None,
            exit: None,
            kernel_exit: None,
            steal_ns: 0,
            owner: thread.owner,
            is_open: true,
            slices: Vec::new(),
        })
    }
}

/// `None` if the thread has ended, or the kernel does not count.
fn run_ns(host: &dyn Host, tid: Tid) -> Option<u64> {
    let text = host.read_text(&paths::task_schedstat(tid, tid)).ok()?;
    schedstat::parse(&text).ok().map(|times| times.run_ns)
}

/// The task on a CPU that is not switched: of those that can run there, the one that does.
fn running_on(host: &dyn Host, clock: &dyn Clock, cpu: PuId) -> Option<Occupant> {
    let before = run_times(host, runnable_on(host, cpu).into_iter());
    clock.sleep_ns(COMPARED_NS);
    let grown = before.iter().filter_map(|(tid, ns)| {
        let grown_ns = run_ns(host, *tid)?.saturating_sub(*ns);
        (grown_ns > 0).then_some((grown_ns, *tid))
    });
    let (_, tid) = grown.max()?;
    let text = host.read_text(&paths::process_stat(tid)).ok()?;
    let status = host.read_text(&paths::process_status(tid)).ok()?;
    let scheduling = proc_stat::scheduling(&text).ok()?;
    Some(Occupant::Task(OtherTask {
        tid,
        process: proc_status::parse(&status).ok()?.tgid,
        name: proc_stat::parse(&text).ok()?.comm,
        policy: scheduling.policy,
        priority: scheduling.priority,
        cgroup_id: 0,
    }))
}

/// The threads of this host that are in state `R` on a CPU.
fn runnable_on(host: &dyn Host, cpu: PuId) -> Vec<Tid> {
    let processes = numbers(host, "/proc").into_iter();
    let threads = processes.flat_map(|process| numbers(host, &paths::task_dir(process)));
    let stats = threads.filter_map(|tid| proc_stat::read(host, tid).ok().flatten());
    let here = stats.filter(|stat| stat.state == 'R' && stat.processor == cpu.0);
    here.map(|stat| stat.tid).collect()
}

/// The entries of a directory that are numbers; none if it is gone.
fn numbers(host: &dyn Host, directory: &str) -> Vec<Tid> {
    let names = host.list(directory).unwrap_or_default();
    names.iter().filter_map(|name| name.parse().ok().map(Tid)).collect()
}
