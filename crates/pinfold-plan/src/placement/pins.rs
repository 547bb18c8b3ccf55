//! Pins by hand: CPUs that the request names, instead of the strategy's choice.
//!
//! A strategy with exclusive cores first takes the cores of the pins by hand and places the other
//! vCPUs, the emulator and the host around them. Other strategies place everything first. Then the
//! threads that the request names get its CPUs. A vCPU of the same vnode on one of these CPUs moves
//! to a CPU that became free, and the emulator leaves these CPUs while it has others. Guest
//! topology, memory, interrupts and findings are computed afterwards, from the resulting pins.

use pinfold_model::text::pus_text;
use pinfold_model::{
    CpuSet, FreeCpus, IsolationScope, PinRequest, Plan, PuId, Request, Role, RoleKind, ThreadPlan,
    Topology, VnodePlan, VnodeRequest, Work,
};

use crate::analysis::validate::faults;
use crate::cores::available::AvailableCpus;
use crate::cores::online;
use crate::error::PlanError;
use crate::placement::vnode_builder::{Reserve, VnodeBuilder};

/// Changes by pins by hand, over all vnodes.
#[derive(Default)]
pub(crate) struct ManualPins {
    /// The strategy's CPUs of the vCPUs and tasks that are pinned by hand.
    before: CpuSet,
    /// The present CPUs of these vCPUs and tasks.
    pub vcpus: CpuSet,
    /// The CPUs of emulators, iothreads, vhost workers and worker threads that are pinned by hand.
    helpers: CpuSet,
    /// The threads that are pinned by hand, for the finding.
    pub names: Vec<String>,
}

/// The reason of a thread that is pinned by hand.
fn reason(pus: &CpuSet) -> String {
    format!("pinned to {} by hand", pus_text(pus))
}

/// The CPUs that the request names for a role: those for the exact role before those for its kind.
fn pin_request<'w>(pin_requests: &'w [PinRequest], role: &Role) -> Option<&'w CpuSet> {
    if pin_requests.is_empty() {
        return None;
    }
    let own = role.to_string();
    let named = pin_requests.iter().find(|pin_request| pin_request.role == own);
    let named =
        named.or_else(|| pin_requests.iter().find(|pin_request| role.is_called(&pin_request.role)));
    named.map(|pin_request| &pin_request.pus)
}

/// The CPUs that a vnode's request names for each of `count` vCPUs or tasks.
pub(crate) fn pin_requests(asked: &VnodeRequest, count: usize) -> Vec<Option<&CpuSet>> {
    let role = |index: usize| match asked.work {
        Work::Vm(_) => Role::Vcpu(u32::try_from(index).unwrap_or(u32::MAX)),
        Work::Processes { .. } => Role::Task,
    };
    (0..count).map(|index| pin_request(&asked.pins, &role(index))).collect()
}

/// Moves the vCPUs, the emulator or the tasks of a vnode that are pinned by hand. True if a vCPU is
/// pinned by hand.
///
/// # Errors
/// [`PlanError::Pin`] if the vnode has no such thread, or the CPUs are not possible.
pub(crate) fn vcpus(
    available: &AvailableCpus<'_>,
    request: &Request,
    vnode_builder: &mut VnodeBuilder<'_>,
    by_hand: &mut ManualPins,
) -> Result<bool, PlanError> {
    let asked = vnode_builder.asked;
    if asked.pins.is_empty() {
        return Ok(false);
    }
    check(available, request, vnode_builder)
        .map_err(|why| PlanError::Pin { vnode: asked.name.clone(), why })?;
    let pin_requests = pin_requests(asked, vnode_builder.pins.len());
    let mut taken = CpuSet::new();
    pin_requests.iter().flatten().for_each(|pus| taken.add(pus));
    let mut left = vacated_cpus(vnode_builder, &pin_requests, &taken).into_iter();
    let beside = vnode_builder.pins.iter().all(|(pus, _)| {
        vnode_builder.emulator.as_ref().is_none_or(|(emulator, _)| emulator.is_disjoint(pus))
    });
    for ((pus, why), pin_request) in vnode_builder.pins.iter_mut().zip(&pin_requests) {
        if let Some(pin_request) = pin_request {
            by_hand.before.add(pus);
            by_hand.vcpus.add(pin_request);
            (*pus, *why) = ((*pin_request).clone(), reason(pin_request));
        } else if pus.len() == 1
            && pus.is_subset(&taken)
            && let Some(free) = left.next()
        {
            let former = pus_text(pus);
            *pus = CpuSet::single(free);
            *why = format!("CPU {free} is free because its vCPU is pinned to {former} by hand");
            by_hand.vcpus.insert(free);
        }
    }
    emulator(vnode_builder, &taken, beside);
    by_hand.names.extend(
        asked.pins.iter().map(|pin_request| format!("{}={}", pin_request.role, pin_request.pus)),
    );
    Ok(pin_requests.iter().any(Option::is_some))
}

/// The CPUs that vCPUs pinned by hand have left and no other vCPU uses.
fn vacated_cpus(
    vnode_builder: &VnodeBuilder<'_>,
    pin_requests: &[Option<&CpuSet>],
    taken: &CpuSet,
) -> Vec<PuId> {
    let mut kept = taken.clone();
    vnode_builder
        .pins
        .iter()
        .zip(pin_requests)
        .filter(|(_, pin_request)| pin_request.is_none())
        .for_each(|((pus, _), _)| kept.add(pus));
    let moved = vnode_builder
        .pins
        .iter()
        .zip(pin_requests)
        .filter(|((pus, _), pin_request)| pin_request.is_some() && pus.len() == 1);
    let mut left: Vec<PuId> = moved.filter_map(|((pus, _), _)| pus.first()).collect();
    left.retain(|pu| !kept.contains(*pu));
    left.dedup();
    left
}

/// Pins the emulator by hand, or moves it off the CPUs of vCPUs that are pinned by hand.
fn emulator(vnode_builder: &mut VnodeBuilder<'_>, taken: &CpuSet, beside: bool) {
    let pin_request = pin_request(&vnode_builder.asked.pins, &Role::Emulator);
    let Some((pus, why)) = &mut vnode_builder.emulator else { return };
    if let Some(pin_request) = pin_request {
        (*pus, *why) = (pin_request.clone(), reason(pin_request));
        return;
    }
    let rest = pus.difference(taken);
    if beside && rest != *pus && !rest.is_empty() {
        *why =
            format!("{why}, except {}, to which vCPUs are pinned by hand", pus.intersection(taken));
        *pus = rest;
    }
}

/// Moves the iothreads, vhost workers and worker threads that are pinned by hand.
pub(crate) fn helpers(
    pin_requests: &[PinRequest],
    threads: &mut Vec<ThreadPlan>,
    by_hand: &mut ManualPins,
) {
    for thread in &mut *threads {
        if pin_helper(pin_requests, thread) {
            by_hand.helpers.add(&thread.pus);
        }
    }
    let policy = threads.iter().find(|thread| thread.role == Role::Emulator);
    let policy = policy.and_then(|thread| thread.policy);
    if let Some(pus) = pin_request(pin_requests, &Role::Worker) {
        let (role, reason) = (Role::Worker, reason(pus));
        threads.push(ThreadPlan { role, pus: pus.clone(), policy, reason });
        by_hand.helpers.add(pus);
    }
}

/// Moves a thread that is no vCPU or task to the CPUs that the request names for it. False if it
/// names none.
pub(crate) fn pin_helper(pin_requests: &[PinRequest], thread: &mut ThreadPlan) -> bool {
    let pin_request = pin_request(pin_requests, &thread.role).filter(|_| !thread.role.runs_work());
    if let Some(pus) = pin_request {
        (thread.pus, thread.reason) = (pus.clone(), reason(pus));
    }
    pin_request.is_some()
}

/// Checks that the pins are possible.
fn check(
    available: &AvailableCpus<'_>,
    request: &Request,
    vnode_builder: &VnodeBuilder<'_>,
) -> Result<(), String> {
    let roles = roles(vnode_builder);
    for (place, pin_request) in vnode_builder.asked.pins.iter().enumerate() {
        if vnode_builder.asked.pins.iter().take(place).any(|before| before.role == pin_request.role)
        {
            return Err(format!("{} is pinned twice", pin_request.role));
        }
        if !roles.iter().any(|role| role.is_called(&pin_request.role)) {
            return Err(format!(
                "there is no thread {:?}; the threads are {}",
                pin_request.role,
                names(&roles).join(", ")
            ));
        }
        let name = format!("cannot pin {} to {}", pin_request.role, pin_request.pus);
        absent(available.topology, &pin_request.pus).map_err(|why| format!("{name}: {why}"))?;
        let avoided = pin_request.pus.intersection(&request.avoid);
        if !avoided.is_empty() {
            return Err(format!("{name}: the request avoids {}", pus_text(&avoided)));
        }
        let runs = RoleKind::of_text(&pin_request.role).is_some_and(RoleKind::runs_work);
        let free = pin_request.pus.intersection(&available.free);
        if runs && !free.is_empty() {
            return Err(format!("{name}: {} is kept free for the host", pus_text(&free)));
        }
    }
    Ok(())
}

/// The roles that a vnode's pins may name.
fn roles(vnode_builder: &VnodeBuilder<'_>) -> Vec<Role> {
    let Work::Vm(vm) = &vnode_builder.asked.work else { return vec![Role::Task] };
    let vcpus = (0..).take(vnode_builder.pins.len()).map(Role::Vcpu);
    vcpus.chain([Role::Emulator]).chain(vm.device_roles()).chain([Role::Worker]).collect()
}

/// The roles for a message; for the vCPUs the first and the last.
fn names(roles: &[Role]) -> Vec<String> {
    let vcpus = roles.iter().filter(|role| role.is_vcpu()).count();
    let mut names: Vec<String> = Vec::new();
    for (place, role) in roles.iter().enumerate() {
        if place == 0 || place + 1 >= vcpus {
            names.push(role.to_string());
        } else if place == 1 {
            names.push("…".to_owned());
        }
    }
    names
}

fn absent(topology: &Topology, pus: &CpuSet) -> Result<(), String> {
    let online = topology.online();
    let offline = pus.intersection(&topology.offline);
    let unknown = pus.difference(&online).difference(&offline);
    let foreign = pus.intersection(&online).difference(&topology.allowed);
    if unknown.is_empty() && !offline.is_empty() {
        return Err(online::usable_once(&offline));
    }
    let faults = [
        (unknown, "does not exist on this host", "do not exist on this host"),
        (
            foreign,
            "is not in the cpuset of this process's cgroup",
            "are not in the cpuset of this process's cgroup",
        ),
    ];
    match faults.into_iter().find(|(pus, _, _)| !pus.is_empty()) {
        None => Ok(()),
        Some((pus, one, many)) => {
            Err(format!("{} {}", pus_text(&pus), if pus.len() == 1 { one } else { many }))
        }
    }
}

/// The exclusive CPUs of a strategy after the pins by hand: the cores of vCPUs that are pinned by
/// hand are added, cores that the plan no longer needs are removed.
///
/// # Errors
/// [`PlanError::Pin`] if the plan isolates and the host's own tasks would have no CPU.
pub(crate) fn reserve(
    available: &AvailableCpus<'_>,
    request: &Request,
    by_hand: &ManualPins,
    vnodes: &[VnodePlan],
    reserve: Reserve,
) -> Result<Reserve, PlanError> {
    if reserve.exclusive.is_empty() {
        return Ok(reserve);
    }
    let (mut used, mut carried) = (CpuSet::new(), CpuSet::new());
    for thread in vnodes.iter().flat_map(|vnode| &vnode.threads) {
        used.add(&thread.pus);
        if thread.role.runs_work() {
            carried.add(&thread.pus);
        }
    }
    let mut exclusive = reserve.exclusive.clone();
    // A strategy that reserves more than the used cores also keeps those that became free.
    if exclusive.is_subset(&whole_cores(&carried.union(&by_hand.before), available)) {
        let left =
            whole_cores(&by_hand.before, available).difference(&whole_cores(&carried, available));
        exclusive = exclusive.difference(&left.difference(&whole_cores(&used, available)));
    }
    let whole =
        exclusive.union(&whole_cores(&by_hand.vcpus, available)).difference(&available.free);
    let mut named = exclusive.union(&by_hand.vcpus);
    if !available.hostable.is_subset(&whole) {
        named = whole;
    }
    if let Some(FreeCpus::These(host)) = &request.free {
        named.add(&by_hand.helpers.difference(host));
    }
    let housekeeping = available.hostable.difference(&named);
    if housekeeping.is_empty() && request.isolation != IsolationScope::None {
        let mut pinned = request.vnodes.iter().filter(|vnode| !vnode.pins.is_empty());
        let vnode = pinned.next().map(|vnode| vnode.name.clone()).unwrap_or_default();
        let why = format!("if {} is reserved, the host's own tasks have no CPU", pus_text(&named));
        return Err(PlanError::Pin { vnode, why });
    }
    let reason = if named == reserve.exclusive {
        reserve.reason
    } else {
        format!(
            "the host keeps {housekeeping}: the CPUs outside the cores of the vCPUs, some of which \
             are pinned by hand"
        )
    };
    Ok(Reserve { exclusive: named, reason })
}

fn whole_cores(pus: &CpuSet, available: &AvailableCpus<'_>) -> CpuSet {
    let touched = pus.iter().filter_map(|pu| available.available_core(pu));
    touched.flat_map(|core| core.pus.iter().copied()).collect()
}

/// Checks a plan with pins by hand against the rules for all plans: a real-time vCPU must leave a
/// CPU to its emulator, its iothreads and the host.
///
/// # Errors
/// [`PlanError::Pin`] with the first violated rule.
pub(crate) fn check_rules(plan: Plan, request: &Request) -> Result<Plan, PlanError> {
    let pinned = request.vnodes.iter().find(|vnode| !vnode.pins.is_empty());
    match pinned.and_then(|vnode| Some((vnode, faults(&plan).into_iter().next()?))) {
        Some((vnode, fault)) => Err(PlanError::Pin { vnode: vnode.name.clone(), why: fault.why }),
        None => Ok(plan),
    }
}
