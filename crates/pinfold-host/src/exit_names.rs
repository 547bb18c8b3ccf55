//! Names of the exits of KVM to user space.

/// The name of an exit to user space, as the kernel's events print it.
///
/// A negative error number means that the call failed; the exit reason is then not valid.
#[must_use]
pub fn userspace_exit_name(reason: u64, errno: u64) -> String {
    let errno = u32::try_from(errno).unwrap_or(0).cast_signed();
    match errno {
        -4 => "INTERRUPTED (signal)".to_owned(),
        ..0 => format!("error {}", errno.unsigned_abs()),
        0.. => {
            let known = USERSPACE.iter().find(|(number, _)| *number == reason);
            known.map_or_else(|| format!("KVM exit {reason}"), |(_, name)| (*name).to_owned())
        }
    }
}

/// `KVM_EXIT_…` of `include/uapi/linux/kvm.h`.
#[rustfmt::skip]
const USERSPACE: &[(u64, &str)] = &[
    (0, "UNKNOWN"), (1, "EXCEPTION"), (2, "IO"), (3, "HYPERCALL"), (4, "DEBUG"), (5, "HLT"),
    (6, "MMIO"), (7, "IRQ_WINDOW_OPEN"), (8, "SHUTDOWN"), (9, "FAIL_ENTRY"), (10, "INTR"),
    (11, "SET_TPR"), (12, "TPR_ACCESS"), (13, "S390_SIEIC"), (14, "S390_RESET"), (15, "DCR"),
    (16, "NMI"), (17, "INTERNAL_ERROR"), (18, "OSI"), (19, "PAPR_HCALL"), (20, "S390_UCONTROL"),
    (21, "WATCHDOG"), (22, "S390_TSCH"), (23, "EPR"), (24, "SYSTEM_EVENT"), (25, "S390_STSI"),
    (26, "IOAPIC_EOI"), (27, "HYPERV"), (28, "ARM_NISV"), (29, "X86_RDMSR"), (30, "X86_WRMSR"),
    (31, "DIRTY_RING_FULL"), (32, "AP_RESET_HOLD"), (33, "X86_BUS_LOCK"), (34, "XEN"),
    (35, "RISCV_SBI"), (36, "RISCV_CSR"), (37, "NOTIFY"), (38, "LOONGARCH_IOCSR"),
    (39, "MEMORY_FAULT"), (40, "TDX"), (41, "ARM_SEA"),
];
