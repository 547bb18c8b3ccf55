//! OpenStack Nova: extra specs of a flavor, and the two CPU sets in the compute node's `nova.conf`.
//!
//! A flavor specifies the kind of CPUs, not which ones: Nova selects them from `cpu_dedicated_set`
//! (<https://docs.openstack.org/nova/latest/admin/cpu-topologies.html>). The CPUs of pinned vCPUs
//! become that set; the pins themselves cannot be expressed.

use pinfold_model::command::quote;
use pinfold_model::text::count_noun;
use pinfold_model::tunables::{FormatAnswer, Scope};
use pinfold_model::{CpuSet, NotSingleVnode, Plan, Policy, PuId, Role, Topology, VnodePlan};

use super::common::{self, Siblings, headline, reserved_cpus};
use super::format::{Format, Syntax};
use pinfold_plan::guest_numa::{cells, shares};

/// The format.
pub(super) const FORMAT: Format = Format {
    name: "nova",
    summary: "Extra specs of an OpenStack Nova flavor",
    is_of_host: false,
    can_merge: false,
    syntax: Syntax::Script,
    write: |plan, topology, _| nova(plan, topology),
    together: Some(nova_conf),
    tunable: |_, _| FormatAnswer::host(),
};

/// Commands for the flavor `$1`, and the lines for `nova.conf` in comments.
///
/// # Errors
/// [`NotSingleVnode`] if the plan does not place exactly one vnode.
pub fn nova(plan: &Plan, topology: &Topology) -> Result<String, NotSingleVnode> {
    let vnode = plan.single_vnode()?;
    if let Some(text) = common::process_group_text(vnode, "Nova") {
        return Ok(text);
    }
    let vcpus = vnode.vcpus().count();
    let mut script = format!(
        "#!/bin/sh\n# {}\n# sh THIS FLAVOR; the flavor has {}{}.\nset -eu\n\
         flavor=${{1:?\"usage: sh $0 FLAVOR\"}}\n\n",
        headline(plan),
        count_noun(vcpus, "vCPU"),
        vnode.memory.as_ref().and_then(|memory| memory.bytes).map_or_else(String::new, |bytes| {
            format!(" and {} MiB of memory (--vcpus {vcpus} --ram {})", bytes >> 20, bytes >> 20)
        })
    );
    let tunables = FORMAT.answers(Scope::of_vnode(plan, vnode));
    for property in properties(plan, vnode, topology) {
        script.push_str(&property_line(&property));
        script.push('\n');
    }
    script.push_str(&tunables.text(FLAVOR));
    script.push_str("\n# On the compute node, in nova.conf (which CPUs, but not which vCPU on which):\n# [compute]\n");
    let dedicated = dedicated_cpus(plan, vnode);
    if vnode.is_pinned() {
        script.push_str(&format!(
            "# cpu_dedicated_set = {dedicated}\n# (of this machine; a node with several has all of theirs in one list: plan them together)\n"
        ));
    }
    let shared = plan.housekeeping.difference(&dedicated);
    if !shared.is_empty() {
        script.push_str(&format!("# cpu_shared_set = {shared}\n"));
    }
    let conf = tunables.text(CONF);
    if !conf.is_empty() {
        script.push_str(&format!("# [libvirt]\n{conf}"));
    }
    script.push_str(
        "# Not expressible: the CPU of each vCPU, the emulator's own CPUs beyond cpu_shared_set, \
         pins of iothreads.\n",
    );
    if common::siblings(vnode, topology) == Siblings::Idle {
        script.push_str(
            "# hw:cpu_thread_policy=isolate leaves the siblings of dedicated CPUs idle: threads \
             that the plan puts there cannot be expressed.\n",
        );
    }
    script.push_str(&common::no_dies(vnode, topology, "Nova"));
    script.push_str(&tunables.missing_text("Nova"));
    script.push_str(&common::not_isolated(plan, "Nova excludes its other machines only"));
    Ok(script)
}

/// The CPU sets of a compute node for all machines of a plan.
fn nova_conf(plan: &Plan) -> String {
    let mut all = CpuSet::new();
    for vnode in plan.vnodes.iter().filter(|vnode| vnode.is_pinned()) {
        all.add(&dedicated_cpus(plan, vnode));
    }
    let shared = plan.housekeeping.difference(&all);
    let mut text =
        "\n# ==== nova.conf ====\n# Once on the compute node, for all machines together:\n\
                    # [compute]\n"
            .to_owned();
    for (name, pus) in [("cpu_dedicated_set", all), ("cpu_shared_set", shared)] {
        if !pus.is_empty() {
            text.push_str(&format!("# {name} = {pus}\n"));
        }
    }
    text
}

const FLAVOR: &str = "flavor";
const CONF: &str = "nova.conf";

fn property_line(property: &str) -> String {
    format!("openstack flavor set \"$flavor\" --property {}", quote(property))
}

/// The CPUs of vCPUs without the host's.
fn dedicated_cpus(plan: &Plan, vnode: &VnodePlan) -> CpuSet {
    let held = vnode.vcpus().map(|thread| &thread.pus).collect::<CpuSet>();
    let reserved = reserved_cpus(plan);
    if reserved.is_empty() { held } else { reserved.intersection(&held) }
}

/// The extra specs for the placement.
fn properties(plan: &Plan, vnode: &VnodePlan, topology: &Topology) -> Vec<String> {
    let pinned = vnode.is_pinned();
    let mut all = vec![format!("hw:cpu_policy={}", if pinned { "dedicated" } else { "shared" })];
    if let Some(guest) = &vnode.guest {
        let policy = match common::siblings(vnode, topology) {
            Siblings::Whole if guest.threads > 1 => Some("require"),
            Siblings::Idle => Some("isolate"),
            // Without siblings, or if the guest is shown none, any core is suitable.
            Siblings::None | Siblings::Whole | Siblings::Mixed => None,
        };
        all.extend(
            policy.filter(|_| pinned).map(|policy| format!("hw:cpu_thread_policy={policy}")),
        );
        all.push(format!("hw:cpu_sockets={}", guest.sockets));
        all.push(format!("hw:cpu_cores={}", guest.cores));
        all.push(format!("hw:cpu_threads={}", guest.threads));
    }
    all.extend(numa(vnode, topology));
    if let Some(page) = vnode.memory.as_ref().and_then(|memory| memory.page_bytes) {
        all.push(format!("hw:mem_page_size={}", page >> 10));
    }
    let held = vnode.vcpus().map(|thread| &thread.pus).collect::<CpuSet>();
    let emulator = vnode.thread(&Role::Emulator);
    let apart = emulator.is_some_and(|thread| thread.pus.is_disjoint(&held));
    if pinned && apart {
        // "share" uses the shared set; without one, "isolate" uses an additional dedicated CPU.
        let shared = !plan.housekeeping.difference(&dedicated_cpus(plan, vnode)).is_empty();
        let policy = if shared { "share" } else { "isolate" };
        all.push(format!("hw:emulator_threads_policy={policy}"));
    }
    if pinned {
        all.extend(real_time(vnode, apart));
    }
    all
}

/// The guest's nodes: Nova divides vCPUs and memory evenly by default.
fn numa(vnode: &VnodePlan, topology: &Topology) -> Vec<String> {
    let cells = cells(vnode, topology);
    let nodes = match (&vnode.memory, cells.len()) {
        (_, several) if several > 1 => several,
        (Some(memory), _) => memory.nodes.len(),
        (None, _) => common::nodes(vnode, topology).len(),
    };
    // A pinned machine has one node by default.
    if nodes == 0 || nodes == 1 && vnode.memory.is_none() {
        return Vec::new();
    }
    let mut all = vec![format!("hw:numa_nodes={nodes}")];
    let sizes = vnode.memory.as_ref().and_then(|memory| memory.bytes);
    let sizes = sizes.and_then(|bytes| shares(&cells, bytes, 1 << 20));
    for (index, (cell, bytes)) in cells.iter().zip(sizes.into_iter().flatten()).enumerate() {
        all.push(format!("hw:numa_cpus.{index}={}", cell.vcpus));
        all.push(format!("hw:numa_mem.{index}={}", bytes >> 20));
    }
    all
}

/// `hw:cpu_realtime`, and the mask if some vCPUs are not real-time: at least one must not be,
/// unless the emulator is elsewhere.
fn real_time(vnode: &VnodePlan, apart: bool) -> Vec<String> {
    let others = vnode.vcpus().filter(|vcpu| !vcpu.policy.is_some_and(Policy::is_real_time));
    let others: CpuSet = others.filter_map(|thread| thread.role.vcpu().map(PuId)).collect();
    if others.len() == vnode.vcpus().count() || others.is_empty() && !apart {
        return Vec::new();
    }
    let mut all = vec!["hw:cpu_realtime=yes".to_owned()];
    if !others.is_empty() {
        all.push(format!("hw:cpu_realtime_mask=^{others}"));
    }
    all
}
