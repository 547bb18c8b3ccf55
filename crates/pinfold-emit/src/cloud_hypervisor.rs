//! A script that starts Cloud Hypervisor under a plan.
//!
//! `--cpus boot=N,affinity=[0@[2],1@[3-4]]` pins the vCPUs, `--memory-zone …,host_numa_node=N`
//! binds the memory, `--numa` shows the guest its nodes. All other threads have the CPUs of the
//! emulator by `taskset`, which they inherit.
//! <https://github.com/cloud-hypervisor/cloud-hypervisor/blob/main/docs/cpu.md>,
//! <https://github.com/cloud-hypervisor/cloud-hypervisor/blob/main/docs/memory.md>

use pinfold_model::command::quote;
use pinfold_model::tunables::{FormatAnswer, Scope};
use pinfold_model::{CpuSet, MemoryPlan, Plan, Policy, Role, Topology, VnodePlan};
use pinfold_plan::guest_numa::{self, node_list};

use super::common::{self, comment, headline, replace_control_chars};
use super::format::{Format, Syntax};

/// The format.
pub(super) const FORMAT: Format = Format {
    name: "cloud-hypervisor",
    summary: "A start script for Cloud Hypervisor",
    is_of_host: false,
    can_merge: false,
    syntax: Syntax::Script,
    write: |plan, topology, _| Ok(cloud_hypervisor(plan, plan.single_vnode()?, topology)),
    together: None,
    tunable: |_, _| FormatAnswer::host(),
};

/// A script that starts `cloud-hypervisor` with the options of the plan and its own arguments.
fn cloud_hypervisor(plan: &Plan, vnode: &VnodePlan, topology: &Topology) -> String {
    if let Some(text) = common::process_group_text(vnode, "Cloud Hypervisor") {
        return text;
    }
    let mut script = format!(
        "#!/bin/sh\n# {}\n# sh THIS --kernel FILE --disk path=FILE …\nset -eu\n",
        headline(plan)
    );
    notes(&mut script, vnode);
    let memory = memory(vnode, topology, &mut script);
    script.push_str("exec");
    if let Some(emulator) = vnode.thread(&Role::Emulator) {
        script.push_str(&format!(" taskset -c {}", emulator.pus));
    }
    script.push_str(&format!(" cloud-hypervisor \\\n    --cpus {}", quote(&cpus(vnode))));
    for words in memory {
        script.push_str(&format!(" \\\n    {words}"));
    }
    script.push_str(" \\\n    \"$@\"\n");
    script.push_str(&common::no_dies(vnode, topology, "Cloud Hypervisor"));
    script.push_str(&common::not_isolated(plan, "Cloud Hypervisor cannot"));
    let tunables = FORMAT.answers(Scope::of_vnode(plan, vnode));
    script.push_str(&tunables.missing_text("Cloud Hypervisor"));
    script
}

/// Comments on threads for which there is no option.
fn notes(script: &mut String, vnode: &VnodePlan) {
    let vcpus = vnode.vcpus().filter(|thread| thread.policy.is_some_and(Policy::is_real_time));
    for thread in vcpus {
        let policy = thread.policy.map(|policy| policy.to_string()).unwrap_or_default();
        script.push_str(&comment(&format!(
            "# {} under the policy {policy}: `pinfold apply` on the running machine sets it.",
            thread.role
        )));
    }
    for thread in vnode.threads.iter().filter(|thread| thread.role.is_device()) {
        script.push_str(&comment(&format!(
            "# Cloud Hypervisor has no option for {}: the plan wants {}.",
            replace_control_chars(&thread.role.to_string()),
            thread.pus
        )));
    }
}

/// The value of `--cpus`.
fn cpus(vnode: &VnodePlan) -> String {
    let pins: Vec<String> =
        vnode.vcpus().map(|thread| format!("{}@[{}]", thread.role.short(), thread.pus)).collect();
    let topology = vnode.guest.as_ref().map_or_else(String::new, |guest| {
        // Threads per core, cores per die, dies per package, packages.
        format!(",topology={}:{}:1:{}", guest.threads, guest.cores, guest.sockets)
    });
    format!("boot={}{topology},affinity=[{}]", pins.len(), pins.join(","))
}

/// The options for the memory, with comments.
fn memory(vnode: &VnodePlan, topology: &Topology, script: &mut String) -> Vec<String> {
    let Some(memory) = &vnode.memory else { return Vec::new() };
    let nodes = node_list(&memory.nodes);
    let Some(bytes) = memory.bytes else {
        script.push_str(&comment(&format!(
            "# The plan wants the memory on node {nodes}: plan with a memory size (`--memory`)."
        )));
        return Vec::new();
    };
    if memory.is_preferred {
        script.push_str(&comment(&format!(
            "# Cloud Hypervisor binds memory, it cannot prefer node {nodes}."
        )));
        return vec![format!("--memory size={}{}", size(bytes), pages(memory))];
    }
    let cells = guest_numa::cells(vnode, topology);
    let shares = guest_numa::shares(&cells, bytes, memory.page_bytes.unwrap_or(1 << 20));
    match (shares, memory.nodes.as_slice()) {
        (Some(shares), _) if cells.len() > 1 => {
            let (mut zones, mut numa) = (String::new(), String::new());
            for ((cell, share), number) in cells.iter().zip(shares).zip(0_u32..) {
                zones.push_str(&format!(" {}", zone(memory, number, cell.node.0, share)));
                numa.push_str(&format!(" {}", cell_of(number, &cell.vcpus)));
            }
            vec![
                "--memory size=0".to_owned(),
                format!("--memory-zone{zones}"),
                format!("--numa{numa}"),
            ]
        }
        (_, [node]) => vec![
            "--memory size=0".to_owned(),
            format!("--memory-zone {}", zone(memory, 0, node.0, bytes)),
        ],
        (_, _) => {
            script.push_str(&comment(&format!(
                "# A zone of memory is on one node: the plan wants it on the nodes {nodes}."
            )));
            vec![format!("--memory size={}{}", size(bytes), pages(memory))]
        }
    }
}

fn zone(memory: &MemoryPlan, number: u32, node: u32, bytes: u64) -> String {
    let (size, pages) = (size(bytes), pages(memory));
    quote(&format!("id=pinfold{number},size={size},host_numa_node={node},prefault=on{pages}"))
}

fn cell_of(number: u32, vcpus: &CpuSet) -> String {
    quote(&format!("guest_numa_id={number},cpus=[{vcpus}],memory_zones=[pinfold{number}]"))
}

fn pages(memory: &MemoryPlan) -> String {
    memory
        .page_bytes
        .map_or_else(String::new, |page| format!(",hugepages=on,hugepage_size={}", size(page)))
}

/// A size with the largest unit that divides it, as Cloud Hypervisor reads them (powers of 1024).
fn size(bytes: u64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    let fitting = units.into_iter().find(|(bits, _)| bytes > 0 && bytes.is_multiple_of(1 << bits));
    fitting.map_or_else(|| bytes.to_string(), |(bits, unit)| format!("{}{unit}", bytes >> bits))
}
