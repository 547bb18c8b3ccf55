//! Properties of the texts of random plans.

use pinfold_model::{Request, STRATEGY_NAMES, Topology, VnodePlan};
use pinfold_plan::domain_file::Domain;
use pinfold_plan::plan;
use pinfold_samples::{any_plan, any_request, any_requests, any_topology};
use proptest::prelude::*;

use crate::libvirt;

/// Each machine of a plan can be emitted alone, and is well formed.
fn can_be_emitted(
    strategy: &str,
    topology: &Topology,
    request: &Request,
) -> Result<(), TestCaseError> {
    let Ok(layout) = plan(strategy, topology, request) else { return Ok(()) };
    for vnode in &layout.vnodes {
        let alone = layout.extract_vnode(vnode);
        super::libvirt::parse(&libvirt(&alone, topology).unwrap());
        let amd = Topology { model: Some("AMD".to_owned()), ..topology.clone() };
        dies_add_up(vnode, &libvirt(&alone, &amd).unwrap())?;
    }
    Ok(())
}

/// Sockets, dies, cores and threads multiply to the number of vCPUs, also with several dies.
fn dies_add_up(vnode: &VnodePlan, fragment: &str) -> Result<(), TestCaseError> {
    if vnode.guest.is_none() {
        return Ok(());
    }
    let domain = Domain::read(&format!("<domain type='qemu'>{fragment}</domain>")).unwrap();
    let shape = domain.shape.unwrap().value;
    prop_assert_eq!(shape.vcpus().map(|count| count as usize), Some(vnode.vcpus().count()));
    Ok(())
}

fn any_strategy() -> impl Strategy<Value = &'static str> {
    prop::sample::select(STRATEGY_NAMES.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_plan_can_be_emitted(
        strategy in any_strategy(),
        topology in any_topology(),
        request in any_request(),
    ) {
        can_be_emitted(strategy, &topology, &request)?;
    }

    #[test]
    fn plans_of_several_vnodes_can_be_emitted(
        strategy in any_strategy(),
        topology in any_topology(),
        request in any_requests(),
    ) {
        can_be_emitted(strategy, &topology, &request)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn foreign_texts_stay_data(layout in any_plan()) {
        super::libvirt::parse(&super::libvirt::libvirt(&layout).unwrap());
        let argv = [layout.vnodes[0].name.clone(), layout.strategy.clone()];
        super::qemu::assert_sh_reads(&super::qemu::qemu(&layout, &argv).unwrap());
    }
}
