//! Every strategy on every host of `fixtures/hosts`, and `scatter` against `hwloc-distrib`.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::BTreeMap;

use pinfold_host::process::{capture, find_program};
use pinfold_model::{
    CpuSet, IsolationScope, Plan, PuId, Request, Source, Speed, Topology, VcpuCount, VmRequest,
    VnodeRequest,
};
use pinfold_plan::{check, explain, plan, schema, strategies};

use common::hosts;

const MINUTE_NS: u64 = 60_000_000_000;

fn requests(strategy: &str) -> Vec<Request> {
    let vm = |name: &str, vcpus| VnodeRequest::vm(name, VmRequest::of(vcpus));
    let group = |name: &str, cores| VnodeRequest::processes(name, cores, Speed::FULL);
    let asked = match strategy {
        "vnodes" => vec![vec![group("a", 1)], vec![group("a", 2), group("b", 1)]],
        _ => vec![
            vec![vm("a", VcpuCount::Auto)],
            vec![vm("a", VcpuCount::Exactly(3))],
            vec![vm("a", VcpuCount::Exactly(2)), vm("b", VcpuCount::Exactly(1))],
            vec![vm("a", VcpuCount::Auto), group("b", 1)],
        ],
    };
    let isolated = |vnodes| Request { isolation: IsolationScope::Host, ..Request::of(vnodes) };
    asked.into_iter().map(isolated).collect()
}

/// A plan that may be applied there, or a refusal with a way out.
#[test]
fn every_strategy_on_every_host() {
    let hosts = hosts();
    assert!(hosts.len() >= 24, "{} hosts", hosts.len());
    let mut planned = 0;
    for (name, topology) in &hosts {
        for strategy in strategies() {
            for request in requests(strategy.name) {
                let case = format!("{name}, {}", strategy.name);
                let layout = match plan(strategy.name, topology, &request) {
                    Ok(layout) => layout,
                    Err(error) => {
                        assert!(error.hint().is_some(), "{case}: {error} and no way out");
                        continue;
                    }
                };
                assert_eq!(check(&layout, topology), vec![], "{case}");
                assert!(!layout.housekeeping.is_empty(), "{case}");
                assert!(explain(&layout, topology).contains("why"), "{case}");
                assert_eq!(schema::from_json(&schema::to_json(&layout)), Ok(layout), "{case}");
                planned += 1;
            }
        }
    }
    // Nearly all: what is refused is refused on machines of one or two PUs, or for its L3.
    assert!(planned > 1000, "only {planned} plans");
}

/// How many of the PUs are in each part, most first.
fn counts(topology: &Topology, pus: &CpuSet, level: &str) -> Vec<usize> {
    let mut parts: BTreeMap<Option<u32>, usize> = BTreeMap::new();
    for pu in topology.pus.iter().filter(|pu| pus.contains(pu.os)) {
        let part = match level {
            "package" => Some(pu.package.0),
            "node" => pu.node.map(|node| node.0),
            "L3" => pu.l3.map(|l3| l3.0),
            _ => Some(pu.core.0),
        };
        *parts.entry(part).or_default() += 1;
    }
    let mut counts: Vec<usize> = parts.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts
}

fn pins(layout: &Plan) -> CpuSet {
    layout.vnodes[0].vcpus().filter_map(|vcpu| vcpu.pus.first()).collect()
}

#[test]
fn scatter_spreads_as_hwloc_distrib_does() {
    let Some(distrib) = find_program("hwloc-distrib") else {
        eprintln!("skipped: hwloc-distrib is not installed");
        return;
    };
    for (name, topology) in hosts() {
        // On irregular hosts it weighs parts by their PUs, another rule.
        let Source::Synthetic(description) = &topology.source else { continue };
        let most = topology.pus.len();
        for vcpus in (1..=most.min(64)).chain([most / 2, most]).filter(|count| *count > 0) {
            let count = vcpus.to_string();
            let arguments = ["-i", description, "--single", "--taskset", &count];
            let output = capture(&distrib, arguments, MINUTE_NS).expect("hwloc-distrib runs");
            let masks = output.stdout_text();
            let theirs: CpuSet = masks
                .lines()
                .flat_map(|line| {
                    let set = CpuSet::parse_mask(line).expect("a mask");
                    set.iter().collect::<Vec<PuId>>()
                })
                .collect();
            let request =
                Request::vm("vm", VcpuCount::Exactly(u32::try_from(vcpus).expect("a count")));
            let ours = pins(&plan("scatter", &topology, &request).expect("a plan"));
            for level in ["package", "node", "L3", "core"] {
                assert_eq!(
                    counts(&topology, &ours, level),
                    counts(&topology, &theirs, level),
                    "{name}: {vcpus} vCPUs by {level}: {ours} against {theirs}"
                );
            }
        }
    }
}
