//! Machines that users start by hand, placed once by the file of domains: `watch --domains`.
//!
//! The kernel reports no start of a process to an unprivileged reader of `/proc`, so the processes
//! are read every second. Domains of libvirt are left to its hook. A machine that has or had a
//! placement is left as it is: what its owner applied or undid wins.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_apply::Journals;
use pinfold_config::domains::{DomainSettings, Domains};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, paths, proc_stat};
use pinfold_model::TaskId;
use pinfold_model::text::count_noun;
use pinfold_vm::hypervisors::{self, VmProcess};
use pinfold_vm::{DiscoveredVm, threads};

use crate::apply_session::{self, OnStop, Placement};
use crate::domains::{self, KnownMachine};
use crate::helper_program::Session;
use crate::message::say;
use crate::start_lock::StartLock;
use crate::start_plan::{self, HostNow, Source, Started};
use crate::target::to_target;
use crate::{Exit, Failure, claims, end_waiter, inputs};

/// Interval of reading the processes.
const PAUSE_NS: u64 = 1_000_000_000;
/// Longest wait for another start; the next attempt follows after [`PAUSE_NS`].
const TIMEOUT_NS: u64 = 500_000_000;
/// Number of attempts: the threads of a machine exist a little later than its process.
const ATTEMPTS: u32 = 10;
const MONITOR_TIMEOUT_NS: u64 = 1_000_000_000;
/// The name that libvirt gives the monitor of each of its machines.
const LIBVIRT_MONITOR: &str = "charmonitor";

/// The file of domains as it last was without a fault.
struct DomainsFile<'a> {
    path: &'a str,
    domains: Domains,
    /// What was read last, or why it could not be read; `None` to read it again.
    seen: Option<Result<String, String>>,
}

impl<'a> DomainsFile<'a> {
    fn open(path: &'a str) -> Result<Self, Failure> {
        let text = Self::read(path)?;
        let domains = domains::parse_whole(path, &text)?;
        Ok(Self { path, domains, seen: Some(Ok(text)) })
    }

    fn read(path: &str) -> Result<String, Failure> {
        let text = domains::read_text(path);
        let text = text.map_err(|failure| Failure { exit: Exit::Input, ..failure })?;
        text.ok_or_else(|| {
            Failure::new(Exit::Input, format!("{path} does not exist"))
                .with_hint("docs/how-to/libvirt-hook.md describes its rows")
        })
    }

    /// True if the file has changed and is used now. One with a fault is reported once, and the
    /// rows that were read before stay.
    fn is_new(&mut self) -> bool {
        let read = Self::read(self.path);
        let seen = match &read {
            Ok(text) => Ok(text.clone()),
            Err(failure) => Err(failure.message.clone()),
        };
        if self.seen.as_ref() == Some(&seen) {
            return false;
        }
        self.seen = Some(seen);
        match read.and_then(|text| domains::parse_whole(self.path, &text)) {
            Ok(domains) => {
                self.domains = domains;
                let rows = count_noun(self.domains.rows.len(), "row");
                say(&format!("{} was read again: {rows}", self.path));
                true
            }
            Err(failure) => {
                let instead = "the rows that were read before stay in use";
                say(&domains::file_warning(failure, instead).to_string());
                false
            }
        }
    }
}

/// The machines that were found so far.
pub struct NewMachines<'a> {
    file: DomainsFile<'a>,
    /// Those that need no further attempt.
    settled: BTreeSet<TaskId>,
    attempts: BTreeMap<TaskId, u32>,
    next_ns: u64,
}

impl<'a> NewMachines<'a> {
    /// Places machines by the file at a path.
    ///
    /// # Errors
    /// [`Failure`] if it does not exist, is not safe, or has a fault, with file and line.
    pub fn new(path: &'a str) -> Result<Self, Failure> {
        let file = DomainsFile::open(path)?;
        Ok(Self { file, settled: BTreeSet::new(), attempts: BTreeMap::new(), next_ns: 0 })
    }

    /// Reads the file again at the next check, which is due now.
    pub fn forget(&mut self) {
        self.file.seen = None;
        self.next_ns = 0;
    }

    /// Time of the next check.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next_ns
    }

    /// Places the machines that were started since the last check. Failures are reported.
    ///
    /// # Errors
    /// [`Failure`] if the processes or the journals cannot be listed.
    pub fn check(
        &mut self,
        host: &LiveHost,
        session: Session<'_>,
        journals: &Journals<'_>,
    ) -> Result<(), Failure> {
        let now = SystemClock.now_ns();
        if now < self.next_ns {
            return Ok(());
        }
        self.next_ns = now.saturating_add(PAUSE_NS);
        if self.file.is_new() {
            self.settled.clear();
            self.attempts.clear();
        }
        let mut there = BTreeSet::new();
        for machine in hypervisors::list_vm_processes(host)? {
            let Some(stat) = proc_stat::read(host, machine.pid)? else { continue };
            let task = stat.task();
            there.insert(task);
            if !self.settled.contains(&task)
                && self.is_settled(host, session, journals, &machine)?
            {
                self.settled.insert(task);
            }
        }
        self.settled.retain(|task| there.contains(task));
        self.attempts.retain(|task, _| there.contains(task));
        Ok(())
    }

    /// True if the machine needs no further attempt.
    fn is_settled(
        &mut self,
        host: &LiveHost,
        session: Session<'_>,
        journals: &Journals<'_>,
        machine: &VmProcess,
    ) -> Result<bool, Failure> {
        let Some(stat) = proc_stat::read(host, machine.pid)? else { return Ok(true) };
        let task = stat.task();
        if is_of_libvirt(host, machine) || was_placed(journals, task)? {
            return Ok(true);
        }
        let name = machine.name_or_pid();
        let named = KnownMachine { name: &name, uuid: "", xml: None };
        let rows = Ok(Some(self.file.domains.clone()));
        let asked = domains::domain_request(named, self.file.path, rows);
        let attempts = self.attempts.entry(task).or_default();
        *attempts += 1;
        if *attempts == 1 {
            asked.findings.iter().for_each(|finding| say(&finding.to_string()));
            if asked.is_excluded {
                let why = domains::exclusion(&asked.origin);
                say(&format!("{name} (process {}) is not placed: {why}", task.tid));
            }
        }
        let Some(settings) = asked.settings else { return Ok(true) };
        let newcomer = Newcomer { machine, name: &name, settings: &settings };
        match place(host, session, journals, &newcomer) {
            Ok(()) => {
                say(&format!("{name} (process {}) was placed: {}", task.tid, asked.origin));
                Ok(true)
            }
            Err(failure) if *attempts >= ATTEMPTS => {
                say(&format!("{name} (process {}) was not placed: {failure}", task.tid));
                Ok(true)
            }
            Err(_) => Ok(false),
        }
    }
}

/// A machine that is to be placed, and what people wrote for its name.
struct Newcomer<'m> {
    machine: &'m VmProcess,
    name: &'m str,
    settings: &'m DomainSettings,
}

fn place(
    host: &LiveHost,
    session: Session<'_>,
    journals: &Journals<'_>,
    newcomer: &Newcomer<'_>,
) -> Result<(), Failure> {
    let Newcomer { machine, name, settings } = *newcomer;
    let found = find(host, machine)?;
    let expected = machine.spec.vcpus.unwrap_or(1);
    if found.vcpus < expected {
        let text = format!("{} of {expected} vCPUs have a thread", found.vcpus);
        return Err(Failure::new(Exit::Vm, text));
    }
    let topology = inputs::topology(host, None)?;
    let Some(starting) = StartLock::wait_at_most(session.state, TIMEOUT_NS)? else {
        return Err(Failure::new(Exit::Host, "another process is starting a placement"));
    };
    let claims = claims::read(host, Some(journals))?;
    let claims = claims.without_machine(host, found.pid, name);
    let now = HostNow { host, topology: &topology, claims: &claims };
    let source = Source::CommandLine(&machine.spec);
    let started = Started { name, found: &found, source };
    let (mut plan, findings) = start_plan::plan(&started, settings, &now)?;
    name.clone_into(&mut plan.vnodes[0].name);
    if pinfold_plan::has_pins(&plan) {
        found.require_own_threads()?;
    }
    for finding in findings.iter().chain(&plan.findings) {
        say(&finding.to_string());
    }
    let target = to_target(&found);
    let placement = Placement { plan: &plan, target: &target };
    let (applied, journal) = apply_session::apply(host, placement, journals, OnStop::Undo)?;
    drop(starting);
    apply_session::report(&applied);
    end_waiter::start(session.program, journals, &plan, &journal);
    Ok(())
}

/// The threads of a machine, by their names, or by its monitor if they have none.
fn find(host: &LiveHost, machine: &VmProcess) -> Result<DiscoveredVm, Failure> {
    let found = threads::discover(host, machine.pid, None)?;
    let Some(socket) = &machine.socket else { return Ok(found) };
    if found.vcpus >= machine.spec.vcpus.unwrap_or(1) {
        return Ok(found);
    }
    let mut monitor = machine.hypervisor.connect(socket, MONITOR_TIMEOUT_NS)?;
    Ok(threads::find(host, &mut *monitor)?)
}

fn is_of_libvirt(host: &LiveHost, machine: &VmProcess) -> bool {
    // One that cannot be read is not placed either.
    host.read_text(&paths::process_cmdline(machine.pid))
        .map_or(true, |words| words.contains(LIBVIRT_MONITOR))
}

/// True if a machine has or had a placement.
fn was_placed(journals: &Journals<'_>, task: TaskId) -> Result<bool, Failure> {
    let all = journals.list()?;
    let mut records = all.iter().filter_map(|summary| summary.record.as_ref().ok()?.as_ref());
    Ok(records.any(|record| record.header.vm == task))
}
