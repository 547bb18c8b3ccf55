//! The guest's clocks and timers.

use super::{Fault, FaultText};

pub(crate) enum TimerFault {
    /// The guest has an HPET, because the file says so or because it does not say otherwise.
    Hpet { written: bool },
    /// This guest has no reference TSC page.
    Hypervclock { guest: &'static str },
    /// Ticks that are not given back.
    Ticks,
    /// The invariant TSC is not shown.
    InvariantTsc,
}

impl Fault for TimerFault {
    fn words(&self) -> FaultText {
        match self {
            TimerFault::Hpet { written } => FaultText::new(
                "timer-hpet",
                if *written {
                    "the guest has an HPET"
                } else {
                    "the guest has an HPET, which QEMU adds by default"
                },
                "QEMU emulates the HPET in user space: each read exits the guest for several \
                 microseconds, and a guest that uses it for its tick reads it thousands of times \
                 a second",
            ),
            TimerFault::Hypervclock { guest } => FaultText::new(
                "timer-hypervclock",
                format!("{guest} has no reference TSC page (hypervclock)"),
                "each timestamp that Windows or a game reads causes a VM exit, to the HPET or the \
                 ACPI timer, instead of reading the TSC",
            ),
            TimerFault::Ticks => FaultText::new(
                "timer-ticks",
                "a Windows guest without synthetic timers (stimer) does not catch up on missed \
                 ticks",
                "whenever a vCPU was not running, the guest's clock falls behind",
            ),
            TimerFault::InvariantTsc => FaultText::new(
                "tsc-not-invariant",
                "the guest does not see an invariant TSC, although it cannot migrate because of \
                 its passed-through device",
                "Linux does not select the TSC as its clocksource, and Hyper-V and WSL 2 inside \
                 Windows use a slower one; the host's CPU must have it (nonstop_tsc in \
                 /proc/cpuinfo)",
            ),
        }
    }
}
