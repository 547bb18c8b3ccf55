//! `limits`: what an emulated CPU cannot hide, measured with Pinfold's own benchmarks.
//!
//! A vnode of one core at half speed under `stall`, with periods of 1 ms so that windows of 100 µs
//! fit between two stalls, is compared with the same CPU outside of it, alternately in random
//! order. A CPU of half the speed would take twice the time for work in the core, at every scale,
//! and the same time for everything that it waits for. Each chase through an area that fits into a
//! cache is compared with one outside that pauses by itself in the same periods: the time that both
//! lose is due to evictions from the caches.

use pinfold_host::LiveHost;
use pinfold_host::process::{self, Spawn};
use pinfold_model::{CpuSet, PuId};
use pinfold_probe::benchmarks::{Benchmark, Cpus};
use pinfold_probe::cpu_speed::SpeedBenchmark as _;
use pinfold_probe::figures::Instrument;
use pinfold_probe::memory::{Chase, Order, Place, Sizes, Windows};
use pinfold_probe::os::{Operation, OsLatency};
use pinfold_probe::pinload::Pinload;
use pinfold_stats::random::Pcg32;
use pinfold_stats::{median, quantile};

use crate::arguments::{Arguments, Failure};
use crate::emulate::platform::{Platform, Tools};
use crate::page::{self, Table};
use crate::scratch::Scratch;
use crate::{origin, pairs, topo};

const PAGE: &str = "docs/emulation-limits.md";
const VNODE: &str = "limits";
const VNODE_TOML: &str = "[[vnode]]\nname = \"limits\"\ncores = 1\nspeed = \"50%\"\nmethod = \"stall\"\nperiod = \"1ms\"\n";
const ROUNDS: u32 = 9;
const PATIENCE_NS: u64 = 120_000_000_000;
/// Windows between two stalls, and windows that contain several periods.
const SHORT_US: u32 = 100;
const LONG_US: u32 = 5_000;
const KIB: u64 = 1024;

/// Half of a period of 1 ms at half speed.
const PAUSE_US: u32 = 500;

/// What is measured.
enum Probe {
    /// A `pinload` command; the quantile of its windows that is reported.
    Windows(Instrument, f64),
    /// Timer wake-ups; the quantile of their lateness.
    Wakeups(Benchmark, f64),
}

struct Case {
    what: &'static str,
    /// The ratio to full speed that a CPU of half the speed would show.
    slower: &'static str,
    probe: Probe,
    /// True for a run outside the vnode that pauses by itself.
    pauses: bool,
    outside: Vec<f64>,
    inside: Vec<f64>,
}

/// Measures, prints, and writes the section if requested.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (host, scratch, pinload) = (LiveHost::new()?, Scratch::on_disk()?, Pinload::install()?);
    let topology = pinfold_topology::discover(&host)?;
    let (pinfold, path) = (topo::program_beside(arguments)?, pinload.path());
    let tools = Tools { pinfold: &pinfold, pinload: &path, folder: scratch.path() };
    let platform = Platform::up(tools, VNODE, VNODE_TOML)?;
    let pus = platform.pus(VNODE)?;
    let pu = pus.first().ok_or("a vnode without a CPU")?;
    let rounds = arguments.rounds.unwrap_or(ROUNDS);
    let mut random = Pcg32::new(arguments.seed, 11);
    let mut cases = cases(pu);
    for _ in 0..rounds {
        random.shuffle(&mut cases);
        for case in &mut cases {
            let mut sides = [true, false];
            random.shuffle(&mut sides);
            for is_inside in sides {
                let mut argv = case.probe.argv();
                if is_inside && case.pauses {
                    argv.extend(["--pause-us".to_owned(), PAUSE_US.to_string()]);
                }
                let spawn = if is_inside && !case.pauses {
                    platform.command_in(VNODE, &argv)
                } else {
                    Spawn::new(&path).args(&argv).affinity(pus.clone())
                };
                let value = case.probe.read(spawn)?;
                if is_inside { case.inside.push(value) } else { case.outside.push(value) }
            }
        }
    }
    platform.down()?;
    cases.sort_by_key(|case| case.what);
    let text = format!(
        "On {}; CPU {pu}; a vnode at 50 % under `stall` with turns of 1 ms; {rounds} rounds in random order; Pinfold {}; seed {}.\n\n{}",
        origin::of_host(&host, &topology)?,
        env!("CARGO_PKG_VERSION"),
        arguments.seed,
        table(&cases).to_markdown()
    );
    std::io::Write::write_all(&mut std::io::stdout(), format!("\n{text}").as_bytes())?;
    match &arguments.write {
        Some(file) => page::put_between(file.as_deref().unwrap_or(PAGE), "limits", &text),
        None => Ok(()),
    }
}

fn cases(pu: PuId) -> Vec<Case> {
    let chase = |bytes: u64, length_us: u32| {
        let place = Place { pu: Some(pu), ..Place::default() };
        let windows = Windows { count: 200, length_us };
        let order = Order::Random;
        let sizes = Sizes::one(bytes);
        Chase { sizes, order, loads: None, place, windows }.instrument()
    };
    let null = || {
        let cpus = Some(CpuSet::single(pu));
        OsLatency { operations: vec![Operation::Null], cpus, ..OsLatency::new(400_000_000) }
            .instrument()
    };
    let call = |length_us: u32| {
        let mut instrument = null();
        instrument.arguments.extend(["--window-us".to_owned(), length_us.to_string()]);
        instrument
    };
    let wakeup = || Benchmark::wakeup(500_000_000).on(Cpus::These(CpuSet::single(pu)));
    let case = |what, slower, probe| Case {
        what,
        slower,
        probe,
        pauses: false,
        outside: Vec::new(),
        inside: Vec::new(),
    };
    let over = |bytes: u64| Probe::Windows(chase(bytes, LONG_US), 0.5);
    let pausing = |what, bytes| Case { pauses: true, ..case(what, "–", over(bytes)) };
    vec![
        case("a load from 512 KiB, over 5 ms", "2", over(512 * KIB)),
        pausing("a load from 512 KiB, over 5 ms, pausing by itself", 512 * KIB),
        case("a load from 4 MiB, over 5 ms", "1 to 2", over(4 * KIB * KIB)),
        pausing("a load from 4 MiB, over 5 ms, pausing by itself", 4 * KIB * KIB),
        pausing("a load from 16 KiB, over 5 ms, pausing by itself", 16 * KIB),
        case(
            "a load from 16 KiB, between stalls",
            "2",
            Probe::Windows(chase(16 * KIB, SHORT_US), 0.05),
        ),
        case("a load from 16 KiB, over 5 ms", "2", over(16 * KIB)),
        case(
            "a load from 64 MiB, between stalls",
            "1",
            Probe::Windows(chase(64 * KIB * KIB, SHORT_US), 0.05),
        ),
        case("a load from 64 MiB, over 5 ms", "1", over(64 * KIB * KIB)),
        case("a system call, between stalls", "2", Probe::Windows(call(SHORT_US), 0.05)),
        case("a system call, over 5 ms", "2", Probe::Windows(call(LONG_US), 0.5)),
        case("a timer's lateness, median", "about 2", Probe::Wakeups(wakeup(), 0.5)),
        case("a timer's lateness, 95 %", "about 2", Probe::Wakeups(wakeup(), 0.95)),
    ]
}

impl Probe {
    fn argv(&self) -> Vec<String> {
        match self {
            Probe::Windows(instrument, _) => instrument.argv(),
            Probe::Wakeups(benchmark, _) => benchmark.argv(),
        }
    }

    /// Runs it and reads its figure (ns).
    fn read(&self, spawn: Spawn) -> Result<f64, Failure> {
        let output = spawn.capture(PATIENCE_NS)?;
        if !output.status.success() {
            let (how, said) = (process::describe(output.status), output.stderr_text());
            return Err(format!("{}: {how}: {}", self.argv().join(" "), said.trim()).into());
        }
        let text = output.stdout_text();
        let (samples, part) = match self {
            Probe::Windows(instrument, part) => {
                let figures = instrument.parse(&text)?;
                (figures.into_iter().next().ok_or("no figure")?.samples, part)
            }
            Probe::Wakeups(benchmark, part) => {
                let series = benchmark.parse(&text)?;
                (series.into_iter().next().ok_or("no series")?.samples, part)
            }
        };
        Ok(quantile(&samples, *part).ok_or("no samples")?)
    }
}

fn table(cases: &[Case]) -> Table {
    let head = ["what", "at full speed", "at 50 %", "ratio [95 %], p", "a CPU of half the speed"];
    let text =
        |samples: &[f64]| median(samples).map_or("–".to_owned(), |ns| format!("{ns:.1} ns"));
    let rows = cases.iter().map(|case| {
        vec![
            case.what.to_owned(),
            text(&case.outside),
            text(&case.inside),
            pairs::ratio(&case.inside, &case.outside),
            case.slower.to_owned(),
        ]
    });
    Table { head: head.map(str::to_owned).to_vec(), rows: rows.collect() }
}
