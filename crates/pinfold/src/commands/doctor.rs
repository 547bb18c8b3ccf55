//! `pinfold doctor`: what this host can and cannot do, and what to change.

use pinfold_topology::{Capability, Verdict, can_run_main_job, capabilities, schema};

use crate::cli::DoctorArgs;
use crate::common;
use crate::failure::{Exit, Failure};
use crate::output;

/// Prints each capability; fails if the main job cannot run.
pub fn doctor(arguments: &DoctorArgs) -> Result<(), Failure> {
    let found = capabilities(&common::host()?);
    output::data(&match arguments.json {
        true => schema::capabilities_to_json(&found),
        false => table(&found),
    });
    if can_run_main_job(&found) {
        return Ok(());
    }
    let missing: Vec<&str> = found
        .iter()
        .filter(|one| one.required && one.verdict == Verdict::No)
        .map(|one| one.name)
        .collect();
    Err(Failure::new(Exit::No, format!("the main job cannot run here: {}", missing.join(", ")))
        .with_hint("see the column \"what to do\" above"))
}

fn table(found: &[Capability]) -> String {
    let mut table = output::table();
    table.set_header(["capability", "", "why", "what to do"]);
    for one in found {
        let name = match one.required {
            true => format!("{} *", one.name),
            false => one.name.to_owned(),
        };
        let verdict = match one.verdict {
            Verdict::Yes => "yes",
            Verdict::Partly => "partly",
            Verdict::No => "no",
        };
        table.add_row([name.as_str(), verdict, &one.why, one.hint.as_deref().unwrap_or("")]);
    }
    format!("{table}\n* needed by the main job (pinfold tune)")
}
