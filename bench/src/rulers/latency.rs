//! Latency: stalls that are known seen by spin-gap and oslat, wake-ups beside cyclictest.
//!
//! A stall is injected by a thread of our own at the highest real-time priority, which spins for
//! a known time at a random moment on the ruler's PU. How long that stalled our ruler is what the
//! kernel counted: the time for which the ruler's thread could have run and did not (`schedstat`),
//! which has the way in and out of the stall in it, as the gap has. Ours runs under fifo for 90 % of each period, which leaves the kernel's safety valve shut; a moment at
//! which it sleeps is none for a stall, because nobody would see it. oslat can only spin all the
//! time, and under fifo would read that valve (50 ms a second) instead of the stalls: it runs at
//! normal priority, and its row means something on a machine without other work only. For wake-ups
//! the goal is cyclictest's own difference from itself (A/A) in the same blocks. Both keep all CPUs
//! awake: else how deep one sleeps, and in a virtual machine for how long its host polls before it
//! takes the CPU away, decides more than the instrument.

use std::thread::JoinHandle;

use pinfold_host::process::{Beat, Spawn, Stdio};
use pinfold_host::user::StateDir;
use pinfold_host::{
    Clock as _, Host as _, HostMut as _, LiveHost, SystemClock, paths, process, schedstat,
};
use pinfold_model::{CpuSet, Family, Figure, Policy, PuId, Statistic, Tid};
use pinfold_probe::anchors::Anchor;
use pinfold_probe::job::{Job, without_skipped};
use pinfold_probe::loads::Placement;
use pinfold_probe::pinload::Pinload;
use pinfold_probe::registry::{self, Settings};
use pinfold_probe::rulers::RulerPolicy;
use pinfold_study::random::Pcg32;
use pinfold_study::stats::{Block, Direction, median, of_samples, ratio_interval};

use super::{Goal, Measured, Row};
use crate::scratch::Scratch;
use crate::{Arguments, Failure};

const NS_PER_MS: u64 = 1_000_000;
/// Lengths of the stalls.
const STALLS_MS: [u64; 3] = [1, 3, 10];
/// Stalls in one run.
const PER_RUN: usize = 10;
/// From the start of a ruler until the first stall may come; oslat warms up for a second.
const OURS_AFTER_NS: u64 = 300 * NS_PER_MS;
const OSLAT_AFTER_NS: u64 = 1_400 * NS_PER_MS;
/// Time in which all stalls of a run happen.
const STALLS_WITHIN_NS: u64 = 1_200 * NS_PER_MS;
const RUN_NS: u64 = 2_000 * NS_PER_MS;
/// Of a run of wake-ups: 10,000 of them and some.
const WAKEUP_PERIOD_US: u32 = 200;
const WAKEUPS_NS: u64 = 2_200 * NS_PER_MS;
const BLOCKS: u32 = 12;
/// Of wake-ups: their 99.9 % quantiles vary more than all else.
const WAKEUP_BLOCKS: u32 = 30;
const PRIORITY: u8 = 80;
/// Of a period of 10 ms; the rest is more than the kernel's safety valve wants for others.
const DUTY_PERCENT: u8 = 90;
const BEAT_NS: u64 = 200 * NS_PER_MS;
const HIGHEST: u8 = 99;

/// What all runs share.
struct Bench {
    pinload: Pinload,
    scratch: StateDir,
    pu: PuId,
    random: Pcg32,
    blocks: u32,
    wakeup_blocks: u32,
}

/// Measures the rows.
pub fn run(arguments: &Arguments) -> Result<Measured, Failure> {
    for anchor in [Anchor::Oslat, Anchor::Cyclictest] {
        anchor.program()?;
    }
    let host = LiveHost::new()?;
    let topology = pinfold_topology::discover(&host)?;
    // The last PU: the first has the interrupts of most machines.
    let pu = topology.allowed.iter().last().ok_or("there is no PU to measure on")?;
    let folder = Scratch::on_disk()?;
    let scratch = StateDir::open(&folder.file("anchors"))?;
    let mut bench = Bench {
        pinload: Pinload::install()?,
        scratch,
        pu,
        random: Pcg32::new(arguments.seed, 0),
        blocks: arguments.rounds.unwrap_or(BLOCKS),
        wakeup_blocks: arguments.rounds.unwrap_or(WAKEUP_BLOCKS),
    };
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    for length_ms in STALLS_MS {
        bench.stalls(length_ms, &mut rows, &mut notes)?;
    }
    notes.push(bench.wakeups(&mut rows)?);
    Ok(Measured {
        conditions: format!(
            "PU {pu}, {} blocks, of wake-ups {}, {} and {}, seed {}",
            bench.blocks,
            bench.wakeup_blocks,
            Anchor::Oslat.tried(),
            Anchor::Cyclictest.name(),
            arguments.seed
        ),
        rows,
        notes,
    })
}

impl Bench {
    fn settings(&self, policy: RulerPolicy, duration_ns: u64) -> Settings {
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

    /// Ours beside the log, and oslat beside its own.
    fn stalls(
        &mut self,
        length_ms: u64,
        rows: &mut Vec<Row>,
        notes: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let settings = Settings {
            duty_percent: Some(DUTY_PERCENT),
            ..self.settings(RulerPolicy::Fifo(PRIORITY), RUN_NS)
        };
        let spin = registry::find("spin-gap").ok_or("there is no spin-gap")?.job(&settings)?;
        let mut ours = Seen::default();
        let (mut oslat_max, mut oslat_log) = (Vec::new(), Vec::new());
        for _ in 0..self.blocks {
            let mut order = [0, 1];
            self.random.shuffle(&mut order);
            for which in order {
                if which == 0 {
                    let (figures, log) = self.spin_gap(&spin, length_ms)?;
                    ours.add(
                        figures.into_iter().flat_map(|figure| figure.samples).collect(),
                        &log,
                    )?;
                } else {
                    let injector = self.injector(length_ms, OSLAT_AFTER_NS, None)?;
                    let settings = self.settings(RulerPolicy::Other, RUN_NS);
                    let place = (&Placement::default(), &self.scratch);
                    let found = Anchor::Oslat.run(&settings, &[], place)?;
                    let log = finish(injector)?;
                    let max = found.readings.iter().find(|one| one.statistic == Statistic::Max);
                    oslat_max.push(max.ok_or("oslat told no maximum")?.value);
                    oslat_log.push(log.into_iter().fold(0.0, f64::max));
                }
            }
        }
        notes.push(ours.note(length_ms));
        rows.push(Row {
            ruler: format!("spin-gap, stalls of {length_ms} ms"),
            how: format!("pinload spin-gap --duty {DUTY_PERCENT} --policy fifo:{PRIORITY}"),
            anchor: "the kernel's schedstat of its thread".to_owned(),
            ours: ours.gaps,
            theirs: ours.logs,
            text: microseconds,
            goal: Goal::Within(0.99, 1.01),
        });
        rows.push(Row {
            ruler: format!("oslat itself, longest of stalls of {length_ms} ms"),
            how: "oslat".to_owned(),
            anchor: "the log of who made them".to_owned(),
            ours: oslat_max,
            theirs: oslat_log,
            text: microseconds,
            goal: Goal::None,
        });
        Ok(())
    }

    /// One run of ours with stalls at moments at which it spins.
    fn spin_gap(&mut self, job: &Job, length_ms: u64) -> Result<(Vec<Figure>, Vec<f64>), Failure> {
        let mut argv = job.argv();
        argv.push("--supervised".to_owned());
        let mut child = Spawn::new(&self.pinload.path())
            .args(argv)
            .die_with_parent(true)
            .stdin(Stdio::Pipe)
            .stdout(Stdio::Pipe)
            .start()?;
        let mut beat = Beat::over(child.stdin().ok_or("no way to beat")?)?;
        let stdout = child.stdout().ok_or("no output of pinload")?;
        let reader = std::thread::spawn(move || std::io::read_to_string(stdout));
        let injector = self.injector(length_ms, OURS_AFTER_NS, Some(child.pid()))?;
        let end = SystemClock.now_ns() + 10 * RUN_NS;
        while child.wait_for(&SystemClock, BEAT_NS)?.is_none() {
            if SystemClock.now_ns() > end {
                return Err("spin-gap did not end".into());
            }
            beat.send(b'.');
        }
        let log = finish(injector)?;
        let output = reader.join().map_err(|_| "the reader fell over")??;
        Ok((job.parse(&output)?, log))
    }

    /// Ours beside cyclictest, and cyclictest beside itself.
    fn wakeups(&mut self, rows: &mut Vec<Row>) -> Result<String, Failure> {
        let settings = Settings {
            period_us: Some(WAKEUP_PERIOD_US),
            keep_awake: true,
            ..self.settings(RulerPolicy::Fifo(PRIORITY), WAKEUPS_NS)
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
                means[which].push(mean.ok_or("a run of wake-ups told no mean")?);
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
                ruler: format!("wake-up, {name}"),
                how: how.clone(),
                anchor: "cyclictest".to_owned(),
                ours,
                theirs: one.clone(),
                text: microseconds,
                goal: Goal::Within(own.low, own.high),
            });
            rows.push(Row {
                ruler: format!("wake-up, {name}: the anchor again"),
                how: "cyclictest (A/A)".to_owned(),
                anchor: "cyclictest".to_owned(),
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

    /// Mean and 99.9 % quantile of ours, as cyclictest counts.
    fn our_wakeups(&self, job: &Job) -> Result<(Option<f64>, Option<f64>), Failure> {
        let figures = job.run_on_host(&self.pinload, &Placement::default())?;
        let tails = figures.iter().filter(|figure| figure.family == Family::Tail);
        let samples: Vec<f64> = tails.flat_map(without_skipped).collect();
        let of = |what| of_samples(&samples, what, Direction::LowerIsBetter);
        Ok((of(Statistic::Mean), of(Statistic::P999)))
    }

    /// The same of cyclictest.
    fn their_wakeups(&self, settings: &Settings) -> Result<(Option<f64>, Option<f64>), Failure> {
        let found =
            Anchor::Cyclictest.run(settings, &[], (&Placement::default(), &self.scratch))?;
        let of =
            |what| found.readings.iter().find(|one| one.statistic == what).map(|one| one.value);
        Ok((of(Statistic::Mean), of(Statistic::P999)))
    }

    /// A thread that stalls the PU at random moments; it gives the true lengths (ns).
    /// With a process only at moments at which its real-time thread runs.
    fn injector(
        &mut self,
        length_ms: u64,
        after_ns: u64,
        process: Option<Tid>,
    ) -> Result<Injector, Failure> {
        let (pu, length_ns) = (self.pu, length_ms * NS_PER_MS);
        let slot_ns = STALLS_WITHIN_NS / PER_RUN as u64;
        let begin = SystemClock.now_ns() + after_ns;
        // One in each slot, with room to both sides: two that touch would be one.
        let room_ns = slot_ns.saturating_sub(length_ns + 4 * NS_PER_MS) as f64;
        let starts: Vec<u64> = (0..PER_RUN as u64)
            .map(|index| {
                let share = self.random.unit() * room_ns;
                let offset = std::time::Duration::from_secs_f64(share / 1e9).as_nanos();
                begin + index * slot_ns + u64::try_from(offset).unwrap_or(0)
            })
            .collect();
        let thread = std::thread::Builder::new().name("injector".to_owned());
        Ok(thread.spawn(move || inject((pu, process), &starts, length_ns))?)
    }
}

type Injector = JoinHandle<Result<Vec<f64>, String>>;

fn finish(injector: Injector) -> Result<Vec<f64>, Failure> {
    Ok(injector.join().map_err(|_| "the injector fell over")??)
}

fn inject(
    (pu, process): (PuId, Option<Tid>),
    starts: &[u64],
    length_ns: u64,
) -> Result<Vec<f64>, String> {
    let told = |error: pinfold_host::HostError| format!("the injector: {error}");
    let host = LiveHost::new().map_err(told)?;
    let tid = process::own_tid();
    host.set_affinity(tid, &CpuSet::from_iter([pu])).map_err(told)?;
    host.set_policy(tid, Policy::Fifo { priority: HIGHEST }).map_err(told)?;
    let Some(process) = process else {
        let one = |start: &u64| {
            SystemClock.sleep_ns(start.saturating_sub(SystemClock.now_ns()));
            Ok(stall(length_ns))
        };
        return starts.iter().map(one).collect();
    };
    SystemClock
        .sleep_ns(starts.first().map_or(0, |first| first.saturating_sub(SystemClock.now_ns())));
    let spinner = real_time_thread(&host, process)?;
    let mut waited = Vec::new();
    for start in starts {
        SystemClock.sleep_ns(start.saturating_sub(SystemClock.now_ns()));
        // While we run it does not: it is runnable if it was spinning, else asleep.
        while !is_runnable(&host, (process, spinner))? {
            SystemClock.sleep_ns(NS_PER_MS);
        }
        waited.push(waited_ns(&host, (process, spinner))?);
        stall(length_ns);
    }
    // What a thread waited is counted when it runs again.
    SystemClock.sleep_ns(20 * NS_PER_MS);
    waited.push(waited_ns(&host, (process, spinner))?);
    Ok(waited.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect())
}

/// Spins for so long; gives how long that really was (ns).
fn stall(length_ns: u64) -> f64 {
    let begin = SystemClock.now_ns();
    let mut now = begin;
    while now - begin < length_ns {
        now = SystemClock.now_ns();
    }
    (now - begin) as f64
}

/// How long a thread has waited for a PU in its life (ns).
fn waited_ns(host: &LiveHost, (process, tid): (Tid, Tid)) -> Result<u64, String> {
    let path = paths::task_schedstat(process, tid);
    let text = host.read_text(&path).map_err(|error| format!("the injector: {error}"))?;
    let stat = schedstat::parse(&text).map_err(|error| format!("the injector: {error}"))?;
    Ok(stat.delay_ns)
}

/// The thread of a process that measures.
fn real_time_thread(host: &LiveHost, process: Tid) -> Result<Tid, String> {
    let told = |error: pinfold_host::HostError| format!("the injector: {error}");
    for name in host.list(&paths::task_dir(process)).map_err(told)? {
        let Ok(tid) = name.parse().map(Tid) else { continue };
        let policy = host.policy(tid).map_err(told)?;
        if policy == (Policy::Fifo { priority: PRIORITY }) {
            return Ok(tid);
        }
    }
    Err("the injector: the ruler has no real-time thread (is this root?)".to_owned())
}

fn is_runnable(host: &LiveHost, (process, tid): (Tid, Tid)) -> Result<bool, String> {
    let path = paths::task_stat(process, tid);
    let text = host.read_text(&path).map_err(|error| format!("the injector: {error}"))?;
    let (_, after) = text.rsplit_once(") ").ok_or("the injector: a thread has no state")?;
    Ok(after.starts_with('R'))
}

/// What spin-gap saw of the stalls, block by block.
#[derive(Default)]
struct Seen {
    gaps: Vec<f64>,
    logs: Vec<f64>,
    injected: usize,
    within: usize,
    furthest: f64,
}

impl Seen {
    fn add(&mut self, mut samples: Vec<f64>, log: &[f64]) -> Result<(), Failure> {
        samples.sort_unstable_by(f64::total_cmp);
        let mut nearest = Vec::new();
        for truth in log {
            // Each stall by the gap that is nearest to it in length, which then is taken.
            let place = samples.partition_point(|gap| gap < truth);
            let off = |index: &usize| (samples[*index] - truth).abs();
            let best = [place.wrapping_sub(1), place]
                .into_iter()
                .filter(|index| *index < samples.len())
                .min_by(|one, other| off(one).total_cmp(&off(other)))
                .ok_or("spin-gap saw fewer gaps than there were stalls")?;
            let gap = samples.remove(best);
            let off = (gap / truth - 1.0).abs();
            self.within += usize::from(off < 0.01);
            self.furthest = self.furthest.max(off);
            nearest.push(gap);
        }
        self.injected += log.len();
        self.gaps.push(median(&nearest).ok_or("no stall was seen")?);
        self.logs.push(median(log).ok_or("no stall was injected")?);
        Ok(())
    }

    fn note(&self, length_ms: u64) -> String {
        format!(
            "Of {} stalls of {length_ms} ms spin-gap saw {} within 1 % of their length; the furthest was {:.2} % off.",
            self.injected,
            self.within,
            self.furthest * 100.0
        )
    }
}

fn microseconds(ns: f64) -> String {
    format!("{:.1} µs", ns / 1e3)
}
