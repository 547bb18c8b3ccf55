//! Properties of pins on a machine, independent of the strategy: crossed domains, shared siblings,
//! CPUs used twice.
//!
//! [`TopologySpan`] counts them for the explanation; [`findings`] reports those that the user
//! should know. Only vCPUs on a single CPU count as pinned; a floating vCPU has no position.

use std::collections::BTreeSet;

use pinfold_model::text::count_noun;
use pinfold_model::text::pus_text;
use pinfold_model::{
    CoreId, CpuSet, Finding, L3Id, NodeId, Plan, Pu, Request, Role, Severity, Speed, ThreadPlan,
    Topology, VnodePlan, Work,
};

use crate::analysis::locality::{
    FAR_MEMORY, HOST_MEMORY, HUGE_PAGES, check_host_memory, far_memory, part_of_a_page,
};
use crate::cores::alternatives::{Pins, PlacementOptions, severity};
use crate::cores::available::{AvailableCpus, Index, distinct};
use crate::cores::capacity::is_empty_node;
use crate::text::{narrow, verb};

/// CPUs, cores and domains of the pinned vCPUs of a vnode, or of the tasks of a process group.
#[derive(Debug, Default)]
pub(crate) struct TopologySpan {
    /// The CPUs with several vCPUs.
    pub crowded: CpuSet,
    /// The CPUs with at least one vCPU.
    pub pus: CpuSet,
    pub cores: BTreeSet<CoreId>,
    pub l3s: BTreeSet<L3Id>,
    pub nodes: BTreeSet<NodeId>,
}

impl TopologySpan {
    /// The span of those vCPUs of `threads` that are pinned to one CPU, and of tasks.
    pub fn new(index: &Index<'_>, threads: &[ThreadPlan]) -> Self {
        let (mut all, mut crowded) = (CpuSet::new(), CpuSet::new());
        for thread in threads.iter().filter(|thread| thread.role == Role::Task || is_pinned(thread))
        {
            if !all.is_disjoint(&thread.pus) {
                crowded.add(&all.intersection(&thread.pus));
            }
            all.add(&thread.pus);
        }
        let pus: Vec<&Pu> = index.pus(&all).collect();
        Self {
            crowded,
            pus: pus.iter().map(|pu| pu.os).collect(),
            cores: pus.iter().map(|pu| pu.core).collect(),
            l3s: pus.iter().filter_map(|pu| pu.l3).collect(),
            nodes: pus.iter().filter_map(|pu| pu.node).collect(),
        }
    }

    /// The siblings of the vCPUs' CPUs that carry no vCPU.
    pub fn idle_siblings(&self, topology: &Topology) -> CpuSet {
        let mut all = CpuSet::new();
        for core in self.cores.iter().filter_map(|core| topology.cores.get(core.index())) {
            all.add(&core.pus);
        }
        all.difference(&self.pus)
    }
}

/// True for a vCPU that is pinned to one CPU.
fn is_pinned(thread: &ThreadPlan) -> bool {
    is_vcpu(thread) && thread.pus.len() == 1
}

/// True if a finding comes from [`findings`].
pub(crate) fn is_of_pins(finding: &Finding) -> bool {
    let subjects = [
        "oversubscription",
        "shared cores",
        "host",
        "NUMA",
        "core kinds",
        "L3",
        HOST_MEMORY,
        HUGE_PAGES,
        FAR_MEMORY,
    ];
    subjects.contains(&finding.subject.as_str())
        || [ON_VCPUS, ON_VCPUS_OF_SEVERAL, ON_OTHERS].iter().any(|what| finding.text.contains(what))
}

/// True for what makes a plan worse: a warning, or one of those costs that are a note where no
/// other placement of the same strategy avoids them. No placement changes how much memory is asked
/// for.
pub(crate) fn is_cost(finding: &Finding) -> bool {
    is_warning(finding) || ["NUMA", "core kinds", CROWDED].contains(&finding.subject.as_str())
}

/// True for a warning of what a placement can avoid.
pub(crate) fn is_warning(finding: &Finding) -> bool {
    finding.severity > Severity::Note
        && ![HOST_MEMORY, HUGE_PAGES].contains(&finding.subject.as_str())
}

/// What the finding of [`helpers_on_vcpus`] says.
const ON_VCPUS: &str = " run on CPUs of its vCPUs";

/// The same for several machines.
const ON_VCPUS_OF_SEVERAL: &str = " run on CPUs of their vCPUs";

/// The same for the vCPUs of other machines.
const ON_OTHERS: &str = " run on CPUs of another machine's vCPUs";

/// True if the emulator, an iothread or a worker of a machine is on vCPUs of another machine.
pub(crate) fn are_helpers_on_others(plan: &Plan) -> bool {
    plan.findings.iter().any(|finding| finding.text.contains(ON_OTHERS))
}

/// Findings that are independent of the strategy.
pub(crate) fn findings(available: &AvailableCpus<'_>, vnodes: &[VnodePlan]) -> Vec<Finding> {
    let spreads: Vec<(&VnodePlan, TopologySpan)> = vnodes
        .iter()
        .map(|vnode| (vnode, TopologySpan::new(available.index(), &vnode.threads)))
        .collect();
    let before = [
        find_oversubscription(available, &spreads),
        shared_cores(available, &spreads),
        foreign_siblings(available, &spreads),
    ];
    let after = [
        far_helpers(available, &spreads),
        no_free_host_cpu_finding(available, &spreads),
        crossed_nodes(available.topology, &spreads),
        floating_nodes(available, vnodes),
        floating_kinds(available, vnodes),
        crossed_l3s(available, &spreads),
        memoryless(available, &spreads),
        find_imbalance(available.topology, vnodes),
        find_nesting(available.topology, &spreads),
        check_host_memory(available.topology, vnodes),
        part_of_a_page(vnodes),
        far_memory(available.topology, vnodes),
    ];
    let helpers = helpers_on_vcpus(available, &spreads);
    before.into_iter().flatten().chain(helpers).chain(after.into_iter().flatten()).collect()
}

/// The subject of [`find_oversubscription`].
const CROWDED: &str = "oversubscription";

/// True if vCPUs of a plan share a CPU.
pub(crate) fn is_oversubscribed(plan: &Plan) -> bool {
    plan.findings.iter().any(|finding| finding.subject == CROWDED)
}

fn find_oversubscription(
    available: &AvailableCpus<'_>,
    spreads: &[(&VnodePlan, TopologySpan)],
) -> Option<Finding> {
    let (mut carried, mut crowded) = (CpuSet::new(), CpuSet::new());
    for (_, spread) in spreads {
        crowded.add(&spread.crowded);
        crowded.add(&carried.intersection(&spread.pus));
        carried.add(&spread.pus);
    }
    let vcpus: usize = spreads
        .iter()
        .map(|(vnode, _)| vnode.threads.iter().filter(|thread| is_vcpu(thread)).count())
        .sum();
    let text = if !crowded.is_empty() {
        format!(
            "{} {} more than one vCPU: a vCPU waits while another has its CPU, and the waiting \
             vCPU may hold a guest spinlock",
            pus_text(&crowded),
            verb(&crowded, "has", "each have")
        )
    } else if vcpus > available.usable.len() {
        format!(
            "{vcpus} vCPUs float on {}: a vCPU waits while others use them, and the waiting vCPU \
             may hold a guest spinlock",
            count_noun(available.usable.len(), "CPU")
        )
    } else {
        return None;
    };
    // Floating vCPUs share CPUs in any case; pinned ones can be placed so that they do not wait for
    // each other.
    let severity = severity(!crowded.is_empty() && choice(available, vcpus).with_another_pu());
    Some(Finding { severity, ..Finding::note(CROWDED, text) })
}

/// The subject of [`find_cpu_shortage`].
const SHORT: &str = "fewer CPUs";

/// The same for cores of which a group at less than full speed gets too few.
const SHORT_OF_CORES: &str = "fewer cores";

/// True if a process group of a plan gets fewer CPUs, or at less than full speed fewer cores, than
/// it asks for.
pub(crate) fn has_too_few_cpus(plan: &Plan) -> bool {
    plan.findings.iter().any(|finding| [SHORT, SHORT_OF_CORES].contains(&finding.subject.as_str()))
}

/// Process groups that get fewer CPUs than they ask for, under strategies that start again at the
/// first CPU when they run out, and slowed ones that get siblings in place of cores.
pub(crate) fn find_cpu_shortage(
    available: &AvailableCpus<'_>,
    request: &Request,
    vnodes: &[VnodePlan],
) -> Vec<Finding> {
    let found = request.vnodes.iter().zip(vnodes).filter_map(|(asked, vnode)| {
        let Work::Processes { cores, speed, .. } = asked.work else { return None };
        let pus = vnode.pus();
        let count = narrow(pus.len());
        if count >= cores && speed != Speed::FULL {
            return short_of_cores(available, request, vnode, cores);
        }
        (count < cores).then(|| {
            let text = format!(
                "{} requests {}, but gets CPU {pus}: its threads share {}",
                vnode.name,
                count_noun(cores, "core"),
                count_noun(count, "CPU")
            );
            Finding::warning(SHORT, text)
                .with_hint(format!("request at most {}", count_noun(count, "core")))
        })
    });
    found.collect()
}

/// A slowed group on fewer cores than it asks for: each task's speed depends on its sibling's load.
fn short_of_cores(
    available: &AvailableCpus<'_>,
    request: &Request,
    vnode: &VnodePlan,
    asked: u32,
) -> Option<Finding> {
    let own: BTreeSet<CoreId> = available.index().pus(&vnode.pus()).map(|pu| pu.core).collect();
    let (count, all) = (narrow(own.len()), narrow(available.cores.len()));
    let only_groups = request.vnodes.iter().all(|of| matches!(of.work, Work::Processes { .. }));
    let hint = if all < asked {
        format!("`-s vnodes` gives at most {}, each exclusive", count_noun(all, "core"))
    } else {
        "vnodes gives each core of a group a core of its own".to_owned()
    };
    (count < asked).then(|| {
        let text = format!(
            "{} requests {} at {} of full speed, but gets the CPUs of {}: siblings of a core slow \
             each other, so the speed of a task depends on the load of its sibling",
            vnode.name,
            count_noun(asked, "core"),
            vnode.speed,
            count_noun(count, "core")
        );
        let finding = Finding::warning(SHORT_OF_CORES, text);
        if only_groups { finding.with_hint(hint) } else { finding }
    })
}

/// Cores that carry vCPUs of more than one vnode.
fn shared_cores(
    available: &AvailableCpus<'_>,
    spreads: &[(&VnodePlan, TopologySpan)],
) -> Option<Finding> {
    let cores = spreads.iter().flat_map(|(_, spread)| &spread.cores);
    let mut cores: Vec<CoreId> = cores.copied().collect();
    cores.sort_unstable();
    let shared = cores.chunk_by(CoreId::eq).filter(|vnodes| vnodes.len() > 1);
    let shared: Vec<CoreId> = shared.filter_map(|vnodes| vnodes.first().copied()).collect();
    // Whole cores for each machine, next to the host's.
    let width = available.index().widest_core.max(1);
    let needed = spreads.iter().map(|(_, spread)| spread.pus.len().div_ceil(width)).sum::<usize>();
    let severity = severity(needed < available.cores.len());
    let text = format!(
        "{} {} vCPUs of several machines: each is slower while the others are busy ({} {})",
        count_noun(shared.len(), "core"),
        if shared.len() == 1 { "has" } else { "have" },
        if shared.len() == 1 { "core" } else { "cores" },
        list_first_few(shared.iter().map(ToString::to_string))
    );
    (!shared.is_empty()).then(|| Finding { severity, ..Finding::note("shared cores", text) })
}

/// The possible placements of `vcpus` vCPUs.
fn choice<'a>(available: &'a AvailableCpus<'_>, vcpus: usize) -> PlacementOptions<'a> {
    PlacementOptions { index: available.index(), usable: &available.usable, vcpus }
}

/// Emulators, iothreads and workers on the CPUs of vCPUs, of their own machine or of others.
fn helpers_on_vcpus(
    available: &AvailableCpus<'_>,
    spreads: &[(&VnodePlan, TopologySpan)],
) -> Vec<Finding> {
    type IsOn<'a> = &'a dyn Fn(&CpuSet, &CpuSet) -> bool;
    let carried = carried_cpus(spreads);
    let avoidable = choice(available, carried.len()).with_free_helpers(&carried);
    let kinds: [(IsOn<'_>, &str); 2] = [
        (&|pus: &CpuSet, own: &CpuSet| !pus.is_disjoint(own), ON_VCPUS),
        (
            &|pus: &CpuSet, own: &CpuSet| {
                !pus.is_disjoint(&carried) && !pus.intersection(&carried).is_subset(own)
            },
            ON_OTHERS,
        ),
    ];
    let texts = kinds.into_iter().filter_map(|(is_on, what)| {
        let mut sharing = Vec::new();
        for (vnode, spread) in spreads {
            let helpers = || {
                vnode
                    .threads
                    .iter()
                    .filter(is_helper)
                    .filter(|thread: &&ThreadPlan| is_on(&thread.pus, &spread.pus))
            };
            let roles = if helpers().any(|thread| thread.role == Role::Emulator) {
                "emulator and iothreads".to_owned()
            } else {
                list_first_few(helpers().map(|thread| thread.role.to_string()))
            };
            if !roles.is_empty() {
                sharing.push((roles, &vnode.name));
            }
        }
        let (roles, _) = sharing.first()?;
        let what = if what == ON_VCPUS && sharing.len() > 1 { ON_VCPUS_OF_SEVERAL } else { what };
        let names = list_first_few(sharing.iter().map(|(_, name)| (*name).clone()));
        Some(format!("{roles} of {names}{what}: a vCPU waits while they work"))
    });
    let severity = severity(avoidable);
    texts.map(|text| Finding { severity, ..Finding::note("emulator", text) }).collect()
}

/// Iothreads and vhost workers on other nodes than all vCPUs of their machine, if one of these
/// nodes has a free CPU.
fn far_helpers(
    available: &AvailableCpus<'_>,
    spreads: &[(&VnodePlan, TopologySpan)],
) -> Option<Finding> {
    let carried = spreads.iter().map(|(_, spread)| &spread.pus).collect::<CpuSet>();
    let spare = available.nodes_of(&available.hostable.difference(&carried));
    spreads.iter().find_map(|(vnode, spread)| {
        let room = spread.nodes.iter().any(|node| spare.contains(node));
        let thread = vnode
            .threads
            .iter()
            .filter(|thread: &&ThreadPlan| thread.role.is_device())
            .find(|thread: &&ThreadPlan| {
                let nodes = available.nodes_of(&thread.pus);
                !nodes.is_empty() && nodes.is_disjoint(&spread.nodes)
            })
            .filter(|_| room)?;
        let text = format!(
            "{} of {} runs on {}, on another NUMA node than its vCPUs: each request crosses the \
             interconnect",
            thread.role,
            vnode.name,
            pus_text(&thread.pus)
        );
        Some(Finding::warning("iothread", text))
    })
}

/// The CPUs that carry a vCPU.
fn carried_cpus(spreads: &[(&VnodePlan, TopologySpan)]) -> CpuSet {
    spreads.iter().map(|(_, spread)| &spread.pus).collect::<CpuSet>()
}

/// Every CPU of the host's tasks carries a vCPU.
fn no_free_host_cpu_finding(
    available: &AvailableCpus<'_>,
    spreads: &[(&VnodePlan, TopologySpan)],
) -> Option<Finding> {
    let carried = carried_cpus(spreads);
    (!carried.is_empty() && available.hostable.is_subset(&carried)).then(|| {
        let text = "every CPU that the host's tasks may use has a vCPU: interrupts and the host's \
                    own tasks take CPU time from a vCPU";
        let avoidable = choice(available, carried.len()).with_a_pu_for_the_host();
        Finding { severity: severity(avoidable), ..Finding::note("host", text) }
    })
}

/// Siblings of vCPUs' CPUs that the plan may not use; any task may run there.
fn foreign_siblings(
    available: &AvailableCpus<'_>,
    spreads: &[(&VnodePlan, TopologySpan)],
) -> Option<Finding> {
    let carried = carried_cpus(spreads);
    let cores = distinct(spreads.iter().flat_map(|(_, spread)| spread.cores.iter().copied()));
    let cores = cores.iter().filter_map(|core| available.topology.cores.get(core.index()));
    let all = cores.map(|core| &core.pus).collect::<CpuSet>();
    let foreign = all.difference(&carried).difference(&available.usable);
    (!foreign.is_empty()).then(|| {
        Finding::warning(
            "smt",
            format!(
                "{} {} with vCPUs but may not be used by this plan: tasks that run there slow \
                 those vCPUs",
                pus_text(&foreign),
                verb(&foreign, "shares a core", "share cores")
            ),
        )
        .with_hint("avoid whole cores instead of single siblings")
    })
}

fn crossed_nodes(topology: &Topology, spreads: &[(&VnodePlan, TopologySpan)]) -> Option<Finding> {
    // Memory that is divided over the vCPUs' nodes follows them.
    let follows = |(vnode, spread): &&(&VnodePlan, TopologySpan)| {
        let filled = spread.nodes.iter().filter(|id| !is_empty_node(topology, **id)).copied();
        vnode.memory.as_ref().is_some_and(|memory| filled.eq(memory.nodes.iter().copied()))
    };
    let crossing: Vec<_> = spreads.iter().filter(|(_, spread)| spread.nodes.len() > 1).collect();
    let text = match (crossing.as_slice(), spreads.len()) {
        ([], _) => return None,
        ([(_, spread)], 1) => format!(
            "the vCPUs span {} NUMA nodes ({}), so part of the guest's memory is remote to each of \
             them",
            spread.nodes.len(),
            names(&spread.nodes)
        ),
        (several, _) => format!(
            "the vCPUs of {} span several NUMA nodes ({}), so part of their memory is remote to \
             each of them",
            count_noun(several.len(), "machine"),
            list_first_few(several.iter().map(|(vnode, _)| vnode.name.clone()))
        ),
    };
    let severity = severity(!crossing.iter().copied().all(|it| follows(&it)));
    Some(Finding { severity, ..Finding::note("NUMA", text) })
}

/// The usable CPUs of floating vCPUs, each set once.
fn floating<'v>(available: &AvailableCpus<'_>, vnodes: &'v [VnodePlan]) -> BTreeSet<&'v CpuSet> {
    let vcpus = vnodes.iter().flat_map(VnodePlan::vcpus);
    let floats = vcpus.filter(|thread| thread.pus.len() > 1);
    let mut sets: BTreeSet<&CpuSet> = floats.map(|thread| &thread.pus).collect();
    sets.retain(|pus| pus.is_subset(&available.usable));
    sets
}

fn floating_nodes(available: &AvailableCpus<'_>, vnodes: &[VnodePlan]) -> Option<Finding> {
    let sets = floating(available, vnodes);
    let nodes = sets.into_iter().find(|pus| is_on_several_nodes(available, pus))?;
    let nodes = available.nodes_of(nodes);
    let text = format!(
        "the vCPUs{} float over {} NUMA nodes ({}), so part of the memory is remote wherever they \
         run",
        of_machines(available, vnodes, is_on_several_nodes),
        nodes.len(),
        names(&nodes)
    );
    Some(Finding::note("NUMA", text))
}

fn floating_kinds(available: &AvailableCpus<'_>, vnodes: &[VnodePlan]) -> Option<Finding> {
    let mut sets = floating(available, vnodes).into_iter();
    sets.find(|pus| is_on_several_kinds(available, pus))?;
    let text = format!(
        "the vCPUs{} float over cores of several kinds: the guest assumes that all its CPUs are \
         equally fast, but the speed of each one varies",
        of_machines(available, vnodes, is_on_several_kinds)
    );
    Some(Finding::note("core kinds", text))
}

fn is_on_several_nodes(available: &AvailableCpus<'_>, pus: &CpuSet) -> bool {
    available.nodes_of(pus).len() > 1
}

fn is_on_several_kinds(available: &AvailableCpus<'_>, pus: &CpuSet) -> bool {
    let mut kinds = pus.iter().filter_map(|pu| available.pu(pu)).map(|pu| pu.kind);
    let first = kinds.next();
    kinds.any(|kind| Some(kind) != first)
}

/// ` of web` for those of several machines whose vCPUs float over such CPUs; nothing if all do.
fn of_machines(
    available: &AvailableCpus<'_>,
    vnodes: &[VnodePlan],
    are_such: fn(&AvailableCpus<'_>, &CpuSet) -> bool,
) -> String {
    let names = vnodes.iter().filter(|vnode| {
        let mut sets = floating(available, std::slice::from_ref(vnode)).into_iter();
        sets.any(|pus| are_such(available, pus))
    });
    let names: Vec<String> = names.map(|vnode| vnode.name.clone()).collect();
    if names.len() == vnodes.len() {
        return String::new();
    }
    format!(" of {}", list_first_few(names.into_iter()))
}

/// A vnode on several L3 domains.
struct MachineOnL3s<'s> {
    vnode: &'s VnodePlan,
    spread: &'s TopologySpan,
    could_lie_in_fewer: bool,
}

impl<'s> MachineOnL3s<'s> {
    fn new(available: &AvailableCpus<'_>, vnode: &'s VnodePlan, spread: &'s TopologySpan) -> Self {
        let shows_threads = vnode.guest.as_ref().is_some_and(|guest| guest.threads > 1);
        let pins = Pins { pus: &spread.pus, shows_threads };
        let domain = choice(available, spread.pus.len()).crossed_l3s(&pins);
        Self { vnode, spread, could_lie_in_fewer: domain.is_some() }
    }
}

fn crossed_l3s(
    available: &AvailableCpus<'_>,
    spreads: &[(&VnodePlan, TopologySpan)],
) -> Option<Finding> {
    let several = spreads.iter().filter(|(_, spread)| spread.l3s.len() > 1);
    let several: Vec<MachineOnL3s<'_>> =
        several.map(|(vnode, spread)| MachineOnL3s::new(available, vnode, spread)).collect();
    let crossing: Vec<_> = several
        .iter()
        .filter(|it| {
            let pus = &it.spread.pus;
            it.could_lie_in_fewer || choice(available, pus.len()).l3s_of_one_node(pus).is_some()
        })
        .collect();
    let text = match (crossing.as_slice(), spreads.len()) {
        ([], _) => return None,
        ([MachineOnL3s { spread, .. }], 1) => format!(
            "the vCPUs span {} L3 domains ({}): data shared between domains goes through memory or \
             the interconnect",
            spread.l3s.len(),
            names(&spread.l3s)
        ),
        _ => format!(
            "the vCPUs of {} span several L3 domains ({}): data shared between domains goes \
             through memory or the interconnect{}",
            count_noun(several.len(), "machine"),
            list_first_few(several.iter().map(|it| it.vnode.name.clone())),
            machines_fitting_fewer_l3s(&several)
        ),
    };
    let avoidable = crossing.iter().any(|it| it.could_lie_in_fewer);
    Some(Finding { severity: severity(avoidable), ..Finding::note("L3", text) })
}

/// Which of the vnodes could have fewer L3 domains, where that is not true of all.
fn machines_fitting_fewer_l3s(several: &[MachineOnL3s<'_>]) -> String {
    let roomy: Vec<_> = several.iter().filter(|it| it.could_lie_in_fewer).collect();
    match roomy.len() {
        0 => String::new(),
        count if count == several.len() => String::new(),
        _ => format!(
            "; {} could be in fewer domains",
            list_first_few(roomy.iter().map(|it| it.vnode.name.clone()))
        ),
    }
}

fn memoryless(
    available: &AvailableCpus<'_>,
    spreads: &[(&VnodePlan, TopologySpan)],
) -> Option<Finding> {
    let topology = available.topology;
    let has_memory = topology.nodes.iter().any(|node| node.memory_bytes > 0);
    let used: BTreeSet<NodeId> =
        spreads.iter().flat_map(|(_, spread)| &spread.nodes).copied().collect();
    let empty: BTreeSet<NodeId> = topology
        .nodes
        .iter()
        .filter(|node| node.memory_bytes == 0 && used.contains(&node.id))
        .map(|node| node.id)
        .collect();
    // If no memory sizes are known, nothing can be concluded about a single node.
    (has_memory && !empty.is_empty()).then(|| {
        let text = format!(
            "vCPUs are on {} without memory: {}; they use the memory of other nodes only",
            if empty.len() == 1 { "a node" } else { "nodes" },
            names(&empty)
        );
        let avoidable = choice(available, carried_cpus(spreads).len()).near_memory();
        Finding { severity: severity(avoidable), ..Finding::note("NUMA", text) }
    })
}

/// Threads on several isolated CPUs: the kernel does not balance them, so each stays where it was
/// started.
fn find_imbalance(topology: &Topology, vnodes: &[VnodePlan]) -> Option<Finding> {
    if topology.isolated.is_empty() {
        return None;
    }
    let mut floating = CpuSet::new();
    let threads = vnodes.iter().flat_map(|vnode| &vnode.threads);
    threads
        .filter(|thread: &&ThreadPlan| {
            thread.pus.len() > 1 && !thread.pus.is_disjoint(&topology.isolated)
        })
        .for_each(|thread| floating.add(&thread.pus));
    let isolated = floating.intersection(&topology.isolated);
    (!isolated.is_empty()).then(|| {
        Finding::warning(
            "isolated CPUs",
            format!(
                "the kernel does not balance load over {}, which {} isolated: threads that may use \
                 several such CPUs stay on the one where they start",
                pus_text(&isolated),
                verb(&isolated, "is", "are")
            ),
        )
    })
}

fn find_nesting(topology: &Topology, spreads: &[(&VnodePlan, TopologySpan)]) -> Option<Finding> {
    let hypervisor = topology.hypervisor.as_ref()?;
    spreads.iter().any(|(_, spread)| !spread.pus.is_empty()).then(|| {
        Finding::note(
            "virtual host",
            format!(
                "this host is itself a virtual machine ({hypervisor}): that hypervisor defines its \
                 cores, siblings and caches, and may move its CPUs"
            ),
        )
        .with_hint("rely on measurements here, not on the topology")
    })
}

fn is_helper(thread: &&ThreadPlan) -> bool {
    !thread.role.runs_work()
}

fn is_vcpu(thread: &ThreadPlan) -> bool {
    thread.role.is_vcpu()
}

fn names<T: ToString>(items: &BTreeSet<T>) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The first few of many, for a message.
fn list_first_few(mut items: impl Iterator<Item = String>) -> String {
    let shown: Vec<String> = items.by_ref().take(5).collect();
    match items.count() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Where the vCPUs and tasks of a plan run.
pub(crate) fn work_of(plan: &Plan) -> CpuSet {
    plan.vnodes.iter().map(runs_on).fold(CpuSet::new(), |all, pus| all.union(&pus))
}

/// Where the vCPUs and tasks of a vnode run.
pub(crate) fn runs_on(vnode: &VnodePlan) -> CpuSet {
    let threads = vnode.threads.iter().filter(|thread| thread.role.runs_work());
    threads.map(|thread| &thread.pus).collect::<CpuSet>()
}
