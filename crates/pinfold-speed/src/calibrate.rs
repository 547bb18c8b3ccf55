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
//! If other tasks ran on a CPU, the measurement is not valid: the reference run got less than the
//! whole CPU while nothing was taken. Then the first sample is repeated once. A CPU that is still
//! busy, or on which the reference run failed, is not measured: its cost is the last one that was
//! measured, or zero. The start continues in any case.
//!
//! The result is passed to the [`HelperSpawner`], which stores it. It is measured again while the
//! vnode runs (`renewal.rs`).

use std::collections::BTreeMap;
use std::thread;

use pinfold_host::Clock;
use pinfold_model::{CpuSet, PuId};

use crate::kept::{Calibration, Calibrations};
use crate::methods::in_us;
use crate::{Cleanup, SpeedError};

/// Results of a reference run, by CPU.
pub type Throughput = BTreeMap<PuId, ReferenceRun>;

/// Result of a thread that never sleeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReferenceRun {
    /// Windows of equal length.
    pub windows: Vec<Window>,
    /// CPU time of the thread (ns).
    pub cpu_ns: u64,
    /// Elapsed time (ns).
    pub elapsed_ns: u64,
}

/// A time window of a reference run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Amount of work.
    pub units: u64,
    /// Own time (ns): the time without interruptions.
    pub own_ns: u64,
    /// Length (ns).
    pub span_ns: u64,
}

impl ReferenceRun {
    /// True if no other task ran on the CPU (CPU time of at least 90 %).
    fn was_alone(&self) -> bool {
        self.had(1_000_000)
    }

    /// True if it got at least nine tenths of this share of the time, in millionths.
    pub(crate) fn had(&self, millionths: u32) -> bool {
        let least = u128::from(self.elapsed_ns) * u128::from(millionths) * 9;
        u128::from(self.cpu_ns) * 10_000_000 >= least
    }

    /// A time in a window as a share of the window, in millionths.
    fn free(&self, own_ns: u64) -> u32 {
        let span_ns = self.windows.first().map_or(0, |window| window.span_ns);
        let free = own_ns.saturating_mul(1_000_000).checked_div(span_ns).unwrap_or(0);
        u32::try_from(free.min(1_000_000)).unwrap_or(0)
    }

    /// The median of its own time per window; `None` with fewer than four windows.
    pub(crate) fn own_ns(&self) -> Option<u64> {
        median(self.windows.iter().map(|window| window.own_ns).collect())
    }
}

/// Services that methods need from outside of this crate: helper programs, and storage for measured
/// costs.
pub trait HelperSpawner: Sync {
    /// The costs that were measured on this machine since its boot; empty if they are not stored.
    fn recall(&self) -> Calibrations {
        Calibrations::default()
    }

    /// Stores a measured cost.
    fn keep(&self, calibration: &Calibration) {
        let _unused = calibration;
    }

    /// Reports a message about the start to the user.
    fn report(&self, message: &str) {
        let _unused = message;
    }

    /// Starts the same as [`HelperSpawner::rates`] in the background, with lower priority than
    /// every other task. `None` if costs are not measured while vnodes run.
    ///
    /// # Errors
    /// [`SpeedError::HelperSpawner`].
    fn witness(
        &self,
        entries: &[String],
        pus: &CpuSet,
        duration_ns: u64,
    ) -> Result<Option<Box<dyn Witness>>, SpeedError> {
        let _unused = (entries, pus, duration_ns);
        Ok(None)
    }

    /// Runs a reference thread on each of these CPUs for `duration_ns`, in the groups with these
    /// `cgroup.procs` files, and returns the results.
    ///
    /// # Errors
    /// [`SpeedError::HelperSpawner`].
    fn rates(
        &self,
        entries: &[String],
        pus: &CpuSet,
        duration_ns: u64,
    ) -> Result<Throughput, SpeedError>;

    /// Starts a thread that burns CPU time on one CPU in these groups. It ends when it is dropped,
    /// or when this process ends or is stopped.
    ///
    /// # Errors
    /// [`SpeedError::HelperSpawner`].
    fn burn(&self, entries: &[String], pu: PuId) -> Result<Box<dyn Burner>, SpeedError>;

    /// Starts a watchdog process that calls [`release`](crate::release) after 100 ms without a
    /// heartbeat, or when its pipe is closed. Thus no task stays frozen or stopped if the
    /// supervisor is killed or stopped.
    ///
    /// # Errors
    /// [`SpeedError::HelperSpawner`].
    fn sentinel(&self, what: Cleanup) -> Result<Box<dyn Watchdog>, SpeedError>;
}

/// A running watchdog; when it is dropped, it releases once more and ends.
pub trait Watchdog {
    /// Sends a heartbeat.
    ///
    /// # Errors
    /// [`SpeedError::HelperSpawner`] if the watchdog has ended.
    fn beat(&mut self) -> Result<(), SpeedError>;
}

/// A running reference run; it ends when this is dropped.
pub trait Witness {
    /// The results, once it has ended.
    ///
    /// # Errors
    /// [`SpeedError::HelperSpawner`] with the reason if it failed.
    fn poll(&mut self) -> Result<Option<Throughput>, SpeedError>;
}

/// A running burner; it ends when this is dropped.
pub trait Burner {
    /// Checks that it is still running.
    ///
    /// # Errors
    /// [`SpeedError::HelperSpawner`] with how it ended; reported once.
    fn check(&self) -> Result<(), SpeedError>;
}

/// Duration of a reference run.
pub(crate) const WITNESS_NS: u64 = 160_000_000;
/// Shares at which the overhead is measured, in millionths.
pub(crate) const SHARES: [u32; 5] = [60_000, 350_000, 600_000, 800_000, 920_000];
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
}

/// Overhead of a method on a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Time in nanoseconds that a period takes in addition to its share, at shares of 6, 35, 60, 80
    /// and 92 %. Negative if it takes less than the share.
    pub extra_ns: [i64; SHARES.len()],
    /// Interrupt entry: time from a timer's expiry to the first instruction of its program (ns),
    /// which is part of each stall; 0 for other methods.
    pub entry_ns: u64,
    /// Share of the time that a thread gets while nothing is taken, in millionths; 0 if unknown.
    pub free: u32,
}

impl Cost {
    /// True for a value that a reference run can produce. An overhead is at most a quarter of the
    /// longest measured period (10 ms), and an interrupt entry is at most the longest period of a
    /// stall.
    #[must_use]
    pub fn is_plausible(&self) -> bool {
        self.extra_ns.iter().all(|extra| extra.unsigned_abs() <= 2_500_000)
            && self.entry_ns <= 1_000_000
            && self.free <= 1_000_000
    }

    /// The cost after a measured overhead of `extra_ns` at this share. All points move by half of
    /// the difference, because a single sample is not exact.
    pub(crate) fn moved(self, share: u64, extra_ns: i64) -> Self {
        let by = (extra_ns - self.extra(share)) / 2;
        Self { extra_ns: self.extra_ns.map(|at| at.saturating_add(by)), ..self }
    }

    /// The overhead at a share, interpolated (ns).
    pub(crate) fn extra(self, share: u64) -> i64 {
        let share = i64::try_from(share).unwrap_or(i64::MAX);
        let points = SHARES.iter().map(|at| i64::from(*at)).zip(self.extra_ns);
        let mut last: Option<(i64, i64)> = None;
        for (at, extra) in points {
            if share <= at {
                return last.map_or(extra, |(before, from)| {
                    from + (extra - from) * (share - before) / (at - before)
                });
            }
            last = Some((at, extra));
        }
        last.map_or(0, |(_, extra)| extra)
    }

    /// The share to request so that `lost` millionths are lost including the overhead; 0 if the
    /// overhead alone exceeds that.
    pub(crate) fn share(self, lost: u64, period_ns: u64) -> u64 {
        let lost = i64::try_from(lost).unwrap_or(i64::MAX);
        let period = i64::try_from(period_ns).unwrap_or(i64::MAX).max(1);
        let mut share = lost;
        // The overhead changes little with the share, so this converges quickly.
        for _ in 0..8 {
            let extra = self.extra(share.unsigned_abs());
            share = (lost - extra.saturating_mul(1_000_000) / period).clamp(0, 999_999);
        }
        share.unsigned_abs()
    }
}

/// Origin of a cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// Measured at this start, at an earlier start that is still valid, or while the vnode ran.
    Measured,
    /// The last known value; the CPU was busy when it was to be measured again.
    LastKnown,
    /// Unknown; counts as zero.
    #[default]
    Unknown,
}

/// The cost on a CPU with its origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The cost in use.
    pub cost: Cost,
    /// Its origin.
    pub source: Source,
}

impl Known {
    pub(crate) fn measured(cost: Cost) -> Self {
        Self { cost, source: Source::Measured }
    }
}

/// Costs by CPU.
pub(crate) type Costs = BTreeMap<PuId, Known>;

/// Total overhead of the periods on a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Overhead per period.
    pub(crate) cost: Cost,
    /// Origin of the cost.
    pub(crate) source: Source,
    /// The share since the last change of speed, in millionths.
    pub(crate) share: u64,
    // Number of periods that are already included in `extras_ns`.
    settled: u64,
    extras_ns: i64,
}

impl Spent {
    /// Starts with this cost; the first `turns` periods belong to the reference run.
    pub(crate) fn after(known: Known, turns: u64) -> Self {
        Self { cost: known.cost, source: known.source, settled: turns, ..Self::default() }
    }

    /// Describes the current overhead of a period.
    pub(crate) fn in_words(self) -> String {
        let extra = self.extra();
        let sign = if extra < 0 { "-" } else { "" };
        let cost = format!("{sign}{}", in_us(extra.unsigned_abs()));
        match self.source {
            Source::Measured => format!("which itself costs {cost}"),
            Source::LastKnown => format!(
                "which itself cost {cost} when that was last measured: the CPU was busy at the start"
            ),
            Source::Unknown => "whose own cost is not known and counts as nothing: the CPU was \
                                busy at the start"
                .to_owned(),
        }
    }

    /// The current overhead of a period (ns).
    pub(crate) fn extra(self) -> i64 {
        self.cost.extra(self.share)
    }

    /// The total overhead after this number of periods (ns).
    pub(crate) fn extras(self, turns: u64) -> i64 {
        let new = i64::try_from(turns.saturating_sub(self.settled)).unwrap_or(0);
        self.extras_ns.saturating_add(new.saturating_mul(self.extra()))
    }

    /// Changes the cost; the periods so far count with the previous one.
    pub(crate) fn renew(&mut self, cost: Cost, turns: u64) {
        self.extras_ns = self.extras(turns);
        (self.settled, self.cost, self.source) = (turns, cost, Source::Measured);
    }

    /// Changes the share; the periods so far count with the previous one.
    pub(crate) fn change(&mut self, share: u64, turns: u64) {
        self.extras_ns = self.extras(turns);
        (self.settled, self.share) = (turns, share);
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
    let mut seen: Vec<Seen> = looks.iter().map(|_| Seen::new()).collect();
    let mut failed = None;
    let mut look = |round: Option<usize>, seen: &mut Vec<Seen>| {
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
        seen.iter_mut().for_each(Seen::clear);
        look(None, &mut seen)?;
        if seen
            .iter()
            .flat_map(Seen::values)
            .flat_map(Throughput::values)
            .any(ReferenceRun::was_alone)
        {
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
type Seen = BTreeMap<Option<usize>, Throughput>;

fn add(all: &mut Throughput, rates: Throughput) {
    for (pu, more) in rates {
        let sum = all.entry(pu).or_default();
        sum.windows.extend(more.windows);
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

/// The costs of those CPUs that the reference run had to itself, with a result in every round.
fn costs(look: &Sample, seen: &Seen) -> BTreeMap<PuId, Cost> {
    let at = |round: Option<usize>, pu: PuId| seen.get(&round)?.get(&pu);
    let own = |round: Option<usize>, pu: PuId| at(round, pu)?.own_ns();
    let one = |pu: PuId| {
        let alone = at(None, pu).filter(|witnessed| witnessed.was_alone())?;
        let free_ns = alone.own_ns()?;
        let mut cost = Cost { free: alone.free(free_ns), ..Cost::default() };
        let mut last = 0;
        let turns = SHARES.into_iter().zip(look.periods_ns);
        for (at, ((share, period_ns), extra_ns)) in turns.zip(&mut cost.extra_ns).enumerate() {
            if let Some(period_ns) = period_ns
                && has_room(share, (last, period_ns))
            {
                last = extra(free_ns, own(Some(at), pu)?, (share, period_ns))?;
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

fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied().filter(|_| values.len() >= 4)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_share_and_its_extra_are_what_is_to_be_lost() {
        let cost = Cost { extra_ns: [24_000, 20_000, 16_000, 12_000, 12_000], ..Cost::default() };
        let check = |share, expected| assert_eq!(cost.extra(share), expected, "{share}");
        check(0, 24_000);
        check(205_000, 22_000);
        check(600_000, 16_000);
        check(990_000, 12_000);
        for lost in [300_000_u64, 500_000, 900_000] {
            let share = cost.share(lost, 200_000);
            let got = share.saturating_add_signed(cost.extra(share) * 5);
            assert!(got.abs_diff(lost) < 5, "{lost}: {share} and {got}");
        }
        assert_eq!(cost.share(50_000, 200_000), 0, "an interrupt costs more than that");
        assert_eq!(Cost::default().share(250_000, 200_000), 250_000);
    }

    #[test]
    fn where_others_run_nothing_is_learnt() {
        let rates = |own_ns: u64, cpu_ns| {
            let windows = vec![Window { units: 7, own_ns, span_ns: 1_010_101 }; 4];
            let seen = ReferenceRun { windows, cpu_ns, elapsed_ns: 100 };
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
            };
            assert_eq!(costs(&look, &seen).remove(&PuId(2)), expected);
        };
        check(95, Some(Cost { extra_ns: [4_000; 5], entry_ns: 0, free: 990_000 }));
        check(89, None);
    }

    #[test]
    fn a_cost_is_described_with_its_source() {
        let check = |source, expected: &str| {
            let cost = Cost { extra_ns: [4_000; 5], ..Cost::default() };
            let words = Spent::after(Known { cost, source }, 7).in_words();
            assert!(words.starts_with(expected), "{words}");
        };
        check(Source::Measured, "which itself costs 4.0 µs");
        check(
            Source::LastKnown,
            "which itself cost 4.0 µs when that was last measured: the CPU was busy",
        );
        check(
            Source::Unknown,
            "whose own cost is not known and counts as nothing: the CPU was busy",
        );
    }

    #[test]
    fn a_renewed_cost_counts_from_its_turn_on() {
        let mut spent = Spent::after(Known::default(), 0);
        spent.change(500_000, 10);
        assert_eq!(spent.extras(20), 0);
        spent.renew(Cost { extra_ns: [4_000; 5], ..Cost::default() }, 20);
        assert_eq!((spent.extras(20), spent.extras(23)), (0, 12_000));
        assert_eq!(spent.source, Source::Measured);
    }

    #[test]
    fn a_sample_moves_all_points_by_half() {
        let cost = Cost { extra_ns: [8_000, 6_000, 4_000, 2_000, 2_000], ..Cost::default() };
        assert_eq!(cost.moved(600_000, 6_000).extra_ns, [9_000, 7_000, 5_000, 3_000, 3_000]);
    }

    #[test]
    fn at_a_share_that_is_not_looked_at_it_is_the_one_before() {
        let rates = |own_ns: u64| {
            let windows = vec![Window { units: 7, own_ns, span_ns: 1_000_000 }; 4];
            Throughput::from([(PuId(2), ReferenceRun { windows, cpu_ns: 95, elapsed_ns: 100 })])
        };
        let mut seen = BTreeMap::from([(None, rates(1_000_000))]);
        for (at, share) in SHARES.iter().enumerate().take(4) {
            seen.insert(Some(at), rates(1_000_000 - u64::from(*share) - 20_000));
        }
        let mut periods_ns = [Some(200_000); 5];
        periods_ns[4] = None;
        let look = Sample { entries: Vec::new(), pus: CpuSet::single(PuId(2)), periods_ns };
        let expected = Cost { extra_ns: [4_000; 5], entry_ns: 0, free: 1_000_000 };
        assert_eq!(costs(&look, &seen), BTreeMap::from([(PuId(2), expected)]));
    }

    #[test]
    fn a_median_needs_some_windows() {
        assert_eq!(median(vec![1, 2, 3]), None);
        assert_eq!(median(vec![4, 1, 9, 2]), Some(4));
    }
}
