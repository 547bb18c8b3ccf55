//! Latency: stalls that are known seen by spin-gap and oslat, wake-ups beside cyclictest.
//!
//! A stall is injected by a thread of our own at the highest real-time priority, which spins for
//! a known time at a random moment on the ruler's PU and logs how long it really did. Both rulers
//! run at normal priority: a real-time one that spins all the time reads the kernel's safety
//! valve of 50 ms a second, which proves nothing. For wake-ups the goal is cyclictest's own
//! difference from itself (A/A) in the same blocks.

use std::thread::JoinHandle;

use pinfold_host::user::StateDir;
use pinfold_host::{Clock as _, HostMut as _, LiveHost, SystemClock, process};
use pinfold_model::{CpuSet, Family, Policy, PuId, Statistic};
use pinfold_probe::anchors::Anchor;
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
const PRIORITY: u8 = 80;
const HIGHEST: u8 = 99;

/// What all runs share.
struct Bench {
    pinload: Pinload,
    scratch: StateDir,
    pu: PuId,
    random: Pcg32,
    blocks: u32,
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
    };
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    for length_ms in STALLS_MS {
        bench.stalls(length_ms, &mut rows, &mut notes)?;
    }
    notes.push(bench.wakeups(&mut rows)?);
    notes.push(
        "A stall's true length is what the thread that made it saw; the way in and out of it, some microseconds, is in the gap and not in the log."
            .to_owned(),
    );
    Ok(Measured {
        conditions: format!(
            "PU {pu}, {} blocks, {} and {}, seed {}",
            bench.blocks,
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
            target: None,
            more: Vec::new(),
        }
    }

    /// Ours beside the log, and ours beside oslat.
    fn stalls(
        &mut self,
        length_ms: u64,
        rows: &mut Vec<Row>,
        notes: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let settings =
            Settings { duty_percent: Some(100), ..self.settings(RulerPolicy::Other, RUN_NS) };
        let spin = registry::find("spin-gap").ok_or("there is no spin-gap")?.job(&settings)?;
        let (mut gaps, mut logs) = (Vec::new(), Vec::new());
        let (mut ours_max, mut oslat_max) = (Vec::new(), Vec::new());
        let (mut seen, mut injected, mut furthest) = (0, 0, 0.0_f64);
        for _ in 0..self.blocks {
            let mut order = [0, 1];
            self.random.shuffle(&mut order);
            for which in order {
                if which == 0 {
                    let injector = self.injector(length_ms, OURS_AFTER_NS)?;
                    let figures = spin.run_on_host(&self.pinload, &Placement::default())?;
                    let log = finish(injector)?;
                    let mut samples: Vec<f64> =
                        figures.into_iter().flat_map(|figure| figure.samples).collect();
                    samples.sort_unstable_by(|one, other| other.total_cmp(one));
                    // Each stall by the gap that is nearest to it in length.
                    let longest = &samples[..samples.len().min(log.len())];
                    let mut sorted = log.clone();
                    sorted.sort_unstable_by(|one, other| other.total_cmp(one));
                    for (gap, truth) in longest.iter().zip(&sorted) {
                        let off = (gap / truth - 1.0).abs();
                        seen += usize::from(off < 0.01);
                        furthest = furthest.max(off);
                    }
                    injected += log.len();
                    gaps.push(median(longest).ok_or("spin-gap saw no gap at all")?);
                    logs.push(median(&log).ok_or("no stall was injected")?);
                    ours_max.push(longest[0]);
                } else {
                    let injector = self.injector(length_ms, OSLAT_AFTER_NS)?;
                    let place = (&Placement::default(), &self.scratch);
                    let found = Anchor::Oslat.run(&settings, &[], place)?;
                    finish(injector)?;
                    let max = found.readings.iter().find(|one| one.statistic == Statistic::Max);
                    oslat_max.push(max.ok_or("oslat told no maximum")?.value);
                }
            }
        }
        let name = format!("spin-gap, stalls of {length_ms} ms");
        rows.push(Row {
            ruler: format!("{name}: median"),
            how: "pinload spin-gap --duty 100".to_owned(),
            anchor: "the log of who made them".to_owned(),
            ours: gaps,
            theirs: logs,
            text: microseconds,
            goal: Goal::Within(0.99, 1.01),
        });
        rows.push(Row {
            ruler: format!("{name}: longest"),
            how: "pinload spin-gap --duty 100".to_owned(),
            anchor: "oslat".to_owned(),
            ours: ours_max,
            theirs: oslat_max,
            text: microseconds,
            goal: Goal::Within(0.95, 1.05),
        });
        notes.push(format!(
            "Of {injected} stalls of {length_ms} ms spin-gap saw {seen} within 1 %; the furthest was {:.2} % off.",
            furthest * 100.0
        ));
        Ok(())
    }

    /// Ours beside cyclictest, and cyclictest beside itself.
    fn wakeups(&mut self, rows: &mut Vec<Row>) -> Result<String, Failure> {
        let settings = Settings {
            period_us: Some(WAKEUP_PERIOD_US),
            ..self.settings(RulerPolicy::Fifo(PRIORITY), WAKEUPS_NS)
        };
        let job = registry::find("wakeup").ok_or("there is no wakeup")?.job(&settings)?;
        // Ours, cyclictest, cyclictest again: mean and 99.9 % quantile.
        let mut means: [Vec<f64>; 3] = Default::default();
        let mut tails: [Vec<f64>; 3] = Default::default();
        for _ in 0..self.blocks {
            let mut order = [0, 1, 2];
            self.random.shuffle(&mut order);
            for which in order {
                let (mean, tail) = if which == 0 {
                    let figures = job.run_on_host(&self.pinload, &Placement::default())?;
                    let samples: Vec<f64> = figures
                        .into_iter()
                        .filter(|figure| figure.family == Family::Tail)
                        .flat_map(|figure| figure.samples)
                        .collect();
                    let of = |what| of_samples(&samples, what, Direction::LowerIsBetter);
                    (of(Statistic::Mean), of(Statistic::P999))
                } else {
                    let place = (&Placement::default(), &self.scratch);
                    let found = Anchor::Cyclictest.run(&settings, &[], place)?;
                    let of = |what| {
                        found.readings.iter().find(|one| one.statistic == what).map(|one| one.value)
                    };
                    (of(Statistic::Mean), of(Statistic::P999))
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
            let how =
                format!("pinload wakeup --period-us {WAKEUP_PERIOD_US} --policy fifo:{PRIORITY}");
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

    /// A thread that stalls the PU at random moments; it gives the true lengths (ns).
    fn injector(&mut self, length_ms: u64, after_ns: u64) -> Result<Injector, Failure> {
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
        Ok(thread.spawn(move || inject(pu, &starts, length_ns))?)
    }
}

type Injector = JoinHandle<Result<Vec<f64>, String>>;

fn finish(injector: Injector) -> Result<Vec<f64>, Failure> {
    Ok(injector.join().map_err(|_| "the injector fell over")??)
}

fn inject(pu: PuId, starts: &[u64], length_ns: u64) -> Result<Vec<f64>, String> {
    let told = |error: pinfold_host::HostError| format!("the injector: {error}");
    let host = LiveHost::new().map_err(told)?;
    let tid = process::own_tid();
    host.set_affinity(tid, &CpuSet::from_iter([pu])).map_err(told)?;
    host.set_policy(tid, Policy::Fifo { priority: HIGHEST }).map_err(told)?;
    let mut lengths = Vec::new();
    for start in starts {
        SystemClock.sleep_ns(start.saturating_sub(SystemClock.now_ns()));
        let begin = SystemClock.now_ns();
        let mut now = begin;
        while now - begin < length_ns {
            now = SystemClock.now_ns();
        }
        lengths.push((now - begin) as f64);
    }
    Ok(lengths)
}

fn microseconds(ns: f64) -> String {
    format!("{:.1} µs", ns / 1e3)
}
