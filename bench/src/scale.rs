//! `scale`: a study on a simulated cluster of 10,000 nodes.
//!
//! Simulated are the nodes, their time and what they measure; real are the design, the ledger of
//! tasks, the reading of `squeue`'s answers, the results as texts with their digests, their
//! checks, the files of a shared folder and the store. What is timed is what who collects spends
//! on it; the simulation itself is not in it. Not simulated: Slurm's own daemons and the network.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use pinfold_host::{Clock as _, LiveHost, SystemClock, user};
use pinfold_model::{Accelerator, Family, Figure, Origin, Unit};
use pinfold_study::random::Pcg32;
use pinfold_study::stats::quantile;
use pinfold_study::store::{OpenRun, Store, TaskRecord, TrialRecord};
use pinfold_study::study::cluster::slurm::{batches, queue};
use pinfold_study::study::cluster::{
    Accepted, Answer, Collector, Given, Head, Limits, Options, Scouted, create_on_cluster,
    result_text, study_digest,
};
use pinfold_study::study::{Cells, HostFacts, NewStudy, Study, TrialSlot, from_toml};

use crate::page::{self, Table};
use crate::pairs::milliseconds;
use crate::scratch::Scratch;
use crate::topo::program_beside;
use crate::{Arguments, Failure, origin};

const PAGE: &str = "docs/scale.md";
const KEY: &str = "0123456789abcdef";
const FACTS: HostFacts = HostFacts { pus: 64, cores: 32, nodes: 2, packages: 2, smt: true };
/// Slurm forgets a job that ended so long ago (`MinJobAge`), in seconds.
const KEPT_S: f64 = 300.0;
/// Who collects asks Slurm at most a twentieth of the time, and every 0.5 to 30 s.
const SHARE: f64 = 20.0;
/// Results that are merged in one transaction, as through a shared folder.
const BATCH: usize = 256;
/// Of so many tasks one is lost with its node.
const ONE_LOST_OF: u32 = 200;
const STATUS_ROUNDS: usize = 9;
const TIMEOUT_NS: u64 = 60_000_000_000;

/// How large.
struct Size {
    nodes: usize,
    jobs: u32,
    blocks: u32,
}

/// Runs it and prints the section; `--write` puts it into the page.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let size = match arguments.quick {
        true => Size { nodes: 100, jobs: 20, blocks: 10 },
        false => Size { nodes: 10_000, jobs: 625, blocks: 40 },
    };
    let host = LiveHost::new()?;
    let topology = pinfold_topology::discover(&host)?;
    let scratch = Scratch::on_disk()?;
    let file_system = origin::file_system(&host, scratch.path())?;
    let path = scratch.file("scale.sqlite");
    let mut simulation = Simulation::begin(&size, &path, arguments.seed)?;
    simulation.until_done(size.nodes)?;
    let mut table = simulation.table(&path)?;
    table.rows.extend(files(&mut simulation, &scratch)?);
    table.rows.push(status(arguments, &path)?);
    let place = origin::of_host(&host, &topology)?;
    let text = format!(
        "{} nodes, {} parts of 4 trials each, 2 figures of 20 samples per trial; on {place}, \
         {file_system}, Pinfold {}, seed {}.\n\n{}",
        thousands(size.nodes as f64),
        thousands(f64::from(size.jobs * size.blocks)),
        env!("CARGO_PKG_VERSION"),
        arguments.seed,
        table.to_markdown()
    );
    std::io::Write::write_all(
        &mut std::io::stdout(),
        format!("\n## scale: a simulated cluster\n\n{text}").as_bytes(),
    )?;
    if let Some(file) = &arguments.write {
        page::put_between(file.as_deref().unwrap_or(PAGE), "scale", &text)?;
    }
    Ok(())
}

fn toml(size: &Size) -> String {
    let jobs: Vec<String> = (0..size.jobs).map(|job| job.to_string()).collect();
    format!(
        "name = \"scale\"\nrepetitions = {}\n[baseline]\nlayout = \"a\"\n\
         [[factor]]\nname = \"layout\"\nlevels = [\"a\", \"b\", \"c\"]\n\
         [[factor]]\nname = \"job\"\nlevels = [{}]\n\
         [[workload]]\nname = \"w\"\ncommand = [\"w\", \"{{job}}\"]\nlasts = \"15s\"\n\
         [[workload.figure]]\nname = \"rate\"\nunit = \"per-second\"\njson = \"rate\"\n",
        size.blocks,
        jobs.join(", ")
    )
}

fn node_origin() -> Origin {
    Origin {
        fingerprint: "1b7c8a53c6e2f9d04b17a6c1".to_owned(),
        kernel: "6.12.1".to_owned(),
        cmdline: "quiet".to_owned(),
        cpu_model: "a simulated processor".to_owned(),
        hypervisor: None,
        qemu: None,
        accelerator: Accelerator::Native,
        guest_kernel: None,
        pinfold: env!("CARGO_PKG_VERSION").to_owned(),
        seed: 0,
    }
}

/// A task on its node: when it ends (ms), its part and attempt, and whether it is lost.
type Running = Reverse<(u64, u32, u32, bool)>;

struct Simulation {
    store: Store,
    run: OpenRun,
    collector: Collector,
    study: String,
    generator: Pcg32,
    now_ms: u64,
    waiting: VecDeque<(u32, u32)>,
    running: BinaryHeap<Running>,
    /// Array job and index of each task.
    names: BTreeMap<(u32, u32), (u64, u32)>,
    /// Ended, and still told of: when, part, attempt, state.
    ended: VecDeque<(u64, u32, u32, &'static str)>,
    busy_ms: u64,
    lost: u64,
    first_look_ns: f64,
    begun_ns: f64,
    /// Of each turn: reading `squeue`, the ledger, submitting.
    turns: Vec<[f64; 3]>,
    /// Of each batch: results, trials, time.
    merges: Vec<(usize, usize, f64)>,
    result_bytes: usize,
    queue_bytes: usize,
}

fn since(begin: u64) -> f64 {
    SystemClock.now_ns().saturating_sub(begin) as f64
}

impl Simulation {
    fn begin(size: &Size, path: &str, seed: u64) -> Result<Self, Failure> {
        let toml = toml(size);
        let begin = SystemClock.now_ns();
        let study: Study = from_toml(&toml)?;
        let cells = Cells::of(&study, &FACTS)?;
        let first_look_ns = since(begin);
        let mut store = Store::open_or_create(path)?;
        let new = NewStudy {
            study: &study,
            quick: false,
            command: "pinfold study run scale.toml --engine slurm",
            origin: &node_origin(),
            facts: &FACTS,
            now_unix_s: SystemClock.unix_seconds(),
        };
        let scouted = Scouted { facts: FACTS, skipped: vec![None; cells.all.len()] };
        let options = Options::new(KEY.to_owned());
        let run = create_on_cluster(&mut store, &new, (&scouted, &options))?;
        let limits = Limits { most_out: 2 * size.nodes, grace_ns: 90_000_000_000 };
        let begin = SystemClock.now_ns();
        let marks = (KEY, env!("CARGO_PKG_VERSION"), limits);
        let collector = Collector::open(&mut store, run, marks)?;
        Ok(Self {
            store,
            run,
            collector,
            study: study_digest(&toml, false),
            generator: Pcg32::new(seed, 1),
            now_ms: 0,
            waiting: VecDeque::new(),
            running: BinaryHeap::new(),
            names: BTreeMap::new(),
            ended: VecDeque::new(),
            busy_ms: 0,
            lost: 0,
            first_look_ns,
            begun_ns: since(begin),
            turns: Vec::new(),
            merges: Vec::new(),
            result_bytes: 0,
            queue_bytes: 0,
        })
    }

    fn until_done(&mut self, nodes: usize) -> Result<(), Failure> {
        while !self.collector.is_done() {
            let came = self.advance(nodes);
            let text = self.queue_text();
            self.queue_bytes = self.queue_bytes.max(text.len());
            let begin = SystemClock.now_ns();
            let lines = queue(&text)?;
            let read_ns = since(begin);
            let merge_ns = self.merge(&came)?;
            let begin = SystemClock.now_ns();
            for one in self.collector.seen(&lines, self.now_ms * 1_000_000).ended {
                let task = (one.ask, one.node.as_str());
                self.collector.failed((&mut self.store, self.run), task, ("its node failed", 1))?;
            }
            let ledger_ns = since(begin);
            let submit_ns = self.submit()?;
            self.turns.push([read_ns, ledger_ns, submit_ns]);
            let turn_s = (read_ns + merge_ns + ledger_ns + submit_ns) / 1e9;
            let pause_ms = ((turn_s * SHARE).clamp(0.5, 30.0) + turn_s) * 1e3;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds")]
            let pause_ms = pause_ms as u64;
            self.now_ms += pause_ms;
        }
        Ok(())
    }

    /// Lets the simulated nodes work until now; tells what was delivered.
    fn advance(&mut self, nodes: usize) -> Vec<(u32, u32)> {
        let mut came = Vec::new();
        let mut at = self.now_ms.saturating_sub(60_000);
        loop {
            while self.running.len() < nodes
                && let Some((part, attempt)) = self.waiting.pop_front()
            {
                // Four runs of 15 s, and as much as a quarter more.
                let lasts_ms = 60_000 + u64::from(self.generator.below(15_000));
                let is_lost = self.generator.below(ONE_LOST_OF) == 0;
                let begin = at.max(self.now_ms.saturating_sub(60_000));
                self.busy_ms += lasts_ms;
                self.running.push(Reverse((begin + lasts_ms, part, attempt, is_lost)));
            }
            let Some(Reverse((end, part, attempt, is_lost))) = self.running.peek().copied() else {
                return came;
            };
            if end > self.now_ms {
                return came;
            }
            self.running.pop();
            at = end;
            self.lost += u64::from(is_lost);
            let state = if is_lost { "NODE_FAIL" } else { "COMPLETED" };
            self.ended.push_back((end, part, attempt, state));
            if !is_lost {
                came.push((part, attempt));
            }
        }
    }

    /// What `squeue` would print.
    fn queue_text(&mut self) -> String {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds")]
        let kept_ms = (KEPT_S * 1e3) as u64;
        while self.ended.front().is_some_and(|one| one.0 + kept_ms < self.now_ms) {
            self.ended.pop_front();
        }
        let running =
            self.running.iter().map(|Reverse((_, part, attempt, _))| (*part, *attempt, "RUNNING"));
        let waiting = self.waiting.iter().map(|(part, attempt)| (*part, *attempt, "PENDING"));
        let ended = self.ended.iter().map(|(_, part, attempt, state)| (*part, *attempt, *state));
        let mut text = String::new();
        for (part, attempt, state) in ended.chain(running).chain(waiting) {
            if let Some((job, element)) = self.names.get(&(part, attempt)) {
                text.push_str(&format!("{job}|{element}|{state}|n{}|None\n", part % 10_000));
            }
        }
        text
    }

    fn submit(&mut self) -> Result<f64, Failure> {
        let begin = SystemClock.now_ns();
        let asks = self.collector.to_submit();
        let mut spent = since(begin);
        for attempt in [1, 2] {
            let parts: Vec<u32> =
                asks.iter().filter(|ask| ask.attempt == attempt).map(|ask| ask.part).collect();
            for batch in batches(&parts, 1001) {
                let job = self.names.len() as u64 + 1;
                let tasks: Vec<TaskRecord> = batch
                    .elements
                    .iter()
                    .map(|element| TaskRecord {
                        part: batch.offset + element,
                        attempt,
                        job,
                        element: *element,
                        submitted_unix_s: 1,
                        failed: None,
                    })
                    .collect();
                let begin = SystemClock.now_ns();
                self.collector.submitted((&mut self.store, self.run), &tasks)?;
                spent += since(begin);
                for task in tasks {
                    self.names.insert((task.part, attempt), (job, task.element));
                    self.waiting.push_back((task.part, attempt));
                }
            }
        }
        Ok(spent)
    }

    fn merge(&mut self, came: &[(u32, u32)]) -> Result<f64, Failure> {
        let mut spent = 0.0;
        for batch in came.chunks(BATCH) {
            let mut results = Vec::with_capacity(batch.len());
            for (part, attempt) in batch {
                results.push((format!("{part}-{attempt}.json"), self.result(*part, *attempt)?));
            }
            self.result_bytes += results.iter().map(|(_, text)| text.len()).sum::<usize>();
            let begin = SystemClock.now_ns();
            let accepted = self.collector.accept((&mut self.store, self.run), &results)?;
            let took = since(begin);
            if let Some(odd) = accepted.iter().find(|one| !matches!(one, Accepted::Merged { .. })) {
                return Err(format!("a result was not merged: {odd:?}").into());
            }
            spent += took;
            self.merges.push((batch.len(), batch.len() * 4, took));
        }
        Ok(spent)
    }

    /// A result as a node would give it.
    fn result(&mut self, part: u32, attempt: u32) -> Result<String, Failure> {
        let node = format!("n{}", self.generator.below(10_000));
        let slots: Vec<(TrialSlot, u32)> = match self.collector.part(part) {
            Some(part) => part.trials().collect(),
            None => return Err(format!("there is no part {part}").into()),
        };
        let mut trials = Vec::with_capacity(slots.len());
        for (slot, position) in slots {
            let mut figure = |probe: &str, unit| Figure {
                probe: probe.to_owned(),
                labels: BTreeMap::new(),
                unit,
                family: Family::Capacity,
                cpu: None,
                duration_ns: 15_000_000_000,
                samples: (0..20).map(|_| 1e9 * (1.0 + self.generator.unit() / 50.0)).collect(),
                dropped: 0,
                disturbed: 0,
                flags: Vec::new(),
            };
            let figures =
                vec![figure("rate", Unit::PerSecond), figure("t_full", Unit::Nanoseconds)];
            let record = TrialRecord {
                block: slot.block,
                cell: slot.cell,
                start: slot.start,
                twin: slot.twin,
                position,
                node: node.clone(),
                ok: true,
                attempts: 1,
                error: None,
                began_unix_s: 1_800_000_000,
                duration_ns: 15_010_000_000,
                work_ns: 15_000_000_000,
            };
            trials.push((record, figures));
        }
        let head = Head {
            key: KEY.to_owned(),
            pinfold: env!("CARGO_PKG_VERSION").to_owned(),
            study: self.study.clone(),
            part: Some(part),
            attempt,
            node,
            job: format!("{part}_{attempt}"),
            mask: "0-63".to_owned(),
            origin: node_origin(),
            began_unix_s: 1_800_000_000,
        };
        Ok(result_text(&Answer { head, given: Given::Trials(trials) })?)
    }

    fn table(&self, path: &str) -> Result<Table, Failure> {
        let head = vec!["what".to_owned(), "figure".to_owned()];
        let rows = [self.turn_rows(), self.merge_rows(user::read(path)?.len())].concat();
        Ok(Table { head, rows })
    }

    /// What a turn costs.
    fn turn_rows(&self) -> Vec<Vec<String>> {
        let turn = |index: usize| {
            let times: Vec<f64> = self.turns.iter().map(|turn| turn[index]).collect();
            let [median, largest] = [0.5, 1.0].map(|p| milliseconds(quantile(&times, p)));
            format!("{median} (largest {largest})")
        };
        let minutes = self.now_ms as f64 / 6e4;
        let hours = thousands(self.busy_ms as f64 / 3.6e6);
        let lost = self.lost;
        let took = format!("{minutes:.1} min: {hours} node hours, {lost} tasks lost and run again");
        vec![
            row("reading the study file, making its cells", milliseconds(Some(self.first_look_ns))),
            row("laying out all parts, before the first task", milliseconds(Some(self.begun_ns))),
            row("time of the simulated run", took),
            row("turns of who collects", self.turns.len().to_string()),
            row("reading one answer of `squeue`, median", turn(0)),
            row(
                "the largest such answer",
                format!("{} kB", thousands(self.queue_bytes as f64 / 1e3)),
            ),
            row("comparing the ledger with it, median", turn(1)),
            row("noting what was submitted, median", turn(2)),
        ]
    }

    /// What the results cost.
    fn merge_rows(&self, store: usize) -> Vec<Vec<String>> {
        let results = self.merges.iter().map(|one| one.0).sum::<usize>() as f64;
        let trials = self.merges.iter().map(|one| one.1).sum::<usize>() as f64;
        let merge_s = self.merges.iter().map(|one| one.2).sum::<f64>() / 1e9;
        let size = |bytes: usize| {
            let each = thousands(bytes as f64 / trials);
            format!("{:.1} MB, {each} bytes per trial", bytes as f64 / 1e6)
        };
        let rate = |count: f64| thousands(count / merge_s);
        let all = format!(
            "{merge_s:.1} s for {} results, {} trials",
            thousands(results),
            thousands(trials)
        );
        vec![
            row(
                "merging: digest, checks, store with `fsync`, 256 results at a time",
                format!("{} results/s, {} trials/s", rate(results), rate(trials)),
            ),
            row("merging all", all),
            row("results as they travel", size(self.result_bytes)),
            row("store", size(store)),
        ]
    }
}

fn row(what: &str, figure: String) -> Vec<String> {
    vec![what.to_owned(), figure]
}

/// Results as files of a folder, a thousand parts to a shard: written whole, listed, read.
fn files(simulation: &mut Simulation, scratch: &Scratch) -> Result<Vec<Vec<String>>, Failure> {
    let count = simulation.collector.parts().count().min(4_000);
    let mut paths = Vec::new();
    let mut write_ns = 0.0;
    for part in 0..count {
        let folder = scratch.file(&format!("results/{}", part / 1000));
        user::make_dirs(&folder)?;
        let path = format!("{folder}/{part}-1.json");
        let text = simulation.result(part, 1)?;
        let begin = SystemClock.now_ns();
        user::write_atomic(&path, text.as_bytes())?;
        write_ns += since(begin);
        paths.push(path);
    }
    let begin = SystemClock.now_ns();
    for shard in user::list(&scratch.file("results"))? {
        user::list(&scratch.file(&format!("results/{shard}")))?;
    }
    let list_ns = since(begin);
    let begin = SystemClock.now_ns();
    paths.iter().try_for_each(|path| user::read(path).map(drop))?;
    let read_ns = since(begin);
    let each = |ns: f64| milliseconds(Some(ns / f64::from(count.max(1))));
    let n = thousands(f64::from(count));
    Ok(vec![
        row("writing a result's file (temporary, `fsync`, rename)", each(write_ns)),
        row(&format!("listing {n} of them in shards"), milliseconds(Some(list_ns))),
        row("reading one", each(read_ns)),
    ])
}

/// The whole program, from its start to its end.
fn status(arguments: &Arguments, path: &str) -> Result<Vec<String>, Failure> {
    let pinfold = program_beside(arguments)?;
    let mut times = Vec::new();
    for _ in 0..STATUS_ROUNDS {
        let begin = SystemClock.now_ns();
        let output =
            pinfold_host::process::capture(&pinfold, ["study", "status", path], TIMEOUT_NS)?;
        times.push(since(begin));
        if !output.status.success() {
            return Err(format!("pinfold study status: {}", output.stderr_text().trim()).into());
        }
    }
    let at = |p| milliseconds(quantile(&times, p));
    let figure = format!("{} (5 to 95 %: {} to {})", at(0.5), at(0.05), at(0.95));
    Ok(vec!["`pinfold study status`, the whole program, median".to_owned(), figure])
}

/// `12,345`.
fn thousands(number: f64) -> String {
    let text = format!("{number:.0}");
    let mut grouped = String::new();
    for (index, digit) in text.chars().enumerate() {
        if index > 0 && (text.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}
