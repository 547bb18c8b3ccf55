//! The differences between instruction sets: the board of a host under test, and the machine that
//! is placed in it.

use pinfold_model::Isa;

/// QEMU's arguments for a host under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Board {
    /// `-machine`.
    pub(crate) machine: &'static str,
    /// `-cpu`.
    pub(crate) cpu: &'static str,
    /// Its kernel parameters.
    pub(crate) kernel: &'static str,
}

/// On a busy machine, the kernel's check of the timer may fail with a panic. Its watchdog may also
/// mark the TSC as unstable and switch to a clock that stops all CPUs when it is read.
const X86_KERNEL: &str = "console=ttyS0 no_timer_check tsc=reliable";

/// The board of an instruction set; with `virtualises`, one with a real KVM.
pub(crate) fn board(isa: Isa, virtualises: bool) -> Board {
    let (machine, cpu, kernel) = match (isa, virtualises) {
        // TCG of QEMU 7.2 corrupts flags on cmpxchg16b, which kernels from 6.12 on use. With the
        // AMD processor of `max`, Linux 6.1 sees no SMT.
        (Isa::X86, false) => ("q35,sata=off", "max,cx16=off,vendor=GenuineIntel", X86_KERNEL),
        (Isa::X86, true) => ("q35,sata=off", "EPYC,+svm,+npt,cx16=off", X86_KERNEL),
        // QEMU's implementation of pointer authentication: Arm's own takes half of the time.
        (Isa::Arm, false) => ("virt,gic-version=3", "max,pauth-impdef=on", "console=ttyAMA0"),
        (Isa::Arm, true) => {
            ("virt,virtualization=on,gic-version=3", "max,pauth-impdef=on", "console=ttyAMA0")
        }
        (Isa::Riscv, false) => ("virt,aclint=on", "rv64", "console=ttyS0"),
        (Isa::Riscv, true) => ("virt,aclint=on", "rv64,h=true", "console=ttyS0"),
    };
    Board { machine, cpu, kernel }
}

/// Path of the firmware of the machines in a host under test.
pub(crate) const IDLE_ROM: &str = "/lab/idle.rom";
/// Path of the firmware of a machine with known exits.
pub(crate) const LEAVING_ROM: &str = "/lab/leaving.rom";

/// QEMU with the smallest machine in a host under test; accelerator and name follow.
pub(crate) fn machine(isa: Isa) -> String {
    let board = match isa {
        Isa::X86 => "microvm",
        Isa::Arm => "virt,gic-version=3 -cpu max",
        Isa::Riscv => "virt",
    };
    let (program, firmware) = (isa.gnu_name(), firmware(isa, IDLE_ROM));
    format!(
        "qemu-system-{program} -machine {board} -nodefaults -no-user-config -display none -m 16M {firmware}"
    )
}

/// QEMU's arguments for the first program of a machine; if they are given twice, the second is
/// used.
pub(crate) fn firmware(isa: Isa, rom: &str) -> String {
    match isa {
        Isa::X86 | Isa::Arm => format!("-bios {rom}"),
        // KVM has its own firmware there, and starts with the kernel.
        Isa::Riscv => format!("-bios none -kernel {rom}"),
    }
}

/// Firmware in which every vCPU halts in its first instruction.
pub(crate) fn idle_rom(isa: Isa) -> Vec<u8> {
    match isa {
        // The reset vector is 16 bytes below the end of the ROM: `cli; hlt; jmp` back to the `hlt`.
        Isa::X86 => {
            const SIZE: usize = 64 * 1024;
            let mut rom = vec![0xf4; SIZE];
            rom[SIZE - 16..SIZE - 12].copy_from_slice(&[0xfa, 0xf4, 0xeb, 0xfd]);
            rom
        }
        // `wfi`, and a branch back to it; the first vCPU starts at the beginning of the ROM.
        Isa::Arm => words(&[0xd503_207f, 0x17ff_ffff]),
        Isa::Riscv => words(&[0x1050_0073, 0xffdf_f06f]),
    }
}

/// Firmware that calls the hypervisor twice, writes once to a device, counts to two million, and
/// starts again. On x86, Pinfold's own micro-guest is more exact.
pub(crate) fn leaving_rom(isa: Isa) -> Option<Vec<u8>> {
    match isa {
        Isa::X86 => None,
        // mov w0, PSCI_VERSION; hvc (twice); strb to the PL011; count; branch to the start
        Isa::Arm => Some(words(&[
            0x52b0_8000,
            0xd400_0002,
            0x52b0_8000,
            0xd400_0002,
            0xd2a1_2001,
            0x3900_003f,
            0xd2a0_0402,
            0xf100_0442,
            0x54ff_ffe1,
            0x17ff_fff7,
        ])),
        // li a7, SBI base; li a6, version; ecall (twice); sb to the 16550; count; jump back
        Isa::Riscv => Some(words(&[
            0x0100_0893,
            0x0000_0813,
            0x0000_0073,
            0x0100_0893,
            0x0000_0813,
            0x0000_0073,
            0x1000_05b7,
            0x0005_8023,
            0x0020_0637,
            0xfff6_0613,
            0xfe06_1ee3,
            0xfd5f_f06f,
        ])),
    }
}

/// Instructions in memory order.
fn words(code: &[u32]) -> Vec<u8> {
    code.iter().flat_map(|word| word.to_le_bytes()).collect()
}
