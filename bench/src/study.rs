//! `study`: the overhead of the study engine in addition to the workload, and the duration of
//! queries to a large store.
//!
//! The same command runs the same number of times: with `pinfold study run` (the whole program from
//! start to end: topology, design, each trial started, observed, measured, stored and synced), and
//! with plain loops that only record its output. The loops run in sequence what the study runs in
//! random order; neither waits in between. A second table queries the store of a simulated run of
//! 100,000 trials.

use pinfold_host::{Clock as _, LiveHost, SystemClock, files, process};
use pinfold_model::Topology;
use pinfold_stats::{median, median_interval, quantile};
use pinfold_study::store::{RunId, Store};

use crate::arguments::{Arguments, Failure};
use crate::origin;
use crate::page::{Figures, Table, thousands};
use crate::pairs::{self, Contender, Times, milliseconds, since};
use crate::scratch::Scratch;
use crate::simulated::{Simulation, Size};
use crate::topo::{program_beside, time};

const ROUNDS: u32 = 20;
/// Number of rounds of queries to the large store.
const ASKED: u32 = 5;
/// Blocks of three trials: two cells, the first one twice.
const BLOCKS: u32 = 20;
const BLOCK_TRIALS: u32 = 3;
const TIMEOUT_NS: u64 = 600_000_000_000;
/// The command of every trial. It does almost nothing, so that the overhead is visible.
const COMMAND: [&str; 3] = ["/bin/echo", "time:", "12"];
const LOOP: &str = include_str!("../rivals/loop.py");
const ASK: &str = include_str!("../rivals/store.py");

/// A study, and its factor.
struct Kind {
    name: &'static str,
    /// The baseline and the factor.
    varies: &'static str,
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "pinfold study, plain",
        varies: "kind = \"a\"\n[[factor]]\nname = \"kind\"\nlevels = [\"a\", \"b\"]\n",
    },
    Kind {
        name: "pinfold study, a plan for each",
        varies: "strategy = \"compact\"\n[[factor]]\nname = \"strategy\"\n\
                 levels = [\"compact\", \"scatter\"]\n",
    },
    Kind {
        name: "pinfold study, a slow core for each",
        varies: "speed = 0.9\n[[factor]]\nname = \"speed\"\nlevels = [0.9, 0.8]\n\
                 [[factor]]\nname = \"method\"\nlevels = [\"quota\"]\n",
    },
];

/// Runs all measurements.
pub fn run(arguments: &Arguments) -> Result<Figures, Failure> {
    let host = LiveHost::new()?;
    let topology = pinfold_topology::discover(&host)?;
    let scratch = Scratch::on_disk()?;
    let file_system = origin::file_system(&host, scratch.path())?;
    let blocks = if arguments.quick { 2 } else { BLOCKS };
    let bench = Bench { pinfold: program_beside(arguments)?, scratch, blocks };
    let (table, mut notes) = bench.trials(arguments, &topology)?;
    let asked = bench.large(arguments)?;
    notes.push("The large store is that of the simulated cluster of the benchmark `scale`. The goal for its status is 200 ms.".to_owned());
    notes.push("The plain counts and tables are by Python's own SQLite, without an analysis; an export has estimates, verdicts and A/A pairs with their bootstraps, and writes each table as CSV and as Parquet.".to_owned());
    let rounds = arguments.rounds.unwrap_or(ROUNDS);
    Ok(Figures {
        name: "study".to_owned(),
        title: "what a trial costs besides its workload, and asking a large store".to_owned(),
        origin: format!(
            "{}; store on {file_system}; Pinfold {}; {rounds} rounds, seed {}",
            origin::of_host(&host, &topology)?,
            env!("CARGO_PKG_VERSION"),
            arguments.seed
        ),
        tables: vec![table, asked],
        notes,
    })
}

struct Bench {
    pinfold: String,
    scratch: Scratch,
    blocks: u32,
}

impl Bench {
    fn count(&self) -> u32 {
        self.blocks * BLOCK_TRIALS
    }

    /// The file of a study, and why it cannot be run here.
    fn study(&self, kind: &Kind, name: &str) -> Result<(String, Option<String>), Failure> {
        let command = COMMAND.map(|word| format!("{word:?}")).join(", ");
        let text = format!(
            "name = \"bench\"\nrepetitions = {}\n[baseline]\n{}[[workload]]\nname = \"echo\"\n\
             command = [{command}]\nlasts = \"2ms\"\n[[workload.figure]]\nname = \"time\"\n\
             unit = \"ns\"\nregex = 'time: (\\S+)'\n",
            self.blocks, kind.varies
        );
        let file = self.scratch.file(&format!("{name}.toml"));
        files::write_atomic(&file, text.as_bytes())?;
        let words = ["study", "check", &file, "--json"];
        let output = process::capture(&self.pinfold, words, TIMEOUT_NS)?;
        if !output.status.success() {
            return Ok((file, Some(output.stderr_text().trim().to_owned())));
        }
        let reported: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let refused = reported["trials"] != u64::from(self.count());
        Ok((file, refused.then(|| reported["skipped"].to_string())))
    }

    /// A whole run with a new store; the duration of its workloads is recorded.
    fn run_study(&self, file: &str, worked: &mut Vec<f64>) -> Result<f64, Failure> {
        let path = self.scratch.file("run.sqlite");
        self.forget(&path)?;
        let begin = SystemClock.now_ns();
        let words = ["study", "run", file, "--store", &path];
        let output = process::capture(&self.pinfold, words, TIMEOUT_NS)?;
        let took = since(begin);
        let count = self.count();
        if !output.stdout_text().contains(&format!("{count} of {count} trials done, 0 failed")) {
            return Err(format!("the study did not run: {}", output.stderr_text().trim()).into());
        }
        let progress = Store::open(&path)?.study_progress(RunId(1))?;
        worked.push(progress.work_ns as f64);
        Ok(took)
    }

    fn forget(&self, path: &str) -> Result<(), Failure> {
        for ending in ["", "-wal", "-shm"] {
            let file = format!("{path}{ending}");
            if files::exists(&file) {
                files::remove(&file)?;
            }
        }
        Ok(())
    }

    /// A plain loop; it must have recorded each run.
    fn run_loop(&self, program: &str, words: &[&str]) -> Result<f64, Failure> {
        let notes = self.scratch.file("notes.txt");
        self.forget(&notes)?;
        let count = self.count().to_string();
        let words = [words, &[&count, &notes], &COMMAND].concat();
        let begin = SystemClock.now_ns();
        let output = process::capture(program, &words, TIMEOUT_NS)?;
        let took = since(begin);
        let noted = if files::exists(&notes) {
            files::read_text(&notes)?.matches("time: 12").count()
        } else {
            0
        };
        if noted == self.count() as usize {
            Ok(took)
        } else {
            Err(format!("{program} failed: {}", output.stderr_text().trim()).into())
        }
    }

    /// Runs of the study and of the loops, in the same rounds.
    fn trials(
        &self,
        arguments: &Arguments,
        topology: &Topology,
    ) -> Result<(Table, Vec<String>), Failure> {
        let python = process::find_program("python3").ok_or("python3 is not installed")?;
        let (loop_file, sh_file) = (self.scratch.file("loop.py"), self.scratch.file("loop.sh"));
        files::write_atomic(&loop_file, LOOP.as_bytes())?;
        files::write_atomic(&sh_file, include_str!("../rivals/loop.sh").as_bytes())?;
        let pu = topology.allowed.first().ok_or("no CPU may be used here")?.to_string();
        let (plain, pinned) = ([sh_file.as_str(), ""], [sh_file.as_str(), pu.as_str()]);
        let mut notes = notes(self.count());
        let mut files = Vec::new();
        for (index, kind) in KINDS.iter().enumerate() {
            match self.study(kind, &format!("kind-{index}"))? {
                (file, None) => files.push((kind.name, file)),
                (_, Some(why)) => notes.push(format!("“{}” is left out here: {why}.", kind.name)),
            }
        }
        let mut worked: Vec<Vec<f64>> = vec![Vec::new(); files.len()];
        let mut contenders = vec![
            Contender::new("a loop of sh", || self.run_loop("/bin/sh", &plain)),
            Contender::new("a loop of sh with taskset", || self.run_loop("/bin/sh", &pinned)),
            Contender::new("a loop of Python", || self.run_loop(&python, &[&loop_file, "note"])),
            Contender::new("a loop of Python with fsync", || {
                self.run_loop(&python, &[&loop_file, "sync"])
            }),
        ];
        let loops = contenders.len();
        for ((name, file), worked) in files.iter().zip(&mut worked) {
            contenders.push(Contender::new(name, || self.run_study(file, worked)));
        }
        let rounds = arguments.rounds.unwrap_or(ROUNDS);
        let times = pairs::rounds(&mut contenders, rounds, arguments.seed)?;
        drop(contenders);
        let each = |samples: &[f64]| -> Vec<f64> {
            samples.iter().map(|ns| ns / f64::from(self.count())).collect()
        };
        let times: Vec<Times> = times
            .into_iter()
            .map(|one| Times { samples: each(&one.samples), name: one.name })
            .collect();
        let mut table = pairs::table(&times, &[0]);
        self.besides(
            &mut table,
            &times,
            loops,
            &worked.iter().map(|one| each(one)).collect::<Vec<_>>(),
        );
        Ok((table, notes))
    }

    /// Two more columns: the overhead of a run compared with the sh loop, and with its workload.
    fn besides(&self, table: &mut Table, times: &[Times], loops: usize, worked: &[Vec<f64>]) {
        fn minus(a: &[f64], b: &[f64]) -> Vec<f64> {
            a.iter().zip(b).map(|(a, b)| a - b).collect()
        }

        table.head[0] = format!("{} runs of one command, per run", self.count());
        table.head.push("more than “a loop of sh” [95 %]".to_owned());
        table.head.push("besides the workload [95 %]".to_owned());
        for (index, (row, one)) in table.rows.iter_mut().zip(times).enumerate() {
            row.push(match index {
                0 => "0".to_owned(),
                _ => interval(&minus(&one.samples, &times[0].samples)),
            });
            // The first round is a warm-up and not among the times.
            let worked = index.checked_sub(loops).and_then(|kind| worked.get(kind)?.get(1..));
            row.push(
                worked.map_or_else(
                    || "–".to_owned(),
                    |worked| interval(&minus(&one.samples, worked)),
                ),
            );
        }
    }

    /// Queries to a store with many trials, and to one with a finished study.
    fn large(&self, arguments: &Arguments) -> Result<Table, Failure> {
        let size = Size::from_quick(arguments.quick);
        let large = self.scratch.file("large.sqlite");
        Simulation::begin(size, &large, arguments.seed)?.until_done()?;
        let script = self.scratch.file("store.py");
        files::write_atomic(&script, ASK.as_bytes())?;
        let python = process::find_program("python3").ok_or("python3 is not installed")?;
        let (file, _) = self.study(&KINDS[0], "finished")?;
        self.run_study(&file, &mut Vec::new())?;
        let (out, csv) = (self.scratch.file("tables"), self.scratch.file("csv"));
        let finished = self.scratch.file("run.sqlite");
        let ask = |words: &[&str]| time(&python, &[&[script.as_str()], words].concat());
        let mut contenders = [
            Contender::new("a plain count by Python", || ask(&["count", &large])),
            Contender::new("pinfold study status", || {
                time(&self.pinfold, &["study", "status", &large])
            }),
            Contender::new("plain tables by Python", || ask(&["export", &large, &csv])),
            Contender::new("pinfold study export", || {
                time(&self.pinfold, &["study", "export", &large, "--out", &out])
            }),
            Contender::new("pinfold study resume, of a finished one", || self.resume(&finished)),
        ];
        let asked = arguments.rounds.unwrap_or(ASKED);
        let times = pairs::rounds(&mut contenders, asked, arguments.seed)?;
        drop(contenders);
        let trials = thousands(f64::from(size.trials()));
        let mut table = pairs::table(&times[..2], &[0]);
        table.head[0] = format!("the whole program; a store of {trials} trials");
        "ratio to the plain one [95 %], p".clone_into(&mut table.head[3]);
        table.rows.extend(pairs::table(&times[2..4], &[0]).rows);
        table.rows.extend(times[4..].iter().map(|one| {
            let at = |p| milliseconds(quantile(&one.samples, p));
            let name = format!("{} of {} trials", one.name, self.count());
            vec![name, at(0.5), format!("{} – {}", at(0.05), at(0.95)), "–".to_owned()]
        }));
        Ok(table)
    }

    /// Resuming a finished study, which reports that nothing is left.
    fn resume(&self, path: &str) -> Result<f64, Failure> {
        let begin = SystemClock.now_ns();
        let output = process::capture(&self.pinfold, ["study", "resume", path], TIMEOUT_NS)?;
        let took = since(begin);
        let said = output.stderr_text();
        if said.contains("no unfinished run of a study") {
            Ok(took)
        } else {
            Err(format!("pinfold study resume: {}", said.trim()).into())
        }
    }
}

/// A median with its interval.
fn interval(values: &[f64]) -> String {
    let middle = milliseconds(median(values));
    match median_interval(values) {
        Some((low, high)) => {
            format!("{middle} [{}, {}]", milliseconds(Some(low)), milliseconds(Some(high)))
        }
        None => middle,
    }
}

fn notes(count: u32) -> Vec<String> {
    vec![
        format!(
            "A time is that of the whole program over its {count} runs; its start is in it. The goal is at most 20 ms “besides the workload”: the whole time without that of the commands, which a study measures from their start until their output ended."
        ),
        "The loops know neither order, limits, failures, places nor samples, and only one of them writes so that a power cut takes nothing.".to_owned(),
        "“A plan for each” applies a plan of one thread to the process before it begins, reads back, and takes it back after it, with a journal on disk; “a slow core for each” makes a virtual node of one core by the method `quota`, and takes it back; a method that measures its own cost, as `stall` does, takes about 8 s for that at its first start, and keeps it for a day.".to_owned(),
    ]
}
