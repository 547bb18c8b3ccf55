//! CPUs that remain for the host.

use pinfold_model::CpuSet;

use super::{Fault, FaultText};
use crate::descriptions::cpus;
use pinfold_plan::text::verb;

pub(crate) enum HostFault<'a> {
    /// Real-time threads may run on all these CPUs, the only ones of the host's tasks.
    FifoEverywhere { hostable: &'a CpuSet },
    /// Every CPU of the host's tasks carries a vCPU.
    NoHousekeeping,
    /// The host's tasks may run on these CPUs of vCPUs.
    NotIsolated { open: &'a CpuSet },
    /// Real-time vCPUs above the priority of the interrupt threads, on CPUs that the host uses.
    AboveInterrupts { open: &'a CpuSet, priority: u8, interrupts: u8 },
    /// A priority outside 1 to 99.
    PriorityRange { whose: String },
}

impl Fault for HostFault<'_> {
    fn words(&self) -> FaultText {
        match self {
            HostFault::FifoEverywhere { hostable } => FaultText::new(
                "fifo-without-host",
                format!(
                    "real-time threads may run on every CPU that the host's tasks have ({hostable})"
                ),
                "a guest that spins blocks the host: no shell, no network, no way to stop it",
            ),
            HostFault::NoHousekeeping => FaultText::new(
                "no-housekeeping",
                "every CPU that the host's tasks may use has a vCPU",
                "interrupts, the emulator and every task of the host take CPU time from a vCPU",
            ),
            HostFault::NotIsolated { open } => FaultText::new(
                "not-isolated",
                format!(
                    "{} {} vCPUs, and the host's own tasks may run there too",
                    cpus(open),
                    verb(open, "has", "have")
                ),
                "a pin keeps a vCPU on its CPU, but does not exclude other tasks",
            ),
            HostFault::AboveInterrupts { open, priority, interrupts } => FaultText::new(
                "fifo-above-interrupts",
                format!(
                    "vCPUs on {}, which the host uses, have the real-time priority {priority}, \
                     above the kernel's interrupt threads ({interrupts})",
                    cpus(open)
                ),
                "a guest that spins keeps interrupt threads there from running, and with them the \
                 disk, the network and finally the host",
            )
            .with_replacement([
                "set priority='1', which is above all ordinary tasks, or exclude the host from \
                 these CPUs as under not-isolated",
            ]),
            HostFault::PriorityRange { whose } => FaultText::new(
                "priority-range",
                format!("the real-time priority of {whose} is not from 1 to 99"),
                "the kernel refuses the policy (EINVAL), and the machine does not start",
            ),
        }
    }
}
