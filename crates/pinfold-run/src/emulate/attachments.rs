//! What is attached to active vnodes.

use pinfold_emulate::{Hierarchies, Node, SpeedError, VnodeCgroup};
use pinfold_host::{LiveHost, files, proc_stat, process};
use pinfold_model::text::cpus_text;
use pinfold_model::{Attach, TaskId, Tid, escape};
use serde_json::{Value, json};

use super::attach;
use super::ipc::Member;
use crate::Failure;

/// What a client attaches.
#[derive(Clone, Copy)]
pub(super) struct Attached<'a> {
    /// As the user named it.
    pub(super) what: &'a str,
    /// Its groups and processes.
    pub(super) members: &'a [Member],
    /// The network namespace, if it was named.
    pub(super) netns: Option<&'a str>,
}

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
    pub(super) note: Option<String>,
    /// The process, if none of its groups is used.
    process: Option<TaskId>,
    /// The name of the network namespace in which the process was found.
    netns: Option<String>,
    /// Device and inode of the group: one that a runtime makes again has the same path.
    group_identity: Option<(u64, u64)>,
}

impl Attachment {
    /// What was just attached.
    pub(super) fn new(what: &str, node: Node, cgroup: VnodeCgroup, member: &Member) -> Self {
        let process = match member {
            Member::Group { .. } => None,
            Member::Process { pid, start_time } => {
                Some(TaskId { tid: Tid(*pid), start_time: *start_time })
            }
        };
        let what = what.to_owned();
        let (note, netns, group_identity) = (None, None, None);
        let mut new = Self { what, node, cgroup, note, process, netns, group_identity };
        new.group_identity = new.group().and_then(|group| files::identity(group));
        new
    }

    /// The same, found in a network namespace.
    pub(super) fn in_netns(self, netns: Option<&str>) -> Self {
        Self { netns: netns.map(str::to_owned), ..self }
    }

    /// The directory of its group, if its processes are in one that they had before.
    pub(super) fn group(&self) -> Option<&String> {
        self.cgroup.perf.as_ref().filter(|_| matches!(self.node.attach, Some(Attach::Group(_))))
    }

    /// True if this is that member of an attachment, or an earlier one with the same name.
    pub(super) fn is_of(&self, member: &Member) -> bool {
        match (&self.node.attach, member) {
            (Some(Attach::Group(at)), Member::Group { path }) => at == path,
            (Some(Attach::Process(at)), Member::Process { pid, .. }) => at == pid,
            (Some(_) | None, Member::Group { .. } | Member::Process { .. }) => false,
        }
    }

    /// Why it is no longer slowed; `None` if it is.
    pub(super) fn end(&self, host: &LiveHost) -> Result<Option<&'static str>, Failure> {
        const ENDED: &str = "has ended";
        if let Some(task) = self.process {
            return Ok((!process::task_alive(host, task)?).then_some(ENDED));
        }
        let Some(group) = self.group() else { return Ok(None) };
        Ok(match files::identity(group) {
            None => Some(ENDED),
            Some(found) if Some(found) != self.group_identity => {
                Some("was restarted: attach it again to slow it")
            }
            Some(_) => None,
        })
    }

    /// What another program has changed, so that it is no longer slowed as the vnode.
    pub(super) fn change(
        &self,
        host: &LiveHost,
        hierarchies: &Hierarchies,
    ) -> Result<Option<String>, SpeedError> {
        let pus = self.node.pus();
        let slowed = cpus_text(&pus);
        let cpus = self.cgroup.changed_cpus(host, hierarchies, &pus)?.map(|cpus| {
            let what = if cpus.is_empty() {
                "removed its list of CPUs".to_owned()
            } else {
                format!("set its CPUs to {cpus:?}")
            };
            format!("{what}: only what runs on {slowed} is slowed")
        });
        let limits = self.cgroup.changed_disk(host, hierarchies, &self.node)?;
        let limits = limits.map(|limits| format!("set the limits of its disk to {limits:?}"));
        let changes: Vec<String> = cpus.into_iter().chain(limits).collect();
        let text = changes.join("; it has ");
        let note = format!("another program has {text}; attach it again to slow all of it");
        Ok((!changes.is_empty()).then_some(note))
    }

    /// Forgets the name of its network namespace if that is another one now.
    pub(super) fn forget_earlier_netns(&mut self, host: &LiveHost) {
        if !matches!(self.netns_change(host), Ok(None)) {
            (self.netns, self.note) = (None, None);
        }
    }

    /// What became of the name of its network namespace.
    pub(super) fn netns_change(&self, host: &LiveHost) -> Result<Option<String>, Failure> {
        let (Some(name), Some(task)) = (&self.netns, self.process) else { return Ok(None) };
        let own = attach::network(host, task.tid);
        Ok(match attach::named_network(host, name)? {
            Some(found) if own.as_ref() == Some(&found) => None,
            Some(_) => Some(format!(
                "was made again under the same name, and process {} is in the earlier one: attach \
                 it again to slow its new processes",
                task.tid
            )),
            None => {
                Some(format!("has lost its name; process {} is still part of the vnode", task.tid))
            }
        })
    }
}

impl Joined {
    /// What the vnodes of a platform file are.
    pub(super) fn from_nodes(
        host: &LiveHost,
        nodes: &[(Node, VnodeCgroup)],
    ) -> Result<Self, Failure> {
        let mut joined = Self::default();
        for (node, cgroup) in nodes {
            let (what, member) = match &node.attach {
                Some(Attach::Group(path)) => {
                    (format!("group {}", escape::name(path)), Member::Group { path: path.clone() })
                }
                Some(Attach::Process(pid)) => {
                    let Some(stat) = proc_stat::read(host, Tid(*pid))? else { continue };
                    let member = Member::Process { pid: *pid, start_time: stat.start_time };
                    (format!("process {pid}"), member)
                }
                Some(Attach::Named { .. }) | None => continue,
            };
            joined.all.push(Attachment::new(&what, node.clone(), cgroup.clone(), &member));
        }
        Ok(joined)
    }

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
