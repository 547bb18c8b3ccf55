//! vCPUs that do not exist when the machine starts (`current=`, `enabled='no'`) are not placed, not
//! counted and not changed, in every way that a file takes.

use pinfold_emit::merge_libvirt_domain;
use pinfold_host::LiveHost;
use pinfold_lint::{fix, lint};
use pinfold_model::{CpuSet, PuId, Request, Severity, Topology, VnodeRequest};
use pinfold_plan::domain_file::{Domain, Target};
use pinfold_plan::layout::Layout;
use pinfold_plan::plan;

const TWO_L3: &str = "package:1 [numa(memory=8GiB)] l3:2 core:2 pu:2(indexes=0,4,1,5,2,6,3,7)";

fn host(description: &str) -> Topology {
    let live = LiveHost::new().expect("the running machine");
    pinfold_topology::read_input(&live, description).expect("a description")
}

/// Four of eight vCPUs exist: two cores of a guest of four.
#[test]
fn a_file_of_enabled_and_disabled_vcpus_is_clean() {
    let xml = include_str!("../domains/sparse-vcpus.xml");
    let topology = host(TWO_L3);
    let diagnostics = lint(&[Layout::of_text(xml, "m.xml").expect("a domain file")], &topology);
    let worse = diagnostics.iter().filter(|diagnostic| diagnostic.severity > Severity::Note);
    assert_eq!(worse.map(|diagnostic| diagnostic.name).collect::<Vec<_>>(), [] as [&str; 0]);
    assert!(
        diagnostics.iter().any(|diagnostic| diagnostic.name == "vcpu-reserve"),
        "{diagnostics:?}"
    );
    let fixed =
        fix(xml, "m.xml", &topology, &Request::from_vnodes(Vec::new())).expect("a domain file");
    assert_eq!(fixed.text, xml);
}

fn write_enabled(ids: &CpuSet, count: u32) -> String {
    (0..count)
        .map(|id| {
            let yes = if ids.contains(PuId(id)) { "yes" } else { "no" };
            format!("<vcpu id='{id}' enabled='{yes}' hotpluggable='yes'/>")
        })
        .collect()
}

fn domain(ids: &CpuSet, count: u32, rest: &str) -> String {
    format!(
        "<domain type='kvm'><name>m</name><memory unit='MiB'>512</memory>\
         <vcpu placement='static' current='{}'>{count}</vcpu><vcpus>{}</vcpus>\
         <os><type arch='x86_64'>hvm</type></os>{rest}</domain>",
        ids.len(),
        write_enabled(ids, count)
    )
}

fn check_existing(topology: &Topology, ids: &CpuSet, threads: u32) {
    let cpu = format!(
        "<cpu mode='host-passthrough'><topology sockets='1' cores='{}' threads='{threads}'/></cpu>",
        8 / threads
    );
    let xml = domain(ids, 8, &cpu);
    let read = Domain::read(&xml).expect("a domain file");
    assert_eq!(read.enabled_vcpus, *ids);
    let request = Request::from_vnodes(vec![VnodeRequest::vm("m", read.request(topology))]);
    let plan = plan("auto", topology, &request).expect("a plan");
    let merged = merge_libvirt_domain(&xml, &plan, &plan.vnodes[0], topology).expect("a merge");
    let fixed =
        fix(&merged.text, "m.xml", topology, &Request::from_vnodes(Vec::new())).expect("a fix");
    for text in [&merged.text, &fixed.text] {
        let after = Domain::read(text).expect("a domain file");
        let pinned: CpuSet = after
            .pins
            .iter()
            .filter_map(|pin| match pin.value.0 {
                Target::Vcpu(index) => Some(PuId(index)),
                Target::Emulator | Target::Iothread(_) => None,
            })
            .collect();
        assert_eq!(pinned, *ids, "{}", text);
        assert_eq!(after.enabled_vcpus, *ids);
        assert_eq!(after.vcpus.value, 8);
        assert_eq!(after.shape.expect("a topology").value.vcpus(), Some(8));
    }
    let layout = Layout::of_text(&merged.text, "m.xml").expect("a domain file");
    assert_eq!(layout.vcpus as usize, ids.len());
    for diagnostic in lint(&[layout], topology) {
        let harmless = ["guest-siblings-hidden"];
        assert!(
            diagnostic.severity == Severity::Note || harmless.contains(&diagnostic.name),
            "{:?} in {}",
            diagnostic,
            merged.text
        );
    }
}

#[test]
fn only_vcpus_that_exist_are_pinned() {
    let topology = host("package:2 [numa(memory=8GiB)] core:4 pu:2");
    // Each set of the eight that has vCPU 0.
    for bits in (1_u32..256).step_by(2) {
        let ids: CpuSet = (0..8).filter(|id| bits >> id & 1 == 1).map(PuId).collect();
        check_existing(&topology, &ids, 1);
        check_existing(&topology, &ids, 2);
    }
}

#[test]
fn a_vcpu_beyond_the_number_and_none_at_all_are_refused() {
    check(
        domain(&CpuSet::first_n(1), 2, "").replace("id='1'", "id='9'"),
        "vCPU 9 does not exist: <vcpu> has 2",
    );
    check(
        domain(&CpuSet::first_n(1), 1, "").replace("enabled='yes'", "enabled='no'"),
        "no vCPU is enabled",
    );
}

fn check(xml: String, why: &str) {
    let error = Domain::read(&xml).expect_err("a refusal");
    assert_eq!(error.why, why);
}
