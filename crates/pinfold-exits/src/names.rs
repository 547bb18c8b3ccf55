//! Names of exit reasons: Intel VMX, AMD SVM, Arm, RISC-V, and KVM exits to user space.
//!
//! The numbers are those of the processor manuals, the names those that the kernel's events print
//! (`VMX_EXIT_REASONS`, `SVM_EXIT_REASONS`, `kvm_arm_exception_class`, `KVM_EXIT_…`). So a table
//! can be compared with one of `perf kvm stat` or of Crăciun 2016. A number without a name is
//! printed as a number.

use pinfold_host::{ExitKey, ExitSource, userspace_exit_name};

/// A processor architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// x86; each event contains whether it is VMX or SVM.
    X86,
    /// Arm, 64 bit.
    Arm,
    /// RISC-V.
    RiscV,
}

impl Architecture {
    /// The architecture of this program; `None` if exits have no names on it.
    pub fn here() -> Option<Self> {
        match std::env::consts::ARCH {
            "x86_64" | "x86" => Some(Architecture::X86),
            "aarch64" => Some(Architecture::Arm),
            "riscv64" => Some(Architecture::RiscV),
            _ => None,
        }
    }
}

/// Name of an exit in tables.
pub fn name(source: ExitSource, architecture: Option<Architecture>, key: ExitKey) -> String {
    let low = key.reason & 0xffff_ffff;
    let high = key.reason >> 32;
    match (source, architecture) {
        (ExitSource::Userspace, _) => userspace_exit_name(low, high),
        (ExitSource::Hardware, Some(Architecture::X86)) => x86(low, high) + suffix(key),
        (ExitSource::Hardware, Some(Architecture::Arm)) => arm(low, high, key),
        (ExitSource::Hardware, Some(Architecture::RiscV)) => risc_v(key.reason) + suffix(key),
        (ExitSource::Hardware, None) => format!("exit {:#x}", key.reason) + suffix(key),
    }
}

fn suffix(key: ExitKey) -> &'static str {
    match (key.is_mmio, key.is_ipi) {
        (false, false) => "",
        (true, false) => " (MMIO)",
        (false, true) => " (IPI)",
        (true, true) => " (MMIO, IPI)",
    }
}

fn look_up(table: &[(u64, &str)], number: u64) -> Option<String> {
    table.iter().find(|(known, _)| *known == number).map(|(_, name)| (*name).to_owned())
}

/// `isa` is 1 for VMX and 2 for SVM.
fn x86(reason: u64, isa: u64) -> String {
    match isa {
        1 => {
            let name = look_up(VMX, reason & 0xffff)
                .unwrap_or_else(|| format!("VMX exit {}", reason & 0xffff));
            let failed = reason & 0x8000_0000 != 0;
            if failed { name + " FAILED_VMENTRY" } else { name }
        }
        2 => look_up(SVM, reason).unwrap_or_else(|| format!("SVM exit {reason:#x}")),
        other => format!("exit {reason:#x} of isa {other}"),
    }
}

/// Data aborts are distinguished as in Crăciun 2016: a page of memory that is not mapped yet, a
/// device, and the device that sends interprocessor interrupts.
fn arm(code: u64, class: u64, key: ExitKey) -> String {
    match code & 0x7fff_ffff {
        0 => "IRQ".to_owned(),
        1 => "SERROR".to_owned(),
        2 if class == DABT_LOW && key.is_ipi => "DABT_IO_MEM_IPI".to_owned(),
        2 if class == DABT_LOW && key.is_mmio => "DABT_IO_MEM".to_owned(),
        2 if class == SYS64 && key.is_ipi => "SYS64_IPI".to_owned(),
        2 => look_up(ARM, class).unwrap_or_else(|| format!("trap class {class:#x}")) + suffix(key),
        3 => "ILLEGAL".to_owned(),
        0x0bad_ca11 => "HYP_GONE".to_owned(),
        other => format!("Arm exit {other:#x}"),
    }
}

fn risc_v(cause: u64) -> String {
    const INTERRUPT: u64 = 1 << 63;
    let number = cause & !INTERRUPT;
    match cause & INTERRUPT {
        0 => look_up(RISC_V, number).unwrap_or_else(|| format!("RISC-V exception {number}")),
        _ => look_up(RISC_V_IRQ, number).unwrap_or_else(|| format!("RISC-V interrupt {number}")),
    }
}

/// Exception class of a data abort from a lower exception level.
const DABT_LOW: u64 = 0x24;
/// Exception class of an access to a system register.
const SYS64: u64 = 0x18;

/// Intel: `arch/x86/include/uapi/asm/vmx.h`.
#[rustfmt::skip]
const VMX: &[(u64, &str)] = &[
    (0, "EXCEPTION_NMI"), (1, "EXTERNAL_INTERRUPT"), (2, "TRIPLE_FAULT"), (3, "INIT_SIGNAL"),
    (4, "SIPI_SIGNAL"), (7, "INTERRUPT_WINDOW"), (8, "NMI_WINDOW"), (9, "TASK_SWITCH"),
    (10, "CPUID"), (12, "HLT"), (13, "INVD"), (14, "INVLPG"), (15, "RDPMC"), (16, "RDTSC"),
    (18, "VMCALL"), (19, "VMCLEAR"), (20, "VMLAUNCH"), (21, "VMPTRLD"), (22, "VMPTRST"),
    (23, "VMREAD"), (24, "VMRESUME"), (25, "VMWRITE"), (26, "VMOFF"), (27, "VMON"),
    (28, "CR_ACCESS"), (29, "DR_ACCESS"), (30, "IO_INSTRUCTION"), (31, "MSR_READ"),
    (32, "MSR_WRITE"), (33, "INVALID_STATE"), (34, "MSR_LOAD_FAIL"), (36, "MWAIT_INSTRUCTION"),
    (37, "MONITOR_TRAP_FLAG"), (39, "MONITOR_INSTRUCTION"), (40, "PAUSE_INSTRUCTION"),
    (41, "MCE_DURING_VMENTRY"), (43, "TPR_BELOW_THRESHOLD"), (44, "APIC_ACCESS"),
    (45, "EOI_INDUCED"), (46, "GDTR_IDTR"), (47, "LDTR_TR"), (48, "EPT_VIOLATION"),
    (49, "EPT_MISCONFIG"), (50, "INVEPT"), (51, "RDTSCP"), (52, "PREEMPTION_TIMER"),
    (53, "INVVPID"), (54, "WBINVD"), (55, "XSETBV"), (56, "APIC_WRITE"), (57, "RDRAND"),
    (58, "INVPCID"), (59, "VMFUNC"), (60, "ENCLS"), (61, "RDSEED"), (62, "PML_FULL"),
    (63, "XSAVES"), (64, "XRSTORS"), (67, "UMWAIT"), (68, "TPAUSE"), (74, "BUS_LOCK"),
    (75, "NOTIFY"), (77, "TDCALL"), (84, "MSR_READ_IMM"), (85, "MSR_WRITE_IMM"),
];

/// AMD: `arch/x86/include/uapi/asm/svm.h`.
#[rustfmt::skip]
const SVM: &[(u64, &str)] = &[
    (0x0, "read_cr0"), (0x2, "read_cr2"), (0x3, "read_cr3"), (0x4, "read_cr4"), (0x8, "read_cr8"),
    (0x10, "write_cr0"), (0x12, "write_cr2"), (0x13, "write_cr3"), (0x14, "write_cr4"),
    (0x18, "write_cr8"), (0x20, "read_dr0"), (0x21, "read_dr1"), (0x22, "read_dr2"),
    (0x23, "read_dr3"), (0x24, "read_dr4"), (0x25, "read_dr5"), (0x26, "read_dr6"),
    (0x27, "read_dr7"), (0x30, "write_dr0"), (0x31, "write_dr1"), (0x32, "write_dr2"),
    (0x33, "write_dr3"), (0x34, "write_dr4"), (0x35, "write_dr5"), (0x36, "write_dr6"),
    (0x37, "write_dr7"), (0x40, "DE excp"), (0x41, "DB excp"), (0x43, "BP excp"), (0x44, "OF excp"),
    (0x45, "BR excp"), (0x46, "UD excp"), (0x47, "NM excp"), (0x48, "DF excp"), (0x4a, "TS excp"),
    (0x4b, "NP excp"), (0x4c, "SS excp"), (0x4d, "GP excp"), (0x4e, "PF excp"), (0x50, "MF excp"),
    (0x51, "AC excp"), (0x52, "MC excp"), (0x53, "XF excp"), (0x60, "interrupt"), (0x61, "nmi"),
    (0x62, "smi"), (0x63, "init"), (0x64, "vintr"), (0x65, "cr0_sel_write"), (0x66, "read_idtr"),
    (0x67, "read_gdtr"), (0x68, "read_ldtr"), (0x69, "read_rt"), (0x6a, "write_idtr"),
    (0x6b, "write_gdtr"), (0x6c, "write_ldtr"), (0x6d, "write_rt"), (0x6e, "rdtsc"),
    (0x6f, "rdpmc"), (0x70, "pushf"), (0x71, "popf"), (0x72, "cpuid"), (0x73, "rsm"),
    (0x74, "iret"), (0x75, "swint"), (0x76, "invd"), (0x77, "pause"), (0x78, "hlt"),
    (0x79, "invlpg"), (0x7a, "invlpga"), (0x7b, "io"), (0x7c, "msr"), (0x7d, "task_switch"),
    (0x7e, "ferr_freeze"), (0x7f, "shutdown"), (0x80, "vmrun"), (0x81, "hypercall"),
    (0x82, "vmload"), (0x83, "vmsave"), (0x84, "stgi"), (0x85, "clgi"), (0x86, "skinit"),
    (0x87, "rdtscp"), (0x88, "icebp"), (0x89, "wbinvd"), (0x8a, "monitor"), (0x8b, "mwait"),
    (0x8d, "xsetbv"), (0x8f, "write_efer_trap"), (0x90, "write_cr0_trap"), (0x94, "write_cr4_trap"),
    (0x98, "write_cr8_trap"), (0xa2, "invpcid"), (0xa5, "buslock"), (0xa6, "idle-halt"),
    (0x400, "npf"), (0x401, "avic_incomplete_ipi"), (0x402, "avic_unaccelerated_access"),
    (0x403, "vmgexit"), (0x80000001, "vmgexit_mmio_read"), (0x80000002, "vmgexit_mmio_write"),
    (0x80000003, "vmgexit_nmi_complete"), (0x80000004, "vmgexit_ap_hlt_loop"),
    (0x80000005, "vmgexit_ap_jump_table"), (0x80000010, "vmgexit_page_state_change"),
    (0x80000011, "vmgexit_guest_request"), (0x80000012, "vmgexit_ext_guest_request"),
    (0x80000013, "vmgexit_ap_creation"), (0x8000fffd, "vmgexit_hypervisor_feature"),
    (0xffffffff, "invalid_guest_state"),
];

/// Arm: exception classes, `arch/arm64/include/asm/esr.h`.
#[rustfmt::skip]
const ARM: &[(u64, &str)] = &[
    (0x0, "UNKNOWN"), (0x1, "WFx"), (0x3, "CP15_32"), (0x4, "CP15_64"), (0x5, "CP14_MR"),
    (0x6, "CP14_LS"), (0x7, "FP_ASIMD"), (0x8, "CP10_ID"), (0x9, "PAC"), (0xa, "OTHER"),
    (0xc, "CP14_64"), (0xd, "BTI"), (0xe, "ILL"), (0x11, "SVC32"), (0x12, "HVC32"), (0x13, "SMC32"),
    (0x15, "SVC64"), (0x16, "HVC64"), (0x17, "SMC64"), (0x18, "SYS64"), (0x19, "SVE"),
    (0x1a, "ERET"), (0x1c, "FPAC"), (0x1d, "SME"), (0x1f, "IMP_DEF"), (0x20, "IABT_LOW"),
    (0x21, "IABT_CUR"), (0x22, "PC_ALIGN"), (0x24, "DABT_LOW"), (0x25, "DABT_CUR"),
    (0x26, "SP_ALIGN"), (0x27, "MOPS"), (0x28, "FP_EXC32"), (0x2c, "FP_EXC64"), (0x2f, "SERROR"),
    (0x30, "BREAKPT_LOW"), (0x31, "BREAKPT_CUR"), (0x32, "SOFTSTP_LOW"), (0x33, "SOFTSTP_CUR"),
    (0x34, "WATCHPT_LOW"), (0x35, "WATCHPT_CUR"), (0x38, "BKPT32"), (0x3a, "VECTOR32"),
    (0x3c, "BRK64"),
];

/// RISC-V: exceptions, `arch/riscv/include/asm/csr.h`.
#[rustfmt::skip]
const RISC_V: &[(u64, &str)] = &[
    (0, "INST_MISALIGNED"), (1, "INST_ACCESS"), (2, "INST_ILLEGAL"), (3, "BREAKPOINT"),
    (4, "LOAD_MISALIGNED"), (5, "LOAD_ACCESS"), (6, "STORE_MISALIGNED"), (7, "STORE_ACCESS"),
    (8, "SYSCALL"), (9, "HYPERVISOR_SYSCALL"), (10, "SUPERVISOR_SYSCALL"), (12, "INST_PAGE_FAULT"),
    (13, "LOAD_PAGE_FAULT"), (15, "STORE_PAGE_FAULT"), (20, "INST_GUEST_PAGE_FAULT"),
    (21, "LOAD_GUEST_PAGE_FAULT"), (22, "VIRTUAL_INST_FAULT"), (23, "STORE_GUEST_PAGE_FAULT"),
];

/// RISC-V: interrupts.
#[rustfmt::skip]
const RISC_V_IRQ: &[(u64, &str)] = &[
    (1, "IRQ_S_SOFT"), (2, "IRQ_VS_SOFT"), (3, "IRQ_M_SOFT"), (5, "IRQ_S_TIMER"),
    (6, "IRQ_VS_TIMER"), (7, "IRQ_M_TIMER"), (9, "IRQ_S_EXT"), (10, "IRQ_VS_EXT"),
    (11, "IRQ_M_EXT"), (12, "IRQ_S_GEXT"), (13, "IRQ_PMU_OVF"),
];

#[cfg(test)]
mod tests {
    use pinfold_host::Tracefs;

    use super::*;

    fn key(reason: u64, is_mmio: bool, is_ipi: bool) -> ExitKey {
        ExitKey { reason, is_mmio, is_ipi }
    }

    #[test]
    fn reasons_have_the_kernels_names() {
        let plain = |reason| key(reason, false, false);
        let (vmx, svm, trap) = (1 << 32, 2 << 32, 2_u64);
        check_name(Architecture::X86, plain(vmx | 10), "CPUID");
        check_name(Architecture::X86, plain(vmx | 0x8000_0021), "INVALID_STATE FAILED_VMENTRY");
        check_name(Architecture::X86, plain(vmx | 999), "VMX exit 999");
        check_name(Architecture::X86, key(vmx | 49, true, false), "EPT_MISCONFIG (MMIO)");
        check_name(Architecture::X86, key(vmx | 56, false, true), "APIC_WRITE (IPI)");
        check_name(Architecture::X86, plain(svm | 0x72), "cpuid");
        check_name(Architecture::X86, key(svm | 0x400, true, true), "npf (MMIO, IPI)");
        check_name(Architecture::X86, plain(svm | 0x0fff), "SVM exit 0xfff");
        check_name(Architecture::X86, plain(7), "exit 0x7 of isa 0");
        check_name(Architecture::Arm, plain(0), "IRQ");
        check_name(Architecture::Arm, plain(trap | 0x01 << 32), "WFx");
        check_name(Architecture::Arm, plain(trap | 0x24 << 32), "DABT_LOW");
        check_name(Architecture::Arm, key(trap | 0x24 << 32, true, false), "DABT_IO_MEM");
        check_name(Architecture::Arm, key(trap | 0x24 << 32, true, true), "DABT_IO_MEM_IPI");
        check_name(Architecture::Arm, key(trap | 0x18 << 32, false, true), "SYS64_IPI");
        check_name(Architecture::Arm, plain(trap | 0x3f << 32), "trap class 0x3f");
        check_name(Architecture::RiscV, plain(21), "LOAD_GUEST_PAGE_FAULT");
        check_name(Architecture::RiscV, plain(1 << 63 | 5), "IRQ_S_TIMER");
        check_name(Architecture::RiscV, plain(1 << 63 | 40), "RISC-V interrupt 40");
        let unknown = name(ExitSource::Hardware, None, plain(0x11));
        assert_eq!(unknown, "exit 0x11");
    }

    fn check_name(architecture: Architecture, key: ExitKey, expected: &str) {
        let found = name(ExitSource::Hardware, Some(architecture), key);
        assert_eq!(found, expected, "{key:?}");
    }

    #[test]
    fn exits_to_the_emulator_have_kvms_names() {
        check(2, 0, "IO");
        check(6, 0, "MMIO");
        check(6, -4, "INTERRUPTED (signal)");
        check(6, -14, "error 14");
        check(99, 0, "KVM exit 99");
    }

    fn check(reason: u64, errno: i32, expected: &str) {
        let key = key(u64::from(errno.cast_unsigned()) << 32 | reason, false, false);
        assert_eq!(name(ExitSource::Userspace, Some(Architecture::X86), key), expected);
    }

    /// Every name that the kernel of this machine gives to a reason equals ours.
    #[test]
    fn the_running_kernel_says_the_same() {
        let format = Tracefs::open().and_then(|tracing| tracing.format("kvm/kvm_exit"));
        let printed = match format {
            Ok(format) if format.print.contains("EXTERNAL_INTERRUPT") => format.print,
            Ok(_) => {
                println!("skipped: this kernel has no event kvm_exit of x86");
                return;
            }
            Err(error) => {
                println!("skipped: {error}");
                return;
            }
        };
        let (vmx, svm) = printed.split_once(": __print_symbolic").unwrap();
        let mut compared = 0;
        for (isa, text) in [(1 << 32, vmx), (2 << 32, svm)] {
            for pair in text.split("{ ").skip(1).filter(|pair| !pair.contains("FAILED")) {
                let (number, rest) = pair.split_once(", \"").unwrap();
                let (expected, _) = rest.split_once('"').unwrap();
                let sum: i64 = number.split(" + ").map(number_of).sum();
                let reason = isa | u64::from(u32::try_from(sum & 0xffff_ffff).unwrap());
                let key = key(reason, false, false);
                let found = name(ExitSource::Hardware, Some(Architecture::X86), key);
                if !found.contains(" exit ") {
                    assert_eq!(found, expected);
                    compared += 1;
                }
            }
        }
        assert!(compared > 100, "{compared} of {printed}");
    }

    fn number_of(text: &str) -> i64 {
        match text.trim().strip_prefix("0x") {
            Some(hexadecimal) => i64::from_str_radix(hexadecimal, 16).unwrap(),
            None => text.trim().parse().unwrap(),
        }
    }
}
