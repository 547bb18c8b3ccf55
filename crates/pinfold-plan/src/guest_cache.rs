//! Caches in the guest topology: dies for L3 domains, and whether the host's cache data are valid
//! for the guest.
//!
//! QEMU shows an x86 guest one L3 for each *die* of `-smp` (on the x86 boards since 4.1; libvirt's
//! `dies` since 6.1). So a guest whose vCPUs lie in several L3 domains gets a die for each, and its
//! scheduler keeps tasks inside them. A socket for each would show the same caches, but would also
//! imply separate memory, and some software is licensed by socket.
//!
//! With `host-cache-info=on` (libvirt: `<cache mode='passthrough'/>`) the guest sees the sizes of
//! the host's caches and the number of neighbouring CPUs that share each cache. That is correct
//! only for a guest with as many threads per core as the host, whole L2 domains if cores share
//! them, and whole L3 domains or at most one. Otherwise neighbours in the guest would seem to share
//! caches that they do not share (<https://bugzilla.redhat.com/show_bug.cgi?id=1184125>).

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{L3Id, Pu, PuId, Topology, VnodePlan};

/// Vendor of the host's CPUs, if the topology records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vendor {
    Amd,
    Intel,
    /// Another or unknown vendor: x86-only settings are then mentioned but not applied.
    Unknown,
}

impl Vendor {
    pub fn of(topology: &Topology) -> Self {
        match topology.model.as_deref() {
            Some(model) if model.contains("AMD") => Vendor::Amd,
            Some(model) if model.contains("Intel") => Vendor::Intel,
            Some(_) | None => Vendor::Unknown,
        }
    }
}

/// Cache description for a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caches {
    /// Number of dies per socket: one, or one for each L3 domain.
    pub dies: u32,
    /// True if the host's cache data are valid for the guest.
    pub as_host: bool,
}

/// The caches of a guest, derived from the pins of its vCPUs.
pub(crate) fn caches(vnode: &VnodePlan, topology: &Topology) -> Caches {
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
    // Of a shared L2, the guest must use all CPUs or none.
    let same_l2s = topology.l2_domains.iter().all(|domain| {
        let held = domain.iter().filter(|pu| used.contains(pu)).count();
        held == 0 || held == domain.len() || held == guest.threads as usize && pus.len() == held
    });
    let as_host =
        same_cores && same_l2s && (known.len() == 1 || told_apart && known.iter().all(whole));
    Caches { dies: dies.unwrap_or(1), as_host }
}

/// Number of dies per socket, if all L3 domains have the same number of consecutive vCPUs, and all
/// sockets the same number of domains.
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
