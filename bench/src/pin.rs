//! `pin`: finding and pinning all threads of a guest with 32 vCPUs, and of one with 128.
//!
//! The guest is a QEMU under TCG that is paused before its first instruction, so that only QEMU's
//! main loop and the contender use the machine. Every contender connects to the monitor, queries
//! the threads and sets the same mask for each. The competitors write no journal, check nothing
//! except the mask, and miss threads that are created later.

mod domain;
mod rival;

use pinfold_apply::{Journals, NewJournal, Target};
use pinfold_host::files::{self, StateDir};
use pinfold_host::{Clock as _, Host as _, HostMut as _, LiveHost, SystemClock, process};
use pinfold_model::{CpuSet, Plan, Request, Topology, VcpuCount};
use pinfold_plan::schema;
use pinfold_stats::median;
use pinfold_vm::launch::{self, RunningVm};
use pinfold_vm::qemu::Qmp;
use pinfold_vm::threads;

use self::rival::Note;
use crate::arguments::{Arguments, Failure};
use crate::page::{Figures, Table};
use crate::pairs::{self, Contender, milliseconds};
use crate::scratch::Scratch;
use crate::{guest, origin};

/// Numbers of vCPUs, each with its number of rounds.
const SIZES: [(u32, u32); 2] = [(32, 100), (128, 100)];
const QMP_TIMEOUT_NS: u64 = 5_000_000_000;
const TOOL_TIMEOUT_NS: u64 = 30_000_000_000;
/// QEMU must notice the end of a connection before it accepts the next.
const PAUSE_NS: u64 = 5_000_000;

/// The guest and its plan.
struct Bench {
    host: LiveHost,
    vm: RunningVm,
    socket: String,
    plan: Plan,
    all: CpuSet,
    script: String,
}

/// Measures all contenders.
pub fn run(arguments: &Arguments) -> Result<Figures, Failure> {
    let host = LiveHost::new()?;
    let topology = pinfold_topology::discover(&host)?;
    let machine = origin::of_host(&host, &topology)?;
    let mut figures = Figures {
        name: "pin".to_owned(),
        title: "finding and pinning all threads of a guest with 32 and with 128 vCPUs".to_owned(),
        origin: machine,
        tables: Vec::new(),
        notes: NOTES.map(str::to_owned).to_vec(),
    };
    for (vcpus, rounds) in SIZES {
        let rounds = arguments.rounds.unwrap_or(rounds);
        let (origin, tables) = size(&topology, vcpus, rounds, arguments.seed)?;
        if figures.tables.is_empty() {
            figures.origin.push_str(&origin);
        }
        figures.tables.extend(tables);
    }
    Ok(figures)
}

const NOTES: [&str; 6] = [
    "All times begin before the connection to the monitor and end when the last mask is read back.",
    "The goal is at most 1.3 times the bare calls that write as much: a journal in memory is \
     compared with the plain calls, a journal on disk with those with one fsync.",
    "An undo must not affect another thread that has the same ID by then, so it needs the start \
     times of the threads, which the kernel reports one by one: Pinfold reads them while QEMU \
     prepares its replies. The third contender is bare calls that record them too.",
    "Pinfold's times include the journal with the undo of every step, written and synced before \
     the first mask is set. The bare calls record nothing, except that “one fsync” writes the old \
     masks to an existing file.",
    "The shell script asks the monitor through Python, lists the threads and calls taskset for each; it reads nothing back.",
    "`virsh` gets one invocation with a `vcpupin` for each vCPU; the domain belongs to a libvirtd \
     that the benchmark started beforehand. `virsh` neither searches for threads nor reads the \
     masks back, and does not pin the emulator's threads.",
];

/// All contenders on one guest: its notes and its tables.
fn size(
    topology: &Topology,
    vcpus: u32,
    rounds: u32,
    seed: u64,
) -> Result<(String, Vec<Table>), Failure> {
    let (memory, disk) = (Scratch::in_memory()?, Scratch::on_disk()?);
    let host = LiveHost::new()?;
    let request = Request::vm("bench", VcpuCount::Exactly(vcpus));
    let plan = pinfold_plan::plan("compact", topology, &request)?;
    let socket = memory.file("qmp.sock");
    let vm = start(&socket, vcpus)?;
    let accelerator = origin::of_accelerator(vm.found.accelerator);
    let file_system = origin::file_system(&host, disk.path())?;
    let all = topology.online().intersection(&topology.allowed);
    let script = memory.file("pin.sh");
    let bench = Bench { host, vm, socket, plan, all, script };
    bench.write_script()?;
    let masks: Vec<CpuSet> =
        bench.plan.single_vnode()?.vcpus().map(|one| one.pus.clone()).collect();
    let domain = domain::Domain::start(&masks, &bench.all);
    let mut parts = Vec::new();
    let note = StateDir::open(&disk.file("note"))?;
    note.create_new("masks", b"")?;
    let times = {
        let mut contenders = vec![
            Contender::new("bare system calls and QMP", || bench.bare(Note::Nothing)),
            Contender::new("the same and one fsync", || bench.bare(Note::Masks(&note))),
            Contender::new("the same, one fsync and start times", || {
                bench.bare(Note::MasksOfTasks(&note))
            }),
            Contender::new("a taskset for each thread, and QMP", || bench.taskset()),
            Contender::new("a shell script with taskset", || bench.shell_script()),
            Contender::new("Pinfold, journal in memory", || {
                bench.pinfold(memory.path()).map(Parts::total)
            }),
            Contender::new("Pinfold, journal on disk", || {
                let found = bench.pinfold(disk.path())?;
                parts.push(found);
                Ok(found.total())
            }),
        ];
        if let Ok(domain) = &domain {
            contenders.push(Contender::new("virsh vcpupin for each vCPU", || domain.pin()));
        }
        pairs::rounds(&mut contenders, rounds, seed)?
    };
    let virsh = match domain {
        Ok(_) => String::new(),
        Err(why) => format!("; no virsh: {why}"),
    };
    let origin = format!(
        "; QEMU {} under {accelerator}, stopped; disk: {file_system}; Pinfold {}; seed {seed}{virsh}",
        bench.vm.version,
        env!("CARGO_PKG_VERSION")
    );
    let threads = bench.threads()?.len();
    let mut table = pairs::table(&times, &[0, 1, 2]);
    if let Some(first) = table.head.first_mut() {
        *first = format!("{vcpus} vCPUs, {threads} threads, {rounds} rounds");
    }
    Ok((origin, vec![table, parts_table(&parts)]))
}

/// The guest, paused, with a second monitor socket for the contenders.
fn start(socket: &str, vcpus: u32) -> Result<RunningVm, Failure> {
    let qemu = process::find_program("qemu-system-x86_64")
        .ok_or("qemu-system-x86_64 is not installed; apt-get install qemu-system-x86")?;
    let line = format!(
        "{qemu} -nodefaults -no-user-config -display none -M q35 -m 64 -accel tcg,thread=multi,tb-size=16 -smp {vcpus} -qmp unix:{socket},server=on,wait=off"
    );
    let argv: Vec<String> = line.split(' ').map(str::to_owned).collect();
    Ok(launch::start_stopped(&pinfold_qemu::parse(&argv), &guest::quiet())?)
}

/// The parts of Pinfold's time (ns).
#[derive(Clone, Copy)]
struct Parts {
    connect: f64,
    discover: f64,
    journal: f64,
    apply: f64,
}

impl Parts {
    fn total(self) -> f64 {
        self.connect + self.discover + self.journal + self.apply
    }
}

fn parts_table(parts: &[Parts]) -> Table {
    Table {
        head: ["part of “Pinfold, journal on disk”", "median"].map(str::to_owned).to_vec(),
        rows: vec![
            vec!["connect to the monitor".to_owned(), part_median(|parts| parts.connect, parts)],
            vec!["find the threads".to_owned(), part_median(|parts| parts.discover, parts)],
            vec!["begin the journal".to_owned(), part_median(|parts| parts.journal, parts)],
            vec![
                "plan, journal, set, read back, check again".to_owned(),
                part_median(|parts| parts.apply, parts),
            ],
        ],
    }
}

fn part_median(part: fn(&Parts) -> f64, parts: &[Parts]) -> String {
    milliseconds(median(&parts.iter().skip(1).map(part).collect::<Vec<_>>()))
}

impl Bench {
    /// The work of `pinfold apply` after planning, and then its undo.
    fn pinfold(&self, directory: &str) -> Result<Parts, Failure> {
        let clock = SystemClock;
        let state = StateDir::open(&format!("{directory}/state"))?;
        for name in StateDir::open(&state.path_of("journal"))?.list()? {
            // Each apply is the first on this machine.
            files::remove(&state.path_of(&format!("journal/{name}")))?;
        }
        let begin = clock.now_ns();
        let mut qmp = Qmp::connect(&self.socket, QMP_TIMEOUT_NS, clock)?;
        let connected = clock.now_ns();
        let found = threads::find(&self.host, &mut qmp)?;
        found.require_own_threads()?;
        let discovered = clock.now_ns();
        let target =
            Target { known_threads: found.roll.clone(), ..Target::new(found.pid, found.tasks()) };
        let text = schema::to_json_line(&self.plan);
        let journals = Journals::open(&state, &clock)?;
        let new = NewJournal {
            vm_name: &self.plan.single_vnode()?.name,
            plan: &text,
            target: &target,
            supervised: false,
        };
        let mut journal = journals.begin(&self.host, &new)?;
        let journalled = clock.now_ns();
        let mut observer = pinfold_apply::no_observer();
        pinfold_apply::apply(&self.host, &self.plan, &target, &mut journal, &mut observer)?;
        let end = clock.now_ns();
        self.check()?;
        let undone = pinfold_apply::undo(&self.host, &mut journal);
        if !undone.is_complete() {
            return Err(format!("the undo left something: {undone:?}").into());
        }
        drop(qmp);
        clock.sleep_ns(PAUSE_NS);
        fn part(from: u64, to: u64) -> f64 {
            to.saturating_sub(from) as f64
        }
        Ok(Parts {
            connect: part(begin, connected),
            discover: part(connected, discovered),
            journal: part(discovered, journalled),
            apply: part(journalled, end),
        })
    }

    /// Fails unless every thread has the mask of its role: each contender must do the whole job.
    fn check(&self) -> Result<(), Failure> {
        for thread in &self.vm.found.threads {
            let wanted = self.plan.single_vnode()?.thread(&thread.role).map(|planned| &planned.pus);
            let found = self.host.affinity(thread.task.tid)?;
            if wanted.is_some_and(|wanted| *wanted != found) {
                return Err(format!("{} has the mask {found}", thread.task).into());
            }
        }
        Ok(())
    }

    /// Allows all threads to run on all CPUs again, after a competitor.
    fn reset(&self) -> Result<(), Failure> {
        for tid in self.threads()? {
            self.host.set_affinity(tid, &self.all)?;
        }
        SystemClock.sleep_ns(PAUSE_NS);
        Ok(())
    }
}
