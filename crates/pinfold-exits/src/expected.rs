//! The exits that the micro-guest causes, to check the counts.

use pinfold_host::Work;

use crate::level::Level;
use crate::table::ExitTable;

/// The work that is requested.
pub const WORK: Work = Work { cpuid: 500, rdmsr: 500, out: 1_000, mmio: 200 };

/// A type of exit that the micro-guest causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The operation of the guest.
    pub what: &'static str,
    /// Expected number of exits.
    pub expected: u64,
    /// Number of exits that were counted; `None` if this level does not have them.
    pub counted: Option<u64>,
}

impl Expected {
    /// The mismatch, if there is one.
    pub fn wrong(&self) -> Option<String> {
        let counted = self.counted.filter(|counted| *counted != self.expected)?;
        Some(format!("{counted} of {} {}", self.expected, self.what))
    }
}

/// The expected and counted exits of each type in a table of [`WORK`].
pub fn compare_expected(table: &ExitTable) -> Vec<Expected> {
    let counted = |names: &[&str]| -> u64 {
        let is_one = |name: &str| {
            let plain = name.trim_end_matches(')').split(" (").last().unwrap_or(name);
            names.contains(&plain)
        };
        table.total.rows.iter().filter(|row| is_one(&row.name)).map(|row| row.count).sum()
    };
    // KVM handles them in the kernel: they never reach user space.
    let inside = |names: &[&str]| match table.level {
        Level::A => Some(counted(names)),
        Level::B | Level::C => None,
    };
    [
        ("CPUID", WORK.cpuid, inside(&["cpuid", "CPUID"])),
        ("RDMSR", WORK.rdmsr, inside(&["msr", "MSR_READ"])),
        ("port writes", WORK.out, Some(counted(&["io", "IO_INSTRUCTION", "IO"]))),
        ("MMIO writes", WORK.mmio, Some(counted(&["MMIO"]))),
    ]
    .into_iter()
    .map(|(what, expected, counted)| Expected { what, expected: expected.into(), counted })
    .collect()
}
