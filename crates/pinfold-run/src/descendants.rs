//! What a command leaves in the background.
//!
//! The command is in a cgroup of its own, if this user can make one, and this process is the child
//! subreaper: descendants that lost their parents become its children.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_apply::CommandGroup;
use pinfold_host::proc_stat::ProcStat;
use pinfold_host::process::{self, Signaled};
use pinfold_host::{Clock as _, Host as _, HostMut as _, LiveHost, SystemClock, paths, proc_stat};
use pinfold_model::text::{count_noun, select_verb};
use pinfold_model::{CpuSet, TaskId, Tid};

use crate::message::say;
use crate::{Exit, Failure};

/// Time between SIGTERM and SIGKILL, and between two checks.
const TERMINATE_NS: u64 = 2_000_000_000;
const KILL_NS: u64 = 5_000_000_000;
const PAUSE_NS: u64 = 10_000_000;
/// Maximum number of processes that are named.
const NAMED: usize = 8;
/// Maximum number of passes over what is left.
const MAX_PASSES: usize = 32;

/// What to do with them when the command has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLeft {
    /// They keep running, with the CPUs that they had before.
    Release,
    /// They are ended.
    Kill,
}

/// The descendants of a command.
pub(crate) struct Descendants {
    group: Option<CommandGroup>,
    /// Processes of Pinfold's own.
    own: BTreeSet<Tid>,
}

impl Descendants {
    /// Those of a command that has not been let go yet.
    pub(crate) fn read(
        host: &LiveHost,
        command: Tid,
        group: Option<CommandGroup>,
    ) -> Result<Self, Failure> {
        let own = below_this(host)?.into_iter().map(|stat| stat.tid);
        Ok(Self { group, own: own.filter(|pid| *pid != command).collect() })
    }

    /// Those of a command that is started next.
    pub(crate) fn of_next(host: &LiveHost) -> Result<Self, Failure> {
        let own = below_this(host)?.into_iter().map(|stat| stat.tid).collect();
        Ok(Self { group: None, own })
    }

    /// Reaps adopted processes that have ended.
    pub(crate) fn reap(&self, host: &LiveHost, command: Tid) -> Result<(), Failure> {
        if !process::has_ended_child() {
            return Ok(());
        }
        let this = process::own_pid();
        for stat in below_this(host)? {
            let is_adopted = stat.ppid == this && stat.tid != command;
            if is_adopted && stat.has_ended() && !self.own.contains(&stat.tid) {
                process::reap(stat.tid);
            }
        }
        Ok(())
    }

    /// The processes that run.
    fn list(&self, host: &LiveHost) -> Result<Vec<TaskId>, Failure> {
        let found = below_this(host)?.into_iter();
        let found = found.filter(|stat| !stat.has_ended() && !self.own.contains(&stat.tid));
        let mut tasks: BTreeSet<TaskId> = found.map(|stat| stat.task()).collect();
        if let Some(group) = &self.group {
            tasks.extend(group.processes(host)?);
        }
        Ok(tasks.into_iter().collect())
    }

    /// Names what the command left, and ends it if asked.
    pub(crate) fn settle(&self, host: &LiveHost, on_left: OnLeft) -> Result<(), Failure> {
        let left = self.list(host)?;
        if left.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = left
            .iter()
            .take(NAMED)
            .map(|task| match proc_stat::read(host, task.tid) {
                Ok(Some(stat)) => {
                    format!("{} ({})", task.tid, pinfold_model::escape::name(&stat.comm))
                }
                Ok(None) | Err(_) => task.tid.to_string(),
            })
            .collect();
        let more = left.len().saturating_sub(NAMED);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let count = count_noun(left.len(), "process");
        let what = match on_left {
            OnLeft::Release => format!(
                "{} in the background, on the CPUs that it had before",
                select_verb(left.len(), "continues", "continue")
            ),
            OnLeft::Kill => format!("{} ended", select_verb(left.len(), "is", "are")),
        };
        say(&format!("{count} of the command {what}: {}{more}", names.join(", ")));
        match on_left {
            OnLeft::Release => Ok(()),
            OnLeft::Kill => self.end(host),
        }
    }

    /// Gives the threads that have exactly the CPUs `inside` those of `before`, until a pass finds
    /// none. Where no cpuset holds a command, its mask would stay.
    pub(crate) fn widen(
        &self,
        host: &LiveHost,
        inside: &CpuSet,
        before: &CpuSet,
    ) -> Result<(), Failure> {
        for _ in 0..MAX_PASSES {
            let mut changed = 0;
            for tid in self.threads(host)? {
                if host.affinity(tid).is_ok_and(|mask| mask == *inside && mask != *before) {
                    match host.set_affinity(tid, before) {
                        Err(error) if !error.is_gone() => return Err(error.into()),
                        Ok(()) | Err(_) => changed += 1,
                    }
                }
            }
            if changed == 0 {
                return Ok(());
            }
        }
        Err(Failure::new(
            Exit::Residue,
            "new processes of the command appear faster than they can be released",
        ))
    }

    /// The threads of the processes that run.
    fn threads(&self, host: &LiveHost) -> Result<Vec<Tid>, Failure> {
        let mut threads = Vec::new();
        for task in self.list(host)? {
            match host.list(&paths::task_dir(task.tid)) {
                Ok(names) => {
                    threads.extend(names.iter().filter_map(|tid| tid.parse().ok()).map(Tid))
                }
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(threads)
    }

    fn end(&self, host: &LiveHost) -> Result<(), Failure> {
        let began = SystemClock.now_ns();
        let mut asked = BTreeSet::new();
        loop {
            let left = self.list(host)?;
            let waited = SystemClock.now_ns().saturating_sub(began);
            if left.is_empty() || waited > KILL_NS {
                return Ok(());
            }
            for task in left {
                let signal =
                    if waited < TERMINATE_NS { Signaled::Terminate } else { Signaled::Kill };
                if signal == Signaled::Kill || asked.insert(task) {
                    match host.signal(task, signal) {
                        Err(error) if !error.is_gone() => return Err(error.into()),
                        Ok(()) | Err(_) => {}
                    }
                }
            }
            SystemClock.sleep_ns(PAUSE_NS);
            self.reap(host, process::own_pid())?;
        }
    }
}

/// The descendants of this process, without it.
fn below_this(host: &LiveHost) -> Result<Vec<ProcStat>, Failure> {
    let mut processes = BTreeMap::new();
    for name in host.list(&paths::proc_dir())? {
        let Ok(pid) = name.parse() else { continue };
        if let Some(stat) = proc_stat::read(host, Tid(pid))? {
            processes.insert(stat.tid, stat);
        }
    }
    let this = process::own_pid();
    let is_below = |stat: &ProcStat| {
        let mut at = stat.ppid;
        // A chain of parents is no longer than there are processes.
        for _ in 0..processes.len() {
            if at == this {
                return true;
            }
            let Some(parent) = processes.get(&at) else { return false };
            at = parent.ppid;
        }
        false
    };
    Ok(processes.values().filter(|stat| is_below(stat)).cloned().collect())
}
