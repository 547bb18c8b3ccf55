//! The freezer: the v1 controller with its own hierarchy, and `cgroup.freeze` of v2.
//!
//! Freezing is asynchronous: a task in uninterruptible sleep (state `D`) only freezes when it wakes
//! up. Until then v1 reports `FREEZING` (`kernel/cgroup/legacy_freezer.c`) and v2 `frozen 0`
//! (`kernel/cgroup/freezer.c`).

use rustix::io::Errno;

use super::Machine;
use super::cgroup::{GroupFile, Rules, is_inside, parent};
use crate::parse;

const STATE: &str = "freezer.state";
const FREEZE: &str = "cgroup.freeze";

/// The v1 controller.
#[derive(Debug)]
pub(crate) struct FreezerV1;

impl Rules for FreezerV1 {
    fn file_names(&self, _machine: &Machine, _index: usize, group: &str) -> Vec<&'static str> {
        let below = if group == "/" { None } else { Some(STATE) };
        ["cgroup.procs", "tasks"].into_iter().chain(below).collect()
    }

    fn read(&self, machine: &Machine, file: GroupFile<'_>) -> Result<String, Errno> {
        let asked = machine.asked_to_freeze(file.index, file.group, STATE, "FROZEN");
        let state = match (asked, machine.all_frozen(file.index, file.group)) {
            (false, _) => "THAWED",
            (true, false) => "FREEZING",
            (true, true) => "FROZEN",
        };
        Ok(format!("{state}\n"))
    }

    fn write(&self, machine: &mut Machine, file: GroupFile<'_>, text: &str) -> Result<(), Errno> {
        match (file.name, text.trim()) {
            (STATE, state @ ("FROZEN" | "THAWED")) => machine.store(file, STATE, state.to_owned()),
            _ => Err(Errno::INVAL),
        }
    }
}

impl Machine {
    pub(crate) fn write_freeze(&mut self, file: GroupFile<'_>, text: &str) -> Result<(), Errno> {
        match parse::signed(text.trim())? {
            flag @ (0 | 1) => self.store(file, FREEZE, flag.to_string()),
            _ => Err(Errno::RANGE),
        }
    }

    pub(crate) fn read_freeze(&self, index: usize, group: &str) -> String {
        let found = self.hierarchies[index].groups.get(group);
        let flag = found.and_then(|found| found.values.get(FREEZE)).map_or("0", String::as_str);
        format!("{flag}\n")
    }

    pub(crate) fn events(&self, index: usize, group: &str) -> String {
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
