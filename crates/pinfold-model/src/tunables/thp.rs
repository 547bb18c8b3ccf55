//! Transparent huge pages: for which mappings the kernel uses them
//! (<https://docs.kernel.org/admin-guide/mm/transhuge.html>).

use super::{FormatRule, HOST_SETTING, KernelFile, Place, Shape, Tunable, Values};

/// The row of this tunable.
pub static TUNABLE: Tunable = Tunable {
    key: "thp",
    field: "transparent_huge_pages",
    name: "transparent huge pages",
    meaning: "transparent huge pages",
    values: Values::Words(&[("always", "always"), ("madvise", "madvise"), ("never", "never")]),
    kernel: Some(KernelFile {
        place: Place::Host("/sys/kernel/mm/transparent_hugepage/enabled"),
        shape: Shape::Choice,
        usual: "always [madvise] never",
    }),
    doctor: "transparent huge pages",
    example: "never",
    trial_refusal: |_| {
        Some("it acts on memory that is touched later, and huge pages that were made stay")
    },
    said: &[
        ("cmdline", FormatRule::Line("transparent_hugepage={}")),
        ("tuned", FormatRule::Lines("vm", &["transparent_hugepages={}"], "")),
    ],
    ..HOST_SETTING
};
