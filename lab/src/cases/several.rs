//! Three machines on one host: they are placed at the same time, and no CPU has two of their vCPUs.
//!
//! Then they are isolated from the host's tasks one after the other, each next to those before, and
//! undone in another order. The CPUs of the vCPUs are read by busybox.

use std::collections::BTreeMap;

use pinfold_model::CpuSet;
use pinfold_model::text::cpus_text;

use super::shapes::{NewMachine, ROOT, start_named};
use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::snapshot::Snapshot;

const NAMES: [&str; 3] = ["one", "two", "three"];
const VCPUS: u32 = 2;
const GROUPS: &str = "mount -t cgroup2 none /sys/fs/cgroup; cd /sys/fs/cgroup
    mkdir init.scope one.scope two.scope three.scope; echo 1 > init.scope/cgroup.procs
    echo +cpuset > cgroup.subtree_control";
/// Starts three applies that all read the claims before the first journal could exist without a
/// lock.
const AT_ONCE: &str = "for name in one two three; do
        pinfold apply --qmp /tmp/$name.qmp --strategy low-latency > /tmp/$name.log 2>&1 &
        eval $name=$!
    done
    wait $one && wait $two && wait $three || { cat /tmp/*.log; exit 1; }";

pub(super) fn place_apart(guest: &mut Guest) -> Result<String, LabError> {
    guest.shell(GROUPS)?;
    let mut machines = Vec::new();
    for name in NAMES {
        let group = format!("{ROOT}/{name}.scope");
        let new = NewMachine { name, group: &group, vcpus: VCPUS, more: "" };
        machines.push((name, start_named(guest, &new)?));
    }
    let before = Snapshot::take(guest, ROOT, false)?;
    guest.shell(AT_ONCE)?;
    let during = Snapshot::take(guest, ROOT, false)?;
    let used = of_vcpus(&during, &machines)?;
    guest.pinfold(&["status"])?;
    guest.pinfold(&["undo", "--all"])?;
    same(guest, &before, "undo of all left a trace")?;

    let mut isolated = Vec::new();
    for machine in &machines {
        isolated.push(*machine);
        let socket = format!("/tmp/{}.qmp", machine.0);
        let apply = ["apply", "--qmp", &socket, "--strategy", "low-latency", "--isolate", "host"];
        guest.pinfold(&apply)?;
        // Fails if a placement has drifted, or if a CPU is used twice.
        guest.pinfold(&["status"])?;
        let during = Snapshot::take(guest, ROOT, false)?;
        of_vcpus(&during, &isolated)?;
        expect_none("isolation is not so", intruders(&during, &isolated))?;
    }
    for name in ["two", "one", "three"] {
        guest.pinfold(&["undo", name])?;
        isolated.retain(|(other, _)| *other != name);
        if !isolated.is_empty() {
            guest.pinfold(&["status"])?;
            let during = Snapshot::take(guest, ROOT, false)?;
            expect_none("isolation did not stay", intruders(&during, &isolated))?;
        }
    }
    same(guest, &before, "undo one by one left a trace")?;
    let used = cpus_text(&used);
    Ok(format!("vCPUs alone on {used}; three isolated one after the other, and back"))
}

/// The CPUs of the vCPUs of some machines.
///
/// # Errors
/// [`LabError`] if two vCPUs share one.
fn of_vcpus(during: &Snapshot, machines: &[(&str, u32)]) -> Result<CpuSet, LabError> {
    let mut used = CpuSet::new();
    for (name, pid) in machines {
        for task in during.tasks.values() {
            if task.process_group != *pid || !task.name.starts_with("CPU ") {
                continue;
            }
            if task.mask.len() != 1 || !task.mask.is_disjoint(&used) {
                let text = format!("{} of {name} is on {}, others on {used}", task.name, task.mask);
                return Err(LabError::wrong("a CPU of its own for each vCPU", text));
            }
            used.add(&task.mask);
        }
    }
    Ok(used)
}

/// Tasks that may run on the CPUs of other machines' vCPUs.
fn intruders(during: &Snapshot, machines: &[(&str, u32)]) -> Vec<String> {
    let mut found = Vec::new();
    for (name, pid) in machines {
        let mut own = CpuSet::new();
        for task in during.tasks.values() {
            if task.process_group == *pid && task.name.starts_with("CPU ") {
                own.add(&task.mask);
            }
        }
        for (tid, task) in &during.tasks {
            let is_bound = task.is_kernel_thread() || task.process_group == *pid;
            if !is_bound && !task.mask.is_disjoint(&own) {
                let text = format!("task {tid} ({}) may run on {} of {name}", task.name, task.mask);
                found.push(text);
            }
        }
    }
    found
}

fn same(guest: &mut Guest, before: &Snapshot, what: &str) -> Result<(), LabError> {
    let after = Snapshot::take(guest, ROOT, false)?;
    let all = after.knobs.get(&format!("{ROOT}/cpuset.cpus.effective")).cloned();
    // Before 7.0 a group with tasks keeps explicit lists: all CPUs of the root.
    let mut near = BTreeMap::new();
    for group in ["init.scope", "one.scope", "two.scope", "three.scope"] {
        let path = format!("{ROOT}/{group}/cpuset.cpus");
        if let Some(list) = all.clone().filter(|list| after.knobs.get(&path) == Some(list)) {
            near.insert(path, list);
        }
    }
    expect_none(what, after.differences(before, &near))
}
