//! The simulated machine: faults, tasks, and its state as text.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pinfold_host::Host as _;
use pinfold_model::{CpuSet, Tid};
use rustix::io::Errno;

use super::SimTask;
use super::machine::cgroup::GroupFile;
use super::machine::{Machine, TaskGroups};

/// A simulated machine.
///
/// ```
/// use pinfold_host::{Host, HostMut};
/// use pinfold_model::{CpuSet, Tid};
/// use pinfold_sim::{CgroupVersion, SimHost, SimTask};
///
/// let host = SimHost::builder(CgroupVersion::V2, 4).task(SimTask::new(7, "bash")).build();
/// host.set_affinity(Tid(7), &CpuSet::first_n(2))?;
/// assert_eq!(host.affinity(Tid(7))?.to_string(), "0-1");
/// // As the kernel does, it refuses a mask without a CPU that exists.
/// assert!(host.set_affinity(Tid(7), &CpuSet::new()).is_err());
/// # Ok::<(), pinfold_host::HostError>(())
/// ```
#[derive(Debug)]
pub struct SimHost {
    state: Mutex<State>,
}

#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) machine: Machine,
    faults: Vec<(String, i32)>,
    /// Number of changes that are still accepted, and the error of later ones.
    stop: Option<(usize, i32)>,
    changes: Vec<String>,
}

impl Clone for SimHost {
    /// A second machine in the same state, independent of the first.
    fn clone(&self) -> Self {
        Self { state: Mutex::new(self.state().clone()) }
    }
}

impl SimHost {
    pub(super) fn from_machine(machine: Machine) -> Self {
        let state = State { machine, faults: Vec::new(), stop: None, changes: Vec::new() };
        Self { state: Mutex::new(state) }
    }

    /// Makes every operation fail whose description contains this text. A description is the
    /// trait's method and its arguments: `write /sys/fs/cgroup/cpuset/a/tasks 42`,
    /// `set_affinity 42`, `read /proc/42/stat`.
    pub fn fail_on(&self, part: &str, errno: i32) {
        self.state().faults.push((part.to_owned(), errno));
    }

    /// Accepts this number of further changes, then refuses all.
    pub fn fail_after(&self, changes: usize, errno: i32) {
        self.state().stop = Some((changes, errno));
    }

    /// Removes all injected faults.
    pub fn clear_faults(&self) {
        let mut state = self.state();
        state.faults.clear();
        state.stop = None;
    }

    /// Descriptions of the changes made so far, in order.
    pub fn changes(&self) -> Vec<String> {
        self.state().changes.clone()
    }

    /// Adds a task. Its group must exist, otherwise it is in the root. A task with the same TID is
    /// replaced.
    pub fn add_task(&self, task: SimTask) {
        let mut state = self.state();
        let machine = &mut state.machine;
        let mut groups = vec!["/".to_owned(); machine.hierarchies.len()];
        let index = machine.cpuset_index;
        if machine.hierarchies[index].groups.contains_key(&task.group) {
            groups[index].clone_from(&task.group);
        }
        machine.newest = task.tid;
        machine.tasks.insert(task.tid, TaskGroups { task, groups });
    }

    /// Creates a process with its parent's groups, mask and policy. False if the parent does not
    /// exist.
    pub fn fork(&self, parent: Tid, child: Tid) -> bool {
        self.spawn_task(parent, |parent, start_time| SimTask {
            tid: child,
            tgid: child,
            ppid: parent.tgid,
            start_time,
            ..parent
        })
    }

    /// Creates a thread with the groups, mask and policy of its creator. False if the creator does
    /// not exist.
    pub fn clone_thread(&self, creator: Tid, thread: Tid) -> bool {
        self.spawn_task(creator, |creator, start_time| SimTask {
            tid: thread,
            start_time,
            ..creator
        })
    }

    fn spawn_task(&self, from: Tid, make: impl FnOnce(SimTask, u64) -> SimTask) -> bool {
        let mut state = self.state();
        let machine = &mut state.machine;
        let latest = machine.tasks.values().map(|held| held.task.start_time).max().unwrap_or(0);
        let Some(held) = machine.tasks.get(&from).cloned() else {
            return false;
        };
        let task = make(held.task, latest + 1);
        machine.newest = task.tid;
        machine.tasks.insert(task.tid, TaskGroups { task, groups: held.groups });
        true
    }

    /// Ends a thread. With the first thread its whole process ends, whose children are reparented
    /// to init.
    pub fn exit(&self, tid: Tid) {
        let mut state = self.state();
        state.machine.tasks.retain(|_, held| held.task.tid != tid && held.task.tgid != tid);
        for held in state.machine.tasks.values_mut().filter(|held| held.task.ppid == tid) {
            held.task.ppid = Tid(1);
        }
    }

    /// The current state of a task.
    pub fn task(&self, tid: Tid) -> Option<SimTask> {
        let state = self.state();
        let index = state.machine.cpuset_index;
        state.machine.tasks.get(&tid).map(|held| {
            let mut task = held.task.clone();
            task.group.clone_from(&held.groups[index]);
            task
        })
    }

    /// Changes a task without any rule (counters, name, state), as the kernel itself would. Its
    /// group and TID stay. False if there is no such task.
    pub fn edit_task(&self, tid: Tid, edit: impl FnOnce(&mut SimTask)) -> bool {
        let mut state = self.state();
        let Some(held) = state.machine.tasks.get_mut(&tid) else {
            return false;
        };
        edit(&mut held.task);
        held.task.tid = tid;
        true
    }

    /// Takes CPUs offline or online, so that these are online.
    pub fn set_online(&self, online: &CpuSet) {
        self.state().machine.set_online(online);
    }

    /// Creates a file without any rule, as the kernel or another program would.
    pub fn set_file(&self, path: &str, content: &str) {
        self.state().machine.tree.insert_file(path, content);
    }

    /// Everything that a change could modify, as text: each group's writable files, each other
    /// writable file, each task's groups, mask and policy. Equal snapshots mean equal machines.
    pub fn snapshot(&self) -> String {
        let state = self.state();
        let machine = &state.machine;
        let mut text = String::new();
        for (index, hierarchy) in machine.hierarchies.iter().enumerate() {
            for group in hierarchy.groups.keys() {
                for name in machine.file_names(index, group) {
                    // Members are shown with the tasks below.
                    if matches!(name.as_str(), "tasks" | "cgroup.procs" | "cgroup.threads") {
                        continue;
                    }
                    if let Ok(content) =
                        machine.read_group_file(GroupFile { index, group, name: &name })
                    {
                        let path = format!("{}{group}", hierarchy.mount);
                        text.push_str(&format!(
                            "{}/{name}: {content:?}\n",
                            path.trim_end_matches('/')
                        ));
                    }
                }
            }
        }
        for path in machine.rules.keys() {
            if let Ok(content) = machine.tree.read_text(path) {
                text.push_str(&format!("{path}: {content:?}\n"));
            }
        }
        text.push_str(&machine.resctrl_text());
        for (setting, kept) in &machine.settings {
            text.push_str(&format!("{setting}: {:?}, by file {:?}\n", kept.value, kept.drop_in));
        }
        for (tid, held) in &machine.tasks {
            text.push_str(&format!(
                "task {tid} ({}): groups {}, mask {}, policy {}, nice {}\n",
                held.task.comm,
                held.groups.join(" "),
                machine.mask(held).intersection(&machine.online),
                held.task.policy,
                held.task.nice
            ));
        }
        text
    }

    // A test that panicked while holding the lock has failed anyway.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks for injected faults, then queries the machine.
    pub(super) fn ask<T>(
        &self,
        description: &str,
        answer: impl FnOnce(&Machine) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let state = self.state();
        state.plant(description)?;
        answer(&state.machine)
    }

    /// Checks for injected faults, then makes the change and counts it.
    pub(super) fn alter(
        &self,
        description: String,
        change: impl FnOnce(&mut Machine) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut state = self.state();
        state.plant(&description)?;
        if let Some((left, errno)) = &mut state.stop {
            if *left == 0 {
                return Err(Errno::from_raw_os_error(*errno));
            }
            *left -= 1;
        }
        state.machine.changing(change)?;
        state.changes.push(description);
        Ok(())
    }
}

impl State {
    fn plant(&self, description: &str) -> Result<(), Errno> {
        match self.faults.iter().find(|(part, _)| description.contains(part.as_str())) {
            Some((_, errno)) => Err(Errno::from_raw_os_error(*errno)),
            None => Ok(()),
        }
    }
}
