//! Gaps of a set of threads: when each did not run although it could have, and what was on its CPU.
//!
//! The BPF program is `bpf/gaps.bpf.c`. It takes the arguments of events, so that other BPF programs
//! on the same CPU do not hide events from it: it needs BTF, `CAP_BPF` and `CAP_PERFMON`. Each gap
//! above the bound is a record; shorter ones are counted. It ends with this process.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::fd::OwnedFd;

use aya::maps::{Array, HashMap, MapData, MapError, PerCpuArray, RingBuf};
use aya::programs::tp_btf::BtfTracePointLink;
use aya::programs::{BtfTracePoint, RawTracePoint};
use aya::sys::{Stats, enable_stats};
use aya::{Btf, Ebpf, EbpfLoader};
use pinfold_model::{PuId, Tid};

use crate::bpf::{Named, name_of, online_pu, program_sum};
use crate::cgroup_ids::cpu_hierarchy;
use crate::exit_names::userspace_exit_name;
use crate::kvm_exits::reason_places;
use crate::mountinfo::Version;
use crate::raw::{GAP_BUCKETS, GapThread, Probe};
use crate::{Clock as _, Host, HostError, SystemClock, Tracefs, paths, proc_stat};

static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/gaps.bpf.o");
const PROGRAM: Named = Named("the BPF program gaps");

/// Threads that may be added later, beyond those that are known at the start.
const LATER: u32 = 1024;
/// Size of a slice in a record.
const SLICE: usize = 56;
/// Pages of a CPU that are kept: some 6,000 slices.
const PAGES: usize = 32;
/// Offsets in a record: `struct gap` of the BPF program.
const EARLIER_AT: usize = 96;
const NOW_AT: usize = EARLIER_AT + SLICE;
const SLICES_AT: usize = NOW_AT + SLICE;
/// Size of a record, and of `struct cpu`, which begins with one.
const RECORD: usize = SLICES_AT + 256 * SLICE;
const CPU: usize = RECORD + 336;

/// The function of the scheduler's tick, since Linux 6.8 and before.
const TICKS: [&str; 2] = ["tick_nohz_handler", "tick_sched_timer"];

/// What was on a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Occupant {
    /// A task.
    Task(OtherTask),
    /// No task; the index of the idle state, if it was seen.
    Idle(Option<u64>),
    /// An interrupt of a device, by number.
    Interrupt(u64),
    /// An interrupt of the processor itself, by name.
    Vector(&'static str),
    /// A softirq, by name.
    Softirq(&'static str),
    /// A function that ran inside one of the above; `None` where the kernel hides addresses.
    Function(FunctionKind, Option<String>),
}

/// What called a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FunctionKind {
    /// A tasklet.
    Tasklet,
    /// A timer in the softirq of timers.
    Timer,
    /// A high-resolution timer.
    Hrtimer,
    /// A work item of a kernel worker.
    Work,
}

/// A task that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherTask {
    /// Its thread ID.
    pub tid: Tid,
    /// Its process.
    pub process: Tid,
    /// Its name.
    pub name: String,
    /// `SCHED_*` of `include/uapi/linux/sched.h`.
    pub policy: u32,
    /// The kernel's priority: below 100 for real-time tasks, of which 99 − n is priority n.
    pub priority: u32,
    /// ID of its cgroup, as [`crate::CgroupPaths`] takes it; 0 if it is unknown.
    pub cgroup_id: u64,
}

/// A time for which something was on a CPU; slices overlap as they were nested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GapSlice {
    /// Begin (`CLOCK_MONOTONIC`, ns).
    pub from_ns: u64,
    /// End.
    pub until_ns: u64,
    /// What was on it.
    pub occupant: Occupant,
}

/// The kind of a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GapKind {
    /// Runnable, without a CPU; preempted if it had been running.
    Waiting {
        /// It had been running.
        is_preempted: bool,
    },
    /// Stopped by a signal, a debugger or a freezer.
    Stopped,
    /// In uninterruptible sleep.
    Blocked,
    /// Interrupts and softirqs ran on top of it.
    Interrupted,
    /// The tick came too late, and no event explains why.
    Unseen,
    /// A vCPU that was out of the guest, on a CPU.
    Exit,
    /// A vCPU that slept after an exit to user space, until another thread woke it.
    Awaiting,
}

/// A thread to observe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedThread {
    /// The thread.
    pub tid: Tid,
    /// Number of the caller's for what it belongs to; threads that it creates inherit it.
    pub owner: u32,
    /// New processes of it are observed too, not only its threads.
    pub follows_processes: bool,
}

/// The task that woke a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakerTask {
    /// Its thread ID.
    pub tid: Tid,
    /// Its process.
    pub process: Tid,
    /// Its name.
    pub name: String,
}

/// One gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawGap {
    /// The thread.
    pub tid: Tid,
    /// Its process; 0 if it is unknown.
    pub process: Tid,
    /// Begin (`CLOCK_MONOTONIC`, ns).
    pub from_ns: u64,
    /// End.
    pub until_ns: u64,
    /// When it became runnable.
    pub woken_ns: Option<u64>,
    /// Since when it was on the queue of the CPU on which it then ran.
    pub arrived_ns: u64,
    /// That CPU.
    pub cpu: PuId,
    /// Its kind.
    pub kind: GapKind,
    /// True if its group had used up a quota when it left the CPU.
    pub is_throttled: bool,
    /// Migrations.
    pub moves: u32,
    /// Which task woke it.
    pub waker: Option<WakerTask>,
    /// Name of the exit to user space before it, of a vCPU under KVM.
    pub exit: Option<String>,
    /// The reason of the exit that KVM handled, as in [`crate::ExitKey`].
    pub kernel_exit: Option<u64>,
    /// Time that the hypervisor took from the CPU, of [`GapKind::Unseen`]; 0 if it does not report it.
    pub steal_ns: u64,
    /// [`TracedThread::owner`].
    pub owner: u32,
    /// True if it had not ended when the observation did.
    pub is_open: bool,
    /// What was on the CPU, clipped to the gap, in order of the end.
    pub slices: Vec<GapSlice>,
}

/// Gaps of a thread that are shorter than the bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShortGaps {
    /// The thread.
    pub tid: Tid,
    /// Its process; 0 if it is unknown.
    pub process: Tid,
    /// [`TracedThread::owner`].
    pub owner: u32,
    /// True if it has exited.
    pub has_ended: bool,
    /// True if it was not switched, woken or moved during the observation.
    pub is_unseen: bool,
    /// Their number.
    pub count: u64,
    /// Their sum (ns).
    pub sum_ns: u64,
    /// Number by ⌊log₂ ns⌋.
    pub buckets: Vec<u64>,
}

/// What is known at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GapTotals {
    /// Each thread.
    pub threads: Vec<ShortGaps>,
    /// Gaps that have not ended.
    pub open: Vec<RawGap>,
    /// What is on each CPU since its last switch; a CPU that had none is missing.
    pub running: BTreeMap<PuId, GapSlice>,
    /// Gaps whose record did not fit.
    pub lost: u64,
    /// Pages of slices that did not fit: parts of long gaps are not explained.
    pub lost_pages: u64,
    /// Threads that did not fit.
    pub unwatched: u64,
    /// Events for which the programs were not called.
    pub missed: u64,
    /// Calls of the programs on all CPUs, and the time of these; 0 if the kernel does not count.
    pub calls: u64,
    /// See `calls`.
    pub run_ns: u64,
    /// Events that this kernel does not have.
    pub absent: Vec<&'static str>,
    /// True if the kernel hides the addresses of its functions.
    pub hides_addresses: bool,
}

/// An observation in progress.
pub struct GapTracer {
    program: Ebpf,
    links: Vec<BtfTracePointLink>,
    threads: HashMap<MapData, u32, GapThread>,
    cpus: PerCpuArray<MapData, [u8; CPU]>,
    lost: Array<MapData, u64>,
    records: RingBuf<MapData>,
    /// Slices of each CPU that records may no longer have.
    pages: BTreeMap<u32, VecDeque<Vec<u8>>>,
    symbols: KernelSymbols,
    absent: Vec<&'static str>,
    over_ns: u64,
    _exit_records: Option<Probe>,
    _stats: Option<OwnedFd>,
}

impl fmt::Debug for GapTracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GapTracer").field("over_ns", &self.over_ns).finish_non_exhaustive()
    }
}

/// Without these there is no observation, in the order of attaching.
const NEEDED: [(&str, &str); 7] = [
    ("at_fork", "sched_process_fork"),
    ("at_exit", "sched_process_exit"),
    ("at_move", "sched_migrate_task"),
    ("at_waking", "sched_waking"),
    ("at_new", "sched_wakeup_new"),
    ("at_wakeup", "sched_wakeup"),
    ("at_switch", "sched_switch"),
];

/// Entries before exits would leave exits without an entry: each pair is attached exit first.
const OPTIONAL: [&str; 26] = [
    "irq_handler_exit",
    "irq_handler_entry",
    "softirq_exit",
    "softirq_entry",
    "tasklet_exit",
    "tasklet_entry",
    "timer_expire_exit",
    "timer_expire_entry",
    "hrtimer_expire_exit",
    "hrtimer_expire_entry",
    "workqueue_execute_end",
    "workqueue_execute_start",
    "local_timer_exit",
    "local_timer_entry",
    "reschedule_exit",
    "reschedule_entry",
    "call_function_exit",
    "call_function_entry",
    "call_function_single_exit",
    "call_function_single_entry",
    "irq_work_exit",
    "irq_work_entry",
    "thermal_apic_exit",
    "thermal_apic_entry",
    "x86_platform_ipi_exit",
    "x86_platform_ipi_entry",
];
/// Events of KVM, which are absent without it: entries last, as an entry ends what an exit began.
const KVM: [(&str, &str); 5] = [
    ("at_fpu", "kvm_fpu"),
    ("at_vm_entry", "kvm_entry"),
    ("at_halted", "kvm_vcpu_wakeup"),
    ("at_user", "kvm_userspace_exit"),
    ("at_vm_exit", "kvm_exit"),
];
/// Arm's interrupts between processors.
const ARM: [&str; 2] = ["ipi_exit", "ipi_entry"];

const VECTORS: [&str; 8] = [
    "local timer",
    "reschedule IPI",
    "function call IPI",
    "function call IPI",
    "irq work",
    "thermal",
    "platform IPI",
    "IPI",
];
const SOFTIRQS: [&str; 10] =
    ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];

impl GapTracer {
    /// Starts to observe these threads and the threads that they will create.
    ///
    /// # Errors
    /// [`HostError::File`]: `EPERM` without permission, or the kernel lacks BTF or a tracepoint.
    pub fn open(
        host: &dyn Host,
        observed: &[TracedThread],
        over_ns: u64,
    ) -> Result<Self, HostError> {
        let symbols = KernelSymbols::read(host);
        let types = Btf::from_sys_fs().map_err(|error| PROGRAM.refuse("describe", &error))?;
        let count = u32::try_from(observed.len()).unwrap_or(u32::MAX);
        let described = host.read(&paths::btf_vmlinux()).unwrap_or_default();
        let mut constants = Constants {
            over_ns,
            tick: TICKS.iter().find_map(|name| symbols.address(name)).unwrap_or(0),
            has_throttling: 1,
            has_steal: u32::from(describes(&described, "prev_steal_time")),
            hierarchy: hierarchy(host, &described),
            reason: exit_record(),
        };
        let mut program = match load(&types, &constants, count) {
            Ok(program) => program,
            // Kernels without quotas do not have their counter.
            Err(_) => {
                constants.has_throttling = 0;
                load(&types, &constants, count)?
            }
        };
        let mut threads: HashMap<MapData, u32, GapThread> = PROGRAM.map(&mut program, "threads")?;
        for thread in observed {
            let set = threads.insert(thread.tid.0, GapThread::from(thread), 0);
            set.map_err(|error| PROGRAM.refuse("set", &error))?;
        }
        let cpus = PROGRAM.map(&mut program, "cpus")?;
        let lost = PROGRAM.map(&mut program, "lost")?;
        let records = PROGRAM.map(&mut program, "records")?;
        // Where it is refused, the cost is not reported.
        let stats = enable_stats(Stats::RunTime).ok();
        let mut tracer = Self {
            program,
            links: Vec::new(),
            threads,
            cpus,
            lost,
            records,
            pages: BTreeMap::new(),
            symbols,
            absent: Vec::new(),
            over_ns,
            _exit_records: None,
            _stats: stats,
        };
        tracer.attach_optional(&types);
        tracer.attach_kvm();
        if let Some(record) = constants.reason {
            // Without it exits have no reason.
            let cpu = online_pu(host)?;
            let attached = PROGRAM.attach(&mut tracer.program, "at_exit_record", record.id, cpu);
            tracer._exit_records = attached.ok();
        }
        for (part, event) in NEEDED {
            let link = PROGRAM.attach_typed(&mut tracer.program, part, event, &types)?;
            tracer.links.push(link);
        }
        Ok(tracer)
    }

    fn attach_optional(&mut self, types: &Btf) {
        let is_arm = cfg!(target_arch = "aarch64");
        for event in OPTIONAL.into_iter().chain(ARM) {
            let is_others = ARM.contains(&event) != is_arm && is_of_one_machine(event);
            match PROGRAM.attach_typed(&mut self.program, event, event, types) {
                Ok(link) => self.links.push(link),
                Err(_) if is_others => {}
                Err(_) => self.absent.push(event),
            }
        }
        if PROGRAM
            .attach_typed(&mut self.program, "at_idle", "cpu_idle", types)
            .map(|l| self.links.push(l))
            .is_err()
        {
            self.absent.push("cpu_idle");
        }
    }

    /// KVM may be a module, whose types are not those of the kernel: these take plain arguments,
    /// and stay attached by the program object.
    fn attach_kvm(&mut self) {
        for (part, event) in KVM {
            let Some(program) = self.program.program_mut(part) else { continue };
            let raw: Result<&mut RawTracePoint, _> = program.try_into();
            // Without KVM there are no exits.
            let (Ok(_) | Err(_)) =
                raw.and_then(|raw| raw.load().and_then(|()| raw.attach(event).map(|_| ())));
        }
    }

    /// Adds a thread.
    ///
    /// # Errors
    /// [`HostError::File`] if the map cannot be written.
    pub fn add(&mut self, thread: &TracedThread) -> Result<(), HostError> {
        match self.threads.insert(thread.tid.0, GapThread::from(thread), 1) {
            Ok(()) => Ok(()),
            // The BPF program has already added it.
            Err(MapError::SyscallError(error))
                if error.io_error.kind() == std::io::ErrorKind::AlreadyExists =>
            {
                Ok(())
            }
            Err(error) => Err(PROGRAM.refuse("set", &error)),
        }
    }

    /// The gaps since the last call.
    pub fn take(&mut self) -> Vec<RawGap> {
        let mut gaps = Vec::new();
        while let Some(record) = self.records.next() {
            let (Some(cpu), Some(kind)) = (int(&record, 36), int(&record, 40)) else { continue };
            let pages = self.pages.entry(cpu).or_default();
            if kind == PAGE {
                if pages.len() == PAGES {
                    pages.pop_front();
                }
                pages.extend(record.get(SLICES_AT..).map(<[u8]>::to_vec));
            } else {
                gaps.extend(parse(&record, pages, &self.symbols));
            }
        }
        gaps
    }

    /// Ends the observation; the last gaps are those of [`GapTotals::open`] and of a last call of
    /// [`GapTracer::take`] before.
    ///
    /// # Errors
    /// [`HostError::File`] if a map, or what the kernel reports about the programs, cannot be read.
    pub fn close(mut self, host: &dyn Host) -> Result<(Vec<RawGap>, GapTotals), HostError> {
        let now_ns = SystemClock.now_ns();
        let mut totals = GapTotals {
            missed: program_sum(host, &self.program, "recursion_misses:")?,
            calls: program_sum(host, &self.program, "run_cnt:")?,
            run_ns: program_sum(host, &self.program, "run_time_ns:")?,
            ..GapTotals::default()
        };
        // Entries before exits, as an exit without an entry does no harm; the last first.
        while self.links.pop().is_some() {}
        let last = self.take();
        totals.lost = PROGRAM.number(&self.lost, 0)?;
        totals.unwatched = PROGRAM.number(&self.lost, 1)?;
        totals.lost_pages = PROGRAM.number(&self.lost, 2)?;
        totals.hides_addresses = self.symbols.names.is_empty();
        let cpus = self.cpus.get(&0, 0).map_err(|error| PROGRAM.refuse("read", &error))?;
        for (cpu, state) in (0_u32..).zip(cpus.iter()) {
            let running = slice(&running(state, now_ns), 0, &self.symbols);
            // All zero: it was not switched.
            let running = running.filter(|slice| slice.from_ns > 0);
            totals.running.extend(running.map(|slice| (PuId(cpu), slice)));
        }
        let none = VecDeque::new();
        for (tid, mut thread) in PROGRAM.entries(&self.threads)? {
            if thread.since_ns > 0 && now_ns.saturating_sub(thread.since_ns) >= self.over_ns {
                if thread.state == UNKNOWN && thread.moves == 0 {
                    // It was woken where it slept.
                    let stat = proc_stat::read(host, Tid(tid))?;
                    thread.cpu = stat.map_or(thread.cpu, |stat| stat.processor);
                }
                let index = usize::try_from(thread.cpu).unwrap_or(usize::MAX);
                let state = cpus.get(index).unwrap_or(&[0; CPU]);
                let pages = self.pages.get(&thread.cpu).unwrap_or(&none);
                let gap = parse(&open_record(tid, &thread, state, now_ns), pages, &self.symbols);
                totals.open.extend(gap.map(|gap| RawGap { is_open: true, ..gap }));
            }
            totals.threads.push(ShortGaps {
                tid: Tid(tid),
                process: Tid(thread.process),
                owner: thread.owner,
                has_ended: thread.state == ENDED,
                is_unseen: thread.state == UNKNOWN && thread.since_ns == 0 && thread.moves == 0,
                count: thread.count,
                sum_ns: thread.sum_ns,
                buckets: thread.buckets.to_vec(),
            });
        }
        totals.threads.sort_by_key(|thread| thread.tid);
        totals.absent = self.absent;
        Ok((last, totals))
    }
}

/// What the loader sets in the program.
struct Constants {
    over_ns: u64,
    tick: u64,
    has_throttling: u32,
    has_steal: u32,
    hierarchy: u32,
    reason: Option<ExitRecord>,
}

/// Where the record of `kvm_exit` has its reason.
struct ExitRecord {
    id: u64,
    places: BTreeMap<&'static str, u32>,
}

/// `None` without KVM, or without tracefs.
fn exit_record() -> Option<ExitRecord> {
    let format = Tracefs::open().ok()?.format("kvm/kvm_exit").ok()?;
    let places = reason_places("kvm/kvm_exit", &format).ok()?;
    Some(ExitRecord { id: format.id, places })
}

impl From<&TracedThread> for GapThread {
    fn from(thread: &TracedThread) -> Self {
        let follows = u32::from(thread.follows_processes);
        Self { owner: thread.owner, follows, ..Self::default() }
    }
}

/// True if the types of the kernel have a member of this name: names in BTF end with a zero byte.
fn describes(types: &[u8], member: &str) -> bool {
    let name = [b"\0", member.as_bytes(), b"\0"].concat();
    types.windows(name.len()).any(|bytes| bytes == name)
}

/// `hierarchy` of the BPF program.
fn hierarchy(host: &dyn Host, types: &[u8]) -> u32 {
    let version = cpu_hierarchy(host).ok().flatten().map(|mount| mount.version);
    match version {
        Some(Version::V1) if describes(types, "sched_task_group") => 1,
        Some(Version::V2) if describes(types, "dfl_cgrp") => 2,
        Some(Version::V1 | Version::V2) | None => 0,
    }
}

/// Loads the object, with room for so many threads, and the program of switches: the verifier
/// decides about the counter of quotas, which only that one reads.
fn load(types: &Btf, constants: &Constants, threads: u32) -> Result<Ebpf, HostError> {
    let mut loader = EbpfLoader::new();
    loader.btf(Some(types));
    loader.map_max_entries("threads", threads.saturating_add(LATER));
    loader.override_global("over_ns", &constants.over_ns, true);
    loader.override_global("tick_function", &constants.tick, true);
    loader.override_global("has_throttling", &constants.has_throttling, true);
    loader.override_global("has_steal", &constants.has_steal, true);
    loader.override_global("hierarchy", &constants.hierarchy, true);
    for (name, place) in constants.reason.iter().flat_map(|record| &record.places) {
        loader.override_global(name, place, true);
    }
    let mut program = loader.load(OBJECT).map_err(|error| PROGRAM.refuse("load", &error))?;
    let part = program.program_mut("at_switch").ok_or_else(|| PROGRAM.missing("at_switch"))?;
    let part: &mut BtfTracePoint =
        part.try_into().map_err(|error| PROGRAM.refuse("find", &error))?;
    part.load("sched_switch", types).map_err(|error| PROGRAM.refuse("load", &error))?;
    Ok(program)
}

/// `UNKNOWN`, `ENDED` and `PAGE` of the BPF program.
const UNKNOWN: u32 = 0;
const ENDED: u32 = 3;
const PAGE: u32 = 4;

fn is_of_one_machine(event: &str) -> bool {
    !["irq_h", "softirq", "tasklet", "timer_", "hrtimer_", "workqueue"]
        .iter()
        .any(|common| event.starts_with(common))
}

/// The slice of what is on a CPU, as if it ended now.
fn running(state: &[u8; CPU], now_ns: u64) -> [u8; SLICE] {
    let mut slice = [0; SLICE];
    slice.copy_from_slice(&state[NOW_AT..SLICES_AT]);
    slice[8..16].copy_from_slice(&now_ns.to_ne_bytes());
    slice
}

/// The record of a gap that lasts on, as the BPF program would write it if the gap ended now:
/// `begin_gap` there. What is on its CPU is the last slice.
fn open_record(tid: u32, thread: &GapThread, state: &[u8; CPU], now_ns: u64) -> Vec<u8> {
    let running = running(state, now_ns);
    let mut record = Vec::with_capacity(RECORD + SLICE);
    for long in [thread.since_ns, now_ns, thread.woken_ns, thread.arrived_ns] {
        record.extend(long.to_ne_bytes());
    }
    let GapThread { marks, prev_state, moves, waker, process, .. } = *thread;
    for int in [tid, thread.cpu, 0, marks, prev_state, moves, waker, process] {
        record.extend(int.to_ne_bytes());
    }
    record.extend(thread.waker_name);
    record.extend(thread.exit.to_ne_bytes());
    record.extend([thread.waker_process, thread.owner].map(u32::to_ne_bytes).as_flattened());
    record.extend(thread.earlier.map(u64::to_ne_bytes).as_flattened());
    record.extend(running);
    record.extend(&state[SLICES_AT..RECORD]);
    if long(&running, 0).is_some_and(|since| since > 0) {
        record.extend(running);
    }
    record
}

fn kind_of(kind: u32, marks: u32, state: u32) -> GapKind {
    match kind {
        1 => GapKind::Interrupted,
        2 => GapKind::Unseen,
        3 => GapKind::Exit,
        _ if marks & 4 != 0 => GapKind::Awaiting,
        // `__TASK_STOPPED`, `__TASK_TRACED`, `TASK_FROZEN`.
        _ if state & 0x800c != 0 => GapKind::Stopped,
        // `TASK_UNINTERRUPTIBLE`.
        _ if state & 2 != 0 => GapKind::Blocked,
        _ => GapKind::Waiting { is_preempted: marks & 1 != 0 },
    }
}

/// The slices of a record, and if it does not reach back to the begin of the gap, those of the
/// pages before it.
fn slices(
    record: &[u8],
    pages: &VecDeque<Vec<u8>>,
    from_ns: u64,
    symbols: &KernelSymbols,
) -> Vec<GapSlice> {
    let own = record.get(SLICES_AT..).unwrap_or_default();
    let ends = own.chunks_exact(SLICE).filter_map(|bytes| long(bytes, 8)).filter(|end| *end > 0);
    let oldest = ends.min().unwrap_or(0);
    let earlier = pages.iter().filter(|_| oldest > from_ns).map(Vec::as_slice);
    let all = earlier.chain([own]).flat_map(|bytes| bytes.chunks_exact(SLICE));
    let of_gap = all.filter(|bytes| long(bytes, 8).is_some_and(|end| end > from_ns));
    let mut found: Vec<GapSlice> = of_gap.filter_map(|bytes| slice(bytes, 0, symbols)).collect();
    // Pages overlap.
    found.sort_by_key(|slice| (slice.until_ns, slice.from_ns));
    found.dedup();
    found
}

fn parse(record: &[u8], pages: &VecDeque<Vec<u8>>, symbols: &KernelSymbols) -> Option<RawGap> {
    let (from_ns, until_ns) = (long(record, 0)?, long(record, 8)?);
    let (woken_ns, arrived_ns) = (long(record, 16)?, long(record, 24)?);
    let (marks, waker, exit) = (int(record, 44)?, int(record, 56)?, long(record, 80)?);
    let kind = kind_of(int(record, 40)?, marks, int(record, 48)?);
    // Of a late tick it is the steal time.
    let (exit, steal_ns) = if kind == GapKind::Unseen { (0, exit) } else { (exit, 0) };
    // Of an exit it is the reason.
    let (woken_ns, kernel_exit) =
        if kind == GapKind::Exit { (0, woken_ns.checked_sub(1)) } else { (woken_ns, None) };
    let mut slices = slices(record, pages, from_ns, symbols);
    for slice in &mut slices {
        // The queue of this CPU was not its own before.
        if matches!(slice.occupant, Occupant::Task(_) | Occupant::Idle(_)) {
            slice.from_ns = slice.from_ns.max(arrived_ns.min(until_ns));
        }
    }
    slices.extend(slice(record, EARLIER_AT, symbols));
    for slice in &mut slices {
        slice.from_ns = slice.from_ns.max(from_ns);
        slice.until_ns = slice.until_ns.min(until_ns);
    }
    slices.retain(|slice| slice.from_ns < slice.until_ns);
    slices.sort_by_key(|slice| (slice.until_ns, std::cmp::Reverse(slice.from_ns)));
    Some(RawGap {
        tid: Tid(int(record, 32)?),
        process: Tid(int(record, 60)?),
        from_ns,
        until_ns,
        woken_ns: (woken_ns > 0).then_some(woken_ns),
        arrived_ns,
        cpu: PuId(int(record, 36)?),
        kind,
        is_throttled: marks & 2 != 0,
        moves: int(record, 52)?,
        waker: match waker {
            0 => None,
            tid => Some(WakerTask {
                tid: Tid(tid),
                process: Tid(int(record, 88)?),
                name: name_of(record.get(64..80)?.try_into().ok()?),
            }),
        },
        exit: (exit & 0xffff_ffff)
            .checked_sub(1)
            .map(|reason| userspace_exit_name(reason, exit >> 32)),
        kernel_exit,
        steal_ns,
        owner: int(record, 92)?,
        is_open: false,
        slices,
    })
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn int(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?).into())
}

fn label_of(names: &[&'static str], id: u64) -> &'static str {
    let index = usize::try_from(id).unwrap_or(usize::MAX);
    names.get(index).copied().unwrap_or("unknown")
}

fn slice(record: &[u8], at: usize, symbols: &KernelSymbols) -> Option<GapSlice> {
    let bytes = record.get(at..at + SLICE)?;
    let (from_ns, until_ns, id) = (long(bytes, 0)?, long(bytes, 8)?, long(bytes, 16)?);
    let tid = int(bytes, 28)?;
    let occupant = match int(bytes, 24)? {
        0 if tid == 0 => Occupant::Idle(id.checked_sub(1)),
        0 => Occupant::Task(OtherTask {
            tid: Tid(tid),
            process: Tid(int(bytes, 32)?),
            name: name_of(bytes.get(40..56)?.try_into().ok()?),
            policy: half(bytes, 36)?,
            priority: half(bytes, 38)?,
            cgroup_id: id,
        }),
        1 => Occupant::Interrupt(id),
        2 => Occupant::Vector(label_of(&VECTORS, id)),
        3 => Occupant::Softirq(label_of(&SOFTIRQS, id)),
        4 => Occupant::Function(FunctionKind::Tasklet, symbols.name(id)),
        5 => Occupant::Function(FunctionKind::Timer, symbols.name(id)),
        6 => Occupant::Function(FunctionKind::Hrtimer, symbols.name(id)),
        _ => Occupant::Function(FunctionKind::Work, symbols.name(id)),
    };
    (until_ns > from_ns).then_some(GapSlice { from_ns, until_ns, occupant })
}

/// The functions of the kernel by address.
#[derive(Debug, Default)]
struct KernelSymbols {
    names: BTreeMap<u64, String>,
}

impl KernelSymbols {
    /// Empty if the kernel hides them: all addresses are 0 then.
    fn read(host: &dyn Host) -> Self {
        let text = host.read_text(&paths::kernel_symbols()).unwrap_or_default();
        Self { names: text.lines().filter_map(Self::line).collect() }
    }

    /// `ffffffff810a1b20 t tick_nohz_handler`, `ffffffffc0a01000 t work [module]`.
    fn line(line: &str) -> Option<(u64, String)> {
        let mut words = line.split_ascii_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok().filter(|address| *address > 0)?;
        let is_code = words.next()?.eq_ignore_ascii_case("t");
        let name = words.next()?;
        let module = words.next().map_or_else(String::new, |module| format!(" {module}"));
        is_code.then(|| (address, format!("{name}{module}")))
    }

    fn address(&self, name: &str) -> Option<u64> {
        self.names.iter().find(|(_, own)| *own == name).map(|(address, _)| *address)
    }

    fn name(&self, address: u64) -> Option<String> {
        self.names.range(..=address).next_back().map(|(_, name)| name.clone())
    }
}

/// Number of buckets of [`ShortGaps::buckets`].
pub const BUCKETS: usize = GAP_BUCKETS;

#[cfg(test)]
mod tests;
