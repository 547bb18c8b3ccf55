//! The list of steps under construction, and the kinds of steps that several modules need.

use std::collections::BTreeSet;

use pinfold_host::mountinfo::Version;
use pinfold_host::{HostError, Systemd, paths};
use pinfold_model::{
    Change, CpuSet, Finding, Lifetime, Plan, Policy, Setting, SettingManager, Step, TaskId,
    TaskState, Tid, Undo, VnodePlan,
};

use super::{Planned, Request, group_name, policy};
use crate::actuators::{self, ENABLE_CPUSET};
use crate::cpusets::{self, Cpusets};
use crate::error::{ApplyError, Refusal};
use crate::host_state::HostState;
use crate::tasks::{ManagedSetting, Target};

/// Whether the managing program is queried even if the kernel shows the right masks. Each query
/// takes a child process, which is too much for a check every second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ManagerQuery {
    Always,
    WhenMasksDiffer,
}

/// Steps under construction.
pub(super) struct StepBuilder<'a> {
    pub(super) state: &'a HostState<'a>,
    pub(super) plan: &'a Plan,
    /// The vnode that the plan places.
    pub(super) vnode: &'a VnodePlan,
    pub(super) target: &'a Target,
    /// The machine's process.
    pub(super) vm: TaskId,
    /// Every thread of the machine, including those outside its process.
    pub(super) vm_tids: BTreeSet<Tid>,
    /// Name of Pinfold's group.
    pub(super) name: String,
    planned: Planned,
}

impl<'a> StepBuilder<'a> {
    pub(super) fn new(state: &'a HostState<'a>, request: &Request<'a>) -> Self {
        let Request { plan, vnode, target } = *request;
        let mut vm_tids: BTreeSet<Tid> = state.listed.iter().copied().collect();
        vm_tids.extend(target.threads.iter().map(|(task, _)| task.tid));
        let (vm, planned) = (state.vm, Planned::default());
        Self { state, plan, vnode, target, vm, vm_tids, name: group_name(vm), planned }
    }

    /// Records that the plan needs a group.
    pub(super) fn needs(&mut self, group: &str) {
        self.planned.groups.insert(group.to_owned());
    }

    pub(super) fn finish(self) -> Planned {
        self.planned
    }

    pub(super) fn add_finding(&mut self, finding: Finding) {
        self.planned.findings.push(finding);
    }

    pub(super) fn step(&mut self, change: Change, undo: Undo, reason: impl Into<String>) {
        self.planned.steps.push(Step { change, undo, reason: reason.into() });
    }

    /// The cpuset hierarchy, if groups can be made in it.
    pub(super) fn cpusets(&self) -> Result<Result<&'a Cpusets, Refusal>, HostError> {
        let Some(cpusets) = self.state.cpusets()? else { return Ok(Err(Refusal::NoCpuset)) };
        if cpusets.is_read_only() {
            return Ok(Err(Refusal::ReadOnly { path: cpusets.root().to_owned() }));
        }
        if !self.state.is_writable() {
            return Ok(Err(Refusal::NotRoot { path: cpusets.root().to_owned() }));
        }
        Ok(Ok(cpusets))
    }

    /// The groups of the machine's threads in the cpuset hierarchy, if they have the controller's
    /// files and contain no other tasks, except kernel threads: those of KVM and vhost join them.
    /// libvirt makes one for each vCPU.
    pub(super) fn own_cpuset_groups(&self) -> Result<BTreeSet<String>, ApplyError> {
        let Some(cpusets) = self.state.cpusets()?.filter(|one| !one.is_read_only()) else {
            return Ok(BTreeSet::new());
        };
        let mut groups = BTreeSet::new();
        for tid in &self.vm_tids {
            groups.extend(cpusets.group_of(self.state, *tid)?);
        }
        for group in &groups {
            if group == cpusets.root()
                || !self.state.exists(&paths::cpuset_mems(group))
                || !cpusets.children(self.state, group)?.is_empty()
            {
                return Ok(BTreeSet::new());
            }
            for tid in cpusets.members(self.state, group)? {
                let is_own = self.vm_tids.contains(&tid)
                    || self.state.stat(tid)?.is_none_or(|stat| stat.is_kernel_thread());
                if !is_own {
                    return Ok(BTreeSet::new());
                }
            }
        }
        Ok(groups)
    }

    /// True if a step of this plan moves the task.
    pub(super) fn moves(&self, task: TaskId) -> bool {
        self.group_of_move(task).is_some()
    }

    /// The group into which a step of this plan moves the machine.
    pub(super) fn group_to_be(&self) -> Option<String> {
        self.group_of_move(self.vm).map(str::to_owned)
    }

    fn group_of_move(&self, task: TaskId) -> Option<&str> {
        let mut moves = self.planned.steps.iter().filter_map(|step| step.change.as_move_tasks());
        moves.find(|(_, tasks)| tasks.contains(&task)).map(|(group, _)| group)
    }

    /// Sets a thread's mask if it differs. A cpuset by which libvirt pins the thread is a limit when
    /// a plan is applied, and a change of its owner's when the plan is watched.
    pub(super) fn affinity(
        &mut self,
        task: TaskId,
        mask: &CpuSet,
        ask: ManagerQuery,
        reason: impl FnOnce() -> String,
    ) -> Result<(), ApplyError> {
        let Some(now) = self.state.mask(task.tid)? else {
            self.add_gone(task);
            return Ok(());
        };
        if now == *mask {
            return Ok(());
        }
        if now.is_subset(mask) {
            let allowed = match ask {
                ManagerQuery::Always => self.state.allowed_cpus(task.tid)?,
                ManagerQuery::WhenMasksDiffer => self.state.limiting_cpus(task.tid)?,
            };
            if allowed.is_some_and(|allowed| mask.intersection(&allowed) == now) {
                self.add_finding(actuators::report_narrowed(task, mask, &now));
                return Ok(());
            }
        }
        let Some(original) = self.state.mask_to_restore(task.tid)? else {
            self.add_gone(task);
            return Ok(());
        };
        let change = Change::SetAffinity { task, mask: mask.clone() };
        self.step(change, Undo::SetAffinity { task, original }, reason());
        Ok(())
    }

    /// Sets a value through the program that manages it, if the value differs or the kernel shows
    /// another mask for these tasks. `followers` are all tasks that the change may affect.
    pub(super) fn setting(
        &mut self,
        kept: &ManagedSetting,
        tasks: &[TaskId],
        followers: &[TaskId],
        ask: ManagerQuery,
    ) -> Result<(), ApplyError> {
        let differ = self.masks_differ(kept, tasks)?;
        if !differ && ask == ManagerQuery::WhenMasksDiffer {
            return Ok(());
        }
        let Some(original) = self.state.setting(&kept.setting)? else {
            let lifetime = match kept.setting.lifetime {
                Lifetime::Running => "it is no longer running",
                Lifetime::Lasting => "it has no persistent definition",
            };
            self.add_finding(Finding::warning("settings", format!("{}: {lifetime}", kept.setting)));
            return Ok(());
        };
        if !differ && original.as_deref() == Some(kept.value.as_str()) {
            return Ok(());
        }
        let mut masks = Vec::new();
        for task in followers {
            let mask = self.state.mask_to_restore(task.tid)?;
            masks.extend(mask.map(|mask| (*task, mask)));
        }
        let setting = Box::new(kept.setting.clone());
        let files = self.state.setting_files(&setting)?;
        let undo = Undo::WriteSetting { setting: setting.clone(), original, masks, files };
        let (value, tasks) = (kept.value.clone(), tasks.to_vec());
        self.step(Change::WriteSetting { setting, value, tasks }, undo, kept.reason.clone());
        Ok(())
    }

    /// True if a task's mask differs from the one that the managing program's value implies.
    fn masks_differ(
        &mut self,
        kept: &ManagedSetting,
        tasks: &[TaskId],
    ) -> Result<bool, ApplyError> {
        let Ok(mask) = CpuSet::parse_list(&kept.value) else { return Ok(false) };
        for task in tasks {
            let Some(now) = self.state.mask(task.tid)? else {
                self.add_gone(*task);
                continue;
            };
            if now == mask {
                continue;
            }
            // The program sets the thread's own cpuset too.
            let allowed = self.state.limiting_cpus(task.tid)?;
            match allowed {
                Some(allowed) if !now.is_empty() && mask.intersection(&allowed) == now => {
                    self.add_finding(actuators::report_narrowed(*task, &mask, &now));
                }
                Some(_) | None => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Sets a thread's policy if it differs.
    pub(super) fn policy(
        &mut self,
        task: TaskId,
        policy: Policy,
        reason: &str,
    ) -> Result<(), ApplyError> {
        // An ended thread was already reported when its mask was read.
        let Some(original) = self.state.policy(task.tid)? else {
            return Ok(());
        };
        let policy = policy.for_thread(original);
        if original == policy {
            return Ok(());
        }
        // Also where this policy keeps it: one that replaces this one may not.
        let nice = if original.nice().is_none() { self.state.nice(task.tid)? } else { None };
        let kept = nice.map(|nice| Policy::Other { nice });
        for before in [Some(original), kept].into_iter().flatten() {
            if !policy::may_return(self.state, task.tid, before, policy)? {
                return Err(Refusal::NoWayBack { task, original, policy }.into());
            }
        }
        let change = Change::SetPolicy { task, policy };
        self.step(change, Undo::SetPolicy { task, original, nice }, reason);
        Ok(())
    }

    pub(super) fn add_gone(&mut self, task: TaskId) {
        self.add_finding(Finding::note("threads", format!("{task} has exited and was skipped")));
    }

    /// Makes a group with these CPUs, unless it exists. Its parent exists.
    pub(super) fn group(
        &mut self,
        cpusets: &Cpusets,
        path: &str,
        cpus: Option<&CpuSet>,
        reason: &str,
    ) -> Result<(), ApplyError> {
        self.needs(path);
        let undo = Undo::RemoveGroup { path: path.to_owned() };
        if !self.state.exists(path)
            && !self.planned.steps.iter().any(
                |step: &Step| matches!(&step.change, Change::MakeGroup { path: at } if at == path),
            )
        {
            self.step(Change::MakeGroup { path: path.to_owned() }, undo.clone(), reason);
        }
        let Some(cpus) = cpus else { return Ok(()) };
        if cpusets.version() == Version::V1 {
            // A group without memory nodes accepts no task (ENOSPC), so they are set first.
            let mems = self
                .state
                .required_cpu_list(&paths::cpuset_effective_mems(cpusets.parent(path)))?;
            self.group_list(paths::cpuset_mems(path), &mems, &undo, reason)?;
        }
        self.group_list(paths::cpuset_cpus(path), cpus, &undo, reason)
    }

    fn group_list(
        &mut self,
        path: String,
        wanted: &CpuSet,
        undo: &Undo,
        reason: &str,
    ) -> Result<(), ApplyError> {
        if self.state.cpu_list(&path)?.as_ref() == Some(wanted) {
            return Ok(());
        }
        let value = wanted.to_string().into_bytes();
        self.step(Change::WriteFile { path, value }, undo.clone(), reason);
        Ok(())
    }

    /// Enables the controller for the children of a v2 group and of its ancestors, from the root
    /// down.
    pub(super) fn enable(
        &mut self,
        cpusets: &Cpusets,
        group: &str,
        reason: &str,
    ) -> Result<(), ApplyError> {
        for group in cpusets.lineage(group) {
            let path = paths::cgroup_subtree_control(&group);
            // A group that a step of this plan makes has no children's controllers yet.
            let original = self.state.file(&path)?.unwrap_or_else(|| b"\n".to_vec());
            if actuators::has_cpuset(&original) || self.writes(&path) {
                continue;
            }
            let change = Change::WriteFile { path: path.clone(), value: ENABLE_CPUSET.to_vec() };
            self.step(change, Undo::WriteFile { path, original }, reason);
        }
        Ok(())
    }

    fn writes(&self, file: &str) -> bool {
        self.planned
            .steps
            .iter()
            .any(|step| matches!(&step.change, Change::WriteFile { path, .. } if path == file))
    }

    /// The present states of all threads of some processes.
    pub(super) fn states_of(
        &self,
        cpusets: &Cpusets,
        processes: &[Tid],
    ) -> Result<Vec<TaskState>, HostError> {
        let mut states = Vec::new();
        for pid in processes {
            for tid in self.state.threads_of(*pid)? {
                states.extend(self.state.task(cpusets, tid)?);
            }
        }
        Ok(states)
    }

    /// The tasks that may be moved: not the machine's, not Pinfold itself, no permanently bound
    /// kernel thread, not `kthreadd`, their parent, and none that another placement has pinned.
    pub(super) fn movable(&self, cpusets: &Cpusets, tids: Vec<Tid>) -> Result<Vec<Tid>, HostError> {
        let own = self.state.own_threads()?;
        let mut movable = Vec::new();
        for tid in tids {
            if self.vm_tids.contains(&tid) || own.contains(&tid) {
                continue;
            }
            let Some(stat) = self.state.stat(tid)? else { continue };
            let is_kthreadd = stat.is_kernel_thread() && stat.ppid.0 == 0;
            let is_bound = stat.is_unmovable() || is_kthreadd;
            if !is_bound && self.reserved_of(cpusets, tid)?.is_empty() {
                movable.push(tid);
            }
        }
        Ok(movable)
    }

    /// The CPUs outside of this plan to which members of a group, and of those below it, are
    /// pinned: those of another placement. They stay theirs.
    pub(super) fn reserved_cpus(
        &self,
        cpusets: &Cpusets,
        group: &str,
    ) -> Result<CpuSet, HostError> {
        let mut reserved = CpuSet::new();
        if self.state.placed.is_empty() || self.other_cpus(cpusets)?.is_empty() {
            return Ok(reserved);
        }
        for tid in cpusets.members(self.state, group)? {
            reserved.add(&self.reserved_of(cpusets, tid)?);
        }
        for child in cpusets.children(self.state, group)? {
            reserved.add(&self.reserved_cpus(cpusets, &child)?);
        }
        Ok(reserved)
    }

    /// The same for one member: a thread in v1, a process in v2.
    fn reserved_of(&self, cpusets: &Cpusets, member: Tid) -> Result<CpuSet, HostError> {
        let (mut reserved, elsewhere) = (CpuSet::new(), self.other_cpus(cpusets)?);
        if self.state.placed.is_empty() || elsewhere.is_empty() {
            return Ok(reserved);
        }
        let threads = match cpusets.version() {
            Version::V1 => vec![member],
            Version::V2 => self.state.threads_of(member)?,
        };
        for tid in threads.into_iter().filter(|tid| self.state.placed.contains(tid)) {
            let mask = self.state.mask(tid)?;
            if let Some(mask) = mask.filter(|mask| mask.is_subset(&elsewhere)) {
                reserved.add(&mask);
            }
        }
        Ok(reserved)
    }

    /// The masks that the tasks of a group, and of those below it, have on their own, if a kernel
    /// before 6.2 overwrites them when the group's list is written.
    pub(super) fn overwritten(
        &self,
        cpusets: &Cpusets,
        group: &str,
    ) -> Result<Vec<(TaskId, CpuSet)>, HostError> {
        let mut masks = Vec::new();
        if self.state.release()? >= cpusets::MASKS_SURVIVE {
            return Ok(masks);
        }
        let whole = cpusets.effective(self.state, group)?;
        for member in cpusets.members(self.state, group)? {
            let threads = match cpusets.version() {
                Version::V1 => vec![member],
                Version::V2 => self.state.threads_of(member)?,
            };
            for tid in threads {
                let mask = self.state.mask(tid)?.filter(|mask| *mask != whole);
                let (Some(mask), Some(stat)) = (mask, self.state.stat(tid)?) else { continue };
                if !stat.is_unmovable() {
                    masks.push((stat.task(), mask));
                }
            }
        }
        for child in cpusets.children(self.state, group)? {
            masks.extend(self.overwritten(cpusets, &child)?);
        }
        Ok(masks)
    }

    /// Sets masks to what is left of them within some CPUs. Undo leads back to that, too.
    pub(super) fn keep_masks(&mut self, masks: &[(TaskId, CpuSet)], cpus: &CpuSet) {
        for (task, mask) in masks {
            let mask = mask.intersection(cpus);
            if !mask.is_empty() {
                let undo = Undo::SetAffinity { task: *task, original: mask.clone() };
                let reason = "another placement has set this mask, and the kernel overwrites it";
                self.step(Change::SetAffinity { task: *task, mask }, undo, reason);
            }
        }
    }

    /// The CPUs that are neither the host's nor the machine's.
    fn other_cpus(&self, cpusets: &Cpusets) -> Result<CpuSet, HostError> {
        let all = cpusets.effective(self.state, cpusets.root())?;
        Ok(all.difference(&self.plan.housekeeping).difference(&self.plan.exclusive))
    }

    /// Limits an existing group of another program to a part of its CPUs.
    pub(super) fn shrink(&mut self, group: &str, cpus: &CpuSet, original: Vec<u8>) {
        let path = paths::cpuset_cpus(group);
        let value = cpus.to_string().into_bytes();
        self.step(
            Change::WriteFile { path: path.clone(), value },
            Undo::WriteFile { path, original },
            "tasks of this group are excluded from the plan's CPUs",
        );
    }

    /// Sets a group's list through systemd, if the group is a unit of it. The file is written
    /// first: its step records the masks that an old kernel overwrites, and undo ends with the
    /// file's original bytes, which systemd leaves unchanged when the property is reset.
    pub(super) fn unit_list(&mut self, group: &str, cpus: &CpuSet) -> Result<(), ApplyError> {
        let unit = group.rsplit('/').next().unwrap_or(group);
        if !self.state.has_systemd() || !Systemd::is_unit(unit) {
            return Ok(());
        }
        let setting = Box::new(Setting {
            keeper: SettingManager::Systemd,
            object: unit.to_owned(),
            key: "AllowedCPUs".to_owned(),
            lifetime: Lifetime::Running,
        });
        // A delegated group may have the name of a unit without being one.
        let Some(original) = self.state.setting(&setting)? else {
            return Ok(());
        };
        let value = cpus.to_string();
        if original.as_deref() != Some(value.as_str()) {
            let files = self.state.setting_files(&setting)?;
            let masks = Vec::new();
            let undo = Undo::WriteSetting { setting: setting.clone(), original, masks, files };
            let change = Change::WriteSetting { setting, value, tasks: Vec::new() };
            self.step(change, undo, "systemd would write its own list there again");
        }
        Ok(())
    }

    /// Reports a group that cannot be excluded, because it has no housekeeping CPU.
    pub(super) fn report_left(&mut self, group: &str, why: &str) {
        let text = format!("{group} is left unchanged: {why}");
        self.add_finding(
            Finding::warning("isolation", text)
                .with_hint("give that group housekeeping CPUs, or plan around it with --avoid"),
        );
    }
}

/// All CPUs of some masks.
pub(super) fn all_of(masks: &[(TaskId, CpuSet)]) -> CpuSet {
    let mut all = CpuSet::new();
    masks.iter().for_each(|(_, mask)| all.add(mask));
    all
}
