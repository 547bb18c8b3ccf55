//! Whole domains for vnodes: the common part of `numa-exclusive` and `l3-exclusive`.
//!
//! Each vnode lies inside one domain, exclusively while another domain is free. Within the domain,
//! each vCPU has its own core if one kind has enough cores; else vnodes have whole cores, the
//! preferred ones first. No two vCPUs share a CPU: a vnode that fits in no domain is refused.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use pinfold_model::text::count_noun;
use pinfold_model::text::pus_text;
use pinfold_model::{
    CpuSet, Finding, IsolationScope, NodeId, Plan, PuId, Request, SmtRequest, Topology,
    VnodeRequest, Work,
};

use crate::cores::available_core::AvailableCore;
use crate::cores::capacity::MemoryLeft;
use crate::cores::emulator_cpus::{self, EmulatorCpusRule};
use crate::cores::host_share::HostShare;
use crate::cores::request_check::{nodes_of, noun, pinned_cpus, pinned_of, placed_noun};
use crate::cores::select::{Count, Pool};
use crate::error::PlanError;
use crate::guest::topology::GuestSmt;
use crate::placement::builder::{Limits, PlacedPlan, PlanBuilder};
use crate::placement::exclusive_cores::host_core_on_small_node;
use crate::placement::pins;
use crate::placement::vnode_builder::{Reserve, VnodeBuilder};
use crate::text::verb;

/// A kind of domain.
pub(crate) struct Kind {
    /// Name for messages: `node`, `L3 domain`.
    pub noun: &'static str,
    /// The domain of a core; `None` if it is in none.
    pub of: fn(&AvailableCore) -> Option<u32>,
    /// The domain of the host's core.
    pub of_host: fn(&HostShare) -> Option<u32>,
    /// True if the vnodes' memory is bound to the domain's node even if the request gives no size.
    pub binds_memory: bool,
}

/// Whether a domain has a vnode, its part, its load, whether it has the host's core, its index.
type Rank = (bool, u32, usize, bool, usize);

/// One domain.
#[derive(Clone)]
struct Domain {
    name: String,
    node: Option<NodeId>,
    /// Its cores that may carry vCPUs, in hwloc's order.
    cores: Vec<AvailableCore>,
    /// The CPUs of these cores.
    pus: CpuSet,
    with_host: bool,
    /// Memory of its node in bytes; `None` if memory sizes are unknown.
    memory: Option<u64>,
    /// The vnodes inside, by their index in the request, with their numbers of vCPUs.
    vnodes: Vec<(usize, usize)>,
    /// Total number of vCPUs inside.
    vcpus: usize,
}

impl Domain {
    /// Number of vCPUs with `auto`: one for each CPU of its best part.
    fn auto(&self) -> usize {
        let best = self.part();
        let of_best = || self.cores.iter().filter(|core| core.part == best);
        let widths: BTreeSet<usize> = of_best().map(|core| core.pus.len()).collect();
        match widths.len() {
            0 | 1 => of_best().map(|core| core.pus.len()).sum(),
            // One for each core, because siblings would be unequal.
            _ => of_best().count(),
        }
    }

    /// Its rank for a vnode without pin_requests, lower is better.
    fn rank(&self, index: usize) -> Rank {
        let load = self.vcpus * 4096 / self.pus.len().max(1);
        (!self.vnodes.is_empty(), self.part(), load, self.with_host, index)
    }

    /// Number of further vCPUs that it can carry.
    fn remaining(&self) -> usize {
        self.pus.len().saturating_sub(self.vcpus)
    }

    /// The best part of the machine of which it has cores.
    fn part(&self) -> u32 {
        self.cores.iter().map(|core| core.part).min().unwrap_or(0)
    }

    /// The weakest part of the machine that these CPUs belong to.
    fn weakest_part_of(&self, pins: &[PuId]) -> Option<u32> {
        self.cores
            .iter()
            .filter(|core: &&AvailableCore| core.pus.iter().any(|pu| pins.contains(pu)))
            .map(|core| core.part)
            .max()
    }

    /// The CPUs of the cores that belong to a weaker part than this one.
    fn weaker_than(&self, part: Option<u32>) -> CpuSet {
        self.cores
            .iter()
            .filter(|core| Some(core.part) > part)
            .map(AvailableCore::set)
            .collect::<Vec<_>>()
            .iter()
            .collect()
    }

    /// The CPUs of each vnode inside: a core per vCPU if one part has enough for all and no guest
    /// is to see siblings, else whole cores, else any CPUs.
    fn pins(&self, builder: &PlanBuilder<'_>, host: &HostShare) -> Vec<Vec<PuId>> {
        let pool = |count| Pool::new(&self.cores, count, Some(host));
        let [by_core, by_thread] = [Count::Cores, Count::Threads].map(|count| {
            let pool = pool(count);
            (pool.part_for(self.vcpus), pool.remaining() >= self.vcpus)
        });
        let alone = !self.vnodes.iter().any(
            |of| matches!(&builder.vnode(of.0).work, Work::Vm(vm) if vm.smt == SmtRequest::Shown),
        ) && by_core.1
            && (by_core.0 == by_thread.0 || by_thread.0.is_none());
        let count = if alone { Count::Cores } else { Count::Threads };
        let by_hand = pinned_cpus(builder.request);
        // No vnode takes a core to which another one is pinned, unless there are too few.
        let reserved = (self.vnodes.len() > 1 && !by_hand.is_empty())
            .then(|| self.take_all(pool(count).reserve(&by_hand), builder));
        reserved.flatten().or_else(|| self.take_all(pool(count), builder)).unwrap_or_else(|| {
            let mut pus = self.cores.iter().flat_map(|core| &core.pus).copied();
            self.vnodes.iter().map(|(_, vcpus)| pus.by_ref().take(*vcpus).collect()).collect()
        })
    }

    /// The CPUs of each vnode inside, from a pool; `None` if that has too few.
    fn take_all(&self, mut pool: Pool<'_>, builder: &PlanBuilder<'_>) -> Option<Vec<Vec<PuId>>> {
        let taken = self.vnodes.iter().map(|(place, vcpus)| {
            let pin_requests = pins::pin_requests(builder.vnode(*place), *vcpus);
            let taken = if pin_requests.iter().any(Option::is_some) {
                pool.take_around(&pin_requests, &[])
            } else {
                pool.take(*vcpus, &[])
            };
            Some(taken?.pins)
        });
        taken.collect()
    }
}

/// The domain and CPUs of a vnode.
struct VnodeDomain {
    domain: usize,
    pins: Vec<PuId>,
}

/// Makes a plan in which each vnode is inside one domain.
///
/// # Errors
/// [`PlanError::TooFewPus`] without such domains; [`PlanError::TooManyVcpus`] for a vnode that fits
/// in no domain; otherwise as [`PlanBuilder::counts`].
pub(crate) fn plan_inside(mut builder: PlanBuilder<'_>, kind: &Kind) -> Result<Plan, PlanError> {
    let host = host_core_on_small_node(&builder, builder.available.host(), Count::Threads);
    let mut domains = domains(&builder, kind, &host);
    let largest = domains.iter().map(|domain| domain.pus.len()).max().unwrap_or(0);
    let why = match largest {
        0 if builder.available.cores.iter().all(|core| (kind.of)(core).is_none()) => {
            format!("it has no {}", kind.noun)
        }
        0 => format!("no {} has a core other than the host's {}", kind.noun, host.name()),
        _ => format!(
            "each {} stays inside one {}, and the largest has {} apart from the host's core",
            noun(builder.request).0,
            kind.noun,
            count_noun(largest, "CPU")
        ),
    };
    let counts = counts(&builder, &domains, largest, why)?;
    settle(&builder, kind, &mut domains, &counts)?;
    let mut homes: Vec<Option<VnodeDomain>> = counts.iter().map(|_| None).collect();
    for (index, domain) in domains.iter().enumerate() {
        for ((place, _), pins) in domain.vnodes.iter().zip(domain.pins(&builder, &host)) {
            if let Some(entry) = homes.get_mut(*place) {
                *entry = Some(VnodeDomain { domain: index, pins });
            }
        }
    }
    let homes: Vec<VnodeDomain> = homes.into_iter().flatten().collect();
    let exclusive = write(&mut builder, kind, &domains, &homes, &host)?;
    let reason = builder.available.host_reason(&host, &exclusive);
    let (topology, request, noun) = (builder.available.topology, builder.request, kind.noun);
    builder.defer_finding(move |ended| idle(topology, request, noun, ended));
    builder.finish_isolated(Reserve { exclusive, reason })
}

/// The finding about CPUs that nothing may use: those of an exclusive domain without a thread of
/// the plan, on cores without a vCPU.
fn idle(
    topology: &Topology,
    request: &Request,
    noun: &str,
    ended: &PlacedPlan<'_>,
) -> Option<Finding> {
    if request.isolation == IsolationScope::None {
        return None;
    }
    let carried = ended.working_cpus();
    let cores = topology.cores.iter().filter(|core| !core.pus.is_disjoint(&carried));
    let cores = cores.map(|core| &core.pus).collect::<CpuSet>();
    let idle = ended.exclusive.difference(&ended.pus(|_| true)).difference(&cores);
    (!idle.is_empty()).then(|| {
        let text = format!(
            "{} {} idle: each whole {noun} is reserved for {}, so host tasks cannot use {}",
            pus_text(&idle),
            verb(&idle, "stays", "stay"),
            placed_noun(request),
            verb(&idle, "it", "them")
        );
        Finding::note("idle CPUs", text)
    })
}

/// Assigns a domain to each vnode: in the order in which they choose, or the largest first if the
/// last one otherwise finds no room.
fn settle(
    builder: &PlanBuilder<'_>,
    kind: &Kind,
    domains: &mut Vec<Domain>,
    counts: &[usize],
) -> Result<(), PlanError> {
    let mut order = builder.choosing_order();
    let mut settled = domains.clone();
    let tried = settle_in(&order, builder, kind, &mut settled, counts);
    if tried.is_err() {
        order.sort_by_key(|place| Reverse(counts.get(*place)));
        settled.clone_from(domains);
        settle_in(&order, builder, kind, &mut settled, counts).or(tried)?;
    }
    *domains = settled;
    Ok(())
}

fn settle_in(
    order: &[usize],
    builder: &PlanBuilder<'_>,
    kind: &Kind,
    domains: &mut [Domain],
    counts: &[usize],
) -> Result<(), PlanError> {
    let mut memory = MemoryLeft::from_topology(builder.available.topology);
    // The domains, the best for a vnode without pin_requests first.
    let mut ranked: BTreeSet<Rank> =
        domains.iter().enumerate().map(|(index, domain)| domain.rank(index)).collect();
    for &place in order {
        let vcpus = counts.get(place).copied().unwrap_or(0);
        let asked = builder.vnode(place);
        let wanted = (nodes_of(builder.available.topology, asked), pinned_of(asked));
        let suits = |index: usize| {
            domains.get(index).is_some_and(|domain| {
                domain.remaining() >= vcpus
                    && !is_far(domain, &wanted.0, &wanted.1)
                    && lacks(domain, &memory, asked) == Lack::Nothing
            })
        };
        let best = ranked.iter().map(|(.., index)| *index).find(|index| suits(*index));
        let Some(index) = best.or_else(|| {
            let fits = domains.iter().enumerate().filter(|(_, domain)| domain.remaining() >= vcpus);
            let best = fits.min_by_key(|(index, domain)| {
                (
                    is_far(domain, &wanted.0, &wanted.1),
                    lacks(domain, &memory, asked),
                    domain.rank(*index),
                )
            });
            best.map(|(index, _)| index)
        }) else {
            let left = domains.iter().map(Domain::remaining).max().unwrap_or(0);
            let why = format!("no {} has more CPUs left", kind.noun);
            return Err(builder.no_room(place, vcpus, left, why));
        };
        let Some(domain) = domains.get_mut(index) else { continue };
        ranked.remove(&domain.rank(index));
        domain.vnodes.push((place, vcpus));
        domain.vcpus += vcpus;
        if let Some(node) = domain.node {
            memory.take(node, asked.memory);
        }
        ranked.insert(domain.rank(index));
    }
    Ok(())
}

fn domains(builder: &PlanBuilder<'_>, kind: &Kind, host: &HostShare) -> Vec<Domain> {
    let available = builder.available;
    let memory_is_known = available.topology.nodes.iter().any(|node| node.memory_bytes > 0);
    let mut domains: Vec<Domain> = Vec::new();
    let mut places = std::collections::BTreeMap::new();
    for core in available.without(host) {
        let Some(number) = (kind.of)(&core) else { continue };
        let place = *places.entry(number).or_insert_with(|| {
            let of_node = available.topology.nodes.iter().find(|node| Some(node.id) == core.node);
            domains.push(Domain {
                name: format!("{} {number}", kind.noun),
                node: core.node,
                cores: Vec::new(),
                pus: CpuSet::new(),
                with_host: (kind.of_host)(host) == Some(number),
                memory: of_node.map(|node| node.memory_bytes).filter(|_| memory_is_known),
                vnodes: Vec::new(),
                vcpus: 0,
            });
            domains.len() - 1
        });
        if let Some(domain) = domains.get_mut(place) {
            domain.pus.add(&core.set());
            domain.cores.push(core);
        }
    }
    domains
}

fn counts(
    builder: &PlanBuilder<'_>,
    domains: &[Domain],
    largest: usize,
    why: String,
) -> Result<Vec<usize>, PlanError> {
    let vnodes = builder.request.vnodes.len();
    // An automatic vnode gets a domain, or its part of one.
    let sharers = vnodes.div_ceil(domains.len().max(1));
    let autos = |keep: fn(&Domain) -> bool| {
        domains.iter().filter(move |domain| keep(domain)).map(Domain::auto)
    };
    let part = autos(|domain| domain.memory != Some(0) && !domain.with_host)
        .min()
        .or_else(|| autos(|domain| domain.memory != Some(0)).max())
        .or_else(|| autos(|_| true).max())
        .unwrap_or(0)
        / sharers;
    let mut limits = Limits { auto: part.max(1), unit: 1, most: Some(largest), why };
    if vnodes == 1 {
        return builder.counts(limits);
    }
    // No vnode may be larger than a domain; whether all fit is checked when they are assigned.
    let asked = |vnode: &VnodeRequest| match &vnode.work {
        Work::Vm(vm) => match vm.vcpus {
            pinfold_model::VcpuCount::Auto => Some(part.max(1)),
            pinfold_model::VcpuCount::Exactly(count) => usize::try_from(count).ok(),
        },
        Work::Processes { cores, .. } => usize::try_from(*cores).ok(),
    };
    let counts: Vec<usize> = builder.request.vnodes.iter().filter_map(asked).collect();
    match counts.iter().max() {
        Some(most) if *most > largest => {
            let place = counts.iter().position(|count| count == most).unwrap_or(0);
            let why = std::mem::take(&mut limits.why);
            match largest {
                0 => builder.counts(Limits { why, ..limits }),
                _ => Err(builder.no_room(place, *most, largest, why)),
            }
        }
        Some(_) | None => Ok(counts),
    }
}

/// True if a domain is not on a requested node, or lacks the CPUs pinned to by hand.
fn is_far(domain: &Domain, nodes: &[NodeId], pinned: &CpuSet) -> bool {
    !nodes.is_empty() && !domain.node.is_some_and(|node| nodes.contains(&node))
        || !pinned.is_empty() && domain.pus.is_disjoint(pinned)
}

/// How much of the requested memory a domain lacks, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lack {
    Nothing,
    /// Its node has some memory, but too little.
    Some,
    /// Its node has no memory left.
    All,
}

/// What a domain lacks of the requested memory.
fn lacks(domain: &Domain, memory: &MemoryLeft, asked: &VnodeRequest) -> Lack {
    match domain.node {
        Some(node) if !memory.fits(node, None) => Lack::All,
        Some(node) if !memory.fits(node, asked.memory) => Lack::Some,
        Some(_) | None => Lack::Nothing,
    }
}

/// Writes the vnodes into the plan. Returns the CPUs of their domains.
fn write(
    builder: &mut PlanBuilder<'_>,
    kind: &Kind,
    domains: &[Domain],
    homes: &[VnodeDomain],
    host: &HostShare,
) -> Result<CpuSet, PlanError> {
    let mut exclusive = CpuSet::new();
    for domain in domains.iter().filter(|domain| !domain.vnodes.is_empty()) {
        exclusive.add(&domain.pus);
    }
    let mut carried: Vec<CpuSet> = domains.iter().map(|_| CpuSet::new()).collect();
    for home in homes {
        if let Some(set) = carried.get_mut(home.domain) {
            home.pins.iter().for_each(|pu| set.insert(*pu));
        }
    }
    // Pins by hand may be outside the domains.
    let taken = carried.iter().fold(exclusive.clone(), |all, pus| all.union(pus));
    for (place, home) in homes.iter().enumerate() {
        let (Some(domain), Some(carried)) = (domains.get(home.domain), carried.get(home.domain))
        else {
            continue;
        };
        let mut vnode_builder = builder.open(place);
        vnode_builder.node = domain.node.filter(|_| kind.binds_memory);
        for &pin in &home.pins {
            let why = match (domain.vnodes.len(), homes.len() <= domains.len()) {
                (0 | 1, _) => {
                    let noun = match vnode_builder.asked.work {
                        Work::Vm(_) => "virtual machine",
                        Work::Processes { .. } => "process group",
                    };
                    format!("{} is used by this {noun} only", domain.name)
                }
                (_, false) => {
                    format!(
                        "{} is shared, because there are more {} than {}s",
                        domain.name,
                        noun(builder.request).1,
                        kind.noun
                    )
                }
                (_, true) => format!(
                    "{} is shared, because no other is large enough, has the memory and matches \
                     the request",
                    domain.name
                ),
            };
            let place = builder.available.place(pin);
            vnode_builder.vcpu(CpuSet::single(pin), format!("CPU {pin} ({place}): {why}"));
        }
        let outside = builder.available.choose_emulator_cpus(host, &home.pins, &taken);
        let used = domain.weakest_part_of(&home.pins);
        let weak = domain.weaker_than(used).difference(carried);
        let has_weaker = outside.kind == EmulatorCpusRule::Weak && used < builder.available.weakest;
        if weak.is_empty() && has_weaker {
            vnode_builder.emulator(&outside.pus, || {
                format!("the emulator runs on {} {}", pus_text(&outside.pus), outside.what)
            });
        } else {
            emulator(&mut vnode_builder, domain, carried, weak, &outside);
        }
        builder.finish_vnode(vnode_builder, GuestSmt::Mirror)?;
    }
    Ok(exclusive)
}

/// The emulator stays in its machine's domain, on the weakest cores without a vCPU (`weak`), else
/// on the siblings of vCPUs. It is outside, with the host's tasks, if every CPU of the domain
/// carries a vCPU.
fn emulator(
    vnode_builder: &mut VnodeBuilder<'_>,
    domain: &Domain,
    carried: &CpuSet,
    weak: CpuSet,
    outside: &emulator_cpus::EmulatorCpus,
) {
    let rest = domain.pus.difference(carried);
    let cores = domain.cores.iter().map(AvailableCore::set);
    let busy = cores.filter(|core| !core.is_disjoint(carried)).collect::<Vec<_>>();
    let idle = rest.difference(&busy.iter().collect::<CpuSet>());
    let (pus, how) = match (weak.is_empty(), idle.is_empty(), rest.is_empty()) {
        (false, _, _) => (weak, "which have no vCPU and are less preferred"),
        (true, false, _) => (idle, "whose cores have no vCPU"),
        (true, true, false) => (rest, "which have no vCPU"),
        (true, true, true) => {
            vnode_builder.emulator(&outside.pus, || {
                format!(
                    "the emulator runs on {} {}: every CPU of {} that is not reserved for the host \
                     has a vCPU",
                    pus_text(&outside.pus),
                    outside.what,
                    domain.name
                )
            });
            return;
        }
    };
    vnode_builder.emulator(&pus, || {
        format!("the emulator stays in {}, on {}, {how}", domain.name, pus_text(&pus))
    });
}
