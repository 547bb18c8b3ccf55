//! QEMU's command line for the demo guest, also for other instruction sets.

use pinfold_model::{Accelerator, Isa};

use super::AGENT_PORT;

/// Maximum number of vCPUs that the kernel starts itself. With more, it boots on one, and the agent
/// brings the others online on request. A kernel that patches its code at boot makes all CPUs wait
/// for each other, which takes minutes if many vCPUs share few CPUs. RISC-V is an exception: its
/// firmware (OpenSBI 1.1) makes CPUs spin that are not started.
const MOST_AT_ONCE: u32 = 8;

/// Image files of the guest's two disks; in memory, so that only QEMU is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestDisks {
    /// Path of the image on the emulated AHCI controller, which only an x86-64 guest has.
    pub ahci: String,
    /// Path of the image on virtio.
    pub virtio: String,
}

/// All parameters of the demo guest's command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemoGuest {
    /// QEMU's program.
    pub qemu: String,
    /// Its instruction set.
    pub isa: Isa,
    /// KVM or TCG.
    pub accelerator: Accelerator,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Guest memory in MiB.
    pub memory_mib: u32,
    /// Levels of the page tables of an x86-64 guest, 4 or 5; `None` leaves them to its kernel.
    pub page_table_levels: Option<u32>,
    /// Path of the kernel image.
    pub kernel: String,
    /// Path of the initramfs.
    pub initramfs: String,
    /// Path of the agent's socket, which QEMU creates.
    pub agent_socket: String,
    /// Path of the file that receives the console output.
    pub console: String,
    /// The disks.
    pub disks: GuestDisks,
}

/// A path as part of one of QEMU's comma-separated options: its commas are doubled.
fn option_path(path: &str) -> String {
    path.replace(',', ",,")
}

impl DemoGuest {
    /// True if the kernel boots on the first vCPU only, and the agent must bring the others online.
    pub fn is_single_cpu_boot(&self) -> bool {
        self.vcpus > MOST_AT_ONCE && self.isa != Isa::Riscv
    }

    /// The command line, program first.
    #[must_use]
    pub fn argv(&self) -> Vec<String> {
        let (machine, emulated, console) = match self.isa {
            // QEMU 7.2's TCG corrupts flags on cmpxchg16b, which 6.12 and newer kernels use. On a
            // busy host the timer's first ticks are too late for the kernel's timer check, which
            // then panics.
            Isa::X86 => ("q35", "max,cx16=off", "ttyS0 no_timer_check"),
            Isa::Riscv => ("virt,aclint=on", "rv64", "ttyS0"),
            // QEMU's own algorithm for pointer authentication: Arm's takes half of the run time.
            Isa::Arm => ("virt,gic-version=3", "max,pauth-impdef=on", "ttyAMA0"),
        };
        let (accelerator, cpu) = match self.accelerator {
            Accelerator::Kvm => ("kvm", "host"),
            Accelerator::TcgSingle => ("tcg,thread=single", emulated),
            Accelerator::TcgMulti | Accelerator::Native => ("tcg,thread=multi", emulated),
        };
        let cpu = match self.page_table_levels {
            Some(5) => format!("{cpu},la57=on"),
            Some(_) => format!("{cpu},la57=off"),
            None => cpu.to_owned(),
        };
        let mut argv = vec![self.qemu.clone()];
        add(&mut argv, &["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        add(&mut argv, &["-machine", machine, "-accel", accelerator, "-cpu", &cpu]);
        add(&mut argv, &["-smp", &self.vcpus.to_string(), "-m", &format!("{}M", self.memory_mib)]);
        add(&mut argv, &["-kernel", &self.kernel, "-initrd", &self.initramfs]);
        let first = if self.is_single_cpu_boot() { " maxcpus=1" } else { "" };
        // The watchdog wakes each CPU every four seconds. Each CPU that wakes updates the kernel's
        // time under one lock, in the order of arrival. If many vCPUs share few CPUs, the vCPU
        // whose turn it is rarely runs, and the updates do not finish before the next wake-up.
        let words = "quiet panic=-1 mitigations=off audit=0 nowatchdog";
        add(
            &mut argv,
            &["-append", &format!("console={console} {words}{first} rdinit=/init -- agent")],
        );
        add(&mut argv, &["-serial", &format!("file:{}", option_path(&self.console))]);
        if self.isa == Isa::X86 {
            add(&mut argv, &["-drive", &drive("ahci0", &self.disks.ahci)]);
            add(&mut argv, &["-device", "ide-hd,drive=ahci0,bus=ide.0"]); // q35's own AHCI controller
        }
        add(&mut argv, &["-drive", &drive("virtio0", &self.disks.virtio)]);
        add(&mut argv, &["-device", "virtio-blk-pci,drive=virtio0"]);
        argv.extend(agent_port(&self.agent_socket));
        argv
    }
}

fn add(argv: &mut Vec<String>, words: &[&str]) {
    argv.extend(words.iter().map(|word| (*word).to_owned()))
}

fn drive(id: &str, path: &str) -> String {
    format!("if=none,id={id},format=raw,file={}", option_path(path))
}

/// The options that add the agent's port to a guest, the demo guest or a user's own.
pub fn agent_port(socket: &str) -> Vec<String> {
    [
        "-chardev",
        &format!("socket,id=pinfold-agent,path={},server=on,wait=off", option_path(socket)),
        "-device",
        "virtio-serial-pci,id=pinfold-serial",
        "-device",
        &format!("virtserialport,bus=pinfold-serial.0,chardev=pinfold-agent,name={AGENT_PORT}"),
    ]
    .into_iter()
    .map(str::to_owned)
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(isa: Isa, vcpus: u32) -> DemoGuest {
        let text = String::new;
        DemoGuest {
            qemu: "qemu".to_owned(),
            isa,
            accelerator: Accelerator::TcgMulti,
            vcpus,
            memory_mib: 64,
            page_table_levels: None,
            kernel: text(),
            initramfs: text(),
            agent_socket: text(),
            console: text(),
            disks: GuestDisks { ahci: text(), virtio: text() },
        }
    }

    #[test]
    fn page_table_levels_are_a_feature_of_the_processor() {
        check(Accelerator::TcgMulti, None, "max,cx16=off");
        check(Accelerator::TcgMulti, Some(4), "max,cx16=off,la57=off");
        check(Accelerator::Kvm, Some(5), "host,la57=on");
    }

    fn check(accelerator: Accelerator, page_table_levels: Option<u32>, expected: &str) {
        let guest = DemoGuest { accelerator, page_table_levels, ..guest(Isa::X86, 1) };
        let argv = guest.argv();
        let at = argv.iter().position(|word| word == "-cpu").unwrap();
        assert_eq!(argv[at + 1], expected);
    }

    #[test]
    fn guests_of_many_vcpus_start_on_one_but_for_riscv() {
        assert!(check_machine(Isa::Arm, 9) && check_machine(Isa::X86, 128));
        assert!(!check_machine(Isa::Arm, 8) && !check_machine(Isa::Riscv, 128));
    }

    fn check_machine(isa: Isa, vcpus: u32) -> bool {
        let guest = guest(isa, vcpus);
        let reported = guest.argv().iter().any(|word| word.contains(" maxcpus=1 "));
        assert_eq!(reported, guest.is_single_cpu_boot());
        reported
    }
}
