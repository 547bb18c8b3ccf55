//! Reads the statistics of each thread once per interval.

use std::collections::{HashMap, VecDeque};

use pinfold_host::{
    Host, HostError, OpenKernelFile, cpu_groups, mountinfo, paths, proc_stat, schedstat,
};
use pinfold_model::{Role, TaskId, Tid};

use crate::snapshot::{FORMAT, MachineSample, Snapshot, ThreadSample};
use crate::top_tasks::TopTasks;

const SECOND_NS: u64 = 1_000_000_000;
const MINUTE_NS: u64 = 60 * SECOND_NS;
/// The state of a thread whose run time has not changed is read in each interval up to this number
/// of threads; of more, in turns.
const TURN: usize = 128;
/// Share of the interval from which a wait has a cause.
const NOTABLE: f64 = 0.01;

/// A thread to observe.
#[derive(Clone, Debug)]
pub struct Thread {
    /// The thread.
    pub task: TaskId,
    /// Its role.
    pub role: Role,
    /// Its name.
    pub name: String,
}

/// A machine to observe.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: Tid,
    /// Its threads.
    pub threads: Vec<Thread>,
    /// State of its placement.
    pub placement: Option<String>,
}

/// A thread with its open files.
struct Watched {
    thread: Thread,
    schedstat: OpenKernelFile,
    stat: OpenKernelFile,
    run_ns: u64,
    delay_ns: u64,
    cpu: u32,
    /// Since when its run time has not changed although it is runnable.
    waiting_since: Option<u64>,
    /// End of each interval of the last minute with a wait, and what was counted.
    waits: VecDeque<(u64, u64)>,
    /// Times of the moves of the last minute.
    moves: VecDeque<u64>,
}

/// A cgroup with a quota.
struct Quota {
    file: OpenKernelFile,
    throttled_ns: u64,
}

struct WatchedMachine {
    name: String,
    pid: Tid,
    placement: Option<String>,
    threads: Vec<Watched>,
    quotas: Vec<Quota>,
}

/// Observes machines.
pub struct Sampler<'h> {
    host: &'h dyn Host,
    machines: Vec<WatchedMachine>,
    notes: Vec<String>,
    runners: TopTasks,
    began_ns: u64,
    last_ns: u64,
    own: Option<OpenKernelFile>,
    own_ns: u64,
    round: usize,
}

impl std::fmt::Debug for Sampler<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampler").field("machines", &self.machines.len()).finish_non_exhaustive()
    }
}

impl<'h> Sampler<'h> {
    /// An observation that starts at this time of the monotonic clock.
    #[must_use]
    pub fn new(host: &'h dyn Host, now_ns: u64) -> Self {
        let own = OpenKernelFile::open(&paths::own_schedstat()).ok();
        let mut sampler = Self {
            host,
            machines: Vec::new(),
            notes: Vec::new(),
            runners: TopTasks::default(),
            began_ns: now_ns,
            last_ns: now_ns,
            own,
            own_ns: 0,
            round: 0,
        };
        sampler.own_ns = sampler.own_run_ns();
        sampler
    }

    fn own_run_ns(&self) -> u64 {
        let text = self.own.as_ref().and_then(|file| file.read().ok());
        text.and_then(|text| schedstat::parse(&text).ok()).map_or(0, |stat| stat.run_ns)
    }

    /// Replaces the machines. Threads that were observed before keep their history; cgroups are
    /// opened again, because one may have been created anew. `notes` are shown with each snapshot.
    pub fn set_machines(&mut self, machines: Vec<Machine>, notes: Vec<String>) {
        let mut known: HashMap<TaskId, Watched> = std::mem::take(&mut self.machines)
            .into_iter()
            .flat_map(|machine| machine.threads)
            .map(|watched| (watched.thread.task, watched))
            .collect();
        self.notes = notes;
        let mut unreadable = 0_usize;
        for machine in machines {
            let mut threads = Vec::new();
            for thread in machine.threads {
                match known
                    .remove(&thread.task)
                    .map(|old| Watched { thread: thread.clone(), ..old })
                {
                    Some(watched) => threads.push(watched),
                    None => match Watched::open(machine.pid, thread) {
                        Ok(watched) => threads.push(watched),
                        Err(error) if error.is_gone() => {}
                        Err(_) => unreadable += 1,
                    },
                }
            }
            let quotas = quotas(self.host, machine.pid);
            self.machines.push(WatchedMachine {
                name: machine.name,
                pid: machine.pid,
                placement: machine.placement,
                threads,
                quotas,
            });
        }
        if unreadable > 0 {
            self.notes.push(format!("{unreadable} threads cannot be read; root can read them"));
        }
    }

    /// Reads all threads. Those that have ended are left out.
    pub fn sample(&mut self, now_ns: u64) -> Snapshot {
        let interval_ns = now_ns.saturating_sub(self.last_ns).max(1);
        self.round += 1;
        let mut machines = Vec::new();
        let mut index = 0;
        for machine in &mut self.machines {
            let mut threads = Vec::new();
            machine.threads.retain_mut(|watched| {
                index += 1;
                let is_due = index < TURN || (index + self.round).is_multiple_of(4);
                match watched.read(now_ns, interval_ns, is_due) {
                    Ok(sample) => {
                        threads.push(sample);
                        true
                    }
                    Err(_) => false,
                }
            });
            let throttled = machine.throttled_ns();
            machines.push(MachineSample {
                name: machine.name.clone(),
                pid: machine.pid.0,
                throttled_share: throttled.map(|ns| ns as f64 / interval_ns as f64),
                placement: machine.placement.clone(),
                threads,
            });
        }
        self.attribute(&mut machines);
        let own_ns = self.own_run_ns();
        let own_share = own_ns.saturating_sub(self.own_ns) as f64 / interval_ns as f64;
        (self.own_ns, self.last_ns) = (own_ns, now_ns);
        let mut snapshot = Snapshot {
            format: FORMAT.to_owned(),
            at_ns: now_ns.saturating_sub(self.began_ns),
            interval_ns,
            own_share,
            notes: self.notes.clone(),
            machines,
            ..Snapshot::default()
        };
        snapshot.sort();
        snapshot
    }

    /// Names the cause of each notable wait.
    fn attribute(&mut self, machines: &mut [MachineSample]) {
        let mut waiting = machines.iter().flat_map(|machine| &machine.threads);
        if !waiting.any(is_notable) {
            return;
        }
        let owners: HashMap<u32, String> = machines
            .iter()
            .flat_map(|machine| {
                let threads = machine.threads.iter();
                threads.map(|thread| (thread.tid, format!("{} of {}", thread.role, machine.name)))
            })
            .collect();
        let runners = self.runners.read(self.host);
        for machine in machines {
            let ready = machine.ready();
            let by_quota = machine.throttled_share.is_some_and(|throttled| throttled * 2.0 > ready);
            for thread in machine.threads.iter_mut().filter(|thread| is_notable(thread)) {
                let tasks = runners.get(&thread.cpu).into_iter().flatten();
                let other = tasks.into_iter().find(|(tid, _)| *tid != thread.tid);
                thread.because_of = match other {
                    _ if by_quota => Some("the quota of its cgroup".to_owned()),
                    Some((tid, name)) => Some(owners.get(tid).unwrap_or(name).clone()),
                    None => None,
                };
            }
        }
    }
}

fn is_notable(thread: &ThreadSample) -> bool {
    thread.ready_share >= NOTABLE || thread.waiting_ns.is_some_and(|ns| ns > 0)
}

impl Watched {
    fn open(pid: Tid, thread: Thread) -> Result<Self, HostError> {
        let tid = thread.task.tid;
        let schedstat_file = OpenKernelFile::open(&paths::task_schedstat(pid, tid))
            .or_else(|_| OpenKernelFile::open(&paths::task_schedstat(tid, tid)))?;
        let stat_file = OpenKernelFile::open(&paths::task_stat(pid, tid))
            .or_else(|_| OpenKernelFile::open(&paths::task_stat(tid, tid)))?;
        let times = schedstat::parse(&schedstat_file.read()?)
            .map_err(|error| error.at(schedstat_file.path()))?;
        let stat =
            proc_stat::parse(&stat_file.read()?).map_err(|error| error.at(stat_file.path()))?;
        Ok(Self {
            thread,
            schedstat: schedstat_file,
            stat: stat_file,
            run_ns: times.run_ns,
            delay_ns: times.delay_ns,
            cpu: stat.processor,
            waiting_since: None,
            waits: VecDeque::new(),
            moves: VecDeque::new(),
        })
    }

    fn read(
        &mut self,
        now_ns: u64,
        interval_ns: u64,
        is_due: bool,
    ) -> Result<ThreadSample, HostError> {
        let times = schedstat::parse(&self.schedstat.read()?)
            .map_err(|error| error.at(self.schedstat.path()))?;
        let ran = times.run_ns.saturating_sub(self.run_ns);
        let waited = times.delay_ns.saturating_sub(self.delay_ns);
        (self.run_ns, self.delay_ns) = (times.run_ns, times.delay_ns);
        if ran > 0 || is_due || self.waiting_since.is_some() {
            let stat =
                proc_stat::parse(&self.stat.read()?).map_err(|error| error.at(self.stat.path()))?;
            if stat.processor != self.cpu {
                self.moves.push_back(now_ns);
                self.cpu = stat.processor;
            }
            let waits = ran == 0 && stat.state == 'R';
            let since = now_ns.saturating_sub(interval_ns);
            self.waiting_since = waits.then(|| self.waiting_since.unwrap_or(since));
        }
        if waited > 0 {
            self.waits.push_back((now_ns, waited));
        }
        let oldest = now_ns.saturating_sub(MINUTE_NS);
        while self.waits.front().is_some_and(|(at, _)| *at < oldest) {
            self.waits.pop_front();
        }
        while self.moves.front().is_some_and(|at| *at < oldest) {
            self.moves.pop_front();
        }
        let waiting_ns = self.waiting_since.map(|since| now_ns.saturating_sub(since));
        let longest = self.waits.iter().map(|(_, ns)| *ns).max().unwrap_or(0);
        Ok(ThreadSample {
            tid: self.thread.task.tid.0,
            name: self.thread.name.clone(),
            role: self.thread.role.to_string(),
            cpu: self.cpu,
            run_share: ran as f64 / interval_ns as f64,
            ready_share: waited as f64 / interval_ns as f64,
            waiting_ns,
            worst_ns: longest.max(waiting_ns.unwrap_or(0)),
            moves: self.moves.len() as u64,
            because_of: None,
        })
    }
}

impl WatchedMachine {
    /// For how long its quotas stopped it since the last time: that of the group that stopped it
    /// longest.
    fn throttled_ns(&mut self) -> Option<u64> {
        let mut longest = None;
        self.quotas.retain_mut(|quota| {
            let text = quota.file.read().ok();
            let Some(now) = text.and_then(|text| cpu_groups::throttling(&text)) else {
                return false;
            };
            let stopped = now.ns.saturating_sub(quota.throttled_ns);
            quota.throttled_ns = now.ns;
            longest = longest.max(Some(stopped));
            true
        });
        longest
    }
}

/// The cgroups of a process that count how long a quota stopped them.
fn quotas(host: &dyn Host, pid: Tid) -> Vec<Quota> {
    let mounts =
        host.read_text(&paths::own_mountinfo()).ok().and_then(|text| mountinfo::parse(&text).ok());
    let (Some(mounts), Some(text)) =
        (mounts, host.read_text(&paths::task_file(pid, pid, "cgroup")).ok())
    else {
        return Vec::new();
    };
    let mount = mountinfo::v1_mount(&mounts, "cpu").or_else(|| mountinfo::v2_mount(&mounts));
    let dirs = mount.map(|mount| cpu_groups::dirs(&mount, &text)).unwrap_or_default();
    let quotas = dirs.into_iter().filter_map(|dir| {
        let file = OpenKernelFile::open(&format!("{dir}/cpu.stat")).ok()?;
        let throttled_ns = cpu_groups::throttling(&file.read().ok()?)?.ns;
        Some(Quota { file, throttled_ns })
    });
    quotas.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinfold_host::process::{Child, Spawn};
    use pinfold_host::{Clock as _, LiveHost, SystemClock};
    use pinfold_model::CpuSet;

    /// A shell that spins on this CPU until it is dropped.
    fn spinner(cpu: &CpuSet) -> Child {
        let spawn = Spawn::new("sh").args(["-c", "while :; do :; done"]).die_with_parent(true);
        spawn.affinity(cpu.clone()).start().unwrap()
    }

    fn machine(host: &dyn Host, pid: Tid) -> Machine {
        let started = proc_stat::at(host, &paths::task_stat(pid, pid)).unwrap().unwrap();
        let task = TaskId { tid: pid, start_time: started.start_time };
        let thread = Thread { task, role: Role::Vcpu(0), name: "spins".to_owned() };
        Machine { name: "web".to_owned(), pid, threads: vec![thread], placement: None }
    }

    #[test]
    fn who_shares_the_cpu_with_a_thread_is_named_as_the_cause() {
        let host = LiveHost::new().unwrap();
        let cpu: CpuSet = host.affinity(Tid(0)).unwrap().iter().take(1).collect();
        let (subject, other) = (spinner(&cpu), spinner(&cpu));
        let mut sampler = Sampler::new(&host, SystemClock.now_ns());
        sampler.set_machines(vec![machine(&host, subject.pid())], vec!["a note".to_owned()]);
        let expected = format!("sh ({})", other.pid());
        let end = SystemClock.now_ns() + 2 * MINUTE_NS;
        loop {
            SystemClock.sleep_ns(SECOND_NS / 2);
            let snapshot = sampler.sample(SystemClock.now_ns());
            let thread = &snapshot.machines[0].threads[0];
            assert_eq!((thread.tid, thread.role.as_str()), (subject.pid().0, "vcpu(0)"));
            assert_eq!(snapshot.notes, ["a note"]);
            if thread.because_of.as_ref() == Some(&expected) && thread.ready_share > 0.1 {
                let sentence = snapshot.worst().unwrap();
                assert!(sentence.contains("web waits longest: vcpu(0) on CPU "), "{sentence}");
                assert!(sentence.ends_with(&expected), "{sentence}");
                break;
            }
            assert!(SystemClock.now_ns() < end, "{thread:?}");
        }
        drop(subject);
        while !sampler.sample(SystemClock.now_ns()).machines[0].threads.is_empty() {
            assert!(SystemClock.now_ns() < end, "a thread that has ended is left out");
        }
    }
}
