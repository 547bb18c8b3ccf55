//! Figures: raw samples of one quantity under one set of labels.
//!
//! A figure holds what a benchmark measures in addition to a [`Series`](crate::Series): bandwidth
//! by block size, context-switch time by number of processes, exits by reason.

use std::collections::BTreeMap;

use crate::Unit;

/// How the samples of a figure are summarised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Family {
    /// Bandwidth, memory latency, compute: disturbance only makes them worse, so the best value,
    /// the tenth percentile and the median are reported. Disturbed windows may have been left out.
    Capacity,
    /// Scheduling stalls, wake-ups, I/O, exits: each sample counts, and none is left out.
    Tail,
    /// Exact numbers.
    Count,
    /// Positions of samples in another figure, such as the disturbed passes. They are reported as
    /// they are and never summarised.
    Place,
}

impl Family {
    /// True if a figure without samples is a result: the event did not occur.
    #[must_use]
    pub fn may_be_empty(self) -> bool {
        matches!(self, Family::Tail | Family::Place)
    }

    /// All families.
    pub const ALL: [Family; 4] = [Family::Capacity, Family::Tail, Family::Count, Family::Place];

    /// Stable name, used in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Family::Capacity => "capacity",
            Family::Tail => "tail",
            Family::Count => "count",
            Family::Place => "place",
        }
    }

    /// The family with this name.
    pub fn from_name(name: &str) -> Option<Family> {
        Family::ALL.into_iter().find(|family| family.name() == name)
    }
}

/// The shortest scheduling stall that the `spin-gap` probe records, in nanoseconds.
pub const GAP_FLOOR_NS: u64 = 1_000;

/// A statistic that reduces the samples of a figure to one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Statistic {
    /// The least disturbed window: the highest rate or the shortest time.
    Best,
    /// The median.
    Median,
    /// The arithmetic mean.
    Mean,
    /// The 99.9 % quantile.
    P999,
    /// The maximum.
    Max,
}

impl Statistic {
    /// All statistics.
    pub const ALL: [Statistic; 5] =
        [Statistic::Best, Statistic::Median, Statistic::Mean, Statistic::P999, Statistic::Max];

    /// Stable name, used in tables and files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Statistic::Best => "best",
            Statistic::Median => "median",
            Statistic::Mean => "mean",
            Statistic::P999 => "p99.9",
            Statistic::Max => "max",
        }
    }
}

/// Other activity of the machine while figures were measured, as the kernel counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SystemNoise {
    /// Stolen ticks (`steal` of `/proc/stat`) of the measured CPUs, or of their host's CPUs if a
    /// guest was measured; `None` where the kernel does not report them.
    pub steal_ticks: Option<u64>,
    /// Time in microseconds for which at least one task of the machine waited for a CPU (`some` of
    /// `/proc/pressure/cpu`); `None` where the kernel does not report it.
    pub pressure_us: Option<u64>,
}

/// Raw samples of one quantity under one set of labels.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Figure {
    /// Name of the benchmark: `bandwidth`, `context-switch`.
    pub probe: String,
    /// What distinguishes this figure from the others of its benchmark: `bytes` → `4096`.
    pub labels: BTreeMap<String, String>,
    /// Unit of the samples.
    pub unit: Unit,
    /// How the samples are summarised.
    pub family: Family,
    /// The CPU (in a guest, the vCPU) of the measurement, if it was a single one.
    pub cpu: Option<u32>,
    /// Observation time in nanoseconds.
    pub duration_ns: u64,
    /// Number of samples that were counted but not kept.
    pub dropped: u64,
    /// Number of windows left out because the thread was preempted, migrated or lost time.
    pub disturbed: u64,
    /// What disturbed or limits the measurement: `not-locked`, `fifo-refused`.
    pub flags: Vec<String>,
    /// The samples in the order of measurement. Empty only if a [`Family::Tail`] or
    /// [`Family::Place`] saw no event, or if the host does not provide the data; then a flag
    /// `absent: …` gives the reason.
    pub samples: Vec<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_families_lead_back_to_them() {
        for family in Family::ALL {
            assert_eq!(Family::from_name(family.name()), Some(family));
        }
        assert_eq!(Family::from_name("tails"), None);
    }
}
