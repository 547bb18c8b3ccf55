//! `pinfold watch`: keeps all placements that are in force true, until it is ended.
//!
//! It supervises nothing: placements stay when it ends, and `pinfold undo` works beside it,
//! because it holds the journal of a machine only while it puts something right there. One lock
//! keeps a second watcher away. Machines come and go: a mark of the journals' directory tells
//! of new placements, the number of the host's youngest task of births anywhere, and a placement that was taken back is found so when it is looked at.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_apply::{
    Glance, JournalError, Journals, Record, Roles, Target, WatchEvent, WatchOptions, Watcher,
};
use pinfold_host::{Clock as _, Host, LiveHost, SystemClock, paths, process};
use pinfold_model::{Finding, Plan, Role, TaskId, Tid};
use pinfold_vm::{Monitor as _, Qmp, threads};
use serde_json::json;

use crate::cli::WatchArgs;
use crate::commands::status;
use crate::failure::{Exit, Failure};
use crate::metrics::{Counts, Metrics};
use crate::output::{self, data, say};
use crate::{common, interrupt, place, time, watching};

/// A new thread is seen within this time; with what it takes to place it, less than 100 ms.
const TICK_NS: u64 = 75_000_000;
/// Masks and policies are compared every so many ticks: every 6 s.
const FULL_EVERY: u32 = 80;
/// A task has its number a little before it is in its process's list: after a birth on the host
/// so many ticks look at the lists.
const BIRTH_TICKS: u32 = 3;
/// A QEMU that does not answer holds the others up for so long at most.
const QMP_TIMEOUT_NS: u64 = 1_000_000_000;

/// Watches until it is ended.
pub fn watch(arguments: &WatchArgs, state: Option<&str>) -> Result<(), Failure> {
    let host = common::host()?;
    let clock = SystemClock;
    let state = common::state(state)?;
    let lock = state.lock("watch.lock").map_err(|error| common::host_failure(&error))?;
    let Some(_lock) = lock else {
        return Err(Failure::new(Exit::Host, "another `pinfold watch` is at work here")
            .with_hint("end that one first; kill -HUP makes it read everything again"));
    };
    let journals = place::journals(&state, &clock)?;
    let mut metrics = Metrics::open(arguments.metrics.as_deref(), arguments.metrics_port)?;
    interrupt::install()?;
    interrupt::install_reread()?;
    let mut desk = Desk {
        host: &host,
        journals: &journals,
        tellers: Tellers { sockets: &arguments.qmp },
        json: arguments.json,
        placements: BTreeMap::new(),
        told: BTreeSet::new(),
        mark: None,
        youngest: String::new(),
        birth_ticks: BIRTH_TICKS,
    };
    desk.find_placements()?;
    say(&format!(
        "watching {} placement(s); ctrl-C ends the watch, they stay in force",
        desk.placements.len()
    ));
    while !interrupt::requested() {
        if interrupt::reread() {
            say("reading everything again");
            desk.forget();
        }
        desk.find_placements()?;
        desk.tick();
        metrics.serve(|| desk.placements.values().map(|one| one.counts.clone()).collect());
        clock.sleep_ns(TICK_NS);
    }
    Ok(())
}

/// All that is watched.
struct Desk<'a> {
    host: &'a LiveHost,
    journals: &'a Journals<'a>,
    tellers: Tellers<'a>,
    json: bool,
    placements: BTreeMap<String, Placement>,
    told: BTreeSet<String>,
    mark: Option<u64>,
    youngest: String,
    birth_ticks: u32,
}

/// One placement that is in force.
struct Placement {
    begun: (u64, TaskId),
    watcher: Watcher,
    counts: Counts,
    trouble: Option<String>,
    // Something is yet to be looked at.
    restless: bool,
}

/// What is to become of a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Watched,
    Over,
}

impl Desk<'_> {
    fn forget(&mut self) {
        self.placements.clear();
        self.told.clear();
        self.mark = None;
    }

    /// Takes up placements that are new since the last time.
    fn find_placements(&mut self) -> Result<(), Failure> {
        let failure = |error: JournalError| Failure::from_error(Exit::Host, &error, error.hint());
        let mark = self.journals.mark().map_err(failure)?;
        if self.mark.replace(mark) == Some(mark) {
            return Ok(());
        }
        for summary in self.journals.list().map_err(failure)? {
            match summary.record {
                Ok(Some(record)) if !record.has_ended() => self.take_up(&record),
                Ok(_) => {}
                Err(error) => self.tell_once(&failure(error).to_string()),
            }
        }
        Ok(())
    }

    fn take_up(&mut self, record: &Record) {
        let header = &record.header;
        let begun = (header.created_unix_s, header.supervisor);
        if self.placements.get(&header.id).is_some_and(|known| known.begun == begun) {
            return;
        }
        let here = record.is_of_this_boot(self.host).map_err(|error| error.to_string());
        let alive = process::task_alive(self.host, header.vm).map_err(|error| error.to_string());
        match here.and_then(|here| alive.map(|alive| here && alive)) {
            Ok(true) => {}
            // What ended or is void is `undo`'s.
            Ok(false) => return,
            Err(why) => return self.tell_once(&format!("{}: {why}", header.id)),
        }
        match self.watcher(record) {
            Ok(watcher) => {
                let (id, vm) = (header.id.clone(), header.vm_name.clone());
                let counts = Counts { id: id.clone(), vm, ..Counts::default() };
                let placement = Placement { begun, watcher, counts, trouble: None, restless: true };
                self.placements.insert(id, placement);
            }
            Err(why) => self.tell_once(&format!("{} cannot be watched: {why}", header.id)),
        }
    }

    fn watcher(&mut self, record: &Record) -> Result<Watcher, String> {
        let plan: Plan =
            pinfold_plan::schema::from_json(&record.header.plan).map_err(|e| e.to_string())?;
        let pid = record.header.vm.tid;
        let threads = self
            .tellers
            .roles(self.host, pid)
            .unwrap_or_else(|_| status::threads_by_journal(&plan, record));
        let target = Target { pid, threads, own: Vec::new(), kept: Vec::new() };
        let options = WatchOptions { full_every: FULL_EVERY, ..WatchOptions::default() };
        Watcher::new(self.host, &plan, &target, options).map_err(|error| error.to_string())
    }

    /// True if a task may have been born on the host of late.
    fn has_births(&mut self) -> bool {
        // Where it cannot be read, each process is asked.
        let Ok(load) = self.host.read_text(&paths::loadavg()) else { return true };
        let youngest = load.split_ascii_whitespace().next_back().unwrap_or_default();
        if self.youngest != youngest {
            youngest.clone_into(&mut self.youngest);
            self.birth_ticks = BIRTH_TICKS;
        }
        let recent = self.birth_ticks > 0;
        self.birth_ticks = self.birth_ticks.saturating_sub(1);
        recent
    }

    fn tick(&mut self) {
        let births = self.has_births();
        let mut over = Vec::new();
        for (id, placement) in &mut self.placements {
            if !births && !placement.restless && placement.watcher.rest() {
                continue;
            }
            let (fate, events) =
                match placement.look(self.host, self.journals, (id, &mut self.tellers)) {
                    Ok(answer) => {
                        placement.trouble = None;
                        answer
                    }
                    // The same trouble at each tick is told once; it may pass.
                    Err(why) if placement.trouble.as_ref() == Some(&why) => continue,
                    Err(why) => {
                        placement.trouble = Some(why.clone());
                        let finding = Finding::warning("watch", why);
                        (Fate::Watched, vec![WatchEvent::Finding(finding)])
                    }
                };
            for event in &events {
                placement.count(event);
                tell(&placement.counts, event, self.json);
            }
            if fate == Fate::Over {
                over.push(id.clone());
            }
        }
        for id in over {
            self.placements.remove(&id);
        }
    }

    fn tell_once(&mut self, text: &str) {
        if self.told.insert(text.to_owned()) {
            say(text);
        }
    }
}

impl Placement {
    fn look(
        &mut self,
        host: &LiveHost,
        journals: &Journals<'_>,
        (id, tellers): (&str, &mut Tellers<'_>),
    ) -> Result<(Fate, Vec<WatchEvent>), String> {
        let nothing = |fate| Ok((fate, Vec::new()));
        let glance = self.watcher.glance(host).map_err(|error| in_words(&error))?;
        self.restless = glance == Glance::Look;
        match glance {
            Glance::Quiet => return nothing(Fate::Watched),
            Glance::Ended => return Ok((Fate::Over, vec![WatchEvent::Ended])),
            Glance::Look => {}
        }
        let mut journal = match journals.reopen(id) {
            Ok(Some(journal)) if !journal.record().has_ended() => journal,
            Ok(_) => return nothing(Fate::Over),
            // Another Pinfold is at work on the machine: it keeps it true, or takes it back.
            Err(JournalError::Busy { .. }) => {
                self.restless = false;
                return nothing(Fate::Watched);
            }
            Err(error) => return Err(in_words(&error)),
        };
        let put = self.watcher.put_right(host, &mut journal, tellers);
        let events = put.map_err(|error| in_words(&error))?;
        let fate = if events.contains(&WatchEvent::Ended) { Fate::Over } else { Fate::Watched };
        Ok((fate, events))
    }

    fn count(&mut self, event: &WatchEvent) {
        let counts = &mut self.counts;
        *match event {
            WatchEvent::Placed { .. } => &mut counts.placed,
            WatchEvent::Repaired { .. } => &mut counts.restored,
            WatchEvent::Contested { .. } => &mut counts.contested,
            WatchEvent::Finding(_) => &mut counts.findings,
            WatchEvent::Ended => return,
        } += 1;
    }
}

fn in_words(error: &(dyn std::error::Error + 'static)) -> String {
    Failure::from_error(Exit::Host, error, None).message
}

/// Tells an event: as talk, or as a line of JSON.
fn tell(counts: &Counts, event: &WatchEvent, as_json: bool) {
    let now = SystemClock.unix_seconds();
    let sentence = watching::sentence(event);
    if !as_json {
        let ended = match event {
            WatchEvent::Ended => "; `pinfold undo` clears up",
            WatchEvent::Placed { .. }
            | WatchEvent::Repaired { .. }
            | WatchEvent::Contested { .. }
            | WatchEvent::Finding(_) => "",
        };
        let (id, vm) = (&counts.id, output::name(&counts.vm));
        return data(&format!(
            "{} {id} ({vm}): {}{ended}",
            time::date(now),
            output::name(&sentence)
        ));
    }
    let (kind, thread) = match event {
        WatchEvent::Placed { task, role, .. } => ("placed", Some((task, role))),
        WatchEvent::Repaired { task, role, .. } => ("restored", Some((task, role))),
        WatchEvent::Contested { task, role, .. } => ("contested", Some((task, role))),
        WatchEvent::Finding(_) => ("finding", None),
        WatchEvent::Ended => ("ended", None),
    };
    let line = json!({
        "format": "pinfold-watch/1",
        "unix_s": now,
        "id": counts.id,
        "vm": counts.vm,
        "event": kind,
        "tid": thread.map(|(task, _)| task.tid.0),
        "role": thread.map(|(_, role)| role.to_string()),
        "text": sentence,
    });
    data(&line.to_string());
}

/// Who tells the roles of threads: QEMUs by their sockets, else names.
///
/// A socket is connected to only for a question: QEMU serves one at a time.
struct Tellers<'a> {
    sockets: &'a [String],
}

impl Roles for Tellers<'_> {
    fn roles(&mut self, host: &dyn Host, pid: Tid) -> Result<Vec<(TaskId, Role)>, String> {
        for socket in self.sockets {
            // One that cannot be reached is perhaps another machine's that has ended.
            let Ok(mut qmp) = Qmp::connect(socket, QMP_TIMEOUT_NS, SystemClock) else { continue };
            if qmp.peer() == Some(pid) {
                let found = threads::discover(host, pid, Some(&mut qmp));
                return found.map(|found| found.tasks()).map_err(|error| in_words(&error));
            }
        }
        let found = threads::discover(host, pid, None);
        found.map(|found| found.tasks()).map_err(|error| in_words(&error))
    }
}
