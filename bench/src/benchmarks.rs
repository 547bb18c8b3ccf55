//! `benchmarks`: the accuracy of Pinfold's benchmarks, each compared with the best reference tool.
//!
//! A group measures one kind of quantity (memory, latency) and returns rows: the benchmark, its
//! command, the reference tool, both values, and their ratio with its interval. The rows of a group
//! are a section of `docs/benchmarks.md`. A new group needs a file in `benchmarks/` and a line in
//! [`GROUPS`].

mod counters;
mod exits;
mod inventory;
mod io;
mod latency;
mod memory;
mod observe;
mod os;

use std::io::Write as _;

use pinfold_host::process::{Spawn, own_tid};
use pinfold_host::{Host as _, LiveHost, paths};
use pinfold_model::PuId;
use pinfold_stats::{Block, median, quantile, ratio_interval};

use crate::arguments::{Arguments, Failure};
use crate::page::{Figures, Table};
use crate::pairs::ratio;
use crate::{origin, page};

const PAGE: &str = "docs/benchmarks.md";

const HEAD: &str = "\
# Accuracy of the benchmarks

Each benchmark of Pinfold is compared with the best reference tool for its purpose, in the same run, block by block in random order.
This page is written by `cargo xtask bench benchmarks --write`; `cargo xtask bench benchmarks --only memory --write` replaces one section.
A ratio is Pinfold's value over that of the reference tool, the median over the blocks, with the 95 % interval of a bootstrap over them; p is that of the exact paired test.
A goal is *reached* if the whole interval meets it, *missed* if none of it does, else *open*.
If there is no reference tool, the reason is given, and only Pinfold's values are listed.
";

type Measure = fn(&Arguments) -> Result<Measured, Failure>;

/// Name, title and measurement of each group; `--only` selects some of them.
const GROUPS: &[(&str, &str, Measure)] = &[
    ("inventory", "every benchmark, its reference tool, and where its rows are", inventory::run),
    ("latency", "known stalls, and wake-ups", latency::run),
    ("memory", "bandwidth, STREAM and latency of memory", memory::run),
    ("area", "loads by area, around the last-level cache", memory::area::run),
    ("repeat", "how far runs of the memory benchmarks lie apart", memory::repeat),
    ("os", "context switches, system calls and what lies between processes", os::run),
    ("io", "reads of a disk", io::run),
    ("counters", "what the kernel counts of a process", counters::run),
    ("exits", "exits of a virtual machine", exits::run),
    ("observe", "the cost of being observed", observe::run),
];

/// The result of a group.
pub struct Measured {
    /// The conditions in addition to the machine, in one line: versions, blocks, the CPU, the seed.
    pub conditions: String,
    /// The table above the notes.
    pub table: Table,
    /// The notes, one sentence each.
    pub notes: Vec<String>,
}

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

/// Measures the groups, prints each and writes it to the page.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let chosen: Vec<&str> = match &arguments.only {
        Some(names) => names.split(',').map(str::trim).collect(),
        None => GROUPS.iter().map(|(name, ..)| *name).collect(),
    };
    if let Some(name) = chosen.iter().find(|name| GROUPS.iter().all(|(known, ..)| known != *name)) {
        let known: Vec<&str> = GROUPS.iter().map(|(name, ..)| *name).collect();
        return Err(format!(
            "--only: {name} is no group of the benchmarks; known: {}",
            known.join(", ")
        )
        .into());
    }
    let host = LiveHost::new()?;
    let machine = origin::of_host(&host, &pinfold_topology::discover(&host)?)?;
    for (name, title, measure) in GROUPS.iter().filter(|(name, ..)| chosen.contains(name)) {
        let measured = measure(arguments)?;
        let load = host.read_text(&paths::load_average())?;
        let load = load.split(' ').next().unwrap_or("unknown");
        let section = Figures {
            name: (*name).to_owned(),
            title: (*title).to_owned(),
            origin: format!("{machine}, load average {load} at the end; {}", measured.conditions),
            tables: vec![measured.table],
            notes: measured.notes,
        }
        .to_markdown();
        std::io::stdout().write_all(section.as_bytes())?;
        // Written after each group, so that a later failure loses nothing.
        if let Some(file) = &arguments.write {
            page::put(file.as_deref().unwrap_or(PAGE), HEAD, name, &section)?;
        }
    }
    Ok(())
}

/// Path of perf.
fn perf() -> Result<String, Failure> {
    let perf = pinfold_host::process::find_program("perf");
    Ok(perf.ok_or("perf is not here: apt-get install linux-perf")?)
}

/// The version that perf reports.
fn version(perf: &str) -> Result<String, Failure> {
    const MINUTE_NS: u64 = 60_000_000_000;
    let output = Spawn::new(perf).args(["--version"]).capture(MINUTE_NS)?;
    Ok(output.stdout_text().trim().to_owned())
}

/// perf mounts tracefs if it is not mounted: done in a separate mount namespace.
fn perf_in_own_mounts() -> Spawn {
    Spawn::new("unshare").args(["--mount", "perf"]).env("LC_ALL", "C")
}

/// The CPU for the benchmarks: the last one, because most machines handle interrupts on the first
/// ones.
fn last_pu() -> Result<PuId, Failure> {
    let own = LiveHost::new()?.affinity(own_tid())?;
    own.iter().last().ok_or_else(|| "no CPU may be used".into())
}

fn table(rows: &[Row]) -> Table {
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
    let pairs = |theirs: &[f64]| -> Vec<Block> {
        row.ours.iter().zip(theirs).map(|(ours, theirs)| Block::pair(*ours, *theirs)).collect()
    };
    let mut blocks = pairs(&row.theirs);
    let (least, most, text) = match row.goal {
        Goal::AtLeast(least) => (least, f64::INFINITY, format!("≥ {least:.2}")),
        Goal::AtMost(most) => (0.0, most, format!("≤ {most:.2}")),
        Goal::Within(least, most) => (least, most, format!("{least:.2} – {most:.2}")),
        Goal::OursAtMost(most) => {
            // As a ratio to the bound, which has an interval too.
            blocks = pairs(&vec![most; row.ours.len()]);
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

#[cfg(test)]
mod tests {
    use super::{Goal, Row, goal};

    #[test]
    fn a_goal_is_reached_by_the_whole_interval_only() {
        let check = |ours: &[f64], wanted: Goal, expected: &str| {
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
        };
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
