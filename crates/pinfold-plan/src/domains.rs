//! Whole domains for vnodes: what `numa-exclusive` and `l3-exclusive` share.
//!
//! Each vnode lies inside one domain. As long as there are as many domains as vnodes, each
//! has one of its own and a core per vCPU where there are enough; else vnodes share domains,
//! side by side, and when a domain's PUs run out its vCPUs take turns, as evenly as can be.

use pinfold_model::{CpuSet, MemoryRequest, NodeId, Plan, PuId, VnodeRequest, Work};

use crate::PlanError;
use crate::demand::nodes_of;
use crate::draft::{Draft, Limits, Reserve, counted, pus_text};
use crate::ground::{HostShare, Spot};
use crate::guest::GuestSmt;

/// A kind of domain.
pub(crate) struct Kind {
    /// In texts: `node`, `L3 domain`.
    pub noun: &'static str,
    /// The domain of a core, if it is in one.
    pub of: fn(&Spot) -> Option<u32>,
    /// True if the vnodes' memory is bound to the domain's node even if the request names none.
    pub binds_memory: bool,
}

/// One domain.
struct Domain {
    name: String,
    node: Option<NodeId>,
    /// Its PUs that may carry vCPUs, in hwloc's order, and where each core starts among them.
    pus: Vec<PuId>,
    starts: Vec<usize>,
    with_host: bool,
    /// Memory of its node that no vnode has yet, in bytes; `None` if nothing is known of memory.
    memory: Option<u64>,
    /// Number of vnodes inside.
    vnodes: usize,
    /// The next vCPU is on the PU of this number, modulo its PUs.
    cursor: usize,
    /// PUs before that which carry no vCPU yet.
    holes: Vec<PuId>,
}

impl Domain {
    fn has_room_for(&self, vcpus: usize) -> bool {
        self.cursor + vcpus <= self.pus.len()
    }

    /// The next PU: a fresh one, one that was left out, else the first again.
    fn next(&mut self) -> Option<PuId> {
        if self.cursor >= self.pus.len()
            && let Some(hole) = self.holes.pop()
        {
            return Some(hole);
        }
        let pu = self.pus.get(self.cursor % self.pus.len().max(1)).copied();
        self.cursor += 1;
        pu
    }
}

/// Where a vnode went.
struct Home {
    domain: usize,
    pins: Vec<PuId>,
    alone: bool,
}

/// A plan with each vnode inside one domain of a kind.
///
/// # Errors
/// [`PlanError::TooFewPus`] without such domains; [`PlanError::TooManyVcpus`] for a vnode that
/// no domain can hold; otherwise as [`Draft::counts`].
pub(crate) fn inside(mut draft: Draft<'_>, kind: &Kind) -> Result<Plan, PlanError> {
    let host = draft.ground.host();
    let mut domains = domains(&draft, kind, &host);
    let largest = domains.iter().map(|domain| domain.pus.len()).max().unwrap_or(0);
    let vnodes = draft.request.vnodes.len();
    let why = match largest {
        0 => format!("no {} has a core besides the host's core {}", kind.noun, host.name()),
        _ => format!(
            "each vnode stays inside one {}, and the largest has {} besides the host's core",
            kind.noun,
            counted(largest, "PU")
        ),
    };
    let counts = counts(&draft, (&domains, largest), why)?;
    let mut homes: Vec<Option<Home>> = counts.iter().map(|_| None).collect();
    let roomy = vnodes <= domains.len();
    for place in draft.choosing_order() {
        let vcpus = counts.get(place).copied().unwrap_or(0);
        let asked = draft.vnode(place);
        let nodes = nodes_of(draft.ground.topology, asked);
        let fits = domains.iter().enumerate().filter(|(_, domain)| domain.pus.len() >= vcpus);
        let best = fits.min_by_key(|(index, domain)| rank(domain, (asked, vcpus), &nodes, *index));
        let Some(index) = best.map(|(index, _)| index) else {
            return Err(draft.no_room(
                place,
                vcpus,
                (largest, format!("no {} is larger", kind.noun)),
            ));
        };
        let Some(domain) = domains.get_mut(index) else { continue };
        let alone = roomy && domain.vnodes == 0;
        let pins = settle(domain, (asked, vcpus), alone);
        if let Some(entry) = homes.get_mut(place) {
            *entry = Some(Home { domain: index, pins, alone });
        }
    }
    let homes: Vec<Home> = homes.into_iter().flatten().collect();
    write(&mut draft, kind, (&domains, &homes))?;
    let mut exclusive = CpuSet::new();
    for domain in domains.iter().filter(|domain| domain.vnodes > 0) {
        domain.pus.iter().for_each(|pu| exclusive.insert(*pu));
    }
    let reason = draft.ground.host_reason(&host, &exclusive);
    draft.isolating(Reserve { exclusive, reason })
}

fn domains(draft: &Draft<'_>, kind: &Kind, host: &HostShare) -> Vec<Domain> {
    let ground = draft.ground;
    let memory_is_known = ground.topology.nodes.iter().any(|node| node.memory_bytes > 0);
    let with_host = ground
        .topology
        .cores
        .iter()
        .find(|core| Some(core.id) == host.core)
        .and_then(|core| core.pus.first())
        .and_then(|pu| ground.pu(pu))
        .map(|pu| (pu.l3.map(|l3| l3.0), pu.node.map(|node| node.0)));
    let mut domains: Vec<Domain> = Vec::new();
    let mut places = std::collections::BTreeMap::new();
    for spot in ground.without(host) {
        let Some(number) = (kind.of)(&spot) else { continue };
        let place = *places.entry(number).or_insert_with(|| {
            let of_node = ground.topology.nodes.iter().find(|node| Some(node.id) == spot.node);
            domains.push(Domain {
                name: format!("{} {number}", kind.noun),
                node: spot.node,
                pus: Vec::new(),
                starts: Vec::new(),
                with_host: with_host == Some((spot.l3.map(|l3| l3.0), spot.node.map(|n| n.0)))
                    || (host.node == spot.node && kind.binds_memory),
                memory: of_node.map(|node| node.memory_bytes).filter(|_| memory_is_known),
                vnodes: 0,
                cursor: 0,
                holes: Vec::new(),
            });
            domains.len() - 1
        });
        if let Some(domain) = domains.get_mut(place) {
            domain.starts.push(domain.pus.len());
            domain.pus.extend(&spot.pus);
        }
    }
    domains
}

fn counts(
    draft: &Draft<'_>,
    (domains, largest): (&[Domain], usize),
    why: String,
) -> Result<Vec<usize>, PlanError> {
    let vnodes = draft.request.vnodes.len();
    // Each automatic vnode: a domain, or its part of one.
    let sharers = vnodes.div_ceil(domains.len().max(1));
    let typical = domains.iter().filter(|domain| !domain.with_host).map(|domain| domain.pus.len());
    let part = typical.min().unwrap_or(largest) / sharers;
    let mut limits = Limits { auto: part.max(1), unit: 1, most: Some(largest), why };
    if vnodes == 1 {
        return draft.counts(limits);
    }
    // Several may oversubscribe a domain, but none may be larger than it is.
    let asked = |vnode: &VnodeRequest| match &vnode.work {
        Work::Vm(vm) => match vm.vcpus {
            pinfold_model::VcpuCount::Auto => Some(part.max(1)),
            pinfold_model::VcpuCount::Exactly(count) => usize::try_from(count).ok(),
        },
        Work::Processes { cores, .. } => usize::try_from(*cores).ok(),
    };
    let counts: Vec<usize> = draft.request.vnodes.iter().filter_map(asked).collect();
    match counts.iter().max() {
        Some(most) if *most > largest => {
            let place = counts.iter().position(|count| count == most).unwrap_or(0);
            let why = std::mem::take(&mut limits.why);
            match largest {
                0 => draft.counts(Limits { why, ..limits }),
                _ => Err(draft.no_room(place, *most, (largest, why))),
            }
        }
        Some(_) | None => Ok(counts),
    }
}

/// What makes one domain better than another for a vnode: false and small first.
fn rank(
    domain: &Domain,
    (asked, vcpus): (&VnodeRequest, usize),
    nodes: &[NodeId],
    index: usize,
) -> impl Ord + use<> {
    let far = !nodes.is_empty() && !domain.node.is_some_and(|node| nodes.contains(&node));
    let needed = asked.memory.map_or(1, |memory| memory.bytes);
    let lacks = domain.memory.is_some_and(|memory| memory < needed);
    let load = domain.cursor * 4096 / domain.pus.len().max(1);
    let shared = domain.vnodes > 0;
    (far, lacks, shared, !domain.has_room_for(vcpus), load, domain.with_host, index)
}

/// Gives a vnode its PUs in a domain.
fn settle(domain: &mut Domain, (asked, vcpus): (&VnodeRequest, usize), alone: bool) -> Vec<PuId> {
    domain.vnodes += 1;
    if let (Some(left), Some(MemoryRequest { bytes, .. })) = (&mut domain.memory, asked.memory) {
        *left = left.saturating_sub(bytes);
    }
    let shown = matches!(&asked.work, Work::Vm(vm) if vm.smt == pinfold_model::SmtWish::Shown);
    if alone && !shown && vcpus <= domain.starts.len() {
        domain.cursor = domain.pus.len();
        let first = domain.starts.iter().filter_map(|start| domain.pus.get(*start));
        let pins: Vec<PuId> = first.take(vcpus).copied().collect();
        let carried: CpuSet = pins.iter().copied().collect();
        domain.holes = domain.pus.iter().copied().filter(|pu| !carried.contains(*pu)).collect();
        domain.holes.reverse();
        return pins;
    }
    // At the start of a core, unless that leaves too few.
    let slot = domain.cursor % domain.pus.len().max(1);
    let next = domain.starts.iter().copied().find(|start| *start >= slot);
    let skipped = next.unwrap_or(domain.pus.len()) - slot;
    if domain.has_room_for(skipped + vcpus) {
        let left = domain.pus.get(slot..slot + skipped).unwrap_or_default();
        domain.holes.splice(0..0, left.iter().rev().copied());
        domain.cursor += skipped;
    }
    (0..vcpus).filter_map(|_| domain.next()).collect()
}

fn write(
    draft: &mut Draft<'_>,
    kind: &Kind,
    (domains, homes): (&[Domain], &[Home]),
) -> Result<(), PlanError> {
    let mut carried: Vec<CpuSet> = domains.iter().map(|_| CpuSet::new()).collect();
    for home in homes {
        if let Some(set) = carried.get_mut(home.domain) {
            home.pins.iter().for_each(|pu| set.insert(*pu));
        }
    }
    for (place, home) in homes.iter().enumerate() {
        let (Some(domain), Some(carried)) = (domains.get(home.domain), carried.get(home.domain))
        else {
            continue;
        };
        let mut enclave = draft.open(place);
        enclave.node = domain.node.filter(|_| kind.binds_memory);
        for &pin in &home.pins {
            let why = match home.alone {
                true => format!("{} is this vnode's alone", domain.name),
                false => format!(
                    "{} is shared, because there are more vnodes than that are free",
                    domain.name
                ),
            };
            let place = draft.ground.place(pin);
            enclave.vcpu(CpuSet::single(pin), format!("PU {pin} ({place}): {why}"));
        }
        let all: CpuSet = domain.pus.iter().copied().collect();
        let rest = all.difference(carried);
        let (pus, how) = match rest.is_empty() {
            false => (rest, "which carry no vCPU"),
            true => (all, "with the vCPUs, because none is left without one"),
        };
        enclave.emulator(&pus, || {
            format!("the emulator stays in {} too, on {}, {how}", domain.name, pus_text(&pus))
        });
        draft.close(enclave, GuestSmt::Mirror)?;
    }
    Ok(())
}
