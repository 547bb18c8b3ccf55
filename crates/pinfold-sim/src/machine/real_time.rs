//! Real-time run time by group: the `cpu` controller of cgroup v1 with `CONFIG_RT_GROUP_SCHED`.
//!
//! Rules of `kernel/sched/rt.c`: a new group has no run time, so its tasks cannot become real-time
//! (`EPERM`); the children of a group cannot have more in total than the group (`EINVAL`,
//! `__rt_schedulable`); a group with real-time tasks cannot have none (`EBUSY`).
//! <https://docs.kernel.org/scheduler/sched-rt-group.html>

use pinfold_model::Tid;
use rustix::io::Errno;

use super::Machine;
use super::cgroup::{Group, GroupFile, parent};
use crate::parse;

/// The controller.
pub(crate) const CONTROLLER: &str = "cpu";
const RUNTIME: &str = "cpu.rt_runtime_us";
const PERIOD: &str = "cpu.rt_period_us";
const PERIOD_US: i64 = 1_000_000;

/// Files of a group.
pub(crate) const FILES: [&str; 2] = [PERIOD, RUNTIME];

/// The root group, with the kernel's default real-time run time.
pub(crate) fn root_group() -> Group {
    with_runtime(950_000)
}

/// A group with this run time in microseconds per second.
pub(crate) fn with_runtime(runtime_us: i64) -> Group {
    let mut group = Group::default();
    group.values.insert(RUNTIME, runtime_us.to_string());
    group
}

/// A new group: without run time if its parent has any.
pub(crate) fn new_group(above: &Group) -> Group {
    if above.values.contains_key(RUNTIME) { with_runtime(0) } else { Group::default() }
}

impl Machine {
    /// Index of the controller's hierarchy, if the machine has one with real-time groups.
    fn real_time_index(&self) -> Option<usize> {
        let found = self.hierarchies.iter().position(|one| one.controllers == [CONTROLLER]);
        found.filter(|index| self.is_real_time(*index))
    }

    pub(crate) fn is_real_time(&self, index: usize) -> bool {
        let root = self.hierarchies[index].groups.get("/");
        root.is_some_and(|root| root.values.contains_key(RUNTIME))
    }

    pub(crate) fn runtime_us(&self, index: usize, group: &str) -> i64 {
        let found = self.hierarchies[index].groups.get(group);
        found.and_then(|group| group.values.get(RUNTIME)?.parse().ok()).unwrap_or(0)
    }

    /// False if the task's group has no real-time run time.
    pub(crate) fn may_be_real_time(&self, tid: Tid) -> bool {
        let (Some(index), Some(held)) = (self.real_time_index(), self.tasks.get(&tid)) else {
            return true;
        };
        self.runtime_us(index, &held.groups[index]) != 0
    }

    pub(crate) fn read_real_time(&self, file: GroupFile<'_>) -> String {
        match file.name {
            PERIOD => format!("{PERIOD_US}\n"),
            _ => format!("{}\n", self.runtime_us(file.index, file.group)),
        }
    }

    pub(crate) fn write_real_time(&mut self, file: GroupFile<'_>, text: &str) -> Result<(), Errno> {
        match file.name {
            RUNTIME => self.set_runtime(file, parse::signed(text.trim())?),
            _ => Err(Errno::INVAL),
        }
    }

    fn set_runtime(&mut self, file: GroupFile<'_>, runtime_us: i64) -> Result<(), Errno> {
        let GroupFile { index, group, .. } = file;
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
        self.store(file, RUNTIME, runtime_us.to_string())
    }

    /// A group without real-time run time accepts no real-time task.
    pub(crate) fn can_attach_real_time(
        &self,
        file: GroupFile<'_>,
        movers: &[Tid],
    ) -> Result<(), Errno> {
        let has_none =
            self.is_real_time(file.index) && self.runtime_us(file.index, file.group) == 0;
        if has_none
            && movers
                .iter()
                .any(|tid| self.tasks.get(tid).is_some_and(|held| held.task.policy.is_real_time()))
        {
            Err(Errno::INVAL)
        } else {
            Ok(())
        }
    }
}
