//! The data that are stored with a run in addition to its samples, so that its page can be made
//! from the store alone, and an interrupted run can be resumed.

use pinfold_host::Clock;
use pinfold_model::text::count_noun;
use pinfold_model::{Finding, Origin};
use pinfold_plan::schema;
use pinfold_study::store::{CandidateRole, HostChange, OpenRun, RunId, SessionRecord, Store};
use pinfold_study::tune::Candidate;
use serde::{Deserialize, Serialize};

use crate::{Exit, Failure, plans};

/// Format of the stored text.
pub const PAGE_DATA_FORMAT: &str = "pinfold-tune-context/1";

/// The data of the page that are not in the store's tables.
#[derive(Clone, Debug, Default)]
pub struct PageData {
    /// The command line as it was typed.
    pub command: String,
    /// The guest, as text.
    pub guest: String,
    /// The user's QEMU command; empty for the demo guest.
    pub argv: Vec<String>,
    /// The host, as a capture.
    pub capture: String,
    /// Findings from before the first start.
    pub findings: Vec<Finding>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: String,
    command: String,
    guest: String,
    argv: Vec<String>,
    capture: String,
    findings: Vec<Finding>,
}

/// The text that is stored.
pub fn context(kept: &PageData) -> Result<String, Failure> {
    let document = Document {
        format: PAGE_DATA_FORMAT.to_owned(),
        command: kept.command.clone(),
        guest: kept.guest.clone(),
        argv: kept.argv.clone(),
        capture: kept.capture.clone(),
        findings: kept.findings.clone(),
    };
    serde_json::to_string(&document).map_err(|error| Failure::from_error(Exit::Host, &error, None))
}

impl PageData {
    /// Parses the stored text.
    pub fn read(text: &str) -> Result<Self, Failure> {
        let document: Document = serde_json::from_str(text).map_err(|error| {
            Failure::new(
                Exit::Input,
                format!("cannot read the context of the run in the store: {error}"),
            )
            .with_hint("was it written by a newer Pinfold?")
        })?;
        Ok(Self {
            command: document.command,
            guest: document.guest,
            argv: document.argv,
            capture: document.capture,
            findings: document.findings,
        })
    }
}

/// The candidates of an interrupted run, in their order: it continues with its original plans,
/// regardless of the command line.
pub fn candidates(store: &Store, run: i64, vcpus: u32) -> Result<Vec<Candidate>, Failure> {
    let records = store.candidates(RunId(run))?;
    let mut candidates = Vec::new();
    for record in records.into_iter().filter(|record| record.role != CandidateRole::Twin) {
        let plan = schema::from_json(&record.plan_json)
            .map_err(|e| Failure::from_error(Exit::Input, &e, None))?;
        let planned = plans::single(&plan)?.vcpus().count();
        if planned != vcpus as usize {
            return Err(Failure::new(
                Exit::Input,
                format!(
                    "run {run} measured a guest with {}, but this one has {vcpus}",
                    count_noun(planned, "vCPU")
                ),
            )
            .with_hint("use the guest of that run, or start a new run without --resume"));
        }
        candidates.push(Candidate { name: record.name, plan, plan_json: record.plan_json });
    }
    if candidates.is_empty() {
        return Err(Failure::new(Exit::Input, format!("the store contains no run {run}"))
            .with_hint("list the runs with `pinfold report --list`"));
    }
    Ok(candidates)
}

/// Opens an interrupted run, if the host has not changed.
pub fn resume(
    store: &mut Store,
    run: i64,
    origin: &Origin,
    clock: &dyn Clock,
) -> Result<OpenRun, Failure> {
    let session = SessionRecord { began_unix_s: clock.unix_seconds(), origin: origin.clone() };
    Ok(store.open_run(RunId(run), &session, HostChange::Refuse)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_reads_back() {
        let kept = PageData {
            command: "pinfold tune --demo".to_owned(),
            argv: vec!["qemu".to_owned()],
            findings: vec![Finding::warning("smt", "is off").with_hint("turn it on")],
            ..PageData::default()
        };
        let text = context(&kept).unwrap();
        let back = PageData::read(&text).unwrap();
        assert_eq!(
            (back.command, back.argv, back.findings),
            (kept.command, kept.argv, kept.findings)
        );
        assert!(PageData::read("{}").is_err());
    }
}
