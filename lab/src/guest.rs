//! One host under test: a booted guest that executes commands, and the evidence from it.
//!
//! Commands go to the guest's init, `pinload agent`, over a virtio-serial port; all requests and
//! responses are recorded. When a case fails, this transcript, the console, the kernel's messages
//! and Pinfold's journals are written to the same folder.

use std::sync::atomic::{AtomicUsize, Ordering};

use pinfold_host::process::{Child, Spawn, Stdio};
use pinfold_host::{Clock as _, SystemClock, files};
use pinfold_model::Isa;
use pinfold_probe::agent::{Agent, ChannelId, Output};
use pinfold_vm::guest::{GuestKernel, agent_port, emulator_of};

use crate::acpi;
use crate::error::LabError;
use crate::guest_files::GuestFiles;
use crate::isa::{Board, board, machine};
use crate::origin::find_here;

const SECOND_NS: u64 = 1_000_000_000;
const HELLO_NS: u64 = 180 * SECOND_NS;
/// Timeout for a hang, not for a slow machine: a guest on a busy host may stop for many seconds.
const COMMAND_NS: u64 = 600 * SECOND_NS;
const LOOK_NS: u64 = 60 * SECOND_NS;
/// Prints the kernel stack of every task, for a command that hangs.
const WHERE: &str =
    "grep -s '' /proc/[0-9]*/task/[0-9]*/stat /proc/[0-9]*/task/[0-9]*/stack || true";
/// Kernel command line of all guests.
const COMMAND_LINE: &str = "quiet panic=-1 mitigations=off audit=0";
/// Number of boot attempts before a guest counts as dead.
const BOOTS: usize = 4;
const OFF_NS: u64 = 20 * SECOND_NS;

/// Shape of a host under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Name for tables.
    pub name: &'static str,
    /// QEMU's `-smp`.
    pub smp: &'static str,
    /// CPUs of each NUMA node; empty for a single node without a definition.
    pub nodes: &'static [&'static str],
    /// Threads per core.
    pub threads: usize,
    /// Total memory in MiB, a multiple of the number of nodes.
    pub memory_mib: u32,
    /// True if its processors support virtualisation, so that it has a real KVM.
    pub virtualises: bool,
    /// True if it has a disk with a queue for each CPU, whose interrupts are managed by its kernel.
    pub disk: bool,
    /// True if the processors have several frequencies; the threads of a core share one.
    pub frequencies: bool,
    /// True if its clock counts the instructions of its CPUs: no time passes in it while they wait
    /// for this machine.
    pub steady: bool,
    /// True if its CPUs run in turn on one CPU of this machine. If one CPU waits for another, for
    /// example a traced process for its tracer, it then waits for no free CPU here, and a CPU that
    /// waits in a loop takes no time from the one that it waits for.
    pub turns: bool,
    /// Additions to the kernel command line.
    pub line: &'static str,
}

/// Two cores with two threads each, whose CPUs run in turn.
pub const SMALL: Shape = Shape {
    name: "2 cores × 2 threads",
    smp: "4,cores=2,threads=2",
    threads: 2,
    turns: true,
    ..TWO
};

/// Four cores with one thread each, for boards without SMT.
pub const FOUR: Shape = Shape { name: "4 cores", smp: "4,cores=4", threads: 1, ..SMALL };

/// As `FOUR`, with memory for a root of many programs; its CPUs run at the same time.
pub const ROOMY_FOUR: Shape = Shape { memory_mib: 2048, turns: false, ..FOUR };

/// As `SMALL`, with a frequency for each core; its CPUs run at the same time.
pub const SCALED: Shape =
    Shape { name: "2 cores × 2 threads, 3 frequencies", frequencies: true, turns: false, ..SMALL };

/// As `SMALL`, with one core isolated from the scheduler at boot.
pub const ISOLATED: Shape = Shape {
    name: "2 cores × 2 threads, 3 frequencies, isolcpus=2-3",
    line: "isolcpus=2-3",
    ..SCALED
};

/// Two CPUs, the minimum for isolation.
pub const TWO: Shape = Shape {
    name: "2 CPUs",
    smp: "2,cores=2",
    nodes: &[],
    threads: 1,
    memory_mib: 1024,
    virtualises: false,
    disk: false,
    frequencies: false,
    steady: false,
    turns: false,
    line: "",
};

/// One CPU with a deterministic clock; with more, a kernel takes minutes to boot, because CPUs that
/// wait for each other run in turn.
pub const STEADY: Shape = Shape { name: "1 CPU, steady", smp: "1", steady: true, ..TWO };

/// Two dies in one package, each with its own cache, like core complexes.
pub const TWO_DIES: Shape = Shape {
    name: "2 dies × 2 cores × 2 threads",
    smp: "8,sockets=1,dies=2,cores=2,threads=2",
    threads: 2,
    ..TWO
};

/// Eight cores, as on the platform of Buchert 2011, Fig. 2.
pub const EIGHT: Shape = Shape { name: "8 cores", smp: "8,cores=8", ..TWO };

/// Four packages with a NUMA node each, 32 CPUs.
pub const BIG: Shape = Shape {
    name: "4 packages × 4 cores × 2 threads, 4 NUMA nodes",
    smp: "32,sockets=4,cores=4,threads=2",
    nodes: &["0-7", "8-15", "16-23", "24-31"],
    threads: 2,
    memory_mib: 2048,
    ..TWO
};

/// Four cores that support virtualisation.
pub const SVM: Shape =
    Shape { name: "4 cores with SVM", smp: "4,cores=4", virtualises: true, ..TWO };

/// Such cores on two NUMA nodes.
pub const SVM_NUMA: Shape = Shape {
    name: "2 packages × 2 cores with SVM, 2 NUMA nodes",
    smp: "4,sockets=2,cores=2",
    nodes: &["0-1", "2-3"],
    memory_mib: 1536,
    ..SVM
};

/// One such core: TCG has problems with processors whose code is patched by others, as the kernel
/// does when trace events are enabled and disabled.
pub const ONE_SVM: Shape = Shape { name: "1 core with SVM", smp: "1", ..SVM };

/// Two packages with a NUMA node each.
pub const NUMA: Shape = Shape {
    name: "2 packages × 2 cores × 2 threads, 2 NUMA nodes",
    smp: "8,sockets=2,cores=2,threads=2",
    nodes: &["0-3", "4-7"],
    threads: 2,
    ..TWO
};

/// Eight cores whose CPUs run in turn.
pub const TURNS_EIGHT: Shape = Shape { turns: true, ..EIGHT };

/// Two packages, for processes that are traced hundreds of times.
pub const TURNS_NUMA: Shape = Shape { turns: true, ..NUMA };

/// As `TURNS_NUMA`, with a disk.
pub const DISK_NUMA: Shape = Shape { disk: true, ..TURNS_NUMA };

/// Two packages with enough memory for streaming on each node.
pub const ROOMY_NUMA: Shape = Shape { memory_mib: 2048, ..NUMA };

/// The same, with CPUs that run in turn.
pub const TURNS_ROOMY_NUMA: Shape = Shape { turns: true, ..ROOMY_NUMA };

/// One core with SVM, and enough memory for a guest that boots a kernel.
pub const ROOMY_SVM: Shape = Shape { memory_mib: 3072, ..ONE_SVM };

/// Two NUMA nodes of four cores with SVM each, and enough memory for two guests.
pub const NUMA_SVM: Shape = Shape {
    name: "2 packages × 4 cores with SVM, 2 NUMA nodes",
    smp: "8,sockets=2,cores=4",
    nodes: &["0-3", "4-7"],
    memory_mib: 3072,
    ..SVM
};

/// A booted guest. Dropping it ends it.
#[derive(Debug)]
pub struct Guest {
    agent: Agent,
    qemu: Child,
    folder: String,
    transcript: String,
    /// The release of its kernel, from `uname` in the guest.
    pub release: String,
    /// Its instruction set.
    pub(crate) isa: Isa,
}

impl Guest {
    /// Boots a shape. Under TCG a kernel may panic before any command (7.x patches code that other
    /// vCPUs run): then it is booted again, a few times.
    ///
    /// # Errors
    /// As [`Guest::boot_once`].
    pub fn boot(
        cargo: &GuestFiles,
        kernel: &GuestKernel,
        shape: &Shape,
        folder: &str,
    ) -> Result<Self, LabError> {
        for _ in 1..BOOTS {
            match Self::boot_once(cargo, kernel, shape, folder) {
                Err(LabError::Agent(_)) if has_panicked(folder)? => {}
                answer => return answer,
            }
        }
        Self::boot_once(cargo, kernel, shape, folder)
    }

    /// Boots a shape; its files and output are in `folder`, which is recreated.
    ///
    /// # Errors
    /// [`LabError`]; the console is then in the folder.
    pub fn boot_once(
        cargo: &GuestFiles,
        kernel: &GuestKernel,
        shape: &Shape,
        folder: &str,
    ) -> Result<Self, LabError> {
        if files::exists(folder) {
            files::remove_tree(folder)?;
        }
        files::make_dirs(folder)?;
        let initramfs = format!("{folder}/initramfs");
        files::write_atomic(&initramfs, &cargo.initramfs(kernel)?)?;
        // The path of a socket must be short, and that of the folder may be long.
        let socket = format!("{}/lab-{}", files::runtime_dir()?, new_name());
        if files::exists(&socket) {
            files::remove(&socket)?;
        }
        let isa = cargo.isa();
        let board = board(isa, shape.virtualises);
        let mut words = arguments(shape, &board, &kernel.image, &initramfs, folder);
        words.extend(cargo.disk.iter().flat_map(|image| lasting_disk(image)));
        if shape.frequencies {
            let table = format!("{folder}/ssdt.aml");
            files::write_atomic(&table, &acpi::frequencies(4, 2))?;
            words.extend([
                "-acpitable".into(),
                format!("sig=SSDT,data={}", table.replace(',', ",,")),
            ]);
        }
        let (emulator, package) = emulator_of(isa);
        let mut qemu = Spawn::new(&find_here(&emulator, package)?)
            .args(words)
            .args([
                "-append",
                &format!("{} {COMMAND_LINE} {} {}", board.kernel, shape.line, cargo.init),
            ])
            .args(agent_port(&socket))
            .stdin(Stdio::Null)
            .stdout(Stdio::Null)
            .stderr(Stdio::Pipe)
            .own_group()
            .die_with_parent(true)
            .start()?;
        let agent = match Agent::connect(&socket, HELLO_NS, &SystemClock) {
            Ok(agent) => agent,
            Err(error) => {
                let said = last_message(&mut qemu);
                files::write_atomic(&format!("{folder}/qemu.txt"), said.as_bytes())?;
                return Err(error.into());
            }
        };
        files::remove(&socket)?;
        files::remove(&initramfs)?;
        let mut guest = Self {
            agent,
            qemu,
            folder: folder.to_owned(),
            transcript: String::new(),
            release: String::new(),
            isa,
        };
        guest.run(&["/bin/busybox", "--install", "-s", "/bin"])?;
        guest.release = guest.shell("uname -r")?.trim().to_owned();
        Ok(guest)
    }

    /// QEMU with the smallest machine that can be placed in the guest; more arguments follow.
    pub(crate) fn machine(&self) -> String {
        machine(self.isa)
    }

    /// Runs a program in the guest, and returns its output and exit status.
    ///
    /// # Errors
    /// [`LabError::Agent`].
    pub fn run(&mut self, argv: &[&str]) -> Result<Output, LabError> {
        self.transcript.push_str(&format!("$ {}\n", argv.join(" ")));
        let channel = self.agent.start(argv)?;
        self.agent.close(channel)?;
        let end = SystemClock.now_ns().saturating_add(COMMAND_NS);
        while !self.agent.has_ended(channel) && SystemClock.now_ns() < end {
            SystemClock.sleep_ns(SECOND_NS / 100);
        }
        if !self.agent.has_ended(channel) {
            let look = self.agent.run(&["/bin/busybox", "sh", "-c", WHERE], LOOK_NS);
            self.transcript.push_str(&look.map_or_else(|e| e.to_string(), |o| o.stdout_text()));
        }
        let output = self.agent.wait(channel, 0);
        match &output {
            Ok(output) => self.transcript.push_str(&format!(
                "{}{}({})\n",
                output.stdout_text(),
                output.stderr_text(),
                output.exit
            )),
            Err(error) => self.transcript.push_str(&format!("({error})\n")),
        }
        Ok(output?)
    }

    /// Runs a script that must succeed, and returns its output.
    ///
    /// # Errors
    /// [`LabError::Command`] if it fails, [`LabError::Agent`].
    pub fn shell(&mut self, script: &str) -> Result<String, LabError> {
        self.succeed(&["/bin/busybox", "sh", "-euc", script])
    }

    /// As [`Guest::shell`], without its output in the transcript, for long outputs.
    ///
    /// # Errors
    /// As [`Guest::shell`].
    pub fn quiet_shell(&mut self, script: &str) -> Result<String, LabError> {
        let length = self.transcript.len();
        let text = self.shell(script)?;
        self.transcript.truncate(length);
        Ok(text)
    }

    /// Runs `pinfold` in the guest, which must succeed, and returns its output, including standard
    /// error.
    ///
    /// # Errors
    /// As [`Guest::shell`].
    pub fn pinfold(&mut self, arguments: &[&str]) -> Result<String, LabError> {
        let mut words = vec!["/usr/bin/pinfold"];
        words.extend(arguments);
        self.succeed(&words)
    }

    fn succeed(&mut self, argv: &[&str]) -> Result<String, LabError> {
        let output = self.run(argv)?;
        let text = format!("{}{}", output.stdout_text(), output.stderr_text());
        if output.success() {
            Ok(text)
        } else {
            Err(LabError::Command {
                command: argv.join(" "),
                how: output.exit.to_string(),
                output: text,
            })
        }
    }

    /// Starts a script that runs until the guest ends.
    ///
    /// # Errors
    /// [`LabError::Agent`].
    pub fn background(&mut self, script: &str) -> Result<ChannelId, LabError> {
        self.transcript.push_str(&format!("$ {script} &\n"));
        Ok(self.agent.start(&["/bin/busybox", "sh", "-euc", script])?)
    }

    /// Writes the evidence into the guest's folder, for a case that failed with `why`.
    ///
    /// # Errors
    /// [`LabError::Host`] if the files cannot be written; if the guest does not respond any more,
    /// the transcript says so.
    pub fn keep_evidence(&mut self, why: &str) -> Result<String, LabError> {
        let ask = "dmesg; for f in /var/lib/pinfold/journal/*; do echo \"== $f\"; cat $f; done";
        if let Err(error) = self.shell(ask) {
            self.transcript.push_str(&format!("(no last answer: {error})\n"));
        }
        let text = format!("{}\nfailed: {why}\n", self.transcript);
        files::write_atomic(&format!("{}/transcript.txt", self.folder), text.as_bytes())?;
        Ok(self.folder.clone())
    }

    /// True if its kernel stopped at an unknown breakpoint: it guards code that it patches with
    /// breakpoints, and TCG may execute them after they were removed.
    ///
    /// # Errors
    /// [`LabError::Host`] if the console cannot be read.
    pub(crate) fn has_int3_panic(&self) -> Result<bool, LabError> {
        let console = files::read(&format!("{}/console.txt", self.folder))?;
        let console = String::from_utf8_lossy(&console);
        Ok(console.contains("Kernel panic") && console.contains("Oops: int3"))
    }

    /// A power cut: kills QEMU, so that all data that are not on a disk are lost.
    ///
    /// # Errors
    /// [`LabError::Host`].
    pub(crate) fn cut(mut self) -> Result<(), LabError> {
        self.qemu.kill()?;
        Ok(files::remove_tree(&self.folder)?)
    }

    /// Powers the guest off and removes its files.
    ///
    /// # Errors
    /// [`LabError::Host`].
    pub fn end(mut self) -> Result<(), LabError> {
        if self.agent.shutdown().is_ok() {
            self.qemu.wait_for(&SystemClock, OFF_NS)?;
        }
        self.qemu.kill()?;
        Ok(files::remove_tree(&self.folder)?)
    }
}

/// A name that no other guest has at this time.
fn new_name() -> String {
    static BOOTED: AtomicUsize = AtomicUsize::new(0);
    let number = BOOTED.fetch_add(1, Ordering::Relaxed);
    format!("{}-{number}", pinfold_host::process::own_pid())
}

/// True if the guest's console shows a kernel panic.
fn has_panicked(folder: &str) -> Result<bool, LabError> {
    let console = format!("{folder}/console.txt");
    Ok(files::exists(&console)
        && String::from_utf8_lossy(&files::read(&console)?).contains("Kernel panic"))
}

fn arguments(
    shape: &Shape,
    board: &Board,
    kernel: &str,
    initramfs: &str,
    folder: &str,
) -> Vec<String> {
    let memory = format!("{}M", shape.memory_mib);
    let accelerator =
        if shape.steady || shape.turns { "tcg,thread=single" } else { "tcg,thread=multi" };
    let mut words: Vec<String> = [
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
        "-machine",
        board.machine,
        "-accel",
        accelerator,
        "-cpu",
        board.cpu,
        "-smp",
        shape.smp,
        "-m",
        &memory,
        "-kernel",
        kernel,
        "-initrd",
        initramfs,
        "-serial",
        &format!("file:{}", format!("{folder}/console.txt").replace(',', ",,")),
    ]
    .iter()
    .map(|word| (*word).to_owned())
    .collect();
    if shape.steady {
        // An instruction takes 4 ns, similar to this machine.
        words.extend(["-icount", "shift=2"].map(str::to_owned));
    }
    if shape.disk {
        // Reads return zeroes and writes are discarded; the disk is not used.
        words.extend(["-blockdev", "null-co,node-name=disk,size=1048576"].map(str::to_owned));
        words.extend(["-device", "virtio-blk-pci,drive=disk"].map(str::to_owned));
    }
    let count = u32::try_from(shape.nodes.len()).unwrap_or(1).max(1);
    for (node, cpus) in shape.nodes.iter().enumerate() {
        let size = shape.memory_mib / count;
        words.extend(["-object".into(), format!("memory-backend-ram,id=m{node},size={size}M")]);
        words.extend(["-numa".into(), format!("node,nodeid={node},memdev=m{node},cpus={cpus}")]);
    }
    words
}

/// A disk whose image outlives this QEMU process.
fn lasting_disk(image: &str) -> [String; 4] {
    let drive = format!("if=none,id=state,format=raw,file={}", image.replace(',', ",,"));
    ["-drive".into(), drive, "-device".into(), "virtio-blk-pci,drive=state".into()]
}

/// The output of QEMU, if it did not start.
fn last_message(qemu: &mut Child) -> String {
    use std::io::Read as _;
    let mut text = String::new();
    let ended = qemu.kill().map_or_else(|error| error.to_string(), |_| String::new());
    if let Some(mut stream) = qemu.stderr() {
        match stream.read_to_string(&mut text) {
            Ok(_) => {}
            Err(error) => text.push_str(&error.to_string()),
        }
    }
    text + &ended
}
