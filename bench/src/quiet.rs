//! `quiet`: how much the run time of the same work varies next to a load that this program starts.
//!
//! The ways to run it are interleaved: each round runs all of them in random order, with the same
//! load in each. The spread is that of the runs of a block, the ratio that of two ways in the same
//! block. The first way is in the table twice: a difference between these two is none.
//!
//! Nothing but the work and the load is moved: `pinfold quiet` runs with `--isolate none`, and this
//! program keeps its load off the CPUs of the plan, as `--isolate host` does with all tasks.

use std::hint::black_box;
use std::io::Write as _;

use pinfold_host::process::{self, Child, Spawn, Stdio};
use pinfold_host::{Clock as _, Host as _, HostMut as _, LiveHost, SystemClock};
use pinfold_model::{CpuSet, Request, Speed, Tid, VnodeRequest};
use pinfold_stats::random::Pcg32;
use pinfold_stats::{
    Block, Direction, Evidence, Mean, Rule, Verdict, blocks_needed, holm, median, ratio_interval,
    sign_flip_blocks,
};

use crate::arguments::{Arguments, Failure};
use crate::origin;
use crate::page::{Figures, Table};
use crate::pairs::{self, Contender, Times, milliseconds, program_beside, ratio};
use crate::scratch::Scratch;

/// Blocks, and runs of each way in one.
const BLOCKS: u32 = 12;
const IN_BLOCK: usize = 5;
const TIMEOUT_NS: u64 = 120_000_000_000;
/// The work takes about this time (ns) on a CPU of its own, or in a short run; by samples of this
/// many steps.
const WORK_NS: u64 = 1_000_000_000;
const SHORT_WORK_NS: u64 = 20_000_000;
const SAMPLE_STEPS: u64 = 2_000_000;
const SAMPLES: [(); 10] = [(); 10];
/// A program of the load computes for a random time up to this, then sleeps for another one (ns).
const BURST_NS: u32 = 200_000_000;
/// Spreads within 10 % count as the same.
const MARGIN: f64 = 0.1;
const ALPHA: f64 = 0.05;

/// How the work is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Next to the load.
    Free,
    /// The same once more.
    Again,
    /// On the CPUs of the plan.
    Taskset,
    /// The same, with the load on the other CPUs.
    TasksetBoth,
    /// By `pinfold quiet`, with the load on the other CPUs.
    Quiet,
    /// Without the load.
    NoLoad,
}

impl Way {
    const ALL: [Way; 6] =
        [Way::Free, Way::Again, Way::Taskset, Way::TasksetBoth, Way::Quiet, Way::NoLoad];

    fn name(self) -> &'static str {
        match self {
            Way::Free => "next to the load",
            Way::Again => "the same again (A/A)",
            Way::Taskset => "`taskset`",
            Way::TasksetBoth => "`taskset` for the work and for the load",
            Way::Quiet => "`pinfold quiet`, the load excluded",
            Way::NoLoad => "without load",
        }
    }

    fn has_load(self) -> bool {
        self != Way::NoLoad
    }

    fn excludes_load(self) -> bool {
        matches!(self, Way::TasksetBoth | Way::Quiet)
    }

    fn is_pinned(self) -> bool {
        matches!(self, Way::Taskset | Way::TasksetBoth | Way::Quiet)
    }
}

struct Bench {
    host: LiveHost,
    own: String,
    pinfold: String,
    scratch: Scratch,
    /// The CPUs of the work, and all others.
    cpus: CpuSet,
    others: CpuSet,
    steps: u64,
}

/// Measures all ways.
pub fn run(arguments: &Arguments) -> Result<Figures, Failure> {
    let host = LiveHost::new()?;
    let topology = pinfold_topology::discover(&host)?;
    let request = Request::from_vnodes(vec![VnodeRequest::processes("bench", 1, Speed::FULL)]);
    let cpus = pinfold_plan::plan("vnodes", &topology, &request)?.pus();
    let others = host.affinity(Tid(0))?.difference(&cpus);
    if others.is_empty() {
        return Err("this machine has no CPU for the load: it needs at least two cores".into());
    }
    let machine = origin::of_host(&host, &topology)?;
    let own = std::env::current_exe()?.to_string_lossy().into_owned();
    let (pinfold, scratch) = (program_beside(arguments)?, Scratch::on_disk()?);
    let steps = steps_of_work(if arguments.quick { SHORT_WORK_NS } else { WORK_NS });
    let bench = Bench { host, own, pinfold, scratch, cpus, others, steps };
    let blocks = arguments.rounds.unwrap_or(BLOCKS);
    let contenders = Way::ALL.map(|way| {
        let (bench, mut round) = (&bench, 0);
        Contender::new(way.name(), move || {
            round += 1;
            bench.time(way, round)
        })
    });
    let mut contenders = contenders.into_iter().collect::<Vec<_>>();
    let rounds = blocks.saturating_mul(u32::try_from(IN_BLOCK)?);
    let times = pairs::rounds(&mut contenders, rounds, arguments.seed)?;
    let load = bench.processes_of_load();
    Ok(Figures {
        name: "quiet".to_owned(),
        title: "how much the run time of the same work varies next to a load".to_owned(),
        origin: format!(
            "{machine}; {} steps of a generator on CPU {}, next to {load} programs that compute and sleep for up to {} ms each; Pinfold {}; {blocks} blocks of {IN_BLOCK} runs in random order, seed {}",
            bench.steps, bench.cpus, BURST_NS / 1_000_000, env!("CARGO_PKG_VERSION"), arguments.seed
        ),
        tables: vec![table(&times)],
        notes: vec![
            "The spread of a block is the standard deviation of its run times divided by their mean; the ratio compares the spreads of the same block.".to_owned(),
            format!("“Smaller” and “larger” need the whole interval on that side of 1 and p ≤ {ALPHA} after Holm's correction, “the same” the whole interval within {:.0} %; everything else is not settled.", MARGIN * 100.0),
            "Isolated was the load only: by `taskset` for the load, and next to `pinfold quiet` by this program, as `--isolate host` does with all tasks. `pinfold quiet` ran with `--isolate none --profile none`, so it pinned the work and changed nothing else: all other tasks of the machine could run on its CPU.".to_owned(),
        ],
    })
}

/// The steps that take this time, by the fastest of the samples.
fn steps_of_work(work_ns: u64) -> u64 {
    let samples = SAMPLES.map(|()| {
        let begin_ns = SystemClock.now_ns();
        compute(SAMPLE_STEPS);
        SystemClock.now_ns().saturating_sub(begin_ns)
    });
    let fastest = samples.into_iter().fold(u64::MAX, u64::min).max(1);
    SAMPLE_STEPS.saturating_mul(work_ns) / fastest
}

fn compute(steps: u64) {
    let mut state = black_box(1_u64);
    for _ in 0..steps {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state);
}

/// The work, in a process of its own: prints its time in nanoseconds and the CPUs that it may use.
pub fn work(steps: u64) -> Result<(), Failure> {
    let begin_ns = SystemClock.now_ns();
    compute(steps);
    let time_ns = SystemClock.now_ns().saturating_sub(begin_ns);
    let cpus = LiveHost::new()?.affinity(Tid(0))?;
    Ok(writeln!(std::io::stdout(), "{time_ns} {cpus}")?)
}

/// One program of the load, until it is killed.
pub fn load(seed: u64) -> Result<(), Failure> {
    let mut random = Pcg32::new(seed, 2);
    loop {
        let until_ns = SystemClock.now_ns() + u64::from(random.draw_below(BURST_NS));
        while SystemClock.now_ns() < until_ns {
            compute(10_000);
        }
        SystemClock.sleep_ns(u64::from(random.draw_below(BURST_NS)));
    }
}

impl Bench {
    /// Run time of the work (ns). Each way meets the same loads in its rounds.
    fn time(&self, way: Way, round: u64) -> Result<f64, Failure> {
        let load = if way.has_load() { self.start_load(way, round)? } else { Vec::new() };
        let (state, cpus, steps) =
            (self.scratch.file("state"), self.cpus.to_string(), self.steps.to_string());
        let work = [self.own.as_str(), "--work", &steps];
        let before: &[&str] = match way {
            Way::Free | Way::Again | Way::NoLoad => &[],
            Way::Taskset | Way::TasksetBoth => &["taskset", "-c", &cpus],
            Way::Quiet => &[
                &self.pinfold,
                "--state-dir",
                &state,
                "quiet",
                "--ignore-claims",
                "--isolate",
                "none",
                "--profile",
                "none",
                "--",
            ],
        };
        let words = [before, &work].concat();
        let [program, words @ ..] = words.as_slice() else { return Err("no program".into()) };
        let output = process::capture(program, words, TIMEOUT_NS)?;
        for mut child in load {
            child.kill()?;
        }
        let said = output.stdout_text();
        let result = said.trim().split_once(' ');
        let Some((time, used)) = result.filter(|_| output.status.success()) else {
            let why = output.stderr_text();
            return Err(format!("{} failed: {said}{why}", way.name()).into());
        };
        if way.is_pinned() && used != cpus {
            return Err(format!("{}: the work ran on CPU {used}, not {cpus}", way.name()).into());
        }
        Ok(time.parse()?)
    }

    /// A program for each CPU.
    fn processes_of_load(&self) -> usize {
        self.cpus.len() + self.others.len()
    }

    fn start_load(&self, way: Way, round: u64) -> Result<Vec<Child>, Failure> {
        let mut children = Vec::new();
        for seed in (round << 16..).take(self.processes_of_load()) {
            let child = Spawn::new(&self.own)
                .args(["--load", &seed.to_string()])
                .stdin(Stdio::Null)
                .stdout(Stdio::Null)
                .die_with_parent(true)
                .start()?;
            if way.excludes_load() {
                self.host.set_affinity(child.pid(), &self.others)?;
            }
            children.push(child);
        }
        Ok(children)
    }
}

/// A row for each way, each compared with the first.
fn table(times: &[Times]) -> Table {
    let head = [
        "the work",
        "median",
        "shortest – longest",
        "spread of a block, median",
        "ratio of spreads to “next to the load” [95 %], p",
        "spread",
    ];
    let spreads: Vec<Vec<f64>> = times.iter().map(|one| spreads(&one.samples)).collect();
    let first = spreads.first().map_or(&[][..], Vec::as_slice);
    let blocks = spreads.iter().map(|own| paired_blocks(own, first)).collect::<Vec<_>>();
    let p_values: Vec<f64> =
        blocks.iter().skip(1).map(|blocks| sign_flip_blocks(blocks).unwrap_or(1.0)).collect();
    let corrected = [vec![1.0], holm(&p_values)].concat();
    let rows = times.iter().enumerate().map(|(at, one)| {
        let range = one.samples.iter().copied();
        let (low, high) = (range.clone().fold(f64::INFINITY, f64::min), range.fold(0.0, f64::max));
        let (compared, word) = if at == 0 {
            ("1".to_owned(), "–")
        } else {
            (ratio(&spreads[at], first), verdict(&blocks[at], corrected[at]))
        };
        vec![
            one.name.clone(),
            milliseconds(median(&one.samples)),
            format!("{} – {}", milliseconds(Some(low)), milliseconds(Some(high))),
            median(&spreads[at])
                .map_or_else(|| "–".to_owned(), |one| format!("{:.2} %", one * 100.0)),
            compared,
            word.to_owned(),
        ]
    });
    Table { rows: rows.collect(), head: head.map(str::to_owned).to_vec() }
}

/// The coefficient of variation of each block.
fn spreads(samples: &[f64]) -> Vec<f64> {
    let blocks = samples.chunks_exact(IN_BLOCK);
    let means = blocks.filter_map(Mean::from_values);
    means.filter_map(|block| Some(block.deviation? / block.mean)).collect()
}

fn paired_blocks(own: &[f64], first: &[f64]) -> Vec<Block> {
    own.iter().zip(first).map(|(own, first)| Block::pair(*own, *first)).collect()
}

fn verdict(blocks: &[Block], p_holm: f64) -> &'static str {
    let others = u32::try_from(Way::ALL.len() - 1).unwrap_or(u32::MAX);
    let rule = Rule { alpha: ALPHA, margin: MARGIN, blocks_needed: blocks_needed(others, ALPHA) };
    let Some(interval) = ratio_interval(blocks) else { return "not settled" };
    let evidence =
        Evidence { blocks: u32::try_from(blocks.len()).unwrap_or(u32::MAX), interval, p_holm };
    match Verdict::from_evidence(&evidence, Direction::LowerIsBetter, &rule) {
        Verdict::Better => "smaller",
        Verdict::Same => "the same",
        Verdict::Worse => "larger",
        Verdict::Unknown { .. } => "not settled",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_that_of_each_block() {
        let block = [1.0, 2.0, 3.0, 4.0, 5.0];
        let found = spreads(&[block, block.map(|value| value * 10.0)].concat());
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|one| (one - 2.5_f64.sqrt() / 3.0).abs() < 1e-12), "{found:?}");
        assert_eq!(spreads(&block[..4]), [0.0; 0], "an incomplete block");
    }

    #[test]
    fn only_a_whole_interval_is_a_verdict() {
        check(&[0.5; 12], 0.01, "smaller");
        check(&[2.0; 12], 0.01, "larger");
        check(&[1.02; 12], 0.01, "the same");
        check(&[0.5; 12], 0.2, "not settled");
        check(&[0.5, 2.0, 0.5, 2.0, 0.5, 2.0, 0.5, 2.0], 0.01, "not settled");
        check(&[0.5; 3], 0.01, "not settled");
        check(&[0.5], 0.01, "not settled");
    }

    fn check(ratios: &[f64], p_holm: f64, expected: &str) {
        let blocks = paired_blocks(ratios, &vec![1.0; ratios.len()]);
        assert_eq!(verdict(&blocks, p_holm), expected, "{ratios:?}");
    }
}
