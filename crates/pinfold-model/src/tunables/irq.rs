//! CPUs for the interrupts of one device, of a node's devices, or of the host
//! (<https://docs.kernel.org/core-api/irq/irq-affinity.html>).

use super::{
    FormatAnswer, FormatRule, HOST_SETTING, Scope, Setting, Tunable, Values, new_irqs, on_exclusive,
};
use crate::{Finding, IrqPlan, Plan, Topology};

/// The affinity of each interrupt, for formats that expand `*`.
const FILES: &str = "/proc/irq/*/smp_affinity_list";

/// The row of this tunable. Apply finds the interrupts of the device.
pub static TUNABLE: Tunable = Tunable {
    key: "irq",
    of: "DEVICE",
    name: "IRQ affinity",
    meaning: "interrupts of the device go to these CPUs",
    values: Values::HostCpus,
    doctor: "irqbalance off",
    example: "0",
    wrong,
    said: &[
        ("cmdline", FormatRule::By(cmdline)),
        (
            "systemd",
            FormatRule::By(|setting, _| {
                if is_all(setting) {
                    FormatAnswer::lines(
                        "tmpfiles",
                        vec![format!("w {FILES} - - - - {}", setting.value)],
                    )
                    .with_difference("the kernel refuses those that it manages itself")
                } else {
                    FormatAnswer::nothing(
                        "a device's interrupts have their numbers only when its driver is loaded",
                    )
                }
            }),
        ),
        (
            "tuned",
            FormatRule::By(|setting, _| {
                FormatAnswer::nothing(if is_all(setting) {
                    "isolated_cores= in [scheduler] moves all interrupts off those CPUs, not to CPUs of your choice"
                } else {
                    "[irq] takes numbers, which a device has only when its driver is loaded"
                })
            }),
        ),
        ("kubevirt", new_irqs::ANNOTATION),
    ],
    ..HOST_SETTING
};

fn is_all(setting: &Setting) -> bool {
    setting.of == IrqPlan::ALL
}

fn cmdline(setting: &Setting, scope: &Scope<'_>) -> FormatAnswer {
    if is_all(setting) && !scope.plan.tuning.has(&new_irqs::TUNABLE) {
        FormatAnswer::line(format!("irqaffinity={}", setting.value))
            .with_difference("the initial affinity of each interrupt")
    } else {
        FormatAnswer::nothing("irqaffinity= is one list for all interrupts, not for a device")
    }
}

/// A device, or a node, that does not exist.
fn wrong(setting: &Setting, plan: &Plan, topology: &Topology) -> Vec<Finding> {
    let name = setting.of.as_str();
    let (there, hint) = match name.strip_prefix("node:") {
        Some(node) => {
            let mut nodes = topology.nodes.iter();
            (nodes.any(|known| known.id.to_string() == node), "`pinfold topo` shows the nodes")
        }
        None => {
            let known = topology.devices.iter().any(|device| device.address == name);
            let is_known = is_all(setting) || topology.devices.is_empty() || known;
            (is_known, "lspci -D shows the addresses")
        }
    };
    let name = name.replace("node:", "node ");
    let mut findings: Vec<Finding> = (!there)
        .then(|| Finding::problem("irq", format!("this host has no device {name}")).with_hint(hint))
        .into_iter()
        .collect();
    findings.extend(on_exclusive(setting, plan, topology));
    findings
}
