//! The pages of the guest's memory.

use super::{Fault, FaultText};

pub(crate) enum BackingFault {
    /// The vCPUs are real-time threads.
    NotLocked,
    /// The limit on locked memory is no more than the memory; a device of the host locks it, or the
    /// file does.
    LockedLimit { by_device: bool },
    /// Memory that is no whole number of huge pages, and the next size that is.
    PartOfAPage { whole: String },
    /// Small pages, and the number of huge pages that would replace them.
    SmallPages { huge: u64 },
}

impl Fault for BackingFault {
    fn words(&self) -> FaultText {
        match self {
            BackingFault::NotLocked => FaultText::new(
                "memory-not-locked",
                "the vCPUs are real-time threads, and the host may swap, merge or move the guest's pages",
                "a vCPU that accesses such a page stops until the host has restored it",
            )
            .with_replacement([
                "<memoryBacking><nosharepages/><locked/></memoryBacking>",
                "and a <hard_limit> in <memtune>: without it libvirt sets no limit on locked memory",
            ]),
            BackingFault::LockedLimit { by_device } => {
                let why = if *by_device { "a passed-through device locks" } else { "the file locks" };
                FaultText::new(
                    "locked-limit",
                    format!("{why} all of the guest's memory, but hard_limit allows no more \
                             than that"),
                    "libvirt makes hard_limit the limit on locked pages too: QEMU needs some for itself, and the \
                     machine does not start, or is killed when it reaches the limit",
                )
            }
            BackingFault::PartOfAPage { whole } => FaultText::new(
                "huge-page-multiple",
                "the guest's memory is not a multiple of its huge page size",
                "QEMU does not start, or allocates one page more",
            )
            .with_replacement([whole]),
            BackingFault::SmallPages { huge } => FaultText::new(
                "no-huge-pages",
                "a guest with a passed-through device uses small pages",
                "the IOMMU and the guest's page tables need an entry for every 4 KiB, unless the \
                 kernel uses huge pages (THP); the machine starts slowly, and TLB misses cost more",
            )
            .with_replacement([
                "<memoryBacking><hugepages/></memoryBacking>".to_owned(),
                format!(
                    "and on the host before it starts: `sysctl vm.nr_hugepages={huge}` (more if others use them)"
                ),
            ]),
        }
    }
}
