//! The rules of a writable file.

use pinfold_model::PuId;
use pinfold_model::tunables::{KernelFile, Place, Shape};

/// What a writable file accepts, and how it shows its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteRule {
    /// Any text.
    Text,
    /// An integer; anything else is `EINVAL`.
    Integer,
    /// A hexadecimal CPU mask; one without an online CPU is `EINVAL`.
    Mask,
    /// A CPU list; one without an online CPU is `EINVAL`.
    List,
    /// A list that cannot be changed: `EIO`, as for a managed interrupt.
    Managed,
    /// One of several words, shown as `always [madvise] never`; other words are `EINVAL`.
    Choice,
    /// Whether this CPU is online, `0` or `1`; taking the last one offline is `EBUSY`.
    Online(PuId),
    /// `on` or `off`; `off` leaves only this number of first CPUs online, one per core.
    Smt(u32),
    /// A cpufreq governor: one of those in `scaling_available_governors` of the same directory.
    Governor,
    /// A frequency in kHz, accepted only under the governor `userspace`.
    Frequency,
    /// A number of huge pages; there is memory for this number only.
    Pool(u64),
    /// A number that is rounded down to a multiple of this step, as some drivers do.
    Steps(u64),
}

impl WriteRule {
    /// The rule for the file of a tunable that behaves like others; SMT and single CPUs have rules
    /// of their own.
    pub(super) fn from_kernel(kernel: KernelFile) -> Self {
        match (kernel.shape, kernel.place) {
            (Shape::Text, _) => Self::Text,
            (Shape::Mask, _) => Self::Mask,
            (Shape::List, _) => Self::List,
            (Shape::Choice, _) => Self::Choice,
            (Shape::Rounded, Place::Pool) => Self::Pool(64),
            (Shape::Rounded | Shape::Integer, _) => Self::Integer,
        }
    }
}
