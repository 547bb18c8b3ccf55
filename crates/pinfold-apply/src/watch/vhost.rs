//! When to query the roles because of kernel threads that serve a machine from outside its process.
//!
//! Before Linux 6.4 (later with `fork_owner=0`) the worker of a vhost device is a child of
//! kthreadd. No event that a watch receives reports its creation: it is no thread of the process,
//! and none of the process's threads created it. But the process holds a descriptor of the device
//! as long as the worker exists. So if the process holds more devices than workers are known, the
//! roles are queried; only a few times, because the worker is created shortly after, and a device
//! may have none.

use std::collections::BTreeSet;

use pinfold_host::{Host, paths};
use pinfold_model::{Role, Tid};

use super::MAX_QUESTIONS;
use crate::tasks::{self, Target};

/// Path prefix of vhost devices, as a link in `/proc/PID/fd` shows them.
const VHOST: &str = "/dev/vhost-";

/// State of the search for workers outside a process.
#[derive(Debug, Default)]
pub(super) struct VhostWorkers {
    /// Number of open devices at the last check.
    devices: usize,
    /// How many times the roles were queried since that number changed, or since a worker ended.
    asked: u32,
}

impl VhostWorkers {
    /// True if the roles should be queried because a worker is missing. `threads` are those of the
    /// process. On a kernel whose workers are among them nothing else is checked.
    pub(super) fn are_missing(
        &mut self,
        host: &dyn Host,
        target: &Target,
        threads: &BTreeSet<Tid>,
    ) -> bool {
        let mut known = 0;
        for (task, role) in &target.threads {
            if !matches!(role, Role::Vhost(_)) {
                continue;
            }
            if threads.contains(&task.tid) {
                return false;
            }
            // A worker that cannot be read counts as ended, which also causes a query.
            known += usize::from(tasks::is_alive(host, *task).is_ok_and(|alive| alive));
        }
        // If the descriptors are not readable, the roles from the start remain.
        let Some(devices) = devices(host, target.pid) else { return false };
        if devices != self.devices || known >= devices {
            *self = Self { devices, asked: 0 };
        }
        let is_missing = known < devices && self.asked < MAX_QUESTIONS;
        self.asked += u32::from(is_missing);
        is_missing
    }
}

/// Number of vhost devices that a process holds open; `None` if that is not readable.
fn devices(host: &dyn Host, pid: Tid) -> Option<usize> {
    let names = host.list(&paths::process_file(pid, "fd")).ok()?;
    let links =
        names.iter().map(|name| host.link(&paths::process_file(pid, &format!("fd/{name}"))));
    Some(links.filter(|link| link.as_ref().is_ok_and(|to| to.starts_with(VHOST))).count())
}
