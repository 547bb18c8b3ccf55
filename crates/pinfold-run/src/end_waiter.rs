//! A placement ends with its machine also if no command of Pinfold runs at that time.
//!
//! `apply` without `--watch` and the libvirt hook leave a process that waits for the end of the
//! machine, and then reverts the placement as [`ended_placements`] does. It has a session of its own, no
//! terminal, and no descriptor of its caller. Before that end it holds no lock and sleeps: the
//! kernel wakes it when the machine ends (pidfd) or when the journal is written (inotify). If the
//! placement is undone before, it ends. It has no state: if it is killed, the next command reverts
//! the placement.

use std::collections::BTreeSet;
use std::os::fd::AsFd as _;

use pinfold_apply::{Journal, Journals};
use pinfold_host::files::StateDir;
use pinfold_host::process::{ProcessEnd, Stdio};
use pinfold_host::{Clock as _, EventWatcher, LiveHost, SystemClock, with_causes};
use pinfold_model::Plan;

use crate::helper_program::{Helper, HelperProgram};
use crate::message::say;
use crate::start_lock::StartLock;
use crate::{Failure, ended_placements, host, interrupt};

/// Longest time between two checks of the journal (ns). It matters only if inotify has no watch
/// left.
const LONGEST_WAIT_NS: u64 = 600_000_000_000;
/// Longest time for which the start of another machine delays the end (ns).
const LONGEST_START_NS: u64 = 20_000_000_000;
/// Number of attempts to open a journal that another process has locked at the moment.
const ATTEMPTS: u32 = 20;
const PAUSE_NS: u64 = 100_000_000;

/// Starts the process for a placement, unless that changed the definition of its domain for the
/// next start. True if it waits; a failure is reported, and then the next command reverts the
/// placement.
pub fn start(
    program: &HelperProgram,
    journals: &Journals<'_>,
    plan: &Plan,
    journal: &Journal<'_>,
) -> bool {
    let record = journal.record();
    if record.step_count() == 0 || ended_placements::is_for_next_start(record) {
        return false;
    }
    let state = journals.state_dir();
    let spawn = || {
        program
            .spawn(Helper::EndWaiter { state: &state, journal: &record.header.id })
            .stdin(Stdio::Null)
            .stdout(Stdio::Null)
            .stderr(Stdio::Null)
            .detach()
    };
    // Not on the CPUs of the machine, if the kernel allows the others.
    let own = spawn().affinity(plan.housekeeping.clone()).start().or_else(|_| spawn().start());
    match own {
        Ok(child) => {
            let _its_number = child.detach();
            true
        }
        Err(error) => {
            say(&format!(
                "note: cannot start the process that reverts the placement when the machine exits; \
                 the next pinfold command reverts it: {}",
                with_causes(&error)
            ));
            false
        }
    }
}

/// `pinfold end-waiter`: waits for the end of the machine of a placement, and reverts the
/// placement.
///
/// # Errors
/// [`Failure`] if the journal cannot be read, or if the kernel cannot wait for the process.
pub fn wait(id: &str, state: Option<&str>) -> Result<(), Failure> {
    let host = host::live()?;
    let state = host::state(state)?;
    let journals = host::journals(&state, &SystemClock)?;
    let Some(record) = ended_placements::active(&journals, id)? else { return Ok(()) };
    let directory = StateDir::open(&journals.path())?;
    let name = format!("{id}{}", ended_placements::WAITER);
    // The process of an earlier plan of the same placement may still wait.
    let Some(_lock) = directory.lock(&name)? else { return Ok(()) };
    let end = ProcessEnd::read(&host, record.header.vm)?;
    let has_ended = match &end {
        Some(end) => wait_for_end(&journals, id, end)?,
        None => true,
    };
    if has_ended {
        revert(&host, &journals, id)?;
    }
    Ok(directory.remove(&name)?)
}

/// True when the machine has ended; false when the placement was undone before.
fn wait_for_end(journals: &Journals<'_>, id: &str, end: &ProcessEnd) -> Result<bool, Failure> {
    let mut watcher = EventWatcher::new();
    // Another plan of the placement writes the file anew, so the directory is watched.
    let directory = BTreeSet::from([journals.path()]);
    loop {
        // Without a watch, the journal is read at the next check.
        match watcher.follow_files(&directory) {
            Ok(()) | Err(_) => {}
        }
        if ended_placements::active(journals, id)?.is_none() {
            return Ok(false);
        }
        if watcher.wait(LONGEST_WAIT_NS, &[end.as_fd()])?.others {
            return Ok(true);
        }
    }
}

/// Reverts the placement, or leaves that to the process that holds its journal.
fn revert(host: &LiveHost, journals: &Journals<'_>, id: &str) -> Result<(), Failure> {
    // What has begun is completed.
    interrupt::install()?;
    // A plan that is made meanwhile would be for groups that go.
    let state = StateDir::open(&journals.state_dir())?;
    let _starting = StartLock::wait_at_most(&state, LONGEST_START_NS)?;
    for _ in 0..ATTEMPTS {
        ended_placements::clear_up_one(host, journals, id)?;
        if ended_placements::active(journals, id)?.is_none() {
            break;
        }
        SystemClock.sleep_ns(PAUSE_NS);
    }
    Ok(())
}
