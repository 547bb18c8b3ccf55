//! Keeps a placement in the planned state until the machine ends or the user requests a stop.
//!
//! The kernel wakes the monitor when a thread of the machine creates another one or exits. Only if
//! it may not receive these events, it polls every [`TICK_NS`]. It checks again shortly after an
//! event, and queries a thread without a role again, because threads get their names after their
//! creation. [`CheckSchedule`] schedules the checks.

use std::collections::BTreeSet;

use pinfold_apply::{ApplyError, Extent, Journal, OnDrift, QuickCheck, WatchEvent, Watcher};
use pinfold_host::{Clock, EventWatcher, LiveHost, SystemClock};
use pinfold_model::text::count_noun;
use pinfold_model::{Finding, Plan};
use pinfold_vm::Monitor;

use crate::apply_session::Placement;
use crate::message::say;
use crate::replan::OtherOwners;
use crate::rt_watchdog::RtWatchdog;
use crate::start_memory::TableReport;
use crate::target::RoleRefresh;
use crate::{Failure, interrupt, replan};

/// Polling interval if events about new threads are not available.
pub const TICK_NS: u64 = 75_000_000;
/// Interval of comparing masks and policies: the kernel sends no event when they are changed.
pub const COMPARE_NS: u64 = 6_000_000_000;
/// Minimum time between two checks of all threads, regardless of the rate of new threads.
const PAUSE_NS: u64 = 50_000_000;
/// Time after which a thread without a role is queried again.
const ASK_AGAIN_NS: u64 = 25_000_000;
/// A process exits slightly later than its threads: this check finds it ended.
const EXIT_RECHECK_NS: u64 = 100_000_000;

/// Schedule of the checks of a machine.
#[derive(Debug)]
pub struct CheckSchedule {
    /// Time of the next full check of all threads, without a quick check before.
    look_at: Option<u64>,
    compare_at: u64,
    looked_at: u64,
    extent: Extent,
    has_echo: bool,
}

/// The check that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DueCheck {
    /// A full check of all threads: [`Watcher::repair_drift`].
    Look,
    /// A quick check: [`Watcher::quick_check`], and a full one if it finds changes.
    QuickCheck(Extent),
}

impl DueCheck {
    /// Runs the first half of the check.
    pub fn check(self, host: &LiveHost, watcher: &mut Watcher) -> Result<QuickCheck, ApplyError> {
        match self {
            Self::Look => Ok(QuickCheck::NeedsFullCheck),
            Self::QuickCheck(extent) => watcher.quick_check(host, extent),
        }
    }
}

impl CheckSchedule {
    /// Starts with a full check.
    pub fn new(now: u64) -> Self {
        Self {
            look_at: Some(now),
            compare_at: now.saturating_add(COMPARE_NS),
            looked_at: 0,
            extent: Extent::TaskEvents,
            has_echo: false,
        }
    }

    /// Called when a thread of the machine created another one, or exited.
    pub fn received_threads(&mut self, now: u64) {
        let soon = now.max(self.looked_at.saturating_add(PAUSE_NS));
        self.look_at = Some(self.look_at.map_or(soon, |at| at.min(soon)));
        self.has_echo = true;
    }

    /// Called when a process wrote to a file of the machine's cgroups.
    pub fn received_files(&mut self, now: u64) {
        self.extent = Extent::Groups;
        self.compare_at = self.compare_at.min(now.max(self.looked_at.saturating_add(PAUSE_NS)));
    }

    /// The check that is due.
    pub fn due(&mut self, now: u64) -> DueCheck {
        if now >= self.compare_at {
            self.compare_at = now.saturating_add(COMPARE_NS);
            let extent = std::mem::replace(&mut self.extent, Extent::TaskEvents);
            return DueCheck::QuickCheck(if extent == Extent::Groups {
                extent
            } else {
                Extent::Masks
            });
        }
        match self.look_at {
            Some(at) if now >= at => DueCheck::Look,
            Some(_) | None => DueCheck::QuickCheck(Extent::TaskEvents),
        }
    }

    /// Called after a full check of all threads.
    pub fn end_look(&mut self, now: u64, has_questions: bool) {
        self.looked_at = now;
        let again = match (has_questions, std::mem::take(&mut self.has_echo)) {
            (true, _) => Some(ASK_AGAIN_NS),
            (false, true) => Some(EXIT_RECHECK_NS),
            (false, false) => None,
        };
        self.look_at = again.map(|after| now.saturating_add(after));
    }

    /// Time of the next check if no event occurs before.
    pub fn next(&self) -> u64 {
        self.look_at.map_or(self.compare_at, |at| at.min(self.compare_at))
    }
}

/// Receives the events of some machines.
#[derive(Default)]
pub struct EventReceiver {
    watcher: EventWatcher,
    has_lost_events: bool,
    /// Events that are not available; reported once.
    reported: BTreeSet<&'static str>,
}

impl EventReceiver {
    /// Receives events of these threads and files from now on. True if earlier events may have been
    /// missed.
    pub fn follow(
        &mut self,
        threads: &BTreeSet<pinfold_model::Tid>,
        files: &BTreeSet<String>,
    ) -> (bool, Vec<Finding>) {
        let mut findings = Vec::new();
        let is_new = match self.watcher.follow_threads(threads) {
            Ok(is_new) => {
                self.has_lost_events = false;
                is_new
            }
            Err(error) => {
                self.has_lost_events = true;
                if self.reported.insert("threads") {
                    let failure = Failure::from(error);
                    let text = format!(
                        "Pinfold polls for new threads every {} ms, which takes CPU time: {}",
                        TICK_NS / 1_000_000,
                        failure.message
                    );
                    findings.push(Finding::note("watch", text).with_hint(
                        "run it as root outside a container, so that the kernel reports them; ulimit -n must allow a file for each thread",
                    ));
                }
                false
            }
        };
        if let Err(error) = self.watcher.follow_files(files)
            && self.reported.insert("files")
        {
            let text = format!(
                "cgroup changes are detected only by changed affinity masks: {}",
                Failure::from(error).message
            );
            findings.push(
                Finding::note("watch", text)
                    .with_hint("raise fs.inotify.max_user_instances and max_user_watches"),
            );
        }
        (is_new, findings)
    }

    /// Waits until `next`, or until an event.
    pub fn wait(
        &mut self,
        clock: &dyn Clock,
        next: u64,
        others: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<pinfold_host::Events, Failure> {
        let now = clock.now_ns();
        let longest = if self.has_lost_events { TICK_NS } else { COMPARE_NS };
        let ns = next.saturating_sub(now).min(longest);
        let others: Vec<_> =
            interrupt::signal_fd().into_iter().chain(others.iter().copied()).collect();
        let received = self.watcher.wait(ns, &others)?;
        interrupt::drain_signal_pipe();
        Ok(received)
    }
}

/// A machine under a monitor.
pub struct Monitored<'m, 'j, 'v> {
    /// Its plan and its threads.
    pub placement: Placement<'m>,
    /// The journal of the placement.
    pub journal: &'m mut Journal<'j>,
    /// Its hypervisor, which reports the roles of its threads.
    pub monitor: Option<&'v mut dyn Monitor>,
    /// Which CPUs a new plan avoids, if the machine changes.
    pub around: OtherOwners<'m, 'j>,
    /// What happens to threads that another program moves.
    pub on_drift: OnDrift,
    /// The watchdog of its real-time threads.
    pub guard: Option<&'m mut RtWatchdog>,
    /// Reports where its page tables are, if Pinfold started it.
    pub tables: TableReport,
}

/// Monitors a machine; returns when it has ended or the user requested a stop.
pub fn watch(
    host: &LiveHost,
    clock: &dyn Clock,
    monitored: Monitored<'_, '_, '_>,
) -> Result<(), Failure> {
    let Monitored { placement, journal, around, monitor, on_drift, mut guard, mut tables } =
        monitored;
    let Placement { plan, target } = placement;
    let mut replans = Replans { around, plan: plan.clone(), at: 0, search_at: 0, refused: None };
    let mut watcher = Watcher::new(host, plan, target)?.on_drift(on_drift);
    let mut asking = RoleRefresh { monitor };
    let (mut receiver, mut rounds) = (EventReceiver::default(), CheckSchedule::new(clock.now_ns()));
    while !interrupt::is_requested() {
        if let Some(guard) = guard.as_deref_mut() {
            guard.beat(clock.now_ns())?;
        }
        let due = rounds.due(clock.now_ns());
        match due.check(host, &mut watcher)? {
            QuickCheck::Quiet if replans.find_cpus(host, &watcher, journal, due) => {
                replans.follow(host, &mut watcher, journal, guard.as_deref_mut())?;
            }
            QuickCheck::Quiet => {}
            QuickCheck::Ended => return Ok(()),
            QuickCheck::NeedsFullCheck => {
                let events = watcher.repair_drift(host, journal, &mut asking);
                for event in events? {
                    if event == WatchEvent::Ended {
                        return Ok(());
                    }
                    say(&sentence(&event));
                }
                if replans.are_due(&watcher, clock.now_ns()) {
                    replans.follow(host, &mut watcher, journal, guard.as_deref_mut())?;
                }
                rounds.end_look(clock.now_ns(), watcher.has_questions());
            }
        }
        if let Some(finding) = tables.due(host, target.pid, clock.now_ns())? {
            say(&finding.to_string());
        }
        let (is_new, findings) =
            receiver.follow(watcher.threads(), &watcher.files().cloned().collect());
        findings.iter().for_each(|finding| say(&finding.to_string()));
        if is_new {
            // Threads created before the events were received change the link count.
            continue;
        }
        let next = guard.as_deref().map_or(rounds.next(), |one| one.next().min(rounds.next()));
        let received = receiver.wait(clock, next, &[])?;
        if !received.threads.is_empty() {
            rounds.received_threads(clock.now_ns());
        }
        if received.files {
            rounds.received_files(clock.now_ns());
        }
    }
    Ok(())
}

/// The plans of a machine that changes while it runs.
struct Replans<'r, 'c> {
    around: OtherOwners<'r, 'c>,
    plan: Plan,
    /// When a machine that could not be planned is planned again.
    at: u64,
    /// When a CPU for a vCPU that shares one is searched again.
    search_at: u64,
    /// Why it could not be planned, as reported.
    refused: Option<String>,
}

impl Replans<'_, '_> {
    fn are_due(&self, watcher: &Watcher, now: u64) -> bool {
        now >= self.at && watcher.needs_plan()
    }

    /// True if a vCPU that shares a CPU could have one of its own.
    fn find_cpus(
        &mut self,
        host: &LiveHost,
        watcher: &Watcher,
        journal: &Journal<'_>,
        due: DueCheck,
    ) -> bool {
        let now = SystemClock.now_ns();
        if due == DueCheck::QuickCheck(Extent::TaskEvents) || now < self.search_at.max(self.at) {
            return false;
        }
        self.search_at = now.saturating_add(replan::SEARCH_NS);
        replan::finds_cpus(host, self.around, &self.plan, watcher, &journal.record().header.id)
    }

    fn follow(
        &mut self,
        host: &LiveHost,
        watcher: &mut Watcher,
        journal: &mut Journal<'_>,
        guard: Option<&mut RtWatchdog>,
    ) -> Result<(), Failure> {
        match replan::follow_change(host, self.around, &mut self.plan, watcher, journal) {
            Ok(None) => Ok(()),
            Ok(Some(event)) => {
                say(&sentence(&event));
                guard.map_or(Ok(()), |guard| guard.follow(host, &self.plan))
            }
            Err(failure) => {
                self.at = SystemClock.now_ns().saturating_add(replan::AGAIN_NS);
                let findings = replan::report(&failure, watcher, &mut self.refused);
                findings.iter().for_each(|finding| say(&finding.to_string()));
                Ok(())
            }
        }
    }
}

/// Describes an event for the user.
pub fn sentence(event: &WatchEvent) -> String {
    match event {
        WatchEvent::Placed { task, role, pus } => {
            format!("new thread {} ({role}) placed on {pus}", task.tid)
        }
        WatchEvent::Repaired { task, role, change, found, clue } => {
            format!(
                "thread {} ({role}): affinity was changed to {found}: {change}; possible cause: \
                 {clue}",
                task.tid
            )
        }
        WatchEvent::Contested { task, role, found, clue, .. } => format!(
            "thread {} ({role}) is moved repeatedly by another program, now to {found}; Pinfold \
             leaves it alone; possible cause: {clue}",
            task.tid
        ),
        WatchEvent::Yielded { task, role, planned, found, clue } => format!(
            "thread {} ({role}): its owner moved it to {found} from {planned}, and it stays there: {clue}",
            task.tid
        ),
        WatchEvent::Replanned { what, moves: 0 } => format!("new plan: {what}"),
        WatchEvent::Replanned { what, moves } => {
            format!("new plan: {what}; {} moved", count_noun(*moves, "thread"))
        }
        WatchEvent::Groups { what, before, after, clue } => {
            format!("{what} changed from {before} to {after}; possible cause: {clue}")
        }
        WatchEvent::Finding(finding) => finding.to_string(),
        WatchEvent::Undone => "the placement was undone, and is no longer watched".to_owned(),
        WatchEvent::Ended => "the process has ended".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_threads_are_read_at_once_but_not_all_the_time() {
        let mut rounds = CheckSchedule::new(1_000);
        assert_eq!(rounds.due(1_000), DueCheck::Look);
        rounds.end_look(1_000, false);
        assert_eq!(rounds.due(2_000), DueCheck::QuickCheck(Extent::TaskEvents));
        assert_eq!(rounds.next(), 1_000 + COMPARE_NS);
        let later = 10 * PAUSE_NS;
        rounds.received_threads(later);
        assert_eq!(rounds.due(later), DueCheck::Look);
        rounds.end_look(later, true);
        assert_eq!(rounds.next(), later + ASK_AGAIN_NS, "it may have got its name");
        rounds.received_threads(later + 1);
        assert_eq!(
            rounds.due(later + 1),
            DueCheck::QuickCheck(Extent::TaskEvents),
            "a pause between looks"
        );
        rounds.end_look(later + PAUSE_NS, false);
        assert_eq!(rounds.next(), later + PAUSE_NS + EXIT_RECHECK_NS, "the end of a process");
        rounds.end_look(rounds.next(), false);
        assert_eq!(rounds.next(), 1_000 + COMPARE_NS);
    }

    #[test]
    fn masks_are_compared_every_few_seconds_and_files_when_one_was_written() {
        let mut rounds = CheckSchedule::new(0);
        rounds.end_look(0, false);
        assert_eq!(rounds.due(COMPARE_NS), DueCheck::QuickCheck(Extent::Masks));
        assert_eq!(rounds.due(COMPARE_NS + 1), DueCheck::QuickCheck(Extent::TaskEvents));
        rounds.received_files(COMPARE_NS + 2);
        assert_eq!(rounds.due(COMPARE_NS + 2), DueCheck::QuickCheck(Extent::Groups));
        assert_eq!(rounds.next(), 2 * COMPARE_NS + 2);
    }
}
