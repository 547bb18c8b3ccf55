//! Transparent huge pages: for which mappings the kernel uses them
//! (<https://docs.kernel.org/admin-guide/mm/transhuge.html>).

use super::{HOST_SETTING, Kernel, Place, Say, Shape, Tunable, Values};

/// The row of this tunable.
pub static TUNABLE: Tunable = Tunable {
    key: "thp",
    field: "transparent_huge_pages",
    name: "transparent huge pages",
    meaning: "transparent huge pages",
    values: Values::Words(&[("always", "always"), ("madvise", "madvise"), ("never", "never")]),
    kernel: Some(Kernel {
        place: Place::Host("/sys/kernel/mm/transparent_hugepage/enabled"),
        shape: Shape::Choice,
        usual: "always [madvise] never",
    }),
    doctor: "transparent huge pages",
    example: "never",
    said: &[
        ("cmdline", Say::Line("transparent_hugepage={}")),
        ("tuned", Say::Lines("vm", &["transparent_hugepages={}"], "")),
    ],
    ..HOST_SETTING
};
