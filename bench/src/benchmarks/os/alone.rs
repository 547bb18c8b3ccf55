//! Benchmarks of the operating system without a reference tool, with the reason: their own values
//! by block.

use pinfold_host::process::own_tid;
use pinfold_host::{Host as _, LiveHost};
use pinfold_model::{CpuSet, Figure, PuId, Unit};
use pinfold_probe::cpu_speed::SpeedBenchmark as _;
use pinfold_probe::figures::Instrument;
use pinfold_probe::loads::Placement;
use pinfold_probe::os::{IpcBandwidth, Operation, OsLatency, Switch, SwitchPlacement};
use pinfold_probe::pinload::Pinload;
use pinfold_stats::quantile;

use crate::arguments::Failure;
use crate::benchmarks::{Goal, Row};

/// They vary little and are not compared.
pub const BLOCKS: u32 = 8;
const EACH_NS: u64 = 100_000_000;
const NO_LMBENCH: &str = "none, because lmbench, whose measurement it is, is in no free package";
/// Why other tools are not used.
pub const OTHERS: &str = "Of operations and ways between processes perf bench (6.1) has a system call and a pipe, a round of stress-ng is many operations, and its pipe fills and checks the 4 KiB of each write.";
const NO_PLACE: &str =
    "none, because the two processes of perf bench and stress-ng cannot be placed on one CPU each";
const NO_RING: &str =
    "none, because perf bench and stress-ng have two processes and no memory to sum";

/// One run of pinload, and the figures that become rows.
struct Run {
    instrument: Instrument,
    how: &'static str,
    why: &'static str,
    /// The name of the benchmark if the figure is a row.
    name: fn(&Figure) -> Option<String>,
}

/// All rows, and what cannot be measured here.
pub fn rows(
    pinload: &Pinload,
    pu: PuId,
    blocks: u32,
) -> Result<(Vec<Row>, Option<String>), Failure> {
    let own = LiveHost::new()?.affinity(own_tid())?;
    let other = own.iter().find(|one| *one != pu);
    let mut rows: Vec<Row> = Vec::new();
    for _ in 0..blocks {
        for run in runs(pu, other) {
            for figure in run.instrument.run_on_host(pinload, &Placement::default())? {
                let Some(name) = (run.name)(&figure) else { continue };
                let best = best(&figure)?;
                match rows.iter_mut().find(|row| row.benchmark == name) {
                    Some(row) => row.ours.push(best),
                    None => rows.push(row(name, &run, &figure, best)),
                }
            }
        }
    }
    let lack = "A switch between two CPUs has no row, because it takes a second CPU.";
    Ok((rows, other.is_none().then(|| lack.to_owned())))
}

fn runs(pu: PuId, other: Option<PuId>) -> Vec<Run> {
    let one = || Some(CpuSet::single(pu));
    let operations = Operation::ALL.into_iter().filter(|one| *one != Operation::Null).collect();
    let mut runs = vec![
        Run {
            instrument: OsLatency { operations, cpus: one(), ..OsLatency::new(EACH_NS) }
                .instrument(),
            how: "pinload os-latency, best window",
            why: NO_LMBENCH,
            name: operation,
        },
        Run {
            instrument: IpcBandwidth { cpus: one(), ..IpcBandwidth::new(EACH_NS) }.instrument(),
            how: "pinload ipc-bandwidth, one CPU, best window",
            why: NO_LMBENCH,
            name: transport,
        },
        Run {
            instrument: Switch { cpus: one(), ..Switch::new(&[8], &[16], EACH_NS) }.instrument(),
            how: "pinload switch, best window",
            why: NO_RING,
            name: ring,
        },
    ];
    runs.extend(other.map(|other| {
        let cpus = Some(CpuSet::from_iter([pu, other]));
        let placement = SwitchPlacement::Unique;
        Run {
            instrument: Switch { cpus, placement, ..Switch::new(&[2], &[0], EACH_NS) }.instrument(),
            how: "pinload switch --placement unique, best window",
            why: NO_PLACE,
            name: ring,
        }
    }));
    runs
}

fn label<'f>(figure: &'f Figure, name: &str) -> Option<&'f str> {
    figure.labels.get(name).map(String::as_str)
}

fn operation(figure: &Figure) -> Option<String> {
    let name = label(figure, "operation")?;
    Some(match label(figure, "descriptors") {
        Some(count) => format!("{name}, {count} descriptors"),
        None => name.to_owned(),
    })
}

fn transport(figure: &Figure) -> Option<String> {
    let (name, chunk) = (label(figure, "transport")?, label(figure, "chunk-kib")?);
    Some(format!("{name}, {chunk} KiB at once"))
}

fn ring(figure: &Figure) -> Option<String> {
    let (processes, kib) = (label(figure, "processes")?, label(figure, "kib")?);
    let place = match label(figure, "placement")? {
        "unique" => "one CPU each",
        _ => "one CPU",
    };
    let is_whole = label(figure, "part")? == "raw";
    is_whole.then(|| format!("context switch, {processes} processes of {kib} KiB on {place}"))
}

/// The smallest time or the highest rate.
fn best(figure: &Figure) -> Result<f64, Failure> {
    let at = if figure.unit == Unit::BytesPerSecond { 1.0 } else { 0.0 };
    Ok(quantile(&figure.samples, at).ok_or("a figure of pinload has no samples")?)
}

fn row(benchmark: String, run: &Run, figure: &Figure, first: f64) -> Row {
    Row {
        benchmark,
        how: run.how.to_owned(),
        reference_tool: run.why.to_owned(),
        ours: vec![first],
        theirs: Vec::new(),
        text: if figure.unit == Unit::BytesPerSecond { gigabytes } else { super::microseconds },
        goal: Goal::None,
    }
}

fn gigabytes(rate: f64) -> String {
    format!("{:.2} GB/s", rate / 1e9)
}
