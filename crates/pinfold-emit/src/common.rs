//! Properties of a plan that several formats need: the CPUs of its vCPUs, a plain name.

use pinfold_model::{CpuSet, MemoryPlan, NodeId, Plan, Topology, VnodeKind, VnodePlan, fold};
use pinfold_plan::guest_cache::caches;
use pinfold_plan::{NOT_ISOLATED, command};

/// The CPUs reserved for vCPUs: the plan's exclusive CPUs, else those of the vCPUs without the
/// host's. Empty if the plan shares all CPUs with the host.
pub(super) fn reserved_cpus(plan: &Plan) -> CpuSet {
    if !plan.exclusive.is_empty() {
        return plan.exclusive.clone();
    }
    let mut vcpus = CpuSet::new();
    plan.vnodes.iter().flat_map(VnodePlan::vcpus).for_each(|thread| vcpus.add(&thread.pus));
    vcpus.difference(&plan.housekeeping)
}

/// Comments why a host format has no CPUs to isolate, with the command for a plan that has.
pub(super) fn nothing_kept(plan: &Plan, topology: &Topology, format: &str) -> String {
    let (why, strategy) = if plan.housekeeping_reason == NOT_ISOLATED {
        ("Its isolation scope is none: add `--isolate host` to its command, as in", &*plan.strategy)
    } else {
        ("A strategy that reserves CPUs excludes the host's tasks from them, as in", "low-latency")
    };
    let command =
        replace_control_chars(&command::isolation_command(plan, topology, strategy, format));
    let text = "This plan shares all its CPUs with the host, so there are none to isolate.";
    comment(&format!("# {text} {why} `{command}`"))
}

/// A comment on the CPUs from which a format does not exclude other tasks, with what it does;
/// empty if there are none.
pub(super) fn not_isolated(plan: &Plan, instead: &str) -> String {
    if plan.exclusive.is_empty() {
        return String::new();
    }
    let text = format!(
        "# The plan excludes other tasks from {}; {instead}. `pinfold apply` on the running machine \
         with the isolation scope {} does, and `--emit systemd` or `--emit tuned` from boot on.",
        plan.exclusive, plan.isolation
    );
    comment(&text)
}

/// A comment in lines of 80 columns; commands in it can still be copied.
pub(super) fn comment(line: &str) -> String {
    let words = line.trim_start_matches(['#', ' ']);
    let first = line.strip_suffix(words).unwrap_or_default();
    let below = if first.len() > 2 { format!("{first}  ") } else { first.to_owned() };
    let folded = fold::fold_words(first, &below, words, 80);
    // A command at the end leaves an empty comment line.
    let lines = folded.lines().filter(|line| line.trim_end() != "#");
    lines.map(|line| format!("{line}\n")).collect()
}

/// The kernel's policy for memory. It prefers at most one node.
pub(super) fn policy(memory: &MemoryPlan) -> &'static str {
    match memory.nodes.len() {
        _ if !memory.is_preferred => "bind",
        0 | 1 => "preferred",
        _ => "interleave",
    }
}

/// A name for files, units and profiles: letters, digits and `_`; never empty.
pub(super) fn plain_name(vnode: &VnodePlan) -> String {
    let name: String = vnode
        .name
        .chars()
        .map(|c: char| if c.is_ascii_alphanumeric() { c } else { '_' })
        .take(64)
        .collect();
    if name.is_empty() { "vm".to_owned() } else { name }
}

/// The plan and the CPUs of its vCPUs, on one line.
pub(super) fn headline(plan: &Plan) -> String {
    let names: Vec<&str> = plan.vnodes.iter().map(|vnode| vnode.name.as_str()).collect();
    let pins = pinfold_model::describe_pins(plan);
    let pins = if pins.is_empty()
        || plan.vnodes.iter().all(|vnode| vnode.kind == VnodeKind::ProcessGroup)
    {
        format!("tasks on {}", plan.pus())
    } else {
        format!("vCPUs {pins}")
    };
    replace_control_chars(&format!("Pinfold: {} for {}: {pins}", plan.strategy, names.join(", ")))
}

/// The siblings of the vCPUs' CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Siblings {
    /// The cores have no siblings.
    None,
    /// One vCPU per core; its siblings carry no vCPU.
    Idle,
    /// vCPUs on all threads of each core.
    Whole,
    /// Different cores differ.
    Mixed,
}

/// Classifies the siblings of pinned vCPUs.
pub(super) fn siblings(vnode: &VnodePlan, topology: &Topology) -> Siblings {
    let used = vnode.vcpus().map(|thread| &thread.pus).collect::<CpuSet>();
    let cores = topology.cores.iter().filter(|core| !core.pus.is_disjoint(&used));
    let shares: Vec<(usize, usize)> =
        cores.map(|core| (core.pus.intersection(&used).len(), core.pus.len())).collect();
    match shares.as_slice() {
        cores if cores.iter().all(|(_, all)| *all == 1) => Siblings::None,
        cores if cores.iter().all(|(own, all)| own == all) => Siblings::Whole,
        cores if cores.iter().all(|(own, _)| *own == 1) => Siblings::Idle,
        _ => Siblings::Mixed,
    }
}

/// The nodes of the vCPUs' CPUs.
pub(super) fn nodes(vnode: &VnodePlan, topology: &Topology) -> Vec<NodeId> {
    let used = vnode.vcpus().map(|thread| &thread.pus).collect::<CpuSet>();
    let here = topology.nodes.iter().filter(|node| !node.pus.is_disjoint(&used));
    here.map(|node| node.id).collect()
}

/// A comment about dies in the guest topology, for a format that cannot express them.
pub(super) fn no_dies(vnode: &VnodePlan, topology: &Topology, format: &str) -> String {
    match caches(vnode, topology).dies {
        0 | 1 => String::new(),
        dies => format!(
            "# {format} cannot express the guest's {dies} dies (one for each L3 of its vCPUs): the guest sees one L3.\n"
        ),
    }
}

/// The complete text for a process group, in a format for virtual machines only.
pub(super) fn process_group_text(vnode: &VnodePlan, format: &str) -> Option<String> {
    match vnode.kind {
        VnodeKind::VirtualMachine => None,
        VnodeKind::ProcessGroup => Some(
            replace_control_chars(&format!(
                "# {} is a process group: {format} is for virtual machines only (`--emit systemd` is for both)",
                vnode.name
            )) + "\n",
        ),
    }
}

/// A text without line breaks, for a comment.
pub(super) fn replace_control_chars(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}
