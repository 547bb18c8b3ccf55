//! Exits of vCPU threads, paired and summed in the kernel by a BPF program.
//!
//! The program is `bpf/exits.bpf.c`; it ends with this value, whatever ends it. The places of the
//! fields that it reads are taken from this kernel's own description of its events
//! ([`Tracefs`]), so it needs neither headers nor BTF, and KVM may be a module. Most programs are at
//! raw tracepoints, which have the arguments and no record: those are in the order of the record's
//! fields, which is checked, and less dear (measured on a busy machine: about 0.2 instead of
//! 0.3 µs).

use std::collections::BTreeMap;
use std::{fmt, io};

use aya::maps::{Array, HashMap, MapData};
use aya::programs::RawTracePoint;
use aya::{Ebpf, EbpfLoader};
use pinfold_model::Tid;

use crate::bpf::{Named, missed, online_pu};
use crate::raw::{AddressKey, ExitThread, Key, Probe, Sums};
use crate::tracefs::{Field, Format};
use crate::{Host, HostError, Tracefs, paths};

/// The compiled program, for any machine of this byte order.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/exits.bpf.o");

/// What errors name.
const PROGRAM: Named = Named("the BPF program exits");
/// Bits of a key, as in the program.
const IS_MMIO: u32 = 1;
const IS_IPI: u32 = 2;
/// What a thread is doing, as in the program.
const IN_EXIT: u32 = 2;
/// `GICD_SGIR` of a GICv2, from the distributor's base.
const SGIR: u64 = 0xf00;

/// The events that tell when a guest is left and entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitSource {
    /// `kvm_exit` and `kvm_entry`: each exit of the processor.
    Hardware,
    /// `kvm_userspace_exit` and `kvm_fpu`: only exits that reach the emulator; what KVM
    /// answers itself is part of the time in between.
    Userspace,
}

impl ExitSource {
    fn hooks(self) -> [Hook; 2] {
        match self {
            ExitSource::Hardware => [
                needed("leave", "kvm/kvm_exit", AttachKind::Reason),
                needed("enter", "kvm/kvm_entry", AttachKind::Arguments(&[])),
            ],
            ExitSource::Userspace => [
                needed(
                    "surface",
                    "kvm/kvm_userspace_exit",
                    AttachKind::Arguments(&["reason", "errno"]),
                ),
                needed("dive", "kvm/kvm_fpu", AttachKind::Arguments(&["load"])),
            ],
        }
    }
}

/// What is watched. Each event that is left out makes every exit cheaper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitScope {
    /// The events that tell when a guest is left and entered.
    pub source: ExitSource,
    /// Whether the accessed addresses are counted: ports, memory of devices, registers.
    pub addresses: bool,
    /// Where an Arm guest with a GICv2 has its distributor.
    pub distributor: u64,
}

impl ExitScope {
    fn includes(&self, purpose: Purpose) -> bool {
        // Marks are those of an exit of the processor: one that reaches the emulator begins after
        // their events.
        let marks = self.source == ExitSource::Hardware;
        match purpose {
            Purpose::Time => true,
            Purpose::Addresses => self.addresses,
            Purpose::Marks => marks,
            Purpose::Both => self.addresses || marks,
        }
    }
}

/// Durations of one kind of stretch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationStats {
    /// How many.
    pub count: u64,
    /// Their sum (ns).
    pub sum_ns: u64,
    /// The shortest (ns); meaningless if there is none.
    pub shortest_ns: u64,
    /// The longest (ns).
    pub longest_ns: u64,
    /// Sum of their squares (ns²).
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

/// What tells exits apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExitKey {
    /// As the event has it: x86 the reason with the kind of machine (1 VMX, 2 SVM) in the upper
    /// half; Arm the code of the exception with the class of the trap in the upper half;
    /// RISC-V `scause`; of a userspace exit its number with the error number in the upper half.
    pub reason: u64,
    /// KVM took it for an access to a device's memory.
    pub is_mmio: bool,
    /// It sent an interprocessor interrupt.
    pub is_ipi: bool,
}

/// What an exit accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// An I/O port.
    Port(u64),
    /// Guest-physical address of a device.
    Mmio(u64),
    /// Number of a machine-specific register; on Arm Op0, Op1, CRn, CRm and Op2 of a system
    /// register, four bits each.
    Register(u64),
}

/// What a thread did while it was watched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadExits {
    /// Stretches in the guest; with [`ExitSource::Userspace`] in KVM too.
    pub guest: DurationStats,
    /// Stretches without a CPU because the thread waited for something.
    pub asleep: DurationStats,
    /// Stretches without a CPU because another thread had it.
    pub preempted: DurationStats,
    /// Exits, without the time that the thread had no CPU.
    pub exits: BTreeMap<ExitKey, DurationStats>,
    /// How often each address was accessed; true for a write.
    pub addresses: BTreeMap<(Address, bool), u64>,
    /// Events of the kernel that were looked at for it.
    pub events: u64,
    /// Exits or entries without their other half, which are in no number.
    pub unpaired: u64,
    /// Exits for which there was no room in the table.
    pub no_room: u64,
    /// Accesses for whose address there was no room in the table.
    pub no_address: u64,
    /// True if the last exit had not ended yet: it is in no number.
    pub is_outside: bool,
}

/// Watches threads. Dropping it takes the program away.
pub struct ExitCounter {
    program: Ebpf,
    _probes: Vec<Probe>,
    is_on: Array<MapData, u64>,
    threads: HashMap<MapData, u32, ExitThread>,
    exits: HashMap<MapData, Key, Sums>,
    addresses: HashMap<MapData, AddressKey, u64>,
    tids: Vec<Tid>,
    /// Of the programs, before they were told to count.
    missed_before: u64,
}

impl fmt::Debug for ExitCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExitCounter").field("tids", &self.tids).finish_non_exhaustive()
    }
}

/// A program and its tracepoint.
#[derive(Clone, Copy)]
struct Hook {
    program: &'static str,
    event: &'static str,
    way: AttachKind,
    purpose: Purpose,
}

/// What the answer has from an event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// The stretches themselves: without it there is no answer.
    Time,
    /// Accessed addresses.
    Addresses,
    /// What distinguishes exits of one reason.
    Marks,
    /// Addresses and marks.
    Both,
}

/// How a program gets at what it reads.
#[derive(Clone, Copy)]
enum AttachKind {
    /// As the arguments of a raw tracepoint; these fields must be the first, `_` whatever it is.
    Arguments(&'static [&'static str]),
    /// From the record, where each constant of the program says where a field is.
    Record(&'static [(&'static str, &'static str)]),
    /// The same for the reason of an exit, whose fields differ from processor to processor.
    Reason,
}

const fn needed(program: &'static str, event: &'static str, way: AttachKind) -> Hook {
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

/// Next to the two of the source.
const HOOKS: [Hook; 10] = [
    needed(
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
    /// As [`Tracefs::open`]; [`HostError::File`] with `ENOENT` if the kernel has no such events
    /// (KVM is not loaded), `EPERM` or `EACCES` without the rights (`CAP_BPF`, `CAP_PERFMON`),
    /// `EINVAL` before Linux 5.5 or under lockdown in confidentiality mode.
    pub fn open(host: &dyn Host, scope: ExitScope, tids: &[Tid]) -> Result<Self, HostError> {
        let tracing = Tracefs::open()?;
        let format = |event: &str| match tracing.format(event) {
            Ok(format) => Ok(Some(format)),
            Err(error) if error.is_gone() => Ok(None),
            Err(error) => Err(error),
        };
        let mut places = Places::find(&format, scope)?;
        places.sgi_address = scope.distributor.saturating_add(SGIR);
        let mut program = places.load(tids.len())?;
        let is_on = PROGRAM.map(&mut program, "is_on")?;
        let mut threads: HashMap<MapData, u32, ExitThread> =
            PROGRAM.map(&mut program, "threads")?;
        for tid in tids {
            let none = Sums { shortest: u64::MAX, ..Sums::default() };
            let fresh = ExitThread { pseudo: [none; 3], ..ExitThread::default() };
            threads.insert(tid.0, fresh, 0).map_err(|error| PROGRAM.refused("set", &error))?;
        }
        let exits = PROGRAM.map(&mut program, "exits")?;
        let addresses = PROGRAM.map(&mut program, "addresses")?;
        let _probes = places.attach(host, &mut program)?;
        let tids = tids.to_vec();
        let missed_before = 0;
        Ok(Self { program, _probes, is_on, threads, exits, addresses, tids, missed_before })
    }

    /// Begins to count.
    ///
    /// # Errors
    /// [`HostError::File`] if the map cannot be written, which does not happen.
    pub fn start(&mut self, host: &dyn Host) -> Result<(), HostError> {
        self.missed_before = missed(host, &self.program)?;
        self.is_on.set(0, 1, 0).map_err(|error| PROGRAM.refused("start", &error))
    }

    /// Counts no more.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn stop(&mut self) -> Result<(), HostError> {
        self.is_on.set(0, 0, 0).map_err(|error| PROGRAM.refused("stop", &error))
    }

    /// Events of the whole host since the start, while some other program was at work on their CPU:
    /// none was told of them. The kernel counts those of raw tracepoints since Linux 5.12, all since
    /// 6.7.
    ///
    /// # Errors
    /// [`HostError`] if what the kernel tells of the programs cannot be read.
    pub fn missed(&self, host: &dyn Host) -> Result<u64, HostError> {
        Ok(missed(host, &self.program)?.saturating_sub(self.missed_before))
    }

    /// What each thread did, in the order in which they were given.
    ///
    /// # Errors
    /// [`HostError::File`] if a map cannot be read, which does not happen.
    pub fn read(&self) -> Result<Vec<(Tid, ThreadExits)>, HostError> {
        let mut found = Vec::with_capacity(self.tids.len());
        for tid in &self.tids {
            let watched =
                self.threads.get(&tid.0, 0).map_err(|error| PROGRAM.refused("read", &error))?;
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
            let (key, sums) = entry.map_err(|error| PROGRAM.refused("read", &error))?;
            if let Some((_, thread)) = found.iter_mut().find(|(tid, _)| tid.0 == key.tid) {
                thread.exits.insert(exit_key(key), sums.into());
            }
        }
        for entry in self.addresses.iter() {
            let (key, count) = entry.map_err(|error| PROGRAM.refused("read", &error))?;
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

/// Where this kernel has what the program reads.
struct Places {
    /// Constants of the program.
    constants: BTreeMap<&'static str, u32>,
    sgi_address: u64,
    /// What is there, with the numbers of the tracepoints.
    hooks: Vec<(Hook, u64)>,
}

/// The record of an event; `None` if this kernel does not have it, or its module is not loaded.
type Formats<'f> = dyn Fn(&str) -> Result<Option<Format>, HostError> + 'f;

impl Places {
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
            .map_err(|error| PROGRAM.refused("load", &error))
    }

    /// The events of the programs that are at records; those at raw tracepoints keep theirs.
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
                raw.try_into().map_err(|error| PROGRAM.refused("find", &error))?;
            if !loaded.contains(name) {
                raw.load().map_err(|error| PROGRAM.refused("load", &error))?;
                loaded.push(name);
            }
            let (_, event) = event.split_once('/').unwrap_or(("", event));
            raw.attach(event).map_err(|error| PROGRAM.refused("attach", &error))?;
        }
        Ok(probes)
    }
}

/// Checks that the arguments of an event are those that the program takes them for: its record has
/// them in the same order.
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

/// The fields of an exit differ from one kind of processor to the next.
fn reason_places(event: &str, format: &Format) -> Result<BTreeMap<&'static str, u32>, HostError> {
    // x86; Arm; RISC-V; a userspace exit on all of them.
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
