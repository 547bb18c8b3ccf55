//! Reverts active placements, also after a crash.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;

use pinfold_apply::{
    Header, JOURNALS, Journal, JournalError, Journals, LostPlacement, Record, Summary,
};
use pinfold_host::files::StateDir;
use pinfold_host::{Clock as _, LiveHost, SystemClock, proc_stat, process};
use pinfold_model::text::{count_noun, select_verb};
use pinfold_model::{Command, SettingManager, TaskId, Tid, escape};

use crate::emulate::status::{describe_end, is_platform};
use crate::message::say;
use crate::{Exit, Failure, apply_session, host, interrupt, leftovers, time};

/// Number of attempts to open a journal that `pinfold watch` may have locked at the moment.
const LOOKS: u32 = 20;
const PAUSE_NS: u64 = 100_000_000;
/// The same for a process that ends: its programs in the kernel are removed before its locks.
const LOOKS_AT_END: u32 = 600;

/// The placements to undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection<'a> {
    /// The only active one.
    Only,
    /// The one with this ID, or those of the machine or group with this name.
    Named(&'a str),
    /// All active ones.
    All,
    /// All without a live process that is responsible for them.
    Left,
}

/// Undoes placements, and removes what ended processes left. Nothing is created: a state directory
/// without journals, which may be read-only, has nothing to undo.
///
/// # Errors
/// [`Failure`] if the state directory is not safe, if no placement has the wanted name or ID, or if
/// something could not be undone.
pub fn undo(selection: Selection<'_>, path: Option<&str>) -> Result<(), Failure> {
    let host = host::live()?;
    let state = host::existing_state(path)?;
    let state = state.as_ref();
    let undone = undo_journals(selection, &host, state);
    let lost = require_journals(&host, &host::state_path(path)?);
    if let (Err(failure), Err(_)) = (&undone, &lost) {
        say(&failure.to_string());
    }
    let removed = leftovers::remove(&host, state);
    lost.and(undone).and(removed)
}

/// Lets the threads of a process whose journal is missing or damaged run on all CPUs of their
/// cgroups. A damaged journal is set aside, so that the process can be placed again.
///
/// # Errors
/// [`Failure`] if there is no such process, if its journal can be undone, or if a mask cannot be
/// set.
pub fn reset(pid: Tid, state: &StateDir) -> Result<(), Failure> {
    if pid.0 == 0 {
        let text = "--reset 0: 0 is not the ID of a process";
        return Err(Failure::new(Exit::Input, text).with_hint(
            "give the process ID of the machine; `pinfold undo` and `pinfold status` list it",
        ));
    }
    let host = host::live()?;
    let clock = SystemClock;
    let journals = host::journals(state, &clock)?;
    for summary in journals.list()? {
        if let Ok(Some(record)) = &summary.record
            && record.header.vm.tid == pid
            && !record.has_ended()
            && process::task_alive(&host, record.header.vm)?
            // A journal whose last lines are missing cannot be undone.
            && !matches!(journals.reopen(&summary.id), Err(JournalError::Malformed { .. }))
        {
            return Err(JournalError::Held { pid, id: summary.id }.into());
        }
    }
    // Before the masks: the mark of a placement without a journal is removed with them.
    let aside = match proc_stat::read(&host, pid)? {
        Some(stat) => journals.quarantine_damaged(stat.task())?,
        None => Vec::new(),
    };
    let changed = pinfold_apply::reset_masks(&host, pid, &journals)?;
    let threads = count_noun(changed, "thread");
    say(&format!("process {pid}: {threads} may use all CPUs of their cgroup again"));
    for path in aside {
        say(&format!(
            "its damaged journal is now {}: check the other settings of the host against it by \
             hand",
            escape::name(&path)
        ));
    }
    Ok(())
}

/// The active placements whose journals should be in the state directory at this path, and are
/// missing there or wrong.
///
/// # Errors
/// [`Failure`] if the marks cannot be read.
pub fn find_lost(host: &LiveHost, state: &str) -> Result<Vec<LostPlacement>, Failure> {
    let own = format!("{}/{JOURNALS}/", state.trim_end_matches('/'));
    let mut lost = pinfold_apply::lost_placements(host)?;
    lost.retain(|one| one.journal.starts_with(&own));
    Ok(lost)
}

/// Fails if there is one.
fn require_journals(host: &LiveHost, state: &str) -> Result<(), Failure> {
    let lost = find_lost(host, state)?;
    let Some(first) = lost.first() else { return Ok(()) };
    let lines: Vec<String> = lost.iter().map(ToString::to_string).collect();
    Err(Failure::new(Exit::Residue, lines.join("; ")).with_hint(first.hint()))
}

fn undo_journals(
    selection: Selection<'_>,
    host: &LiveHost,
    state: Option<&StateDir>,
) -> Result<(), Failure> {
    let clock = SystemClock;
    let Some(journals) = host::existing_journals(state, &clock)? else {
        return undo_nothing(selection);
    };
    let mut summaries = journals.list()?;
    // The newest first: its previous values may have been set by an older one.
    summaries.sort_by_key(|one| Reverse(start_time(one)));
    if selection == Selection::Left {
        return undo_left(host, &journals, summaries);
    }
    let ended = ended_placements(&summaries);
    summaries.retain(|one| !matches!(&one.record, Ok(Some(record)) if record.has_ended()));
    if let Selection::Named(wanted) = selection {
        summaries = find_named(host, summaries, wanted, &ended)?;
    }
    let in_force: Vec<String> = summaries.into_iter().map(|one| one.id).collect();
    let ids = match (selection, in_force.len()) {
        (_, 0) => {
            say("no placement is active");
            return Ok(());
        }
        (Selection::Only, many) if many > 1 => {
            return Err(Failure::new(Exit::Input, format!("{many} placements are active"))
                .with_hint(format!(
                    "name one of {}, or its machine, or use --all",
                    in_force.join(", ")
                )));
        }
        (_, _) => in_force,
    };
    undo_each(ids, |id| undo_one(host, &journals, id))
}

/// Reports that there are no journals.
fn undo_nothing(selection: Selection<'_>) -> Result<(), Failure> {
    match selection {
        Selection::Named(wanted) => return Err(unknown_placement_failure(wanted, false, &[])),
        Selection::Left => say("no placement is left behind"),
        Selection::Only | Selection::All => say("no placement is active"),
    }
    Ok(())
}

/// The placement with this ID, or all of the one machine or group with this name or process ID. A
/// domain of libvirt is one machine, also where it was started anew: a placement with `--config`
/// stays when its process ends.
fn find_named(
    host: &LiveHost,
    mut active: Vec<Summary>,
    wanted: &str,
    ended: &[EndedPlacement],
) -> Result<Vec<Summary>, Failure> {
    if active.iter().any(|one| one.id == wanted) {
        active.retain(|one| one.id == wanted);
        return Ok(active);
    }
    let is_any = !active.is_empty();
    let unreadable: Vec<String> =
        active.iter().filter(|one| one.record.is_err()).map(|one| one.id.clone()).collect();
    active.retain(|one| header(one).is_some_and(|header| is_machine(&header, wanted)));
    let records = active.iter().filter_map(|one| one.record.as_ref().ok()?.as_ref());
    let machines: BTreeSet<_> = records.map(|record| identify(host, record)).collect();
    if active.is_empty() && !unreadable.is_empty() {
        let text = format!(
            "no readable journal belongs to {}, and {} cannot be read",
            escape::short_name(wanted),
            count_noun(unreadable.len(), "journal")
        );
        let undo = Command::new("undo").arg(&unreadable[0]);
        return Err(Failure::new(Exit::Residue, text).with_hint(format!("`{undo}` shows why")));
    }
    if active.is_empty() {
        return Err(unknown_placement_failure(wanted, is_any, ended));
    }
    if machines.len() > 1 {
        let text = format!("{} machines are named {}", machines.len(), escape::short_name(wanted));
        let ids: Vec<String> = active.into_iter().map(|one| one.id).collect();
        return Err(Failure::new(Exit::Input, text)
            .with_hint(format!("name one placement by its ID: {}", ids.join(", "))));
    }
    Ok(active)
}

fn header(one: &Summary) -> Option<Header> {
    Some(one.record.as_ref().ok()?.as_ref()?.header.clone())
}

/// What distinguishes two machines with the same name.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Identity {
    /// The UUID of a domain, or of a process of QEMU that has one.
    Uuid(String),
    /// Its process.
    Process(TaskId),
}

fn identify(host: &LiveHost, record: &Record) -> Identity {
    let Header { vm, pins, .. } = &record.header;
    let pinned = pins.iter().map(|pin| &pin.setting);
    let written = record.steps().filter_map(|(_, step)| step.change.as_write_setting());
    let written = written.map(|(setting, _)| setting);
    let mut domains = pinned.chain(written).filter(|one| one.keeper != SettingManager::Systemd);
    let uuid = domains.next().map(|setting| setting.object.clone());
    let uuid = uuid.or_else(|| {
        let is_alive = process::task_alive(host, *vm).unwrap_or_default();
        pinfold_vm::threads::uuid(host, vm.tid).filter(|_| is_alive)
    });
    uuid.map_or(Identity::Process(*vm), |uuid| Identity::Uuid(uuid.to_ascii_lowercase()))
}

/// True if `wanted` is the name or the process ID of the machine or group of this journal.
#[must_use]
pub fn is_machine(header: &Header, wanted: &str) -> bool {
    header.vm_name == wanted || wanted.parse() == Ok(header.vm.tid.0)
}

/// A placement that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedPlacement {
    id: String,
    vm_name: String,
    process: TaskId,
    unix_s: u64,
    why: String,
}

/// `the placement 812-9912 of web ended on 2026-11-30 03:20:49 UTC: undone`.
impl fmt::Display for EndedPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, vm_name, unix_s, why, .. } = self;
        let (name, why) = (escape::short_name(vm_name), escape::name(why));
        write!(f, "the placement {id} of {name} ended on {}: {why}", time::date(*unix_s))
    }
}

impl EndedPlacement {
    /// The placement of a journal, if it ended.
    #[must_use]
    pub fn from_record(record: &Record) -> Option<Self> {
        let Header { id, vm_name, vm, .. } = &record.header;
        let (unix_s, why) = record.end()?;
        let (id, vm_name, why) = (id.clone(), vm_name.clone(), why.to_owned());
        Some(Self { id, vm_name, process: *vm, unix_s, why })
    }

    fn is_named(&self, wanted: &str) -> bool {
        self.id == wanted || self.vm_name == wanted || wanted.parse() == Ok(self.process.tid.0)
    }

    /// The last of these that has this ID, or is of the machine with this name or process ID.
    pub(crate) fn last_named<'e>(ended: &'e [Self], wanted: &str) -> Option<&'e Self> {
        ended.iter().filter(|one| one.is_named(wanted)).max_by_key(|one| one.unix_s)
    }

    /// ID of its journal.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Name of its machine or group.
    pub(crate) fn vm_name(&self) -> &str {
        &self.vm_name
    }

    /// Its process, if that has not ended.
    pub(crate) fn living_process(&self, host: &LiveHost) -> Result<Option<Tid>, Failure> {
        Ok(process::task_alive(host, self.process)?.then_some(self.process.tid))
    }
}

/// The placements of these journals that ended.
#[must_use]
pub fn ended_placements(journals: &[Summary]) -> Vec<EndedPlacement> {
    let records = journals.iter().filter_map(|one| one.record.as_ref().ok()?.as_ref());
    records.filter_map(EndedPlacement::from_record).collect()
}

/// The failure for a name or ID that no active placement has, with the last one that `ended`; `is_any`
/// is true if a placement is active.
#[must_use]
pub fn unknown_placement_failure(wanted: &str, is_any: bool, ended: &[EndedPlacement]) -> Failure {
    if let Some(last) = EndedPlacement::last_named(ended, wanted) {
        let journal = Command::new("journal").arg(&last.id);
        return Failure::new(Exit::Input, last.to_string())
            .with_hint(format!("nothing is left to revert; `{journal}` shows what it changed"));
    }
    let text = format!(
        "there is no active placement with the ID or of the machine {}",
        escape::short_name(wanted)
    );
    let hint = if is_any {
        format!("`{}` lists them", Command::new("status"))
    } else {
        format!("none is active; `{}` lists those that ended", Command::new("journal"))
    };
    Failure::new(Exit::Input, text).with_hint(hint)
}

/// When a placement began; several within one second are ordered by their processes.
fn start_time(summary: &Summary) -> Option<(u64, u64)> {
    let header = &summary.record.as_ref().ok()?.as_ref()?.header;
    Some((header.created_unix_s, header.supervisor.start_time))
}

/// Undoes what a crash or a restart left behind; active placements that match their plan stay.
fn undo_left(
    host: &LiveHost,
    journals: &Journals<'_>,
    summaries: Vec<Summary>,
) -> Result<(), Failure> {
    let mut left = Vec::new();
    let mut stay = 0_usize;
    for one in summaries {
        match &one.record {
            Ok(Some(record)) if record.has_ended() => {}
            Ok(Some(record)) if !is_left(host, record)? => stay += 1,
            // An unreadable one is reported by the attempt to undo it.
            Ok(_) | Err(_) => left.push(one.id),
        }
    }
    let verb = select_verb(stay, "stays", "stay");
    let stays = format!("{} {verb} active", count_noun(stay, "placement"));
    match (left.is_empty(), stay) {
        (true, 0) => say("no placement is left behind"),
        (true, _) => say(&format!("no placement is left behind: {stays}")),
        (false, 0) => {}
        (false, _) => say(&format!("{stays}; nothing was left behind by a crash or restart")),
    }
    if left.is_empty() {
        return Ok(());
    }
    undo_each(left, |id| undo_one_left(host, journals, id))
}

fn is_left(host: &LiveHost, record: &pinfold_apply::Record) -> Result<bool, Failure> {
    record.is_left(host).map_err(Failure::from)
}

/// Undoes one that was left behind, unless it has changed since the check.
fn undo_one_left(host: &LiveHost, journals: &Journals<'_>, id: &str) -> Result<(), Failure> {
    match reopen(journals, id)? {
        Some(journal) if !is_left(host, journal.record())? => Ok(()),
        journal => revert(host, id, journal),
    }
}

/// Opens a journal, and waits while `pinfold watch` holds it for a short time. A journal that its
/// process holds until its end is not waited for.
///
/// # Errors
/// [`Failure`] if it cannot be read or another process keeps it.
pub fn reopen<'c>(journals: &Journals<'c>, id: &str) -> Result<Option<Journal<'c>>, Failure> {
    let host = host::live()?;
    let mut most = LOOKS;
    for look in 0.. {
        let answer = journals.reopen(id);
        if !matches!(answer, Err(JournalError::Busy { .. })) || look >= most {
            // A journal that another process holds is reverted by that process; one that cannot be
            // read stays.
            let exit = match &answer {
                Err(JournalError::Busy { .. }) => Exit::Host,
                Ok(_) | Err(_) => Exit::Residue,
            };
            return answer.map_err(|e| Failure::from_error(exit, &e, e.hint()));
        }
        if let Ok(Some(record)) = journals.read(id)
            && record.header.supervised
            && !record.has_ended()
            && process::task_alive(&host, record.header.supervisor)?
        {
            // One that is ending, as after SIGKILL, is waited for.
            let stat = proc_stat::read(&host, record.header.supervisor.tid)?;
            if !stat.is_none_or(|stat| stat.is_exiting()) {
                return Err(held_failure(&record));
            }
            most = LOOKS_AT_END;
        }
        SystemClock.sleep_ns(PAUSE_NS);
    }
    Ok(None)
}

/// The failure for a placement that is reverted by the process that holds it.
fn held_failure(record: &Record) -> Failure {
    let Header { id, vm_name, supervisor, .. } = &record.header;
    let pid = supervisor.tid;
    if host::is_stopped(pid) {
        let text = format!(
            "{id} ({}) belongs to process {pid}, which is suspended",
            escape::short_name(vm_name)
        );
        let undo = Command::new("undo").arg(id);
        return Failure::new(Exit::Host, text).with_hint(format!(
            "continue it: kill -CONT {pid}; or kill it: kill -KILL {pid}, then `{undo}`"
        ));
    }
    if is_platform(&record.header.plan) {
        return Failure::new(Exit::Host, format!("{id} is a platform of vnodes that is up"))
            .with_hint(describe_end(&record.header.plan, pid));
    }
    let text = format!(
        "{id} ({}) belongs to process {pid}, which is running",
        escape::short_name(vm_name)
    );
    Failure::new(Exit::Host, text)
        .with_hint(format!("kill -INT {pid} ends that process, which reverts its placement first"))
}

fn undo_each(
    ids: Vec<String>,
    mut undo: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // An undo is completed, even if a stop is requested.
    interrupt::install()?;
    let mut exits = Vec::new();
    for id in ids {
        // A failed undo does not prevent the others.
        if let Err(failure) = undo(&id) {
            say(&failure.to_string());
            exits.push(failure.exit);
        }
    }
    // A residue is more severe than a journal held by a live process.
    match exits.iter().find(|exit| **exit == Exit::Residue).or(exits.first()) {
        None => Ok(()),
        Some(Exit::Residue) => Err(Failure::new(Exit::Residue, "not everything was restored")),
        Some(exit) => Err(Failure::new(*exit, "not everything was reverted")),
    }
}

fn undo_one(host: &LiveHost, journals: &Journals<'_>, id: &str) -> Result<(), Failure> {
    revert(host, id, reopen(journals, id)?)
}

fn revert(host: &LiveHost, id: &str, journal: Option<Journal<'_>>) -> Result<(), Failure> {
    let Some(journal) = journal else {
        say(&format!("{id}: no step had been executed"));
        return Ok(());
    };
    let name = escape::name(&journal.record().header.vm_name).into_owned();
    let had_ended = crate::ended_placements::is_for_next_start(journal.record())
        && !process::task_alive(host, journal.record().header.vm)?;
    let of_this_boot = journal.record().is_of_this_boot(host);
    let restarted = !of_this_boot?;
    let report = apply_session::undo(host, journal)?;
    let counts = format!(
        "{} restored, {} already as before, {} gone",
        report.restored, report.already_right, report.gone
    );
    say(&if restarted {
        format!(
            "{id} ({name}): the restart of the host reverted {}; persistent changes: {counts}",
            count_noun(report.dropped, "run-time step")
        )
    } else {
        format!("{id} ({name}): {counts}")
    });
    if had_ended {
        say(&format!(
            "note: {name}: the definition is as before; if the domain was started again with the \
             pins, it keeps them until it ends"
        ));
    }
    Ok(())
}
