//! Real-time run time by group: the `cpu` controller of cgroup v1 with `CONFIG_RT_GROUP_SCHED`.
//!
//! Rules of `kernel/sched/rt.c`: a new group has no run time, so its tasks cannot become real-time
//! (`EPERM`); the children of a group cannot have more in total than the group (`EINVAL`,
//! `__rt_schedulable`); a group with real-time tasks cannot have none (`EBUSY`).
//! <https://docs.kernel.org/scheduler/sched-rt-group.html>

use pinfold_model::Tid;
use rustix::io::Errno;

use super::cgroup::{Group, WriteScope, parent};
use super::parse;
use super::state::Machine;

/// The controller.
pub(super) const CONTROLLER: &str = "cpu";
const RUNTIME: &str = "cpu.rt_runtime_us";
const PERIOD: &str = "cpu.rt_period_us";
const PERIOD_US: i64 = 1_000_000;

/// Files of a group.
pub(super) const FILES: [&str; 2] = [PERIOD, RUNTIME];

/// The root group, with the kernel's default real-time run time.
pub(super) fn root_group() -> Group {
    with_runtime(950_000)
}

/// A group with this run time in microseconds per second.
pub(super) fn with_runtime(runtime_us: i64) -> Group {
    let mut group = Group::default();
    group.values.insert(RUNTIME, runtime_us.to_string());
    group
}

impl Machine {
    /// Index of the controller's hierarchy, if the machine has one with real-time groups.
    fn real_time_index(&self) -> Option<usize> {
        let found = self.hierarchies.iter().position(|one| one.controllers == [CONTROLLER]);
        found.filter(|index| self.is_real_time(*index))
    }

    pub(super) fn is_real_time(&self, index: usize) -> bool {
        let root = self.hierarchies[index].groups.get("/");
        root.is_some_and(|root| root.values.contains_key(RUNTIME))
    }

    pub(super) fn runtime_us(&self, index: usize, group: &str) -> i64 {
        let found = self.hierarchies[index].groups.get(group);
        found.and_then(|group| group.values.get(RUNTIME)?.parse().ok()).unwrap_or(0)
    }

    /// False if the task's group has no real-time run time.
    pub(super) fn may_be_real_time(&self, tid: Tid) -> bool {
        let (Some(index), Some(held)) = (self.real_time_index(), self.tasks.get(&tid)) else {
            return true;
        };
        self.runtime_us(index, &held.groups[index]) != 0
    }

    pub(super) fn read_real_time(
        &self,
        index: usize,
        group: &str,
        name: &str,
    ) -> Result<String, Errno> {
        Ok(match name {
            PERIOD => format!("{PERIOD_US}\n"),
            _ => format!("{}\n", self.runtime_us(index, group)),
        })
    }

    pub(super) fn write_real_time(
        &mut self,
        index: usize,
        (group, name): (&str, &str),
        text: &str,
    ) -> Result<(), Errno> {
        match name {
            RUNTIME => self.set_runtime(index, group, parse::signed(text.trim())?),
            _ => Err(Errno::INVAL),
        }
    }

    fn set_runtime(&mut self, index: usize, group: &str, runtime_us: i64) -> Result<(), Errno> {
        if !(-1..=PERIOD_US).contains(&runtime_us) || (runtime_us < 0 && group != "/") {
            return Err(Errno::INVAL);
        }
        let has_real_time = self
            .tids_in(index, group)
            .iter()
            .any(|tid| self.tasks.get(tid).is_some_and(|held| held.task.policy.is_real_time()));
        if runtime_us == 0 && has_real_time {
            return Err(Errno::BUSY);
        }
        let hierarchy = &self.hierarchies[index];
        let sum = |group: &str, but: Option<&str>| -> i64 {
            let children = hierarchy.children(group).filter(|child| Some(*child) != but);
            children.map(|child| self.runtime_us(index, child)).sum()
        };
        let above = parent(group);
        let fits = above.is_none_or(|above| {
            let has = self.runtime_us(index, above);
            has < 0 || runtime_us + sum(above, Some(group)) <= has
        });
        if !fits || (runtime_us >= 0 && sum(group, None) > runtime_us) {
            return Err(Errno::INVAL);
        }
        let found = self.hierarchies[index].groups.get_mut(group).ok_or(Errno::NODEV)?;
        found.values.insert(RUNTIME, runtime_us.to_string());
        Ok(())
    }

    pub(super) fn enter(
        &mut self,
        index: usize,
        group: &str,
        text: &str,
        whole: WriteScope,
    ) -> Result<(), Errno> {
        let movers = self.movers(text, whole)?;
        let real_time = movers
            .iter()
            .any(|tid| self.tasks.get(tid).is_some_and(|held| held.task.policy.is_real_time()));
        if real_time && self.is_real_time(index) && self.runtime_us(index, group) == 0 {
            return Err(Errno::INVAL);
        }
        self.move_tasks(index, group, &movers)
    }
}
