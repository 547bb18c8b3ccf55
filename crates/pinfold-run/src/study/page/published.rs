//! The table of the source's values next to those of the run.

use pinfold_report::{PageTable, format};
use pinfold_study::study::{Analysis, MeasuredNumber, PublishedValue};

const HEADER: [&str; 5] = ["in the source", "quantity", "source", "here", "here / source"];
const NOTE: &str = "Times, rates and counts of the source are of another machine: they are shown, \
                    but not judged. Ratios hold on any machine. In brackets the 95 % interval, \
                    widened by the noise floor; it needs six blocks.";

/// The table, if the study has values of its source.
pub(super) fn table(analysis: &Analysis) -> Option<PageTable> {
    let values = &analysis.loaded.study.published;
    let rows: Vec<Vec<String>> = values.iter().map(|value| row(analysis, value)).collect();
    let title = "The source's values next to ours";
    (!rows.is_empty())
        .then(|| PageTable::new("source-values", title, 2, &HEADER, rows).with_note(NOTE))
}

fn row(analysis: &Analysis, published: &PublishedValue) -> Vec<String> {
    let mut source = number(published, published.value);
    if !published.spread.is_empty() {
        source.push_str(&format!(" ({})", published.spread));
    }
    let (here, factor) = match analysis.measured_number(published) {
        Ok(measured) => {
            (with_interval(published, measured), format::ratio(measured.value / published.value))
        }
        Err(_) => ("not measured here".to_owned(), format::MISSING.to_owned()),
    };
    vec![published.place.clone(), published.quantity.clone(), source, here, factor]
}

fn with_interval(published: &PublishedValue, measured: MeasuredNumber) -> String {
    let value = number(published, measured.value);
    match measured.interval {
        Some(range) => {
            format!("{value} [{}, {}]", number(published, range.low), number(published, range.high))
        }
        None => value,
    }
}

fn number(published: &PublishedValue, number: f64) -> String {
    published.unit.map_or_else(|| format::ratio(number), |unit| format::value(number, unit))
}
