//! A machine on each shape is isolated once and undone.
//!
//! The machine's CPUs are read from the plan, and the tasks that may run there by busybox.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::CpuSet;
use pinfold_model::text::cpus_text;
use serde_json::Value;

use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::snapshot::{Snapshot, Task};

pub(super) const ROOT: &str = "/sys/fs/cgroup";
pub(super) const MONITOR: &str = "/tmp/vm.qmp";

/// The machine that is placed on a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedMachine {
    /// The strategy.
    pub strategy: &'static str,
    /// Number of vCPUs of the machine.
    pub vcpus: u32,
    /// A CPU that is offline meanwhile.
    pub offline: Option<u32>,
}

pub(super) fn isolate(guest: &mut Guest, placed: &PlacedMachine) -> Result<String, LabError> {
    let vm = start(guest, placed.vcpus, "")?;
    let before = Snapshot::take(guest, ROOT, false)?;
    put(guest, placed.offline, "0")?;
    let apply = ["apply", "--qmp", MONITOR, "--strategy", placed.strategy, "--isolate", "host"];
    guest.pinfold(&apply)?;
    let during = Snapshot::take(guest, ROOT, false)?;
    let status = guest.pinfold(&["status", "--json"])?;
    let said = ReportedPlacement::parse(&status)?;
    expect_none("isolation is not so", intruders(&during, vm, &said))?;
    let real_time =
        if placed.strategy.ends_with("-rt") { real_time(&during, vm)? } else { String::new() };
    guest.pinfold(&["undo", "--all"])?;
    // The kernel shows and accepts no mask with an offline CPU.
    put(guest, placed.offline, "1")?;
    let after = Snapshot::take(guest, ROOT, false)?;
    let found = after.differences(&before, &near(&after));
    // Masks that were not visible cannot be restored for tasks that never set one.
    let (short, found): (Vec<String>, Vec<String>) =
        found.into_iter().partition(|one| placed.offline.is_some() && is_of_node(one));
    expect_none("undo left a trace", found)?;
    let short = match short.len() {
        0 => String::new(),
        many => format!("; {many} kernel threads of a node came back without the offline CPU"),
    };
    let (strategy, pus, many) = (placed.strategy, &said.alone, before.tasks.len());
    let pus = cpus_text(pus);
    Ok(format!("{strategy} on {pus}{real_time}, {many} tasks and back{short}"))
}

/// Only the vCPUs of the machine are real-time, `SCHED_RR` with the lowest priority.
pub(super) fn real_time(during: &Snapshot, vm: u32) -> Result<String, LabError> {
    const ROUND_ROBIN: (i64, i64) = (1, 2);
    let of_vm: Vec<_> = during.tasks.values().filter(|task| task.process_group == vm).collect();
    fn is_vcpu(task: &Task) -> bool {
        task.name.starts_with("CPU ")
    }
    if !of_vm.iter().any(|task| is_vcpu(task)) {
        return Err(LabError::wrong("real-time vCPUs", "no thread has a vCPU's name"));
    }
    let wrong = of_vm.into_iter().filter_map(|task| {
        let (_, priority, policy) = task.policy;
        let is_right = ((priority, policy) == ROUND_ROBIN) == is_vcpu(task);
        (!is_right).then(|| format!("{} has policy {policy}, priority {priority}", task.name))
    });
    expect_none("real-time vCPUs", wrong.collect())?;
    Ok(" with rr 1".to_owned())
}

/// True for a difference in a kernel thread that has the mask of its node.
fn is_of_node(difference: &str) -> bool {
    ["(kcompactd", "(kswapd"].iter().any(|name| difference.contains(name))
}

/// Takes a CPU offline, or brings it online.
fn put(guest: &mut Guest, pu: Option<u32>, value: &str) -> Result<(), LabError> {
    if let Some(pu) = pu {
        guest.shell(&format!("echo {value} > /sys/devices/system/cpu/cpu{pu}/online"))?;
    }
    Ok(())
}

/// Starts a machine in its own group below the root, and waits for its threads.
pub(super) fn start(guest: &mut Guest, vcpus: u32, more: &str) -> Result<u32, LabError> {
    guest.shell(&format!(
        "mount -t cgroup2 none {ROOT}; cd {ROOT}; mkdir init.scope vm.scope
         echo 1 > init.scope/cgroup.procs; echo +cpuset > cgroup.subtree_control"
    ))?;
    start_in(guest, &format!("{ROOT}/vm.scope"), vcpus, more)
}

/// As [`start`], in an existing group.
pub(super) fn start_in(
    guest: &mut Guest,
    group: &str,
    vcpus: u32,
    more: &str,
) -> Result<u32, LabError> {
    start_named(guest, &NewMachine { name: "vm", group, vcpus, more })
}

/// A machine to start.
pub(super) struct NewMachine<'a> {
    /// Its name; its files are `/tmp/NAME.qmp`, `/tmp/NAME.pid` and `/tmp/NAME.txt`.
    pub(super) name: &'a str,
    /// The path of its group.
    pub(super) group: &'a str,
    /// Number of vCPUs.
    pub(super) vcpus: u32,
    /// Further options.
    pub(super) more: &'a str,
}

/// Starts a machine, and waits for its threads. Returns its process.
pub(super) fn start_named(guest: &mut Guest, new: &NewMachine<'_>) -> Result<u32, LabError> {
    let NewMachine { name, group, vcpus, more } = *new;
    let accelerator = if more.contains("-accel") { "" } else { "-accel tcg,thread=multi" };
    let (machine, monitor) = (guest.machine(), format!("/tmp/{name}.qmp"));
    guest.background(&format!(
        "echo $$ > {group}/cgroup.procs; exec {machine} {accelerator} -smp {vcpus} \
         -name {name},debug-threads=on -qmp unix:{monitor},server=on,wait=off \
         -pidfile /tmp/{name}.pid {more} 2> /tmp/{name}.txt"
    ))?;
    let program = guest.isa.gnu_name();
    let started = guest.run(&[
        "/bin/busybox",
        "sh",
        "-c",
        &format!(
            "for i in $(seq 1200); do [ -s /tmp/{name}.pid ] && [ -S {monitor} ] && \
             [ $(ls /proc/$(cat /tmp/{name}.pid)/task | wc -l) -ge {} ] && exit 0; \
             [ -s /tmp/{name}.txt ] && ! pidof qemu-system-{program} && break; usleep 100000; done; \
             cat /tmp/{name}.txt; exit 1",
            vcpus + 1
        ),
    ])?;
    if !started.success() {
        return Err(LabError::wrong("the machine does not start", started.stdout_text()));
    }
    let pid = guest.shell(&format!("cat /tmp/{name}.pid"))?;
    pid.trim().parse().map_err(|_| LabError::wrong("pid of the machine", pid))
}

/// The single placement in the output of `pinfold status --json`.
pub(super) struct ReportedPlacement {
    /// The CPUs of the vCPUs.
    pub(super) alone: CpuSet,
    /// Tasks that may still run there, movable or not.
    named: BTreeSet<u32>,
}

impl ReportedPlacement {
    pub(super) fn parse(status: &str) -> Result<Self, LabError> {
        let json: Value = serde_json::from_str(status.trim()).map_err(|_| wrong_status(status))?;
        let entry = json.pointer("/in_force/0").ok_or_else(|| wrong_status(status))?;
        if entry["as_planned"] != true {
            return Err(wrong_status(status));
        }
        let mut alone = CpuSet::new();
        for role in entry["roles"].as_array().ok_or_else(|| wrong_status(status))? {
            if role["role"].as_str().is_some_and(|role| role.starts_with("vcpu")) {
                let list = role["planned"].as_str().ok_or_else(|| wrong_status(status))?;
                alone.add(&CpuSet::parse_list(list).map_err(|_| wrong_status(status))?);
            }
        }
        let lists = ["movable", "immovable"].into_iter().filter_map(|key| entry[key].as_array());
        let tids = lists.flatten().filter_map(|one| one["tid"].as_u64());
        let named = tids.filter_map(|tid| u32::try_from(tid).ok()).collect();
        if alone.is_empty() { Err(wrong_status(status)) } else { Ok(Self { alone, named }) }
    }
}

fn wrong_status(status: &str) -> LabError {
    LabError::wrong("status", status)
}

/// Tasks that may run on the vCPUs' CPUs, without kernel threads that status names. (The kernel
/// sets the CPUs of some of them repeatedly, as for RCU when a CPU goes offline.)
pub(super) fn intruders(during: &Snapshot, vm: u32, said: &ReportedPlacement) -> Vec<String> {
    let others = during.tasks.iter().filter(|(tid, task)| {
        let named = task.is_kernel_thread() && said.named.contains(tid);
        let excused = task.process_group == vm || task.is_unmovable() || named;
        !excused && !task.mask.is_disjoint(&said.alone)
    });
    others
        .map(|(tid, task)| format!("task {tid} ({}) may run on {}", task.name, task.mask))
        .collect()
}

/// Before 7.0 a group with tasks keeps explicit lists: all CPUs of the root.
pub(super) fn near(after: &Snapshot) -> BTreeMap<String, String> {
    // Before 6.12, a KVM machine leaves a kernel thread of KVM in its group.
    let lists = [("init.scope", "cpus"), ("vm.scope", "cpus"), ("vm.scope", "mems")];
    let all = lists.into_iter().filter_map(|(group, list)| {
        let path = format!("{ROOT}/{group}/cpuset.{list}");
        let all = after.knobs.get(&format!("{ROOT}/cpuset.{list}.effective"))?;
        (after.knobs.get(&path) == Some(all)).then(|| (path, all.clone()))
    });
    all.collect()
}

/// Major and minor number of a kernel's release.
pub(super) fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(['.', '-', '+']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default())
}
