//! What is attached to active vnodes.

use pinfold_emulate::{Node, VnodeCgroup};
use pinfold_model::{Attach, TaskId};
use serde_json::{Value, json};

/// All attachments of a platform.
#[derive(Default)]
pub(super) struct Joined {
    pub(super) all: Vec<Attachment>,
    pub(super) look_ns: u64,
}

/// One of them.
pub(super) struct Attachment {
    pub(super) what: String,
    pub(super) node: Node,
    pub(super) cgroup: VnodeCgroup,
    /// The process, if none of its groups is used.
    pub(super) process: Option<TaskId>,
    pub(super) note: Option<String>,
}

impl Attachment {
    /// True if its processes are in a group that they had before.
    pub(super) fn group(&self) -> Option<&String> {
        self.cgroup.perf.as_ref().filter(|_| matches!(self.node.attach, Some(Attach::Group(_))))
    }
}

impl Joined {
    /// Adds the attachments to a status.
    pub(super) fn report(&self, status: &mut Value) {
        let all = self
            .all
            .iter()
            .map(|one| json!({ "vnode": one.node.name, "what": one.what, "note": one.note }));
        if let Some(status) = status.as_object_mut() {
            status.insert("attached".to_owned(), all.collect());
        }
    }
}
