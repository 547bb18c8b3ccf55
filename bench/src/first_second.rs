//! `first-second`: where a guest runs before it is pinned, and in the following second.
//!
//! Pinfold starts QEMU paused, places every thread, and continues the guest. The competitor is the
//! usual script: start QEMU, wait for its monitor, query the threads, `taskset` each. The guest
//! boots a kernel, so that its vCPU is busy for the whole second.
//!
//! The data come from the kernel and QEMU: the vCPU's instruction pointer (`info registers`), its
//! thread's run time (`schedstat`), and the CPU on which it last ran, sampled every 2 ms.

mod rival;

use pinfold_apply::{Journals, NewJournal, Target};
use pinfold_host::files::StateDir;
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, paths, proc_stat, schedstat};
use pinfold_model::{Plan, Request, Role, Tid, VcpuCount};
use pinfold_plan::schema;
use pinfold_stats::random::Pcg32;
use pinfold_stats::{median, quantile};
use pinfold_vm::launch::{self, LaunchOptions};
use pinfold_vm::qemu::{Qmp, QmpTransport as _};
use pinfold_vm::{DiscoveredVm, threads};
use serde_json::json;

use crate::arguments::{Arguments, Failure};
use crate::page::{Figures, Table};
use crate::pairs::milliseconds;
use crate::scratch::Scratch;
use crate::{guest, origin};

const STARTS: u32 = 20;
const SECOND_NS: u64 = 1_000_000_000;
const LOOK_NS: u64 = 2_000_000;
/// Reset vector of x86: 16 bytes below 4 GiB, as offset in its code segment.
const RESET_VECTOR: u64 = 0xfff0;

struct Bench {
    host: LiveHost,
    argv: Vec<String>,
    plan: Plan,
    scratch: Scratch,
}

/// Result of one start.
#[derive(Default)]
struct StartResult {
    /// Run time of the vCPU thread when it was pinned (ns).
    ran_ns: f64,
    /// Its run time between pinning and continuing the guest (ns), if it was paused.
    stopped_ns: Option<f64>,
    /// True if the guest had left the reset vector when it was pinned.
    had_begun: bool,
    looks: u32,
    off: u32,
    /// Run delay in the following second (ns).
    delay_ns: f64,
    /// Version of QEMU.
    qemu: String,
}

/// Measures both.
pub fn run(arguments: &Arguments) -> Result<Figures, Failure> {
    let host = LiveHost::new()?;
    let topology = pinfold_topology::discover(&host)?;
    let plan =
        pinfold_plan::plan("low-latency", &topology, &Request::vm("bench", VcpuCount::Exactly(1)))?;
    let scratch = Scratch::in_memory()?;
    let argv = guest::command(&scratch, 1)?;
    let machine = origin::of_host(&host, &topology)?;
    let bench = Bench { host, argv, plan, scratch };
    let starts = arguments.rounds.unwrap_or(STARTS);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let mut random = Pcg32::new(arguments.seed, 1);
    for _ in 0..starts {
        let mut order = [true, false];
        random.shuffle(&mut order);
        for is_ours in order {
            if is_ours { ours.push(bench.pinfold()?) } else { theirs.push(bench.taskset()?) }
        }
    }
    Ok(Figures {
        name: "first-second".to_owned(),
        title: "where a guest runs before it is pinned, and in the second after".to_owned(),
        origin: format!(
            "{machine}; the demo guest with one vCPU under TCG, QEMU {}, strategy low-latency; Pinfold {}; {starts} starts of each in random order, seed {}",
            ours.first().map_or("of an unknown version", |seen: &StartResult| &seen.qemu),
            env!("CARGO_PKG_VERSION"), arguments.seed
        ),
        tables: vec![table(&[("Pinfold: stopped, placed, let go", &ours), ("started, then taskset for each thread", &theirs)])],
        notes: vec![
            "“Had begun” counts the starts whose vCPU had left the reset vector when it was \
             pinned; a vCPU thread that has not left it has run only QEMU's own code, which \
             creates the thread.".to_owned(),
            "A sample reads the CPU on which the vCPU's thread last ran, every 2 ms for a second: from `cont` on, or from the moment when the script knows the thread.".to_owned(),
        ],
    })
}

fn table(rows: &[(&str, &[StartResult])]) -> Table {
    let head = [
        "what",
        "had begun",
        "run time when pinned: median, most",
        "run time while pinned and stopped: most",
        "samples",
        "off the plan's CPUs",
        "run delay of the second: median, 95 %",
    ];
    Table {
        head: head.map(str::to_owned).to_vec(),
        rows: rows
            .iter()
            .map(|(name, seen)| {
                let (ran, delay) = (
                    seen.iter().map(|one| one.ran_ns).collect::<Vec<f64>>(),
                    seen.iter().map(|one| one.delay_ns).collect::<Vec<f64>>(),
                );
                let stopped: Vec<f64> = seen.iter().filter_map(|one| one.stopped_ns).collect();
                vec![
                    (*name).to_owned(),
                    format!(
                        "{} of {}",
                        seen.iter().filter(|one| one.had_begun).count(),
                        seen.len()
                    ),
                    format!(
                        "{}, {}",
                        milliseconds(median(&ran)),
                        milliseconds(quantile(&ran, 1.0))
                    ),
                    milliseconds(quantile(&stopped, 1.0)),
                    seen.iter().map(|one| one.looks).sum::<u32>().to_string(),
                    seen.iter().map(|one| one.off).sum::<u32>().to_string(),
                    format!(
                        "{}, {}",
                        milliseconds(median(&delay)),
                        milliseconds(quantile(&delay, 0.95))
                    ),
                ]
            })
            .collect(),
    }
}

impl Bench {
    /// The start as `pinfold run` does it.
    fn pinfold(&self) -> Result<StartResult, Failure> {
        let clock = SystemClock;
        let options = LaunchOptions { affinity: Some(self.plan.pus()), ..guest::quiet() };
        let mut vm = launch::start_stopped(&pinfold_qemu::parse(&self.argv), &options)?;
        let target = Target::new(vm.pid(), vm.found.tasks());
        let journals = Journals::open(&StateDir::open(&self.scratch.file("state"))?, &clock)?;
        let text = schema::to_json_line(&self.plan);
        let new = NewJournal { vm_name: "bench", plan: &text, target: &target, supervised: false };
        let mut journal = journals.begin(&self.host, &new)?;
        let mut observer = pinfold_apply::no_observer();
        pinfold_apply::apply(&self.host, &self.plan, &target, &mut journal, &mut observer)?;
        let vcpu = vcpu_of(&vm.found)?;
        let pinned = self.times(vm.pid(), vcpu)?;
        let had_begun = has_begun(
            Qmp::downcast_monitor(&mut *vm.monitor).ok_or("the machine has no QMP connection")?,
        )?;
        let stopped = self.times(vm.pid(), vcpu)?.run_ns.saturating_sub(pinned.run_ns) as f64;
        vm.cont()?;
        let mut seen = StartResult {
            ran_ns: pinned.run_ns as f64,
            stopped_ns: Some(stopped),
            had_begun,
            qemu: vm.version.to_string(),
            ..StartResult::default()
        };
        self.watch(vm.pid(), vcpu, clock.now_ns() + SECOND_NS, &mut seen)?;
        seen.delay_ns = self.times(vm.pid(), vcpu)?.delay_ns.saturating_sub(pinned.delay_ns) as f64;
        let undone = pinfold_apply::undo(&self.host, &mut journal);
        if !undone.is_complete() {
            return Err(format!("the undo left something: {undone:?}").into());
        }
        vm.quit(SECOND_NS)?;
        Ok(seen)
    }

    /// Samples the CPU of the vCPU until this time.
    fn watch(&self, pid: Tid, tid: Tid, until: u64, seen: &mut StartResult) -> Result<(), Failure> {
        while SystemClock.now_ns() < until {
            self.look(pid, tid, seen)?;
            SystemClock.sleep_ns(LOOK_NS);
        }
        Ok(())
    }

    fn look(&self, pid: Tid, tid: Tid, seen: &mut StartResult) -> Result<(), Failure> {
        let stat = proc_stat::parse(&self.host.read_text(&paths::task_stat(pid, tid))?)?;
        let planned =
            self.plan.single_vnode()?.thread(&Role::Vcpu(0)).ok_or("the plan has no vCPU")?;
        seen.looks += 1;
        let is_on = planned.pus.iter().any(|pu| pu.0 == stat.processor);
        seen.off += u32::from(!is_on);
        Ok(())
    }

    fn times(&self, pid: Tid, tid: Tid) -> Result<schedstat::SchedStat, Failure> {
        Ok(schedstat::parse(&self.host.read_text(&paths::task_schedstat(pid, tid))?)?)
    }
}

fn vcpu_of(found: &DiscoveredVm) -> Result<Tid, Failure> {
    let thread = found.threads.iter().find(|thread| thread.role == Role::Vcpu(0));
    Ok(thread.ok_or("the guest has no vCPU 0")?.task.tid)
}

/// True unless the vCPU's instruction pointer is at the reset vector.
fn has_begun(qmp: &mut Qmp) -> Result<bool, Failure> {
    let ask = json!({"command-line": "info registers"});
    let reply = qmp.execute("human-monitor-command", Some(ask))?;
    let text = reply.as_str().ok_or("`info registers` gave no text")?;
    let pointer = ["RIP=", "EIP="].iter().find_map(|name| text.split(name).nth(1));
    let digits = pointer.and_then(|rest| rest.split_ascii_whitespace().next());
    let digits = digits.ok_or("`info registers` shows no instruction pointer")?;
    Ok(u64::from_str_radix(digits, 16)? != RESET_VECTOR)
}
