//! Caches in the guest topology: dies for L3 domains, and whether the host's cache data are valid
//! for the guest.
//!
//! QEMU shows an x86 guest one L3 for each *die* of `-smp` (on the x86 boards since 4.1; libvirt's
//! `dies` since 6.1). So a guest whose vCPUs lie in several L3 domains gets a die for each, and its
//! scheduler keeps tasks inside them. A guest with a NUMA cell for each host node has no die in two
//! cells: Linux on x86 ignores an L3 where it spans nodes. A socket for each would show the same
//! caches, but the host has fewer packages, Windows' desktop editions use two sockets at most, and
//! some software is licensed by socket.
//!
//! With `host-cache-info=on` (libvirt: `<cache mode='passthrough'/>`) the guest sees the sizes of
//! the host's caches, and, of each, by how many neighbouring CPUs it is shared. That is true only
//! of a guest that has as many threads on a core as the host, whole L2 domains where cores share
//! them, and whole L3 domains or no more than one, all on cores of one kind whose L2 is shared
//! alike (all vCPUs see the same sizes): elsewhere neighbours in the guest would seem to share what
//! they do not (<https://bugzilla.redhat.com/show_bug.cgi?id=1184125>).

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{GuestTopology, L3Id, NodeId, Pu, PuId, Topology, VnodePlan};

use crate::guest::numa::cells;

/// Cache description for a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches {
    /// Number of dies per socket: one, or one for each L3 domain and each NUMA cell.
    pub dies: u32,
    /// True if the host's cache data are valid for the guest.
    pub as_host: bool,
}

/// What a die of the guest stands for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct DieDomain {
    /// The host node, if the guest has a cell for each.
    node: Option<NodeId>,
    /// The L3 cache, if known.
    l3: Option<L3Id>,
}

/// The caches of a guest, derived from the pins of its vCPUs.
pub fn caches(vnode: &VnodePlan, topology: &Topology) -> Caches {
    let none = Caches { dies: 1, as_host: false };
    let Some(guest) = &vnode.guest else { return none };
    let Some(pus) = pus_of(vnode, topology).filter(|pus| !pus.is_empty()) else { return none };
    let has_cells = !cells(vnode, topology).is_empty();
    let domain = |pu: &&Pu| DieDomain { node: pu.node.filter(|_| has_cells), l3: pu.l3 };
    let domains: Vec<DieDomain> = pus.iter().map(domain).collect();
    let mut dies = dies(&domains, guest);
    if has_cells && dies.is_none() {
        let nodes: Vec<DieDomain> =
            domains.iter().map(|domain| DieDomain { l3: None, ..*domain }).collect();
        dies = self::dies(&nodes, guest);
    }
    let as_host = are_as_host(guest, &pus, topology, dies, &domains.into_iter().collect());
    Caches { dies: dies.unwrap_or(1), as_host }
}

/// The CPU of each vCPU; `None` if one may run on several.
fn pus_of<'t>(vnode: &VnodePlan, topology: &'t Topology) -> Option<Vec<&'t Pu>> {
    let by_os: BTreeMap<PuId, &Pu> = topology.pus.iter().map(|pu| (pu.os, pu)).collect();
    vnode
        .vcpus()
        .map(|thread| by_os.get(&thread.pus.first().filter(|_| thread.pus.len() == 1)?).copied())
        .collect()
}

/// True if the host's cache data are valid for a guest with this number of dies per socket.
fn are_as_host(
    guest: &GuestTopology,
    pus: &[&Pu],
    topology: &Topology,
    dies: Option<u32>,
    domains: &BTreeSet<DieDomain>,
) -> bool {
    let used: BTreeSet<PuId> = pus.iter().map(|pu| pu.os).collect();
    let l3s: Option<BTreeSet<L3Id>> = pus.iter().map(|pu| pu.l3).collect();
    // An L3 in two cells would be shown in both.
    let Some(l3s) = l3s.filter(|l3s| l3s.len() == domains.len()) else { return false };
    let same_cores = pus.iter().all(|pu| {
        let core = topology.cores.get(pu.core.index());
        core.is_some_and(|core| core.pus.len() == guest.threads as usize)
    });
    let is_shown = dies.is_some_and(|dies| dies * guest.sockets >= narrow(l3s.len()));
    let same_l2s = are_l2s_alike(topology, &used, guest.threads as usize);
    let same_kind = pus.windows(2).all(|pair| pair[0].kind == pair[1].kind);
    same_cores
        && same_kind
        && same_l2s
        && (l3s.len() == 1
            || is_shown
                && l3s.iter().all(|id| {
                    let domain = topology.l3.iter().find(|domain| domain.id == *id);
                    domain.is_some_and(|domain| domain.pus.iter().all(|pu| used.contains(&pu)))
                }))
}

/// Of an L2 that cores share, the vCPUs have all CPUs or none, and as many have each L2.
fn are_l2s_alike(topology: &Topology, used: &BTreeSet<PuId>, threads: usize) -> bool {
    let held = topology.l2_domains.iter().map(|domain| {
        let own = domain.iter().filter(|pu| used.contains(pu)).count();
        (own, domain.len())
    });
    let held: Vec<(usize, usize)> = held.filter(|(own, _)| *own > 0).collect();
    let whole = held.iter().all(|(own, all)| own == all || *own == threads && *own == used.len());
    let shared: usize = held.iter().map(|(own, _)| own).sum();
    let alike = held.windows(2).all(|pair| pair[0].1 == pair[1].1);
    whole && alike && (shared == 0 || shared == used.len())
}

/// Dies of each socket, if each domain is known and holds as many neighbouring vCPUs as every
/// other, and each socket as many domains.
fn dies(of_vcpus: &[DieDomain], guest: &GuestTopology) -> Option<u32> {
    if of_vcpus.iter().any(|domain| domain.node.is_none() && domain.l3.is_none()) {
        return None;
    }
    let mut runs: Vec<(DieDomain, usize)> = Vec::new();
    for domain in of_vcpus {
        match runs.last_mut() {
            Some((last, count)) if last == domain => *count += 1,
            _ => runs.push((*domain, 1)),
        }
    }
    let domains: BTreeSet<DieDomain> = runs.iter().map(|(domain, _)| *domain).collect();
    let (_, first) = *runs.first()?;
    let even = runs.iter().all(|(_, count)| *count == first);
    let (count, sockets) = (narrow(runs.len()), guest.sockets.max(1));
    let fits = count.is_multiple_of(sockets) && first.is_multiple_of(guest.threads.max(1) as usize);
    (domains.len() == runs.len() && even && fits).then_some(count / sockets)
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
