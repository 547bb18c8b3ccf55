//! Freezes and thaws a group.
//!
//! Version 1: <https://docs.kernel.org/admin-guide/cgroup-v1/freezer-subsystem.html>; version 2:
//! `cgroup.freeze`.

use pinfold_host::{Clock, Host, HostError, HostMut, paths};

use crate::SpeedError;
use crate::units::{MS, US};

/// Maximum wait for tasks in kernel mode, which freeze when they return from it.
const WAIT_NS: u64 = 10 * MS;
const LOOK_NS: u64 = 50 * US;

#[derive(Debug)]
pub(super) struct Freezer {
    group: String,
    unified: bool,
    is_frozen: bool,
    /// Number of times that a task did not freeze in time.
    pub(super) late: u64,
}

impl Freezer {
    pub(super) fn new(group: &str, unified: bool) -> Self {
        Self { group: group.to_owned(), unified, is_frozen: false, late: 0 }
    }

    /// The file and the value that thaw the group.
    pub(super) fn thaw(&self) -> (String, String) {
        if self.unified {
            (paths::cgroup_freeze(&self.group), "0".to_owned())
        } else {
            (paths::freezer_state(&self.group), "THAWED".to_owned())
        }
    }

    /// Freezes and waits until all tasks are frozen, or thaws.
    pub(super) fn set(
        &mut self,
        host: &dyn HostMut,
        clock: &dyn Clock,
        wanted: bool,
    ) -> Result<(), SpeedError> {
        if self.is_frozen == wanted {
            return Ok(());
        }
        let (path, thawed) = self.thaw();
        let value = match (wanted, self.unified) {
            (false, _) => thawed.as_str(),
            (true, true) => "1",
            (true, false) => "FROZEN",
        };
        match host.write(&path, value.as_bytes()) {
            // If the group does not exist, no task is frozen.
            Err(error) if !wanted && error.is_gone() => {}
            answer => answer?,
        }
        self.is_frozen = wanted;
        let until = clock.now_ns().saturating_add(WAIT_NS);
        while wanted && !self.is_done(host)? {
            if clock.now_ns() >= until {
                self.late += 1;
                break;
            }
            clock.sleep_ns(LOOK_NS);
        }
        Ok(())
    }

    fn is_done(&self, host: &dyn Host) -> Result<bool, HostError> {
        Ok(if self.unified {
            let text = host.read_text(&paths::cgroup_events(&self.group))?;
            text.lines().any(|line| line == "frozen 1")
        } else {
            host.read_text(&paths::freezer_state(&self.group))?.trim() == "FROZEN"
        })
    }
}
