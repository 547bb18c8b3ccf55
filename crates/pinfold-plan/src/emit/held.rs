//! What several formats ask of a plan: the PUs of its vCPUs, a name without odd characters.

use pinfold_model::{CpuSet, Plan, PuId, VnodePlan};

/// The PUs that are to be kept for vCPUs: those that the plan reserves, else those of the vCPUs
/// that the host's tasks do not have. Empty if the plan shares all with the host.
pub(super) fn reserved(plan: &Plan) -> CpuSet {
    if !plan.exclusive.is_empty() {
        return plan.exclusive.clone();
    }
    let mut vcpus = CpuSet::new();
    plan.vnodes.iter().flat_map(VnodePlan::vcpus).for_each(|thread| vcpus.add(&thread.pus));
    vcpus.difference(&plan.housekeeping)
}

/// The same without the PU that the kernel boots on, which keeps time for the others.
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
    let pins = if pins.is_empty() { "no vCPU".to_owned() } else { format!("vCPUs {pins}") };
    super::qemu::safe(&format!("Pinfold: {} for {}: {pins}", plan.strategy, names.join(", ")))
}
