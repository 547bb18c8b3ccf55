//! Figures: raw samples of one quantity under one set of labels.
//!
//! What an instrument gives beyond the [`Series`](crate::Series) of a placement's tune: bandwidth
//! by block size, a context switch by number of processes, exits by reason.

use std::collections::BTreeMap;

use crate::Unit;

/// How the samples of a figure are to be summarised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Bandwidth, memory latency, compute: noise has one side, so the best, the tenth percentile
    /// and the median are told; windows that were disturbed may have been left out.
    Capacity,
    /// Gaps, wake-ups, I/O, exits: each sample counts and none was left out.
    Tail,
    /// Exact numbers.
    Count,
    /// Places of samples in another figure, such as the passes that were disturbed: told as they
    /// are, never summed up.
    Place,
}

impl Family {
    /// Whether a figure without samples says something: that nothing happened.
    #[must_use]
    pub fn may_be_empty(self) -> bool {
        matches!(self, Family::Tail | Family::Place)
    }

    /// All of them.
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
    #[must_use]
    pub fn from_name(name: &str) -> Option<Family> {
        Family::ALL.into_iter().find(|family| family.name() == name)
    }
}

/// The shortest gap that the ruler of gaps records (ns).
pub const GAP_FLOOR_NS: u64 = 1_000;

/// One number that sums up many samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Statistic {
    /// The least disturbed window: the largest rate, the smallest time.
    Best,
    /// The middle.
    Median,
    /// The arithmetic mean.
    Mean,
    /// The 99.9 % quantile.
    P999,
    /// The largest.
    Max,
}

impl Statistic {
    /// All of them.
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

/// What else the machine did while figures were measured, as the kernel counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SystemNoise {
    /// Ticks that the hypervisor below took from the measured PUs, or, where a guest was measured,
    /// from those of its host (`steal` of `/proc/stat`); `None` where the kernel does not tell.
    pub steal_ticks: Option<u64>,
    /// Time for which some task of the machine waited for a PU (`some` of `/proc/pressure/cpu`,
    /// in microseconds); `None` where the kernel does not tell.
    pub pressure_us: Option<u64>,
}

/// Raw samples of one quantity under one set of labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The instrument: `bandwidth`, `context-switch`.
    pub probe: String,
    /// What tells this figure from the others of its instrument: `bytes` → `4096`.
    pub labels: BTreeMap<String, String>,
    /// Unit of the samples.
    pub unit: Unit,
    /// How to summarise them.
    pub family: Family,
    /// The PU (vCPU, in a guest) on which it was measured, if it was one.
    pub cpu: Option<u32>,
    /// Observation time (ns).
    pub duration_ns: u64,
    /// The samples, in the order in which they were taken; never empty but for a tail
    /// or places that nothing happened in, and for what the host does not give: then a flag `absent: …` says why.
    pub samples: Vec<f64>,
    /// Samples that were counted and not kept.
    pub dropped: u64,
    /// Windows that were left out because the thread was preempted, moved or lost time.
    pub disturbed: u64,
    /// What disturbed or limits it: `not-locked`, `fifo-refused`.
    pub flags: Vec<String>,
}

impl Figure {
    /// Share of all windows that was left out, 0 to 1.
    #[must_use]
    pub fn disturbed_share(&self) -> f64 {
        let all = self.samples.len() as f64 + self.disturbed as f64;
        if all > 0.0 { self.disturbed as f64 / all } else { 0.0 }
    }
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
