//! Longest wake-up latency from an idle state that the plan's CPUs may have, in microseconds; 0
//! disables all idle states
//! (<https://docs.kernel.org/admin-guide/pm/cpuidle.html#power-management-quality-of-service-for-cpus>).

use super::{
    FormatAnswer, FormatRule, HOST_SETTING, KernelFile, Place, Shape, Tunable, Value, Values,
};

/// The row of this tunable.
pub static TUNABLE: Tunable = Tunable {
    key: "wake-up-us",
    field: "wake_up_us",
    name: "wake-up latency",
    meaning: "longest wake-up latency of the plan's CPUs in µs; 0 disables all idle states",
    reason: "this CPU wakes fast enough",
    values: Values::Number {
        least: 0,
        // The kernel takes less than the largest `s32`.
        most: 2_147_483_646,
        form: "MICROSECONDS",
        // In this file 0 means "no limit" and `n/a` means "no latency at all".
        zero: "n/a",
    },
    kernel: Some(KernelFile {
        place: Place::Cpu("power/pm_qos_resume_latency_us"),
        shape: Shape::Text,
        usual: "0",
    }),
    doctor: "C-states",
    example: "20",
    said: &[
        (
            "cmdline",
            FormatRule::Nothing(
                "the parameters for idle states (intel_idle.max_cstate=, processor.max_cstate=, idle=poll) \
                 are for all CPUs and count states, not microseconds",
            ),
        ),
        (
            "kubevirt",
            FormatRule::By(|setting, _| {
                let states = if setting.value == Value::Number(0) {
                    "disable".to_owned()
                } else {
                    format!("max_latency:{}", setting.value)
                };
                FormatAnswer::lines(
                    "annotations",
                    vec![format!("cpu-c-states.crio.io: \"{states}\"")],
                )
            }),
        ),
    ],
    ..HOST_SETTING
};
