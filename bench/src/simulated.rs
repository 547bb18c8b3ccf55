//! A simulated cluster whose results fill a real store.
//!
//! The nodes, their time and their measurements are simulated. Real parts: the design, the list of
//! tasks, the parsing of `squeue` output, the results as text with their digests, their checks, and
//! the store. Only the time of the collector is measured, not that of the simulation.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use pinfold_cluster::slurm::protocol::queue;
use pinfold_cluster::{
    Accepted, Collector, Failed, Limits, Lost, NodeProperties, Options, ResultContent,
    ResultIdentity, TaskResult, arrays, create_on_cluster, result_text, study_digest,
};
use pinfold_host::{Clock as _, SystemClock};
use pinfold_model::{Accelerator, Family, Figure, Origin, Unit};
use pinfold_stats::random::Pcg32;
use pinfold_study::store::{OpenRun, Store, TrialRecord};
use pinfold_study::study::{
    Cells, HostFacts, NewStudy, PresetSelection, Study, TrialSlot, from_toml,
};

use crate::arguments::Failure;
use crate::pairs::since;

const KEY: &str = "0123456789abcdef";
const FACTS: HostFacts =
    HostFacts { pus: 64, cores: 32, nodes: 2, packages: 2, smt: true, cpufreq: false };
/// Time after which Slurm forgets a job that ended (`MinJobAge`), in seconds.
const KEPT_S: f64 = 300.0;
/// The collector queries Slurm for at most a twentieth of the time, at intervals of 0.5 to 30 s.
const SHARE: f64 = 20.0;
/// Number of results merged in one transaction, as with a shared folder.
const BATCH: usize = 256;
/// One in this number of tasks is lost with its node.
const ONE_LOST_OF: u32 = 200;
/// Trials of a part: three layouts, the first one twice.
const PART_TRIALS: u32 = 4;

/// Size of a simulation.
#[derive(Clone, Copy)]
pub struct Size {
    /// Number of nodes of the cluster.
    pub nodes: usize,
    /// Number of comparisons of the study.
    pub jobs: u32,
    /// Number of blocks; each has a part for each comparison.
    pub blocks: u32,
}

impl Size {
    /// 100,000 trials on 10,000 nodes.
    pub const FULL: Size = Size { nodes: 10_000, jobs: 625, blocks: 40 };
    /// 800 trials on 100 nodes.
    pub const QUICK: Size = Size { nodes: 100, jobs: 20, blocks: 10 };

    /// The size for the command line.
    pub fn from_quick(quick: bool) -> Self {
        if quick { Self::QUICK } else { Self::FULL }
    }

    /// Number of parts of the study.
    pub fn parts(self) -> u32 {
        self.jobs * self.blocks
    }
}

fn toml(size: Size) -> String {
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

/// A task on its node: its end (ms), its part and attempt, and whether it is lost.
type Running = Reverse<(u64, u32, u32, bool)>;

/// The events, and their cost for the collector.
#[derive(Default)]
pub struct Tally {
    /// Time to parse the study file and create its cells (ns).
    pub first_look_ns: f64,
    /// Time to lay out all parts (ns).
    pub begun_ns: f64,
    /// Times of each turn: parsing `squeue` output, the list of tasks, submitting (ns).
    pub turns: Vec<[f64; 3]>,
    /// For each batch: results, trials, time (ns).
    pub merges: Vec<(usize, usize, f64)>,
    /// Total length of the results (bytes).
    pub result_bytes: usize,
    /// Length of the longest `squeue` output (bytes).
    pub queue_bytes: usize,
    /// Time that nodes worked (ms).
    pub busy_ms: u64,
    /// Number of tasks lost with their nodes.
    pub lost: u64,
    /// Number of parts whose second task was lost too: their trials are recorded as failed.
    pub given_up: u64,
}

/// A study on a simulated cluster.
pub struct Simulation {
    /// The events so far.
    pub tally: Tally,
    size: Size,
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
    /// Tasks that ended and are still listed: end, part, attempt, state.
    ended: VecDeque<(u64, u32, u32, &'static str)>,
}

impl Simulation {
    /// Starts a study of this size, with a store at this path.
    pub fn begin(size: Size, path: &str, seed: u64) -> Result<Self, Failure> {
        let toml = toml(size);
        let begin = SystemClock.now_ns();
        let study: Study = from_toml(&toml)?;
        let cells = Cells::new(&study, &FACTS)?;
        let first_look_ns = since(begin);
        let mut store = Store::open_or_create(path)?;
        let new = NewStudy {
            study: &study,
            form: &PresetSelection::Whole,
            command: "pinfold study run scale.toml --engine slurm",
            origin: &node_origin(),
            facts: &FACTS,
            now_unix_s: SystemClock.unix_seconds(),
        };
        let scouted = NodeProperties { facts: FACTS, skipped: vec![None; cells.all.len()] };
        let options = Options::new(KEY.to_owned());
        let run = create_on_cluster(&mut store, &new, &scouted, &options)?;
        let limits = Limits { most_out: 2 * size.nodes, grace_ns: 90_000_000_000 };
        let begin = SystemClock.now_ns();
        let own = env!("CARGO_PKG_VERSION");
        let collector = Collector::open(&mut store, run, KEY, own, limits)?;
        Ok(Self {
            tally: Tally { first_look_ns, begun_ns: since(begin), ..Tally::default() },
            size,
            store,
            run,
            collector,
            study: study_digest(&toml, &PresetSelection::Whole),
            generator: Pcg32::new(seed, 1),
            now_ms: 0,
            waiting: VecDeque::new(),
            running: BinaryHeap::new(),
            names: BTreeMap::new(),
            ended: VecDeque::new(),
        })
    }

    /// Runs the cluster until nothing is missing.
    pub fn until_done(&mut self) -> Result<(), Failure> {
        while !self.collector.is_done() {
            let came = self.advance();
            let text = self.queue_text();
            self.tally.queue_bytes = self.tally.queue_bytes.max(text.len());
            let begin = SystemClock.now_ns();
            let lines = queue(&text)?;
            let read_ns = since(begin);
            let merge_ns = self.merge(&came)?;
            let begin = SystemClock.now_ns();
            for one in self.collector.compare_queue(&lines, self.now_ms * 1_000_000).ended {
                let reason = "its node failed".to_owned();
                let lost = Lost { ask: one.ask, node: one.node, reason };
                let then = self.collector.handle_failure(&mut self.store, self.run, &lost, 1)?;
                self.tally.given_up += u64::from(then == Failed::Recorded);
            }
            let ledger_ns = since(begin);
            let submit_ns = self.submit()?;
            self.tally.turns.push([read_ns, ledger_ns, submit_ns]);
            let turn_s = (read_ns + merge_ns + ledger_ns + submit_ns) / 1e9;
            let pause_ms = ((turn_s * SHARE).clamp(0.5, 30.0) + turn_s) * 1e3;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds")]
            let pause_ms = pause_ms as u64;
            self.now_ms += pause_ms;
        }
        self.nothing_is_missing()
    }

    /// Checks that each part was merged, or recorded as failed.
    fn nothing_is_missing(&self) -> Result<(), Failure> {
        let (merged, given_up) = (self.results() as u64, self.tally.given_up);
        if merged + given_up == u64::from(self.size.parts()) {
            Ok(())
        } else {
            let parts = self.size.parts();
            Err(format!(
                "{merged} results and {given_up} parts that were given up are not {parts} parts"
            )
            .into())
        }
    }

    /// Number of merged results.
    pub fn results(&self) -> usize {
        self.tally.merges.iter().map(|one| one.0).sum()
    }

    /// Number of their trials.
    pub fn trials(&self) -> usize {
        self.tally.merges.iter().map(|one| one.1).sum()
    }

    /// Number of parts of the study.
    pub fn parts(&self) -> u32 {
        self.size.parts()
    }

    /// Duration of the study in simulated time (minutes).
    pub fn minutes(&self) -> f64 {
        self.now_ms as f64 / 6e4
    }

    /// Runs the simulated nodes until now, and returns the results.
    fn advance(&mut self) -> Vec<(u32, u32)> {
        let mut came = Vec::new();
        let mut at = self.now_ms.saturating_sub(60_000);
        loop {
            while self.running.len() < self.size.nodes
                && let Some((part, attempt)) = self.waiting.pop_front()
            {
                // Four runs of 15 s, and up to a quarter more.
                let lasts_ms = 60_000 + u64::from(self.generator.draw_below(15_000));
                let is_lost = self.generator.draw_below(ONE_LOST_OF) == 0;
                let begin = at.max(self.now_ms.saturating_sub(60_000));
                self.tally.busy_ms += lasts_ms;
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
            self.tally.lost += u64::from(is_lost);
            let state = if is_lost { "NODE_FAIL" } else { "COMPLETED" };
            self.ended.push_back((end, part, attempt, state));
            if !is_lost {
                came.push((part, attempt));
            }
        }
    }

    /// The output that `squeue` would print.
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
        let now_ns = self.now_ms * 1_000_000;
        let asks = self.collector.to_submit(now_ns);
        let mut spent = since(begin);
        for (attempt, batch) in arrays(&asks, 1001) {
            let job = self.names.len() as u64 + 1;
            let tasks = batch.tasks(attempt, job, 1);
            let begin = SystemClock.now_ns();
            self.collector.record_submission(&mut self.store, self.run, &tasks)?;
            spent += since(begin);
            for task in tasks {
                self.names.insert((task.part, attempt), (job, task.element));
                self.waiting.push_back((task.part, attempt));
            }
        }
        self.collector.note_accepted(now_ns);
        Ok(spent)
    }

    fn merge(&mut self, came: &[(u32, u32)]) -> Result<f64, Failure> {
        let mut spent = 0.0;
        for batch in came.chunks(BATCH) {
            let mut results = Vec::with_capacity(batch.len());
            for (part, attempt) in batch {
                results.push((format!("{part}-{attempt}.json"), self.result(*part, *attempt)?));
            }
            self.tally.result_bytes += results.iter().map(|(_, text)| text.len()).sum::<usize>();
            let begin = SystemClock.now_ns();
            let accepted = self.collector.accept(&mut self.store, self.run, &results)?;
            let took = since(begin);
            if let Some(odd) = accepted.iter().find(|one| !matches!(one, Accepted::Merged { .. })) {
                return Err(format!("a result was not merged: {odd:?}").into());
            }
            spent += took;
            self.tally.merges.push((batch.len(), batch.len() * PART_TRIALS as usize, took));
        }
        Ok(spent)
    }

    /// A result as a node would return it.
    pub fn result(&mut self, part: u32, attempt: u32) -> Result<String, Failure> {
        let node = format!("n{}", self.generator.draw_below(10_000));
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
        let head = ResultIdentity {
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
        Ok(result_text(&TaskResult { head, given: ResultContent::Trials(trials) })?)
    }
}
