//! Tells a finished run: the page, the table, the winner in the forms that other tools take.

use pinfold_host::{Clock, user};
use pinfold_model::Topology;
use pinfold_report::Page;
use pinfold_study::store::{RunId, Store};
use pinfold_study::tune as study;

use super::keep::Kept;
use crate::cli::TuneArgs;
use crate::common::host_failure;
use crate::failure::{Exit, Failure};
use crate::output::data;
use crate::view;

/// Writes the page and prints the result.
pub fn tell(
    arguments: &TuneArgs,
    store: &Store,
    run: RunId,
    topology: &Topology,
    clock: &dyn Clock,
) -> Result<(), Failure> {
    let page = page_of(store, run, topology, clock)?;
    write_page(&page, &arguments.report)?;
    if arguments.json {
        data(&crate::view::json(&page)?);
        return Ok(());
    }
    data(&pinfold_report::summary_text(&page));
    for form in &page.emitted {
        data(&format!("\n── {} ── {}\n{}", form.title, form.usage, form.text));
    }
    data(&format!(
        "\nReport page: {}\nRaw samples: {} (run {run})",
        arguments.report, arguments.store
    ));
    Ok(())
}

/// The page of a stored run.
pub fn page_of(
    store: &Store,
    run: RunId,
    topology: &Topology,
    clock: &dyn Clock,
) -> Result<Page, Failure> {
    let report =
        study::analyse(store, run).map_err(|e| Failure::from_error(Exit::Input, &e, e.hint()))?;
    let kept = Kept::read(&report.config.context)?;
    let context = view::Context {
        topology,
        command: kept.command,
        guest: kept.guest,
        argv: kept.argv,
        findings: kept.findings,
        unix_seconds: clock.unix_seconds(),
    };
    view::page(store, &report, &context)
}

/// Writes the page.
pub fn write_page(page: &Page, path: &str) -> Result<(), Failure> {
    let html =
        pinfold_report::render(page).map_err(|e| Failure::from_error(Exit::Host, &e, None))?;
    user::write_atomic(path, html.as_bytes()).map_err(|error| host_failure(&error))
}
