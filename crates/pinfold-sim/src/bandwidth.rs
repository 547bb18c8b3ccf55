//! CPU time by group: weights and quotas of the cgroup v1 `cpu` controller and of v2.
//!
//! Rules of `kernel/sched/core.c`: v1 shares are clamped to 2 to 262,144, a v2 weight outside 1 to
//! 10,000 is `ERANGE`, a quota below a millisecond or a period outside 1 ms to 1 s is `EINVAL`.
//! With `CONFIG_RT_GROUP_SCHED` a v1 group also has a real-time run time.
//! <https://docs.kernel.org/scheduler/sched-bwc.html>

use rustix::io::Errno;

use super::cgroup::{Group, WriteScope};
use super::state::Machine;
use super::{parse, real_time};

const SHARES: &str = "cpu.shares";
const PERIOD: &str = "cpu.cfs_period_us";
const QUOTA: &str = "cpu.cfs_quota_us";
const WEIGHT: &str = "cpu.weight";
const MAX: &str = "cpu.max";
/// Files of a v2 group with the controller, except the root.
pub(super) const V2: [&str; 2] = [MAX, WEIGHT];
const PERIODS_US: std::ops::RangeInclusive<i64> = 1_000..=1_000_000;
const LEAST_QUOTA_US: i64 = 1_000;

impl Machine {
    pub(super) fn bandwidth_files(&self, index: usize) -> Vec<String> {
        let mut names = ["cgroup.procs", PERIOD, QUOTA, SHARES, "cpu.stat", "tasks"]
            .map(str::to_owned)
            .to_vec();
        if self.is_real_time(index) {
            names.extend(real_time::FILES.map(str::to_owned));
        }
        names.sort_unstable();
        names
    }

    pub(super) fn read_bandwidth(
        &self,
        index: usize,
        group: &str,
        name: &str,
    ) -> Result<String, Errno> {
        let found = self.hierarchies[index].groups.get(group).ok_or(Errno::NODEV)?;
        Ok(match name {
            SHARES => kept(found, SHARES, "1024"),
            PERIOD => kept(found, PERIOD, "100000"),
            QUOTA => kept(found, QUOTA, "-1"),
            "cpu.stat" => "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n".to_owned(),
            "tasks" => Machine::lines(self.tids_in(index, group)),
            "cgroup.procs" => Machine::lines(self.tgids_in(index, group)),
            _ => return self.read_real_time(index, group, name),
        })
    }

    pub(super) fn write_bandwidth(
        &mut self,
        index: usize,
        (group, name): (&str, &str),
        text: &str,
    ) -> Result<(), Errno> {
        let (name, value) = match name {
            "tasks" => return self.enter(index, group, text, WriteScope::Thread),
            "cgroup.procs" => return self.enter(index, group, text, WriteScope::Process),
            SHARES if group == "/" => return Err(Errno::INVAL),
            SHARES => (SHARES, parse::signed(text.trim())?.clamp(2, 262_144)),
            PERIOD => (PERIOD, within(parse::signed(text.trim())?, &PERIODS_US)?),
            QUOTA => match parse::signed(text.trim())? {
                quota if quota < 0 => (QUOTA, -1),
                quota if quota < LEAST_QUOTA_US => return Err(Errno::INVAL),
                quota => (QUOTA, quota),
            },
            _ => return self.write_real_time(index, (group, name), text),
        };
        self.keep_value(index, group, (name, value.to_string()))
    }

    pub(super) fn keep_value(
        &mut self,
        index: usize,
        group: &str,
        (name, value): (&'static str, String),
    ) -> Result<(), Errno> {
        let found = self.hierarchies[index].groups.get_mut(group).ok_or(Errno::NODEV)?;
        found.values.insert(name, value);
        Ok(())
    }

    pub(super) fn write_bandwidth_v2(
        &mut self,
        index: usize,
        (group, name): (&str, &str),
        text: &str,
    ) -> Result<(), Errno> {
        if name == WEIGHT {
            let weight = parse::signed(text.trim())?;
            if !(1..=10_000).contains(&weight) {
                return Err(Errno::RANGE);
            }
            return self.keep_value(index, group, (WEIGHT, weight.to_string()));
        }
        let mut words = text.split_ascii_whitespace();
        let quota = words.next().ok_or(Errno::INVAL)?;
        let period = words.next().map_or(Ok(100_000), parse::signed)?;
        let period = within(period, &PERIODS_US)?;
        if quota != "max" && parse::signed(quota)? < LEAST_QUOTA_US {
            return Err(Errno::INVAL);
        }
        self.keep_value(index, group, (MAX, format!("{quota} {period}")))
    }
}

/// Content of `cpu.max` or `cpu.weight` of a v2 group.
pub(super) fn read_v2(group: &Group, name: &str) -> String {
    match name {
        WEIGHT => kept(group, WEIGHT, "100"),
        _ => kept(group, MAX, "max 100000"),
    }
}

fn kept(group: &Group, name: &str, usual: &str) -> String {
    format!("{}\n", group.values.get(name).map_or(usual, String::as_str))
}

fn within(value: i64, range: &std::ops::RangeInclusive<i64>) -> Result<i64, Errno> {
    if range.contains(&value) { Ok(value) } else { Err(Errno::INVAL) }
}
