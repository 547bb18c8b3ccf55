//! CPUs on which the kernel writes dirty pages back
//! (<https://docs.kernel.org/core-api/workqueue.html>).

use super::{HOST_SETTING, KernelFile, Place, Shape, Tunable, Values, on_exclusive};

/// The row of this tunable.
pub static TUNABLE: Tunable = Tunable {
    key: "writeback",
    field: "writeback_pus",
    name: "writeback",
    meaning: "the kernel writes dirty pages back on these CPUs",
    reason: "writeback stays there",
    values: Values::HostCpus,
    kernel: Some(KernelFile {
        place: Place::Host("/sys/devices/virtual/workqueue/writeback/cpumask"),
        shape: Shape::Mask,
        usual: "",
    }),
    example: "0",
    wrong: on_exclusive,
    ..HOST_SETTING
};
