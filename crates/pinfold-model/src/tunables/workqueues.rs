//! CPUs on which unbound kernel work runs (<https://docs.kernel.org/core-api/workqueue.html>).

use super::{FormatRule, HOST_SETTING, KernelFile, Place, Shape, Tunable, Values, on_exclusive};

/// The mask of these CPUs.
pub const FILE: &str = "/sys/devices/virtual/workqueue/cpumask";

/// The row of this tunable.
pub static TUNABLE: Tunable = Tunable {
    key: "workqueues",
    field: "workqueues_pus",
    name: "workqueues",
    meaning: "unbound work of the kernel runs on these CPUs",
    reason: "unbound work of the kernel stays there",
    values: Values::HostCpus,
    kernel: Some(KernelFile { place: Place::Host(FILE), shape: Shape::Mask, usual: "" }),
    example: "0",
    wrong: on_exclusive,
    said: &[("cmdline", FormatRule::Lines("", &["workqueue.unbound_cpus={}"], "Linux 6.6"))],
    ..HOST_SETTING
};
