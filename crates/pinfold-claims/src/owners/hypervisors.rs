//! Pinned vCPU threads of running hypervisors that no other row has found: QEMU, Cloud Hypervisor,
//! crosvm, Firecracker.
//!
//! A vCPU whose mask is a part of the host's CPUs is pinned. The hypervisors name
//! these threads: `CPU 0/KVM`, `vcpu0`, `crosvm_vcpu0`, `fc_vcpu 0`. QEMU sets them with
//! `-name …,debug-threads=on` only; without names all threads with a narrower mask count.

use pinfold_model::CpuSet;
use pinfold_vm::{Hypervisor, hypervisors};

use super::kubelet;
use crate::claim::{Claim, Exclusivity, Kind, Owner, OwnerCategory, Source};
use crate::claim_set::Claims;
use crate::context::Context;
use crate::processes::{Process, Thread};

/// A machine of a hypervisor.
pub const KIND: Kind =
    Kind { name: "hypervisor", noun: "virtual machine", sort: OwnerCategory::Machine };

/// What is read.
pub const READS: &str = "threads of QEMU, Cloud Hypervisor, crosvm and Firecracker";

/// CPUs of the pinned vCPUs of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// CPUs of one vCPU each.
    pub dedicated: CpuSet,
    /// Other CPUs of vCPUs with a narrower mask.
    pub shared: CpuSet,
    /// CPUs that are the only one of another thread.
    pub bound: CpuSet,
    /// Those of them that a vCPU has: the machine itself does not keep them for the vCPU.
    pub not_alone: CpuSet,
    /// The number of vCPUs with several of these.
    pub floating_vcpus: u32,
}

impl Pinned {
    /// The CPUs of the vCPUs among threads. A mask with all online CPUs is no pin.
    #[must_use]
    pub fn from_threads(threads: &[Thread], hypervisor: &dyn Hypervisor, online: &CpuSet) -> Self {
        let (vcpus, others): (Vec<&Thread>, Vec<&Thread>) =
            threads.iter().partition(|thread| hypervisor.role_of(&thread.name).is_vcpu());
        let has_names = !vcpus.is_empty();
        let (counted, others) = if has_names { (vcpus, others) } else { (others, Vec::new()) };
        let (mut once, mut several) = (CpuSet::new(), CpuSet::new());
        let mut floating_vcpus = 0;
        let bound = others.into_iter().map(|thread| &thread.cpus);
        let bound = bound.filter(|cpus| cpus.len() == 1 && !online.is_subset(cpus));
        let bound = bound.collect::<CpuSet>();
        for thread in counted.into_iter().filter(|thread| !online.is_subset(&thread.cpus)) {
            if thread.cpus.len() == 1 {
                several.add(&once.intersection(&thread.cpus));
                once.add(&thread.cpus);
            } else {
                several.add(&thread.cpus);
                // Without names the vCPUs are not known.
                floating_vcpus += u32::from(has_names);
            }
        }
        let dedicated = once.difference(&several);
        let not_alone = bound.intersection(&dedicated);
        let bound = bound.difference(&dedicated);
        Self { dedicated, shared: several, bound, not_alone, floating_vcpus }
    }
}

/// The name of a machine: that of its command line, else of its program.
#[must_use]
pub fn name(process: &Process) -> String {
    let found = hypervisors::find_by_program(&process.program);
    let name = found.and_then(|found| found.parse(&process.arguments).spec().name);
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| process.program.clone())
}

/// Adds the claims of machines whose process is not known yet.
pub fn read(context: &Context<'_>, claims: &mut Claims) {
    for process in context.processes() {
        let Some(hypervisor) = hypervisors::find_by_program(&process.program) else { continue };
        if context.belongs(process.pid, claims) || kubelet::owns(context, process.pid, claims) {
            continue;
        }
        let threads = process.threads(context.host);
        let found = Pinned::from_threads(&threads, hypervisor, &context.online);
        let owner = Owner::new(&KIND, name(process)).of_process(process.pid);
        let source = Source::process(process.pid);
        let dedicated = Claim::new(&owner, found.dedicated, Exclusivity::Dedicated, &source);
        claims.push(Claim { bound: found.not_alone, ..dedicated });
        let alone = found.bound.difference(&found.shared);
        let floating = Claim::floating(&owner, found.shared, found.floating_vcpus, &source);
        let alone = Claim::new(&owner, alone, Exclusivity::Shared, &source);
        for claim in [floating, alone] {
            claims.push(Claim { bound: found.bound.intersection(&claim.cpus), ..claim });
        }
    }
}

#[cfg(test)]
mod tests;
