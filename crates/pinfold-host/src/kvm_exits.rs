//! Exits of vCPU threads, paired and summed in the kernel by a BPF program.
//!
//! The program is `bpf/exits.bpf.c`; it is unloaded when this value is dropped or the process ends.
//! The offsets of the fields that it reads come from the kernel's event descriptions ([`Tracefs`]),
//! so it needs neither headers nor BTF, and KVM may be a module. Most programs are attached to raw
//! tracepoints, which pass the arguments without a record. The arguments are expected in the order
//! of the record's fields, which is checked. This is cheaper (measured on a busy machine: about 0.2
//! instead of 0.3 µs).

use std::collections::BTreeMap;
use std::{fmt, io};

use aya::maps::{Array, HashMap, MapData};
use aya::programs::RawTracePoint;
use aya::{Ebpf, EbpfLoader};
use pinfold_model::Tid;

use crate::bpf::{Named, missed_events, online_pu};
use crate::raw::{AddressKey, ExitThread, Key, Probe, Sums};
use crate::tracefs::{Field, Format};
use crate::{Host, HostError, Tracefs, paths};

/// The compiled program, for any machine with this byte order.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/exits.bpf.o");

/// Program name for errors.
const PROGRAM: Named = Named("the BPF program exits");
/// Bits of a key, as in the BPF program.
const IS_MMIO: u32 = 1;
const IS_IPI: u32 = 2;
/// State of a thread, as in the BPF program.
const IN_EXIT: u32 = 2;
/// Offset of `GICD_SGIR` from the distributor's base in a GICv2.
const SGIR: u64 = 0xf00;

/// The events that mark exits from and entries to a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitSource {
    /// `kvm_exit` and `kvm_entry`: every exit of the processor.
    Hardware,
    /// `kvm_userspace_exit` and `kvm_fpu`: only exits to the VMM (such as QEMU). Exits that KVM
    /// handles itself are part of the time between.
    Userspace,
}

impl ExitSource {
    fn hooks(self) -> [Hook; 2] {
        match self {
            ExitSource::Hardware => [
                require("leave", "kvm/kvm_exit", AttachKind::Reason),
                require("enter", "kvm/kvm_entry", AttachKind::Arguments(&[])),
            ],
            ExitSource::Userspace => [
                require(
                    "surface",
                    "kvm/kvm_userspace_exit",
                    AttachKind::Arguments(&["reason", "errno"]),
                ),
                require("dive", "kvm/kvm_fpu", AttachKind::Arguments(&["load"])),
            ],
        }
    }
}

/// What is counted. Each event that is left out makes every exit cheaper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitScope {
    /// The events that mark exits and entries.
    pub source: ExitSource,
    /// Whether accesses are counted by address: ports, device memory, registers.
    pub addresses: bool,
    /// Address of the distributor of an Arm guest with a GICv2.
    pub distributor: u64,
}

impl ExitScope {
    fn includes(&self, purpose: Purpose) -> bool {
        // Marks belong to an exit of the processor. An exit to the VMM begins after those events.
        let marks = self.source == ExitSource::Hardware;
        match purpose {
            Purpose::Time => true,
            Purpose::Addresses => self.addresses,
            Purpose::Marks => marks,
            Purpose::Both => self.addresses || marks,
        }
    }
}

/// Statistics of the durations of one kind of interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationStats {
    /// Number of intervals.
    pub count: u64,
    /// Sum (ns).
    pub sum_ns: u64,
    /// Shortest (ns); undefined if `count` is 0.
    pub shortest_ns: u64,
    /// Longest (ns).
    pub longest_ns: u64,
    /// Sum of squares (ns²).
    pub squares: u128,
}

impl From<Sums> for DurationStats {
    fn from(sums: Sums) -> Self {
        Self {
            count: sums.count,
            sum_ns: sums.sum,
            shortest_ns: sums.shortest,
            longest_ns: sums.longest,
            squares: (u128::from(sums.square_high) << 64) | u128::from(sums.square_low),
        }
    }
}

/// Key by which exits are distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExitKey {
    /// The reason in the event's encoding. x86: the reason, with the vendor (1 VMX, 2 SVM) in the
    /// upper half. Arm: the exception code, with the exception class (`esr_ec`) in the upper half.
    /// RISC-V: `scause`. Userspace exit: its number, with errno in the upper half.
    pub reason: u64,
    /// KVM handled it as an access to device memory (MMIO).
    pub is_mmio: bool,
    /// It sent an inter-processor interrupt (IPI).
    pub is_ipi: bool,
}

/// The address that an exit accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// An I/O port.
    Port(u64),
    /// Guest-physical address of device memory.
    Mmio(u64),
    /// Number of a model-specific register; on Arm Op0, Op1, CRn, CRm and Op2 of a system register,
    /// four bits each.
    Register(u64),
}

/// Statistics of one thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadExits {
    /// Intervals in the guest; with [`ExitSource::Userspace`] also in KVM.
    pub guest: DurationStats,
    /// Intervals off the CPU in which the thread slept.
    pub asleep: DurationStats,
    /// Intervals off the CPU in which the thread was preempted.
    pub preempted: DurationStats,
    /// Exits by key, without the time off the CPU.
    pub exits: BTreeMap<ExitKey, DurationStats>,
    /// Number of accesses by address; the flag is true for a write.
    pub addresses: BTreeMap<(Address, bool), u64>,
    /// Number of kernel events that were processed for this thread.
    pub events: u64,
    /// Number of exits or entries without their counterpart, which are in no other number.
    pub unpaired: u64,
    /// Number of exits that were lost because the table was full.
    pub no_room: u64,
    /// Number of accesses whose address was lost because the table was full.
    pub no_address: u64,
    /// True if the last exit had not ended yet; it is in no other number.
    pub is_outside: bool,
}

/// Counts the exits of threads. Dropping it unloads the program.
pub struct ExitCounter {
    program: Ebpf,
    _probes: Vec<Probe>,
    is_on: Array<MapData, u64>,
    threads: HashMap<MapData, u32, ExitThread>,
    exits: HashMap<MapData, Key, Sums>,
    addresses: HashMap<MapData, AddressKey, u64>,
    tids: Vec<Tid>,
    /// Missed events before counting started.
    missed_before: u64,
}

impl fmt::Debug for ExitCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExitCounter").field("tids", &self.tids).finish_non_exhaustive()
    }
}

/// A BPF program and its tracepoint.
#[derive(Clone, Copy)]
struct Hook {
    program: &'static str,
    event: &'static str,
    way: AttachKind,
    purpose: Purpose,
}

/// Which part of the result an event provides.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// The intervals themselves; without it there is no result.
    Time,
    /// Accessed addresses.
    Addresses,
    /// What distinguishes exits with the same reason: MMIO, IPI.
    Marks,
    /// Addresses and marks.
    Both,
}

/// How a program accesses the event's data.
#[derive(Clone, Copy)]
enum AttachKind {
    /// As arguments of a raw tracepoint. The fields must be the first ones, in this order; `_`
    /// matches any.
    Arguments(&'static [&'static str]),
    /// From the record; each constant of the program is the offset of a field.
    Record(&'static [(&'static str, &'static str)]),
    /// From the record, for the reason of an exit, whose fields depend on the architecture.
    Reason,
}

const fn require(program: &'static str, event: &'static str, way: AttachKind) -> Hook {
    Hook { program, event, way, purpose: Purpose::Time }
}

const fn hook(
    program: &'static str,
    event: &'static str,
    way: AttachKind,
    purpose: Purpose,
) -> Hook {
    Hook { program, event, way, purpose }
}

/// Hooks in addition to the two of the source.
const HOOKS: [Hook; 10] = [
    require(
        "switched",
        "sched/sched_switch",
        AttachKind::Record(&[("prev_state_at", "prev_state"), ("next_pid_at", "next_pid")]),
    ),
    hook("port", "kvm/kvm_pio", AttachKind::Arguments(&["rw", "port"]), Purpose::Addresses),
    hook("mmio", "kvm/kvm_mmio", AttachKind::Arguments(&["type", "_", "gpa"]), Purpose::Both),
    hook("bell", "kvm/kvm_fast_mmio", AttachKind::Arguments(&["gpa"]), Purpose::Both),
    hook("msr", "kvm/kvm_msr", AttachKind::Arguments(&["write", "ecx"]), Purpose::Addresses),
    hook(
        "sysreg",
        "kvm/kvm_sys_access",
        AttachKind::Record(&[("register_write_at", "is_write"), ("register_number_at", "Op0")]),
        Purpose::Both,
    ),
    hook("ipi", "kvm/kvm_apic_ipi", AttachKind::Arguments(&[]), Purpose::Marks),
    hook("ipi", "kvm/kvm_hv_send_ipi", AttachKind::Arguments(&[]), Purpose::Marks),
    hook("ipi", "kvm/kvm_hv_send_ipi_ex", AttachKind::Arguments(&[]), Purpose::Marks),
    hook("hypercall", "kvm/kvm_hypercall", AttachKind::Arguments(&["nr"]), Purpose::Marks),
];

impl ExitCounter {
    /// Loads the program for some threads; it counts nothing before [`start`](Self::start).
    ///
    /// # Errors
    /// As [`Tracefs::open`]; [`HostError::File`] with `ENOENT` if the kernel lacks the events (KVM
    /// is not loaded), `EPERM` or `EACCES` without permission (`CAP_BPF`, `CAP_PERFMON`), `EINVAL`
    /// before Linux 5.5 or under lockdown in confidentiality mode.
    pub fn open(host: &dyn Host, scope: ExitScope, tids: &[Tid]) -> Result<Self, HostError> {
        let tracing = Tracefs::open()?;
        let mut places = EventOffsets::find(
            &|event: &str| match tracing.format(event) {
                Ok(format) => Ok(Some(format)),
                Err(error) if error.is_gone() => Ok(None),
                Err(error) => Err(error),
            },
            scope,
        )?;
        places.sgi_address = scope.distributor.saturating_add(SGIR);
        let mut program = places.load(tids.len())?;
        let is_on = PROGRAM.map(&mut program, "is_on")?;
        let mut threads: HashMap<MapData, u32, ExitThread> =
            PROGRAM.map(&mut program, "threads")?;
        for tid in tids {
            let none = Sums { shortest: u64::MAX, ..Sums::default() };
            let fresh = ExitThread { pseudo: [none; 3], ..ExitThread::default() };
            threads.insert(tid.0, fresh, 0).map_err(|error| PROGRAM.refuse("set", &error))?;
        }
        let exits = PROGRAM.map(&mut program, "exits")?;
        let addresses = PROGRAM.map(&mut program, "addresses")?;
        let _probes = places.attach(host, &mut program)?;
        let tids = tids.to_vec();
        let missed_before = 0;
        Ok(Self { program, _probes, is_on, threads, exits, addresses, tids, missed_before })
    }

    /// Starts counting.
    ///
    /// # Errors
    /// [`HostError::File`] if the map cannot be written, which should not happen.
    pub fn start(&mut self, host: &dyn Host) -> Result<(), HostError> {
        self.missed_before = missed_events(host, &self.program)?;
        self.is_on.set(0, 1, 0).map_err(|error| PROGRAM.refuse("start", &error))
    }

    /// Stops counting.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn stop(&mut self) -> Result<(), HostError> {
        self.is_on.set(0, 0, 0).map_err(|error| PROGRAM.refuse("stop", &error))
    }

    /// Number of events of the whole host since the start for which the programs were not called,
    /// because another BPF program was running on that CPU. The kernel counts them for raw
    /// tracepoints since Linux 5.12, for all programs since 6.7.
    ///
    /// # Errors
    /// [`HostError`] if the kernel's information about the programs cannot be read.
    pub fn missed_events(&self, host: &dyn Host) -> Result<u64, HostError> {
        Ok(missed_events(host, &self.program)?.saturating_sub(self.missed_before))
    }

    /// Statistics of each thread, in the order of the `tids` that were passed to
    /// [`open`](Self::open).
    ///
    /// # Errors
    /// [`HostError::File`] if a map cannot be read, which should not happen.
    pub fn read(&self) -> Result<Vec<(Tid, ThreadExits)>, HostError> {
        let mut found = Vec::with_capacity(self.tids.len());
        for tid in &self.tids {
            let watched =
                self.threads.get(&tid.0, 0).map_err(|error| PROGRAM.refuse("read", &error))?;
            let [guest, asleep, preempted] = watched.pseudo.map(DurationStats::from);
            found.push((
                *tid,
                ThreadExits {
                    guest,
                    asleep,
                    preempted,
                    events: watched.events,
                    unpaired: watched.unpaired,
                    no_room: watched.no_room,
                    no_address: watched.no_address,
                    is_outside: watched.doing == IN_EXIT,
                    ..ThreadExits::default()
                },
            ));
        }
        for entry in self.exits.iter() {
            let (key, sums) = entry.map_err(|error| PROGRAM.refuse("read", &error))?;
            if let Some((_, thread)) = found.iter_mut().find(|(tid, _)| tid.0 == key.tid) {
                thread.exits.insert(exit_key(key), sums.into());
            }
        }
        for entry in self.addresses.iter() {
            let (key, count) = entry.map_err(|error| PROGRAM.refuse("read", &error))?;
            if let Some((_, thread)) = found.iter_mut().find(|(tid, _)| tid.0 == key.tid) {
                thread.addresses.insert((address(key), key.kind % 2 == 1), count);
            }
        }
        Ok(found)
    }
}

fn exit_key(key: Key) -> ExitKey {
    ExitKey {
        reason: key.reason,
        is_mmio: key.marks & IS_MMIO != 0,
        is_ipi: key.marks & IS_IPI != 0,
    }
}

fn address(key: AddressKey) -> Address {
    match key.kind / 2 {
        0 => Address::Port(key.address),
        1 => Address::Mmio(key.address),
        _ => Address::Register(key.address),
    }
}

/// Offsets and tracepoints of the running kernel.
struct EventOffsets {
    /// Constants of the program: offsets of fields.
    constants: BTreeMap<&'static str, u32>,
    sgi_address: u64,
    /// The hooks whose events exist, with the IDs of their tracepoints.
    hooks: Vec<(Hook, u64)>,
}

/// Reads the record format of an event; `None` if the kernel lacks it or its module is not loaded.
type Formats<'f> = dyn Fn(&str) -> Result<Option<Format>, HostError> + 'f;

impl EventOffsets {
    fn find(formats: &Formats<'_>, scope: ExitScope) -> Result<Self, HostError> {
        let mut places = Self { constants: BTreeMap::new(), sgi_address: 0, hooks: Vec::new() };
        let hooks = scope.source.hooks().into_iter().chain(HOOKS);
        for hook in hooks.filter(|hook| scope.includes(hook.purpose)) {
            let event = hook.event;
            match formats(event)? {
                Some(format) => {
                    match hook.way {
                        AttachKind::Arguments(fields) => in_order(event, &format, fields)?,
                        AttachKind::Reason => {
                            places.constants.extend(reason_places(event, &format)?)
                        }
                        AttachKind::Record(fields) => {
                            for (constant, field) in fields {
                                places.constants.insert(constant, place(event, &format, field)?);
                            }
                        }
                    }
                    places.hooks.push((hook, format.id));
                }
                None if hook.purpose == Purpose::Time => return Err(absent(event)),
                None => {}
            }
        }
        Ok(places)
    }

    fn load(&self, threads: usize) -> Result<Ebpf, HostError> {
        let mut loader = EbpfLoader::new();
        for (name, value) in &self.constants {
            loader.override_global(name, value, true);
        }
        loader
            .btf(None)
            .override_global("sgi_address", &self.sgi_address, true)
            .map_max_entries("threads", u32::try_from(threads).unwrap_or(u32::MAX).max(1))
            .load(OBJECT)
            .map_err(|error| PROGRAM.refuse("load", &error))
    }

    /// Attaches the programs. Returns the perf events of those that use records; raw tracepoints
    /// stay attached by the program object.
    fn attach(&self, host: &dyn Host, program: &mut Ebpf) -> Result<Vec<Probe>, HostError> {
        let pu = online_pu(host)?;
        let mut probes = Vec::new();
        let mut loaded = Vec::new();
        for (Hook { program: name, event, way, .. }, id) in &self.hooks {
            if !matches!(way, AttachKind::Arguments(_)) {
                probes.push(PROGRAM.attach(program, name, *id, pu)?);
                continue;
            }
            let raw = program.program_mut(name).ok_or_else(|| PROGRAM.missing(name))?;
            let raw: &mut RawTracePoint =
                raw.try_into().map_err(|error| PROGRAM.refuse("find", &error))?;
            if !loaded.contains(name) {
                raw.load().map_err(|error| PROGRAM.refuse("load", &error))?;
                loaded.push(name);
            }
            let (_, event) = event.split_once('/').unwrap_or(("", event));
            raw.attach(event).map_err(|error| PROGRAM.refuse("attach", &error))?;
        }
        Ok(probes)
    }
}

/// Checks that an event's arguments are those that the program expects: its record has the fields
/// in that order.
fn in_order(event: &str, format: &Format, expected: &[&str]) -> Result<(), HostError> {
    let names = format.fields.iter().map(|field| field.name.as_str());
    let own: Vec<&str> = names.filter(|name| !name.starts_with("common_")).collect();
    for (index, field) in expected.iter().enumerate().filter(|(_, field)| **field != "_") {
        if own.get(index) != Some(field) {
            return Err(HostError::Unexpected {
                path: event.to_owned(),
                why: format!("field {} is not {field}: {}", index + 1, own.join(", ")),
            });
        }
    }
    Ok(())
}

/// The fields of an exit depend on the architecture.
pub(crate) fn reason_places(
    event: &str,
    format: &Format,
) -> Result<BTreeMap<&'static str, u32>, HostError> {
    // x86; Arm; RISC-V; userspace exit on any of them.
    let known = [
        ("exit_reason", Some("isa")),
        ("ret", Some("esr_ec")),
        ("scause", None),
        ("reason", Some("errno")),
    ];
    let found = known.into_iter().find(|(name, _)| field(format, name).is_some());
    let (name, detail) = found.ok_or_else(|| HostError::Unexpected {
        path: event.to_owned(),
        why: format!("has none of the fields {}", known.map(|(name, _)| name).join(", ")),
    })?;
    let is_long = field(format, name).is_some_and(|field| field.size == 8);
    let mut places = BTreeMap::from([
        ("reason_at", place(event, format, name)?),
        ("reason_is_long", u32::from(is_long)),
    ]);
    if let Some(detail) = detail {
        places.insert("detail_at", place(event, format, detail)?);
    }
    Ok(places)
}

fn field<'f>(format: &'f Format, name: &str) -> Option<&'f Field> {
    format.fields.iter().find(|field| field.name == name)
}

fn place(event: &str, format: &Format, name: &str) -> Result<u32, HostError> {
    field(format, name).map(|field| field.offset).ok_or_else(|| HostError::Unexpected {
        path: event.to_owned(),
        why: format!("has no field {name}"),
    })
}

fn absent(event: &str) -> HostError {
    let path = paths::event_format(&paths::tracing_dir(), event);
    HostError::file("read", &path, io::Error::from_raw_os_error(libc::ENOENT))
}

#[cfg(test)]
mod tests;
