//! What is tuned: the demo guest, or a QEMU command of the user's.

use pinfold_host::{LiveHost, process, user};
use pinfold_model::{Accelerator, Finding, GuestTopology};
use pinfold_vm::argv;
use pinfold_vm::guest::{self, DemoGuest, GuestDisks, GuestKernel};

use super::scratch::Scratch;
use crate::cli::TuneArgs;
use crate::common::host_failure;
use crate::failure::{Exit, Failure};
use crate::output::say;
use crate::time;

const DISK_BYTES: usize = 32 << 20;
const MEMORY_MIB: u32 = 256;

/// How a guest is measured from inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inside {
    /// It runs the agent; its two disks are the demo's.
    Demo,
    /// It runs the agent, nothing is known of its disks.
    Agent,
    /// It has no agent: it is only seen from the host, after this time (ns).
    Nothing {
        /// Time that it needs to start.
        settle_ns: u64,
    },
}

/// What is tuned.
pub struct Subject {
    /// QEMU's command line.
    pub argv: Vec<String>,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Name for plans and reports.
    pub name: String,
    /// How it is measured from inside.
    pub inside: Inside,
    /// Path of the agent's socket.
    pub agent_socket: String,
    /// The demo guest's kernel.
    pub kernel: Option<GuestKernel>,
    /// The demo guest, to be built again with another accelerator.
    pub demo: Option<DemoGuest>,
    /// What one should know about it.
    pub findings: Vec<Finding>,
}

impl Subject {
    /// Prepares what the command line asks for.
    pub fn prepare(
        arguments: &TuneArgs,
        scratch: &Scratch,
        host: &LiveHost,
        pinload: &[u8],
    ) -> Result<Self, Failure> {
        let socket = scratch.file("agent.sock");
        match arguments.demo {
            true => Self::demo(arguments.vcpus, scratch, (socket, pinload)),
            false => Self::user(arguments, socket, host),
        }
    }

    /// Prepares the demo guest.
    pub fn demo(
        vcpus: u32,
        scratch: &Scratch,
        (agent_socket, pinload): (String, &[u8]),
    ) -> Result<Self, Failure> {
        if vcpus == 0 {
            return Err(Failure::new(Exit::Input, "--vcpus 0: a guest needs at least one"));
        }
        let qemu = process::find_program("qemu-system-x86_64").ok_or_else(|| {
            Failure::new(Exit::Host, "qemu-system-x86_64 is not installed")
                .with_hint("apt-get install qemu-system-x86")
        })?;
        let cache = user::cache_dir().map_err(|error| host_failure(&error))?;
        say("Getting the guest's kernel from Debian's packages …");
        let kernel = guest::fetch_kernel(&cache, &guest::DEMO_FLAVOUR, guest::DEMO_MODULES)
            .map_err(|error| Failure::from_error(Exit::Host, &error, error.hint()))?;
        let initramfs = scratch.file("initramfs");
        let archive = guest::build_initramfs(&kernel, pinload)
            .map_err(|error| Failure::from_error(Exit::Host, &error, error.hint()))?;
        user::write_atomic(&initramfs, &archive).map_err(|error| host_failure(&error))?;
        let disks =
            GuestDisks { ahci: scratch.file("ahci.img"), virtio: scratch.file("virtio.img") };
        for disk in [&disks.ahci, &disks.virtio] {
            user::write_atomic(disk, &vec![0; DISK_BYTES]).map_err(|error| host_failure(&error))?;
        }
        let demo = DemoGuest {
            qemu,
            accelerator: Accelerator::Kvm,
            vcpus,
            memory_mib: MEMORY_MIB,
            kernel: kernel.image.clone(),
            initramfs,
            agent_socket: agent_socket.clone(),
            console: scratch.file("console.log"),
            disks,
        };
        let mut findings = Vec::new();
        if kernel.from_cache_only {
            findings.push(
                Finding::warning(
                    "guest kernel",
                    "apt could not be asked, so an earlier kernel from the cache was used",
                )
                .with_hint("run apt-get update"),
            );
        }
        Ok(Self {
            argv: demo.argv(),
            vcpus,
            name: "demo".to_owned(),
            inside: Inside::Demo,
            agent_socket,
            kernel: Some(kernel),
            demo: Some(demo),
            findings,
        })
    }

    fn user(arguments: &TuneArgs, agent_socket: String, _host: &LiveHost) -> Result<Self, Failure> {
        let mut command = arguments.command.clone();
        let vcpus = argv::smp_of(&command).unwrap_or(1);
        let name = argv::name_of(&command).unwrap_or_else(|| "vm".to_owned());
        // Trials end abruptly: the user's disks must not see that.
        if !argv::has_flag(&command, "snapshot") {
            command.push("-snapshot".to_owned());
        }
        let inside = match arguments.agent {
            true => {
                command.extend(guest::agent_port(&agent_socket));
                Inside::Agent
            }
            false => Inside::Nothing { settle_ns: time::parse_ns("--settle", &arguments.settle)? },
        };
        let findings = match inside {
            Inside::Demo | Inside::Agent => Vec::new(),
            Inside::Nothing { .. } => vec![
                Finding::warning(
                    "measurement",
                    "the guest runs no agent, so it was only seen from the host: how long its vCPUs waited for a PU",
                )
                .with_hint("run `pinload agent` in the guest and give --agent to measure inside"),
            ],
        };
        let argv = command;
        Ok(Self { argv, vcpus, name, inside, agent_socket, kernel: None, demo: None, findings })
    }

    /// Switches the demo guest to another accelerator.
    pub fn use_accelerator(&mut self, accelerator: Accelerator) {
        if let Some(demo) = &mut self.demo {
            demo.accelerator = accelerator;
            self.argv = demo.argv();
        }
    }

    /// The command line with the topology that a plan shows the guest.
    pub fn argv_for(&self, guest: Option<&GuestTopology>) -> Vec<String> {
        match guest {
            Some(guest) => argv::set_smp(&self.argv, guest),
            None => self.argv.clone(),
        }
    }

    /// The guest in words, for the report.
    pub fn describe(&self) -> String {
        match &self.kernel {
            Some(kernel) => format!(
                "demo guest: {} vCPU, {MEMORY_MIB} MiB, kernel {} {}, a disk on emulated AHCI and one on virtio, both in memory",
                self.vcpus, kernel.package, kernel.version
            ),
            None => format!("{}: {} vCPU, the user's own QEMU command", self.name, self.vcpus),
        }
    }
}
