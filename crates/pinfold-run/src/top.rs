//! `pinfold top`: which machines run, and what their threads wait for.

use std::collections::HashMap;

use pinfold_claims::{Claims, render};
use pinfold_host::files::{self, FileReader, NewFile, StateDir};
use pinfold_host::{Clock as _, LiveHost, SystemClock, paths, proc_stat, process};
use pinfold_model::text::count_noun;
use pinfold_model::{Tid, Topology, escape};
use pinfold_top::{Machine, RecordError, Replay, Sampler, Snapshot, Thread, VnodeSample, to_line};
use pinfold_vm::{VmThread, hypervisors, threads};
use serde::Deserialize;

use crate::emulate::ipc::{self, SupervisorRequest};
use crate::metrics::kernel;
use crate::{Exit, Failure, claims, host, inputs, status};

const SECOND_NS: u64 = 1_000_000_000;
/// Snapshots after which machines, new threads and placements are looked up again.
const REFRESH: u64 = 5;
/// Snapshots after which the claims are read again, which costs more than all the rest.
const CLAIMS: u64 = 30;
/// Snapshots after which the threads of each machine are searched for even if their number has not
/// changed.
const SEARCH: u64 = 60;
/// Columns for which the map of claims is made.
const COLUMNS: usize = 80;

/// Where the snapshots come from.
pub trait Source {
    /// The next snapshot, when it is due.
    ///
    /// # Errors
    /// [`Failure`] if the host or the record cannot be read.
    fn read_next(&mut self) -> Result<Option<Snapshot>, Failure>;

    /// True if it does not wait for the viewer: what is not read in time is not measured.
    fn is_live(&self) -> bool;
}

/// Who looks at them.
pub trait Viewer {
    /// Waits until this time of the monotonic clock; false if the user ends the command.
    ///
    /// # Errors
    /// [`Failure`] if the terminal cannot be used.
    fn wait(&mut self, until_ns: u64, is_live: bool) -> Result<bool, Failure>;

    /// Shows a snapshot; false if there shall be no further one.
    ///
    /// # Errors
    /// As [`Self::wait`].
    fn show(&mut self, snapshot: Snapshot) -> Result<bool, Failure>;

    /// The source has no more snapshots.
    ///
    /// # Errors
    /// As [`Self::wait`].
    fn end(&mut self) -> Result<(), Failure>;
}

/// Shows the snapshots of a source until it or the viewer ends.
///
/// # Errors
/// Those of both.
pub fn observe(source: &mut dyn Source, viewer: &mut dyn Viewer) -> Result<(), Failure> {
    let mut next_ns = SystemClock.now_ns();
    let mut length_ns = if source.is_live() { SECOND_NS } else { 0 };
    loop {
        next_ns = next_ns.saturating_add(length_ns).max(SystemClock.now_ns());
        if !viewer.wait(next_ns, source.is_live())? {
            return Ok(());
        }
        let Some(snapshot) = source.read_next()? else { return viewer.end() };
        length_ns = if source.is_live() { SECOND_NS } else { snapshot.interval_ns.min(SECOND_NS) };
        if !viewer.show(snapshot)? {
            return Ok(());
        }
    }
}

/// The machines of this host, once per second.
#[derive(Debug)]
pub struct LiveSource<'h> {
    host: &'h LiveHost,
    state: Option<&'h str>,
    topology: Topology,
    sampler: Sampler<'h>,
    record: Option<NewFile>,
    round: u64,
    has_platform: bool,
    known: HashMap<Tid, KnownMachine>,
}

/// The threads of a machine, as found last.
#[derive(Debug)]
struct KnownMachine {
    start_time: u64,
    /// Number of threads of its process.
    count: u32,
    threads: Vec<Thread>,
}

impl<'h> LiveSource<'h> {
    /// Begins; with a record each snapshot is also added to that new file.
    ///
    /// # Errors
    /// [`Failure`] if the host cannot be read or the file cannot be created.
    pub fn new(
        host: &'h LiveHost,
        state: Option<&'h str>,
        record: Option<&str>,
    ) -> Result<Self, Failure> {
        let mut source = Self {
            host,
            state,
            topology: inputs::topology(host, None)?,
            sampler: Sampler::new(host, SystemClock.now_ns()),
            record: record.map(create_record).transpose()?,
            round: 0,
            has_platform: false,
            known: HashMap::new(),
        };
        source.refresh()?;
        Ok(source)
    }

    fn refresh(&mut self) -> Result<(), Failure> {
        if self.round.is_multiple_of(SEARCH) {
            self.known.clear();
        }
        let state = host::state_path(self.state)?;
        let (machines, notes) = find_machines(self.host, &state, &mut self.known)?;
        self.sampler.set_machines(machines, notes, &SystemClock);
        Ok(())
    }

    /// The map of claims; without it, why.
    fn claims(&self) -> Vec<String> {
        let claims: Claims = match claims::of_existing(self.host, self.state) {
            Ok(claims) => claims,
            Err(failure) => return vec![format!("the claims cannot be read: {}", failure.message)],
        };
        let text = render::claims(&claims, &self.topology, Some(COLUMNS));
        text.lines().map(str::to_owned).collect()
    }

    /// The CPUs of the vnodes, if a platform is up.
    fn vnodes(&mut self) -> Result<Vec<VnodeSample>, Failure> {
        self.has_platform = false;
        let Some(state) = host::existing_state(self.state)? else { return Ok(Vec::new()) };
        let speeds = read_speeds(&state)?;
        self.has_platform = speeds.is_some();
        Ok(speeds.unwrap_or_default())
    }
}

/// The CPUs of the vnodes of the platform that is up; `None` if none is.
///
/// # Errors
/// [`Failure`] if its supervisor does not answer as expected.
pub fn read_speeds(state: &StateDir) -> Result<Option<Vec<VnodeSample>>, Failure> {
    let Some(answer) = ipc::ask(state, &SupervisorRequest::Status)? else { return Ok(None) };
    let status: PlatformStatus = serde_json::from_value(answer.status()?)
        .map_err(|error| Failure::from_error(Exit::Host, &error, None))?;
    Ok(Some(status.vnodes.into_iter().flat_map(VnodeStatus::into_samples).collect()))
}

/// What is shown of the status of a platform.
#[derive(Deserialize)]
struct PlatformStatus {
    vnodes: Vec<VnodeStatus>,
}

#[derive(Deserialize)]
struct VnodeStatus {
    vnode: String,
    cores: Vec<CoreStatus>,
}

#[derive(Deserialize)]
struct CoreStatus {
    pu: u32,
    asked: f64,
    got: Option<f64>,
}

impl VnodeStatus {
    fn into_samples(self) -> impl Iterator<Item = VnodeSample> {
        let name = self.vnode;
        self.cores.into_iter().map(move |core| VnodeSample {
            name: name.clone(),
            cpu: core.pu,
            requested: core.asked,
            achieved: core.got,
        })
    }
}

impl Source for LiveSource<'_> {
    fn read_next(&mut self) -> Result<Option<Snapshot>, Failure> {
        let is_due = self.round.is_multiple_of(REFRESH);
        let mut snapshot = self.sampler.sample(SystemClock.now_ns());
        if is_due || self.has_platform {
            match self.vnodes() {
                Ok(vnodes) => snapshot.vnodes = vnodes,
                Err(failure) => {
                    let note = format!("the vnodes cannot be read: {}", failure.message);
                    snapshot.notes.push(note);
                }
            }
        }
        if is_due {
            self.refresh()?;
        }
        if self.round.is_multiple_of(CLAIMS) {
            snapshot.claims = self.claims();
        }
        self.round += 1;
        if let Some(record) = &mut self.record {
            record.append(json_line(&snapshot)?.as_bytes())?;
        }
        Ok(Some(snapshot))
    }

    fn is_live(&self) -> bool {
        true
    }
}

/// Creates the file of a record.
///
/// # Errors
/// [`Failure`] if it exists or cannot be created.
pub fn create_record(path: &str) -> Result<NewFile, Failure> {
    NewFile::create(path).map_err(|error| {
        Failure::from_error(Exit::Input, &error, None).with_hint(
            "--record creates its file and overwrites none: name one that does not exist",
        )
    })
}

/// Refuses the path of a record that exists, before anything is measured for it.
///
/// # Errors
/// As [`create_record`] then.
pub fn refuse_existing_record(path: &str) -> Result<(), Failure> {
    if files::exists(path) { create_record(path).map(|_| ()) } else { Ok(()) }
}

/// A snapshot as a line of JSON.
///
/// # Errors
/// [`Failure`] if a number of it is not finite.
pub fn json_line(snapshot: &Snapshot) -> Result<String, Failure> {
    to_line(snapshot).map_err(|error| Failure::from_error(Exit::Host, &error, None))
}

/// The snapshots of a record.
#[derive(Debug)]
pub struct RecordSource {
    path: String,
    replay: Replay<FileReader>,
}

impl RecordSource {
    /// Opens a record.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be opened.
    pub fn open(path: &str) -> Result<Self, Failure> {
        let file = files::open(path).map_err(|error| inputs::input_failure(&error))?;
        Ok(Self { path: path.to_owned(), replay: Replay::new(file) })
    }

    fn failure(&self, error: &RecordError) -> Failure {
        Failure::new(Exit::Input, format!("{}: {error}", escape::name(&self.path)))
            .with_hint("`pinfold top --record FILE` writes records")
    }
}

impl Source for RecordSource {
    fn read_next(&mut self) -> Result<Option<Snapshot>, Failure> {
        self.replay.read_next().map_err(|error| self.failure(&error))
    }

    fn is_live(&self) -> bool {
        false
    }
}

/// The running machines with their threads and the states of their placements, and what could not
/// be read. The threads of a machine that is known and has as many as before are not searched for.
fn find_machines(
    host: &LiveHost,
    state: &str,
    known: &mut HashMap<Tid, KnownMachine>,
) -> Result<(Vec<Machine>, Vec<String>), Failure> {
    let mut notes = Vec::new();
    let placements = placements(host, state, &mut notes);
    let mut machines = Vec::new();
    let mut before = std::mem::take(known);
    for machine in hypervisors::list_vm_processes(host)? {
        let pid = machine.pid;
        let Ok(Some(stat)) = proc_stat::at(host, &paths::task_stat(pid, pid)) else { continue };
        let same = before
            .remove(&pid)
            .filter(|old| old.start_time == stat.start_time && old.count == stat.threads);
        let found = match same {
            Some(old) => old.threads,
            None => match threads::discover(host, pid, None) {
                Ok(found) => found.threads.into_iter().map(thread_of).collect(),
                Err(error) if error.is_gone() => continue,
                Err(error) => {
                    notes.push(format!("process {pid} is not shown: {error}"));
                    continue;
                }
            },
        };
        let placement = placements.iter().find(|placement| placement.process == pid);
        machines.push(Machine {
            name: machine.name_or_pid(),
            pid,
            threads: found.clone(),
            placement: placement.map(|placement| placement.state.to_owned()),
            exits: kernel::exit_count(host, pid),
        });
        let now = KnownMachine { start_time: stat.start_time, count: stat.threads, threads: found };
        known.insert(pid, now);
    }
    if !process::is_root() {
        notes.push("machines of other users are not shown; root can see them".to_owned());
    }
    Ok((machines, notes))
}

fn thread_of(thread: VmThread) -> Thread {
    let name = escape::name(&thread.name).to_string();
    Thread { task: thread.task, role: thread.role, name }
}

/// The placement of a process.
struct PlacementState {
    process: Tid,
    state: &'static str,
}

/// The state of the placement of each process. What cannot be read is added to `notes`.
fn placements(host: &LiveHost, state: &str, notes: &mut Vec<String>) -> Vec<PlacementState> {
    let found = match status::find(host, state) {
        Ok(found) => found,
        Err(failure) => {
            notes.push(format!("the placements cannot be read: {}", failure.message));
            return Vec::new();
        }
    };
    for damaged in &found.damaged {
        let id = escape::name(&damaged.id);
        notes.push(format!("placement {id} cannot be read: {}", damaged.failure.message));
    }
    if !found.lost.is_empty() {
        let lost = count_noun(found.lost.len(), "placement");
        notes.push(format!("{lost} without a journal; `pinfold status` shows more"));
    }
    found
        .placements
        .iter()
        .map(|one| PlacementState {
            process: one.process,
            state: if one.is_as_planned() { "as planned" } else { "drifted" },
        })
        .collect()
}
