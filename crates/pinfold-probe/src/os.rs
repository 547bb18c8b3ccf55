//! Benchmarks of the operating system: context switches, IPC bandwidth, latency of operations, and
//! the scores of the integer kernel.
//!
//! Each type holds the settings of one `pinload` command and returns the [`Instrument`] that runs
//! it. The result is a set of figures, distinguished by their labels.
//!
//! | type | figures | labels |
//! |---|---|---|
//! | [`Switch`] | `context-switch`, ns | `processes`, `kib`, `placement`, `policy`, `part` |
//! | [`IpcBandwidth`] | `ipc-bandwidth`, bytes per second | `transport`, `chunk-kib`, `placement` or `bytes` (of the file) and `filesystem` |
//! | [`OsLatency`] | `os-latency`, ns | `operation`, `rss-mib`, `descriptors` or `filesystem` where they matter |
//! | [`Intmix`] | `intmix`, per second, and per second and MHz | `part`, `clock` |

#[cfg(test)]
mod tests;

use pinfold_model::CpuSet;

use crate::benchmarks::{SchedPolicy, seconds};
use crate::figures::Instrument;
use crate::memory::Sizes;

/// Where the processes of a ring run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchPlacement {
    /// All on the first CPU of the list: each step is a context switch.
    OnePu,
    /// Each on its own CPU: each step wakes another CPU.
    Unique,
    /// Distributed over the CPUs round-robin.
    Balanced,
}

/// Context switches in rings of processes that pass a token.
///
/// Each ring gives four figures, by the label `part`: `raw`, `overhead` (one process alone, with
/// the same pipes), `net` (raw minus the median overhead) and `hop` (every single step, a tail).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    /// Numbers of processes, each 2 to 512; each combination with an entry of `kib` is a ring.
    pub processes: Vec<u32>,
    /// KiB that each process sums before it passes the token, each 0 to 1,048,576.
    pub kib: Vec<u32>,
    /// Where the processes run.
    pub placement: SwitchPlacement,
    /// The CPUs; with `None` the kernel chooses among all that may be used.
    pub cpus: Option<CpuSet>,
    /// Scheduling policy; under FIFO the ring pauses for a quarter of the time.
    pub policy: SchedPolicy,
    /// Duration of the measurement of each ring, and of each overhead (ns).
    pub duration_ns: u64,
}

impl Switch {
    /// Rings with these numbers of processes and sizes, on a single CPU.
    pub fn new(processes: &[u32], kib: &[u32], duration_ns: u64) -> Self {
        Self {
            processes: processes.to_vec(),
            kib: kib.to_vec(),
            placement: SwitchPlacement::OnePu,
            cpus: None,
            policy: SchedPolicy::Other,
            duration_ns,
        }
    }

    /// The scaling plot: 2 to 96 processes with 0 and 4 KiB.
    pub fn scaling(duration_ns: u64) -> Self {
        Self::new(&[2, 4, 8, 16, 24, 32, 64, 96], &[0, 4], duration_ns)
    }

    /// The arguments that describe the rings.
    #[must_use]
    pub fn rings(&self) -> Vec<String> {
        let (processes, kib) = (list(&self.processes), list(&self.kib));
        arguments(&[("--processes", Some(processes)), ("--kib", Some(kib))])
    }

    /// The `pinload` command with these settings.
    pub fn instrument(&self) -> Instrument {
        let placement = match self.placement {
            SwitchPlacement::OnePu => "one-pu",
            SwitchPlacement::Unique => "unique",
            SwitchPlacement::Balanced => "balanced",
        };
        let policy = match self.policy {
            SchedPolicy::Other => "other".to_owned(),
            SchedPolicy::Fifo(priority) => format!("fifo:{priority}"),
        };
        let rings = self.processes.len() * self.kib.len();
        Instrument {
            command: "switch",
            arguments: arguments(&[
                ("--seconds", Some(seconds(self.duration_ns))),
                ("--cpus", Some(self.cpus.as_ref().map_or("all".to_owned(), CpuSet::to_string))),
                ("--processes", Some(list(&self.processes))),
                ("--kib", Some(list(&self.kib))),
                ("--placement", Some(placement.to_owned())),
                ("--policy", Some(policy)),
            ]),
            duration_ns: times(2 * rings, self.duration_ns),
        }
    }
}

/// A way to transfer bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A pipe between two processes.
    Pipe,
    /// A Unix stream socket between two processes.
    Unix,
    /// `read` of a file in the page cache, with a sum over its words.
    File,
    /// As `File`, with opening and closing the file in each pass.
    FileOpen,
    /// A memory-mapped file, with a sum over its words.
    Mmap,
    /// As `Mmap`, with opening, mapping and closing in each pass, so page faults are included.
    MmapOpen,
}

impl Transport {
    /// All transports.
    pub const ALL: [Transport; 6] = [
        Transport::Pipe,
        Transport::Unix,
        Transport::File,
        Transport::FileOpen,
        Transport::Mmap,
        Transport::MmapOpen,
    ];

    /// Name in arguments and labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Transport::Pipe => "pipe",
            Transport::Unix => "unix",
            Transport::File => "file",
            Transport::FileOpen => "file-open",
            Transport::Mmap => "mmap",
            Transport::MmapOpen => "mmap-open",
        }
    }
}

/// Bandwidth of transports (bytes per second).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpcBandwidth {
    /// The transports to measure.
    pub transports: Vec<Transport>,
    /// One CPU, or two (the writer's and the reader's); with `None` the kernel chooses.
    pub cpus: Option<CpuSet>,
    /// KiB of each read and write, 1 to 1,048,576.
    pub chunk_kib: u32,
    /// Sizes of the file, 4 KiB to 64 GiB; one larger than the caches needs longer windows.
    pub file: Sizes,
    /// Directory of the file; with `None` `$TMPDIR` or `/tmp`.
    pub directory: Option<String>,
    /// Duration for each transport (ns).
    pub duration_ns: u64,
}

impl IpcBandwidth {
    /// All transports, with chunks of 64 KiB and a file of 8 MiB.
    pub fn new(duration_ns: u64) -> Self {
        Self {
            transports: Transport::ALL.to_vec(),
            cpus: None,
            chunk_kib: 64,
            file: Sizes::one(8 << 20),
            directory: None,
            duration_ns,
        }
    }

    /// The `pinload` command with these settings.
    pub fn instrument(&self) -> Instrument {
        let names: Vec<_> = self.transports.iter().map(|one| one.name()).collect();
        let with_file = self
            .transports
            .iter()
            .filter(|one: &&Transport| !matches!(one, Transport::Pipe | Transport::Unix))
            .count() as u64;
        let figures = names.len() as u64 - with_file + with_file * self.file.count();
        Instrument {
            command: "ipc-bandwidth",
            arguments: arguments(&[
                ("--seconds", Some(seconds(self.duration_ns))),
                ("--transports", Some(names.join(","))),
                ("--cpus", self.cpus.as_ref().map(CpuSet::to_string)),
                ("--chunk-kib", Some(self.chunk_kib.to_string())),
                ("--from", Some(self.file.from.to_string())),
                ("--to", Some(self.file.to.to_string())),
                ("--steps", Some(self.file.steps.to_string())),
                ("--directory", self.directory.clone()),
            ]),
            duration_ns: self.duration_ns.saturating_mul(figures),
        }
    }
}

/// An operation of the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A system call that does nothing.
    Null,
    /// `sigaction`.
    SignalInstall,
    /// A signal to the own thread, until its handler has returned.
    SignalCatch,
    /// A write to a read-only page, until the handler has jumped back.
    ProtectionFault,
    /// `select` on descriptors that are not ready.
    Select,
    /// `poll` on descriptors that are not ready.
    Poll,
    /// `fork`, a child that exits at once, and waiting for it.
    ForkExit,
    /// `fork`, and the child executes a small program.
    ForkExec,
    /// `vfork`, and the child executes a small program.
    VforkExec,
    /// `posix_spawn` of a small program.
    Spawn,
    /// First write to a page of new anonymous memory.
    PageFaultAnonymous,
    /// First read of a page of a mapped file that is in the page cache.
    PageFaultFile,
    /// Creation of an empty file.
    Create0k,
    /// Removal of an empty file.
    Delete0k,
    /// Creation of a file of 10 KiB.
    Create10k,
    /// Removal of a file of 10 KiB.
    Delete10k,
}

impl Operation {
    /// All operations.
    pub const ALL: [Operation; 16] = [
        Operation::Null,
        Operation::SignalInstall,
        Operation::SignalCatch,
        Operation::ProtectionFault,
        Operation::Select,
        Operation::Poll,
        Operation::ForkExit,
        Operation::ForkExec,
        Operation::VforkExec,
        Operation::Spawn,
        Operation::PageFaultAnonymous,
        Operation::PageFaultFile,
        Operation::Create0k,
        Operation::Delete0k,
        Operation::Create10k,
        Operation::Delete10k,
    ];

    /// Name in arguments and labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Operation::Null => "null",
            Operation::SignalInstall => "signal-install",
            Operation::SignalCatch => "signal-catch",
            Operation::ProtectionFault => "protection-fault",
            Operation::Select => "select",
            Operation::Poll => "poll",
            Operation::ForkExit => "fork-exit",
            Operation::ForkExec => "fork-exec",
            Operation::VforkExec => "vfork-exec",
            Operation::Spawn => "spawn",
            Operation::PageFaultAnonymous => "page-fault-anonymous",
            Operation::PageFaultFile => "page-fault-file",
            Operation::Create0k => "create-0k",
            Operation::Delete0k => "delete-0k",
            Operation::Create10k => "create-10k",
            Operation::Delete10k => "delete-10k",
        }
    }
}

/// Latency of operations; the samples are means of short windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsLatency {
    /// The operations to measure.
    pub operations: Vec<Operation>,
    /// The CPU; with `None` the kernel chooses.
    pub cpus: Option<CpuSet>,
    /// Numbers of descriptors for `select` and `poll`, each 1 to 900.
    pub descriptors: Vec<u32>,
    /// Additional resident memory of the measuring process (MiB): `fork` copies its page tables.
    pub rss_mib: u32,
    /// Directory of the files; with `None` `$TMPDIR` or `/tmp`.
    pub directory: Option<String>,
    /// Duration for each operation (ns).
    pub duration_ns: u64,
}

impl OsLatency {
    /// All operations, with 10 and 100 descriptors.
    pub fn new(duration_ns: u64) -> Self {
        Self {
            operations: Operation::ALL.to_vec(),
            cpus: None,
            descriptors: vec![10, 100],
            rss_mib: 0,
            directory: None,
            duration_ns,
        }
    }

    /// The `pinload` command with these settings.
    pub fn instrument(&self) -> Instrument {
        let names: Vec<_> = self.operations.iter().map(|one| one.name()).collect();
        Instrument {
            command: "os-latency",
            arguments: arguments(&[
                ("--seconds", Some(seconds(self.duration_ns))),
                ("--operations", Some(names.join(","))),
                ("--cpus", self.cpus.as_ref().map(CpuSet::to_string)),
                ("--descriptors", Some(list(&self.descriptors))),
                ("--rss-mib", Some(self.rss_mib.to_string())),
                ("--directory", self.directory.clone()),
            ]),
            duration_ns: times(names.len() + 2 * self.descriptors.len(), self.duration_ns),
        }
    }
}

/// Scores of the integer kernel, of its parts `list`, `matrix`, `states` and `crc`, and of `all`.
///
/// Besides iterations per second, each part has a figure per MHz if the CPU's clock rate is known:
/// from cpufreq, else the rate of the time-stamp counter. The label `clock` gives the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intmix {
    /// The CPUs, with one thread on each at the same time; with `None` all that may be used.
    pub cpus: Option<CpuSet>,
    /// Duration of each part (ns).
    pub duration_ns: u64,
}

impl Intmix {
    /// The `pinload` command with these settings.
    pub fn instrument(&self) -> Instrument {
        Instrument {
            command: "intmix",
            arguments: arguments(&[
                ("--seconds", Some(seconds(self.duration_ns))),
                ("--cpus", Some(self.cpus.as_ref().map_or("all".to_owned(), CpuSet::to_string))),
            ]),
            duration_ns: times(5, self.duration_ns),
        }
    }
}

/// The arguments of the pairs that have a value.
fn arguments(pairs: &[(&str, Option<String>)]) -> Vec<String> {
    let given = pairs.iter().filter_map(|(name, value)| Some([(*name).to_owned(), value.clone()?]));
    given.flatten().collect()
}

fn list(values: &[u32]) -> String {
    values.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn times(count: usize, duration_ns: u64) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX).saturating_mul(duration_ns)
}
