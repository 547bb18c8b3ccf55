//! The table as figures, for studies and comparisons.
//!
//! The kernel keeps sums and not single exits, so each figure has one sample: the count, the rate,
//! the mean and so on of one observation. Several observations give several samples.

use std::collections::BTreeMap;

use pinfold_model::{Family, Figure, Unit};

use super::table::{ExitTable, Row};

/// One figure for each number of each row, of all vCPUs together and of each. Labels: `type`,
/// `vcpu` (an index, or `all`), `level` and `statistic` (`count`, `per-second`, `mean`, `shortest`,
/// `longest`, `sum`, `deviation`, `share`). Unknown numbers have no figure.
#[must_use]
pub fn figures(table: &ExitTable) -> Vec<Figure> {
    let mut all = Vec::new();
    for vcpu in [&table.total].into_iter().chain(&table.vcpus) {
        let name = vcpu.vcpu.map_or_else(|| "all".to_owned(), |index| index.to_string());
        for row in &vcpu.rows {
            for (statistic, unit, value) in numbers(row) {
                let labels = [
                    ("type", row.name.clone()),
                    ("vcpu", name.clone()),
                    ("level", table.level.letter().to_owned()),
                    ("statistic", statistic.to_owned()),
                ];
                all.push(Figure {
                    probe: "exits".to_owned(),
                    labels: BTreeMap::from(labels.map(|(key, value)| (key.to_owned(), value))),
                    unit,
                    family: Family::Count,
                    cpu: vcpu.vcpu,
                    duration_ns: table.duration_ns,
                    samples: vec![value],
                    dropped: 0,
                    disturbed: 0,
                    flags: Vec::new(),
                });
            }
        }
    }
    all
}

fn numbers(row: &Row) -> Vec<(&'static str, Unit, f64)> {
    let mut found = vec![
        ("count", Unit::Count, row.count as f64),
        ("per-second", Unit::PerSecond, row.per_second),
    ];
    if let Some(times) = &row.times {
        found.extend([
            ("mean", Unit::Nanoseconds, times.mean_ns),
            ("shortest", Unit::Nanoseconds, times.shortest_ns as f64),
            ("longest", Unit::Nanoseconds, times.longest_ns as f64),
            ("sum", Unit::Nanoseconds, times.sum_ns as f64),
            ("share", Unit::Share, times.share),
        ]);
        found.extend(times.deviation_ns.map(|value| ("deviation", Unit::Nanoseconds, value)));
    }
    found
}
