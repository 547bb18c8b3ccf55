//! Requests: the usual ones, and random ones with random machines.

use pinfold_model::{
    CpuSet, Device, EmulatorRequest, FreeCpus, IsolationScope, MemoryRequest, NodeId, PuId,
    Request, SmtRequest, Speed, Topology, VcpuCount, VmRequest, VnodeRequest, Work,
};
use proptest::prelude::{Just, Strategy, any, prop, prop_oneof};

use super::machine::{Machine, Place, set};

/// A request for `vcpus` vCPUs, with all other tasks excluded from their CPUs.
fn ask(vcpus: VcpuCount) -> Request {
    Request { isolation: IsolationScope::Host, ..Request::vm("vm", vcpus) }
}

/// The same for this number of vCPUs.
pub fn exactly(vcpus: u32) -> Request {
    ask(VcpuCount::Exactly(vcpus))
}

/// The same for as many vCPUs as the strategy chooses.
#[must_use]
pub fn auto() -> Request {
    ask(VcpuCount::Auto)
}

/// The iothreads of the first machine of a request.
pub fn iothreads(request: &mut Request) -> &mut Vec<String> {
    match &mut request.vnodes[0].work {
        Work::Vm(vm) => &mut vm.iothreads,
        Work::Processes { .. } => panic!("a process group has no iothreads"),
    }
}

/// Different CPU numberings of a machine.
pub fn number_cpus(shape: [u32; 5], way: u32) -> Machine {
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
        _ => Machine::new(shape, move |p| 700 - 3 * (core(p) * threads + p.thread)),
    }
}

fn any_set(most: u32) -> impl Strategy<Value = String> {
    prop::collection::vec(0..=most, 0..6)
        .prop_map(|pus| pus.into_iter().map(PuId).collect::<CpuSet>().to_string())
}

/// CPUs of the machine by position, so that every numbering is covered.
pub fn some_of(topology: &Topology, places: &[usize]) -> CpuSet {
    places
        .iter()
        .filter_map(|place: &usize| {
            topology.pus.get(place % topology.pus.len().max(1)).map(|pu| pu.os)
        })
        .collect()
}

fn any_machine() -> impl Strategy<Value = Machine> {
    let regular = (1_u32..4, 1_u32..3, 1_u32..3, 1_u32..5, 1_u32..4, 0_u32..4).prop_map(
        |(packages, nodes, l3s, cores, threads, way)| {
            number_cpus([packages, nodes, l3s, cores, threads], way)
        },
    );
    let hybrid = (1_u32..5, 1_u32..9).prop_map(|(p, e)| Machine::hybrid(p, e));
    let bare = (1_u32..5, 1_u32..3).prop_map(|(cores, threads)| {
        number_cpus([1, 1, 1, cores, threads], 1).without_l3_and_nodes()
    });
    prop_oneof![6 => regular, 2 => hybrid, 1 => bare]
}

/// Machines of all shapes and numberings, also with offline, isolated and forbidden CPUs.
pub fn any_topology() -> impl Strategy<Value = Topology> {
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

fn any_scope() -> impl Strategy<Value = IsolationScope> {
    prop::sample::select(vec![IsolationScope::None, IsolationScope::Own, IsolationScope::Host])
}

fn any_vm(most: u32) -> impl Strategy<Value = VmRequest> {
    let vcpus = prop_oneof![
        2 => Just(VcpuCount::Auto),
        5 => (0..most).prop_map(VcpuCount::Exactly),
    ];
    let smt = prop_oneof![
        6 => Just(SmtRequest::Auto),
        1 => Just(SmtRequest::Shown),
        1 => Just(SmtRequest::Hidden),
    ];
    (vcpus, 0_usize..3, 0_u32..3, smt).prop_map(|(vcpus, iothreads, vhosts, smt)| VmRequest {
        iothreads: (0..iothreads).map(|index| format!("io{index}")).collect(),
        vhosts,
        smt,
        ..VmRequest::from_vcpus(vcpus)
    })
}

/// A request for one virtual machine, with only CPUs to avoid as conditions.
pub fn any_request() -> impl Strategy<Value = Request> {
    (any_vm(40), any_set(60), prop::bool::weighted(0.3), any_scope()).prop_map(
        |(vm, avoid, avoids, isolation)| {
            let mut request = Request::from_vnodes(vec![VnodeRequest::vm("vm", vm)]);
            request.isolation = isolation;
            if avoids {
                request.avoid = set(&avoid);
            }
            request
        },
    )
}

fn any_vnode() -> impl Strategy<Value = VnodeRequest> {
    let group = (0_u32..6, 1_u32..=4).prop_map(|(cores, quarters)| {
        let speed = Speed::from_millionths(quarters * 250_000).unwrap();
        VnodeRequest::processes("", cores, speed)
    });
    let vm = any_vm(8).prop_map(|vm| VnodeRequest::vm("", vm));
    let memory = prop::option::weighted(0.3, (1_u64..1 << 31, any::<bool>()));
    let devices = prop::collection::vec(0_u32..4, 0..2);
    (prop_oneof![2 => vm, 1 => group], memory, devices, -1_i32..2).prop_map(
        |(mut vnode, memory, devices, priority)| {
            vnode.memory = memory
                .map(|(bytes, huge)| MemoryRequest { bytes, page_bytes: huge.then_some(1 << 21) });
            vnode.devices = devices.into_iter().map(|node| Device::Node(NodeId(node))).collect();
            vnode.priority = priority;
            vnode
        },
    )
}

/// A request for several vnodes with all options.
pub fn any_requests() -> impl Strategy<Value = Request> {
    let free = prop_oneof![
        4 => Just(None),
        1 => (1_u32..4).prop_map(|count| Some(FreeCpus::Pus(count))),
        1 => (1_u32..50).prop_map(|percent| Some(FreeCpus::Percent(percent))),
        1 => any_set(8).prop_map(|list| Some(FreeCpus::These(set(&list)))),
    ];
    let pin_request = prop_oneof![
        6 => Just(EmulatorRequest::Usual),
        1 => Just(EmulatorRequest::RealTime),
        1 => Just(EmulatorRequest::Apart),
    ];
    let interrupts = prop::collection::vec(0_u32..3, 0..2);
    let vnodes = prop::collection::vec(any_vnode(), 1..6);
    (vnodes, any_scope(), free, interrupts, pin_request).prop_map(
        |(mut vnodes, isolation, free, interrupts, emulator)| {
            for (place, vnode) in vnodes.iter_mut().enumerate() {
                vnode.name = format!("v{place}");
            }
            let interrupts =
                interrupts.into_iter().map(|node| Device::Node(NodeId(node))).collect();
            Request { isolation, free, interrupts, emulator, ..Request::from_vnodes(vnodes) }
        },
    )
}
