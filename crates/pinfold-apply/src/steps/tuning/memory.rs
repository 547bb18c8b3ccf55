//! The machine's memory: permitted nodes, pages on other nodes.
//!
//! Affinity does not move pages, and no process can change another process's memory policy. So two
//! things are done: the machine's own groups get the nodes (for later allocations), and pages on
//! other nodes are moved. A machine that was started under the policy of its node needs neither.

use std::collections::BTreeMap;

use pinfold_host::{numa_maps, paths};
use pinfold_model::{Change, CpuSet, Finding, NodeId, PuId, Undo};

use crate::error::ApplyError;
use crate::steps::step_builder::StepBuilder;
use crate::tasks::Rules;

pub(super) fn bind(builder: &mut StepBuilder<'_>) -> Result<(), ApplyError> {
    let Some(memory) = &builder.vnode.memory else { return Ok(()) };
    // Pages that are there stay. New ones come from the node of the CPUs anyway.
    if memory.is_preferred {
        return Ok(());
    }
    // libvirt binds and moves the memory itself.
    if builder.target.kept.iter().any(|kept| kept.rules == Rules::Memory) {
        return Ok(());
    }
    if builder.target.started_on.is_some_and(|node| memory.nodes == [node]) {
        return Ok(());
    }
    let nodes: CpuSet = memory.nodes.iter().map(|node| PuId(node.0)).collect();
    let online = builder.state.required_cpu_list(&paths::node_online())?;
    if online.is_subset(&nodes) {
        return Ok(());
    }
    restrict_groups(builder, &nodes)?;
    let pid = builder.vm;
    let path = paths::process_numa_maps(pid.tid);
    let Some(text) = builder.state.text(&path)? else {
        let text = format!("this kernel has no {path}, so the location of its pages is unknown");
        return builder.lacks(Finding::warning("memory", text));
    };
    let kib: BTreeMap<NodeId, u64> = numa_maps::parse(&text).map_err(|error| error.at(&path))?;
    let from: Vec<NodeId> =
        kib.keys().copied().filter(|node| !memory.nodes.contains(node)).collect();
    if !from.is_empty() {
        let undo = Undo::LeavePages { task: pid, kib: kib.into_iter().collect() };
        let change = Change::MovePages { task: pid, from, to: memory.nodes.clone() };
        builder.step(change, undo, format!("memory: {}", memory.reason));
    }
    Ok(())
}

/// Restricts the machine's own groups to the nodes, if it has any.
fn restrict_groups(builder: &mut StepBuilder<'_>, nodes: &CpuSet) -> Result<(), ApplyError> {
    let groups = builder.own_cpuset_groups()?;
    if groups.is_empty() {
        let text = "the process has no cpuset group of its own, so memory that it allocates later \
                    is only local to the allocating thread";
        let hint = "start it in a group of its own, such as systemd-run --scope -p AllowedMemoryNodes=N, or bind its memory in QEMU (host-nodes=, policy=bind)";
        return builder.lacks(Finding::warning("memory", text).with_hint(hint));
    }
    for group in groups {
        builder.set_tunable(
            "cpuset.mems",
            paths::cpuset_mems(&group),
            nodes.to_string(),
            "memory that the process allocates later comes from these nodes",
        )?;
    }
    Ok(())
}
