//! Real-time policies end with their supervisor.
//!
//! A supervisor of a plan with real-time threads starts a watchdog: a helper process, on the host's
//! CPUs, with a higher priority than the plan's. The watchdog receives the supervisor's
//! heartbeats on its standard input. If they stop (`SIGSTOP`, a hang) or the pipe is closed
//! (`SIGKILL`, a crash), it restores the previous policies of the machine's threads. A supervisor
//! that continues later finds them changed and corrects them like any other drift.
//!
//! `run` and `apply --watch` send a heartbeat between two checks of the machine. `watch` does so
//! for all machines that no other Pinfold process supervises. `tune` waits for its benchmarks, so a
//! separate thread sends heartbeats; a start with a missing heartbeat does not count.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use pinfold_apply::{Journals, demote_real_time_threads, real_time_priority};
use pinfold_host::process::{self, Child, Heartbeat, Stdio};
use pinfold_host::{Clock as _, HostMut as _, LiveHost, SystemClock};
use pinfold_model::{CpuSet, Plan, Policy, TaskId};

use crate::helper_program::{Helper, HelperProgram};
use crate::message::say;
use crate::{Exit, Failure, host, interrupt};

/// Interval of heartbeats (ns).
pub const HEARTBEAT_NS: u64 = 500_000_000;
/// Time without a heartbeat after which the policies are restored.
const SILENCE: Duration = Duration::from_secs(3);
/// Time that a watchdog has to end after it was asked to (ns).
const END_NS: u64 = 2_000_000_000;
const ALIVE: u8 = b'.';
const DONE: u8 = b'q';

/// The journals of the placements, and the program of their watchdogs.
#[derive(Clone, Copy)]
pub struct Supervision<'s, 'c> {
    /// The journals.
    pub journals: &'s Journals<'c>,
    /// The program.
    pub program: &'s HelperProgram,
}

/// The CPUs of the host without real-time threads of the plan.
fn cpus_of_guard(plan: &Plan) -> CpuSet {
    let mut pus = plan.housekeeping.clone();
    for (_, thread) in plan.threads() {
        if thread.policy.is_some_and(Policy::is_real_time) {
            pus = pus.difference(&thread.pus);
        }
    }
    pus
}

/// The watchdog of one machine, on the side of its supervisor.
pub struct RtWatchdog {
    program: HelperProgram,
    id: String,
    state: String,
    priority: u8,
    pus: CpuSet,
    /// Another Pinfold process, whose watchdog supervises the machine while it lives.
    other: Option<TaskId>,
    child: Option<(Child, Heartbeat)>,
    beat_at: u64,
    received_at: u64,
    was_silent: bool,
}

impl RtWatchdog {
    /// Starts a watchdog for the journal with this id, if the plan has real-time threads.
    pub fn new(
        supervision: Supervision<'_, '_>,
        plan: &Plan,
        id: &str,
    ) -> Result<Option<Self>, Failure> {
        let Some(mut guard) = Self::idle(supervision, plan, id) else { return Ok(None) };
        guard.start()?;
        Ok(Some(guard))
    }

    /// A watchdog that starts after the end of another Pinfold process: see [`RtWatchdog::take_over`].
    pub fn after(
        other: TaskId,
        supervision: Supervision<'_, '_>,
        plan: &Plan,
        id: &str,
    ) -> Option<Self> {
        let mut guard = Self::idle(supervision, plan, id)?;
        guard.other = Some(other);
        Some(guard)
    }

    fn idle(supervision: Supervision<'_, '_>, plan: &Plan, id: &str) -> Option<Self> {
        let priority = real_time_priority(plan)?;
        let pus = cpus_of_guard(plan);
        let Supervision { journals, program } = supervision;
        let (id, state) = (id.to_owned(), journals.state_dir());
        Some(Self {
            program: program.clone(),
            id,
            state,
            priority,
            pus,
            other: None,
            child: None,
            beat_at: 0,
            received_at: 0,
            was_silent: false,
        })
    }

    fn start(&mut self) -> Result<(), Failure> {
        self.received_at = SystemClock.now_ns();
        let spawn = |policy| {
            self.program
                .spawn(Helper::Guard { state: &self.state, journal: &self.id })
                .stdin(Stdio::Pipe)
                .stdout(Stdio::Null)
                .own_group()
                .affinity(self.pus.clone())
                .policy(policy)
                .start()
        };
        // Above the plan's priority, otherwise the watchdog might not get its CPU when it is
        // needed.
        let above = Policy::Fifo { priority: self.priority.saturating_add(1).min(99) };
        let started = spawn(Some(above)).or_else(|error| {
            say(&format!(
                "note: guard: it has no real-time priority of its own: {}",
                Failure::from(error).message
            ));
            spawn(None)
        });
        let mut child = started?;
        let Some(pipe) = child.stdin() else {
            return Err(Failure::new(Exit::Host, "no guard: it has no standard input"));
        };
        let beat = Heartbeat::over(pipe)?;
        self.child = Some((child, beat));
        Ok(())
    }

    /// Moves the watchdog to the CPUs that another plan of the machine leaves to it.
    pub fn follow(&mut self, host: &LiveHost, plan: &Plan) -> Result<(), Failure> {
        self.pus = cpus_of_guard(plan);
        if let Some((child, _)) = &self.child {
            host.set_affinity(child.pid(), &self.pus)?;
        }
        Ok(())
    }

    /// Starts the watchdog if the other Pinfold process has ended. The watchdog of that process
    /// removes the policies, and this supervisor sets them again.
    pub fn take_over(&mut self, host: &LiveHost, now: u64) -> Result<(), Failure> {
        let Some(other) = self.other.filter(|_| now >= self.beat_at) else { return Ok(()) };
        if process::task_alive(host, other)? {
            self.beat_at = now.saturating_add(HEARTBEAT_NS);
            return Ok(());
        }
        self.other = None;
        self.start()
    }

    /// Sends a heartbeat if it is due; starts another watchdog if this one has ended.
    pub fn beat(&mut self, now: u64) -> Result<(), Failure> {
        if now < self.beat_at || self.other.is_some() {
            return Ok(());
        }
        self.beat_at = now.saturating_add(HEARTBEAT_NS);
        self.was_silent = self.was_silent(now);
        self.received_at = now;
        let received = self.child.as_mut().is_some_and(|(_, beat)| beat.send(ALIVE));
        if received {
            return Ok(());
        }
        if self.child.take().is_some() {
            say("the guard of the real-time threads exited; a new one is started");
        }
        self.start()
    }

    /// True if the interval between two heartbeats was too long, so that the watchdog removed the
    /// policies.
    fn was_silent(&self, now: u64) -> bool {
        let silence = Duration::from_nanos(now.saturating_sub(self.received_at));
        self.was_silent || silence >= SILENCE
    }

    /// When the next heartbeat is due.
    pub fn next(&self) -> u64 {
        self.beat_at
    }

    /// Ends the watchdog after the placement was undone.
    pub fn end(mut self) {
        let Some((mut child, mut beat)) = self.child.take() else { return };
        beat.send(DONE);
        drop(beat);
        // A process that does not end is killed when it is dropped.
        match child.wait_for(&SystemClock, END_NS) {
            Ok(_) | Err(_) => {}
        }
    }
}

/// Without an explicit end, the watchdog outlives its supervisor, as intended.
impl Drop for RtWatchdog {
    fn drop(&mut self) {
        if let Some((child, _)) = self.child.take() {
            let _its_number = child.detach();
        }
    }
}

/// A watchdog with a separate thread that sends the heartbeats.
///
/// It detects a process that is killed or stopped, but not work that hangs: the caller must use a
/// timeout for every wait.
pub struct HeartbeatThread {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<bool>,
}

impl HeartbeatThread {
    /// Starts to send heartbeats.
    pub fn start(mut guard: RtWatchdog) -> Result<Self, Failure> {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new().name("guard-beat".to_owned()).spawn(move || {
            loop {
                if let Err(failure) = guard.beat(SystemClock.now_ns()) {
                    say(&failure.to_string());
                }
                match stopped.recv_timeout(Duration::from_nanos(HEARTBEAT_NS)) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) => {
                        let was_silent = guard.was_silent(SystemClock.now_ns());
                        guard.end();
                        return was_silent;
                    }
                    // The watchdog removes the policies itself.
                    Err(RecvTimeoutError::Disconnected) => return true,
                }
            }
        });
        let thread =
            thread.map_err(|error| Failure::new(Exit::Host, format!("no guard: {error}")))?;
        Ok(Self { stop, thread })
    }

    /// Ends the watchdog after the placement was undone. False if it has missed heartbeats and
    /// removed the policies.
    pub fn end(self) -> bool {
        match (self.stop.send(()), self.thread.join()) {
            (Ok(()), Ok(was_silent)) => !was_silent,
            // A panic there has been printed.
            (Ok(()) | Err(_), Ok(_) | Err(_)) => false,
        }
    }
}

/// `pinfold guard`: receives heartbeats, and removes the policies when they stop.
pub fn guard(id: &str, state: Option<&str>) -> Result<(), Failure> {
    // If a service manager ends all processes of a service, this one ends last, after it has done
    // its work.
    interrupt::install()?;
    let host = host::live()?;
    let clock = SystemClock;
    let state = host::state(state)?;
    let journals = host::journals(&state, &clock)?;
    let beats = host::receive_heartbeats();
    let mut is_silent = false;
    loop {
        match beats.recv_timeout(SILENCE) {
            Ok(DONE) => return Ok(()),
            Ok(_) => is_silent = false,
            Err(RecvTimeoutError::Timeout) => {
                let why =
                    if is_silent { "still does not respond" } else { "is suspended or hangs" };
                take(&host, &journals, id, why)?;
                is_silent = true;
            }
            Err(RecvTimeoutError::Disconnected) => {
                take(&host, &journals, id, "has ended")?;
                // A thread that was just being created has inherited the policy of its parent.
                clock.sleep_ns(HEARTBEAT_NS);
                return take(&host, &journals, id, "has ended");
            }
        }
    }
}

fn take(host: &LiveHost, journals: &Journals<'_>, id: &str, why: &str) -> Result<(), Failure> {
    let list = journals.list()?;
    let Some(found) = list.into_iter().find(|summary| summary.id == id) else { return Ok(()) };
    // A placement that was undone has no real-time policies left.
    let Some(record) = found.record?.filter(|record| !record.has_ended()) else {
        return Ok(());
    };
    let demoted = demote_real_time_threads(host, &record)?;
    if !demoted.is_empty() {
        let threads: Vec<String> =
            demoted.iter().map(|one| format!("{} ({})", one.task.tid, one.from)).collect();
        say(&format!(
            "the pinfold process that watches {id} {why}: removed the real-time policy of {}",
            threads.join(", ")
        ));
    }
    Ok(())
}
