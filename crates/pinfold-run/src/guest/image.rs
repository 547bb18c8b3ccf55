//! The parts of guests of one instruction set: QEMU, a kernel, an initramfs, two disks.
//!
//! An image is prepared once and boots any number of guests, with any number of vCPUs. Missing
//! programs are reported before anything is downloaded.

use pinfold_host::{files, process};
use pinfold_model::{Accelerator, Finding, Isa};
use pinfold_probe::cross_compile;
use pinfold_vm::guest::{self, DemoGuest, Flavour, GuestDisks, GuestKernel};
use pinfold_vm::launch::LaunchOptions;

use super::scratch::Scratch;
use super::subject::{GuestAccess, MEMORY_MIB, Subject};
use crate::message::say;
use crate::{Exit, Failure};

const DISK_BYTES: usize = 32 << 20;
/// Timeout for the HELLO of a guest (ns): a constant, and an addition per vCPU. Measured boots take
/// a tenth of it on two idle cores.
const HELLO_NS: u64 = 60_000_000_000;
const HELLO_PER_VCPU_NS: u64 = 10_000_000_000;
/// The addition per vCPU for a guest that boots on one vCPU; bringing the others online takes the
/// same time again.
const HELLO_PER_LATER_VCPU_NS: u64 = 1_000_000_000;

/// The parts of guests.
#[derive(Clone)]
pub struct GuestImage {
    isa: Isa,
    qemu: String,
    kernel: GuestKernel,
    initramfs: String,
    disks: GuestDisks,
    agent_socket: String,
    console: String,
}

/// The properties in which guests of the same image differ.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Number of vCPUs.
    pub vcpus: u32,
    /// KVM or TCG.
    pub accelerator: Accelerator,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Levels of its page tables; `None` leaves them to its kernel.
    pub page_table_levels: Option<u32>,
}

/// The program that is missing on this machine for guests of an instruction set.
pub fn lacking(isa: Isa) -> Option<Failure> {
    let (qemu, package) = guest::emulator_of(isa);
    if process::find_program(&qemu).is_none() {
        let missing = Failure::new(Exit::Host, format!("{qemu} is not installed"));
        return Some(missing.with_hint(format!("apt-get install {package}")));
    }
    cross_compile::missing(isa).map(|error| Failure::from_error(Exit::Host, &error, error.hint()))
}

/// Creates empty disks in these files.
fn disks(file: &dyn Fn(&str) -> String) -> Result<GuestDisks, Failure> {
    let disks = GuestDisks { ahci: file("ahci.img"), virtio: file("virtio.img") };
    for disk in [&disks.ahci, &disks.virtio] {
        files::write_atomic(disk, &vec![0; DISK_BYTES])?;
    }
    Ok(disks)
}

impl GuestImage {
    /// Downloads and builds the parts.
    pub fn prepare(isa: Isa, flavour: &Flavour, scratch: &Scratch) -> Result<Self, Failure> {
        if let Some(failure) = lacking(isa) {
            return Err(failure);
        }
        let cache = files::cache_dir()?;
        let pinload = cross_compile::program(isa, &format!("{cache}/cross"))
            .map_err(|error| Failure::from_error(Exit::Host, &error, error.hint()))?;
        say(&format!("Downloading the {isa} guest kernel from Debian's packages …"));
        let kernel = guest::fetch_kernel(&cache, flavour, guest::DEMO_MODULES)
            .map_err(|error| Failure::from_error(Exit::Host, &error, error.hint()))?;
        let archive = guest::build_initramfs(&kernel, &pinload)
            .map_err(|error| Failure::from_error(Exit::Host, &error, error.hint()))?;
        let initramfs = scratch.file(&format!("initramfs-{isa}"));
        files::write_atomic(&initramfs, &archive)?;
        let disks = disks(&|name| scratch.file(name))?;
        Ok(Self {
            isa,
            qemu: guest::emulator_of(isa).0,
            kernel,
            initramfs,
            disks,
            agent_socket: scratch.file("agent.sock"),
            console: scratch.file("console.log"),
        })
    }

    /// Kernel of the guests.
    pub fn kernel(&self) -> &GuestKernel {
        &self.kernel
    }

    /// The same image with separate files for another guest that runs at the same time.
    pub fn other(&self, scratch: &Scratch, index: u32) -> Result<Self, Failure> {
        let disks = disks(&|name| image_file(name, index, scratch))?;
        let (agent_socket, console) =
            (image_file("agent.sock", index, scratch), image_file("console.log", index, scratch));
        Ok(Self { disks, agent_socket, console, ..self.clone() })
    }

    /// A guest with these properties.
    pub fn subject(&self, name: &str, shape: Shape) -> Subject {
        let demo = DemoGuest {
            qemu: self.qemu.clone(),
            isa: self.isa,
            accelerator: shape.accelerator,
            vcpus: shape.vcpus,
            memory_mib: shape.memory_mib,
            page_table_levels: shape.page_table_levels,
            // Only the kernel's own decompressor can switch to five levels.
            kernel: match shape.page_table_levels {
                Some(_) => self.kernel.packaged_image.clone(),
                None => self.kernel.image.clone(),
            },
            initramfs: self.initramfs.clone(),
            agent_socket: self.agent_socket.clone(),
            console: self.console.clone(),
            disks: self.disks.clone(),
        };
        let per_vcpu_ns =
            if demo.is_single_cpu_boot() { HELLO_PER_LATER_VCPU_NS } else { HELLO_PER_VCPU_NS };
        let stale = Finding::warning(
            "guest kernel",
            "apt could not be queried, so an earlier kernel from the cache is used",
        )
        .with_hint("run apt-get update");
        Subject {
            argv: demo.argv(),
            command: Vec::new(),
            vcpus: shape.vcpus,
            name: name.to_owned(),
            inside: GuestAccess::Demo,
            agent_socket: self.agent_socket.clone(),
            hello_ns: HELLO_NS + per_vcpu_ns * u64::from(shape.vcpus.saturating_sub(1)),
            kernel: Some(self.kernel.clone()),
            start_timeout_ns: LaunchOptions::default().start_timeout_ns,
            demo: Some(demo),
            findings: if self.kernel.from_cache_only { vec![stale] } else { Vec::new() },
        }
    }
}

fn image_file(name: &str, index: u32, scratch: &Scratch) -> String {
    scratch.file(&format!("{index}-{name}"))
}

impl Subject {
    /// Prepares the demo guest.
    pub fn demo(vcpus: u32, scratch: &Scratch) -> Result<Self, Failure> {
        if vcpus == 0 {
            return Err(Failure::new(Exit::Input, "--vcpus 0: a guest needs at least one"));
        }
        let shape = Shape {
            vcpus,
            accelerator: Accelerator::Kvm,
            memory_mib: MEMORY_MIB,
            page_table_levels: None,
        };
        Ok(GuestImage::prepare(Isa::X86, &guest::flavour_of(Isa::X86), scratch)?
            .subject("demo", shape))
    }
}
