//! The names of QEMU's program.

/// True if a program's file name is that of QEMU's system emulator: `qemu-system-ARCH`, also
/// wrapped (`.qemu-system-x86_64-wrapped`), RHEL's `qemu-kvm`, Debian's and Proxmox's `kvm`.
pub fn is_qemu(program: &str) -> bool {
    program.contains("qemu-system-") || program == "qemu-kvm" || program == "kvm"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_programs() {
        for name in ["qemu-system-x86_64", ".qemu-system-aarch64-wrapped", "qemu-kvm", "kvm"] {
            assert!(is_qemu(name), "{name}");
        }
        for name in ["bash", "qemu-img", "kvmtool", ""] {
            assert!(!is_qemu(name), "{name}");
        }
    }
}
