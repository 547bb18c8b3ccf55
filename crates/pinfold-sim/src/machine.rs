//! The state of a simulated machine, and the scheduler's rules.
//!
//! A thread's mask is not stored but computed: the requested mask, restricted to the cpuset, or the
//! whole cpuset if nothing remains (`kernel/sched/syscalls.c`, `__set_cpus_allowed_ptr`). Since
//! Linux 6.2 the requested mask survives moves and cpuset changes; before, both reset it.

use std::collections::BTreeMap;

use pinfold_host::process::Signaled;
use pinfold_host::{Host as _, SnapshotHost, paths};
use pinfold_model::policy::SLICES_NS;
use pinfold_model::{CpuSet, NodeId, Policy, PuId, Setting, TaskId, Tid};
use rustix::io::Errno;

use super::{SimTask, WriteRule, parse};
use cgroup::{CgroupVersion, Hierarchy, parent};
use resctrl::Resctrl;

pub(crate) mod bandwidth;
pub(crate) mod cgroup;
pub(crate) mod cpuset_v1;
pub(crate) mod disk;
mod domains;
pub(crate) mod freezer;
pub(crate) mod real_time;
pub(crate) mod resctrl;
pub(crate) mod unified;

/// `MAX_NUMNODES` of a distribution kernel.
pub(super) const MAX_NODES: u32 = 1024;

/// A setting and its effects.
#[derive(Clone, Debug)]
pub(super) struct SimSetting {
    pub(super) value: Option<String>,
    /// Threads whose mask libvirt sets.
    pub(super) tasks: Vec<Tid>,
    /// The file that systemd writes.
    pub(super) file: Option<String>,
    /// The value in the unit file.
    pub(super) unit: Option<String>,
    /// The list in the drop-in that `set-property` creates; empty if the drop-in sets none.
    pub(super) drop_in: Option<String>,
}

/// A simulated machine.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) possible: CpuSet,
    pub(super) online: CpuSet,
    /// CPU n and CPU n + cores are siblings.
    pub(super) cores: u32,
    pub(super) mems: CpuSet,
    /// Highest value of `cpuset.sched_relax_domain_level`.
    pub(super) relax_levels: i64,
    /// The task that reads and writes: Pinfold.
    pub(super) own: Tid,
    pub(super) tasks: BTreeMap<Tid, TaskGroups>,
    /// The task that was created last.
    pub(super) newest: Tid,
    pub(super) hierarchies: Vec<Hierarchy>,
    /// Index of the hierarchy with cpuset.
    pub(super) cpuset_index: usize,
    pub(super) tree: SnapshotHost,
    pub(super) rules: BTreeMap<String, WriteRule>,
    /// Simulates a kernel before 6.2.
    pub(super) forgets_masks: bool,
    /// Simulates Linux 7.0 or later: in v2, a group with tasks may clear its sets.
    pub(super) clears_populated: bool,
    /// Simulates a kernel before 6.7: no remote partitions.
    pub(super) local_partitions: bool,
    /// Cache and bandwidth allocation, if mounted.
    pub(super) resctrl: Option<Resctrl>,
    /// Settings that other programs manage.
    pub(super) settings: BTreeMap<Setting, SimSetting>,
}

/// A task and its groups.
#[derive(Clone, Debug)]
pub(super) struct TaskGroups {
    pub(super) task: SimTask,
    /// Its group in each hierarchy.
    pub(super) groups: Vec<String>,
}

impl Machine {
    /// Number of bits in the kernel's CPU masks.
    pub(super) fn possible_bits(&self) -> u32 {
        self.possible.iter().last().map_or(1, |PuId(last)| last + 1)
    }

    /// Threads of a process, the first one first.
    pub(super) fn threads_of(&self, process: Tid) -> Vec<Tid> {
        self.tasks
            .values()
            .filter(|held| held.task.tgid == process)
            .map(|held| held.task.tid)
            .collect()
    }

    /// Processes with a thread in the group.
    pub(super) fn tgids_in(&self, index: usize, group: &str) -> Vec<Tid> {
        let mut processes: Vec<Tid> = self
            .tasks
            .values()
            .filter(|held| held.groups[index] == group)
            .map(|held| held.task.tgid)
            .collect();
        processes.sort_unstable();
        processes.dedup();
        processes
    }

    /// The CPUs of a group in the hierarchy with cpuset.
    fn cpus_of(&self, group: &str) -> CpuSet {
        let hierarchy = &self.hierarchies[self.cpuset_index];
        hierarchy.rules.effective(self, hierarchy, group)
    }

    /// The CPUs that a SCHED_DEADLINE task must be allowed to use.
    fn root_domain_of(&self, held: &TaskGroups) -> CpuSet {
        let hierarchy = &self.hierarchies[self.cpuset_index];
        hierarchy.rules.root_domain(self, hierarchy, &held.groups[self.cpuset_index])
    }

    /// The CPUs of a task's cpuset: those of the nearest ancestor that has any.
    fn cpuset_of(&self, held: &TaskGroups) -> CpuSet {
        let mut group = held.groups[self.cpuset_index].as_str();
        loop {
            let cpus = self.cpus_of(group);
            match parent(group) {
                Some(above) if cpus.is_empty() => group = above,
                Some(_) | None => return cpus,
            }
        }
    }

    pub(super) fn mask(&self, held: &TaskGroups) -> CpuSet {
        if held.task.is_unmovable() {
            return held.task.asked.clone().unwrap_or_else(|| self.online.clone());
        }
        let cpuset = self.cpuset_of(held);
        match held.task.asked.as_ref().map(|asked| asked.intersection(&cpuset)) {
            Some(both) if !both.is_empty() => both,
            Some(_) | None => cpuset,
        }
    }

    /// The mask in a task's status: in the root cpuset of v2 it has the CPUs that are offline
    /// (`cpuset_cpus_allowed`).
    pub(super) fn mask_in_status(&self, held: &TaskGroups) -> CpuSet {
        let mask = self.mask(held);
        let hierarchy = &self.hierarchies[self.cpuset_index];
        if held.task.is_unmovable()
            || hierarchy.version == CgroupVersion::V1
            || held.groups[self.cpuset_index] != "/"
        {
            return mask;
        }
        let offline = self.possible.difference(&self.online);
        let asked = held.task.asked.as_ref().unwrap_or(&self.possible);
        mask.union(&asked.intersection(&offline))
    }

    pub(super) fn set_affinity(&mut self, tid: Tid, mask: &CpuSet) -> Result<(), Errno> {
        let held = self.tasks.get(&tid).ok_or(Errno::SRCH)?;
        if held.task.is_unmovable() {
            return Err(Errno::INVAL);
        }
        let got = mask.intersection(&self.cpuset_of(held));
        if got.is_empty() {
            return Err(Errno::INVAL);
        }
        let has_deadline = matches!(held.task.policy, Policy::Deadline { .. });
        if has_deadline && !self.root_domain_of(held).is_subset(&got) {
            return Err(Errno::BUSY);
        }
        // A kernel before 6.2 stores the effective mask, a newer one the requested mask.
        let kept = if self.forgets_masks { got } else { mask.clone() };
        if let Some(held) = self.tasks.get_mut(&tid) {
            held.task.asked = Some(kept);
        }
        Ok(())
    }

    pub(super) fn set_policy(&mut self, tid: Tid, policy: Policy) -> Result<(), Errno> {
        let held = self.tasks.get(&tid).ok_or(Errno::SRCH)?;
        let policy = match policy {
            Policy::Other { nice } => Policy::Other { nice: nice.clamp(-20, 19) },
            Policy::Batch { nice } => Policy::Batch { nice: nice.clamp(-20, 19) },
            Policy::Idle => Policy::Idle,
            Policy::Slice { nice, slice_ns } => Policy::Slice {
                nice: Some(nice.unwrap_or(0).clamp(-20, 19)),
                slice_ns: slice_ns.clamp(*SLICES_NS.start(), *SLICES_NS.end()),
            },
            Policy::Fifo { priority } | Policy::RoundRobin { priority }
                if !(1..=99).contains(&priority) =>
            {
                return Err(Errno::INVAL);
            }
            Policy::Fifo { .. } | Policy::RoundRobin { .. } if !self.may_be_real_time(tid) => {
                return Err(Errno::PERM);
            }
            Policy::Fifo { .. } | Policy::RoundRobin { .. } => policy,
            Policy::Deadline { runtime_ns, deadline_ns, period_ns } => {
                let period = if period_ns == 0 { deadline_ns } else { period_ns };
                if runtime_ns < 1024 || runtime_ns > deadline_ns || deadline_ns > period {
                    return Err(Errno::INVAL);
                }
                if !self.root_domain_of(held).is_subset(&self.mask(held)) {
                    return Err(Errno::PERM);
                }
                policy
            }
            Policy::Unknown { .. } => return Err(Errno::INVAL),
        };
        if let Some(held) = self.tasks.get_mut(&tid) {
            held.task.policy = policy;
            held.task.nice = policy.nice().unwrap_or(held.task.nice);
        }
        Ok(())
    }

    /// The tasks that are not in the group yet: the others are not moved, and no controller checks
    /// them.
    pub(super) fn tasks_outside(&self, index: usize, group: &str, mut tasks: Vec<Tid>) -> Vec<Tid> {
        tasks.retain(|tid| self.tasks.get(tid).is_some_and(|held| held.groups[index] != group));
        tasks
    }

    /// Moves tasks into a group that accepts them: all of them, or none if one is bound
    /// (`task_can_attach`).
    pub(super) fn move_tasks(
        &mut self,
        index: usize,
        group: &str,
        movers: &[Tid],
    ) -> Result<(), Errno> {
        if movers.iter().any(|tid| self.tasks.get(tid).is_some_and(|held| held.task.is_unmovable()))
        {
            return Err(Errno::INVAL);
        }
        self.place_tasks(index, group, movers);
        Ok(())
    }

    fn place_tasks(&mut self, index: usize, group: &str, movers: &[Tid]) {
        let resets = self.forgets_masks
            && index == self.cpuset_index
            && self.hierarchies[index].version == CgroupVersion::V1;
        for tid in movers {
            if let Some(held) = self.tasks.get_mut(tid) {
                group.clone_into(&mut held.groups[index]);
                if resets {
                    held.task.asked = None;
                }
            }
        }
    }

    /// Makes a change; on a kernel before 6.2, tasks whose cpuset changes lose their mask.
    pub(super) fn changing<T>(
        &mut self,
        change: impl FnOnce(&mut Self) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if !self.forgets_masks {
            return change(self);
        }
        let cpusets = |machine: &Self| -> BTreeMap<Tid, CpuSet> {
            machine.tasks.iter().map(|(tid, held)| (*tid, machine.cpuset_of(held))).collect()
        };
        let before = cpusets(self);
        let done = change(self)?;
        let after = cpusets(self);
        for (tid, held) in &mut self.tasks {
            if !held.task.is_unmovable() && before.get(tid) != after.get(tid) {
                held.task.asked = None;
            }
        }
        Ok(done)
    }

    /// Updates the topology files of the online CPUs: an offline CPU has no directory and is in no
    /// list of the others (`drivers/base/topology.c`).
    pub(super) fn show_topology(&mut self) {
        let online = &self.online;
        let mut put = |path: String, value: &dyn std::fmt::Display| {
            self.tree.insert_file(&path, format!("{value}\n"));
        };
        put(paths::cpu_online(), online);
        put(paths::node_file(NodeId(0), "cpulist"), online);
        for cpu in online.iter() {
            let core = cpu.0 % self.cores;
            let siblings = online.iter().filter(|other| other.0 % self.cores == core);
            let siblings: CpuSet = siblings.collect();
            put(paths::cpu_file(cpu, "topology/core_id"), &core);
            put(paths::cpu_file(cpu, "topology/physical_package_id"), &0);
            put(paths::cpu_file(cpu, "topology/core_cpus_list"), &siblings);
            put(paths::cpu_file(cpu, "topology/thread_siblings_list"), &siblings);
            put(paths::cpu_file(cpu, "topology/package_cpus_list"), online);
        }
        for cpu in self.possible.difference(&self.online).iter() {
            self.tree.remove(&paths::cpu_file(cpu, "topology"));
        }
    }

    /// Takes CPUs offline or online. v1 groups lose CPUs that go offline, and do not get them back;
    /// tasks of a group without CPUs move to the parent (`cpuset1_hotplug_update_tasks`).
    pub(super) fn set_online(&mut self, online: &CpuSet) {
        self.online = online.intersection(&self.possible);
        self.show_topology();
        for (path, rule) in &self.rules {
            if let WriteRule::Online(pu) = rule {
                let shown = u8::from(self.online.contains(*pu));
                self.tree.insert_file(path, format!("{shown}\n"));
            }
        }
        let Some(hierarchy) = self.hierarchies.get_mut(self.cpuset_index) else {
            return;
        };
        if hierarchy.version != CgroupVersion::V1 {
            return;
        }
        for (path, group) in &mut hierarchy.groups {
            group.cpuset.cpus = if path == "/" {
                self.online.clone()
            } else {
                group.cpuset.cpus.intersection(&self.online)
            };
        }
        let index = self.cpuset_index;
        let tids: Vec<Tid> = self.tasks.keys().copied().collect();
        for tid in tids {
            let Some(held) = self.tasks.get(&tid) else {
                continue;
            };
            let mut group = held.groups[index].clone();
            while self.cpus_of(&group).is_empty()
                && let Some(above) = parent(&group)
            {
                group = above.to_owned();
            }
            self.place_tasks(index, &group, &[tid]);
        }
    }

    /// Stop and continue change the state letters; the other signals end a process.
    pub(super) fn signal(&mut self, process: TaskId, signal: Signaled) -> Result<(), Errno> {
        let held = self.tasks.get(&process.tid).ok_or(Errno::SRCH)?;
        if held.task.start_time != process.start_time {
            return Err(Errno::SRCH);
        }
        let tgid = held.task.tgid;
        let stopped = match signal {
            Signaled::Stop => true,
            Signaled::Continue => false,
            Signaled::Terminate
            | Signaled::Kill
            | Signaled::Interrupt
            | Signaled::HangUp
            | Signaled::Quit
            | Signaled::Alarm
            | Signaled::User1
            | Signaled::User2
            | Signaled::Pipe => {
                self.tasks.retain(|_, held| held.task.tgid != tgid);
                return Ok(());
            }
        };
        for held in self.tasks.values_mut().filter(|held| held.task.tgid == tgid) {
            match (stopped, held.task.state) {
                (true, _) => held.task.state = 'T',
                (false, 'T') => held.task.state = 'S',
                (false, _) => {}
            }
        }
        Ok(())
    }

    /// Moves pages of a process; returns the number of pages that stay because they are in use.
    pub(super) fn migrate_pages(
        &mut self,
        pid: Tid,
        from: &[NodeId],
        to: &[NodeId],
    ) -> Result<u64, Errno> {
        let goal = *to.iter().find(|node| self.mems.contains(PuId(node.0))).ok_or(Errno::INVAL)?;
        let task = &mut self.tasks.get_mut(&pid).ok_or(Errno::SRCH)?.task;
        let mut left = 0;
        for node in from.iter().filter(|node| !to.contains(node)) {
            let Some(pages) = task.pages.get_mut(node) else { continue };
            let moved = pages.movable;
            pages.movable = 0;
            left += pages.in_use;
            task.pages.entry(goal).or_default().movable += moved;
        }
        Ok(left)
    }

    /// Content of a cpufreq file after this text was written to it.
    fn cpufreq(&self, path: &str, rule: WriteRule, text: &str) -> Result<String, Errno> {
        let taken = if rule == WriteRule::Governor {
            let known = self.read_sibling(path, "scaling_available_governors");
            known.split_whitespace().any(|word| word == text)
        } else {
            self.read_sibling(path, "scaling_governor").trim() == "userspace"
                && parse::unsigned(text).is_ok()
        };
        if taken { Ok(format!("{text}\n")) } else { Err(Errno::INVAL) }
    }

    /// Content of another file in the same directory; empty if there is none.
    fn read_sibling(&self, path: &str, name: &str) -> String {
        let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
        self.tree.read_text(&format!("{directory}/{name}")).unwrap_or_default()
    }

    /// Writes to a file outside of the cgroup hierarchies.
    pub(super) fn write_tunable(&mut self, path: &str, text: &str) -> Result<(), Errno> {
        let path = self.tree.canonical(path)?;
        let Some(rule) = self.rules.get(&path).copied() else {
            return Err(match self.tree.file_mut(&path) {
                Ok(_) => Errno::ACCESS,
                Err(errno) => errno,
            });
        };
        if text.is_empty() {
            return Ok(());
        }
        let bits = self.possible_bits();
        let shown = match rule {
            WriteRule::Online(pu) => {
                let mut set = self.online.clone();
                match text.trim() {
                    "0" if set.len() == 1 && set.contains(pu) => return Err(Errno::BUSY),
                    "0" => set.remove(pu),
                    "1" => set.insert(pu),
                    _ => return Err(Errno::INVAL),
                }
                self.set_online(&set);
                format!("{}\n", text.trim())
            }
            WriteRule::Smt(cores) => {
                let set = match text.trim() {
                    "on" => self.possible.clone(),
                    "off" => self.online.intersection(&CpuSet::first_n(cores)),
                    _ => return Err(Errno::INVAL),
                };
                self.set_online(&set);
                format!("{}\n", text.trim())
            }
            WriteRule::Text => text.to_owned(),
            WriteRule::Integer => format!("{}\n", parse::signed(text.trim())?),
            WriteRule::Mask => {
                format!("{}\n", self.require_online(parse::mask(text, bits)?)?.to_mask())
            }
            WriteRule::List => format!("{}\n", self.require_online(parse::list(text, bits)?)?),
            WriteRule::Managed => return Err(Errno::IO),
            WriteRule::Choice => choice(self.tree.file_mut(&path)?, text.trim())?,
            WriteRule::Governor | WriteRule::Frequency => self.cpufreq(&path, rule, text.trim())?,
            WriteRule::Steps(step) => format!("{}\n", parse::unsigned(text.trim())? / step * step),
            WriteRule::Pool(most) => format!("{}\n", parse::unsigned(text.trim())?.min(most)),
        };
        let content = self.tree.file_mut(&path)?;
        *content = shown.into_bytes();
        Ok(())
    }

    fn require_online(&self, set: CpuSet) -> Result<CpuSet, Errno> {
        let usable = !set.is_disjoint(&self.online);
        if usable { Ok(set) } else { Err(Errno::INVAL) }
    }
}

/// Content such as `always [madvise] never` after a word was selected.
fn choice(now: &[u8], chosen: &str) -> Result<String, Errno> {
    let words = String::from_utf8_lossy(now).replace(['[', ']'], "");
    if !words.split_whitespace().any(|word| word == chosen) {
        return Err(Errno::INVAL);
    }
    let shown = words
        .split_whitespace()
        .map(|word| if word == chosen { format!("[{word}]") } else { word.to_owned() });
    Ok(format!("{}\n", shown.collect::<Vec<_>>().join(" ")))
}
