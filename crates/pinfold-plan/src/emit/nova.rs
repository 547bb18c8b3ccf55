//! OpenStack Nova: extra specs of a flavor, and the two sets of PUs in the compute node's `nova.conf`.
//!
//! A flavor says how CPUs are to be had, not which: Nova chooses from `cpu_dedicated_set`
//! (<https://docs.openstack.org/nova/latest/admin/cpu-topologies.html>). What the plan pins to one
//! PU becomes a set; the pins themselves have no word there.

use pinfold_model::{CpuSet, Plan, Policy, Role, VnodePlan};

use super::held::{headline, reserved};

/// Commands for the flavor `$1`, and the lines for `nova.conf` in comments.
#[must_use]
pub fn nova((plan, vnode): (&Plan, &VnodePlan)) -> String {
    let vcpus = vnode.vcpus().count();
    let pinned = vcpus > 0 && vnode.vcpus().all(|thread| thread.pus.len() == 1);
    let held = vnode.vcpus().fold(CpuSet::new(), |set, thread| set.union(&thread.pus));
    let mut script = format!(
        "#!/bin/sh\n# {}\n# sh THIS FLAVOR; the flavor has {vcpus} vCPUs.\nset -eu\n\
         flavor=${{1:?\"say which flavor: sh $0 FLAVOR\"}}\n\n",
        headline(plan)
    );
    let mut set = |property: String| {
        script.push_str(&format!("openstack flavor set \"$flavor\" --property {property}\n"));
    };
    set(format!("hw:cpu_policy={}", if pinned { "dedicated" } else { "shared" }));
    if let Some(guest) = &vnode.guest {
        if pinned {
            let policy = if guest.threads > 1 { "require" } else { "isolate" };
            set(format!("hw:cpu_thread_policy={policy}"));
        }
        set(format!("hw:cpu_sockets={}", guest.sockets));
        set(format!("hw:cpu_cores={}", guest.cores));
        set(format!("hw:cpu_threads={}", guest.threads));
    }
    if let Some(memory) = &vnode.memory {
        set(format!("hw:numa_nodes={}", memory.nodes.len()));
        if let Some(page) = memory.page_bytes {
            set(format!("hw:mem_page_size={}", page >> 10));
        }
    }
    let emulator = vnode.thread(&Role::Emulator);
    if pinned && emulator.is_some_and(|thread| thread.pus.is_disjoint(&held)) {
        set("hw:emulator_threads_policy=share".to_owned());
    }
    let real_time = vnode.vcpus().any(|thread| thread.policy.is_some_and(Policy::is_real_time));
    if pinned && real_time {
        set("hw:cpu_realtime=yes".to_owned());
    }
    script.push_str("\n# On the compute node, in nova.conf (which PUs, but not which vCPU on which):\n# [compute]\n");
    let dedicated =
        if reserved(plan).is_empty() { held.clone() } else { reserved(plan).intersection(&held) };
    if pinned {
        script.push_str(&format!("# cpu_dedicated_set = {dedicated}\n"));
    }
    let shared = plan.housekeeping.difference(&dedicated);
    if !shared.is_empty() {
        script.push_str(&format!("# cpu_shared_set = {shared}\n"));
    }
    script.push_str(
        "# Cannot be said: the PU of each vCPU, the emulator's own PUs beyond cpu_shared_set, pins of iothreads.\n\
         # hw:cpu_thread_policy=isolate leaves the siblings of dedicated PUs idle: what the plan puts there has no word.\n",
    );
    script
}
