//! Placements whose machine has ended: what they changed on the host is reverted by the next command
//! that reads the placements, because no process of Pinfold waits for the end of a machine.

use pinfold_apply::{JournalError, Journals, Record};
use pinfold_host::{LiveHost, SystemClock, process};
use pinfold_model::shown;

use crate::emulate::status::is_platform;
use crate::message::say;
use crate::{Failure, apply_session, host};

/// Reverts the placements of a state directory whose machines have ended. One that cannot be
/// reverted is reported and stays.
///
/// # Errors
/// [`Failure`] if the journals cannot be listed.
pub fn clear_up(live: &LiveHost, state: Option<&str>) -> Result<(), Failure> {
    let state = host::existing_state(state)?;
    match host::existing_journals(state.as_ref(), &SystemClock)? {
        Some(journals) => clear_up_in(live, &journals),
        None => Ok(()),
    }
}

/// The same for the placements in these journals.
///
/// # Errors
/// As [`clear_up`].
pub fn clear_up_in(live: &LiveHost, journals: &Journals<'_>) -> Result<(), Failure> {
    for summary in journals.list()? {
        let Ok(Some(record)) = &summary.record else { continue };
        if !record.has_ended() && is_over(live, record)? {
            revert(live, journals, &summary.id)?;
        }
    }
    Ok(())
}

/// True if the machine of a placement has ended, and no process is about to revert it.
fn is_over(live: &LiveHost, record: &Record) -> Result<bool, Failure> {
    let header = &record.header;
    Ok(!is_platform(&header.plan)
        && record.is_of_this_boot(live)?
        && record.is_of_these_namespaces(live)?
        && !process::task_alive(live, header.vm)?
        && !(header.supervised && process::task_alive(live, header.supervisor)?))
}

fn revert(live: &LiveHost, journals: &Journals<'_>, id: &str) -> Result<(), Failure> {
    let journal = match journals.reopen(id) {
        Ok(Some(journal)) if !journal.record().has_ended() => journal,
        // Another process has reverted it, or does so now.
        Ok(_) | Err(JournalError::Busy { .. }) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let name = shown::name(&journal.record().header.vm_name).into_owned();
    match apply_session::undo(live, journal) {
        Ok(report) => say(&format!(
            "{id} ({name}) has ended with its process: {} restored, {} already as before",
            report.restored, report.already_right
        )),
        Err(failure) => say(&failure.to_string()),
    }
    Ok(())
}
