//! vCPUs that the kernel places.

use pinfold_model::text::count_noun;
use pinfold_model::{CpuSet, NodeId, Role};

use super::{Fault, FaultText};
use crate::descriptions::{cpus, describe_all, describe_nodes, describe_vcpus};

/// Where the kernel moves vCPUs that are not pinned to one CPU.
pub(crate) enum Range<'a> {
    /// No vCPU has a mask.
    Host,
    /// numad names nodes at the start.
    Numad,
    /// All in one mask, with these threads.
    OneMask { threads: Vec<Role>, pus: &'a CpuSet },
    /// A number of masks.
    Masks { count: usize, pus: &'a CpuSet },
}

/// What a guest cannot know of the CPUs that its vCPUs float over.
pub(crate) enum Unknown<'a> {
    /// Cores of several kinds.
    Kinds,
    /// Several nodes.
    Nodes(&'a [NodeId]),
    /// A number of L3 caches.
    L3s(usize),
    /// A number of cores, while each vCPU is shown as one.
    Siblings(usize),
}

pub(crate) enum FloatFault<'a> {
    /// No vCPU is pinned to one CPU.
    NotPinned(Range<'a>),
    /// vCPUs that share a mask.
    Over { vcpus: &'a [u32], mask: &'a CpuSet, what: Unknown<'a> },
}

impl Fault for FloatFault<'_> {
    fn words(&self) -> FaultText {
        match self {
            FloatFault::NotPinned(range) => {
                let where_to = match range {
                    Range::Host => "the kernel places them".to_owned(),
                    Range::Numad => {
                        "numad selects their nodes when the machine starts (placement='auto'), and \
                         the kernel moves them within these"
                            .to_owned()
                    }
                    Range::OneMask { threads, pus } => {
                        format!(
                            "the kernel moves {} over {}",
                            describe_all(threads.iter()),
                            cpus(pus)
                        )
                    }
                    Range::Masks { count, pus } => {
                        format!(
                            "the kernel moves them within {} ({pus})",
                            count_noun(*count, "mask")
                        )
                    }
                };
                FaultText::new(
                    "not-pinned",
                    format!("no vCPU is pinned to one CPU: {where_to}, which is valid"),
                    "vCPUs move between cores, and share them with the host's tasks under load",
                )
                .with_replacement([
                    "`pinfold plan --list` lists the strategies; `pinfold tune` measures the benefit",
                ])
            }
            FloatFault::Over { vcpus, mask, what } => describe_over(vcpus, mask, what),
        }
    }
}

fn describe_over(vcpus: &[u32], mask: &CpuSet, unknown: &Unknown<'_>) -> FaultText {
    let (name, what, cost) = match unknown {
        Unknown::Kinds => (
            "mixed-cores",
            format!("cores of several kinds ({mask})"),
            "the guest assumes that all its CPUs are equally fast, but the speed of each one varies",
        ),
        Unknown::Nodes(nodes) => (
            "nodes-crossed",
            format!("{} ({mask})", describe_nodes(nodes)),
            "part of the memory is remote wherever they run",
        ),
        Unknown::L3s(l3s) => (
            "l3-crossed",
            format!("{} ({mask})", count_noun(*l3s, "L3 cache")),
            "a vCPU that moves to another L3 cache starts with a cold cache, and data shared by \
             vCPUs moves between the caches",
        ),
        Unknown::Siblings(cores) => (
            "guest-siblings-hidden",
            format!(
                "{} ({mask}), but the guest treats each vCPU as a separate core",
                count_noun(*cores, "core")
            ),
            "the guest's scheduler cannot know which of its CPUs slow each other down",
        ),
    };
    let who = describe_vcpus(vcpus.iter().copied());
    let float = if vcpus.len() == 1 { "floats" } else { "float" };
    FaultText::new(name, format!("{who} {float} over {what}"), cost)
}
