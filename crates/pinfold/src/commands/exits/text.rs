//! The table of exits as text and as JSON.

use pinfold_exits::{AddressRow, ExitTable, Kind, Row, Vcpu};
use pinfold_host::Address;
use pinfold_report::format;
use serde_json::{Value, json};

use crate::cli::exits::ExitObservationArgs;
use crate::{output, screen};
use pinfold_exits::expected::Expected;
use pinfold_run::exits::Answer;

/// Number of addresses of each kind that are shown for the micro-guest.
const ADDRESSES: usize = 5;

/// The answer as text.
pub fn table(answer: &Answer, how: &ExitObservationArgs) -> String {
    let table = &answer.table;
    let level = table.level;
    let mut text = format!(
        "{}, {} s, level {}: {}\n\n",
        output::name(&answer.subject),
        three(table.duration_ns as f64 / 1e9),
        level.letter(),
        level.meaning()
    );
    text.push_str(&rows(&table.total));
    for vcpu in table.vcpus.iter().filter(|_| how.per_vcpu) {
        let index = vcpu.vcpu.unwrap_or(0);
        if vcpu.rows.is_empty() {
            text.push_str(&format!("\n\nvCPU {index}: no exits"))
        } else {
            text.push_str(&format!("\n\nvCPU {index}\n{}", rows(vcpu)))
        }
    }
    let shown = how.top.or_else(|| (!answer.expected.is_empty()).then_some(ADDRESSES));
    text.push_str(&addresses(&table.addresses, shown.unwrap_or(0)));
    text.push_str(&expected_text(&answer.expected));
    text.push_str(&cost(answer));
    for finding in &table.findings {
        text.push_str(&format!("\n\n{}: {}", finding.severity, finding.text));
        if let Some(hint) = &finding.hint {
            text.push_str(&format!("\n  {hint}"));
        }
    }
    text
}

fn rows(vcpu: &Vcpu) -> String {
    if vcpu.rows.is_empty() {
        return "no exits".to_owned();
    }
    let has_times = vcpu.rows.iter().any(|row| row.times.is_some());
    let mut table = screen::rows();
    if has_times {
        table.set_header([
            "type",
            "count",
            "per s",
            "min\nµs",
            "mean\nµs",
            "max\nµs",
            "std dev\nµs",
            "sum\nms",
            "share\n%",
        ])
    } else {
        table.set_header(["type", "count", "per s"])
    };
    for row in &vcpu.rows {
        let mut cells = vec![row.name.clone(), group_digits(row.count), three(row.per_second)];
        if let Some(times) = &row.times {
            cells.extend([
                micro(times.shortest_ns as f64),
                micro(times.mean_ns),
                micro(times.longest_ns as f64),
                times.deviation_ns.map_or("–".to_owned(), micro),
                three(times.sum_ns as f64 / 1e6),
                three(times.share * 100.0),
            ]);
        }
        table.add_row(cells);
    }
    screen::draw_table(table, 1..if has_times { 9 } else { 3 })
}

fn micro(ns: f64) -> String {
    three(ns / 1e3)
}

fn addresses(all: &[AddressRow], top: usize) -> String {
    let mut text = String::new();
    for title in [PORTS, MMIO, REGISTERS] {
        let found: Vec<&AddressRow> =
            all.iter().filter(|row| title_of(row.address) == title).collect();
        if found.is_empty() || top == 0 {
            continue;
        }
        let shown: Vec<String> = found
            .iter()
            .take(top)
            .map(|row| {
                let way = if row.is_write { "write" } else { "read" };
                format!("{} {way} × {}", address(row.address), group_digits(row.count))
            })
            .collect();
        let rest = found.len().saturating_sub(top);
        let rest = if rest > 0 { format!(", and {rest} more") } else { String::new() };
        text.push_str(&format!("\n\n{title}: {}{rest}", shown.join(", ")));
    }
    text
}

const PORTS: &str = "I/O ports";
const MMIO: &str = "MMIO addresses";
const REGISTERS: &str = "registers (MSR, system registers)";

fn title_of(address: Address) -> &'static str {
    match address {
        Address::Port(_) => PORTS,
        Address::Mmio(_) => MMIO,
        Address::Register(_) => REGISTERS,
    }
}

/// An Arm system register in assembler syntax.
fn address(address: Address) -> String {
    match address {
        Address::Port(at) | Address::Mmio(at) => format!("{at:#x}"),
        Address::Register(number) if std::env::consts::ARCH == "aarch64" => {
            let part = |shift: u32| (number >> shift) & 0xf;
            format!("S{}_{}_C{}_C{}_{}", part(16), part(12), part(8), part(4), part(0))
        }
        Address::Register(number) => format!("{number:#x}"),
    }
}

fn expected_text(rows: &[Expected]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let lines = rows.iter().map(|row| match row.counted {
        Some(counted) if counted == row.expected => {
            format!(
                "{} of {} {}: exact",
                group_digits(counted),
                group_digits(row.expected),
                row.what
            )
        }
        Some(counted) => {
            format!(
                "{} of {} {}: WRONG",
                group_digits(counted),
                group_digits(row.expected),
                row.what
            )
        }
        None => format!("{} {}: not visible at this level", group_digits(row.expected), row.what),
    });
    format!("\n\nexits of the micro-guest: {}", lines.collect::<Vec<_>>().join("; "))
}

fn cost(answer: &Answer) -> String {
    let table = &answer.table;
    let Some(cost) = &table.cost else {
        let why = answer.no_cost.as_deref().unwrap_or("it was not requested");
        return format!("\n\nThe overhead was not measured: {why}");
    };
    let mut text = format!(
        "\n\nOverhead: {} per event, {} per exit ({} events{}, {} µs unobserved). Median and 95 % \
         interval of {} pairs with and without observation. Each value is the fastest of {} runs \
         of {} exits.",
        interval(&cost.per_event_ns),
        interval(&cost.per_exit_ns),
        three(cost.events_per_exit),
        if answer.scope.is_some_and(|scope| scope.addresses) {
            " with those of addresses"
        } else {
            ""
        },
        three(cost.unwatched_ns / 1e3),
        cost.pairs,
        cost.runs,
        group_digits(cost.exits.into()),
    );
    if let (Some(events @ 1..), Some(share)) = (table.events, table.cost_share()) {
        text.push_str(&format!(
            " Here: {} events, {} % of the vCPUs' time.",
            group_digits(events),
            three(share * 100.0)
        ));
    }
    text
}

fn interval(of: &pinfold_exits::cost::Interval) -> String {
    fn micro(ns: f64) -> String {
        three(ns / 1e3)
    }
    format!("{} µs ({} to {})", micro(of.median), micro(of.low), micro(of.high))
}

/// The answer as JSON; times in nanoseconds, unknown values are null.
pub fn json(answer: &Answer) -> Value {
    fn interval(of: &pinfold_exits::cost::Interval) -> Value {
        json!({"median_ns": of.median, "low_ns": of.low, "high_ns": of.high})
    }

    let table = &answer.table;
    let cost = table.cost.as_ref().map(|cost| {
        json!({
            "per_event": interval(&cost.per_event_ns),
            "per_exit": interval(&cost.per_exit_ns),
            "unwatched_exit_ns": cost.unwatched_ns,
            "events_per_exit": cost.events_per_exit,
            "pairs": cost.pairs,
            "runs": cost.runs,
            "exits_of_a_run": cost.exits,
            "share_of_time": table.cost_share(),
        })
    });
    let expected: Vec<Value> = answer
        .expected
        .iter()
        .map(|row| json!({"what": row.what, "expected": row.expected, "counted": row.counted}))
        .collect();
    json!({
        "format": "pinfold-exits/1",
        "subject": answer.subject,
        "level": table.level.letter(),
        "level_means": table.level.meaning(),
        "duration_ns": table.duration_ns,
        "rows": json_rows(&table.total),
        "vcpus": table.vcpus.iter().map(|vcpu| json!({"vcpu": vcpu.vcpu, "rows": json_rows(vcpu)})).collect::<Vec<_>>(),
        "addresses": table.addresses.iter().map(json_address).collect::<Vec<_>>(),
        "events": table.events,
        "cost": cost,
        "cost_not_measured_because": answer.no_cost,
        "expected": expected,
        "findings": findings(table),
    })
}

fn json_rows(vcpu: &Vcpu) -> Vec<Value> {
    vcpu.rows.iter().map(json_row).collect()
}

fn json_row(row: &Row) -> Value {
    let kind = match row.kind {
        Kind::Exit => "exit",
        Kind::Guest => "guest",
        Kind::Preempted => "preempted",
        Kind::Asleep => "asleep",
    };
    json!({
        "type": row.name,
        "kind": kind,
        "count": row.count,
        "per_second": row.per_second,
        "min_ns": row.times.map(|times| times.shortest_ns),
        "mean_ns": row.times.map(|times| times.mean_ns),
        "max_ns": row.times.map(|times| times.longest_ns),
        "std_dev_ns": row.times.and_then(|times| times.deviation_ns),
        "sum_ns": row.times.map(|times| times.sum_ns),
        "share": row.times.map(|times| times.share),
    })
}

fn json_address(row: &AddressRow) -> Value {
    let (kind, number) = match row.address {
        Address::Port(number) => ("port", number),
        Address::Mmio(number) => ("mmio", number),
        Address::Register(number) => ("register", number),
    };
    json!({
        "kind": kind,
        "address": number,
        "access": if row.is_write { "write" } else { "read" },
        "count": row.count,
    })
}

fn findings(table: &ExitTable) -> Vec<Value> {
    table.findings.iter().map(|finding: &pinfold_model::Finding| json!({"severity": finding.severity.to_string(), "text": finding.text, "hint": finding.hint})).collect()
}

/// Three significant digits, without an exponent.
fn three(value: f64) -> String {
    match value.abs() {
        small if small < 0.0005 => "0".to_owned(),
        small if small < 1.0 => format!("{value:.3}"),
        middle if middle < 10.0 => format!("{value:.2}"),
        large if large < 100.0 => format!("{value:.1}"),
        _ => {
            let whole = format!("{:.0}", value.abs());
            let sign = if value < 0.0 { "-" } else { "" };
            format!("{sign}{}", format::group_digits(&whole, ','))
        }
    }
}

fn group_digits(number: u64) -> String {
    format::group_digits(&number.to_string(), ',')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_grouped() {
        check(0.0, "0");
        check(0.0421, "0.042");
        check(5.0, "5.00");
        check(-12.34, "-12.3");
        check(1_234_567.8, "1,234,568");
        check(-1234.0, "-1,234");
        assert_eq!(
            (group_digits(0), group_digits(999), group_digits(1000)),
            ("0".into(), "999".into(), "1,000".into())
        );
    }

    fn check(value: f64, expected: &str) {
        assert_eq!(three(value), expected, "{value}")
    }
}
