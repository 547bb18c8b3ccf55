//! Hyper-V enlightenments for Windows guests.
//!
//! Source: QEMU's `docs/system/i386/hyperv.rst`, "Recommendations": all except those for debugging,
//! nesting and hosts with shared CPUs. Only those that every current KVM supports are recommended.

use pinfold_model::Severity;

use super::{Fault, FaultText};

/// An enlightenment with its severity and cost if it is missing.
pub(crate) type Enlightenment = (&'static str, Severity, &'static str);

pub(crate) const WANTED: [Enlightenment; 9] = [
    ("relaxed", Severity::Warning, "without relaxed a delayed vCPU can trigger a watchdog"),
    ("vapic", Severity::Warning, "without vapic each end of an interrupt (EOI) causes a VM exit"),
    ("vpindex", Severity::Warning, "without vpindex there is no synic, tlbflush and ipi"),
    ("runtime", Severity::Note, "without runtime Windows counts stolen time as its own"),
    ("synic", Severity::Warning, "without synic there are no synthetic timers"),
    (
        "stimer",
        Severity::Warning,
        "without synthetic timers (stimer) Windows uses the HPET or RTC, also when idle",
    ),
    ("frequencies", Severity::Note, "without frequencies Windows measures its clocks at boot"),
    (
        "tlbflush",
        Severity::Note,
        "without tlbflush a TLB flush waits for vCPUs that are not running",
    ),
    (
        "ipi",
        Severity::Note,
        "without ipi an interrupt to other vCPUs causes a VM exit for each \
                             target",
    ),
];

/// Enlightenments that the guest does not see.
pub(crate) struct Hidden;

impl Fault for Hidden {
    fn words(&self) -> FaultText {
        FaultText::new(
            "hypervisor-hidden",
            "the guest sees no Hyper-V enlightenment, because the CPU feature hypervisor is disabled"
                .to_owned(),
            "Windows looks for enlightenments only if this bit of CPUID is set: those of the file \
             have no effect, and Windows uses slow timers and interrupts",
        )
        .with_replacement([
            "remove <feature … name='hypervisor'/>; to hide KVM from a driver, <kvm><hidden \
             state='on'/></kvm> and <vendor_id/> in <hyperv> keep the enlightenments",
        ])
    }
}

/// Missing enlightenments of a guest, which may have others.
pub(crate) struct Missing<'a> {
    pub guest: &'static str,
    pub missing: &'a [&'a Enlightenment],
    pub has_others: bool,
}

impl Fault for Missing<'_> {
    fn words(&self) -> FaultText {
        let names: Vec<&str> = self.missing.iter().map(|(name, ..)| *name).collect();
        let which = if self.has_others {
            format!("lacks the Hyper-V enlightenments {}", names.join(", "))
        } else {
            "has no Hyper-V enlightenments".to_owned()
        };
        // The costs of those with the highest severity; the others are only named.
        let worst = self.missing.iter().map(|(_, severity, _)| *severity).max();
        let costs = self.missing.iter().filter(|(_, severity, _)| Some(*severity) == worst);
        let costs: Vec<&str> = costs.map(|(.., cost)| *cost).collect();
        FaultText::new("hyperv-missing", format!("{} {which}", self.guest), costs.join("; "))
    }
}
