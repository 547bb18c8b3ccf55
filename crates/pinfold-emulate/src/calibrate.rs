//! Overhead of a method: the time that it takes in addition to the requested share.
//!
//! A reference run is a thread per core that never sleeps. It runs on all cores of all vnodes at
//! once (because the overhead on one core alone differs from that on two), outside of the vnodes
//! and inside, while the methods take different shares in turns. The own time that it loses beyond
//! the share is the method's overhead:
//!
//! ```text
//! own / free own = 1 − share − extra(share) / period
//! ```
//!
//! Its own time is measured by its clock: the time without interruptions. Its amount of work is
//! less exact, because the speed of a CPU varies between two moments by more than the overhead of a
//! period.
//!
//! The overhead `extra`, in nanoseconds per period, depends on the share: a short stall has another
//! overhead than a long one, and the kernel's ticks take time in any case. A method that uses
//! longer periods at large shares also uses them here. The overhead is measured at some shares and
//! interpolated linearly. If share and overhead fill the period, periods overlap and cannot be
//! measured; then the overhead of the previous share is used.
//!
//! If other tasks ran on a CPU, the reference run got less than the whole CPU while nothing was
//! taken, and its own time per window shows the other tasks. Its own time per second of CPU time is
//! compared instead: other tasks take no CPU time of the reference run. If the method takes CPU
//! time of the vnode's tasks, that is all. If its own threads take the time, their CPU time beyond
//! what they count as taken is part of the overhead; the rest (interrupts and context switches) is
//! what the reference run loses of its CPU time, and each other task of its own:
//!
//! ```text
//! extra = helper − share + (period − helper) · (1 − rate / free rate)
//! ```
//!
//! where `helper` is the CPU time of the method's thread per period. For other methods the first
//! sample is repeated once. A CPU that cannot be measured, because other tasks left the reference
//! run nearly nothing or because it failed, has the last known cost, or that of another CPU, or
//! zero. The start continues in any case.
//!
//! The result is passed to the [`HelperSpawner`], which stores it. It is measured again while the
//! vnode runs (`renewal.rs`).

use std::collections::BTreeMap;
use std::thread;

use pinfold_host::Clock;
use pinfold_model::{CpuSet, PuId};

use crate::SpeedError;
use crate::cost::{Cost, SHARES};
use crate::emulation::{ChargedTo, HelperTime};
use crate::helper_spawner::{HelperSpawner, ReferenceRun, Throughput};

/// Duration of a reference run.
pub(crate) const WITNESS_NS: u64 = 160_000_000;
/// Duration of the only reference run of a brief calibration.
pub(crate) const BRIEF_NS: u64 = 40_000_000;
/// Order of the reference runs, as indexes into [`SHARES`]; `None` runs outside of the vnode. The
/// shares alternate, so that drift affects all of them equally.
const ROUNDS: [Option<usize>; 19] = [
    None,
    Some(0),
    Some(1),
    Some(2),
    Some(3),
    Some(4),
    None,
    Some(4),
    Some(3),
    Some(2),
    Some(1),
    Some(0),
    None,
    Some(2),
    Some(4),
    Some(0),
    Some(3),
    Some(1),
    None,
];
/// Maximum number of first samples, until a reference run had a CPU to itself.
const TRIES: usize = 2;
/// Interval of the methods' heartbeats during a calibration.
const HEARTBEAT_NS: u64 = 2_000_000;

/// Groups and CPUs of a reference run.
pub(crate) struct Sample {
    pub(crate) entries: Vec<String>,
    pub(crate) pus: CpuSet,
    /// Period at each of [`SHARES`]; `None` if the method is not measured there.
    pub(crate) periods_ns: [Option<u64>; SHARES.len()],
    /// Whose CPU time contains what the method takes.
    pub(crate) charged_to: Option<ChargedTo>,
}

impl Sample {
    /// True if a run outside of the vnode shows what a method takes on its CPU.
    fn can_measure(&self, run: &ReferenceRun) -> bool {
        run.was_alone() || (self.charged_to.is_some() && run.own_per_cpu_second().is_some())
    }

    /// The overhead by one run in the vnode at one of [`SHARES`], and what the method's own thread
    /// did meanwhile, as if a thread had a CPU for itself outside of the vnode. `None` if nothing
    /// was taken, or if other tasks ran and the overhead is not in any CPU time.
    fn extra_in_vnode(&self, run: &ReferenceRun, helper: HelperTime, at: usize) -> Option<i64> {
        const FREE_NS: u64 = 1_000_000_000;
        let (share, period_ns) = (*SHARES.get(at)?, (*self.periods_ns.get(at)?)?);
        let per_cpu_second = run.own_per_cpu_second();
        let extra_ns = match (self.charged_to, run.unloaded_work_rate(1_000_000 - share)) {
            (Some(ChargedTo::Tasks), _) => extra(FREE_NS, per_cpu_second?, share, period_ns)?,
            (_, Some(own_ns)) => extra(FREE_NS, own_ns, share, period_ns)?,
            (Some(ChargedTo::Helpers), None) => {
                extra_beyond(helper, period_ns, [FREE_NS, per_cpu_second?])?
            }
            (None, None) => return None,
        };
        (extra_ns.unsigned_abs() < period_ns / 4).then_some(extra_ns)
    }
}

/// Result of a calibration.
#[derive(Default)]
pub(crate) struct Found {
    /// Costs of the CPUs that were not busy, by sample, in order.
    pub(crate) costs: Vec<BTreeMap<PuId, Cost>>,
    /// Error of a reference run that failed.
    pub(crate) failed: Option<SpeedError>,
}

/// The methods of all vnodes that are measured, in the order of the samples.
pub(crate) trait Measured {
    /// Makes the methods take a share from now on.
    ///
    /// # Errors
    /// [`SpeedError`] of a method.
    fn take(&mut self, share: u32) -> Result<(), SpeedError>;

    /// Sends them a heartbeat.
    ///
    /// # Errors
    /// [`SpeedError`] of a method.
    fn beat(&mut self) -> Result<(), SpeedError>;

    /// The accounts of their own threads.
    ///
    /// # Errors
    /// [`SpeedError`] of a method.
    fn helper_times(&self) -> Result<Vec<HelperTimes>, SpeedError>;
}

/// The accounts of a method's own threads, by CPU.
pub(crate) type HelperTimes = BTreeMap<PuId, HelperTime>;

/// The reference runs at one share, and what the method's own threads did meanwhile.
#[derive(Default)]
struct Round {
    runs: Throughput,
    // Own time per second of CPU time of each run.
    rates: BTreeMap<PuId, Vec<u64>>,
    helpers: HelperTimes,
}

/// Results of all rounds, by share.
type RoundsByShare = BTreeMap<Option<usize>, Round>;

/// Measures all vnodes at once, in one reference run at one of [`SHARES`], without one outside of
/// the vnodes: a thread is taken to have a CPU for itself there.
///
/// # Errors
/// Only those of `methods`: a failed reference run measures nothing.
pub(crate) fn measure_costs_briefly(
    spawner: &dyn HelperSpawner,
    clock: &dyn Clock,
    looks: &[Sample],
    at: usize,
    methods: &mut dyn Measured,
) -> Result<Found, SpeedError> {
    let share = SHARES.get(at).copied().unwrap_or(0);
    methods.take(share)?;
    let before = methods.helper_times()?;
    let span = Span { duration_ns: BRIEF_NS, is_inside: true };
    let runs = all_at_once(spawner, clock, looks, span, methods)?;
    let helpers = before.into_iter().zip(methods.helper_times()?);
    let mut found = Found::default();
    for ((look, runs), (then, now)) in looks.iter().zip(runs).zip(helpers) {
        let runs = runs.unwrap_or_else(|error| {
            found.failed = found.failed.take().or(Some(error));
            Throughput::new()
        });
        let costs = runs.into_iter().filter_map(|(pu, run)| {
            let now = now.get(&pu).copied().unwrap_or_default();
            let helper = now.since(then.get(&pu).copied().unwrap_or_default());
            let extra_ns = look.extra_in_vnode(&run, helper, at)?;
            Some((pu, Cost { extra_ns: [extra_ns; 5], ..Cost::default() }))
        });
        found.costs.push(costs.collect());
    }
    Ok(found)
}

/// Measures all vnodes at once.
///
/// # Errors
/// Only those of `methods`: a failed reference run measures nothing.
pub(crate) fn measure_costs(
    spawner: &dyn HelperSpawner,
    clock: &dyn Clock,
    looks: &[Sample],
    methods: &mut dyn Measured,
) -> Result<Found, SpeedError> {
    let mut seen: Vec<RoundsByShare> = looks.iter().map(|_| RoundsByShare::new()).collect();
    let mut failed = None;
    let mut look = |round: Option<usize>, seen: &mut Vec<RoundsByShare>| {
        methods.take(round.and_then(|at| SHARES.get(at).copied()).unwrap_or(0))?;
        let before = methods.helper_times()?;
        let span = Span { duration_ns: WITNESS_NS, is_inside: round.is_some() };
        let all = all_at_once(spawner, clock, looks, span, methods)?;
        let after = methods.helper_times()?;
        for ((seen, rates), (then, now)) in seen.iter_mut().zip(all).zip(before.iter().zip(&after))
        {
            match rates {
                Ok(rates) => add(seen.entry(round).or_default(), rates, then, now),
                Err(error) => failed = failed.take().or(Some(error)),
            }
        }
        Ok::<_, SpeedError>(())
    };
    let mut rounds = ROUNDS.into_iter().filter(|round| {
        round.is_none_or(|at: usize| {
            looks.iter().any(|look| look.periods_ns.get(at).is_some_and(Option::is_some))
        })
    });
    for _ in 0..TRIES {
        seen.iter_mut().for_each(RoundsByShare::clear);
        look(None, &mut seen)?;
        let mut first = looks.iter().zip(&seen).flat_map(|(look, seen)| {
            let runs = seen.values().flat_map(|round| round.runs.values());
            runs.map(move |run| look.can_measure(run))
        });
        if first.any(|can| can) {
            // At least one CPU can be measured.
            spawner.report("calibrating for about 8 s; later starts use the result");
            rounds.next();
            rounds.try_for_each(|round| look(round, &mut seen))?;
            break;
        }
    }
    let costs = looks.iter().zip(&seen).map(|(look, seen)| costs(look, seen)).collect();
    Ok(Found { costs, failed })
}

fn add(all: &mut Round, rates: Throughput, before: &HelperTimes, after: &HelperTimes) {
    for (pu, more) in rates {
        all.rates.entry(pu).or_default().extend(more.own_per_cpu_second());
        let sum = all.runs.entry(pu).or_default();
        sum.windows.extend(more.windows);
        sum.total_own_ns = sum.total_own_ns.saturating_add(more.total_own_ns);
        sum.cpu_ns = sum.cpu_ns.saturating_add(more.cpu_ns);
        sum.elapsed_ns = sum.elapsed_ns.saturating_add(more.elapsed_ns);
    }
    for (pu, now) in after {
        let new = now.since(before.get(pu).copied().unwrap_or_default());
        let sum = all.helpers.entry(*pu).or_default();
        sum.ran_ns = sum.ran_ns.saturating_add(new.ran_ns);
        sum.taken_ns = sum.taken_ns.saturating_add(new.taken_ns);
        sum.turns = sum.turns.saturating_add(new.turns);
    }
}

/// A reference run: its duration, and whether it is in the vnodes.
#[derive(Clone, Copy)]
struct Span {
    duration_ns: u64,
    is_inside: bool,
}

fn all_at_once(
    spawner: &dyn HelperSpawner,
    clock: &dyn Clock,
    looks: &[Sample],
    span: Span,
    methods: &mut dyn Measured,
) -> Result<Vec<Result<Throughput, SpeedError>>, SpeedError> {
    thread::scope(|scope| {
        let looking: Vec<_> = looks
            .iter()
            .map(|look| {
                let entries = if span.is_inside { look.entries.as_slice() } else { &[] };
                scope
                    .spawn(move || spawner.measure_throughput(entries, &look.pus, span.duration_ns))
            })
            .collect();
        while looking.iter().any(|one| !one.is_finished()) {
            methods.beat()?;
            clock.sleep_ns(HEARTBEAT_NS);
        }
        Ok(looking
            .into_iter()
            .map(|one| {
                one.join().map_err(|_| SpeedError::HelperSpawner {
                    what: "the witness",
                    why: "it panicked".into(),
                })?
            })
            .collect())
    })
}

/// The costs of those CPUs that can be measured, with a result in every round.
fn costs(look: &Sample, seen: &RoundsByShare) -> BTreeMap<PuId, Cost> {
    look.pus.iter().filter_map(|pu| Some((pu, cost(look, seen, pu)?))).collect()
}

/// What the own time of a reference run is divided by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Base {
    /// Its windows, of which the median counts: exact if no other task ran.
    Windows,
    /// Its CPU time.
    CpuTime,
}

impl Base {
    /// The own time of the reference runs of a round; by CPU time the median of the runs.
    fn own_ns(self, round: &Round, pu: PuId) -> Option<u64> {
        match self {
            Base::Windows => round.runs.get(&pu)?.own_ns(),
            Base::CpuTime => {
                let mut rates = round.rates.get(&pu)?.clone();
                rates.sort_unstable();
                rates.get(rates.len() / 2).copied()
            }
        }
    }

    /// Share of the base that a reference run has while nothing is taken, in millionths.
    fn free(self, run: &ReferenceRun, own_ns: u64) -> u32 {
        match self {
            Base::Windows => run.free(own_ns),
            Base::CpuTime => u32::try_from(own_ns.min(1_000_000_000) / 1000).unwrap_or(0),
        }
    }
}

fn cost(look: &Sample, seen: &RoundsByShare, pu: PuId) -> Option<Cost> {
    let outside = seen.get(&None)?.runs.get(&pu)?;
    let is_undisturbed = match look.charged_to {
        Some(ChargedTo::Tasks) => {
            seen.values().filter_map(|round| round.runs.get(&pu)).all(ReferenceRun::had_all)
        }
        Some(ChargedTo::Helpers) => outside.had_all(),
        None => outside.was_alone(),
    };
    if is_undisturbed {
        return cost_by(Base::Windows, look, seen, pu);
    }
    let by_cpu_time = look.charged_to.and_then(|_| cost_by(Base::CpuTime, look, seen, pu));
    by_cpu_time.or_else(|| cost_by(Base::Windows, look, seen, pu).filter(|_| outside.was_alone()))
}

fn cost_by(base: Base, look: &Sample, seen: &RoundsByShare, pu: PuId) -> Option<Cost> {
    let outside = seen.get(&None)?;
    let free_ns = base.own_ns(outside, pu)?;
    let free = base.free(outside.runs.get(&pu)?, free_ns);
    let mut cost = Cost { free, ..Cost::default() };
    let mut last = 0;
    let turns = SHARES.into_iter().zip(look.periods_ns);
    for (at_index, ((share, period_ns), extra_ns)) in turns.zip(&mut cost.extra_ns).enumerate() {
        if let Some(period_ns) = period_ns
            && has_room(share, last, period_ns)
        {
            let round = seen.get(&Some(at_index))?;
            let own_ns = base.own_ns(round, pu)?;
            last = match (base, look.charged_to) {
                (Base::CpuTime, Some(ChargedTo::Helpers)) => {
                    let helper = round.helpers.get(&pu)?;
                    extra_beyond(*helper, period_ns, [free_ns, own_ns])?
                }
                (Base::CpuTime | Base::Windows, _) => extra(free_ns, own_ns, share, period_ns)?,
            };
            // Not measured: the kernel does not count interrupts as CPU time of the task, or
            // nothing was taken because heartbeats were late.
            let is_bound = last.unsigned_abs() >= period_ns / 4;
            if is_bound && (last < 0 || base == Base::CpuTime) {
                return None;
            }
        }
        *extra_ns = last;
    }
    Some(cost)
}

/// Overhead of a period in addition to what the method's own thread counts as taken (ns), from its
/// CPU time and from the own time of a reference run per CPU time, without the method and with it.
fn extra_beyond(helper: HelperTime, period_ns: u64, own_ns: [u64; 2]) -> Option<i64> {
    let ran_ns = helper.ran_ns.checked_div(helper.turns)?;
    let taken_ns = helper.taken_ns.checked_div(helper.turns)?;
    let [free_ns, own_ns] = own_ns.map(i128::from);
    let left_ns = i128::from(period_ns.checked_sub(ran_ns)?);
    let lost_ns = (left_ns * (free_ns - own_ns)).checked_div(free_ns)?;
    let extra_ns = i128::from(ran_ns) - i128::from(taken_ns) + lost_ns;
    let most = i128::from(period_ns / 4);
    i64::try_from(extra_ns.clamp(-most, most)).ok()
}

/// True if a period of this share still ends before the next one with twice the overhead.
fn has_room(share: u32, extra_ns: i64, period_ns: u64) -> bool {
    let share_ns = period_ns.saturating_mul(share.into()) / 1_000_000;
    share_ns.saturating_add_signed(extra_ns.saturating_mul(2)) < period_ns
}

/// Overhead of a period in addition to the share (ns); at most a quarter of the period.
pub(crate) fn extra(free_ns: u64, own_ns: u64, share: u32, period_ns: u64) -> Option<i64> {
    // Windows are far shorter than 2^40 ns.
    let ratio = i64::try_from(own_ns.checked_mul(1_000_000)?.checked_div(free_ns)?).ok()?;
    let period = i64::try_from(period_ns).ok()?;
    let beyond = 1_000_000 - ratio - i64::from(share);
    Some((beyond * period / 1_000_000).clamp(-period / 4, period / 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::helper_spawner::Window;

    fn round(run: ReferenceRun) -> Round {
        let mut round = Round::default();
        let nothing = HelperTimes::new();
        add(&mut round, Throughput::from([(PuId(2), run)]), &nothing, &nothing);
        round
    }

    #[test]
    fn the_extra_is_what_is_lost_next_to_the_share() {
        assert_eq!(extra(1_000_000, 480_000, 500_000, 200_000), Some(4_000));
        assert_eq!(extra(1_000_000, 510_000, 500_000, 200_000), Some(-2_000));
        assert_eq!(extra(1_000_000, 1, 60_000, 200_000), Some(50_000), "noise is bounded");
        assert_eq!(extra(0, 1, 60_000, 200_000), None);
    }

    #[test]
    fn turns_that_run_into_each_other_report_nothing() {
        check(600_000, 9_000, true);
        check(600_000, 10_000, false);
        check(800_000, -3_000, true);
        check(800_000, 5_000, false);
    }

    fn check(share: u32, extra_ns: i64, expected: bool) {
        assert_eq!(has_room(share, extra_ns, 50_000), expected, "{share} {extra_ns}");
    }

    #[test]
    fn where_others_run_nothing_is_learnt() {
        fn check(cpu_ns: u64, expected: Option<Cost>) {
            let mut seen = BTreeMap::from([(None, rates(1_000_000, cpu_ns))]);
            for (at, share) in SHARES.iter().enumerate() {
                let rate = 1_000_000 - u64::from(*share) - 20_000;
                seen.insert(Some(at), rates(rate, 50));
            }
            let look = Sample {
                entries: Vec::new(),
                pus: CpuSet::single(PuId(2)),
                periods_ns: [Some(200_000); 5],
                charged_to: None,
            };
            assert_eq!(costs(&look, &seen).remove(&PuId(2)), expected);
        }

        fn rates(own_ns: u64, cpu_ns: u64) -> Round {
            let windows = vec![Window { units: 7, own_ns, span_ns: 1_010_101 }; 4];
            let seen = ReferenceRun { windows, total_own_ns: own_ns, cpu_ns, elapsed_ns: 100 };
            round(seen)
        }

        check(95, Some(Cost { extra_ns: [4_000; 5], entry_ns: 0, free: 990_000 }));
        check(89, None);
        // At one share nothing was taken.
        let mut seen = BTreeMap::from([(None, rates(1_000_000, 95))]);
        seen.extend((0..SHARES.len()).map(|at| (Some(at), rates(990_000, 95))));
        let (entries, pus) = (Vec::new(), CpuSet::single(PuId(2)));
        let look = Sample { entries, pus, periods_ns: [Some(200_000); 5], charged_to: None };
        assert_eq!(costs(&look, &seen), BTreeMap::new());
    }

    #[test]
    fn next_to_other_tasks_work_per_cpu_second_shows_the_cost() {
        fn check(charged_to: Option<ChargedTo>, counts_stalls: bool, expected: Option<[i64; 5]>) {
            let mut seen = BTreeMap::from([(None, run_of(400_000_000, 0, counts_stalls))]);
            for (at, (share, part)) in SHARES.iter().zip(1..).enumerate() {
                seen.insert(
                    Some(at),
                    run_of(part * 90_000_000, u64::from(*share) + 60_000, counts_stalls),
                );
            }
            let (entries, pus) = (Vec::new(), CpuSet::single(PuId(2)));
            let look = Sample { entries, pus, periods_ns: [Some(200_000); 5], charged_to };
            let found = costs(&look, &seen).remove(&PuId(2));
            let rounded = found.map(|cost| cost.extra_ns.map(|extra| (extra + 50) / 100 * 100));
            assert_eq!(rounded, expected, "{charged_to:?} {counts_stalls}");
        }

        // Other tasks have a varying part of the CPU; the kernel counts stalls as CPU time or not.
        let tasks = Some(ChargedTo::Tasks);
        check(tasks, true, Some([12_000; 5]));
        check(tasks, false, None);
        check(None, true, None);
        // Without an account of its threads, nothing is known.
        check(Some(ChargedTo::Helpers), true, None);
    }

    fn run_of(cpu_ns: u64, lost: u64, counts_stalls: bool) -> Round {
        let windows = vec![Window { units: 7, own_ns: cpu_ns / 9, span_ns: cpu_ns }; 4];
        let total_own_ns = cpu_ns * (990_000 - lost * 99 / 100) / 1_000_000;
        let counted_ns = if counts_stalls { cpu_ns } else { total_own_ns };
        let run =
            ReferenceRun { windows, total_own_ns, cpu_ns: counted_ns, elapsed_ns: 1_600_000_000 };
        round(run)
    }

    /// A burner counts 105 µs of 500 as taken. It has 103 µs of CPU time, and 4 µs more are lost to
    /// the task that it preempts: 2 µs are not counted.
    #[test]
    fn next_to_other_tasks_the_account_of_a_burner_shows_its_cost() {
        let helper = HelperTime { ran_ns: 1_030_000, taken_ns: 1_050_000, turns: 10 };
        let own_ns = 1_000_000_000 * (397 - 4) / 397;
        assert_eq!(extra_beyond(helper, 500_000, [1_000_000_000, own_ns]), Some(2_000));
        let quiet = HelperTime { ran_ns: 1_000_000, taken_ns: 1_000_000, turns: 10 };
        assert_eq!(extra_beyond(quiet, 500_000, [7, 7]), Some(0));
        assert_eq!(extra_beyond(quiet, 500_000, [7, 1]), Some(125_000), "noise is bounded");
        assert_eq!(extra_beyond(HelperTime::default(), 500_000, [7, 7]), None, "no turns");
        assert_eq!(extra_beyond(quiet, 50_000, [7, 7]), None, "it ran longer than the period");
    }

    /// At a share of 60 % of 500 µs, with 2 µs that are lost besides.
    #[test]
    fn one_run_in_a_vnode_shows_the_cost_of_a_burner_next_to_other_tasks_too() {
        fn check(charged_to: Option<ChargedTo>, cpu_ns: u64, expected: Option<i64>) {
            let (entries, pus) = (Vec::new(), CpuSet::single(PuId(2)));
            let look = Sample { entries, pus, periods_ns: [Some(500_000); 5], charged_to };
            // Of 200 µs 2 µs are lost.
            let total_own_ns = cpu_ns * 198 / 200;
            let windows = Vec::new();
            let run = ReferenceRun { windows, total_own_ns, cpu_ns, elapsed_ns: 50_000_000 };
            let helper = HelperTime { ran_ns: 3_000_000, taken_ns: 3_000_000, turns: 10 };
            assert_eq!(look.extra_in_vnode(&run, helper, 2), expected, "{charged_to:?} {cpu_ns}");
        }

        let helpers = Some(ChargedTo::Helpers);
        check(helpers, 20_000_000, Some(2_000));
        check(helpers, 5_000_000, Some(2_000));
        check(helpers, 500_000, None);
        check(None, 20_000_000, Some(2_000));
        check(None, 5_000_000, None);
        // Its CPU time does not contain what was taken.
        check(Some(ChargedTo::Tasks), 20_000_000, None);
    }

    #[test]
    fn at_a_share_that_is_not_looked_at_it_is_the_one_before() {
        let mut seen = BTreeMap::from([(None, rates(1_000_000))]);
        for (at, share) in SHARES.iter().enumerate().take(4) {
            seen.insert(Some(at), rates(1_000_000 - u64::from(*share) - 20_000));
        }
        let mut periods_ns = [Some(200_000); 5];
        periods_ns[4] = None;
        let (entries, pus) = (Vec::new(), CpuSet::single(PuId(2)));
        let look = Sample { entries, pus, periods_ns, charged_to: None };
        let expected = Cost { extra_ns: [4_000; 5], entry_ns: 0, free: 1_000_000 };
        assert_eq!(costs(&look, &seen), BTreeMap::from([(PuId(2), expected)]));
    }

    fn rates(own_ns: u64) -> Round {
        let windows = vec![Window { units: 7, own_ns, span_ns: 1_000_000 }; 4];
        let run = ReferenceRun { windows, total_own_ns: own_ns, cpu_ns: 95, elapsed_ns: 100 };
        round(run)
    }
}
