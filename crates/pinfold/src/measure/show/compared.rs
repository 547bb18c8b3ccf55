//! Tables and JSON of comparisons: two sides, or our probe and a reference tool.

use pinfold_model::text::count_noun;
use pinfold_report::format::{self, MISSING};
use pinfold_run::measure::{ComparedSides, CrossCheck, Reported};
use pinfold_stats::compare::{Comparison, Outcome, Row};
use pinfold_stats::{Interval, Verdict};
use serde_json::{Value, json};

use super::json::steal_value;
use super::{KEPT, common, labels_line, own_words, words_of};
use crate::output::Tone;
use crate::screen;

/// The result in one line: the number of figures in which the first side is better.
pub fn answer(found: &Comparison) -> (Tone, String) {
    let better = count_verdicts(|verdict| matches!(verdict, Verdict::Better), found);
    let worse = count_verdicts(|verdict| matches!(verdict, Verdict::Worse), found);
    let same = count_verdicts(|verdict| matches!(verdict, Verdict::Same), found);
    let rest = found.rows.len().saturating_sub(better + worse + same);
    let counts = format!(
        "of {} better in {better}, worse in {worse}, the same in {same}; {rest} not settled",
        count_noun(found.rows.len(), "figure")
    );
    match (better, worse) {
        (0, 0) if rest == 0 => {
            (Tone::Good, format!("the first and the second are the same: {counts}"))
        }
        (0, 0) => (
            Tone::Mixed,
            format!("no difference is shown between the first and the second: {counts}"),
        ),
        (_, 0) => (Tone::Good, format!("the first is better: {counts}")),
        (0, _) => (Tone::Bad, format!("the first is worse: {counts}")),
        (_, _) => (
            Tone::Mixed,
            format!("the first is better in some figures and worse in others: {counts}"),
        ),
    }
}

fn count_verdicts(wanted: fn(&Verdict) -> bool, found: &Comparison) -> usize {
    let verdicts = found.rows.iter().filter_map(|row| match &row.outcome {
        Outcome::Verdict(verdict) => Some(verdict),
        Outcome::Contended(..)
        | Outcome::NotSteady(_)
        | Outcome::NoDirection
        | Outcome::NoRatio(_)
        | Outcome::UnequalTime(..)
        | Outcome::Lost(_) => None,
    });
    verdicts.filter(|verdict| wanted(verdict)).count()
}

/// Two sides, as text.
pub fn comparison(sides: &ComparedSides, found: &Comparison) -> String {
    let mut table = screen::rows();
    let common = common(found.rows.iter().map(words));
    let is_named =
        found.rows.iter().any(|row| !own_words(words(row), &common).join(", ").is_empty());
    let name = |name: String| is_named.then_some(name);
    let head = ["of", "first", "second", "first / second", "p", "the first is"].map(str::to_owned);
    table.set_header(name("figure".to_owned()).into_iter().chain(head));
    for row in &found.rows {
        table.add_row(name(own_words(words(row), &common).join(", ")).into_iter().chain([
            row.aspect.to_string(),
            side(row, row.first),
            side(row, row.second),
            ratio_text(row.ratio, row.interval),
            row.p_holm.map_or_else(|| MISSING.to_owned(), format::probability),
            row.outcome.to_string(),
        ]));
    }
    let first = 1 + usize::from(is_named);
    let table = screen::draw_table(table, first..first + 4);
    let probe = common.iter().find(|(name, _)| name.is_empty()).map(|(_, probe)| probe.clone());
    let labels = Some(labels_line(&common)).filter(|reported| !reported.is_empty());
    let shared = probe.into_iter().chain(labels).collect::<Vec<_>>().join(", ");
    let mut text = format!("first:  {}\nsecond: {}\n", sides.first, sides.second);
    text.push_str(&format!("\n{shared}\n{table}\n"));
    let blocks = count_noun(found.blocks, "block");
    text.push_str(&if found.rows.iter().all(|row| row.outcome == Outcome::NoDirection) {
        format!("{blocks}; for this figure neither direction is better\n")
    } else {
        format!(
            "{blocks}; better or worse needs {} (exact paired test, Holm over {}), same is ±2 %\n",
            found.needed,
            count_noun(found.rows.len(), "row")
        )
    });
    let [first, second] = &sides.stolen;
    if first.is_reportable() || second.is_reportable() {
        text.push_str(&format!("stolen time: first {first}; second {second}; {KEPT}\n"));
    }
    for line in found.unmatched.iter().chain(&sides.remarks) {
        text.push_str(&format!("{line}\n"));
    }
    text
}

fn words(row: &Row) -> Vec<(String, String)> {
    let mut labels = row.key.labels.clone();
    labels.extend(row.described.iter().map(|(name, sides)| (name.clone(), both(sides))));
    words_of(&row.key.probe, &labels)
}

/// What describes the machine of each side: once if it is the same.
fn both([first, second]: &[String; 2]) -> String {
    if first == second { first.clone() } else { format!("{first} / {second}") }
}

/// Two sides, as JSON.
pub fn comparison_json(sides: &ComparedSides, found: &Comparison) -> Value {
    json!({
        "format": "pinfold-comparison/1",
        "first": sides.first,
        "second": sides.second,
        "blocks": found.blocks,
        "blocks_needed": found.needed,
        "rows": found.rows.iter().map(|row| {
        let verdict = match &row.outcome {
            Outcome::Verdict(verdict) => Some(Verdict::word(verdict)),
            Outcome::Contended(..)
            | Outcome::NotSteady(_)
            | Outcome::NoDirection
            | Outcome::NoRatio(_)
            | Outcome::UnequalTime(..)
            | Outcome::Lost(_) => None,
        };
        json!({
            "probe": row.key.probe,
            "labels": row.key.labels,
            "described": row.described,
            "unit": row.unit.name(),
            "statistic": row.aspect.name(),
            "floor": row.floor,
            "first": row.first,
            "second": row.second,
            "ratio": row.ratio,
            "interval": row.interval.map(|found| [found.low, found.high]),
            "p_holm": row.p_holm,
            "verdict": verdict,
            "outcome": row.outcome.to_string(),
        })
    }).collect::<Vec<_>>(),
        "unmatched": found.unmatched,
        "stolen": sides.stolen.each_ref().map(steal_value),
        "remarks": sides.remarks,
    })
}

/// Our probe and a reference tool, as text.
pub fn cross_check(reported: &Reported, checks: &[CrossCheck]) -> String {
    let mut table = screen::rows();
    let head = [reported.probe, "of", "ours", reported.reference_tool, "ours / theirs [95 %]"];
    table.set_header(head);
    for check in checks {
        let middle = |values: &[f64]| format::maybe(pinfold_stats::median(values), check.unit);
        table.add_row([
            check.figure.clone(),
            check.statistic.name().to_owned(),
            middle(&check.ours),
            middle(&check.theirs),
            ratio_text(check.ratio(), check.interval()),
        ]);
    }
    let table = screen::draw_table(table, 2..5);
    let mut text = format!(
        "{} compared with {}: {}, {} in random order\n\n{table}\n",
        reported.probe,
        reported.reference_tool,
        reported.place,
        count_noun(reported.blocks, "block")
    );
    for line in &reported.remarks {
        text.push_str(&format!("{line}\n"));
    }
    text
}

/// Our probe and a reference tool, as JSON.
pub fn cross_check_json(reported: &Reported, checks: &[CrossCheck]) -> Value {
    json!({
        "format": "pinfold-cross-check/1",
        "probe": reported.probe,
        "anchor": reported.reference_tool,
        "place": reported.place,
        "blocks": reported.blocks,
        "rows": checks.iter().map(|check| {
        json!({
            "figure": check.figure,
            "statistic": check.statistic.name(),
            "unit": check.unit.name(),
            "ours": check.ours,
            "theirs": check.theirs,
            "ratio": check.ratio(),
            "interval": check.interval().map(|found| [found.low, found.high]),
        })
    }).collect::<Vec<_>>(),
        "remarks": reported.remarks,
    })
}

/// The value of one side; a value below the detection limit is not shown as 0.
fn side(row: &Row, value: Option<f64>) -> String {
    match (value, row.floor) {
        (Some(value), Some(floor)) if value < floor => {
            format!("< {}", format::value(floor, row.unit))
        }
        (value, _) => format::maybe(value, row.unit),
    }
}

/// The ratio with its interval, or without one for a single block.
fn ratio_text(ratio: Option<f64>, interval: Option<Interval>) -> String {
    let number = format::significant;
    match (ratio, interval) {
        (Some(ratio), Some(found)) => {
            format!("{} [{}, {}]", number(ratio), number(found.low), number(found.high))
        }
        (Some(ratio), None) => format!("{} [one block]", number(ratio)),
        (None, _) => MISSING.to_owned(),
    }
}
