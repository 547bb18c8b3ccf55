//! What the steps of one pass are made from: a snapshot of the host.
//!
//! [`HostState::read`] begins with the machine's threads. What else the steps need depends on the
//! plan and on the values themselves, so each further value is read when the steps first need it,
//! and kept: in one pass a question has one answer, whichever module asks it. The modules of
//! `steps` take this state and have no access to the host.
//!
//! A thread that ends or a value that changes after it was read here is found by the read-back of
//! the step, or by the next pass, which takes a new snapshot.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use pinfold_host::mountinfo::{self, ControllerMount};
use pinfold_host::proc_stat::{self, ProcStat};
use pinfold_host::{Host, HostError, paths, proc_status, process};
use pinfold_model::{CpuSet, Policy, Setting, SettingsFile, TaskId, TaskState, Tid, Undo};

use crate::cpusets::{self, CPUSET, Cpusets, Hierarchy};
use crate::error::ApplyError;
use crate::files::Files;
use crate::journal::Record;
use crate::other_placements::OtherPlacements;
use crate::tasks::{self, Target};

/// The values of one host at one time, as far as they were needed.
pub(crate) struct HostState<'h> {
    /// The machine's process.
    pub(crate) vm: TaskId,
    /// The threads of that process in ascending order.
    pub(crate) listed: Vec<Tid>,
    /// The threads of the machines of other placements.
    pub(crate) placed: BTreeSet<Tid>,
    host: &'h dyn Host,
    hierarchy: &'h Hierarchy<'h>,
    cache: Cache,
}

/// The answers so far. A missing file, thread or group is an answer too: `None`.
#[derive(Default)]
struct Cache {
    files: Answers<String, Option<Vec<u8>>>,
    directories: Answers<String, Vec<String>>,
    paths: Answers<String, bool>,
    masks: Answers<Tid, Option<CpuSet>>,
    policies: Answers<Tid, Option<Policy>>,
    nices: Answers<Tid, Option<i8>>,
    settings: Answers<Setting, Option<Option<String>>>,
}

/// The answers to one kind of question.
struct Answers<K, V>(RefCell<BTreeMap<K, V>>);

impl<K, V> Default for Answers<K, V> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<K: Ord, V: Clone> Answers<K, V> {
    /// The answer about one object; `read` is called the first time.
    fn get_or_read<Q, E>(&self, object: &Q, read: impl FnOnce() -> Result<V, E>) -> Result<V, E>
    where
        K: Borrow<Q>,
        Q: Ord + ToOwned<Owned = K> + ?Sized,
    {
        if let Some(known) = self.0.borrow().get(object) {
            return Ok(known.clone());
        }
        let answer = read()?;
        self.0.borrow_mut().insert(object.to_owned(), answer.clone());
        Ok(answer)
    }

    /// Sets the answer about one object, unless it is known.
    fn set<Q>(&self, object: &Q, answer: V)
    where
        Q: ToOwned<Owned = K> + ?Sized,
    {
        self.0.borrow_mut().entry(object.to_owned()).or_insert(answer);
    }
}

impl<'h> HostState<'h> {
    /// Begins a snapshot.
    ///
    /// # Errors
    /// [`ApplyError::VmGone`], [`ApplyError::Host`].
    pub(crate) fn read(
        host: &'h dyn Host,
        hierarchy: &'h Hierarchy<'h>,
        target: &Target,
    ) -> Result<Self, ApplyError> {
        let pid = target.pid;
        let cache = Cache::default();
        let vm = TaskId { tid: pid, start_time: 0 };
        let placed = BTreeSet::new();
        let mut state = Self { vm, listed: Vec::new(), placed, host, hierarchy, cache };
        state.vm = state.stat(pid)?.ok_or(ApplyError::VmGone { pid })?.task();
        state.listed = match target.confirmed_threads(host) {
            Some(threads) => threads,
            None => state.threads_of(pid)?,
        };
        Ok(state)
    }

    /// The same host, on which the machines of other placements keep their CPUs.
    ///
    /// # Errors
    /// [`HostError`] if a process cannot be read.
    pub(crate) fn next_to(mut self, others: &OtherPlacements) -> Result<Self, HostError> {
        for machine in others.machines() {
            self.placed.extend(self.threads_of(machine.tid)?);
        }
        Ok(self)
    }

    /// The same host without the settings that a placement made: their values are the originals in
    /// its journal. Its groups exist, with the tasks that are in them.
    ///
    /// # Errors
    /// [`HostError`] if a thread cannot be read.
    pub(crate) fn without(mut self, placement: &Record) -> Result<Self, HostError> {
        let cache = Cache::default();
        for (index, step) in placement.steps() {
            if placement.is_void(index) {
                continue;
            }
            match &step.undo {
                Undo::WriteFile { path, original } => cache.files.set(path, Some(original.clone())),
                Undo::WriteSetting { setting, original, .. } => {
                    cache.settings.set(setting.as_ref(), Some(original.clone()));
                }
                Undo::SetAffinity { task, original } if self.is_alive(*task)? => {
                    cache.masks.set(&task.tid, Some(original.clone()));
                }
                Undo::SetPolicy { task, original, nice } if self.is_alive(*task)? => {
                    cache.policies.set(&task.tid, Some(*original));
                    if nice.is_some() {
                        cache.nices.set(&task.tid, *nice);
                    }
                }
                Undo::SetAffinity { .. }
                | Undo::SetPolicy { .. }
                | Undo::RemoveGroup { .. }
                | Undo::MoveTasks { .. }
                | Undo::LeavePages { .. }
                | Undo::ContinueProcesses { .. } => {}
            }
        }
        self.cache = cache;
        Ok(self)
    }

    /// False if this process may not write the kernel's files on that host.
    pub(crate) fn is_writable(&self) -> bool {
        !self.host.is_live() || process::is_root()
    }

    /// The hierarchy with the cpuset controller.
    pub(crate) fn cpusets(&self) -> Result<Option<&'h Cpusets>, HostError> {
        self.hierarchy.get_or_find(|| self.mount(CPUSET))
    }

    /// The mount of a controller.
    pub(crate) fn mount(&self, controller: &str) -> Result<Option<ControllerMount>, HostError> {
        mountinfo::controller_in(
            &mut |path: &str| {
                let bytes = self.read_required(path)?;
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            },
            controller,
        )
    }

    /// Major and minor number of the kernel.
    pub(crate) fn release(&self) -> Result<(u32, u32), HostError> {
        cpusets::parse_release(&self.read_required(&paths::kernel_release())?)
    }
}

/// Files and directories.
impl HostState<'_> {
    /// The content of a file.
    pub(crate) fn file(&self, path: &str) -> Result<Option<Vec<u8>>, HostError> {
        self.cache.files.get_or_read(path, || Files::file(self.host, path))
    }

    /// The content of a file as text.
    pub(crate) fn text(&self, path: &str) -> Result<Option<String>, HostError> {
        let bytes = self.file(path)?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// The content of a file that must exist.
    pub(crate) fn read_required(&self, path: &str) -> Result<Vec<u8>, HostError> {
        match self.file(path)? {
            Some(bytes) => Ok(bytes),
            // Only the host has the error.
            None => self.host.read(path),
        }
    }

    /// A list of CPUs or memory nodes in a file.
    pub(crate) fn cpu_list(&self, path: &str) -> Result<Option<CpuSet>, HostError> {
        self.file(path)?.map(|bytes| cpusets::parse(path, &bytes)).transpose()
    }

    /// The same where the file must exist.
    pub(crate) fn required_cpu_list(&self, path: &str) -> Result<CpuSet, HostError> {
        cpusets::parse(path, &self.read_required(path)?)
    }

    /// The names in a directory; empty if it does not exist.
    pub(crate) fn names(&self, path: &str) -> Result<Vec<String>, HostError> {
        self.cache.directories.get_or_read(path, || self.host.names(path))
    }

    /// True if a file or directory exists.
    pub(crate) fn exists(&self, path: &str) -> bool {
        let Ok(exists) = self
            .cache
            .paths
            .get_or_read(path, || Ok::<_, Infallible>(Host::exists(self.host, path)));
        exists
    }
}

/// Threads and processes.
impl HostState<'_> {
    /// `stat` of a thread; `None` if it has ended.
    pub(crate) fn stat(&self, tid: Tid) -> Result<Option<ProcStat>, HostError> {
        let stat = self.stat_at(&paths::task_stat(tid, tid))?;
        Ok(stat.filter(|stat| !stat.has_ended()))
    }

    /// True if this same thread still runs.
    pub(crate) fn is_alive(&self, task: TaskId) -> Result<bool, HostError> {
        match self.stat(task.tid)? {
            Some(stat) => Ok(stat.task() == task),
            // Whether its file is only hidden is a question for the host.
            None => tasks::is_alive(self.host, task),
        }
    }

    fn stat_at(&self, path: &str) -> Result<Option<ProcStat>, HostError> {
        let Some(text) = self.text(path)? else { return Ok(None) };
        proc_stat::parse(&text).map(Some).map_err(|error| error.at(path))
    }

    /// The mask of a thread.
    pub(crate) fn mask(&self, tid: Tid) -> Result<Option<CpuSet>, HostError> {
        self.cache.masks.get_or_read(&tid, || tasks::ignore_gone(self.host.affinity(tid)))
    }

    /// The mask that undo restores. That of a thread that may run on its whole cpuset is all CPUs:
    /// its cpuset may be narrower now than later, because another placement isolates its CPUs. Of
    /// another thread the kernel shows the mask without the CPUs that are offline, unless its
    /// status names them.
    pub(crate) fn mask_to_restore(&self, tid: Tid) -> Result<Option<CpuSet>, HostError> {
        let Some(mask) = self.mask(tid)? else { return Ok(None) };
        let present = self.required_cpu_list(&paths::cpu_present())?;
        if present.is_subset(&mask) {
            return Ok(Some(mask));
        }
        if self.allowed_cpus(tid)?.is_some_and(|allowed| allowed.is_subset(&mask)) {
            return Ok(Some(mask.union(&present)));
        }
        let offline = present.difference(&self.required_cpu_list(&paths::cpu_online())?);
        if offline.is_empty() {
            return Ok(Some(mask));
        }
        let path = paths::process_status(tid);
        let Some(text) = self.text(&path)? else { return Ok(None) };
        let status = proc_status::parse(&text).map_err(|error| error.at(&path))?;
        let hidden = status.cpus_allowed.unwrap_or_default().intersection(&offline);
        Ok(Some(mask.union(&hidden)))
    }

    /// The policy of a thread.
    pub(crate) fn policy(&self, tid: Tid) -> Result<Option<Policy>, HostError> {
        self.cache.policies.get_or_read(&tid, || tasks::ignore_gone(self.host.policy(tid)))
    }

    /// The nice value of a thread, also where its policy does not use it.
    pub(crate) fn nice(&self, tid: Tid) -> Result<Option<i8>, HostError> {
        self.cache.nices.get_or_read(&tid, || Ok(self.stat(tid)?.map(|stat| stat.nice)))
    }

    /// The threads of a process in ascending order; empty if it has ended.
    pub(crate) fn threads_of(&self, pid: Tid) -> Result<Vec<Tid>, HostError> {
        Ok(numbers(&self.names(&paths::task_dir(pid))?))
    }

    /// The threads of this process; empty if it does not run on that host.
    pub(crate) fn own_threads(&self) -> Result<Vec<Tid>, HostError> {
        match self.stat_at(&paths::own_stat())? {
            Some(own) => self.threads_of(own.tid),
            None => Ok(Vec::new()),
        }
    }

    /// All processes of the host, including kernel threads.
    pub(crate) fn processes(&self) -> Result<Vec<Tid>, HostError> {
        Ok(numbers(&self.names(&paths::proc_dir())?))
    }

    /// Everything about a task that a move may change; `None` if it has ended.
    pub(crate) fn task(&self, cpusets: &Cpusets, tid: Tid) -> Result<Option<TaskState>, HostError> {
        let Some(stat) = self.stat(tid)? else { return Ok(None) };
        let Some(group) = cpusets.group_of(self, tid)? else { return Ok(None) };
        let Some(mask) = self.mask_to_restore(tid)? else { return Ok(None) };
        let Some(policy) = self.policy(tid)? else { return Ok(None) };
        Ok(Some(TaskState {
            task: stat.task(),
            group: cpusets.relative_path(&group),
            mask,
            policy,
        }))
    }

    /// The CPUs that a thread's cpuset allows; `None` if the thread has ended.
    pub(crate) fn allowed_cpus(&self, tid: Tid) -> Result<Option<CpuSet>, HostError> {
        self.cpus_of_group(tid, |_, group| group.to_owned())
    }

    /// The CPUs that a thread of a machine may be given: those of its cpuset, or of its domain's if
    /// libvirt pins the thread by a cpuset of its own.
    pub(crate) fn limiting_cpus(&self, tid: Tid) -> Result<Option<CpuSet>, HostError> {
        self.cpus_of_group(tid, |cpusets, group| cpusets.limiting_group(group).to_owned())
    }

    fn cpus_of_group(
        &self,
        tid: Tid,
        select: impl Fn(&Cpusets, &str) -> String,
    ) -> Result<Option<CpuSet>, HostError> {
        let Some(cpusets) = self.cpusets()? else {
            return self.required_cpu_list(&paths::cpu_online()).map(Some);
        };
        if let Some(group) = cpusets.group_of(self, tid)?.map(|group| select(cpusets, &group))
            && let Some(allowed) = tasks::ignore_gone(cpusets.effective(self, &group))?
        {
            return Ok(Some(allowed));
        }
        // If its group is gone, it has ended or was moved since: that is a question for the host.
        cpusets.effective_of(self.host, tid)
    }
}

/// Settings of libvirt and systemd. Each costs a child process.
impl HostState<'_> {
    /// The value, if the object exists, or `None` for an object that has no such value.
    pub(crate) fn setting(&self, setting: &Setting) -> Result<Option<Option<String>>, HostError> {
        self.cache.settings.get_or_read(setting, || tasks::ignore_gone(self.host.setting(setting)))
    }

    /// The files in which the managing program stores the setting.
    pub(crate) fn setting_files(&self, setting: &Setting) -> Result<Vec<SettingsFile>, HostError> {
        self.host.setting_files(setting)
    }

    /// True if systemd manages the cgroup tree.
    pub(crate) fn has_systemd(&self) -> bool {
        self.exists(&paths::systemd_booted())
    }
}

impl Files for HostState<'_> {
    fn file(&self, path: &str) -> Result<Option<Vec<u8>>, HostError> {
        self.file(path)
    }

    fn read_required(&self, path: &str) -> Result<Vec<u8>, HostError> {
        self.read_required(path)
    }

    fn names(&self, path: &str) -> Result<Vec<String>, HostError> {
        self.names(path)
    }

    fn exists(&self, path: &str) -> bool {
        self.exists(path)
    }
}

/// The numbers among some names.
fn numbers(names: &[String]) -> Vec<Tid> {
    tasks::numbers(names.iter().map(String::as_str))
}
