//! CPU time by group: weights and quotas of the cgroup v1 `cpu` controller and of v2.
//!
//! Rules of `kernel/sched/core.c`: v1 shares are clamped to 2 to 262,144, a v2 weight outside 1 to
//! 10,000 is `ERANGE`, a quota below a millisecond or a period outside 1 ms to 1 s is `EINVAL`.
//! With `CONFIG_RT_GROUP_SCHED` a v1 group also has a real-time run time.
//! <https://docs.kernel.org/scheduler/sched-bwc.html>

use pinfold_model::Tid;
use rustix::io::Errno;

use super::cgroup::{Group, GroupFile, Rules};
use super::{Machine, real_time};
use crate::parse;

const SHARES: &str = "cpu.shares";
const PERIOD: &str = "cpu.cfs_period_us";
const QUOTA: &str = "cpu.cfs_quota_us";
const WEIGHT: &str = "cpu.weight";
const MAX: &str = "cpu.max";
/// Files of a v2 group with the controller, except the root.
pub(crate) const V2: [&str; 2] = [MAX, WEIGHT];
const PERIODS_US: std::ops::RangeInclusive<i64> = 1_000..=1_000_000;
const LEAST_QUOTA_US: i64 = 1_000;

/// The v1 controller.
#[derive(Debug)]
pub(crate) struct CpuV1;

impl Rules for CpuV1 {
    fn file_names(&self, machine: &Machine, index: usize, _group: &str) -> Vec<&'static str> {
        let mut names = vec!["cgroup.procs", PERIOD, QUOTA, SHARES, "cpu.stat", "tasks"];
        if machine.is_real_time(index) {
            names.extend(real_time::FILES);
        }
        names
    }

    fn new_group(&self, above: &Group) -> Group {
        real_time::new_group(above)
    }

    fn read(&self, machine: &Machine, file: GroupFile<'_>) -> Result<String, Errno> {
        let groups = &machine.hierarchies[file.index].groups;
        let found = groups.get(file.group).ok_or(Errno::NODEV)?;
        Ok(match file.name {
            SHARES => value_or(found, SHARES, "1024"),
            PERIOD => value_or(found, PERIOD, "100000"),
            QUOTA => value_or(found, QUOTA, "-1"),
            "cpu.stat" => "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n".to_owned(),
            _ => machine.read_real_time(file),
        })
    }

    fn write(&self, machine: &mut Machine, file: GroupFile<'_>, text: &str) -> Result<(), Errno> {
        let (name, value) = match file.name {
            SHARES if file.group == "/" => return Err(Errno::INVAL),
            SHARES => (SHARES, parse::signed(text.trim())?.clamp(2, 262_144)),
            PERIOD => (PERIOD, check_range(parse::signed(text.trim())?, &PERIODS_US)?),
            QUOTA => match parse::signed(text.trim())? {
                quota if quota < 0 => (QUOTA, -1),
                quota if quota < LEAST_QUOTA_US => return Err(Errno::INVAL),
                quota => (QUOTA, quota),
            },
            _ => return machine.write_real_time(file, text),
        };
        machine.store(file, name, value.to_string())
    }

    fn can_attach(
        &self,
        machine: &Machine,
        file: GroupFile<'_>,
        movers: &[Tid],
    ) -> Result<(), Errno> {
        machine.can_attach_real_time(file, movers)
    }
}

/// Writes `cpu.max` or `cpu.weight` of a v2 group.
pub(crate) fn write_v2(
    machine: &mut Machine,
    file: GroupFile<'_>,
    text: &str,
) -> Result<(), Errno> {
    if file.name == WEIGHT {
        let weight = parse::signed(text.trim())?;
        if !(1..=10_000).contains(&weight) {
            return Err(Errno::RANGE);
        }
        return machine.store(file, WEIGHT, weight.to_string());
    }
    let mut words = text.split_ascii_whitespace();
    let quota = words.next().ok_or(Errno::INVAL)?;
    let period = words.next().map_or(Ok(100_000), parse::signed)?;
    let period = check_range(period, &PERIODS_US)?;
    if quota != "max" && parse::signed(quota)? < LEAST_QUOTA_US {
        return Err(Errno::INVAL);
    }
    machine.store(file, MAX, format!("{quota} {period}"))
}

/// Content of `cpu.max` or `cpu.weight` of a v2 group.
pub(crate) fn read_v2(group: &Group, name: &str) -> String {
    match name {
        WEIGHT => value_or(group, WEIGHT, "100"),
        _ => value_or(group, MAX, "max 100000"),
    }
}

fn value_or(group: &Group, name: &str, usual: &str) -> String {
    format!("{}\n", group.values.get(name).map_or(usual, String::as_str))
}

fn check_range(value: i64, range: &std::ops::RangeInclusive<i64>) -> Result<i64, Errno> {
    if range.contains(&value) { Ok(value) } else { Err(Errno::INVAL) }
}
