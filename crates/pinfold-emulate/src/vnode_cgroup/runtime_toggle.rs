//! Steps for what a method toggles repeatedly while it runs: the freezer of another program's
//! group, and signals to processes.
//!
//! A watchdog releases both if the supervisor ends. If the watchdog ends too, undo does it from the
//! journal.

use pinfold_host::{Host, HostError, paths};
use pinfold_model::{Change, Method, Step, TaskId, Undo};

use super::{Attach, VnodeCgroup, attach};
use crate::node::Node;
use crate::{SpeedError, cleanup};

impl VnodeCgroup {
    /// The steps of a vnode whose tasks will be frozen or stopped.
    pub(super) fn toggle_steps(
        &self,
        host: &dyn Host,
        node: &Node,
    ) -> Result<Vec<Step>, SpeedError> {
        let Some(group) = &self.freezer else { return Ok(Vec::new()) };
        match node.method {
            // A task that leaves one of Pinfold's groups is thawed.
            Method::Gov if self.is_attached => Ok(vec![thaw(host, node, group)?]),
            Method::Lim => Ok(vec![self.signals(host, node, group)?]),
            Method::Gov
            | Method::Stall
            | Method::Hogs
            | Method::Fracas
            | Method::Quota
            | Method::Freq
            | Method::Inject => Ok(Vec::new()),
        }
    }

    fn signals(&self, host: &dyn Host, node: &Node, group: &str) -> Result<Step, SpeedError> {
        let members = match node.attach {
            Some(Attach::Process(pid)) => attach::process(host, node, pid)?,
            Some(Attach::Group(_)) => cleanup::pids(host, group)?,
            Some(Attach::Named { .. }) | None => Vec::new(),
        };
        let stopped = find_stopped(host, members)?;
        let group = group.to_owned();
        Ok(Step {
            change: Change::SignalProcesses { group: group.clone() },
            undo: Undo::ContinueProcesses { group, stopped },
            reason: format!("lim slows vnode {} this way", node.name),
        })
    }
}

/// Those of some processes that another program has stopped.
fn find_stopped(host: &dyn Host, pids: Vec<pinfold_model::Tid>) -> Result<Vec<TaskId>, HostError> {
    let mut found = Vec::new();
    for pid in pids {
        let stat = pinfold_host::proc_stat::read(host, pid)?;
        found.extend(stat.filter(|stat| stat.state == 'T').map(|stat| stat.task()));
    }
    Ok(found)
}

fn thaw(host: &dyn Host, node: &Node, group: &str) -> Result<Step, SpeedError> {
    let path = paths::cgroup_freeze(group);
    let original = host.read(&path)?;
    if original.trim_ascii() != b"0" {
        return Err(SpeedError::Unattached {
            vnode: node.name.clone(),
            what: format!("group {group}"),
            why: "is frozen by another program, but gov would thaw it".to_owned(),
            hint: format!("write 0 to {path}, or use stall"),
        });
    }
    Ok(Step {
        change: Change::WriteFile { path: path.clone(), value: b"0".to_vec() },
        undo: Undo::WriteFile { path, original },
        reason: format!("gov freezes and thaws vnode {} from here on", node.name),
    })
}
