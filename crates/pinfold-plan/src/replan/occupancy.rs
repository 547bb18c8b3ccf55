//! Which CPUs of a host are kept, and by which thread, while a new placement is made.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::text::pus_text;
use pinfold_model::{
    CpuSet, Finding, IsolationScope, Plan, Role, RoleClass, ThreadPlan, Topology, VnodeKind,
    VnodePlan,
};

use super::{DEGRADED, Move, Placements, Replan, ReplanError};
use crate::analysis::host_match;
use crate::cores::available::Index;
use crate::guest::topology::flat;
use crate::strategies::{StrategyKind, gives_own_cores, kind_of};

/// What each vCPU of a machine keeps for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unit {
    /// Nothing: it floats, or shares by definition.
    Nothing,
    /// A CPU.
    Cpu,
    /// A core, whose other CPUs run no vCPU.
    Core,
}

/// A thread of the placements, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub plan: usize,
    pub vnode: usize,
    pub thread: usize,
}

/// What a change replaced.
enum UndoEntry {
    /// The CPUs of a thread, and the reason if that is another now.
    Thread(Place, CpuSet, Option<String>),
    /// The exclusive and the housekeeping CPUs of a plan.
    Plan(usize, CpuSet, CpuSet),
}

/// A state of the placements to which [`Occupancy::restore`] returns.
pub(super) struct Mark {
    changes: usize,
    kept: CpuSet,
    exclusive: CpuSet,
}

/// The placements while they are changed.
///
/// They are changed in place and what was there before is recorded: a host has hundreds of plans,
/// and a change narrows the masks of most of them but copies none.
pub(super) struct Occupancy<'a> {
    pub topology: &'a Topology,
    pub index: Index<'a>,
    pub plans: &'a mut Vec<Plan>,
    /// The CPUs that are online, allowed, and not taken by another owner.
    pub available: CpuSet,
    /// The CPUs that plans keep exclusively or on which a vCPU has its only CPU.
    pub kept: CpuSet,
    /// The CPUs that plans keep exclusively.
    exclusive: CpuSet,
    /// True if a vCPU may be without a CPU of its own.
    may_be_degraded: bool,
    /// What was replaced, oldest first.
    undo_entries: Vec<UndoEntry>,
    /// The plan with another number of threads than before.
    resized: Option<usize>,
    /// The thread that was not placed before.
    added: Option<Place>,
}

impl<'a> Occupancy<'a> {
    pub fn new(topology: &'a Topology, placements: &'a mut Placements) -> Self {
        let usable = topology.online().intersection(&topology.allowed);
        let available = match usable.difference(&placements.taken) {
            none if none.is_empty() => usable,
            some => some,
        };
        let mut state = Self {
            topology,
            index: Index::from_topology(topology),
            plans: &mut placements.plans,
            available,
            kept: CpuSet::new(),
            exclusive: CpuSet::new(),
            may_be_degraded: false,
            undo_entries: Vec::new(),
            resized: None,
            added: None,
        };
        state.count();
        state
    }

    /// Determines anew which CPUs are kept.
    pub fn count(&mut self) {
        let (mut kept, mut exclusive) = (CpuSet::new(), CpuSet::new());
        for plan in self.plans.iter() {
            exclusive.add(&plan.exclusive);
            for vnode in plan.vnodes.iter().filter(|vnode| unit(plan, vnode) != Unit::Nothing) {
                for thread in vnode.vcpus() {
                    if is_degraded(thread) {
                        self.may_be_degraded = true;
                    } else if thread.pus.is_single() {
                        kept.add(&thread.pus);
                    }
                }
            }
        }
        kept.add(&exclusive);
        (self.kept, self.exclusive) = (kept, exclusive);
    }

    /// The CPUs of the host's tasks.
    pub fn housekeeping(&self) -> CpuSet {
        self.available.difference(&self.exclusive).difference(&self.topology.isolated)
    }

    /// The CPUs that no plan and no vCPU keeps.
    pub fn free(&self) -> CpuSet {
        self.available.difference(&self.kept)
    }

    /// The CPUs of threads that would have none left without them, or without the core.
    pub fn homes(&self, unit: Unit) -> CpuSet {
        let widest = if unit == Unit::Core { self.index.widest_core } else { 1 };
        let mut homes = CpuSet::new();
        for plan in self.plans.iter() {
            for (_, thread) in plan.threads().filter(|(_, thread)| thread.pus.has_at_most(widest)) {
                homes.add(&thread.pus);
            }
        }
        homes
    }

    /// True if a thread would have no CPU left without these.
    pub fn leaves_a_thread_without_cpu(&self, cpus: &CpuSet) -> bool {
        let mut threads = self.plans.iter().flat_map(|plan| plan.threads());
        threads.any(|(_, thread)| thread.pus.is_subset(cpus))
    }

    /// A CPU of each thread that shares at most so many CPUs, so that none is left without one.
    pub fn last_cpus(&self, most: usize) -> CpuSet {
        let threads = self.plans.iter().flat_map(|plan| plan.threads());
        let masks = threads.map(|(_, thread)| &thread.pus);
        let masks = masks.filter(|mask| mask.has_at_most(most) && mask.is_disjoint(&self.kept));
        let mut masks: Vec<&CpuSet> = masks.collect();
        masks.sort_by_cached_key(|mask| mask.len());
        let mut last = CpuSet::new();
        for mask in masks {
            if mask.is_disjoint(&last)
                && let Some(first) = mask.first()
            {
                last.insert(first);
            }
        }
        last
    }

    pub fn vnode(&self, place: Place) -> &VnodePlan {
        &self.plans[place.plan].vnodes[place.vnode]
    }

    pub fn thread(&self, place: Place) -> &ThreadPlan {
        &self.vnode(place).threads[place.thread]
    }

    pub fn unit(&self, place: Place) -> Unit {
        unit(&self.plans[place.plan], self.vnode(place))
    }

    /// Where the machine or group of this name is; the index of a thread is 0.
    fn find(&self, name: &str) -> Result<Place, ReplanError> {
        let mut plans = self.plans.iter().enumerate();
        let found = plans.find_map(|(plan, known)| {
            let vnode = known.vnodes.iter().position(|vnode| vnode.name == name)?;
            Some(Place { plan, vnode, thread: 0 })
        });
        found.ok_or_else(|| ReplanError::NotPlaced(name.to_owned()))
    }

    /// True if a machine or group of this name is placed.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_ok()
    }

    /// All threads that a predicate selects.
    pub fn threads(&self, is_meant: impl Fn(&Plan, &VnodePlan, &ThreadPlan) -> bool) -> Vec<Place> {
        let mut found = Vec::new();
        for (plan, known) in self.plans.iter().enumerate() {
            for (vnode, of) in known.vnodes.iter().enumerate() {
                for (thread, one) in of.threads.iter().enumerate() {
                    if is_meant(known, of, one) {
                        found.push(Place { plan, vnode, thread });
                    }
                }
            }
        }
        found
    }

    /// Ends a machine or group; its CPUs are free.
    pub fn remove_vnode(&mut self, name: &str) -> Result<(), ReplanError> {
        let place = self.find(name)?;
        if self.plans[place.plan].vnodes.len() == 1 {
            self.plans.remove(place.plan);
        } else {
            let freed = self.own_units(place, self.vnode(place).threads.iter());
            self.resized = Some(place.plan);
            let plan = &mut self.plans[place.plan];
            plan.vnodes.remove(place.vnode);
            release(plan, &freed);
        }
        self.count();
        self.give_cpus_to_degraded();
        Ok(())
    }

    /// Ends a thread; the CPU that it had alone is free.
    pub fn remove_thread(&mut self, name: &str, role: &Role) -> Result<(), ReplanError> {
        let mut place = self.find(name)?;
        let no_thread = || ReplanError::NoThread { vnode: name.to_owned(), role: role.clone() };
        let threads = &self.vnode(place).threads;
        place.thread = threads.iter().position(|one| one.role == *role).ok_or_else(no_thread)?;
        let freed = match self.thread(place).role.kind().class {
            RoleClass::Vcpu => self.own_units(place, std::iter::once(self.thread(place))),
            RoleClass::Task | RoleClass::Main | RoleClass::Device | RoleClass::Pool => {
                CpuSet::new()
            }
        };
        self.resized = Some(place.plan);
        let vnode = &mut self.plans[place.plan].vnodes[place.vnode];
        vnode.threads.remove(place.thread);
        if role.is_vcpu() {
            set_guest(vnode);
            // The emulator on the siblings of the vCPUs leaves with them.
            let helpers = vnode.threads.iter().enumerate();
            let helpers = helpers.filter(|(_, thread)| !thread.role.runs_work());
            let helpers = helpers.map(|(thread, _)| Place { thread, ..place }).collect();
            self.leave(helpers, &freed);
            let used = self.plans[place.plan].pus();
            release(self.plan_mut(place.plan), &freed.difference(&used));
        }
        self.count();
        self.give_cpus_to_degraded();
        Ok(())
    }

    /// The CPUs of some threads of a machine and their idle siblings, without those of its other
    /// vCPUs and of other machines.
    fn own_units<'t>(
        &'t self,
        place: Place,
        threads: impl Iterator<Item = &'t ThreadPlan>,
    ) -> CpuSet {
        let plan = &self.plans[place.plan];
        let ended: Vec<&ThreadPlan> = threads.collect();
        let others = plan.threads().filter(|(vnode, thread)| {
            !ended.iter().any(|one| std::ptr::eq(*one, *thread))
                && (thread.role.runs_work() || !std::ptr::eq(*vnode, self.vnode(place)))
        });
        let others = others.map(|(_, thread)| self.cores(&thread.pus)).collect::<Vec<_>>();
        let others = others.iter().collect::<CpuSet>();
        let own = ended.iter().map(|thread| self.cores(&thread.pus)).collect::<Vec<_>>();
        own.iter().collect::<CpuSet>().intersection(&plan.exclusive).difference(&others)
    }

    /// All CPUs of the cores of some CPUs.
    pub fn cores(&self, pus: &CpuSet) -> CpuSet {
        let mut all = pus.clone();
        for pu in self.index.pus(pus) {
            if let Some(core) = self.topology.cores.get(pu.core.index()) {
                all.add(&core.pus);
            }
        }
        all
    }

    /// Places a new thread of a machine.
    pub fn add_thread(&mut self, name: &str, role: &Role) -> Result<(), ReplanError> {
        let mut place = self.find(name)?;
        if self.vnode(place).threads.iter().any(|thread| thread.role == *role) {
            return Ok(());
        }
        let vnode = self.vnode(place);
        let alike = |class: RoleClass| {
            vnode.threads.iter().rev().find(move |thread| thread.role.kind().class == class)
        };
        let class = role.kind().class;
        let model = alike(class).or_else(|| alike(RoleClass::Main)).or(vnode.threads.last());
        let Some(model) = model.cloned() else {
            return Err(ReplanError::NoThread { vnode: name.to_owned(), role: role.clone() });
        };
        let unit = self.unit(place);
        let own = unit != Unit::Nothing && role.is_vcpu();
        let mut added = ThreadPlan {
            role: role.clone(),
            reason: format!("as {}, which is older", model.role),
            ..model
        };
        let plan = &self.plans[place.plan];
        let mut of_others = self.kept.difference(&plan.exclusive);
        if !role.runs_work() {
            // Where threads like it share CPUs with the vCPUs of their machine, it does so too.
            let work = plan.threads().filter(|(_, thread)| thread.role.runs_work());
            of_others = of_others.difference(&work.map(|(_, thread)| &thread.pus).collect());
        }
        let open = added.pus.intersection(&self.available).difference(&of_others);
        if !own && !open.is_empty() && open != added.pus {
            added.reason.push_str(", without the CPUs that others keep");
            added.pus = open;
        }
        let vnode = &mut self.plans[place.plan].vnodes[place.vnode];
        place.thread = vnode.threads.partition_point(|thread| thread.role < *role);
        vnode.threads.insert(place.thread, added);
        set_guest(vnode);
        (self.resized, self.added) = (Some(place.plan), Some(place));
        if own {
            self.share(place);
            self.assign_cpus(vec![place]);
        }
        Ok(())
    }

    /// Moves all threads off CPUs that are gone or that another owner took, and uses those that
    /// returned.
    pub fn leave_lost_cpus(&mut self) {
        let available = self.available.clone();
        let lost = self.threads(|_, _, thread| !thread.pus.is_subset(&available));
        for position in 0..self.plans.len() {
            let plan = &self.plans[position];
            if !plan.exclusive.is_subset(&available) || !plan.housekeeping.is_subset(&available) {
                let plan = self.plan_mut(position);
                plan.exclusive = plan.exclusive.intersection(&available);
                plan.housekeeping = plan.housekeeping.intersection(&available);
            }
        }
        self.count();
        let (mut displaced, mut homeless) = (Vec::new(), Vec::new());
        for place in lost {
            let rest = self.thread(place).pus.intersection(&available);
            let has_own = self.unit(place) != Unit::Nothing && self.thread(place).role.is_vcpu();
            if !rest.is_empty() {
                self.set_pus(place, rest);
            } else if has_own {
                displaced.push(place);
            } else {
                homeless.push(place);
            }
        }
        self.keep_a_housekeeping_cpu();
        for place in homeless {
            let (pus, reason) = self.home_for(place);
            self.set_thread(place, pus, reason);
        }
        for place in &displaced {
            if self.unit(*place) == Unit::Core {
                self.release_idle_cores(place.plan);
            }
        }
        displaced.into_iter().for_each(|place| self.share(place));
        let host = self.housekeeping();
        for position in 0..self.plans.len() {
            if self.plans[position].housekeeping.is_empty() {
                self.plan_mut(position).housekeeping.clone_from(&host);
            }
        }
        self.keep_idle_siblings();
        self.give_cpus_to_degraded();
    }

    /// Gives the rest of the cores whose vCPU lost its CPU back to the host's tasks.
    fn release_idle_cores(&mut self, position: usize) {
        let work = self.plans[position].threads().filter(|(_, thread)| has_own_work(thread));
        let work = work.map(|(_, thread)| &thread.pus).collect::<CpuSet>();
        let used = self.cores(&work.intersection(&self.available));
        let idle = self.plans[position].exclusive.difference(&used);
        release(self.plan_mut(position), &idle);
        let mut helpers = Vec::new();
        for (vnode, of) in self.plans[position].vnodes.iter().enumerate() {
            for (thread, one) in of.threads.iter().enumerate() {
                if !has_own_work(one) {
                    helpers.push(Place { plan: position, vnode, thread });
                }
            }
        }
        self.leave(helpers, &idle);
        self.count();
    }

    /// Removes CPUs from the masks of some threads, unless one has no other.
    fn leave(&mut self, threads: Vec<Place>, cpus: &CpuSet) {
        for place in threads {
            let rest = self.thread(place).pus.difference(cpus);
            if !rest.is_empty() {
                self.set_pus(place, rest);
            }
        }
    }

    /// Lets a vCPU share the CPUs of its emulator, until one is free.
    fn share(&mut self, place: Place) {
        let emulator = self.vnode(place).thread(&Role::Emulator);
        // Its own CPUs are no longer available to others, but they are usable.
        let usable = self.topology.online().intersection(&self.topology.allowed);
        let emulator = emulator.filter(|thread| thread.pus.is_subset(&usable));
        let pus = emulator.map_or_else(|| self.home_for(place).0, |thread| thread.pus.clone());
        let reason = format!("{DEGRADED}, so it shares {} with the emulator", pus_text(&pus));
        self.set_thread(place, pus, reason);
        self.may_be_degraded = true;
    }

    /// The CPUs for a thread without its own that has none left: those of the host's tasks, on the
    /// nodes of its machine's vCPUs if there are some.
    fn home_for(&self, place: Place) -> (CpuSet, String) {
        let host = self.housekeeping();
        let vcpus = self.vnode(place).vcpus().map(|thread| &thread.pus).collect::<CpuSet>();
        let near = self.index.cpus_on_nodes(&host, &self.index.nodes_of(&vcpus));
        let pus = match (near.is_empty(), host.is_empty()) {
            (false, _) => near,
            (true, false) => host,
            (true, true) => self.available.clone(),
        };
        let reason = format!(
            "its own CPUs went offline or were given to others; it falls back to {}",
            pus_text(&pus)
        );
        (pus, reason)
    }

    /// Gives the host's tasks a CPU if they have none: an idle sibling, else the CPU of a vCPU.
    fn keep_a_housekeeping_cpu(&mut self) {
        if !self.housekeeping().is_empty() {
            return;
        }
        let used = self.plans.iter().map(|plan| plan.pus()).collect::<Vec<_>>();
        let used = used.iter().collect::<CpuSet>();
        let hostable = self.exclusive.intersection(&self.available);
        let hostable = hostable.difference(&self.topology.isolated);
        let workers = self.threads(|_, _, thread| thread.role.runs_work());
        let work = workers.iter().map(|place| &self.thread(*place).pus).collect::<CpuSet>();
        let idle = hostable.difference(&used).first();
        // The last vCPU of the largest machine has most others to share with.
        let of_vcpu = || {
            let vcpus = workers.iter().filter(|place| {
                let thread = self.thread(**place);
                has_own_cpu(thread) && thread.pus.is_subset(&hostable)
            });
            let last =
                vcpus.max_by_key(|place| (self.vnode(**place).vcpus().count(), place.thread));
            last.and_then(|place| self.thread(*place).pus.first())
        };
        let Some(cpu) = idle.or_else(|| hostable.difference(&work).first()).or_else(of_vcpu) else {
            return;
        };
        let given = CpuSet::single(cpu);
        for position in 0..self.plans.len() {
            if self.plans[position].exclusive.contains(cpu) {
                release(self.plan_mut(position), &given);
            }
        }
        self.count();
        for place in workers {
            if self.thread(place).pus == given {
                self.share(place);
            }
        }
        self.count();
    }

    /// Keeps the siblings of vCPUs that have a core of their own, if they returned and no thread
    /// has them.
    fn keep_idle_siblings(&mut self) {
        let owners = self.threads(|plan, vnode, thread| {
            !plan.exclusive.is_empty()
                && thread.role.is_vcpu()
                && has_own_cpu(thread)
                && unit(plan, vnode) == Unit::Core
        });
        for place in owners {
            let core = self.cores(&self.thread(place).pus).intersection(&self.available);
            let missing = core.difference(&self.plans[place.plan].exclusive);
            let left = self.housekeeping().difference(&missing);
            let is_free =
                missing.is_disjoint(&self.kept) && !self.leaves_a_thread_without_cpu(&missing);
            if !missing.is_empty() && is_free && !left.is_empty() {
                self.keep(place, &missing);
            }
        }
    }

    /// Reserves CPUs for the plan of a thread, if it isolates, and removes them from the masks of
    /// the threads of others.
    pub fn keep(&mut self, place: Place, cpus: &CpuSet) {
        self.kept.add(cpus);
        if self.plans[place.plan].isolation == IsolationScope::None {
            return;
        }
        self.exclusive.add(cpus);
        let host = self.housekeeping();
        let plan = self.plan_mut(place.plan);
        plan.exclusive.add(cpus);
        plan.housekeeping = match plan.housekeeping.difference(cpus) {
            none if none.is_empty() => host,
            some => some,
        };
        self.leave_to(place.plan, cpus);
    }

    /// Removes CPUs that a plan keeps now from the masks of the threads of all other plans.
    pub fn leave_to(&mut self, owner: usize, cpus: &CpuSet) {
        let touched = self.threads(|_, _, thread| !thread.pus.is_disjoint(cpus));
        // Hundreds of emulators float over the same CPUs, and share their set.
        let mut narrower: BTreeMap<CpuSet, CpuSet> = BTreeMap::new();
        for place in touched.into_iter().filter(|place| place.plan != owner) {
            let pus = self.thread(place).pus.clone();
            let rest = narrower.entry(pus).or_insert_with_key(|pus| pus.difference(cpus)).clone();
            let home = if rest.is_empty() { self.home_for(place).0 } else { rest };
            self.set_pus(place, home);
        }
    }

    /// Gives a thread other CPUs.
    pub fn set_pus(&mut self, place: Place, pus: CpuSet) {
        let thread = &mut self.plans[place.plan].vnodes[place.vnode].threads[place.thread];
        let former = std::mem::replace(&mut thread.pus, pus);
        self.undo_entries.push(UndoEntry::Thread(place, former, None));
    }

    /// Gives a thread other CPUs, with the reason.
    pub fn set_thread(&mut self, place: Place, pus: CpuSet, reason: String) {
        let thread = &mut self.plans[place.plan].vnodes[place.vnode].threads[place.thread];
        let former = std::mem::replace(&mut thread.pus, pus);
        let reason = std::mem::replace(&mut thread.reason, reason);
        self.undo_entries.push(UndoEntry::Thread(place, former, Some(reason)));
    }

    /// A plan whose exclusive or housekeeping CPUs change.
    fn plan_mut(&mut self, position: usize) -> &mut Plan {
        let plan = &mut self.plans[position];
        let former = UndoEntry::Plan(position, plan.exclusive.clone(), plan.housekeeping.clone());
        self.undo_entries.push(former);
        plan
    }

    /// The present state.
    pub fn mark(&self) -> Mark {
        let (kept, exclusive) = (self.kept.clone(), self.exclusive.clone());
        Mark { changes: self.undo_entries.len(), kept, exclusive }
    }

    /// Undoes all changes of CPUs since a mark.
    pub fn restore(&mut self, mark: &Mark) {
        for former in self.undo_entries.drain(mark.changes..).rev() {
            match former {
                UndoEntry::Thread(place, pus, reason) => {
                    let vnode = &mut self.plans[place.plan].vnodes[place.vnode];
                    let thread = &mut vnode.threads[place.thread];
                    thread.pus = pus;
                    if let Some(reason) = reason {
                        thread.reason = reason;
                    }
                }
                UndoEntry::Plan(position, exclusive, housekeeping) => {
                    let plan = &mut self.plans[position];
                    (plan.exclusive, plan.housekeeping) = (exclusive, housekeeping);
                }
            }
        }
        self.kept.clone_from(&mark.kept);
        self.exclusive.clone_from(&mark.exclusive);
    }

    /// Releases the CPU that a vCPU has alone, before it gets another.
    pub fn vacate(&mut self, place: Place) {
        let freed = self.own_units(place, std::iter::once(self.thread(place)));
        let own = self.thread(place).pus.clone();
        release(self.plan_mut(place.plan), &freed);
        self.kept = self.kept.difference(&own).difference(&freed);
        self.exclusive = self.exclusive.difference(&freed);
    }

    /// Gives vCPUs that share CPUs because none was free one of their own, if there is one now.
    pub fn give_cpus_to_degraded(&mut self) {
        if self.may_be_degraded {
            let waiting = self.threads(|_, _, thread| is_degraded(thread));
            self.assign_cpus(waiting);
        }
    }

    /// The result, compared with the placements before.
    pub fn finish(mut self) -> Replan {
        let (mut moves, mut narrowed, mut findings) = (Vec::new(), Vec::new(), Vec::new());
        let mut before: BTreeMap<Place, CpuSet> = BTreeMap::new();
        let mut changed: BTreeSet<usize> = self.resized.into_iter().collect();
        // A narrower mask is on cores that the plan has recorded already.
        let mut has_new_cpus = changed.clone();
        for former in std::mem::take(&mut self.undo_entries) {
            match former {
                UndoEntry::Plan(position, ..) => {
                    changed.insert(position);
                }
                UndoEntry::Thread(place, pus, _) => {
                    changed.insert(place.plan);
                    before.entry(place).or_insert(pus);
                }
            }
        }
        before.retain(|place, _| self.added != Some(*place));
        for (place, from) in before {
            let thread = self.thread(place);
            let to = thread.pus.clone();
            if from.is_subset(&to) {
                continue;
            }
            let is_move = !to.is_subset(&from);
            let (vnode, role) = (self.vnode(place).name.clone(), thread.role.clone());
            let one = Move { vnode, role, from, to };
            if is_move {
                has_new_cpus.insert(place.plan);
                moves.push(one);
            } else {
                narrowed.push(one);
            }
        }
        for position in changed {
            let plan = &mut self.plans[position];
            plan.fingerprint.clone_from(&self.topology.fingerprint);
            if has_new_cpus.contains(&position) {
                plan.cpus = Some(host_match::record_cpus(plan, self.topology));
            }
        }
        if self.may_be_degraded {
            for place in self.threads(|_, _, thread| is_degraded(thread)) {
                findings.push(report_degraded(&self.vnode(place).name, self.thread(place)));
            }
        }
        Replan { moves, narrowed, findings }
    }
}

/// The finding about a vCPU without a CPU of its own.
fn report_degraded(vnode: &str, thread: &ThreadPlan) -> Finding {
    let text = format!(
        "{} of {vnode} shares {} with the emulator, because no CPU is free",
        thread.role,
        pus_text(&thread.pus)
    );
    Finding::warning("degraded", text).with_hint("shut down a machine, or bring a CPU online")
}

/// What each vCPU of a machine of a plan keeps for itself.
fn unit(plan: &Plan, vnode: &VnodePlan) -> Unit {
    match vnode.kind {
        VnodeKind::ProcessGroup => Unit::Nothing,
        VnodeKind::VirtualMachine
            if matches!(
                kind_of(&plan.strategy),
                Some(StrategyKind::Floating | StrategyKind::Part)
            ) =>
        {
            Unit::Nothing
        }
        VnodeKind::VirtualMachine
            if !vnode.vcpus().any(|thread| thread.pus.is_single() || is_degraded(thread)) =>
        {
            Unit::Nothing
        }
        VnodeKind::VirtualMachine if gives_own_cores(&plan.strategy) => Unit::Core,
        VnodeKind::VirtualMachine => Unit::Cpu,
    }
}

fn is_degraded(thread: &ThreadPlan) -> bool {
    thread.reason.starts_with(DEGRADED)
}

/// True if a vCPU is bound to one CPU that it does not share with its emulator.
fn has_own_cpu(thread: &ThreadPlan) -> bool {
    thread.pus.is_single() && !is_degraded(thread)
}

/// True if a thread runs work on CPUs that it does not share with the emulator.
fn has_own_work(thread: &ThreadPlan) -> bool {
    thread.role.runs_work() && !is_degraded(thread)
}

/// Gives CPUs of a plan back to the host's tasks.
fn release(plan: &mut Plan, cpus: &CpuSet) {
    plan.exclusive = plan.exclusive.difference(cpus);
    plan.housekeeping.add(cpus);
}

/// The guest's topology after its number of vCPUs changed.
fn set_guest(vnode: &mut VnodePlan) {
    let vcpus = vnode.vcpus().count();
    if vnode.guest.as_ref().is_some_and(|guest| guest.vcpus() as usize != vcpus) {
        vnode.guest = Some(flat(vcpus, "its number of vCPUs changed while it ran"));
    }
}
