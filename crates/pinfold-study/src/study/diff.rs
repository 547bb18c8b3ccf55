//! Differences of two runs of one study, or of one study on two machines, by cell and figure.
//!
//! The blocks of two runs are not paired: the ratio is that of the medians over starts, with an
//! interval from resampling the starts of both sides. It shows what differs, not why; a verdict
//! needs both in one study.

use pinfold_stats::{Block, Interval, ratio_interval_unpaired};

use super::analyse::{Analysis, Estimate, FigureName};

/// The difference of one figure in one cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The cell, described by its levels.
    pub cell: String,
    /// The figure that both runs have.
    pub figure: FigureName,
    /// The medians of the first and the second run.
    pub medians: (f64, f64),
    /// Second over first; `None` with fewer than two starts on a side, or a value that is not
    /// positive.
    pub interval: Option<Interval>,
}

/// What both runs have, and what only one of them has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compared {
    /// Differences of the figures that both have.
    pub both: Vec<Difference>,
    /// Cells with figures only in the first, and only in the second run.
    pub alone: (Vec<String>, Vec<String>),
}

/// Compares two analyses.
#[must_use]
pub fn diff(first: &Analysis, second: &Analysis) -> Compared {
    let name = |analysis: &Analysis, one: &Estimate| {
        analysis.loaded.cells.all[one.cell].name(&analysis.loaded.study)
    };
    let mut compared = Compared::default();
    for one in &first.estimates {
        let cell = name(first, one);
        let other = second
            .estimates
            .iter()
            .find(|other| other.figure == one.figure && name(second, other) == cell);
        let Some(other) = other else {
            compared.alone.0.push(cell);
            continue;
        };
        let all = |one: &Estimate| one.starts.values().flatten().copied().collect::<Vec<f64>>();
        let block = Block { candidate: all(other), baseline: all(one) };
        compared.both.push(Difference {
            cell,
            figure: one.figure.clone(),
            medians: (one.median, other.median),
            interval: ratio_interval_unpaired(&block),
        });
    }
    for other in &second.estimates {
        let cell = name(second, other);
        let known = compared.both.iter().any(|row| row.cell == cell && row.figure == other.figure);
        if !known {
            compared.alone.1.push(cell);
        }
    }
    compared.alone.0.dedup();
    compared.alone.1.dedup();
    compared
}
