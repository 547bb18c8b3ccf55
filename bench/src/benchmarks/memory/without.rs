//! Memory benchmarks that are compared with plain code only, or with nothing: the linear chase,
//! partial lines, latency under load, and the 64 MB loop.

use pinfold_host::{Host as _, LiveHost, process};
use pinfold_model::{CpuSet, Figure, Unit};
use pinfold_probe::figures::Instrument;
use pinfold_probe::memory::{Bandwidth, Chase, Loads, Loop64, Operation, Order, Sizes, Width};
use pinfold_probe::os::Intmix;

use super::{Bench, Best, CHASE_WINDOWS, Match, ReferenceTool, WINDOWS};
use crate::arguments::Failure;
use crate::benchmarks::Goal;

const NO_PARTIAL: &str = "none, because those of lmbench, which define them, are in no free package, and likwid-bench has no kernels for parts of lines";
const NO_FILL: &str = "none, because it measures the C library's memset itself";
const NO_LOAD: &str =
    "none, because what measures it (multichase, Intel's MLC) is in no free package";
const NO_LOOP: &str = "none, because Kuehn and Baum published no program of theirs";
const NO_MACHINE: &str = "none, because it shows how much the machine itself changes";
/// Memory of the copying thread: larger than its own caches.
const LOAD_MIB: u32 = 64;
/// Less than one second, because of real-time throttling.
const LOOP_NS: u64 = 800_000_000;
const PARTIAL: [Operation; 5] = [
    Operation::ReadPartial,
    Operation::WritePartial,
    Operation::ModifyPartial,
    Operation::CopyPartial,
    Operation::Fill,
];

/// All of them, and what cannot be measured here.
pub fn matches(bench: &Bench, caches: &[u64]) -> Result<(Vec<Match>, Option<String>), Failure> {
    let levels = super::levels(caches);
    let mut matches: Vec<Match> =
        levels.iter().map(|(level, bytes, _)| linear(bench, level, *bytes)).collect();
    for (level, bytes, _) in &levels {
        matches.extend(PARTIAL.map(|operation| partial(bench, operation, (level, *bytes))));
    }
    matches.extend([passes(bench), machine(bench)?]);
    let memory = levels.last().map_or(0, |(_, bytes, _)| *bytes);
    let own = LiveHost::new()?.affinity(process::own_tid())?;
    let Some(other) = own.iter().find(|pu| *pu != bench.pu) else {
        let lack = "The chase under load has no row, because it takes a second CPU.";
        return Ok((matches, Some(lack.to_owned())));
    };
    let loads =
        Loads { threads: 1, pus: vec![other], node: None, mib: LOAD_MIB, delays_ns: vec![0] };
    let ours = chase(bench, memory, Order::Random, Some(loads));
    let how = format!("chase, {} KiB, CPU {other} copies meanwhile", memory / 1024);
    matches.push(alone("random chase memory, loaded", (how, NO_LOAD), ours, super::nanoseconds));
    Ok((matches, None))
}

fn chase(bench: &Bench, bytes: u64, order: Order, loads: Option<Loads>) -> Instrument {
    let (sizes, place) = (Sizes::one(bytes), super::place(bench));
    Chase { sizes, order, loads, place, windows: CHASE_WINDOWS }.instrument()
}

fn linear(bench: &Bench, level: &str, bytes: u64) -> Match {
    let how = format!("chase, linear, {} KiB", bytes / 1024);
    let ours = chase(bench, bytes, Order::Linear, None);
    let reference_tool = "plain linear chase, best of 3 samples of 0.5 s";
    Match {
        reference_tool: ReferenceTool::Plain(vec![
            "linear".to_owned(),
            bytes.to_string(),
            "3".to_owned(),
        ]),
        goal: Goal::AtMost(1.02),
        ..alone(&format!("linear chase {level}"), (how, reference_tool), ours, super::nanoseconds)
    }
}

fn partial(bench: &Bench, operation: Operation, (level, bytes): (&str, u64)) -> Match {
    let ours = Bandwidth {
        sizes: Sizes::one(bytes),
        operations: vec![operation],
        width: Width::Auto,
        place: super::place(bench),
        windows: WINDOWS,
    };
    let why = if operation == Operation::Fill { NO_FILL } else { NO_PARTIAL };
    let how = (format!("bandwidth, {} KiB", bytes / 1024), why);
    let name = format!("{} {level}", operation.name());
    Match { best: Best::Most, ..alone(&name, how, ours.instrument(), super::gigabytes) }
}

fn passes(bench: &Bench) -> Match {
    let place = super::place(bench);
    let ours = Loop64 { duration_ns: LOOP_NS, fifo: None, interferer: None, place }.instrument();
    alone("64 MB loop", ("loop64, quick passes".to_owned(), NO_LOOP), ours, milliseconds)
}

/// The variation of the machine itself.
fn machine(bench: &Bench) -> Result<Match, Failure> {
    let ours = Intmix { cpus: Some(CpuSet::single(bench.pu)), duration_ns: 1_000_000_000 };
    let figures = bench.figures(&ours.instrument())?;
    let pick = figures
        .iter()
        .position(|figure| {
            figure.unit == Unit::PerSecond
                && figure.labels.get("part").is_some_and(|part| part == "crc")
        })
        .ok_or("intmix gave no figure of its crc")?;
    let how = ("registers and a table in the L1d".to_owned(), NO_MACHINE);
    let alone = alone(super::MACHINE, how, ours.instrument(), |rate| format!("{rate:.0} 1/s"));
    Ok(Match { picks: vec![pick], best: Best::Most, ..alone })
}

/// A benchmark without a reference tool.
fn alone(
    name: &str,
    (how, why): (String, &str),
    ours: Instrument,
    text: fn(f64) -> String,
) -> Match {
    Match {
        names: vec![name.to_owned()],
        how,
        reference_tool_name: why.to_owned(),
        ours,
        picks: vec![0],
        best: Best::Least,
        reference_tool: ReferenceTool::None,
        text,
        goal: Goal::None,
        values: vec![Default::default()],
    }
}

fn milliseconds(ns: f64) -> String {
    format!("{:.2} ms", ns / 1e6)
}
