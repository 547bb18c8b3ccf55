//! Time that the threads of each role spent in `futex(2)`, by lock and by call site.
//!
//! An emulator with lock contention between its vCPUs spends its time there (Badaroux 2021 §V.E: 70
//! % in futex at many cores). A call is for a *lock* if it is `FUTEX_LOCK_PI`, or waits for a word
//! with the value 2: the mutexes of the C libraries wait in this way. Every other wait is for a
//! condition or an event. For example, an idle vCPU waits in this way for its guest, and that is
//! not contention.
//!
//! Call sites are unwound with the program's frame pointers. Code compiled without them (such as
//! most distributions' QEMU) gives stacks that end early or are invalid: then only the innermost
//! address is reliable, and [`CallSites::frame_pointers`] says so. If the innermost code is in a C
//! library without frame pointers, the function that called it is missing in the stack.

mod figures;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use pinfold_host::{
    FutexCallSite, FutexKind, FutexReading, FutexTracer, Host, HostError, with_causes,
};
use pinfold_model::{Role, TaskId, Tid};

use crate::symbols::{Symbols, Table};
use crate::traced_threads::TracedThreads;
pub use crate::traced_threads::WatchError;
pub use figures::kind_name;

/// Number of calls and time in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallTime {
    /// Number of calls that returned.
    pub count: u64,
    /// Time in them, and in calls that had not returned (ns).
    pub sum_ns: u64,
    /// The longest call, including those that had not returned (ns).
    pub max_ns: u64,
    /// Calls that returned at once because the value had changed (`EAGAIN`).
    pub again: u64,
    /// Calls that had not returned at the end of the observation.
    pub open: u64,
}

impl CallTime {
    fn add(&mut self, other: CallTime) {
        self.count += other.count;
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
        self.again += other.again;
        self.open += other.open;
    }
}

/// The calls of one role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleLocks {
    /// Role of the threads.
    pub role: Role,
    /// Number of its threads: those at the start, and later ones that made calls.
    pub threads: u32,
    /// The calls by kind of futex operation.
    pub spent: BTreeMap<FutexKind, CallTime>,
}

impl RoleLocks {
    /// Share of the threads' time that they spent in calls of this kind, 0 to 1; `None` without
    /// time.
    pub fn share(&self, kind: FutexKind, duration_ns: u64) -> Option<f64> {
        let time = duration_ns as f64 * f64::from(self.threads);
        let spent = self.spent.get(&kind).copied().unwrap_or_default();
        (time > 0.0).then(|| spent.sum_ns as f64 / time)
    }
}

/// The calls for one futex word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockWord {
    /// Process of the address space.
    pub process: Tid,
    /// Address of the word.
    pub address: u64,
    /// Name of the variable at this address, if it is known.
    pub name: Option<String>,
    /// Kind of the calls.
    pub kind: FutexKind,
    /// All calls for the word.
    pub spent: CallTime,
    /// The calls by role.
    pub roles: BTreeMap<Role, CallTime>,
}

/// The waits at one call site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallSite {
    /// Kind of the waits.
    pub kind: FutexKind,
    /// The functions, the innermost first; those without a name as file and address.
    pub frames: Vec<String>,
    /// Number and duration of the waits.
    pub spent: CallTime,
}

/// Whether the stacks are reliable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramePointers {
    /// The stacks of at least nine in ten waits have only code addresses, and three functions or
    /// more.
    Kept,
    /// The stacks are not reliable, except the innermost address of each.
    Omitted,
}

/// The waits by call site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallSites {
    /// The call sites, by descending time.
    pub sites: Vec<CallSite>,
    /// Whether the stacks are reliable; `None` if there was no stack.
    pub frame_pointers: Option<FramePointers>,
    /// Which symbols each file in the stacks has.
    pub tables: BTreeMap<String, Table>,
    /// Number of waits whose stack could not be recorded.
    pub missing: u64,
}

/// The result of an observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locks {
    /// Length of the observation (ns).
    pub duration_ns: u64,
    /// The calls of each role, by ascending role; roles without calls are included.
    pub roles: Vec<RoleLocks>,
    /// The futex words, by descending time; wake operations are not included.
    pub words: Vec<LockWord>,
    /// Call sites, if they were requested.
    pub sites: Option<CallSites>,
    /// What is missing in the result, as sentences.
    pub lost: Vec<String>,
}

/// An observation in progress.
#[derive(Debug)]
pub struct Watching {
    watched: TracedThreads,
    watch: FutexTracer,
    symbols: BTreeMap<Tid, Symbols>,
    stacks: bool,
}

/// Why futex calls cannot be observed.
#[derive(Debug, thiserror::Error)]
pub enum LocksError {
    /// There is no thread to observe, or the host cannot be read.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// BPF, the only method, is refused.
    #[error("lock contention cannot be seen here: {why}")]
    Unavailable {
        /// The error of the kernel.
        why: String,
    },
}

impl From<HostError> for LocksError {
    fn from(error: HostError) -> Self {
        LocksError::Watch(error.into())
    }
}

/// Starts to observe the processes of these threads, including their later threads, with or without
/// the stacks of the waits.
///
/// # Errors
/// [`LocksError`].
pub fn start(
    host: &dyn Host,
    threads: &[(TaskId, Role)],
    stacks: bool,
) -> Result<Watching, LocksError> {
    let watched = TracedThreads::read(host, threads)?;
    if !host.is_live() {
        let why = "this is not the running machine".to_owned();
        return Err(LocksError::Unavailable { why });
    }
    let processes = watched.processes();
    let mut symbols = BTreeMap::new();
    for process in &processes {
        match Symbols::read(host, *process) {
            Ok(one) => {
                symbols.insert(*process, one);
            }
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error.into()),
        }
    }
    let watch = FutexTracer::open(host, &processes, stacks)
        .map_err(|error| LocksError::Unavailable { why: with_causes(&error) })?;
    Ok(Watching { watched, watch, symbols, stacks })
}

impl Watching {
    /// Ends the observation.
    ///
    /// # Errors
    /// [`HostError`] if the counts cannot be read.
    pub fn stop(self, host: &dyn Host) -> Result<Locks, HostError> {
        let reading = self.watch.close(host)?;
        let mut symbols = self.symbols;
        for (process, known) in &mut symbols {
            match Symbols::read(host, *process) {
                Ok(later) => known.refresh(later),
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(of_reading(host, &self.watched, &reading, &mut symbols, self.stacks))
    }
}

/// All calls, returned or not, in one form.
fn calls(reading: &FutexReading) -> Vec<(FutexCallSite, CallTime)> {
    let mut calls: Vec<_> =
        reading.places.iter().map(|one| (one.clone(), time_spent(one))).collect();
    for open in &reading.open {
        let place = FutexCallSite {
            process: open.process,
            tid: open.tid,
            address: open.address,
            kind: open.kind,
            stack: open.stack.clone(),
            count: 0,
            sum_ns: 0,
            max_ns: 0,
            again: 0,
        };
        calls.push((
            place,
            CallTime { sum_ns: open.ns, max_ns: open.ns, open: 1, ..CallTime::default() },
        ));
    }
    calls
}

fn time_spent(one: &FutexCallSite) -> CallTime {
    CallTime { count: one.count, sum_ns: one.sum_ns, max_ns: one.max_ns, again: one.again, open: 0 }
}

fn of_reading(
    host: &dyn Host,
    watched: &TracedThreads,
    reading: &FutexReading,
    symbols: &mut BTreeMap<Tid, Symbols>,
    stacks: bool,
) -> Locks {
    let mut members: BTreeMap<Role, Vec<Tid>> = BTreeMap::new();
    for (task, role) in &watched.threads {
        members.entry(role.clone()).or_default().push(task.tid);
    }
    let mut spent: BTreeMap<Role, BTreeMap<FutexKind, CallTime>> = BTreeMap::new();
    let mut words: BTreeMap<(Tid, u64, FutexKind), LockWord> = BTreeMap::new();
    let calls = calls(reading);
    for (place, of_call) in &calls {
        let role = watched.role(place.tid).cloned();
        let role = role.unwrap_or_else(|| watched.role_of_others(place.process));
        let known = members.entry(role.clone()).or_default();
        if !known.contains(&place.tid) {
            known.push(place.tid);
        }
        spent.entry(role.clone()).or_default().entry(place.kind).or_default().add(*of_call);
        if place.kind == FutexKind::Wake {
            continue;
        }
        let key = (place.process, place.address, place.kind);
        let word = words.entry(key).or_insert_with(|| LockWord {
            process: place.process,
            address: place.address,
            name: None,
            kind: place.kind,
            spent: CallTime::default(),
            roles: BTreeMap::new(),
        });
        word.spent.add(*of_call);
        word.roles.entry(role).or_default().add(*of_call);
    }
    let mut words: Vec<LockWord> = words.into_values().collect();
    for word in &mut words {
        let place = symbols.get_mut(&word.process).and_then(|one| one.place(host, word.address));
        word.name = place.filter(|place| place.symbol.is_some()).map(|place| place.to_string());
    }
    words.sort_by(|one, other| {
        other.spent.sum_ns.cmp(&one.spent.sum_ns).then(one.address.cmp(&other.address))
    });
    Locks {
        duration_ns: reading.ended_ns.saturating_sub(reading.began_ns),
        roles: members
            .into_iter()
            .map(|(role, tids)| RoleLocks {
                threads: u32::try_from(tids.len()).unwrap_or(u32::MAX),
                spent: spent.remove(&role).unwrap_or_default(),
                role,
            })
            .collect(),
        words,
        sites: stacks.then(|| sites(host, &calls, reading.stackless, symbols)),
        lost: find_lost(watched, reading),
    }
}

fn find_lost(watched: &TracedThreads, reading: &FutexReading) -> Vec<String> {
    let mut lost = Vec::new();
    report(watched.gone.into(), "threads had exited before the observation began", &mut lost);
    report(reading.lost, "calls that exceeded the table size", &mut lost);
    report(
        reading.unseen,
        "calls whose beginning was not seen, mostly those under way at the start",
        &mut lost,
    );
    report(
        reading.missed,
        "events of the host that occurred while another BPF program ran on their CPU",
        &mut lost,
    );
    lost
}

fn report(count: u64, what: &str, lost: &mut Vec<String>) {
    if count > 0 {
        lost.push(format!("{count} {what}"));
    }
}

/// Sums the waits by the names of their frames.
fn sites(
    host: &dyn Host,
    calls: &[(FutexCallSite, CallTime)],
    missing: u64,
    symbols: &mut BTreeMap<Tid, Symbols>,
) -> CallSites {
    let mut sites: BTreeMap<(FutexKind, Vec<String>), CallTime> = BTreeMap::new();
    let mut tables = BTreeMap::new();
    let (mut stacks, mut whole) = (0_u64, 0_u64);
    for (place, spent) in calls.iter().filter(|(place, _)| !place.stack.is_empty()) {
        let Some(symbols) = symbols.get_mut(&place.process) else { continue };
        let code = place.stack.iter().take_while(|address| symbols.is_code(**address)).count();
        let calls = spent.count + spent.open;
        stacks += calls;
        // Any code gives two frames: the instruction pointer, and the address at the frame
        // register.
        if code == place.stack.len() && code > 2 {
            whole += calls;
        }
        let mut frames = Vec::new();
        for address in place.stack.iter().take(code.max(1)) {
            // A return address may belong to the next function; the byte before it does not.
            let found = symbols.place(host, address.saturating_sub(1));
            let file = symbols.file_of(*address).map(str::to_owned);
            if let Some(file) = file {
                let table = symbols.table(host, &file);
                tables.insert(file, table);
            }
            frames.push(found.map_or_else(|| format!("{address:#x}"), |place| function(&place)));
        }
        sites.entry((place.kind, frames)).or_default().add(*spent);
    }
    let mut sites: Vec<CallSite> =
        sites.into_iter().map(|((kind, frames), spent)| CallSite { kind, frames, spent }).collect();
    sites.sort_by_key(|site| std::cmp::Reverse(site.spent.sum_ns));
    let kept = whole.saturating_mul(10) >= stacks.saturating_mul(9);
    let verdict = if kept { FramePointers::Kept } else { FramePointers::Omitted };
    CallSites { sites, frame_pointers: (stacks > 0).then_some(verdict), tables, missing }
}

/// The function's name; all calls from one function are counted together.
fn function(place: &crate::symbols::CodeLocation) -> String {
    match &place.symbol {
        Some((name, _)) => name.clone(),
        None => place.to_string(),
    }
}
