//! `vnodes`: process groups of c cores at speed μ, each on exclusive cores.
//!
//! Buchert 2011 Fig. 2: virtual nodes of 1, 1, 2, 4 cores at 75, 40, 60, 25 % on eight cores. A
//! group has the first CPU of each of its cores. The siblings stay idle, because tasks there would
//! slow the group by an unknown amount. The cores of a group are of one kind and near each other,
//! on the node of its devices while that has room. The largest group chooses first, and the host's
//! core is used last.
//!
//! On machines whose cores change frequency together (pairs on the L5420), groups of different
//! speeds do not share a frequency domain while there are enough domains. Otherwise a finding names
//! the methods that then cannot keep the speeds.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::text::pus_text;
use pinfold_model::{
    CpuSet, Finding, L3Id, NodeId, Plan, Request, Speed, Topology, VnodePlan, Work,
};

use super::{Strategy, StrategyKind, TrialOrder};
use crate::cores::available::{AvailableCpus, Index, distinct};
use crate::cores::available_core::AvailableCore;
use crate::cores::host_share::HostShare;
use crate::cores::request_check::nodes_of;
use crate::cores::select::{Count, Pool};
use crate::error::PlanError;
use crate::guest::topology::GuestSmt;
use crate::placement::builder::{Limits, PlanBuilder, select_available_cpus};
use crate::placement::exclusive_cores::choose_host_core;
use crate::placement::rules::{Isolated, Rules};
use crate::placement::vnode_builder::Reserve;

pub(super) const STRATEGY: Strategy = Strategy {
    name: "vnodes",
    summary: "process groups with a given number of cores and speed, respecting shared frequency \
              domains",
    source: "Buchert 2011 Fig. 2: 1, 1, 2, 4 cores at 75, 40, 60, 25 %",
    kind: StrategyKind::Other,
    rules: Rules {
        has_own_cores: false,
        takes_emulator_request: false,
        isolated: Isolated::Preferred,
    },
    turns: TrialOrder::NONE,
    is_divided: false,
    plan,
};

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let available = select_available_cpus(topology, request, Count::Cores)?;
    if let Some(vm) = request.vnodes.iter().find(|vnode| matches!(vnode.work, Work::Vm(_))) {
        return Err(PlanError::WrongKind {
            strategy: STRATEGY.name.to_owned(),
            vnode: vm.name.clone(),
            why: "it places process groups, but this is a virtual machine".to_owned(),
            nearest: None,
        });
    }
    let mut builder = PlanBuilder::new(STRATEGY.name, STRATEGY.rules, &available, request)?;
    let host = choose_host_core(&builder, Count::Cores);
    let (all, others) = (available.cores.as_slice(), available.without(&host));
    let limits = Limits {
        auto: all.len(),
        unit: 1,
        most: Some(all.len()),
        why: "each core of a group is a separate core of the host".to_owned(),
    };
    let wanted = wanted_cores(&builder, builder.counts(limits)?);
    let enough =
        others.len() >= wanted.iter().map(|group_request| group_request.cores).sum::<usize>();
    let near = in_own_l3s(&others, &host, &wanted).unwrap_or_else(|| {
        choose_adjacent_cores(if enough { &others } else { all }, &host, &wanted)
    });
    let speeds = wanted.iter().map(|group_request| group_request.speed);
    let mixed = speeds.zip(near.iter().map(|cores| first_cpu_per_core(cores))).collect::<Vec<_>>();
    let mixed = shared_domains(topology, &mixed).is_some();
    let groups = if mixed {
        separate_groups(&available, &others, &wanted)
            .or_else(|| separate_groups(&available, all, &wanted))
            .unwrap_or(near)
    } else {
        near
    };
    let mut exclusive = CpuSet::new();
    for (group_request, cores) in wanted.iter().zip(&groups) {
        let mut vnode_builder = builder.open(group_request.place);
        for core in cores {
            exclusive.add(&core.set());
            vnode_builder.vcpu(
                core.pus.first().copied().map(CpuSet::single).unwrap_or_default(),
                reason(&available, core),
            );
        }
        builder.finish_vnode(vnode_builder, GuestSmt::None)?;
    }
    add_shared_domain_findings(&mut builder, topology, &host);
    let exclusive = exclusive.difference(&host.pus);
    let reason = available.host_reason(&host, &exclusive);
    builder.finish_isolated(Reserve { exclusive, reason })
}

/// Adds findings about what the groups share, after all threads are placed.
fn add_shared_domain_findings<'a>(
    builder: &mut PlanBuilder<'a>,
    topology: &'a Topology,
    host: &HostShare,
) {
    builder.defer_finding(|ended| {
        shared_domains(
            topology,
            &ended
                .vnodes
                .iter()
                .map(|vnode: &VnodePlan| (vnode.speed, pus_of(vnode)))
                .collect::<Vec<_>>(),
        )
    });
    let index = builder.available.index();
    builder.defer_finding(|ended| unequal_kinds(index, ended.vnodes));
    builder.defer_finding(|ended| shared_l3s(index, ended.vnodes));
    let hosts = host.pus.clone();
    builder.defer_finding(move |ended| {
        let on_host = !ended.working_cpus().is_disjoint(&hosts);
        on_host.then(|| {
            Finding::warning(
                "housekeeping",
                format!(
                    "the groups use every core, so the host's tasks share {} with one of them",
                    pus_text(&hosts)
                ),
            )
            .with_hint("request one core less")
        })
    });
}

/// The cores that one group needs.
struct GroupCores {
    place: usize,
    cores: usize,
    speed: Speed,
    /// The nodes near which it should be.
    nodes: Vec<NodeId>,
}

/// The groups' needs in the order in which they choose.
fn wanted_cores(builder: &PlanBuilder<'_>, counts: Vec<usize>) -> Vec<GroupCores> {
    builder
        .choosing_order()
        .into_iter()
        .filter_map(|place| match &builder.vnode(place).work {
            Work::Vm(_) => None,
            Work::Processes { speed, .. } => Some(GroupCores {
                place,
                cores: counts.get(place).copied()?,
                speed: *speed,
                nodes: nodes_of(builder.available.topology, builder.vnode(place)),
            }),
        })
        .collect()
}

/// The cores by frequency domain, in hwloc's order; a core without a domain is a separate one.
fn frequency_domains<'g>(
    available: &AvailableCpus<'_>,
    cores: &'g [AvailableCore],
) -> Vec<Vec<&'g AvailableCore>> {
    let mut known = BTreeMap::new();
    for (number, domain) in available.topology.frequency_domains.iter().enumerate() {
        known.extend(domain.iter().map(|pu| (pu, number)));
    }
    let mut domains: Vec<Vec<&AvailableCore>> = Vec::new();
    let mut places = BTreeMap::new();
    for core in cores {
        let key = match core.pus.first().and_then(|pu| known.get(pu)) {
            Some(number) => (0, *number),
            None => (1, core.id.index()),
        };
        let place = *places.entry(key).or_insert_with(|| {
            domains.push(Vec::new());
            domains.len() - 1
        });
        if let Some(domain) = domains.get_mut(place) {
            domain.push(core);
        }
    }
    domains
}

/// Cores for all groups such that no frequency domain has two speeds; `None` if there are too few.
fn separate_groups<'g>(
    available: &AvailableCpus<'_>,
    cores: &'g [AvailableCore],
    wanted: &[GroupCores],
) -> Option<Vec<Vec<&'g AvailableCore>>> {
    let mut fresh = frequency_domains(available, cores).into_iter();
    // Remaining cores of partly used domains, by speed.
    let mut begun: BTreeMap<Speed, Vec<&AvailableCore>> = BTreeMap::new();
    let mut groups = Vec::with_capacity(wanted.len());
    for group_request in wanted {
        let left = begun.entry(group_request.speed).or_default();
        while left.len() < group_request.cores {
            left.extend(fresh.next()?);
        }
        let rest = left.split_off(group_request.cores);
        groups.push(std::mem::replace(left, rest));
    }
    Some(groups)
}

/// Cores for several groups, each in an L3 domain of its own, away from the host's; all in one part
/// of the machine. `None` if there are too few such domains, or a group should be on some node.
fn in_own_l3s<'g>(
    cores: &'g [AvailableCore],
    host: &HostShare,
    wanted: &[GroupCores],
) -> Option<Vec<Vec<&'g AvailableCore>>> {
    let largest = wanted.iter().map(|group_request| group_request.cores).max()?;
    if wanted.len() < 2 || wanted.iter().any(|group_request| !group_request.nodes.is_empty()) {
        return None;
    }
    let mut parts: BTreeMap<u32, BTreeMap<L3Id, Vec<&AvailableCore>>> = BTreeMap::new();
    for core in cores.iter().filter(|core| !core.memoryless && core.l3 != host.l3) {
        let Some(l3) = core.l3 else { continue };
        parts.entry(core.part).or_default().entry(l3).or_default().push(core);
    }
    for part in parts.values() {
        let domains: Vec<_> = part.values().filter(|cores| cores.len() >= largest).collect();
        if domains.len() >= wanted.len() {
            return Some(
                domains
                    .iter()
                    .zip(wanted)
                    .map(|(cores, group_request)| {
                        cores.iter().take(group_request.cores).copied().collect()
                    })
                    .collect(),
            );
        }
    }
    None
}

/// A finding about groups on cores of different kinds.
fn unequal_kinds(index: &Index<'_>, vnodes: &[VnodePlan]) -> Option<Finding> {
    let first = vnodes.first()?;
    let own = kinds_of(first, index);
    let other = vnodes.iter().find(|vnode| kinds_of(vnode, index) != own)?;
    let text = format!(
        "{} is on cores of another kind than {}: their tasks do not run equally fast",
        other.name, first.name
    );
    Some(Finding::note("groups", text))
}

fn kinds_of(vnode: &VnodePlan, index: &Index<'_>) -> Vec<pinfold_model::CoreKind> {
    distinct(index.pus(&pus_of(vnode)).map(|pu| pu.kind))
}

/// A finding about groups that share an L3 domain, on a host with several.
fn shared_l3s(index: &Index<'_>, vnodes: &[VnodePlan]) -> Option<Finding> {
    let mut groups: BTreeMap<L3Id, Vec<&str>> = BTreeMap::new();
    for vnode in vnodes {
        for l3 in distinct(index.pus(&pus_of(vnode)).filter_map(|pu| pu.l3)) {
            groups.entry(l3).or_default().push(&vnode.name);
        }
    }
    let (l3, names) = groups.into_iter().find(|(_, names)| names.len() > 1)?;
    let text = format!("{} share L3 {l3}: each evicts cache lines of the others", names.join(", "));
    (index.topology.l3.len() > 1).then(|| Finding::note("groups", text))
}

/// Cores for all groups such that those of a group are alike and near each other, regardless of
/// frequency domains; the largest group chooses first.
fn choose_adjacent_cores<'g>(
    candidates: &'g [AvailableCore],
    host: &HostShare,
    wanted: &[GroupCores],
) -> Vec<Vec<&'g AvailableCore>> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|place| Reverse(cores_wanted(place, wanted)));
    let mut pool = Pool::new(candidates, Count::Cores, Some(host));
    let mut groups: Vec<Vec<&AvailableCore>> = wanted.iter().map(|_| Vec::new()).collect();
    for place in order {
        let nodes = wanted.get(place).map_or(&[][..], |group_request| &group_request.nodes);
        let taken = pool.take(cores_wanted(&place, wanted), nodes);
        if let (Some(taken), Some(group)) = (taken, groups.get_mut(place)) {
            *group = taken.cores;
        }
    }
    in_order(&mut groups);
    groups
}

fn cores_wanted(place: &usize, wanted: &[GroupCores]) -> usize {
    wanted.get(*place).map_or(0, |group_request| group_request.cores)
}

/// Redistributes the cores of groups that share a cache, in the order of the groups.
fn in_order(groups: &mut [Vec<&AvailableCore>]) {
    let mut parts: BTreeMap<_, (Vec<&mut Vec<&AvailableCore>>, Vec<&AvailableCore>)> =
        BTreeMap::new();
    for group in groups {
        let Some(first) = group.first().map(|core| part_key(core)) else { continue };
        if group.iter().all(|core| part_key(core) == first) {
            let (inside, cores) = parts.entry(first).or_default();
            cores.extend(group.iter());
            inside.push(group);
        }
    }
    for (inside, mut cores) in parts.into_values() {
        cores.sort_by_key(|core| core.id);
        let mut cores = cores.into_iter();
        for group in inside {
            *group = cores.by_ref().take(group.len()).collect();
        }
    }
}

fn part_key(
    core: &AvailableCore,
) -> (
    pinfold_model::CoreKind,
    pinfold_model::PackageId,
    Option<pinfold_model::NodeId>,
    Option<L3Id>,
    Option<u32>,
) {
    (core.kind, core.package, core.node, core.l3, core.l2)
}

fn reason(available: &AvailableCpus<'_>, core: &AvailableCore) -> String {
    let Some((first, siblings)) = core.pus.split_first() else {
        return String::new();
    };
    let beside: CpuSet = siblings.iter().copied().collect();
    let idle = if beside.is_empty() {
        String::new()
    } else {
        format!("; its sibling {beside} stays idle, so that it does not affect the group's speed")
    };
    format!("CPU {first} is a core for this group only ({}){idle}", available.place(*first))
}

/// The CPUs of the tasks of a group.
fn pus_of(vnode: &VnodePlan) -> CpuSet {
    vnode.threads.iter().map(|thread| &thread.pus).collect::<CpuSet>()
}

/// The first CPU of each core, on which a group's tasks run.
fn first_cpu_per_core(cores: &[&AvailableCore]) -> CpuSet {
    cores.iter().filter_map(|core| core.pus.first().copied()).collect()
}

fn shared_domains(topology: &Topology, groups: &[(Speed, CpuSet)]) -> Option<Finding> {
    let mixed: CpuSet = topology
        .frequency_domains
        .iter()
        .filter(|domain| {
            let inside = groups.iter().filter(|(_, pus)| !pus.is_disjoint(domain));
            let speeds: BTreeSet<Speed> = inside.map(|(speed, _)| *speed).collect();
            speeds.len() > 1
        })
        .flat_map(CpuSet::iter)
        .collect();
    (!mixed.is_empty()).then(|| {
        Finding::warning(
            "frequency domains",
            format!(
                "{} change frequency together but belong to groups of different speed: a method \
                 that sets the frequency cannot give both speeds",
                pus_text(&mixed)
            ),
        )
        .with_hint("request fewer cores, or emulate the speeds by time instead of frequency")
    })
}
