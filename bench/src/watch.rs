//! `watch`: the CPU time of `pinfold watch` while ten guests are paused, and how soon it places a
//! new thread.
//!
//! Ten QEMUs with 16 vCPUs each are paused before their first instruction, so that only the watcher
//! is measured. Then one of them gets the iothreads that its plan names, one after another. A loop
//! that samples every 0.5 ms sees the creation of each thread and its placement.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use pinfold_apply::{Journals, NewJournal, Target};
use pinfold_host::files::StateDir;
use pinfold_host::process::{self, Child, Spawn, Stdio};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, paths, schedstat};
use pinfold_model::{CpuSet, Plan, Request, Role, ThreadPlan, Tid, VcpuCount};
use pinfold_plan::schema;
use pinfold_stats::random::Pcg32;
use pinfold_stats::{median, quantile};
use pinfold_vm::launch::{self, RunningVm};
use pinfold_vm::qemu::{Qmp, QmpTransport as _};
use serde_json::json;

use crate::arguments::{Arguments, Failure};
use crate::page::{Figures, Table};
use crate::pairs::milliseconds;
use crate::scratch::Scratch;
use crate::{guest, origin, pairs};

const GUESTS: u32 = 10;
const VCPUS: u32 = 16;
const SECOND_NS: u64 = 1_000_000_000;
const LOOK_NS: u64 = 500_000;
const PATIENCE_NS: u64 = 60 * SECOND_NS;
/// Longest pause between two new threads; each pause is random, so that they are spread over the
/// watcher's period.
const PAUSE_NS: u32 = 400_000_000;

/// How long a run is.
struct Size {
    threads: u32,
    /// Time for the watcher to find and check all guests.
    settle_ns: u64,
    measure_ns: u64,
    scrapes: u32,
}

const FULL: Size =
    Size { threads: 50, settle_ns: 15 * SECOND_NS, measure_ns: 60 * SECOND_NS, scrapes: 20 };
const QUICK: Size = Size { threads: 1, settle_ns: SECOND_NS, measure_ns: SECOND_NS, scrapes: 2 };

/// Measures both.
pub fn run(arguments: &Arguments) -> Result<Figures, Failure> {
    let (host, scratch) = (LiveHost::new()?, Scratch::in_memory()?);
    let topology = pinfold_topology::discover(&host)?;
    let size = if arguments.quick { QUICK } else { FULL };
    let count = arguments.rounds.unwrap_or(size.threads);
    let plan = plan(&topology.online().intersection(&topology.allowed), &topology, count)?;
    let machine = origin::of_host(&host, &topology)?;
    let state = StateDir::open(&scratch.file("state"))?;
    let mut guests = Vec::new();
    for number in 0..GUESTS {
        let vm = start(number)?;
        place(&host, &state, &vm, &plan)?;
        guests.push(vm);
    }
    let program = pairs::program_beside(arguments)?;
    let mut watch = start_watch(&program, &state, &[])?;
    let share = share(&host, &watch, &size)?;
    let guest = guests.first_mut().ok_or("no guest")?;
    let mut times = Vec::new();
    let mut random = Pcg32::new(arguments.seed, 2);
    for number in 0..count {
        SystemClock.sleep_ns(u64::from(PAUSE_NS / 4 + random.draw_below(PAUSE_NS)));
        times.push(time_placement(&host, guest, &plan, &iothread(number))?);
    }
    watch.kill()?;
    let socket = scratch.file("metrics");
    let mut watch = start_watch(&program, &state, &["--metrics", &socket])?;
    let scrapes = scrapes(&host, &watch, &socket, &size)?;
    watch.kill()?;
    Ok(Figures {
        name: "watch".to_owned(),
        title: format!("watching {GUESTS} guests with {VCPUS} vCPUs"),
        origin: format!(
            "{machine}; QEMU {} under {}, stopped; Pinfold {}; {count} new threads",
            guest.version, origin::of_accelerator(guest.found.accelerator), env!("CARGO_PKG_VERSION")
        ),
        tables: vec![table(share, &times, &scrapes)],
        notes: vec![
            format!("The CPU time is that of the process over {} s without events.", size.measure_ns / SECOND_NS),
            format!("A scrape: CPU time of the process for an answer with `--metrics`, without `--gaps`, once a second, {} times.", size.scrapes),
            "From creation to placed: from the first sample that shows the thread to the first that shows its CPUs, one sample every half millisecond; the journal, in memory, is written between them.".to_owned(),
        ],
    })
}

fn start_watch(program: &str, state: &StateDir, more: &[&str]) -> Result<Child, Failure> {
    let words = [&["--state-dir", state.path(), "watch"], more].concat();
    let watch = Spawn::new(program).args(words).stdin(Stdio::Null).stdout(Stdio::Null);
    Ok(watch.stderr(Stdio::Null).die_with_parent(true).start()?)
}

fn run_ns(host: &LiveHost, watch: &Child) -> Result<u64, Failure> {
    let path = paths::task_schedstat(watch.pid(), watch.pid());
    Ok(schedstat::parse(&host.read_text(&path)?).map_err(|error| error.at(&path))?.run_ns)
}

/// CPU time of each scrape (ns).
fn scrapes(host: &LiveHost, watch: &Child, socket: &str, size: &Size) -> Result<Vec<f64>, Failure> {
    let began = SystemClock.now_ns();
    while count_vcpus(socket).is_none_or(|vcpus| vcpus != GUESTS * VCPUS) {
        if SystemClock.now_ns().saturating_sub(began) > PATIENCE_NS {
            return Err(format!("the page has {:?} vCPUs", count_vcpus(socket)).into());
        }
        SystemClock.sleep_ns(SECOND_NS / 10);
    }
    SystemClock.sleep_ns(size.settle_ns);
    let mut times = Vec::new();
    for _ in 0..size.scrapes {
        SystemClock.sleep_ns(SECOND_NS);
        let before = run_ns(host, watch)?;
        count_vcpus(socket).ok_or("the page is not there any more")?;
        times.push(run_ns(host, watch)?.saturating_sub(before) as f64);
    }
    Ok(times)
}

/// The vCPUs on the page of metrics; `None` until there is one.
fn count_vcpus(socket: &str) -> Option<u32> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
    let mut page = String::new();
    stream.read_to_string(&mut page).ok()?;
    u32::try_from(page.matches("\npinfold_vcpu_ready_seconds_total{").count()).ok()
}

fn table(share: f64, times: &[f64], scrapes: &[f64]) -> Table {
    Table {
        head: ["what", "found", "goal"].map(str::to_owned).to_vec(),
        rows: vec![
            vec![
                "CPU time in an hour".to_owned(),
                format!("{:.2} s", share * 3600.0),
                "1 s".to_owned(),
            ],
            vec![
                "from creation to placed: median".to_owned(),
                milliseconds(median(times)),
                "100 ms".to_owned(),
            ],
            vec![
                "from creation to placed: 95 %".to_owned(),
                milliseconds(quantile(times, 0.95)),
                "100 ms".to_owned(),
            ],
            vec![
                "from creation to placed: longest".to_owned(),
                milliseconds(quantile(times, 1.0)),
                "100 ms".to_owned(),
            ],
            vec![
                format!("CPU time of a scrape of {} vCPUs: median", GUESTS * VCPUS),
                milliseconds(median(scrapes)),
                String::new(),
            ],
        ],
    }
}

/// All threads on the first CPU, except future iothreads, on the last one.
fn plan(all: &CpuSet, topology: &pinfold_model::Topology, count: u32) -> Result<Plan, Failure> {
    let first: CpuSet = all.iter().take(1).collect();
    let last: CpuSet = all.iter().skip(1).last().into_iter().collect();
    if last.is_empty() {
        return Err("with one CPU a new thread is always in its place".into());
    }
    let request = Request::vm("bench", VcpuCount::Exactly(VCPUS));
    let mut plan = pinfold_plan::plan("compact", topology, &request)?;
    let vnode = plan.vnodes.first_mut().ok_or("no vnode")?;
    for thread in &mut vnode.threads {
        thread.pus.clone_from(&first);
    }
    vnode.threads.extend((0..count).map(|number| ThreadPlan {
        role: Role::Iothread(iothread(number)),
        pus: last.clone(),
        policy: None,
        reason: "apart from its maker".to_owned(),
    }));
    Ok(plan)
}

fn iothread(number: u32) -> String {
    format!("late{number}")
}

fn start(number: u32) -> Result<RunningVm, Failure> {
    let qemu = process::find_program("qemu-system-x86_64")
        .ok_or("qemu-system-x86_64 is not installed; apt-get install qemu-system-x86")?;
    let line = format!(
        "{qemu} -nodefaults -no-user-config -display none -M q35 -m 64 -accel tcg,thread=multi,tb-size=16 -smp {VCPUS} -name guest=bench{number},debug-threads=on"
    );
    let argv: Vec<String> = line.split(' ').map(str::to_owned).collect();
    Ok(launch::start_stopped(&pinfold_qemu::parse(&argv), &guest::quiet())?)
}

fn place(host: &LiveHost, state: &StateDir, vm: &RunningVm, plan: &Plan) -> Result<(), Failure> {
    let target = Target::new(vm.pid(), vm.found.tasks());
    let (clock, text) = (SystemClock, schema::to_json_line(plan));
    let new = NewJournal { vm_name: "bench", plan: &text, target: &target, supervised: false };
    let mut journal = Journals::open(state, &clock)?.begin(host, &new)?;
    let mut observer = pinfold_apply::no_observer();
    pinfold_apply::apply(host, plan, &target, &mut journal, &mut observer)?;
    Ok(())
}

/// The share of a CPU that the watcher takes while nothing happens.
fn share(host: &LiveHost, watch: &Child, size: &Size) -> Result<f64, Failure> {
    SystemClock.sleep_ns(size.settle_ns);
    let (begin, before) = (SystemClock.now_ns(), run_ns(host, watch)?);
    SystemClock.sleep_ns(size.measure_ns);
    let (end, after) = (SystemClock.now_ns(), run_ns(host, watch)?);
    Ok(after.saturating_sub(before) as f64 / end.saturating_sub(begin) as f64)
}

fn qmp(vm: &mut RunningVm) -> Result<&mut Qmp, Failure> {
    Ok(Qmp::downcast_monitor(&mut *vm.monitor).ok_or("the machine has no QMP connection")?)
}

/// Nanoseconds from the creation of an iothread to its placement.
fn time_placement(
    host: &LiveHost,
    vm: &mut RunningVm,
    plan: &Plan,
    name: &str,
) -> Result<f64, Failure> {
    let role = Role::Iothread(name.to_owned());
    let pus = &plan.single_vnode()?.thread(&role).ok_or("no iothread in the plan")?.pus;
    let folder = paths::task_dir(vm.pid());
    let before = host.list(&folder)?;
    qmp(vm)?.execute("object-add", Some(json!({"qom-type": "iothread", "id": name})))?;
    let created_ns = SystemClock.now_ns();
    let names = host.list(&folder)?;
    let new = names.iter().find(|name| !before.contains(name)).ok_or("no new thread")?;
    let tid = Tid(new.parse()?);
    while host.affinity(tid)? != *pus {
        if SystemClock.now_ns().saturating_sub(created_ns) > PATIENCE_NS {
            return Err("the new thread is not placed within a minute".into());
        }
        SystemClock.sleep_ns(LOOK_NS);
    }
    Ok(SystemClock.now_ns().saturating_sub(created_ns) as f64)
}
