//! `pinfold report`: makes the page of a stored run again from the store alone, and lists the runs.

use pinfold_host::SnapshotHost;
use pinfold_model::Command;
use pinfold_run::tune::PageData;
use pinfold_run::{Exit, Failure, time, tune_page};
use pinfold_study::store::{RunId, Store, StoreError};

use crate::cli::ReportArgs;
use crate::output::{print_data, print_message};
use crate::{screen, tune};

/// Writes the page and prints the summary.
pub fn report(arguments: &ReportArgs) -> Result<(), Failure> {
    let store = Store::open(&arguments.store.path)
        .map_err(|e| Failure::from_error(Exit::Input, &e, e.hint()))?;
    if arguments.list {
        return list(&store);
    }
    let run = match arguments.run {
        Some(run) => RunId(run),
        None => last_run(&store, &arguments.store.path)?,
    };
    let config = pinfold_study::tune::analyse(&store, run)
        .map_err(|e| Failure::from_error(Exit::Input, &e, e.hint()))?
        .config;
    let capture = PageData::read(&config.context)?.capture;
    let host = SnapshotHost::parse(&capture)
        .map_err(|error| Failure::from_error(Exit::Input, &error, None))?;
    let topology = pinfold_topology::discover(&host)
        .map_err(|e| Failure::from_error(Exit::Input, &e, e.hint()))?;
    let page = tune_page::from_store(&store, run, &topology)?;
    tune_page::write(&page, &arguments.out)?;
    tune::show_result(&page);
    print_message(&format!("Report page: {}", arguments.out));
    Ok(())
}

/// The runs, one line each.
fn list(store: &Store) -> Result<(), Failure> {
    let mut table = screen::rows();
    table.set_header(["run", "kind", "begun", "starts", "state", "host", "accelerator"]);
    for id in store.runs().map_err(store_failure)? {
        let run = store.run(id).map_err(store_failure)?;
        let starts = store.starts(id).map_err(store_failure)?.len();
        let state = match run.finished_unix_s {
            Some(_) => "finished".to_owned(),
            None => format!("interrupted: --resume {id}"),
        };
        table.add_row([
            id.to_string(),
            run.kind,
            time::date(run.created_unix_s),
            starts.to_string(),
            state,
            run.origin.cpu_model,
            run.origin.accelerator.to_string(),
        ]);
    }
    print_data(&screen::draw_table(table, 3..4));
    Ok(())
}

fn store_failure(e: StoreError) -> Failure {
    Failure::from_error(Exit::Input, &e, e.hint())
}

fn last_run(store: &Store, path: &str) -> Result<RunId, Failure> {
    let runs = store.runs().map_err(|e| Failure::from_error(Exit::Input, &e, e.hint()))?;
    runs.last().copied().ok_or_else(|| {
        Failure::new(Exit::Input, format!("{path} contains no run"))
            .with_hint(format!("create one with `{}`", Command::new("tune")))
    })
}
