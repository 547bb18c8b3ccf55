//! Keeps a plan true while the machine runs.
//!
//! QEMU sends no event for a new thread, so the caller looks when the kernel told of a birth, or
//! else several times in 100 ms: that costs one `stat(2)`, because the link count of
//! `/proc/PID/task` tells births too. Every few seconds masks and policies are compared with those
//! that were right last, and whenever somebody wrote to a file of the machine's groups, those
//! files. Only when one of these changed, all threads are looked at. New ones are placed by
//! their role and drifted ones put back, each as a further step of the journal. Who keeps
//! changing a mask owns it: after a few repairs it is told and left.

mod attribution;
mod groups;
mod vhost;

use std::collections::{BTreeMap, BTreeSet};

use pinfold_host::{Host, HostMut, paths};
use pinfold_model::{Change, CpuSet, Finding, Plan, Policy, Role, Step, TaskId, Tid, Undo};

use crate::actuators::{self, Shown, Taken, UndoContext};
use crate::cpusets::{self, Hierarchy};
use crate::error::ApplyError;
use crate::journal::{Journal, Outcome, Record};
use crate::knobs::{self, KnobStatus};
use crate::layers::first_undo;
use crate::status::health;
use crate::steps::plan_threads;
use crate::tasks::{self, Seen, Target};
use attribution::LikelyCause;
use groups::Groups;
use vhost::VhostWorkers;

/// How often the roles are asked for on account of one thread that they do not name: a vCPU's
/// thread may be there before QMP knows of it.
const MAX_QUESTIONS: u32 = 3;

/// Tells the roles of a machine's threads; discovery is another crate's.
pub trait Roles {
    /// The threads with a role of their own, as they are now.
    ///
    /// # Errors
    /// A sentence that says why they cannot be told; the threads then follow the emulator.
    fn roles(&mut self, host: &dyn Host, pid: Tid) -> Result<Vec<(TaskId, Role)>, String>;
}

/// How closely a [`Watcher`] looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Whether threads were born or have ended.
    TaskEvents,
    /// Beside that the masks and policies of all threads, and whether kernel threads outside the
    /// process may have joined them.
    Masks,
    /// Beside that the files of the machine's groups.
    Groups,
}

/// How often a thread is put back.
pub const MAX_REPAIRS: u32 = 3;

/// What a tick found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// A new thread was placed.
    Placed {
        /// The thread.
        task: TaskId,
        /// Its role.
        role: Role,
        /// Its PUs.
        pus: CpuSet,
    },
    /// A thread's mask or policy had been changed and was put back.
    Repaired {
        /// The thread.
        task: TaskId,
        /// Its role.
        role: Role,
        /// What was done.
        change: String,
        /// What was found instead.
        found: String,
        /// What is known of who did it.
        clue: String,
    },
    /// It was changed once more and is now left alone.
    Contested {
        /// The thread.
        task: TaskId,
        /// Its role.
        role: Role,
        /// What would have to be done.
        change: String,
        /// What was found instead.
        found: String,
        /// What is known of who did it.
        clue: String,
    },
    /// The machine's groups are not what they were. What its threads may use follows from it; if
    /// they can be put right, that is told beside it.
    Groups {
        /// A file of a group, or the group of the machine.
        what: String,
        /// What was there.
        before: String,
        /// What is there now.
        after: String,
        /// What is known of who did it.
        clue: String,
    },
    /// A thread cannot be placed, or its role cannot be found out.
    Finding(Finding),
    /// The machine has ended; nothing is watched any more.
    Ended,
}

/// What a [glance](Watcher::glance) found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Glance {
    /// Nothing changed, as far as it is looked at now.
    Quiet,
    /// [`Watcher::put_right`] is to look at all threads.
    Look,
    /// The machine has ended; nothing is watched any more. Told once.
    Ended,
}

/// Watches one machine.
pub struct Watcher {
    plan: Plan,
    target: Target,
    vm: TaskId,
    links: u64,
    ended: bool,
    seen: BTreeSet<Tid>,
    questions: BTreeMap<Tid, u32>,
    repairs: BTreeMap<TaskId, u32>,
    strangers: BTreeSet<TaskId>,
    // What was told of the ground that the plan stands on.
    reported: Vec<Finding>,
    // What was told of knobs, and the knobs as they were then.
    reported_knobs: Vec<Finding>,
    knobs: Vec<KnobStatus>,
    // Masks and policies that were read just before all was found as planned.
    right: Option<Vec<(Tid, CpuSet, Option<Policy>)>>,
    groups: Groups,
    // What the groups' files are compared for at the next look.
    look_at_groups: bool,
    helpers: VhostWorkers,
    // At the next look the roles are asked for, whatever was born.
    ask_for_helpers: bool,
}

impl Watcher {
    /// Watches what a plan was applied to.
    ///
    /// # Errors
    /// [`ApplyError::VmGone`], [`ApplyError::Host`].
    pub fn new(host: &dyn Host, plan: &Plan, target: &Target) -> Result<Self, ApplyError> {
        let vm = tasks::stat(host, target.pid)?;
        let vm = vm.ok_or(ApplyError::VmGone { pid: target.pid })?.task();
        Ok(Self {
            plan: plan.clone(),
            target: target.clone(),
            vm,
            // No process has so few: the first tick looks at all.
            links: 0,
            ended: false,
            seen: tasks::threads_of(host, target.pid)?.into_iter().collect(),
            questions: BTreeMap::new(),
            repairs: BTreeMap::new(),
            strangers: BTreeSet::new(),
            reported: Vec::new(),
            reported_knobs: Vec::new(),
            knobs: Vec::new(),
            right: None,
            groups: Groups::of(host, vm.tid)?,
            look_at_groups: false,
            helpers: VhostWorkers::default(),
            ask_for_helpers: false,
        })
    }

    /// The machine with the threads that are known now.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The threads of its process, as they were at the last look: who makes another is one of
    /// them.
    #[must_use]
    pub fn threads(&self) -> &BTreeSet<Tid> {
        &self.seen
    }

    /// The files that say what the machine's groups may use, as they were at the last look.
    pub fn files(&self) -> impl Iterator<Item = &String> {
        self.groups.paths()
    }

    /// True if a new thread may get another role when it is asked for again: its name comes a
    /// little after its birth. The caller then has [`Watcher::put_right`] look again soon.
    #[must_use]
    pub fn has_questions(&self) -> bool {
        self.questions.values().any(|asked| *asked < MAX_QUESTIONS)
    }

    /// Looks, and puts right what can be put right.
    ///
    /// # Errors
    /// [`ApplyError::Journal`] if a step could not be journalled (it was then not done),
    /// [`ApplyError::Host`] if the host cannot be read.
    pub fn tick(
        &mut self,
        host: &dyn HostMut,
        journal: &mut Journal<'_>,
        roles: &mut dyn Roles,
        extent: Extent,
    ) -> Result<Vec<WatchEvent>, ApplyError> {
        match self.glance(host, extent)? {
            Glance::Quiet => Ok(Vec::new()),
            Glance::Look => self.put_right(host, journal, roles),
            Glance::Ended => Ok(vec![WatchEvent::Ended]),
        }
    }

    /// The cheap half of a [tick](Watcher::tick): changes nothing, needs no journal.
    ///
    /// # Errors
    /// [`ApplyError::Host`] if the host cannot be read.
    pub fn glance(&mut self, host: &dyn Host, extent: Extent) -> Result<Glance, ApplyError> {
        if self.ended {
            return Ok(Glance::Quiet);
        }
        let links = self.count(host)?;
        // A machine that ended while it was looked at is there until its parent asks for it.
        let is_there = extent == Extent::TaskEvents || tasks::is_alive(host, self.vm)?;
        let Some(links) = links.filter(|_| is_there) else {
            self.ended = true;
            return Ok(Glance::Ended);
        };
        let differs = match extent {
            Extent::TaskEvents => false,
            Extent::Masks => !self.is_right(host),
            Extent::Groups => {
                self.look_at_groups |= !self.groups.are_same(host, self.vm.tid)?;
                self.look_at_groups || !self.is_right(host)
            }
        };
        if extent != Extent::TaskEvents {
            self.ask_for_helpers |= self.helpers.are_missing(host, &self.target, &self.seen);
        }
        let differs = differs || self.ask_for_helpers;
        Ok(if links != self.links || differs { Glance::Look } else { Glance::Quiet })
    }

    /// The other half of a [tick](Watcher::tick): looks at all threads, and puts right what
    /// can be put right.
    ///
    /// # Errors
    /// As [`Watcher::tick`].
    pub fn put_right(
        &mut self,
        host: &dyn HostMut,
        journal: &mut Journal<'_>,
        roles: &mut dyn Roles,
    ) -> Result<Vec<WatchEvent>, ApplyError> {
        // The number may be another process's by now.
        if !tasks::is_alive(host, self.vm)? {
            return Ok(self.end());
        }
        // Counted first: who is born meanwhile gives cause for another look.
        let Some(links) = self.count(host)? else { return Ok(self.end()) };
        match self.look(host, journal, roles) {
            Err(ApplyError::VmGone { .. }) => Ok(self.end()),
            Err(error) => Err(error),
            Ok(events) => {
                self.links = links;
                Ok(events)
            }
        }
    }

    fn count(&self, host: &dyn Host) -> Result<Option<u64>, ApplyError> {
        Ok(tasks::unless_gone(host.link_count(&paths::task_dir(self.target.pid)))?)
    }

    fn end(&mut self) -> Vec<WatchEvent> {
        self.ended = true;
        vec![WatchEvent::Ended]
    }

    /// True if each thread still has what it had when all was right. One that cannot be asked
    /// is a cause to look.
    fn is_right(&self, host: &dyn Host) -> bool {
        let same = |(tid, mask, policy): &(Tid, CpuSet, Option<Policy>)| {
            host.affinity(*tid).is_ok_and(|found| found == *mask)
                && policy.is_none_or(|policy| host.policy(*tid).is_ok_and(|found| found == policy))
        };
        self.right.as_ref().is_some_and(|right| right.iter().all(same))
            && health(host, &self.plan, &self.target).is_ok_and(|now| now == self.reported)
            && self.knobs.iter().all(|knob| {
                let now = tasks::unless_gone(host.read_text(&knob.path));
                now.is_ok_and(|now| now.as_deref().map(str::trim) == knob.found.as_deref())
            })
    }

    /// Tells of knobs that somebody else changed, once each time. They are not put back: whoever
    /// set them may have had a reason, and they are the whole host's.
    fn report_knobs(
        &mut self,
        host: &dyn Host,
        record: &Record,
        events: &mut Vec<WatchEvent>,
    ) -> Result<(), ApplyError> {
        self.knobs = knobs::knobs(host, record)?;
        if self.knobs.iter().all(|knob| knob.ok) {
            self.reported_knobs.clear();
            return Ok(());
        }
        let now = knobs::drifted(host, record)?;
        let new = now.iter().filter(|finding| !self.reported_knobs.contains(finding));
        events.extend(new.cloned().map(WatchEvent::Finding));
        self.reported_knobs = now;
        Ok(())
    }

    /// Tells of PUs that went offline and of a partition that became invalid, once each time.
    fn report_health(
        &mut self,
        host: &dyn Host,
        events: &mut Vec<WatchEvent>,
    ) -> Result<(), ApplyError> {
        let now = health(host, &self.plan, &self.target)?;
        let new = now.iter().filter(|finding| !self.reported.contains(finding));
        events.extend(new.cloned().map(WatchEvent::Finding));
        self.reported = now;
        Ok(())
    }

    fn state_of(
        &self,
        host: &dyn Host,
        present: &BTreeSet<Tid>,
    ) -> Result<Vec<(Tid, CpuSet, Option<Policy>)>, ApplyError> {
        // Half of the calls are spared where the plan leaves policies alone.
        let has_policies = self.plan.threads().any(|(_, thread)| thread.policy.is_some());
        let named = self.target.threads.iter().map(|(task, _)| task.tid);
        let mut state = Vec::new();
        for tid in named.chain(present.iter().copied()).collect::<BTreeSet<Tid>>() {
            let Some(mask) = tasks::unless_gone(host.affinity(tid))? else { continue };
            let policy = match has_policies {
                true => match tasks::unless_gone(host.policy(tid))? {
                    Some(policy) => Some(policy),
                    None => continue,
                },
                false => None,
            };
            state.push((tid, mask, policy));
        }
        Ok(state)
    }

    /// Tells of vCPUs and iothreads that the plan has no place for, once each.
    fn report_strangers(&mut self, events: &mut Vec<WatchEvent>) {
        for (task, role) in &self.target.threads {
            let lacks = self.plan.vnodes.first().is_some_and(|it| tasks::has_no_place(it, role));
            if lacks && self.strangers.insert(*task) {
                events.push(WatchEvent::Finding(tasks::no_place(*task, role)));
            }
        }
    }

    fn look(
        &mut self,
        host: &dyn HostMut,
        journal: &mut Journal<'_>,
        roles: &mut dyn Roles,
    ) -> Result<Vec<WatchEvent>, ApplyError> {
        let mut events = Vec::new();
        let clues = LikelyCause::new(host, self.groups.group());
        if std::mem::take(&mut self.look_at_groups) {
            events.extend(self.groups.changes(host, self.vm.tid, &clues)?);
        }
        let present: BTreeSet<Tid> =
            tasks::threads_of(host, self.target.pid)?.into_iter().collect();
        self.ask_for_roles(host, &present, roles, &mut events);
        self.report_strangers(&mut events);
        self.report_health(host, &mut events)?;
        self.report_knobs(host, journal.record(), &mut events)?;
        let state = self.state_of(host, &present)?;
        // A number is used again: what is gone is forgotten.
        self.seen.retain(|tid| present.contains(tid));
        self.repairs.retain(|task, _| present.contains(&task.tid));
        let steps = plan_threads(host, &self.plan, &self.target)?.steps;
        // While something is not as planned, or not known, the next look is not spared.
        self.right = (steps.is_empty() && !self.has_questions()).then_some(state);
        let online = tasks::unless_gone(cpusets::list(host, &paths::cpu_online()))?;
        let mut chosen = Vec::new();
        for step in steps {
            let Some(task) = task_of(&step) else { continue };
            // Its PUs are offline, which was told; nobody contests it.
            if !can_run(&step, online.as_ref()) {
                continue;
            }
            let clue = match self.seen.contains(&task.tid) {
                true => match self.may_repair((task, &step), &clues, &mut events)? {
                    Some(clue) => clue,
                    None => continue,
                },
                false => String::new(),
            };
            chosen.push(Chosen { task, step, clue });
        }
        if !chosen.is_empty() {
            self.take(host, journal, chosen, &mut events)?;
        }
        self.seen = present;
        Ok(events)
    }

    fn ask_for_roles(
        &mut self,
        host: &dyn Host,
        present: &BTreeSet<Tid>,
        source: &mut dyn Roles,
        events: &mut Vec<WatchEvent>,
    ) {
        let pid = self.target.pid;
        // Threads without a role that were there at the start have been asked for then.
        let new = present.iter().filter(|tid| **tid != pid && !self.seen.contains(tid));
        self.questions.extend(new.map(|tid| (*tid, 0)));
        let target = &self.target;
        self.questions.retain(|tid, asked| {
            let is_known = *asked > 0 && target.role(*tid).is_some_and(is_own);
            present.contains(tid) && !is_known
        });
        if !std::mem::take(&mut self.ask_for_helpers) && !self.has_questions() {
            return;
        }
        self.questions.values_mut().for_each(|asked| *asked = asked.saturating_add(1));
        match source.roles(host, pid) {
            Ok(threads) => self.target.threads = threads,
            Err(why) => {
                let text = format!("the roles of new threads cannot be found: {why}");
                events.push(WatchEvent::Finding(Finding::warning("watch", text)));
            }
        }
    }

    /// What is known of who moved a thread, if it is to be put back; else it is left.
    fn may_repair(
        &mut self,
        (task, step): (TaskId, &Step),
        clues: &LikelyCause<'_>,
        events: &mut Vec<WatchEvent>,
    ) -> Result<Option<String>, ApplyError> {
        let repairs = self.repairs.entry(task).or_insert(0);
        *repairs = repairs.saturating_add(1);
        let repairs = *repairs;
        if repairs > MAX_REPAIRS.saturating_add(1) {
            return Ok(None);
        }
        let clue = clues.of_thread(task, &step.undo)?;
        if repairs <= MAX_REPAIRS {
            return Ok(Some(clue));
        }
        let (role, change) = (self.role(task), step.change.to_string());
        let found = found(&step.undo);
        events.push(WatchEvent::Contested { task, role, change, found, clue });
        Ok(None)
    }

    fn take(
        &mut self,
        host: &dyn HostMut,
        journal: &mut Journal<'_>,
        mut chosen: Vec<Chosen>,
        events: &mut Vec<WatchEvent>,
    ) -> Result<(), ApplyError> {
        let found: Vec<String> = chosen.iter().map(|one| found(&one.step.undo)).collect();
        self.set_originals(host, journal, &mut chosen)?;
        let hierarchy = Hierarchy::of(host);
        let steps: Vec<Step> = chosen.iter().map(|one| one.step.clone()).collect();
        let first = journal.write_steps(&steps, Vec::new())?;
        for ((one, found), index) in chosen.into_iter().zip(found).zip(first..) {
            match place(host, &hierarchy, &one.step) {
                Ok(true) => {
                    journal.note(index, Outcome::Done, None);
                    events.push(self.done(one, found));
                }
                Ok(false) => journal.note(index, Outcome::Skipped, None),
                Err(why) => {
                    journal.note(index, Outcome::Failed, Some(why.clone()));
                    let text = format!("{} failed: {why}", one.step.change);
                    events.push(WatchEvent::Finding(Finding::warning("watch", text)));
                }
            }
        }
        Ok(journal.flush()?)
    }

    /// A new thread has its maker's mask, which is ours. What it would have without us
    /// is its maker's original, and that is what undo gives it.
    fn set_originals(
        &self,
        host: &dyn HostMut,
        journal: &Journal<'_>,
        chosen: &mut [Chosen],
    ) -> Result<(), ApplyError> {
        let past = UndoContext::new(host, journal.clock(), journal.record())?;
        for Chosen { task, step, .. } in chosen {
            if let Some(first) = first_undo(journal.record(), &step.undo) {
                step.undo = first.clone();
                continue;
            }
            if self.seen.contains(&task.tid) {
                continue;
            }
            match &mut step.undo {
                Undo::SetAffinity { original, .. } => {
                    if let Some(inherited) = past.inherited_mask(self.target.pid, original) {
                        original.clone_from(inherited);
                    }
                }
                Undo::SetPolicy { original, .. } => {
                    if let Some(inherited) = past.inherited_policy(self.target.pid, *original) {
                        *original = inherited;
                    }
                }
                Undo::WriteSetting { masks, .. } => {
                    let new = masks.iter_mut().filter(|(task, _)| !self.seen.contains(&task.tid));
                    for (_, original) in new {
                        if let Some(inherited) = past.inherited_mask(self.target.pid, original) {
                            original.clone_from(inherited);
                        }
                    }
                }
                Undo::WriteFile { .. }
                | Undo::RemoveGroup { .. }
                | Undo::MoveTasks { .. }
                | Undo::LeavePages { .. }
                | Undo::ContinueProcesses { .. } => {}
            }
        }
        Ok(())
    }

    fn done(&self, Chosen { task, step, clue }: Chosen, found: String) -> WatchEvent {
        let role = self.role(task);
        let pus = match &step.change {
            Change::SetAffinity { mask, .. } => Some(mask.clone()),
            Change::WriteSetting { value, .. } => CpuSet::parse_list(value).ok(),
            Change::WriteFile { .. }
            | Change::MakeGroup { .. }
            | Change::MoveTasks { .. }
            | Change::SetPolicy { .. }
            | Change::MovePages { .. }
            | Change::SignalProcesses { .. } => None,
        };
        match pus.filter(|_| !self.seen.contains(&task.tid)) {
            Some(pus) => WatchEvent::Placed { task, role, pus },
            None => {
                let change = step.change.to_string();
                WatchEvent::Repaired { task, role, change, found, clue }
            }
        }
    }

    fn role(&self, task: TaskId) -> Role {
        let other = if task.tid == self.target.pid { Role::Emulator } else { Role::Worker };
        self.target.role(task.tid).cloned().unwrap_or(other)
    }
}

/// A step that is to be taken.
struct Chosen {
    task: TaskId,
    step: Step,
    clue: String,
}

/// True for a role that a thread has for itself.
fn is_own(role: &Role) -> bool {
    match role {
        Role::Vcpu(_) | Role::Iothread(_) | Role::Vhost(_) => true,
        Role::Emulator | Role::Worker | Role::Task => false,
    }
}

/// What a thread had when a step was made for it.
fn found(undo: &Undo) -> String {
    match undo {
        Undo::SetAffinity { original, .. } => format!("PUs {original}"),
        Undo::SetPolicy { original, .. } => original.to_string(),
        Undo::WriteSetting { original, masks, .. } => match masks.first() {
            Some((_, mask)) => format!("PUs {mask}"),
            None => original.clone().unwrap_or_default(),
        },
        Undo::WriteFile { .. }
        | Undo::RemoveGroup { .. }
        | Undo::MoveTasks { .. }
        | Undo::LeavePages { .. }
        | Undo::ContinueProcesses { .. } => String::new(),
    }
}

fn task_of(step: &Step) -> Option<TaskId> {
    match &step.change {
        Change::SetAffinity { task, .. } | Change::SetPolicy { task, .. } => Some(*task),
        Change::WriteSetting { tasks, .. } | Change::MoveTasks { tasks, .. } => {
            tasks.first().copied()
        }
        Change::WriteFile { .. }
        | Change::MakeGroup { .. }
        | Change::MovePages { .. }
        | Change::SignalProcesses { .. } => None,
    }
}

/// False for a mask of which every PU is offline.
fn can_run(step: &Step, online: Option<&CpuSet>) -> bool {
    match (&step.change, online) {
        (Change::SetAffinity { mask, .. }, Some(online)) => !mask.is_disjoint(online),
        _ => true,
    }
}

/// Takes and reads back; false if the thread has ended, else why it is not placed.
fn place(host: &dyn HostMut, hierarchy: &Hierarchy<'_>, step: &Step) -> Result<bool, String> {
    let reported = |error: pinfold_host::HostError| match std::error::Error::source(&error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    match actuators::take(host, &Seen::default(), &step.change).map_err(reported)? {
        Taken::Gone => return Ok(false),
        Taken::Refused { error, .. } => return Err(reported(error)),
        Taken::Done(_) => {}
    }
    match actuators::verify(host, hierarchy, &step.change).map_err(reported)? {
        Shown::AsAsked | Shown::Less(_) | Shown::Given { .. } => Ok(true),
        Shown::Gone => Ok(false),
        Shown::Other { wanted, found } => {
            Err(format!("the kernel shows {found} instead of {wanted}"))
        }
    }
}
