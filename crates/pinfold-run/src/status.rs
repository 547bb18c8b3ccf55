//! The active placements and platforms, compared with their plans.

mod document;

pub use document::StatusDocument;
use pinfold_apply::page_tables::MachineTables;
use pinfold_apply::{
    Counter, Journals, LostPlacement, Record, RoleStatus, Status, Target, TunableStatus,
};
use pinfold_claims::SharedCpus;
use pinfold_host::files::StateDir;
use pinfold_host::{LiveHost, SystemClock, process};
use pinfold_model::{Command, CpuSet, Finding, Plan, Role, Severity, TaskId, Tid, escape};
use pinfold_vm::hypervisors;

use crate::booting::BootingMachine;
use crate::claims::{self, Claims, USED_TWICE};
use crate::emulate::status::{is_platform, is_reachable};
use crate::target::threads_by_journal;
use crate::undo::EndedPlacement;
use crate::{Exit, Failure, booting, ended_placements, host, replan, undo, watched};

/// One active placement.
pub struct ActivePlacement {
    /// Id of the apply.
    pub id: String,
    /// Name of the machine or group.
    pub vm_name: String,
    /// Process of the machine, or of the group's command.
    pub process: Tid,
    /// The plan.
    pub plan: Plan,
    /// True if its apply or its undo was broken off, or its process has ended although it had to
    /// revert it.
    pub is_left: bool,
    /// True if it changed the definition of its domain (`--config`), also for the next start.
    pub is_in_definition: bool,
    /// `None` if the machine has ended.
    pub status: Option<Status>,
    /// The tunables that were set.
    pub tunables: Vec<TunableStatus>,
    /// Cgroups that are missing.
    pub vanished: Vec<Finding>,
    /// Counters of monitoring groups.
    pub counters: Vec<Counter>,
    /// Page tables of the machine; `None` if it has ended.
    pub tables: Option<MachineTables>,
    /// True if the process that applied it lives.
    pub supervised: bool,
    /// True if `pinfold watch` monitors it.
    pub watched: bool,
    /// The process that monitors it, if that process is stopped.
    pub stopped: Option<Tid>,
}

impl ActivePlacement {
    /// Where its page tables are, and a warning if they are far from its memory; nothing on a host
    /// with one node.
    pub fn page_tables(&self) -> Option<(String, Option<Finding>)> {
        let tables = self.tables.as_ref().filter(|tables| tables.has_choice())?;
        let memory = self.plan.vnodes.first().and_then(|vnode| vnode.memory.as_ref());
        let far = memory.and_then(|memory| tables.remote_tables_warning(&memory.nodes));
        Some((tables.to_string(), far))
    }

    /// True if all threads of a role have ended.
    fn has_ended(&self, role: &Role) -> bool {
        let roles = self.status.iter().flat_map(|status| &status.roles);
        let mut own = roles.filter(|one| one.role == *role).peekable();
        own.peek().is_some() && own.all(|one| one.found.is_none())
    }

    /// The plan with the CPUs that its threads really have: another placement may have isolated some
    /// of those that a role shares with others, and a program may have moved threads.
    /// What ended uses no CPU.
    fn plan_as_found(&self, host: &LiveHost) -> Plan {
        let mut plan = claims::without_ended(host, &self.plan);
        let roles = self.status.iter().flat_map(|status| &status.roles);
        // A vCPU that was moved to one CPU should have it alone, as one that is planned there.
        let is_place = |role: &RoleStatus| {
            role.ok || role.role.is_vcpu() && role.found.as_ref().is_some_and(|one| one.len() == 1)
        };
        let (roles, drifted): (Vec<_>, Vec<_>) = roles.partition(|role| is_place(role));
        let drifted = drifted.into_iter().filter_map(|one| Some((one.task, one.found.clone()?)));
        plan.moved.extend(drifted);
        for vnode in &mut plan.vnodes {
            vnode.threads.retain(|thread| !self.has_ended(&thread.role));
        }
        for thread in plan.vnodes.iter_mut().flat_map(|vnode| &mut vnode.threads) {
            let mut found = CpuSet::new();
            for role in roles.iter().filter(|role| role.role == thread.role) {
                role.found.iter().for_each(|cpus| found.add(cpus));
            }
            if !found.is_empty() {
                thread.pus = found;
            }
        }
        plan
    }

    /// True if `wanted` is its ID, or the name or process ID of its machine or group.
    fn is_named(&self, wanted: &str) -> bool {
        self.id == wanted || self.vm_name == wanted || wanted.parse() == Ok(self.process.0)
    }

    /// True if another placement uses a CPU that one of the two keeps exclusively.
    pub fn shares_a_cpu(&self) -> bool {
        self.used_twice().next().is_some()
    }

    /// The warnings about CPUs that another owner uses too.
    pub fn used_twice(&self) -> impl Iterator<Item = &Finding> {
        let dangers = self.status.iter().flat_map(|status| &status.dangers);
        dangers.filter(|danger| danger.subject == USED_TWICE)
    }

    /// True if nothing has drifted.
    pub fn is_as_planned(&self) -> bool {
        self.status.as_ref().is_some_and(Status::is_as_planned)
            && !self.is_left
            && self.tunables.iter().all(|tunable| tunable.ok)
            && self.vanished.iter().all(|finding| finding.severity == Severity::Note)
    }
}

/// A journal that cannot be read; the others are still shown.
pub struct DamagedJournal {
    /// Id of the journal.
    pub id: String,
    /// Why it cannot be read.
    pub failure: Failure,
}

/// A platform of vnodes that is active.
pub struct ActivePlatform {
    /// Id of its journal.
    pub id: String,
    /// The process that slows it.
    pub supervisor: Tid,
    /// True if `emulate status` and `emulate down` can access it.
    pub answers: bool,
    /// True if the supervisor lives.
    pub is_alive: bool,
}

/// What the journals have.
#[derive(Default)]
pub struct Found {
    /// The active placements.
    pub placements: Vec<ActivePlacement>,
    /// Journals that cannot be read.
    pub damaged: Vec<DamagedJournal>,
    /// The active platforms.
    pub platforms: Vec<ActivePlatform>,
    /// Active placements whose journal is missing or wrong.
    pub lost: Vec<LostPlacement>,
    /// The placements that ended.
    pub ended: Vec<EndedPlacement>,
    /// The machines that boot before they are placed.
    pub booting: Vec<BootingMachine>,
}

impl Found {
    /// Keeps what has this ID or belongs to the machine or group with this name or process ID.
    ///
    /// # Errors
    /// If nothing has it: what is known about a machine with this name.
    pub fn retain_named(&mut self, host: &LiveHost, wanted: &str) -> Result<(), Failure> {
        let is_any = !self.placements.is_empty();
        self.placements.retain(|one| one.is_named(wanted));
        self.damaged.retain(|one| one.id == wanted);
        self.platforms.retain(|one| one.id == wanted);
        self.booting.retain(|one| one.name == wanted || wanted.parse() == Ok(one.process.tid.0));
        self.lost.retain(|one| one.id() == wanted || (wanted.parse() == Ok(one.process.tid.0)));
        if self.placements.is_empty()
            && self.damaged.is_empty()
            && self.platforms.is_empty()
            && self.lost.is_empty()
            && self.booting.is_empty()
        {
            return Err(self
                .not_placed(host, wanted)?
                .unwrap_or_else(|| undo::unknown_placement_failure(wanted, is_any, &self.ended)));
        }
        Ok(())
    }

    /// The failure for a machine without an active placement; `None` if none is known with this name,
    /// process ID or ID of a placement.
    fn not_placed(&self, host: &LiveHost, wanted: &str) -> Result<Option<Failure>, Failure> {
        let last = EndedPlacement::last_named(&self.ended, wanted);
        let mut machines = hypervisors::list_vm_processes(host)?;
        machines.extend(hypervisors::list_hidden_machines(host)?);
        let name = last.map_or(wanted, EndedPlacement::vm_name);
        let running = machines.iter().find(|machine| {
            wanted.parse() == Ok(machine.pid.0) || machine.spec.name.as_deref() == Some(name)
        });
        let running = match (running, last) {
            (Some(machine), _) => Some(machine.pid),
            (None, Some(last)) => last.living_process(host)?,
            (None, None) => return Ok(None),
        };
        let machine = escape::short_name(name);
        let state = match running {
            Some(pid) => format!("{machine} (process {pid}) runs, and is not placed"),
            None => format!("{machine} does not run"),
        };
        let ended = last.map_or_else(String::new, |last| format!("; {last}"));
        let hint = match (last, running) {
            (Some(last), _) => {
                format!("`{}` shows what it changed", Command::new("journal").arg(last.id()))
            }
            (None, Some(pid)) => {
                format!("`{}` places it", Command::new(format!("apply --pid {pid}")))
            }
            (None, None) => return Ok(None),
        };
        Ok(Some(Failure::new(Exit::No, state + &ended).with_hint(hint)))
    }
}

/// Compares everything with its plan that is active by the journals of the state directory at this
/// path.
///
/// # Errors
/// [`Failure`] if the journals or the marks cannot be listed.
pub fn find(host: &LiveHost, state: &str) -> Result<Found, Failure> {
    let directory = StateDir::open_existing(state)?;
    let mut found = match host::existing_journals(directory.as_ref(), &SystemClock)? {
        Some(journals) => find_in(host, &journals)?,
        None => Found::default(),
    };
    if let Some(directory) = &directory {
        find_watched(host, directory, &mut found.placements)?;
        found.booting = booting::list(host, directory)?;
    }
    found.lost = undo::find_lost(host, state)?;
    // A journal that cannot be read is reported once.
    found.lost.retain(|one| found.damaged.iter().all(|damaged| damaged.id != one.id()));
    Ok(found)
}

fn find_in(host: &LiveHost, journals: &Journals<'_>) -> Result<Found, Failure> {
    let journals_found = journals.list()?;
    let ended = undo::ended_placements(&journals_found);
    let mut found = Found { ended, ..Found::default() };
    for summary in journals_found {
        let record = summary.record.map_err(Failure::from);
        let looked = match record {
            Ok(Some(record)) if !record.has_ended() && record.require_here(host).is_err() => {
                record.require_here(host).map(|()| None).map_err(Failure::from)
            }
            Ok(Some(record)) if !record.has_ended() && is_platform(&record.header.plan) => {
                let alive = process::task_alive(host, record.header.supervisor);
                found.platforms.push(ActivePlatform {
                    id: summary.id.clone(),
                    supervisor: record.header.supervisor.tid,
                    answers: is_reachable(&record.header.plan),
                    is_alive: alive?,
                });
                Ok(None)
            }
            Ok(Some(record)) if !record.has_ended() => {
                let is_whole = journals.require_all_steps(&record).map_err(Failure::from);
                is_whole.and_then(|()| read_active_placement(host, &record)).map(Some)
            }
            Ok(_) => Ok(None),
            Err(failure) => Err(failure),
        };
        match looked {
            Ok(one) => found.placements.extend(one),
            Err(failure) => found.damaged.push(DamagedJournal { id: summary.id, failure }),
        }
    }
    find_used_twice(host, &mut found.placements, &claims::read(host, Some(journals))?);
    Ok(found)
}

/// Marks the placements that `pinfold watch` monitors.
fn find_watched(
    host: &LiveHost,
    state: &StateDir,
    placements: &mut [ActivePlacement],
) -> Result<(), Failure> {
    let Some((watcher, ids)) = watched::read(host, state)? else { return Ok(()) };
    let stopped = Some(watcher).filter(|pid| host::is_stopped(*pid));
    for one in placements.iter_mut().filter(|one| ids.contains(&one.id)) {
        one.watched = true;
        if !one.supervised {
            one.stopped = stopped;
        }
    }
    Ok(())
}

/// Adds a warning to each placement with a CPU that another owner uses too, although one of the two
/// keeps it exclusively.
fn find_used_twice(host: &LiveHost, placements: &mut [ActivePlacement], claims: &Claims) {
    let mut claims = claims.clone();
    for one in placements.iter().filter(|one| one.status.is_some()) {
        let known = claims.all().iter().find(|it| it.owner.journal.as_deref() == Some(&one.id));
        let manager = known.and_then(|claim| claim.owner.manager);
        claims = claims.without(&one.id);
        let owner = claims::placement(&one.vm_name, &one.id).of_process(one.process);
        let owner = pinfold_claims::Owner { manager, ..owner };
        claims.add_plan(&owner, &one.plan_as_found(host));
    }
    let mut shared = Vec::new();
    for one in placements.iter_mut() {
        let others = claims_of_others(host, &claims, one);
        let plan = one.plan_as_found(host);
        let owner = claims::placement(&one.vm_name, &one.id).to_string();
        if let Some(status) = &mut one.status {
            status.dangers.extend(others.reserved_cpus(&plan));
            shared.extend(others.shared_cpus(&owner, &plan));
        }
    }
    // The same text for each of the placements that share some CPUs.
    let shared = pinfold_claims::merge_shared(&shared);
    for one in placements {
        let owner = claims::placement(&one.vm_name, &one.id).to_string();
        let own = shared.iter().filter(|shared| shared.users.contains(&owner));
        if let Some(status) = &mut one.status {
            status.dangers.extend(own.map(SharedCpus::finding));
        }
    }
}

/// The claims of all but one placement.
fn claims_of_others(host: &LiveHost, claims: &Claims, one: &ActivePlacement) -> Claims {
    // First with its own claim: that names the pool from which it takes its CPUs.
    claims.without_machine(host, one.process, &one.vm_name).without(&one.id)
}

fn read_active_placement(host: &LiveHost, record: &Record) -> Result<ActivePlacement, Failure> {
    let header = &record.header;
    let plan = pinfold_plan::schema::from_json(&header.plan)
        .map_err(|error| Failure::from_error(Exit::Host, &error, error.hint()))?;
    let alive = |task| pinfold_host::process::task_alive(host, task).map_err(Failure::from);
    let status = if alive(header.vm)? {
        let threads = threads_of(host, &plan, record);
        let target = Target::new(header.vm.tid, threads);
        let status = pinfold_apply::status(host, &plan, &target);
        Some(status?)
    } else {
        None
    };
    // A later plan may be of another process, and the first one may still monitor it.
    let last = record.last_supervisor();
    let supervisor = if alive(header.supervisor)? { header.supervisor } else { last };
    let supervised = alive(supervisor)?;
    let is_left = record.is_left(host)?;
    let mut status = status;
    if let Some(status) = &mut status {
        status.dangers.extend(replan::degraded_findings(&plan).cloned());
    }
    if let Some(status) = status.as_mut().filter(|_| is_left) {
        let undo = Command::new("undo").arg(&header.id);
        let finding = Finding::warning("incomplete", "its apply or undo was interrupted");
        status.dangers.push(finding.with_hint(format!("`{undo}` reverts it")));
    }
    Ok(ActivePlacement {
        is_left,
        id: header.id.clone(),
        vm_name: header.vm_name.clone(),
        process: header.vm.tid,
        plan,
        is_in_definition: ended_placements::is_for_next_start(record),
        tunables: pinfold_apply::read_tunables(host, record)?,
        vanished: pinfold_apply::find_vanished(host, record)?,
        counters: pinfold_apply::read_counters(host, record)?,
        tables: MachineTables::read(host, header.vm.tid)?.filter(|_| status.is_some()),
        status,
        supervised,
        watched: false,
        stopped: Some(supervisor.tid).filter(|pid| supervised && host::is_stopped(*pid)),
    })
}

/// The threads of the machine by name; if QEMU sets no names, by the journal: a thread that was set
/// to the CPUs of a role has this role.
fn threads_of(host: &LiveHost, plan: &Plan, record: &Record) -> Vec<(TaskId, Role)> {
    match pinfold_vm::threads::discover(host, record.header.vm.tid, None) {
        Ok(found) => found.tasks(),
        Err(_) => threads_by_journal(plan, record),
    }
}

/// The state of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalState {
    /// It is active.
    Active,
    /// It was active in an earlier boot.
    EarlierBoot,
    /// It was reverted.
    Reverted,
    /// A restart of the host ended it.
    Restarted,
    /// It has no step.
    NothingDone,
}

impl JournalState {
    /// The state of a record; `None` for a journal without one.
    pub fn read(host: &LiveHost, record: Option<&Record>) -> Result<Self, Failure> {
        let Some(record) = record else { return Ok(JournalState::NothingDone) };
        if record.was_ended_by_restart() {
            return Ok(JournalState::Restarted);
        }
        if record.has_ended() {
            return Ok(JournalState::Reverted);
        }
        let now = record.is_of_this_boot(host)?;
        Ok(if now { JournalState::Active } else { JournalState::EarlierBoot })
    }
}
