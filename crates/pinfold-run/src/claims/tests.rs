//! Claims of machines that were planned one after the other.

use pinfold_config::requests;
use pinfold_host::LiveHost;
use pinfold_model::{CpuSet, Plan, Request, Severity, Topology, VcpuCount};

use super::{Claims, Owner, USED_TWICE};
use crate::inputs;

fn topology(text: &str) -> Topology {
    inputs::topology(&LiveHost::new().unwrap(), Some(text)).unwrap()
}

fn request(name: &str, vcpus: u32) -> Request {
    Request::vm(name, VcpuCount::Exactly(vcpus))
}

fn owner(name: &str) -> Owner {
    Owner::Placement { name: name.to_owned(), id: format!("id-of-{name}") }
}

/// The CPUs of the vCPUs.
fn vcpus(plan: &Plan) -> CpuSet {
    let mut all = CpuSet::new();
    plan.vnodes.iter().flat_map(|vnode| vnode.vcpus()).for_each(|one| all.add(&one.pus));
    all
}

/// Plans machines one after the other, each with the claims of those before.
fn one_by_one(topology: &Topology, strategy: &str, sizes: &[u32]) -> Vec<Plan> {
    let mut claims = Claims::default();
    let mut plans = Vec::new();
    for (index, size) in sizes.iter().enumerate() {
        let name = format!("vm{index}");
        let mut plan = claims.plan(Some(strategy), topology, &request(&name, *size)).unwrap();
        claims.report_in(&mut plan);
        claims.add_plan(&owner(&name), &plan);
        plans.push(plan);
    }
    plans
}

#[test]
fn three_machines_have_no_cpu_twice_where_there_is_room() {
    let topology = topology("package:1 l3:2 core:8 pu:2");
    for strategy in ["low-latency", "balanced", "compact", "compact-cores", "auto"] {
        let plans = one_by_one(&topology, strategy, &[2, 2, 2]);
        for (index, plan) in plans.iter().enumerate() {
            for earlier in plans.iter().take(index) {
                assert!(vcpus(plan).is_disjoint(&vcpus(earlier)), "{strategy}: {plans:#?}");
            }
            let notes = plan.findings.iter().filter(|finding| finding.subject == "claims");
            assert_eq!(notes.count(), index, "{strategy}: one line for each owner");
            assert!(
                plan.findings.iter().all(|finding| finding.subject != USED_TWICE),
                "{strategy}: {:?}",
                plan.findings
            );
        }
    }
}

#[test]
fn without_room_a_warning_names_both_machines() {
    let plans = one_by_one(&topology("core:4 pu:1"), "low-latency", &[3, 3]);
    let warning = plans[1].findings.iter().find(|finding| finding.subject == USED_TWICE).unwrap();
    assert_eq!(warning.severity, Severity::Warning);
    for name in ["vm0 (placement id-of-vm0)", "vm1"] {
        assert!(warning.text.contains(name), "{warning}");
    }
}

#[test]
fn cpus_on_which_vcpus_float_may_be_shared() {
    let topology = topology("core:8 pu:1");
    let floating = |name: &str| {
        let mut request = request(name, 4);
        let pins = (0..4).flat_map(|vcpu| requests::pins(&format!("vcpu{vcpu}=1-4")).unwrap());
        request.vnodes[0].pins = pins.collect();
        request
    };
    let mut claims = Claims::default();
    let first = claims.plan(Some("balanced"), &topology, &floating("a")).unwrap();
    claims.add_plan(&owner("a"), &first);
    let mut second = claims.plan(Some("balanced"), &topology, &floating("b")).unwrap();
    claims.report_in(&mut second);
    for subject in ["claims", USED_TWICE] {
        let found = second.findings.iter().any(|finding| finding.subject == subject);
        assert!(!found, "{:?}", second.findings);
    }
    assert_eq!(vcpus(&second), vcpus(&first));
}
