//! The counters of a thread from `/proc`, through descriptors that stay open.
//!
//! The kernel adds the time that a thread waited when the wait ends (`schedstat`, field 2), so a
//! thread that waits without an end would show nothing. Its state shows it: it is runnable, and its
//! run time has not changed.

use pinfold_host::{HostError, OpenKernelFile, ThreadWait, paths, proc_stat, schedstat};
use pinfold_model::Tid;

/// A thread with its open files.
pub struct ProcReader {
    schedstat: OpenKernelFile,
    stat: OpenKernelFile,
    /// What was found last.
    last: ThreadWait,
}

impl ProcReader {
    /// Opens the files of a thread; one of another process (a vhost worker) has a folder of its own.
    pub fn open(pid: Tid, tid: Tid) -> Result<Self, HostError> {
        let schedstat = OpenKernelFile::open(&paths::task_schedstat(pid, tid))
            .or_else(|_| OpenKernelFile::open(&paths::task_schedstat(tid, tid)))?;
        let stat = OpenKernelFile::open(&paths::task_stat(pid, tid))
            .or_else(|_| OpenKernelFile::open(&paths::task_stat(tid, tid)))?;
        let times = read_times(&schedstat)?;
        let cpu = read_stat(&stat)?.processor;
        let last = ThreadWait {
            cpu,
            run_ns: times.run_ns,
            ready_ns: times.delay_ns,
            waiting_since_ns: None,
            longest_ns: 0,
            moves: 0,
        };
        Ok(Self { schedstat, stat, last })
    }

    /// What was found last.
    pub fn last(&self) -> ThreadWait {
        self.last
    }

    /// The counters now. Without a change of the run time the state is read only if it is due: a
    /// thread that waits is then found later.
    pub fn read(&mut self, since_ns: u64, is_due: bool) -> Result<ThreadWait, HostError> {
        let times = read_times(&self.schedstat)?;
        let has_run = times.run_ns > self.last.run_ns;
        let waited_ns = times.delay_ns.saturating_sub(self.last.ready_ns);
        let mut now = ThreadWait {
            run_ns: times.run_ns,
            ready_ns: times.delay_ns,
            longest_ns: waited_ns,
            ..self.last
        };
        if has_run || is_due || self.last.waiting_since_ns.is_some() {
            let stat = read_stat(&self.stat)?;
            if stat.processor != self.last.cpu {
                now.moves += 1;
                now.cpu = stat.processor;
            }
            let waits = !has_run && stat.state == 'R';
            now.waiting_since_ns = waits.then(|| self.last.waiting_since_ns.unwrap_or(since_ns));
        }
        self.last = now;
        Ok(now)
    }
}

fn read_times(file: &OpenKernelFile) -> Result<schedstat::SchedStat, HostError> {
    schedstat::parse(&file.read()?).map_err(|error| error.at(file.path()))
}

fn read_stat(file: &OpenKernelFile) -> Result<proc_stat::ProcStat, HostError> {
    proc_stat::parse(&file.read()?).map_err(|error| error.at(file.path()))
}
