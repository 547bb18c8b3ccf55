//! Lowest frequency of the plan's CPUs in kHz
//! (<https://docs.kernel.org/admin-guide/pm/cpufreq.html>).

use super::max_khz::{self, KHZ};
use super::{HOST_SETTING, KernelFile, Place, Setting, Shape, Tunable, Value};
use crate::{Finding, Plan, Topology};

/// The row of this tunable. Apply orders both limits.
pub static TUNABLE: Tunable = Tunable {
    key: "min-khz",
    field: "min_khz",
    name: "cpufreq",
    meaning: "lowest frequency of the plan's CPUs in kHz",
    values: KHZ,
    kernel: Some(KernelFile {
        place: Place::Cpu("cpufreq/scaling_min_freq"),
        shape: Shape::Rounded,
        usual: "800000",
    }),
    doctor: "cpufreq",
    example: "3000000",
    fault: |value, tuning| {
        let (Value::Number(min), Some(max)) = (value, tuning.number(&max_khz::TUNABLE)) else {
            return None;
        };
        (*min > max).then(|| format!("{min} is above max_khz ({max})"))
    },
    wrong: |setting, plan, topology| {
        report_unreached(setting, plan, topology).into_iter().collect()
    },
    ..HOST_SETTING
};

/// A minimum frequency that none of the plan's CPUs reaches.
fn report_unreached(setting: &Setting, plan: &Plan, topology: &Topology) -> Option<Finding> {
    let Value::Number(min) = setting.value else { return None };
    let pus = plan.pus();
    let here = topology.highest_khz.iter().filter(|(pu, _)| pus.contains(**pu));
    let highest = here.map(|(_, khz)| *khz).max().filter(|highest| min > *highest)?;
    let text = format!("{min} kHz is more than {highest} kHz, the highest of the plan's CPUs");
    Some(Finding::problem("min-khz", text).with_hint("frequencies are in kHz: 2.4 GHz is 2400000"))
}
