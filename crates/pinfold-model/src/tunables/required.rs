//! Whether the plan is not applied if the host lacks or refuses a tunable.

use super::{FormatRule, HOST_SETTING, Tunable, Values};

const ALONE: FormatRule = FormatRule::Nothing("`pinfold apply` alone checks it");

/// The row of this option of a plan.
pub static TUNABLE: Tunable = Tunable {
    key: "required",
    name: "required",
    meaning: "the plan is not applied if the host lacks or refuses a tunable",
    values: Values::Words(&[("yes", ""), ("no", "")]),
    example: "yes",
    trial_refusal: |_| Some("it is an option of a plan and changes nothing on the host"),
    said: &[
        ("libvirt", ALONE),
        ("virsh", ALONE),
        ("cmdline", ALONE),
        ("systemd", ALONE),
        ("tuned", ALONE),
        ("proxmox", ALONE),
        ("kubevirt", ALONE),
        ("nova", ALONE),
    ],
    ..HOST_SETTING
};
