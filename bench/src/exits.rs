//! Exits: the table for a micro-guest with a known number of exits, its cost, and
//! `perf kvm stat record` on the same run.
//!
//! The machine determines which exits are visible: where `kvm_exit` does not fire (level B), exits
//! that KVM handles itself are in no table, neither ours nor perf's, and their rows say so. The lab
//! counts them at level A inside nested KVM, in its case of exits.

use pinfold_exits::cost::{self, MicroRunner};
use pinfold_exits::expected::{Expected, WORK, compare_expected};
use pinfold_exits::{EventSurvey, ExitsError, Level, VcpuThread, Watch, from_source};
use pinfold_host::process::{Child, Signaled, Spawn, Stdio, own_tid};
use pinfold_host::{
    Clock as _, LiveHost, MicroGuest, SystemClock, VcpuRun, Work, paths, proc_stat,
};
use pinfold_model::{TaskId, Tid};

use crate::arguments::{Arguments, Failure};
use crate::origin;
use crate::page::{Figures, thousands};
use crate::rows::{Goal, Row, table};
use crate::scratch::Scratch;

const BLOCKS: u32 = 8;
/// Upper limit of the cost of a complete exit (ns), which causes several events.
const MOST_NS: f64 = 300.0;
/// Time from the start of perf until its events are enabled.
const PERF_STARTS_NS: u64 = 1_000_000_000;
const PERF_ENDS_NS: u64 = 20_000_000_000;
/// Number of runs under perf, of which the fastest counts; each has as many exits as in the
/// measurement of our own cost.
const RUNS: u32 = 10;
const HOW: &str = "pinfold exits --micro-guest";

/// A vCPU of this thread.
struct ThreadVcpu(MicroGuest);

impl MicroRunner for ThreadVcpu {
    fn thread(&self) -> Tid {
        own_tid()
    }

    fn run(&mut self, work: Work) -> Result<VcpuRun, ExitsError> {
        Ok(self.0.run(work)?)
    }
}

/// Result of a block.
struct Block {
    level: Level,
    expected: Vec<Expected>,
    exits: u64,
    cost: cost::Cost,
    perf: Perf,
}

/// Result of perf for the same run.
struct Perf {
    exits: u64,
    /// Its additional cost compared with an unobserved run (ns of CPU time per exit).
    per_exit_ns: f64,
}

/// Measures the rows.
pub fn run(arguments: &Arguments) -> Result<Figures, Failure> {
    if pinfold_host::process::find_program("perf").is_none() {
        return Err("perf is not here: apt-get install linux-perf".into());
    }
    let host = LiveHost::new()?;
    let scratch = Scratch::on_disk()?;
    let mut guest = ThreadVcpu(MicroGuest::new()?);
    guest.run(Work::default())?;
    let count = arguments.rounds.unwrap_or(BLOCKS);
    let blocks: Vec<Block> = (0..count)
        .map(|_| block(&host, &mut guest, &scratch.file("kvm")))
        .collect::<Result<_, Failure>>()?;
    let level = blocks.first().ok_or("--rounds: 0 blocks measure nothing")?.level;
    let mut rows = counts(&blocks);
    rows.extend(costs(&blocks));
    rows.push(beside_perf(&blocks));
    let events = blocks.first().map_or(0.0, |block| block.cost.events_per_exit);
    let machine = origin::of_host(&host, &pinfold_topology::discover(&host)?)?;
    Ok(Figures {
        name: "exits".to_owned(),
        title: "exits of a virtual machine".to_owned(),
        origin: format!(
            "{machine}; level {} ({}); {count} blocks",
            level.letter(),
            level.meaning()
        ),
        tables: vec![table(&rows)],
        notes: vec![format!(
            "CPU time of a vCPU's thread with and without being watched, in {} pairs of {} runs of port writes in each block, of which the quickest counts; an exit has {events:.1} events here.",
            blocks.first().map_or(0, |block| block.cost.pairs),
            blocks.first().map_or(0, |block| block.cost.runs),
        )],
    })
}

fn block(host: &LiveHost, guest: &mut ThreadVcpu, file: &str) -> Result<Block, Failure> {
    let threads = [VcpuThread { vcpu: 0, task: own_task(host)? }];
    let look = EventSurvey::begin(host, &threads)?;
    guest.run(WORK)?;
    let source =
        look.find_fired()?.ok_or("no event of KVM fires here, so exits cannot be watched")?;
    drop(look);
    let perf = recording(file)?;
    let watch = Watch::begin(host, &SystemClock, from_source(source), &threads)?;
    guest.run(WORK)?;
    let found = watch.finish(host, &SystemClock)?;
    end(perf)?;
    let exits = read_recorded(file)?;
    let cost = cost::measure(host, &SystemClock, from_source(source), guest)?;
    let per_exit_ns = under_perf(guest, cost.exits, file)? - cost.unwatched_ns;
    Ok(Block {
        level: found.level,
        expected: compare_expected(&found),
        exits: found.total.exits(),
        cost,
        perf: Perf { exits, per_exit_ns },
    })
}

fn own_task(host: &LiveHost) -> Result<TaskId, Failure> {
    let stat = proc_stat::read(host, own_tid())?;
    Ok(stat.ok_or_else(|| format!("{} is not there", paths::process_stat(own_tid())))?.task())
}

/// perf, after it has started to record the exits of this thread.
fn recording(file: &str) -> Result<Child, Failure> {
    let perf = perf_in_own_mounts()
        .args(["kvm", "stat", "record", "-p", &own_tid().to_string(), "-o", file])
        .die_with_parent(true)
        .stdin(Stdio::Null)
        .stdout(Stdio::Null)
        .stderr(Stdio::Null)
        .start()?;
    SystemClock.sleep_ns(PERF_STARTS_NS);
    Ok(perf)
}

fn end(mut perf: Child) -> Result<(), Failure> {
    perf.signal(Signaled::Interrupt)?;
    match perf.wait_for(&SystemClock, PERF_ENDS_NS)? {
        Some(_) => Ok(()),
        None => Err("perf kvm stat record did not end".into()),
    }
}

/// CPU time per exit while perf records (ns), in the fastest run.
fn under_perf(guest: &mut ThreadVcpu, exits: u32, file: &str) -> Result<f64, Failure> {
    let perf = recording(file)?;
    let mut least = u64::MAX;
    for _ in 0..RUNS {
        least = least.min(guest.run(Work { out: exits, ..Work::default() })?.cpu_ns);
    }
    end(perf)?;
    Ok(least as f64 / f64::from(exits))
}

/// Number of exits in perf's recording.
fn read_recorded(file: &str) -> Result<u64, Failure> {
    let output = perf_in_own_mounts()
        .args(["kvm", "-i", file, "stat", "report", "--event=vmexit"])
        .capture(PERF_ENDS_NS)?;
    let text = format!("{}{}", output.stdout_text(), output.stderr_text());
    total(&text)
        .ok_or_else(|| format!("perf kvm stat report prints no total: {}", text.trim()).into())
}

fn total(text: &str) -> Option<u64> {
    let rest = text.split("Total Samples:").nth(1)?;
    rest.split(',').next()?.trim().parse().ok()
}

/// One row for each type of exit that the guest causes.
fn counts(blocks: &[Block]) -> Vec<Row> {
    let kinds = blocks.first().map_or(0, |block| block.expected.len());
    (0..kinds).filter_map(|kind| {
        let of_kind = || blocks.iter().filter_map(|block| block.expected.get(kind));
        let first = of_kind().next()?;
        let ours: Vec<f64> = of_kind().filter_map(|one| Some(one.counted? as f64)).collect();
        let is_seen = !ours.is_empty();
        let reference_tool = if is_seen {
            "what the guest makes".to_owned()
        } else {
            format!(
                "not counted here by any tool: KVM answers it itself and kvm_exit does not fire; the laboratory counts {} of {} at level A",
                first.expected, first.expected
            )
        };
        Some(Row {
            benchmark: format!("exits: {}", first.what),
            how: HOW.to_owned(),
            reference_tool,
            theirs: of_kind().filter(|_| is_seen).map(|one| one.expected as f64).collect(),
            ours,
            text: thousands,
            goal: if is_seen { Goal::Within(1.0, 1.0) } else { Goal::None },
        })
    }).collect()
}

/// Cost of an event and of an exit.
fn costs(blocks: &[Block]) -> [Row; 2] {
    let fires = blocks.iter().any(|block| block.perf.exits > 0);
    let row = |what: &str, ours: fn(&Block) -> f64| Row {
        benchmark: format!("exits: CPU time of {what}"),
        how: HOW.to_owned(),
        reference_tool: "none, because perf kvm stat record has other events".to_owned(),
        ours: blocks.iter().map(ours).collect(),
        theirs: Vec::new(),
        text: nanoseconds,
        goal: Goal::OursAtMost(MOST_NS),
    };
    let per_exit = row("an exit", |block| block.cost.per_exit_ns.median);
    let theirs = blocks.iter().map(|block| block.perf.per_exit_ns);
    [
        Row { goal: Goal::None, ..row("an event", |block| block.cost.per_event_ns.median) },
        Row {
            reference_tool: if fires { "perf kvm stat record".to_owned() } else { silent() },
            theirs: theirs.filter(|_| fires).collect(),
            ..per_exit
        },
    ]
}

/// All exits of the run that both observed.
fn beside_perf(blocks: &[Block]) -> Row {
    let fires = blocks.iter().any(|block| block.perf.exits > 0);
    let theirs = blocks.iter().map(|block| block.perf.exits as f64);
    Row {
        benchmark: "exits: all of the same run".to_owned(),
        how: HOW.to_owned(),
        reference_tool: if fires { "perf kvm stat record".to_owned() } else { silent() },
        ours: blocks.iter().map(|block| block.exits as f64).collect(),
        theirs: theirs.filter(|_| fires).collect(),
        text: thousands,
        goal: if fires { Goal::Within(1.0, 1.0) } else { Goal::None },
    }
}

fn silent() -> String {
    "perf kvm stat record ran next to it and recorded nothing, because it needs kvm_exit, which does not fire here".to_owned()
}

fn nanoseconds(ns: f64) -> String {
    format!("{ns:.0} ns")
}

/// perf mounts tracefs if it is not mounted: done in a separate mount namespace.
fn perf_in_own_mounts() -> Spawn {
    Spawn::new("unshare").args(["--mount", "perf"]).env("LC_ALL", "C")
}

#[cfg(test)]
mod tests {
    use super::total;

    #[test]
    fn the_total_of_perf_is_found() {
        // Output of perf 6.1.
        let text = "             VM-EXIT    Samples  Samples%     Time%\n\n\nTotal Samples:2200, Total events handled time:0.00us.\n";
        assert_eq!(total(text), Some(2_200));
        assert_eq!(total("no data"), None);
    }
}
