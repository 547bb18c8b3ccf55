//! Errors of a QMP connection, and of command lines that cannot be started.

use std::io;

use pinfold_model::Tid;

use crate::error::{DriverError, ErrorClass};

/// A QMP connection that failed, or a command that QEMU refused.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// No connection to the QMP socket.
    #[error("cannot connect to the QMP socket {path}")]
    Connect {
        /// Path of the socket.
        path: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The socket accepts the connection but sends nothing.
    #[error(
        "no QMP greeting from {path} within {seconds} s: another client is connected to it, or it is not a QMP socket"
    )]
    Silent {
        /// Path of the socket.
        path: String,
        /// Time that Pinfold waited, in seconds.
        seconds: u64,
    },
    /// The process that listens is stopped.
    #[error("no reply from the QMP socket {path}: process {pid}, which listens there, is stopped")]
    Stopped {
        /// Path of the socket.
        path: String,
        /// The listening process.
        pid: Tid,
    },
    /// The other side does not speak QMP.
    #[error("{path} is not a QMP socket: it sent {said:?}")]
    NotQmp {
        /// Path of the socket.
        path: String,
        /// The first received bytes, shortened.
        said: String,
    },
    /// QEMU closed the connection.
    #[error("QEMU closed the QMP connection {path} during {during}")]
    Closed {
        /// Path of the socket.
        path: String,
        /// The command or step in progress.
        during: String,
    },
    /// QEMU did not answer in time.
    #[error("no reply to QMP command {command} within {seconds} s")]
    NoAnswer {
        /// The QMP command.
        command: String,
        /// Time that Pinfold waited, in seconds.
        seconds: u64,
    },
    /// A message from the socket is longer than the limit.
    #[error("{path} sent a message longer than {limit} bytes")]
    TooLong {
        /// Path of the socket.
        path: String,
        /// The limit in bytes.
        limit: usize,
    },
    /// Reading or writing the socket failed.
    #[error("the QMP connection {path} failed")]
    Socket {
        /// Path of the socket.
        path: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// QEMU refused a command.
    #[error("QEMU refused {command}: {message}")]
    Refused {
        /// The QMP command.
        command: String,
        /// QEMU's error class.
        class: String,
        /// QEMU's error message.
        message: String,
    },
    /// A reply does not have the form of a reply to this command.
    #[error("cannot parse the reply to {command}: {why}")]
    Answer {
        /// The QMP command.
        command: String,
        /// The fault in the reply.
        why: String,
    },
}

impl DriverError for QmpError {
    fn class(&self) -> ErrorClass {
        match self {
            QmpError::Connect { source, .. } if starts(source.kind()) => ErrorClass::NotReady,
            QmpError::Silent { .. } | QmpError::Stopped { .. } => ErrorClass::NotReady,
            QmpError::Closed { .. } => ErrorClass::Gone,
            QmpError::Connect { .. }
            | QmpError::NotQmp { .. }
            | QmpError::NoAnswer { .. }
            | QmpError::TooLong { .. }
            | QmpError::Socket { .. }
            | QmpError::Refused { .. }
            | QmpError::Answer { .. } => ErrorClass::Other,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            QmpError::Connect { source, .. } => connect_hint(source.kind()),
            QmpError::Silent { .. } => {
                "QEMU serves one client per QMP socket: close the other one (virsh, qmp-shell, a \
                 second Pinfold), or start QEMU with a second -qmp option and name that socket; \
                 use --libvirt for a libvirt domain"
            }
            QmpError::Stopped { pid, .. } => {
                return Some(format!("continue it: kill -CONT {pid}"));
            }
            QmpError::NotQmp { said, .. } if said.contains("monitor - type 'help'") => {
                "this is QEMU's human monitor (-monitor): start QEMU with -qmp unix:PATH,server=on,wait=off and name that PATH"
            }
            QmpError::NotQmp { .. } => {
                "name the socket that QEMU was given with -qmp unix:PATH,server=on,wait=off"
            }
            QmpError::Closed { .. } => "the virtual machine has probably exited: check its output",
            QmpError::NoAnswer { .. } => {
                "QEMU's main loop is stuck or stopped: check whether the process is suspended \
                 (state T) or waits for storage (state D)"
            }
            QmpError::TooLong { .. } => "check that this is the socket of a QEMU",
            QmpError::Refused { class, .. } if class == "CommandNotFound" => {
                "this QEMU is too old for Pinfold: version 2.12 or newer is needed"
            }
            QmpError::Refused { message, .. } if message.contains("before machine init") => {
                "QEMU was started with -preconfig: omit that option, or send x-exit-preconfig first"
            }
            QmpError::Socket { .. } | QmpError::Refused { .. } | QmpError::Answer { .. } => {
                return None;
            }
        };
        Some(hint.to_owned())
    }
}

/// True for the errors of a connection to a QEMU that has not opened its socket yet.
fn starts(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

fn connect_hint(kind: io::ErrorKind) -> &'static str {
    const HINTS: [(io::ErrorKind, &str); 6] = [
        (
            io::ErrorKind::NotFound,
            "there is no such socket: QEMU creates it when started with -qmp \
             unix:PATH,server=on,wait=off",
        ),
        (
            io::ErrorKind::ConnectionRefused,
            "no process listens there: the virtual machine has exited and left its socket behind",
        ),
        (
            io::ErrorKind::PermissionDenied,
            "run Pinfold as the owner of the virtual machine or as root",
        ),
        (
            io::ErrorKind::WouldBlock,
            "other clients are waiting for this socket: QEMU serves one at a time",
        ),
        (io::ErrorKind::InvalidInput, PATH_TOO_LONG),
        (io::ErrorKind::InvalidFilename, PATH_TOO_LONG),
    ];
    let known = HINTS.iter().find(|(of, _)| *of == kind);
    known.map_or("check that this is the path of QEMU's QMP socket", |(_, hint)| hint)
}

const PATH_TOO_LONG: &str = "the path of a Unix socket has at most 107 bytes: use a shorter one";

/// A command line with which QEMU cannot be started and followed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// With `-daemonize` QEMU would detach from the process that starts it.
    #[error(
        "Pinfold cannot monitor QEMU with -daemonize: the process that it starts would exit at once"
    )]
    Daemonize,
    /// A shell's `-c` takes a text and does not pass arguments on to the command in it.
    #[error(
        "{program} -c runs a string: the options that Pinfold adds would go to the shell, not to \
         QEMU"
    )]
    ShellText {
        /// Name of the shell.
        program: String,
    },
    /// QEMU would refuse an option.
    #[error("{why}")]
    Refused {
        /// The option, and what QEMU takes.
        why: String,
    },
    /// QEMU would be the child of another process.
    #[error(
        "systemd-run without --scope lets the service manager start QEMU: it would not be a child \
         of Pinfold and would not exit with it"
    )]
    HandedOver,
}

impl DriverError for CommandError {
    fn class(&self) -> ErrorClass {
        ErrorClass::Input
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            CommandError::ShellText { .. } => {
                "give QEMU's command line directly, or let the shell pass its arguments on: sh -c \
                 'exec \"$0\" \"$@\"' qemu-system-x86_64 …"
            }
            CommandError::Daemonize => {
                "omit -daemonize and run Pinfold itself in the background, or start QEMU alone and \
                 use `pinfold apply --qmp SOCKET`"
            }
            CommandError::Refused { .. } => return None,
            CommandError::HandedOver => "add --scope: systemd-run --scope … qemu-system-x86_64 …",
        };
        Some(hint.to_owned())
    }
}
