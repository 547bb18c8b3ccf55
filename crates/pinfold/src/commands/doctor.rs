//! `pinfold doctor`: what this host can and cannot do, and what to change.

use pinfold_host::{LiveHost, TreeHost};
use pinfold_model::Method;
use pinfold_speed::{Facts, METHODS};
use pinfold_topology::{
    Capability, TopologyError, Verdict, can_run_main_job, capabilities, captured_capabilities,
    schema,
};

use crate::cli::DoctorArgs;
use crate::common;
use crate::failure::{Exit, Failure};
use crate::output;

/// Prints each capability; fails if the main job cannot run.
pub fn doctor(arguments: &DoctorArgs) -> Result<(), Failure> {
    let host = common::host()?;
    let found = match &arguments.input {
        Some(path) => captured_capabilities(&capture(&host, path)?),
        None => {
            let mut found = capabilities(&host);
            found.push(slower_cpus(&host));
            found
        }
    };
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

/// A captured machine's files.
fn capture(host: &LiveHost, path: &str) -> Result<TreeHost, Failure> {
    pinfold_topology::read_capture(host, path).map_err(|error: TopologyError| {
        let hint = error.hint();
        Failure::from_error(Exit::Input, &error, hint)
    })
}

/// Whether CPUs can be made to appear slower, and how.
fn slower_cpus(host: &LiveHost) -> Capability {
    let capability = |verdict, why: String, hint: Option<String>| Capability {
        name: "slower CPUs (pinfold emulate)",
        verdict,
        why,
        hint,
        required: false,
    };
    let facts = match Facts::find(host) {
        Ok(facts) => facts,
        Err(error) => return capability(Verdict::No, error.to_string(), error.hint()),
    };
    let works: Vec<&str> = METHODS
        .iter()
        .filter(|info| pinfold_speed::refusal(info.method, &facts).is_none())
        .map(|info| info.method.name())
        .collect();
    let hint = "`pinfold emulate methods` tells what each needs".to_owned();
    match (works.as_slice(), pinfold_speed::refusal(Method::Stall, &facts)) {
        ([], why) => capability(Verdict::No, why.unwrap_or_default(), Some(hint)),
        (works, None) => capability(Verdict::Yes, format!("by {}", works.join(", ")), None),
        (works, Some(why)) => {
            let text = format!("by {}, but not by stall: {why}", works.join(", "));
            capability(Verdict::Partly, text, Some(hint))
        }
    }
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
