//! Attaches containers, processes and hosts of mininet to active vnodes.
//!
//! The steps are part of the journal of the platform. If one fails, only those of this attachment
//! are reverted. What a runtime changes afterwards is left, and reported in the status.

use crate::{Exit, Failure};
use pinfold_emulate::Node;
use pinfold_host::{Host as _, paths, proc_stat, process};
use pinfold_model::text::cpus_text;
use pinfold_model::{Attach, TaskId, Tid};

use super::attachments::Attachment;
use super::ipc::Member;
use super::supervisor::{ActivePlatform, MOST_MOVES, PlatformServer, moved_tasks};

/// Interval at which attached groups are checked.
const LOOK_NS: u64 = 1_000_000_000;

impl PlatformServer<'_, '_> {
    /// Adds groups and processes to an active vnode.
    pub(super) fn attach(
        &mut self,
        platformed: &mut ActivePlatform<'_>,
        vnode: &str,
        what: &str,
        members: &[Member],
    ) -> Result<(), Failure> {
        let first = self.journal.record().step_count();
        let count = self.joined.all.len();
        let done = members.iter().try_for_each(|member| {
            let attachment = self.join(platformed, vnode, what, member)?;
            self.joined.all.push(attachment);
            Ok(())
        });
        done.map_err(|failure: Failure| {
            self.joined.all.truncate(count);
            let report = pinfold_apply::undo_steps_from(self.host, self.journal, first);
            let left: Vec<String> = report.failed.iter().map(ToString::to_string).collect();
            if left.is_empty() {
                return failure;
            }
            let message = format!("{}\nnot restored: {}", failure.message, left.join("\n  "));
            Failure { message, exit: Exit::Residue, ..failure }
        })
    }

    fn join(
        &mut self,
        platformed: &mut ActivePlatform<'_>,
        vnode: &str,
        what: &str,
        member: &Member,
    ) -> Result<Attachment, Failure> {
        let mut process = None;
        let attach = match member {
            Member::Group { path } => Attach::Group(path.clone()),
            Member::Process { pid, start_time } => {
                let found = proc_stat::read(self.host, Tid(*pid))?;
                if found.is_none_or(|stat| stat.start_time != *start_time || stat.has_ended()) {
                    let text = format!("{what}: process {pid} has ended");
                    return Err(Failure::new(Exit::Input, text));
                }
                process = Some(TaskId { tid: Tid(*pid), start_time: *start_time });
                Attach::Process(*pid)
            }
        };
        let mut others = self.joined.all.iter();
        if let Some(other) = others.find(|one| one.node.attach.as_ref() == Some(&attach)) {
            let text = format!("{what} is part of vnode {} already", other.node.name);
            return Err(
                Failure::new(Exit::Input, text).with_hint("a task can be in one vnode only")
            );
        }
        let node = Node { attach: Some(attach), ..platformed.node(vnode)? };
        let base = platformed.cgroup(vnode)?;
        let (cgroup, mut steps) = base.add(self.host, self.hierarchies, &node)?;
        for moves in 1.. {
            self.journal.bind(self.host, &moved_tasks(&steps))?;
            pinfold_apply::add_steps(self.host, steps, self.journal)?;
            steps = cgroup.count_missed(self.host, self.hierarchies, &node)?;
            if steps.is_empty() {
                break;
            }
            if moves == MOST_MOVES {
                let text = format!("{what} forks faster than its children can be moved");
                return Err(Failure::new(Exit::Host, text)
                    .with_hint("stop it with SIGSTOP, attach it, and continue it with SIGCONT"));
            }
        }
        let attachment = Attachment { what: what.to_owned(), node, cgroup, process, note: None };
        if attachment.group().is_some() {
            platformed.nodes.add(vnode, what, &attachment.cgroup)?;
        }
        Ok(attachment)
    }

    /// Checks the attached groups once a second: processes that entered meanwhile, what another
    /// program has changed, and whether they still exist.
    pub(super) fn look(&mut self, now_ns: u64) -> Result<(), Failure> {
        if self.joined.all.is_empty() || now_ns < self.joined.look_ns {
            return Ok(());
        }
        self.joined.look_ns = now_ns.saturating_add(LOOK_NS);
        for one in &mut self.joined.all {
            let Some(group) = one.group().cloned() else {
                let found = one.process.map(|task| process::task_alive(self.host, task));
                let is_running = found.transpose()?.unwrap_or(true);
                one.note = (!is_running).then(|| "has ended".to_owned());
                continue;
            };
            if !self.host.exists(&paths::cgroup_procs(&group)) {
                let note = "has ended or was restarted: attach it again to slow it";
                one.note = Some(note.to_owned());
                continue;
            }
            let pus = one.node.pus();
            let changed = one.cgroup.changed_cpus(self.host, self.hierarchies, &pus);
            one.note = match changed {
                Ok(None) => None,
                Ok(Some(cpus)) => Some(format!(
                    "another program has set its CPUs to {cpus:?}: only what runs on {} is slowed",
                    cpus_text(&pus)
                )),
                Err(error) => Some(error.to_string()),
            };
            // A process may end while it is moved.
            let added = one.cgroup.count_missed(self.host, self.hierarchies, &one.node);
            if let Ok(steps) = added
                && !steps.is_empty()
            {
                self.journal.bind(self.host, &moved_tasks(&steps))?;
                if let Err(error) = pinfold_apply::add_steps(self.host, steps, self.journal) {
                    one.note = Some(format!("new processes cannot be moved: {error}"));
                }
            }
        }
        Ok(())
    }
}
