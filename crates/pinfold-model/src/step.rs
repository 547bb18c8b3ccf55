//! Steps: single changes to a host, each with an undo that was recorded before the change.
//!
//! A step can be printed before it is executed, is in the journal and on disk before it is
//! executed, and is read back after. [`Undo`] contains the previous state, as raw bytes where the
//! kernel provides bytes.

use std::fmt;

use crate::text::{count_noun, select_verb};
use crate::{CpuSet, Lifetime, NodeId, Policy, Setting, Tid};

/// A host thread, identified so that a later thread with the same number is not mistaken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct TaskId {
    /// Thread id.
    pub tid: Tid,
    /// Start time in clock ticks since boot (`/proc/PID/stat` field 22).
    pub start_time: u64,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {}", self.tid)
    }
}

/// State of a task before Pinfold changed it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct TaskState {
    /// The task.
    pub task: TaskId,
    /// Its cgroup in the hierarchy concerned, as a path below the mount (`/`, `/user.slice/…`).
    pub group: String,
    /// Its affinity mask.
    pub mask: CpuSet,
    /// Its scheduling policy.
    pub policy: Policy,
}

/// A change to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case", deny_unknown_fields))]
pub enum Change {
    /// Write `value` to a kernel file.
    WriteFile {
        /// Absolute path.
        path: String,
        /// The bytes, written with a single write(2).
        #[cfg_attr(feature = "serde", serde(with = "crate::serde_formats::bytes"))]
        value: Vec<u8>,
    },
    /// Create a cgroup directory.
    MakeGroup {
        /// Absolute path of the directory.
        path: String,
    },
    /// Move tasks into a cgroup.
    MoveTasks {
        /// Absolute path of the target group's directory.
        group: String,
        /// Name of the file to write: `tasks`, `cgroup.procs` or `cgroup.threads`.
        file: String,
        /// The tasks.
        tasks: Vec<TaskId>,
    },
    /// Set a thread's affinity mask (`sched_setaffinity(2)`).
    SetAffinity {
        /// The thread.
        task: TaskId,
        /// Its new mask.
        mask: CpuSet,
    },
    /// Set a thread's scheduling policy (`sched_setattr(2)`).
    SetPolicy {
        /// The thread.
        task: TaskId,
        /// Its new policy.
        policy: Policy,
    },
    /// Change a setting through the program that manages it.
    WriteSetting {
        /// The setting.
        setting: Box<Setting>,
        /// Its new value in that program's format; for pins a list of CPUs.
        value: String,
        /// The threads whose affinity masks the program changes immediately.
        tasks: Vec<TaskId>,
    },
    /// Move the pages of a process to other nodes (`migrate_pages(2)`).
    MovePages {
        /// The process.
        task: TaskId,
        /// The nodes from which pages are moved.
        from: Vec<NodeId>,
        /// The nodes to which pages are moved.
        to: Vec<NodeId>,
    },
    /// Periodically stop and continue the processes in a cgroup by signals, from now on.
    SignalProcesses {
        /// Absolute path of the cgroup's directory.
        group: String,
    },
}

/// How a [`Change`] is undone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case", deny_unknown_fields))]
pub enum Undo {
    /// Write the original bytes back.
    WriteFile {
        /// Absolute path.
        path: String,
        /// The original content of the file, byte for byte.
        #[cfg_attr(feature = "serde", serde(with = "crate::serde_formats::bytes"))]
        original: Vec<u8>,
    },
    /// Remove the cgroup directory, after its tasks have been moved to their (or their parents')
    /// original cgroups.
    RemoveGroup {
        /// Absolute path of the directory.
        path: String,
    },
    /// Move the surviving tasks back, and restore mask and policy where they differ.
    MoveTasks {
        /// Absolute path of the hierarchy's mount; the groups of the states are below it.
        mount: String,
        /// Name of the file to write.
        file: String,
        /// The previous state of each task.
        tasks: Vec<TaskState>,
    },
    /// Set the original affinity mask.
    SetAffinity {
        /// The thread.
        task: TaskId,
        /// Its original mask.
        original: CpuSet,
    },
    /// Set the original policy.
    SetPolicy {
        /// The thread.
        task: TaskId,
        /// Its original policy.
        original: Policy,
        /// The nice value that the kernel kept beside that policy, if it does not use one.
        #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
        nice: Option<i8>,
    },
    /// Change the setting back, then restore the masks that differ.
    WriteSetting {
        /// The setting.
        setting: Box<Setting>,
        /// Its previous value; `None` if it had none.
        original: Option<String>,
        /// Previous masks of all threads that the setting can affect.
        #[cfg_attr(feature = "serde", serde(with = "crate::serde_formats::masks"))]
        masks: Vec<(TaskId, CpuSet)>,
        /// Previous content of the files in which the program stores it.
        #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Vec::is_empty"))]
        files: Vec<SettingsFile>,
    },
    /// Leave the pages where they are, and report where they were.
    LeavePages {
        /// The process.
        task: TaskId,
        /// Previous distribution of its pages: KiB by node.
        kib: Vec<(NodeId, u64)>,
    },
    /// Continue the stopped processes in a cgroup, in those below it, and those that were moved
    /// into it.
    ContinueProcesses {
        /// Absolute path of the cgroup's directory.
        group: String,
        /// Processes that another program had already stopped.
        stopped: Vec<TaskId>,
    },
}

/// A file in which another program stores settings.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct SettingsFile {
    /// Absolute path.
    pub path: String,
    /// Its content; `None` if the file does not exist.
    #[cfg_attr(feature = "serde", serde(default, with = "crate::serde_formats::optional_bytes"))]
    pub content: Option<Vec<u8>>,
}

/// One change with its undo and its reason.
///
/// ```
/// use pinfold_model::{Change, Step, Undo};
///
/// let path = "/sys/kernel/mm/ksm/run".to_owned();
/// let step = Step {
///     change: Change::WriteFile { path: path.clone(), value: b"0".to_vec() },
///     undo: Undo::WriteFile { path, original: b"1".to_vec() },
///     reason: "merging pages stalls vCPUs".to_owned(),
/// };
/// assert!(step.change.to_string().contains("/sys/kernel/mm/ksm/run"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The change.
    pub change: Change,
    /// How to undo it.
    pub undo: Undo,
    /// The reason, as a sentence without full stop.
    pub reason: String,
}

impl Undo {
    /// Path and original bytes of an [`Undo::WriteFile`].
    pub fn as_write_file(&self) -> Option<(&str, &[u8])> {
        if let Self::WriteFile { path, original } = self { Some((path, original)) } else { None }
    }
}

impl Change {
    /// Path and bytes of a [`Change::WriteFile`].
    pub fn as_write_file(&self) -> Option<(&str, &[u8])> {
        if let Self::WriteFile { path, value } = self { Some((path, value)) } else { None }
    }

    /// Path of the directory that a [`Change::MakeGroup`] creates.
    pub fn made_group(&self) -> Option<&str> {
        if let Self::MakeGroup { path } = self { Some(path) } else { None }
    }

    /// Target group and tasks of a [`Change::MoveTasks`].
    pub fn as_move_tasks(&self) -> Option<(&str, &[TaskId])> {
        if let Self::MoveTasks { group, tasks, .. } = self { Some((group, tasks)) } else { None }
    }

    /// Thread and mask of a [`Change::SetAffinity`].
    pub fn as_set_affinity(&self) -> Option<(TaskId, &CpuSet)> {
        if let Self::SetAffinity { task, mask } = self { Some((*task, mask)) } else { None }
    }

    /// Setting and value of a [`Change::WriteSetting`].
    pub fn as_write_setting(&self) -> Option<(&Setting, &str)> {
        if let Self::WriteSetting { setting, value, .. } = self {
            Some((setting, value))
        } else {
            None
        }
    }
}

impl Step {
    /// True if the change remains effective across a reboot.
    pub fn is_lasting(&self) -> bool {
        matches!(&self.undo, Undo::WriteSetting { setting, .. } if setting.lifetime == Lifetime::Lasting)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::WriteFile { path, value } => {
                write!(f, "write {:?} to {path}", String::from_utf8_lossy(value).trim_end())
            }
            Change::MakeGroup { path } => write!(f, "make group {path}"),
            Change::MoveTasks { group, file, tasks } => {
                write!(f, "move {} into {group} ({file})", count_noun(tasks.len(), "task"))
            }
            Change::SetAffinity { task, mask } => write!(f, "set affinity of {task} to {mask}"),
            Change::SetPolicy { task, policy } => write!(f, "set policy of {task} to {policy}"),
            Change::WriteSetting { setting, value, .. } => write!(f, "set {setting} to {value}"),
            Change::MovePages { task, from, to } => {
                write!(f, "move pages of {task} from {} to {}", list(from), list(to))
            }
            Change::SignalProcesses { group } => {
                write!(f, "stop and continue processes in {group}")
            }
        }
    }
}

fn list(nodes: &[NodeId]) -> String {
    let numbers = nodes.iter().map(ToString::to_string).collect::<Vec<_>>();
    format!("{} {}", select_verb(nodes.len(), "node", "nodes"), numbers.join(","))
}
