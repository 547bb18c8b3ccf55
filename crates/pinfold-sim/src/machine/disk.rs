//! Limits of disks: `io.max` of v2, and the v1 `blkio` controller.
//!
//! Rules of `block/blk-throttle.c`: a device that does not exist or is a partition is `ENODEV`, a
//! limit of 0 is `ERANGE` in v2 and no limit in v1. A disk without limits has no line.
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html#io-interface-files>

use std::collections::BTreeMap;

use pinfold_host::{Host as _, paths};
use rustix::io::Errno;

use super::Machine;
use super::cgroup::{Group, GroupFile, Rules};

/// The file of v2.
pub(crate) const MAX: &str = "io.max";
const KEYS: [&str; 4] = ["rbps", "wbps", "riops", "wiops"];
const V1: [&str; 4] = [
    "blkio.throttle.read_bps_device",
    "blkio.throttle.read_iops_device",
    "blkio.throttle.write_bps_device",
    "blkio.throttle.write_iops_device",
];

/// The v1 controller.
#[derive(Debug)]
pub(crate) struct BlkioV1;

impl Rules for BlkioV1 {
    fn file_names(&self, _machine: &Machine, _index: usize, _group: &str) -> Vec<&'static str> {
        ["cgroup.procs", "tasks"].into_iter().chain(V1).collect()
    }

    fn read(&self, machine: &Machine, file: GroupFile<'_>) -> Result<String, Errno> {
        let groups = &machine.hierarchies[file.index].groups;
        let found = groups.get(file.group).ok_or(Errno::NODEV)?;
        Ok(found.values.get(file.name).cloned().unwrap_or_default())
    }

    fn write(&self, machine: &mut Machine, file: GroupFile<'_>, text: &str) -> Result<(), Errno> {
        let name = V1.into_iter().find(|name| *name == file.name).ok_or(Errno::INVAL)?;
        let (disk, limit) = text.trim().split_once(' ').ok_or(Errno::INVAL)?;
        require_disk(machine, disk)?;
        let limit: u64 = limit.parse().map_err(|_| Errno::INVAL)?;
        let mut lines = parse_lines(&self.read(machine, file)?);
        lines.insert(disk.to_owned(), limit.to_string());
        lines.retain(|_, limit| limit != "0");
        machine.store(file, name, show(&lines))
    }
}

/// Content of `io.max`.
pub(crate) fn read_v2(group: &Group) -> String {
    group.values.get(MAX).cloned().unwrap_or_default()
}

/// Writes `io.max`: limits that a value does not name stay.
pub(crate) fn write_v2(
    machine: &mut Machine,
    file: GroupFile<'_>,
    text: &str,
) -> Result<(), Errno> {
    let (disk, limits) = text.trim().split_once(' ').ok_or(Errno::INVAL)?;
    require_disk(machine, disk)?;
    let groups = &machine.hierarchies[file.index].groups;
    let mut lines = parse_lines(&read_v2(groups.get(file.group).ok_or(Errno::NODEV)?));
    let usual = KEYS.map(|key| format!("{key}=max")).join(" ");
    let mut now = lines.get(disk).unwrap_or(&usual).clone();
    for limit in limits.split_ascii_whitespace() {
        let (key, value) = limit.split_once('=').ok_or(Errno::INVAL)?;
        if !KEYS.contains(&key) {
            return Err(Errno::INVAL);
        }
        if value != "max" && value.parse::<u64>().map_err(|_| Errno::INVAL)? == 0 {
            return Err(Errno::RANGE);
        }
        let words = now.split(' ').map(|word| {
            if word.split('=').next() == Some(key) { limit.to_owned() } else { word.to_owned() }
        });
        now = words.collect::<Vec<_>>().join(" ");
    }
    lines.insert(disk.to_owned(), now);
    lines.retain(|_, limits| *limits != usual);
    machine.store(file, MAX, show(&lines))
}

/// The limits of each disk.
fn parse_lines(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.map(|(disk, limits)| (disk.to_owned(), limits.to_owned())).collect()
}

fn show(lines: &BTreeMap<String, String>) -> String {
    lines.iter().map(|(disk, limits)| format!("{disk} {limits}\n")).collect()
}

fn require_disk(machine: &Machine, number: &str) -> Result<(), Errno> {
    let target = machine.tree.link(&paths::block_device(number)).map_err(|_| Errno::NODEV)?;
    let directory = paths::sysfs(target.trim_start_matches("../"));
    let is_partition = machine.tree.exists(&format!("{directory}/partition"));
    if is_partition { Err(Errno::NODEV) } else { Ok(()) }
}
