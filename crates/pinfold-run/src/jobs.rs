//! Several commands at the same time, each on its part of one plan.

use std::io::IsTerminal as _;
use std::process::ExitStatus;

use pinfold_host::process::{self, Child, Signaled};
use pinfold_host::{EventWatcher, Host, files, paths};
use pinfold_model::{Plan, Tid};
use pinfold_plan::schema;

use crate::helper_program::Session;
use crate::{Failure, interrupt};

/// Maximum wait for a job; signals and the end of one interrupt it.
const LONGEST_WAIT_NS: u64 = 5_000_000_000;

/// Name of the file of the plan, before and after the PID of its process.
const PLAN: (&str, &str) = ("quiet-", ".json");

/// True for the name of a plan whose process has ended without removing it.
pub(crate) fn is_left(host: &dyn Host, name: &str) -> bool {
    let (prefix, suffix) = PLAN;
    let pid = name.strip_prefix(prefix).and_then(|name| name.strip_suffix(suffix));
    let pid = pid.and_then(|pid| pid.parse().ok()).map(Tid);
    pid.is_some_and(|pid| !host.exists(&paths::process_stat(pid)))
}

/// A command with the name of its part of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The name.
    pub name: String,
    /// The command.
    pub command: Vec<String>,
}

/// Runs each job under `pinfold run` until all have ended. If one fails, the others are
/// terminated, and its status is returned.
///
/// # Errors
/// [`Failure`] if a job cannot be started.
pub fn run(session: Session<'_>, plan: &Plan, jobs: &[Job]) -> Result<ExitStatus, Failure> {
    let Session { state, program } = session;
    interrupt::install_forward()?;
    interrupt::install_child()?;
    let (prefix, suffix) = PLAN;
    let path = state.path_of(&format!("{prefix}{}{suffix}", process::own_pid()));
    files::write_atomic(&path, schema::to_json(plan).as_bytes())?;
    let folder = state.path();
    let mut children = Vec::new();
    for job in jobs {
        let words = ["--state-dir", folder, "run", "--plan", &path, "--vnode", &job.name, "--"];
        let start = program.start().args(words).args(&job.command).start();
        match start {
            Ok(child) => children.push(child),
            Err(error) => {
                // The others are terminated and revert their part.
                children.iter_mut().try_for_each(|child| child.signal(Signaled::Terminate))?;
                wait(&mut children)?;
                files::remove(&path)?;
                return Err(error.into());
            }
        }
    }
    let ended = wait(&mut children);
    files::remove(&path)?;
    ended
}

fn wait(children: &mut [Child]) -> Result<ExitStatus, Failure> {
    let mut ended: Vec<Option<ExitStatus>> = vec![None; children.len()];
    let mut watcher = EventWatcher::default();
    let mut failed: Option<ExitStatus> = None;
    loop {
        // Ctrl-C of a terminal reaches the jobs directly.
        let mut signals = interrupt::take_forwarded();
        if std::io::stdin().is_terminal() {
            signals.retain(|signal| *signal != Signaled::Interrupt);
        }
        for (child, status) in children.iter_mut().zip(&mut ended) {
            if status.is_none() {
                for signal in &signals {
                    child.signal(*signal)?;
                }
                *status = child.try_wait()?;
            }
        }
        let is_stopped = failed.is_some();
        failed = failed.or(ended.iter().flatten().find(|status| !status.success()).copied());
        if ended.iter().all(Option::is_some) {
            return Ok(failed.unwrap_or_default());
        }
        if failed.is_some() && !is_stopped {
            for (child, _) in children.iter_mut().zip(&ended).filter(|(_, end)| end.is_none()) {
                child.signal(Signaled::Terminate)?;
            }
        }
        let signals: Vec<_> = interrupt::signal_fd().into_iter().collect();
        watcher.wait(LONGEST_WAIT_NS, &signals)?;
        interrupt::drain_signal_pipe();
    }
}
