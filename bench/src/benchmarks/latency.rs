//! Latency: spin-gap and oslat on known stalls, and wake-ups compared with cyclictest.
//!
//! [`stalls`] describes how stalls are injected and recorded. Our benchmark runs under SCHED_FIFO
//! for 90 % of each period, which does not trigger real-time throttling. oslat can only spin all
//! the time, and under SCHED_FIFO it would measure the throttling (50 ms per second) instead of the
//! stalls. So it runs at normal priority, and its rows are meaningful only on a machine without
//! other work. For wake-ups the goal is cyclictest's own difference from itself (A/A) in the same
//! blocks. Both keep all CPUs out of deep idle states, because otherwise the depth of the idle
//! state, and in a virtual machine the halt polling of its host, would matter more than the tool.

mod oslat;
mod seen;
mod stalls;

use pinfold_host::files::StateDir;
use pinfold_host::process::{Heartbeat, Spawn, Stdio};
use pinfold_host::{Clock as _, SystemClock};
use pinfold_model::{CpuSet, Family, Policy, PuId, Statistic};
use pinfold_probe::benchmarks::{Gap, SchedPolicy};
use pinfold_probe::job::{Job, without_skipped};
use pinfold_probe::loads::Placement;
use pinfold_probe::pinload::Pinload;
use pinfold_probe::reference_tools::ReferenceTool;
use pinfold_probe::registry;
use pinfold_probe::settings::Settings;
use pinfold_stats::random::Pcg32;
use pinfold_stats::{Block, Direction, of_samples, quantile, ratio_interval};

use self::seen::DetectedStalls;
use self::stalls::{Stall, Trace};
use super::{Goal, Measured, Row};
use crate::arguments::{Arguments, Failure};
use crate::scratch::Scratch;

const NS_PER_MS: u64 = 1_000_000;
/// Lengths of the stalls.
const STALLS_MS: [u64; 3] = [1, 3, 10];
/// Number of stalls in one run.
const PER_RUN: usize = 10;
/// Time from the start of a benchmark until the first stall may occur; oslat warms up for one
/// second.
const OURS_AFTER_NS: u64 = 300 * NS_PER_MS;
const OSLAT_AFTER_NS: u64 = 1_400 * NS_PER_MS;
/// Time in which all stalls of a run occur.
const STALLS_WITHIN_NS: u64 = 1_200 * NS_PER_MS;
const RUN_NS: u64 = 2_000 * NS_PER_MS;
/// Period of a run of slightly more than 10,000 wake-ups.
const WAKEUP_PERIOD_US: u32 = 200;
const WAKEUPS_NS: u64 = 2_200 * NS_PER_MS;
const BLOCKS: u32 = 12;
/// Blocks of wake-ups: their 99.9 % quantiles vary most.
const WAKEUP_BLOCKS: u32 = 30;
const PRIORITY: u8 = 80;
/// Duty cycle of a period of 10 ms; the rest is more than real-time throttling reserves for other
/// tasks.
const DUTY_PERCENT: u8 = 90;
const HEARTBEAT_NS: u64 = 200 * NS_PER_MS;

const TRACE: &str = "from when its timer was due to the switch back, by perf record";

/// The data that all runs share.
struct Bench {
    pinload: Pinload,
    folder: Scratch,
    scratch: StateDir,
    pu: PuId,
    random: Pcg32,
    blocks: u32,
    wakeup_blocks: u32,
}

/// Measures the rows.
pub fn run(arguments: &Arguments) -> Result<Measured, Failure> {
    for reference_tool in [ReferenceTool::Oslat, ReferenceTool::Cyclictest] {
        reference_tool.program()?;
    }
    super::perf()?;
    let pu = super::last_pu()?;
    let folder = Scratch::on_disk()?;
    let scratch = StateDir::open(&folder.file("reference-tools"))?;
    let mut bench = Bench {
        pinload: Pinload::install()?,
        folder,
        scratch,
        pu,
        random: Pcg32::new(arguments.seed, 0),
        blocks: arguments.rounds.unwrap_or(BLOCKS),
        wakeup_blocks: arguments.rounds.unwrap_or(WAKEUP_BLOCKS),
    };
    let (mut rows, mut notes, mut seen) = (Vec::new(), Vec::new(), Vec::new());
    for length_ms in STALLS_MS {
        seen.push(bench.stalls(length_ms, &mut rows, &mut notes)?);
    }
    rows.extend(longer_than(&seen));
    notes.push(bench.unseen()?);
    notes.push(bench.wakeups(&mut rows)?);
    Ok(Measured {
        conditions: format!(
            "CPU {pu}, {} blocks, of wake-ups {}, {} and {}, seed {}",
            bench.blocks,
            bench.wakeup_blocks,
            ReferenceTool::Oslat.tried(),
            ReferenceTool::Cyclictest.name(),
            arguments.seed
        ),
        table: super::table(&rows),
        notes,
    })
}

impl Bench {
    fn settings(&self, policy: SchedPolicy, duration_ns: u64) -> Settings {
        Settings {
            duration_ns,
            cpus: CpuSet::from_iter([self.pu]),
            policy,
            period_us: None,
            duty_percent: None,
            keep_awake: false,
            target: None,
            more: Vec::new(),
        }
    }

    /// Ours compared with the log, and oslat with its own.
    fn stalls(
        &mut self,
        length_ms: u64,
        rows: &mut Vec<Row>,
        notes: &mut Vec<String>,
    ) -> Result<DetectedStalls, Failure> {
        let settings = Settings {
            duty_percent: Some(DUTY_PERCENT),
            ..self.settings(SchedPolicy::Fifo(PRIORITY), RUN_NS)
        };
        let spin = registry::find("spin-gap").ok_or("there is no spin-gap")?.job(&settings)?;
        let mut ours = DetectedStalls::default();
        let mut theirs = oslat::Runs::default();
        for _ in 0..self.blocks {
            let mut order = [0, 1];
            self.random.shuffle(&mut order);
            for which in order {
                if which == 0 {
                    let (gaps, log) = self.spin_gap(&spin, length_ms)?;
                    ours.add(&gaps, &log)?;
                } else {
                    let starts = self.starts(length_ms, OSLAT_AFTER_NS);
                    let injector = stalls::anyhow(self.pu, starts, length_ms * NS_PER_MS)?;
                    let found = oslat::run(self.pu, RUN_NS, &self.scratch)?;
                    theirs.add(&found, &injector.finish()?);
                }
            }
        }
        notes.push(ours.note(length_ms));
        rows.push(Row {
            benchmark: format!("spin-gap, stalls of {length_ms} ms"),
            how: format!("pinload spin-gap --duty {DUTY_PERCENT} --policy fifo:{PRIORITY}"),
            reference_tool: TRACE.to_owned(),
            ours: ours.gaps.clone(),
            theirs: ours.logs.clone(),
            text: microseconds,
            goal: Goal::Within(0.99, 1.01),
        });
        notes.push(theirs.note(length_ms));
        rows.extend(theirs.rows(length_ms));
        Ok(ours)
    }

    /// One run of ours with stalls at times at which it spins.
    fn spin_gap(&mut self, job: &Job, length_ms: u64) -> Result<(Vec<Gap>, Vec<Stall>), Failure> {
        let Job::Benchmark(benchmark) = job else { return Err("spin-gap is no benchmark".into()) };
        let trace = Trace::begin(self.folder.file("trace"), self.pu)?;
        let mut argv = job.argv();
        argv.push("--supervised".to_owned());
        let mut child = Spawn::new(&self.pinload.path())
            .args(argv)
            .die_with_parent(true)
            .stdin(Stdio::Pipe)
            .stdout(Stdio::Pipe)
            .start()?;
        let mut beat = Heartbeat::over(child.stdin().ok_or("no way to beat")?)?;
        let stdout = child.stdout().ok_or("no output of pinload")?;
        let reader = std::thread::spawn(move || std::io::read_to_string(stdout));
        let starts = self.starts(length_ms, OURS_AFTER_NS);
        let spinner = (child.pid(), Policy::Fifo { priority: PRIORITY });
        let injector = stalls::of(spinner, self.pu, starts, length_ms * NS_PER_MS)?;
        let end = SystemClock.now_ns() + 10 * RUN_NS;
        while child.wait_for(&SystemClock, HEARTBEAT_NS)?.is_none() {
            if SystemClock.now_ns() > end {
                return Err("spin-gap did not end".into());
            }
            beat.send(b'.');
        }
        let stalled = injector.finish()?;
        let output = reader.join().map_err(|_| "the reader fell over")??;
        Ok((benchmark.gaps(&output)?, trace.stalls_of(&stalled)?))
    }

    /// Ours compared with cyclictest, and cyclictest with itself.
    fn wakeups(&mut self, rows: &mut Vec<Row>) -> Result<String, Failure> {
        let settings = Settings {
            period_us: Some(WAKEUP_PERIOD_US),
            keep_awake: true,
            ..self.settings(SchedPolicy::Fifo(PRIORITY), WAKEUPS_NS)
        };
        let job = registry::find("wakeup").ok_or("there is no wakeup")?.job(&settings)?;
        // Ours, cyclictest, cyclictest again: mean and 99.9 % quantile.
        let mut means: [Vec<f64>; 3] = Default::default();
        let mut tails: [Vec<f64>; 3] = Default::default();
        for _ in 0..self.wakeup_blocks {
            let mut order = [0, 1, 2];
            self.random.shuffle(&mut order);
            for which in order {
                let (mean, tail) = match which {
                    0 => self.our_wakeups(&job)?,
                    _ => self.their_wakeups(&settings)?,
                };
                means[which].push(mean.ok_or("a run of wake-ups reported no mean")?);
                tails[which].push(tail.ok_or("a run had fewer than 10,000 wake-ups")?);
            }
        }
        let mut words = Vec::new();
        for (name, [ours, one, other]) in [("mean", means), ("p99.9", tails)] {
            let blocks: Vec<Block> =
                other.iter().zip(&one).map(|(other, one)| Block::pair(*other, *one)).collect();
            let own = ratio_interval(&blocks).ok_or("two blocks are needed at least")?;
            words.push(format!("{name} {:.3} to {:.3}", own.low, own.high));
            let how = format!(
                "pinload wakeup --period-us {WAKEUP_PERIOD_US} --policy fifo:{PRIORITY} --dma-latency"
            );
            rows.push(Row {
                benchmark: format!("wake-up, {name}"),
                how: how.clone(),
                reference_tool: "cyclictest".to_owned(),
                ours,
                theirs: one.clone(),
                text: microseconds,
                goal: Goal::Within(own.low, own.high),
            });
            rows.push(Row {
                benchmark: format!("wake-up, {name}: the reference tool again"),
                how: "cyclictest (A/A)".to_owned(),
                reference_tool: "cyclictest".to_owned(),
                ours: other,
                theirs: one,
                text: microseconds,
                goal: Goal::None,
            });
        }
        Ok(format!(
            "The goal of wake-ups is cyclictest's own difference from itself in the same blocks ({}); *open* there means unknown.",
            words.join(", ")
        ))
    }

    /// Mean and 99.9 % quantile of ours, counted as by cyclictest.
    fn our_wakeups(&self, job: &Job) -> Result<(Option<f64>, Option<f64>), Failure> {
        let figures = job.run_on_host(&self.pinload, &Placement::default())?;
        let tails = figures.iter().filter(|figure| figure.family == Family::Tail);
        let samples: Vec<f64> = tails.flat_map(without_skipped).collect();
        let of = |what| of_samples(&samples, what, Direction::LowerIsBetter);
        Ok((of(Statistic::Mean), of(Statistic::P999)))
    }

    /// Mean and 99.9 % quantile of cyclictest.
    fn their_wakeups(&self, settings: &Settings) -> Result<(Option<f64>, Option<f64>), Failure> {
        let found =
            ReferenceTool::Cyclictest.run(settings, &[], (&Placement::default(), &self.scratch))?;
        let of =
            |what| found.readings.iter().find(|one| one.statistic == what).map(|one| one.value);
        Ok((of(Statistic::Mean), of(Statistic::P999)))
    }

    /// The part of a stall that no trace inside a virtual machine shows, which is why its length is
    /// counted from its timer.
    fn unseen(&self) -> Result<String, Failure> {
        let policy = Policy::Fifo { priority: PRIORITY };
        let unseen = stalls::before_handler(self.folder.file("trace"), self.pu, policy)?;
        let of = |share| quantile(&unseen, share).map_or("–".to_owned(), microseconds);
        Ok(format!(
            "Of {} ordinary ticks a thread had stood still for {} already (median; 5 % {}, 95 % {}) when the first line of their handler ran: so much of a stall comes before what a trace shows.",
            unseen.len(),
            of(0.5),
            of(0.05),
            of(0.95)
        ))
    }

    /// Start times of stalls of this length; the first one is at least `after_ns` from now.
    fn starts(&mut self, length_ms: u64, after_ns: u64) -> Vec<u64> {
        let slot_ns = STALLS_WITHIN_NS / PER_RUN as u64;
        let begin = SystemClock.now_ns() + after_ns;
        // One in each slot, with a distance on both sides: two adjacent ones would be one.
        let room_ns = slot_ns.saturating_sub((length_ms + 4) * NS_PER_MS) as f64;
        (0..PER_RUN as u64)
            .map(|index| {
                let share = self.random.unit() * room_ns;
                let offset = std::time::Duration::from_secs_f64(share / 1e9).as_nanos();
                begin + index * slot_ns + u64::try_from(offset).unwrap_or(0)
            })
            .collect()
    }
}

/// The additional length of the longest stalls compared with the shortest, which cancels a common
/// offset.
fn longer_than(seen: &[DetectedStalls]) -> Option<Row> {
    let (short, long) = (seen.first()?, seen.last()?);
    let more = |long: &[f64], short: &[f64]| long.iter().zip(short).map(|(l, s)| l - s).collect();
    Some(Row {
        benchmark: format!(
            "spin-gap, what stalls of {} ms have more than those of {} ms",
            STALLS_MS.last()?,
            STALLS_MS.first()?
        ),
        how: "the same runs".to_owned(),
        reference_tool: TRACE.to_owned(),
        ours: more(&long.gaps, &short.gaps),
        theirs: more(&long.logs, &short.logs),
        text: microseconds,
        goal: Goal::Within(0.99, 1.01),
    })
}

fn microseconds(ns: f64) -> String {
    format!("{:.1} µs", ns / 1e3)
}
