//! Tasks that share a CPU or a core with a vCPU.

use pinfold_model::{CpuSet, NodeId, Role};

use super::{Fault, FaultText};
use crate::descriptions::{cpus, describe, describe_nodes, describe_vcpus};
use pinfold_plan::text::verb;

/// The CPUs of a thread that belong to vCPUs.
pub(crate) enum Common<'a> {
    /// These, because the thread has no pin.
    WithoutPin(&'a CpuSet),
    /// All CPUs of its mask.
    Only(&'a CpuSet),
    /// A part of its mask.
    Some(&'a CpuSet),
}

pub(crate) enum CoreFault<'a> {
    /// A thread on the CPUs of vCPUs, which starve it under a real-time policy.
    OnVcpu { role: &'a Role, common: Common<'a>, starves: bool },
    /// A thread on other nodes than the vCPUs.
    Far { role: &'a Role, pus: &'a CpuSet, nodes: Vec<NodeId>, vcpu_nodes: Vec<NodeId> },
    /// Siblings of the vCPUs' CPUs that the host's tasks may use.
    SiblingLeft { siblings: &'a CpuSet },
    /// vCPUs on slower cores than the others.
    MixedKinds { slower: Vec<u32> },
}

impl Fault for CoreFault<'_> {
    fn words(&self) -> FaultText {
        match self {
            CoreFault::OnVcpu { role, common, starves } => on_vcpu(role, common, *starves),
            CoreFault::Far { role, pus, nodes, vcpu_nodes } => FaultText::new(
                if **role == Role::Emulator { "emulator-far" } else { "iothread-far" },
                format!(
                    "{} runs on {}, which belong to {}; the vCPUs run on {}",
                    describe(role),
                    cpus(pus),
                    describe_nodes(nodes),
                    describe_nodes(vcpu_nodes)
                ),
                "each request crosses the interconnect with its rings and buffers, and each wake-up \
                 between the two does",
            ),
            CoreFault::SiblingLeft { siblings } => FaultText::new(
                "sibling-left-to-host",
                format!(
                    "{} {} left to the host's tasks",
                    cpus(siblings),
                    verb(
                        siblings,
                        "shares its core with a vCPU and is",
                        "share their cores with vCPUs and are",
                    )
                ),
                "a busy sibling reduces the speed of a vCPU by a third to a half",
            )
            .with_replacement([
                "give the siblings to the machine too (two vCPUs for each core, shown as threads), \
                 or exclude tasks from them:",
            ]),
            CoreFault::MixedKinds { slower } => FaultText::new(
                "mixed-cores",
                format!(
                    "{} {} pinned to slower cores than the others",
                    describe_vcpus(slower.iter().copied()),
                    if slower.len() == 1 { "is" } else { "are" }
                ),
                "no guest topology can express this: the guest gives its slow CPUs the same share \
                 of work, and a task that waits for all of them waits for the slowest",
            ),
        }
    }
}

/// `CPU 3, which belongs to vCPUs`, or `the CPUs 1-3, which belong to vCPUs`.
fn cpus_of_vcpus(pus: &CpuSet) -> String {
    let verb = if pus.len() == 1 { "belongs" } else { "belong" };
    format!("{}, which {verb} to vCPUs", cpus(pus))
}

fn on_vcpu(role: &Role, common: &Common<'_>, starves: bool) -> FaultText {
    let who = describe(role);
    let what = match common {
        Common::WithoutPin(pus) => {
            format!("{who} has no pin: it may run on {}", cpus_of_vcpus(pus))
        }
        Common::Only(pus) => format!("{who} runs only on {}", cpus_of_vcpus(pus)),
        Common::Some(pus) => format!("{who} may run on {}", cpus_of_vcpus(pus)),
    };
    match (role, starves) {
        (_, true) => FaultText::new(
            "fifo-starves",
            format!("{what} under a real-time policy"),
            "a vCPU that spins under FIFO or RR never lets it run: the guest hangs when it \
             waits for a disk, a timer or the monitor, often already at boot",
        ),
        (Role::Emulator, false) => FaultText::new(
            "emulator-on-vcpu",
            what,
            "main loop, timers and worker threads push a vCPU off its CPU \
             whenever a device needs them; the guest sees it as a stall",
        ),
        (_, false) => FaultText::new(
            "iothread-on-vcpu",
            what,
            "each request of its disk or queue pushes a vCPU off its CPU, and a polling \
             one takes the whole CPU",
        ),
    }
}

/// The place of a thread that has no pin.
pub(crate) fn not_mentioned(role: &Role) -> String {
    format!("the file does not mention {}", describe(role))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cpu_belongs_and_several_belong() {
        fn text(cpus: &str) -> String {
            cpus_of_vcpus(&CpuSet::parse_list(cpus).unwrap())
        }

        assert_eq!(text("0"), "CPU 0, which belongs to vCPUs");
        assert_eq!(text("1-3"), "the CPUs 1-3, which belong to vCPUs");
    }
}
