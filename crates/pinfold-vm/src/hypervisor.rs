//! What Pinfold must know about a program that runs virtual machines, and about one of its
//! machines.
//!
//! [`Hypervisor`] describes the program: how its processes and threads are identified, how it is
//! started, and how its control interface is reached. [`MachineCommand`] is a command line that
//! starts one of its machines. [`Monitor`] is the control interface of one machine. Each hypervisor
//! is a folder of this crate and a row of [`crate::hypervisors::HYPERVISORS`]. Not through these
//! traits: the demo guest, which QEMU runs ([`crate::guest`]), and libvirt, through which only QEMU
//! is reached ([`crate::libvirt`]).
//!
//! A monitor reports no hot-plug events: the kernel reports each new thread of a process, also
//! where no monitor is known, and the roles are then queried again.

use std::any::Any;
use std::fmt;

use pinfold_model::{Accelerator, GuestTopology, MachineSpec, Role, Tid};
use serde_json::Value;

use crate::VmError;
use crate::display_strings::DisplayStrings;

/// Selects a running virtual machine.
#[derive(Clone, Debug)]
pub enum VmSelector {
    /// By the control socket of its hypervisor.
    Socket(&'static dyn Hypervisor, String),
    /// By name, UUID or ID of its libvirt domain.
    Libvirt(String),
    /// By its process ID.
    Pid(Tid),
    /// By the name of its libvirt domain, or by the name in its command line.
    Name(String),
}

/// How a command line can be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// File name of the control socket.
    pub socket_name: &'static str,
    /// True if the user's command line itself leaves the guest stopped.
    pub leaves_stopped: bool,
}

/// A program that runs virtual machines.
///
/// ```
/// use pinfold_model::Role;
/// use pinfold_vm::{Hypervisor as _, qemu::Qemu};
///
/// assert!(Qemu.is_program("qemu-system-x86_64"));
/// assert_eq!(Qemu.role_of("CPU 3/KVM"), Role::Vcpu(3));
/// assert_eq!(Qemu.role_of("IO disk"), Role::Iothread("disk".to_owned()));
/// ```
pub trait Hypervisor: fmt::Debug + Sync {
    /// Words about it in messages.
    fn display_strings(&self) -> &'static DisplayStrings;

    /// True if this is the file name of its program.
    fn is_program(&self, name: &str) -> bool;

    /// True if an argument suggests that a command line is meant for it.
    fn is_mentioned_in(&self, argument: &str) -> bool;

    /// Role of a thread of its process by the thread's name; [`Role::Emulator`] for other names.
    /// Names that the kernel gives are not included.
    fn role_of(&self, thread_name: &str) -> Role;

    /// The accelerator that a thread's name shows.
    fn accelerator_of(&self, thread_name: &str) -> Option<Accelerator>;

    /// Parses a command line that starts one of its machines.
    fn parse(&self, command: &[String]) -> Box<dyn MachineCommand>;

    /// The options that add the port of Pinfold's guest agent, with this socket.
    fn agent_port(&self, socket: &str) -> Vec<String>;

    /// The options that are added to a command line: it starts stopped, names its threads, and
    /// creates its control socket with this path.
    fn start_options(&self, socket: &str) -> Vec<String>;

    /// Connects to a control socket; `timeout_ns` limits the connection and each later query.
    ///
    /// # Errors
    /// An error for which [`VmError::is_not_ready`] is true while the program still starts.
    fn connect(&self, socket: &str, timeout_ns: u64) -> Result<Box<dyn Monitor>, VmError>;
}

/// A parsed command line that starts a machine. It is parsed once; everything that depends on it is
/// derived from this.
pub trait MachineCommand: Any + fmt::Debug {
    /// The hypervisor that it starts.
    fn hypervisor(&self) -> &'static dyn Hypervisor;

    /// All arguments as given.
    fn arguments(&self) -> &[String];

    /// The program as written; empty if the command line has none.
    fn program(&self) -> &str;

    /// What it says about the machine.
    fn spec(&self) -> MachineSpec;

    /// Checks that the hypervisor would accept what [`MachineCommand::spec`] is read from.
    ///
    /// # Errors
    /// An error for which [`VmError::is_input`] is true.
    fn check(&self) -> Result<(), VmError>;

    /// The path of the control socket that it creates, as written; `None` if it creates none, or
    /// in a way that is not recognized.
    fn control_socket(&self) -> Option<String> {
        None
    }

    /// The path of the socket at which the guest's agent answers, as written; `None` if the command
    /// line makes none.
    fn agent_socket(&self) -> Option<String> {
        None
    }

    /// The command line with this guest topology in place of its own.
    fn with_topology(&self, guest: &GuestTopology) -> Vec<String>;

    /// The options to add so that writes to the machine's disks are discarded; none if it does that
    /// already.
    fn discard_writes(&self) -> Vec<String>;

    /// Checks that it can be started stopped, with the options that are added.
    ///
    /// # Errors
    /// If the process would not get the options, or would not stay a child.
    fn check_start(&self) -> Result<Start, VmError>;
}

/// Position of a vCPU in the guest's topology. `None` for levels that the board does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuInstanceProperties {
    /// NUMA node number.
    pub node: Option<u32>,
    /// Socket number.
    pub socket: Option<u32>,
    /// Die number.
    pub die: Option<u32>,
    /// Cluster number.
    pub cluster: Option<u32>,
    /// Core number.
    pub core: Option<u32>,
    /// Thread number within the core.
    pub thread: Option<u32>,
}

/// One vCPU as the hypervisor reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuInfo {
    /// Its index.
    pub index: u32,
    /// The host thread that runs it.
    pub thread: Tid,
    /// Its position in the guest's topology.
    pub place: CpuInstanceProperties,
}

/// One iothread as the hypervisor reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IothreadInfo {
    /// ID of the object.
    pub id: String,
    /// The host thread that runs it.
    pub thread: Tid,
}

/// Threads that the hypervisor reports by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmInfo {
    /// The vCPUs, by ascending index.
    pub cpus: Vec<VcpuInfo>,
    /// The iothreads in the hypervisor's order.
    pub iothreads: Vec<IothreadInfo>,
}

/// Run state of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunState {
    /// True if the guest's vCPUs run.
    pub running: bool,
    /// The hypervisor's name of the state: `prelaunch`, `running`, `paused`, …
    pub name: String,
}

/// Version of a hypervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Major, minor and micro number.
    pub number: (u32, u32, u32),
    /// The distribution's package version, often empty.
    pub package: String,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor, micro) = self.number;
        write!(f, "{major}.{minor}.{micro}")?;
        if self.package.is_empty() { Ok(()) } else { write!(f, " ({})", self.package) }
    }
}

/// A virtual machine's control interface.
///
/// ```no_run
/// use pinfold_vm::{Hypervisor as _, qemu::Qemu};
///
/// let mut monitor = Qemu.connect("/run/vm.sock", 5_000_000_000)?;
/// for vcpu in monitor.cpus()? {
///     println!("vCPU {}: thread {}", vcpu.index, vcpu.thread);
/// }
/// # Ok::<(), pinfold_vm::VmError>(())
/// ```
pub trait Monitor: Any + Send {
    /// The hypervisor at the other end.
    fn hypervisor(&self) -> &'static dyn Hypervisor;

    /// The process at the other end, if the transport knows it. This is a hint only, because the
    /// hypervisor may have received its socket from another process.
    fn peer(&self) -> Option<Tid> {
        None
    }

    /// The user ID under which that process created its socket, if the transport knows it. A
    /// transport that does not is a program of the caller's (`virsh`).
    fn peer_user(&self) -> Option<u32> {
        None
    }

    /// vCPUs and iothreads, queried together; `meanwhile` is called once before the replies are
    /// read. The main loop is no iothread.
    ///
    /// # Errors
    /// If a query fails, or its reply is not understood.
    fn query_vm(&mut self, meanwhile: &mut dyn FnMut()) -> Result<VmInfo, VmError>;

    /// The vCPUs, by ascending index.
    ///
    /// # Errors
    /// As [`Monitor::query_vm`].
    fn cpus(&mut self) -> Result<Vec<VcpuInfo>, VmError> {
        Ok(self.query_vm(&mut || {})?.cpus)
    }

    /// The iothreads in the hypervisor's order.
    ///
    /// # Errors
    /// As [`Monitor::query_vm`].
    fn iothreads(&mut self) -> Result<Vec<IothreadInfo>, VmError> {
        Ok(self.query_vm(&mut || {})?.iothreads)
    }

    /// The machine's name, if it has one.
    ///
    /// # Errors
    /// As [`Monitor::query_vm`].
    fn name(&mut self) -> Result<Option<String>, VmError>;

    /// Whether the guest runs.
    ///
    /// # Errors
    /// As [`Monitor::query_vm`].
    fn status(&mut self) -> Result<RunState, VmError>;

    /// The hypervisor's version.
    ///
    /// # Errors
    /// As [`Monitor::query_vm`].
    fn version(&mut self) -> Result<Version, VmError>;

    /// True if KVM runs the guest.
    ///
    /// # Errors
    /// As [`Monitor::query_vm`].
    fn kvm_enabled(&mut self) -> Result<bool, VmError>;

    /// KVM's counters of each vCPU in the form of QEMU's `query-stats`; `None` if the hypervisor
    /// does not report them.
    ///
    /// # Errors
    /// As [`Monitor::query_vm`].
    fn kvm_statistics(&mut self) -> Result<Option<Value>, VmError> {
        Ok(None)
    }

    /// Starts or resumes the guest.
    ///
    /// # Errors
    /// If the hypervisor refuses or has ended.
    fn cont(&mut self) -> Result<(), VmError>;

    /// Stops the guest.
    ///
    /// # Errors
    /// As [`Monitor::cont`].
    fn stop(&mut self) -> Result<(), VmError>;

    /// Requests the hypervisor to exit; it is no error if it closes the connection at once.
    ///
    /// # Errors
    /// If it refuses or does not answer.
    fn quit(&mut self) -> Result<(), VmError>;

    /// Sets the time limit of each later query, if there is one.
    fn set_timeout(&mut self, _timeout_ns: u64) {}
}

#[cfg(test)]
mod tests;
