//! Explanations for users.

use pinfold_model::{
    CpuSet, MemoryPlan, MemoryRequest, NodeId, Request, Role, Speed, VnodeRequest,
};
use pinfold_samples::machine::{i7_4790k, plain, ryzen_5950x, two_complexes};
use pinfold_samples::{auto, exactly, set};

use crate::{explain, plan, strategies};

#[test]
fn the_whole_account() {
    let mut request = exactly(2);
    *pinfold_samples::iothreads(&mut request) = vec!["disk".to_owned()];
    let topology = i7_4790k().build();
    let layout = plan("low-latency", &topology, &request).unwrap();
    super::golden("explain-low-latency.txt", &explain(&layout, &topology, 80));
}

#[test]
fn what_it_says_of_each_strategy() {
    check("none", &["16 vCPUs floating over 0-15", "the kernel may use any idle CPU"]);
    check("compact", &["16 vCPUs pinned to 0-15", "vCPUs compete with the host's tasks on 0-15"]);
    check("compact-cores", &["the host's tasks may share the vCPUs' cores on 8-15"]);
    check(
        "low-latency",
        &[
            "the CPUs 1-7 run only vCPUs",
            "the emulator shares the vCPUs' cores on 9-15",
            "the host's tasks have 1 of 8 cores",
            "the vCPUs span 2 of 2 L3 domains",
        ],
    );
    check(
        "balanced",
        &["the guest's scheduler knows the siblings of 7 cores", "on 7 cores vCPUs share a core"],
    );
    check("max-performance", &["the emulator competes with vCPUs on 0-15"]);
}

fn check(strategy: &str, expected: &[&str]) {
    let topology = two_complexes().build();
    let text = explain(&plan(strategy, &topology, &auto()).unwrap(), &topology, 80);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in expected {
        assert!(text.contains(part), "{strategy}: {part} is not in\n{text}");
    }
}

#[test]
fn sizes_are_written_in_the_largest_unit() {
    let topology = two_complexes().build();
    let mut layout = plan("low-latency", &topology, &exactly(2)).unwrap();
    let mut check = |bytes: u64, page_bytes: u64, expected: &str| {
        layout.vnodes[0].memory = Some(MemoryPlan {
            nodes: vec![NodeId(0)],
            bytes: Some(bytes),
            page_bytes: Some(page_bytes),
            is_preferred: false,
            reason: "a test".to_owned(),
        });
        let text = explain(&layout, &topology, 80);
        assert!(text.contains(expected) && !text.contains(" bytes"), "{text}");
    };
    check(300 << 30, 1 << 30, "300 GiB on node 0, in pages of 1 GiB: a test");
    check(1536 << 20, 2 << 20, "1536 MiB on node 0, in pages of 2 MiB: a test");
}

/// The emulator of a machine on several nodes has CPUs on each of them, and its reason names all.
#[test]
fn the_reason_of_an_emulator_names_all_its_cpus() {
    let mut topology = pinfold_samples::machine::dual_x5540().build();
    topology.nodes.iter_mut().for_each(|node| node.memory_bytes = 12 << 30);
    let mut request = exactly(4);
    request.vnodes[0].memory = Some(MemoryRequest { bytes: 20 << 30, page_bytes: None });
    for strategy in ["auto", "low-latency", "balanced", "max-performance"] {
        let layout = plan(strategy, &topology, &request).unwrap();
        let thread = layout.vnodes[0].thread(&Role::Emulator).unwrap();
        let mut named = CpuSet::new();
        for rest in thread.reason.split("the CPUs ").skip(1) {
            let list = rest.split(' ').next().unwrap_or_default();
            named.add(&set(list.trim_end_matches([',', ':'])));
        }
        assert_eq!(named, thread.pus, "{strategy}: {}", thread.reason);
    }
}

#[test]
fn the_weaker_part_of_the_host_is_named_with_its_cache() {
    let layout = plan("low-latency", &ryzen_5950x().build(), &exactly(2)).unwrap();
    let reasons: Vec<&str> = layout.threads().map(|(_, it)| it.reason.as_str()).collect();
    assert!(reasons.iter().all(|reason| !reason.contains("need least")), "{reasons:?}");
}

#[test]
fn on_another_machine() {
    let layout = plan("balanced", &i7_4790k().build(), &auto()).unwrap();
    let text = explain(&layout, &plain(2).build(), 80);
    assert!(text.contains("was made for the host test-0-7, this is test-0-1"), "{text}");
}

#[test]
fn lines_fit_and_sections_are_there() {
    for strategy in strategies() {
        let topology = two_complexes().with_hypervisor("KVM").build();
        let request = match strategy.name {
            "vnodes" => Request::from_vnodes(vec![VnodeRequest::processes("slow", 3, Speed::FULL)]),
            _ => auto(),
        };
        let text = explain(&plan(strategy.name, &topology, &request).unwrap(), &topology, 80);
        for line in text.lines() {
            assert!(line.chars().count() <= 80 && line == line.trim_end(), "{line:?}");
        }
        let guest = (strategy.name != "vnodes").then_some("Guest topology");
        let sections = ["role ", "Host", "What it gives", "What it costs"];
        for section in sections.into_iter().chain(guest) {
            assert!(text.contains(&format!("\n{section}")), "{section} is not in\n{text}");
        }
    }
}
