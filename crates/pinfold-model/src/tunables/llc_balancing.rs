//! Cache-aware scheduling of Linux 7.2 and later: whether the kernel draws the threads of a process
//! to one L3 cache. Its switch is in debugfs, which has no stable interface.

use super::{HOST_SETTING, KernelFile, Place, Shape, Tunable, Values};

/// The row of this tunable.
pub static TUNABLE: Tunable = Tunable {
    key: "llc-balancing",
    field: "llc_balancing",
    name: "llc_balancing",
    meaning: "cache-aware scheduling: the threads of a process are drawn to one L3 cache",
    values: Values::Switch { raw: ["0", "1"] },
    kernel: Some(KernelFile {
        place: Place::Host("/sys/kernel/debug/sched/llc_balancing/enabled"),
        shape: Shape::Integer,
        usual: "1",
    }),
    doctor: "scheduler",
    example: "off",
    ..HOST_SETTING
};
