//! Errors concerning a virtual machine, each with a hint.
//!
//! [`VmError`] is returned by this crate's functions. Errors of one hypervisor, and of libvirt, are
//! enums in their folders; they implement [`DriverError`].

use std::error::Error;
use std::fmt;
use std::io;

use pinfold_host::HostError;
use pinfold_model::Tid;

use crate::display_strings::DisplayStrings;

/// Class of a driver's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The command line of the machine is wrong.
    Input,
    /// The machine may still be starting.
    NotReady,
    /// The machine has ended.
    Gone,
    /// Anything else.
    Other,
}

/// An error of the interface to one hypervisor, or to libvirt.
pub trait DriverError: Error + Send + Sync + 'static {
    /// What the user can do next, if anything.
    fn hint(&self) -> Option<String>;

    /// Its class.
    fn class(&self) -> ErrorClass {
        ErrorClass::Other
    }
}

/// A [`DriverError`] of any type.
#[derive(Debug)]
pub struct AnyDriverError(Box<dyn DriverError>);

impl fmt::Display for AnyDriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for AnyDriverError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

impl<E: DriverError> From<E> for VmError {
    fn from(error: E) -> Self {
        VmError::Driver(AnyDriverError(Box::new(error)))
    }
}

/// An operation on a virtual machine that failed.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// The interface to the hypervisor or to libvirt failed, or refuses the command line.
    #[error(transparent)]
    Driver(AnyDriverError),
    /// No process has this ID.
    #[error("there is no process {pid}")]
    NoProcess {
        /// The process ID.
        pid: Tid,
    },
    /// The process is no virtual machine.
    #[error("process {pid} is not {expected}: it runs {program}")]
    NotHypervisor {
        /// The process ID.
        pid: Tid,
        /// The names of the hypervisors that it could be.
        expected: String,
        /// The program that it runs.
        program: String,
    },
    /// The monitor reports a thread that the process does not have.
    #[error("{}'s monitor reports thread {tid}, which does not belong to process \
             {pid}", texts.name)]
    ForeignThread {
        /// Words about the hypervisor.
        texts: &'static DisplayStrings,
        /// The process ID that was given.
        pid: Tid,
        /// The reported thread.
        tid: Tid,
    },
    /// The monitor reports a machine that belongs neither to the user who owns its socket nor to
    /// the caller.
    #[error(
        "the monitor reports threads of process {pid}, which belongs to user {user}, but its \
         socket belongs to user {peer}"
    )]
    ForeignOwner {
        /// The process of the reported threads.
        pid: Tid,
        /// The user ID of that process.
        user: u32,
        /// The user ID of the socket's owner.
        peer: u32,
    },
    /// The virtual machine has no vCPU yet.
    #[error("the virtual machine has no vCPU thread")]
    NoVcpus,
    /// The vCPUs can be identified neither through a monitor nor by thread names.
    #[error(
        "no thread of process {pid} has the name of a vCPU: either the virtual machine has no vCPU, or \
         its threads are not named"
    )]
    Nameless {
        /// The process ID.
        pid: Tid,
        /// Words about the hypervisor.
        texts: &'static DisplayStrings,
    },
    /// All vCPUs share one thread and cannot be pinned separately.
    #[error(
        "all {vcpus} vCPUs run in one thread (TCG with thread=single), so they cannot be pinned \
         individually"
    )]
    OneThread {
        /// Number of vCPUs.
        vcpus: u32,
    },
    /// No program was given.
    #[error("no QEMU command line was given")]
    NoCommand,
    /// The program that was given does not exist.
    #[error("{message}")]
    NoProgram {
        /// Words about the hypervisor.
        texts: &'static DisplayStrings,
        /// What failed.
        message: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The hypervisor ended before the machine could be placed.
    #[error("{program} did not start ({status}){}", said_by(message))]
    StartFailed {
        /// Words about the hypervisor.
        texts: &'static DisplayStrings,
        /// The program that was started.
        program: String,
        /// Its exit status in words.
        status: String,
        /// Its standard error output.
        message: String,
    },
    /// The hypervisor runs but opened no control socket.
    #[error(
        "{program} did not open its {} within {seconds} s{}{}",
        texts.socket,
        without_arguments(deaf, texts),
        said_by(message)
    )]
    StartTimeout {
        /// Words about the hypervisor.
        texts: &'static DisplayStrings,
        /// The program that was started.
        program: String,
        /// Time that Pinfold waited, in seconds.
        seconds: u64,
        /// Its standard error output.
        message: String,
        /// A process of the hypervisor that runs but was not given the arguments that Pinfold adds.
        deaf: Option<Tid>,
    },
    /// An operation on the host failed.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// The reason for the missing socket, if it is known.
fn without_arguments(process: &Option<Tid>, texts: &DisplayStrings) -> String {
    match process {
        Some(pid) => format!(
            ": it started {} (process {pid}) without the arguments that Pinfold adds ({})",
            texts.name, texts.added_options
        ),
        None => String::new(),
    }
}

/// The program's own message on separate lines.
fn said_by(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!("; it printed:\n{message}") }
}

impl VmError {
    /// What the user can do next, if anything.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            VmError::Driver(error) => return error.0.hint(),
            VmError::NoProcess { .. } => {
                "the virtual machine may have exited: `pinfold` without arguments lists the \
                 running ones"
            }
            VmError::NotHypervisor { pid, .. } => {
                return Some(format!(
                    "for a program that pinfold does not know: `pinfold measure sched --process \
                     {pid}` measures its threads, `pinfold run --group` places it from its start"
                ));
            }
            VmError::ForeignThread { .. } => {
                "socket and process belong to different virtual machines, or QEMU runs in a container with process numbers of its own: \
                 name only the socket, or run Pinfold where the process numbers are the same"
            }
            VmError::ForeignOwner { .. } => {
                "name QEMU's own socket, or one whose proxy runs as root, as you or as QEMU's user"
            }
            VmError::Nameless { texts, .. } => {
                return Some(match texts.selectors {
                    "" => texts.thread_names.to_owned(),
                    selectors => format!("name {selectors}, or {}", texts.thread_names),
                });
            }
            VmError::OneThread { .. } => {
                "start QEMU with -accel tcg,thread=multi (not possible with -icount), or use KVM"
            }
            VmError::NoCommand => {
                "write it after two dashes: pinfold run --strategy compact -- qemu-system-x86_64 …"
            }
            VmError::StartFailed { status, texts, .. } if status == "exit code 0" => {
                texts.ends_at_once
            }
            VmError::StartTimeout { deaf: Some(_), texts, .. } => texts.script,
            VmError::StartTimeout { .. } => {
                "try the same command line without Pinfold, or give it more time with \
                 --start-timeout"
            }
            VmError::NoProgram { texts, .. } => texts.install,
            VmError::NoVcpus | VmError::StartFailed { .. } | VmError::Host(_) => return None,
        };
        Some(hint.to_owned())
    }

    /// True if the virtual machine has ended meanwhile.
    pub fn is_gone(&self) -> bool {
        self.is_of(ErrorClass::Gone)
            || matches!(self, VmError::NoProcess { .. })
            || matches!(self, VmError::Host(error) if error.is_gone())
    }

    /// True while a machine that was started has no control interface yet.
    pub fn is_not_ready(&self) -> bool {
        self.is_of(ErrorClass::NotReady)
    }

    /// True if the command line of the machine is wrong.
    #[must_use]
    pub fn is_input(&self) -> bool {
        matches!(self, VmError::NoCommand) || self.is_of(ErrorClass::Input)
    }

    fn is_of(&self, class: ErrorClass) -> bool {
        matches!(self, VmError::Driver(error) if error.0.class() == class)
    }

    /// The error of a driver, if it is of this type.
    pub fn downcast_driver<E: DriverError>(&self) -> Option<&E> {
        let VmError::Driver(error) = self else { return None };
        let error: &(dyn Error + 'static) = &*error.0;
        error.downcast_ref()
    }
}
