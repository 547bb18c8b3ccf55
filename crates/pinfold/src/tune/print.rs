//! The end of a run: the answer, the table, the page, and the winner's plan as files for other
//! tools.

use pinfold_host::files;
use pinfold_model::{Command, Topology};
use pinfold_report::Page;
use pinfold_run::{Failure, tune_page};
use pinfold_study::store::{RunId, Store};

use crate::cli::TuneArgs;
use crate::output::{self, Tone, print_data, show};
use crate::screen;

/// Writes the page and prints the result.
pub fn report(
    arguments: &TuneArgs,
    store: &Store,
    run: RunId,
    topology: &Topology,
) -> Result<(), Failure> {
    let page = tune_page::from_store(store, run, topology)?;
    tune_page::write(&page, &arguments.report)?;
    if arguments.json {
        print_data(&tune_page::json(&page)?);
        return Ok(());
    }
    show_result(&page);
    show(&format!("\nReport page: {}", arguments.report));
    let stem = arguments.report.trim_end_matches(".html");
    for form in &page.emitted {
        // The output formats are read by a shell or by libvirt.
        let path = if form.text.trim_start().starts_with('<') {
            format!("{stem}.xml")
        } else {
            format!("{stem}.sh")
        };
        files::write_atomic(&path, form.text.as_bytes())?;
        show(&format!("{}: {path}", form.title));
    }
    output::answer(tone(&page), &pinfold_report::summary(&page).answer);
    show(&next(arguments, &page, run));
    Ok(())
}

/// Prints the answer, then the ranking and its limitations.
pub fn show_result(page: &Page) {
    let summary = pinfold_report::summary(page);
    output::answer(tone(page), &summary.answer);
    summary.banner.iter().for_each(|banner| show(banner));
    let mut rows = summary.rows.into_iter();
    if let (Some(caption), Some(head)) = (summary.caption, rows.next()) {
        let numbers = 1..head.len().saturating_sub(1);
        let mut table = screen::rows();
        table.set_header(head);
        rows.for_each(|row| {
            table.add_row(row);
        });
        show(&format!("\n{caption}"));
        print_data(&format!("{}\n", screen::draw_table(table, numbers)));
    }
    summary.notes.iter().for_each(|note| show(note));
}

fn tone(page: &Page) -> Tone {
    if page.answer.winner.is_some() { Tone::Good } else { Tone::Mixed }
}

/// The next commands for the user.
fn next(arguments: &TuneArgs, page: &Page, run: RunId) -> String {
    match page.answer.winner.and_then(|id| page.candidate(id)) {
        Some(winner) if !arguments.demo => {
            // The load of the run was Pinfold's own; here it is that of the host's tasks.
            let isolate = if winner.plan.exclusive.is_empty() { "none" } else { "host" };
            let run = Command::new("run --strategy").arg(&winner.name);
            let run = run.arg("--isolate").arg(isolate).arg("--");
            format!("Next: {}", arguments.command.iter().fold(run, |line, word| line.arg(word)))
        }
        Some(_) => format!(
            "Next: {} finds the placement of your own machine",
            Command::new("tune -- QEMU-COMMAND")
        ),
        None => format!(
            "Next: a longer run may give a verdict: set --budget above {} (this was run {run})",
            super::budget(arguments)
        ),
    }
}
