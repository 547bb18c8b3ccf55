//! Checks a request independent of the strategy: values that are invalid on any host, or names that
//! this host lacks.

use std::collections::BTreeSet;

use pinfold_model::text::select_verb;
use pinfold_model::{
    CpuSet, Device, NodeId, Request, RoleKind, Topology, VcpuCount, VnodeRequest, Work,
};

use crate::error::PlanError;

/// Checks the request's own values.
///
/// # Errors
/// [`PlanError::NoVnodes`], [`PlanError::BadName`], [`PlanError::NoVcpus`],
/// [`PlanError::BadIothread`], [`PlanError::Device`].
pub(crate) fn check(topology: &Topology, request: &Request) -> Result<(), PlanError> {
    if request.vnodes.is_empty() {
        return Err(PlanError::NoVnodes);
    }
    let mut names = BTreeSet::new();
    for vnode in &request.vnodes {
        check_name(&vnode.name, &mut names)?;
        check_work(vnode)?;
        for device in &vnode.devices {
            node_of(topology, device)?;
        }
    }
    request.interrupts.iter().try_for_each(|device| node_of(topology, device).map(|_| ()))
}

fn check_name<'r>(name: &'r str, names: &mut BTreeSet<&'r str>) -> Result<(), PlanError> {
    if names.insert(name) {
        Ok(())
    } else {
        Err(PlanError::BadName { name: name.to_owned(), why: "it is given twice" })
    }
}

fn check_work(vnode: &VnodeRequest) -> Result<(), PlanError> {
    let vm = match &vnode.work {
        Work::Vm(vm) => vm,
        Work::Processes { cores: 0, .. } => {
            return Err(PlanError::NoVcpus { vnode: vnode.name.clone(), what: "cores" });
        }
        Work::Processes { .. } => return Ok(()),
    };
    if vm.vcpus == VcpuCount::Exactly(0) {
        return Err(PlanError::NoVcpus { vnode: vnode.name.clone(), what: "vCPUs" });
    }
    let mut seen = BTreeSet::new();
    for id in &vm.iothreads {
        let why = match id.as_str() {
            "" => "it is empty",
            id if id.chars().any(char::is_control) => "it contains a control character",
            id if !seen.insert(id) => "it is given twice",
            _ => continue,
        };
        return Err(PlanError::BadIothread { id: id.clone(), why });
    }
    if vm.vhosts > pinfold_model::MAX_VCPUS {
        return Err(PlanError::TooManyVhosts { vnode: vnode.name.clone(), asked: vm.vhosts });
    }
    Ok(())
}

/// The node of a device; `None` if the firmware does not report it.
///
/// # Errors
/// [`PlanError::Device`] if the topology has no such device or node.
pub(crate) fn node_of(topology: &Topology, device: &Device) -> Result<Option<NodeId>, PlanError> {
    match device {
        Device::Node(node) if topology.nodes.iter().any(|known| known.id == *node) => {
            Ok(Some(*node))
        }
        Device::Node(_) => {
            let nodes: Vec<String> =
                topology.nodes.iter().map(|node| node.id.to_string()).collect();
            let noun = select_verb(nodes.len(), "node", "nodes");
            unknown_device(format!("this host has the {noun} {}", nodes.join(", ")), device)
        }
        Device::Pci(_) if topology.devices.is_empty() => {
            unknown_device("this topology contains no PCI devices".to_owned(), device)
        }
        Device::Pci(address) => {
            match topology.devices.iter().find(|known| known.address == *address) {
                Some(found) => Ok(found.node),
                None => unknown_device("this host has no such device".to_owned(), device),
            }
        }
    }
}

fn unknown_device(why: String, device: &Device) -> Result<Option<NodeId>, PlanError> {
    Err(PlanError::Device { device: device.to_string(), why })
}

/// The nodes to which a vnode is restricted; empty if it may be anywhere.
pub(crate) fn nodes_to_stay_on(vnode: &VnodeRequest) -> &[NodeId] {
    match &vnode.work {
        Work::Vm(vm) => &vm.nodes,
        Work::Processes { .. } => &[],
    }
}

/// Number of vCPUs or cores of the largest vnode that gives its number; 0 if none does.
pub(crate) fn largest(request: &Request) -> usize {
    request
        .vnodes
        .iter()
        .filter_map(|vnode| match &vnode.work {
            Work::Vm(vm) => match vm.vcpus {
                VcpuCount::Auto => None,
                VcpuCount::Exactly(vcpus) => Some(vcpus as usize),
            },
            Work::Processes { cores, .. } => Some(*cores as usize),
        })
        .max()
        .unwrap_or(0)
}

/// The nodes near which a vnode should be.
pub(crate) fn nodes_of(topology: &Topology, vnode: &VnodeRequest) -> Vec<NodeId> {
    let own = nodes_to_stay_on(vnode);
    if !own.is_empty() {
        return own.to_vec();
    }
    let pinned = nodes_of_pins(topology, vnode);
    if !pinned.is_empty() {
        return pinned;
    }
    let found = vnode.devices.iter().filter_map(|device| node_of(topology, device).ok().flatten());
    found.collect()
}

/// What a request places, with its article, for messages.
pub(crate) fn placed_noun(request: &Request) -> &'static str {
    match request.vnodes.as_slice() {
        [VnodeRequest { work: Work::Vm(_), .. }] => "the virtual machine",
        [_] => "the process group",
        _ => match noun(request) {
            ("virtual machine", _) => "the virtual machines",
            ("process group", _) => "the process groups",
            _ => "the machines and groups",
        },
    }
}

/// What a request places, with `each` and with `all`, for messages.
pub(crate) fn noun(request: &Request) -> (&'static str, &'static str) {
    let vms = request.vnodes.iter().filter(|vnode| matches!(vnode.work, Work::Vm(_))).count();
    match vms {
        0 => ("process group", "process groups"),
        all if all == request.vnodes.len() => ("virtual machine", "virtual machines"),
        _ => ("machine or group", "machines and groups"),
    }
}

/// The nodes to which vCPUs and tasks are pinned by hand.
fn nodes_of_pins(topology: &Topology, vnode: &VnodeRequest) -> Vec<NodeId> {
    let pinned = pinned_of(vnode);
    if pinned.is_empty() {
        return Vec::new();
    }
    topology
        .nodes
        .iter()
        .filter(|node| !pinned.is_disjoint(&node.pus))
        .map(|node| node.id)
        .collect()
}

/// The CPUs to which vCPUs and tasks are pinned by hand.
pub(crate) fn pinned_cpus(request: &Request) -> CpuSet {
    request.vnodes.iter().fold(CpuSet::new(), |all, vnode| all.union(&pinned_of(vnode)))
}

/// The same for one vnode.
pub(crate) fn pinned_of(vnode: &VnodeRequest) -> CpuSet {
    let pin_requests = vnode.pins.iter().filter(|pin_request| {
        RoleKind::of_text(&pin_request.role).is_some_and(RoleKind::runs_work)
    });
    pin_requests.map(|pin_request| &pin_request.pus).collect::<CpuSet>()
}

/// The pins by hand of emulators, iothreads and other helpers.
pub(crate) fn pins_of_helpers(request: &Request) -> impl Iterator<Item = &CpuSet> {
    let pin_requests = request.vnodes.iter().flat_map(|vnode| &vnode.pins);
    pin_requests
        .filter(move |pin_request| {
            RoleKind::of_text(&pin_request.role).is_some_and(|kind| !kind.runs_work())
        })
        .map(|pin_request| &pin_request.pus)
}

/// What a request counts: `vCPUs`, `cores`, or both.
pub(crate) fn units(request: &Request) -> &'static str {
    match (request.vnodes.iter().any(is_vm), request.vnodes.iter().all(is_vm)) {
        (true, true) => "vCPUs",
        (false, _) => "cores",
        (true, false) => "vCPUs and cores",
    }
}

fn is_vm(vnode: &VnodeRequest) -> bool {
    matches!(vnode.work, Work::Vm(_))
}
