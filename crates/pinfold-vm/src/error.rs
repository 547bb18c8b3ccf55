//! Errors concerning a virtual machine, each with a hint.
//!
//! [`VmError`] is returned by this crate's functions. It contains separate enums for errors of the
//! QMP connection and of libvirt.

mod libvirt;
mod qmp;

use std::io;

use pinfold_host::HostError;
use pinfold_model::Tid;

pub use self::libvirt::LibvirtError;
pub use self::qmp::QmpError;

/// An operation on a virtual machine that failed.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// The QMP connection failed.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// libvirt failed.
    #[error(transparent)]
    Libvirt(#[from] LibvirtError),
    /// No process has this ID.
    #[error("there is no process {pid}")]
    NoProcess {
        /// The process ID.
        pid: Tid,
    },
    /// The process is no virtual machine.
    #[error("process {pid} is not QEMU: it runs {program}")]
    NotQemu {
        /// The process ID.
        pid: Tid,
        /// The program that it runs.
        program: String,
    },
    /// The monitor reports a thread that the process does not have.
    #[error("QEMU's monitor reports thread {tid}, which is no thread of process {pid}")]
    ForeignThread {
        /// The process ID that was given.
        pid: Tid,
        /// The reported thread.
        tid: Tid,
    },
    /// The monitor reports a machine that belongs neither to the user who owns its socket nor to
    /// the caller.
    #[error(
        "the monitor reports threads of process {pid}, which is user {user}'s, but its socket is user {peer}'s"
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
        "the threads of process {pid} have no names of their own, so its vCPUs cannot be distinguished from the others"
    )]
    Nameless {
        /// The process ID.
        pid: Tid,
    },
    /// All vCPUs share one thread and cannot be pinned separately.
    #[error(
        "all {vcpus} vCPUs run in one thread (TCG with thread=single), so they cannot be pinned one by one"
    )]
    OneThread {
        /// Number of vCPUs.
        vcpus: u32,
    },
    /// No program was given.
    #[error("no QEMU command line was given")]
    NoCommand,
    /// With `-daemonize` QEMU would detach from the process that starts it.
    #[error(
        "QEMU cannot be watched with -daemonize: the process that Pinfold starts would end at once"
    )]
    Daemonize,
    /// A shell's `-c` takes a text and does not pass arguments on to the command in it.
    #[error(
        "{program} -c runs a text: the options that Pinfold adds would be the shell's, not QEMU's"
    )]
    ShellText {
        /// Name of the shell.
        program: String,
    },
    /// QEMU would be the child of another process.
    #[error(
        "systemd-run without --scope has the service manager start QEMU: it is then no child of Pinfold, and does not end with it"
    )]
    HandedOver,
    /// QEMU ended before it could be placed.
    #[error("{program} did not start ({status}){}", said_by(message))]
    StartFailed {
        /// The program that was started.
        program: String,
        /// Its exit status in words.
        status: String,
        /// Its standard error output.
        message: String,
    },
    /// QEMU runs but opened no QMP socket.
    #[error(
        "{program} opened no QMP socket within {seconds} s{}{}",
        without_arguments(deaf),
        said_by(message)
    )]
    StartTimeout {
        /// The program that was started.
        program: String,
        /// Time that Pinfold waited, in seconds.
        seconds: u64,
        /// Its standard error output.
        message: String,
        /// A QEMU process that runs but was not given the arguments that Pinfold adds.
        deaf: Option<Tid>,
    },
    /// An operation on the host failed.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// The reason for the missing socket, if it is known.
fn without_arguments(qemu: &Option<Tid>) -> String {
    match qemu {
        Some(pid) => format!(
            ": it started QEMU (process {pid}) without the arguments that Pinfold adds (-S -qmp … -name …)"
        ),
        None => String::new(),
    }
}

/// QEMU's own message on separate lines.
fn said_by(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!("; it said:\n{message}") }
}

impl VmError {
    /// What the user can do next, if anything.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            VmError::Qmp(error) => return error.hint(),
            VmError::Libvirt(error) => return error.hint(),
            VmError::NoProcess { .. } | VmError::NotQemu { .. } => {
                "the virtual machine may have ended: list those that run with pgrep -a qemu"
            }
            VmError::ForeignThread { .. } => {
                "socket and process belong to different virtual machines, or QEMU runs in a container with process numbers of its own: \
                 name only the socket, or run Pinfold where the process numbers are the same"
            }
            VmError::ForeignOwner { .. } => {
                "name QEMU's own socket, or one whose proxy runs as root, as you or as QEMU's user"
            }
            VmError::Nameless { .. } => {
                "name its QMP socket (--qmp) or libvirt domain (--libvirt), or start it with -name NAME,debug-threads=on"
            }
            VmError::OneThread { .. } => {
                "start QEMU with -accel tcg,thread=multi (not possible with -icount), or use KVM"
            }
            VmError::NoCommand => {
                "give it after two dashes: pinfold run --strategy compact -- qemu-system-x86_64 …"
            }
            VmError::ShellText { .. } => {
                "write QEMU's command line itself, or have the shell hand its arguments on: \
                 sh -c 'exec \"$0\" \"$@\"' qemu-system-x86_64 …"
            }
            VmError::Daemonize => {
                "leave -daemonize out and put Pinfold itself in the background, or start QEMU alone and use `pinfold apply --qmp SOCKET`"
            }
            VmError::StartFailed { status, .. } if status == "exit code 0" => {
                "QEMU ended of its own accord, as it does after -version, -help or -device help"
            }
            VmError::HandedOver => "add --scope: systemd-run --scope … qemu-system-x86_64 …",
            VmError::StartTimeout { deaf: Some(_), .. } => {
                "a start script must hand its arguments on to QEMU: end its QEMU line with \"$@\""
            }
            VmError::StartTimeout { .. } => {
                "try the same command line without Pinfold, or allow it more time with --start-timeout"
            }
            VmError::Host(HostError::Process { source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                "install QEMU (Debian: apt-get install qemu-system-x86), or give the program's whole path"
            }
            VmError::NoVcpus | VmError::StartFailed { .. } | VmError::Host(_) => return None,
        };
        Some(hint.to_owned())
    }

    /// True if the virtual machine has ended meanwhile.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, VmError::Qmp(QmpError::Closed { .. }) | VmError::NoProcess { .. })
            || matches!(self, VmError::Host(error) if error.is_gone())
    }
}
