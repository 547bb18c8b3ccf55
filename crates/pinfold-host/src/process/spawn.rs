//! Starts a child with all settings active before its first instruction.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use pinfold_model::{CpuSet, NodeId, Policy, TaskId, Tid};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::Signal;

use super::Child;
use crate::{HostError, paths, proc_stat, raw};

/// Destination or source of a standard stream of a child.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stdio {
    /// A pipe, taken from the [`Child`].
    Pipe,
    /// `/dev/null`.
    Null,
    /// The parent's stream.
    #[default]
    Inherit,
}

impl From<Stdio> for std::process::Stdio {
    fn from(stdio: Stdio) -> Self {
        match stdio {
            Stdio::Pipe => std::process::Stdio::piped(),
            Stdio::Null => std::process::Stdio::null(),
            Stdio::Inherit => std::process::Stdio::inherit(),
        }
    }
}

/// A child that is about to be started.
#[derive(Debug)]
pub struct Spawn {
    pub(super) program: String,
    command: Command,
    is_missing: bool,
    die_with_parent: bool,
    own_group: bool,
    apart: bool,
    affinity: Option<CpuSet>,
    memory_node: Option<NodeId>,
    cgroup_files: Vec<String>,
    policy: Option<Policy>,
}

impl Spawn {
    /// A child that runs this program (that of [`find_program`](super::find_program) if it has no
    /// slash), with the parent's standard streams.
    pub fn new(program: &str) -> Self {
        let found = super::find_program(program).filter(|_| !program.contains('/'));
        // `exec` would search a name without a slash again, also in relative parts of `PATH`.
        let is_missing = found.is_none() && !program.contains('/');
        let mut command = Command::new(found.as_deref().unwrap_or(program));
        command.arg0(program);
        Self {
            program: program.to_owned(),
            command,
            is_missing,
            die_with_parent: false,
            own_group: false,
            apart: false,
            affinity: None,
            memory_node: None,
            cgroup_files: Vec::new(),
            policy: None,
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: AsRef<std::ffi::OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.command.args(args);
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.command.env(key, value);
        self
    }

    /// Sets its working directory.
    #[must_use]
    pub fn current_dir(mut self, path: &str) -> Self {
        self.command.current_dir(path);
        self
    }

    /// Source of its standard input.
    #[must_use]
    pub fn stdin(mut self, stdio: Stdio) -> Self {
        self.command.stdin(stdio);
        self
    }

    /// Destination of its standard output.
    #[must_use]
    pub fn stdout(mut self, stdio: Stdio) -> Self {
        self.command.stdout(stdio);
        self
    }

    /// Destination of its standard error.
    #[must_use]
    pub fn stderr(mut self, stdio: Stdio) -> Self {
        self.command.stderr(stdio);
        self
    }

    /// Whether the kernel kills it when the parent ends.
    ///
    /// The parent is the *thread* that starts it (`PR_SET_PDEATHSIG`): use a thread that lives as
    /// long as the child should. The kernel clears the setting when a set-user-ID program is
    /// executed.
    #[must_use]
    pub fn die_with_parent(mut self, yes: bool) -> Self {
        self.die_with_parent = yes;
        self
    }

    /// Makes it the leader of its own process group: Ctrl-C of the terminal does not reach it, and
    /// [`Child::kill`] also kills its descendants.
    #[must_use]
    pub fn own_group(mut self) -> Self {
        self.own_group = true;
        self
    }

    /// Makes it the leader of its own session, without a terminal, in the root directory, and
    /// without the descriptors that this process has inherited: nothing of the caller waits for its
    /// end. Descriptors stay open on kernels before 5.11. Not with [`Self::own_group`].
    #[must_use]
    pub fn detach(mut self) -> Self {
        self.apart = true;
        self.current_dir("/")
    }

    /// The CPUs on which it may run.
    #[must_use]
    pub fn affinity(mut self, mask: CpuSet) -> Self {
        self.affinity = Some(mask);
        self
    }

    /// The NUMA node to which its memory is bound (`MPOL_BIND`); `None` inherits the parent's
    /// policy.
    #[must_use]
    pub fn memory_node(mut self, node: Option<NodeId>) -> Self {
        self.memory_node = node;
        self
    }

    /// Files of the cgroups that it joins, in this order (`tasks` of v1, `cgroup.procs` of v2).
    #[must_use]
    pub fn cgroup_files(mut self, paths: Vec<String>) -> Self {
        self.cgroup_files = paths;
        self
    }

    /// Its scheduling policy; `None` inherits the parent's.
    #[must_use]
    pub fn policy(mut self, policy: Option<Policy>) -> Self {
        self.policy = policy;
        self
    }

    /// Starts it. When this returns, its `exec` has succeeded.
    ///
    /// # Errors
    /// [`HostError::Process`] if it cannot be started, [`HostError::File`] if it cannot join a
    /// cgroup, [`HostError::Thread`] if the kernel refuses affinity, memory node or policy.
    pub fn start(mut self) -> Result<Child, HostError> {
        if self.own_group {
            self.command.process_group(0);
        }
        let report = self.prepare()?;
        let inner = self.command.spawn().map_err(|source| self.fault(&report, source))?;
        let task = TaskId { tid: Tid(inner.id()), start_time: 0 };
        let mut child = Child::new(self.program, task, inner, self.own_group);
        let start_time = start_time_of(child.pid())?;
        child.set_start_time(start_time);
        Ok(child)
    }

    /// Replaces this process with the program (`exec`), so that signals, the terminal and the exit
    /// code are the program's. Returns only on failure.
    #[must_use]
    pub fn replace_self(mut self) -> HostError {
        match self.prepare() {
            Ok(report) => {
                let source = self.command.exec();
                self.fault(&report, source)
            }
            Err(error) => error,
        }
    }

    /// Installs the hook that runs before `exec`; returns the pipe that reports a failed stage.
    fn prepare(&mut self) -> Result<OwnedFd, HostError> {
        if self.is_missing {
            let source = Errno::NOENT.into();
            return Err(HostError::Process { program: self.program.clone(), source });
        }
        let (report, hook) = self.hook()?;
        raw::before_exec(&mut self.command, hook);
        Ok(report)
    }

    fn fault(&self, report: &OwnedFd, source: io::Error) -> HostError {
        match failed_stage(report) {
            Some(stage) => stage.fault(&self.program, &self.cgroup_files, source),
            None => HostError::Process { program: self.program.clone(), source },
        }
    }

    /// The settings that the child applies to itself before `exec`, and the pipe on which it
    /// reports the failed stage. Everything that allocates is done here, before the fork.
    fn hook(
        &self,
    ) -> Result<(OwnedFd, impl FnMut() -> io::Result<()> + Send + Sync + 'static), HostError> {
        let (report, failures) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|errno| HostError::file("open", "a pipe", errno))?;
        let mut groups = Vec::with_capacity(self.cgroup_files.len());
        for path in &self.cgroup_files {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let group = rustix::fs::open(path.as_str(), flags, Mode::empty())
                .map_err(|errno| HostError::file("open", path, errno))?;
            groups.push(group);
        }
        let affinity = self.affinity.clone();
        let (memory_node, policy) = (self.memory_node, self.policy);
        let (parent, apart) = (self.die_with_parent.then(rustix::process::getpid), self.apart);
        Ok((report, move || {
            let stage = |stage: SpawnStage, result: io::Result<()>| {
                if result.is_err() {
                    // If this fails too, the parent still has the error number.
                    match rustix::io::write(failures.as_fd(), &[stage.byte()]) {
                        Ok(_) | Err(_) => {}
                    }
                }
                result
            };
            if let Some(parent) = parent {
                stage(SpawnStage::Parent, die_with(parent))?;
            }
            if apart {
                let session = rustix::process::setsid().map(|_| ()).map_err(io::Error::from);
                stage(SpawnStage::Session, session)?;
                raw::close_at_exec();
            }
            for (index, group) in (0_u8..).zip(&groups) {
                // 0 means the writing process itself.
                let entered = rustix::io::write(group, b"0").map(|_| ()).map_err(io::Error::from);
                stage(SpawnStage::Group(index), entered)?;
            }
            if let Some(mask) = &affinity {
                stage(SpawnStage::Affinity, raw::sched_setaffinity(Tid(0), mask))?;
            }
            if let Some(node) = memory_node {
                stage(SpawnStage::Memory, raw::bind_memory(node))?;
            }
            if let Some(policy) = policy {
                let set = raw::sched_getattr(Tid(0))
                    .and_then(|current| raw::sched_setattr(Tid(0), &current.with_policy(policy)));
                stage(SpawnStage::Policy, set)?;
            }
            Ok(())
        }))
    }
}

/// Requests `SIGKILL` at the parent's end, and checks whether the parent ended between the fork and
/// the request; then no signal would ever come.
fn die_with(parent: rustix::process::Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
}

/// The byte of the first group; those of other stages are smaller.
const FIRST_GROUP: u8 = 16;

/// The setting that a child was applying when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpawnStage {
    Parent,
    Affinity,
    Policy,
    Memory,
    Session,
    Group(u8),
}

impl SpawnStage {
    fn byte(self) -> u8 {
        match self {
            SpawnStage::Parent => 0,
            SpawnStage::Affinity => 1,
            SpawnStage::Policy => 2,
            SpawnStage::Memory => 3,
            SpawnStage::Session => 4,
            SpawnStage::Group(index) => index.saturating_add(FIRST_GROUP),
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => SpawnStage::Parent,
            1 => SpawnStage::Affinity,
            2 => SpawnStage::Policy,
            3 => SpawnStage::Memory,
            4 => SpawnStage::Session,
            FIRST_GROUP.. => SpawnStage::Group(byte - FIRST_GROUP),
            _ => return None,
        })
    }

    fn fault(self, program: &str, groups: &[String], source: io::Error) -> HostError {
        match self {
            SpawnStage::Parent => HostError::Process { program: program.to_owned(), source },
            SpawnStage::Affinity => HostError::Thread { call: "sched_setaffinity", tid: 0, source },
            SpawnStage::Policy => HostError::Thread { call: "sched_setattr", tid: 0, source },
            SpawnStage::Memory => HostError::Thread { call: "set_mempolicy", tid: 0, source },
            SpawnStage::Session => HostError::Thread { call: "setsid", tid: 0, source },
            SpawnStage::Group(index) => match groups.get(usize::from(index)) {
                Some(path) => HostError::file("write", path, source).with_value(b"0"),
                None => HostError::Process { program: program.to_owned(), source },
            },
        }
    }
}

fn failed_stage(report: &OwnedFd) -> Option<SpawnStage> {
    let mut byte = [0];
    match rustix::io::read(report, &mut byte) {
        Ok(1) => SpawnStage::from_byte(byte[0]),
        Ok(_) | Err(_) => None,
    }
}

/// A child that was not reaped still has its `stat`, even as a zombie.
fn start_time_of(pid: Tid) -> Result<u64, HostError> {
    let path = paths::process_stat(pid);
    let file = rustix::fs::open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno: Errno| HostError::file("read", &path, errno))?;
    let bytes = crate::fd::read_to_end(&file)
        .map_err(|errno: Errno| HostError::file("read", &path, errno))?;
    proc_stat::parse(&String::from_utf8_lossy(&bytes))
        .map(|stat| stat.start_time)
        .map_err(|error| error.at(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_is_read_from_its_byte() {
        let each = std::iter::successors(Some(SpawnStage::Parent), |stage| match stage {
            SpawnStage::Parent => Some(SpawnStage::Affinity),
            SpawnStage::Affinity => Some(SpawnStage::Policy),
            SpawnStage::Policy => Some(SpawnStage::Memory),
            SpawnStage::Memory => Some(SpawnStage::Session),
            SpawnStage::Session => Some(SpawnStage::Group(0)),
            SpawnStage::Group(0) => Some(SpawnStage::Group(7)),
            SpawnStage::Group(_) => None,
        });
        for stage in each {
            assert_eq!(SpawnStage::from_byte(stage.byte()), Some(stage));
        }
        assert_eq!(SpawnStage::from_byte(FIRST_GROUP - 1), None);
    }
}
