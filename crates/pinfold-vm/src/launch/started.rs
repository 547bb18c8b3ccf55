//! The processes of a start, which are ended if the start fails.
//!
//! The program that was started need not become the hypervisor itself: `sudo` keeps running and
//! starts it as its child, and a script may start more than one program. A machine that is never
//! continued would stay stopped forever. So all of them are ended: the descendants of the started
//! program, and every process that has the path of this start's control socket among its
//! arguments.

use pinfold_host::proc_stat::{self, ProcStat};
use pinfold_host::process::{self, Signaled};
use pinfold_host::{Host, paths};
use pinfold_model::{TaskId, Tid};

use crate::hypervisor::Hypervisor;
use crate::threads::command_line;

/// The processes of one start.
pub(super) struct Started {
    /// Each process with its arguments.
    processes: Vec<(TaskId, Vec<String>)>,
    socket: String,
}

impl Started {
    /// Finds them; `root` is the process that was started.
    pub(super) fn find(host: &dyn Host, root: Tid, socket: &str) -> Self {
        let names = host.list(&paths::proc_dir()).unwrap_or_default();
        let numbers = names.iter().filter_map(|name| name.parse().ok().map(Tid));
        // A process that cannot be read has just ended.
        let stats = numbers.filter_map(|pid| proc_stat::read(host, pid).ok().flatten());
        let mut all: Vec<ProcStat> = stats.filter(|stat| !stat.is_kernel_thread()).collect();
        all.sort_by_key(|stat| stat.start_time);
        let mut family = vec![root];
        // A parent is older than its children, unless they were reparented; hence two passes.
        for _ in 0..2 {
            for stat in &all {
                if family.contains(&stat.ppid) && !family.contains(&stat.tid) {
                    family.push(stat.tid);
                }
            }
        }
        let socket = socket.to_owned();
        let with_arguments =
            all.iter().map(|stat| (stat.task(), command_line(host, stat.tid).unwrap_or_default()));
        let processes = with_arguments
            .filter(|(task, words)| family.contains(&task.tid) || names_socket(words, &socket))
            .collect();
        Self { processes, socket }
    }

    /// A process of the hypervisor that was not given Pinfold's arguments.
    pub(super) fn without_socket(&self, hypervisor: &dyn Hypervisor) -> Option<Tid> {
        let found = self
            .processes
            .iter()
            .find(|(_, words)| program(hypervisor, words) && !names_socket(words, &self.socket));
        found.map(|(task, _)| task.tid)
    }

    /// Ends all of them except `root`, which the caller ends.
    pub(super) fn end(&self, host: &dyn Host, root: Tid) {
        for (task, _) in self.processes.iter().filter(|(task, _)| task.tid != root) {
            end(host, *task);
        }
    }
}

fn program(hypervisor: &dyn Hypervisor, words: &[String]) -> bool {
    words.first().is_some_and(|word| hypervisor.is_program(word.rsplit('/').next().unwrap_or(word)))
}

fn names_socket(words: &[String], socket: &str) -> bool {
    words.iter().any(|word| word.contains(socket))
}

fn end(host: &dyn Host, task: TaskId) {
    if process::task_alive(host, task).unwrap_or(false) {
        // It has ended meanwhile, or belongs to another user.
        match process::signal(task.tid, Signaled::Kill) {
            Ok(()) | Err(_) => {}
        }
    }
}

/// A hypervisor that is not the child itself (sudo, a script); ended on drop.
pub(super) struct Grandchild {
    /// The process; `None` if it must continue to run, or is the child.
    pub(super) task: Option<TaskId>,
}

impl Drop for Grandchild {
    fn drop(&mut self) {
        if let (Some(task), Ok(host)) = (self.task, pinfold_host::LiveHost::new()) {
            end(&host, task);
        }
    }
}
