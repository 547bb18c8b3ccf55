//! Instruction sets of guests.

use std::fmt;

/// The instruction set of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// x86-64.
    X86,
    /// RISC-V, 64 bits.
    Riscv,
    /// Arm, 64 bits.
    Arm,
}

impl Isa {
    /// All instruction sets.
    pub const ALL: [Isa; 3] = [Isa::X86, Isa::Riscv, Isa::Arm];

    /// Stable name, used in study files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Isa::X86 => "x86-64",
            Isa::Riscv => "riscv64",
            Isa::Arm => "aarch64",
        }
    }

    /// The instruction set with this name.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == name)
    }

    /// Name in the GNU tools and QEMU: `x86_64`.
    #[must_use]
    pub fn gnu_name(self) -> &'static str {
        match self {
            Isa::X86 => "x86_64",
            Isa::Riscv | Isa::Arm => self.name(),
        }
    }

    /// Name in Debian: `amd64`.
    #[must_use]
    pub fn debian_name(self) -> &'static str {
        match self {
            Isa::X86 => "amd64",
            Isa::Riscv => "riscv64",
            Isa::Arm => "arm64",
        }
    }

    /// The host's instruction set, for which this program was compiled; `None` if it is not listed.
    pub fn of_host() -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.gnu_name() == std::env::consts::ARCH)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for isa in Isa::ALL {
            assert_eq!(Isa::from_name(isa.name()), Some(isa));
        }
        assert_eq!(Isa::from_name("amd64"), None);
    }
}
