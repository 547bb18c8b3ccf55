//! Rows of a table: a benchmark, its reference tool, both values, their ratio with its interval,
//! and whether the goal of the row is reached.

use pinfold_stats::{Block, median, quantile, ratio_interval};

use crate::page::Table;
use crate::pairs::ratio;

/// The range in which the ratio should be.
#[derive(Clone, Copy)]
#[allow(dead_code, reason = "each group has goals of its own kind")]
pub enum Goal {
    /// Higher is better.
    AtLeast(f64),
    /// Lower is better.
    AtMost(f64),
    /// Both should have the same value.
    Within(f64, f64),
    /// A bound on our own value, independent of the reference tool.
    OursAtMost(f64),
    /// No goal: for comparison only.
    None,
}

/// One benchmark with one reference tool.
pub struct Row {
    /// Name of the benchmark.
    pub benchmark: String,
    /// Command of the benchmark.
    pub how: String,
    /// The reference tool; or that there is none, and why.
    pub reference_tool: String,
    /// One value per block, paired with those of the reference tool; empty if it cannot be measured
    /// here.
    pub ours: Vec<f64>,
    /// Values of the reference tool; empty without one.
    pub theirs: Vec<f64>,
    /// Formats a value, with its unit.
    pub text: fn(f64) -> String,
    /// The goal for the ratio.
    pub goal: Goal,
}

/// The table of the rows.
pub fn table(rows: &[Row]) -> Table {
    let head = [
        "benchmark",
        "how",
        "reference tool",
        "ours: median (5 % – 95 %)",
        "reference tool's: median (5 % – 95 %)",
        "ratio [95 %], p",
        "goal",
    ];
    Table {
        head: head.map(str::to_owned).to_vec(),
        rows: rows
            .iter()
            .map(|row| {
                vec![
                    row.benchmark.clone(),
                    row.how.clone(),
                    row.reference_tool.clone(),
                    spread(row.text, &row.ours),
                    spread(row.text, &row.theirs),
                    ratio(&row.ours, &row.theirs),
                    goal(row),
                ]
            })
            .collect(),
    }
}

fn spread(text: fn(f64) -> String, values: &[f64]) -> String {
    match (median(values), quantile(values, 0.05), quantile(values, 0.95)) {
        (Some(middle), Some(low), Some(high)) => {
            format!("{} ({} – {})", text(middle), text(low), text(high))
        }
        _ => "–".to_owned(),
    }
}

/// The goal, and whether the interval meets it.
fn goal(row: &Row) -> String {
    let mut blocks = pairs(&row.theirs, row);
    let (least, most, text) = match row.goal {
        Goal::AtLeast(least) => (least, f64::INFINITY, format!("≥ {least:.2}")),
        Goal::AtMost(most) => (0.0, most, format!("≤ {most:.2}")),
        Goal::Within(least, most) => (least, most, format!("{least:.2} – {most:.2}")),
        Goal::OursAtMost(most) => {
            // As a ratio to the bound, which has an interval too.
            blocks = pairs(&vec![most; row.ours.len()], row);
            (0.0, 1.0, format!("ours ≤ {}", (row.text)(most)))
        }
        Goal::None => return "–".to_owned(),
    };
    let word = match ratio_interval(&blocks) {
        Some(found) if found.low >= least && found.high <= most => "reached",
        Some(found) if found.high < least || found.low > most => "missed",
        Some(_) | None => "open",
    };
    format!("{text}: {word}")
}

fn pairs(theirs: &[f64], row: &Row) -> Vec<Block> {
    row.ours.iter().zip(theirs).map(|(ours, theirs)| Block::pair(*ours, *theirs)).collect()
}

#[cfg(test)]
mod tests {
    use super::{Goal, Row, goal};

    #[test]
    fn a_goal_is_reached_by_the_whole_interval_only() {
        fn check(ours: &[f64], wanted: Goal, expected: &str) {
            let row = Row {
                benchmark: String::new(),
                how: String::new(),
                reference_tool: String::new(),
                ours: ours.to_vec(),
                theirs: vec![1.0; ours.len()],
                text: |value| value.to_string(),
                goal: wanted,
            };
            assert_eq!(goal(&row), expected, "{ours:?}");
        }

        check(&[1.1, 1.2, 1.3], Goal::AtLeast(1.0), "≥ 1.00: reached");
        check(&[0.8, 1.2, 1.3], Goal::AtLeast(1.0), "≥ 1.00: open");
        check(&[1.1, 1.2, 1.3], Goal::AtMost(1.02), "≤ 1.02: missed");
        check(&[0.97, 1.0, 1.01], Goal::Within(0.95, 1.05), "0.95 – 1.05: reached");
        check(&[0.97], Goal::Within(0.95, 1.05), "0.95 – 1.05: open");
        check(&[2.0, 2.0], Goal::None, "–");
        check(&[0.1, 0.2], Goal::OursAtMost(0.2), "ours ≤ 0.2: reached");
        check(&[0.3, 0.4], Goal::OursAtMost(0.2), "ours ≤ 0.2: missed");
        check(&[0.1, 0.4], Goal::OursAtMost(0.2), "ours ≤ 0.2: open");
        check(&[], Goal::OursAtMost(0.2), "ours ≤ 0.2: open");
    }
}
