//! Background loads on the host: started, kept beating, stopped.
//!
//! Each load is a `pinload load … --supervised` process. One thread of a [`HostLoads`] starts
//! them, beats on their standard inputs and reaps them. It starts them itself because the
//! kernel's "die with the parent" means the parent *thread*. If this process is killed they
//! die, if it is stopped they pause after 1.5 s or the time that they were told, and when the value is dropped they end.
//! Which cgroups and PUs they run in is the caller's choice; what they are (their tasks) is
//! told, so that a plan with isolation `own` can move them.

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
    /// Reads a device or file, or writes and syncs a nameless file in a directory.
    Io {
        /// Its path.
        path: String,
    },
}

/// One load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadSpec {
    /// What it does.
    pub kind: LoadKind,
    /// Number of threads, 1 to 4096.
    pub threads: u32,
    /// How long it works.
    pub life: Life,
}

/// How long a load works if nobody stops it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// At most for so long (ns), which is a day at most; it pauses 1.5 s after the last beat.
    Limited(u64),
    /// As long as it is vouched for; it pauses so long (ns) after the last beat.
    Vouched {
        /// From 10 ms to a minute.
        silence_ns: u64,
    },
}

impl Life {
    /// How often it wants to hear a beat: often enough that one may be late.
    fn beat(self) -> Duration {
        match self {
            Self::Limited(_) => BEAT,
            Self::Vouched { silence_ns } => Duration::from_nanos(silence_ns / 3).min(BEAT),
        }
    }
}

impl LoadSpec {
    /// Name of the `pinload load` kind.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self.kind {
            LoadKind::Cpu => "cpu",
            LoadKind::Memory { .. } => "memory",
            LoadKind::Io { .. } => "io",
        }
    }

    /// The arguments of `pinload`, beginning with the subcommand; supervised. They are the same
    /// in a guest, where a [`crate::agent::Heartbeat`] beats.
    #[must_use]
    pub fn argv(&self) -> Vec<String> {
        let threads = self.threads.to_string();
        let (word, time) = match self.life {
            Life::Limited(limit_ns) => ("--seconds", seconds(limit_ns)),
            Life::Vouched { silence_ns } => ("--silence", seconds(silence_ns)),
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
    /// The PUs on which they may run; `None` leaves what they inherit.
    pub affinity: Option<CpuSet>,
}

/// Why loads could not be kept.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// One could not be started.
    #[error("cannot start the {name} load")]
    Start {
        /// Its name.
        name: &'static str,
        /// Why.
        source: HostError,
    },
    /// There can be no thread that keeps them.
    #[error("cannot start a thread that keeps the loads")]
    Thread {
        /// Why.
        source: std::io::Error,
    },
    /// One ended by itself.
    #[error("the {name} load ended ({how}){}{message}", if message.is_empty() { "" } else { ": " })]
    Ended {
        /// Its name.
        name: &'static str,
        /// Exit code or signal.
        how: String,
        /// What it said.
        message: String,
    },
    /// Their tasks could not be read.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl LoadError {
    /// What the user can do next.
    #[must_use]
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
    /// Starts them; `program` is the path of a [`crate::pinload::Pinload`], which may go while they run.
    ///
    /// # Errors
    /// [`LoadError::Start`] if one cannot be started (none runs then), [`LoadError::Thread`].
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
                    // If nobody hears it, the loads end with the dropped keeper.
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

    /// Their processes.
    #[must_use]
    pub fn processes(&self) -> &[TaskId] {
        &self.processes
    }

    /// All their threads at this moment.
    ///
    /// # Errors
    /// [`HostError`] if one cannot be read for another reason than that it has ended.
    pub fn tasks(&self, host: &dyn Host) -> Result<Vec<TaskId>, HostError> {
        let mut tasks = Vec::new();
        for process in &self.processes {
            tasks.extend(threads_of(host, process.tid)?);
        }
        Ok(tasks)
    }

    /// Whether all of them are still there. To be asked after a measurement.
    ///
    /// # Errors
    /// [`LoadError::Ended`] for the first that ended by itself; told once.
    pub fn check(&self) -> Result<(), LoadError> {
        match self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Ends them and waits for their end.
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
                Ok(()) | Err(_) => {} // a panic there has been printed, and its children are killed
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
