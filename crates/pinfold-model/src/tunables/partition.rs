//! A cgroup v2 partition, which excludes other tasks from its CPUs, and how the kernel schedules on
//! them (<https://docs.kernel.org/admin-guide/cgroup-v2.html#cpuset>).

use super::{FormatAnswer, FormatRule, HOST_SETTING, Tunable, Value, Values};
use crate::{Finding, IsolationScope};

/// With load balancing among its CPUs.
pub const ROOT: &str = "root";
/// Without load balancing or unbound kernel work: each thread has to be pinned to its own CPU.
pub const ISOLATED: &str = "isolated";

/// The row of this tunable: the type of the partition with the machine's exclusive CPUs, which
/// holds the threads that run there. Apply makes the group and moves the threads.
pub static TUNABLE: Tunable = Tunable {
    key: "partition",
    field: "partition",
    name: "partition",
    meaning: "cgroup partition of the machine's exclusive CPUs",
    values: Values::Words(&[(ISOLATED, ISOLATED), (ROOT, ROOT)]),
    doctor: "isolated partitions",
    example: ISOLATED,
    trial_refusal: |_| {
        Some("the threads move into another group, and the host's tasks off the CPUs, each time")
    },
    wrong: |_, plan, _| {
        if plan.isolation == IsolationScope::Host && !plan.exclusive.is_empty() {
            return Vec::new();
        }
        let text = "no CPUs are kept for the machine, so there is nothing to make a partition of";
        vec![Finding::problem("partition", text).with_hint("plan with --isolate host")]
    },
    said: &[
        ("libvirt", NO_GROUP),
        ("virsh", NO_GROUP),
        (
            "cmdline",
            FormatRule::By(|setting, _| {
                FormatAnswer::nothing(if setting.value == Value::Word(ISOLATED) {
                    "isolcpus=domain is its counterpart from boot on"
                } else {
                    "isolcpus=domain would also end the balancing among its CPUs"
                })
            }),
        ),
        (
            "systemd",
            FormatRule::Nothing(
                "CPUSetPartition= is in the newest releases only, and for all threads of the slice",
            ),
        ),
        ("tuned", FormatRule::Nothing("no plugin for cpuset partitions")),
        (
            "proxmox",
            FormatRule::Nothing(
                "Proxmox starts the machine in a scope that is not a cpuset partition",
            ),
        ),
        (
            "kubevirt",
            FormatRule::Nothing(
                "CRI-O's annotation cpu-load-balancing.crio.io: \"disable\" ends the balancing on the pod's CPUs",
            ),
        ),
        ("nova", FormatRule::Nothing("Nova leaves groups to libvirt")),
    ],
    ..HOST_SETTING
};

const NO_GROUP: FormatRule = FormatRule::Nothing(
    "libvirt makes the groups of its domains itself, none of them a cpuset partition",
);
