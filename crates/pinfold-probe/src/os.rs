//! Instruments of the operating system: context switches, what lies between processes, its
//! operations, and the integer kernel's scores.
//!
//! Each type holds the settings of one `pinload` command and gives the
//! [`Instrument`] that runs it; what comes back are figures, told apart by their labels.
//!
//! | type | figures | labels |
//! |---|---|---|
//! | [`Switch`] | `context-switch`, ns | `processes`, `kib`, `placement`, `policy`, `part` |
//! | [`IpcBandwidth`] | `ipc-bandwidth`, bytes per second | `transport`, `chunk-kib`, `placement` or `file-mib` and `filesystem` |
//! | [`OsLatency`] | `os-latency`, ns | `operation`, `rss-mib`, `descriptors` or `filesystem` where they matter |
//! | [`Intmix`] | `intmix`, per second, and per second and MHz | `part`, `clock` |

#[cfg(test)]
mod tests;

use pinfold_model::CpuSet;

use crate::benchmarks::{SchedPolicy, seconds};
use crate::figures::Instrument;

/// Where the processes of a ring run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchPlacement {
    /// All on the first PU of the list: each step is a switch.
    OnePu,
    /// Each on a PU of its own: each step wakes another PU.
    Unique,
    /// Dealt out to the PUs in turn.
    Balanced,
}

/// Context switches in rings of processes that hand a token on.
///
/// Each ring gives four figures by `part`: `raw`, `overhead` (one process alone, with the same
/// pipes), `net` (raw less the median overhead) and `hop` (every single step, a tail).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    /// Numbers of processes, each 2 to 512; with each of `kib` they make a ring.
    pub processes: Vec<u32>,
    /// KiB that each process sums before it hands the token on, each 0 to 1,048,576.
    pub kib: Vec<u32>,
    /// Where they run.
    pub placement: SwitchPlacement,
    /// The PUs; the kernel's choice of all that may be used if `None`.
    pub cpus: Option<CpuSet>,
    /// Under which policy; under FIFO the ring rests for a quarter of the time.
    pub policy: SchedPolicy,
    /// How long each ring is measured (ns), and again each overhead.
    pub duration_ns: u64,
}

impl Switch {
    /// Rings of these numbers of processes and sizes, on one of the PUs.
    #[must_use]
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
    #[must_use]
    pub fn scaling(duration_ns: u64) -> Self {
        Self::new(&[2, 4, 8, 16, 24, 32, 64, 96], &[0, 4], duration_ns)
    }

    /// The words that name its rings.
    #[must_use]
    pub fn rings(&self) -> Vec<String> {
        let (processes, kib) = (list(&self.processes), list(&self.kib));
        arguments(&[("--processes", Some(processes)), ("--kib", Some(kib))])
    }

    /// What runs it.
    #[must_use]
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

/// A way for bytes to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A pipe between two processes.
    Pipe,
    /// A Unix stream socket between two processes.
    Unix,
    /// `read` of a file in the page cache, its words added up.
    File,
    /// The same, from opening to closing the file in each pass.
    FileOpen,
    /// A mapped file, its words added up.
    Mmap,
    /// The same, from opening to closing in each pass: page faults are in it.
    MmapOpen,
}

impl Transport {
    /// All of them.
    pub const ALL: [Transport; 6] = [
        Transport::Pipe,
        Transport::Unix,
        Transport::File,
        Transport::FileOpen,
        Transport::Mmap,
        Transport::MmapOpen,
    ];

    /// Its name in arguments and labels.
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

/// Bytes per second through transports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpcBandwidth {
    /// Which of them.
    pub transports: Vec<Transport>,
    /// One PU, or two (of the writer, and of the reader); where the kernel likes if `None`.
    pub cpus: Option<CpuSet>,
    /// KiB of each read and write, 1 to 1,048,576.
    pub chunk_kib: u32,
    /// MiB of the file, 1 to 65,536; one larger than the caches asks for longer windows.
    pub file_mib: u32,
    /// Where the file is made; `$TMPDIR` or `/tmp` if `None`.
    pub directory: Option<String>,
    /// How long each is measured (ns).
    pub duration_ns: u64,
}

impl IpcBandwidth {
    /// All transports with chunks of 64 KiB and a file of 8 MiB.
    #[must_use]
    pub fn new(duration_ns: u64) -> Self {
        Self {
            transports: Transport::ALL.to_vec(),
            cpus: None,
            chunk_kib: 64,
            file_mib: 8,
            directory: None,
            duration_ns,
        }
    }

    /// What runs it.
    #[must_use]
    pub fn instrument(&self) -> Instrument {
        let names: Vec<_> = self.transports.iter().map(|one| one.name()).collect();
        Instrument {
            command: "ipc-bandwidth",
            arguments: arguments(&[
                ("--seconds", Some(seconds(self.duration_ns))),
                ("--transports", Some(names.join(","))),
                ("--cpus", self.cpus.as_ref().map(CpuSet::to_string)),
                ("--chunk-kib", Some(self.chunk_kib.to_string())),
                ("--file-mib", Some(self.file_mib.to_string())),
                ("--directory", self.directory.clone()),
            ]),
            duration_ns: times(names.len(), self.duration_ns),
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
    /// A write to a page that cannot be written, until the handler has jumped back.
    ProtectionFault,
    /// `select` on descriptors that are not ready.
    Select,
    /// `poll` on descriptors that are not ready.
    Poll,
    /// `fork`, a child that exits at once, and waiting for it.
    ForkExit,
    /// The same, and the child becomes a small program.
    ForkExec,
    /// The same with `vfork`.
    VforkExec,
    /// The same with `posix_spawn`.
    Spawn,
    /// First write to a page of new memory.
    PageFaultAnonymous,
    /// First read in a mapped file that lies in the page cache.
    PageFaultFile,
    /// An empty file made.
    Create0k,
    /// An empty file removed.
    Delete0k,
    /// A file of 10 KiB made.
    Create10k,
    /// A file of 10 KiB removed.
    Delete10k,
}

impl Operation {
    /// All of them.
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

    /// Its name in arguments and labels.
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
    /// Which of them.
    pub operations: Vec<Operation>,
    /// The one PU; where the kernel likes if `None`.
    pub cpus: Option<CpuSet>,
    /// Numbers of descriptors of `select` and `poll`, each 1 to 900.
    pub descriptors: Vec<u32>,
    /// MiB that the measuring process has resident beyond its own: `fork` copies their tables.
    pub rss_mib: u32,
    /// Where files are made; `$TMPDIR` or `/tmp` if `None`.
    pub directory: Option<String>,
    /// How long each is measured (ns).
    pub duration_ns: u64,
}

impl OsLatency {
    /// All operations, with 10 and 100 descriptors.
    #[must_use]
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

    /// What runs it.
    #[must_use]
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

/// Scores of the integer kernel, of its parts `list`, `matrix`, `states` and `crc` and of `all`.
///
/// Besides rounds per second each has a figure per MHz, if the CPU's clock is known: from
/// cpufreq, else the time-stamp counter's rate, as the label `clock` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intmix {
    /// One thread on each, side by side; on all that may be used if `None`.
    pub cpus: Option<CpuSet>,
    /// How long each part is measured (ns).
    pub duration_ns: u64,
}

impl Intmix {
    /// What runs it.
    #[must_use]
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

/// Names and values of those that have one.
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
