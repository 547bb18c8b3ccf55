//! `like`: whether programs run as fast as the prediction of `--like` says.
//!
//! The other machine is a vnode at half speed on this one, so that the truth is known: a program's
//! speed there is its time on the vnode's CPU outside the vnode divided by its time in the vnode, in
//! the same round. Both profiles are taken in these two places. While a program runs outside, the
//! vnode is at full speed, because a method with burners slows the whole CPU.

use pinfold_host::LiveHost;
use pinfold_host::files::StateDir;
use pinfold_host::process::{self, Spawn};
use pinfold_model::CpuSet;
use pinfold_probe::cpu_speed::SpeedBenchmark as _;
use pinfold_probe::pinload::Pinload;
use pinfold_probe::profile::{self, Profile, Profiling};
use pinfold_run::emulate::exec;
use pinfold_run::emulate::ipc::{self, Enter, SupervisorRequest};
use pinfold_run::emulate::profile_ratio::{Prediction, predict};
use pinfold_stats::random::Pcg32;
use pinfold_stats::{Interval, median};

use crate::arguments::{Arguments, Failure};
use crate::emulate::platform::{Platform, Tools};
use crate::origin;
use crate::page::{Figures, Table};
use crate::pairs::{self, Contender, Times, milliseconds};
use crate::programs::{PROGRAMS, Program, write_inputs};
use crate::scratch::Scratch;

const ROUNDS: u32 = 7;
const TIMEOUT_NS: u64 = 300_000_000_000;
const VNODE: &str = "other";
/// The speed of the other machine.
const SPEED: f64 = 0.5;
/// Share of the programs that should lie in the interval.
const GOAL: f64 = 0.8;
/// Number of [`PROGRAMS`] that take part; the others are benchmarks themselves.
const COUNT: usize = 12;
/// Of a short run.
const QUICK_COUNT: usize = 1;

/// The vnode, and its CPU outside of it.
struct Machines<'b> {
    platform: Platform<'b>,
    cpus: CpuSet,
    enter: Enter,
    folder: &'b str,
}

/// Where a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Here,
    There,
}

/// Measures on this machine.
pub fn run(arguments: &Arguments) -> Result<Figures, Failure> {
    let host = LiveHost::new()?;
    let topology = pinfold_topology::discover(&host)?;
    let (scratch, pinload) = (Scratch::on_disk()?, Pinload::install()?);
    let (pinfold, pinload) = (pairs::program_beside(arguments)?, pinload.path());
    let tools = Tools { pinfold: &pinfold, pinload: &pinload, folder: scratch.path() };
    write_inputs(&scratch, &mut Pcg32::new(arguments.seed, 4))?;
    let machines = Machines::start(tools)?;
    let prediction = machines.predict(tools, arguments.quick)?;
    let interval = prediction.interval.ok_or("another architecture on the same machine")?;

    let count = if arguments.quick { QUICK_COUNT } else { COUNT };
    let (programs, missing): (Vec<&Program>, Vec<&Program>) =
        PROGRAMS.iter().take(count).partition(|one| process::find_program(one.needs).is_some());
    let commands: Vec<(Place, &Program)> = programs
        .iter()
        .flat_map(|program| [(Place::Here, *program), (Place::There, *program)])
        .collect();
    let both = &machines;
    let contenders = commands
        .into_iter()
        .map(|(place, program)| Contender::new(program.name, move || both.time(place, program)));
    let mut contenders: Vec<Contender<'_>> = contenders.collect();
    let rounds = arguments.rounds.unwrap_or(ROUNDS);
    let times = pairs::rounds(&mut contenders, rounds, arguments.seed)?;
    drop(contenders);
    let cpus = machines.cpus.clone();
    machines.platform.down()?;

    let missing: Vec<&str> = missing.iter().map(|program| program.name).collect();
    Ok(Figures {
        name: "like".to_owned(),
        title: "whether programs run as fast as `--like` predicts".to_owned(),
        origin: format!(
            "{}; CPU {cpus}, as a vnode at {:.0} % and without it; Pinfold {}; {rounds} rounds, seed {}",
            origin::of_host(&host, &topology)?,
            SPEED * 100.0,
            env!("CARGO_PKG_VERSION"),
            arguments.seed
        ),
        tables: vec![table(&times, interval), kinds(&prediction)],
        notes: notes(&times, &prediction, interval, &missing),
    })
}

impl<'b> Machines<'b> {
    fn start(tools: Tools<'b>) -> Result<Self, Failure> {
        let text = format!(
            "share-housekeeping = true\n[[vnode]]\nname = \"{VNODE}\"\ncores = 1\nspeed = {SPEED:?}\n"
        );
        let platform = Platform::up(tools, VNODE, &text)?;
        let state = StateDir::open(platform.state())?;
        let request = SupervisorRequest::Join { vnode: VNODE.to_owned() };
        let enter = ipc::require(&state, &request).and_then(|response| response.enter());
        let enter = enter.map_err(|failure| failure.message)?;
        let cpus = platform.pus(VNODE)?;
        Ok(Self { platform, cpus, enter, folder: tools.folder })
    }

    /// A command on one of the two machines, in the folder of the input.
    fn command(&self, place: Place, command: &[String]) -> Result<Spawn, Failure> {
        let spawn = match place {
            Place::Here => {
                self.platform.set(VNODE, 1.0)?;
                let (program, arguments) = command.split_first().ok_or("no command")?;
                Spawn::new(program).args(arguments).affinity(self.cpus.clone())
            }
            Place::There => {
                self.platform.set(VNODE, SPEED)?;
                exec::spawn(&self.enter, command).map_err(|failure| failure.message)?
            }
        };
        self.platform.settle();
        Ok(spawn.current_dir(self.folder))
    }

    /// Runs a command, and returns what it printed.
    fn print(&self, place: Place, command: &[String]) -> Result<String, Failure> {
        let output = self.command(place, command)?.capture(TIMEOUT_NS)?;
        if output.status.success() {
            return Ok(output.stdout_text());
        }
        Err(format!("{}: {}", command.join(" "), output.stderr_text().trim()).into())
    }

    /// The time of a program (ns), without that of its start.
    fn time(&self, place: Place, program: &Program) -> Result<f64, Failure> {
        Ok(program.seconds(&self.print(place, &program.timed(self.folder))?)? * 1e9)
    }

    fn profile(&self, place: Place, command: &[String]) -> Result<Profile, Failure> {
        Ok(profile::parse(&self.print(place, command)?)?)
    }

    fn predict(&self, tools: Tools<'_>, is_quick: bool) -> Result<Prediction, Failure> {
        let mut command = vec![tools.pinload.to_owned()];
        command.extend(Profiling { is_quick }.argv());
        let ours = self.profile(Place::Here, &command)?;
        let theirs = self.profile(Place::There, &command)?;
        Ok(predict(&theirs, &ours, None).map_err(|failure| failure.message)?)
    }
}

/// The speed on the other machine in each round; the times are here and there in turn.
fn ratios(pair: &[Times]) -> Vec<f64> {
    let [here, there] = pair else { return Vec::new() };
    here.samples.iter().zip(&there.samples).map(|(here, there)| here / there).collect()
}

fn is_inside(pair: &[Times], interval: Interval) -> bool {
    median(&ratios(pair)).is_some_and(|ratio| interval.contains(ratio))
}

fn table(times: &[Times], interval: Interval) -> Table {
    let head =
        ["program", "here", "on the other machine", "its speed there [95 %], p", "predicted"];
    let rows = times.chunks(2).filter_map(|pair| {
        let [here, there] = pair else { return None };
        let word = if is_inside(pair, interval) { "inside" } else { "outside" };
        Some(vec![
            here.name.clone(),
            milliseconds(median(&here.samples)),
            milliseconds(median(&there.samples)),
            pairs::ratio(&here.samples, &there.samples),
            word.to_owned(),
        ])
    });
    Table { rows: rows.collect(), head: head.map(str::to_owned).to_vec() }
}

fn kinds(prediction: &Prediction) -> Table {
    let lines = prediction.to_lines();
    let rows = lines.iter().skip(1).filter_map(|line| line.split_once(": "));
    Table {
        head: ["kind of work", "score there, relative to here (90 %)"].map(str::to_owned).to_vec(),
        rows: rows.map(|(kind, ratio)| vec![kind.to_owned(), ratio.to_owned()]).collect(),
    }
}

fn notes(
    times: &[Times],
    prediction: &Prediction,
    interval: Interval,
    missing: &[&str],
) -> Vec<String> {
    let all = times.len() / 2;
    let inside = times.chunks(2).filter(|pair| is_inside(pair, interval)).count();
    let word = if inside as f64 >= GOAL * all as f64 { "reached" } else { "missed" };
    let mut notes = vec![
        format!("The prediction: {}.", prediction.summary),
        format!(
            "{inside} of {all} programs lie in the interval; the goal of {:.0} % is {word}.",
            GOAL * 100.0
        ),
    ];
    if !missing.is_empty() {
        notes.push(format!("Not installed, and left out: {}.", missing.join(", ")));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(samples: &[f64]) -> Times {
        Times { name: "gzip".to_owned(), samples: samples.to_vec() }
    }

    #[test]
    fn a_program_is_inside_by_the_median_of_its_rounds() {
        let interval = Interval { ratio: 0.5, low: 0.45, high: 0.55 };
        let inside = [times(&[1e9, 1e9, 1e9]), times(&[2e9, 2.1e9, 9e9])];
        let outside = [times(&[1e9, 1e9, 1e9]), times(&[2e9, 3e9, 3e9])];
        assert!(is_inside(&inside, interval) && !is_inside(&outside, interval));
        let both: Vec<Times> = inside.into_iter().chain(outside).collect();
        let rows = table(&both, interval).rows;
        let words: Vec<&str> = rows.iter().map(|row| row[4].as_str()).collect();
        assert_eq!(words, ["inside", "outside"]);
        let prediction = Prediction {
            speed: pinfold_model::Speed::FULL,
            interval: Some(interval),
            kinds: Vec::new(),
            summary: "summary".to_owned(),
        };
        let notes = notes(&both, &prediction, interval, &["xz"]).join("\n");
        assert!(notes.contains("1 of 2 programs") && notes.contains("80 % is missed"), "{notes}");
        assert!(notes.contains("left out: xz"), "{notes}");
    }
}
