//! `observe`: what watching the scheduler and counting cost those who are watched.
//!
//! Four pairs of threads pass a byte to and fro through pipes and compute in between: each byte
//! is a wake-up and two switches. What is compared is the CPU time that a fixed number of passes
//! takes the eight threads: what the programs in the kernel do is in it, and what other tenants
//! of the machine do is not. Under three loads: as often as pipes can, as a guest that works
//! and talks does, and as one that mostly works.

use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use pinfold_host::{Host, LiveHost, SystemClock, paths, proc_stat, process, schedstat};
use pinfold_model::{Role, TaskId, Tid};
use pinfold_probe::counters::{self, Quantity};
use pinfold_probe::sched_latency;

use crate::page::Figures;
use crate::pairs::{self, Contender};
use crate::{Arguments, Failure, origin};

const PAIRS: usize = 4;
const ROUNDS: u32 = 20;
/// Name, steps of computing between two bytes, bytes that each pair passes in a round.
const LOADS: [(&str, u32, u32); 3] = [
    ("as often as pipes can", 0, 8_000),
    ("a wake-up every 100 µs of work", 100_000, 2_000),
    ("a wake-up every 1 ms of work", 1_000_000, 200),
];

/// A thread that passes on each byte that comes.
struct Player {
    task: TaskId,
    orders: Sender<(u32, u32)>,
    done: Receiver<()>,
    _thread: JoinHandle<()>,
}

/// Measures all loads.
pub fn run(arguments: &Arguments) -> Result<Figures, Failure> {
    let host = LiveHost::new()?;
    let topology = pinfold_topology::discover(&host)?;
    let rounds = arguments.rounds.unwrap_or(ROUNDS);
    let players = players(&host)?;
    let threads: Vec<(TaskId, Role)> = players.iter().map(|one| (one.task, Role::Task)).collect();
    let level = level(&host, &threads)?;
    let mut tables = Vec::new();
    for (name, steps, bytes) in LOADS {
        let round = |watch: Watch| -> Result<f64, Failure> {
            let open = watch.open(&host, &threads)?;
            let before = taken_ns(&host, &threads)?;
            for player in &players {
                player.orders.send((steps, bytes))?;
            }
            for player in &players {
                player.done.recv()?;
            }
            let taken = taken_ns(&host, &threads)?.saturating_sub(before);
            open.close(&host)?;
            Ok(taken as f64)
        };
        let mut contenders = [
            Contender::new(&format!("{name}: left alone"), || round(Watch::Nothing)),
            Contender::new(&format!("{name}: once more"), || round(Watch::Nothing)),
            Contender::new(&format!("{name}: scheduler watched"), || round(Watch::Sched)),
            Contender::new(&format!("{name}: counted"), || round(Watch::Counters)),
            Contender::new(&format!("{name}: both"), || round(Watch::Both)),
        ];
        let times = pairs::rounds(&mut contenders, rounds, arguments.seed)?;
        tables.push(pairs::table(&times, &[0]));
    }
    Ok(Figures {
        name: "observe".to_owned(),
        title: format!("what observing {} threads costs them", 2 * PAIRS),
        origin: format!(
            "{}; Pinfold {}; {level}; {rounds} rounds",
            origin::of_host(&host, &topology)?,
            env!("CARGO_PKG_VERSION")
        ),
        tables,
        notes: vec![
            "CPU time of the eight threads for the same number of passes; the goal is a ratio of at most 1.01 for those that work.".to_owned(),
            "“Once more” is the same as “left alone”: what lies inside its interval is noise.".to_owned(),
        ],
    })
}

#[derive(Clone, Copy)]
enum Watch {
    Nothing,
    Sched,
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
        let (sched, counters) = match self {
            Watch::Nothing => (false, false),
            Watch::Sched => (true, false),
            Watch::Counters => (false, true),
            Watch::Both => (true, true),
        };
        let all = &Quantity::ALL;
        Ok(Open {
            sched: sched.then(|| sched_latency::start(host, clock, threads)).transpose()?,
            counters: counters.then(|| counters::start(host, clock, threads, all)).transpose()?,
        })
    }
}

impl Open {
    fn close(self, host: &LiveHost) -> Result<(), Failure> {
        if let Some(sched) = self.sched {
            sched.stop(host, &SystemClock)?;
        }
        if let Some(counters) = self.counters {
            counters.stop(host, &SystemClock)?;
        }
        Ok(())
    }
}

/// How the scheduler is watched here; without BPF there is nothing to measure.
fn level(host: &LiveHost, threads: &[(TaskId, Role)]) -> Result<String, Failure> {
    let found = sched_latency::start(host, &SystemClock, threads)?.stop(host, &SystemClock)?;
    match found.level {
        sched_latency::Level::Tracepoints => Ok("every wait seen by BPF".to_owned()),
        sched_latency::Level::Schedstat { why } => Err(format!("no BPF here: {why}").into()),
    }
}

fn players(host: &LiveHost) -> Result<Vec<Player>, Failure> {
    let mut players = Vec::new();
    for _ in 0..PAIRS {
        let (to_first, from_second) = std::io::pipe()?;
        let (to_second, from_first) = std::io::pipe()?;
        players.push(player(host, to_first, from_first, true)?);
        players.push(player(host, to_second, from_second, false)?);
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
    let (tell, told) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        // Whoever hangs up at one of the ends has ended the benchmark.
        if tell.send(process::own_tid()).is_err() {
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
    let tid: Tid = told.recv()?;
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
