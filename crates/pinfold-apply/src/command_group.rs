//! A cgroup for a command and all that it starts, so that undo finds what inherits its mask, also
//! if the parents have ended.
//!
//! It is made below the command's own group, in version 2 or in the freezer hierarchy of version 1,
//! and limits nothing.

use pinfold_host::mountinfo::{self, ControllerMount, Version};
use pinfold_host::{Host, HostError, paths, proc_cgroup, process};
use pinfold_model::{Change, Step, TaskId, TaskState, Tid, Undo};

use crate::actuators::{self, GROUP_PREFIX};
use crate::tasks;

/// The group of a command, with the steps that make it and move the command there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandGroup {
    /// Its directory.
    pub path: String,
    /// The steps.
    pub steps: Vec<Step>,
}

impl CommandGroup {
    /// Plans the group; `None` if this user cannot make one, or no hierarchy is mounted.
    ///
    /// # Errors
    /// [`HostError`] if the mounts or the command cannot be read.
    pub fn plan(host: &dyn Host, command: TaskId) -> Result<Option<Self>, HostError> {
        let path = paths::own_mountinfo();
        let mounts = mountinfo::parse(&host.read_text(&path)?).map_err(|error| error.at(&path))?;
        let found = [mountinfo::v2_mount(&mounts), mountinfo::v1_mount(&mounts, "freezer")];
        let mut usable = found.into_iter().flatten().filter(|found| !found.mount.is_read_only());
        let Some(found) = usable.next().filter(|_| process::is_root()) else { return Ok(None) };
        Self::at(host, &found, command)
    }

    fn at(
        host: &dyn Host,
        found: &ControllerMount,
        command: TaskId,
    ) -> Result<Option<Self>, HostError> {
        let path = paths::process_cgroup(command.tid);
        let memberships =
            proc_cgroup::parse(&host.read_text(&path)?).map_err(|error| error.at(&path))?;
        let (below, file) = match found.version {
            Version::V2 => (proc_cgroup::v2_path(&memberships), "cgroup.procs"),
            Version::V1 => (proc_cgroup::v1_path(&memberships, "freezer"), "cgroup.procs"),
        };
        let Some(parent) = below.and_then(|below| found.group_dir(below)) else { return Ok(None) };
        let mount = found.mount.path.trim_end_matches('/').to_owned();
        let group = parent.strip_prefix(&mount).filter(|group| !group.is_empty()).unwrap_or("/");
        let state = TaskState {
            task: command,
            group: group.to_owned(),
            mask: host.affinity(command.tid)?,
            policy: host.policy(command.tid)?,
        };
        let path = format!("{parent}/{GROUP_PREFIX}command-{}-{}", command.tid, command.start_time);
        let reason = "background processes of the command are found by this group".to_owned();
        let make = Step {
            change: Change::MakeGroup { path: path.clone() },
            undo: Undo::RemoveGroup { path: path.clone() },
            reason: reason.clone(),
        };
        let change =
            Change::MoveTasks { group: path.clone(), file: file.to_owned(), tasks: vec![command] };
        let undo = Undo::MoveTasks { mount, file: file.to_owned(), tasks: vec![state] };
        Ok(Some(Self { path, steps: vec![make, Step { change, undo, reason }] }))
    }

    /// The processes in it.
    ///
    /// # Errors
    /// [`HostError`] if it cannot be read.
    pub fn processes(&self, host: &dyn Host) -> Result<Vec<TaskId>, HostError> {
        let pids = actuators::processes_below(host, &self.path)?;
        let task = |pid: Tid| Ok(tasks::stat(host, pid)?.map(|stat| stat.task()));
        pids.into_iter().filter_map(|pid| task(pid).transpose()).collect()
    }
}
