//! Placements whose machine has ended: what they changed on the host is reverted by the process
//! that waits for its end ([`crate::end_waiter`]), or by the next command that reads the
//! placements.

use pinfold_apply::{JournalError, Journals, Record};
use pinfold_host::files::{self, StateDir};
use pinfold_host::{LiveHost, SystemClock, process};
use pinfold_model::escape;

use crate::emulate::status::is_platform;
use crate::message::say;
use crate::{Failure, apply_session, host};

/// End of the name of the file that a process holds locked while it waits for the end of a machine.
pub(crate) const WAITER: &str = ".waiter";

/// Reverts the placements of a state directory whose machines have ended. One that cannot be
/// reverted is reported and stays.
///
/// # Errors
/// [`Failure`] if the journals cannot be listed.
pub fn revert_ended(live: &LiveHost, state: Option<&str>) -> Result<(), Failure> {
    let state = host::existing_state(state)?;
    match host::existing_journals(state.as_ref(), &SystemClock)? {
        Some(journals) => clear_up_in(live, &journals),
        None => Ok(()),
    }
}

/// The same for the placements in these journals.
///
/// # Errors
/// As [`revert_ended`].
pub fn clear_up_in(live: &LiveHost, journals: &Journals<'_>) -> Result<(), Failure> {
    for summary in journals.list()? {
        let Ok(Some(record)) = &summary.record else { continue };
        clear_up_record(live, journals, &summary.id, record)?;
    }
    remove_waiter_files(journals)
}

/// Removes the files of waiting processes that were killed, also by a power cut, once their placement
/// has ended.
fn remove_waiter_files(journals: &Journals<'_>) -> Result<(), Failure> {
    let Some(directory) = StateDir::open_existing(&journals.path())? else { return Ok(()) };
    for name in directory.list()? {
        let Some(id) = name.strip_suffix(WAITER) else { continue };
        // A journal that cannot be read may be active.
        if matches!(active(journals, id), Ok(None))
            && let Some(_lock) = directory.lock(&name)?
        {
            directory.remove(&name)?;
        }
    }
    Ok(())
}

/// The record of a journal, unless it has ended or was removed.
pub(crate) fn active(journals: &Journals<'_>, id: &str) -> Result<Option<Record>, Failure> {
    if !files::exists(&journals.path_of(id)) {
        return Ok(None);
    }
    Ok(journals.read(id)?.filter(|record| !record.has_ended()))
}

/// The same for the placement with this ID.
pub(crate) fn clear_up_one(
    live: &LiveHost,
    journals: &Journals<'_>,
    id: &str,
) -> Result<(), Failure> {
    match journals.read(id)? {
        Some(record) => clear_up_record(live, journals, id, &record),
        None => Ok(()),
    }
}

fn clear_up_record(
    live: &LiveHost,
    journals: &Journals<'_>,
    id: &str,
    record: &Record,
) -> Result<(), Failure> {
    if record.has_ended() || !is_over(live, record)? {
        return Ok(());
    }
    revert(live, journals, id)
}

/// True if the machine of a placement has ended, and no process is about to revert it. Changes of a
/// domain's definition (`--config`) are meant for its next start: they stay until `undo`.
fn is_over(live: &LiveHost, record: &Record) -> Result<bool, Failure> {
    let header = &record.header;
    if is_platform(&header.plan)
        || is_for_next_start(record)
        || !record.is_of_this_boot(live)?
        || !record.is_of_these_namespaces(live)?
    {
        return Ok(false);
    }
    let is_supervised = header.supervised && process::task_alive(live, header.supervisor)?;
    Ok(!is_supervised && !process::task_alive(live, header.vm)?)
}

/// True if a placement changed the definition of its machine.
pub(crate) fn is_for_next_start(record: &Record) -> bool {
    record.steps().any(|(_, step)| step.is_lasting())
}

fn revert(live: &LiveHost, journals: &Journals<'_>, id: &str) -> Result<(), Failure> {
    let journal = match journals.reopen(id) {
        Ok(Some(journal)) if !journal.record().has_ended() => journal,
        // Another process has reverted it, or does so now.
        Ok(_) | Err(JournalError::Busy { .. }) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let name = escape::name(&journal.record().header.vm_name).into_owned();
    match apply_session::undo(live, journal) {
        Ok(report) => say(&format!(
            "{id} ({name}) has ended with its process: {} restored, {} already as before, {} gone",
            report.restored, report.already_right, report.gone
        )),
        Err(failure) => say(&failure.to_string()),
    }
    Ok(())
}
