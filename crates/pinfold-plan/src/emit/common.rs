//! What several formats ask of a plan: the CPUs of its vCPUs, a name without odd characters.

use pinfold_model::{CpuSet, NodeId, Plan, PuId, Topology, VnodeKind, VnodePlan, fold};

use crate::command;
use crate::plan_builder::NOT_ISOLATED;

/// The CPUs that are to be kept for vCPUs: those that the plan reserves, else those of the vCPUs
/// that the host's tasks do not have. Empty if the plan shares all with the host.
pub(super) fn reserved(plan: &Plan) -> CpuSet {
    if !plan.exclusive.is_empty() {
        return plan.exclusive.clone();
    }
    let mut vcpus = CpuSet::new();
    plan.vnodes.iter().flat_map(VnodePlan::vcpus).for_each(|thread| vcpus.add(&thread.pus));
    vcpus.difference(&plan.housekeeping)
}

/// Why a format for the host has nothing to keep apart, as comments, with the command for a plan
/// that has.
pub(super) fn nothing_kept(plan: &Plan, topology: &Topology, format: &str) -> String {
    let (why, strategy) = if plan.housekeeping_reason == NOT_ISOLATED {
        ("Its isolation scope is none: add `--isolate host` to its command, as in", &*plan.strategy)
    } else {
        ("A strategy that reserves CPUs keeps the host off them, as in", "low-latency")
    };
    let command = super::qemu::safe(&command::isolating(plan, topology, (strategy, format)));
    let text = "This plan shares all its CPUs with the host: nothing is to be kept apart.";
    comment(&format!("# {text} {why} `{command}`"))
}

/// A comment in lines of 80 columns; commands in it can still be copied.
pub(super) fn comment(line: &str) -> String {
    let words = line.trim_start_matches(['#', ' ']);
    let first = line.strip_suffix(words).unwrap_or_default();
    let below = if first.len() > 2 { format!("{first}  ") } else { first.to_owned() };
    let folded = fold::folded((first, &below), words, 80);
    // A command at the end leaves a line with nothing behind the sign.
    let lines = folded.lines().filter(|line| line.trim_end() != "#");
    lines.map(|line| format!("{line}\n")).collect()
}

/// The same without the CPU that the kernel boots on, which keeps time for the others.
pub(super) fn without_boot_pu(pus: &CpuSet) -> CpuSet {
    pus.difference(&CpuSet::single(PuId(0)))
}

/// A name for files, units and profiles: letters, digits and `_`; never empty.
pub(super) fn plain_name(vnode: &VnodePlan) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let name: String = vnode.name.chars().map(plain).take(64).collect();
    if name.is_empty() { "vm".to_owned() } else { name }
}

/// The plan and where its vCPUs are, on one line.
pub(super) fn headline(plan: &Plan) -> String {
    let names: Vec<&str> = plan.vnodes.iter().map(|vnode| vnode.name.as_str()).collect();
    let pins = pinfold_model::pins_of(plan);
    let groups = || plan.vnodes.iter().all(|vnode| vnode.kind == VnodeKind::ProcessGroup);
    let pins = match pins.is_empty() || groups() {
        true => format!("tasks on {}", plan.pus()),
        false => format!("vCPUs {pins}"),
    };
    super::qemu::safe(&format!("Pinfold: {} for {}: {pins}", plan.strategy, names.join(", ")))
}

/// What the vCPUs have of their cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Siblings {
    /// No core has siblings.
    None,
    /// One vCPU on each core, its siblings without one.
    Idle,
    /// vCPUs on all threads of each core.
    Whole,
    /// Some of this, some of that.
    Mixed,
}

/// What the vCPUs have of their cores; for pinned vCPUs.
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

/// A comment on the dies that a guest is shown elsewhere, for a format without a word for them.
pub(super) fn no_dies(vnode: &VnodePlan, topology: &Topology, format: &str) -> String {
    match crate::guest_cache::caches(vnode, topology).dies {
        0 | 1 => String::new(),
        dies => format!(
            "# {format} cannot express the guest's {dies} dies (one for each L3 of its vCPUs): the guest sees one L3.\n"
        ),
    }
}

/// The whole text for a vnode that is no virtual machine, where a format is for those alone.
pub(super) fn not_a_machine(vnode: &VnodePlan, format: &str) -> Option<String> {
    match vnode.kind {
        VnodeKind::VirtualMachine => None,
        VnodeKind::ProcessGroup => Some(
            super::qemu::safe(&format!(
                "# {} is a process group: {format} is for virtual machines only (`--emit systemd` is for both)",
                vnode.name
            )) + "\n",
        ),
    }
}
