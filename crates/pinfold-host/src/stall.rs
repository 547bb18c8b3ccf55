//! Stalls the tasks of a cgroup with a BPF program that spins in their timer interrupts.
//!
//! The program is `bpf/stall.bpf.c`; its input and its statistics are in its maps. If the kernel
//! has BTF, a stall counts from the time at which its interrupt was due. It then includes the
//! interrupt entry, which is long and variable on a virtual machine. The program ends with this
//! process in any case: its events are file descriptors that no child inherits. While the process
//! is stopped, the program does nothing, because each stall needs a [heartbeat](Stall::vouch) that
//! has not expired.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::{fmt, io};

use aya::maps::{Array, Map, MapData};
use aya::programs::PerfEvent;
use aya::{Ebpf, EbpfLoader};
use pinfold_model::{CpuSet, PuId};
use rustix::fs::{Mode, OFlags};

use crate::bpf::{Named, possible_pus};
use crate::raw::{Account, SharedWord, StallSpec, Timer};
use crate::{Clock, Host, HostError, SystemClock};

/// The compiled program, for any machine with this byte order.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/stall.bpf.o");

const PROGRAM: Named = Named("the BPF program stall");

/// How much CPU time is taken from the cgroup on one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StallConfig {
    /// Share of the cgroup's run time to take, in millionths.
    pub stolen: u32,
    /// Length of a regular stall in nanoseconds. Time that is owed beyond it, for example after a
    /// late interrupt, is paid with one sixteenth per stall.
    pub usual_ns: u64,
    /// Longest single stall in nanoseconds; at most 2 ms, the limit of the time owed.
    pub longest_ns: u64,
}

/// Statistics of one CPU since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StallAccount {
    /// Run time of the cgroup's tasks, including stalls (ns).
    pub ran_ns: u64,
    /// Stalled time, counted from when each interrupt was due (ns).
    pub stalled_ns: u64,
    /// Part of `stalled_ns` before the program started: the interrupt entry (ns). 0 on kernels
    /// without BTF, where the program cannot measure it.
    pub entry_ns: u64,
    /// Number of interrupts.
    pub interrupts: u64,
    /// Time that was owed and dropped because it was overdue (ns).
    pub lost_ns: u64,
    /// Part of `ran_ns` at full speed: nothing was to be taken, or the heartbeat had expired (ns).
    pub full_ns: u64,
}

/// Stalls of one cgroup.
pub struct Stall {
    // Keeps the program loaded.
    _program: Ebpf,
    timers: BTreeMap<PuId, Timer>,
    beat: SharedWord,
    stall_specs: Array<MapData, StallSpec>,
    accounts: Array<MapData, Account>,
}

impl fmt::Debug for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stall").field("timers", &self.timers).finish_non_exhaustive()
    }
}

impl Stall {
    /// Starts at full speed on some CPUs of the cgroup with this directory. It must be in the
    /// hierarchy with `perf_event`, which is v2 unless that controller was mounted as v1.
    ///
    /// # Errors
    /// [`HostError::File`]: `EPERM` or `EACCES` without permission (`CAP_BPF`, `CAP_PERFMON`),
    /// `EINVAL` before Linux 5.17, `EBADF` if the directory is not a cgroup with `perf_event`,
    /// `ENODEV` for a CPU that is offline.
    pub fn open(
        host: &dyn Host,
        group: &str,
        pus: &CpuSet,
        period_ns: u64,
    ) -> Result<Self, HostError> {
        let possible = possible_pus(host)?;
        let mut program = load(possible)?;
        let Some(Map::Array(beat)) = program.take_map("beat") else {
            return Err(PROGRAM.missing("beat"));
        };
        let beat = SharedWord::from_map(beat.fd().as_fd())
            .map_err(|errno| HostError::file("share memory with", PROGRAM.0, errno))?;
        let stall_specs = PROGRAM.map(&mut program, "wishes")?;
        let accounts = PROGRAM.map(&mut program, "accounts")?;
        let code = part(&mut program)?.fd().map_err(|error| PROGRAM.refuse("load", &error))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let cgroup = rustix::fs::open(group, flags, Mode::empty())
            .map_err(|errno| HostError::file("open", group, errno))?;
        let mut timers = BTreeMap::new();
        for pu in pus.iter() {
            let timer =
                Timer::new(cgroup.as_fd(), pu, period_ns).map_err(|source| fail(group, source))?;
            timer.set_program(code.as_fd()).map_err(|source| fail(group, source))?;
            timers.insert(pu, timer);
        }
        Ok(Self { _program: program, timers, beat, stall_specs, accounts })
    }

    /// Heartbeat: allows stalls until `ahead_ns` nanoseconds from now.
    pub fn extend_deadline(&self, ahead_ns: u64) {
        // The program uses the same clock, CLOCK_MONOTONIC.
        self.beat.store(SystemClock.now_ns().saturating_add(ahead_ns));
    }

    /// Sets the share to take on a CPU, from its next interrupt on. If it is zero, there are no
    /// interrupts and no run time is counted.
    ///
    /// # Errors
    /// [`HostError::File`] for a CPU that does not exist.
    pub fn set(&mut self, pu: PuId, config: StallConfig) -> Result<(), HostError> {
        let spec = StallSpec {
            stolen: config.stolen.into(),
            usual_ns: config.usual_ns,
            longest_ns: config.longest_ns,
        };
        let is_full = config.stolen == 0;
        self.stall_specs.set(pu.0, spec, 0).map_err(|error| PROGRAM.refuse("set", &error))?;
        let Some(timer) = self.timers.get(&pu) else { return Ok(()) };
        let switched = if is_full { timer.disable() } else { timer.enable() };
        switched.map_err(|source| HostError::file("set", PROGRAM.0, source))
    }

    /// Sets the period of the interrupts on a CPU, in nanoseconds.
    ///
    /// # Errors
    /// [`HostError::File`]: `EINVAL` if the kernel does not accept the period.
    pub fn set_period(&mut self, pu: PuId, period_ns: u64) -> Result<(), HostError> {
        let Some(timer) = self.timers.get(&pu) else { return Ok(()) };
        timer.set_period(period_ns).map_err(|source| HostError::file("set", PROGRAM.0, source))
    }

    /// Statistics of a CPU.
    ///
    /// # Errors
    /// [`HostError::File`] for a CPU that does not exist.
    pub fn account(&self, pu: PuId) -> Result<StallAccount, HostError> {
        let account =
            self.accounts.get(&pu.0, 0).map_err(|error| PROGRAM.refuse("read", &error))?;
        Ok(StallAccount {
            ran_ns: account.seen_ns,
            stalled_ns: account.spun_ns,
            entry_ns: account.entry_ns,
            interrupts: account.fired,
            lost_ns: account.lost_ns,
            full_ns: account.idle_ns,
        })
    }
}

fn fail(group: &str, source: io::Error) -> HostError {
    HostError::file("time the tasks of", group, source)
}

/// The loader of all starts in this process. A new one parses the kernel's types (BTF), which takes
/// longer than all the rest of a start. Kernels without BTF, or under lockdown, load the program
/// without the part that needs it: then this is the loader without types.
static LOADER: LazyLock<Mutex<EbpfLoader<'static>>> = LazyLock::new(|| {
    let mut loader = EbpfLoader::new();
    loader.override_global("sees_types", &1_u32, true);
    Mutex::new(loader)
});

fn load(possible: u32) -> Result<Ebpf, HostError> {
    let mut loader = LOADER.lock().unwrap_or_else(PoisonError::into_inner);
    loader.map_max_entries("wishes", possible).map_max_entries("accounts", possible);
    load_with(&mut loader).or_else(|_| {
        loader.btf(None).override_global("sees_types", &0_u32, true);
        load_with(&mut loader)
    })
}

fn load_with(loader: &mut EbpfLoader<'_>) -> Result<Ebpf, HostError> {
    let mut program = loader.load(OBJECT).map_err(|error| PROGRAM.refuse("load", &error))?;
    part(&mut program)?.load().map_err(|error| PROGRAM.refuse("load", &error))?;
    Ok(program)
}

fn part(program: &mut Ebpf) -> Result<&mut PerfEvent, HostError> {
    let part = program.program_mut("stall").ok_or_else(|| PROGRAM.missing("its program"))?;
    part.try_into().map_err(|error| PROGRAM.refuse("find", &error))
}
