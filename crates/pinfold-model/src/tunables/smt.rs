//! Whether all threads of a core are in use, or only the first one
//! (<https://docs.kernel.org/admin-guide/hw-vuln/l1tf.html#smt-control>).

use super::{
    FormatAnswer, FormatRule, HOST_SETTING, KernelFile, Place, Shape, Tunable, Values, offline,
};
use crate::{Finding, Smt};

/// The row of this tunable. Apply sets it last, after it has moved what would be lost.
pub static TUNABLE: Tunable = Tunable {
    key: offline::SMT,
    field: "smt",
    name: "SMT",
    meaning: "whether all threads of a core are in use",
    values: Values::Switch { raw: ["off", "on"] },
    kernel: Some(KernelFile {
        place: Place::Host("/sys/devices/system/cpu/smt/control"),
        shape: Shape::Text,
        usual: "on",
    }),
    example: "off",
    trial_refusal: |_| Some("tasks, interrupts and kernel threads leave a CPU that goes offline"),
    wrong: |setting, plan, topology| {
        if !setting.value.is_on() {
            return offline::in_use(plan, topology);
        }
        let is_missing = topology.smt == Smt::NotSupported;
        let text = "this processor has one thread on each core";
        is_missing
            .then(|| Finding::problem("smt", text).with_hint("leave smt=on out"))
            .into_iter()
            .collect()
    },
    said: &[(
        "cmdline",
        FormatRule::By(|setting, _| {
            if setting.value.is_on() {
                FormatAnswer::nothing("SMT is on unless nosmt or maxcpus= says otherwise")
            } else {
                FormatAnswer::line("nosmt".to_owned())
            }
        }),
    )],
    ..HOST_SETTING
};
