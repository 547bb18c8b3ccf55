//! The result as plain text: for terminals, mails and commit messages.
//!
//! No escape codes; the table fits 100 columns for names of usual length, only
//! the reason of an unknown verdict may run on. Columns are aligned by counting
//! characters.

use crate::charts::forest;
use crate::format;
use crate::headline::headline;
use crate::page::{Page, RankingRow, Verdict};

/// The answer, the deciding ranking and what it does not say, in plain text.
#[must_use]
pub fn summary_text(page: &Page) -> String {
    let mut lines = Vec::new();
    lines.extend(page.banner.as_ref().map(|banner| format!("[{banner}]")));
    lines.push(format!("{}.", headline(page).sentence()));
    lines.push(String::new());
    if let Some(ranking) = page.deciding() {
        lines.push(format!("{}, {} ({}):", ranking.metric.name(), ranking.load, ranking.statistic));
        lines.extend(aligned(&table(page, &ranking.rows, ranking.metric.unit())));
        lines.push(String::new());
    }
    let alike = page.candidates.iter().filter(|candidate| !candidate.alike.is_empty());
    lines.extend(alike.map(|candidate| {
        let others = candidate.alike.join(", ");
        format!("{} is the same placement as {others}: measured once.", candidate.name)
    }));
    lines.extend(crate::sections::honesty::limits(page));
    lines.push(crate::sections::honesty::failed_words(page));
    lines.push(format!("Raw samples: {} (run {})", page.provenance.store, page.provenance.run));
    lines.push(format!("To repeat: {}", page.provenance.repeat));
    format::clean(&(lines.join("\n") + "\n"))
}

fn table(page: &Page, rows: &[RankingRow], unit: pinfold_model::Unit) -> Vec<Vec<String>> {
    let head = ["placement", "blocks", "median", "worst", "ratio (95 % interval)", "p", "verdict"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let against = row.comparison.as_ref();
        let missing = || format::MISSING.to_owned();
        let verdict = against.map_or_else(missing, |comparison| match &comparison.verdict {
            Verdict::Unknown(why) => format!("unknown: {why}"),
            Verdict::Better | Verdict::Same | Verdict::Worse => {
                forest::verdict_word(&comparison.verdict).to_owned()
            }
        });
        table.push(vec![
            page.name(row.candidate),
            row.blocks.to_string(),
            format::maybe(row.median, unit),
            format::maybe(row.worst, unit),
            against.map_or_else(missing, forest::interval),
            against.and_then(|it| it.p_holm).map_or_else(missing, format::probability),
            verdict,
        ]);
    }
    table
}

/// First and last column to the left, numbers to the right.
fn aligned(table: &[Vec<String>]) -> Vec<String> {
    let columns = table.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let width = |row: &Vec<String>| row.get(column).map_or(0, |it| it.chars().count());
            table.iter().map(width).max().unwrap_or(0)
        })
        .collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column == 0 || column + 1 == columns {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        format!("  {}", cells.collect::<Vec<_>>().join("  ")).trim_end().to_owned()
    };
    table.iter().map(line).collect()
}
