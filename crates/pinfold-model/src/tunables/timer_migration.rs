//! Whether the kernel moves timers from idle CPUs to busy ones
//! (`kernel/time/timer_migration.c`).

use super::{HOST_SETTING, KernelFile, Place, Shape, Tunable, Values};

/// The row of this tunable.
pub static TUNABLE: Tunable = Tunable {
    key: "timer-migration",
    field: "timer_migration",
    name: "timer migration",
    meaning: "whether timers of idle CPUs move to busy ones",
    reason: "timers of other CPUs stay there",
    values: Values::Switch { raw: ["0", "1"] },
    kernel: Some(KernelFile {
        place: Place::Sysctl("kernel.timer_migration"),
        shape: Shape::Integer,
        usual: "1",
    }),
    example: "off",
    ..HOST_SETTING
};
