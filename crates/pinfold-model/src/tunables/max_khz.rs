//! Highest frequency of the plan's CPUs in kHz
//! (<https://docs.kernel.org/admin-guide/pm/cpufreq.html>).

use super::{HOST_SETTING, KernelFile, Place, Shape, Tunable, Value, Values};

/// The values of both limits.
pub(super) const KHZ: Values = Values::Number { least: 0, most: u64::MAX, form: "KHZ", zero: "0" };

/// The row of this tunable. Apply orders both limits.
pub static TUNABLE: Tunable = Tunable {
    key: "max-khz",
    field: "max_khz",
    name: "cpufreq",
    meaning: "highest frequency of the plan's CPUs in kHz",
    values: KHZ,
    kernel: Some(KernelFile {
        place: Place::Cpu("cpufreq/scaling_max_freq"),
        shape: Shape::Rounded,
        usual: "3600000",
    }),
    doctor: "cpufreq",
    example: "3400000",
    fault: |value, _| (*value == Value::Number(0)).then(|| "0 is not a frequency".to_owned()),
    ..HOST_SETTING
};
