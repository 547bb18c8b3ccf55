//! What the micro-guest makes, so that counts can be held against it.

use pinfold_host::Work;

use super::{ExitTable, Level};

/// What it is asked for.
pub const WORK: Work = Work { cpuid: 500, rdmsr: 500, out: 1_000, mmio: 200 };

/// A kind of exit that the micro-guest makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// What the guest does.
    pub what: &'static str,
    /// How often.
    pub expected: u64,
    /// How many exits were counted; `None` if this level does not see them.
    pub counted: Option<u64>,
}

impl Expected {
    /// What is wrong with it, if anything is.
    #[must_use]
    pub fn wrong(&self) -> Option<String> {
        let counted = self.counted.filter(|counted| *counted != self.expected)?;
        Some(format!("{counted} of {} {}", self.expected, self.what))
    }
}

/// What a table of [`WORK`] counted of each kind.
#[must_use]
pub fn expected(table: &ExitTable) -> Vec<Expected> {
    let counted = |names: &[&str]| -> u64 {
        let is_one = |name: &str| {
            let plain = name.trim_end_matches(')').split(" (").last().unwrap_or(name);
            names.contains(&plain)
        };
        table.total.rows.iter().filter(|row| is_one(&row.name)).map(|row| row.count).sum()
    };
    // KVM answers them itself: they never reach the emulator.
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
