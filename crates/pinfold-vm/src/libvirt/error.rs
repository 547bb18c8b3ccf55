//! Errors of libvirt.

use pinfold_model::{Tid, escape};

use crate::error::DriverError;

/// An operation of libvirt that failed.
#[derive(Debug, thiserror::Error)]
pub enum LibvirtError {
    /// `virsh` is not installed.
    #[error("virsh is not installed")]
    NoVirsh,
    /// `virsh` failed.
    #[error("virsh {command} failed: {message}")]
    Virsh {
        /// The subcommand of `virsh`.
        command: String,
        /// The message of `virsh`.
        message: String,
    },
    /// The daemon accepts connections and does not answer.
    #[error("libvirt did not answer in time ({uri})")]
    Silent {
        /// The URI of the connection.
        uri: String,
    },
    /// libvirt does not know the domain.
    #[error("libvirt knows no domain {name:?}")]
    NoDomain {
        /// The name that the user gave.
        name: String,
    },
    /// The domain is not running.
    #[error("domain {name:?} is not running (it is {state})")]
    NotRunning {
        /// Name of the domain.
        name: String,
        /// libvirt's name of its state.
        state: String,
    },
    /// The output of `virsh` is not understood.
    #[error("cannot parse the output of virsh {command}: {why}")]
    Output {
        /// The subcommand of `virsh`.
        command: String,
        /// The fault in the output.
        why: String,
    },
    /// The XML that libvirt passes to a hook is not understood.
    #[error("cannot parse the domain's XML on standard input: {why}")]
    HookXml {
        /// The fault in the XML.
        why: String,
    },
    /// The PID file of a domain does not name the domain's process.
    #[error("libvirt's PID file {} {why}", escape::name(path))]
    PidFile {
        /// Path of the file.
        path: String,
        /// What is wrong with it, as a verb and its object.
        why: String,
    },
    /// libvirt reports a thread that does not belong to the domain's process on this host.
    #[error(
        "libvirt reports thread {tid} for domain {name:?}, but on this host that thread does not \
         belong to it"
    )]
    Foreign {
        /// Name of the domain.
        name: String,
        /// The reported thread.
        tid: Tid,
    },
    /// libvirt cannot pin this kind of thread.
    #[error("libvirt cannot pin {role}")]
    NoSuchPin {
        /// The role of the thread.
        role: String,
    },
    /// libvirt accepted a pin but reports another.
    #[error("libvirt was asked to pin {role} to {asked} but reports {found}")]
    PinNotKept {
        /// The role of the pinned thread.
        role: String,
        /// The requested list.
        asked: String,
        /// The list that libvirt reports.
        found: String,
    },
}

impl DriverError for LibvirtError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            LibvirtError::NoVirsh => {
                "install libvirt's client (Debian: apt-get install libvirt-clients), or name the virtual machine by --qmp or --pid"
            }
            LibvirtError::NoDomain { .. } => {
                "list the domains with virsh list --all; domains of a user's session need the URI qemu:///session"
            }
            LibvirtError::Silent { .. } => {
                "restart libvirtd (or virtqemud), which leaves domains running"
            }
            LibvirtError::NotRunning { .. } => "start it with virsh start",
            LibvirtError::Foreign { .. } => {
                "the domain runs on another machine or in a container: run Pinfold there"
            }
            LibvirtError::PidFile { .. } => {
                "libvirt writes this file at the start of the domain: shut the domain down and start it again"
            }
            LibvirtError::PinNotKept { .. } => {
                "another program changes the same pins: check libvirt's log and hooks"
            }
            LibvirtError::Virsh { .. }
            | LibvirtError::Output { .. }
            | LibvirtError::HookXml { .. }
            | LibvirtError::NoSuchPin { .. } => return None,
        };
        Some(hint.to_owned())
    }
}
