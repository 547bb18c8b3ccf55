//! How often the kernel updates its memory statistics, which takes a kernel thread on each CPU
//! (<https://docs.kernel.org/admin-guide/sysctl/vm.html#stat-interval>).

use super::{HOST_SETTING, KernelFile, Place, Shape, Tunable, Values};

/// The row of this tunable.
pub static TUNABLE: Tunable = Tunable {
    key: "stat-interval",
    field: "stat_interval_s",
    name: "memory statistics",
    meaning: "the kernel updates its memory statistics after this many seconds",
    reason: "fewer kernel threads interrupt each CPU",
    values: Values::Number { least: 1, most: 86_400, form: "SECONDS", zero: "0" },
    kernel: Some(KernelFile {
        place: Place::Sysctl("vm.stat_interval"),
        shape: Shape::Integer,
        usual: "1",
    }),
    example: "10",
    ..HOST_SETTING
};
