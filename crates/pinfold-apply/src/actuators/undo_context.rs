//! The original and the written values of a journal, as undo queries them.
//!
//! Undo restores a value only if the present value is one that some step wrote; otherwise another
//! program has changed it. A tunable may have been written more than once: each of these values
//! counts as Pinfold's, and the first step's original is the original.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use pinfold_host::{Clock, HostError, HostMut, paths};
use pinfold_model::{Change, CpuSet, Policy, Setting, Step, TaskId, TaskState, Tid, Undo};

use super::controllers::ENABLE;
use crate::cpusets::{self, Cpusets};
use crate::journal::Record;
use crate::recorded_pins;

/// What a step replaced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Former {
    /// The policy.
    pub(crate) policy: Policy,
    /// The nice value that the kernel kept beside it.
    pub(crate) nice: Option<i8>,
}

impl fmt::Display for Former {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.policy.fmt(f)?;
        self.nice.map_or(Ok(()), |nice| write!(f, " with nice {nice}"))
    }
}

/// A step that set a policy.
#[derive(Clone, Copy, Debug)]
struct PolicyStep {
    task: TaskId,
    policy: Policy,
    former: Former,
}

/// A journal's steps, with the host on which they were done.
pub(crate) struct UndoContext<'a> {
    pub(crate) host: &'a dyn HostMut,
    pub(crate) clock: &'a dyn Clock,
    pub(crate) cpusets: Option<Cpusets>,
    /// See [`cpusets::masks_survive`].
    pub(crate) masks_survive: bool,
    /// All CPUs that the kernel considers possible.
    pub(crate) possible: Option<CpuSet>,
    /// The process of this Pinfold, if it is the child subreaper of what it started: orphaned
    /// descendants are its children.
    pub(crate) reaper: Option<Tid>,
    record: &'a Record,
    steps: Vec<&'a Step>,
    /// The threads that existed when the placement began.
    threads: &'a [TaskId],
    /// Files with the number that the kernel set instead of the requested one.
    given: Vec<(&'a str, &'a str)>,
}

impl<'a> UndoContext<'a> {
    pub(crate) fn new(
        host: &'a dyn HostMut,
        clock: &'a dyn Clock,
        record: &'a Record,
    ) -> Result<Self, HostError> {
        Ok(Self {
            host,
            clock,
            cpusets: Cpusets::find(host)?,
            masks_survive: cpusets::masks_survive(host)?,
            possible: cpusets::list(host, &paths::cpu_possible()).ok(),
            reaper: None,
            record,
            steps: record.steps().map(|(_, step)| step).collect(),
            threads: &record.header.threads,
            given: normalized_files(record).collect(),
        })
    }

    /// Numbers that were read back from a file and differ from the requested ones.
    pub(super) fn normalized_values(&self, file: &str) -> impl Iterator<Item = &'a str> {
        self.given.iter().filter(move |(path, _)| *path == file).map(|(_, value)| *value)
    }

    /// Values that were written to a file.
    pub(super) fn written_values(&self, file: &str) -> impl Iterator<Item = &'a [u8]> {
        let written = self.steps.iter().filter_map(|step| step.change.as_write_file());
        written.filter(move |(path, _)| *path == file).map(|(_, value)| value)
    }

    /// The files whose original content an undo writes back.
    pub(super) fn restored_files(&self) -> impl Iterator<Item = &'a str> {
        self.steps.iter().filter_map(|step| Some(step.undo.as_write_file()?.0))
    }

    /// True if a step set a setting to this value.
    pub(super) fn wrote_setting(&self, setting: &Setting, now: &str) -> bool {
        let mut written = self.steps.iter().filter_map(|step| step.change.as_write_setting());
        written.any(|pair| pair == (setting, now))
    }

    /// True if a step wrote a value, compared as the kernel shows it.
    pub(super) fn wrote(&self, path: &str, value: &[u8]) -> Result<bool, HostError> {
        let shown = cpusets::parse(path, value)?;
        for written in self.written_values(path) {
            if cpusets::parse(path, written)? == shown {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// True if a step enabled the controller for the children of a group.
    pub(super) fn has_enabled(&self, group: &str) -> bool {
        let path = paths::cgroup_subtree_control(group);
        self.written_values(&path).any(|value| value == ENABLE)
    }

    /// True if a mask was set for a task, completely or within its cpuset. If all its CPUs are
    /// offline, the kernel gives the task the whole cpuset.
    pub(super) fn wrote_mask(&self, task: TaskId, now: &CpuSet, allowed: &CpuSet) -> bool {
        self.masks().filter(|(at, ..)| *at == task).any(|(_, mask, _)| {
            let left = mask.intersection(allowed);
            *mask == *now || left == *now || (left.is_empty() && now == allowed)
        })
    }

    /// The CPUs to which the owner of the machine has pinned a task since the placement began.
    pub(super) fn pin_of_owner(&self, task: TaskId) -> Option<CpuSet> {
        recorded_pins::pin_of_owner(self.host, self.record, task)
    }

    /// True if no undo of the placement was killed: no value is that of such an undo.
    pub(super) fn is_first_undo(&self) -> bool {
        self.record.is_first_undo()
    }

    /// The mask that a task had when an undo began that was killed.
    pub(super) fn mask_before_undo(&self, task: TaskId) -> Option<&'a CpuSet> {
        self.record.mask_before_undo(task)
    }

    /// The tasks whose masks a managing program set for a step, with their originals.
    pub(super) fn masks_of_settings(&self) -> impl Iterator<Item = &'a (TaskId, CpuSet)> {
        self.steps.iter().flat_map(|step| {
            if let Undo::WriteSetting { masks, .. } = &step.undo { masks.as_slice() } else { &[] }
        })
    }

    /// True if a policy was set for a task, also by an undo that was interrupted before it restored
    /// the policy after the nice value.
    pub(super) fn wrote_policy(&self, task: TaskId, now: Policy) -> bool {
        let is_repeated = !self.record.is_first_undo();
        self.policies().filter(|set| set.task == task).any(|set| {
            let between = set.former.nice.map(|nice| Policy::Other { nice });
            set.policy == now || (is_repeated && between == Some(now))
        })
    }

    /// True if a policy with this nice value was set for a task.
    pub(super) fn wrote_nice(&self, task: TaskId, now: i8) -> bool {
        self.policies().any(|set| set.task == task && set.policy.nice() == Some(now))
    }

    /// The original mask of a thread that inherited `now` from a placed thread. The process's first
    /// thread is considered first, because it creates most of the others.
    pub(crate) fn inherited_mask(&self, main: Option<Tid>, now: &CpuSet) -> Option<&'a CpuSet> {
        let from = |first: bool| {
            self.masks()
                .find(|(task, mask, _)| **mask == *now && (Some(task.tid) == main || !first))
                .map(|(_, _, original)| original)
        };
        from(true).or_else(|| from(false))
    }

    /// True if a thread was created since the placement began and has a mask that a step set for
    /// another thread: its own step was not executed.
    pub(super) fn has_inherited_mask(&self, task: TaskId, now: &CpuSet) -> bool {
        !self.threads.contains(&task)
            && self.inherited_mask(None, now).is_some_and(|original| original != now)
    }

    /// The same for the policy.
    pub(super) fn has_inherited_policy(&self, task: TaskId, now: Policy) -> bool {
        !self.threads.contains(&task)
            && self.inherited_policy(None, now).is_some_and(|former| former.policy != now)
    }

    /// The original policy of a thread that inherited `now`, as [`Self::inherited_mask`].
    pub(crate) fn inherited_policy(&self, main: Option<Tid>, now: Policy) -> Option<Former> {
        let of_main = self.policies().find(|set| set.policy == now && Some(set.task.tid) == main);
        let any = of_main.or_else(|| self.policies().find(|set| set.policy == now));
        any.map(|set| set.former)
    }

    /// A new thread inherits its creator's settings, which Pinfold made. Without Pinfold it would
    /// have its creator's originals, so the undo of a step for it restores those.
    pub(crate) fn inherit(&self, main: Tid, is_new: impl Fn(TaskId) -> bool, undo: &mut Undo) {
        match undo {
            Undo::SetAffinity { task, original } if is_new(*task) => {
                if let Some(inherited) = self.inherited_mask(Some(main), original) {
                    original.clone_from(inherited);
                }
            }
            Undo::SetPolicy { task, original, nice } if is_new(*task) => {
                if let Some(inherited) = self.inherited_policy(Some(main), *original) {
                    (*original, *nice) = (inherited.policy, inherited.nice);
                }
            }
            Undo::WriteSetting { masks, .. } => {
                for (_, original) in masks.iter_mut().filter(|(task, _)| is_new(*task)) {
                    if let Some(inherited) = self.inherited_mask(Some(main), original) {
                        original.clone_from(inherited);
                    }
                }
            }
            Undo::MoveTasks { tasks, .. } => {
                for state in tasks.iter_mut().filter(|state| is_new(state.task)) {
                    if let Some(inherited) = self.inherited_mask(Some(main), &state.mask) {
                        state.mask.clone_from(inherited);
                    }
                    if let Some(inherited) = self.inherited_policy(Some(main), state.policy) {
                        state.policy = inherited.policy;
                    }
                }
            }
            Undo::SetAffinity { .. }
            | Undo::SetPolicy { .. }
            | Undo::WriteFile { .. }
            | Undo::RemoveGroup { .. }
            | Undo::LeavePages { .. }
            | Undo::ContinueProcesses { .. } => {}
        }
    }

    /// Masks that were set, by Pinfold or by a managing program on its behalf, each with the
    /// original.
    fn masks(&self) -> impl Iterator<Item = (TaskId, Cow<'a, CpuSet>, &'a CpuSet)> {
        self.steps.iter().flat_map(|step| match (&step.change, &step.undo) {
            (Change::SetAffinity { task, mask }, Undo::SetAffinity { original, .. }) => {
                vec![(*task, Cow::Borrowed(mask), original)]
            }
            (Change::WriteSetting { value, tasks, .. }, Undo::WriteSetting { masks, .. }) => {
                let behind = masks.iter().filter(|(task, _)| tasks.contains(task));
                match CpuSet::parse_list(value) {
                    Ok(mask) => behind
                        .map(|(task, original)| (*task, Cow::Owned(mask.clone()), original))
                        .collect(),
                    // A setting whose value is no list sets no mask.
                    Err(_) => Vec::new(),
                }
            }
            _ => Vec::new(),
        })
    }

    fn policies(&self) -> impl Iterator<Item = PolicyStep> {
        self.steps.iter().filter_map(|step| match (&step.change, &step.undo) {
            (Change::SetPolicy { task, policy }, Undo::SetPolicy { original, nice, .. }) => {
                let former = Former { policy: *original, nice: *nice };
                Some(PolicyStep { task: *task, policy: *policy, former })
            }
            _ => None,
        })
    }

    fn moves(&self) -> impl Iterator<Item = (&'a str, &'a [TaskState])> {
        self.steps.iter().filter_map(|step| match (&step.change, &step.undo) {
            (Change::MoveTasks { group, .. }, Undo::MoveTasks { tasks, .. }) => {
                Some((group.as_str(), tasks.as_slice()))
            }
            _ => None,
        })
    }

    /// The groups of Pinfold's into which steps moved tasks that they also pinned: what is created
    /// in them inherits a mask.
    pub(crate) fn groups_of_pinned(&self) -> BTreeSet<&'a str> {
        let moves = self.moves().filter(|(group, states)| {
            self.is_ours(group) && states.iter().any(|s| self.has_mask_of(s.task))
        });
        moves.map(|(group, _)| group).collect()
    }

    /// Groups that a step made.
    pub(super) fn own_groups(&self) -> impl Iterator<Item = &'a str> {
        self.steps.iter().filter_map(|step| step.change.made_group())
    }

    /// True if a step made the group.
    pub(super) fn is_ours(&self, group: &str) -> bool {
        self.own_groups().any(|path| path == group)
    }

    /// Tasks that were moved into a group, or into one below it.
    pub(super) fn moved_into(&self, into: &str) -> impl Iterator<Item = TaskId> {
        let is_inside = move |group: &str| {
            group.strip_prefix(into).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let moves = self.moves().filter(move |(group, _)| is_inside(group));
        moves.flat_map(|(_, states)| states.iter().map(|state| state.task))
    }

    /// Tasks whose mask was set, by Pinfold or by a managing program.
    pub(crate) fn masked_tasks(&self) -> impl Iterator<Item = TaskId> {
        self.masks().map(|(task, ..)| task)
    }

    /// True if a step placed or moved the task.
    pub(crate) fn has_step_for(&self, task: TaskId) -> bool {
        self.has_mask_of(task)
            || self.moves().any(|(_, states)| states.iter().any(|s| s.task == task))
    }

    /// Former state of a task that was moved into this group.
    pub(super) fn state_in(&self, into: &str, task: TaskId) -> Option<&'a TaskState> {
        let mut moves = self.moves().filter(|(group, _)| *group == into);
        moves.find_map(|(_, states)| states.iter().find(|state| state.task == task))
    }

    /// True if a step set the mask of a task.
    pub(super) fn has_mask_of(&self, task: TaskId) -> bool {
        self.masks().any(|(at, ..)| at == task)
    }

    /// True if a step set the policy of a task.
    pub(super) fn has_policy_of(&self, task: TaskId) -> bool {
        self.policies().any(|set| set.task == task)
    }

    /// Original group of the first task that was moved into a group.
    pub(super) fn origin_of_members(&self, into: &str) -> Option<String> {
        let mut moves = self.moves().filter(|(group, _)| *group == into);
        moves.find_map(|(_, states)| states.first()).map(|state| self.dir_of(&state.group))
    }

    /// The CPUs that a step gave to a group of Pinfold's.
    pub(super) fn group_cpus(&self, group: &str) -> Option<CpuSet> {
        let value = self.written_values(&paths::cpuset_cpus(group)).last()?;
        CpuSet::parse_list(&String::from_utf8_lossy(value)).ok()
    }

    /// The CPUs of Pinfold's group into which a task was moved.
    pub(super) fn confinement_of(&self, task: TaskId) -> Option<CpuSet> {
        let (group, _) =
            self.moves().find(|(_, states)| states.iter().any(|state| state.task == task))?;
        self.group_cpus(group)
    }

    /// Directory of a path below the mount.
    pub(super) fn dir_of(&self, below: &str) -> String {
        self.cpusets.as_ref().map_or_else(|| below.to_owned(), |cpusets| cpusets.dir_of(below))
    }
}

fn normalized_files(record: &Record) -> impl Iterator<Item = (&str, &str)> {
    record.steps().filter_map(|(index, step)| {
        let (path, _) = step.change.as_write_file()?;
        Some((path, record.normalized_value(index)?))
    })
}
