//! The guest's clocks and timers.

use super::{Fault, Words};

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
    fn words(&self) -> Words {
        match self {
            TimerFault::Hpet { written } => Words::new(
                "timer-hpet",
                if *written {
                    "the guest is given an HPET"
                } else {
                    "the guest is given an HPET, which QEMU adds where nothing is said"
                },
                "QEMU emulates the HPET outside the kernel: each read leaves the guest for several \
                 microseconds, and a guest that uses it for its ticks does so thousands of times a second",
            ),
            TimerFault::Hypervclock { guest } => Words::new(
                "timer-hypervclock",
                format!("{guest} has no reference TSC page (hypervclock)"),
                "each time stamp that Windows or a game takes leaves the guest, for the HPET or the ACPI \
                 timer, instead of reading the TSC",
            ),
            TimerFault::Ticks => Words::new(
                "timer-ticks",
                "a Windows guest without synthetic timers (stimer) is not given back the ticks that it missed",
                "whenever a vCPU was off its CPU, the guest's clock falls behind",
            ),
            TimerFault::InvariantTsc => Words::new(
                "tsc-not-invariant",
                "the guest does not see an invariant TSC, although with a device of the host it \
                 cannot migrate",
                "Linux does not choose the TSC as its clock by itself, and Hyper-V and WSL 2 inside Windows \
                 read a slower one; the host's CPU must have it (nonstop_tsc in /proc/cpuinfo)",
            ),
        }
    }
}
