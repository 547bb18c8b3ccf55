//! Whether the kernel thread khugepaged compacts memory to make huge pages
//! (<https://docs.kernel.org/admin-guide/mm/transhuge.html#khugepaged-controls>).

use super::{HOST_SETTING, KernelFile, Place, Shape, Tunable, Values};

/// The row of this tunable.
pub static TUNABLE: Tunable = Tunable {
    key: "khugepaged-defrag",
    field: "khugepaged_defrag",
    name: "khugepaged",
    meaning: "whether khugepaged moves pages to make room for huge ones",
    reason: "no page is moved in the background",
    values: Values::Switch { raw: ["0", "1"] },
    kernel: Some(KernelFile {
        place: Place::Host("/sys/kernel/mm/transparent_hugepage/khugepaged/defrag"),
        shape: Shape::Integer,
        usual: "1",
    }),
    example: "off",
    trial_refusal: |value| value.is_on().then_some("huge pages that were made stay"),
    ..HOST_SETTING
};
