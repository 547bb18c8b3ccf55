//! Topology levels that a guest's board supports.
//!
//! QEMU's `-smp` accepts sockets, cores and threads on every board. `dies=` is refused ("not
//! supported by this machine's CPU topology") except on the PC boards of x86. `threads=` is
//! accepted everywhere, but reaches the guest only if its firmware tables or CPU registers can
//! describe threads: x86, Arm `virt`, POWER, LoongArch. On RISC-V, s390x and others a thread is a
//! core.

/// Topology levels of a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Board {
    /// True for x86 CPUs.
    pub x86: bool,
    /// True if it supports dies.
    pub dies: bool,
    /// True if it supports threads of a core.
    pub threads: bool,
}

impl Board {
    /// The board of this name (QEMU's default if `None`) for an architecture as QEMU names it.
    pub fn new(architecture: &str, name: Option<&str>) -> Self {
        let x86 = matches!(architecture, "x86_64" | "i386");
        let is_pc = name.is_none_or(|name| {
            ["pc", "q35", "xenfv"].iter().any(|family| {
                name.strip_prefix(family)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            })
        });
        let others = ["aarch64", "ppc64", "loongarch64"];
        Self { x86, dies: x86 && is_pc, threads: x86 || others.contains(&architecture) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pc_has_dies() {
        check("x86_64", None, (true, true));
        check("x86_64", Some("q35"), (true, true));
        check("x86_64", Some("pc-q35-7.2"), (true, true));
        check("x86_64", Some("pc-i440fx-rhel7.0.0"), (true, true));
        check("x86_64", Some("microvm"), (false, true));
        check("x86_64", Some("isapc"), (false, true));
        check("aarch64", Some("virt"), (false, true));
        check("riscv64", Some("virt"), (false, false));
        check("s390x", None, (false, false));
        check("ppc64", Some("pseries"), (false, true));
        check("mips64el", None, (false, false));
    }

    fn check(architecture: &str, name: Option<&str>, expected: (bool, bool)) {
        let board = Board::new(architecture, name);
        assert_eq!((board.dies, board.threads), expected, "{architecture} {name:?}");
    }
}
