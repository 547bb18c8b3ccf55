//! Rankings: the deciding one in full, the others by metric and load state, and a matrix of the
//! winner's verdicts.

use pinfold_model::{LoadState, Metric};

use super::Name;
use super::latency::heading;
use crate::charts::{chart_id, forest};
use crate::headline::{change, change_between, losses};
use crate::page::{Comparison, Page, Ranking, RankingRow, Verdict};
use crate::{CandidateId, format};

/// A ranking as a table.
pub(crate) struct Table {
    pub(crate) caption: String,
    /// The statistic of a block.
    pub(crate) statistic: String,
    /// One line with the result, shown while the table is folded.
    pub(crate) summary: String,
    /// Header of the forest plot.
    pub(crate) head: String,
    pub(crate) rows: Vec<Row>,
}

/// A row of the table.
pub(crate) struct Row {
    pub(crate) place: String,
    pub(crate) name: Name,
    pub(crate) limit: Option<&'static str>,
    pub(crate) blocks: String,
    pub(crate) median: String,
    pub(crate) worst: String,
    pub(crate) against: Option<BaselineComparison>,
}

/// The comparison with the baseline.
pub(crate) struct BaselineComparison {
    pub(crate) forest: String,
    pub(crate) ratio: String,
    pub(crate) interval: String,
    pub(crate) p: String,
    pub(crate) class: &'static str,
    pub(crate) sign: &'static str,
    pub(crate) word: &'static str,
    /// The change, or why there is no verdict.
    pub(crate) why: String,
}

/// All tables of one metric.
pub(crate) struct Group {
    pub(crate) title: &'static str,
    pub(crate) tables: Vec<Table>,
}

/// The winner's verdicts: rows are metrics, columns are load states.
pub(crate) struct Matrix {
    pub(crate) winner: String,
    pub(crate) loads: Vec<String>,
    pub(crate) rows: Vec<(&'static str, Vec<Option<Cell>>)>,
}

/// One verdict of the matrix.
pub(crate) struct Cell {
    pub(crate) class: &'static str,
    pub(crate) sign: &'static str,
    pub(crate) word: &'static str,
    pub(crate) change: String,
}

/// A loss of the winner, for the table of costs.
pub(crate) struct Cost {
    pub(crate) metric: &'static str,
    pub(crate) load: String,
    pub(crate) change: String,
    pub(crate) interval: String,
    pub(crate) p: String,
}

/// The metrics and load states in which the winner is significantly worse than the baseline, the
/// largest loss first.
pub(crate) fn costs(page: &Page) -> Vec<Cost> {
    losses(page)
        .into_iter()
        .map(|(metric, load, comparison)| Cost {
            metric: heading(metric),
            load: load.to_string(),
            change: change(metric.unit(), comparison),
            interval: change_between(metric.unit(), comparison),
            p: comparison.p_holm.map_or_else(|| format::MISSING.to_owned(), format::probability),
        })
        .collect()
}

/// The ranking that answers the question.
pub(crate) fn deciding(page: &Page) -> Option<Table> {
    page.deciding().map(|ranking| table(page, ranking, "main"))
}

/// All other rankings by metric.
pub(crate) fn groups(page: &Page) -> Vec<Group> {
    Metric::ALL
        .into_iter()
        .filter_map(|metric| {
            let tables: Vec<Table> = page
                .rankings
                .iter()
                .filter(|ranking| ranking.metric == metric && !is_deciding(page, ranking))
                .map(|ranking| table(page, ranking, "more"))
                .collect();
            (!tables.is_empty()).then(|| Group { title: heading(metric), tables })
        })
        .collect()
}

fn is_deciding(page: &Page, ranking: &Ranking) -> bool {
    ranking.metric == page.answer.metric && ranking.load == page.answer.load
}

/// The winner's verdicts in all rankings; `None` without a winner.
pub(crate) fn matrix(page: &Page) -> Option<Matrix> {
    let winner = page.answer.winner?;
    let loads: Vec<LoadState> = LoadState::ALL
        .into_iter()
        .filter(|load| page.rankings.iter().any(|ranking| ranking.load == *load))
        .collect();
    let rows: Vec<_> = Metric::ALL
        .into_iter()
        .map(|metric| {
            let cells: Vec<_> =
                loads.iter().map(|load| cell(page, winner, metric, *load)).collect();
            (heading(metric), cells)
        })
        .filter(|(_, cells)| cells.iter().any(Option::is_some))
        .collect();
    let loads = loads.iter().map(ToString::to_string).collect();
    (!rows.is_empty()).then(|| Matrix { winner: page.name(winner), loads, rows })
}

fn cell(page: &Page, winner: CandidateId, metric: Metric, load: LoadState) -> Option<Cell> {
    let comparison = page.ranking(metric, load)?.row(winner)?.comparison.as_ref()?;
    Some(Cell {
        class: forest::verdict_class(&comparison.verdict),
        sign: forest::verdict_sign(&comparison.verdict),
        word: forest::verdict_word(&comparison.verdict),
        change: change(metric.unit(), comparison),
    })
}

fn table(page: &Page, ranking: &Ranking, place: &str) -> Table {
    let axis = forest::axis(ranking);
    let id = format!("{place}-{}", chart_id("forest", ranking.metric, ranking.load));
    let head = axis.map(|axis| forest::head(&axis, &id, ranking.metric.higher_is_better()));
    let rows = (1_u32..).zip(&ranking.rows).map(|(number, row)| {
        let name = page.name(row.candidate);
        let against = row.comparison.as_ref().zip(axis).map(|(comparison, axis)| {
            let drawn = forest::row(&axis, &format!("{id}-{number}"), &name, comparison);
            against(comparison, ranking.metric, drawn)
        });
        finished_row(page, ranking, row, number, against)
    });
    Table {
        caption: ranking.load.to_string(),
        statistic: ranking.statistic.clone(),
        summary: summary(page, ranking),
        head: head.unwrap_or_default(),
        rows: rows.collect(),
    }
}

fn finished_row(
    page: &Page,
    ranking: &Ranking,
    row: &RankingRow,
    number: u32,
    against: Option<BaselineComparison>,
) -> Row {
    let unit = ranking.metric.unit();
    let keeps_limit = page.candidate(row.candidate).and_then(|candidate| candidate.keeps_limit);
    Row {
        place: number.to_string(),
        name: Name::new(page, row.candidate),
        limit: keeps_limit.map(|keeps| if keeps { "keeps the limit" } else { "breaks the limit" }),
        blocks: row.blocks.to_string(),
        median: format::maybe(row.median, unit),
        worst: format::maybe(row.worst, unit),
        against,
    }
}

fn against(comparison: &Comparison, metric: Metric, forest: String) -> BaselineComparison {
    let why = match &comparison.verdict {
        Verdict::Unknown(why) => why.clone(),
        Verdict::Better | Verdict::Same | Verdict::Worse => change(metric.unit(), comparison),
    };
    BaselineComparison {
        forest,
        ratio: format::ratio(comparison.ratio),
        interval: format!(
            "{} to {}",
            format::ratio(comparison.low),
            format::ratio(comparison.high)
        ),
        p: comparison.p_holm.map_or_else(|| format::MISSING.to_owned(), format::probability),
        class: forest::verdict_class(&comparison.verdict),
        sign: forest::verdict_sign(&comparison.verdict),
        word: forest::verdict_word(&comparison.verdict),
        why,
    }
}

/// `best: low-latency, 1.21 ms`.
fn summary(page: &Page, ranking: &Ranking) -> String {
    match ranking.rows.first() {
        None => "not measured".to_owned(),
        Some(row) => {
            let median = format::maybe(row.median, ranking.metric.unit());
            format!("first: {}, median {median}", page.name(row.candidate))
        }
    }
}
