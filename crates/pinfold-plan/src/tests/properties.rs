//! What holds for every plan, on random machines under random requests.

use pinfold_model::{CpuSet, IsolationScope, Plan, PuId, Request, Role, Topology, VcpuCount};
use proptest::prelude::*;

use super::machine::{Machine, Place};
use crate::{PlanError, check, emit, explain, plan, schema, strategies};

/// The ways in which machines number their PUs.
fn numbered(shape: [u32; 5], way: u32) -> Machine {
    let [packages, nodes, l3s, cores, threads] = shape;
    let all_cores = packages * nodes * l3s * cores;
    let core = move |p: Place| ((p.package * nodes + p.node) * l3s + p.l3) * cores + p.core;
    match way {
        0 => Machine::new(shape, move |p| core(p) * threads + p.thread),
        1 => Machine::new(shape, move |p| core(p) + all_cores * p.thread),
        2 => Machine::new(shape, move |p| {
            let within = (p.node * l3s + p.l3) * cores + p.core;
            p.package + packages * within + all_cores * p.thread
        }),
        _ => Machine::new(shape, move |p| 500 - 3 * (core(p) * threads + p.thread)),
    }
}

fn any_set(most: u32) -> impl Strategy<Value = String> {
    prop::collection::vec(0..=most, 0..6)
        .prop_map(|pus| pus.into_iter().map(PuId).collect::<CpuSet>().to_string())
}

/// PUs of the machine by place, so that every way of numbering is hit.
fn some_of(topology: &Topology, places: &[usize]) -> CpuSet {
    let at = |place: &usize| topology.pus.get(place % topology.pus.len().max(1)).map(|pu| pu.os);
    places.iter().filter_map(at).collect()
}

fn any_machine() -> impl Strategy<Value = Machine> {
    let regular = (1_u32..4, 1_u32..3, 1_u32..3, 1_u32..5, 1_u32..4, 0_u32..4).prop_map(
        |(packages, nodes, l3s, cores, threads, way)| {
            numbered([packages, nodes, l3s, cores, threads], way)
        },
    );
    let hybrid = (1_u32..5, 1_u32..9).prop_map(|(p, e)| Machine::hybrid(p, e));
    let bare = (1_u32..5, 1_u32..3)
        .prop_map(|(cores, threads)| numbered([1, 1, 1, cores, threads], 1).bare());
    prop_oneof![6 => regular, 2 => hybrid, 1 => bare]
}

fn any_topology() -> impl Strategy<Value = Topology> {
    let places = || prop::collection::vec(0_usize..200, 0..5);
    (any_machine(), places(), places(), prop::option::of(places())).prop_map(
        |(machine, offline, isolated, forbidden)| {
            let whole = machine.build();
            let offline = some_of(&whole, &offline);
            let isolated = some_of(&whole, &isolated);
            let mut machine = machine.isolated(&isolated.to_string());
            if offline.len() < whole.pus.len() {
                machine = machine.offline(&offline.to_string());
            }
            if let Some(forbidden) = forbidden {
                let allowed = whole.online().difference(&some_of(&whole, &forbidden));
                machine = machine.allowed(&allowed.to_string());
            }
            machine.build()
        },
    )
}

fn any_request() -> impl Strategy<Value = Request> {
    let vcpus = prop_oneof![
        2 => Just(VcpuCount::Auto),
        5 => (0_u32..40).prop_map(VcpuCount::Exactly),
    ];
    let scope =
        prop::sample::select(vec![IsolationScope::None, IsolationScope::Own, IsolationScope::Host]);
    (vcpus, any_set(60), prop::bool::weighted(0.3), scope, 0_usize..3).prop_map(
        |(vcpus, avoid, avoids, isolation, iothreads)| {
            let mut request = Request { isolation, ..Request::vm("vm", vcpus) };
            if avoids {
                request.avoid = super::set(&avoid);
            }
            request.vm.iothreads = (0..iothreads).map(|index| format!("io{index}")).collect();
            request
        },
    )
}

fn any_strategy() -> impl Strategy<Value = &'static str> {
    let names: Vec<&str> = strategies().iter().map(|strategy| strategy.name).collect();
    prop::sample::select(names)
}

fn keeps_the_rules(
    layout: &Plan,
    strategy: &str,
    topology: &Topology,
    request: &Request,
) -> Result<(), TestCaseError> {
    let usable = topology.allowed.intersection(&topology.online()).difference(&request.avoid);
    let all = layout.vnode.pus().union(&layout.housekeeping).union(&layout.exclusive);
    prop_assert!(all.is_subset(&usable), "{all} is not within {usable}");
    prop_assert!(!layout.housekeeping.is_empty());
    prop_assert!(layout.housekeeping.is_disjoint(&topology.isolated));
    prop_assert!(layout.housekeeping.is_disjoint(&layout.exclusive));
    if request.isolation == IsolationScope::None {
        prop_assert!(layout.exclusive.is_empty());
    }
    let vcpus: Vec<&CpuSet> = layout.vnode.vcpus().map(|vcpu| &vcpu.pus).collect();
    if let VcpuCount::Exactly(asked) = request.vm.vcpus {
        prop_assert_eq!(vcpus.len(), asked as usize);
    }
    let guest = layout.vnode.guest.as_ref().unwrap();
    prop_assert_eq!(guest.vcpus() as usize, vcpus.len());
    prop_assert!(layout.vnode.threads.iter().all(|thread| !thread.pus.is_empty()));
    prop_assert!(layout.vnode.threads.iter().all(|thread| !thread.reason.is_empty()));
    let iothreads =
        layout.vnode.threads.iter().filter(|thread| matches!(thread.role, Role::Iothread(_)));
    prop_assert_eq!(iothreads.count(), request.vm.iothreads.len());
    prop_assert_eq!(check(layout, topology), vec![]);
    uses_pus_once(strategy, topology, &usable, &vcpus)?;
    isolates(strategy, topology, request, layout)
}

/// No PU carries two vCPUs while one that the strategy uses is free.
fn uses_pus_once(
    strategy: &str,
    topology: &Topology,
    usable: &CpuSet,
    vcpus: &[&CpuSet],
) -> Result<(), TestCaseError> {
    if strategy == "none" {
        prop_assert!(vcpus.iter().all(|pus| *pus == usable));
        return Ok(());
    }
    prop_assert!(vcpus.iter().all(|pus| pus.len() == 1));
    let used: CpuSet = vcpus.iter().filter_map(|pus| pus.first()).collect();
    let cores = topology.cores.iter().filter(|core| !core.pus.is_disjoint(usable)).count();
    let room = if strategy == "compact-cores" { cores } else { usable.len() };
    prop_assert_eq!(used.len(), vcpus.len().min(room));
    Ok(())
}

/// What the isolating strategies promise on top.
fn isolates(
    strategy: &str,
    topology: &Topology,
    request: &Request,
    layout: &Plan,
) -> Result<(), TestCaseError> {
    if !["low-latency", "balanced"].contains(&strategy) {
        prop_assert!(layout.exclusive.is_empty());
        return Ok(());
    }
    let vcpus = layout.vnode.vcpus().fold(CpuSet::new(), |set, vcpu| set.union(&vcpu.pus));
    let emulator = &layout.vnode.thread(&Role::Emulator).unwrap().pus;
    prop_assert!(emulator.is_disjoint(&vcpus));
    if request.isolation != IsolationScope::None {
        prop_assert!(vcpus.is_subset(&layout.exclusive));
        for core in topology.cores.iter().filter(|core| !core.pus.is_disjoint(&vcpus)) {
            prop_assert!(core.pus.is_disjoint(&layout.housekeeping), "a sibling for the host");
        }
    }
    if strategy == "low-latency" {
        let carried = |core: &&pinfold_model::Core| !core.pus.is_disjoint(&vcpus);
        prop_assert_eq!(topology.cores.iter().filter(carried).count(), vcpus.len());
        prop_assert_eq!(layout.vnode.guest.as_ref().unwrap().threads, 1);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_plan_keeps_the_rules(
        strategy in any_strategy(),
        topology in any_topology(),
        request in any_request(),
    ) {
        let first = plan(strategy, &topology, &request);
        prop_assert_eq!(&first, &plan(strategy, &topology, &request), "same input, same plan");
        match first {
            Ok(layout) => {
                keeps_the_rules(&layout, strategy, &topology, &request)?;
                prop_assert_eq!(schema::from_json(&schema::to_json(&layout)), Ok(layout.clone()));
                prop_assert!(explain(&layout, &topology).contains(strategy));
                super::libvirt::parse(&emit::libvirt(&layout));
            }
            Err(PlanError::TooManyVcpus { most, nearest, .. }) => {
                let fewer = Request {
                    vm: pinfold_model::VmRequest { vcpus: VcpuCount::Exactly(most), ..request.vm.clone() },
                    ..request.clone()
                };
                prop_assert!(plan(strategy, &topology, &fewer).is_ok(), "{most} is a lie");
                if let Some(nearest) = nearest {
                    prop_assert!(plan(&nearest, &topology, &request).is_ok(), "{nearest} is a lie");
                }
            }
            Err(PlanError::TooFewPus { .. }) => {
                prop_assert!(["low-latency", "balanced"].contains(&strategy));
                prop_assert!(plan("none", &topology, &request).is_ok());
            }
            Err(PlanError::NoVcpus) => prop_assert_eq!(request.vm.vcpus, VcpuCount::Exactly(0)),
            Err(PlanError::NoPus { .. } | PlanError::NoHousekeeping { .. }) => {
                let left = topology.allowed.difference(&request.avoid).difference(&topology.isolated);
                prop_assert!(left.intersection(&topology.online()).is_empty());
            }
            Err(error @ (PlanError::UnknownStrategy { .. } | PlanError::BadIothread { .. })) => {
                prop_assert!(false, "{error}");
            }
        }
    }

    #[test]
    fn automatic_numbers_can_be_asked_for(strategy in any_strategy(), topology in any_topology()) {
        if let Ok(layout) = plan(strategy, &topology, &super::auto()) {
            let count = u32::try_from(layout.vnode.vcpus().count()).unwrap();
            prop_assert_eq!(plan(strategy, &topology, &super::exactly(count)), Ok(layout));
        }
    }

    #[test]
    fn vcpus_in_one_domain_where_they_fit(
        strategy in prop::sample::select(vec!["low-latency", "balanced"]),
        shape in (1_u32..3, 1_u32..3, 1_u32..3, 1_u32..5, 1_u32..3, 0_u32..4),
        vcpus in 1_u32..6,
    ) {
        let (packages, nodes, l3s, cores, threads, way) = shape;
        let topology = numbered([packages, nodes, l3s, cores, threads], way).build();
        let per_core = if strategy == "balanced" { threads } else { 1 };
        let host_l3 = topology.pu(topology.allowed.first().unwrap()).unwrap().l3;
        let free = |l3: &pinfold_model::L3Domain| cores - u32::from(Some(l3.id) == host_l3);
        let fits = topology.l3.iter().any(|l3| free(l3) * per_core >= vcpus);
        if let (true, Ok(layout)) = (fits, plan(strategy, &topology, &super::exactly(vcpus))) {
            let pus = layout.vnode.vcpus().filter_map(|vcpu| vcpu.pus.first());
            let mut l3s: Vec<_> = pus.map(|pu| topology.pu(pu).unwrap().l3).collect();
            l3s.dedup();
            prop_assert_eq!(l3s.len(), 1);
        }
    }
}
