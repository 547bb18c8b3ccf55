//! Checks tunables against a topology: what this host lacks, or would refuse.
//!
//! Only data of the topology are checked. The host's governors, cache ways and cache numbers are
//! checked when the plan is applied.

use std::collections::BTreeSet;

use pinfold_model::{
    CpuSet, Finding, HugePagePool, IrqPlan, IsolationScope, Plan, ResourceShare, Smt, Topology,
};

use crate::guest_cache::Vendor;
use crate::text::pus_text;

/// All faults of the plan's tunables on this host.
pub(super) fn wrong(plan: &Plan, topology: &Topology) -> Vec<Finding> {
    let tuning = &plan.tuning;
    let mut findings = Vec::new();
    findings.extend(plan.irqs.iter().filter_map(|irq| device(irq, topology)));
    findings.extend(partition(plan));
    findings.extend(offline(plan, topology));
    findings.extend(tuning.huge_pages.iter().filter_map(|pool| no_pool(pool, topology)));
    findings.extend(twice(plan));
    findings.extend(tuning.shares.iter().filter_map(|share| no_share(share, topology)));
    findings.extend(frequency(plan, topology));
    findings
}

/// A device, or a node, that does not exist.
fn device(irq: &IrqPlan, topology: &Topology) -> Option<Finding> {
    let name = &irq.device;
    let (there, hint) = if name == IrqPlan::ALL {
        (true, "")
    } else if let Some(node) = name.strip_prefix("node ") {
        let mut nodes = topology.nodes.iter();
        (nodes.any(|known| known.id.to_string() == node), "`pinfold topo` shows the nodes")
    } else {
        let mut devices = topology.devices.iter();
        let known = topology.devices.is_empty() || devices.any(|device| device.address == *name);
        (known, "lspci -D shows the addresses")
    };
    (!there)
        .then(|| Finding::problem("irq", format!("this host has no device {name}")).with_hint(hint))
}

fn partition(plan: &Plan) -> Option<Finding> {
    plan.tuning.partition?;
    if plan.isolation == IsolationScope::Host && !plan.exclusive.is_empty() {
        return None;
    }
    let text = "no PUs are kept for the machine, so there is nothing to make a partition of";
    Some(Finding::problem("partition", text).with_hint("plan with --isolate host"))
}

/// CPUs to be taken offline that the plan's threads use, or that are the host's last ones.
fn offline(plan: &Plan, topology: &Topology) -> Vec<Finding> {
    let mut going = plan.tuning.offline.clone().unwrap_or_default();
    let unknown = going.difference(&topology.online()).difference(&topology.offline);
    let mut findings = Vec::new();
    if !unknown.is_empty() {
        let text = format!("this host has no {}", pus_text(&unknown));
        findings.push(Finding::problem("offline", text).with_hint("`pinfold topo` shows its PUs"));
    }
    let key = if plan.tuning.smt == Some(false) { "smt" } else { "offline" };
    if plan.tuning.smt == Some(false) {
        let siblings = topology.pus.iter().filter(|pu| pu.smt_rank > 0).map(|pu| pu.os);
        siblings.for_each(|pu| going.insert(pu));
    }
    if plan.tuning.smt == Some(true) && topology.smt == Smt::NotSupported {
        let text = "this processor has one thread on each core";
        findings.push(Finding::problem("smt", text).with_hint("leave smt=on out"));
    }
    let used = plan.pus().intersection(&going);
    if !used.is_empty() {
        let text =
            format!("{} would go offline, and threads of the plan run there", pus_text(&used));
        findings.push(Finding::problem(key, text).with_hint(match key {
            "smt" => "plan without siblings: --avoid them, or a strategy with one vCPU on a core",
            _ => "plan around them with --avoid",
        }));
    }
    let online: CpuSet = plan.housekeeping.intersection(&topology.online());
    if !going.is_empty() && online.is_subset(&going) {
        let text = "the host would have no PU left";
        findings.push(
            Finding::problem(key, text).with_hint("leave one of the housekeeping PUs online"),
        );
    }
    findings
}

fn no_pool(pool: &HugePagePool, topology: &Topology) -> Option<Finding> {
    let HugePagePool { node, page_bytes, .. } = pool;
    let Some(known) = topology.nodes.iter().find(|known| known.id == *node) else {
        let text = format!("this host has no node {node}");
        return Some(
            Finding::problem("huge-pages", text).with_hint("`pinfold topo` shows the nodes"),
        );
    };
    let sizes: Vec<String> =
        known.huge_pages.iter().map(|pages| format!("{}", pages.page_bytes >> 10)).collect();
    let has = known.huge_pages.iter().any(|pages| pages.page_bytes == *page_bytes);
    (!sizes.is_empty() && !has).then(|| {
        let text = format!("node {node} has no pages of {} KiB", page_bytes >> 10);
        Finding::problem("huge-pages", text)
            .with_hint(format!("its sizes in KiB are {}", sizes.join(", ")))
    })
}

/// A setting that is given twice, with two values.
fn twice(plan: &Plan) -> Vec<Finding> {
    let mut seen = BTreeSet::new();
    let pools = plan.tuning.huge_pages.iter();
    let pools =
        pools.map(|pool| ("huge-pages", format!("{}:{}", pool.node, pool.page_bytes >> 10)));
    let shares = plan.tuning.shares.iter();
    let shares = shares.map(|share| ("share", format!("{}:{}", share.resource, share.domain)));
    pools
        .chain(shares)
        .filter(|one| !seen.insert(one.clone()))
        .map(|(key, name)| {
            Finding::problem(key, format!("{name} is set twice")).with_hint("leave one of them out")
        })
        .collect()
}

fn no_share(share: &ResourceShare, topology: &Topology) -> Option<Finding> {
    let (all, amd) = (topology.l3.iter().map(|l3| l3.ways), Vendor::of(topology) == Vendor::Amd);
    let ways = all.max().filter(|ways| *ways > 0);
    let widest = 64 - share.amount.leading_zeros();
    let (text, hint) = if share.resource.starts_with("L3") && topology.l3.is_empty() {
        ("this host has no level-3 cache".to_owned(), "leave it out".to_owned())
    } else if share.resource.starts_with("L3") && ways.is_some_and(|ways| widest > ways) {
        let ways = ways.unwrap_or(0);
        (
            format!("the mask {:x} is for {widest} ways, the cache has {ways}", share.amount),
            format!("the whole cache is {:x}", u64::MAX >> (64 - ways.min(64))),
        )
    } else if share.resource == "MB" && Vendor::of(topology) == Vendor::Intel && share.amount > 100
    {
        (format!("{} percent of the bandwidth are asked for", share.amount), "1 to 100".to_owned())
    } else if share.resource == "SMBA" && !amd && Vendor::of(topology) != Vendor::Unknown {
        ("SMBA is of AMD's processors".to_owned(), "MB is for ordinary memory".to_owned())
    } else {
        return None;
    };
    Some(Finding::problem("share", text).with_hint(hint))
}

/// A minimum frequency that none of the plan's CPUs reaches.
fn frequency(plan: &Plan, topology: &Topology) -> Option<Finding> {
    let pus = plan.pus();
    let here = topology.highest_khz.iter().filter(|(pu, _)| pus.contains(**pu));
    let highest = here.map(|(_, khz)| *khz).max()?;
    let min = plan.tuning.min_khz.filter(|min| *min > highest)?;
    let text = format!("{min} kHz is more than {highest} kHz, the highest of the plan's PUs");
    Some(Finding::problem("min-khz", text).with_hint("frequencies are in kHz: 2.4 GHz is 2400000"))
}
