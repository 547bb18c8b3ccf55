//! Observing: the cost of observing the scheduler and of counting for the observed threads.
//!
//! The benchmark compares the CPU time of the threads for a fixed amount of work: it includes the
//! time of the BPF programs in the kernel, and excludes other virtual machines on the host. The
//! work is that of a guest with eight vCPUs, with threads that compute or threads that wait for
//! each other, and that of four pairs of threads that pass a byte back and forth through pipes and
//! compute in between: each byte is a wake-up and two switches.

mod own_time;

use std::cell::RefCell;
use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use pinfold_host::{
    Host, HostMut as _, LiveHost, SystemClock, paths, proc_stat, process, schedstat,
};
use pinfold_model::{CpuSet, PuId, Role, TaskId, Tid};
use pinfold_probe::agent::Agent;
use pinfold_probe::counters::{self, Quantity};
use pinfold_probe::cpu_speed::SpeedBenchmark as _;
use pinfold_probe::parallel::{Parallel, Size};
use pinfold_probe::sched_latency;
use pinfold_stats::median;
use pinfold_vm::launch::{self, RunningVm};
use pinfold_vm::qemu::argv;

use super::{Goal, Measured, Row, table};
use crate::arguments::{Arguments, Failure};
use crate::guest;
use crate::pairs::{self, Contender};
use crate::scratch::Scratch;

const PAIRS: usize = 4;
const VCPUS: u32 = 8;
const BLOCKS: u32 = 20;
/// Blocks of the guests for each block of the pipes: the machine affects the CPU time of their work
/// more than the observation does.
const GUEST_BLOCKS: u32 = 5;
/// Number of runs in which the programs' own time is measured.
const TIMED: u32 = 5;
const GOAL: Goal = Goal::AtMost(1.01);
/// Name, steps of computing between two bytes, bytes that each pair passes in a round, the goal.
const PIPES: [(&str, u32, u32, Goal); 3] = [
    ("threads that wake each other as often as pipes can", 0, 8_000, Goal::None),
    ("threads that wake each other after 100 µs of work", 100_000, 2_000, GOAL),
    ("threads that wake each other after 1 ms of work", 1_000_000, 200, GOAL),
];
/// Name, and the program in the guest.
const GUESTS: [(&str, &str); 2] = [
    ("a guest of 8 vCPUs that computes", "blackscholes"),
    ("a guest of 8 vCPUs whose threads wait for each other", "ferret"),
];
/// Timeout for the guest to start, and for a program in it.
const PATIENCE_NS: u64 = 120_000_000_000;

/// Threads, and a fixed amount of work for them.
struct Load<'l> {
    name: &'static str,
    blocks: u32,
    /// All observed threads.
    threads: &'l [(TaskId, Role)],
    /// The threads whose CPU time counts.
    counted: &'l [(TaskId, Role)],
    work: Box<dyn Fn() -> Result<(), Failure> + 'l>,
    goal: Goal,
}

/// Measures all loads.
pub fn run(arguments: &Arguments) -> Result<Measured, Failure> {
    let host = LiveHost::new()?;
    let count = arguments.rounds.unwrap_or(BLOCKS);
    let mut rows = Vec::new();
    let mut waits = Vec::new();
    let guest = Guest::boot()?;
    for (name, program) in GUESTS {
        let (threads, counted) = (&guest.threads, &guest.vcpus);
        let work = Box::new(|| guest.work(program));
        let blocks = count.saturating_mul(GUEST_BLOCKS);
        let load = Load { name, blocks, threads, counted, work, goal: GOAL };
        let (found, price) = load.rows(&host, arguments.seed)?;
        rows.extend(found);
        waits.push((name, price));
    }
    let qemu = guest.vm.version.to_string();
    drop(guest);
    let players = players(&host)?;
    let threads: Vec<(TaskId, Role)> = players.iter().map(|one| (one.task, Role::Task)).collect();
    for (name, steps, bytes, goal) in PIPES {
        let work = Box::new(|| play(&players, (steps, bytes)));
        let load = Load { name, blocks: count, threads: &threads, counted: &threads, work, goal };
        let (found, price) = load.rows(&host, arguments.seed)?;
        rows.extend(found);
        waits.push((name, price));
    }
    let level = level(&host, &threads)?;
    Ok(Measured {
        conditions: format!(
            "{level}; the demo guest under TCG, QEMU {qemu}; {} blocks of the guest's work, {count} of the pipes', seed {}",
            count.saturating_mul(GUEST_BLOCKS),
            arguments.seed
        ),
        table: table(&rows),
        notes: vec![
            "CPU time of the vCPUs' threads, or of the eight that use pipes, for the same amount of work; in each block once for each row, in random order.".to_owned(),
            "“Not observed, again” is an A/A comparison: differences within its interval are noise.".to_owned(),
            by_wait(&waits)?,
            by_own_time(&waits),
        ],
    })
}

/// The waits of a load in relation to its CPU time.
struct Waits {
    /// Number per second of CPU time; the median over the blocks.
    by_second: f64,
    /// CPU time that the observation took per wait (ns); the median over the blocks.
    cost_ns: f64,
    /// The programs' own time as a share of the CPU time of the load; the median over the runs.
    own_share: f64,
}

/// The cost of observing each load, from its number of waits: with the maximum rate of wake-ups,
/// the cost of one is above the noise, otherwise it is not.
fn by_wait(waits: &[(&str, Waits)]) -> Result<String, Failure> {
    let (_, most) = waits.iter().find(|(name, _)| *name == PIPES[0].0).ok_or("no pipes")?;
    let each = waits.iter().map(|(name, load)| {
        let share = load.by_second * most.cost_ns / 1e9 * 100.0;
        format!("{name} {:.0}, {share:.2} %", load.by_second)
    });
    Ok(format!(
        "Watching the scheduler took {:.0} ns for a wait where they were as many as pipes can (median over the blocks); waits in a second of CPU time, and what they cost at that price: {}.",
        most.cost_ns,
        each.collect::<Vec<_>>().join("; ")
    ))
}

/// The time of the programs as reported by the kernel.
fn by_own_time(waits: &[(&str, Waits)]) -> String {
    let each = waits.iter().map(|(name, load)| format!("{name} {:.2} %", load.own_share * 100.0));
    format!(
        "The programs' own time as the kernel measures it (BPF_ENABLE_STATS, which reads a clock twice for each call), for the events of all tasks of the machine, as a share of the CPU time of the observed threads, median of {TIMED} runs: {}. The overhead of calling a program is not included.",
        each.collect::<Vec<_>>().join("; ")
    )
}

impl Load<'_> {
    fn rows(&self, host: &LiveHost, seed: u64) -> Result<(Vec<Row>, Waits), Failure> {
        let seen = RefCell::new(Vec::new());
        let block = |watch: Watch| -> Result<f64, Failure> {
            let open = watch.open(host, self.threads)?;
            let before = taken_ns(host, self.counted)?;
            (self.work)()?;
            let taken = taken_ns(host, self.counted)?.saturating_sub(before);
            let waits = open.close(host)?;
            if matches!(watch, Watch::Sched) {
                seen.borrow_mut().push(waits as f64);
            }
            Ok(taken as f64)
        };
        let ways = [
            (Watch::Nothing, "not observed", "–", Goal::None),
            (Watch::Nothing, "not observed, again", "–", Goal::None),
            (Watch::Sched, "scheduler observed", "pinfold measure sched", self.goal),
            (Watch::Records, "scheduler observed, without BTF", "the same, at records", Goal::None),
            (Watch::Counters, "counted", "pinfold measure counters", self.goal),
            (Watch::Both, "both", "both", self.goal),
        ];
        let mut contenders =
            ways.map(|(watch, name, ..)| Contender::new(name, move || block(watch)));
        let times = pairs::rounds(&mut contenders, self.blocks, seed)?;
        let alone = times.first().ok_or("no observation without programs")?.samples.clone();
        let watched = times.iter().zip(ways).find(|(_, (watch, ..))| matches!(watch, Watch::Sched));
        let watched = &watched.ok_or("no observation with programs")?.0.samples;
        // The first round is a warm-up.
        let seen: Vec<f64> = seen.take().into_iter().skip(1).collect();
        let by_second: Vec<f64> = seen.iter().zip(watched).map(|(n, ns)| n / ns * 1e9).collect();
        let more = watched.iter().zip(&alone).zip(&seen);
        let costs: Vec<f64> = more.map(|((with, without), n)| (with - without) / n).collect();
        let waits = Waits {
            by_second: median(&by_second).ok_or("no block")?,
            cost_ns: median(&costs).ok_or("no block")?,
            own_share: self.own_share(host)?,
        };
        Ok((
            times
                .into_iter()
                .zip(ways)
                .skip(1)
                .map(|(times, (_, name, how, goal))| Row {
                    benchmark: format!("{}: {name}", self.name),
                    how: how.to_owned(),
                    reference_tool: "not observed".to_owned(),
                    ours: times.samples,
                    theirs: alone.clone(),
                    text: |ns| pairs::milliseconds(Some(ns)),
                    goal,
                })
                .collect(),
            waits,
        ))
    }

    /// The programs' own time as a share of the CPU time of the load.
    fn own_share(&self, host: &LiveHost) -> Result<f64, Failure> {
        let mut shares = Vec::new();
        for _ in 0..TIMED {
            let open = Watch::Sched.open(host, self.threads)?;
            let before = taken_ns(host, self.counted)?;
            let own = own_time::of(host, &*self.work)?;
            let taken = taken_ns(host, self.counted)?.saturating_sub(before);
            open.close(host)?;
            shares.push(own as f64 / taken as f64);
        }
        Ok(median(&shares).ok_or("no run")?)
    }
}

/// A guest that runs programs.
struct Guest {
    agent: Agent,
    vm: RunningVm,
    threads: Vec<(TaskId, Role)>,
    vcpus: Vec<(TaskId, Role)>,
    _scratch: Scratch,
}

impl Guest {
    fn boot() -> Result<Self, Failure> {
        let scratch = Scratch::on_disk()?;
        let mut vm = launch::start_stopped(
            &argv::parse(&guest::command(&scratch, VCPUS)?),
            &guest::quiet(),
        )?;
        vm.cont()?;
        let socket = guest::agent_socket(&scratch);
        let mut agent = Agent::connect(&socket, PATIENCE_NS, &SystemClock)?;
        agent.bring_cpus_online((PATIENCE_NS, &|| true))?;
        let threads = vm.found.tasks();
        let is_vcpu = |role: &Role| role.is_vcpu();
        let vcpus = threads.iter().filter(|(_, role)| is_vcpu(role)).cloned().collect();
        Ok(Self { agent, vm, threads, vcpus, _scratch: scratch })
    }

    fn work(&self, program: &str) -> Result<(), Failure> {
        let run = Parallel::new(program, VCPUS, Size::Small).instrument();
        let output = self.agent.run(&run.argv(), PATIENCE_NS)?;
        if output.success() {
            Ok(())
        } else {
            Err(format!("{program} in the guest: {}", output.stderr_text()).into())
        }
    }
}

/// A round of all players.
fn play(players: &[Player], orders: (u32, u32)) -> Result<(), Failure> {
    for player in players {
        player.orders.send(orders)?;
    }
    for player in players {
        player.done.recv()?;
    }
    Ok(())
}

/// A thread that passes on each byte.
struct Player {
    task: TaskId,
    orders: Sender<(u32, u32)>,
    done: Receiver<()>,
    _thread: JoinHandle<()>,
}

#[derive(Clone, Copy)]
enum Watch {
    Nothing,
    Sched,
    Records,
    Counters,
    Both,
}

struct Open {
    sched: Option<sched_latency::Watching>,
    counters: Option<counters::Counting>,
}

impl Watch {
    fn open(self, host: &LiveHost, threads: &[(TaskId, Role)]) -> Result<Open, Failure> {
        let clock = &SystemClock;
        let sched = match self {
            Watch::Sched | Watch::Both => Some(sched_latency::start(host, clock, threads)?),
            Watch::Records => Some(sched_latency::start_at_records(host, clock, threads)?),
            Watch::Nothing | Watch::Counters => None,
        };
        let counters = match self {
            Watch::Counters | Watch::Both => {
                Some(counters::start(host, clock, threads, &Quantity::ALL)?)
            }
            Watch::Nothing | Watch::Sched | Watch::Records => None,
        };
        Ok(Open { sched, counters })
    }
}

impl Open {
    /// Returns the number of observed waits, if it observed them.
    fn close(self, host: &LiveHost) -> Result<u64, Failure> {
        let mut waits = 0;
        if let Some(sched) = self.sched {
            let seen = sched.stop(host, &SystemClock)?;
            waits = seen.roles.iter().map(|role| role.count).sum();
        }
        if let Some(counters) = self.counters {
            counters.stop(host, &SystemClock)?;
        }
        Ok(waits)
    }
}

/// The method of observing the scheduler here; without BPF there is nothing to measure.
fn level(host: &LiveHost, threads: &[(TaskId, Role)]) -> Result<String, Failure> {
    let found = sched_latency::start(host, &SystemClock, threads)?.stop(host, &SystemClock)?;
    match found.level {
        sched_latency::Level::Tracepoints => Ok("every wait seen by BPF".to_owned()),
        sched_latency::Level::Schedstat { why } => Err(format!("no BPF here: {why}").into()),
    }
}

/// Each pair is pinned to a CPU: a byte between CPUs costs up to four times as much, so a pair that
/// migrates would dominate the result.
fn players(host: &LiveHost) -> Result<Vec<Player>, Failure> {
    let own: Vec<PuId> = host.affinity(process::own_tid())?.iter().collect();
    let mut players = Vec::new();
    for pu in own.into_iter().cycle().take(PAIRS) {
        let (to_first, from_second) = std::io::pipe()?;
        let (to_second, from_first) = std::io::pipe()?;
        let pair = [(to_first, from_first, true), (to_second, from_second, false)];
        for (input, output, serves) in pair {
            let player = player(host, input, output, serves)?;
            LiveHost::new()?.set_affinity(player.task.tid, &CpuSet::single(pu))?;
            players.push(player);
        }
    }
    Ok(players)
}

fn player(
    host: &LiveHost,
    mut input: PipeReader,
    mut output: PipeWriter,
    serves: bool,
) -> Result<Player, Failure> {
    let (orders, ordered) = mpsc::channel::<(u32, u32)>();
    let (finished, done) = mpsc::channel();
    let (report, reported) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        // If the receiver is gone, the benchmark has ended.
        if report.send(process::own_tid()).is_err() {
            return;
        }
        while let Ok((steps, bytes)) = ordered.recv() {
            let mut byte = [1];
            for pass in 0..bytes {
                let opens = serves && pass == 0;
                if !opens && input.read_exact(&mut byte).is_err() {
                    return;
                }
                work(steps);
                let last = serves && pass + 1 == bytes;
                let written = output.write_all(&byte);
                if written.is_err() || (last && input.read_exact(&mut byte).is_err()) {
                    return;
                }
            }
            if finished.send(()).is_err() {
                return;
            }
        }
    });
    let tid: Tid = reported.recv()?;
    let stat = proc_stat::of(host, tid)?.ok_or("a thread of the benchmark has ended")?;
    Ok(Player { task: stat.task(), orders, done, _thread: thread })
}

/// About one nanosecond for each step.
fn work(steps: u32) {
    let mut value = 1_u64;
    for step in 0..steps {
        value = std::hint::black_box(
            value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(u64::from(step)),
        );
    }
}

/// CPU time of the threads so far.
fn taken_ns(host: &LiveHost, threads: &[(TaskId, Role)]) -> Result<u64, Failure> {
    let mut sum = 0;
    for (task, _) in threads {
        let path = paths::task_schedstat(task.tid, task.tid);
        let text = host.read_text(&path)?;
        sum += schedstat::parse(&text).map_err(|error| error.at(&path))?.run_ns;
    }
    Ok(sum)
}
