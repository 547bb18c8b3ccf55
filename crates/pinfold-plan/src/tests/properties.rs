//! Properties of all plans, with random machines and random requests.

use std::collections::BTreeMap;

use pinfold_model::{
    CpuSet, Device, EmulatorRequest, Finding, FreeCpus, IsolationScope, Plan, PuId, Request, Role,
    SmtRequest, Topology, VcpuCount, VnodePlan, VnodeRequest, Work,
};
use pinfold_samples::{any_request, any_requests, any_topology, number_cpus};
use proptest::prelude::*;

use crate::{PlanError, explain, plan, schema, strategies, validate};

pub(super) fn any_strategy() -> impl Strategy<Value = &'static str> {
    let names: Vec<&str> = strategies().iter().map(|strategy| strategy.name).collect();
    prop::sample::select(names)
}

fn keeps_the_rules(
    layout: &Plan,
    strategy: &str,
    topology: &Topology,
    request: &Request,
) -> Result<(), TestCaseError> {
    let allowed = topology.allowed.intersection(&topology.online()).difference(&request.avoid);
    let all = layout.pus().union(&layout.housekeeping).union(&layout.exclusive);
    prop_assert!(all.is_subset(&allowed), "{all} is not within {allowed}");
    prop_assert!(!layout.housekeeping.is_empty());
    prop_assert!(layout.housekeeping.is_disjoint(&topology.isolated));
    prop_assert!(layout.housekeeping.is_disjoint(&layout.exclusive));
    if request.isolation == IsolationScope::None {
        prop_assert!(layout.exclusive.is_empty());
    }
    prop_assert_eq!(layout.vnodes.len(), request.vnodes.len());
    for (vnode, asked) in layout.vnodes.iter().zip(&request.vnodes) {
        prop_assert_eq!(&vnode.name, &asked.name);
        as_asked(vnode, asked)?;
    }
    prop_assert_eq!(layout.irqs.len(), request.interrupts.len());
    for irq in &layout.irqs {
        prop_assert!(!irq.pus.is_empty() && irq.pus.is_subset(&layout.housekeeping));
    }
    prop_assert_eq!(unnamed_faults(layout, topology), vec![]);
    stays_free(layout, &allowed, request)?;
    uses_pus_once(strategy, topology, request, layout)?;
    isolates(strategy, topology, request, layout)
}

/// The faults of a plan that its findings do not name.
fn unnamed_faults(layout: &Plan, topology: &Topology) -> Vec<Finding> {
    let faults = validate(layout, topology).into_iter();
    faults.filter(|finding| !layout.findings.contains(finding)).collect()
}

fn as_asked(vnode: &VnodePlan, asked: &VnodeRequest) -> Result<(), TestCaseError> {
    prop_assert!(vnode.threads.iter().all(|thread| !thread.pus.is_empty()));
    prop_assert!(vnode.threads.iter().all(|thread| !thread.reason.is_empty()));
    let vcpus = vnode.vcpus().count();
    let vm = match &asked.work {
        Work::Processes { speed, .. } => {
            prop_assert_eq!(vnode.speed, *speed);
            prop_assert_eq!((vcpus, vnode.threads.len(), &vnode.guest), (0, 1, &None));
            return Ok(());
        }
        Work::Vm(vm) => vm,
    };
    if let VcpuCount::Exactly(asked) = vm.vcpus {
        prop_assert_eq!(vcpus, asked as usize);
    }
    let guest = vnode.guest.as_ref().unwrap();
    prop_assert_eq!(guest.vcpus() as usize, vcpus);
    match vm.smt {
        SmtRequest::Auto => {}
        SmtRequest::Shown => prop_assert!(guest.threads > 1),
        SmtRequest::Hidden => prop_assert_eq!(guest.threads, 1),
    }
    fn count(of: fn(&Role) -> bool, vnode: &VnodePlan) -> usize {
        vnode.threads.iter().filter(|t| of(&t.role)).count()
    }
    prop_assert_eq!(count(|role| matches!(role, Role::Iothread(_)), vnode), vm.iothreads.len());
    prop_assert_eq!(count(|role| matches!(role, Role::Vhost(_)), vnode), vm.vhosts as usize);
    Ok(())
}

fn stays_free(layout: &Plan, allowed: &CpuSet, request: &Request) -> Result<(), TestCaseError> {
    let carried = carried(layout);
    let left = allowed.difference(&carried).len();
    match &request.free {
        None => {}
        Some(FreeCpus::These(pus)) => prop_assert!(pus.is_disjoint(&carried)),
        Some(FreeCpus::Pus(count)) => prop_assert!(left >= *count as usize),
        Some(FreeCpus::Percent(percent)) => {
            prop_assert!(left * 100 >= allowed.len() * *percent as usize);
        }
    }
    Ok(())
}

/// The CPUs on which vCPUs and tasks may run.
fn carried(layout: &Plan) -> CpuSet {
    let threads =
        layout.threads().filter(|(_, thread)| matches!(&thread.role, Role::Vcpu(_) | Role::Task));
    threads.map(|(_, thread)| &thread.pus).collect::<CpuSet>()
}

/// The strategies that pin no vCPU.
const FLOATING: [&str; 2] = ["none", "node-shared"];

/// No CPU carries two vCPUs while the strategy has a free one.
fn uses_pus_once(
    strategy: &str,
    topology: &Topology,
    request: &Request,
    layout: &Plan,
) -> Result<(), TestCaseError> {
    let mut load: BTreeMap<PuId, usize> = BTreeMap::new();
    for (vnode, thread) in layout.threads() {
        match thread.role {
            Role::Vcpu(_) if FLOATING.contains(&layout.strategy.as_str()) => {
                prop_assert_eq!(&thread.pus, &vnode.threads[0].pus);
            }
            Role::Vcpu(_) => {
                prop_assert_eq!(thread.pus.len(), 1);
                *load.entry(thread.pus.first().unwrap()).or_default() += 1;
            }
            Role::Task => thread.pus.iter().for_each(|pu| *load.entry(pu).or_default() += 1),
            Role::Emulator | Role::Iothread(_) | Role::Vhost(_) | Role::Worker => {}
        }
    }
    let floats = FLOATING.contains(&layout.strategy.as_str());
    if floats || !load.values().any(|count| *count > 1) {
        return Ok(());
    }
    prop_assert!(WRAPPING.contains(&layout.strategy.as_str()), "{strategy} puts two on a CPU");
    let emulators = layout.threads().filter(|(_, thread)| thread.role == Role::Emulator);
    let usable = match layout.strategy.as_str() {
        // Its emulators are on the host's core, which never carries a vCPU.
        "isolcpus" => layout.exclusive.clone(),
        // Emulators are on the CPUs that are kept free for the host.
        _ if request.free.is_some() => {
            crate::placement::builder::available(topology, request).unwrap().usable
        }
        _ => emulators.map(|(_, thread)| &thread.pus).collect::<CpuSet>(),
    };
    let crowded: Vec<PuId> = load.iter().filter(|(_, n)| **n > 1).map(|(pu, _)| *pu).collect();
    for pu in usable.iter().filter(|pu| !load.contains_key(pu)) {
        if strategy == "compact-cores" {
            let siblings = &topology.core(topology.pu(pu).unwrap().core).pus;
            prop_assert!(
                siblings.iter().any(|pu| load.contains_key(&pu)),
                "{pu} is on a free core"
            );
        } else {
            let near = crowded.iter().any(|other| {
                domain_of(*other, strategy, topology) == domain_of(pu, strategy, topology)
            });
            prop_assert!(!near, "{pu} is free while {crowded:?} carry several");
        }
    }
    Ok(())
}

fn domain_of(pu: PuId, strategy: &str, topology: &Topology) -> Option<u32> {
    let pu = topology.pu(pu).unwrap();
    match strategy {
        "numa-exclusive" => pu.node.map(|node| node.0),
        "l3-exclusive" => pu.l3.map(|l3| l3.0),
        _ => None,
    }
}

/// Strategies under which vCPUs share CPUs when there are too few.
const WRAPPING: [&str; 7] = [
    "compact",
    "compact-cores",
    "sequential",
    "scatter",
    "numa-exclusive",
    "l3-exclusive",
    "isolcpus",
];

/// Strategies that reserve a core for the host and never give a core to two vnodes.
const ENCLOSING: [&str; 6] =
    ["low-latency", "low-latency-rt", "multi-vm", "balanced", "balanced-shared", "vnodes"];

/// True if a vCPU or task of a vnode runs on one of these CPUs.
fn works_on(vnode: &VnodePlan, pus: &CpuSet) -> bool {
    let mut working =
        vnode.threads.iter().filter(|thread| matches!(thread.role, Role::Vcpu(_) | Role::Task));
    working.any(|thread| !thread.pus.is_disjoint(pus))
}

/// Additional properties of the isolating strategies.
fn isolates(
    strategy: &str,
    topology: &Topology,
    request: &Request,
    layout: &Plan,
) -> Result<(), TestCaseError> {
    if WRAPPING[..4].contains(&strategy)
        || ["none", "node-shared", "max-performance"].contains(&strategy)
    {
        // `auto` leaves the other CPUs to the host.
        let is_auto = layout.findings.iter().any(|finding| finding.subject == "auto");
        let may_isolate =
            is_auto && strategy != "none" && request.isolation != IsolationScope::None;
        let is_carried = may_isolate && layout.exclusive == carried(layout);
        prop_assert!(layout.exclusive.is_empty() || is_carried, "{}", layout.exclusive);
        return Ok(());
    }
    if !ENCLOSING.contains(&strategy) {
        return Ok(());
    }
    let vcpus = carried(layout);
    if strategy != "vnodes" && request.isolation != IsolationScope::None {
        prop_assert!(vcpus.is_subset(&layout.exclusive));
        for core in topology.cores.iter().filter(|core| !core.pus.is_disjoint(&vcpus)) {
            prop_assert!(core.pus.is_disjoint(&layout.housekeeping), "a sibling for the host");
        }
    }
    for core in &topology.cores {
        prop_assert!(
            layout.vnodes.iter().filter(|vnode| works_on(vnode, &core.pus)).count() <= 1,
            "a core for two vnodes"
        );
    }
    for vnode in layout.vnodes.iter().filter(|vnode| vnode.guest.is_some()) {
        let emulator = &vnode.thread(&Role::Emulator).unwrap().pus;
        let apart = emulator.is_disjoint(&vcpus);
        // Threads that would share several isolated CPUs are moved off them.
        if topology.isolated.is_empty() || strategy != "balanced-shared" {
            let shared = strategy == "balanced-shared" && emulator.is_subset(&vcpus);
            prop_assert!(apart || shared, "{emulator} and {vcpus}");
        }
        prop_assert!(emulator.intersection(&topology.isolated).len() < 2, "{emulator}");
        if ["low-latency", "low-latency-rt", "multi-vm"].contains(&strategy) {
            let own = vnode.vcpus().map(|vcpu| &vcpu.pus).collect::<CpuSet>();
            prop_assert_eq!(
                topology
                    .cores
                    .iter()
                    .filter(|core: &&pinfold_model::Core| !core.pus.is_disjoint(&own))
                    .count(),
                vnode.vcpus().count()
            );
            prop_assert_eq!(vnode.guest.as_ref().unwrap().threads, 1);
        }
    }
    Ok(())
}

/// Properties of a plan in every format, and of an error.
fn keeps_its_word(
    strategy: &str,
    topology: &Topology,
    request: &Request,
) -> Result<(), TestCaseError> {
    let first = plan(strategy, topology, request);
    prop_assert_eq!(&first, &plan(strategy, topology, request), "same input, same plan");
    let error = match first {
        Ok(layout) => {
            keeps_the_rules(&layout, &layout.strategy, topology, request)?;
            prop_assert_eq!(schema::from_json(&schema::to_json(&layout)), Ok(layout.clone()));
            prop_assert!(explain(&layout, topology, 80).contains(strategy));
            for vnode in &layout.vnodes {
                // The part of one machine is a complete plan.
                let alone = layout.extract_vnode(vnode);
                prop_assert_eq!(unnamed_faults(&alone, topology), vec![]);
                prop_assert!(alone.exclusive.is_subset(&layout.exclusive));
            }
            return Ok(());
        }
        Err(error) => error,
    };
    refuses_honestly(strategy, &error, topology, request)
}

fn refuses_honestly(
    strategy: &str,
    error: &PlanError,
    topology: &Topology,
    request: &Request,
) -> Result<(), TestCaseError> {
    match error {
        PlanError::TooManyVcpus { most, nearest, .. } => {
            let mut fewer = request.clone();
            if let [VnodeRequest { work: Work::Vm(vm), .. }] = fewer.vnodes.as_mut_slice() {
                (vm.vcpus, vm.smt) = (VcpuCount::Exactly(*most), SmtRequest::Auto);
                // The memory may then cause an error, but not the number.
                let again = plan(strategy, topology, &fewer);
                prop_assert!(!matches!(again, Err(PlanError::TooManyVcpus { .. })), "{again:?}");
            }
            offers(nearest.as_deref(), topology, request)
        }
        PlanError::TooFewPus { nearest, .. } => {
            prop_assert!(!["none", "compact", "max-performance"].contains(&strategy));
            offers(nearest.as_deref(), topology, request)
        }
        PlanError::GuestSmt { nearest, .. }
        | PlanError::WrongKind { nearest, .. }
        | PlanError::NoRoom { nearest, .. } => offers(nearest.as_deref(), topology, request),
        PlanError::NoVcpus { vnode, .. } => {
            prop_assert!(asks_for_none(request, vnode));
            Ok(())
        }
        PlanError::NoPus { .. } | PlanError::NoHousekeeping { .. } => {
            let left = topology.allowed.difference(&request.avoid).difference(&topology.isolated);
            prop_assert!(left.intersection(&topology.online()).is_empty());
            Ok(())
        }
        // Requests in these tests name no nodes or cells.
        PlanError::Nodes { .. } | PlanError::Cells { .. } => Err(TestCaseError::fail("nodes")),
        PlanError::Device { .. } => {
            let named = request.vnodes.iter().flat_map(|vnode| &vnode.devices);
            let are_known = named
                .chain(&request.interrupts)
                .all(|device| topology.nodes.iter().any(|node| Device::Node(node.id) == *device));
            prop_assert!(!are_known);
            Ok(())
        }
        PlanError::Free { .. } => {
            prop_assert!(request.free.is_some());
            Ok(())
        }
        PlanError::EmulatorRequest { .. } => {
            prop_assert!(request.emulator != EmulatorRequest::Usual);
            Ok(())
        }
        PlanError::Memory { vnode, .. } | PlanError::HugePages { vnode, .. } => {
            let asked = request.vnodes.iter().find(|asked| asked.name == *vnode).unwrap();
            prop_assert!(asked.memory.is_some());
            Ok(())
        }
        PlanError::UnknownStrategy { .. }
        | PlanError::NoVnodes
        | PlanError::BadName { .. }
        | PlanError::TooManyVhosts { .. }
        | PlanError::Policy { .. }
        | PlanError::Pin { .. }
        | PlanError::BadIothread { .. } => Err(TestCaseError::fail(error.to_string())),
    }
}

fn asks_for_none(request: &Request, vnode: &str) -> bool {
    let asked = request.vnodes.iter().find(|asked| asked.name == vnode).unwrap();
    match &asked.work {
        Work::Vm(vm) => vm.vcpus == VcpuCount::Exactly(0),
        Work::Processes { cores, .. } => *cores == 0,
    }
}

fn offers(
    nearest: Option<&str>,
    topology: &Topology,
    request: &Request,
) -> Result<(), TestCaseError> {
    if let Some(nearest) = nearest {
        prop_assert!(plan(nearest, topology, request).is_ok(), "{nearest} is a lie");
    }
    Ok(())
}

/// Distance of two CPUs: 1 with a common L3, 2 with a common node, 3 with a common package, 4
/// otherwise.
fn distance(topology: &Topology, a: PuId, b: PuId) -> usize {
    let (a, b) = (topology.pu(a).unwrap(), topology.pu(b).unwrap());
    match (a.l3 == b.l3, a.node == b.node, a.package == b.package) {
        (true, _, _) => 1,
        (false, true, _) => 2,
        (false, false, true) => 3,
        (false, false, false) => 4,
    }
}

/// Sum of the distances of all pairs of vCPUs, and the number of pairs.
fn distances(topology: &Topology, layout: &Plan) -> (usize, usize) {
    let pus: Vec<PuId> = layout.vnodes[0].vcpus().filter_map(|vcpu| vcpu.pus.first()).collect();
    let (mut sum, mut pairs) = (0, 0);
    for (place, a) in pus.iter().enumerate() {
        for b in &pus[..place] {
            sum += distance(topology, *a, *b);
            pairs += 1;
        }
    }
    (sum, pairs)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_plan_keeps_the_rules(
        strategy in any_strategy(),
        topology in any_topology(),
        request in any_request(),
    ) {
        keeps_its_word(strategy, &topology, &request)?;
    }

    #[test]
    fn plans_of_several_vnodes_keep_the_rules(
        strategy in any_strategy(),
        topology in any_topology(),
        request in any_requests(),
    ) {
        keeps_its_word(strategy, &topology, &request)?;
    }

    /// The other strategies differ by definition: `sequential` goes by number, `isolcpus` starts
    /// its order within a domain, `scatter` and `numa-exclusive` separate vCPUs.
    #[test]
    fn fewer_vcpus_are_never_farther_apart(
        strategy in prop::sample::select(vec![
            "compact", "compact-cores", "low-latency", "low-latency-rt", "balanced",
            "balanced-shared", "max-performance", "multi-vm", "l3-exclusive",
        ]),
        shape in (1_u32..3, 1_u32..3, 1_u32..4, 1_u32..4, 1_u32..3, 0_u32..4),
    ) {
        let (packages, nodes, l3s, cores, threads, way) = shape;
        let topology = number_cpus([packages, nodes, l3s, cores, threads], way).build();
        let mut before = (0_usize, 0_usize);
        for vcpus in 1.. {
            let Ok(layout) = plan(strategy, &topology, &pinfold_samples::exactly(vcpus)) else { break };
            if carried(&layout).len() < vcpus as usize {
                break;
            }
            // Machines that no node can hold are divided equally, and vCPUs that would not fill
            // their cores have a core each.
            let ordered = ["compact", "compact-cores", "l3-exclusive"].contains(&strategy);
            let nodes: std::collections::BTreeSet<_> =
                carried(&layout).iter().filter_map(|pu| topology.pu(pu)?.node).collect();
            if !ordered && nodes.len() > 1 {
                break;
            }
            let fills = strategy.starts_with("balanced") || strategy == "max-performance";
            if (fills || strategy == "l3-exclusive") && vcpus % threads != 0 {
                continue;
            }
            let (sum, pairs) = distances(&topology, &layout);
            prop_assert!(
                before.1 == 0 || before.0 * pairs <= sum * before.1,
                "{vcpus} vCPUs {} are nearer than one less", pinfold_samples::pins(&layout)
            );
            before = (sum, pairs);
        }
    }

    #[test]
    fn automatic_numbers_can_be_asked_for(strategy in any_strategy(), topology in any_topology()) {
        if let Ok(layout) = plan(strategy, &topology, &pinfold_samples::auto()) {
            // `auto` may select another strategy for a given number than for an automatic one.
            let strategy = layout.strategy.clone();
            let count = u32::try_from(layout.vnodes[0].vcpus().count()).unwrap();
            let again = plan(&strategy, &topology, &pinfold_samples::exactly(count)).unwrap();
            prop_assert!(again.same_placement(&layout));
        }
    }

    #[test]
    fn vcpus_in_one_domain_where_they_fit(
        strategy in prop::sample::select(vec!["low-latency", "balanced"]),
        shape in (1_u32..3, 1_u32..3, 1_u32..3, 1_u32..5, 1_u32..3, 0_u32..4),
        vcpus in 1_u32..6,
    ) {
        let (packages, nodes, l3s, cores, threads, way) = shape;
        let topology = number_cpus([packages, nodes, l3s, cores, threads], way).build();
        let per_core = if strategy == "balanced" { threads } else { 1 };
        let host_l3 = topology.pu(topology.allowed.first().unwrap()).unwrap().l3;
        let fits = topology.l3.iter().any(|l3| (cores - u32::from(Some(l3.id) == host_l3)) * per_core >= vcpus);
        if let (true, Ok(layout)) = (fits, plan(strategy, &topology, &pinfold_samples::exactly(vcpus))) {
            let pus = layout.vnodes[0].vcpus().filter_map(|vcpu| vcpu.pus.first());
            let mut l3s: Vec<_> = pus.map(|pu| topology.pu(pu).unwrap().l3).collect();
            l3s.dedup();
            prop_assert_eq!(l3s.len(), 1);
        }
    }
}
