//! What can go wrong between Pinfold and libvirt.

use pinfold_model::Tid;

/// Something that libvirt did not do.
#[derive(Debug, thiserror::Error)]
pub enum LibvirtError {
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
    Output {
        /// The subcommand.
        command: String,
        /// What is wrong with it.
        why: String,
    },
    /// libvirt speaks of a process that is not the domain's, here.
    #[error(
        "libvirt says that domain {name:?} has thread {tid}, but on this host that is no thread of it"
    )]
    Foreign {
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
}

impl LibvirtError {
    /// What the user can do next, if anything.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            LibvirtError::NoVirsh => {
                "install libvirt's client (Debian: apt-get install libvirt-clients), or name the virtual machine by --qmp or --pid"
            }
            LibvirtError::NoDomain { .. } => {
                "list the domains with virsh list --all; domains of a user's session need the URI qemu:///session"
            }
            LibvirtError::NotRunning { .. } => "start it with virsh start",
            LibvirtError::Foreign { .. } => {
                "the domain runs on another machine or in a container: run Pinfold there"
            }
            LibvirtError::PinNotKept { .. } => {
                "something else changes the same pins: look at libvirt's log and hooks"
            }
            LibvirtError::Virsh { .. }
            | LibvirtError::Output { .. }
            | LibvirtError::NoSuchPin { .. } => return None,
        };
        Some(hint.to_owned())
    }
}
