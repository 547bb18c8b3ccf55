//! Caches in the guest topology: dies for L3 domains, and whether the host's cache data are valid
//! for the guest.
//!
//! QEMU shows an x86 guest one L3 for each *die* of `-smp` (on the x86 boards since 4.1; libvirt's
//! `dies` since 6.1). So a guest whose vCPUs lie in several L3 domains gets a die for each, and its
//! scheduler keeps tasks inside them. A socket for each would show the same caches, but would also
//! imply separate memory, and some software is licensed by socket.
//!
//! With `host-cache-info=on` (libvirt: `<cache mode='passthrough'/>`) the guest sees the sizes of
//! the host's caches, and, of each, by how many neighbouring CPUs it is shared. That is true only
//! of a guest that has as many threads on a core as the host, whole L2 domains where cores share
//! them, and whole L3 domains or no more than one, all on cores of one kind whose L2 is shared
//! alike (all vCPUs see the same sizes): elsewhere neighbours in the guest would seem to share what they do not
//! (<https://bugzilla.redhat.com/show_bug.cgi?id=1184125>).

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{L3Id, Pu, PuId, Topology, VnodePlan};

/// Cache description for a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches {
    /// Number of dies per socket: one, or one for each L3 domain.
    pub dies: u32,
    /// True if the host's cache data are valid for the guest.
    pub as_host: bool,
}

/// The caches of a guest, derived from the pins of its vCPUs.
#[must_use]
pub fn caches(vnode: &VnodePlan, topology: &Topology) -> Caches {
    let none = Caches { dies: 1, as_host: false };
    let Some(guest) = &vnode.guest else { return none };
    let by_os: BTreeMap<PuId, &Pu> = topology.pus.iter().map(|pu| (pu.os, pu)).collect();
    let pin = |pus: &pinfold_model::CpuSet| match pus.len() {
        1 => by_os.get(&pus.first()?).copied(),
        _ => None,
    };
    let pus: Option<Vec<&Pu>> = vnode.vcpus().map(|thread| pin(&thread.pus)).collect();
    let Some(pus) = pus.filter(|pus| !pus.is_empty()) else { return none };
    let l3s: Option<Vec<L3Id>> = pus.iter().map(|pu| pu.l3).collect();
    let Some(l3s) = l3s else { return none };
    let dies = dies(&l3s, (guest.sockets, guest.threads));
    let used: BTreeSet<PuId> = pus.iter().map(|pu| pu.os).collect();
    let same_cores = pus.iter().all(|pu| {
        topology
            .cores
            .get(pu.core.index())
            .is_some_and(|core| core.pus.len() == guest.threads as usize)
    });
    let known: BTreeSet<L3Id> = l3s.into_iter().collect();
    let whole = |id: &L3Id| {
        let domain = topology.l3.iter().find(|domain| domain.id == *id);
        domain.is_some_and(|domain| domain.pus.iter().all(|pu| used.contains(&pu)))
    };
    let told_apart = dies.is_some_and(|dies| dies * guest.sockets >= narrow(known.len()));
    let same_l2s = are_l2s_alike(topology, &used, guest.threads as usize);
    let same_kind = pus.windows(2).all(|pair| pair[0].kind == pair[1].kind);
    let as_host = same_cores
        && same_kind
        && same_l2s
        && (known.len() == 1 || told_apart && known.iter().all(whole));
    Caches { dies: dies.unwrap_or(1), as_host }
}

/// Of an L2 that cores share, the vCPUs have all CPUs or none, and as many have each L2.
fn are_l2s_alike(topology: &Topology, used: &BTreeSet<PuId>, threads: usize) -> bool {
    let held = topology.l2_domains.iter().map(|domain| {
        let own = domain.iter().filter(|pu| used.contains(pu)).count();
        (own, domain.len())
    });
    let held: Vec<(usize, usize)> = held.filter(|(own, _)| *own > 0).collect();
    let is_one_core = |own| own == threads && own == used.len();
    let whole = held.iter().all(|(own, all)| own == all || is_one_core(*own));
    let shared: usize = held.iter().map(|(own, _)| own).sum();
    let alike = held.windows(2).all(|pair| pair[0].1 == pair[1].1);
    whole && alike && (shared == 0 || shared == used.len())
}

/// Dies of each socket, if each L3 domain holds as many neighbouring vCPUs as every other, and
/// each socket as many domains.
fn dies(l3s: &[L3Id], (sockets, threads): (u32, u32)) -> Option<u32> {
    let mut runs: Vec<(L3Id, usize)> = Vec::new();
    for l3 in l3s {
        match runs.last_mut() {
            Some((last, count)) if last == l3 => *count += 1,
            _ => runs.push((*l3, 1)),
        }
    }
    let domains: BTreeSet<L3Id> = runs.iter().map(|(l3, _)| *l3).collect();
    let (_, first) = *runs.first()?;
    let even = runs.iter().all(|(_, count)| *count == first);
    let count = narrow(runs.len());
    let fits =
        count.is_multiple_of(sockets.max(1)) && first.is_multiple_of(threads.max(1) as usize);
    (domains.len() == runs.len() && even && fits).then_some(count / sockets.max(1))
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
