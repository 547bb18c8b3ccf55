//! The statistics that are compared for a figure, and the smallest detectable values.
//!
//! Scheduling stalls are compared as arrivals see them: percentiles over stalls refer to a
//! different population on each side, and a placement that removes the short stalls would look
//! worse by them (`docs/decisions/arrival-view.md`). A side without a stall is the best possible
//! result and not missing data: its value is below the detection limit of the benchmark, and is
//! raised to this limit.

use std::fmt;

use pinfold_model::{Family, GAP_FLOOR_NS, Statistic, Unit};

use super::{Key, Merged, Outcome, Population, Side, Values};
use crate::{Direction, P999_SAMPLES, RandomArrival, of_samples};

/// The benchmark whose samples are scheduling stalls.
const GAPS: &str = "spin-gap";
/// Observation times count as equal if they differ by at most this share; a heavily loaded machine
/// adds some time.
const ALIKE: f64 = 0.1;
const NS_PER_US: f64 = 1_000.0;

/// The statistic of a figure that a row compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparedStatistic {
    /// A statistic of the samples.
    Of(Statistic),
    /// Share of the time in stalls: the share of arrivals that wait at all.
    Taken,
    /// Share of arrivals at random times that wait longer than this number of microseconds.
    WaitsOver(u32),
}

impl ComparedStatistic {
    /// Stable name, used in files.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            ComparedStatistic::Of(statistic) => statistic.name().to_owned(),
            ComparedStatistic::Taken => "taken".to_owned(),
            ComparedStatistic::WaitsOver(us) => format!("waits-over-{us}us"),
        }
    }

    /// Unit of its values, for a figure with this unit.
    pub(super) fn unit(self, figure: Unit) -> Unit {
        match self {
            ComparedStatistic::Of(_) => figure,
            ComparedStatistic::Taken | ComparedStatistic::WaitsOver(_) => Unit::Share,
        }
    }

    /// The direction of improvement; `None` if there is none.
    pub(super) fn direction(self, figure: Unit) -> Option<Direction> {
        let is_higher_better = match self {
            ComparedStatistic::Of(_) => figure.higher_is_better()?,
            ComparedStatistic::Taken | ComparedStatistic::WaitsOver(_) => false,
        };
        Some(if is_higher_better { Direction::HigherIsBetter } else { Direction::LowerIsBetter })
    }

    /// True for statistics that grow with the observation time.
    fn is_longest(self) -> bool {
        self == ComparedStatistic::Of(Statistic::Max)
    }
}

impl fmt::Display for ComparedStatistic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ComparedStatistic::Of(statistic) => f.write_str(statistic.name()),
            ComparedStatistic::Taken => f.write_str("time taken"),
            ComparedStatistic::WaitsOver(1_000) => f.write_str("waits > 1 ms"),
            ComparedStatistic::WaitsOver(us) => write!(f, "waits > {us} µs"),
        }
    }
}

/// The statistics that are compared for a probe.
pub(super) fn aspects(probe: &str, one: &Population, other: &Population) -> Vec<ComparedStatistic> {
    let of =
        |statistics: &[Statistic]| statistics.iter().copied().map(ComparedStatistic::Of).collect();
    match one.family {
        Family::Tail if probe == GAPS => vec![
            ComparedStatistic::Taken,
            ComparedStatistic::WaitsOver(10),
            ComparedStatistic::WaitsOver(100),
            ComparedStatistic::WaitsOver(1_000),
            ComparedStatistic::Of(Statistic::Max),
        ],
        Family::Capacity => of(&[Statistic::Best, Statistic::Median]),
        Family::Tail if long(one) && long(other) => {
            of(&[Statistic::Median, Statistic::P999, Statistic::Max])
        }
        Family::Tail => of(&[Statistic::Median, Statistic::Max]),
        Family::Count => of(&[Statistic::Median]),
        Family::Place => of(&[]),
    }
}

fn long(all: &Population) -> bool {
    all.blocks.iter().all(|block| block.samples.len() >= P999_SAMPLES)
}

/// The values of both sides, by block.
pub(super) struct PairedValues {
    /// Measured values.
    pub(super) seen: (Values, Values),
    /// Compared values: those below the floor of their block are raised to it.
    pub(super) raised: (Values, Values),
    /// The largest floor of a block; `None` if there is none.
    pub(super) floor: Option<f64>,
    /// The reason why they allow no verdict, if there is one.
    pub(super) trouble: Option<Outcome>,
}

impl PairedValues {
    pub(super) fn new(
        key: &Key,
        aspect: ComparedStatistic,
        one: &Population,
        other: &Population,
    ) -> Self {
        let direction = aspect.direction(one.unit).unwrap_or(Direction::LowerIsBetter);
        let is_gap = key.probe == GAPS;
        let duty = is_gap.then(|| duty(key));
        let values = |all: &Population| -> Values {
            all.blocks
                .iter()
                .map(
                    |block| {
                        if is_gap { block.gaps(aspect) } else { block.value(aspect, direction) }
                    },
                )
                .collect()
        };
        let seen = (values(one), values(other));
        // Both sides of a block have the same floor. Otherwise two sides without stalls and with
        // unequal observation times would differ.
        let floors: Vec<f64> = if is_gap {
            one.blocks
                .iter()
                .zip(&other.blocks)
                .map(|(a, b)| a.floor(aspect).max(b.floor(aspect)))
                .collect()
        } else {
            Vec::new()
        };
        let raised = (raise(&floors, &seen.0), raise(&floors, &seen.1));
        let is_raised = raised != seen;
        let unequal = one
            .blocks
            .iter()
            .zip(&other.blocks)
            .find(|(a, b)| !may_be_equal(a.intended_range(duty), b.intended_range(duty)));
        // Shares do not grow with the time, but a shorter observation misses rare events more
        // often.
        let unequal = unequal
            .filter(|_| one.family == Family::Tail && (aspect.is_longest() || is_raised))
            .map(|(a, b)| Outcome::UnequalTime(a.observed_ns, b.observed_ns));
        let trouble = lost_side(is_gap, Side::First, one)
            .or_else(|| lost_side(is_gap, Side::Second, other))
            .or(unequal);
        let floor = floors.into_iter().reduce(f64::max);
        Self { seen, raised, floor, trouble }
    }
}

fn raise(floors: &[f64], values: &Values) -> Values {
    let floors = floors.iter().copied().chain(std::iter::repeat(f64::NEG_INFINITY));
    values.iter().zip(floors).map(|(value, floor)| Some(value.as_ref()?.max(floor))).collect()
}

fn lost_side(is_gap: bool, side: Side, all: &Population) -> Option<Outcome> {
    (is_gap && all.blocks.iter().any(|block| block.dropped > 0)).then_some(Outcome::Lost(side))
}

/// The share of each period for which the spin-gap benchmark spins; 0 if unknown.
fn duty(key: &Key) -> f64 {
    let percent = key.labels.get("duty-percent").and_then(|text| text.parse::<f64>().ok());
    percent.map_or(0.0, |percent| (percent / 100.0).clamp(0.0, 1.0))
}

/// True if two observation times, each given as the range of its possible intended values, may be
/// equal.
fn may_be_equal(one: (f64, f64), other: (f64, f64)) -> bool {
    one.0 <= other.1 * (1.0 + ALIKE) && other.0 <= one.1 * (1.0 + ALIKE)
}

impl Merged {
    /// The range of the intended observation time: a spin that ends within a stall is longer by the
    /// stall, so stalls may be the reason why one side was observed for longer. They can have
    /// filled at most the pauses between the spins (`duty` is the share of a spin in its period).
    fn intended_range(&self, duty: Option<f64>) -> (f64, f64) {
        let most = self.observed_ns as f64;
        let least = duty.map_or(most, |duty| {
            let taken: f64 = self.samples.iter().sum();
            f64::max(most - taken, most * duty)
        });
        (least, most)
    }

    fn value(&self, aspect: ComparedStatistic, direction: Direction) -> Option<f64> {
        match aspect {
            ComparedStatistic::Of(statistic) => of_samples(&self.samples, statistic, direction),
            ComparedStatistic::Taken | ComparedStatistic::WaitsOver(_) => None,
        }
    }

    /// The same for stalls; without a stall all values are 0, if there was an observation.
    fn gaps(&self, aspect: ComparedStatistic) -> Option<f64> {
        let arrivals = RandomArrival::new(self.samples.clone(), self.observed_ns)?;
        match aspect {
            ComparedStatistic::Taken => Some(arrivals.wait_probability()),
            ComparedStatistic::WaitsOver(us) => {
                Some(arrivals.exceedance_probability(f64::from(us) * NS_PER_US))
            }
            ComparedStatistic::Of(Statistic::Max) => Some(arrivals.max_ns()),
            ComparedStatistic::Of(_) => None,
        }
    }

    /// The smallest value that the spin-gap benchmark can detect: one stall of its minimum length,
    /// or one that exceeds the wait in question by this length.
    fn floor(&self, aspect: ComparedStatistic) -> f64 {
        match aspect {
            ComparedStatistic::Of(_) => GAP_FLOOR_NS as f64,
            ComparedStatistic::Taken | ComparedStatistic::WaitsOver(_) => {
                GAP_FLOOR_NS as f64 / self.observed_ns.max(1) as f64
            }
        }
    }
}
