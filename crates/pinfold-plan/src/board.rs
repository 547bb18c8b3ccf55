//! Which levels of a topology a guest's board can show.
//!
//! QEMU's `-smp` knows sockets, cores and threads on every board. `dies=` is refused ("not
//! supported by this machine's CPU topology") except on the PC boards of x86. `threads=` is taken
//! everywhere, but reaches the guest only where its firmware tables or CPU registers have a place
//! for it: x86, Arm `virt`, POWER, LoongArch; on RISC-V, s390x and the rest a thread is a core.

/// What a board can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Board {
    /// Its CPUs are x86.
    pub x86: bool,
    /// It has dies.
    pub dies: bool,
    /// It has threads of a core.
    pub threads: bool,
}

impl Board {
    /// The board of this name (QEMU's default if none) of an architecture in QEMU's words.
    pub fn of(architecture: &str, name: Option<&str>) -> Self {
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
        let check = |architecture: &str, name: Option<&str>, expected: (bool, bool)| {
            let board = Board::of(architecture, name);
            assert_eq!((board.dies, board.threads), expected, "{architecture} {name:?}");
        };
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
}
