//! The freezer: the v1 controller with its own hierarchy, and `cgroup.freeze` of v2.
//!
//! Freezing is asynchronous: a task in uninterruptible sleep (state `D`) only freezes when it wakes
//! up. Until then v1 reports `FREEZING` (`kernel/cgroup/legacy_freezer.c`) and v2 `frozen 0`
//! (`kernel/cgroup/freezer.c`).

use rustix::io::Errno;

use super::cgroup::{WriteScope, is_inside, parent};
use super::parse;
use super::state::Machine;

/// The v1 controller.
pub(super) const CONTROLLER: &str = "freezer";
const STATE: &str = "freezer.state";
const FREEZE: &str = "cgroup.freeze";

pub(super) fn file_names(group: &str) -> Vec<String> {
    let below = if group == "/" { None } else { Some(STATE) };
    ["cgroup.procs", "tasks"].into_iter().chain(below).map(str::to_owned).collect()
}

impl Machine {
    pub(super) fn read_freezer(
        &self,
        index: usize,
        group: &str,
        name: &str,
    ) -> Result<String, Errno> {
        Ok(match name {
            "tasks" => Machine::lines(self.tids_in(index, group)),
            "cgroup.procs" => Machine::lines(self.tgids_in(index, group)),
            _ => {
                let asked = self.asked_to_freeze(index, group, STATE, "FROZEN");
                let state = match (asked, self.all_frozen(index, group)) {
                    (false, _) => "THAWED",
                    (true, false) => "FREEZING",
                    (true, true) => "FROZEN",
                };
                format!("{state}\n")
            }
        })
    }

    pub(super) fn write_freezer(
        &mut self,
        index: usize,
        (group, name): (&str, &str),
        text: &str,
    ) -> Result<(), Errno> {
        match (name, text.trim()) {
            ("tasks", _) => self.join(index, group, text, WriteScope::Thread),
            ("cgroup.procs", _) => self.join(index, group, text, WriteScope::Process),
            (STATE, state @ ("FROZEN" | "THAWED")) => {
                let state = state.to_owned();
                self.keep_value(index, group, (STATE, state))
            }
            _ => Err(Errno::INVAL),
        }
    }

    fn join(
        &mut self,
        index: usize,
        group: &str,
        text: &str,
        whole: WriteScope,
    ) -> Result<(), Errno> {
        let movers = self.movers(text, whole)?;
        self.move_tasks(index, group, &movers)
    }

    pub(super) fn write_freeze(
        &mut self,
        index: usize,
        group: &str,
        text: &str,
    ) -> Result<(), Errno> {
        match parse::signed(text.trim())? {
            flag @ (0 | 1) => self.keep_value(index, group, (FREEZE, flag.to_string())),
            _ => Err(Errno::RANGE),
        }
    }

    pub(super) fn read_freeze(&self, index: usize, group: &str) -> String {
        let found = self.hierarchies[index].groups.get(group);
        let flag = found.and_then(|found| found.values.get(FREEZE)).map_or("0", String::as_str);
        format!("{flag}\n")
    }

    pub(super) fn events(&self, index: usize, group: &str) -> String {
        let asked = self.asked_to_freeze(index, group, FREEZE, "1");
        format!(
            "populated {}\nfrozen {}\n",
            u8::from(self.is_populated(index, group)),
            u8::from(asked && self.all_frozen(index, group))
        )
    }

    /// True if freezing was requested for this group or an ancestor.
    fn asked_to_freeze(&self, index: usize, group: &str, name: &str, value: &str) -> bool {
        let mut at = Some(group);
        while let Some(here) = at {
            let found = self.hierarchies[index].groups.get(here);
            if found.and_then(|found| found.values.get(name)).is_some_and(|held| held == value) {
                return true;
            }
            at = parent(here);
        }
        false
    }

    fn all_frozen(&self, index: usize, group: &str) -> bool {
        let inside = self.tasks.values().filter(|held| is_inside(&held.groups[index], group));
        inside.into_iter().all(|held| held.task.state != 'D')
    }
}
