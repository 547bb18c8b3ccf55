//! The operating system: context switches and system calls compared with `perf bench`.
//!
//! Both sides report the best and the median of twenty windows of about five milliseconds on one
//! CPU; `perf bench` reports one mean per run, so a run is a window. A round of its pipes is two
//! steps. Benchmarks without a comparable tool are in [`alone`].

mod alone;

use pinfold_host::process::Spawn;
use pinfold_model::{CpuSet, Figure, PuId};
use pinfold_probe::cpu_speed::SpeedBenchmark as _;
use pinfold_probe::figures::Instrument;
use pinfold_probe::loads::Placement;
use pinfold_probe::os::{Operation, OsLatency, Switch};
use pinfold_probe::pinload::Pinload;
use pinfold_stats::random::Pcg32;
use pinfold_stats::{median, quantile};

use super::{Goal, Measured, Row, last_pu, table, version};
use crate::arguments::{Arguments, Failure};

const BLOCKS: u32 = 40;
const WINDOWS: u32 = 20;
const WINDOW_US: u64 = 5_000;
const MINUTE_NS: u64 = 60_000_000_000;

/// Measures the rows.
pub fn run(arguments: &Arguments) -> Result<Measured, Failure> {
    let pinload = Pinload::install()?;
    let perf = super::perf()?;
    let pu = last_pu()?;
    let blocks = arguments.rounds.unwrap_or(BLOCKS);
    let mut duels = duels(pu);
    let mut random = Pcg32::new(arguments.seed, 0);
    for _ in 0..blocks {
        random.shuffle(&mut duels);
        for duel in &mut duels {
            let ours_first = random.below(2) == 0;
            let early = ours_first.then(|| duel.ours(&pinload)).transpose()?;
            let theirs = duel.theirs(&perf, pu)?;
            let ours = early.map_or_else(|| duel.ours(&pinload), Ok)?;
            duel.values.push((ours, theirs));
        }
    }
    duels.sort_unstable_by_key(|duel| duel.name);
    let mut rows: Vec<Row> = duels.iter().flat_map(Duel::rows).collect();
    let (more, lacks) = alone::rows(&pinload, pu, blocks.min(alone::BLOCKS))?;
    rows.extend(more);
    Ok(Measured {
        conditions: format!(
            "CPU {pu}; {blocks} blocks of {WINDOWS} windows; {}; seed {}",
            version(&perf)?,
            arguments.seed
        ),
        table: table(&rows),
        notes: [
            "The pipe of perf bench does not place its two processes: both are held on the CPU from outside.".to_owned(),
            "hackbench sends many messages without an answer, and sysbench counts primes: neither measures what these benchmarks do.".to_owned(),
            alone::OTHERS.to_owned(),
        ]
        .into_iter()
        .chain(lacks)
        .collect(),
    })
}

/// The best and the median window (ns).
type Windows = (f64, f64);

/// A benchmark and its reference tool.
struct Duel {
    name: &'static str,
    how: &'static str,
    reference_tool: &'static str,
    ours: Instrument,
    /// The part of the figure, if there are several.
    part: Option<&'static str>,
    /// Arguments of perf.
    theirs: &'static [&'static str],
    /// Number of steps in one of its operations.
    steps: f64,
    /// Goal for the best window.
    goal: Goal,
    /// For each block: ours, theirs.
    values: Vec<(Windows, Windows)>,
}

impl Duel {
    fn ours(&self, pinload: &Pinload) -> Result<Windows, Failure> {
        let figures = self.ours.run_on_host(pinload, &Placement::default())?;
        let wanted = |figure: &&Figure| {
            self.part.is_none_or(|part| figure.labels.get("part").is_some_and(|one| one == part))
        };
        let figure = figures.iter().find(wanted).ok_or("pinload gave no such figure")?;
        best_and_median(&figure.samples)
    }

    fn theirs(&self, perf: &str, pu: PuId) -> Result<Windows, Failure> {
        let mut windows = Vec::new();
        for _ in 0..WINDOWS {
            let output = Spawn::new(perf)
                .args(self.theirs)
                .env("LC_ALL", "C")
                .affinity(CpuSet::single(pu))
                .capture(MINUTE_NS)?;
            windows.push(usecs_per_op(&output.stdout_text())? * 1e3 / self.steps);
        }
        best_and_median(&windows)
    }

    fn rows(&self) -> [Row; 2] {
        type Pick = fn(&Windows) -> f64;
        let best: (&str, Pick, Goal) = ("best window", |windows| windows.0, self.goal);
        let middle: (&str, Pick, Goal) = ("median window", |windows| windows.1, Goal::None);
        [best, middle].map(|(which, pick, goal)| Row {
            benchmark: format!("{}: {which}", self.name),
            how: self.how.to_owned(),
            reference_tool: self.reference_tool.to_owned(),
            ours: self.values.iter().map(|(ours, _)| pick(ours)).collect(),
            theirs: self.values.iter().map(|(_, theirs)| pick(theirs)).collect(),
            text: microseconds,
            goal,
        })
    }
}

fn duels(pu: PuId) -> [Duel; 2] {
    let switch = windows_on(
        Switch { cpus: Some(CpuSet::single(pu)), ..Switch::new(&[2], &[0], duration_ns()) }
            .instrument(),
    );
    let null = windows_on(
        OsLatency {
            operations: vec![Operation::Null],
            cpus: Some(CpuSet::single(pu)),
            ..OsLatency::new(duration_ns())
        }
        .instrument(),
    );
    [
        Duel {
            name: "context switch, 2 processes of 0 KiB on one CPU",
            how: "pinload switch",
            reference_tool: "perf bench sched pipe, half a round",
            ours: switch,
            part: Some("raw"),
            theirs: &["bench", "sched", "pipe", "-l", "1500"],
            steps: 2.0,
            goal: Goal::Within(0.85, 1.15),
            values: Vec::new(),
        },
        Duel {
            name: "system call that does nothing",
            how: "pinload os-latency --operations null",
            reference_tool: "perf bench syscall basic",
            ours: null,
            part: None,
            theirs: &["bench", "syscall", "basic", "-l", "20000"],
            steps: 1.0,
            goal: Goal::Within(0.95, 1.05),
            values: Vec::new(),
        },
    ]
}

fn duration_ns() -> u64 {
    u64::from(WINDOWS) * WINDOW_US * 1_000
}

fn windows_on(mut instrument: Instrument) -> Instrument {
    instrument.arguments.extend(["--window-us".to_owned(), WINDOW_US.to_string()]);
    instrument
}

/// Nanoseconds as microseconds.
fn microseconds(ns: f64) -> String {
    format!("{:.3} µs", ns / 1e3)
}

fn best_and_median(windows: &[f64]) -> Result<Windows, Failure> {
    let best = quantile(windows, 0.0).ok_or("no window was measured")?;
    let middle = median(windows).ok_or("no window was measured")?;
    Ok((best, middle))
}

/// The number before `usecs/op`.
fn usecs_per_op(text: &str) -> Result<f64, Failure> {
    let line = text.lines().find(|line| line.trim_end().ends_with("usecs/op"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| format!("perf bench printed no usecs/op: {}", text.trim()).into())
}

#[cfg(test)]
mod tests {
    use super::usecs_per_op;

    #[test]
    fn the_mean_of_perf_bench_is_found() {
        let text = "# Running 'sched/pipe' benchmark:\n# Executed 20000 pipe operations between two processes\n\n     Total time: 0.527 [sec]\n\n      26.369250 usecs/op\n          37922 ops/sec\n";
        assert!((usecs_per_op(text).unwrap() - 26.36925).abs() < 1e-9);
        assert!(usecs_per_op("0.527").unwrap_err().to_string().contains("no usecs/op: 0.527"));
    }
}
