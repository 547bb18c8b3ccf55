//! The data tables of a study: every cell, and the A/A pairs.

use super::Brackets;
use super::answer::{interval, with_interval};
use super::model::{MeasuredFigure, PageTable, Spread, StudyPage};
use crate::charts::forest;
use crate::format;
use crate::page::{Comparison, Verdict};

/// Maximum number of rows of a table on the page; the exported tables have all rows.
const MOST_ROWS: usize = 400;

/// All data tables.
pub(super) fn evidence(page: &StudyPage) -> Vec<PageTable> {
    [measured_table(page), pairs(page)].into_iter().chain(page.evidence.iter().cloned()).collect()
}

fn of_all(shown: usize, all: usize) -> String {
    if shown == all {
        format!("{all} rows")
    } else {
        format!("{shown} of {all} rows; `pinfold study export` writes all")
    }
}

fn verdict(comparison: &Comparison) -> String {
    let word = forest::verdict_word(&comparison.verdict);
    match &comparison.verdict {
        Verdict::Unknown(why) => format!("{word}: {why}"),
        Verdict::Better | Verdict::Same | Verdict::Worse => word.to_owned(),
    }
}

fn measured_table(page: &StudyPage) -> PageTable {
    let rows: Vec<Vec<String>> = page.measured.iter().take(MOST_ROWS).map(row).collect();
    let brackets = Brackets::from_blocks(page.measured.iter().map(|one| one.blocks)).header();
    let header = [
        "cell",
        "figure",
        "blocks",
        &format!("median [{brackets}]"),
        &page.summary_name,
        &format!("ratio to the baseline: median of the blocks’ ratios ({brackets})"),
        "p (Holm)",
        "verdict",
    ];
    let note = of_all(rows.len(), page.measured.len());
    PageTable::new("evidence", "Every cell", 2, &header, rows).with_note(note)
}

fn row(one: &MeasuredFigure) -> Vec<String> {
    let summary = one.summary.map_or_else(String::new, |(value, spread)| match spread {
        Spread::Unknown => with_interval(one.unit, value, None),
        Spread::Deviation(deviation) => {
            format!("{} ± {}", format::value(value, one.unit), format::value(deviation, one.unit))
        }
        Spread::Interval(low, high) => with_interval(one.unit, value, Some((low, high))),
    });
    let with = one.comparison.as_ref();
    vec![
        one.cell.clone(),
        one.figure.clone(),
        one.blocks.to_string(),
        with_interval(one.unit, one.median, one.interval),
        summary,
        with.map_or_else(String::new, interval),
        with.and_then(|with| with.p_holm).map_or_else(String::new, format::probability),
        with.map_or_else(String::new, verdict),
    ]
}

fn pairs(page: &StudyPage) -> PageTable {
    let rows: Vec<Vec<String>> = page
        .pairs
        .iter()
        .take(MOST_ROWS)
        .map(|pair| {
            vec![
                pair.cell.clone(),
                pair.figure.clone(),
                pair.blocks.to_string(),
                interval(&pair.comparison),
                verdict(&pair.comparison),
            ]
        })
        .collect();
    let brackets = Brackets::from_blocks(page.pairs.iter().map(|pair| pair.blocks)).header();
    let ratio = "ratio of the second measurement to the first: median of the blocks’ ratios";
    let header = ["cell", "figure", "blocks", &format!("{ratio} ({brackets})"), "verdict"];
    let note = if page.pairs.is_empty() {
        page.no_pairs.clone()
    } else {
        let shown = of_all(rows.len(), page.pairs.len());
        format!("the same cell under two names, so any difference is noise; {shown}")
    };
    PageTable::new("noise", "The A/A pairs: the noise floor", 2, &header, rows).with_note(note)
}
