//! The names of marks: `PID-NAMESPACE-TID-START`.
//!
//! The kernel shows start times with the offset of the reader's time namespace. A name has the
//! ticks since the boot of the host, as the initial time namespace shows them, so that all readers
//! look for the same name.

use pinfold_host::{Host, HostError, paths};
use pinfold_model::{TaskId, Tid};

use super::Namespaces;
use crate::tasks;

/// Start times are in clock ticks; user space has a hundred per second on every architecture.
const TICKS: i64 = 100;
const TICK_NS: i64 = 1_000_000_000 / TICKS;

/// The names of marks as this process writes and reads them.
pub(super) struct MarkNames {
    /// Process numbers are valid in one PID namespace, and several may share the directory.
    prefix: String,
    /// How many ticks later a start is in this time namespace than in the initial one.
    later: i64,
}

impl MarkNames {
    pub(super) fn read(host: &dyn Host, namespaces: &Namespaces) -> Result<Self, HostError> {
        let number = namespaces.get("pid").into_iter().flat_map(|name| name.chars());
        let prefix = format!("{}-", number.filter(char::is_ascii_digit).collect::<String>());
        Ok(Self { prefix, later: later(host)? })
    }

    pub(super) fn name(&self, task: TaskId) -> String {
        let since_boot = task.start_time.saturating_add_signed(-self.later);
        format!("{}{}-{since_boot}", self.prefix, task.tid)
    }

    /// The process of a mark; `None` if its number is valid in another PID namespace.
    pub(super) fn task(&self, name: &str) -> Option<TaskId> {
        let (tid, since_boot) = name.strip_prefix(&self.prefix)?.split_once('-')?;
        let since_boot: u64 = since_boot.parse().ok()?;
        let start_time = since_boot.saturating_add_signed(self.later);
        Some(TaskId { tid: Tid(tid.parse().ok()?), start_time })
    }
}

/// How much later starts are in this time namespace, in ticks; 0 on a kernel without them.
fn later(host: &dyn Host) -> Result<i64, HostError> {
    let path = paths::own_time_offsets();
    let Some(bytes) = tasks::ignore_gone(host.read(&path))? else { return Ok(0) };
    let text = String::from_utf8_lossy(&bytes);
    boot_offset(&text).ok_or_else(|| {
        let why = format!("{text:?} has no offset of the boot-time clock");
        HostError::Unexpected { path, why }
    })
}

/// The offset of the boot-time clock in ticks: `boottime  100000  0` (seconds, nanoseconds).
fn boot_offset(text: &str) -> Option<i64> {
    let line = text.lines().find_map(|line| line.strip_prefix("boottime"))?;
    let (seconds, nanoseconds) = line.trim().split_once(' ')?;
    let seconds: i64 = seconds.parse().ok()?;
    let nanoseconds: i64 = nanoseconds.trim().parse().ok()?;
    Some(seconds.saturating_mul(TICKS).saturating_add(nanoseconds / TICK_NS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_name_in_all_time_namespaces() {
        let text = "monotonic           7         0\nboottime       100000  20000000\n";
        assert_eq!(boot_offset(text), Some(10_000_002));
        assert_eq!(boot_offset("boottime          -10         0\n"), Some(-1000));
        assert_eq!(boot_offset("boottime now\n"), None);
        assert_eq!(boot_offset(""), None);
        for later in [0, 10_000_002, -1000] {
            let names = MarkNames { prefix: "402-".to_owned(), later };
            let start_time = 1500_u64.saturating_add_signed(later);
            let task = TaskId { tid: Tid(500), start_time };
            assert_eq!(names.name(task), "402-500-1500");
            assert_eq!(names.task("402-500-1500"), Some(task));
            assert_eq!(names.task("403-500-1500"), None, "of another PID namespace");
        }
    }
}
