//! Automatic NUMA balancing: whether the kernel moves pages to the threads that use them
//! (<https://docs.kernel.org/admin-guide/sysctl/kernel.html#numa-balancing>).

use super::{FormatAnswer, FormatRule, HOST_SETTING, KernelFile, Place, Shape, Tunable, Values};

/// The row of this tunable.
pub static TUNABLE: Tunable = Tunable {
    key: "numa-balancing",
    field: "numa_balancing",
    name: "numa_balancing",
    meaning: "automatic NUMA balancing",
    values: Values::Switch { raw: ["0", "1"] },
    kernel: Some(KernelFile {
        place: Place::Sysctl("kernel.numa_balancing"),
        shape: Shape::Integer,
        usual: "1",
    }),
    doctor: "NUMA balancing off",
    example: "off",
    trial_refusal: |value| value.is_on().then_some("pages that were moved stay where they are"),
    said: &[(
        "cmdline",
        FormatRule::By(|setting, _| {
            let word = if setting.value.is_on() { "enable" } else { "disable" };
            FormatAnswer::line(format!("numa_balancing={word}"))
        }),
    )],
    ..HOST_SETTING
};
