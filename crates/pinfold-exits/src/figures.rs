//! The table as figures, for studies and comparisons.
//!
//! The kernel keeps sums and not single exits, so each figure has one sample: the count, the rate,
//! the mean and so on of one observation. Several observations give several samples.

use std::collections::BTreeMap;

use pinfold_model::{Family, Figure, Unit};

use crate::table::{ASLEEP, ExitTable, Kind, PREEMPTED, Row, Vcpu};

/// One figure for each number of each row, of all vCPUs together and of each. Labels: `type`,
/// `vcpu` (an index, or `all`), `level` and `statistic` (`count`, `per-second`, `mean`, `shortest`,
/// `longest`, `sum`, `deviation`, `share`). Unknown numbers have no figure. Where times are known,
/// a vCPU that never lost its CPU has `DESCHEDULED` figures of 0, so that a rule can subtract them.
pub fn figures(table: &ExitTable) -> Vec<Figure> {
    let mut all = Vec::new();
    for vcpu in [&table.total].into_iter().chain(&table.vcpus) {
        let name = vcpu.vcpu.map_or_else(|| "all".to_owned(), |index| index.to_string());
        let never = never_descheduled(vcpu);
        for row in vcpu.rows.iter().chain(&never) {
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

/// Rows of zeros for the kinds of DESCHEDULED that did not occur, if the vCPU has rows with times.
fn never_descheduled(vcpu: &Vcpu) -> Vec<Row> {
    if !vcpu.rows.iter().any(|row| row.kind == Kind::Guest && row.times.is_some()) {
        return Vec::new();
    }
    let kinds = [(PREEMPTED, Kind::Preempted), (ASLEEP, Kind::Asleep)];
    let absent = kinds.into_iter().filter(|(_, kind)| vcpu.rows.iter().all(|it| it.kind != *kind));
    absent
        .map(|(name, kind)| Row {
            name: name.to_owned(),
            kind,
            count: 0,
            per_second: 0.0,
            times: None,
        })
        .collect()
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
    if row.count == 0 {
        found.push(("share", Unit::Share, 0.0));
    }
    found
}
