//! `emulate`: the accuracy of the speed of a virtual node, by method, compared with other tools.
//!
//! In each block each subject has a turn, in random order; in a turn the speeds and loads are in
//! random order too. Each slowed run is between two runs at full speed on the same CPUs, outside
//! any vnode; the achieved speed is its rate divided by the mean of theirs. Platforms are started
//! again in each block, so that random errors of a calibration are part of the spread.

mod goals;
mod judge;
pub mod load;
mod picture;
pub mod platform;
mod rival;
mod side;
mod subject;
mod tables;
mod trial;

use std::io::Write as _;

use pinfold_config::platforms;
use pinfold_host::{Clock as _, LiveHost, SystemClock, files, process};
use pinfold_model::CpuSet;
use pinfold_plan::resolve_platform;
use pinfold_probe::cpu_speed::{ChurnKind, Stop, Workers};
use pinfold_probe::pinload::Pinload;
use pinfold_stats::random::Pcg32;
use serde_json::json;

use crate::arguments::{Arguments, Failure};
use crate::page::{self, Table};
use crate::scratch::Scratch;
use crate::{origin, pairs};
use load::Load;
use platform::Tools;
use side::Rounds;
use subject::{CoreShare, Refused, Subject};
use tables::Findings;
use trial::{Trial, TrialPosition, TrialRequest};

const PAGE: &str = "docs/emulation.md";
const RAW: &str = "target/bench/emulate.json";
/// Duration of the run that determines the number of units of a burst.
const MEASURE_MS: u32 = 1_200;

/// Amount of measurement.
#[derive(Clone, Copy, Debug)]
struct Size {
    work_ms: u32,
    /// Number of blocks, and the speeds in each.
    spin: (u32, &'static [f64]),
    free: (u32, &'static [f64]),
    bursts: (u32, &'static [f64]),
    churn: u32,
    turns: u32,
    control: (u32, u32),
    neighbours: u32,
    example: u32,
}

const FULL: Size = Size {
    work_ms: 1_000,
    spin: (7, &[0.05, 0.10, 0.25, 0.40, 0.50, 0.60, 0.75, 0.90, 0.95]),
    free: (3, &[0.10, 0.25, 0.50, 0.75, 0.90]),
    bursts: (7, &[0.50, 0.25]),
    churn: 7,
    turns: 4,
    control: (3, 2_000),
    neighbours: 7,
    example: 7,
};

const QUICK: Size = Size {
    work_ms: 700,
    spin: (1, &[0.10, 0.50, 0.90]),
    free: (1, &[0.50]),
    bursts: (1, &[0.50]),
    churn: 1,
    turns: 1,
    control: (1, 500),
    neighbours: 1,
    example: 1,
};

const ONE: Workers = Workers::Threads(1);
const FREE: [Workers; 4] =
    [Workers::Threads(2), Workers::Threads(5), Workers::Processes(2), Workers::Processes(5)];
const BURSTS_US: [u32; 4] = [500, 2_000, 10_000, 200_000];
const CHURN: [ChurnKind; 3] = [ChurnKind::Fork, ChurnKind::Pipe, ChurnKind::Spawn];

/// Name, number of blocks, and the loads and speeds of each block.
type Experiment<'b> = (&'static str, u32, fn(&Bench<'b>) -> Vec<(Load, f64)>);

struct Bench<'b> {
    host: LiveHost,
    tools: Tools<'b>,
    size: Size,
    random: Pcg32,
    subjects: Vec<Subject>,
    one: CpuSet,
    all: CpuSet,
    units_per_second: f64,
    found: Findings,
}

/// Measures, prints, stores the raw data, and writes the page if requested.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let host = LiveHost::new()?;
    let topology = pinfold_topology::discover(&host)?;
    let (scratch, pinload) = (Scratch::on_disk()?, Pinload::install()?);
    let pinfold = pairs::program_beside(arguments)?;
    let pinload_path = pinload.path();
    let tools = Tools { pinfold: &pinfold, pinload: &pinload_path, folder: scratch.path() };
    let (ours, refused) = methods(tools)?;
    let subjects = with_rivals(ours, arguments)?;
    let mut size = if arguments.quick { QUICK } else { FULL };
    size.spin.0 = arguments.rounds.unwrap_or(size.spin.0);
    let (one, all) = (pus(1, &topology)?, pus(2, &topology)?);
    let turns = subjects.iter().flat_map(Subject::in_turns);
    let labels = std::iter::once(Subject::Nobody).chain(subjects.iter().cloned()).chain(turns);
    let found =
        Findings { subjects: labels.map(|one| one.label()).collect(), ..Findings::default() };
    let random = Pcg32::new(arguments.seed, 5);
    let mut bench =
        Bench { host, tools, size, random, subjects, one, all, units_per_second: 0.0, found };
    let begin = SystemClock.now_ns();
    let minutes = u64::from(arguments.minutes.unwrap_or(u32::MAX));
    bench.measure(begin.saturating_add(minutes.saturating_mul(60_000_000_000)))?;
    let minutes = SystemClock.now_ns().saturating_sub(begin) as f64 / 60e9;
    say(&format!("measured for {minutes:.1} minutes"))?;
    let origin = format!(
        "{}; CPU {} alone, CPUs {} together; Pinfold {}; seed {}{}",
        origin::of_host(&bench.host, &topology)?,
        bench.one,
        bench.all,
        env!("CARGO_PKG_VERSION"),
        arguments.seed,
        if arguments.quick { "; a quick look, not the whole" } else { "" }
    );
    keep(&bench.found, &origin)?;
    show(&bench.found, &origin, &refused, arguments)
}

/// The methods that work here, and why the others do not.
fn methods(tools: Tools<'_>) -> Result<(Vec<Subject>, Vec<Refused>), Failure> {
    let words = ["emulate", "methods", "--json"];
    let output = process::capture(tools.pinfold, words, load::PATIENCE_NS)?;
    if !output.status.success() {
        return Err(format!("pinfold emulate methods: {}", output.stderr_text().trim()).into());
    }
    subject::find(&serde_json::from_str(&output.stdout_text())?)
}

/// All subjects, or those selected with `--only`.
fn with_rivals(ours: Vec<Subject>, arguments: &Arguments) -> Result<Vec<Subject>, Failure> {
    let cpulimit = process::find_program("cpulimit")
        .ok_or("cpulimit is not installed; apt-get install cpulimit")?;
    let mut all = ours;
    all.extend([Subject::Cpulimit(cpulimit), Subject::PlainQuota]);
    if let Some(only) = &arguments.only {
        let labels: Vec<String> = all.iter().map(Subject::label).collect();
        all.retain(|subject| only.split(',').any(|name| subject.label() == name));
        if all.is_empty() {
            return Err(format!("--only {only}: there are {}", labels.join(", ")).into());
        }
    }
    Ok(all)
}

/// The CPUs of a vnode with this number of cores, or with fewer if there are fewer.
fn pus(cores: u32, topology: &pinfold_model::Topology) -> Result<CpuSet, Failure> {
    let there = u32::try_from(topology.online().intersection(&topology.allowed).len())?;
    let text =
        format!("[[vnode]]\nname = \"bench\"\ncores = {}\nmethod = \"lim\"\n", cores.min(there));
    let plan = resolve_platform(&platforms::from_toml(&text)?, topology)?;
    Ok(plan.vnodes.first().ok_or("no vnode")?.cpus())
}

impl<'b> Bench<'b> {
    /// One spinning thread first, then the other experiments alternately, block by block, so that
    /// the available time is shared.
    fn measure(&mut self, until_ns: u64) -> Result<(), Failure> {
        let full = CoreShare::begin(&Subject::Nobody, self.tools, &self.one)?;
        self.units_per_second = full.baseline(Load::Work(ONE, MEASURE_MS))?.rate;
        let has_turns = self.subjects.iter().any(|subject| !subject.in_turns().is_empty());
        let spin: [Experiment<'b>; 1] = [("spin", self.size.spin.0, Bench::spin)];
        let others: [Experiment<'b>; 4] = [
            ("bursts", self.size.bursts.0, Bench::bursts),
            ("churn", self.size.churn, Bench::churn),
            ("free", self.size.free.0, Bench::free),
            ("turns", if has_turns { self.size.turns } else { 0 }, Bench::churn),
        ];
        for subject in self.subjects.clone() {
            let ended = self.measure_neighbours(&subject);
            self.note_failure(&subject.label(), ended)?;
        }
        self.example()?;
        self.blocks(&spin, until_ns)?;
        self.blocks(&others, until_ns)
    }

    fn blocks(&mut self, experiments: &[Experiment<'b>], until_ns: u64) -> Result<(), Failure> {
        let most = experiments.iter().map(|(_, count, _)| *count).max().unwrap_or(0);
        for block in 0..most {
            for (experiment, count, cells) in experiments {
                if block < *count && SystemClock.now_ns() < until_ns {
                    self.block(experiment, block, *cells)?;
                }
            }
        }
        Ok(())
    }

    /// The vnodes of the example have the default method: the first one that works.
    fn example(&mut self) -> Result<(), Failure> {
        let has_default =
            self.subjects.iter().any(|one| ["stall", "hogs"].contains(&&*one.label()));
        if !has_default || self.all.len() < 2 {
            return Ok(());
        }
        say("two vnodes at once")?;
        let rounds = Rounds { count: self.size.example, ms: self.size.work_ms };
        let ended = side::example(&self.host, &self.all, self.tools, rounds);
        let ended = ended.map(|trials| self.found.trials.extend(trials));
        self.note_failure("the example platform", ended)
    }

    /// A turn of each subject, in random order.
    fn block(
        &mut self,
        experiment: &'static str,
        block: u32,
        cells: fn(&Self) -> Vec<(Load, f64)>,
    ) -> Result<(), Failure> {
        let mut subjects = vec![Subject::Nobody];
        // Subjects that are included only to show a failure run only where it shows.
        let counted =
            self.subjects.iter().filter(|subject| experiment == "free" || !subject.is_published());
        match experiment {
            "turns" => subjects.extend(counted.flat_map(Subject::in_turns)),
            _ => subjects.extend(counted.cloned()),
        }
        self.random.shuffle(&mut subjects);
        for subject in subjects {
            let pus = if experiment == "free" { &self.all } else { &self.one };
            let mut cells = cells(self);
            if subject == Subject::Nobody {
                cells = at_full_speed(&cells);
            }
            self.random.shuffle(&mut cells);
            let place = TrialPosition { experiment, subject: subject.label(), block };
            say(&format!("{experiment} {}: {}", block + 1, place.subject))?;
            let turn = CoreShare::begin(&subject, self.tools, pus);
            let ended = turn.and_then(|turn| self.turn(turn, &place, cells));
            self.note_failure(&place.subject, ended)?;
        }
        Ok(())
    }

    fn turn(
        &mut self,
        mut turn: CoreShare<'_>,
        place: &TrialPosition,
        cells: Vec<(Load, f64)>,
    ) -> Result<(), Failure> {
        let mut last = None;
        for (load, speed) in cells {
            let request = TrialRequest { place: place.clone(), load, speed };
            self.found.trials.push(trial::run(&self.host, &mut turn, request, &mut last)?);
        }
        turn.end()
    }

    /// A failure in one turn is reported with the figures; the other turns continue.
    fn note_failure(&mut self, label: &str, ended: Result<(), Failure>) -> Result<(), Failure> {
        let Err(failure) = ended else { return Ok(()) };
        let mut text = format!("{label}: {failure}");
        let mut cause = failure.source();
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        say(&text)?;
        self.found.failed.push(text);
        Ok(())
    }

    fn spin(&self) -> Vec<(Load, f64)> {
        let load = Load::Work(ONE, self.size.work_ms);
        self.size.spin.1.iter().map(|speed| (load, *speed)).collect()
    }

    fn free(&self) -> Vec<(Load, f64)> {
        let cells = FREE
            .into_iter()
            .flat_map(|workers| self.size.free.1.iter().map(move |speed| (workers, *speed)));
        cells.map(|(workers, speed)| (Load::Work(workers, self.size.work_ms), speed)).collect()
    }

    fn bursts(&self) -> Vec<(Load, f64)> {
        let cells =
            BURSTS_US.into_iter().flat_map(|us| self.size.bursts.1.iter().map(move |s| (us, *s)));
        let load = |length_us: u32| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "units in at most a fifth of a second, which are some hundred thousand"
            )]
            let units = (self.units_per_second * f64::from(length_us) / 1e6).max(1.0) as u64;
            let ms =
                if length_us > 100_000 { self.size.work_ms } else { self.size.work_ms.min(700) };
            Load::Bursts { units, length_us, ms }
        };
        cells.map(|(length_us, speed)| (load(length_us), speed)).collect()
    }

    fn churn(&self) -> Vec<(Load, f64)> {
        let work = Load::Work(ONE, self.size.work_ms);
        let churn = CHURN.into_iter().map(|kind| Load::Churn(kind, self.size.work_ms));
        std::iter::once(work).chain(churn).map(|load| (load, 0.5)).collect()
    }

    /// The cost of a method, and its effect on a neighbour.
    fn measure_neighbours(&mut self, subject: &Subject) -> Result<(), Failure> {
        if !subject.is_ours() || subject.is_published() {
            return Ok(());
        }
        say(&format!("controller and neighbour: {}", subject.label()))?;
        let mut turn = CoreShare::begin(subject, self.tools, &self.one)?;
        let (rounds, ms) = self.size.control;
        for _ in 0..rounds {
            self.found.costs.extend(side::cost(&self.host, &mut turn, subject, ms)?);
        }
        turn.end()?;
        if self.all.len() > 1 {
            let rounds = Rounds { count: self.size.neighbours, ms: self.size.work_ms };
            let felt = side::neighbour(&self.host, &self.all, self.tools, subject, rounds)?;
            self.found.felt.extend(felt);
        }
        Ok(())
    }
}

/// The same loads at full speed, each at most three times.
fn at_full_speed(cells: &[(Load, f64)]) -> Vec<(Load, f64)> {
    let mut all: Vec<(Load, f64)> = Vec::new();
    for (load, _) in cells {
        if all.iter().filter(|(known, _)| known == load).count() < 3 {
            all.push((*load, 1.0));
        }
    }
    all
}

fn say(text: &str) -> Result<(), Failure> {
    Ok(writeln!(std::io::stderr(), "{text}")?)
}

/// Stores the raw data.
fn keep(found: &Findings, origin: &str) -> Result<(), Failure> {
    let value = json!({
        "origin": origin,
        "failed": found.failed,
        "trials": found.trials.iter().map(Trial::to_json).collect::<Vec<_>>(),
        "controllers": found.costs.iter().map(side::Cost::to_json).collect::<Vec<_>>(),
        "neighbours": found.felt.iter().map(side::Felt::to_json).collect::<Vec<_>>(),
    });
    files::StateDir::open("target/bench")?;
    Ok(files::write_atomic(RAW, value.to_string().as_bytes())?)
}

fn sections(found: &Findings, refused: &[Refused]) -> Vec<(&'static str, Table)> {
    let refused = Table {
        head: ["not measured here", "why"].map(str::to_owned).to_vec(),
        rows: refused.iter().map(|(name, why)| vec![name.clone(), why.clone()]).collect(),
    };
    vec![
        ("spin", found.spin()),
        ("spin-by-speed", found.spin_by_speed()),
        ("evenness", found.evenness()),
        ("stops-by-speed", found.stops_by_speed()),
        ("free", found.free()),
        ("bursts-50", found.bursts(0.5)),
        ("bursts-25", found.bursts(0.25)),
        ("churn", found.churn("churn")),
        ("turns", found.churn("turns")),
        ("control", found.control()),
        ("neighbours", found.neighbours()),
        ("example", found.example()),
        ("goals", found.goals()),
        ("stolen", found.stolen_by_subject()),
        ("refused", refused),
    ]
}

/// Prints the tables; if requested, writes them and the pictures to the page.
fn show(
    found: &Findings,
    origin: &str,
    refused: &[Refused],
    arguments: &Arguments,
) -> Result<(), Failure> {
    let mut parts = vec![("origin", format!("On {origin}.\n{}\n", found.steal_text()))];
    let tables = sections(found, refused);
    let tables = tables.into_iter().filter(|(_, table)| !table.rows.is_empty());
    parts.extend(tables.map(|(name, table)| (name, table.to_markdown())));
    let mut out = std::io::stdout();
    for (name, text) in &parts {
        writeln!(out, "\n[{name}]\n\n{}", text.trim_end())?;
    }
    let Some(asked) = &arguments.write else { return Ok(()) };
    let page = asked.as_deref().unwrap_or(PAGE);
    for (name, text) in &parts {
        page::put_between(page, name, text)?;
    }
    // The pictures are next to the page, in a folder with its name.
    let folder = page.trim_end_matches(".md");
    files::StateDir::open(folder)?;
    for (file, picture) in pictures(found) {
        files::write_atomic(&format!("{folder}/{file}.svg"), picture.as_bytes())?;
    }
    Ok(())
}

/// A timeline for each subject, and the bursts.
fn pictures(found: &Findings) -> Vec<(String, String)> {
    let mut pictures = Vec::new();
    for subject in &found.subjects {
        let half = found.trials.iter().find(|trial| {
            let place = &trial.place;
            place.experiment == "spin" && place.subject == *subject && trial.asked == 0.5
        });
        if let Some(trial) = half {
            let stops: &[Stop] = &trial.kept_stops;
            let file = subject.replace(" -l", "").replace(' ', "-").replace(['(', ')', '/'], "");
            pictures.push((file, picture::timeline(subject, stops, trial::KEPT_NS.0)));
        }
    }
    let lines = found.burst_lines();
    if !lines.is_empty() {
        pictures.push(("bursts".to_owned(), picture::bursts(&lines)));
    }
    pictures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_loads_run_at_full_speed_elsewhere() {
        let cells: Vec<(Load, f64)> = (1..=5)
            .map(|speed| (work(1), f64::from(speed) / 10.0))
            .chain([(work(2), 0.5)])
            .collect();
        let full = at_full_speed(&cells);
        assert_eq!(full, [(work(1), 1.0), (work(1), 1.0), (work(1), 1.0), (work(2), 1.0)]);
    }

    fn work(ms: u32) -> Load {
        Load::Work(ONE, ms)
    }
}
