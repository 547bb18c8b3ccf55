//! What a method costs beside the time that is meant to be taken.
//!
//! A witness works on every core of all vnodes at once (the cost of one core alone is wrong on
//! two), outside them and in them, while a method takes more and less of the time, in
//! turns. What it loses of its own time beyond that share is the method's cost:
//!
//! ```text
//! own / free own = 1 − share − extra(share) / period
//! ```
//!
//! Its own time is what its stops leave, by its own clock. The work that it did meanwhile tells
//! less: how fast a CPU is changes by more from one moment to the next than a turn costs.
//!
//! `extra`, in nanoseconds a turn, is not the same for every share: a short stall costs another
//! amount than a long one, and the kernel's own ticks take their part whatever is taken. A method
//! that takes longer turns where little is left takes them here too.
//! It is measured at some shares and lies on straight lines between them. Where share and extra
//! fill the period, turns run into each other and tell nothing: there the extra is that of the
//! share before.
//!
//! Where other tasks ran on the CPU meanwhile, that says nothing of the method: the witness, which
//! never sleeps, got less than the whole CPU while nothing was taken. The first sample is then
//! repeated once. A CPU that is still busy, or one on which the witness failed, is not measured:
//! its cost is the one that was measured last, or counts as nothing. It never ends a start.
//!
//! What was measured is handed to the [`HelperSpawner`], which keeps it, and is measured again while the
//! vnode runs (`renewal.rs`).

use std::collections::BTreeMap;
use std::thread;

use pinfold_host::Clock;
use pinfold_model::{CpuSet, PuId};

use crate::kept::{Calibration, Calibrations};
use crate::methods::in_us;
use crate::{Cleanup, SpeedError};

/// How fast a witness worked, by CPU.
pub type Throughput = BTreeMap<PuId, ReferenceRun>;

/// What a thread did that never sleeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReferenceRun {
    /// Some windows of equal length.
    pub windows: Vec<Window>,
    /// Its CPU time (ns).
    pub cpu_ns: u64,
    /// The time that passed (ns).
    pub elapsed_ns: u64,
}

/// A stretch of a witness's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Its work.
    pub units: u64,
    /// Its own time (ns): what its stops left.
    pub own_ns: u64,
    /// Its length (ns).
    pub span_ns: u64,
}

impl ReferenceRun {
    /// True if it had the CPU to itself, but for the kernel's own work.
    fn was_alone(&self) -> bool {
        self.had(1_000_000)
    }

    /// True if it had nine tenths of these millionths of the time.
    pub(crate) fn had(&self, millionths: u32) -> bool {
        let least = u128::from(self.elapsed_ns) * u128::from(millionths) * 9;
        u128::from(self.cpu_ns) * 10_000_000 >= least
    }

    /// Millionths of a window that are this long.
    fn free(&self, own_ns: u64) -> u32 {
        let span_ns = self.windows.first().map_or(0, |window| window.span_ns);
        let free = own_ns.saturating_mul(1_000_000).checked_div(span_ns).unwrap_or(0);
        u32::try_from(free.min(1_000_000)).unwrap_or(0)
    }

    /// The median of its own time in a window; `None` of fewer than four.
    pub(crate) fn own_ns(&self) -> Option<u64> {
        median(self.windows.iter().map(|window| window.own_ns).collect())
    }
}

/// What methods need from outside this crate: programs that are started for them, and a place
/// where measured costs are kept.
pub trait HelperSpawner: Sync {
    /// The costs that were measured on this machine since its boot; none where they are not kept.
    fn recall(&self) -> Calibrations {
        Calibrations::default()
    }

    /// Keeps a cost that was measured.
    fn keep(&self, calibration: &Calibration) {
        let _unused = calibration;
    }

    /// Reports to the user what a start is doing or could not do.
    fn report(&self, message: &str) {
        let _unused = message;
    }

    /// Starts what [`HelperSpawner::rates`] does and returns at once. It yields to every other task:
    /// nothing waits for it. `None` where no cost is measured while vnodes run.
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

    /// Runs a witness thread on each of these CPUs for so long, in the groups whose `cgroup.procs`
    /// are given, and tells how fast it was.
    ///
    /// # Errors
    /// [`SpeedError::HelperSpawner`].
    fn rates(
        &self,
        entries: &[String],
        pus: &CpuSet,
        duration_ns: u64,
    ) -> Result<Throughput, SpeedError>;

    /// Starts a thread that burns CPU time on one CPU in these groups until it is dropped, or
    /// this process ends or is stopped.
    ///
    /// # Errors
    /// [`SpeedError::HelperSpawner`].
    fn burn(&self, entries: &[String], pu: PuId) -> Result<Box<dyn Burner>, SpeedError>;

    /// Starts a process that calls [`release`](crate::release) when it has not heard a beat for
    /// 100 ms, or when its pipe closes: nobody stays frozen or stopped behind a supervisor
    /// that was killed or stopped.
    ///
    /// # Errors
    /// [`SpeedError::HelperSpawner`].
    fn sentinel(&self, what: Cleanup) -> Result<Box<dyn Watchdog>, SpeedError>;
}

/// A sentinel that was started; it ends when this is dropped, and releases once more before.
pub trait Watchdog {
    /// Tells it that the supervisor works.
    ///
    /// # Errors
    /// [`SpeedError::HelperSpawner`] if it is gone.
    fn beat(&mut self) -> Result<(), SpeedError>;
}

/// A witness that was started; it ends when this is dropped.
pub trait Witness {
    /// How fast it was, once it has ended.
    ///
    /// # Errors
    /// [`SpeedError::HelperSpawner`] with how it failed.
    fn poll(&mut self) -> Result<Option<Throughput>, SpeedError>;
}

/// A burner that was started; it ends when this is dropped.
pub trait Burner {
    /// Whether it is still there.
    ///
    /// # Errors
    /// [`SpeedError::HelperSpawner`] with how it ended, told once.
    fn check(&self) -> Result<(), SpeedError>;
}

/// The witness looks for so long at a time.
pub(crate) const WITNESS_NS: u64 = 160_000_000;
/// Millionths of the time at which the extra is measured.
pub(crate) const SHARES: [u32; 5] = [60_000, 350_000, 600_000, 800_000, 920_000];
/// What is taken while the witness looks, in this order, as places in [`SHARES`]; `None`: it looks
/// outside. What drifts, drifts for all of them.
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
/// The first sample is taken so often until the witness had a CPU to itself.
const TRIES: usize = 2;
/// How often the methods are reported meanwhile that their supervisor works.
const HEARTBEAT_NS: u64 = 10_000_000;
/// Where a witness is to look.
pub(crate) struct Sample {
    pub(crate) entries: Vec<String>,
    pub(crate) pus: CpuSet,
    /// Length of a turn at each of [`SHARES`]; `None` where the method is not to be looked at.
    pub(crate) periods_ns: [Option<u64>; SHARES.len()],
}

/// What a method costs on a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Nanoseconds that a turn takes in addition to its share, at 6, 35, 60, 80 and 92 % of the
    /// time. Below zero where it takes less than is meant.
    pub extra_ns: [i64; SHARES.len()],
    /// The time from a timer to the first instruction of its program (ns), which is part of each
    /// stall; 0 for other methods.
    pub entry_ns: u64,
    /// Millionths of the time that a thread has while nothing is taken; 0 if that is not known.
    pub free: u32,
}

impl Cost {
    /// True for what a witness may find: no cost is more than a quarter of the longest turn that is
    /// measured (10 ms), nor the way into an interrupt more than the longest period of a stall.
    #[must_use]
    pub fn is_plausible(&self) -> bool {
        self.extra_ns.iter().all(|extra| extra.unsigned_abs() <= 2_500_000)
            && self.entry_ns <= 1_000_000
            && self.free <= 1_000_000
    }

    /// The cost after a turn of this share was seen to take `extra_ns`: all points move by half of
    /// the difference, since one sample is not exact.
    pub(crate) fn moved(self, share: u64, extra_ns: i64) -> Self {
        let by = (extra_ns - self.extra(share)) / 2;
        Self { extra_ns: self.extra_ns.map(|at| at.saturating_add(by)), ..self }
    }

    /// The extra at a share.
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

    /// Millionths of the time to be taken so that with the extra so many are lost; 0 where the
    /// extra alone is more.
    pub(crate) fn share(self, lost: u64, period_ns: u64) -> u64 {
        let lost = i64::try_from(lost).unwrap_or(i64::MAX);
        let period = i64::try_from(period_ns).unwrap_or(i64::MAX).max(1);
        let mut share = lost;
        // The extra changes little with the share: this settles at once.
        for _ in 0..8 {
            let extra = self.extra(share.unsigned_abs());
            share = (lost - extra.saturating_mul(1_000_000) / period).clamp(0, 999_999);
        }
        share.unsigned_abs()
    }
}

/// Where a cost comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// It was measured at this start, at an earlier one that still holds, or while the vnode ran.
    Measured,
    /// It is the last one known; the CPU was busy when it was to be measured again.
    LastKnown,
    /// It is not known and counts as nothing.
    #[default]
    Unknown,
}

/// What is known of the cost on a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The cost that counts.
    pub cost: Cost,
    /// Where it comes from.
    pub source: Source,
}

impl Known {
    pub(crate) fn measured(cost: Cost) -> Self {
        Self { cost, source: Source::Measured }
    }
}

/// What is known by CPU.
pub(crate) type Costs = BTreeMap<PuId, Known>;

/// What the turns on a CPU have taken beside their shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// What one takes.
    pub(crate) cost: Cost,
    /// Where that comes from.
    pub(crate) source: Source,
    /// The share since the last change of speed, in millionths.
    pub(crate) share: u64,
    // The first so many turns are counted in `extras_ns`.
    settled: u64,
    extras_ns: i64,
}

impl Spent {
    /// Begins with this cost; the first so many turns were the witness's.
    pub(crate) fn after(known: Known, turns: u64) -> Self {
        Self { cost: known.cost, source: known.source, settled: turns, ..Self::default() }
    }

    /// What a turn costs now, in words.
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

    /// What a turn takes now.
    pub(crate) fn extra(self) -> i64 {
        self.cost.extra(self.share)
    }

    /// What all turns until now took.
    pub(crate) fn extras(self, turns: u64) -> i64 {
        let new = i64::try_from(turns.saturating_sub(self.settled)).unwrap_or(0);
        self.extras_ns.saturating_add(new.saturating_mul(self.extra()))
    }

    /// Changes the cost; the turns until now had the former one.
    pub(crate) fn renew(&mut self, cost: Cost, turns: u64) {
        self.extras_ns = self.extras(turns);
        (self.settled, self.cost, self.source) = (turns, cost, Source::Measured);
    }

    /// Changes the share; the turns until now had the former one.
    pub(crate) fn change(&mut self, share: u64, turns: u64) {
        self.extras_ns = self.extras(turns);
        (self.settled, self.share) = (turns, share);
    }
}

/// What witnesses found.
#[derive(Default)]
pub(crate) struct Found {
    /// By look, in order: the costs of the CPUs that were not busy.
    pub(crate) costs: Vec<BTreeMap<PuId, Cost>>,
    /// Why a witness failed, if one did.
    pub(crate) failed: Option<SpeedError>,
}

/// Has witnesses look at all vnodes at once; `take` has the methods take so much from then on,
/// `beat` tells them that their supervisor works.
///
/// # Errors
/// Only those of `take` and `beat`: a witness that fails has not measured anything.
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
            // What follows says something of a CPU at least.
            outside.report("calibrating, about 8 s; later starts take what is measured now");
            rounds.next();
            rounds.try_for_each(|round| look(round, &mut seen))?;
            break;
        }
    }
    let costs = looks.iter().zip(&seen).map(|(look, seen)| costs(look, seen)).collect();
    Ok(Found { costs, failed })
}

/// What a witness saw in all rounds of a kind.
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

/// The costs on those CPUs that the witness had to itself and where it worked in every round.
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

/// True if a turn of this share ends before the next begins, though it takes twice the extra.
fn has_room(share: u32, (extra_ns, period_ns): (i64, u64)) -> bool {
    let share_ns = period_ns.saturating_mul(share.into()) / 1_000_000;
    share_ns.saturating_add_signed(extra_ns.saturating_mul(2)) < period_ns
}

/// What a turn took beside the share, at most a quarter of the period.
pub(crate) fn extra(free_ns: u64, own_ns: u64, (share, period_ns): (u32, u64)) -> Option<i64> {
    // Windows are far below 2^40 ns.
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
