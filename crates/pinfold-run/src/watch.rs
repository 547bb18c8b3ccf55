//! Monitors all active placements, or those of one machine, and corrects drift, until it is stopped.
//! A machine that changes while it runs gets a new plan ([`crate::replan`]).
//!
//! Placements stay active when it ends. `pinfold undo` works at the same time, because the watcher
//! holds the journal of a machine only while it corrects something there. The watcher supervises
//! the real-time policies of machines that no other Pinfold process supervises: they end with it. A
//! lock prevents a second watcher. Machines come and go: changes of the journals' directory show
//! new placements, and a placement that was undone is detected at its next check. Without events it
//! sleeps; see [`crate::run_monitor`].

use std::collections::{BTreeMap, BTreeSet};

use pinfold_apply::{
    Extent, Journal, JournalError, Journals, OnDrift, QuickCheck, Record, Roles, Target,
    WatchEvent, Watcher,
};
use pinfold_claims::{CpuUsage, SharedCpus};
use pinfold_host::files::StateDir;
use pinfold_host::{Clock as _, Events, Host, LiveHost, SystemClock, proc_stat, process};
use pinfold_model::text::count_noun;
use pinfold_model::{Finding, Plan, Role, TaskId, Tid};
use pinfold_top::VnodeSample;
use pinfold_vm::{Hypervisor, threads};

use crate::claims;
use crate::emulate::status::is_platform;
use crate::helper_program::Session;
use crate::message::say;
use crate::metrics::{
    Counts, GapMetrics, GapThread, HostUse, MachineUse, Metrics, MetricsAddress, Page, Sampler,
};
use crate::new_machines::NewMachines;
use crate::replan::OtherOwners;
use crate::rt_watchdog::{RtWatchdog, Supervision};
use crate::run_monitor::{COMPARE_NS, CheckSchedule, DueCheck, EventReceiver, TICK_NS};
use crate::target::{kept_since, threads_by_journal};
use crate::watched::WatchedFile;
use crate::{Exit, Failure, ended_placements, host, interrupt, replan, top, undo};

/// Timeout for a monitor, so that an instance that does not answer delays the others only shortly.
const MONITOR_TIMEOUT_NS: u64 = 1_000_000_000;
/// Timeout for libvirt: less than the time without heartbeats after which real-time policies are
/// removed.
const LIBVIRT_TIMEOUT_NS: u64 = 2_000_000_000;

/// Interval of comparing placements with the CPUs of other owners, which takes some milliseconds.
const CLAIMS_NS: u64 = 30_000_000_000;

/// Called for each event: the counters of the placement, when it was last as planned (seconds since
/// 1970), and the event.
pub type OnEvent<'a> = dyn Fn(&Counts, u64, &WatchEvent) + 'a;

/// A control socket with its hypervisor.
pub type Socket = (&'static dyn Hypervisor, String);

/// What is watched, and how.
#[derive(Clone, Copy)]
pub struct Options<'o> {
    /// The ID of a placement, or the name or process ID of a machine; `None` watches all.
    pub only: Option<&'o str>,
    /// The control sockets of machines whose threads have no names.
    pub sockets: &'o [Socket],
    /// The file by which machines that are started by hand are placed.
    pub domains: Option<&'o str>,
    /// Where metrics are served.
    pub metrics: MetricsAddress<'o>,
    /// The shortest gap of which the metrics count the causes (ns); `None` to observe none.
    pub gaps_over_ns: Option<u64>,
    /// What happens to threads that another program moves.
    pub on_drift: OnDrift,
    /// True to plan changed machines as if the host had no other owners of CPUs.
    pub ignores_claims: bool,
}

/// Watches until it is stopped.
///
/// ```no_run
/// use pinfold_apply::OnDrift;
/// use pinfold_run::metrics::MetricsAddress;
/// use pinfold_run::watch::{Options, watch};
/// use pinfold_run::{HelperProgram, Session, host};
///
/// let (state, program) = (host::state(None)?, HelperProgram::at("/usr/bin/pinfold"));
/// let options = Options {
///     only: None,
///     sockets: &[],
///     domains: None,
///     metrics: MetricsAddress { socket: None, port: None },
///     gaps_over_ns: None,
///     on_drift: OnDrift::Restore,
///     ignores_claims: false,
/// };
/// let session = Session { state: &state, program: &program };
/// watch(session, options, &|_, _, event| println!("{event:?}"))?;
/// # Ok::<(), pinfold_run::Failure>(())
/// ```
pub fn watch(
    Session { state, program }: Session<'_>,
    options: Options<'_>,
    on_event: &OnEvent<'_>,
) -> Result<(), Failure> {
    interrupt::install_with_reread()?;
    let host = host::live_within(LIBVIRT_TIMEOUT_NS)?;
    let _lock = state.lock("watch.lock")?.ok_or_else(already_running_failure)?;
    let journals = host::journals(state, &SystemClock)?;
    let mut metrics = Metrics::open(options.metrics)?;
    let mut newcomers = options.domains.map(NewMachines::new).transpose()?;
    let mut watcher = WatcherState {
        host: &host,
        around: OtherOwners { journals: &journals, ignores_claims: options.ignores_claims },
        supervision: Supervision { journals: &journals, program },
        subscribers: Subscribers { sockets: options.sockets },
        only: options.only,
        on_drift: options.on_drift,
        on_event,
        placements: BTreeMap::new(),
        guards: BTreeMap::new(),
        reported: BTreeSet::new(),
        mark: None,
        is_unsettled: false,
        receiver: EventReceiver::default(),
        is_changed: true,
        claims_at: 0,
        pool: None,
        is_served: metrics.is_served(),
        speeds: Speeds { state, latest: Vec::new() },
        gaps: options.gaps_over_ns.map(GapMetrics::start).transpose()?,
        newcomers_at: None,
    };
    require_visible_threads(&host, &journals)?;
    let mut watched = WatchedFile::new(&host, state)?;
    watcher.find_placements()?;
    if let Some(only) = options.only.filter(|_| watcher.placements.is_empty()) {
        return Err(unknown_failure(only, &journals)?);
    }
    say(&format!(
        "watching {}; ctrl-C ends the watch, placements stay active",
        count_noun(watcher.placements.len(), "placement")
    ));
    while !interrupt::is_requested() {
        if interrupt::reread() {
            say("reloading all placements");
            watcher.reset_placements();
            newcomers.iter_mut().for_each(NewMachines::forget);
        }
        if let Some(newcomers) = &mut newcomers {
            newcomers.check(&host, Session { state, program }, &journals)?;
            watcher.newcomers_at = Some(newcomers.next());
        }
        watcher.find_placements()?;
        watcher.send_heartbeats();
        watcher.look();
        if let Err(error) = watched.update(watcher.placements.keys().cloned().collect()) {
            watcher.log_once(&Failure::from(error).to_string());
        }
        watcher.compare_claims();
        metrics.serve(SystemClock.now_ns(), || watcher.page());
        watcher.wait(&metrics)?;
    }
    Ok(())
}

/// The failure for a name or ID that no active placement has.
fn unknown_failure(only: &str, journals: &Journals<'_>) -> Result<Failure, Failure> {
    let all = journals.list()?;
    let is_any = all.iter().any(|one| matches!(&one.record, Ok(Some(it)) if !it.has_ended()));
    Ok(undo::unknown_placement_failure(only, is_any, &undo::ended_placements(&all)))
}

fn already_running_failure() -> Failure {
    Failure::new(Exit::Host, "another `pinfold watch` is running on this state directory")
        .with_hint("stop it first, or let it reload all placements: kill -HUP")
}

/// The watcher does not start if it cannot see the threads of an active placement.
fn require_visible_threads(host: &LiveHost, journals: &Journals<'_>) -> Result<(), Failure> {
    for summary in journals.list()? {
        if let Ok(Some(record)) = summary.record
            && !record.has_ended()
        {
            record.require_here(host)?;
        }
    }
    Ok(())
}

/// The state of the watcher.
struct WatcherState<'a> {
    host: &'a LiveHost,
    around: OtherOwners<'a, 'a>,
    supervision: Supervision<'a, 'a>,
    subscribers: Subscribers<'a>,
    // The only placement or machine to watch.
    only: Option<&'a str>,
    on_drift: OnDrift,
    on_event: &'a OnEvent<'a>,
    placements: BTreeMap<String, Placement>,
    // Watchdogs of placements that are about to be found again.
    guards: BTreeMap<String, RtWatchdog>,
    reported: BTreeSet<String>,
    // Modification time of the journals' directory when all of them were read.
    mark: Option<u64>,
    // They are read again soon, regardless of events.
    is_unsettled: bool,
    receiver: EventReceiver,
    // The set of monitored threads may have changed.
    is_changed: bool,
    // When the placements are compared with the CPUs of other owners again.
    claims_at: u64,
    // How the CPUs of the host were used then.
    pool: Option<CpuUsage>,
    // Metrics are served.
    is_served: bool,
    speeds: Speeds<'a>,
    gaps: Option<GapMetrics>,
    // When machines that were started by hand are searched again.
    newcomers_at: Option<u64>,
}

/// Where a platform of vnodes is found, and the speeds that it had last.
struct Speeds<'a> {
    state: &'a StateDir,
    latest: Vec<VnodeSample>,
}

/// An active placement.
struct Placement {
    begun: (u64, TaskId),
    process: Tid,
    plan: Plan,
    // CPUs that another owner uses too, as reported.
    conflicts: Vec<SharedCpus>,
    watcher: Watcher,
    guard: Option<RtWatchdog>,
    // True if no placement has a guard.
    may_wait: bool,
    counts: Counts,
    sampler: Sampler,
    trouble: Option<String>,
    rounds: CheckSchedule,
    // Number of full checks of its threads.
    looks: u64,
    // When it was last found as planned (seconds since 1970).
    right_unix_s: u64,
    // When it is planned again after a failure.
    replan_at: u64,
    // When a CPU for a vCPU that shares one is searched again.
    search_at: u64,
    // Why it could not be planned again, as reported.
    refused: Option<String>,
}

/// What a placement is watched with.
struct Watched {
    plan: Plan,
    watcher: Watcher,
    guard: Option<RtWatchdog>,
}

/// What happens with a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlacementAction {
    Watched,
    Over,
}

impl WatcherState<'_> {
    fn reset_placements(&mut self) {
        for (id, placement) in std::mem::take(&mut self.placements) {
            self.guards.extend(placement.guard.map(|guard| (id, guard)));
        }
        self.is_changed = true;
        self.reported.clear();
        self.mark = None;
    }

    /// Adds placements that are new since the last call.
    fn find_placements(&mut self) -> Result<(), Failure> {
        let mark = self.supervision.journals.mark()?;
        if self.mark == Some(mark) {
            return Ok(());
        }
        let mut all = true;
        for summary in self.supervision.journals.list()? {
            match summary.record {
                Ok(Some(record)) if !record.has_ended() => self.start_watching(&record),
                Ok(Some(_)) => {}
                // It is just being created.
                Ok(None) => all = false,
                Err(error) => self.log_once(&Failure::from(error).to_string()),
            }
        }
        // The kernel updates this time in ticks: two changes in the same tick have the same time.
        let seconds = mark / 1_000_000_000;
        self.is_unsettled = SystemClock.unix_seconds().abs_diff(seconds) <= 1;
        self.mark = (all && !self.is_unsettled).then_some(mark);
        // Placements that are no longer monitored are not supervised.
        self.guards.clear();
        Ok(())
    }

    fn start_watching(&mut self, record: &Record) {
        let header = &record.header;
        let begun = (header.created_unix_s, record.last_supervisor());
        match self.placements.get(&header.id) {
            Some(known) if known.begun == begun => return,
            // Another plan has replaced the one that is watched.
            Some(_) => self.end(&header.id),
            None => {}
        }
        if self.only.is_some_and(|only| header.id != only && !undo::is_machine(header, only)) {
            return;
        }
        // A platform of vnodes has its own supervisor.
        if is_platform(&header.plan) {
            return;
        }
        if let Err(error) = record.require_here(self.host) {
            return self.log_once(&format!("{} is not watched: {error}", header.id));
        }
        let here = record.is_of_this_boot(self.host).map_err(|error| error.to_string());
        let alive = process::task_alive(self.host, header.vm).map_err(|error| error.to_string());
        match here.and_then(|here| alive.map(|alive| here && alive)) {
            Ok(true) => {}
            // Placements that have ended or are void are left to `undo`.
            Ok(false) => return,
            Err(why) => return self.log_once(&format!("{}: {why}", header.id)),
        }
        match self.watcher(record) {
            Ok(Watched { plan, watcher, guard }) => {
                let (id, vm) = (header.id.clone(), header.vm_name.clone());
                let counts = Counts { id: id.clone(), vm, ..Counts::default() };
                let rounds = CheckSchedule::new(SystemClock.now_ns());
                let right_unix_s = SystemClock.unix_seconds();
                let placement = Placement {
                    begun,
                    process: header.vm.tid,
                    plan,
                    conflicts: Vec::new(),
                    watcher,
                    guard,
                    may_wait: false,
                    counts,
                    sampler: Sampler::default(),
                    trouble: None,
                    rounds,
                    looks: 0,
                    right_unix_s,
                    replan_at: 0,
                    search_at: 0,
                    refused: None,
                };
                self.placements.insert(id, placement);
                self.is_changed = true;
                self.claims_at = 0;
            }
            Err(why) => self.log_once(&format!("{} cannot be watched: {why}", header.id)),
        }
    }

    /// Stops watching a placement, with its watchdog.
    fn end(&mut self, id: &str) {
        self.is_changed = true;
        // Its CPUs may have been used twice.
        self.claims_at = 0;
        if let Some(guard) = self.placements.remove(id).and_then(|placement| placement.guard) {
            guard.end();
        }
    }

    fn watcher(&mut self, record: &Record) -> Result<Watched, String> {
        let header = &record.header;
        let plan: Plan =
            pinfold_plan::schema::from_json(&header.plan).map_err(|e| e.to_string())?;
        let pid = header.vm.tid;
        let threads = self
            .subscribers
            .roles(self.host, pid)
            .unwrap_or_else(|_| threads_by_journal(&plan, record));
        let target = Target { kept: kept_since(&plan, record), ..Target::new(pid, threads) };
        let watcher = Watcher::new(self.host, &plan, &target).map_err(|error| error.to_string())?;
        let watcher = watcher.on_drift(self.on_drift);
        let guard = self.guards.remove(&header.id);
        let guard = guard.or_else(|| {
            RtWatchdog::after(record.last_supervisor(), self.supervision, &plan, &header.id)
        });
        Ok(Watched { plan, watcher, guard })
    }

    /// Sends heartbeats to the watchdogs, before anything is corrected.
    fn send_heartbeats(&mut self) {
        let now = SystemClock.now_ns();
        let mut troubles = Vec::new();
        for (id, placement) in &mut self.placements {
            let Some(guard) = &mut placement.guard else { continue };
            let begun = guard.take_over(self.host, now).and_then(|()| guard.beat(now));
            if let Err(failure) = begun {
                troubles
                    .push(format!("warning: {id}: its real-time threads have no guard: {failure}"));
            }
        }
        troubles.iter().for_each(|trouble| self.log_once(trouble));
    }

    /// Runs the checks that are due.
    fn look(&mut self) {
        let mut over = Vec::new();
        // A guard takes its policies back if this thread waits longer than it allows.
        let may_wait = self.placements.values().all(|placement| placement.guard.is_none());
        for (id, placement) in &mut self.placements {
            placement.may_wait = may_wait;
            let before = placement.looks;
            let (fate, events) =
                match placement.look(self.host, self.around, id, &mut self.subscribers) {
                    Ok((fate, mut events)) => {
                        let trouble = placement.trouble.take();
                        events.extend(trouble.map(|why| end_of_finding("watch", &why)));
                        (fate, events)
                    }
                    // The same error is reported once; it may be temporary.
                    Err(why) if placement.trouble.as_ref() == Some(&why) => continue,
                    Err(why) => {
                        placement.trouble = Some(why.clone());
                        let finding = Finding::warning("watch", why);
                        (PlacementAction::Watched, vec![WatchEvent::Finding(finding)])
                    }
                };
            self.is_changed |= placement.looks != before;
            for event in &events {
                placement.count(event);
                (self.on_event)(&placement.counts, placement.right_unix_s, event);
            }
            if events.iter().any(|event| matches!(event, WatchEvent::Replanned { .. })) {
                // On other CPUs the machine may share them with other owners.
                self.claims_at = 0;
            }
            if placement.looks != before {
                // What had changed is reported, so a later change is a new one.
                placement.right_unix_s = SystemClock.unix_seconds();
            }
            if fate == PlacementAction::Over {
                over.push(id.clone());
            }
        }
        over.iter().for_each(|id| self.end(id));
        if !over.is_empty()
            && let Err(failure) =
                ended_placements::clear_up_in(self.host, self.supervision.journals)
        {
            self.log_once(&failure.to_string());
        }
    }

    /// What the page of metrics reports now.
    fn page(&mut self) -> Page {
        let host = HostUse::read(self.host, self.speeds.latest.clone());
        let mut page = Page { pool: self.pool.clone(), host, ..Page::default() };
        let now = SystemClock.now_ns();
        for (id, placement) in &mut self.placements {
            let Placement { counts, plan, sampler, watcher, .. } = &mut *placement;
            let times = sampler.sample(self.host, watcher.target(), now).clone();
            page.machines.push(MachineUse {
                id: counts.id.clone(),
                vm: counts.vm.clone(),
                strategy: plan.strategy.clone(),
                is_degraded: placement.is_degraded(),
                times,
                gaps: self.gaps.as_ref().and_then(|gaps| gaps.of(id)),
            });
            page.counts.push(placement.counts.clone());
        }
        page
    }

    /// True if the owners of CPUs are of interest: to placements, or to metrics.
    fn needs_claims(&self) -> bool {
        self.is_served || !self.placements.is_empty()
    }

    /// Reports each CPU of a placement that another owner uses too, when that begins and when it
    /// ends.
    fn compare_claims(&mut self) {
        let now = SystemClock.now_ns();
        if !self.needs_claims() || (now < self.claims_at && !self.has_ended_user()) {
            return;
        }
        self.claims_at = now.saturating_add(CLAIMS_NS);
        self.read_speeds();
        let claims = match claims::read(self.host, Some(self.supervision.journals)) {
            Ok(claims) => claims,
            Err(failure) => return self.log_once(&failure.to_string()),
        };
        self.pool = Some(claims.usage(&pinfold_claims::Context::new(self.host).online));
        let mut begun = BTreeMap::new();
        for (id, placement) in &mut self.placements {
            let name = placement.counts.vm.clone();
            let others = claims.without_machine(self.host, placement.process, &name).without(id);
            let found = others.shared_cpus(&name, &placement.plan);
            let known = std::mem::replace(&mut placement.conflicts, found);
            let conflicts = &placement.conflicts;
            let ended: Vec<Finding> =
                known.iter().filter_map(|shared| shared.resolved(conflicts)).collect();
            let new = conflicts.iter().filter(|shared| !known.contains(shared));
            begun.insert(id.clone(), new.map(SharedCpus::finding).collect::<Vec<_>>());
            placement.report(self.on_event, ended);
        }
        // What began follows what ended, also of other placements.
        for (id, placement) in &mut self.placements {
            placement.report(self.on_event, begun.remove(id).unwrap_or_default());
        }
    }

    /// True if another owner of a CPU that is used twice has ended.
    fn has_ended_user(&self) -> bool {
        let conflicts = self.placements.values().flat_map(|placement| &placement.conflicts);
        let mut processes = conflicts.flat_map(|shared| &shared.processes);
        processes.any(|pid| {
            proc_stat::read(self.host, *pid)
                .is_ok_and(|stat| stat.is_none_or(|stat| stat.has_ended()))
        })
    }

    /// The speeds of the vnodes, for metrics.
    fn read_speeds(&mut self) {
        if self.is_served {
            match top::read_speeds(self.speeds.state) {
                Ok(speeds) => self.speeds.latest = speeds.unwrap_or_default(),
                Err(failure) => self.log_once(&failure.to_string()),
            }
        }
    }

    /// Subscribes to events of all monitored machines, and waits.
    fn wait(&mut self, metrics: &Metrics) -> Result<(), Failure> {
        if std::mem::take(&mut self.is_changed) && self.follow() {
            return Ok(());
        }
        let beats = self.placements.values().filter_map(|placement| placement.guard.as_ref());
        let looks = self.placements.values().map(|placement| placement.rounds.next());
        let next = looks.chain(beats.map(RtWatchdog::next));
        let pause = if self.is_unsettled { TICK_NS } else { COMPARE_NS };
        let idle = SystemClock.now_ns().saturating_add(pause);
        let claims = Some(self.claims_at).filter(|_| self.needs_claims());
        let next = next.chain(metrics.next()).chain(claims).chain(self.newcomers_at);
        let next = next.fold(idle, u64::min);
        let received = self.receiver.wait(&SystemClock, next, &metrics.sources())?;
        self.is_changed |= received.files || !received.threads.is_empty();
        let now = SystemClock.now_ns();
        self.placements.values_mut().for_each(|placement| placement.take_events(&received, now));
        Ok(())
    }

    /// True if there is a new subscription: threads created before it show in the link counts,
    /// which are checked without waiting.
    fn follow(&mut self) -> bool {
        self.follow_gaps();
        let watchers = || self.placements.values().map(|placement| &placement.watcher);
        let threads = watchers().flat_map(|watcher| watcher.threads().iter().copied()).collect();
        let files = watchers().flat_map(Watcher::files).cloned();
        let files = files.chain([self.supervision.journals.path()]).collect();
        let (is_new, findings) = self.receiver.follow(&threads, &files);
        findings.iter().for_each(|finding| say(&finding.to_string()));
        is_new
    }

    /// The gaps of all threads of the placements are observed.
    fn follow_gaps(&self) {
        let Some(gaps) = &self.gaps else { return };
        let (mut threads, mut names) = (Vec::new(), BTreeMap::new());
        for (id, placement) in &self.placements {
            names.insert(placement.watcher.target().pid, placement.counts.vm.clone());
            threads.extend(
                placement.watcher.target().threads.iter().map(|(task, role)| GapThread {
                    task: *task,
                    role: role.clone(),
                    id: id.clone(),
                }),
            );
        }
        gaps.follow(threads, names);
    }

    fn log_once(&mut self, text: &str) {
        if self.reported.insert(text.to_owned()) {
            say(text);
        }
    }
}

impl Placement {
    fn look(
        &mut self,
        host: &LiveHost,
        around: OtherOwners<'_, '_>,
        id: &str,
        tellers: &mut Subscribers<'_>,
    ) -> Result<(PlacementAction, Vec<WatchEvent>), String> {
        let nothing = |fate| Ok((fate, Vec::new()));
        let now = SystemClock.now_ns();
        let due = self.rounds.due(now);
        let glance = match due {
            DueCheck::Look => QuickCheck::NeedsFullCheck,
            DueCheck::QuickCheck(extent) => {
                self.watcher.quick_check(host, extent).map_err(|error| describe(&error))?
            }
        };
        match glance {
            QuickCheck::Quiet
                if !self.is_replan_due(now) && !self.has_free_cpus(host, around, id, due) =>
            {
                if due != DueCheck::QuickCheck(Extent::TaskEvents) {
                    self.right_unix_s = SystemClock.unix_seconds();
                }
                return nothing(PlacementAction::Watched);
            }
            QuickCheck::Ended => return Ok((PlacementAction::Over, vec![WatchEvent::Ended])),
            QuickCheck::Quiet | QuickCheck::NeedsFullCheck => self.rounds.end_look(now, false),
        }
        let mut journal = match around.journals.reopen(id) {
            Ok(Some(journal)) if !journal.record().has_ended() => journal,
            Ok(Some(journal)) => {
                // The process that waits for the end of the machine reverts its placement too.
                let is_alive = process::task_alive(host, journal.record().header.vm);
                let is_undone = is_alive.map_err(|error| describe(&error))?;
                let event = if is_undone { WatchEvent::Undone } else { WatchEvent::Ended };
                return Ok((PlacementAction::Over, vec![event]));
            }
            Ok(None) => return nothing(PlacementAction::Over),
            // Another Pinfold process works on the machine: it monitors or undoes the placement.
            Err(JournalError::Busy { .. }) => return nothing(PlacementAction::Watched),
            Err(error) => return Err(describe(&error)),
        };
        let record = journal.record();
        if self.begun != (record.header.created_unix_s, record.last_supervisor()) {
            // Another plan has replaced the one that is watched; it is found in the directory.
            return nothing(PlacementAction::Watched);
        }
        if record.is_being_undone() {
            return nothing(PlacementAction::Watched);
        }
        self.looks += 1;
        let put = self.watcher.repair_drift(host, &mut journal, tellers);
        let mut events = put.map_err(|error| describe(&error))?;
        let is_due = glance == QuickCheck::Quiet || self.is_replan_due(SystemClock.now_ns());
        if is_due && !events.contains(&WatchEvent::Ended) {
            events.extend(self.replan(host, around, &mut journal));
        }
        self.rounds.end_look(SystemClock.now_ns(), self.watcher.has_questions());
        let fate = if events.contains(&WatchEvent::Ended) {
            PlacementAction::Over
        } else {
            PlacementAction::Watched
        };
        Ok((fate, events))
    }

    /// Reports findings as events.
    fn report(&mut self, on_event: &OnEvent<'_>, findings: Vec<Finding>) {
        for event in findings.into_iter().map(WatchEvent::Finding) {
            self.count(&event);
            on_event(&self.counts, self.right_unix_s, &event);
        }
    }

    /// True if it is not as planned, and this cannot be corrected.
    fn is_degraded(&self) -> bool {
        !self.conflicts.is_empty()
            || self.trouble.is_some()
            || self.counts.contested > 0
            || replan::degraded_findings(&self.plan).next().is_some()
    }

    /// True if the machine is not as its plan describes it, and it is time to plan it again.
    fn is_replan_due(&self, now: u64) -> bool {
        now >= self.replan_at && self.watcher.needs_plan()
    }

    /// True if a vCPU that shares a CPU could have one of its own; searched when masks are compared
    /// or a placement came or went.
    fn has_free_cpus(
        &mut self,
        host: &LiveHost,
        around: OtherOwners<'_, '_>,
        id: &str,
        due: DueCheck,
    ) -> bool {
        let now = SystemClock.now_ns();
        if due == DueCheck::QuickCheck(Extent::TaskEvents)
            || now < self.search_at.max(self.replan_at)
        {
            return false;
        }
        self.search_at = now.saturating_add(replan::SEARCH_NS);
        replan::finds_cpus(host, around, &self.plan, &self.watcher, id)
    }

    fn replan(
        &mut self,
        host: &LiveHost,
        around: OtherOwners<'_, '_>,
        journal: &mut Journal<'_>,
    ) -> Vec<WatchEvent> {
        let (plan, watcher) = (&mut self.plan, &mut self.watcher);
        // A libvirt that is only slow would fail the plan, and then its undo: it gets its usual time.
        let done = if self.may_wait {
            host::live()
                .and_then(|host| replan::follow_change(&host, around, plan, watcher, journal))
        } else {
            replan::follow_change(host, around, plan, watcher, journal)
        };
        let record = journal.record();
        let vm = record.header.vm;
        self.begun = (record.header.created_unix_s, record.last_supervisor());
        let guarded = match (&done, &mut self.guard) {
            (Ok(Some(_)), Some(guard)) => guard.follow(host, &self.plan),
            (_, _) => Ok(()),
        };
        match done.and_then(|event| guarded.map(|()| event)) {
            Ok(event) => {
                self.replan_at = 0;
                let refused = self.refused.take().map(|why| {
                    end_of_finding("watch", &format!("cannot plan the machine again: {why}"))
                });
                event.into_iter().chain(refused).collect()
            }
            // Its threads were ending, which is no reason for a warning.
            Err(_) if !process::task_alive(host, vm).unwrap_or(true) => Vec::new(),
            Err(failure) => {
                self.replan_at = SystemClock.now_ns().saturating_add(replan::AGAIN_NS);
                let unplaced = replan::report(&failure, &mut self.watcher, &mut self.refused);
                unplaced.into_iter().map(WatchEvent::Finding).collect()
            }
        }
    }

    fn take_events(&mut self, received: &Events, now: u64) {
        if !received.threads.is_disjoint(self.watcher.threads()) {
            self.rounds.received_threads(now);
        }
        if received.files {
            self.rounds.received_files(now);
        }
    }

    fn count(&mut self, event: &WatchEvent) {
        let counts = &mut self.counts;
        *match event {
            WatchEvent::Placed { .. } => &mut counts.placed,
            WatchEvent::Repaired { .. } => &mut counts.restored,
            WatchEvent::Contested { .. } => &mut counts.contested,
            WatchEvent::Yielded { .. } => &mut counts.yielded,
            WatchEvent::Replanned { moves, .. } => {
                counts.moved = counts.moved.saturating_add(u64::try_from(*moves).unwrap_or(0));
                &mut counts.replanned
            }
            WatchEvent::Groups { .. } => &mut counts.groups,
            WatchEvent::Finding(_) => &mut counts.findings,
            WatchEvent::Undone | WatchEvent::Ended => return,
        } += 1;
    }
}

/// The event of a finding that no longer holds.
fn end_of_finding(subject: &str, text: &str) -> WatchEvent {
    WatchEvent::Finding(Finding::note(subject, format!("resolved: {text}")))
}

fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    Failure::from_error(Exit::Host, error, None).message
}

/// Sources of the roles of threads: the hypervisor by its socket, else the names of the threads.
///
/// A socket is connected only for a query, because QEMU serves one client at a time.
struct Subscribers<'a> {
    sockets: &'a [Socket],
}

impl Roles for Subscribers<'_> {
    fn roles(&mut self, host: &dyn Host, pid: Tid) -> Result<Vec<(TaskId, Role)>, String> {
        for (hypervisor, socket) in self.sockets {
            // An unreachable one may be another machine's that has ended.
            let Ok(mut monitor) = hypervisor.connect(socket, MONITOR_TIMEOUT_NS) else { continue };
            if monitor.peer() == Some(pid) {
                let found = threads::discover(host, pid, Some(&mut *monitor));
                return found.map(|found| found.tasks()).map_err(|error| describe(&error));
            }
        }
        let found = threads::discover(host, pid, None);
        found.map(|found| found.tasks()).map_err(|error| describe(&error))
    }
}
