//! What a QEMU command line asks of a plan.

use pinfold_model::{
    Device, MemoryRequest, QemuCommand, Topology, VcpuCount, VmRequest, VnodeRequest,
};

/// The machine that a command line describes, with this many vCPUs: its name, its iothreads, and
/// where there are several nodes its memory.
pub fn vnode(command: &QemuCommand, vcpus: VcpuCount, topology: &Topology) -> VnodeRequest {
    let vm = VmRequest { iothreads: command.iothreads(), ..VmRequest::of(vcpus) };
    let mut vnode = VnodeRequest::vm(command.name().unwrap_or("vm"), vm);
    let filled = topology.nodes.iter().filter(|node| node.memory_bytes > 0).count();
    if filled > 1 {
        let nodes = command.memory_nodes();
        match (nodes.as_slice(), command.memory_bytes()) {
            // Where the command line binds memory itself, the vCPUs go to that node.
            ([only], _) => vnode.devices.push(Device::Node(*only)),
            ([], Some(bytes)) => vnode.memory = Some(MemoryRequest { bytes, page_bytes: None }),
            (_, _) => {}
        }
    }
    vnode
}
