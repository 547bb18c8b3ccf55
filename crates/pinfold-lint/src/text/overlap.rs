//! CPUs and cores that two machines claim.

use pinfold_model::CpuSet;

use super::{Fault, FaultText};
use crate::descriptions::cpus;
use pinfold_plan::text::verb;

/// CPUs for one of the machines.
pub(crate) struct Free(pub CpuSet);

impl Free {
    fn text(&self) -> String {
        if self.0.is_empty() {
            "no CPU is left: give one of them fewer vCPUs".to_owned()
        } else {
            format!("CPUs that none of them uses: {}", self.0)
        }
    }
}

pub(crate) enum OverlapFault<'a> {
    /// These CPUs carry vCPUs of the named machines.
    Pus { pus: &'a CpuSet, machines: String, free: &'a Free },
    /// Siblings of the same cores carry vCPUs of these machines, each with its CPUs.
    Cores { machines: String, free: &'a Free },
}

/// A machine with its CPUs on shared cores.
pub(crate) fn machine_on(name: &str, pus: &CpuSet) -> String {
    format!("{name:?} on {}", cpus(pus))
}

impl Fault for OverlapFault<'_> {
    fn words(&self) -> FaultText {
        match self {
            OverlapFault::Pus { pus, machines, free } => FaultText::new(
                "pu-used-twice",
                format!("{} {} vCPUs of {machines}", cpus(pus), verb(pus, "has", "have")),
                "the machines share these CPUs; each sees stolen time whenever another is busy",
            )
            .with_replacement([free.text()]),
            OverlapFault::Cores { machines, free } => FaultText::new(
                "core-used-twice",
                format!("siblings of the same cores have vCPUs of {machines}"),
                "busy machines slow each other down, and each can observe the others through the \
                 core's caches",
            )
            .with_replacement([format!("give each whole cores; {}", free.text())]),
        }
    }
}
