//! Counters: our probe and `perf stat` on the same child process at the same time.
//!
//! The child sleeps in a read while both enable their counters, works, and sleeps in a read while
//! they are disabled. So both count the same interval, and the counts should be equal. The work is
//! a shell that stores each line that it reads, which allocates new pages, and waits for the next
//! line, while it is moved between CPUs. It creates no processes: `perf stat` would follow those
//! too, while our probe counts only the threads of the observed process.

use std::io::{BufRead as _, BufReader, Write as _};

use pinfold_host::files;
use pinfold_host::process::{Child, Signaled, Spawn, Stdio, own_tid};
use pinfold_host::{Clock as _, Host as _, HostMut as _, LiveHost, SystemClock, paths};
use pinfold_model::{CpuSet, PuId, Role, Tid};
use pinfold_probe::counters::{self, Counters, Outcome, Quantity};
use pinfold_study::random::Pcg32;

use super::{Goal, Measured, Row, table};
use crate::arguments::{Arguments, Failure};
use crate::page::thousands;
use crate::scratch::Scratch;

const BLOCKS: u32 = 12;
const WORK: &str = "while read line; do all=$all$line; echo kept; done";
const LINES: usize = 200;
const LINE_BYTES: usize = 4_096;
/// Our quantity, and perf's name for it.
const EVENTS: [(Quantity, &str); 4] = [
    (Quantity::ContextSwitches, "context-switches"),
    (Quantity::Migrations, "cpu-migrations"),
    (Quantity::PageFaults, "page-faults"),
    (Quantity::RunTime, "task-clock"),
];
const MS_NS: u64 = 1_000_000;
/// Time until a program that was started or has received input sleeps again.
const SETTLES_NS: u64 = 100 * MS_NS;
const PATIENCE_NS: u64 = 20_000 * MS_NS;

/// Measures the rows.
pub fn run(arguments: &Arguments) -> Result<Measured, Failure> {
    let perf = super::perf()?;
    let host = LiveHost::new()?;
    let scratch = Scratch::on_disk()?;
    let mut random = Pcg32::new(arguments.seed, 5);
    let count = arguments.rounds.unwrap_or(BLOCKS);
    let mut values: [[Vec<f64>; 2]; 4] = Default::default();
    for _ in 0..count {
        let ours_first = random.below(2) == 0;
        let found = block(&host, (&perf, &scratch.file("stat")), ours_first)?;
        for (all, pair) in values.iter_mut().zip(found) {
            all[0].push(pair[0]);
            all[1].push(pair[1]);
        }
    }
    let equal = EVENTS.iter().zip(&values).take(3).map(|((quantity, _), [ours, theirs])| {
        let same = ours.iter().zip(theirs).filter(|(ours, theirs)| ours == theirs).count();
        format!("{} in {same} of {count} blocks", quantity.name())
    });
    let equal = format!(
        "The same number, to the last one: {}. Both count from before the child is told to work until it waits again, so that nothing may differ but the run time, of which a few microseconds are those of putting counters on and off.",
        equal.collect::<Vec<_>>().join(", ")
    );
    let rows: Vec<Row> =
        EVENTS.iter().zip(values).map(|(event, values)| row(event, values)).collect();
    Ok(Measured {
        conditions: format!("{count} blocks, {}, seed {}", super::version(&perf)?, arguments.seed),
        table: table(&rows),
        notes: vec![equal],
    })
}

fn row((quantity, name): &(Quantity, &str), [ours, theirs]: [Vec<f64>; 2]) -> Row {
    let is_time = *quantity == Quantity::RunTime;
    Row {
        benchmark: format!("{} of a shell", quantity.name()),
        how: "pinfold measure counters".to_owned(),
        reference_tool: format!("perf stat -e {name}"),
        ours,
        theirs,
        text: if is_time { milliseconds } else { thousands },
        goal: if is_time { Goal::Within(0.99, 1.01) } else { Goal::Within(1.0, 1.0) },
    }
}

/// Our value and perf's for each event.
fn block(
    host: &LiveHost,
    (perf, file): (&str, &str),
    ours_first: bool,
) -> Result<[[f64; 2]; 4], Failure> {
    let mut child = Spawn::new("sh")
        .args(["-c", WORK])
        .env("LC_ALL", "C")
        .stdin(Stdio::Pipe)
        .stdout(Stdio::Pipe)
        .die_with_parent(true)
        .start()?;
    let mut orders = child.stdin().ok_or("the shell has no standard input")?;
    let mut answers = BufReader::new(child.stdout().ok_or("the shell has no standard output")?);
    SystemClock.sleep_ns(SETTLES_NS);
    let quantities = EVENTS.map(|(quantity, _)| quantity);
    let threads = [(child.task(), Role::Task)];
    let count = || counters::start(host, &SystemClock, &threads, &quantities);
    let early = ours_first.then(count).transpose()?;
    let mut other = perf_stat(host, (perf, file), child.pid())?;
    let ours = early.map_or_else(count, Ok)?;
    let line = "x".repeat(LINE_BYTES);
    let pus: Vec<PuId> = host.affinity(own_tid())?.iter().collect();
    for pu in pus.into_iter().cycle().take(LINES) {
        host.set_affinity(child.pid(), &CpuSet::single(pu))?;
        writeln!(orders, "{line}")?;
        answers.read_line(&mut String::new())?;
    }
    SystemClock.sleep_ns(SETTLES_NS);
    let found = ours.stop(host, &SystemClock)?;
    other.signal(Signaled::Interrupt)?;
    if other.wait_for(&SystemClock, PATIENCE_NS)?.is_none() {
        return Err("perf stat did not end".into());
    }
    drop(orders);
    child.wait()?;
    let text = files::read_text(file)?;
    let mut pairs = [[0.0; 2]; 4];
    for (pair, (quantity, name)) in pairs.iter_mut().zip(EVENTS) {
        *pair = [counted(&found, quantity)?, of_perf(&text, name)?];
    }
    Ok(pairs)
}

/// perf, after it has enabled its counters.
fn perf_stat(host: &LiveHost, (perf, file): (&str, &str), child: Tid) -> Result<Child, Failure> {
    let events = EVENTS.map(|(_, name)| name).join(",");
    let mut other = Spawn::new(perf)
        .args(["stat", "-x", ",", "-e", &events, "-o", file, "-p", &child.to_string()])
        .env("LC_ALL", "C")
        .die_with_parent(true)
        .stdin(Stdio::Null)
        .start()?;
    let end = SystemClock.now_ns() + PATIENCE_NS;
    while opened(host, other.pid())? < EVENTS.len() {
        if SystemClock.now_ns() > end || other.try_wait()?.is_some() {
            return Err("perf stat did not begin to count".into());
        }
        SystemClock.sleep_ns(MS_NS);
    }
    // From opening the counters to enabling them.
    SystemClock.sleep_ns(SETTLES_NS);
    Ok(other)
}

/// Number of open counters of a process.
fn opened(host: &LiveHost, process: Tid) -> Result<usize, Failure> {
    let folder = paths::process_descriptors(process);
    let mut count = 0;
    for name in host.list(&folder)? {
        match host.link(&format!("{folder}/{name}")) {
            Ok(target) => count += usize::from(target.contains("[perf_event]")),
            // Closed in the meantime.
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(count)
}

fn counted(found: &Counters, wanted: Quantity) -> Result<f64, Failure> {
    let outcomes = found.roles.iter().flat_map(|role| &role.outcomes);
    let mut sum = 0.0;
    for (_, outcome) in outcomes.filter(|(quantity, _)| *quantity == wanted) {
        match outcome {
            Outcome::Counted(counted) => sum += counted.value as f64,
            Outcome::Absent(why) => return Err(format!("{}: {why}", wanted.name()).into()),
        }
    }
    Ok(sum)
}

/// The value of an event: `41,,context-switches:u,…`; for its clock in milliseconds.
fn of_perf(text: &str, name: &str) -> Result<f64, Failure> {
    let line = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let mut lines = line.filter(|words| words.get(2).is_some_and(|event| event.starts_with(name)));
    let words = lines.next().ok_or_else(|| format!("perf stat counted no {name}: {text}"))?;
    let value: f64 = words[0].parse().map_err(|_| format!("perf stat: {name}: {}", words[0]))?;
    Ok(if words[1] == "msec" { value * 1e6 } else { value })
}

fn milliseconds(ns: f64) -> String {
    format!("{:.3} ms", ns / 1e6)
}

#[cfg(test)]
mod tests {
    use super::of_perf;

    #[test]
    fn the_numbers_of_perf_stat_are_found() {
        // Output of perf 6.1.
        let text = "# started on Tue\n\n41,,context-switches,103000000,100.00,398.1,/sec\n0,,cpu-migrations,103000000,100.00,0.0,/sec\n103.25,msec,task-clock,103250000,100.00,0.5,CPUs utilized\n<not counted>,,page-faults,0,100.00,,\n";
        assert_eq!(of_perf(text, "context-switches").unwrap(), 41.0);
        assert_eq!(of_perf(text, "cpu-migrations").unwrap(), 0.0);
        assert!((of_perf(text, "task-clock").unwrap() - 103_250_000.0).abs() < 1e-3);
        let reported = of_perf(text, "page-faults").unwrap_err().to_string();
        assert_eq!(reported, "perf stat: page-faults: <not counted>");
        assert!(of_perf("", "cycles").unwrap_err().to_string().contains("counted no cycles"));
    }
}
