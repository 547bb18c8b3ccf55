//! Share of the CPU time of some processes that passes inside `futex(2)`, by sampling.
//!
//! A perf event samples each thread while it runs, by cycles or, without a PMU, by CPU time. The
//! BPF program `bpf/futex_cycles.bpf.c` counts the samples, and those of threads that are inside
//! the system call, by futex word. A thread that sleeps in the call is not sampled. Permissions are
//! those of [`FutexTracer`](crate::FutexTracer). It ends with this process.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::AsFd as _;

use aya::maps::{Array, HashMap, MapData};
use aya::programs::PerfEvent;
use aya::{Ebpf, EbpfLoader};
use pinfold_model::Tid;

use crate::bpf::{Named, online_pu};
use crate::raw::{Probe, TaskSampler};
use crate::{CounterError, CounterEvent, Host, HostError, Tracefs};

/// The compiled program, for any machine with this byte order.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/futex_cycles.bpf.o");

const PROGRAM: Named = Named("the BPF program futex_cycles");

/// Samples per second of a thread's CPU time; no divisor of usual timer rates.
const FREQUENCY: u64 = 997;

/// What is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampledClock {
    /// Cycles of the cores.
    Cycles,
    /// CPU time, because there is no PMU.
    CpuTime,
}

impl SampledClock {
    /// Both, the preferred one first.
    const ALL: [Self; 2] = [Self::Cycles, Self::CpuTime];

    fn event(self) -> CounterEvent {
        match self {
            Self::Cycles => CounterEvent::CYCLES,
            Self::CpuTime => CounterEvent::CPU_CLOCK,
        }
    }
}

/// Number of samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FutexSamples {
    /// What was sampled.
    pub clock: SampledClock,
    /// All samples of the processes.
    pub all: u64,
    /// Those of threads inside `futex(2)`.
    pub inside: u64,
    /// Those of threads inside `futex(2)` by the address of the futex word.
    pub words: BTreeMap<u64, u64>,
    /// Calls that were not seen, and samples without a word, because a map was full.
    pub lost: u64,
}

impl FutexSamples {
    /// Share of the samples inside `futex(2)`, 0 to 1; `None` without samples.
    pub fn share(&self) -> Option<f64> {
        (self.all > 0).then(|| self.inside as f64 / self.all as f64)
    }

    /// The samples since an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            clock: self.clock,
            all: self.all.saturating_sub(earlier.all),
            inside: self.inside.saturating_sub(earlier.inside),
            words: self
                .words
                .iter()
                .filter_map(|(address, count): (&u64, &u64)| {
                    let before = earlier.words.get(address).copied().unwrap_or(0);
                    (*count > before).then(|| (*address, count - before))
                })
                .collect(),
            lost: self.lost.saturating_sub(earlier.lost),
        }
    }
}

/// Sampling in progress.
pub struct FutexSampler {
    probes: Vec<Probe>,
    threads: Vec<TaskSampler>,
    clock: SampledClock,
    samples: Array<MapData, u64>,
    words: HashMap<MapData, u64, u64>,
    _program: Ebpf,
}

impl fmt::Debug for FutexSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FutexSampler").field("clock", &self.clock).finish_non_exhaustive()
    }
}

impl FutexSampler {
    /// Starts to sample these threads and those that they create, as far as they belong to these
    /// processes.
    ///
    /// # Errors
    /// [`HostError::File`]: `EPERM` or `EACCES` without permission, `ENOENT` if the kernel was
    /// built without system-call tracepoints, `ENOSYS` without perf events.
    pub fn open(host: &dyn Host, processes: &[Tid], threads: &[Tid]) -> Result<Self, HostError> {
        let tracefs = Tracefs::open()?;
        let enter = tracefs.format("syscalls/sys_enter_futex")?;
        let leave = tracefs.format("syscalls/sys_exit_futex")?;
        let pu = online_pu(host)?;
        let address = enter.offset("uaddr", 8)?;
        let mut loader = EbpfLoader::new();
        loader.btf(None).override_global("enter_address", &address, true);
        let mut program = loader.load(OBJECT).map_err(|error| PROGRAM.refuse("load", &error))?;
        let mut chosen: HashMap<MapData, u32, u32> = PROGRAM.map(&mut program, "processes")?;
        for process in processes {
            chosen.insert(process.0, 1, 0).map_err(|error| PROGRAM.refuse("set", &error))?;
        }
        let samples = PROGRAM.map(&mut program, "samples")?;
        let words = PROGRAM.map(&mut program, "words")?;
        let mut probes = Vec::new();
        for (part, id) in [("on_enter", enter.id), ("on_leave", leave.id)] {
            probes.push(PROGRAM.attach(&mut program, part, id, pu)?);
        }
        let (clock, threads) = sample(&mut program, threads)?;
        Ok(Self { probes, threads, clock, samples, words, _program: program })
    }

    /// Ends the sampling and reads the result.
    ///
    /// # Errors
    /// [`HostError::File`] if the map cannot be read.
    pub fn close(mut self) -> Result<FutexSamples, HostError> {
        self.threads.clear();
        self.probes.clear();
        self.read()
    }

    /// The samples so far; the sampling continues.
    ///
    /// # Errors
    /// [`HostError::File`] if a map cannot be read.
    pub fn read(&self) -> Result<FutexSamples, HostError> {
        Ok(FutexSamples {
            clock: self.clock,
            all: self.read_counter(0)?,
            inside: self.read_counter(1)?,
            words: PROGRAM.entries(&self.words)?.into_iter().collect(),
            lost: self.read_counter(2)?,
        })
    }

    fn read_counter(&self, index: u32) -> Result<u64, HostError> {
        PROGRAM.number(&self.samples, index)
    }
}

/// Starts the events of all threads that exist, by cycles if there is a PMU.
fn sample(
    program: &mut Ebpf,
    threads: &[Tid],
) -> Result<(SampledClock, Vec<TaskSampler>), HostError> {
    const PART: &str = "on_sample";
    let part = program.program_mut(PART).ok_or_else(|| PROGRAM.missing(PART))?;
    let part: &mut PerfEvent = part.try_into().map_err(|error| PROGRAM.refuse("find", &error))?;
    part.load().map_err(|error| PROGRAM.refuse("load", &error))?;
    let code = part.fd().map_err(|error| PROGRAM.refuse("load", &error))?;
    let mut no_pmu = io::Error::from(io::ErrorKind::Unsupported);
    for clock in SampledClock::ALL {
        let (kind, config) = clock.event().numbers();
        let mut started = Vec::new();
        let refused = threads
            .iter()
            .map(|tid: &Tid| TaskSampler::new(*tid, kind, config, FREQUENCY, code.as_fd()))
            .find_map(|one| match one {
                Ok(one) => {
                    started.push(one);
                    None
                }
                Err(error) => (error.raw_os_error() != Some(libc::ESRCH)).then_some(error),
            });
        match refused {
            None => return Ok((clock, started)),
            Some(error) if clock == SampledClock::Cycles && has_no_pmu(&error) => no_pmu = error,
            Some(error) => return Err(HostError::file("sample", PROGRAM.0, error)),
        }
    }
    Err(HostError::file("sample", PROGRAM.0, no_pmu))
}

fn has_no_pmu(error: &io::Error) -> bool {
    let same = error.raw_os_error().map(io::Error::from_raw_os_error);
    same.is_some_and(|error| matches!(CounterError::from(error), CounterError::NoPmu))
}
