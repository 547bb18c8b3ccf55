//! Kernel samepage merging (<https://docs.kernel.org/admin-guide/mm/ksm.html>): stopped with the
//! merged pages kept, running, or stopped with all pages unmerged.

use super::{FormatRule, HOST_SETTING, KernelFile, Place, Shape, Tunable, Value, Values};

/// The row of this tunable.
pub static TUNABLE: Tunable = Tunable {
    key: "ksm",
    field: "same_page_merging",
    name: "ksm",
    meaning: "kernel samepage merging",
    values: Values::Words(&[("stop", "0"), ("run", "1"), ("unmerge", "2")]),
    kernel: Some(KernelFile {
        place: Place::Host("/sys/kernel/mm/ksm/run"),
        shape: Shape::Integer,
        usual: "0",
    }),
    doctor: "KSM off",
    example: "unmerge",
    trial_refusal: |value| {
        let Value::Word(word) = value else { return None };
        match *word {
            "run" => Some("pages that were merged stay merged"),
            "unmerge" => Some("pages are merged again only much later"),
            _ => None,
        }
    },
    said: &[
        (
            "libvirt",
            FormatRule::Nothing(
                "it is a setting of the host; <nosharepages/> in <memoryBacking> keeps this domain out of it",
            ),
        ),
        (
            "virsh",
            FormatRule::Nothing("virsh node-memory-tune tunes it, but does not start or stop it"),
        ),
        (
            "proxmox",
            FormatRule::Nothing(
                "ksmtuned starts and stops it; qm of newer releases keeps one machine out by --allow-ksm 0",
            ),
        ),
    ],
    ..HOST_SETTING
};
