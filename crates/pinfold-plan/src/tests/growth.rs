//! The work of a plan grows with its machines as n log n at most. Counted, not timed: the count is
//! the same on every machine.

use pinfold_model::{
    CpuSet, IsolationScope, Request, Speed, Topology, VcpuCount, VmRequest, VnodeRequest,
    set_operations,
};
use pinfold_samples::machine::{Machine, Place};

use crate::{plan, strategies};

/// Numbers of machines.
const SIZES: [u32; 3] = [64, 256, 1024];

/// A host with 8 CPUs for each machine, in 2 L3 domains; a node has 64.
fn host(machines: u32) -> Topology {
    let cores = machines * 4;
    let shape = [machines / 16, 2, 16, 2, 2];
    let [_, nodes, l3s, of_l3, _] = shape;
    Machine::new(shape, move |place: Place| {
        let l3 = (place.package * nodes + place.node) * l3s + place.l3;
        l3 * of_l3 + place.core + cores * place.thread
    })
    .build()
}

fn request(strategy: &str, machines: u32, vcpus: u32) -> Request {
    Request {
        isolation: IsolationScope::Host,
        ..Request::from_vnodes(
            (0..machines)
                .map(|number| {
                    let name = format!("vm{number}");
                    if strategy == "vnodes" {
                        VnodeRequest::processes(&name, vcpus, Speed::FULL)
                    } else {
                        VnodeRequest::vm(&name, VmRequest::from_vcpus(VcpuCount::Exactly(vcpus)))
                    }
                })
                .collect(),
        )
    }
}

/// The operations on CPU sets of one plan; `None` if the strategy refuses.
fn operations(strategy: &str, topology: &Topology, request: &Request) -> Option<u64> {
    let before = set_operations();
    let plan = plan(strategy, topology, request).ok()?;
    assert_eq!(plan.vnodes.len(), request.vnodes.len(), "{strategy}");
    Some(set_operations() - before)
}

/// `n log2 n`; the sizes are powers of two.
fn bound(machines: u32) -> u64 {
    u64::from(machines * machines.ilog2())
}

/// Compares the operations of each strategy for the three sizes.
fn check<'s>(
    strategies: impl Iterator<Item = &'s str>,
    of: impl Fn(&str, &Topology, u32) -> Option<u64>,
) {
    let hosts = SIZES.map(|machines| (machines, host(machines)));
    let mut steep = Vec::new();
    for strategy in strategies {
        let done =
            hosts.each_ref().map(|(machines, host)| (*machines, of(strategy, host, *machines)));
        if !done.windows(2).all(|pair| match *pair {
            [(few, Some(less)), (many, Some(more))] => {
                less > 0 && more * bound(few) <= less * bound(many)
            }
            _ => false,
        }) {
            steep.push(format!("{strategy}: {done:?}"));
        }
    }
    assert!(steep.is_empty(), "(machines, operations):\n{}", steep.join("\n"));
}

#[test]
fn work_grows_with_the_machines_not_with_their_square() {
    // A machine of `none` uses all nodes, so its result grows with machines times nodes. `realtime`
    // still looks at all cores of the host for each machine.
    let others = |name: &&str| !["none", "realtime"].contains(name);
    let names = strategies().iter().map(|strategy| strategy.name).filter(others);
    check(names, |name, host, machines| operations(name, host, &request(name, machines, 2)));
}

#[test]
fn work_grows_so_with_more_vcpus_than_cpus_too() {
    let names = ["compact", "compact-cores", "sequential", "isolcpus", "scatter"];
    check(names.into_iter(), |name, host, machines| {
        operations(name, host, &request(name, machines, 12))
    });
}

#[test]
fn one_more_machine_takes_work_for_the_cpus_only() {
    let names = ["low-latency", "balanced", "numa-exclusive", "l3-exclusive", "compact", "auto"];
    check(names.into_iter(), |name, host, _| {
        let avoid: CpuSet = host.pus.iter().skip(16).map(|pu| pu.os).collect();
        operations(name, host, &Request { avoid, ..request(name, 1, 4) })
    });
}
