//! cpuset of cgroup v1: its files and rules.
//!
//! `kernel/cgroup/cpuset.c` and `cpuset-v1.c`; a test compares each error number with the running
//! kernel if that has such a hierarchy. Notable rules: a new group has neither CPUs nor memory and
//! accepts no task until it has both (`ENOSPC`); the root's are read-only (`EACCES`); a group's
//! must be within its parent's (`EACCES`) and include its children's (`EBUSY`).
//! <https://docs.kernel.org/admin-guide/cgroup-v1/cpusets.html>

use pinfold_model::{CpuSet, Tid};
use rustix::io::Errno;

use super::cgroup::{Cpuset, Group, GroupFile, Hierarchy, Rules, parent};
use super::{MAX_NODES, Machine};
use crate::parse;

const FILES: [&str; 17] = [
    "cgroup.clone_children",
    "cgroup.procs",
    "cpuset.cpu_exclusive",
    "cpuset.cpus",
    "cpuset.effective_cpus",
    "cpuset.effective_mems",
    "cpuset.mem_exclusive",
    "cpuset.mem_hardwall",
    "cpuset.memory_migrate",
    "cpuset.memory_pressure",
    "cpuset.memory_spread_page",
    "cpuset.memory_spread_slab",
    "cpuset.mems",
    "cpuset.sched_load_balance",
    "cpuset.sched_relax_domain_level",
    "notify_on_release",
    "tasks",
];
const ROOT_FILES: [&str; 3] = ["cgroup.sane_behavior", "cpuset.memory_pressure_enabled", AGENT];

/// Boolean files, with their values in a new group.
const FLAGS: [(&str, &str); 10] = [
    ("cgroup.clone_children", "0"),
    ("cpuset.cpu_exclusive", "0"),
    ("cpuset.mem_exclusive", "0"),
    ("cpuset.mem_hardwall", "0"),
    ("cpuset.memory_migrate", "0"),
    ("cpuset.memory_pressure_enabled", "0"),
    ("cpuset.memory_spread_page", "0"),
    ("cpuset.memory_spread_slab", "0"),
    ("cpuset.sched_load_balance", "1"),
    ("notify_on_release", "0"),
];
/// Values that a new group inherits from its parent.
const INHERITED: [&str; 4] = [
    "cgroup.clone_children",
    "cpuset.memory_spread_page",
    "cpuset.memory_spread_slab",
    "notify_on_release",
];
const RELAX: &str = "cpuset.sched_relax_domain_level";
const AGENT: &str = "release_agent";

/// The root group: both exclusive flags are set at boot (`cpuset_init`).
pub(crate) fn root_group(cpus: CpuSet, mems: CpuSet) -> Group {
    let exclusive = ["cpuset.cpu_exclusive", "cpuset.mem_exclusive"];
    Group {
        cpuset: Cpuset { cpus, mems, ..Cpuset::default() },
        values: exclusive.into_iter().map(|name| (name, "1".to_owned())).collect(),
        ..Group::default()
    }
}

/// The controller.
#[derive(Debug)]
pub(crate) struct CpusetV1;

impl Rules for CpusetV1 {
    fn file_names(&self, _machine: &Machine, _index: usize, group: &str) -> Vec<&'static str> {
        let root_only: &[&str] = if group == "/" { &ROOT_FILES } else { &[] };
        FILES.iter().chain(root_only).copied().collect()
    }

    /// `cpuset_css_online`.
    fn new_group(&self, above: &Group) -> Group {
        let mut group = Group::default();
        for name in INHERITED {
            if let Some(value) = above.values.get(name) {
                group.values.insert(name, value.clone());
            }
        }
        if flag(above, "cgroup.clone_children") {
            group.cpuset = Cpuset {
                cpus: above.cpuset.cpus.clone(),
                mems: above.cpuset.mems.clone(),
                ..Cpuset::default()
            };
        }
        group
    }

    fn read(&self, machine: &Machine, file: GroupFile<'_>) -> Result<String, Errno> {
        let hierarchy = &machine.hierarchies[file.index];
        let found = hierarchy.groups.get(file.group).ok_or(Errno::NODEV)?;
        if let Some((known, _)) = FLAGS.iter().find(|(known, _)| *known == file.name) {
            return Ok(format!("{}\n", u8::from(flag(found, known))));
        }
        Ok(match file.name {
            "cpuset.cpus" => format!("{}\n", found.cpuset.cpus),
            "cpuset.mems" => format!("{}\n", found.cpuset.mems),
            "cpuset.effective_cpus" => format!("{}\n", effective(machine, hierarchy, file.group)),
            "cpuset.effective_mems" => format!("{}\n", found.cpuset.mems),
            RELAX => format!("{}\n", found.values.get(RELAX).map_or("-1", String::as_str)),
            AGENT => format!("{}\n", found.values.get(AGENT).map_or("", String::as_str)),
            _ => "0\n".to_owned(),
        })
    }

    fn write(&self, machine: &mut Machine, file: GroupFile<'_>, text: &str) -> Result<(), Errno> {
        if let Some((known, _)) = FLAGS.iter().find(|(known, _)| *known == file.name) {
            let value = parse::unsigned(text)? != 0;
            return set_flag(machine, file, known, value);
        }
        match file.name {
            "cpuset.cpus" | "cpuset.mems" if file.group == "/" => Err(Errno::ACCESS),
            "cpuset.cpus" => {
                let set = parse::list_within(text, machine.possible_bits(), &machine.online)?;
                change(machine, file, |cpuset| cpuset.cpus = set)
            }
            "cpuset.mems" => {
                let set = parse::list_within(text, MAX_NODES, &machine.mems)?;
                change(machine, file, |cpuset| cpuset.mems = set)
            }
            RELAX => {
                let level = parse::signed(text)?;
                if !(-1..=machine.relax_levels).contains(&level) {
                    return Err(Errno::INVAL);
                }
                machine.store(file, RELAX, level.to_string())
            }
            AGENT => machine.store(file, AGENT, text.trim().to_owned()),
            // No write handler: opening succeeds for root, writing does not.
            _ => Err(Errno::INVAL),
        }
    }

    fn can_attach(&self, machine: &Machine, file: GroupFile<'_>, _: &[Tid]) -> Result<(), Errno> {
        let hierarchy = &machine.hierarchies[file.index];
        let has_mems =
            hierarchy.groups.get(file.group).is_some_and(|found| !found.cpuset.mems.is_empty());
        if effective(machine, hierarchy, file.group).is_empty() || !has_mems {
            return Err(Errno::NOSPC);
        }
        Ok(())
    }

    fn effective(&self, machine: &Machine, hierarchy: &Hierarchy, group: &str) -> CpuSet {
        effective(machine, hierarchy, group)
    }
}

fn flag(group: &Group, name: &str) -> bool {
    let default = FLAGS.iter().find(|(known, _)| *known == name).map_or("0", |(_, value)| *value);
    group.values.get(name).map_or(default, String::as_str) == "1"
}

fn effective(machine: &Machine, hierarchy: &Hierarchy, group: &str) -> CpuSet {
    match parent(group) {
        None => machine.online.clone(),
        Some(above) => hierarchy.groups.get(group).map_or_else(CpuSet::new, |found| {
            found.cpuset.cpus.intersection(&effective(machine, hierarchy, above))
        }),
    }
}

fn set_flag(
    machine: &mut Machine,
    file: GroupFile<'_>,
    name: &'static str,
    value: bool,
) -> Result<(), Errno> {
    let GroupFile { index, group, .. } = file;
    let now = machine.hierarchies[index].groups.get(group).ok_or(Errno::NODEV)?;
    let mut trial = now.clone();
    trial.values.insert(name, u8::from(value).to_string());
    if name.starts_with("cpuset.") && name != "cpuset.memory_pressure_enabled" {
        validate(machine, index, group, &trial)?;
    }
    machine.hierarchies[index].groups.insert(group.to_owned(), trial);
    Ok(())
}

fn change(
    machine: &mut Machine,
    file: GroupFile<'_>,
    edit: impl FnOnce(&mut Cpuset),
) -> Result<(), Errno> {
    let GroupFile { index, group, .. } = file;
    let now = machine.hierarchies[index].groups.get(group).ok_or(Errno::NODEV)?;
    let mut trial = now.clone();
    edit(&mut trial.cpuset);
    if trial.cpuset.cpus == now.cpuset.cpus && trial.cpuset.mems == now.cpuset.mems {
        return Ok(());
    }
    validate(machine, index, group, &trial)?;
    machine.hierarchies[index].groups.insert(group.to_owned(), trial);
    Ok(())
}

/// `validate_change`, with its checks in the kernel's order.
fn validate(machine: &Machine, index: usize, group: &str, trial: &Group) -> Result<(), Errno> {
    let hierarchy = &machine.hierarchies[index];
    let find = |path: &str| hierarchy.groups.get(path);
    if hierarchy.children(group).filter_map(find).any(|child| !is_subset(child, trial)) {
        return Err(Errno::BUSY);
    }
    let Some(above) = parent(group) else {
        return Ok(());
    };
    if find(above).is_some_and(|above| !is_subset(trial, above)) {
        return Err(Errno::ACCESS);
    }
    let now = find(group).ok_or(Errno::NODEV)?;
    fn becomes_empty(was: &CpuSet, is: &CpuSet) -> bool {
        !was.is_empty() && is.is_empty()
    }
    if machine.is_populated(index, group)
        && (becomes_empty(&now.cpuset.cpus, &trial.cpuset.cpus)
            || becomes_empty(&now.cpuset.mems, &trial.cpuset.mems))
    {
        return Err(Errno::NOSPC);
    }
    let conflict = |sibling: &Group, name, set: fn(&Cpuset) -> &CpuSet| {
        (flag(trial, name) || flag(sibling, name))
            && !set(&trial.cpuset).is_disjoint(set(&sibling.cpuset))
    };
    let overlaps = hierarchy.siblings(group).filter_map(find).any(|sibling| {
        conflict(sibling, "cpuset.cpu_exclusive", |cpuset| &cpuset.cpus)
            || conflict(sibling, "cpuset.mem_exclusive", |cpuset| &cpuset.mems)
    });
    if overlaps { Err(Errno::INVAL) } else { Ok(()) }
}

/// `is_cpuset_subset`.
fn is_subset(inner: &Group, outer: &Group) -> bool {
    inner.cpuset.cpus.is_subset(&outer.cpuset.cpus)
        && inner.cpuset.mems.is_subset(&outer.cpuset.mems)
        && (!flag(inner, "cpuset.cpu_exclusive") || flag(outer, "cpuset.cpu_exclusive"))
        && (!flag(inner, "cpuset.mem_exclusive") || flag(outer, "cpuset.mem_exclusive"))
}
