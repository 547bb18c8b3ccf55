//! Why there is no plan, and what the user can do about it.
//!
//! Each message names the wrong value. The hint is in [`PlanError::hint`], so that a caller can
//! show it on a separate line. [`crate::plan`] fills in `nearest`, because a strategy does not know
//! the other strategies.

use pinfold_model::text::{pus_text, select_verb};
use pinfold_model::{CpuSet, NodeId, RequestField, VnodeField};
use thiserror::Error;

use crate::text::{count_with_noun, mib};

/// Why a strategy cannot make a plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// No strategy has this name.
    #[error("there is no strategy named {name:?}")]
    UnknownStrategy {
        /// The name that was given.
        name: String,
        /// The most similar known name, if any.
        nearest: Option<String>,
    },
    /// The request places nothing.
    #[error("the request names neither a virtual machine nor a process group")]
    NoVnodes,
    /// A vnode's name is not valid.
    #[error("invalid name {name:?}: {why}")]
    BadName {
        /// The invalid name.
        name: String,
        /// The fault in the name.
        why: &'static str,
    },
    /// A virtual machine with 0 vCPUs, or a process group with 0 cores, was requested.
    #[error("{vnode:?} has no {what}; it needs at least one")]
    NoVcpus {
        /// Name of the vnode.
        vnode: String,
        /// The counted unit: vCPUs or cores.
        what: &'static str,
    },
    /// Too many vhost workers were requested.
    #[error("{vnode:?} requests {asked} vhost workers, more than any virtual machine has")]
    TooManyVhosts {
        /// Name of the vnode.
        vnode: String,
        /// The requested number.
        asked: u32,
    },
    /// A device in the request does not exist or is not usable.
    #[error("cannot plan for {device}: {why}")]
    Device {
        /// The device as requested.
        device: String,
        /// The fault.
        why: String,
    },
    /// The CPUs cannot be kept free as requested.
    #[error("cannot keep {asked} free on this host: {why}")]
    Free {
        /// The requested CPUs or share.
        asked: String,
        /// The reason.
        why: String,
    },
    /// The nodes of a vnode's CPUs have too little memory.
    #[error(
        "{vnode:?} needs {} of memory, but {} {}",
        size(*bytes),
        holders(nodes),
        memory_text(bytes - missing, *all, *in_cells)
    )]
    Memory {
        /// Name of the vnode.
        vnode: String,
        /// Required memory in bytes.
        bytes: u64,
        /// The nodes of its CPUs.
        nodes: Vec<NodeId>,
        /// Missing memory in bytes.
        missing: u64,
        /// Total memory of these nodes in bytes.
        all: u64,
        /// True if each node contains a NUMA cell with its share.
        in_cells: bool,
        /// A strategy that can place it.
        nearest: Option<String>,
    },
    /// A vnode cannot be placed on the requested NUMA nodes.
    #[error("cannot place {vnode:?} on {}: {why}", node_names(nodes))]
    Nodes {
        /// Name of the vnode.
        vnode: String,
        /// The requested nodes.
        nodes: Vec<NodeId>,
        /// The reason.
        why: String,
    },
    /// The guest's NUMA cells do not match its vCPUs, or cannot be planned.
    #[error("cannot plan the guest NUMA cells of {vnode:?}: {why}")]
    Cells {
        /// Name of the vnode.
        vnode: String,
        /// The fault.
        why: String,
    },
    /// The nodes of a vnode's CPUs have too few huge pages.
    #[error(
        "{vnode:?} needs {needed} pages of {} KiB, but {free} are free on {}",
        page_bytes / 1024,
        node_names(nodes)
    )]
    HugePages {
        /// Name of the vnode.
        vnode: String,
        /// Size of a page in bytes.
        page_bytes: u64,
        /// Required number of pages.
        needed: u64,
        /// The nodes of its CPUs.
        nodes: Vec<NodeId>,
        /// Number of free pages of that size there, without those of earlier vnodes.
        free: u64,
    },
    /// The strategy cannot show the guest SMT siblings.
    #[error("{strategy} cannot show {vnode:?} SMT siblings: {why}")]
    GuestSmt {
        /// Name of the strategy.
        strategy: String,
        /// Name of the vnode.
        vnode: String,
        /// The reason.
        why: String,
        /// The most similar strategy that can.
        nearest: Option<String>,
    },
    /// The strategy cannot place the emulator as requested.
    #[error("{strategy} cannot place the emulator as `{emulator_request}`: {why}")]
    EmulatorRequest {
        /// Name of the strategy.
        strategy: String,
        /// The requested placement of the emulator.
        emulator_request: String,
        /// The reason.
        why: String,
    },
    /// The strategy does not support this kind of vnode.
    #[error("{strategy} does not place {vnode:?}: {why}")]
    WrongKind {
        /// Name of the strategy.
        strategy: String,
        /// Name of the vnode.
        vnode: String,
        /// What the strategy supports instead.
        why: String,
        /// The most similar strategy that supports it.
        nearest: Option<String>,
    },
    /// One of several vnodes finds too few free cores near each other.
    #[error("{strategy} has room for {left} of the {} of {vnode:?}: {why}", count_with_noun(*asked, what))]
    NoRoom {
        /// Name of the strategy.
        strategy: String,
        /// Name of the vnode.
        vnode: String,
        /// Requested number of vCPUs (of a process group: cores).
        asked: u32,
        /// Number for which there is room.
        left: u32,
        /// The counted unit.
        what: &'static str,
        /// The limiting reason.
        why: Box<str>,
        /// The most similar strategy that has room.
        nearest: Option<String>,
        /// How many of the vnodes fit, if all are alike.
        fit: Option<u32>,
    },
    /// The strategy cannot provide that many vCPUs on this host.
    #[error(
        "{strategy} gives at most {} on this host, the request asks for {asked}: {why}",
        count_with_noun(*most, what)
    )]
    TooManyVcpus {
        /// Name of the strategy.
        strategy: String,
        /// Requested number of vCPUs.
        asked: u32,
        /// Maximum number of vCPUs.
        most: u32,
        /// The counted unit.
        what: &'static str,
        /// The limiting reason.
        why: String,
        /// The most similar strategy that can provide them.
        nearest: Option<String>,
        /// How many of the vnodes fit, if all are alike.
        fit: Option<u32>,
    },
    /// The strategy cannot provide a single vCPU on this host.
    #[error("{strategy} cannot use {} of this host: {why}", pus_text(.usable))]
    TooFewPus {
        /// Name of the strategy.
        strategy: String,
        /// The CPUs that it may use.
        usable: CpuSet,
        /// The missing requirement.
        why: String,
        /// The most similar strategy that works on this host.
        nearest: Option<String>,
    },
    /// No CPU is left for the plan.
    #[error(
        "no CPU is available for the plan: the cpuset of this process allows {}, and the request \
         avoids {}",
        list(allowed),
        list(avoid)
    )]
    NoPus {
        /// The CPUs of this process's cpuset.
        allowed: CpuSet,
        /// The CPUs that the request avoids.
        avoid: CpuSet,
    },
    /// All usable CPUs are isolated, so the host's own tasks would have none.
    #[error("all available CPUs ({usable}) are isolated, so none is left for the host's own tasks")]
    NoHousekeeping {
        /// The CPUs that the plan may use.
        usable: CpuSet,
    },
    /// A requested scheduling policy is not possible.
    #[error("cannot use the scheduling policies of {vnode:?}: {why}")]
    Policy {
        /// Name of the vnode.
        vnode: String,
        /// The fault.
        why: String,
    },
    /// The requested pins by hand are not possible.
    #[error("cannot use the requested pins of {vnode:?}: {why}")]
    Pin {
        /// Name of the vnode.
        vnode: String,
        /// The fault.
        why: String,
    },
    /// An iothread's ID is not valid.
    #[error("invalid iothread id {id:?}: {why}")]
    BadIothread {
        /// The invalid ID.
        id: String,
        /// The fault in the ID.
        why: &'static str,
    },
}

const POLICY_HINT: &str = "name roles that the plan has, and a strategy that keeps the emulator \
    and the iothreads off real-time vCPUs, such as balanced or low-latency";

const NODES_HINT: &str = "name other nodes, or remove the binding (<numatune> in a domain file): \
                          the plan then chooses the nodes";

const CELLS_HINT: &str = "give each cell consecutive vCPUs and plan one machine at a time; without \
                          cells (<numa> in a domain file) the plan defines them";

const DEVICE_HINT: &str = "`lspci -D` shows the addresses; or name the device's node as node:N";

const NO_HOUSEKEEPING_HINT: &str = "leave at least one CPU out of `isolcpus=`, of isolated \
                                    partitions and of the avoided CPUs";

const PIN_HINT: &str = "name threads that the machine or group has, and CPUs that it may use; \
                        `pinfold topo` shows the CPUs";

/// The hint for memory that does not fit.
fn less_memory(most: u64, nearest: Option<&str>) -> String {
    let other = nearest.map_or_else(String::new, |nearest| {
        format!(", or use the strategy {nearest}, which uses the memory of more nodes")
    });
    match (most, nearest) {
        (0, Some(nearest)) => format!("use {nearest}, which uses the memory of more nodes"),
        (0, None) => "place it on nodes that have memory".to_owned(),
        (_, _) => format!("request at most {}{other}", size_below(most)),
    }
}

impl PlanError {
    /// What the user can do about the error, if anything.
    pub fn hint(&self) -> Option<String> {
        match self {
            PlanError::UnknownStrategy { nearest: Some(nearest), .. } => {
                Some(format!("did you mean {nearest}? `pinfold plan --list` shows all strategies"))
            }
            PlanError::UnknownStrategy { nearest: None, .. } => {
                Some("`pinfold plan --list` shows all strategies".to_owned())
            }
            PlanError::NoVnodes => Some("name at least one in the request file".to_owned()),
            PlanError::BadName { .. } => {
                Some("give each machine and group a unique name".to_owned())
            }
            PlanError::NoVcpus { what: "vCPUs", .. } => {
                Some("request one or more vCPUs, or auto".to_owned())
            }
            PlanError::NoVcpus { what, .. } => Some(format!("request one or more {what}")),
            PlanError::TooManyVhosts { .. } => {
                Some("specify the number of its vhost queue pairs".to_owned())
            }
            PlanError::Device { .. } => Some(DEVICE_HINT.to_owned()),
            PlanError::Free { .. } => Some("keep fewer CPUs free".to_owned()),
            PlanError::Memory { bytes, missing, nearest, .. } => {
                Some(less_memory(bytes - missing, nearest.as_deref()))
            }
            PlanError::Nodes { .. } => Some(NODES_HINT.to_owned()),
            PlanError::Cells { .. } => Some(CELLS_HINT.to_owned()),
            PlanError::HugePages { needed, free, .. } => Some(format!(
                "reserve {} more of them there (hugeadm, or hugepages= at boot), or request \
                 another page size",
                needed - free
            )),
            PlanError::EmulatorRequest { .. } => Some(
                "use balanced on a host whose first core has siblings, or set the emulator to \
                      usual"
                    .to_owned(),
            ),
            PlanError::GuestSmt { nearest, .. }
            | PlanError::WrongKind { nearest, .. }
            | PlanError::NoRoom { nearest, fit: None, .. } => {
                nearest.as_ref().map(|nearest| format!("use {nearest}, which can"))
            }
            PlanError::NoRoom { nearest, fit: Some(fit), .. }
            | PlanError::TooManyVcpus { nearest, fit: Some(fit), .. } => {
                Some(fewer_vnodes(*fit, nearest.as_deref()))
            }
            PlanError::TooManyVcpus { most, asked, nearest, what, .. } => {
                Some(fewer_units(&count_with_noun(*most, what), *asked, nearest.as_deref()))
            }
            PlanError::TooFewPus { nearest, .. } => {
                nearest.as_ref().map(|nearest| format!("use {nearest}, which works on these CPUs"))
            }
            PlanError::NoPus { .. } => Some(
                "avoid fewer CPUs, or start Pinfold in a cgroup with a wider cpuset".to_owned(),
            ),
            PlanError::NoHousekeeping { .. } => Some(NO_HOUSEKEEPING_HINT.to_owned()),
            PlanError::Policy { .. } => Some(POLICY_HINT.to_owned()),
            PlanError::Pin { .. } => Some(PIN_HINT.to_owned()),
            PlanError::BadIothread { .. } => {
                Some("use the id of the iothread in `-object iothread,id=`".to_owned())
            }
        }
    }

    /// The part of the request that the error is about, if any.
    pub fn field(&self) -> Option<RequestField> {
        match self {
            PlanError::Device { device, .. } => Some(RequestField::Device(device.clone())),
            PlanError::BadIothread { id, .. } => Some(RequestField::Iothread(id.clone())),
            PlanError::Free { .. } => Some(RequestField::Free),
            PlanError::EmulatorRequest { .. } => Some(RequestField::Emulator),
            PlanError::NoPus { .. } => Some(RequestField::Avoid),
            PlanError::BadName { name, .. } => vnode_field(name, VnodeField::Name),
            PlanError::NoVcpus { vnode, .. } | PlanError::NoRoom { vnode, .. } => {
                vnode_field(vnode, VnodeField::Count)
            }
            PlanError::TooManyVhosts { vnode, .. } => vnode_field(vnode, VnodeField::Vhosts),
            PlanError::Memory { vnode, .. } => vnode_field(vnode, VnodeField::Memory),
            PlanError::HugePages { vnode, .. } => vnode_field(vnode, VnodeField::HugePages),
            PlanError::GuestSmt { vnode, .. } => vnode_field(vnode, VnodeField::GuestSmt),
            PlanError::Policy { vnode, .. } => vnode_field(vnode, VnodeField::Policies),
            PlanError::Pin { vnode, .. } => vnode_field(vnode, VnodeField::Pins),
            PlanError::Nodes { vnode, .. }
            | PlanError::Cells { vnode, .. }
            | PlanError::WrongKind { vnode, .. } => vnode_field(vnode, VnodeField::Whole),
            // Of several vnodes, the largest is the first that has no room.
            PlanError::TooManyVcpus { .. } => Some(RequestField::LargestVnode),
            PlanError::UnknownStrategy { .. }
            | PlanError::NoVnodes
            | PlanError::NoHousekeeping { .. }
            | PlanError::TooFewPus { .. } => None,
        }
    }

    /// Adds a strategy to the hint, if the error has a field for one that is still empty.
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
            | PlanError::Nodes { .. }
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

    /// Adds how many of the vnodes fit, if the error is about their number.
    pub(crate) fn with_fit(mut self, count: Option<u32>) -> Self {
        if let PlanError::TooManyVcpus { fit, .. } | PlanError::NoRoom { fit, .. } = &mut self {
            *fit = count;
        }
        self
    }

    /// True if the error is about the number of vnodes or of their vCPUs.
    pub(crate) fn is_of_number(&self) -> bool {
        matches!(self, PlanError::TooManyVcpus { .. } | PlanError::NoRoom { .. })
    }

    /// True if another strategy may succeed.
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

fn vnode_field(vnode: &str, field: VnodeField) -> Option<RequestField> {
    Some(RequestField::Vnode(vnode.to_owned(), field))
}

/// The hint where a strategy gives fewer vCPUs or cores than are asked for.
fn fewer_units(most: &str, asked: u32, nearest: Option<&str>) -> String {
    match nearest {
        Some(nearest) => {
            format!("request at most {most}, or use the strategy {nearest}, which gives {asked}")
        }
        None => format!("request at most {most}"),
    }
}

/// The hint where only some of several vnodes that are alike fit.
fn fewer_vnodes(fit: u32, nearest: Option<&str>) -> String {
    let fewer = format!("{fit} of them {}", select_verb(fit as usize, "fits", "fit"));
    match nearest {
        Some(nearest) => format!("{fewer}; the strategy `{nearest}` places all"),
        None => fewer,
    }
}

/// The nodes of a vnode's memory, with the verb.
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
    format!("{} {}", select_verb(nodes.len(), "node", "nodes"), numbers.join(", "))
}

/// The memory that the nodes can give to a vnode, and why it is not all of theirs.
fn memory_text(most: u64, all: u64, in_cells: bool) -> String {
    match (most < all, in_cells) {
        (false, _) => size_below(most),
        (true, false) => format!("{} left of {}", size_below(most), size_below(all)),
        (true, true) => format!(
            "{}, of which a machine with a NUMA cell on each node can use {}",
            size_below(all),
            size_below(most)
        ),
    }
}

/// `16 GiB`; in smaller units if that is not a whole number.
pub(crate) fn size(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 30) { format!("{} GiB", bytes >> 30) } else { mib(bytes) }
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
