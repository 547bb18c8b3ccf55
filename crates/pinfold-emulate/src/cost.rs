//! Overhead of a method on a CPU, and its total over the periods of a run.

use std::collections::BTreeMap;

use pinfold_model::PuId;

use crate::units::in_us;

/// Shares at which the overhead is measured, in millionths.
pub(crate) const SHARES: [u32; 5] = [60_000, 350_000, 600_000, 800_000, 920_000];

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
    pub fn is_plausible(&self) -> bool {
        self.extra_ns.iter().all(|extra| extra.unsigned_abs() <= 2_500_000)
            && self.entry_ns <= 1_000_000
            && self.free <= 1_000_000
    }

    /// The cost after a measured overhead of `extra_ns` at this share. All points move by half of
    /// the difference, because a single sample is not exact.
    pub(crate) fn shift(self, share: u64, extra_ns: i64) -> Self {
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
    /// Measured at five shares at this start, or at an earlier start that is still valid.
    Measured,
    /// Measured at one share for [`BRIEF_NS`](crate::calibrate::BRIEF_NS), or while the vnode ran.
    Brief,
    /// The last known value; the CPU was busy when it was to be measured again.
    LastKnown,
    /// That of another CPU of this machine; this CPU's own is not known.
    OtherCpu,
    /// Not measured: the usual value of the method.
    Usual,
    /// Unknown; counts as zero.
    #[default]
    Unknown,
}

/// Possible error of a cost that was measured briefly, and of the usual one (ns per period): on the
/// machines seen so far the costs are between 1 and 20 µs.
pub(crate) const BRIEF_ERROR_NS: u64 = 4_000;
pub(crate) const USUAL_ERROR_NS: u64 = 14_000;
/// The usual cost of a period.
pub(crate) const USUAL_NS: i64 = 6_000;

impl Source {
    /// How large the error of the speed may be with a cost of this origin, in points of full speed;
    /// `None` if that is not known.
    pub(crate) fn error_points(self, period_ns: u64) -> Option<f64> {
        let error_ns = match self {
            Self::Brief => BRIEF_ERROR_NS,
            Self::Usual => USUAL_ERROR_NS,
            Self::Measured | Self::LastKnown | Self::OtherCpu | Self::Unknown => return None,
        };
        let tenths = u32::try_from(error_ns * 1_000 / period_ns.max(1)).unwrap_or(u32::MAX);
        Some(f64::from(tenths) / 10.0)
    }

    /// The origin after a measurement at one share while the vnode ran.
    fn renew(self) -> Self {
        match self {
            Self::Measured | Self::LastKnown => Self::Measured,
            Self::Brief | Self::OtherCpu | Self::Usual | Self::Unknown => Self::Brief,
        }
    }
}

/// The cost on a CPU with its origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownCost {
    /// The cost in use.
    pub cost: Cost,
    /// Its origin.
    pub source: Source,
}

impl KnownCost {
    pub(crate) fn from_measurement(cost: Cost) -> Self {
        Self { cost, source: Source::Measured }
    }

    /// The usual cost of a method that has not been measured.
    pub(crate) fn usual() -> Self {
        let cost = Cost { extra_ns: [USUAL_NS; SHARES.len()], ..Cost::default() };
        Self { cost, source: Source::Usual }
    }
}

/// Costs by CPU.
pub(crate) type Costs = BTreeMap<PuId, KnownCost>;

/// Total overhead of the periods on a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeriodOverhead {
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

impl PeriodOverhead {
    /// Starts with this cost; the first `turns` periods belong to the reference run.
    pub(crate) fn after(known: KnownCost, turns: u64) -> Self {
        Self { cost: known.cost, source: known.source, settled: turns, ..Self::default() }
    }

    /// The cost with its origin.
    pub(crate) fn known_cost(self) -> KnownCost {
        KnownCost { cost: self.cost, source: self.source }
    }

    /// Describes the current overhead of a period.
    pub(crate) fn describe(self) -> String {
        let extra = self.extra();
        let sign = if extra < 0 { "-" } else { "" };
        let cost = format!("{sign}{}", in_us(extra.unsigned_abs()));
        match self.source {
            Source::Measured => format!("which itself costs {cost}"),
            Source::Brief => format!("which itself costs about {cost}, measured briefly"),
            Source::Usual => format!("whose cost is not measured yet; {cost} is assumed"),
            Source::LastKnown => format!(
                "which itself cost {cost} when last measured (the CPU was busy at the start)"
            ),
            Source::OtherCpu => format!(
                "whose cost is unknown, because the CPU was busy at the start; {cost}, measured \
                 on another CPU, is assumed"
            ),
            Source::Unknown => {
                "whose cost is unknown, because the CPU was busy at the start; zero is assumed"
                    .to_owned()
            }
        }
    }

    /// True if the overhead on this CPU is not known.
    pub(crate) fn is_unknown(self) -> bool {
        matches!(self.source, Source::OtherCpu | Source::Usual | Source::Unknown)
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
        (self.settled, self.cost, self.source) = (turns, cost, self.source.renew());
    }

    /// Changes the share; the periods so far count with the previous one.
    pub(crate) fn change(&mut self, share: u64, turns: u64) {
        self.extras_ns = self.extras(turns);
        (self.settled, self.share) = (turns, share);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_and_its_extra_are_what_is_to_be_lost() {
        let cost = Cost { extra_ns: [24_000, 20_000, 16_000, 12_000, 12_000], ..Cost::default() };
        check(cost, 0, 24_000);
        check(cost, 205_000, 22_000);
        check(cost, 600_000, 16_000);
        check(cost, 990_000, 12_000);
        for lost in [300_000_u64, 500_000, 900_000] {
            let share = cost.share(lost, 200_000);
            let got = share.saturating_add_signed(cost.extra(share) * 5);
            assert!(got.abs_diff(lost) < 5, "{lost}: {share} and {got}");
        }
        assert_eq!(cost.share(50_000, 200_000), 0, "an interrupt costs more than that");
        assert_eq!(Cost::default().share(250_000, 200_000), 250_000);
    }

    fn check(cost: Cost, share: u64, expected: i64) {
        assert_eq!(cost.extra(share), expected, "{share}")
    }

    #[test]
    fn a_cost_is_described_with_its_source() {
        fn check(source: Source, expected: &str) {
            let cost = Cost { extra_ns: [4_000; 5], ..Cost::default() };
            let words = PeriodOverhead::after(KnownCost { cost, source }, 7).describe();
            assert!(words.starts_with(expected), "{words}");
        }

        check(Source::Measured, "which itself costs 4.0 µs");
        check(Source::Brief, "which itself costs about 4.0 µs, measured briefly");
        check(Source::Usual, "whose cost is not measured yet; 4.0 µs is assumed");
        check(Source::LastKnown, "which itself cost 4.0 µs when last measured (the CPU was busy");
        check(
            Source::OtherCpu,
            "whose cost is unknown, because the CPU was busy at the start; 4.0 µs, ",
        );
        check(
            Source::Unknown,
            "whose cost is unknown, because the CPU was busy at the start; zero",
        );
    }

    #[test]
    fn a_renewed_cost_counts_from_its_turn_on() {
        let mut spent = PeriodOverhead::after(KnownCost::default(), 0);
        spent.change(500_000, 10);
        assert_eq!(spent.extras(20), 0);
        spent.renew(Cost { extra_ns: [4_000; 5], ..Cost::default() }, 20);
        assert_eq!((spent.extras(20), spent.extras(23)), (0, 12_000));
        assert_eq!(spent.source, Source::Brief, "one share was measured");
    }

    #[test]
    fn a_sample_moves_all_points_by_half() {
        let cost = Cost { extra_ns: [8_000, 6_000, 4_000, 2_000, 2_000], ..Cost::default() };
        assert_eq!(cost.shift(600_000, 6_000).extra_ns, [9_000, 7_000, 5_000, 3_000, 3_000]);
    }
}
