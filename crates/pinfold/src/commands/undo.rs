//! `pinfold undo`: takes back what is in force, also after a crash.

use pinfold_host::SystemClock;

use crate::cli::UndoArgs;
use crate::failure::{Exit, Failure};
use crate::output::{self, say};
use crate::{common, interrupt, place};

/// Takes back one apply, or all.
pub fn undo(arguments: &UndoArgs, state: Option<&str>) -> Result<(), Failure> {
    let host = common::host()?;
    let clock = SystemClock;
    let state = common::state(state)?;
    let journals = place::journals(&state, &clock)?;
    let in_force: Vec<String> = journals
        .list()
        .map_err(|e| Failure::from_error(Exit::Host, &e, e.hint()))?
        .into_iter()
        .filter(|one| !matches!(&one.record, Ok(Some(record)) if record.has_ended()))
        .map(|one| one.id)
        .collect();
    let ids = match (&arguments.id, arguments.all, in_force.len()) {
        (Some(id), _, _) if in_force.contains(id) => vec![id.clone()],
        (Some(id), _, _) => {
            return Err(Failure::new(Exit::Input, format!("nothing named {id} is in force"))
                .with_hint("`pinfold status` lists what is"));
        }
        (None, _, 0) => {
            say("nothing is in force");
            return Ok(());
        }
        (None, false, many) if many > 1 => {
            return Err(Failure::new(Exit::Input, format!("{many} placements are in force"))
                .with_hint(format!("name one of {}, or use --all", in_force.join(", "))));
        }
        (None, _, _) => in_force,
    };
    // What is begun is finished, also when it is asked to stop.
    interrupt::install()?;
    let mut first_failure = None;
    for id in ids {
        // One that cannot be taken back does not keep the others.
        if let Err(failure) = undo_one(&host, &journals, &id) {
            say(&failure.to_string());
            first_failure.get_or_insert(failure);
        }
    }
    match first_failure {
        None => Ok(()),
        Some(failure) => Err(Failure::new(failure.exit, "not everything was taken back")),
    }
}

fn undo_one(
    host: &pinfold_host::LiveHost,
    journals: &pinfold_apply::Journals<'_>,
    id: &str,
) -> Result<(), Failure> {
    let journal = journals.reopen(id).map_err(|e| Failure::from_error(Exit::Host, &e, e.hint()))?;
    let Some(journal) = journal else {
        say(&format!("{id}: nothing had been done"));
        return Ok(());
    };
    let name = journal.record().header.vm_name.clone();
    let report = place::undo(host, journal)?;
    say(&format!(
        "{id} ({}): {} restored, {} right already, {} gone",
        output::name(&name),
        report.restored,
        report.already_right,
        report.gone
    ));
    if report.dropped > 0 {
        say(&format!("{} step(s) were of an earlier boot and void", report.dropped));
    }
    Ok(())
}
