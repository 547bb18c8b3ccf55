//! What is measured: the demo guest, or the user's QEMU command.

use pinfold_model::{Accelerator, Finding, GuestTopology};
use pinfold_probe::benchmarks::Disk;
use pinfold_vm::guest::{DemoGuest, GuestKernel};
use pinfold_vm::hypervisors;

use super::scratch::Scratch;

/// Memory of the demo guest.
pub(super) const MEMORY_MIB: u32 = 256;
/// Timeout for the HELLO of a user's guest.
const HELLO_NS: u64 = 60_000_000_000;

/// How a guest is measured from inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestAccess {
    /// It runs the agent; its two disks are the demo's.
    Demo,
    /// It runs the agent; nothing is known about its disks.
    Agent,
    /// It has no agent and is observed only from the host, after `settle_ns`.
    Nothing {
        /// Time that it needs to start (ns).
        settle_ns: u64,
    },
}

impl GuestAccess {
    /// True if it runs the agent: it can be loaded and measured from within.
    pub(crate) fn has_agent(&self) -> bool {
        match self {
            GuestAccess::Demo | GuestAccess::Agent => true,
            GuestAccess::Nothing { .. } => false,
        }
    }

    /// Its disks that may be measured, with their device files.
    pub(crate) fn disks(&self) -> &'static [(Disk, &'static str)] {
        match self {
            GuestAccess::Demo => &[(Disk::Ahci, "/dev/sda"), (Disk::Virtio, "/dev/vda")],
            GuestAccess::Agent | GuestAccess::Nothing { .. } => &[],
        }
    }
}

/// A user's QEMU command.
#[derive(Clone, Debug)]
pub struct UserGuest {
    /// The command line.
    pub command: Vec<String>,
    /// Time that it needs to start (ns); `None` if it runs the agent.
    pub settle_ns: Option<u64>,
    /// Timeout for QEMU to open its monitor (ns).
    pub start_timeout_ns: u64,
}

/// What is tuned.
pub struct Subject {
    /// The hypervisor's command line for a measurement.
    pub argv: Vec<String>,
    /// The user's own command; empty for the demo guest, whose files are temporary.
    pub command: Vec<String>,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Name for plans and reports.
    pub name: String,
    /// How it is measured from inside.
    pub inside: GuestAccess,
    /// Path of the agent's socket.
    pub agent_socket: String,
    /// Timeout for the agent's HELLO (ns).
    pub hello_ns: u64,
    /// The demo guest's kernel.
    pub kernel: Option<GuestKernel>,
    /// The demo guest, to be rebuilt with another accelerator.
    pub demo: Option<DemoGuest>,
    /// Timeout for the hypervisor to open its monitor (ns).
    pub start_timeout_ns: u64,
    /// Findings about it.
    pub findings: Vec<Finding>,
}

impl Subject {
    /// A user's guest.
    #[must_use]
    pub fn user(guest: UserGuest, scratch: &Scratch) -> Self {
        let agent_socket = scratch.file("agent.sock");
        let command = hypervisors::parse(&guest.command);
        let spec = command.spec();
        let vcpus = spec.vcpus.unwrap_or(1);
        let name = spec.name.unwrap_or_else(|| "vm".to_owned());
        // Trials end abruptly: the user's disks must not be changed by that.
        let mut argv = guest.command.clone();
        argv.extend(command.discard_writes());
        let inside = match guest.settle_ns {
            None => {
                argv.extend(command.hypervisor().agent_port(&agent_socket));
                GuestAccess::Agent
            }
            Some(settle_ns) => GuestAccess::Nothing { settle_ns },
        };
        let findings = match inside {
            GuestAccess::Demo | GuestAccess::Agent => Vec::new(),
            GuestAccess::Nothing { .. } => vec![
                Finding::warning(
                    "measurement",
                    "the guest runs no agent, so it was only measured from the host: how long its \
                     vCPUs waited for a CPU",
                )
                .with_hint("run `pinload agent` in the guest and give --agent to measure inside"),
            ],
        };
        Self {
            argv,
            command: guest.command,
            vcpus,
            name,
            inside,
            agent_socket,
            hello_ns: HELLO_NS,
            kernel: None,
            demo: None,
            start_timeout_ns: guest.start_timeout_ns,
            findings,
        }
    }

    /// Switches the demo guest to another accelerator.
    pub fn use_accelerator(&mut self, accelerator: Accelerator) {
        if let Some(demo) = &mut self.demo {
            demo.accelerator = accelerator;
            self.argv = demo.argv();
        }
    }

    /// The command line with the guest topology of a plan.
    pub fn argv_for(&self, guest: Option<&GuestTopology>) -> Vec<String> {
        match guest {
            Some(guest) => hypervisors::parse(&self.argv).with_topology(guest),
            None => self.argv.clone(),
        }
    }

    /// The guest, as text for the report.
    pub fn describe(&self) -> String {
        match &self.kernel {
            Some(kernel) => format!(
                "demo guest: {} vCPU, {MEMORY_MIB} MiB, kernel {} {}, a disk on emulated AHCI and one on virtio, both in memory",
                self.vcpus, kernel.package, kernel.version
            ),
            None => format!(
                "{}: {} vCPU, the user's own {} command",
                self.name,
                self.vcpus,
                hypervisors::parse(&self.command).hypervisor().display_strings().name
            ),
        }
    }
}
