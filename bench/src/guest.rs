//! The demo guest under TCG: a Debian kernel whose init is `pinload agent`.

use pinfold_host::process::Stdio;
use pinfold_host::{files, process};
use pinfold_model::{Accelerator, Isa};
use pinfold_probe::pinload;
use pinfold_vm::guest::{self, DemoGuest, GuestDisks};
use pinfold_vm::launch::{LaunchOptions, StderrEcho, Terminal};

use crate::arguments::Failure;
use crate::scratch::Scratch;

const DISK_BYTES: usize = 1 << 20;
const MEMORY_MIB: u32 = 256;

/// Options for a QEMU without input and output that ends with the benchmark.
pub fn quiet() -> LaunchOptions {
    LaunchOptions {
        echo: StderrEcho::Off,
        stdin: Stdio::Null,
        stdout: Stdio::Null,
        terminal: Terminal::Apart,
        ..LaunchOptions::default()
    }
}

/// The socket of its agent.
pub fn agent_socket(scratch: &Scratch) -> String {
    scratch.file("agent.sock")
}

/// QEMU's command line for the demo guest with this number of vCPUs, with its files in the folder.
pub fn command(scratch: &Scratch, vcpus: u32) -> Result<Vec<String>, Failure> {
    let qemu = process::find_program("qemu-system-x86_64")
        .ok_or("qemu-system-x86_64 is not installed; apt-get install qemu-system-x86")?;
    let kernel =
        guest::fetch_kernel(&files::cache_dir()?, &guest::DEMO_FLAVOUR, guest::DEMO_MODULES)?;
    let initramfs = scratch.file("initramfs");
    files::write_atomic(&initramfs, &guest::build_initramfs(&kernel, pinload::BINARY)?)?;
    let disks = GuestDisks { ahci: scratch.file("ahci.img"), virtio: scratch.file("virtio.img") };
    for disk in [&disks.ahci, &disks.virtio] {
        files::write_atomic(disk, &vec![0; DISK_BYTES])?;
    }
    let demo = DemoGuest {
        isa: Isa::X86,
        qemu,
        accelerator: Accelerator::TcgMulti,
        vcpus,
        memory_mib: MEMORY_MIB,
        page_table_levels: None,
        kernel: kernel.image,
        initramfs,
        agent_socket: agent_socket(scratch),
        console: scratch.file("console.log"),
        disks,
    };
    Ok(demo.argv())
}
