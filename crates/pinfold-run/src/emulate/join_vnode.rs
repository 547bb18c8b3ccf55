//! Attaches containers, processes and hosts of mininet to active vnodes.
//!
//! The steps are part of the journal of the platform. If one fails, only those of this attachment
//! are reverted. What a runtime changes afterwards is left, and reported in the status.

use crate::{Exit, Failure};
use pinfold_emulate::Node;
use pinfold_host::{paths, proc_stat};
use pinfold_model::{Attach, Tid};

use super::attachments::{Attached, Attachment};
use super::ipc::Member;
use super::supervisor::{ActivePlatform, MOST_MOVES, PlatformServer, moved_tasks};

/// Interval at which attached groups are checked.
const LOOK_NS: u64 = 1_000_000_000;

impl PlatformServer<'_, '_> {
    /// Adds groups and processes to an active vnode. Those that are part of it already are left out
    /// next to new ones, and those that have ended or were restarted are forgotten.
    pub(super) fn attach(
        &mut self,
        platformed: &mut ActivePlatform<'_>,
        vnode: &str,
        found: Attached<'_>,
    ) -> Result<(), Failure> {
        self.forget_ended(platformed, found.members)?;
        let confined = self.confine_again(platformed, vnode, found.members)?;
        let members = found.members.iter();
        let mut members: Vec<&Member> = members
            .filter(|member| !self.is_part(vnode, found.what, member) && !confined.contains(member))
            .collect();
        if members.is_empty() && !confined.is_empty() {
            return Ok(());
        }
        if members.is_empty() {
            members.extend(found.members);
        }
        let first = self.journal.record().step_count();
        let count = self.joined.all.len();
        let done = members.into_iter().try_for_each(|member| {
            let attachment = self.join(platformed, vnode, found.what, member)?;
            self.joined.all.push(attachment.in_netns(found.netns));
            Ok(())
        });
        if done.is_ok() && found.netns.is_some() {
            let earlier = self.joined.all.iter_mut().filter(|one| one.what == found.what);
            earlier.for_each(|one| one.forget_earlier_netns(self.host));
        }
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

    /// True if a member was attached to this vnode under the same name.
    fn is_part(&self, vnode: &str, what: &str, member: &Member) -> bool {
        let mut all = self.joined.all.iter();
        all.any(|one| one.node.name == vnode && one.what == what && one.is_of(member))
    }

    /// Drops the attachments of these members that are no longer slowed. Their steps stay in the
    /// journal.
    fn forget_ended(
        &mut self,
        platformed: &mut ActivePlatform<'_>,
        members: &[Member],
    ) -> Result<(), Failure> {
        let mut ended = Vec::new();
        for (at, one) in self.joined.all.iter().enumerate() {
            if members.iter().any(|member| one.is_of(member)) && one.end(self.host)?.is_some() {
                ended.push(at);
            }
        }
        for at in ended.into_iter().rev() {
            let one = self.joined.all.remove(at);
            platformed.nodes.remove(&one.cgroup);
        }
        Ok(())
    }

    /// Confines those members of a vnode again whose CPUs or disk limits another program has changed
    /// since, as systemd does when it reloads its units. Returns them. The present values are those
    /// of that program, and come back at the end.
    fn confine_again<'m>(
        &mut self,
        platformed: &ActivePlatform<'_>,
        vnode: &str,
        members: &'m [Member],
    ) -> Result<Vec<&'m Member>, Failure> {
        let mut confined = Vec::new();
        for one in self.joined.all.iter_mut().filter(|one| one.node.name == vnode) {
            let Some(member) = members.iter().find(|member| one.is_of(member)) else { continue };
            let Some(group) = one.group() else { continue };
            let (host, hierarchies) = (self.host, self.hierarchies);
            let cpus = one.cgroup.changed_cpus(host, hierarchies, &one.node.pus())?;
            let limits = one.cgroup.changed_disk(host, hierarchies, &one.node)?;
            let cpus = cpus.map(|_| paths::cpuset_cpus(group));
            let files = cpus.into_iter().chain(limits.map(|_| paths::io_max(group)));
            let files: Vec<String> = files.collect();
            if files.is_empty() {
                continue;
            }
            for file in files {
                pinfold_apply::leave_file(self.journal, &file)?;
            }
            let base = platformed.cgroup(vnode)?;
            let (_, steps) = base.add(self.host, self.hierarchies, &one.node)?;
            pinfold_apply::add_steps(self.host, steps, self.journal)?;
            one.note = None;
            confined.push(member);
        }
        Ok(confined)
    }

    fn join(
        &mut self,
        platformed: &mut ActivePlatform<'_>,
        vnode: &str,
        what: &str,
        member: &Member,
    ) -> Result<Attachment, Failure> {
        let attach = match member {
            Member::Group { path } => Attach::Group(path.clone()),
            Member::Process { pid, start_time } => {
                let found = proc_stat::read(self.host, Tid(*pid))?;
                if found.is_none_or(|stat| stat.start_time != *start_time || stat.has_ended()) {
                    let text = format!("{what}: process {pid} has ended");
                    return Err(Failure::new(Exit::Input, text));
                }
                Attach::Process(*pid)
            }
        };
        let mut others = self.joined.all.iter();
        if let Some(other) = others.find(|one| one.is_of(member)) {
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
        let attachment = Attachment::new(what, node, cgroup, member);
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
            if let Some(end) = one.end(self.host)? {
                one.note = Some(end.to_owned());
                continue;
            }
            if one.group().is_none() {
                let change = one.netns_change(self.host);
                one.note = change.unwrap_or_else(|failure| Some(failure.message));
                continue;
            }
            one.note = match one.change(self.host, self.hierarchies) {
                Ok(change) => change,
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
