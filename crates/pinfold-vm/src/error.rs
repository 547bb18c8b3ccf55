//! What can go wrong with a virtual machine: one error, each with its way out.

use std::io;

use pinfold_host::HostError;
use pinfold_model::Tid;

/// Something that a virtual machine, QEMU or libvirt did not do.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// The QMP socket does not answer at all.
    #[error("cannot connect to the QMP socket {path}")]
    Connect {
        /// The socket.
        path: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The socket accepts but sends nothing.
    #[error(
        "no QMP greeting from {path} within {seconds} s: another client is connected to it, or it is not a QMP socket"
    )]
    Silent {
        /// The socket.
        path: String,
        /// How long Pinfold waited.
        seconds: u64,
    },
    /// The socket speaks something else.
    #[error("{path} is not a QMP socket: it said {said:?}")]
    NotQmp {
        /// The socket.
        path: String,
        /// The first bytes that came, shortened.
        said: String,
    },
    /// QEMU closed the connection.
    #[error("QEMU closed the QMP connection {path} during {during}")]
    Closed {
        /// The socket.
        path: String,
        /// The command or step that was under way.
        during: String,
    },
    /// QEMU did not answer in time.
    #[error("no answer to QMP command {command} within {seconds} s")]
    NoAnswer {
        /// The command.
        command: String,
        /// How long Pinfold waited.
        seconds: u64,
    },
    /// A message from the socket exceeds the bound.
    #[error("{path} sent a message longer than {limit} bytes")]
    TooLong {
        /// The socket.
        path: String,
        /// The bound.
        limit: usize,
    },
    /// Reading or writing the socket failed.
    #[error("the QMP connection {path} failed")]
    Socket {
        /// The socket.
        path: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// QEMU refused a command.
    #[error("QEMU refused {command}: {message}")]
    Refused {
        /// The command.
        command: String,
        /// QEMU's error class.
        class: String,
        /// QEMU's own words.
        message: String,
    },
    /// An answer is not what this command gives.
    #[error("the answer to {command} is not understood: {why}")]
    Answer {
        /// The command.
        command: String,
        /// What is wrong with it.
        why: String,
    },
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
    /// The virtual machine has no vCPU yet.
    #[error("the virtual machine has no vCPU thread")]
    NoVcpus,
    /// Neither monitor nor names tell the vCPUs.
    #[error(
        "the threads of process {pid} have no names of their own, so its vCPUs cannot be told from the rest"
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
        "{program} opened no QMP socket within {seconds} s{}",
        said_by(message)
    )]
    StartTimeout {
        /// The program.
        program: String,
        /// How long Pinfold waited.
        seconds: u64,
        /// What it said on its error output.
        message: String,
    },
    /// `virsh` is not there.
    #[error("the program virsh is not installed")]
    NoVirsh,
    /// `virsh` failed.
    #[error("virsh {command} failed: {message}")]
    Virsh {
        /// The subcommand.
        command: String,
        /// Its own words.
        message: String,
    },
    /// libvirt does not know the domain.
    #[error("libvirt knows no domain {name:?}")]
    NoDomain {
        /// As the user named it.
        name: String,
    },
    /// The domain does not run.
    #[error("domain {name:?} is not running (it is {state})")]
    NotRunning {
        /// Its name.
        name: String,
        /// libvirt's word for its state.
        state: String,
    },
    /// Output of `virsh` that is not understood.
    #[error("the output of virsh {command} is not understood: {why}")]
    VirshOutput {
        /// The subcommand.
        command: String,
        /// What is wrong with it.
        why: String,
    },
    /// libvirt speaks of a process that is not the domain's, here.
    #[error(
        "libvirt says that domain {name:?} has thread {tid}, but on this host that is no thread of it"
    )]
    ForeignDomain {
        /// The domain.
        name: String,
        /// The thread.
        tid: Tid,
    },
    /// libvirt has no pin for this kind of thread.
    #[error("libvirt cannot pin {role}")]
    NoSuchPin {
        /// The role.
        role: String,
    },
    /// libvirt accepted a pin, but shows another.
    #[error("libvirt was asked to pin {role} to PUs {asked} but reports {found}")]
    PinNotKept {
        /// The role.
        role: String,
        /// The list that was asked for.
        asked: String,
        /// The list that libvirt reports.
        found: String,
    },
    /// The host refused something.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// QEMU's own message on lines of its own, below ours.
fn said_by(message: &str) -> String {
    if message.is_empty() {
        String::new()
    } else {
        format!("; it said:\n{message}")
    }
}

impl VmError {
    /// What the user can do next, if anything.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            VmError::Connect { source, .. } => return Some(connect_hint(source.kind())),
            VmError::Silent { .. } => {
                "QEMU serves one client per QMP socket: close the other one (virsh, qmp-shell, a second Pinfold), \
                 or start QEMU with a second -qmp option and name that socket; a domain of libvirt is reached with --libvirt"
            }
            VmError::NotQmp { said, .. } if said.contains("monitor - type 'help'") => {
                "this is QEMU's human monitor (-monitor): start QEMU with -qmp unix:PATH,server=on,wait=off and name that PATH"
            }
            VmError::NotQmp { .. } => {
                "name the socket that QEMU was given with -qmp unix:PATH,server=on,wait=off"
            }
            VmError::Closed { .. } => {
                "the virtual machine has probably ended: look at its own output"
            }
            VmError::NoAnswer { .. } => {
                "QEMU's main loop is stuck or stopped: look whether the process is suspended (state T) or waits for storage (state D)"
            }
            VmError::TooLong { .. } | VmError::NotQemu { .. } => {
                "check that the right socket or process was named: ps -o pid,args -C qemu-system-x86_64"
            }
            VmError::Refused { class, .. } if class == "CommandNotFound" => {
                "this QEMU is too old for Pinfold: version 2.12 or newer is needed"
            }
            VmError::Refused { message, .. }
                if message.contains("before machine") || message.contains("pre-config") =>
            {
                "QEMU was started with -preconfig: leave that option out, or send x-exit-preconfig first"
            }
            VmError::NoProcess { .. } => {
                "the virtual machine may have ended: list those that run with pgrep -a qemu"
            }
            VmError::ForeignThread { .. } => {
                "socket and process belong to different virtual machines, or QEMU runs in a container with process numbers of its own: name only the socket, or run Pinfold where the process numbers are the same"
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
            VmError::Daemonize => {
                "leave -daemonize out and put Pinfold itself in the background, or start QEMU alone and use pinfold apply --qmp SOCKET"
            }
            VmError::StartFailed { status, .. } if status == "exit code 0" => {
                "QEMU ended of its own accord, as it does after -version, -help or -device help"
            }
            VmError::Host(HostError::Process { source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                "install QEMU (Debian: apt-get install qemu-system-x86), or give the program's whole path"
            }
            VmError::StartTimeout { .. } => {
                "allow it more time, or try the same command line without Pinfold"
            }
            VmError::NoVirsh => {
                "install libvirt's client (Debian: apt-get install libvirt-clients), or name the virtual machine by --qmp or --pid"
            }
            VmError::NoDomain { .. } => {
                "list the domains with virsh list --all; domains of a user's session need the URI qemu:///session"
            }
            VmError::NotRunning { .. } => "start it with virsh start",
            VmError::ForeignDomain { .. } => {
                "the domain runs on another machine or in a container: run Pinfold there"
            }
            VmError::PinNotKept { .. } => {
                "something else changes the same pins: look at libvirt's log and hooks"
            }
            VmError::Socket { .. }
            | VmError::Refused { .. }
            | VmError::Answer { .. }
            | VmError::NoVcpus
            | VmError::StartFailed { .. }
            | VmError::Virsh { .. }
            | VmError::VirshOutput { .. }
            | VmError::NoSuchPin { .. }
            | VmError::Host(_) => return None,
        };
        Some(hint.to_owned())
    }

    /// True if the virtual machine has gone away meanwhile.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, VmError::Closed { .. } | VmError::NoProcess { .. })
            || matches!(self, VmError::Host(error) if error.is_gone())
    }
}

fn connect_hint(kind: io::ErrorKind) -> String {
    match kind {
        io::ErrorKind::NotFound => {
            "there is no such socket: QEMU makes it when it starts with -qmp unix:PATH,server=on,wait=off"
        }
        io::ErrorKind::ConnectionRefused => {
            "nobody listens: the virtual machine has ended and left its socket behind"
        }
        io::ErrorKind::PermissionDenied => "run Pinfold as the owner of the virtual machine or as root",
        io::ErrorKind::WouldBlock => {
            "other clients are waiting in line for this socket: QEMU serves one at a time"
        }
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename => {
            "the path of a Unix socket has at most 107 bytes: use a shorter one"
        }
        _ => "check the path given with --qmp",
    }
    .to_owned()
}
