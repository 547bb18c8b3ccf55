//! Likely causes of a change. Linux does not record which program made it, but the present state
//! narrows it down.
//!
//! A mask that is the whole cpuset results from a change of the cpuset, a move or a reset. libvirt
//! and systemd write to the groups that they manage, and some daemons set the masks of other
//! processes. The result is a guess and is reported as one.

use std::cell::OnceCell;

use pinfold_host::{Host, HostError, Systemd};
use pinfold_model::{Step, TaskId, Tid, Undo};

use super::change::is_of_manager;
use crate::actuators;
use crate::cpusets::Cpusets;
use crate::tasks;

/// Daemons that set masks or cpusets of other processes: the name that the kernel shows, what they
/// do, and a part of the groups of the processes to which they do it, if they do it to no others.
const MOVERS: [(&str, &str, Option<&str>); 6] = [
    ("libvirtd", "sets the masks of its domains' threads", Some("qemu")),
    ("virtqemud", "sets the masks of its domains' threads", Some("qemu")),
    ("numad", "moves processes between nodes", None),
    ("tuned", "sets the masks of threads that its profile names", None),
    ("cgrulesengd", "moves processes into groups", None),
    ("kubelet", "writes the cpusets of its pods", Some("kubepods")),
];

/// Collects likely causes on a host.
pub(super) struct LikelyCause<'h> {
    host: &'h dyn Host,
    /// The machine's previous group.
    group: Option<String>,
    movers: OnceCell<Vec<Mover>>,
}

impl<'h> LikelyCause<'h> {
    /// Reads nothing yet.
    pub(super) fn new(host: &'h dyn Host, group: Option<&str>) -> Self {
        Self { host, group: group.map(str::to_owned), movers: OnceCell::new() }
    }

    /// The host.
    pub(super) fn host(&self) -> &'h dyn Host {
        self.host
    }

    /// For a thread whose mask or policy differs from the one that was set.
    pub(super) fn of_thread(&self, task: TaskId, undo: &Undo) -> Result<String, HostError> {
        let mut known = Vec::new();
        let cpusets = Cpusets::find(self.host)?;
        let group = match &cpusets {
            Some(cpusets) => cpusets.group_of(self.host, task.tid)?,
            None => None,
        };
        if let Undo::SetAffinity { original, .. } = undo
            && actuators::allowed_cpus(self.host, cpusets.as_ref(), task.tid)?.as_ref()
                == Some(original)
        {
            let name = group.as_deref().unwrap_or("all CPUs that are online");
            known.push(format!(
                "its mask equals its whole cpuset ({name}): the cpuset was changed, or the thread \
                 was moved or its mask reset"
            ));
        }
        if let (Some(now), Some(before)) = (&group, &self.group)
            && !is_related_cgroup(now, before)
        {
            known.push(format!("it was moved from {before} to {now}"));
        }
        self.report_writers(known, group.as_deref())
    }

    /// For a thread that stays where another program moved it.
    pub(super) fn of_change(&self, task: TaskId, step: &Step) -> Result<String, HostError> {
        if let Undo::WriteSetting { setting, original, .. } = &step.undo
            && is_of_manager(step)
        {
            return Ok(format!(
                "{setting} is {}",
                original.as_deref().unwrap_or("not set any more")
            ));
        }
        self.of_thread(task, &step.undo)
    }

    /// For a group whose files have changed.
    pub(super) fn of_group(&self, group: Option<&str>) -> Result<String, HostError> {
        self.report_writers(Vec::new(), group)
    }

    fn report_writers(
        &self,
        mut known: Vec<String>,
        group: Option<&str>,
    ) -> Result<String, HostError> {
        if let Some(unit) = group.and_then(|group| self.unit_of(group)) {
            known.push(format!("systemd manages the group as {unit}"));
        }
        let groups = [group, self.group.as_deref()];
        let own = self.movers()?.iter().filter(|mover| mover.moves(&groups));
        known.extend(own.map(|mover| mover.text.clone()));
        if known.is_empty() {
            return Ok("no running program is known to do that".to_owned());
        }
        Ok(known.join("; "))
    }

    fn unit_of<'g>(&self, group: &'g str) -> Option<&'g str> {
        if !Systemd::owns(self.host) {
            return None;
        }
        group.rsplit('/').find(|name| Systemd::is_unit(name))
    }

    fn movers(&self) -> Result<&[Mover], HostError> {
        if let Some(known) = self.movers.get() {
            return Ok(known);
        }
        let mut found = Vec::new();
        for pid in tasks::processes(self.host)? {
            found.extend(self.mover(pid)?);
        }
        Ok(self.movers.get_or_init(|| found))
    }

    fn mover(&self, pid: Tid) -> Result<Option<Mover>, HostError> {
        let Some(stat) = tasks::stat(self.host, pid)? else { return Ok(None) };
        let known = MOVERS.iter().find(|(name, ..)| *name == stat.comm);
        Ok(known.map(|(name, trade, part)| Mover {
            text: format!("{name} (process {pid}) is running, which {trade}"),
            part: *part,
        }))
    }
}

/// A running daemon that sets masks or cpusets of other processes.
struct Mover {
    text: String,
    /// A part of the name of the groups whose processes it moves; `None`: any.
    part: Option<&'static str>,
}

impl Mover {
    /// True if it moves processes of one of these groups, or if no group is known.
    fn moves(&self, groups: &[Option<&str>]) -> bool {
        let Some(part) = self.part else { return true };
        let mut known = groups.iter().flatten().peekable();
        known.peek().is_none() || known.any(|group| group.contains(part))
    }
}

/// True for the same group, one below it, or one with the same parent: libvirt has a group for each
/// vCPU next to that of the emulator.
fn is_related_cgroup(now: &str, before: &str) -> bool {
    let parent = before.rsplit_once('/').map_or("", |(parent, _)| parent);
    now == before
        || now.strip_prefix(before).is_some_and(|rest| rest.starts_with('/'))
        || (!parent.is_empty() && now.rsplit_once('/').is_some_and(|(other, _)| other == parent))
}

#[cfg(test)]
mod tests {
    use super::{Mover, is_related_cgroup};

    #[test]
    fn a_daemon_is_named_only_for_groups_whose_processes_it_moves() {
        let mover = |part| Mover { text: String::new(), part };
        let hand = [None, Some("/c/user.slice/user-0.slice/session-1.scope")];
        let domain =
            [Some("/c/machine.slice/machine-qemu\\x2d1\\x2dweb.scope/libvirt/vcpu0"), None];
        assert!(!mover(Some("qemu")).moves(&hand));
        assert!(mover(Some("qemu")).moves(&domain));
        assert!(mover(Some("qemu")).moves(&[None, None]));
        assert!(mover(None).moves(&hand));
    }

    #[test]
    fn groups_of_one_machine_lie_together() {
        check_beside("/c/m/q/emulator", "/c/m/q/emulator", true);
        check_beside("/c/m/q/vcpu0", "/c/m/q/emulator", true);
        check_beside("/c/m/q/libvirt/vcpu0", "/c/m/q", true);
        check_beside("/c/m/quick/vcpu0", "/c/m/q/emulator", false);
        check_beside("/c", "/c/m/q", false);
    }

    fn check_beside(now: &str, before: &str, expected: bool) {
        assert_eq!(is_related_cgroup(now, before), expected, "{now}");
    }
}
