//! Divides gaps among what was on their CPUs: a pure function of records, names and quotas.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_host::{FunctionKind, GapKind, GapSlice, Occupant, OtherTask, RawGap};
use pinfold_model::Tid;

use super::names::{Names, policy};
use super::{Cause, Gap, Part, ThreadName};
use crate::quotas::Quotas;

/// No idle state needs longer to be left (ns). A CPU that idles longer under a thread that could run
/// has another reason.
const LONGEST_IDLE_EXIT_NS: u64 = 2_000_000;

/// Between the slices of a CPU there is less than this (ns): a longer hole is one of the record.
const HOLE_NS: u64 = 20_000;

/// A thread that takes the CPU only to stop does so within this time (ns).
const STOPS_WITHIN_NS: u64 = 100_000;

/// What is known beside the record.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Names.
    pub(crate) names: &'a Names,
    /// When groups were stopped.
    pub(crate) quotas: &'a Quotas,
    /// Gaps that were waits for a CPU by the kernel's own account: the thread, and their ends.
    pub(crate) queued: &'a BTreeSet<(Tid, u64)>,
    /// Start of the observation.
    pub(crate) began_ns: u64,
}

/// The gaps of these records, in order of their begin. Records of one gap that went on become one.
pub fn gaps(
    raw: &[RawGap],
    context: &Context<'_>,
    name: &dyn Fn(&RawGap) -> ThreadName,
) -> Vec<Gap> {
    // A burst of interrupts is recorded at each of its ends; the last record has all of it.
    let mut last: BTreeMap<(u64, Tid), &RawGap> = BTreeMap::new();
    for gap in raw {
        let known = last.entry((gap.from_ns, gap.tid)).or_insert(gap);
        if known.until_ns < gap.until_ns {
            *known = gap;
        }
    }
    let gaps = last.into_values().map(|gap| {
        let ThreadName { subject, role } = name(gap);
        Gap {
            subject,
            tid: gap.tid.0,
            role,
            at_ns: gap.from_ns.saturating_sub(context.began_ns),
            length_ns: gap.until_ns.saturating_sub(gap.from_ns),
            cpu: gap.cpu.0,
            moves: gap.moves,
            is_open: gap.is_open,
            is_at_least: gap.kind == GapKind::Unseen,
            parts: parts(gap, context),
        }
    });
    join_gaps(gaps)
}

/// A thread that a signal or a quota stops while it waits for a CPU must run in the kernel first:
/// both waits are one gap.
fn join_gaps(gaps: impl Iterator<Item = Gap>) -> Vec<Gap> {
    let mut all: Vec<Gap> = Vec::new();
    let mut latest: BTreeMap<u32, usize> = BTreeMap::new();
    for gap in gaps {
        let before = latest.get(&gap.tid).and_then(|at| all.get_mut(*at));
        let is_stop = gap
            .parts
            .first()
            .is_some_and(|part| matches!(part.cause, Cause::Quota { .. } | Cause::Stopped));
        match before {
            Some(before)
                if is_stop
                    && gap.at_ns.saturating_sub(before.at_ns.saturating_add(before.length_ns))
                        <= STOPS_WITHIN_NS =>
            {
                let until_ns = gap.at_ns.saturating_add(gap.length_ns);
                before.length_ns = until_ns.saturating_sub(before.at_ns);
                before.is_open = gap.is_open;
                before.cpu = gap.cpu;
                before.moves = before.moves.saturating_add(gap.moves);
                let mut sums: BTreeMap<Cause, u64> = BTreeMap::new();
                let parts = before.parts.drain(..).chain(gap.parts);
                parts.for_each(|part| add(&mut sums, part.cause, part.ns));
                before.parts = sort_parts(sums);
            }
            Some(_) | None => {
                latest.insert(gap.tid, all.len());
                all.push(gap);
            }
        }
    }
    all
}

/// The longest first.
fn sort_parts(sums: BTreeMap<Cause, u64>) -> Vec<Part> {
    let parts = sums.into_iter().filter(|(_, ns)| *ns > 0);
    let mut parts: Vec<Part> = parts.map(|(cause, ns)| Part { cause, ns }).collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.ns));
    parts
}

/// The parts of a gap, the longest first.
pub(super) fn parts(gap: &RawGap, context: &Context<'_>) -> Vec<Part> {
    let mut sums: BTreeMap<Cause, u64> = BTreeMap::new();
    let length_ns = gap.until_ns.saturating_sub(gap.from_ns);
    // Before it became runnable, what is on the CPU does not matter.
    let asleep_until = match gap.kind {
        GapKind::Stopped | GapKind::Blocked | GapKind::Awaiting => {
            gap.woken_ns.unwrap_or(gap.until_ns)
        }
        GapKind::Waiting { .. } | GapKind::Interrupted | GapKind::Unseen | GapKind::Exit => {
            gap.from_ns
        }
    };
    let asleep_ns = asleep_until.saturating_sub(gap.from_ns);
    match gap.kind {
        GapKind::Stopped => add(&mut sums, Cause::Stopped, asleep_ns),
        GapKind::Blocked => {
            let waker = gap.waker.as_ref().map(|task| format!("{} ({})", task.name, task.tid));
            add(&mut sums, Cause::Blocked { waker }, asleep_ns);
        }
        GapKind::Awaiting => add(&mut sums, name_awaited(gap), asleep_ns),
        GapKind::Unseen => {
            let steal_ns = gap.steal_ns.min(length_ns);
            add(&mut sums, Cause::Steal, steal_ns);
            add(&mut sums, Cause::Unseen, length_ns - steal_ns);
        }
        GapKind::Waiting { .. } | GapKind::Interrupted | GapKind::Exit => {}
    }
    let mut counted_from = asleep_until;
    let quota = quota(gap, context, asleep_until);
    let is_quota = quota.is_some();
    if let Some((group, ns)) = quota {
        add(&mut sums, Cause::Quota { group, is_v1: context.quotas.is_v1() }, ns);
        counted_from = counted_from.saturating_add(ns);
    }
    let clipped = gap
        .slices
        .iter()
        .filter(|slice| slice.until_ns > counted_from && !is_of_exit(slice, gap))
        .map(|slice| GapSlice { from_ns: slice.from_ns.max(counted_from), ..slice.clone() });
    for (cause, ns) in net(&clipped.collect::<Vec<_>>(), gap, context.names) {
        if gap.kind != GapKind::Unseen {
            add(&mut sums, cause, ns);
        }
    }
    if gap.kind == GapKind::Exit {
        let others: u64 = sums.values().copied().fold(0, u64::saturating_add);
        let is_kernel = gap.exit.is_none();
        let kernel = gap.kernel_exit.map(|reason| (context.names.exits)(reason));
        let exit = Cause::Exit { reason: gap.exit.clone().or(kernel), is_kernel };
        add(&mut sums, exit, length_ns.saturating_sub(others));
    }
    let idle_ns: u64 =
        sums.iter().filter(|(cause, _)| is_idle_exit(cause)).map(|(_, ns)| *ns).sum();
    if is_quota || idle_ns > LONGEST_IDLE_EXIT_NS {
        sums.retain(|cause, _| !is_idle_exit(cause));
    }
    if context.queued.contains(&(gap.tid, gap.until_ns)) {
        add(&mut sums, Cause::Queued, holes_ns(gap, counted_from));
    }
    sort_parts(sums)
}

/// The time from then on of which no slice is, without the short times between slices.
fn holes_ns(gap: &RawGap, from_ns: u64) -> u64 {
    let mut slices: Vec<&GapSlice> = gap.slices.iter().collect();
    slices.sort_by_key(|slice| slice.from_ns);
    let mut holes_ns: u64 = 0;
    let mut covered_until = from_ns;
    let ends = slices.iter().map(|slice| (slice.from_ns, slice.until_ns));
    for (begin, end) in ends.chain([(gap.until_ns, gap.until_ns)]) {
        let hole_ns = begin.saturating_sub(covered_until);
        if hole_ns >= HOLE_NS {
            holes_ns = holes_ns.saturating_add(hole_ns);
        }
        covered_until = covered_until.max(end);
    }
    holes_ns
}

fn add(sums: &mut BTreeMap<Cause, u64>, cause: Cause, ns: u64) {
    let sum = sums.entry(cause).or_default();
    *sum = sum.saturating_add(ns);
}

/// What a vCPU waited for after an exit to user space.
fn name_awaited(gap: &RawGap) -> Cause {
    let task = gap.waker.as_ref();
    Cause::Awaited {
        task: task.map(|task| format!("{} ({})", task.name, task.tid)),
        exit: gap.exit.clone(),
        is_own: task.is_some_and(|task| task.process == gap.process),
    }
}

/// The vCPU itself, which is on the CPU while it is out of the guest.
fn is_of_exit(slice: &GapSlice, gap: &RawGap) -> bool {
    gap.kind == GapKind::Exit && matches!(slice.occupant, Occupant::Task(_) | Occupant::Idle(_))
}

fn is_idle_exit(cause: &Cause) -> bool {
    matches!(cause, Cause::IdleExit { .. })
}

/// The group whose quota stopped the thread, if one did, and for how long.
fn quota(gap: &RawGap, context: &Context<'_>, from_ns: u64) -> Option<(String, u64)> {
    let GapKind::Waiting { is_preempted } = gap.kind else { return None };
    let length_ns = gap.until_ns.saturating_sub(from_ns);
    // That of all its CPUs, which the kernel adds when it is over.
    let (group, ns) = context.quotas.longest(gap.tid, from_ns, gap.until_ns)?;
    let others: u64 = gap
        .slices
        .iter()
        .filter(|slice| matches!(slice.occupant, Occupant::Task(_)))
        .map(|slice| slice.until_ns.saturating_sub(slice.from_ns.max(from_ns)))
        .fold(0, u64::saturating_add);
    // No other task was there, or it became runnable in a group that was stopped.
    let is_idle = others < length_ns / 4 && ns >= length_ns / 2;
    let is_whole = !is_preempted && ns >= length_ns - length_ns / 10;
    let is_quota = gap.is_throttled || is_idle || is_whole;
    is_quota.then(|| (group.to_owned(), ns.min(length_ns)))
}

/// The slices that are open at a time, the innermost last.
struct Sweep<'a> {
    stack: Vec<&'a GapSlice>,
    at_ns: u64,
    found: Vec<(Cause, u64)>,
    gap: &'a RawGap,
    names: &'a Names,
}

impl Sweep<'_> {
    /// The time until then is that of the innermost.
    fn advance(&mut self, until_ns: u64) {
        if let Some((top, outer)) = self.stack.split_last()
            && until_ns > self.at_ns
        {
            let cause = cause(&top.occupant, outer, self.gap, self.names);
            self.found.push((cause, until_ns - self.at_ns));
        }
        self.at_ns = self.at_ns.max(until_ns);
    }

    /// Ends the slices that end by then.
    fn end(&mut self, by_ns: u64) {
        while let Some(until_ns) = self.stack.last().map(|top| top.until_ns)
            && until_ns <= by_ns
        {
            self.advance(until_ns);
            self.stack.pop();
        }
    }
}

/// The time of each slice without those inside it, by cause.
fn net(slices: &[GapSlice], gap: &RawGap, names: &Names) -> Vec<(Cause, u64)> {
    let mut order: Vec<&GapSlice> = slices.iter().collect();
    order.sort_by_key(|slice| {
        let is_inside = !matches!(slice.occupant, Occupant::Task(_) | Occupant::Idle(_));
        (slice.from_ns, std::cmp::Reverse(slice.until_ns), is_inside)
    });
    let mut sweep = Sweep { stack: Vec::new(), at_ns: 0, found: Vec::new(), gap, names };
    for slice in order {
        sweep.end(slice.from_ns);
        sweep.advance(slice.from_ns);
        sweep.stack.push(slice);
    }
    sweep.end(u64::MAX);
    sweep.found
}

/// The cause that an occupant is, inside the others.
fn cause(occupant: &Occupant, outer: &[&GapSlice], gap: &RawGap, names: &Names) -> Cause {
    match occupant {
        Occupant::Task(task) => thread(task, gap, names),
        Occupant::Idle(state) => Cause::IdleExit { state: *state },
        Occupant::Interrupt(number) => Cause::Interrupt {
            number: *number,
            device: names.interrupts.get(number).cloned().unwrap_or_default(),
        },
        Occupant::Vector(name) => Cause::Processor { name: (*name).to_owned(), function: None },
        Occupant::Softirq(name) => Cause::Softirq { name: (*name).to_owned(), function: None },
        Occupant::Function(kind, function) => {
            let function = function.clone();
            let container = outer.iter().rev().find_map(|slice| match (&slice.occupant, kind) {
                (Occupant::Task(task), FunctionKind::Work) => {
                    let worker = task.name.clone();
                    Some(Cause::KernelWork { function: function.clone(), worker })
                }
                (Occupant::Vector(name), FunctionKind::Hrtimer) => {
                    Some(Cause::Processor { name: (*name).to_owned(), function: function.clone() })
                }
                (Occupant::Softirq(name), _) => {
                    Some(Cause::Softirq { name: (*name).to_owned(), function: function.clone() })
                }
                (Occupant::Interrupt(_), _) => Some(cause(&slice.occupant, &[], gap, names)),
                (
                    Occupant::Task(_)
                    | Occupant::Vector(_)
                    | Occupant::Idle(_)
                    | Occupant::Function(..),
                    _,
                ) => None,
            });
            container.unwrap_or_else(|| match kind {
                FunctionKind::Hrtimer => {
                    Cause::Processor { name: "local timer".to_owned(), function: function.clone() }
                }
                FunctionKind::Timer => softirq("TIMER", function.clone()),
                FunctionKind::Tasklet => softirq("TASKLET", function.clone()),
                FunctionKind::Work => {
                    Cause::KernelWork { function: function.clone(), worker: "kworker".to_owned() }
                }
            })
        }
    }
}

fn softirq(name: &str, function: Option<String>) -> Cause {
    Cause::Softirq { name: name.to_owned(), function }
}

fn thread(task: &OtherTask, gap: &RawGap, names: &Names) -> Cause {
    let is_own = task.process == gap.process;
    Cause::Thread {
        name: task.name.clone(),
        tid: task.tid.0,
        policy: policy(task),
        cgroup: names.cgroup(task),
        machine: names.machines.get(&task.process).filter(|_| !is_own).cloned(),
        is_own,
    }
}
