//! Kernel threads that serve a machine from outside its process: when they are to be asked for.
//!
//! Before Linux 6.4 (later with `fork_owner=0`) the worker of a vhost device is a child of
//! kthreadd. Nothing that a watch listens to tells of its birth: it is no thread of the process,
//! and no thread of the process made it. But it comes with a descriptor, which stays open as long
//! as it lives: where more devices are held than workers are known, the roles are asked for. A
//! few times only, because the worker comes a little later, and a device may have none.

use std::collections::BTreeSet;

use pinfold_host::{Host, paths};
use pinfold_model::{Role, Tid};

use super::MAX_QUESTIONS;
use crate::tasks::{self, Target};

/// What vhost devices begin with, as a link in `/proc/PID/fd` shows them.
const VHOST: &str = "/dev/vhost-";

/// What is known of the workers outside a process.
#[derive(Debug, Default)]
pub(super) struct VhostWorkers {
    /// Devices that were held at the last check.
    devices: usize,
    /// How often the roles were asked for since that changed, or since a worker ended.
    asked: u32,
}

impl VhostWorkers {
    /// True if the roles are to be asked for on account of a worker. `threads` are those of the
    /// process: on a kernel that puts workers among them nothing else is looked at.
    pub(super) fn are_missing(
        &mut self,
        host: &dyn Host,
        target: &Target,
        threads: &BTreeSet<Tid>,
    ) -> bool {
        let mut known = 0;
        for (task, role) in &target.threads {
            match role {
                Role::Vhost(_) if threads.contains(&task.tid) => return false,
                Role::Vhost(_) => {
                    // One that cannot be looked at is a cause to ask, too.
                    known += usize::from(tasks::is_alive(host, *task).is_ok_and(|alive| alive));
                }
                Role::Vcpu(_) | Role::Emulator | Role::Iothread(_) | Role::Worker | Role::Task => {}
            }
        }
        // Where they may not be read, what the roles were at the start is all there is.
        let Some(devices) = devices(host, target.pid) else { return false };
        if devices != self.devices || known >= devices {
            *self = Self { devices, asked: 0 };
        }
        let is_missing = known < devices && self.asked < MAX_QUESTIONS;
        self.asked += u32::from(is_missing);
        is_missing
    }
}

/// The vhost devices that a process holds; `None` if that may not be read.
fn devices(host: &dyn Host, pid: Tid) -> Option<usize> {
    let names = host.list(&paths::process_file(pid, "fd")).ok()?;
    let path = |name: &String| paths::process_file(pid, &format!("fd/{name}"));
    let links = names.iter().map(|name| host.link(&path(name)));
    Some(links.filter(|link| link.as_ref().is_ok_and(|to| to.starts_with(VHOST))).count())
}
