//! `pinfold emulate verify`: requested against achieved speed of a vnode.

use pinfold_run::emulate::verify::{self, DiskRow, Effort, Row, Verification};
use pinfold_run::{Failure, host};
use serde_json::{Value, json};

use crate::cli::emulate::VerifyArgs;
use crate::output::{print_data, print_message, show};
use crate::screen;

/// Measures and prints.
pub fn verify(arguments: &VerifyArgs, state: Option<&str>) -> Result<(), Failure> {
    let repetitions = arguments.repetitions;
    let effort = Effort { repetitions, is_quick: arguments.quick };
    let found = verify::verify(&host::state(state)?, &arguments.vnode, effort)?;
    if arguments.json {
        print_data(&to_json(&found).to_string());
    } else {
        show(&to_text(found.requested_speed(), &found.rows));
        if !found.disk.is_empty() {
            show(&disk_text(&found.disk));
        }
        found.remarks(repetitions).iter().for_each(|remark| print_message(remark));
    }
    Ok(())
}

fn to_json(found: &Verification) -> Value {
    let requested = found.requested_speed();
    json!({
        "format": "pinfold-verification/1",
        "vnode": found.vnode,
        "method": found.method,
        "pus": found.asked.iter().map(|(pu, speed)| json!({ "pu": pu, "asked": speed })).collect::<Vec<_>>(),
        "benchmarks": found.rows.iter().map(|row| {
        let reported = row.achieved_speed();
        json!({
            "benchmark": row.name,
            "requested": requested,
            "achieved": reported.map(|(achieved, _)| achieved),
            "interval": reported.and_then(|(_, interval)| interval).map(|(low, high)| [low, high]),
            "error_points": reported.map(|(achieved, _)| (achieved - requested) * 100.0),
            "rates_per_second": row.pairs.iter().map(|(slow, full)| json!({ "vnode": slow, "full": full })).collect::<Vec<_>>(),
        })
    }).collect::<Vec<_>>(),
        "disk": found.disk.iter().map(|row| json!({
            "operation": if row.is_write { "write" } else { "read" },
            "block_bytes": row.block,
            "unit": if row.is_bytes { "bytes" } else { "operations" },
            "requested": row.requested,
            "achieved": row.achieved_rate().map(|(median, ..)| median),
            "rates_per_second": row.pairs.iter().map(|(inside, full)| json!({ "vnode": inside, "full": full })).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
    })
}

fn disk_text(rows: &[DiskRow]) -> String {
    let mut table = screen::rows();
    table.set_header(["disk", "requested", "achieved", "range", "without the limit"]);
    for row in rows {
        let (scale, unit) = if row.is_bytes { (1e6, "MB/s") } else { (1.0, "/s") };
        let (achieved, range) = match row.achieved_rate() {
            Some((median, least, most)) => (
                format!("{:.1} {unit}", median / scale),
                format!("{:.1} to {:.1}", least / scale, most / scale),
            ),
            None => ("no work was done".to_owned(), String::new()),
        };
        let full = row.full().map(|full| format!("{:.1} {unit}", full / scale)).unwrap_or_default();
        let requested = format!("{:.1} {unit}", row.requested as f64 / scale);
        table.add_row([row.name(), requested, achieved, range, full]);
    }
    screen::draw_table(table, 1..5)
}

fn to_text(requested: f64, rows: &[Row]) -> String {
    let mut table = screen::rows();
    table.set_header(["benchmark", "requested", "achieved", "95 % interval", "error"]);
    for row in rows {
        let (achieved, interval, error) = match row.achieved_speed() {
            Some((achieved, interval)) => (
                percent(achieved),
                interval.map_or_else(
                    || "one run".to_owned(),
                    |(low, high)| format!("{} to {}", percent(low), percent(high)),
                ),
                format!("{:+.2} points", (achieved - requested) * 100.0),
            ),
            None => ("no work was done".to_owned(), String::new(), String::new()),
        };
        table.add_row([row.name.to_owned(), percent(requested), achieved, interval, error]);
    }
    screen::draw_table(table, 1..4)
}

fn percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_in_points() {
        let text = to_text(0.3, &[Row { name: "cpu", pairs: vec![(1.0, 4.0)] }]);
        assert!(text.contains("-5.00 points") && text.contains("one run"), "{text}");
    }

    #[test]
    fn a_disk_has_its_limit_and_what_it_does_without() {
        let row = DiskRow {
            is_write: true,
            block: 4096,
            is_bytes: false,
            requested: 500,
            pairs: vec![(499.0, 9000.0), (501.0, 8000.0)],
        };
        let text = disk_text(&[row]);
        for part in ["write, 4 KiB", "500.0 /s", "499.0 to 501.0", "8500.0 /s"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
