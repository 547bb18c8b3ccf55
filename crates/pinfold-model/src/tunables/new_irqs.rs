//! CPUs for interrupts that are set up later
//! (<https://docs.kernel.org/core-api/irq/irq-affinity.html>).

use super::{FormatRule, HOST_SETTING, KernelFile, Place, Shape, Tunable, Values, on_exclusive};

/// The row of this tunable.
pub static TUNABLE: Tunable = Tunable {
    key: "new-irqs",
    field: "new_irqs_pus",
    name: "default IRQ affinity",
    meaning: "interrupts that are set up later go to these CPUs",
    reason: "interrupts that are set up later go there",
    values: Values::HostCpus,
    kernel: Some(KernelFile {
        place: Place::Host("/proc/irq/default_smp_affinity"),
        shape: Shape::Mask,
        usual: "",
    }),
    example: "0",
    wrong: on_exclusive,
    said: &[
        ("cmdline", FormatRule::Line("irqaffinity={}")),
        ("tuned", FormatRule::Lines("scheduler", &["default_irq_smp_affinity={}"], "")),
        ("kubevirt", ANNOTATION),
    ],
    ..HOST_SETTING
};

/// KubeVirt's counterpart of all tunables of interrupts.
pub(super) const ANNOTATION: FormatRule = FormatRule::Nothing(
    "CRI-O's annotation irq-load-balancing.crio.io: \"disable\" keeps interrupts off the pod's CPUs",
);
