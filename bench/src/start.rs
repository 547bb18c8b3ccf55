//! `start`: when the first command runs in a slow node.
//!
//! `quota` measures nothing before its vnode is ready, so the other methods are compared with it,
//! in the same round: with a cost that is stored, and as the first start after a boot, when none
//! is. The command prints a line; its time is that of the line.

use std::io::{BufRead as _, BufReader, Read as _};

use pinfold_host::process::{self, Spawn, Stdio};
use pinfold_host::{Clock as _, LiveHost, SystemClock, files};
use pinfold_model::Method;
use pinfold_stats::{median, median_interval};

use crate::arguments::{Arguments, Failure};
use crate::origin;
use crate::page::{Figures, Table};
use crate::pairs::{self, Contender, Times, milliseconds, program_beside, since};
use crate::scratch::Scratch;

const ROUNDS: u32 = 20;
const TIMEOUT_NS: u64 = 60_000_000_000;
/// The command in the vnode, and the line that it prints.
const COMMAND: [&str; 2] = ["echo", "started"];
const VNODE: &str = "start";

/// How a vnode is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By `run --speed`.
    Run,
    /// By `emulate up`, and the command by `emulate exec`.
    Up,
}

/// One start: a method, in a state directory of its own.
struct Start<'s> {
    pinfold: &'s str,
    state: String,
    platform: String,
    way: Way,
    method: Method,
    is_stored: bool,
}

/// Measures all starts on this machine.
pub fn run(arguments: &Arguments) -> Result<Figures, Failure> {
    let host = LiveHost::new()?;
    let topology = pinfold_topology::discover(&host)?;
    let (scratch, pinfold) = (Scratch::on_disk()?, program_beside(arguments)?);
    let rounds = arguments.rounds.unwrap_or(ROUNDS);
    let mut tables = Vec::new();
    for way in [Way::Run, Way::Up] {
        let starts = Start::all(&pinfold, &scratch, way)?;
        let contenders = starts.iter().map(|start| Contender::new(&start.name(), || start.time()));
        let mut contenders: Vec<Contender<'_>> = contenders.collect();
        let times = pairs::rounds(&mut contenders, rounds, arguments.seed)?;
        tables.push(table(way, &times));
    }
    Ok(Figures {
        name: "start".to_owned(),
        title: "when the first command runs in a slow node".to_owned(),
        origin: format!(
            "{}; one core at 50 %; Pinfold {}; {rounds} rounds, seed {}",
            origin::of_host(&host, &topology)?,
            env!("CARGO_PKG_VERSION"),
            arguments.seed
        ),
        tables,
        notes: vec![
            "“First” is a start without a stored cost, as after a boot. The goal is at most 100 ms more than `quota`.".to_owned(),
            "The time is from the start of `pinfold` to the first line that the command prints; with `emulate up`, `emulate exec` follows it.".to_owned(),
        ],
    })
}

fn table(way: Way, times: &[Times]) -> Table {
    let head = [way.name(), "median", "5 % – 95 %", "more than `quota`, median [95 %]"];
    let quota = times.first().map_or(&[][..], |quota| &quota.samples);
    let rows = times.iter().enumerate().map(|(at, one)| {
        let more: Vec<f64> =
            one.samples.iter().zip(quota).map(|(time, base)| time - base).collect();
        let more = match median_interval(&more) {
            _ if at == 0 => "–".to_owned(),
            Some((low, high)) => format!(
                "{} [{}, {}]",
                milliseconds(median(&more)),
                milliseconds(Some(low)),
                milliseconds(Some(high))
            ),
            None => milliseconds(median(&more)),
        };
        vec![one.name.clone(), milliseconds(median(&one.samples)), pairs::spread(one), more]
    });
    Table { rows: rows.collect(), head: head.map(str::to_owned).to_vec() }
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Run => "`run --speed`",
            Way::Up => "`emulate up` and `exec`",
        }
    }
}

impl<'s> Start<'s> {
    /// `quota`, with which the others are compared, and each of the others with a stored cost and
    /// without.
    fn all(pinfold: &'s str, scratch: &Scratch, way: Way) -> Result<Vec<Self>, Failure> {
        let kinds = [
            (Method::Quota, true),
            (Method::Stall, true),
            (Method::Stall, false),
            (Method::Hogs, true),
            (Method::Hogs, false),
        ];
        let mut starts = Vec::new();
        for (method, is_stored) in kinds {
            let platform = scratch.file(&format!("{method}.toml"));
            let text = format!(
                "[[vnode]]\nname = \"{VNODE}\"\ncores = 1\nspeed = \"50%\"\nmethod = \"{method}\"\n"
            );
            files::write_atomic(&platform, text.as_bytes())?;
            let state = scratch.file(&format!("{way:?}-{method}-{is_stored}"));
            starts.push(Self { pinfold, state, platform, way, method, is_stored });
        }
        Ok(starts)
    }

    fn name(&self) -> String {
        match (self.method, self.is_stored) {
            (Method::Quota, _) => self.method.to_string(),
            (_, true) => format!("{}, stored cost", self.method),
            (_, false) => format!("{}, first", self.method),
        }
    }

    /// The time until the command printed its line (ns).
    fn time(&self) -> Result<f64, Failure> {
        if !self.is_stored {
            self.done(&["emulate", "forget"])?;
        }
        let method = self.method.to_string();
        let begin_ns = SystemClock.now_ns();
        match self.way {
            Way::Run => {
                let options = ["run", "--cores", "1", "--speed", "50%", "--method", &method, "--"];
                self.time_command(&options, begin_ns)
            }
            Way::Up => {
                self.done(&["emulate", "up", &self.platform])?;
                let time = self.time_command(&["emulate", "exec", VNODE, "--"], begin_ns);
                self.done(&["emulate", "down"])?;
                time
            }
        }
    }

    /// Runs a command of `pinfold` to its end.
    fn done(&self, words: &[&str]) -> Result<(), Failure> {
        let words = [&["--state-dir", &self.state], words].concat();
        let output = process::capture(self.pinfold, &words, TIMEOUT_NS)?;
        if output.status.success() {
            return Ok(());
        }
        Err(failure(&words, &output.stderr_text()))
    }

    /// The time from `begin_ns` to the line of [`COMMAND`].
    fn time_command(&self, words: &[&str], begin_ns: u64) -> Result<f64, Failure> {
        let words = [&["--state-dir", &self.state], words, &COMMAND].concat();
        let mut child = Spawn::new(self.pinfold)
            .args(&words)
            .stdin(Stdio::Null)
            .stdout(Stdio::Pipe)
            .stderr(Stdio::Pipe)
            .die_with_parent(true)
            .start()?;
        let mut line = String::new();
        BufReader::new(child.stdout().ok_or("no output")?).read_line(&mut line)?;
        let time = since(begin_ns);
        let mut said = String::new();
        child.stderr().ok_or("no messages")?.read_to_string(&mut said)?;
        if child.wait()?.success() && line.trim_end() == COMMAND[1] {
            return Ok(time);
        }
        Err(failure(&words, &said))
    }
}

fn failure(words: &[&str], why: &str) -> Failure {
    format!("`pinfold {}` failed: {}", words.join(" "), why.trim()).into()
}
