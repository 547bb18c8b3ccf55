//! A new plan for a machine that changed while it runs: a vCPU or an iothread was added or removed, a
//! CPU went offline, or the owner of the machine moved a thread.
//!
//! [`pinfold_plan::replan`] places what is new around what stays and moves as few threads as it can.
//! Memory, interrupts and tunables stay as they are. Threads whose CPUs the new plan does not change
//! are not written, so that a pin that their owner sets meanwhile stays. The new plan [replaces](pinfold_apply::replace)
//! the present one in its journal, so an undo leads back to the state before the first plan.

mod waiting;

use std::collections::{BTreeMap, BTreeSet};

use pinfold_apply::{Journal, Journals, MachineChange, Target, WatchEvent, Watcher};
use pinfold_host::files::StateDir;
use pinfold_host::{LiveHost, process};
use pinfold_model::text::pus_text;
use pinfold_model::{CpuSet, Finding, Plan, Role, TaskId, Tid, Topology};
use pinfold_plan::replan::{Change, Placements, Replan, replan};

use crate::apply_session::{self, OnStop, Placement};
use crate::claims::{self, Claims};
use crate::start_lock::StartLock;
use crate::target::kept_after;
use crate::{Exit, Failure, inputs, planning, plans};
pub use waiting::{degraded_findings, finds_cpus};

/// Longest wait for another command that chooses CPUs: shorter than the time without heartbeats
/// after which real-time policies are removed.
const TIMEOUT_NS: u64 = 500_000_000;
/// Time after which a machine that could not be planned again is tried again.
pub const AGAIN_NS: u64 = 30_000_000_000;
/// Shortest time between two searches for a CPU for a vCPU that shares one.
pub const SEARCH_NS: u64 = 1_000_000_000;

/// Which CPUs new plans avoid.
#[derive(Clone, Copy)]
pub struct OtherOwners<'s, 'c> {
    /// The journals of the state directory.
    pub journals: &'s Journals<'c>,
    /// True to plan as if the host had no other owners of CPUs.
    pub ignores_claims: bool,
}

impl OtherOwners<'_, '_> {
    /// The claims of all but a machine with its placement.
    fn others(self, host: &LiveHost, pid: Tid, name: &str, id: &str) -> Result<Claims, Failure> {
        if self.ignores_claims {
            return Ok(Claims::default());
        }
        let claims = claims::read(host, Some(self.journals))?;
        Ok(claims.without_machine(host, pid, name).without(id))
    }
}

/// Plans a machine again for the change that its watcher found, or for CPUs that are free now, and
/// replaces its plan by the new one. `None` if there is nothing to change.
///
/// # Errors
/// [`Failure`] if no strategy places the machine, or if the new plan could not be applied; then the
/// present one stays active.
pub fn follow_change(
    host: &LiveHost,
    around: OtherOwners<'_, '_>,
    plan: &mut Plan,
    watcher: &mut Watcher,
    journal: &mut Journal<'_>,
) -> Result<Option<WatchEvent>, Failure> {
    let state = StateDir::open(&around.journals.state_dir())?;
    let Some(_starting) = StartLock::wait_at_most(&state, TIMEOUT_NS)? else {
        return Err(Failure::new(Exit::Host, "another pinfold process is starting a placement"));
    };
    let change = watcher.change();
    let present = if watcher.follows_owner() { adopt_moves(plan, change) } else { plan.clone() };
    let new = if change.is_only_of_owner() && !waiting::has_waiting(&present) {
        present
    } else {
        let header = &journal.record().header;
        let others = around.others(host, watcher.target().pid, &header.vm_name, &header.id)?;
        let topology = inputs::topology(host, None)?.without_free_memory();
        if change.is_only_of_owner() {
            waiting::give_cpus(&topology, &others, &present, change)?.unwrap_or(present)
        } else {
            plan_again(&topology, &others, &present, change)?
        }
    };
    if change.is_empty() && new == *plan {
        return Ok(None);
    }
    let mut new = new;
    for (task, _) in &plan.moved {
        if !process::task_alive(host, *task)? {
            new.moved.retain(|(moved, _)| moved != task);
        }
    }
    let what = describe(plan, &new, change);
    let moves = count_moves(plan, &new, change);
    let former = watcher.target().clone();
    let target = Target { kept: kept_after(&new, journal.record()), ..former.clone() };
    let writing = Target { left: left_alone(plan, &new, &target, change), ..target.clone() };
    // A plan that must not be applied is refused before the present one is touched.
    pinfold_apply::difference(host, &new, &writing, around.journals, journal.record())
        .map_err(|error| Failure::from_error(Exit::Host, &error, None))?;
    let old = Placement { plan, target: &former };
    let placement = Placement { plan: &new, target: &writing };
    apply_session::replace_in(host, placement, Some(old), journal, OnStop::Finish)?;
    watcher.follow(&new, &target);
    *plan = new;
    Ok(Some(WatchEvent::Replanned { what, moves }))
}

/// Findings about a machine that could not be planned again, each once.
pub fn report(
    failure: &Failure,
    watcher: &mut Watcher,
    reported: &mut Option<String>,
) -> Vec<Finding> {
    let mut findings = watcher.report_unplaced();
    if reported.as_ref() != Some(&failure.message) {
        *reported = Some(failure.message.clone());
        let text = format!("cannot plan the machine again: {}", failure.message);
        let finding = Finding::warning("watch", text);
        findings.push(match &failure.hint {
            Some(hint) => finding.with_hint(hint),
            None => finding,
        });
    }
    findings
}

/// The threads that the new plan leaves where they are, or where their owner moved them.
fn left_alone(
    plan: &Plan,
    new: &Plan,
    target: &Target,
    change: &MachineChange,
) -> BTreeSet<TaskId> {
    let stays =
        |role: &Role| cpus_of(plan, role).is_some_and(|cpus| cpus_of(new, role) == Some(cpus));
    let tasks = target.threads.iter();
    let is_moved = |task: &TaskId| {
        change.moved.contains_key(task) || change.repinned_threads.contains_key(task)
    };
    let tasks = tasks.filter(|(task, role)| stays(role) || is_moved(task));
    target.left.iter().copied().chain(tasks.map(|(task, _)| *task)).collect()
}

/// The present plan with the CPUs to which the owner moved threads, and the policies that it set.
fn adopt_moves(plan: &Plan, change: &MachineChange) -> Plan {
    let mut new = plan.clone();
    for thread in new.vnodes.iter_mut().flat_map(|vnode| &mut vnode.threads) {
        if let Some(cpus) = moved_to(change, &thread.role)
            && *cpus != thread.pus
        {
            thread.reason = format!("moved to {} by its owner", pus_text(cpus));
            thread.pus.clone_from(cpus);
        }
        let mut policies = change.policies.values();
        if let Some((_, policy)) = policies.find(|(role, _)| *role == thread.role) {
            thread.policy = Some(*policy);
        }
    }
    new.moved.retain(|(task, _)| {
        !change.repinned_threads.contains_key(task) && !change.moved.contains_key(task)
    });
    let vnode = plan.vnodes.first();
    let is_apart = |role: &Role, cpus: &CpuSet| {
        vnode.and_then(|vnode| vnode.thread(role)).is_none_or(|thread| thread.pus != *cpus)
    };
    let singles = change.repinned_threads.iter().filter(|(_, (role, cpus))| is_apart(role, cpus));
    new.moved.extend(singles.map(|(task, (_, cpus))| (*task, cpus.clone())));
    new
}

/// The CPUs to which the owner moved the thread of a role.
fn moved_to<'c>(change: &'c MachineChange, role: &Role) -> Option<&'c CpuSet> {
    change.moved.values().find(|(moved, _)| moved == role).map(|(_, cpus)| cpus)
}

/// Makes the plan for the changed machine, around the CPUs of others: as many of them as leave each
/// vCPU a CPU.
///
/// # Errors
/// [`Failure`] if the plan is not one of a single machine.
pub fn plan_again(
    topology: &Topology,
    others: &Claims,
    plan: &Plan,
    change: &MachineChange,
) -> Result<Plan, Failure> {
    let name = plans::single(plan)?.name.clone();
    let mut best: Option<(Plan, Replan)> = None;
    let mut sets = planning::avoided_sets(others, topology, &[&name]);
    sets.push(CpuSet::new());
    // A thread of another machine that can run nowhere else would wait for a new vCPU: such CPUs are
    // given only if no other is free.
    let (kept, bound) = waiting::kept_by_others(others, &name);
    // A CPU that an owner which runs keeps is never given: the vCPU then runs with the emulator, or
    // floats with older vCPUs that can run nowhere else.
    let active = waiting::kept_by_active(others, &name);
    let none = CpuSet::new();
    let floating = work_of(plan).filter(|cpus| !cpus.is_single()).collect::<CpuSet>();
    let left = if floating.is_subset(&kept) { &active } else { &kept };
    let careful = sets.iter().filter(|set| kept.is_subset(set));
    let careful = careful.map(|cpus| Avoided { cpus, kept: left, bound: &bound });
    let rest = sets.iter().filter(|set| active.is_subset(set));
    let rest = rest.map(|cpus| Avoided { cpus, kept: &active, bound: &none });
    for avoided in careful.chain(rest) {
        let found = change_all(topology, plan, avoided, change)?;
        if best
            .as_ref()
            .is_none_or(|(_, known): &(Plan, Replan)| found.1.findings.len() < known.findings.len())
        {
            best = Some(found);
        }
        if best.as_ref().is_some_and(|(_, found)| found.findings.is_empty()) {
            break;
        }
    }
    let (mut new, found) =
        best.ok_or_else(|| Failure::new(Exit::Host, "there is no plan for the machine"))?;
    new.findings.retain(|finding| finding.subject != "degraded");
    new.findings.extend(found.findings);
    waiting::mark_shared(others, plan, &mut new);
    planning::report_in(others, &mut new);
    Ok(new)
}

/// The CPUs that new threads avoid.
#[derive(Clone, Copy)]
struct Avoided<'c> {
    /// The CPUs that others keep, with their cores where there is room.
    cpus: &'c CpuSet,
    /// Those that a new vCPU avoids even where older ones float over them.
    kept: &'c CpuSet,
    /// The CPUs to which threads of other machines are bound.
    bound: &'c CpuSet,
}

/// The CPUs of each vCPU or task of a plan.
fn work_of(plan: &Plan) -> impl Iterator<Item = &CpuSet> {
    let work = plan.threads().filter(|(_, thread)| thread.role.runs_work());
    work.map(|(_, thread)| &thread.pus)
}

/// The plan after all that has changed: first what gives CPUs back, then what needs some.
fn change_all(
    topology: &Topology,
    plan: &Plan,
    avoided: Avoided<'_>,
    change: &MachineChange,
) -> Result<(Plan, Replan), Failure> {
    let vnode = plans::single(plan)?;
    // What the machine has stays; a new thread gets no CPU that others have or the request avoids,
    // not even one where the emulator runs.
    let own = plan.pus().union(&plan.exclusive);
    let alone = work_of(plan).filter(|cpus| cpus.is_single()).collect::<CpuSet>();
    let stays = avoided.cpus.union(&plan.avoid_pus).difference(&own);
    let taken = avoided.cpus.union(&plan.avoid_pus).union(avoided.bound);
    let taken = taken.difference(&work_of(plan).collect());
    let taken = taken.union(&avoided.kept.difference(&alone));
    let name = || vnode.name.clone();
    let is_placed = |role: &Role| vnode.threads.iter().any(|thread| thread.role == *role);
    let removed = change.removed.iter().filter(|role| is_placed(role));
    let removed = removed.map(|role| Change::Removed { vnode: name(), role: role.clone() });
    let lost = (!change.stranded.is_empty()).then_some(Change::Host);
    let added = change.added.iter();
    let added = added.map(|(_, role)| Change::Added { vnode: name(), role: role.clone() });
    let mut placements = Placements::new(vec![plan.clone()], stays);
    let mut found = Replan::default();
    for one in removed.chain(lost).chain(added) {
        if matches!(one, Change::Added { .. }) {
            placements.taken.clone_from(&taken);
        }
        found = replan(topology, &mut placements, &one)
            .map_err(|error| Failure::from_error(Exit::Host, &error, None))?;
    }
    let new = placements.plans.pop();
    let mut new =
        new.ok_or_else(|| Failure::new(Exit::Host, "there is no plan for the machine"))?;
    for thread in new.vnodes.iter_mut().flat_map(|vnode| &mut vnode.threads) {
        if let Some((_, cpus)) = change.moved.values().find(|(role, _)| *role == thread.role)
            && !is_placed(&thread.role)
        {
            thread.reason = format!("pinned to {} by its owner", pus_text(cpus));
            thread.pus.clone_from(cpus);
        }
    }
    Ok((new, found))
}

/// The number of threads of both plans that the new one moves, except those that the owner moved.
fn count_moves(plan: &Plan, new: &Plan, change: &MachineChange) -> usize {
    let before: BTreeMap<&Role, &CpuSet> =
        plan.threads().map(|(_, thread)| (&thread.role, &thread.pus)).collect();
    let moved = new.threads().filter(|(_, thread)| {
        moved_to(change, &thread.role).is_none()
            && before.get(&thread.role).is_some_and(|pus| **pus != thread.pus)
    });
    moved.count()
}

/// The CPUs of a role in a plan.
fn cpus_of(plan: &Plan, role: &Role) -> Option<CpuSet> {
    let mut threads = plan.threads();
    threads.find(|(_, thread)| thread.role == *role).map(|(_, thread)| thread.pus.clone())
}

/// What the new plan does about the change.
fn describe(plan: &Plan, new: &Plan, change: &MachineChange) -> String {
    let mut parts = Vec::new();
    for (_, role) in &change.added {
        let Some(cpus) = cpus_of(new, role) else { continue };
        let shared = new.threads().filter(|(_, other)| {
            other.role != *role && other.role.is_vcpu() && !other.pus.is_disjoint(&cpus)
        });
        let shared: Vec<String> = shared.map(|(_, other)| other.role.to_string()).collect();
        let with = match shared.as_slice() {
            [first] if cpus.len() == 1 && role.is_vcpu() => {
                format!(", which it shares with {first}")
            }
            [first, ..] if cpus.len() == 1 && role.is_vcpu() => {
                format!(", which it shares with {first} and others")
            }
            _ => String::new(),
        };
        let degraded = format!("{role} of ");
        let is_degraded =
            |one: &&Finding| one.subject == "degraded" && one.text.starts_with(&degraded);
        let why = match new.findings.iter().find(is_degraded) {
            Some(_) => ", with the emulator, because no CPU is free",
            None => "",
        };
        parts.push(format!("{role} was added and has {}{with}{why}", pus_text(&cpus)));
    }
    parts.extend(change.removed.iter().map(|role| describe_removed(plan, new, role)));
    for role in &change.stranded {
        if let (Some(old), Some(now)) = (cpus_of(plan, role), cpus_of(new, role)) {
            let (old, now) = (pus_text(&old), pus_text(&now));
            parts.push(format!("{old} went offline; {role} now runs on {now}"));
        }
    }
    for (_, thread) in new.threads().filter(|(_, thread)| !waiting::is_degraded(thread)) {
        let former = waiting::thread_of(plan, &thread.role);
        if former.is_some_and(|former| waiting::is_waiting(former) && former.pus != thread.pus)
            && moved_to(change, &thread.role).is_none()
        {
            let (role, cpus) = (&thread.role, pus_text(&thread.pus));
            parts.push(format!("{role}, which ran with the emulator, now runs on {cpus}"));
        }
    }
    parts.extend(describe_moved(plan, change));
    parts.join("; ")
}

/// What the end of a thread gives back: the CPUs that no other thread of the machine has.
fn describe_removed(plan: &Plan, new: &Plan, role: &Role) -> String {
    let left = cpus_of(plan, role).unwrap_or_default().difference(&new.pus());
    if left.is_empty() {
        return format!("{role} was removed");
    }
    format!("{role} was removed, which releases {}", pus_text(&left))
}

/// What the owner moved. Threads without a role of their own are moved with the emulator, by one
/// pin.
fn describe_moved(plan: &Plan, change: &MachineChange) -> Vec<String> {
    let vnode = plan.vnodes.first();
    let (mut parts, mut moved) = (Vec::new(), BTreeSet::new());
    for (role, cpus) in change.moved.values() {
        let planned = vnode.and_then(|vnode| vnode.thread(role)).map(|thread| &thread.role);
        let role = planned.filter(|_| !role.is_of_one_thread()).unwrap_or(role);
        if moved.insert((role, cpus)) {
            parts.push(format!("{role} stays on {}, where its owner moved it", pus_text(cpus)));
        }
    }
    for (task, (role, cpus)) in &change.repinned_threads {
        let (tid, cpus) = (task.tid, pus_text(cpus));
        parts.push(format!("thread {tid} ({role}) stays on {cpus}, where its owner moved it"));
    }
    parts
}

#[cfg(test)]
mod tests;
