//! Compares the tunables that an apply set with their present values.
//!
//! The journal records which were set and to what; refused ones are skipped. A driver may round a
//! number, and a pool may be short of memory. Such a tunable counts as set while it has the value
//! that was read back, or one between the original and the requested value.

use std::collections::BTreeMap;

use pinfold_host::{Host, HostError};
use pinfold_model::{Change, CpuSet, Finding, Undo};

use crate::actuators;
use crate::journal::Record;
use crate::tasks;

/// A tunable that was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunableStatus {
    /// Path of its file.
    pub path: String,
    /// The value that was set.
    pub planned: String,
    /// The present value; `None` if the file no longer exists.
    pub found: Option<String>,
    /// True if no other program changed it since.
    pub ok: bool,
}

/// Programs that set tunables: their names as the kernel shows them, with a part of the paths that
/// each writes.
const TUNABLE_WRITERS: [(&str, &str); 5] = [
    ("irqbalance", "/irq/"),
    ("tuned", "/"),
    ("power-profiles-", "/cpufreq/"),
    ("cpufreqd", "/cpufreq/"),
    ("ksmtuned", "/ksm/"),
];

/// All tunables of an apply, by path.
///
/// # Errors
/// [`HostError`] if one is there and cannot be read.
pub fn read_tunables(host: &dyn Host, record: &Record) -> Result<Vec<TunableStatus>, HostError> {
    let mut set: BTreeMap<&str, (usize, &[u8], &[u8])> = BTreeMap::new();
    for (index, step) in record.steps() {
        let (Change::WriteFile { path, value }, Undo::WriteFile { original, .. }) =
            (&step.change, &step.undo)
        else {
            continue;
        };
        if actuators::is_tunable(path) && record.was_set(index) {
            set.insert(path, (index, value, original));
        }
    }
    let mut all = Vec::with_capacity(set.len());
    for (path, (index, value, original)) in set {
        let found = tasks::ignore_gone(host.read(path))?;
        if found.is_none() {
            tasks::confirm_missing(host, path)?;
        }
        let ok = match &found {
            Some(found) => {
                let given = record.normalized_value(index);
                given.is_some_and(|given| found.trim_ascii() == given.as_bytes())
                    || actuators::still_holds(path, found, value, original)?
                    || is_narrowed_interrupt(path, found, value)
            }
            None => false,
        };
        let planned = text(value);
        all.push(TunableStatus {
            path: path.to_owned(),
            planned,
            found: found.as_deref().map(text),
            ok,
        });
    }
    Ok(all)
}

/// True if an interrupt is on a part of the CPUs that were set: another placement has taken more of
/// them for itself.
fn is_narrowed_interrupt(path: &str, found: &[u8], value: &[u8]) -> bool {
    fn list(bytes: &[u8]) -> Option<CpuSet> {
        CpuSet::parse_list(&text(bytes)).ok()
    }
    match (list(found), list(value)) {
        (Some(found), Some(value)) if path.ends_with("/smp_affinity_list") => {
            !found.is_empty() && found.difference(&value).is_empty()
        }
        _ => false,
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

/// Tunables that another program changed, each with the programs that may have done it.
pub(crate) fn find_drift(host: &dyn Host, record: &Record) -> Result<Vec<Finding>, HostError> {
    let mut findings = Vec::new();
    for tunable in read_tunables(host, record)?.into_iter().filter(|tunable| !tunable.ok) {
        let found = tunable.found.as_deref().unwrap_or("gone");
        let who = match setter(host, &tunable.path)? {
            Some(who) => format!("{who} is running, which sets such tunables"),
            None => "no running program is known to do that".to_owned(),
        };
        let text = format!(
            "{} was set to {} and is now {found}; possible cause: {who}",
            tunable.path, tunable.planned
        );
        findings.push(Finding::warning("tunables", text).with_hint(
            "it was left unchanged; stop the program that sets it, or undo the placement and apply \
             it again",
        ));
    }
    Ok(findings)
}

fn setter(host: &dyn Host, path: &str) -> Result<Option<String>, HostError> {
    for pid in tasks::processes(host)? {
        let Some(stat) = tasks::stat(host, pid)? else { continue };
        let fits = |(name, part): &&(&str, &str)| *name == stat.comm && path.contains(part);
        if TUNABLE_WRITERS.iter().any(|one| fits(&one)) {
            return Ok(Some(format!("{} (process {pid})", stat.comm)));
        }
    }
    Ok(None)
}
