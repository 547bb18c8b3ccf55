//! cgroup v2: its files, and cpuset with partitions.
//!
//! `cpuset.cpus` is a *request*: CPUs that the parent does not have are dropped without an error,
//! and a group that would get none gets its parent's; only `.effective` shows the result. Before
//! Linux 7.0 the request of a group with tasks cannot be cleared (`ENOSPC`). A partition takes its
//! CPUs from its parent, or shows `isolated invalid (reason)`, again without an error. A remote
//! partition (6.7) is below groups that are no partitions: each of them lists its CPUs in
//! `cpuset.cpus.exclusive`. Validity is computed from the current state only: cases in which the
//! kernel depends on history (which of two conflicting partitions was first) are not simulated.
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html#cpuset>

use pinfold_model::{CpuSet, Tid};
use rustix::io::Errno;

use super::cgroup::{Cpuset, Group, GroupFile, Hierarchy, Partition, Rules, is_inside, parent};
use super::{MAX_NODES, Machine, bandwidth, disk};
use crate::parse;

const CORE: [&str; 6] = [
    "cgroup.controllers",
    "cgroup.max.depth",
    "cgroup.max.descendants",
    "cgroup.procs",
    "cgroup.stat",
    "cgroup.subtree_control",
];
const CORE_BELOW_ROOT: [&str; 4] = ["cgroup.events", "cgroup.freeze", "cgroup.kill", "cgroup.type"];
const CPUSET: [&str; 7] = [
    "cpuset.cpus",
    "cpuset.cpus.effective",
    "cpuset.cpus.exclusive",
    "cpuset.cpus.exclusive.effective",
    "cpuset.cpus.partition",
    "cpuset.mems",
    "cpuset.mems.effective",
];
const CPUSET_ROOT: [&str; 3] =
    ["cpuset.cpus.effective", "cpuset.cpus.isolated", "cpuset.mems.effective"];

/// The unified hierarchy.
#[derive(Debug)]
pub(crate) struct Unified;

impl Rules for Unified {
    fn file_names(&self, machine: &Machine, index: usize, group: &str) -> Vec<&'static str> {
        let hierarchy = &machine.hierarchies[index];
        let mut names: Vec<&str> = CORE.to_vec();
        names.extend(["cgroup.threads", "cpu.stat"]);
        if group != "/" {
            names.extend(CORE_BELOW_ROOT);
        }
        if has_cpuset(hierarchy, group) {
            let files: &[&str] = if group == "/" { &CPUSET_ROOT } else { &CPUSET };
            names.extend(
                files
                    .iter()
                    .copied()
                    .filter(|name: &&str| !machine.local_partitions || !name.contains("exclusive")),
            );
        }
        if group != "/" && hierarchy.enabled_controllers(group).contains(&"cpu") {
            names.extend(bandwidth::V2);
        }
        if group != "/" && hierarchy.enabled_controllers(group).contains(&"io") {
            names.push(disk::MAX);
        }
        names
    }

    fn read(&self, machine: &Machine, file: GroupFile<'_>) -> Result<String, Errno> {
        read(machine, file)
    }

    fn write(&self, machine: &mut Machine, file: GroupFile<'_>, text: &str) -> Result<(), Errno> {
        write(machine, file, text)
    }

    fn vet_move(
        &self,
        machine: &Machine,
        file: GroupFile<'_>,
        movers: &[Tid],
    ) -> Result<(), Errno> {
        machine.vet_move(file, movers)
    }

    fn can_attach(&self, machine: &Machine, file: GroupFile<'_>, _: &[Tid]) -> Result<(), Errno> {
        let hierarchy = &machine.hierarchies[file.index];
        if hierarchy.has("cpuset") && effective(machine, hierarchy, file.group).is_empty() {
            return Err(Errno::NOSPC);
        }
        Ok(())
    }

    fn effective(&self, machine: &Machine, hierarchy: &Hierarchy, group: &str) -> CpuSet {
        effective(machine, hierarchy, group)
    }

    fn root_domain(&self, machine: &Machine, hierarchy: &Hierarchy, group: &str) -> CpuSet {
        root_domain(machine, hierarchy, group)
    }
}

fn has_cpuset(hierarchy: &Hierarchy, group: &str) -> bool {
    hierarchy.enabled_controllers(group).contains(&"cpuset")
}

/// The CPUs that a group's tasks may use: those granted, without those of its partitions.
fn effective(machine: &Machine, hierarchy: &Hierarchy, group: &str) -> CpuSet {
    let own = granted_cpus(machine, hierarchy, group);
    let taken = hierarchy
        .groups
        .keys()
        .filter(|below| below.as_str() != group && is_inside(below, group))
        .filter(|below| is_valid_partition(machine, hierarchy, below))
        .fold(CpuSet::new(), |taken, below| taken.union(&granted_cpus(machine, hierarchy, below)));
    own.difference(&taken)
}

/// The CPUs that a group gets from its parent, including those of its own partitions.
fn granted_cpus(machine: &Machine, hierarchy: &Hierarchy, group: &str) -> CpuSet {
    let Some(above) = parent(group) else {
        return machine.online.clone();
    };
    let Some(found) = hierarchy.groups.get(group) else {
        return CpuSet::new();
    };
    if is_valid_partition(machine, hierarchy, group) {
        if is_remote(machine, hierarchy, group) {
            return wanted_cpus(found).intersection(&machine.online);
        }
        return wanted_cpus(found).intersection(&granted_cpus(machine, hierarchy, above));
    }
    let available = effective(machine, hierarchy, above);
    if !has_cpuset(hierarchy, group) {
        return available;
    }
    let got = found.cpuset.cpus.intersection(&available);
    if got.is_empty() { available } else { got }
}

fn granted_mems(machine: &Machine, hierarchy: &Hierarchy, group: &str) -> CpuSet {
    let Some(above) = parent(group) else {
        return machine.mems.clone();
    };
    let available = granted_mems(machine, hierarchy, above);
    let asked = hierarchy.groups.get(group).map(|found| &found.cpuset.mems);
    let got = asked.map_or_else(CpuSet::new, |asked| asked.intersection(&available));
    if got.is_empty() || !has_cpuset(hierarchy, group) { available } else { got }
}

/// The CPUs that a partition would take.
fn wanted_cpus(group: &Group) -> &CpuSet {
    if group.cpuset.exclusive.is_empty() { &group.cpuset.cpus } else { &group.cpuset.exclusive }
}

fn is_valid_partition(machine: &Machine, hierarchy: &Hierarchy, group: &str) -> bool {
    let asked = hierarchy.groups.get(group).map(|found| found.cpuset.partition);
    match asked {
        Some(Partition::Root | Partition::Isolated) => {
            partition_fault(machine, hierarchy, group).is_none()
        }
        Some(Partition::Member) | None => false,
    }
}

/// The root domain of a group's tasks, within which the scheduler admits SCHED_DEADLINE: the CPUs
/// of a partition with load balancing, all isolated CPUs together, or the CPUs of no partition.
fn root_domain(machine: &Machine, hierarchy: &Hierarchy, group: &str) -> CpuSet {
    let mut at = Some(group);
    while let Some(group) = at {
        let kind = hierarchy.groups.get(group).map(|found| found.cpuset.partition);
        match kind.filter(|_| is_valid_partition(machine, hierarchy, group)) {
            Some(Partition::Root) => return effective(machine, hierarchy, group),
            Some(Partition::Isolated) => return isolated(machine, hierarchy),
            Some(Partition::Member) | None => at = parent(group),
        }
    }
    effective(machine, hierarchy, "/")
}

/// True if the group can only be a remote partition and meets the conditions for one.
fn is_remote(machine: &Machine, hierarchy: &Hierarchy, group: &str) -> bool {
    let Some(found) = hierarchy.groups.get(group) else { return false };
    let mut above = parent(group).unwrap_or("/");
    if machine.local_partitions || above == "/" || found.cpuset.exclusive.is_empty() {
        return false;
    }
    while above != "/" {
        let keeps = hierarchy.groups.get(above).is_some_and(|above| {
            above.cpuset.partition == Partition::Member
                && found.cpuset.exclusive.is_subset(&above.cpuset.exclusive)
        });
        if !keeps {
            return false;
        }
        above = parent(above).unwrap_or("/");
    }
    true
}

/// The reason why a requested partition is invalid (`perr_strings` of the kernel).
fn partition_fault(machine: &Machine, hierarchy: &Hierarchy, group: &str) -> Option<&'static str> {
    let above = parent(group)?;
    let find = |path: &str| hierarchy.groups.get(path);
    if is_remote(machine, hierarchy, group) {
        let online = !find(group)?.cpuset.exclusive.is_disjoint(&machine.online);
        return (!online).then_some("No cpu available due to hotplug");
    }
    if above != "/" {
        if find(above).is_some_and(|above| above.cpuset.partition == Partition::Member) {
            return Some("Parent is not a partition root");
        }
        if !is_valid_partition(machine, hierarchy, above) {
            return Some("Parent is an invalid partition root");
        }
    }
    let found = find(group)?;
    let wanted = wanted_cpus(found);
    if wanted.is_empty() {
        return Some("cpuset.cpus and cpuset.cpus.exclusive are empty");
    }
    if hierarchy.siblings(group).filter_map(find).any(|sibling| {
        !sibling.cpuset.cpus.is_disjoint(wanted) || !sibling.cpuset.exclusive.is_disjoint(wanted)
    }) {
        return Some("Cpu list in cpuset.cpus not exclusive");
    }
    let available = granted_cpus(machine, hierarchy, above);
    let left = available.difference(wanted);
    let above_has_tasks = machine.tasks.values().any(|task| {
        machine.hierarchies.get(machine.cpuset_index).is_some_and(|with| with.id == hierarchy.id)
            && task.groups[machine.cpuset_index] == above
    });
    if available.is_disjoint(wanted) || (left.is_empty() && above_has_tasks) {
        return Some("Parent unable to distribute cpu downstream");
    }
    None
}

fn read(machine: &Machine, file: GroupFile<'_>) -> Result<String, Errno> {
    let GroupFile { index, group, name } = file;
    let hierarchy = &machine.hierarchies[index];
    let found = hierarchy.groups.get(group).ok_or(Errno::NODEV)?;
    Ok(match name {
        "cgroup.controllers" => words(hierarchy.enabled_controllers(group)),
        "cgroup.subtree_control" => words(
            hierarchy
                .controllers
                .iter()
                .copied()
                .filter(|name| found.subtree_control.contains(name)),
        ),
        "cgroup.procs" => return procs(machine, index, group),
        "cgroup.type" => format!("{}\n", kind(machine, index, group)),
        "cgroup.events" => machine.events(index, group),
        "cgroup.max.depth" | "cgroup.max.descendants" => "max\n".to_owned(),
        "cgroup.stat" => {
            let below = hierarchy
                .groups
                .keys()
                .filter(|path| path.as_str() != group && is_inside(path, group));
            format!("nr_descendants {}\nnr_dying_descendants 0\n", below.count())
        }
        "cpuset.cpus" => set(&found.cpuset.cpus),
        "cpuset.mems" => set(&found.cpuset.mems),
        "cpuset.cpus.exclusive" => set(&found.cpuset.exclusive),
        "cpuset.cpus.effective" => set(&effective(machine, hierarchy, group)),
        "cpuset.mems.effective" => set(&granted_mems(machine, hierarchy, group)),
        "cpuset.cpus.exclusive.effective" => {
            set(&wanted_cpus(found).intersection(&granted_cpus(machine, hierarchy, group)))
        }
        "cpuset.cpus.isolated" => set(&isolated(machine, hierarchy)),
        "cpuset.cpus.partition" => partition_text(machine, hierarchy, group),
        "cgroup.freeze" => machine.read_freeze(index, group),
        "cpu.max" | "cpu.weight" => bandwidth::read_v2(found, name),
        disk::MAX => disk::read_v2(found),
        "cgroup.kill" => return Err(Errno::INVAL),
        "cpu.stat" => "usage_usec 0\nuser_usec 0\nsystem_usec 0\n".to_owned(),
        _ => "0\n".to_owned(),
    })
}

fn set(set: &CpuSet) -> String {
    format!("{set}\n")
}

fn words<'w>(words: impl IntoIterator<Item = &'w str>) -> String {
    format!("{}\n", words.into_iter().collect::<Vec<_>>().join(" "))
}

fn procs(machine: &Machine, index: usize, group: &str) -> Result<String, Errno> {
    let hierarchy = &machine.hierarchies[index];
    if hierarchy.domain(group) != group {
        return Err(Errno::OPNOTSUPP);
    }
    // A process belongs to the domain of its first thread.
    let leaders = machine.tasks.values().filter(|task| {
        task.task.tid == task.task.tgid && hierarchy.domain(&task.groups[index]) == group
    });
    Ok(Machine::lines(leaders.map(|task| task.task.tid)))
}

fn kind(machine: &Machine, index: usize, group: &str) -> &'static str {
    let hierarchy = &machine.hierarchies[index];
    if hierarchy.groups.get(group).is_some_and(|group| group.threaded) {
        "threaded"
    } else if !machine.is_valid_domain(index, group) {
        "domain invalid"
    } else if machine.is_thread_root(index, group) {
        "domain threaded"
    } else {
        "domain"
    }
}

fn isolated(machine: &Machine, hierarchy: &Hierarchy) -> CpuSet {
    hierarchy
        .groups
        .iter()
        .filter(|(path, group)| {
            group.cpuset.partition == Partition::Isolated
                && is_valid_partition(machine, hierarchy, path)
        })
        .fold(CpuSet::new(), |set, (path, _)| set.union(&granted_cpus(machine, hierarchy, path)))
}

fn partition_text(machine: &Machine, hierarchy: &Hierarchy, group: &str) -> String {
    let asked =
        hierarchy.groups.get(group).map_or(Partition::Member, |found| found.cpuset.partition);
    let name = match asked {
        Partition::Member => return "member\n".to_owned(),
        Partition::Root => "root",
        Partition::Isolated => "isolated",
    };
    match partition_fault(machine, hierarchy, group) {
        None => format!("{name}\n"),
        Some(why) => format!("{name} invalid ({why})\n"),
    }
}

fn write(machine: &mut Machine, file: GroupFile<'_>, text: &str) -> Result<(), Errno> {
    let GroupFile { index, group, name } = file;
    match name {
        "cgroup.subtree_control" => machine.write_subtree_control(index, group, text),
        "cgroup.freeze" => machine.write_freeze(file, text),
        "cpu.max" | "cpu.weight" => bandwidth::write_v2(machine, file, text),
        disk::MAX => disk::write_v2(machine, file, text),
        "cgroup.type" if text.trim() == "threaded" => machine.make_threaded(index, group),
        "cpuset.cpus" => {
            let set = parse::list_within(text, machine.possible_bits(), &machine.possible)?;
            change(machine, file, |cpuset| cpuset.cpus = set)
        }
        "cpuset.cpus.exclusive" => {
            let set = parse::list_within(text, machine.possible_bits(), &machine.possible)?;
            let hierarchy = &machine.hierarchies[index];
            let taken = hierarchy
                .siblings(group)
                .filter_map(|path| hierarchy.groups.get(path))
                .any(|sibling| !sibling.cpuset.exclusive.is_disjoint(&set));
            if taken {
                return Err(Errno::INVAL);
            }
            change(machine, file, |cpuset| cpuset.exclusive = set)
        }
        "cpuset.mems" => {
            let set = parse::list_within(text, MAX_NODES, &machine.mems)?;
            change(machine, file, |cpuset| cpuset.mems = set)
        }
        "cpuset.cpus.partition" => {
            let asked = match text.trim() {
                "member" => Partition::Member,
                "root" => Partition::Root,
                "isolated" => Partition::Isolated,
                _ => return Err(Errno::INVAL),
            };
            change(machine, file, |cpuset| cpuset.partition = asked)
        }
        _ => Err(Errno::INVAL),
    }
}

fn change(
    machine: &mut Machine,
    file: GroupFile<'_>,
    edit: impl FnOnce(&mut Cpuset),
) -> Result<(), Errno> {
    let GroupFile { index, group, .. } = file;
    let now = &machine.hierarchies[index].groups.get(group).ok_or(Errno::NODEV)?.cpuset;
    let mut trial = now.clone();
    edit(&mut trial);
    let emptied = |was: &CpuSet, is: &CpuSet| !was.is_empty() && is.is_empty();
    let emptied = emptied(&now.cpus, &trial.cpus) || emptied(&now.mems, &trial.mems);
    if emptied && !machine.clears_populated && machine.is_populated(index, group) {
        return Err(Errno::NOSPC);
    }
    if let Some(found) = machine.hierarchies[index].groups.get_mut(group) {
        found.cpuset = trial;
    }
    Ok(())
}
