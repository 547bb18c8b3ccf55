//! `react`: how soon a change of a virtual node's speed takes effect, how soon it runs at full
//! speed after its supervisor was stopped or killed, and how accurate the replay of a recorded load
//! is.
//!
//! A thread works in the vnode and reports its progress in each millisecond; the times are on the
//! clock of the controlling process.

use pinfold_config::platforms;
use pinfold_host::process::Signaled;
use pinfold_host::{Clock as _, LiveHost, SystemClock, files};
use pinfold_model::{CpuSet, LoadRow, Method, PuId, RecordedLoad};
use pinfold_probe::cpu_speed::{Progress, ProgressOutcome, SpeedBenchmark as _, Workers};
use pinfold_probe::pinload::Pinload;
use pinfold_stats::random::Pcg32;
use pinfold_stats::{median, quantile};

use crate::arguments::{Arguments, Failure};
use crate::emulate::load::{Load, PATIENCE_NS};
use crate::emulate::platform::{Platform, Tools};
use crate::page::{Figures, Table};
use crate::pairs::milliseconds;
use crate::scratch::Scratch;
use crate::{origin, topo};

const MS: u64 = 1_000_000;
const ROUNDS: u32 = 15;
/// Time that the worker works before the event, and about as long after it.
const BEFORE_MS: u32 = 300;
const WORK_MS: u32 = 800;
/// Maximum duration of a change.
const STEP_MS: usize = 200;
const ONE: Workers = Workers::Threads(1);
const SLOW: f64 = 0.25;
/// Methods that take from each interval, with a period that windows of 1 ms can resolve.
const METHODS: [(Method, u64); 2] = [(Method::Stall, MS), (Method::Hogs, 10 * MS)];
/// The replayed load: length and number of its rows, and the maximum load.
const ROW_MS: u64 = 200;
const ROWS: usize = 40;
const MOST: u32 = 90;
/// Rows without load before and after.
const IDLE_ROWS: usize = 10;

/// The event for the vnode or its supervisor.
#[derive(Clone, Copy)]
enum Event {
    Slower,
    Faster,
    Stopped,
    Killed,
}

impl Event {
    const ALL: [(Event, &'static str); 4] = [
        (Event::Slower, "100 % to 25 %"),
        (Event::Faster, "25 % to 100 %"),
        (Event::Stopped, "supervisor stopped"),
        (Event::Killed, "supervisor killed"),
    ];

    fn begins_slow(self) -> bool {
        !matches!(self, Event::Slower)
    }
}

struct BenchHost<'s> {
    tools: Tools<'s>,
    random: Pcg32,
    rounds: u32,
}

/// Runs all measurements.
pub fn run(arguments: &Arguments) -> Result<Figures, Failure> {
    let (host, scratch) = (LiveHost::new()?, Scratch::on_disk()?);
    let topology = pinfold_topology::discover(&host)?;
    let (pinload, pinfold) = (Pinload::install()?, topo::program_beside(arguments)?);
    let path = pinload.path();
    let tools = Tools { pinfold: &pinfold, pinload: &path, folder: scratch.path() };
    let rounds = arguments.rounds.unwrap_or(ROUNDS);
    let mut stage = BenchHost { tools, random: Pcg32::new(arguments.seed, 9), rounds };
    let mut rows = Vec::new();
    for (method, period_ns) in METHODS {
        for (event, name) in Event::ALL {
            let mut times = Vec::new();
            for _ in 0..stage.rounds {
                times.extend(stage.one((method, period_ns), event)?);
            }
            let of = |part: f64| milliseconds(quantile(&times, part));
            let goal = match event {
                Event::Slower | Event::Faster => milliseconds(Some(2.0 * period_ns as f64)),
                Event::Stopped | Event::Killed => milliseconds(Some(100.0 * MS as f64)),
            };
            let what =
                format!("{method}, a turn each {}: {name}", milliseconds(Some(period_ns as f64)));
            let seen = format!("{} of {}", times.len(), stage.rounds);
            rows.push(vec![what, milliseconds(median(&times)), of(0.95), of(1.0), seen, goal]);
        }
    }
    let head = ["what", "median", "95 %", "longest", "seen", "goal"].map(str::to_owned).to_vec();
    let soon = Table { head, rows };
    let replay = stage.replay(&pinload)?;
    Ok(Figures {
        name: "react".to_owned(),
        title: "how soon an emulated speed changes, and how close a replayed load is".to_owned(),
        origin: format!(
            "{}; Pinfold {}; {rounds} rounds",
            origin::of_host(&host, &topology)?,
            env!("CARGO_PKG_VERSION")
        ),
        tables: vec![soon, replay],
        notes: vec![
            "From before the request (or the signal) to where one step between both speeds fits the worker's milliseconds best; the request itself and a millisecond of resolution are part of it.".to_owned(),
            format!("The replay: {ROWS} rows of {ROW_MS} ms with random loads up to {MOST} %, `inject`; what a worker at the same CPU lacks to its speed without the load, by row; the offset between the two clocks is the one that fits best."),
        ],
    })
}

impl BenchHost<'_> {
    fn platform(
        &self,
        method: Method,
        period_ns: u64,
        more: &str,
    ) -> Result<Platform<'_>, Failure> {
        let toml = format!(
            "[[vnode]]\nname = \"react\"\ncores = 1\nmethod = \"{method}\"\nperiod = \"{period_ns}ns\"\n{more}"
        );
        Platform::up(self.tools, "react", &toml)
    }

    /// Nanoseconds until the new speed is reached; `None` if the machine was too busy.
    fn one(
        &mut self,
        (method, period_ns): (Method, u64),
        event: Event,
    ) -> Result<Option<f64>, Failure> {
        let pause_ns = u64::from(self.random.below(20_000_000));
        let mut platform = self.platform(method, period_ns, "")?;
        let (from, to) = if event.begins_slow() { (SLOW, 1.0) } else { (1.0, SLOW) };
        platform.set("react", from)?;
        platform.settle();
        let load = Load::Work(ONE, WORK_MS);
        let spawn = platform.entering("react", load);
        let worker = std::thread::spawn(move || spawn.capture(PATIENCE_NS));
        SystemClock.sleep_ns(u64::from(BEFORE_MS) * MS + pause_ns);
        let asked_ns = SystemClock.now_ns();
        match event {
            Event::Slower | Event::Faster => platform.set("react", to)?,
            Event::Stopped => platform.signal(Signaled::Stop)?,
            Event::Killed => platform.signal(Signaled::Kill)?,
        }
        let output = worker.join().map_err(|_| "the worker's thread panicked")??;
        if matches!(event, Event::Stopped) {
            platform.signal(Signaled::Continue)?;
        }
        match event {
            Event::Killed => drop(platform),
            Event::Slower | Event::Faster | Event::Stopped => platform.down()?,
        }
        let outcome = Progress::new(ONE, WORK_MS).parse(&output.stdout_text())?;
        Ok(reaction(&outcome, asked_ns, from < to))
    }

    fn replay(&mut self, pinload: &Pinload) -> Result<Table, Failure> {
        // No load until the worker has started, and none at the end: the last row remains in
        // effect.
        let idle = || std::iter::repeat_n(0, IDLE_ROWS);
        let loads: Vec<u32> = (0..ROWS).map(|_| self.random.below(MOST) * 10_000).collect();
        let all = idle().chain(loads.iter().copied()).chain(idle());
        let load = RecordedLoad {
            pus: vec![PuId(0)],
            rows: all
                .enumerate()
                .map(|(at, busy)| LoadRow {
                    at_ms: (at as u64 + 1) * ROW_MS,
                    busy_millionths: vec![busy],
                })
                .collect(),
        };
        let file = format!("{}/load.csv", self.tools.folder);
        files::write_atomic(&file, platforms::to_csv(&load).as_bytes())?;
        let mut errors = Vec::new();
        for _ in 0..self.rounds.min(3) {
            errors.extend(self.replay_once(pinload, &file, &loads)?);
        }
        let points = |part: f64| {
            quantile(&errors, part).map_or("–".to_owned(), |error| format!("{error:.2} points"))
        };
        Ok(Table {
            head: ["replayed load, error of a row", "median", "90 %", "largest", "rows"]
                .map(str::to_owned)
                .to_vec(),
            rows: vec![vec![
                "inject".to_owned(),
                points(0.5),
                points(0.9),
                points(1.0),
                errors.len().to_string(),
            ]],
        })
    }

    fn replay_once(
        &self,
        pinload: &Pinload,
        file: &str,
        loads: &[u32],
    ) -> Result<Vec<f64>, Failure> {
        let ms = u32::try_from((ROWS + IDLE_ROWS) as u64 * ROW_MS)?;
        let platform = self.platform(Method::Inject, 10 * MS, &format!("profile = {file:?}\n"))?;
        let place = platform.pus("react")?;
        let benchmark = Progress { pinned: Some(place.clone()), ..Progress::new(ONE, ms) };
        let seen = benchmark.run_on_host(pinload, &on(place.clone()));
        platform.down()?;
        let free = Progress { duration_ms: 2_000, ..benchmark }.run_on_host(pinload, &on(place))?;
        let full = free.units as f64 / 2_000.0;
        let left = windows(&seen?);
        let wanted: Vec<f64> = loads.iter().map(|busy| f64::from(*busy) / 1e4).collect();
        best_fit(&left, full, &wanted)
    }
}

fn on(pus: CpuSet) -> pinfold_probe::loads::Placement {
    pinfold_probe::loads::Placement { cgroup_files: Vec::new(), affinity: Some(pus) }
}

fn windows(outcome: &ProgressOutcome) -> Vec<f64> {
    let one = outcome.workers.iter().flat_map(|worker| worker.windows.iter());
    one.map(|units| f64::from(*units)).collect()
}

/// Time from the request to the change of speed: the position at which a step between the two
/// speeds fits the windows best; `None` without a clear step.
fn reaction(outcome: &ProgressOutcome, asked_ns: u64, is_faster: bool) -> Option<f64> {
    let windows = windows(outcome);
    let asked = usize::try_from(asked_ns.checked_sub(outcome.start_ns)? / MS).ok()?;
    let (old, new) = (mean(windows.get(..asked)?)?, mean(windows.get(asked + STEP_MS..)?)?);
    let is_step = if is_faster { new > 2.0 * old } else { old > 2.0 * new };
    if !is_step {
        return None;
    }
    let near = windows.get(asked..asked + STEP_MS)?;
    // The squared error if all windows are new, then with one more of them old, and so on.
    let gain = |units: &f64| (units - old).powi(2) - (units - new).powi(2);
    let (mut sum, mut best) = (0.0, (0.0, 0_usize));
    for (at, units) in near.iter().enumerate() {
        sum += gain(units);
        if sum < best.0 {
            best = (sum, at + 1);
        }
    }
    let changed = outcome.start_ns + ((asked + best.1) as u64) * MS;
    Some(changed.saturating_sub(asked_ns) as f64)
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Error of each row's load in points, at the offset that minimises their sum.
fn best_fit(left: &[f64], full: f64, wanted: &[f64]) -> Result<Vec<f64>, Failure> {
    let row_ms = usize::try_from(ROW_MS).unwrap_or(1);
    (0..IDLE_ROWS * row_ms)
        .filter_map(|lag| -> Option<Vec<f64>> {
            let each = wanted.iter().enumerate().map(|(row, load)| {
                let from = lag + row * row_ms;
                let part = left.get(from..from + row_ms)?;
                let rate = part.iter().sum::<f64>() / row_ms as f64;
                Some(((1.0 - rate / full) * 100.0 - load).abs())
            });
            each.collect()
        })
        .min_by(|one, other| one.iter().sum::<f64>().total_cmp(&other.iter().sum()))
        .ok_or_else(|| "the worker did not last for the whole replay".into())
}
