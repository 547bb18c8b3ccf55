//! `pinfold measure sched|counters|locks`: a machine or a process group seen from outside.
//!
//! Nothing runs in the workload: its threads are watched for a while. Which instrument sees what,
//! and what each loses where it lacks rights: `docs/scheduling.md`.

mod text;

use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, paths, proc_stat, process, user};
use pinfold_model::{Figure, Role, TaskId, Tid};
use pinfold_probe::counters::{self, Quantity};
use pinfold_probe::{locks, sched_latency, surroundings};
use pinfold_study::measured::{MeasuredBlock, to_json};
use serde_json::{Value, json};

use super::Bench;
use crate::cli::measure::MeasureArgs;
use crate::common::host_failure;
use crate::failure::{Exit, Failure};
use crate::output::{data, say};
use crate::target::Vm;

/// How often it is looked whether the workload is still there.
const LOOK_NS: u64 = 100_000_000;

/// An instrument that looks from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instrument {
    /// How long threads wait for a PU.
    Sched,
    /// What they do in numbers.
    Counters,
    /// How long they stand at locks.
    Locks,
}

impl Instrument {
    /// All of them, with what each measures.
    pub const ALL: [(Instrument, &'static str, &'static str); 3] = [
        (Instrument::Sched, "sched", "waits of a machine's threads for a PU, and who ran instead"),
        (
            Instrument::Counters,
            "counters",
            "switches, migrations, faults, cycles and misses by role",
        ),
        (Instrument::Locks, "locks", "time of a machine's threads in futex, by lock and call site"),
    ];

    /// The instrument of this name.
    pub fn find(name: &str) -> Option<Instrument> {
        Self::ALL.iter().find(|(_, own, _)| *own == name).map(|(instrument, _, _)| *instrument)
    }
}

/// What an instrument found, in all forms.
struct Found {
    figures: Vec<Figure>,
    text: String,
    more: Value,
}

/// Measures and shows.
pub fn measure(instrument: Instrument, arguments: &MeasureArgs) -> Result<(), Failure> {
    refuse_others(arguments)?;
    let bench = Bench::new(arguments.seed)?;
    let (name, threads) = threads(&bench.host, arguments)?;
    let seconds = arguments.how.seconds;
    if !(0.01..=86_400.0).contains(&seconds) {
        return Err(Failure::new(Exit::Input, format!("--seconds {seconds}: is out of range"))
            .with_hint("from 0.01 to 86400"));
    }
    say(&format!("watching {} thread(s) of {name} for {seconds} s …", threads.len()));
    let duration = std::time::Duration::from_secs_f64(seconds);
    let duration_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let online = bench.topology.online();
    let moment = || surroundings::now(&bench.host, &online).map_err(|error| host_failure(&error));
    let before = moment()?;
    let found = match instrument {
        Instrument::Sched => sched(&bench.host, &threads, duration_ns),
        Instrument::Counters => counted(&bench.host, &threads, duration_ns),
        Instrument::Locks => locked(&bench.host, (&threads, arguments.sites), duration_ns),
    }?;
    let block = MeasuredBlock { figures: found.figures, surroundings: moment()?.since(&before) };
    let (_, own, what) = Instrument::ALL[instrument as usize];
    let tool = format!("pinfold {}", env!("CARGO_PKG_VERSION"));
    let measurement = bench.measurement(own, (name, tool), vec![block], None)?;
    let saved = to_json(&measurement)
        .map_err(|error| Failure::from_error(Exit::Host, &error, error.hint()))?;
    if let Some(path) = &arguments.save {
        user::write_atomic(path, saved.as_bytes()).map_err(|error| host_failure(&error))?;
        say(&format!("saved to {path}; `pinfold compare` takes two of them"));
    }
    if arguments.json {
        let saved: Value = serde_json::from_str(&saved)
            .map_err(|error| Failure::new(Exit::Host, error.to_string()))?;
        let all = json!({
            "format": "pinfold-observed/1", "what": what, "found": found.more, "measurement": saved,
        });
        data(&all.to_string());
    } else {
        data(&format!("{own}: {what}\n{}\n\n{}", measurement.place, found.text));
    }
    Ok(())
}

/// Options of the probes that run in the workload.
fn refuse_others(arguments: &MeasureArgs) -> Result<(), Failure> {
    let how = &arguments.how;
    let given = [
        (how.cpus.is_some(), "--cpus"),
        (how.node.is_some(), "--node"),
        (how.policy.is_some(), "--policy"),
        (how.period.is_some(), "--period"),
        (how.file.is_some(), "--file"),
        (!how.more.is_empty(), "INSTRUMENT-OPTIONS"),
        (arguments.plan.is_some(), "--plan"),
        (arguments.vnode.is_some(), "--vnode"),
        (arguments.guest.is_some(), "--guest"),
        (arguments.blocks.is_some(), "--blocks"),
        (arguments.against.is_some(), "--against"),
    ];
    let name = arguments.probe.as_deref().unwrap_or("");
    match given.iter().find(|(is_given, _)| *is_given) {
        None => Ok(()),
        Some((_, option)) => Err(Failure::new(
            Exit::Input,
            format!("{option} is of no use to {name}, which looks at threads from outside"),
        )
        .with_hint("name a machine with --qmp, --libvirt or --pid, or processes with --process")),
    }
}

/// Who is watched, in words and by role.
fn threads(
    host: &LiveHost,
    arguments: &MeasureArgs,
) -> Result<(String, Vec<(TaskId, Role)>), Failure> {
    if arguments.processes.is_empty() {
        let vm = Vm::find(host, &arguments.machine)?;
        return Ok((format!("machine {} ({})", vm.name, vm.asked), vm.found.tasks()));
    }
    let mut threads = Vec::new();
    for pid in &arguments.processes {
        let names =
            host.list(&paths::task_dir(Tid(*pid))).map_err(|error| match error.is_gone() {
                true => {
                    Failure::new(Exit::Input, format!("--process {pid}: there is no such process"))
                }
                false => host_failure(&error),
            })?;
        for tid in names.iter().filter_map(|name| name.parse().ok().map(Tid)) {
            let stat = proc_stat::of(host, tid).map_err(|error| host_failure(&error))?;
            threads.extend(stat.map(|stat| (stat.task(), Role::Task)));
        }
    }
    let pids: Vec<String> = arguments.processes.iter().map(u32::to_string).collect();
    Ok((format!("process {}", pids.join(", ")), threads))
}

/// Waits until the time is over or nobody is left.
fn watch(host: &LiveHost, threads: &[(TaskId, Role)], duration_ns: u64) -> Result<(), Failure> {
    let end = SystemClock.now_ns().saturating_add(duration_ns);
    loop {
        let left = end.saturating_sub(SystemClock.now_ns());
        if left == 0 {
            return Ok(());
        }
        SystemClock.sleep_ns(left.min(LOOK_NS));
        let mut alive = false;
        for (task, _) in threads {
            alive |= process::task_alive(host, *task).map_err(|error| host_failure(&error))?;
            if alive {
                break;
            }
        }
        if !alive {
            say("warning: all of the threads have ended meanwhile");
            return Ok(());
        }
    }
}

fn watch_failure(error: &sched_latency::WatchError) -> Failure {
    match error {
        sched_latency::WatchError::Host(error) => host_failure(error),
        sched_latency::WatchError::Nobody | sched_latency::WatchError::Gone { .. } => {
            Failure::new(Exit::Vm, error.to_string())
        }
    }
}

fn sched(host: &LiveHost, threads: &[(TaskId, Role)], duration_ns: u64) -> Result<Found, Failure> {
    let watching = sched_latency::start(host, &SystemClock, threads);
    let watching = watching.map_err(|error| watch_failure(&error))?;
    watch(host, threads, duration_ns)?;
    let found = watching.stop(host, &SystemClock).map_err(|error| host_failure(&error))?;
    let (level, why) = match &found.level {
        sched_latency::Level::Tracepoints => ("tracepoints", None),
        sched_latency::Level::Schedstat { why } => ("schedstat", Some(why)),
    };
    Ok(Found {
        figures: found.figures(),
        text: text::sched(&found),
        more: json!({ "level": level, "why": why, "lost": found.lost }),
    })
}

fn counted(
    host: &LiveHost,
    threads: &[(TaskId, Role)],
    duration_ns: u64,
) -> Result<Found, Failure> {
    let counting = counters::start(host, &SystemClock, threads, &Quantity::ALL);
    let counting = counting.map_err(|error| watch_failure(&error))?;
    watch(host, threads, duration_ns)?;
    let found = counting.stop(host, &SystemClock).map_err(|error| host_failure(&error))?;
    let absent: Vec<Value> = found
        .absent()
        .iter()
        .map(|(quantity, why, roles)| {
            let roles: Vec<String> = roles.iter().map(Role::to_string).collect();
            json!({ "quantity": quantity.name(), "because": why, "roles": roles })
        })
        .collect();
    Ok(Found {
        figures: found.figures(),
        text: text::counters(&found),
        more: json!({ "absent": absent, "restless": found.restless }),
    })
}

fn locked(
    host: &LiveHost,
    (threads, sites): (&[(TaskId, Role)], bool),
    duration_ns: u64,
) -> Result<Found, Failure> {
    let watching = locks::start(host, threads, sites).map_err(|error| match &error {
        locks::LocksError::Watch(error) => watch_failure(error),
        locks::LocksError::Unavailable { .. } => Failure::new(Exit::Host, error.to_string())
            .with_hint("it takes CAP_BPF and CAP_PERFMON, as root has them"),
    })?;
    watch(host, threads, duration_ns)?;
    let found = watching.stop(host).map_err(|error| host_failure(&error))?;
    let sites = found.sites.as_ref().map(|all| {
        let kept = all.frame_pointers.map(|verdict| verdict == locks::FramePointers::Kept);
        let sites: Vec<Value> = all
            .sites
            .iter()
            .map(|site| {
                json!({
                    "kind": locks::kind_name(site.kind),
                    "frames": site.frames,
                    "calls": site.spent.count,
                    "time_ns": site.spent.sum_ns,
                })
            })
            .collect();
        json!({ "frame_pointers": kept, "missing": all.missing, "sites": sites })
    });
    Ok(Found {
        figures: found.figures(),
        text: text::locks(&found),
        more: json!({ "lost": found.lost, "sites": sites }),
    })
}
