//! Memory: `pinload`'s bandwidth, STREAM and pointer chase compared with likwid-bench and plain
//! code.
//!
//! likwid-bench's own clock can be wrong by 15 % with steal time, so its rates are computed from
//! its cycles and our own rate of the time stamp counter. The plain code is
//! `bench/rivals/memory.c`, compiled here with gcc -O3: the original loops of STREAM, and a pointer
//! chase in samples of half a second, as in multichase.

pub mod area;
mod likwid;
mod without;

use std::cell::Cell;
use std::io::Write as _;

use pinfold_host::files;
use pinfold_host::process::{self, Spawn};
use pinfold_model::{CpuSet, Figure, Policy, PuId};
use pinfold_probe::cpu_speed::SpeedBenchmark as _;
use pinfold_probe::figures::Instrument;
use pinfold_probe::memory::{
    Bandwidth, Chase, Operation, Order, Place, Sizes, StreamVariant, Width, Windows,
};
use pinfold_probe::pinload::Pinload;
use pinfold_stats::random::Pcg32;
use pinfold_stats::{median, quantile};

use super::{Goal, Measured, Row};
use crate::arguments::{Arguments, Failure};
use crate::page::Table;
use crate::scratch::Scratch;

const ROUNDS: u32 = 8;
const MINUTE_NS: u64 = 60_000_000_000;
const RIVAL: &str = include_str!("../../rivals/memory.c");
/// As long as a run of likwid-bench, and as three samples of the chase.
const WINDOWS: Windows = Windows { count: 150, length_us: 2_000 };
const CHASE_WINDOWS: Windows = Windows { count: 375, length_us: 4_000 };
/// For runs that contain fast windows on a loaded machine too.
const LONG: Windows = Windows { count: 1_200, length_us: 2_000 };
const LONG_CHASE: Windows = Windows { count: 750, length_us: 4_000 };
/// Runs are short enough that real-time throttling, which takes 5 % of each second, does not occur.
const POLICY: Policy = Policy::Fifo { priority: 10 };
/// Number of blocks whose spread is reported.
const SPREAD_RUNS: usize = 5;
const SPREAD_GOAL: f64 = 1.05;
/// The row whose variation is that of the machine.
const MACHINE: &str = "intmix crc";

/// Selects the fast windows. The slowest of the fastest tenth represents a run: noise is one-sided,
/// but occasionally a window is faster than the machine can be for longer.
#[derive(Clone, Copy)]
enum Best {
    Most,
    Least,
}

impl Best {
    fn of(self, samples: &[f64]) -> Result<f64, Failure> {
        let at = match self {
            Best::Most => 0.9,
            Best::Least => 0.1,
        };
        Ok(quantile(samples, at).ok_or("a figure has no samples")?)
    }
}

/// What measures the same.
enum ReferenceTool {
    /// A kernel of likwid-bench over this number of bytes, transferring `volume` bytes.
    Likwid { test: String, bytes: u64, volume: u64 },
    /// The plain code with these arguments; one output line for each row.
    Plain(Vec<String>),
    /// Another of our commands; the window that represents each selected figure.
    Ours(Instrument),
    /// None; the name contains the reason.
    None,
}

/// One command of ours compared with one of the reference tool; one row for each selected figure.
struct Match {
    names: Vec<String>,
    how: String,
    reference_tool_name: String,
    ours: Instrument,
    picks: Vec<usize>,
    best: Best,
    reference_tool: ReferenceTool,
    text: fn(f64) -> String,
    goal: Goal,
    /// For each row: ours, theirs, and our median window, one value per block.
    values: Vec<[Vec<f64>; 3]>,
}

struct Bench {
    pinload: Pinload,
    plain: String,
    likwid: String,
    tsc_hz: f64,
    /// The shortest and the longest run of likwid-bench that counted (s).
    likwid_runs: Cell<Option<(f64, f64)>>,
    pu: PuId,
    /// The policy of both sides: real-time, so that other tasks do not interrupt; `None` if
    /// refused.
    policy: Option<Policy>,
    /// Last, so that it is dropped after its contents.
    _scratch: Scratch,
}

/// Measures the rows.
pub fn run(arguments: &Arguments) -> Result<Measured, Failure> {
    let bench = Bench::new()?;
    let caches = bench.caches()?;
    let widths = bench.widths()?;
    let mut matches = bandwidth_matches(&bench, (&caches, &widths), WINDOWS);
    matches.extend(stream_matches(&bench, &caches, &widths));
    matches.extend(chase_matches(&bench, &caches, CHASE_WINDOWS));
    let (alone, lacks) = without::matches(&bench, &caches)?;
    matches.extend(alone);
    if arguments.quick {
        matches.retain(|one| one.names.iter().any(|name| name.contains("L1d") || name == MACHINE));
    }
    let rounds = arguments.rounds.unwrap_or(ROUNDS);
    bench.blocks(&mut matches, rounds, &mut Pcg32::new(arguments.seed, 2))?;
    Ok(Measured {
        conditions: format!(
            "{}, pages of 4 KiB; {}; {rounds} blocks, seed {}",
            bench.conditions()?,
            bench.likwid_version()?,
            arguments.seed
        ),
        notes: notes(&matches, bench.likwid_runs.get()).into_iter().chain(lacks).collect(),
        table: table(matches),
    })
}

/// The spread of runs of ours: long and short runs alternating with those of all other benchmarks,
/// and long ones in direct sequence, with less time for the load of other virtual machines to
/// change.
pub fn repeat(arguments: &Arguments) -> Result<Measured, Failure> {
    let bench = Bench::new()?;
    let caches = bench.caches()?;
    let widths = bench.widths()?;
    let all = |windows, of_chase| {
        let mut matches = bandwidth_matches(&bench, (&caches, &widths), windows);
        matches.extend(chase_matches(&bench, &caches, of_chase));
        matches
    };
    let (long, short) = (all(LONG, LONG_CHASE), all(WINDOWS, CHASE_WINDOWS));
    let together = all(LONG, LONG_CHASE);
    let each = long.into_iter().zip(short).zip(together);
    let mut runs: Vec<Runs> =
        each.map(|((long, short), together)| Runs { long, short, together }).collect();
    if arguments.quick {
        runs.retain(|one| one.long.names.iter().any(|name| name.contains("L1d")));
    }
    bench.repeats(&mut runs, &mut Pcg32::new(arguments.seed, 3))?;
    Ok(Measured {
        conditions: format!(
            "on CPU {}; the slowest of the quickest tenth of {} windows of 2 ms in a long run and of {} in a short one, of the chase {} and {} of 4 ms; seed {}",
            bench.pu,
            LONG.count,
            WINDOWS.count,
            LONG_CHASE.count,
            CHASE_WINDOWS.count,
            arguments.seed
        ),
        notes: notes_of_runs(&runs),
        table: super::table(&runs.into_iter().flat_map(rows_of_runs).collect::<Vec<_>>()),
    })
}

/// The runs of one benchmark.
struct Runs {
    long: Match,
    short: Match,
    together: Match,
}

impl Bench {
    /// In each round a long and a short run of every benchmark, in random order; those in direct
    /// sequence in the first round.
    fn repeats(&self, runs: &mut [Runs], random: &mut Pcg32) -> Result<(), Failure> {
        let mut order: Vec<usize> = (0..runs.len()).collect();
        for round in 0..SPREAD_RUNS {
            random.shuffle(&mut order);
            for &index in &order {
                let Runs { long, short, together } = &mut runs[index];
                let mut turns = [long, short];
                random.shuffle(&mut turns);
                for one in turns {
                    self.ours(one)?;
                }
                for _ in (0..SPREAD_RUNS).filter(|_| round == 0) {
                    self.ours(together)?;
                }
            }
        }
        Ok(())
    }
}

fn rows_of_runs(Runs { long, short, .. }: Runs) -> impl Iterator<Item = Row> {
    let short = rows(short).into_iter().map(|row| row.ours);
    rows(long).into_iter().zip(short).map(|(row, theirs)| Row {
        reference_tool: "the same, short runs".to_owned(),
        theirs,
        goal: Goal::None,
        ..row
    })
}

fn notes_of_runs(runs: &[Runs]) -> Vec<String> {
    let of = |one: &Match| one.values.first().and_then(|[ours, ..]| spread(ours));
    let spreads: Vec<(String, [f64; 3])> = runs
        .iter()
        .filter_map(|Runs { long, short, together }| {
            Some((long.names.join(" "), [of(long)?, of(short)?, of(together)?]))
        })
        .collect();
    let within =
        |which: usize| spreads.iter().filter(|(_, spread)| spread[which] <= SPREAD_GOAL).count();
    let each = spreads.iter().map(|(name, [long, short, together])| {
        format!("{name} {long:.3} / {short:.3} / {together:.3}")
    });
    vec![
        format!(
            "Spread, largest over smallest, of {SPREAD_RUNS} long runs / of {SPREAD_RUNS} short ones, each in turns with those of all other benchmarks, / of {SPREAD_RUNS} long ones together: {}.",
            each.collect::<Vec<_>>().join("; ")
        ),
        format!(
            "At most {SPREAD_GOAL}, the goal: {} of {} with long runs, {} with short ones, {} with long ones together; what runs in turns differ more than those together, the machine changed in the minutes between them.",
            within(0),
            spreads.len(),
            within(1),
            within(2)
        ),
    ]
}

fn table(matches: Vec<Match>) -> Table {
    super::table(&matches.into_iter().flat_map(rows).collect::<Vec<_>>())
}

fn rows(one: Match) -> Vec<Row> {
    let (how, reference_tool, text, goal) = (one.how, one.reference_tool_name, one.text, one.goal);
    one.names
        .into_iter()
        .zip(one.values)
        .map(|(benchmark, [ours, theirs, _])| Row {
            benchmark,
            how: how.clone(),
            reference_tool: reference_tool.clone(),
            ours,
            theirs,
            text,
            goal,
        })
        .collect()
}

/// Largest divided by smallest of the first runs.
fn spread(values: &[f64]) -> Option<f64> {
    let runs = values.get(..SPREAD_RUNS)?;
    Some(quantile(runs, 1.0)? / quantile(runs, 0.0)?)
}

fn notes(matches: &[Match], likwid_runs: Option<(f64, f64)>) -> Vec<String> {
    let likwid = likwid_runs.map_or_else(String::new, likwid::remark);
    let mut notes = vec![
        format!("Ours is the slowest of the quickest tenth of a run's windows (2 ms, of the chase 4 ms), because noise has one side;{likwid} the plain code gives the best of its passes or samples of 0.5 s."),
        "likwid-bench's rates are computed from its cycles and our rate of the time stamp counter; both sides have blocks of equally many bytes, which all arrays of a kernel share; of each width its best kernel is taken. A block that the L2 holds lies on the best of four sets of pages; likwid-bench and the plain code take those that they get.".to_owned(),
        "The levels are those of sysfs; in a virtual machine the hypervisor defines them, and other machines use the caches too. The area of the L3 is twice the L2, because a program may have only a part of it: see “area”.".to_owned(),
    ];
    let of_all = |value: fn(&[Vec<f64>; 3]) -> Option<String>| {
        let named = matches.iter().flat_map(|one| one.names.iter().zip(&one.values));
        let texts = named.filter_map(|(name, values)| Some(format!("{name} {}", value(values)?)));
        texts.collect::<Vec<String>>().join("; ")
    };
    notes.push(format!(
        "The same ratios with the median of our windows in place of these: {}.",
        of_all(|[_, theirs, middle]| {
            let blocks = middle.iter().zip(theirs);
            let ratios: Vec<f64> = blocks.map(|(ours, theirs)| ours / theirs).collect();
            Some(format!("{:.2}", median(&ratios)?))
        })
    ));
    notes.extend(spread_notes(matches));
    notes
}

/// The spread of runs, ours and the reference tool's, in hundredths as reported.
fn spread_notes(matches: &[Match]) -> Vec<String> {
    let hundredths = |values: &[f64]| Some((spread(values)? * 100.0).round() / 100.0);
    let named = matches.iter().flat_map(|one| one.names.iter().zip(&one.values));
    let rows: Vec<(&str, f64, Option<f64>)> = named
        .filter_map(|(name, [ours, theirs, _])| {
            Some((name.as_str(), hundredths(ours)?, hundredths(theirs)))
        })
        .collect();
    let each = rows.iter().map(|(name, ours, theirs)| {
        let theirs = theirs.map_or("–".to_owned(), |spread| format!("{spread:.2}"));
        format!("{name} {ours:.2} / {theirs}")
    });
    let pairs: Vec<(f64, f64)> =
        rows.iter().filter_map(|(_, ours, theirs)| Some((*ours, (*theirs)?))).collect();
    let (ours, theirs): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let within = |side: &[f64]| side.iter().filter(|spread| **spread <= SPREAD_GOAL).count();
    let larger = pairs.iter().filter(|(ours, theirs)| ours > theirs).count();
    let machine = rows.iter().find(|(name, ..)| *name == MACHINE).map(|row| row.1);
    let (Some(of_ours), Some(of_theirs), Some(machine)) = (median(&ours), median(&theirs), machine)
    else {
        return Vec::new();
    };
    vec![
        format!(
            "Spread of the first {SPREAD_RUNS} runs, largest over smallest, ours / the reference tool's: {}.",
            each.collect::<Vec<_>>().join("; ")
        ),
        format!(
            "The goal is at most {SPREAD_GOAL}: of the {} rows with a reference tool ours keeps it in {}, the reference tool in {}. The median is {of_ours:.2} of ours and {of_theirs:.2} of the reference tool's; ours is the larger in {larger}. Work on registers and a table in the L1d (“{MACHINE}”), where only the core's clock and other tasks on the core can change anything, has {machine:.2} in the same blocks.",
            pairs.len(),
            within(&ours),
            within(&theirs),
        ),
    ]
}

fn gigabytes(rate: f64) -> String {
    format!("{:.1} GB/s", rate / 1e9)
}

fn nanoseconds(ns: f64) -> String {
    format!("{ns:.2} ns")
}

/// Sizes well inside each level, and the volume that takes about 0.3 s there.
fn levels(caches: &[u64]) -> Vec<(&'static str, u64, u64)> {
    let names = ["L1d", "L2", "L3"];
    let volumes = [40_000_000_000, 20_000_000_000, 10_000_000_000];
    let inside = |level: usize, bytes: u64| match level.checked_sub(1).map(|below| caches[below]) {
        // Of a shared cache, a program may have only a small part.
        Some(below) if level == 2 => (2 * below).min(bytes / 2),
        _ => bytes / 2,
    };
    let mut levels: Vec<(&str, u64, u64)> = caches
        .iter()
        .enumerate()
        .zip(names.iter().zip(volumes))
        .map(|((level, bytes), (name, volume))| (*name, inside(level, *bytes), volume))
        .collect();
    let last = caches.last().copied().unwrap_or(32 << 20);
    // Four times the last-level cache, as STREAM requires.
    levels.push(("memory", (4 * last).max(256 << 20), 6_000_000_000));
    levels
}

fn place(bench: &Bench) -> Place {
    Place { pu: Some(bench.pu), ..Place::default() }
}

/// Our width, and likwid-bench's name of it.
type Widths = Vec<(Width, &'static str)>;

fn bandwidth_matches(
    bench: &Bench,
    (caches, widths): (&[u64], &Widths),
    windows: Windows,
) -> Vec<Match> {
    let normal =
        [(Operation::Read, "load"), (Operation::Write, "store"), (Operation::Copy, "copy")];
    let around =
        [(Operation::WriteNonTemporal, "store_mem"), (Operation::CopyNonTemporal, "copy_mem")];
    let mut matches = Vec::new();
    for (level, bytes, volume) in levels(caches) {
        for (width, suffix) in widths {
            let kernels = normal.iter().chain(if level == "memory" { &around[..] } else { &[] });
            for (operation, test) in kernels {
                let sizes = Sizes::one(bytes);
                let operations = vec![*operation];
                let place = place(bench);
                let ours = Bandwidth { sizes, operations, width: *width, place, windows };
                let test = format!("{test}_{suffix}");
                matches.push(Match {
                    names: vec![format!("{} {level} {}", operation.name(), width.name())],
                    how: format!("bandwidth, {} KiB", bytes / 1024),
                    reference_tool_name: format!("likwid-bench {test}"),
                    ours: ours.instrument(),
                    picks: vec![0],
                    best: Best::Most,
                    reference_tool: ReferenceTool::Likwid { test, bytes, volume },
                    text: gigabytes,
                    goal: Goal::AtLeast(1.0),
                    values: vec![Default::default()],
                });
            }
        }
    }
    matches
}

fn stream_matches(bench: &Bench, caches: &[u64], widths: &Widths) -> Vec<Match> {
    let bytes = 4 * caches.last().copied().unwrap_or(32 << 20);
    let elements = bytes / 8;
    let stream = |width: Width| {
        StreamVariant {
            array_mib: u32::try_from(bytes >> 20).ok(),
            width,
            place: place(bench),
            windows: WINDOWS,
        }
        .instrument()
    };
    let how = format!("stream-variant, arrays of {} MiB", bytes >> 20);
    let mut matches = vec![Match {
        names: ["copy", "scale", "add", "triad"].map(|name| format!("STREAM {name}")).to_vec(),
        how: how.clone(),
        reference_tool_name: "gcc -O3, loops as written".to_owned(),
        ours: stream(Width::Auto),
        picks: vec![0, 1, 2, 3],
        best: Best::Most,
        reference_tool: ReferenceTool::Plain(vec![
            "stream".to_owned(),
            elements.to_string(),
            "12".to_owned(),
        ]),
        text: gigabytes,
        goal: Goal::AtLeast(1.0),
        values: vec![Default::default(); 4],
    }];
    for (width, suffix) in widths {
        let test = format!("stream_mem_{suffix}");
        matches.push(Match {
            names: vec![format!("STREAM triad non-temporal {}", width.name())],
            how: how.clone(),
            reference_tool_name: format!("likwid-bench {test}"),
            ours: stream(*width),
            picks: vec![7],
            best: Best::Most,
            reference_tool: ReferenceTool::Likwid { test, bytes: 3 * bytes, volume: 6_000_000_000 },
            text: gigabytes,
            goal: Goal::AtLeast(1.0),
            values: vec![Default::default()],
        });
    }
    matches
}

fn chase_matches(bench: &Bench, caches: &[u64], windows: Windows) -> Vec<Match> {
    levels(caches)
        .into_iter()
        .map(|(level, bytes, _)| Match {
            names: vec![format!("random chase {level}")],
            how: format!("chase, {} KiB", bytes / 1024),
            reference_tool_name: "plain chase, best of 3 samples of 0.5 s".to_owned(),
            ours: Chase {
                sizes: Sizes::one(bytes),
                order: Order::Random,
                loads: None,
                place: place(bench),
                windows,
            }
            .instrument(),
            picks: vec![0],
            best: Best::Least,
            reference_tool: ReferenceTool::Plain(vec![
                "chase".to_owned(),
                bytes.to_string(),
                "3".to_owned(),
            ]),
            text: nanoseconds,
            goal: Goal::AtMost(1.02),
            values: vec![Default::default()],
        })
        .collect()
}

impl Bench {
    fn new() -> Result<Self, Failure> {
        let likwid = process::find_program("likwid-bench")
            .ok_or("likwid-bench is not installed; apt-get install likwid")?;
        let scratch = Scratch::on_disk()?;
        let (source, plain) = (scratch.file("memory.c"), scratch.file("memory"));
        files::write_atomic(&source, RIVAL.as_bytes())?;
        // Without the last flag, the compiler replaces the copy loop by a call of memcpy.
        let flags = ["-O3", "-march=native", "-fno-tree-loop-distribute-patterns"];
        let words = flags.into_iter().chain(["-o", &plain, &source]);
        let built = process::capture("gcc", words, MINUTE_NS)?;
        if !built.status.success() {
            return Err(format!("gcc cannot build the plain code: {}", built.stderr_text()).into());
        }
        let pinload = Pinload::install_in(&scratch.file("bin"))?;
        let pu = super::last_pu()?;
        let policy = Some(POLICY);
        let likwid_runs = Cell::new(None);
        let tsc_hz = 0.0;
        let mut bench =
            Self { pinload, plain, likwid, tsc_hz, likwid_runs, pu, policy, _scratch: scratch };
        let tsc = ["tsc".to_owned()];
        if bench.lines(&bench.plain, &tsc).is_err() {
            bench.policy = None;
        }
        bench.tsc_hz = first(&bench.lines(&bench.plain, &tsc)?)?;
        Ok(bench)
    }

    /// Runs both sides of all matches in random order, this number of times.
    fn blocks(
        &self,
        matches: &mut [Match],
        rounds: u32,
        random: &mut Pcg32,
    ) -> Result<(), Failure> {
        for round in 1..=rounds {
            writeln!(std::io::stderr(), "memory: block {round} of {rounds}")?;
            let mut order: Vec<usize> = (0..matches.len()).collect();
            random.shuffle(&mut order);
            for index in order {
                let mut turns = [true, false];
                random.shuffle(&mut turns);
                for is_ours in turns {
                    if is_ours {
                        self.ours(&mut matches[index])?
                    } else {
                        self.theirs(&mut matches[index])?
                    }
                }
            }
        }
        Ok(())
    }

    fn conditions(&self) -> Result<String, Failure> {
        let policy = match self.policy {
            Some(_) => "both sides under SCHED_FIFO",
            None => "both sides at normal priority",
        };
        Ok(format!("on CPU {}, {policy}; plain code by {}", self.pu, self.compiler()?))
    }

    /// Runs a program on the CPU and returns its standard output.
    fn output(&self, program: &str, words: &[String]) -> Result<String, Failure> {
        let spawn = Spawn::new(program).args(words.to_vec()).policy(self.policy);
        let output = spawn.affinity(CpuSet::single(self.pu)).capture(3 * MINUTE_NS)?;
        if !output.status.success() {
            let said = output.stderr_text();
            return Err(format!("`{program} {}` failed: {}", words.join(" "), said.trim()).into());
        }
        Ok(output.stdout_text())
    }

    fn lines(&self, program: &str, words: &[String]) -> Result<Vec<f64>, Failure> {
        let text = self.output(program, words)?;
        Ok(text.lines().map(str::parse).collect::<Result<_, _>>()?)
    }

    fn figures(&self, instrument: &Instrument) -> Result<Vec<Figure>, Failure> {
        Ok(instrument.parse(&self.output(&self.pinload.path(), &instrument.argv())?)?)
    }

    fn ours(&self, one: &mut Match) -> Result<(), Failure> {
        let found = self.picked(&one.ours, one)?;
        for (samples, values) in found.iter().zip(&mut one.values) {
            values[0].push(one.best.of(samples)?);
            values[2].push(median(samples).ok_or("a figure has no samples")?);
        }
        Ok(())
    }

    /// Windows of the figures that a match selects.
    fn picked(&self, instrument: &Instrument, one: &Match) -> Result<Vec<Vec<f64>>, Failure> {
        let figures = self.figures(instrument)?;
        let samples = |pick: &usize| figures.get(*pick).map(|figure| figure.samples.clone());
        let found: Option<Vec<Vec<f64>>> = one.picks.iter().map(samples).collect();
        Ok(found.ok_or("pinload gave too few figures")?)
    }

    fn theirs(&self, one: &mut Match) -> Result<(), Failure> {
        let found = match &one.reference_tool {
            ReferenceTool::Plain(words) => self.lines(&self.plain, words)?,
            ReferenceTool::Likwid { test, bytes, volume } => {
                vec![self.likwid(test, *bytes, *volume)?]
            }
            ReferenceTool::None => return Ok(()),
            ReferenceTool::Ours(instrument) => {
                let found = self.picked(instrument, one)?;
                found.iter().map(|samples| one.best.of(samples)).collect::<Result<_, _>>()?
            }
        };
        if found.len() != one.values.len() {
            return Err(format!("{} gave {} values", one.reference_tool_name, found.len()).into());
        }
        for (value, values) in found.into_iter().zip(&mut one.values) {
            values[1].push(value);
        }
        Ok(())
    }

    fn compiler(&self) -> Result<String, Failure> {
        let text =
            self.output("/usr/bin/env", &["gcc".to_owned(), "-dumpfullversion".to_owned()])?;
        Ok(format!("gcc {} -O3 -march=native", text.trim()))
    }

    /// Sizes of the data caches, the smallest first, as reported by `pinload`.
    fn caches(&self) -> Result<Vec<u64>, Failure> {
        let figures = self.figures(&self.probing(Width::Scalar))?;
        let text = figures.first().and_then(|figure| figure.labels.get("caches"));
        // "L1d 32K, L2 1024K, L3 32768K"
        let sizes = text.ok_or("pinload reported no caches")?.split(", ");
        let kib = sizes
            .filter_map(|cache| cache.split(' ').nth(1)?.trim_end_matches('K').parse::<u64>().ok());
        let caches: Vec<u64> = kib.map(|kib| kib * 1024).collect();
        if caches.is_empty() { Err("sysfs reports no caches here".into()) } else { Ok(caches) }
    }

    fn probing(&self, width: Width) -> Instrument {
        let windows = Windows { count: 30, length_us: 100 };
        let (sizes, operations) = (Sizes::one(4096), vec![Operation::Read]);
        Bandwidth { sizes, operations, width, place: place(self), windows }.instrument()
    }

    /// The widths that this CPU supports and for which likwid-bench has kernels.
    fn widths(&self) -> Result<Widths, Failure> {
        let kernels = self.output(&self.likwid, &["-a".to_owned()])?;
        let known = [(Width::Bits128, "sse"), (Width::Avx2, "avx"), (Width::Avx512, "avx512")];
        Ok(known
            .into_iter()
            .filter(|(width, suffix)| {
                kernels.contains(&format!("load_{suffix} "))
                    && self.figures(&self.probing(*width)).is_ok()
            })
            .collect())
    }
}

fn first(values: &[f64]) -> Result<f64, Failure> {
    Ok(*values.first().ok_or("the plain code printed nothing")?)
}

#[cfg(test)]
mod tests {
    use super::{levels, spread};

    #[test]
    fn levels_are_well_inside_the_caches() {
        let found = levels(&[32 << 10, 1 << 20, 32 << 20]);
        let sizes: Vec<(&str, u64)> =
            found.iter().map(|(name, bytes, _)| (*name, *bytes)).collect();
        assert_eq!(
            sizes,
            [("L1d", 16 << 10), ("L2", 512 << 10), ("L3", 2 << 20), ("memory", 256 << 20)]
        );
        let large = levels(&[48 << 10, 2 << 20, 480 << 20]);
        assert_eq!(large.last().map(|(_, bytes, _)| *bytes), Some(1920 << 20));
        assert_eq!(spread(&[1.0, 1.0, 2.0, 1.0, 1.0, 9.0]), Some(2.0));
        assert_eq!(spread(&[1.0]), None);
    }
}
