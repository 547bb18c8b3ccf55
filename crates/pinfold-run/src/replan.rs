//! A new plan for a machine that changed while it runs: a vCPU or an iothread was added or removed, a
//! CPU went offline, or the owner of the machine moved a thread.
//!
//! The strategy of the present plan places what is new around what stays: threads keep their CPUs as
//! if they were pinned by hand, and of several ways the one that moves the fewest threads is taken.
//! Memory, interrupts and tunables stay as they are. The new plan [replaces](pinfold_apply::replace)
//! the present one in its journal, so an undo leads back to the state before the first plan.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_apply::{Header, Journal, Journals, MachineChange, Target, WatchEvent, Watcher};
use pinfold_host::LiveHost;
use pinfold_host::files::StateDir;
use pinfold_model::text::pus_text;
use pinfold_model::{
    CpuSet, Finding, NodeId, PinRequest, Plan, Request, Role, Severity, ThreadPlan, Tid, Topology,
    VcpuCount, VnodePlan, VnodeRequest, Work,
};
use pinfold_plan::{PlanError, command};

use crate::apply_session::{self, OnStop, Placement};
use crate::claims::{self, Claims};
use crate::start_lock::StartLock;
use crate::target::kept_after;
use crate::vcpus::Vcpus;
use crate::{Exit, Failure, inputs, planning, plans};

/// Longest wait for another command that chooses CPUs: shorter than the time without heartbeats
/// after which real-time policies are removed.
const PATIENCE_NS: u64 = 500_000_000;
/// Time after which a machine that could not be planned again is tried again.
pub const AGAIN_NS: u64 = 30_000_000_000;

/// Strategies for a machine that no longer fits under its own: siblings share cores, then CPUs are
/// taken in order.
const SUBSTITUTES: [&str; 3] = ["balanced", "balanced-shared", "compact"];

/// Which CPUs new plans avoid.
#[derive(Clone, Copy)]
pub struct Surroundings<'s, 'c> {
    /// The journals of the state directory.
    pub journals: &'s Journals<'c>,
    /// True to plan as if the host had no other owners of CPUs.
    pub ignores_claims: bool,
}

impl Surroundings<'_, '_> {
    /// The claims of all but a machine with its placement.
    fn others(self, host: &LiveHost, pid: Tid, header: &Header) -> Result<Claims, Failure> {
        if self.ignores_claims {
            return Ok(Claims::default());
        }
        let claims = claims::read(host, Some(self.journals))?;
        Ok(claims.without_machine(host, pid, &header.vm_name).without(&header.id))
    }
}

/// Plans a machine again for the change that its watcher found, and replaces its plan by the new
/// one.
///
/// # Errors
/// [`Failure`] if no strategy places the machine, or if the new plan could not be applied; then the
/// present one stays active.
pub fn follow_change(
    host: &LiveHost,
    around: Surroundings<'_, '_>,
    plan: &mut Plan,
    watcher: &mut Watcher,
    journal: &mut Journal<'_>,
) -> Result<WatchEvent, Failure> {
    let change = watcher.change();
    let state = StateDir::open(&around.journals.state_dir())?;
    let Some(_starting) = StartLock::wait_at_most(&state, PATIENCE_NS)? else {
        return Err(Failure::new(Exit::Host, "another pinfold process is starting a placement"));
    };
    let new = if change.added.is_empty() && change.removed.is_empty() && change.stranded.is_empty()
    {
        adopt_moves(plan, change)
    } else {
        let others = around.others(host, watcher.target().pid, &journal.record().header)?;
        let topology = inputs::topology(host, None)?.without_free_memory();
        plan_again(&topology, &others, plan, change)?
    };
    let what = describe(plan, &new, change);
    let moves = count_moves(plan, &new, change);
    let former = watcher.target().clone();
    let target = Target { kept: kept_after(&new, journal.record()), ..former.clone() };
    // A plan that must not be applied is refused before the present one is touched.
    pinfold_apply::difference(host, &new, &target, around.journals, journal.record())
        .map_err(|error| Failure::from_error(Exit::Host, &error, None))?;
    let old = Placement { plan, target: &former };
    let placement = Placement { plan: &new, target: &target };
    apply_session::replace_in(host, placement, Some(old), journal, OnStop::Finish)?;
    watcher.follow(&new, &target);
    *plan = new;
    Ok(WatchEvent::Replanned { what, moves })
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
        let text = format!("the machine cannot be planned again: {}", failure.message);
        let finding = Finding::warning("watch", text);
        findings.push(match &failure.hint {
            Some(hint) => finding.with_hint(hint),
            None => finding,
        });
    }
    findings
}

/// The present plan with the CPUs to which the owner moved threads.
fn adopt_moves(plan: &Plan, change: &MachineChange) -> Plan {
    let mut new = plan.clone();
    for thread in new.vnodes.iter_mut().flat_map(|vnode| &mut vnode.threads) {
        if let Some(cpus) = moved_to(change, &thread.role)
            && *cpus != thread.pus
        {
            thread.reason = format!("moved to {} by its owner", pus_text(cpus));
            thread.pus.clone_from(cpus);
        }
    }
    new
}

/// The CPUs to which the owner moved the thread of a role.
fn moved_to<'c>(change: &'c MachineChange, role: &Role) -> Option<&'c CpuSet> {
    change.moved.values().find(|(moved, _)| moved == role).map(|(_, cpus)| cpus)
}

/// Makes the plan for the changed machine, around the CPUs of others.
///
/// # Errors
/// [`Failure`] if the strategy of the plan cannot place the machine as it is now.
pub fn plan_again(
    topology: &Topology,
    others: &Claims,
    plan: &Plan,
    change: &MachineChange,
) -> Result<Plan, Failure> {
    let present = adopt_moves(plan, change);
    let vnode = plans::single(&present)?;
    let attempt = Attempt::new(topology, others, vnode, &present, change);
    let (mut best, refused) = attempt.best(&plan.strategy);
    // Where its strategy has no room, a CPU that no other owner has is better than one that is used
    // twice.
    for strategy in SUBSTITUTES {
        if best.as_ref().is_some_and(|(cost, _)| cost.faults == 0) {
            break;
        }
        let (other, _) = attempt.best(strategy);
        best = match (best, other) {
            (Some(best), Some(other)) if other.0.faults < best.0.faults => Some(other),
            (None, other) => other,
            (best, _) => best,
        };
    }
    match (best, refused) {
        (Some((_, mut new)), _) => {
            planning::report_in(others, &mut new);
            Ok(new)
        }
        (None, Some(error)) => Err(Failure::from_error(Exit::Host, &error, error.hint())),
        (None, None) => Err(Failure::new(Exit::Host, "there is no plan for the machine")),
    }
}

/// The threads that keep their CPUs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    All,
    /// vCPUs and iothreads.
    Reported,
    Vcpus,
}

impl Held {
    fn holds(self, role: &Role) -> bool {
        match self {
            Held::All => true,
            Held::Reported => role.kind().is_reported,
            Held::Vcpus => role.is_vcpu(),
        }
    }
}

/// What is wrong with a new plan, and what it moves; the least is best.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    faults: usize,
    moves: usize,
}

/// The changed machine.
struct Attempt<'a> {
    topology: &'a Topology,
    others: &'a Claims,
    vnode: &'a VnodePlan,
    plan: &'a Plan,
    change: &'a MachineChange,
    vcpus: Vcpus,
    iothreads: Vec<String>,
}

impl<'a> Attempt<'a> {
    fn new(
        topology: &'a Topology,
        others: &'a Claims,
        vnode: &'a VnodePlan,
        plan: &'a Plan,
        change: &'a MachineChange,
    ) -> Self {
        let kept = vnode.threads.iter().map(|thread| &thread.role);
        let kept = kept.filter(|role| !change.removed.contains(role));
        let roles: Vec<&Role> = kept.chain(change.added.iter().map(|(_, role)| role)).collect();
        let ids: BTreeSet<u32> = roles.iter().filter_map(|role| role.vcpu()).collect();
        let iothreads = roles.iter().filter_map(|role| role.iothread().map(str::to_owned));
        Self {
            topology,
            others,
            vnode,
            plan,
            change,
            vcpus: Vcpus::numbered(ids.into_iter().collect()),
            iothreads: iothreads.collect(),
        }
    }

    /// True if the thread of this role has usable CPUs in the present plan.
    fn stays(&self, role: &Role) -> bool {
        !self.change.removed.contains(role) && !self.change.stranded.contains(role)
    }

    /// The nodes of the machine's memory, else of its vCPUs.
    fn home_nodes(&self) -> Vec<NodeId> {
        if let Some(memory) = &self.vnode.memory {
            return memory.nodes.clone();
        }
        let mut cpus = CpuSet::new();
        self.vnode.vcpus().for_each(|thread| cpus.add(&thread.pus));
        let nodes = self.topology.nodes.iter().filter(|node| !node.pus.is_disjoint(&cpus));
        nodes.map(|node| node.id).collect()
    }

    fn request(&self, nodes: &[NodeId], held: Held) -> Result<Request, Failure> {
        let mut vnode: VnodeRequest = command::asked_of(self.plan)
            .into_iter()
            .next()
            .ok_or_else(|| Failure::new(Exit::Host, "the plan places no machine"))?;
        // Its memory is where it is.
        vnode.memory = None;
        if let Work::Vm(asked) = &mut vnode.work {
            asked.vcpus = VcpuCount::Exactly(self.vcpus.count());
            asked.iothreads.clone_from(&self.iothreads);
            asked.nodes = nodes.to_vec();
        }
        let online = self.topology.online();
        let kept = self.vnode.threads.iter();
        let kept = kept.filter(|thread| held.holds(&thread.role) && self.stays(&thread.role));
        vnode.pins = kept
            .map(|thread| PinRequest {
                role: thread.role.to_string(),
                pus: thread.pus.intersection(&online),
            })
            .filter(|pin| !pin.pus.is_empty())
            .collect();
        let mut request = Request::from_vnodes(vec![vnode]);
        request.isolation = self.plan.isolation;
        self.vcpus.count_pins(&mut request)?;
        Ok(request)
    }

    /// The plan of a strategy with the least cost; without one, why it is refused.
    fn best(&self, strategy: &str) -> (Option<(Cost, Plan)>, Option<PlanError>) {
        let (mut best, mut refused): (Option<(Cost, Plan)>, _) = (None, None);
        for nodes in [self.home_nodes(), Vec::new()] {
            for held in [Held::All, Held::Reported, Held::Vcpus] {
                match self.plan(strategy, &nodes, held) {
                    Ok(new) => {
                        let cost = self.cost(&new);
                        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                            best = Some((cost, new));
                        }
                    }
                    Err(error) => refused = Some(error),
                }
            }
        }
        (best, refused)
    }

    /// A plan in which these threads keep their CPUs.
    fn plan(&self, strategy: &str, nodes: &[NodeId], held: Held) -> Result<Plan, PlanError> {
        let request = self.request(nodes, held).map_err(|_| PlanError::NoVnodes)?;
        let mut pinned = CpuSet::new();
        request.vnodes.iter().flat_map(|one| &one.pins).for_each(|pin| pinned.add(&pin.pus));
        let names = [self.vnode.name.as_str()];
        let mut new = planning::plan_around(self.others, self.topology, &names, |avoided| {
            let avoid = avoided.difference(&pinned);
            let around = Request { avoid, ..request.clone() };
            pinfold_plan::plan(strategy, self.topology, &around)
        })?;
        self.vcpus.number(&mut new);
        self.keep(&mut new);
        Ok(new)
    }

    /// Takes from the present plan what the change does not concern.
    fn keep(&self, new: &mut Plan) {
        new.tuning.clone_from(&self.plan.tuning);
        new.irqs.clone_from(&self.plan.irqs);
        new.findings.retain(|finding| finding.subject != "pins");
        for vnode in &mut new.vnodes {
            vnode.memory.clone_from(&self.vnode.memory);
            vnode.speed = self.vnode.speed;
            for thread in &mut vnode.threads {
                match self.vnode.threads.iter().find(|before| before.role == thread.role) {
                    Some(before) => {
                        thread.policy = before.policy;
                        if before.pus == thread.pus {
                            thread.reason.clone_from(&before.reason);
                        }
                    }
                    None => {
                        thread.policy = self.policy_of(thread);
                        thread.reason.push_str("; added while the machine ran");
                    }
                }
            }
            // Threads that the request does not name: those of workers.
            let names_role = |role: &Role| vnode.threads.iter().any(|one| one.role == *role);
            let rest = self.vnode.threads.iter().filter(|one| {
                !names_role(&one.role) && self.stays(&one.role) && !one.role.kind().is_reported
            });
            let rest: Vec<ThreadPlan> = rest.cloned().collect();
            vnode.threads.extend(rest);
        }
    }

    /// The policy of a new thread: that of the machine's other threads of its kind.
    fn policy_of(&self, new: &ThreadPlan) -> Option<pinfold_model::Policy> {
        let mut alike =
            self.vnode.threads.iter().filter(|one| one.role.kind().name == new.role.kind().name);
        alike.next().map_or(new.policy, |one| one.policy)
    }

    /// How far a new plan is from the present one, and from what the present one guarantees.
    fn cost(&self, new: &Plan) -> Cost {
        let Some(vnode) = new.vnodes.first() else { return Cost { faults: usize::MAX, moves: 0 } };
        let mut faults = usize::from(new.isolation != self.plan.isolation);
        if self.vnode.is_pinned() {
            faults += vnode.vcpus().filter(|thread| thread.pus.len() != 1).count();
        }
        if !shares_vcpus(self.vnode, |role| role.is_vcpu()) {
            faults += sharing(vnode, |role| role.is_vcpu());
        }
        if !shares_vcpus(self.vnode, |role| !role.is_vcpu()) {
            faults += sharing(vnode, |role| !role.is_vcpu());
        }
        faults += self.others.conflicts(&vnode.name, new).len();
        let wrong = pinfold_plan::validate(new, self.topology);
        let problems = wrong.iter().filter(|finding| finding.severity == Severity::Problem);
        faults += problems.count() * 1000;
        Cost { faults, moves: count_moves(self.plan, new, self.change) }
    }
}

/// True if a thread of one of these roles shares a CPU with a vCPU.
fn shares_vcpus(vnode: &VnodePlan, of: impl Fn(&Role) -> bool) -> bool {
    sharing(vnode, of) > 0
}

/// The number of vCPUs that share a CPU with another thread of one of these roles.
fn sharing(vnode: &VnodePlan, of: impl Fn(&Role) -> bool) -> usize {
    let shares = |vcpu: &&ThreadPlan| {
        let mut others = vnode.threads.iter();
        others.any(|other| {
            other.role != vcpu.role && of(&other.role) && !other.pus.is_disjoint(&vcpu.pus)
        })
    };
    vnode.vcpus().filter(shares).count()
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
        parts.push(format!("{role} was added and has {}{with}", pus_text(&cpus)));
    }
    for role in &change.removed {
        let left = cpus_of(plan, role).unwrap_or_default();
        parts.push(format!("{role} was removed and leaves {}", pus_text(&left)));
    }
    for role in &change.stranded {
        if let (Some(old), Some(now)) = (cpus_of(plan, role), cpus_of(new, role)) {
            let (old, now) = (pus_text(&old), pus_text(&now));
            parts.push(format!("{old} is offline, so {role} has {now} now"));
        }
    }
    if plan.strategy != new.strategy {
        let (old, now) = (&plan.strategy, &new.strategy);
        parts.push(format!("there is no room for {old}, so {now} places it"));
    }
    for (role, cpus) in change.moved.values() {
        parts.push(format!("{role} stays on {}, where its owner moved it", pus_text(cpus)));
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests;
