//! CPUs that the kernel's lockup detectors watch
//! (<https://docs.kernel.org/admin-guide/lockup-watchdogs.html>).

use super::{HOST_SETTING, KernelFile, Place, Shape, Tunable, Values, on_exclusive};

/// The row of this tunable.
pub static TUNABLE: Tunable = Tunable {
    key: "watchdog-cpus",
    field: "watchdog_pus",
    name: "lockup watchdogs",
    meaning: "the kernel's lockup detectors watch these CPUs",
    reason: "no watchdog interrupts the other CPUs",
    values: Values::HostCpus,
    kernel: Some(KernelFile {
        place: Place::Sysctl("kernel.watchdog_cpumask"),
        shape: Shape::List,
        usual: "",
    }),
    example: "0",
    wrong: on_exclusive,
    ..HOST_SETTING
};
