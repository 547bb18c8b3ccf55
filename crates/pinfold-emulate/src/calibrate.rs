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
//! taken, and its own time per window shows the other tasks. If what the method takes counts as CPU
//! time of the vnode's tasks, the own time per second of CPU time is compared instead: other tasks
//! take no CPU time of the reference run. For other methods the first sample is repeated once. A
//! CPU that is still busy then, or on which the reference run failed, is not measured: its cost is
//! the last one that was measured, or zero. The start continues in any case.
//!
//! The result is passed to the [`HelperSpawner`], which stores it. It is measured again while the
//! vnode runs (`renewal.rs`).

use std::collections::BTreeMap;
use std::thread;

use pinfold_host::Clock;
use pinfold_model::{CpuSet, PuId};

use crate::SpeedError;
use crate::cost::{Cost, SHARES};
use crate::helper_spawner::{HelperSpawner, ReferenceRun, Throughput};

/// Duration of a reference run.
pub(crate) const WITNESS_NS: u64 = 160_000_000;
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
const HEARTBEAT_NS: u64 = 10_000_000;
/// Groups and CPUs of a reference run.
pub(crate) struct Sample {
    pub(crate) entries: Vec<String>,
    pub(crate) pus: CpuSet,
    /// Period at each of [`SHARES`]; `None` if the method is not measured there.
    pub(crate) periods_ns: [Option<u64>; SHARES.len()],
    /// True if what the method takes is CPU time of the vnode's tasks.
    pub(crate) takes_cpu_time: bool,
}

impl Sample {
    /// True if a run outside of the vnode shows what a method takes on its CPU.
    fn can_measure(&self, run: &ReferenceRun) -> bool {
        run.was_alone() || (self.takes_cpu_time && run.own_per_cpu_second().is_some())
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

/// Measures all vnodes at once. `take` makes the methods take a share from then on, `beat` sends
/// them a heartbeat.
///
/// # Errors
/// Only those of `take` and `beat`: a failed reference run measures nothing.
pub(crate) fn witness(
    (outside, clock): (&dyn HelperSpawner, &dyn Clock),
    looks: &[Sample],
    take: &mut dyn FnMut(u32) -> Result<(), SpeedError>,
    beat: &mut dyn FnMut() -> Result<(), SpeedError>,
) -> Result<Found, SpeedError> {
    let mut seen: Vec<ThroughputByShare> = looks.iter().map(|_| ThroughputByShare::new()).collect();
    let mut failed = None;
    let mut look = |round: Option<usize>, seen: &mut Vec<ThroughputByShare>| {
        take(round.and_then(|at| SHARES.get(at).copied()).unwrap_or(0))?;
        let all = all_at_once((outside, clock), looks, round.is_some(), beat)?;
        for (seen, rates) in seen.iter_mut().zip(all) {
            match rates {
                Ok(rates) => add(seen.entry(round).or_default(), rates),
                Err(error) => failed = failed.take().or(Some(error)),
            }
        }
        Ok::<_, SpeedError>(())
    };
    let is_wanted =
        |at: usize| looks.iter().any(|look| look.periods_ns.get(at).is_some_and(Option::is_some));
    let mut rounds = ROUNDS.into_iter().filter(|round| round.is_none_or(is_wanted));
    for _ in 0..TRIES {
        seen.iter_mut().for_each(ThroughputByShare::clear);
        look(None, &mut seen)?;
        let mut first = looks.iter().zip(&seen).flat_map(|(look, seen)| {
            let runs = seen.values().flat_map(Throughput::values);
            runs.map(move |run| look.can_measure(run))
        });
        if first.any(|can| can) {
            // At least one CPU can be measured.
            outside.report("calibrating, about 8 s; later starts take what is measured now");
            rounds.next();
            rounds.try_for_each(|round| look(round, &mut seen))?;
            break;
        }
    }
    let costs = looks.iter().zip(&seen).map(|(look, seen)| costs(look, seen)).collect();
    Ok(Found { costs, failed })
}

/// Results of all rounds, by share.
type ThroughputByShare = BTreeMap<Option<usize>, Throughput>;

fn add(all: &mut Throughput, rates: Throughput) {
    for (pu, more) in rates {
        let sum = all.entry(pu).or_default();
        sum.windows.extend(more.windows);
        sum.total_own_ns = sum.total_own_ns.saturating_add(more.total_own_ns);
        sum.cpu_ns = sum.cpu_ns.saturating_add(more.cpu_ns);
        sum.elapsed_ns = sum.elapsed_ns.saturating_add(more.elapsed_ns);
    }
}

fn all_at_once(
    (outside, clock): (&dyn HelperSpawner, &dyn Clock),
    looks: &[Sample],
    inside: bool,
    beat: &mut dyn FnMut() -> Result<(), SpeedError>,
) -> Result<Vec<Result<Throughput, SpeedError>>, SpeedError> {
    thread::scope(|scope| {
        let looking: Vec<_> = looks
            .iter()
            .map(|look| {
                let entries = if inside { look.entries.as_slice() } else { &[] };
                scope.spawn(move || outside.rates(entries, &look.pus, WITNESS_NS))
            })
            .collect();
        while looking.iter().any(|one| !one.is_finished()) {
            beat()?;
            clock.sleep_ns(HEARTBEAT_NS);
        }
        let panicked =
            |_| SpeedError::HelperSpawner { what: "the witness", why: "it panicked".into() };
        Ok(looking.into_iter().map(|one| one.join().map_err(panicked)?).collect())
    })
}

/// The costs of those CPUs that can be measured, with a result in every round.
fn costs(look: &Sample, seen: &ThroughputByShare) -> BTreeMap<PuId, Cost> {
    let at = |round: Option<usize>, pu: PuId| seen.get(&round)?.get(&pu);
    let one = |pu: PuId| {
        let outside = at(None, pu).filter(|run| look.can_measure(run))?;
        let is_alone = outside.was_alone();
        let rate = |run: &ReferenceRun| {
            if is_alone { run.own_ns() } else { run.own_per_cpu_second() }
        };
        let free_ns = rate(outside)?;
        let free = if is_alone {
            outside.free(free_ns)
        } else {
            u32::try_from(free_ns.min(1_000_000_000) / 1000).unwrap_or(0)
        };
        let mut cost = Cost { free, ..Cost::default() };
        let mut last = 0;
        let turns = SHARES.into_iter().zip(look.periods_ns);
        for (at_index, ((share, period_ns), extra_ns)) in turns.zip(&mut cost.extra_ns).enumerate()
        {
            if let Some(period_ns) = period_ns
                && has_room(share, (last, period_ns))
            {
                let at_share = at(Some(at_index), pu)?;
                last = extra(free_ns, rate(at_share)?, (share, period_ns))?;
                // The kernel does not count interrupts as CPU time of the task.
                if !is_alone && last.unsigned_abs() >= period_ns / 4 {
                    return None;
                }
            }
            *extra_ns = last;
        }
        Some((pu, cost))
    };
    look.pus.iter().filter_map(one).collect()
}

/// True if a period of this share still ends before the next one with twice the overhead.
fn has_room(share: u32, (extra_ns, period_ns): (i64, u64)) -> bool {
    let share_ns = period_ns.saturating_mul(share.into()) / 1_000_000;
    share_ns.saturating_add_signed(extra_ns.saturating_mul(2)) < period_ns
}

/// Overhead of a period in addition to the share (ns); at most a quarter of the period.
pub(crate) fn extra(free_ns: u64, own_ns: u64, (share, period_ns): (u32, u64)) -> Option<i64> {
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

    #[test]
    fn the_extra_is_what_is_lost_next_to_the_share() {
        assert_eq!(extra(1_000_000, 480_000, (500_000, 200_000)), Some(4_000));
        assert_eq!(extra(1_000_000, 510_000, (500_000, 200_000)), Some(-2_000));
        assert_eq!(extra(1_000_000, 1, (60_000, 200_000)), Some(50_000), "noise is bounded");
        assert_eq!(extra(0, 1, (60_000, 200_000)), None);
    }

    #[test]
    fn turns_that_run_into_each_other_report_nothing() {
        let check = |share, extra_ns, expected| {
            assert_eq!(has_room(share, (extra_ns, 50_000)), expected, "{share} {extra_ns}");
        };
        check(600_000, 9_000, true);
        check(600_000, 10_000, false);
        check(800_000, -3_000, true);
        check(800_000, 5_000, false);
    }

    #[test]
    fn where_others_run_nothing_is_learnt() {
        let rates = |own_ns: u64, cpu_ns| {
            let windows = vec![Window { units: 7, own_ns, span_ns: 1_010_101 }; 4];
            let seen = ReferenceRun { windows, total_own_ns: own_ns, cpu_ns, elapsed_ns: 100 };
            Throughput::from([(PuId(2), seen)])
        };
        let check = |cpu_ns, expected: Option<Cost>| {
            let mut seen = BTreeMap::from([(None, rates(1_000_000, cpu_ns))]);
            for (at, share) in SHARES.iter().enumerate() {
                let rate = 1_000_000 - u64::from(*share) - 20_000;
                seen.insert(Some(at), rates(rate, 50));
            }
            let look = Sample {
                entries: Vec::new(),
                pus: CpuSet::single(PuId(2)),
                periods_ns: [Some(200_000); 5],
                takes_cpu_time: false,
            };
            assert_eq!(costs(&look, &seen).remove(&PuId(2)), expected);
        };
        check(95, Some(Cost { extra_ns: [4_000; 5], entry_ns: 0, free: 990_000 }));
        check(89, None);
    }

    #[test]
    fn next_to_other_tasks_work_per_cpu_second_shows_the_cost() {
        // Other tasks have a varying part of the CPU; the kernel counts stalls as CPU time or not.
        let check = |takes_cpu_time: bool, counts_stalls: bool, expected: Option<[i64; 5]>| {
            let run = |cpu_ns: u64, lost: u64| {
                let windows = vec![Window { units: 7, own_ns: cpu_ns / 9, span_ns: cpu_ns }; 4];
                let total_own_ns = cpu_ns * (990_000 - lost * 99 / 100) / 1_000_000;
                let counted_ns = if counts_stalls { cpu_ns } else { total_own_ns };
                let run = ReferenceRun {
                    windows,
                    total_own_ns,
                    cpu_ns: counted_ns,
                    elapsed_ns: 1_600_000_000,
                };
                Throughput::from([(PuId(2), run)])
            };
            let mut seen = BTreeMap::from([(None, run(400_000_000, 0))]);
            for (at, (share, part)) in SHARES.iter().zip(1..).enumerate() {
                seen.insert(Some(at), run(part * 90_000_000, u64::from(*share) + 60_000));
            }
            let (entries, pus) = (Vec::new(), CpuSet::single(PuId(2)));
            let look = Sample { entries, pus, periods_ns: [Some(200_000); 5], takes_cpu_time };
            let found = costs(&look, &seen).remove(&PuId(2));
            let rounded = found.map(|cost| cost.extra_ns.map(|extra| (extra + 50) / 100 * 100));
            assert_eq!(rounded, expected, "{takes_cpu_time} {counts_stalls}");
        };
        check(true, true, Some([12_000; 5]));
        check(true, false, None);
        check(false, true, None);
    }

    #[test]
    fn at_a_share_that_is_not_looked_at_it_is_the_one_before() {
        let rates = |own_ns: u64| {
            let windows = vec![Window { units: 7, own_ns, span_ns: 1_000_000 }; 4];
            Throughput::from([(
                PuId(2),
                ReferenceRun { windows, total_own_ns: own_ns, cpu_ns: 95, elapsed_ns: 100 },
            )])
        };
        let mut seen = BTreeMap::from([(None, rates(1_000_000))]);
        for (at, share) in SHARES.iter().enumerate().take(4) {
            seen.insert(Some(at), rates(1_000_000 - u64::from(*share) - 20_000));
        }
        let mut periods_ns = [Some(200_000); 5];
        periods_ns[4] = None;
        let (entries, pus) = (Vec::new(), CpuSet::single(PuId(2)));
        let look = Sample { entries, pus, periods_ns, takes_cpu_time: false };
        let expected = Cost { extra_ns: [4_000; 5], entry_ns: 0, free: 1_000_000 };
        assert_eq!(costs(&look, &seen), BTreeMap::from([(PuId(2), expected)]));
    }
}
