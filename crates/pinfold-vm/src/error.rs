//! What can go wrong with a virtual machine, each with its way out.
//!
//! [`VmError`] is what this crate's functions return; what concerns only the QMP connection or
//! only libvirt has an enum of its own inside it.

mod libvirt;
mod qmp;

use std::io;

use pinfold_host::HostError;
use pinfold_model::Tid;

pub use self::libvirt::LibvirtError;
pub use self::qmp::QmpError;

/// Something that a virtual machine, QEMU or libvirt did not do.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// The QMP connection failed.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// libvirt failed.
    #[error(transparent)]
    Libvirt(#[from] LibvirtError),
    /// No process has this number.
    #[error("there is no process {pid}")]
    NoProcess {
        /// The number.
        pid: Tid,
    },
    /// The process is no virtual machine.
    #[error("process {pid} is not QEMU: it runs {program}")]
    NotQemu {
        /// The process.
        pid: Tid,
        /// Its program.
        program: String,
    },
    /// The monitor speaks of threads that the process does not have.
    #[error("QEMU's monitor reports thread {tid}, which is no thread of process {pid}")]
    ForeignThread {
        /// The process that was named.
        pid: Tid,
        /// The thread.
        tid: Tid,
    },
    /// The monitor speaks of a machine that is neither its own user's nor the caller's to name.
    #[error(
        "the monitor reports threads of process {pid}, which is user {user}'s, but its socket is user {peer}'s"
    )]
    ForeignOwner {
        /// The process of the threads.
        pid: Tid,
        /// Its user.
        user: u32,
        /// The user who listens at the socket.
        peer: u32,
    },
    /// The virtual machine has no vCPU yet.
    #[error("the virtual machine has no vCPU thread")]
    NoVcpus,
    /// Neither monitor nor names tell the vCPUs.
    #[error(
        "the threads of process {pid} have no names of their own, so its vCPUs cannot be distinguished from the others"
    )]
    Nameless {
        /// The process.
        pid: Tid,
    },
    /// All vCPUs share one thread: they cannot be pinned one by one.
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
    /// QEMU would leave its starter.
    #[error(
        "QEMU cannot be watched with -daemonize: the process that Pinfold starts would end at once"
    )]
    Daemonize,
    /// A shell runs a text, and does not hand arguments on to what the text starts.
    #[error(
        "{program} -c runs a text: the options that Pinfold adds would be the shell's, not QEMU's"
    )]
    ShellText {
        /// The shell.
        program: String,
    },
    /// QEMU would be another process's child.
    #[error(
        "systemd-run without --scope has the service manager start QEMU: it is then no child of Pinfold, and does not end with it"
    )]
    HandedOver,
    /// QEMU ended before it could be placed.
    #[error("{program} did not start ({status}){}", said_by(message))]
    StartFailed {
        /// The program.
        program: String,
        /// Its exit status in words.
        status: String,
        /// What it said on its error output.
        message: String,
    },
    /// QEMU runs but opened no QMP socket.
    #[error(
        "{program} opened no QMP socket within {seconds} s{}{}",
        without_arguments(deaf),
        said_by(message)
    )]
    StartTimeout {
        /// The program.
        program: String,
        /// How long Pinfold waited.
        seconds: u64,
        /// What it said on its error output.
        message: String,
        /// A QEMU that runs, but was not given the arguments that Pinfold adds.
        deaf: Option<Tid>,
    },
    /// The host refused something.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// Why there is no socket, if that is known.
fn without_arguments(qemu: &Option<Tid>) -> String {
    match qemu {
        Some(pid) => format!(
            ": it started QEMU (process {pid}) without the arguments that Pinfold adds (-S -qmp … -name …)"
        ),
        None => String::new(),
    }
}

/// QEMU's own message on lines of its own, below ours.
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

    /// True if the virtual machine has gone away meanwhile.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, VmError::Qmp(QmpError::Closed { .. }) | VmError::NoProcess { .. })
            || matches!(self, VmError::Host(error) if error.is_gone())
    }
}
