//! Why there is no plan, and what the user can do about it.
//!
//! Each text names the value that is wrong; the way out is in [`PlanError::hint`],
//! so that a caller shows it on a line of its own. `nearest` is filled in by
//! [`crate::plan`]: a strategy alone does not know its neighbours.

use pinfold_model::text::agree;
use pinfold_model::{CpuSet, NodeId};
use thiserror::Error;

use crate::parts::mib;
use crate::plan_builder::numbered;

/// Why a strategy gives no plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// No strategy has this name.
    #[error("there is no strategy named {name:?}")]
    UnknownStrategy {
        /// The name that was asked for.
        name: String,
        /// The name that was probably meant.
        nearest: Option<String>,
    },
    /// The request places nothing.
    #[error("the request names neither a virtual machine nor a process group")]
    NoVnodes,
    /// A vnode's name cannot be used.
    #[error("the name {name:?} cannot be used: {why}")]
    BadName {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A virtual machine without vCPUs, or a process group without cores, was asked for.
    #[error("no {what} were asked for {vnode:?}, it needs at least one")]
    NoVcpus {
        /// The vnode.
        vnode: String,
        /// What was counted.
        what: &'static str,
    },
    /// More vhost workers than any machine has.
    #[error("{asked} vhost workers were asked for {vnode:?}, more than any virtual machine has")]
    TooManyVhosts {
        /// The vnode.
        vnode: String,
        /// How many.
        asked: u32,
    },
    /// A device that the request names is not there.
    #[error("{device} cannot be planned for: {why}")]
    Device {
        /// The device.
        device: String,
        /// What is wrong with it.
        why: String,
    },
    /// The share that is to stay free cannot.
    #[error("{asked} cannot stay free on this host: {why}")]
    Free {
        /// The share.
        asked: String,
        /// What is missing.
        why: String,
    },
    /// A vnode's memory is not where its PUs are.
    #[error(
        "{vnode:?} needs {} of memory, and {} {}",
        size(*bytes),
        holders(nodes),
        held(bytes - missing, *all, *in_cells)
    )]
    Memory {
        /// The vnode.
        vnode: String,
        /// What it needs, in bytes.
        bytes: u64,
        /// The nodes of its PUs.
        nodes: Vec<NodeId>,
        /// What they lack, in bytes.
        missing: u64,
        /// What they have in all, in bytes.
        all: u64,
        /// True if each node holds a NUMA cell with its share.
        in_cells: bool,
        /// A strategy that does not refuse it.
        nearest: Option<String>,
    },
    /// A vnode cannot be placed on the NUMA nodes that the request names.
    #[error("{vnode:?} cannot be placed on {}: {why}", node_names(nodes))]
    VnodeController {
        /// The vnode.
        vnode: String,
        /// The nodes that the request names.
        nodes: Vec<NodeId>,
        /// Why not.
        why: String,
    },
    /// The NUMA nodes that a guest is shown do not fit its vCPUs, or cannot be planned.
    #[error("the guest NUMA cells of {vnode:?} cannot be planned: {why}")]
    Cells {
        /// The vnode.
        vnode: String,
        /// What is wrong with them.
        why: String,
    },
    /// The nodes of a vnode's PUs lack huge pages.
    #[error(
        "{vnode:?} needs {needed} pages of {} KiB, and {free} are free on {}",
        page_bytes / 1024,
        node_names(nodes)
    )]
    HugePages {
        /// The vnode.
        vnode: String,
        /// Size of a page in bytes.
        page_bytes: u64,
        /// How many it needs.
        needed: u64,
        /// The nodes of its PUs.
        nodes: Vec<NodeId>,
        /// How many of that size are free there, besides those of earlier vnodes.
        free: u64,
    },
    /// The guest cannot be shown siblings under this strategy.
    #[error("{strategy} cannot show {vnode:?} SMT siblings: {why}")]
    GuestSmt {
        /// The strategy.
        strategy: String,
        /// The vnode.
        vnode: String,
        /// Why not.
        why: String,
        /// The strategy nearest in intent that can.
        nearest: Option<String>,
    },
    /// The emulator cannot be where the request wants it.
    #[error("{strategy} cannot have the emulator {wish}: {why}")]
    EmulatorRequest {
        /// The strategy.
        strategy: String,
        /// The wish.
        wish: String,
        /// Why not.
        why: String,
    },
    /// The strategy does not place this kind of vnode.
    #[error("{strategy} does not place {vnode:?}: {why}")]
    WrongKind {
        /// The strategy.
        strategy: String,
        /// The vnode.
        vnode: String,
        /// What it places instead.
        why: String,
        /// The strategy nearest in intent that places it.
        nearest: Option<String>,
    },
    /// One of several vnodes finds too few free cores near each other.
    #[error("{strategy} has room for {left} of the {} of {vnode:?}: {why}", numbered(*asked, what))]
    NoRoom {
        /// The strategy.
        strategy: String,
        /// The vnode.
        vnode: String,
        /// vCPUs (of a process group: cores) asked for.
        asked: u32,
        /// How many there is room for.
        left: u32,
        /// What was counted.
        what: &'static str,
        /// What limits it.
        why: String,
        /// The strategy nearest in intent that has room.
        nearest: Option<String>,
    },
    /// The strategy cannot give that many vCPUs on this host.
    #[error(
        "{strategy} gives at most {} on this host, {asked} were asked for: {why}",
        numbered(*most, what)
    )]
    TooManyVcpus {
        /// The strategy.
        strategy: String,
        /// vCPUs asked for.
        asked: u32,
        /// vCPUs that it can give.
        most: u32,
        /// What was counted.
        what: &'static str,
        /// What limits it.
        why: String,
        /// The strategy nearest in intent that can give them.
        nearest: Option<String>,
    },
    /// The strategy cannot give a single vCPU on this host.
    #[error("{strategy} cannot work on the PUs {usable} of this host: {why}")]
    TooFewPus {
        /// The strategy.
        strategy: String,
        /// What it was given.
        usable: CpuSet,
        /// What is missing.
        why: String,
        /// The strategy nearest in intent that works here.
        nearest: Option<String>,
    },
    /// Nothing is left of the host.
    #[error(
        "no PU is left to plan with: the cpuset of this process allows {}, and {} are to be avoided",
        list(allowed),
        list(avoid)
    )]
    NoPus {
        /// What this process may use.
        allowed: CpuSet,
        /// What the request avoids.
        avoid: CpuSet,
    },
    /// All PUs that may be used are isolated, so the host's own tasks would have none.
    #[error("all usable PUs ({usable}) are isolated, so none is left for the host's own tasks")]
    NoHousekeeping {
        /// What the plan may use.
        usable: CpuSet,
    },
    /// A scheduling policy that the request asks for cannot be.
    #[error("the policies of {vnode:?} cannot be: {why}")]
    Policy {
        /// The vnode.
        vnode: String,
        /// What is wrong with them.
        why: String,
    },
    /// Pins by hand cannot be.
    #[error("the pins by hand of {vnode:?} cannot be: {why}")]
    Pin {
        /// The vnode.
        vnode: String,
        /// What is wrong with them.
        why: String,
    },
    /// An iothread's id cannot be used.
    #[error("the iothread id {id:?} cannot be used: {why}")]
    BadIothread {
        /// The id.
        id: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

const POLICY_HINT: &str = "name roles that the plan has, and a strategy that keeps the emulator \
    and the iothreads off real-time vCPUs, such as balanced or low-latency";

const NODES_HINT: &str = "name other nodes, or none: without a binding (<numatune> in a domain \
    file) the plan chooses the nodes";

const CELLS_HINT: &str = "give each cell neighbouring vCPUs and plan one machine at a time; without \
    cells (<numa> in a domain file) the plan makes its own";

const DEVICE_HINT: &str = "`lspci -D` shows the addresses; or name the device's node as node:N";

const NO_HOUSEKEEPING_HINT: &str =
    "leave at least one PU out of `isolcpus=`, of isolated partitions and of what is to be avoided";

const PIN_HINT: &str =
    "name threads that the machine or group has and PUs that it may use; `pinfold topo` shows them";

/// The hint where memory does not fit.
fn less_memory(most: u64, nearest: Option<&str>) -> String {
    let other = nearest.map_or_else(String::new, |nearest| {
        format!(", or use {nearest}, which takes the memory of more nodes")
    });
    match (most, nearest) {
        (0, Some(nearest)) => format!("use {nearest}, which takes the memory of more nodes"),
        (0, None) => "place it on nodes that have memory".to_owned(),
        (_, _) => format!("ask for at most {}{other}", size_below(most)),
    }
}

impl PlanError {
    /// What the user can do next.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            PlanError::UnknownStrategy { nearest: Some(nearest), .. } => {
                Some(format!("did you mean {nearest}? `pinfold plan --list` shows all strategies"))
            }
            PlanError::UnknownStrategy { nearest: None, .. } => {
                Some("`pinfold plan --list` shows all strategies".to_owned())
            }
            PlanError::NoVnodes => Some("name at least one in the request file".to_owned()),
            PlanError::BadName { .. } => Some("give each machine and group a name of its own".to_owned()),
            PlanError::NoVcpus { what: "vCPUs", .. } => {
                Some("ask for one vCPU or more, or for auto".to_owned())
            }
            PlanError::NoVcpus { what, .. } => Some(format!("ask for one or more {what}")),
            PlanError::TooManyVhosts { .. } => {
                Some("give the number of its vhost queue pairs".to_owned())
            }
            PlanError::Device { .. } => Some(DEVICE_HINT.to_owned()),
            PlanError::Free { .. } => Some("keep fewer PUs free".to_owned()),
            PlanError::Memory { bytes, missing, nearest, .. } => {
                Some(less_memory(bytes - missing, nearest.as_deref()))
            }
            PlanError::VnodeController { .. } => Some(NODES_HINT.to_owned()),
            PlanError::Cells { .. } => Some(CELLS_HINT.to_owned()),
            PlanError::HugePages { needed, free, .. } => Some(format!(
                "make {} more of them there (hugeadm, or hugepages= at boot), or ask for other pages",
                needed - free
            )),
            PlanError::EmulatorRequest { .. } => {
                Some("use balanced on a host whose first core has siblings, or leave the emulator as usual".to_owned())
            }
            PlanError::GuestSmt { nearest, .. }
            | PlanError::WrongKind { nearest, .. }
            | PlanError::NoRoom { nearest, .. } => {
                nearest.as_ref().map(|nearest| format!("use {nearest}, which can"))
            }
            PlanError::TooManyVcpus { most, asked, nearest, what, .. } => Some(match nearest {
                Some(nearest) => {
                    format!(
                        "ask for at most {}, or use {nearest}, which gives {asked}",
                        numbered(*most, what)
                    )
                }
                None => format!("ask for at most {}", numbered(*most, what)),
            }),
            PlanError::TooFewPus { nearest, .. } => {
                nearest.as_ref().map(|nearest| format!("use {nearest}, which works on these PUs"))
            }
            PlanError::NoPus { .. } => Some(
                "avoid fewer PUs, or start Pinfold in a cgroup with a wider cpuset"
                    .to_owned(),
            ),
            PlanError::NoHousekeeping { .. } => Some(NO_HOUSEKEEPING_HINT.to_owned()),
            PlanError::Policy { .. } => Some(POLICY_HINT.to_owned()),
            PlanError::Pin { .. } => Some(PIN_HINT.to_owned()),
            PlanError::BadIothread { .. } => {
                Some("give each iothread the id that it has in `-object iothread,id=`".to_owned())
            }
        }
    }

    /// The same error with a way out, where it has room for one and none yet.
    pub(crate) fn with_nearest(mut self, strategy: &str) -> Self {
        match &mut self {
            PlanError::TooManyVcpus { nearest, .. }
            | PlanError::TooFewPus { nearest, .. }
            | PlanError::GuestSmt { nearest, .. }
            | PlanError::WrongKind { nearest, .. }
            | PlanError::Memory { nearest, .. }
            | PlanError::NoRoom { nearest, .. } => {
                nearest.get_or_insert_with(|| strategy.to_owned());
            }
            PlanError::UnknownStrategy { .. }
            | PlanError::NoVnodes
            | PlanError::BadName { .. }
            | PlanError::NoVcpus { .. }
            | PlanError::TooManyVhosts { .. }
            | PlanError::Device { .. }
            | PlanError::Free { .. }
            | PlanError::VnodeController { .. }
            | PlanError::Cells { .. }
            | PlanError::HugePages { .. }
            | PlanError::EmulatorRequest { .. }
            | PlanError::NoPus { .. }
            | PlanError::NoHousekeeping { .. }
            | PlanError::Policy { .. }
            | PlanError::Pin { .. }
            | PlanError::BadIothread { .. } => {}
        }
        self
    }

    /// True if another strategy may succeed where this one did not.
    pub(crate) fn depends_on_strategy(&self) -> bool {
        matches!(
            self,
            PlanError::TooManyVcpus { .. }
                | PlanError::TooFewPus { .. }
                | PlanError::GuestSmt { .. }
                | PlanError::WrongKind { .. }
                | PlanError::NoRoom { .. }
                | PlanError::Memory { .. }
        )
    }
}

/// The nodes whose memory a vnode would have, with the verb.
fn holders(nodes: &[NodeId]) -> String {
    let names: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    match nodes {
        [node] => format!("node {node}, where its CPUs are, has"),
        _ => format!("the nodes {} have", names.join(", ")),
    }
}

/// `node 1`, `nodes 0, 1`.
fn node_names(nodes: &[NodeId]) -> String {
    let numbers: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    format!("{} {}", agree(nodes.len(), "node", "nodes"), numbers.join(", "))
}

/// What the nodes have for a vnode, and why that is not all of their memory.
fn held(most: u64, all: u64, in_cells: bool) -> String {
    match (most < all, in_cells) {
        (false, _) => size_below(most),
        (true, false) => format!("{} left of {}", size_below(most), size_below(all)),
        (true, true) => format!(
            "{}, of which a machine with a NUMA cell on each can have {}",
            size_below(all),
            size_below(most)
        ),
    }
}

/// `16 GiB`; in smaller units where that is no whole number.
pub(crate) fn size(bytes: u64) -> String {
    match bytes.is_multiple_of(1 << 30) {
        true => format!("{} GiB", bytes >> 30),
        false => mib(bytes),
    }
}

/// The same of a limit, in whole MiB.
pub(crate) fn size_below(bytes: u64) -> String {
    size(whole_mib(bytes))
}

/// A limit rounded down to whole MiB, if it has any.
pub(crate) fn whole_mib(bytes: u64) -> u64 {
    if bytes < 1 << 20 { bytes } else { bytes & !((1 << 20) - 1) }
}

fn list(pus: &CpuSet) -> String {
    if pus.is_empty() { "none".to_owned() } else { pus.to_string() }
}
