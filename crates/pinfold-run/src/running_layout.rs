//! A running machine as a layout for the checks of `pinfold-lint`.

use pinfold_host::{Host, numa_maps, paths};
use pinfold_model::text::count_noun;
use pinfold_model::{CpuSet, NodeId, Role, Tid};
use pinfold_plan::domain_file::Place;
use pinfold_plan::layout::{GuestShape, Layout, MemoryBinding, MemoryLocation, Pin, SourceFormat};
use pinfold_vm::CpuInstanceProperties;

use crate::Failure;
use crate::target::Vm;

/// A running machine: the mask and policy of each thread, and the nodes of its memory, as reported
/// by the kernel.
pub fn of_running(host: &dyn Host, vm: &mut Vm) -> Result<Layout, Failure> {
    let pid = vm.found.pid;
    let mut pins: Vec<Pin> = Vec::new();
    for thread in &vm.found.threads {
        let (role, tid) = (&thread.role, thread.task.tid);
        // Workers are created and ended, and inherit the affinity of the emulator.
        let wanted = role.is_of_one_thread() || *role == Role::Emulator && tid == pid;
        if !wanted || pins.iter().any(|pin| pin.role == *role) {
            continue;
        }
        let mask = host.affinity(tid)?;
        let policy = host.policy(tid)?;
        let text = format!("thread {tid} ({}): {mask}, {policy}", thread.name);
        pins.push(Pin {
            role: role.clone(),
            pus: Some(mask),
            policy: Some(policy),
            place: Place::from_text(text),
        });
    }
    let guest = match vm.monitor.as_deref_mut() {
        Some(monitor) => {
            let cpus = monitor.cpus()?;
            let places: Vec<(u32, CpuInstanceProperties)> =
                cpus.iter().map(|cpu| (cpu.index, cpu.place)).collect();
            Some(guest_shape(&places, monitor.hypervisor().display_strings().vcpu_query))
        }
        None => None,
    };
    let bound = vm.domain.as_ref().and_then(|domain| domain.memory_nodes());
    let memory = bound.map(|(mode, nodes)| MemoryBinding {
        cell: None,
        interleaved: mode == "interleave",
        preferred: mode == "preferred",
        nodes: Some(nodes.iter().map(|node| NodeId(node.0)).collect()),
        place: Place::from_text(format!("libvirt: <numatune>: {mode} {nodes}")),
    });
    Ok(Layout {
        name: name_of(vm)?,
        source: vm.asked.clone(),
        language: SourceFormat::Running(vm.asked.clone()),
        text: None,
        vcpus: vm.found.vcpus,
        pins,
        strays: Vec::new(),
        reserve: CpuSet::new(),
        is_placed_by_numad: false,
        guest,
        wrong_product: None,
        cells: Vec::new(),
        memory: memory.into_iter().collect(),
        bytes: None,
        pages: Some(pages_of(host, pid)?),
        housekeeping: None,
        exclusive: CpuSet::new(),
        defined_by: None,
        plan: None,
    })
}

/// The name of the machine in its hypervisor, if it has one; a plan with this name is then for this
/// machine.
fn name_of(vm: &mut Vm) -> Result<String, Failure> {
    let reported = match (&vm.domain, vm.monitor.as_deref_mut()) {
        (None, Some(monitor)) => monitor.name()?,
        (Some(_), _) | (None, None) => None,
    };
    Ok(reported.unwrap_or_else(|| vm.name.clone()))
}

/// The NUMA nodes of the memory of a process.
fn pages_of(host: &dyn Host, pid: Tid) -> Result<MemoryLocation, Failure> {
    let path = paths::process_numa_maps(pid);
    match host.read_text(&path) {
        Ok(text) => {
            let kib = numa_maps::parse(&text).map_err(|error| error.at(&path))?;
            Ok(MemoryLocation::Found { process: pid, kib: kib.into_iter().collect() })
        }
        Err(error) => Ok(MemoryLocation::Unseen(error.to_string())),
    }
}

/// The guest's cores from the positions of its vCPUs; `query` reported them.
fn guest_shape(places: &[(u32, CpuInstanceProperties)], query: &str) -> GuestShape {
    let mut cores: Vec<(CpuInstanceProperties, Vec<u32>)> = Vec::new();
    let mut sockets = Vec::new();
    for (index, place) in places {
        let core = CpuInstanceProperties { thread: None, node: None, ..*place };
        match cores.iter_mut().find(|(known, _)| *known == core && place.core.is_some()) {
            Some((_, members)) => members.push(*index),
            None => cores.push((core, vec![*index])),
        }
        if !sockets.contains(&place.socket) {
            sockets.push(place.socket);
        }
    }
    let threads = cores.iter().map(|(_, members)| members.len()).max().unwrap_or(1);
    fn narrow(count: usize) -> u32 {
        u32::try_from(count).unwrap_or(u32::MAX)
    }
    GuestShape {
        sockets: narrow(sockets.len()),
        threads: narrow(threads),
        place: Place::from_text(format!(
            "{query}: {}, {}, {} on a core",
            count_noun(sockets.len(), "socket"),
            count_noun(cores.len(), "core"),
            count_noun(threads, "thread")
        )),
        cores: cores.into_iter().map(|(_, members)| members).collect(),
    }
}

#[cfg(test)]
mod tests;
