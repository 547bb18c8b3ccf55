//! Throttling of real-time threads: whether they leave a part of each second to other tasks.
//! Without it, a real-time thread that spins keeps its CPU for good
//! (<https://docs.kernel.org/scheduler/sched-rt-group.html>).

use super::{FormatAnswer, FormatRule, HOST_SETTING, KernelFile, Place, Shape, Tunable, Values};

/// The row of this tunable. Apply keeps a limit that the host has.
pub static TUNABLE: Tunable = Tunable {
    key: "rt-throttle",
    field: "real_time_throttle",
    name: "real-time throttle",
    meaning: "whether real-time threads leave a part of each second to other tasks",
    values: Values::Switch { raw: ["-1", "950000"] },
    kernel: Some(KernelFile {
        place: Place::Sysctl("kernel.sched_rt_runtime_us"),
        shape: Shape::Integer,
        usual: "950000",
    }),
    doctor: "real-time throttle",
    example: "off",
    said: &[(
        "cmdline",
        FormatRule::By(|setting, _| {
            let value = setting.tunable.values.raw(&setting.value);
            FormatAnswer::line(format!("sysctl.kernel.sched_rt_runtime_us={value}"))
                .with_difference("Linux 5.8")
        }),
    )],
    ..HOST_SETTING
};
