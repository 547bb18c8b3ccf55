//! The result as texts, for terminals.

use crate::charts::forest;
use crate::format;
use crate::headline::headline;
use crate::page::{Page, RankingRow, Verdict};

/// The parts of the result; the caller lays out the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// A banner such as emulation, if it is not an ordinary run.
    pub banner: Option<String>,
    /// The answer, one sentence.
    pub answer: String,
    /// Caption of the table.
    pub caption: Option<String>,
    /// The ranking with its header: a name, five numeric columns, a verdict.
    pub rows: Vec<Vec<String>>,
    /// Equal placements, limitations, failed starts, where the samples are, and how to repeat the
    /// run.
    pub notes: Vec<String>,
}

/// The parts of the result.
///
/// ```
/// fn answer(page: &pinfold_report::Page) -> String {
///     pinfold_report::summary(page).answer
/// }
/// ```
pub fn summary(page: &Page) -> Summary {
    let deciding = page.deciding();
    let alike = page.candidates.iter().filter(|candidate| !candidate.alike.is_empty());
    let mut notes: Vec<String> = alike
        .map(|candidate| {
            let others = candidate.alike.join(", ");
            format!("{} is the same placement as {others}: measured once.", candidate.name)
        })
        .collect();
    notes.extend(crate::sections::limitations::limits(page));
    notes.push(crate::sections::limitations::failed_words(page));
    notes.push(format!("Raw samples: {} (run {})", page.provenance.store, page.provenance.run));
    notes.push(format!("To repeat: {}", page.provenance.repeat));
    Summary {
        banner: page.banner.as_ref().map(|banner| clean(format!("[{banner}]"))),
        answer: clean(format!("{}.", headline(page).sentence())),
        caption: deciding.map(|ranking| {
            clean(format!("{}, {} ({}):", ranking.metric.name(), ranking.load, ranking.statistic))
        }),
        rows: deciding.map_or_else(Vec::new, |ranking| {
            let rows = table(page, &ranking.rows, ranking.metric.unit());
            rows.into_iter().map(|row| row.into_iter().map(clean).collect()).collect()
        }),
        notes: notes.into_iter().map(clean).collect(),
    }
}

fn clean(text: String) -> String {
    format::clean(&text)
}

fn table(page: &Page, rows: &[RankingRow], unit: pinfold_model::Unit) -> Vec<Vec<String>> {
    let head = ["placement", "blocks", "median", "worst", "ratio (95 % interval)", "p", "verdict"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let against = row.comparison.as_ref();
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

fn missing() -> String {
    format::MISSING.to_owned()
}
