//! The cpufreq governor of the plan's CPUs
//! (<https://docs.kernel.org/admin-guide/pm/cpufreq.html>).

use super::{FormatRule, HOST_SETTING, KernelFile, Place, Shape, Tunable, Values};

/// The row of this tunable. Apply writes it once for the CPUs that share a policy of cpufreq.
pub static TUNABLE: Tunable = Tunable {
    key: "governor",
    field: "governor",
    name: "cpufreq",
    meaning: "cpufreq governor of the plan's CPUs",
    values: Values::Name("a governor"),
    kernel: Some(KernelFile {
        place: Place::Cpu("cpufreq/scaling_governor"),
        shape: Shape::Text,
        usual: "schedutil",
    }),
    doctor: "cpufreq",
    example: "performance",
    said: &[
        (
            "cmdline",
            FormatRule::Lines(
                "",
                &["cpufreq.default_governor={}"],
                "of all CPUs, not of the plan's alone; Linux 5.9",
            ),
        ),
        ("kubevirt", FormatRule::Lines("annotations", &["cpu-freq-governor.crio.io: \"{}\""], "")),
        (
            "nova",
            FormatRule::Lines(
                "nova.conf",
                &[
                    "# cpu_power_management = true",
                    "# cpu_power_management_strategy = governor",
                    "# cpu_power_governor_high = {}",
                ],
                "of dedicated CPUs in use",
            ),
        ),
    ],
    ..HOST_SETTING
};
