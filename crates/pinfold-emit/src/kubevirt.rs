//! KubeVirt: the `template` part of a `VirtualMachine`, with comments on settings of the node.
//!
//! A pod requests dedicated CPUs and the kubelet's CPU manager selects them, so a manifest cannot
//! contain a plan's CPUs (<https://kubevirt.io/user-guide/compute/dedicated_cpu_resources/>,
//! <https://kubevirt.io/user-guide/compute/numa/>). The text contains what can be requested, and
//! comments on the rest. KubeVirt accepts `numa` only with huge pages, and `realtime` only with
//! `numa`.

use pinfold_model::tunables::{FormatAnswer, Scope};
use pinfold_model::{CpuSet, NotSingleVnode, Plan, Policy, PuId, Role, Topology, VnodePlan};

use super::common::{self, Siblings, headline};
use super::format::{Format, Syntax};
use pinfold_plan::guest_numa::node_list;

/// The format.
pub(super) const FORMAT: Format = Format {
    name: "kubevirt",
    summary: "The domain part of a KubeVirt VirtualMachine",
    is_of_host: false,
    can_merge: false,
    syntax: Syntax::Yaml,
    write: |plan, topology, _| kubevirt(plan, topology),
    together: None,
    tunable: |_, _| FormatAnswer::host(),
};

/// YAML for `spec.template` of a `VirtualMachine`, with comments on what it cannot express.
///
/// # Errors
/// [`NotSingleVnode`] if the plan does not place exactly one vnode.
pub fn kubevirt(plan: &Plan, topology: &Topology) -> Result<String, NotSingleVnode> {
    let vnode = plan.single_vnode()?;
    if let Some(text) = common::process_group_text(vnode, "KubeVirt") {
        return Ok(text);
    }
    let guest = Guest::from_vnode(vnode);
    let tunables = FORMAT.answers(Scope::of_vnode(plan, vnode));
    let mut text = format!("# {}\n# Under spec.template of a VirtualMachine.\n", headline(plan));
    let annotations = tunables.text(ANNOTATIONS);
    if !annotations.is_empty() {
        text.push_str(
            "# The annotations are CRI-O's: they need its runtime class for high performance.\n",
        );
        text.push_str(&format!("metadata:\n  annotations:\n{}", indent(&annotations, 4)));
    }
    text.push_str("spec:\n  domain:\n    cpu:\n");
    text.push_str(&indent(&cpu(vnode, &guest), 6));
    text.push_str(&memory(vnode));
    let resources = tunables.text(RESOURCES);
    if !resources.is_empty() {
        text.push_str(&format!("    resources:\n{}", indent(&resources, 6)));
    }
    text.push_str(&iothreads(vnode, &guest));
    text.push_str(&common::no_dies(vnode, topology, "KubeVirt"));
    text.push_str(&tunables.missing_text("A KubeVirt manifest"));
    text.push_str(&common::not_isolated(plan, "the kubelet excludes other pods only"));
    remarks(&mut text, plan, vnode, &guest, topology);
    Ok(text)
}

const ANNOTATIONS: &str = "annotations";
const RESOURCES: &str = "resources";

/// Properties of a machine that determine the possible requests.
struct Guest {
    vcpus: usize,
    /// True if each vCPU has one CPU.
    pinned: bool,
    /// True if the emulator has none of the vCPUs' CPUs.
    apart: bool,
    /// Threads per core.
    threads: u32,
    /// vCPUs with a real-time policy.
    real_time: CpuSet,
}

impl Guest {
    fn from_vnode(vnode: &VnodePlan) -> Self {
        let vcpus = vnode.vcpus().count();
        let used = vnode.vcpus().map(|thread| &thread.pus).collect::<CpuSet>();
        let emulator = vnode.thread(&Role::Emulator);
        let fifo = vnode.vcpus().filter(|vcpu| vcpu.policy.is_some_and(Policy::is_real_time));
        Self {
            vcpus,
            pinned: vnode.is_pinned(),
            apart: emulator.is_some_and(|thread| thread.pus.is_disjoint(&used)),
            threads: vnode.guest.as_ref().map_or(1, |guest| guest.threads),
            real_time: fifo.filter_map(|thread| thread.role.vcpu().map(PuId)).collect(),
        }
    }
}

/// The children of `cpu`.
fn cpu(vnode: &VnodePlan, guest: &Guest) -> String {
    let vcpus = u32::try_from(guest.vcpus).unwrap_or(u32::MAX);
    let (sockets, cores) =
        vnode.guest.as_ref().map_or((1, vcpus), |guest| (guest.sockets, guest.cores));
    let threads = guest.threads;
    let mut text = format!(
        "model: host-passthrough\nsockets: {sockets}\ncores: {cores}\nthreads: {threads}\n"
    );
    if guest.pinned {
        text.push_str("dedicatedCpuPlacement: true\n");
    }
    if guest.pinned && guest.apart {
        text.push_str("isolateEmulatorThread: true\n");
    }
    let pages = vnode.memory.as_ref().and_then(|memory| memory.page_bytes);
    if guest.pinned && pages.is_some() {
        text.push_str("numa:\n  guestMappingPassthrough: {}\n");
        if guest.real_time.len() == guest.vcpus {
            text.push_str("realtime: {}\n");
        } else if !guest.real_time.is_empty() {
            text.push_str(&format!("realtime:\n  mask: \"{}\"\n", guest.real_time));
        }
    }
    text
}

/// The guest's memory and its huge pages.
fn memory(vnode: &VnodePlan) -> String {
    let mut lines = String::new();
    if let Some(bytes) = vnode.memory.as_ref().and_then(|memory| memory.bytes) {
        lines.push_str(&format!("      guest: {}\n", quantity(bytes)));
    }
    if let Some(page) = vnode.memory.as_ref().and_then(|memory| memory.page_bytes) {
        lines.push_str(&format!("      hugepages:\n        pageSize: {}\n", quantity(page)));
    }
    if lines.is_empty() { lines } else { format!("    memory:\n{lines}") }
}

/// A size in the largest Kubernetes unit that divides it.
fn quantity(bytes: u64) -> String {
    let units = [(30, "Gi"), (20, "Mi"), (10, "Ki")];
    let unit = units.iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    unit.map_or_else(|| bytes.to_string(), |(shift, name)| format!("{}{name}", bytes >> shift))
}

fn indent(text: &str, by: usize) -> String {
    text.lines().map(|line| format!("{}{line}\n", " ".repeat(by))).collect()
}

/// A pool of iothreads, with its own CPUs if the vCPUs have dedicated ones.
fn iothreads(vnode: &VnodePlan, guest: &Guest) -> String {
    match vnode.threads.iter().filter(|thread| thread.role.iothread().is_some()).count() {
        0 => String::new(),
        count if guest.pinned => format!(
            "    # In newer releases; older ones have ioThreadsPolicy: auto or shared. Their CPUs cannot be named.\n    \
             ioThreadsPolicy: supplementalPool\n    ioThreads:\n      supplementalPoolThreadCount: {count}\n"
        ),
        _ => "    # Their CPUs cannot be named.\n    ioThreadsPolicy: auto\n".to_owned(),
    }
}

/// Comments on settings of the node, and on parts of the plan that a manifest cannot express.
fn remarks(text: &mut String, plan: &Plan, vnode: &VnodePlan, guest: &Guest, topology: &Topology) {
    let nodes = common::nodes(vnode, topology);
    text.push_str(&format!(
        "# Not expressible here: which CPUs. The kubelet's CPU manager chooses them: run it \
         with\n# --cpu-manager-policy=static --reserved-cpus={}",
        reserved_cpus(plan, vnode, guest, topology)
    ));
    if guest.threads > 1 {
        text.push_str(" --cpu-manager-policy-options=full-pcpus-only=true\n# (whole cores, so that guest siblings are host siblings)");
    }
    text.push_str(match nodes.len() {
        0 | 1 => " and --topology-manager-policy=single-numa-node.\n",
        _ => " and --topology-manager-policy=restricted\n# (single-numa-node would reject a machine of several nodes).\n",
    });
    if !guest.pinned {
        text.push_str("# The plan leaves its vCPUs floating, so it requests no dedicated CPUs.\n");
    }
    if guest.pinned && common::siblings(vnode, topology) == Siblings::Idle {
        text.push_str(
            "# The plan gives each vCPU a core of its own. Kubernetes hands out siblings as CPUs: that is only\n\
             # so on a node with SMT off (nosmt).\n",
        );
    }
    if guest.pinned && guest.apart {
        text.push_str("# isolateEmulatorThread takes one more CPU of the node");
        text.push_str(if guest.threads > 1 {
            "; with threads: 2 that makes an odd number,\n\
             # which full-pcpus-only refuses (SMTAlignmentError): give the KubeVirt resource the feature gate AlignCPUs\n\
             # and the annotation alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity.\n"
        } else {
            ".\n"
        });
    }
    if let Some(memory) = vnode.memory.as_ref().filter(|memory| memory.page_bytes.is_none()) {
        text.push_str(&format!(
            "# The plan wants the memory on node {}. numa: guestMappingPassthrough needs huge pages: plan with them,\n\
             # or run the kubelet with --memory-manager-policy=Static.\n",
            node_list(&memory.nodes)
        ));
    }
}

/// The CPUs that the kubelet reserves for the host: the housekeeping CPUs without those of the
/// vCPUs, which it would otherwise not assign, and without those that it assigns to an isolated
/// emulator; all housekeeping CPUs if none remain.
fn reserved_cpus(plan: &Plan, vnode: &VnodePlan, guest: &Guest, topology: &Topology) -> CpuSet {
    let vcpus = plan.vnodes.iter().flat_map(VnodePlan::vcpus);
    let used = vcpus.map(|vcpu| &vcpu.pus).collect::<CpuSet>();
    let left = plan.housekeeping.difference(&used);
    if left.is_empty() {
        return plan.housekeeping.clone();
    }
    if guest.pinned && guest.apart { without_emulator(left, vnode, guest, topology) } else { left }
}

/// These CPUs without cores of the machine's nodes, until the kubelet has a CPU there for each vCPU
/// and for the emulator, which takes a whole core where the guest has threads; one core stays.
fn without_emulator(
    mut left: CpuSet,
    vnode: &VnodePlan,
    guest: &Guest,
    topology: &Topology,
) -> CpuSet {
    let needed = guest.vcpus + guest.threads as usize;
    let nodes = common::nodes(vnode, topology);
    let nodes = topology.nodes.iter().filter(|node| nodes.contains(&node.id));
    let near: CpuSet = nodes.map(|node| &node.pus).collect();
    let near = if near.is_empty() { topology.online() } else { near };
    for core in topology.cores.iter().rev().filter(|core| core.pus.is_subset(&near)) {
        let rest = left.difference(&core.pus);
        if near.difference(&left).len() >= needed || rest.is_empty() {
            break;
        }
        left = rest;
    }
    left
}
