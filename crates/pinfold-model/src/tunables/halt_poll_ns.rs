//! How long KVM polls before a halted vCPU sleeps
//! (<https://docs.kernel.org/virt/kvm/halt-polling.html>). A guest with the cpuidle driver
//! `haltpoll` polls by itself and switches this off.

use super::{HOST_SETTING, KernelFile, Place, Shape, Tunable, Values};

/// The row of this tunable.
pub static TUNABLE: Tunable = Tunable {
    key: "halt-poll-ns",
    field: "halt_poll_ns",
    name: "KVM halt polling",
    meaning: "KVM polls this long (ns) before a halted vCPU sleeps; without effect on guests with the \
              cpuidle driver haltpoll",
    reason: "a vCPU that halts shortly continues without a wake-up",
    values: Values::Number { least: 0, most: 1_000_000_000, form: "NANOSECONDS", zero: "0" },
    kernel: Some(KernelFile {
        place: Place::Host("/sys/module/kvm/parameters/halt_poll_ns"),
        shape: Shape::Integer,
        usual: "200000",
    }),
    example: "400000",
    ..HOST_SETTING
};
