//! Statistics of a figure's samples as figures of their own: `pass.mean` is the mean of the samples
//! of `pass` in each trial. Plots, tables and claims use such a name like that of a figure.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::Unit;
use pinfold_stats::{Mean, median};

use super::file::{Study, Table};

/// A statistic of the samples of one trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SampleStatistic {
    /// Their number.
    Count,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// Their mean.
    Mean,
    /// Their median.
    Median,
    /// Their sum.
    Sum,
    /// The standard deviation of the sample.
    Deviation,
}

impl SampleStatistic {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Count, Self::Min, Self::Max, Self::Mean, Self::Median, Self::Sum, Self::Deviation];

    /// Its name in study files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Min => "min",
            Self::Max => "max",
            Self::Mean => "mean",
            Self::Median => "median",
            Self::Sum => "sum",
            Self::Deviation => "deviation",
        }
    }

    /// The unit of this statistic of samples with that unit.
    #[must_use]
    pub fn unit(self, of_samples: Unit) -> Unit {
        if self == Self::Count { Unit::Count } else { of_samples }
    }

    /// Its value; `None` if these samples have none (the mean of no samples).
    #[must_use]
    pub fn of(self, samples: &[f64]) -> Option<f64> {
        match self {
            Self::Count => Some(samples.len() as f64),
            Self::Sum => Some(samples.iter().sum()),
            Self::Min => samples.iter().copied().reduce(f64::min),
            Self::Max => samples.iter().copied().reduce(f64::max),
            Self::Median => median(samples),
            Self::Mean => Mean::from_values(samples).map(|mean| mean.mean),
            Self::Deviation => Mean::from_values(samples)?.deviation,
        }
    }
}

/// The figure and the statistic that a name such as `pass.mean` means.
pub fn split(name: &str) -> Option<(&str, SampleStatistic)> {
    let (figure, word) = name.rsplit_once('.')?;
    let statistic = SampleStatistic::ALL.into_iter().find(|one| one.name() == word)?;
    Some((figure, statistic))
}

/// The statistics that the report of a study shows, by figure.
pub(super) fn wanted_statistics(study: &Study) -> BTreeMap<String, BTreeSet<SampleStatistic>> {
    let mut names: Vec<String> = Vec::new();
    names.extend(study.plots.iter().map(|plot| plot.selection.figure.clone()));
    let selections = study.tables.iter().flat_map(|Table { selections, .. }| selections);
    names.extend(selections.map(|selection| selection.figure.clone()));
    names.extend(study.stop.iter().map(|stop| stop.figure.clone()));
    names.extend(study.claims.iter().flat_map(|claim| claim.figures.clone()));
    names.extend(study.published.iter().flat_map(|value| value.figures.clone()));
    let mut found: BTreeMap<String, BTreeSet<SampleStatistic>> = BTreeMap::new();
    for (figure, statistic) in names.iter().filter_map(|name| split(name)) {
        found.entry(figure.to_owned()).or_default().insert(statistic);
    }
    found
}
