//! KubeVirt: the `domain` part of a `VirtualMachine`, and what only the node can say.
//!
//! A pod asks for dedicated CPUs and the kubelet's CPU manager chooses which: a plan's PUs have no
//! place in the manifest (<https://kubevirt.io/user-guide/compute/dedicated_cpu_resources/>,
//! <https://kubevirt.io/user-guide/compute/numa/>). What can be asked for is written, the rest said.

use pinfold_model::{CpuSet, Plan, Role, VnodePlan};

use super::held::headline;
use crate::cells::node_list;

/// YAML for `spec.template.spec.domain`, with comments on what has no word there.
#[must_use]
pub fn kubevirt((plan, vnode): (&Plan, &VnodePlan)) -> String {
    let vcpus = vnode.vcpus().count();
    let pinned = vcpus > 0 && vnode.vcpus().all(|thread| thread.pus.len() == 1);
    let held = vnode.vcpus().fold(CpuSet::new(), |set, thread| set.union(&thread.pus));
    let apart = vnode.thread(&Role::Emulator).is_some_and(|thread| thread.pus.is_disjoint(&held));
    let (sockets, cores, threads) = match &vnode.guest {
        Some(guest) => (guest.sockets, guest.cores, guest.threads),
        None => (1, u32::try_from(vcpus).unwrap_or(u32::MAX), 1),
    };
    let mut text = format!(
        "# {}\n# Under spec.template of a VirtualMachine.\nspec:\n  domain:\n    cpu:\n      model: host-passthrough\n      \
         sockets: {sockets}\n      cores: {cores}\n      threads: {threads}\n",
        headline(plan)
    );
    if pinned {
        text.push_str("      dedicatedCpuPlacement: true\n");
    }
    if pinned && apart {
        text.push_str("      isolateEmulatorThread: true\n");
    }
    memory(&mut text, vnode, pinned);
    text.push_str(&format!(
        "# Cannot be said here: which PUs. The kubelet's CPU manager chooses them: run it with\n\
         # --cpu-manager-policy=static --reserved-cpus={}",
        reserved(plan)
    ));
    text.push_str(match threads > 1 {
        true => " --cpu-manager-policy-options=full-pcpus-only=true\n# (whole cores, so that guest siblings are host siblings)",
        false => "",
    });
    text.push_str(" and --topology-manager-policy=single-numa-node.\n");
    if !pinned {
        text.push_str(
            "# The plan leaves its vCPUs floating, so no dedicated CPUs are asked for.\n",
        );
    }
    if pinned && apart {
        text.push_str(
            "# isolateEmulatorThread takes one more CPU of the node; with threads: 2 that makes an odd number,\n\
             # which full-pcpus-only refuses unless the annotation alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity is set.\n",
        );
    }
    if vnode.threads.iter().any(|thread| matches!(thread.role, Role::Iothread(_))) {
        text.push_str("# Iothreads: ioThreadsPolicy: auto | shared; their PUs cannot be named.\n");
    }
    text
}

/// What the kubelet keeps for the host: the housekeeping without the vCPUs' PUs, which it
/// would not hand out otherwise; all of it if nothing else is left.
fn reserved(plan: &Plan) -> CpuSet {
    let vcpus = plan.vnodes.iter().flat_map(VnodePlan::vcpus);
    let used = vcpus.fold(CpuSet::new(), |set, vcpu| set.union(&vcpu.pus));
    let left = plan.housekeeping.difference(&used);
    if left.is_empty() { plan.housekeeping.clone() } else { left }
}

/// Huge pages and the guest's NUMA cells, which KubeVirt gives only together.
fn memory(text: &mut String, vnode: &VnodePlan, pinned: bool) {
    let Some(memory) = &vnode.memory else {
        return;
    };
    let Some(page) = memory.page_bytes else {
        text.push_str(&format!(
            "# The plan wants the memory on node {}. numa: guestMappingPassthrough needs huge pages: plan with them.\n",
            node_list(&memory.nodes)
        ));
        return;
    };
    if pinned {
        text.push_str("      numa:\n        guestMappingPassthrough: {}\n");
    }
    let size = match page.is_multiple_of(1 << 30) {
        true => format!("{}Gi", page >> 30),
        false => format!("{}Mi", page >> 20),
    };
    text.push_str(&format!("    memory:\n      hugepages:\n        pageSize: {size}\n"));
}
