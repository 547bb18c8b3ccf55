//! Real-time rights end with whoever gave them.
//!
//! A supervisor of a plan with real-time threads starts a guard: this program again, on the
//! host's PUs, with a higher priority than the plan's. It hears the supervisor's beats on its
//! standard input. If they stop (`SIGSTOP`, a hang) or the pipe is closed (`SIGKILL`, a crash),
//! it gives the machine's threads their former policies back. A supervisor that goes on later
//! finds them changed and puts them right as any other drift.

use std::io::Read as _;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use pinfold_apply::{Journal, Journals, real_time_priority, take_rights};
use pinfold_host::process::{Beat, Child, Spawn, Stdio};
use pinfold_host::{Clock as _, LiveHost, SystemClock};
use pinfold_model::{CpuSet, Plan, Policy};

use crate::cli::GuardArgs;
use crate::failure::{Exit, Failure};
use crate::output::say;
use crate::{common, place};

/// A supervisor is heard so often.
pub const BEAT_NS: u64 = 500_000_000;
/// One that was not heard for so long has lost its rights.
const SILENCE: Duration = Duration::from_secs(3);
/// How long a guard that is told to end may take.
const END_NS: u64 = 2_000_000_000;
const ALIVE: u8 = b'.';
const DONE: u8 = b'q';

/// The guard of one machine, as its supervisor sees it.
pub struct Guard {
    id: String,
    priority: u8,
    pus: CpuSet,
    child: Option<(Child, Beat)>,
    beat_at: u64,
}

impl Guard {
    /// Starts one, if the plan has real-time threads.
    pub fn of(plan: &Plan, journal: &Journal<'_>) -> Result<Option<Self>, Failure> {
        let Some(priority) = real_time_priority(plan) else { return Ok(None) };
        let mut pus = plan.housekeeping.clone();
        for (_, thread) in plan.threads() {
            if thread.policy.is_some_and(Policy::is_real_time) {
                pus = pus.difference(&thread.pus);
            }
        }
        let id = journal.record().header.id.clone();
        let mut guard = Self { id, priority, pus, child: None, beat_at: 0 };
        guard.start(&journal.state_dir())?;
        Ok(Some(guard))
    }

    fn start(&mut self, state: &str) -> Result<(), Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::new(Exit::Host, format!("no guard: {error}")))?;
        let spawn = |policy| {
            Spawn::new(&program.to_string_lossy())
                .args(["--state-dir", state, "guard", &self.id])
                .stdin(Stdio::Pipe)
                .stdout(Stdio::Null)
                .own_group()
                .affinity(self.pus.clone())
                .policy(policy)
                .start()
        };
        // Above the plan's, or the guard could not come to its PU when it is needed.
        let above = Policy::Fifo { priority: self.priority.saturating_add(1).min(99) };
        let started = spawn(Some(above)).or_else(|error| {
            say(&format!(
                "note: guard: it has no real-time priority of its own: {}",
                common::host_failure(&error).message
            ));
            spawn(None)
        });
        let mut child = started.map_err(|error| common::host_failure(&error))?;
        let Some(pipe) = child.stdin() else {
            return Err(Failure::new(Exit::Host, "no guard: it has no standard input"));
        };
        let beat = Beat::over(pipe).map_err(|error| common::host_failure(&error))?;
        self.child = Some((child, beat));
        Ok(())
    }

    /// Tells the guard that the supervisor lives, if it is time to; starts another if it has
    /// ended.
    pub fn beat(&mut self, now: u64, journal: &Journal<'_>) -> Result<(), Failure> {
        if now < self.beat_at {
            return Ok(());
        }
        self.beat_at = now.saturating_add(BEAT_NS);
        let heard = self.child.as_mut().is_some_and(|(_, beat)| beat.send(ALIVE));
        if heard {
            return Ok(());
        }
        say("the guard of the real-time threads has ended; another one is started");
        self.child = None;
        self.start(&journal.state_dir())
    }

    /// When the next beat is due.
    pub fn next(&self) -> u64 {
        self.beat_at
    }

    /// The placement is taken back: nothing is left to be guarded.
    pub fn end(mut self) {
        let Some((mut child, mut beat)) = self.child.take() else { return };
        beat.send(DONE);
        drop(beat);
        // One that does not end is killed when it is dropped.
        match child.wait_for(&SystemClock, END_NS) {
            Ok(_) | Err(_) => {}
        }
    }
}

/// Without a word the guard outlives its supervisor: that is what it is for.
impl Drop for Guard {
    fn drop(&mut self) {
        if let Some((child, _)) = self.child.take() {
            let _its_number = child.detach();
        }
    }
}

/// `pinfold guard`: listens, and takes the rights away.
pub fn guard(arguments: &GuardArgs, state: Option<&str>) -> Result<(), Failure> {
    let host = common::host()?;
    let clock = SystemClock;
    let state = common::state(state)?;
    let journals = place::journals(&state, &clock)?;
    let (heard, beats) = mpsc::channel();
    std::thread::spawn(move || {
        let mut byte = [0];
        while let Ok(1) = std::io::stdin().read(&mut byte) {
            if heard.send(byte[0]).is_err() {
                return;
            }
        }
    });
    let mut is_silent = false;
    loop {
        match beats.recv_timeout(SILENCE) {
            Ok(DONE) => return Ok(()),
            Ok(_) => is_silent = false,
            Err(RecvTimeoutError::Timeout) => {
                let why = if is_silent { "is still not heard" } else { "is stopped or hangs" };
                take(&host, &journals, &arguments.id, why)?;
                is_silent = true;
            }
            Err(RecvTimeoutError::Disconnected) => {
                take(&host, &journals, &arguments.id, "has ended")?;
                // A thread that was being born has its maker's rights.
                clock.sleep_ns(BEAT_NS);
                return take(&host, &journals, &arguments.id, "has ended");
            }
        }
    }
}

fn take(host: &LiveHost, journals: &Journals<'_>, id: &str, why: &str) -> Result<(), Failure> {
    let failure =
        |error: pinfold_apply::JournalError| Failure::from_error(Exit::Host, &error, error.hint());
    let list = journals.list().map_err(failure)?;
    let Some(found) = list.into_iter().find(|summary| summary.id == id) else { return Ok(()) };
    // What was taken back has no rights left.
    let Some(record) = found.record.map_err(failure)?.filter(|record| !record.has_ended()) else {
        return Ok(());
    };
    let demoted = take_rights(host, &record).map_err(|error| common::host_failure(&error))?;
    if !demoted.is_empty() {
        let threads: Vec<String> =
            demoted.iter().map(|one| format!("{} ({})", one.task.tid, one.from)).collect();
        say(&format!(
            "the Pinfold that watches {id} {why}: real-time rights were taken away from {}",
            threads.join(", ")
        ));
    }
    Ok(())
}
