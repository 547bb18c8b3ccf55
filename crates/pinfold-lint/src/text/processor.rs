//! The guest's CPU and interrupt controllers.

use super::{Fault, FaultText};

pub(crate) enum ProcessorFault {
    /// Threads that an AMD guest does not see.
    Topoext,
    /// The host's caches are shown, and not valid.
    CacheUntrue,
    /// The host's caches would be valid, and are not shown.
    CacheUnknown,
    /// An I/O APIC in QEMU, as the file says or as its board has it.
    IoapicSplit { by_board: bool },
    /// Polling before a halt that this guest does not use; on Linux it needs a hint, which each
    /// vCPU with its own CPU may have.
    PollControl { windows: bool, pinned: bool },
    /// The hint of dedicated CPUs on shared ones.
    HintDedicated,
    /// Idle vCPUs occupy shared CPUs.
    CpuPmShared,
    /// Real-time vCPUs leave the guest when idle.
    CpuPmOff,
}

/// The condition of an advice.
const IF_ALONE: &str = "if each of these CPUs belongs to its vCPU alone, within";

impl Fault for ProcessorFault {
    fn words(&self) -> FaultText {
        match self {
            ProcessorFault::Topoext => FaultText::new(
                "topoext-missing",
                "the file gives the guest threads, but on an AMD host QEMU shows them only with the CPU \
                 feature topoext",
                "the guest treats each thread as a separate core: it puts two busy tasks on one \
                 real core while another is idle",
            ),
            ProcessorFault::CacheUntrue => FaultText::new(
                "cache-untrue",
                "the guest is shown the host's caches, although its pins are not whole cores of one kind, \
                 shown with their threads, in whole L2 and L3 caches of the host",
                "the guest's scheduler groups tasks on CPUs that share no cache, and separates \
                 them where a cache is shared",
            ),
            ProcessorFault::CacheUnknown => FaultText::new(
                "cache-unknown",
                "QEMU shows the guest default cache sizes, although those of the host would be \
                 correct",
                "programs that derive block sizes from the cache size choose wrong ones",
            ),
            ProcessorFault::IoapicSplit { by_board } => {
                let why = if *by_board {
                    "which is the default of the machine type pc-q35-4.0"
                } else {
                    "although nothing in the file needs that"
                };
                FaultText::new(
                    "ioapic-split",
                    format!("the I/O APIC is emulated by QEMU and not by KVM, {why}"),
                    "each level-triggered interrupt, such as that of a passed-through device \
                     without MSI, exits to QEMU twice",
                )
            }
            ProcessorFault::PollControl { windows, pinned } => poll_control(*windows, *pinned),
            ProcessorFault::HintDedicated => FaultText::new(
                "hint-dedicated-shared",
                "kvm-hint-dedicated is on, and not every vCPU has a CPU of its own",
                "the guest gives up its paravirtual spinlocks: a vCPU spins for a lock whose holder waits \
                 for a CPU",
            ),
            ProcessorFault::CpuPmShared => FaultText::new(
                "cpu-pm-shared",
                "cpu-pm is on, and not every vCPU has a CPU of its own",
                "an idle vCPU does not release its CPU (the host shows it as busy): other tasks \
                 there wait for the scheduler's tick",
            ),
            ProcessorFault::CpuPmOff => cpu_pm_off(),
        }
    }
}

fn poll_control(windows: bool, pinned: bool) -> FaultText {
    let (what, cost) = if windows {
        (
            "kvm-poll-control is on, which only Linux guests use (cpuidle-haltpoll)",
            "Windows has no driver for it: the host polls as without it",
        )
    } else {
        (
            "kvm-poll-control is on without kvm-hint-dedicated",
            "Linux loads its driver (cpuidle-haltpoll) by itself only with that hint: the host polls \
             as without it",
        )
    };
    let words = FaultText::new("poll-control-unused", what, cost);
    if !windows && pinned {
        words.with_replacement([
            format!("{IF_ALONE} <kvm>:"),
            "<hint-dedicated state='on'/>".to_owned(),
        ])
    } else {
        words
    }
}

fn cpu_pm_off() -> FaultText {
    FaultText::new(
        "cpu-pm-off",
        "real-time vCPUs exit to the host each time they go idle",
        "the exit and the wake-up cost several microseconds before the first instruction \
         of an answer",
    )
    .with_replacement([
        format!("{IF_ALONE} <qemu:commandline>:"),
        "<qemu:arg value='-overcommit'/>".to_owned(),
        "<qemu:arg value='cpu-pm=on'/>".to_owned(),
    ])
}
