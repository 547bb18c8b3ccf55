//! Steps: single changes to a host, and the undo that was read before each.
//!
//! A step is printable before it is done, journalled and fsynced before it is
//! done, and read back after. [`Undo`] holds what was there, as raw bytes where
//! the kernel gives bytes.

use std::fmt;

use crate::text::{agree, counted};
use crate::{CpuSet, NodeId, Policy, Setting, Tid};

/// A thread of the host that cannot be mistaken for a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// What a task was before Pinfold touched it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskState {
    /// Which task.
    pub task: TaskId,
    /// Its group in the hierarchy concerned, as a path below the mount (`/`, `/user.slice/…`).
    pub group: String,
    /// Its affinity mask.
    pub mask: CpuSet,
    /// Its policy.
    pub policy: Policy,
}

/// One change to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Write `value` to a kernel file.
    WriteFile {
        /// Absolute path.
        path: String,
        /// Bytes of the one write(2).
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
        /// Name of the file written, `tasks`, `cgroup.procs` or `cgroup.threads`.
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
    /// Have a setting changed by the program that keeps it.
    WriteSetting {
        /// Which.
        setting: Box<Setting>,
        /// Its new value, in the keeper's words; of pins a list of PUs.
        value: String,
        /// The threads whose masks follow from it at once.
        tasks: Vec<TaskId>,
    },
    /// Move the pages of a process to other nodes (`migrate_pages(2)`).
    MovePages {
        /// The process.
        task: TaskId,
        /// The nodes that are to have none of them.
        from: Vec<NodeId>,
        /// The nodes to which they go.
        to: Vec<NodeId>,
    },
    /// From now on stop and continue the processes in a cgroup by signals, again and again.
    SignalProcesses {
        /// Absolute path of the group's directory.
        group: String,
    },
}

/// How a [`Change`] is taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undo {
    /// Write the original bytes back.
    WriteFile {
        /// Absolute path.
        path: String,
        /// What the file held, byte for byte.
        original: Vec<u8>,
    },
    /// Remove the cgroup directory, after its tasks have gone to where they or their parents came from.
    RemoveGroup {
        /// Absolute path of the directory.
        path: String,
    },
    /// Move the surviving tasks back and restore mask and policy where they differ.
    MoveTasks {
        /// Absolute path of the hierarchy's mount; the states' groups are below it.
        mount: String,
        /// Name of the file written.
        file: String,
        /// Each task as it was.
        tasks: Vec<TaskState>,
    },
    /// Set the original affinity mask.
    SetAffinity {
        /// The thread.
        task: TaskId,
        /// What it had.
        original: CpuSet,
    },
    /// Set the original policy.
    SetPolicy {
        /// The thread.
        task: TaskId,
        /// What it had.
        original: Policy,
    },
    /// Have the setting changed back, then restore the masks that differ.
    WriteSetting {
        /// Which.
        setting: Box<Setting>,
        /// Its value before; `None` if it had none.
        original: Option<String>,
        /// Masks of all threads that the setting can have an effect on.
        masks: Vec<(TaskId, CpuSet)>,
        /// The files in which the keeper keeps it, as they were.
        files: Vec<KeptFile>,
    },
    /// Pages stay where they are: it is told where they were.
    LeavePages {
        /// The process.
        task: TaskId,
        /// KiB of it by node, as they were.
        kib: Vec<(NodeId, u64)>,
    },
    /// Continue what is stopped in a group, in those below it, and of those moved into it.
    ContinueProcesses {
        /// Absolute path of the group's directory.
        group: String,
        /// Processes that somebody else had stopped before.
        stopped: Vec<TaskId>,
    },
}

/// A file of a program that keeps settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptFile {
    /// Absolute path.
    pub path: String,
    /// What it holds; `None` if it is not there.
    pub content: Option<Vec<u8>>,
}

/// One change with its undo and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What is done.
    pub change: Change,
    /// How it is taken back.
    pub undo: Undo,
    /// Why, as a sentence without full stop.
    pub reason: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::WriteFile { path, value } => {
                write!(f, "write {:?} to {path}", String::from_utf8_lossy(value).trim_end())
            }
            Change::MakeGroup { path } => write!(f, "make group {path}"),
            Change::MoveTasks { group, file, tasks } => {
                write!(f, "move {} into {group} ({file})", counted(tasks.len(), "task"))
            }
            Change::SetAffinity { task, mask } => write!(f, "set affinity of {task} to {mask}"),
            Change::SetPolicy { task, policy } => write!(f, "set policy of {task} to {policy}"),
            Change::WriteSetting { setting, value, .. } => write!(f, "set {setting} to {value}"),
            Change::MovePages { task, from, to } => {
                let list = |nodes: &[NodeId]| {
                    let numbers = nodes.iter().map(ToString::to_string).collect::<Vec<_>>();
                    format!("{} {}", agree(nodes.len(), "node", "nodes"), numbers.join(","))
                };
                write!(f, "move pages of {task} from {} to {}", list(from), list(to))
            }
            Change::SignalProcesses { group } => {
                write!(f, "stop and continue processes in {group}")
            }
        }
    }
}
