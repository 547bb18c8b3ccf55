//! Keeps a plan applied while the machine runs.
//!
//! QEMU sends no event for a new thread. The caller therefore checks when the kernel reports a
//! fork, or else several times in 100 ms. One check costs one `stat(2)`, because the link count of
//! `/proc/PID/task` shows new threads too. Every few seconds, masks and policies are compared with
//! those that were last known to be right; the files of the machine's groups are compared whenever
//! a program has written to one of them. Only if one of these differs are all threads read. New
//! threads are placed by their role and drifted ones corrected, each as a further step of the
//! journal. After a few corrections of one thread it is left alone and a conflict is reported. A
//! change that the program which manages the machine made itself (`virsh vcpupin`) is never
//! corrected. What the plan does not describe is a [`MachineChange`], and the caller plans again.

mod attribution;
mod back_ends;
mod change;
mod correction;
mod groups;
mod owner;
mod vhost;

use std::collections::{BTreeMap, BTreeSet};

use pinfold_host::{Host, HostMut, paths};
use pinfold_model::{CpuSet, Finding, Plan, Policy, Role, Step, TaskId, Tid, Undo};

use crate::actuators::{self, ChangeOutcome, ReadBack, UndoContext};
use crate::cpusets::{self, Hierarchy};
use crate::error::ApplyError;
use crate::journal::{Journal, Outcome, Record};
use crate::other_placements::{first_undo, last_step};
use crate::status::health;
use crate::tasks::{self, LiveThreads, Target, task_of};
use crate::tunable_status::{self, TunableStatus};
use attribution::LikelyCause;
use back_ends::BackEnds;
use change::Changes;
pub use change::MachineChange;
use correction::{Check, Chosen};
use groups::Groups;
pub(crate) use owner::is_left;
use vhost::VhostWorkers;

/// How many times the roles are queried because of one thread without a role: a vCPU's thread may
/// exist before QMP reports it.
const MAX_QUESTIONS: u32 = 3;

/// Queries the roles of a machine's threads. Discovery is in another crate.
pub trait Roles {
    /// The threads that have a role of their own, as of now.
    ///
    /// # Errors
    /// A sentence with the reason why the roles are unknown; the threads then follow the emulator.
    fn roles(&mut self, host: &dyn Host, pid: Tid) -> Result<Vec<(TaskId, Role)>, String>;
}

/// How much a [`Watcher`] checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Whether threads were created or have ended.
    TaskEvents,
    /// In addition, the masks and policies of all threads, and whether kernel threads outside the
    /// process may have joined them.
    Masks,
    /// In addition, the files of the machine's groups.
    Groups,
}

/// Maximum number of corrections per thread.
pub const MAX_REPAIRS: u32 = 3;

/// What happens to a thread whose affinity or policy another program changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDrift {
    /// The change stays, is reported, and becomes part of the plan. What the kernel has reset and
    /// what the watchdog of real-time policies has taken is corrected, at most [`MAX_REPAIRS`]
    /// times.
    #[default]
    Adopt,
    /// The change is reported and stays; the plan does not follow.
    Report,
    /// It is corrected, at most [`MAX_REPAIRS`] times, unless the program that manages the machine
    /// made the change.
    Restore,
}

/// Event that a tick reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// A new thread was placed.
    Placed {
        /// The new thread.
        task: TaskId,
        /// Role of the thread.
        role: Role,
        /// Its planned CPUs.
        pus: CpuSet,
    },
    /// A thread's mask or policy had been changed and was corrected.
    Repaired {
        /// The corrected thread.
        task: TaskId,
        /// Role of the thread.
        role: Role,
        /// The correction.
        change: String,
        /// The value that was found.
        found: String,
        /// Likely cause of the change.
        clue: String,
    },
    /// A thread was changed again after [`MAX_REPAIRS`] corrections and is now left alone.
    Contested {
        /// The thread that is left alone.
        task: TaskId,
        /// Role of the thread.
        role: Role,
        /// The correction that was not made.
        change: String,
        /// The value that was found.
        found: String,
        /// Likely cause of the change.
        clue: String,
    },
    /// The owner of the machine moved a thread, which stays there.
    Yielded {
        /// The thread.
        task: TaskId,
        /// Role of the thread.
        role: Role,
        /// The value of the plan.
        planned: String,
        /// The value that was found.
        found: String,
        /// Likely cause of the change.
        clue: String,
    },
    /// The machine has other threads or CPUs than its plan described, and has a new plan.
    Replanned {
        /// What was changed, as a sentence without full stop.
        what: String,
        /// Number of threads that were moved from CPUs of the earlier plan.
        moves: usize,
    },
    /// The machine's groups have changed. This determines which CPUs its threads may use; a
    /// correction of the threads is reported as a separate event.
    Groups {
        /// A file of a group, or the group of the machine.
        what: String,
        /// The previous content.
        before: String,
        /// The present content.
        after: String,
        /// Likely cause of the change.
        clue: String,
    },
    /// A thread cannot be placed, or its role cannot be determined.
    Finding(Finding),
    /// The placement was undone while the machine runs; watching stops.
    Undone,
    /// The machine has ended; watching stops.
    Ended,
}

/// Result of a [glance](Watcher::quick_check).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuickCheck {
    /// No change within the checked [`Extent`].
    Quiet,
    /// A change: call [`Watcher::repair_drift`], which reads all threads.
    NeedsFullCheck,
    /// The machine has ended; watching stops. Returned once.
    Ended,
}

/// Watches one machine.
///
/// ```
/// # use pinfold_apply::Target;
/// # use pinfold_model::{Request, Role, Speed, Tid, VnodeRequest};
/// # let host = pinfold_sim::SimHost::v2_eight_pus();
/// # let topology = pinfold_samples::from_description("core:4 pu:2");
/// # let request = Request::from_vnodes(vec![VnodeRequest::processes("job", 1, Speed::FULL)]);
/// # let plan = pinfold_plan::plan("compact", &topology, &request)?;
/// # let task = host.task(Tid(400)).ok_or("no task")?.id();
/// # let target = Target::new(Tid(400), vec![(task, Role::Task)]);
/// use pinfold_apply::{Extent, QuickCheck, Watcher};
///
/// let mut watcher = Watcher::new(&host, &plan, &target)?;
/// assert_eq!(watcher.quick_check(&host, Extent::Masks)?, QuickCheck::NeedsFullCheck, "nothing was applied yet");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Watcher {
    plan: Plan,
    target: Target,
    vm: TaskId,
    links: u64,
    ended: bool,
    seen: BTreeSet<Tid>,
    role_queries: BTreeMap<Tid, u32>,
    repairs: BTreeMap<TaskId, u32>,
    on_drift: OnDrift,
    changes: Changes,
    // How the drift was found of settings that yielded to the owner since the last check.
    yielded: Vec<Undo>,
    // When new threads were first seen (ns).
    first_seen_ns: BTreeMap<Tid, u64>,
    // When all threads were last read (ns).
    looked_at: u64,
    // Threads that were as planned when all were last read.
    settled: BTreeSet<TaskId>,
    // The kernel may have reset masks since everything was as planned.
    was_regrouped: bool,
    // Findings about threads without a place that were already reported.
    reported_unplaced: BTreeSet<TaskId>,
    // Findings about CPUs, groups and the partition that were already reported.
    reported: Vec<Finding>,
    // Findings about tunables that were already reported, and the tunables as of then.
    reported_tunables: Vec<Finding>,
    tunables: Vec<TunableStatus>,
    // Masks and policies that were read just before everything was found as planned.
    last_good_state: Option<Vec<(Tid, CpuSet, Option<Policy>)>>,
    groups: Groups,
    // Whether the next check compares the groups' files.
    look_at_groups: bool,
    helpers: VhostWorkers,
    back_ends: BackEnds,
    // Whether the next check queries the roles even if no thread is new.
    ask_for_helpers: bool,
}

impl Watcher {
    /// Watches the target of an applied plan.
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
            // No process has so few links, so the first tick reads all threads.
            links: 0,
            ended: false,
            seen: tasks::threads_of(host, target.pid)?.into_iter().collect(),
            role_queries: BTreeMap::new(),
            repairs: BTreeMap::new(),
            on_drift: OnDrift::default(),
            changes: Changes::default(),
            yielded: Vec::new(),
            first_seen_ns: BTreeMap::new(),
            looked_at: 0,
            settled: BTreeSet::new(),
            was_regrouped: false,
            reported_unplaced: BTreeSet::new(),
            reported: Vec::new(),
            reported_tunables: Vec::new(),
            tunables: Vec::new(),
            last_good_state: None,
            groups: Groups::from_host(host, vm.tid)?,
            look_at_groups: false,
            helpers: VhostWorkers::default(),
            back_ends: BackEnds::default(),
            ask_for_helpers: false,
        })
    }

    /// Sets what happens to threads that another program moves.
    #[must_use]
    pub fn on_drift(self, on_drift: OnDrift) -> Self {
        Self { on_drift, ..self }
    }

    /// What the plan does not describe, as of the last check of all threads.
    #[must_use]
    pub fn change(&self) -> &MachineChange {
        &self.changes.found
    }

    /// True if the plan should follow what has changed.
    #[must_use]
    pub fn needs_plan(&self) -> bool {
        let is_of_owner = || !self.change().is_empty() && self.on_drift != OnDrift::Report;
        !self.has_questions() && (!self.change().is_only_of_owner() || is_of_owner())
    }

    /// True if a new plan takes over where the owner moved threads.
    #[must_use]
    pub fn follows_owner(&self) -> bool {
        self.on_drift != OnDrift::Report
    }

    /// Watches the machine under the plan that has replaced the present one.
    pub fn follow(&mut self, plan: &Plan, target: &Target) {
        self.plan = plan.clone();
        self.target = target.clone();
        // They are where the plan has them now, unless their owner has moved them again meanwhile.
        let MachineChange { moved, repinned_threads: singles, policies, .. } =
            std::mem::take(&mut self.changes.found);
        let places = moved.into_keys().chain(singles.into_keys());
        self.settled = places.chain(policies.into_keys()).collect();
        self.last_good_state = None;
    }

    /// The machine with its threads as they are known now.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The threads of its process as of the last check. Each new thread is created by one of them.
    #[must_use]
    pub fn threads(&self) -> &BTreeSet<Tid> {
        &self.seen
    }

    /// The files that determine the CPUs of the machine's groups, as of the last check.
    pub fn files(&self) -> impl Iterator<Item = &String> {
        self.groups.paths()
    }

    /// True if a later query may give a new thread another role, because its name is set shortly
    /// after its creation. The caller then calls [`Watcher::repair_drift`] again soon.
    #[must_use]
    pub fn has_questions(&self) -> bool {
        self.role_queries.values().any(|asked| *asked < MAX_QUESTIONS)
    }

    /// Checks the machine, and corrects what can be corrected.
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
        match self.quick_check(host, extent)? {
            QuickCheck::Quiet => Ok(Vec::new()),
            QuickCheck::NeedsFullCheck => self.repair_drift(host, journal, roles),
            QuickCheck::Ended => Ok(vec![WatchEvent::Ended]),
        }
    }

    /// The inexpensive first half of a [tick](Watcher::tick). It changes nothing and needs no
    /// journal.
    ///
    /// # Errors
    /// [`ApplyError::Host`] if the host cannot be read.
    pub fn quick_check(
        &mut self,
        host: &dyn Host,
        extent: Extent,
    ) -> Result<QuickCheck, ApplyError> {
        if self.ended {
            return Ok(QuickCheck::Quiet);
        }
        let links = self.count(host)?;
        // A machine that has ended remains a zombie until its parent reaps it.
        let is_there = extent == Extent::TaskEvents || tasks::is_alive(host, self.vm)?;
        let Some(links) = links.filter(|_| is_there) else {
            self.ended = true;
            return Ok(QuickCheck::Ended);
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
            self.ask_for_helpers |= self.back_ends.are_missing(host, &self.target, &self.seen);
        }
        let differs = differs || self.ask_for_helpers;
        Ok(if links != self.links || differs {
            QuickCheck::NeedsFullCheck
        } else {
            QuickCheck::Quiet
        })
    }

    /// The second half of a [tick](Watcher::tick): reads all threads and corrects what can be
    /// corrected.
    ///
    /// # Errors
    /// As [`Watcher::tick`].
    pub fn repair_drift(
        &mut self,
        host: &dyn HostMut,
        journal: &mut Journal<'_>,
        roles: &mut dyn Roles,
    ) -> Result<Vec<WatchEvent>, ApplyError> {
        // The process ID may have been reused.
        if !tasks::is_alive(host, self.vm)? {
            return Ok(self.end());
        }
        // Counted first, so that a thread created meanwhile triggers another check.
        let Some(links) = self.count(host)? else { return Ok(self.end()) };
        match self.check_all_threads(host, journal, roles) {
            Err(ApplyError::VmGone { .. }) => Ok(self.end()),
            Err(error) => Err(error),
            Ok(events) => {
                self.links = links;
                Ok(events)
            }
        }
    }

    fn count(&self, host: &dyn Host) -> Result<Option<u64>, ApplyError> {
        Ok(tasks::ignore_gone(host.link_count(&paths::task_dir(self.target.pid)))?)
    }

    fn end(&mut self) -> Vec<WatchEvent> {
        self.ended = true;
        vec![WatchEvent::Ended]
    }

    /// True if each thread still has the mask and policy that it had when everything was right. A
    /// thread that cannot be read counts as changed.
    fn is_right(&self, host: &dyn Host) -> bool {
        self.last_good_state.as_ref().is_some_and(|right| {
            right.iter().all(|(tid, mask, policy)| {
                host.affinity(*tid).is_ok_and(|found| found == *mask)
                    && policy
                        .is_none_or(|policy| host.policy(*tid).is_ok_and(|found| found == policy))
            })
        }) && health(host, &self.plan, &self.target).is_ok_and(|now| now == self.reported)
            && self.tunables.iter().all(|tunable| {
                let now = tasks::ignore_gone(host.read_text(&tunable.path));
                now.is_ok_and(|now| now.as_deref().map(str::trim) == tunable.found.as_deref())
            })
    }

    /// Reports tunables that another program changed, once per change. They are not corrected: they
    /// affect the whole host, and the change may be intended.
    fn report_tunables(
        &mut self,
        host: &dyn Host,
        record: &Record,
        events: &mut Vec<WatchEvent>,
    ) -> Result<(), ApplyError> {
        self.tunables = tunable_status::read_tunables(host, record)?;
        if self.tunables.iter().all(|tunable| tunable.ok) {
            self.reported_tunables.clear();
            return Ok(());
        }
        let now = tunable_status::find_drift(host, record)?;
        let new = now.iter().filter(|finding| !self.reported_tunables.contains(finding));
        events.extend(new.cloned().map(WatchEvent::Finding));
        self.reported_tunables = now;
        Ok(())
    }

    /// Reports CPUs that went offline and a partition that became invalid, once per change.
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
        // Saves half of the calls if the plan sets no policies.
        let has_policies = self.plan.threads().any(|(_, thread)| thread.policy.is_some());
        let named = self.target.threads.iter().map(|(task, _)| task.tid);
        let mut state = Vec::new();
        for tid in named.chain(present.iter().copied()).collect::<BTreeSet<Tid>>() {
            let Some(mask) = tasks::ignore_gone(host.affinity(tid))? else { continue };
            let policy = if has_policies {
                match tasks::ignore_gone(host.policy(tid))? {
                    Some(policy) => Some(policy),
                    None => continue,
                }
            } else {
                None
            };
            state.push((tid, mask, policy));
        }
        Ok(state)
    }

    /// Findings about vCPUs and iothreads that the plan does not place, once each: for a caller that
    /// cannot plan again.
    pub fn report_unplaced(&mut self) -> Vec<Finding> {
        let unplaced = &self.changes.found.added;
        let new = unplaced.iter().filter(|(task, _)| self.reported_unplaced.insert(*task));
        new.map(|(task, role)| tasks::no_place(*task, role)).collect()
    }

    fn check_all_threads(
        &mut self,
        host: &dyn HostMut,
        journal: &mut Journal<'_>,
        roles: &mut dyn Roles,
    ) -> Result<Vec<WatchEvent>, ApplyError> {
        let mut events = Vec::new();
        let clues = LikelyCause::new(host, self.groups.group());
        let is_regrouped = !self.groups.are_same(host, self.vm.tid)?;
        if std::mem::take(&mut self.look_at_groups) || is_regrouped {
            let changes = self.groups.changes(host, self.vm.tid, &clues)?;
            self.was_regrouped |= changes.iter().any(owner::resets_masks);
            let changes = changes.into_iter();
            events.extend(changes.filter(|event| !groups::is_own(event, journal.record())));
        }
        let present: BTreeSet<Tid> =
            tasks::threads_of(host, self.target.pid)?.into_iter().collect();
        self.ask_for_roles(host, &present, roles, &mut events);
        self.report_health(host, &mut events)?;
        self.report_tunables(host, journal.record(), &mut events)?;
        let state = self.state_of(host, &present)?;
        // Thread IDs are reused, so ended threads are forgotten.
        self.seen.retain(|tid| present.contains(tid));
        self.repairs.retain(|task, _| present.contains(&task.tid));
        self.first_seen_ns.retain(|tid, _| present.contains(tid));
        self.looked_at = journal.clock().now_ns();
        let new = present.iter().filter(|tid| !self.seen.contains(tid));
        self.first_seen_ns.extend(new.map(|tid| (*tid, self.looked_at)));
        let steps = self.find_drifted(host, &state)?;
        let usual = state.iter().filter(|(tid, ..)| self.seen.contains(tid));
        let usual: BTreeSet<CpuSet> = usual.map(|(_, mask, _)| mask.clone()).collect();
        // While a thread is not as planned or its role is unknown, the next check reads all
        // threads.
        self.last_good_state = (steps.is_empty() && !self.has_questions()).then_some(state);
        let online = tasks::ignore_gone(cpusets::list(host, &paths::cpu_online()))?;
        self.changes.update(&self.plan, &self.target, &present, online.as_ref());
        let drifted: BTreeSet<TaskId> = steps.iter().filter_map(|one| task_of(&one.step)).collect();
        self.changes.forget_moves_but_of(&drifted);
        self.was_regrouped &= !steps.is_empty();
        let check = Check { clues: &clues, usual: &usual, online: online.as_ref() };
        let chosen = self.choose(journal.record(), steps, &check, &mut events)?;
        let threads = self.target.threads.iter().map(|(task, _)| *task);
        self.settled = threads.filter(|task| !drifted.contains(task)).collect();
        self.reported_unplaced.retain(|task| !self.settled.contains(task));
        self.separate_single_threads(&present);
        self.journal_yielded(host, journal)?;
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
        // The roles were queried at the start, so only later threads without a role are new.
        let new = present.iter().filter(|tid| **tid != pid && !self.seen.contains(tid));
        self.role_queries.extend(new.map(|tid| (*tid, 0)));
        let target = &self.target;
        self.role_queries.retain(|tid, asked| {
            let is_known = *asked > 0 && target.role(*tid).is_some_and(Role::is_of_one_thread);
            present.contains(tid) && !is_known
        });
        if !std::mem::take(&mut self.ask_for_helpers) && !self.has_questions() {
            return;
        }
        self.role_queries.values_mut().for_each(|asked| *asked = asked.saturating_add(1));
        match source.roles(host, pid) {
            Ok(threads) => self.target.threads = threads,
            Err(why) => {
                let text = format!("cannot determine the roles of new threads: {why}");
                events.push(WatchEvent::Finding(Finding::warning("watch", text)));
            }
        }
    }

    fn take(
        &mut self,
        host: &dyn HostMut,
        journal: &mut Journal<'_>,
        mut chosen: Vec<Chosen>,
        events: &mut Vec<WatchEvent>,
    ) -> Result<(), ApplyError> {
        let found: Vec<String> =
            chosen.iter().map(|one| owner::found_value(&one.step.undo)).collect();
        self.set_originals(host, journal, &mut chosen)?;
        let hierarchy = Hierarchy::read(host);
        let steps: Vec<Step> = chosen.iter().map(|one| one.step.clone()).collect();
        let first = journal.write_steps(&steps, Vec::new())?;
        for ((one, found), index) in chosen.into_iter().zip(found).zip(first..) {
            match place(host, &hierarchy, &one.step) {
                Ok(true) => {
                    // What the kernel has reset of the owner's values stays the owner's.
                    let planned = owner::planned_value(&one.step);
                    let of_owner = one.of_owner.as_ref() == Some(&planned);
                    let outcome = if of_owner { Outcome::Yielded } else { Outcome::Done };
                    journal.note(index, outcome, of_owner.then_some(planned));
                    events.extend(self.repaired_event(one, found));
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

    /// Sets how the steps are undone: as the first step for the same setting, or, for a new thread,
    /// with the originals of its creator.
    fn set_originals(
        &self,
        host: &dyn HostMut,
        journal: &Journal<'_>,
        chosen: &mut [Chosen],
    ) -> Result<(), ApplyError> {
        let record = journal.record();
        let past = UndoContext::new(host, journal.clock(), record)?;
        for Chosen { task, step, undo, of_owner, .. } in chosen {
            step.undo = undo.clone();
            let last = last_step(record, &step.undo);
            *of_owner = last.and_then(|last| record.owner_value(last)).map(str::to_owned);
            if let Some(first) = first_undo(record, &step.undo) {
                step.undo = first.clone();
                continue;
            }
            if !self.seen.contains(&task.tid) {
                past.inherit(
                    self.target.pid,
                    |task: TaskId| !self.seen.contains(&task.tid),
                    &mut step.undo,
                );
            }
        }
        Ok(())
    }

    fn repaired_event(
        &self,
        Chosen { task, step, clue, .. }: Chosen,
        found: String,
    ) -> Option<WatchEvent> {
        let (role, change) = (self.role(task), step.change.to_string());
        if self.seen.contains(&task.tid) {
            return clue.map(|clue| WatchEvent::Repaired { task, role, change, found, clue });
        }
        Some(match owner::planned_cpus(&step) {
            Some(pus) => WatchEvent::Placed { task, role, pus },
            None => {
                let clue = clue.unwrap_or_default();
                WatchEvent::Repaired { task, role, change, found, clue }
            }
        })
    }

    fn role(&self, task: TaskId) -> Role {
        let other = if task.tid == self.target.pid { Role::Emulator } else { Role::Worker };
        self.target.role(task.tid).cloned().unwrap_or(other)
    }
}

/// Executes a step and reads it back; false if the thread has ended.
fn place(host: &dyn HostMut, hierarchy: &Hierarchy<'_>, step: &Step) -> Result<bool, String> {
    match actuators::apply_change(host, &LiveThreads::default(), &step.change)
        .map_err(with_cause)?
    {
        ChangeOutcome::Gone => return Ok(false),
        ChangeOutcome::Refused { error, .. } => return Err(with_cause(error)),
        ChangeOutcome::Done(_) => {}
    }
    match actuators::verify(host, hierarchy, &step.change).map_err(with_cause)? {
        ReadBack::AsAsked | ReadBack::Less(_) | ReadBack::Given { .. } => Ok(true),
        ReadBack::Gone => Ok(false),
        ReadBack::Other { wanted, found } => {
            Err(format!("the kernel reports {found} instead of {wanted}"))
        }
    }
}

fn with_cause(error: pinfold_host::HostError) -> String {
    match std::error::Error::source(&error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
