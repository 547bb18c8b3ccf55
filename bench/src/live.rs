//! `live`: whether `tune` on a running machine finds the placement that restarts find.
//!
//! Each pair is a search in place on the demo guest, and the same comparison with a start of the
//! guest for each placement in each block: same guest, same load, same figure (the longest wait of
//! a vCPU, by `measure sched`), same statistics. A task that is bound to the first CPU makes
//! placements differ. Each pair is added to [`RECORD`], so that an interrupted run keeps them.

use std::sync::Arc;

use pinfold_host::process::{self, Child, Spawn};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, files};
use pinfold_model::Tid;
use pinfold_probe::agent::{Agent, Heartbeat};
use pinfold_probe::loads::{LoadDuration, LoadKind, LoadSpec};
use pinfold_stats::random::Pcg32;
use pinfold_stats::{
    Block, Direction, Evidence, Rule, Verdict, blocks_needed, holm, ratio_interval,
    sign_flip_blocks,
};
use pinfold_vm::launch::{self, RunningVm};
use serde_json::{Value, json};

use crate::arguments::{Arguments, Failure};
use crate::page::{Figures, Table};
use crate::pairs::program_beside;
use crate::scratch::Scratch;
use crate::{guest, origin};

const PAIRS: u32 = 10;
/// Where the pairs are recorded, a line of JSON for each.
const RECORD: &str = "bench/live-pairs.jsonl";
const STRATEGIES: [&str; 2] = ["compact", "low-latency"];
const BUDGET: &str = "3m";
/// Observation of a start (seconds).
const OBSERVED: &str = "2";
const SETTLE_NS: u64 = 1_000_000_000;
const TIMEOUT_NS: u64 = 600_000_000_000;
const ALPHA: f64 = 0.05;
const MARGIN: f64 = 0.02;
/// Waits below this are not distinguished (ns), as in the search.
const FLOOR_NS: f64 = 1_000.0;

struct Bench {
    pinfold: String,
    state: String,
    argv: Vec<String>,
    scratch: Scratch,
    /// A task of another owner on the first CPU.
    _other: Child,
}

/// The demo guest with a load inside.
struct Guest {
    vm: RunningVm,
    _heartbeat: Heartbeat,
    _agent: Arc<Agent>,
}

/// The answers of one pair; `None` is "not settled, or no placement is better".
struct Pair {
    live: Option<String>,
    restarts: Option<String>,
}

/// Measures the pairs.
pub fn run(arguments: &Arguments) -> Result<Figures, Failure> {
    let host = LiveHost::new()?;
    let topology = pinfold_topology::discover(&host)?;
    let scratch = Scratch::on_disk()?;
    let bench = Bench {
        pinfold: program_beside(arguments)?,
        state: scratch.file("state"),
        argv: guest::command(&scratch, 1)?,
        _other: Spawn::new("sh")
            .args(["-c", "while :; do :; done"])
            .affinity(host.affinity(Tid(0))?.iter().take(1).collect())
            .die_with_parent(true)
            .start()?,
        scratch,
    };
    let mut pairs = Vec::new();
    for round in 0..arguments.rounds.unwrap_or(PAIRS) {
        let seed = arguments.seed.wrapping_add(u64::from(round));
        let pair = Pair { live: bench.live(seed)?, restarts: bench.restarts(seed)? };
        record(seed, &pair)?;
        pairs.push(pair);
    }
    let machine = origin::of_host(&host, &topology)?;
    Ok(Figures {
        name: "live".to_owned(),
        title: "the winner of a search in place and of restarts".to_owned(),
        origin: format!(
            "{machine}; the demo guest with one busy vCPU under TCG; Pinfold {}; {} pairs, seed {}",
            env!("CARGO_PKG_VERSION"),
            pairs.len(),
            arguments.seed
        ),
        tables: vec![table(&pairs), counts(&pairs)],
        notes: vec![
            format!("Strategies {} against the placement of a machine that nothing has pinned; another task is bound to the first CPU.", STRATEGIES.join(", ")),
            format!("The search has {BUDGET}. A comparison by restarts has the number of blocks that a verdict needs; each block starts the guest once for each placement and observes it for {OBSERVED} s."),
            "“None” is an answer without a winner: not settled, or not better than the present placement.".to_owned(),
        ],
    })
}

fn record(seed: u64, pair: &Pair) -> Result<(), Failure> {
    let known = if files::exists(RECORD) { files::read_text(RECORD)? } else { String::new() };
    let line = json!({ "seed": seed, "live": pair.live, "restarts": pair.restarts });
    Ok(files::write_atomic(RECORD, format!("{known}{line}\n").as_bytes())?)
}

fn table(pairs: &[Pair]) -> Table {
    let rows = pairs.iter().enumerate().map(|(at, pair)| {
        let winners = [&pair.live, &pair.restarts];
        let winners = winners.map(|one| one.clone().unwrap_or_else(|| "none".to_owned()));
        [vec![(at + 1).to_string()], winners.to_vec()].concat()
    });
    let head = ["pair", "winner in place", "winner by restarts"];
    Table { rows: rows.collect(), head: head.map(str::to_owned).to_vec() }
}

fn counts(pairs: &[Pair]) -> Table {
    let agree = pairs.iter().filter(|pair| pair.live == pair.restarts);
    let none = agree.clone().filter(|pair| pair.live.is_none()).count();
    let head = ["agree", "of them both without a winner", "of"];
    let row = [agree.count(), none, pairs.len()].map(|count| count.to_string());
    Table { rows: vec![row.to_vec()], head: head.map(str::to_owned).to_vec() }
}

impl Bench {
    fn start(&self) -> Result<Guest, Failure> {
        let mut vm = launch::start_stopped(&pinfold_qemu::parse(&self.argv), &guest::quiet())?;
        vm.cont()?;
        let socket = guest::agent_socket(&self.scratch);
        let agent = Arc::new(Agent::connect(&socket, TIMEOUT_NS, &SystemClock)?);
        let heartbeat = Heartbeat::start(&agent)?;
        let life = LoadDuration::Limited(86_400_000_000_000);
        agent.start(&LoadSpec { kind: LoadKind::Cpu, threads: 1, life }.argv())?;
        SystemClock.sleep_ns(SETTLE_NS);
        Ok(Guest { vm, _heartbeat: heartbeat, _agent: agent })
    }

    /// What a command of Pinfold prints.
    fn print(&self, words: &[&str]) -> Result<String, Failure> {
        let words = [&["--state-dir", &self.state], words].concat();
        let output = process::capture(&self.pinfold, &words, TIMEOUT_NS)?;
        if output.status.success() {
            return Ok(output.stdout_text());
        }
        let said = output.stderr_text();
        Err(format!("`pinfold {}` failed: {}", words.join(" "), said.trim()).into())
    }

    /// The winner of a search in place.
    fn live(&self, seed: u64) -> Result<Option<String>, Failure> {
        let mut guest = self.start()?;
        let (pid, seed) = (guest.vm.pid().to_string(), seed.to_string());
        let strategies = STRATEGIES.join(",");
        let words = ["tune", "--pid", &pid, "--strategies", &strategies, "--ignore-claims"];
        let more = ["--budget", BUDGET, "--seed", &seed, "--json"];
        let found = self.print(&[&words[..], &more].concat());
        guest.vm.quit(TIMEOUT_NS)?;
        let found: Value = serde_json::from_str(&found?)?;
        Ok(found["winner"].as_str().map(str::to_owned))
    }

    /// The winner by restarts.
    fn restarts(&self, seed: u64) -> Result<Option<String>, Failure> {
        let needed = blocks_needed(u32::try_from(STRATEGIES.len())?, ALPHA);
        let mut random = Pcg32::new(seed, 1);
        let mut pairs = vec![Vec::new(); STRATEGIES.len()];
        for _ in 0..needed {
            let mut order: Vec<Option<usize>> = (0..STRATEGIES.len()).map(Some).collect();
            order.push(None);
            random.shuffle(&mut order);
            let (mut present, mut others) = (FLOOR_NS, vec![FLOOR_NS; STRATEGIES.len()]);
            for one in order {
                match one {
                    None => present = self.longest_wait(None)?,
                    Some(at) => others[at] = self.longest_wait(Some(STRATEGIES[at]))?,
                }
            }
            for (pairs, figure) in pairs.iter_mut().zip(others) {
                pairs.push(Block::pair(figure, present));
            }
        }
        Ok(winner(&pairs, needed).map(|at| STRATEGIES[at].to_owned()))
    }

    /// The longest wait of the vCPU of a guest that is started and placed (ns).
    fn longest_wait(&self, strategy: Option<&str>) -> Result<f64, Failure> {
        let mut guest = self.start()?;
        let pid = guest.vm.pid().to_string();
        if let Some(strategy) = strategy {
            self.print(&["apply", "--pid", &pid, "--strategy", strategy, "--ignore-claims"])?;
        }
        let words = ["measure", "sched", "--pid", &pid, "--seconds", OBSERVED, "--json"];
        let found = self.print(&words);
        guest.vm.quit(TIMEOUT_NS)?;
        let found: Value = serde_json::from_str(&found?)?;
        let figures = found["measurement"]["blocks"][0]["figures"].as_array();
        let longest = figures.into_iter().flatten().find(|figure| {
            figure["labels"]["quantity"] == "max" && figure["labels"]["role"] == "vcpu(0)"
        });
        let longest = longest.and_then(|figure| figure["samples"][0].as_f64());
        Ok(longest.ok_or("no wait was recorded; `pinfold measure sched` shows why")?.max(FLOOR_NS))
    }
}

/// The candidate that is shown to be better than the present placement, by the most.
fn winner(pairs: &[Vec<Block>], needed: u32) -> Option<usize> {
    let raw: Vec<f64> = pairs.iter().map(|one| sign_flip_blocks(one).unwrap_or(1.0)).collect();
    let rule = Rule { alpha: ALPHA, margin: MARGIN, blocks_needed: needed };
    let mut better = Vec::new();
    for (at, (blocks, p_holm)) in pairs.iter().zip(holm(&raw)).enumerate() {
        let Some(interval) = ratio_interval(blocks) else { continue };
        let evidence = Evidence { blocks: needed, interval, p_holm };
        if Verdict::from_evidence(&evidence, Direction::LowerIsBetter, &rule) == Verdict::Better {
            better.push((interval.ratio, at));
        }
    }
    better.sort_by(|one, other| one.0.total_cmp(&other.0));
    better.first().map(|(_, at)| *at)
}
