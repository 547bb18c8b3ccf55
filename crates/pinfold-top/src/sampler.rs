//! Reads the statistics of all threads once per interval: by a BPF program in at most two system
//! calls, or, where it cannot be loaded, from `/proc`.

use std::collections::{HashMap, HashSet, VecDeque};

use pinfold_host::{
    Clock, FirstState, Host, HostError, OpenKernelFile, ThreadWait, WaitCause, WaitReading,
    WaitTotals, WaitTracer, paths, proc_stat, process, schedstat, with_causes,
};
use pinfold_model::{Role, TaskId, Tid, escape};

use crate::proc_reader::ProcReader;
use crate::quota::Quotas;
use crate::snapshot::{FORMAT, MachineSample, Method, Snapshot, ThreadSample};
use crate::top_tasks::TopTasks;

const MINUTE_NS: u64 = 60_000_000_000;
/// The state of a thread whose run time has not changed is read in each interval up to this number
/// of threads; of more, in turns.
const TURN: usize = 128;
/// Share of the interval from which a wait has a cause.
const NOTABLE: f64 = 0.01;
/// Share of a wait from which a quota is its cause.
const QUOTA: f64 = 0.25;
/// Least number of threads for which the BPF program has room.
const ROOM: usize = 256;

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
    /// Number of exits of its vCPUs until now, as KVM counts them.
    pub exits: Option<u64>,
}

/// Times and numbers of the last minute.
#[derive(Default)]
struct Recent(VecDeque<(u64, u64)>);

impl Recent {
    fn add(&mut self, now_ns: u64, number: u64) {
        if number > 0 {
            self.0.push_back((now_ns, number));
        }
        let oldest = now_ns.saturating_sub(MINUTE_NS);
        while self.0.front().is_some_and(|(at, _)| *at < oldest) {
            self.0.pop_front();
        }
    }

    fn numbers(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|(_, number)| *number)
    }
}

/// How a thread is read.
enum Reader {
    /// From its files.
    Files(Box<ProcReader>),
    /// By the BPF program.
    Traced(Traced),
}

/// A thread of the BPF program.
struct Traced {
    /// What it does until its first event.
    first: FirstState,
    /// Its run time when it was added, as far as the kernel had counted it.
    run_ns: u64,
}

struct Watched {
    thread: Thread,
    reader: Reader,
    /// What was found last.
    last: ThreadWait,
    waits: Recent,
    moves: Recent,
}

struct WatchedMachine {
    name: String,
    pid: Tid,
    placement: Option<String>,
    exits: Exits,
    threads: Vec<Watched>,
    quotas: Quotas,
}

/// The exits of a machine, at the time when they were counted last.
#[derive(Clone, Copy, Default)]
struct Exits {
    count: Option<u64>,
    at_ns: u64,
    per_second: Option<f64>,
}

impl Exits {
    fn count(self, count: Option<u64>, now_ns: u64) -> Self {
        let seconds = now_ns.saturating_sub(self.at_ns) as f64 / 1e9;
        let new = count.zip(self.count).map(|(now, before)| now.saturating_sub(before));
        let per_second = new.filter(|_| seconds > 0.0).map(|new| new as f64 / seconds);
        Self { count, at_ns: now_ns, per_second }
    }
}

/// What is kept of a machine that was observed before.
#[derive(Default)]
struct KnownMachine {
    exits: Exits,
    quotas: Quotas,
}

/// The BPF program, if it is loaded.
enum Tracing {
    /// It is loaded as soon as there is a thread.
    Due,
    /// It runs.
    On(Box<WaitTracer>),
    /// It is not used; why, in a sentence.
    Off(String),
}

/// Observes machines.
pub struct Sampler<'h> {
    host: &'h dyn Host,
    machines: Vec<WatchedMachine>,
    notes: Vec<String>,
    top_tasks: TopTasks,
    tracing: Tracing,
    began_ns: u64,
    last_ns: u64,
    own_tid: Tid,
    own: Option<OpenKernelFile>,
    own_ns: u64,
    /// The cost of the BPF program as a share of a CPU, and what it has missed.
    kernel_share: Option<f64>,
    totals: WaitTotals,
    totals_ns: u64,
    round: usize,
}

impl std::fmt::Debug for Sampler<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampler").field("machines", &self.machines.len()).finish_non_exhaustive()
    }
}

impl<'h> Sampler<'h> {
    /// An observation that starts at this time of the monotonic clock, by BPF where it can be
    /// loaded.
    #[must_use]
    pub fn new(host: &'h dyn Host, now_ns: u64) -> Self {
        let own = OpenKernelFile::open(&paths::own_schedstat()).ok();
        let mut sampler = Self {
            host,
            machines: Vec::new(),
            notes: Vec::new(),
            top_tasks: TopTasks::default(),
            tracing: Tracing::Due,
            began_ns: now_ns,
            last_ns: now_ns,
            own_tid: process::own_tid(),
            own,
            own_ns: 0,
            kernel_share: None,
            totals: WaitTotals::default(),
            totals_ns: now_ns,
            round: 0,
        };
        sampler.own_ns = sampler.own_run_ns(None);
        sampler
    }

    /// The same without BPF; the notes say why.
    #[must_use]
    pub fn from_proc(host: &'h dyn Host, now_ns: u64, why: &str) -> Self {
        Self { tracing: Tracing::Off(why.to_owned()), ..Self::new(host, now_ns) }
    }

    /// How the threads are read.
    #[must_use]
    pub fn method(&self) -> Method {
        match self.tracing {
            Tracing::On(_) => Method::Bpf,
            Tracing::Due | Tracing::Off(_) => Method::Proc,
        }
    }

    /// Run time of this thread. The BPF program has it among the others.
    fn own_run_ns(&self, reading: Option<&WaitReading>) -> u64 {
        let own = reading.and_then(|all| all.thread(self.own_tid, FirstState::Running));
        if let Some(own) = own {
            return own.run_ns;
        }
        let text = self.own.as_ref().and_then(|file| file.read().ok());
        text.and_then(|text| schedstat::parse(&text).ok()).map_or(0, |stat| stat.run_ns)
    }

    /// Replaces the machines. Threads that were observed before keep their history;
    /// cgroups are opened again, because one may have been created anew. `notes` are shown with each
    /// snapshot.
    pub fn set_machines(&mut self, machines: Vec<Machine>, notes: Vec<String>, clock: &dyn Clock) {
        self.notes = notes;
        let count = machines.iter().map(|machine| machine.threads.len()).sum();
        let is_new = self.prepare_tracer(count, clock);
        let now_ns = clock.now_ns();
        let (mut known, mut before) = (HashMap::new(), HashMap::new());
        for machine in std::mem::take(&mut self.machines) {
            let threads = machine.threads.into_iter();
            known.extend(threads.map(|watched| (watched.thread.task, watched)));
            before
                .insert(machine.pid, KnownMachine { exits: machine.exits, quotas: machine.quotas });
        }
        let mut unreadable = 0_usize;
        for machine in machines {
            let mut threads = Vec::new();
            for thread in machine.threads {
                let old = known.remove(&thread.task);
                let watched = match old {
                    Some(old) if !is_new => Ok(Some(Watched { thread, ..old })),
                    old => self.watch(machine.pid, thread, old, clock),
                };
                match watched {
                    Ok(watched) => threads.extend(watched),
                    Err(error) if error.is_gone() => {}
                    Err(_) => unreadable += 1,
                }
            }
            let before = before.remove(&machine.pid).unwrap_or_default();
            self.machines.push(WatchedMachine {
                name: machine.name,
                pid: machine.pid,
                placement: machine.placement,
                exits: before.exits.count(machine.exits, now_ns),
                threads,
                quotas: Quotas::open(self.host, machine.pid, &before.quotas),
            });
        }
        self.remove_unknown(&known);
        if unreadable > 0 {
            self.notes.push(format!("{unreadable} threads cannot be read; root can read them"));
        }
        if let Tracing::Off(why) = &self.tracing
            && count > 0
        {
            self.notes.push(format!(
                "causes are guessed from CPU time: {why}; BPF (root and BTF) knows each cause, wait and move"
            ));
        }
        self.read_totals(now_ns);
        if is_new {
            self.begin_interval(clock.now_ns());
        }
    }

    /// Removes threads that are not observed any more from the BPF program.
    fn remove_unknown(&mut self, known: &HashMap<TaskId, Watched>) {
        let Tracing::On(tracer) = &mut self.tracing else { return };
        let present: HashSet<Tid> = self
            .machines
            .iter()
            .flat_map(|machine| &machine.threads)
            .map(|watched| watched.thread.task.tid)
            .collect();
        for tid in known.keys().map(|task| task.tid).filter(|tid| !present.contains(tid)) {
            tracer.remove(tid);
        }
    }

    /// Loading the program and adding the threads took its time, which is not part of the first
    /// interval.
    fn begin_interval(&mut self, now_ns: u64) {
        let reading = self.read_trace(now_ns);
        for machine in &mut self.machines {
            for watched in &mut machine.threads {
                if let (Reader::Traced(traced), Some(all)) = (&mut watched.reader, &reading) {
                    let found = traced.read(all, self.host, watched.thread.task.tid);
                    watched.last = found.unwrap_or_default();
                }
            }
            machine.quotas = Quotas::open(self.host, machine.pid, &Quotas::default());
        }
        self.own_ns = self.own_run_ns(reading.as_ref());
        self.last_ns = now_ns;
        self.read_totals(now_ns);
        self.kernel_share = None;
    }

    /// Loads the BPF program, or loads it again with more room. True if all threads are to be added
    /// to it.
    fn prepare_tracer(&mut self, count: usize, clock: &dyn Clock) -> bool {
        let needed = u32::try_from(count + 1).unwrap_or(u32::MAX);
        let is_due = match &self.tracing {
            Tracing::Due => count > 0,
            Tracing::On(tracer) => tracer.capacity() < needed,
            Tracing::Off(_) => false,
        };
        if !is_due {
            return false;
        }
        // The old one is unloaded first.
        self.tracing = Tracing::Due;
        let own_tid = self.own_tid;
        let room = (count * 2).next_power_of_two().max(ROOM);
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let opened = WaitTracer::open(self.host, room, clock.now_ns()).and_then(|mut tracer| {
            tracer.add(own_tid, process::own_pu().0, clock.now_ns())?;
            Ok(tracer)
        });
        self.tracing = match opened {
            Ok(tracer) => Tracing::On(Box::new(tracer)),
            Err(error) => Tracing::Off(with_causes(&error)),
        };
        (self.totals, self.totals_ns) = (WaitTotals::default(), clock.now_ns());
        true
    }

    /// Begins to observe a thread, with its history of before if there is one; `None` if it has
    /// ended.
    fn watch(
        &mut self,
        pid: Tid,
        thread: Thread,
        old: Option<Watched>,
        clock: &dyn Clock,
    ) -> Result<Option<Watched>, HostError> {
        let tid = thread.task.tid;
        let (reader, last) = match &mut self.tracing {
            Tracing::On(tracer) => {
                let Some(traced) = Traced::add(tracer, self.host, thread.task, clock)? else {
                    return Ok(None);
                };
                (Reader::Traced(traced), ThreadWait::default())
            }
            Tracing::Due | Tracing::Off(_) => {
                let files = ProcReader::open(pid, tid)?;
                let last = files.last();
                (Reader::Files(Box::new(files)), last)
            }
        };
        let (waits, moves) = old.map(|old| (old.waits, old.moves)).unwrap_or_default();
        Ok(Some(Watched { thread, reader, last, waits, moves }))
    }

    fn read_totals(&mut self, now_ns: u64) {
        self.kernel_share = None;
        let Tracing::On(tracer) = &self.tracing else { return };
        let Ok(totals) = tracer.totals(self.host) else { return };
        let ran = totals.run_ns.saturating_sub(self.totals.run_ns);
        let interval = now_ns.saturating_sub(self.totals_ns);
        self.kernel_share =
            (totals.run_ns > 0 && interval > 0).then(|| ran as f64 / interval as f64);
        (self.totals, self.totals_ns) = (totals, now_ns);
    }

    /// The values of the BPF program; if they cannot be read, the files are read from now on.
    fn read_trace(&mut self, now_ns: u64) -> Option<WaitReading> {
        if self.kernel_share.is_none() {
            self.read_totals(now_ns);
        }
        let Tracing::On(tracer) = &mut self.tracing else { return None };
        match tracer.read(now_ns) {
            Ok(reading) => Some(reading),
            Err(error) => {
                self.tracing = Tracing::Off(with_causes(&error));
                self.own_ns = self.own_run_ns(None);
                for machine in &mut self.machines {
                    let pid = machine.pid;
                    machine.threads.retain_mut(|watched| watched.open_files(pid).is_ok());
                }
                None
            }
        }
    }

    /// Reads all threads. Those that have ended are left out.
    pub fn sample(&mut self, now_ns: u64) -> Snapshot {
        let interval_ns = now_ns.saturating_sub(self.last_ns).max(1);
        self.round += 1;
        let reading = self.read_trace(now_ns);
        let mut machines = Vec::new();
        let mut causes = HashMap::new();
        let mut ended = Vec::new();
        let mut index = 0;
        for machine in &mut self.machines {
            let mut threads = Vec::new();
            machine.threads.retain_mut(|watched| {
                index += 1;
                let is_due = index < TURN || (index + self.round).is_multiple_of(4);
                let since_ns = now_ns.saturating_sub(interval_ns);
                let found = match &mut watched.reader {
                    Reader::Files(files) => files.read(since_ns, is_due).ok(),
                    Reader::Traced(traced) => reading
                        .as_ref()
                        .and_then(|all| traced.read(all, self.host, watched.thread.task.tid)),
                };
                let Some(found) = found else {
                    ended.push(watched.thread.task.tid);
                    return false;
                };
                let sample = watched.sample(found, now_ns, interval_ns);
                let all = reading.as_ref().filter(|_| is_notable(&sample));
                let cause = all.and_then(|all| watched.cause(all));
                causes.extend(cause.map(|cause| (sample.tid, cause)));
                threads.push(sample);
                true
            });
            let throttled = machine.quotas.read(threads.iter().any(is_notable));
            machines.push(MachineSample {
                name: machine.name.clone(),
                pid: machine.pid.0,
                throttled_share: throttled.map(|ns| ns as f64 / interval_ns as f64),
                placement: machine.placement.clone(),
                exits_per_second: machine.exits.per_second,
                threads,
            });
        }
        self.remove_ended(ended);
        self.attribute(&mut machines, reading.as_ref(), &causes, interval_ns);
        let own_ns = self.own_run_ns(reading.as_ref());
        let own_share = own_ns.saturating_sub(self.own_ns) as f64 / interval_ns as f64;
        (self.own_ns, self.last_ns) = (own_ns, now_ns);
        let mut snapshot = Snapshot {
            format: FORMAT.to_owned(),
            at_ns: now_ns.saturating_sub(self.began_ns),
            interval_ns,
            method: Some(self.method()),
            own_share,
            kernel_share: self.kernel_share,
            lost: reading.map(|_| self.totals.lost),
            notes: self.notes.clone(),
            machines,
            ..Snapshot::default()
        };
        snapshot.sort();
        snapshot
    }

    fn remove_ended(&mut self, ended: Vec<Tid>) {
        if let Tracing::On(tracer) = &mut self.tracing {
            ended.into_iter().for_each(|tid| tracer.remove(tid));
        }
    }

    /// Names the cause of each notable wait: that of the BPF program, by thread, or else the task
    /// with the most CPU time.
    fn attribute(
        &mut self,
        machines: &mut [MachineSample],
        reading: Option<&WaitReading>,
        causes: &HashMap<u32, WaitCause>,
        interval_ns: u64,
    ) {
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
        // Read only if a cause is not known by BPF.
        let mut runners = None;
        for machine in machines {
            let throttled = machine.throttled_share.unwrap_or(0.0);
            for thread in machine.threads.iter_mut().filter(|thread| is_notable(thread)) {
                // What ran meanwhile did not keep it from running.
                let by_quota = (throttled / thread.ready_share.max(NOTABLE)).min(1.0);
                if by_quota > QUOTA {
                    thread.because_of = Some("the quota of its cgroup".to_owned());
                    thread.because_share = Some(by_quota);
                    continue;
                }
                if let Some(cause) = causes.get(&thread.tid) {
                    thread.because_of = Some(match owners.get(&cause.tid.0) {
                        Some(owner) => owner.clone(),
                        None if cause.tid == Tid(0) => "no task: the CPU was idle".to_owned(),
                        None => format!("{} ({})", escape::name(&cause.name), cause.tid),
                    });
                    let waited_ns = (thread.ready_share * interval_ns as f64).max(1.0);
                    let share = cause.ns as f64 / waited_ns;
                    thread.because_share = Some(share.min(1.0 - by_quota));
                    continue;
                }
                if reading.is_some_and(|all| !all.is_blind(thread.cpu)) {
                    continue;
                }
                let runners = runners.get_or_insert_with(|| self.top_tasks.read(self.host));
                let tasks = runners.get(&thread.cpu).into_iter().flatten();
                let other = tasks.into_iter().find(|(tid, _)| *tid != thread.tid);
                thread.because_of =
                    other.map(|(tid, name)| owners.get(tid).unwrap_or(name).clone());
            }
        }
    }
}

fn is_notable(thread: &ThreadSample) -> bool {
    thread.ready_share >= NOTABLE || thread.is_starving()
}

impl Traced {
    /// Adds a thread to the program, and reads what it does; `None` if it has ended.
    fn add(
        tracer: &mut WaitTracer,
        host: &dyn Host,
        task: TaskId,
        clock: &dyn Clock,
    ) -> Result<Option<Self>, HostError> {
        let path = paths::task_stat(task.tid, task.tid);
        let Some(stat) = proc_stat::at(host, &path)? else { return Ok(None) };
        tracer.add(task.tid, stat.processor, clock.now_ns())?;
        // What it begins after this is an event.
        let stat = proc_stat::at(host, &path)?.filter(|stat| stat.start_time == task.start_time);
        let Some(stat) = stat else {
            tracer.remove(task.tid);
            return Ok(None);
        };
        let first = if stat.state == 'R' { FirstState::Waiting } else { FirstState::Asleep };
        let run_ns = counted_run_ns(host, task.tid).unwrap_or(0);
        Ok(Some(Self { first, run_ns }))
    }

    /// What the program found; `None` if the thread has ended.
    fn read(&mut self, reading: &WaitReading, host: &dyn Host, tid: Tid) -> Option<ThreadWait> {
        let found = reading.thread(tid, self.first)?;
        // A thread that was runnable and has had no event has run or waited all the time. If no task
        // has come to its CPU either, its run time shows which.
        if self.first == FirstState::Waiting
            && reading.is_unseen(tid)
            && reading.is_blind(found.cpu)
            && counted_run_ns(host, tid).is_some_and(|run_ns| run_ns > self.run_ns)
        {
            self.first = FirstState::Running;
            return reading.thread(tid, self.first);
        }
        Some(found)
    }
}

/// The run time that the kernel has counted until its last tick.
fn counted_run_ns(host: &dyn Host, tid: Tid) -> Option<u64> {
    let text = host.read_text(&paths::task_schedstat(tid, tid)).ok()?;
    schedstat::parse(&text).ok().map(|stat| stat.run_ns)
}

impl Watched {
    /// Why it waited, as the BPF program found.
    fn cause(&self, reading: &WaitReading) -> Option<WaitCause> {
        let Reader::Traced(traced) = &self.reader else { return None };
        reading.cause(self.thread.task.tid, traced.first)
    }

    /// From now on its files are read.
    fn open_files(&mut self, pid: Tid) -> Result<(), HostError> {
        let files = ProcReader::open(pid, self.thread.task.tid)?;
        self.last = files.last();
        self.reader = Reader::Files(Box::new(files));
        Ok(())
    }

    /// The difference to what was found last.
    fn sample(&mut self, now: ThreadWait, now_ns: u64, interval_ns: u64) -> ThreadSample {
        let ran = now.run_ns.saturating_sub(self.last.run_ns);
        let waited = now.ready_ns.saturating_sub(self.last.ready_ns);
        self.waits.add(now_ns, now.longest_ns);
        self.moves.add(now_ns, now.moves.saturating_sub(self.last.moves));
        self.last = now;
        let waiting_ns = now.waiting_since_ns.map(|since| now_ns.saturating_sub(since));
        let longest = self.waits.numbers().max().unwrap_or(0);
        ThreadSample {
            tid: self.thread.task.tid.0,
            name: self.thread.name.clone(),
            role: self.thread.role.to_string(),
            cpu: now.cpu,
            run_share: ran as f64 / interval_ns as f64,
            ready_share: waited as f64 / interval_ns as f64,
            waiting_ns,
            worst_ns: longest.max(waiting_ns.unwrap_or(0)),
            moves: self.moves.numbers().sum(),
            because_of: None,
            because_share: None,
        }
    }
}

#[cfg(test)]
mod tests;
