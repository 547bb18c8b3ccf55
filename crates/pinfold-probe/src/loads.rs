//! Background loads on the host.
//!
//! Each load is a process `pinload load … --supervised`. One thread of a [`HostLoads`] starts the
//! processes, sends heartbeats to their standard inputs, and reaps them. It starts them itself
//! because `PR_SET_PDEATHSIG` refers to the parent *thread*. If this process is killed, the loads
//! die; if it is stopped, they pause after 1.5 s or the configured time; when the value is dropped,
//! they end. The caller chooses the cgroups and CPUs. The tasks of the loads are available to the
//! caller, so that a plan with isolation `own` can move them.

mod supervisor;
#[cfg(test)]
mod tests;

use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pinfold_host::{Host, HostError, paths, proc_stat};
use pinfold_model::{CpuSet, TaskId, Tid};

use crate::agent::BEAT;
use crate::benchmarks::seconds;
use supervisor::LoadSupervisor;

/// What a load does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadKind {
    /// Computes.
    Cpu,
    /// Streams through memory.
    Memory {
        /// MiB per thread, 1 to 65536.
        mib: u32,
    },
    /// Reads a device or file, or writes and syncs an unnamed file in a directory.
    Io {
        /// Path of the device, file or directory.
        path: String,
    },
}

/// The settings of one load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadSpec {
    /// What it does.
    pub kind: LoadKind,
    /// Number of threads, 1 to 4096.
    pub threads: u32,
    /// How long it runs.
    pub life: LoadDuration,
}

/// How long a load runs if it is not stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadDuration {
    /// At most this long (ns, up to one day); it pauses 1.5 s after the last heartbeat.
    Limited(u64),
    /// As long as it receives heartbeats; it pauses `silence_ns` after the last one.
    WhileHeartbeat {
        /// Time without a heartbeat (ns), from 10 ms to one minute.
        silence_ns: u64,
    },
}

impl LoadDuration {
    /// Interval of heartbeats, short enough that one may be late.
    fn beat(self) -> Duration {
        match self {
            Self::Limited(_) => BEAT,
            Self::WhileHeartbeat { silence_ns } => Duration::from_nanos(silence_ns / 3).min(BEAT),
        }
    }
}

impl LoadSpec {
    /// Name of the load in `pinload load`.
    pub fn name(&self) -> &'static str {
        match self.kind {
            LoadKind::Cpu => "cpu",
            LoadKind::Memory { .. } => "memory",
            LoadKind::Io { .. } => "io",
        }
    }

    /// The arguments of `pinload`, starting with the subcommand, with `--supervised`. They are the
    /// same in a guest, where a [`crate::agent::Heartbeat`] sends the heartbeats.
    pub fn argv(&self) -> Vec<String> {
        let threads = self.threads.to_string();
        let (word, time) = match self.life {
            LoadDuration::Limited(limit_ns) => ("--seconds", seconds(limit_ns)),
            LoadDuration::WhileHeartbeat { silence_ns } => ("--silence", seconds(silence_ns)),
        };
        let mut argv: Vec<String> =
            ["load", self.name(), "--threads", &threads, word, &time, "--supervised"]
                .map(str::to_owned)
                .to_vec();
        match &self.kind {
            LoadKind::Cpu => {}
            LoadKind::Memory { mib } => argv.extend(["--memory-mib".to_owned(), mib.to_string()]),
            LoadKind::Io { path } => argv.extend(["--path".to_owned(), path.clone()]),
        }
        argv
    }
}

/// Where loads run from their first instruction on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Files of cgroups that they enter (`tasks` of v1, `cgroup.procs` of v2).
    pub cgroup_files: Vec<String>,
    /// The CPUs on which they may run; with `None` they inherit the affinity.
    pub affinity: Option<CpuSet>,
}

/// Why loads could not be started or failed.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A load could not be started.
    #[error("cannot start the {name} load")]
    Start {
        /// Name of the load.
        name: &'static str,
        /// Error of the host.
        source: HostError,
    },
    /// The supervisor thread could not be created.
    #[error("cannot start a thread that keeps the loads")]
    Thread {
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A load ended by itself.
    #[error("the {name} load ended ({how}){}{message}", if message.is_empty() { "" } else { ": " })]
    Ended {
        /// Name of the load.
        name: &'static str,
        /// Exit code or signal.
        how: String,
        /// Its error message.
        message: String,
    },
    /// The tasks of the loads could not be read.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl LoadError {
    /// A hint for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            LoadError::Start { .. } | LoadError::Thread { .. } | LoadError::Host(_) => None,
            LoadError::Ended { .. } => {
                Some("measure again: what was measured after its end was not under load".to_owned())
            }
        }
    }
}

/// Loads that run until this value is stopped or dropped.
#[derive(Debug)]
pub struct HostLoads {
    processes: Vec<TaskId>,
    trouble: Arc<Mutex<Option<LoadError>>>,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HostLoads {
    /// Starts the loads; `program` is the path of a [`crate::pinload::Pinload`], which may be
    /// removed while they run.
    ///
    /// # Errors
    /// [`LoadError::Start`] if one cannot be started (then none runs), [`LoadError::Thread`].
    pub fn start(
        program: &str,
        specs: &[LoadSpec],
        placement: &Placement,
    ) -> Result<Self, LoadError> {
        let (stop, stopped) = mpsc::channel();
        let (reported, received) = mpsc::channel();
        let trouble = Arc::new(Mutex::new(None));
        let noted = Arc::clone(&trouble);
        let (program, specs) = (program.to_owned(), specs.to_vec());
        let placement = placement.clone();
        let thread = std::thread::Builder::new()
            .name("loads".to_owned())
            .spawn(move || match LoadSupervisor::start(&program, &specs, &placement) {
                Ok(keeper) => {
                    // If the receiver is gone, dropping the supervisor ends the loads.
                    if reported.send(Ok(keeper.processes())).is_ok() {
                        keeper.beat_until(&stopped, &noted);
                    }
                }
                Err(error) => match reported.send(Err(error)) {
                    Ok(()) | Err(_) => {}
                },
            })
            .map_err(|source| LoadError::Thread { source })?;
        let processes = received.recv().map_err(|_| LoadError::Thread {
            source: std::io::Error::other("the thread ended before it began"),
        })??;
        Ok(Self { processes, trouble, stop: Some(stop), thread: Some(thread) })
    }

    /// The processes of the loads.
    pub fn processes(&self) -> &[TaskId] {
        &self.processes
    }

    /// All threads of the loads at this moment.
    ///
    /// # Errors
    /// [`HostError`] if one cannot be read for a reason other than its end.
    pub fn tasks(&self, host: &dyn Host) -> Result<Vec<TaskId>, HostError> {
        let mut tasks = Vec::new();
        for process in &self.processes {
            tasks.extend(threads_of(host, process.tid)?);
        }
        Ok(tasks)
    }

    /// Checks that all loads still run. Call it after a measurement.
    ///
    /// # Errors
    /// [`LoadError::Ended`] for the first load that ended by itself; returned once.
    pub fn check(&self) -> Result<(), LoadError> {
        match self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Ends the loads and waits for their end.
    ///
    /// # Errors
    /// As [`HostLoads::check`].
    pub fn stop(mut self) -> Result<(), LoadError> {
        self.end();
        self.check()
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            match thread.join() {
                Ok(()) | Err(_) => {} // a panic has been printed, and its children are killed
            }
        }
    }
}

impl Drop for HostLoads {
    fn drop(&mut self) {
        self.end();
    }
}

/// All threads of a process; none if it has ended.
///
/// # Errors
/// [`HostError`] if they cannot be read.
pub fn threads_of(host: &dyn Host, pid: Tid) -> Result<Vec<TaskId>, HostError> {
    let names = match host.list(&paths::task_dir(pid)) {
        Ok(names) => names,
        Err(error) if error.is_gone() => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut tasks = Vec::new();
    for tid in names.iter().filter_map(|name| name.parse().ok().map(Tid)) {
        tasks.extend(proc_stat::at(host, &paths::task_stat(pid, tid))?.map(|stat| stat.task()));
    }
    Ok(tasks)
}
