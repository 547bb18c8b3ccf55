//! Differences of two runs of one study, or of one study on two machines, by cell and figure.
//!
//! Block *i* of one run is compared with block *i* of the other, as `compare` does with two
//! measurements: interval of the ratio, exact paired test with Holm's correction over all figures
//! of the cells, and a verdict from enough blocks. It shows what differs, not why: the runs differ
//! in their time, and perhaps in their machine.

use super::analyse::{Analysis, Comparison, Estimate, FigureName, Pairs, blocks_of, judge};

/// The difference of one figure in one cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The cell, described by its levels.
    pub cell: String,
    /// The figure that both runs have.
    pub figure: FigureName,
    /// The medians of the first and the second run.
    pub medians: (f64, f64),
    /// Second over first, the median of the blocks' ratios; `None` if a value is not positive.
    pub ratio: Option<f64>,
    /// The second compared with the first; `None` with fewer than two blocks on a side.
    pub comparison: Option<Comparison>,
}

/// What both runs have, and what only one of them has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnalysisDiff {
    /// Differences of the figures that both have.
    pub both: Vec<Difference>,
    /// Cells with figures only in the first, and only in the second run.
    pub alone: (Vec<String>, Vec<String>),
}

/// Compares two analyses.
pub fn diff(first: &Analysis, second: &Analysis) -> AnalysisDiff {
    let mut compared = AnalysisDiff::default();
    let mut family = Vec::new();
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
        let pairs = Pairs::new(blocks_of(&other.starts, &one.starts), one.unit);
        compared.both.push(Difference {
            cell,
            figure: one.figure.clone(),
            medians: (one.median, other.median),
            ratio: pairs.ratio(),
            comparison: None,
        });
        family.push(pairs);
    }
    let margin = f64::max(first.loaded.study.margin, second.loaded.study.margin);
    for (row, comparison) in compared.both.iter_mut().zip(judge(&family, margin)) {
        row.comparison = comparison;
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

fn name(analysis: &Analysis, one: &Estimate) -> String {
    analysis.loaded.cells.all[one.cell].name(&analysis.loaded.study)
}
