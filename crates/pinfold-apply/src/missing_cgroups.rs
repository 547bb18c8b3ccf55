//! Cgroups that a placement needs and that no longer exist.
//!
//! A group that Pinfold made disappears only if another program empties and removes it. Its
//! settings are then lost, and the tasks stay where that program moved them. A group that a task
//! came from may be removed while the task is elsewhere; undo then uses the nearest ancestor that
//! accepts tasks. This module only reads.

use std::collections::BTreeMap;

use pinfold_host::{Host, HostError};
use pinfold_model::text::count_noun;
use pinfold_model::{Finding, TaskState, Undo};

use crate::cpusets::Cpusets;
use crate::journal::Record;
use crate::tasks;

/// Groups of a placement that have disappeared while its machine runs: a warning for one that
/// Pinfold made, a note for one that tasks came from.
///
/// # Errors
/// [`HostError`] if the host cannot be read.
pub fn find_vanished(host: &dyn Host, record: &Record) -> Result<Vec<Finding>, HostError> {
    // When the machine ends, its groups are removed too, and its tasks need not return.
    if !tasks::is_alive(host, record.header.vm)? {
        return Ok(Vec::new());
    }
    let made = record.steps().filter(|(index, _)| record.was_set(*index));
    let made = made.filter_map(|(_, step)| step.change.made_group());
    let mut findings = Vec::new();
    for path in made.filter(|path| !host.exists(path)) {
        tasks::confirm_missing(host, path)?;
        findings.push(report_lost(path));
    }
    let mut homes: BTreeMap<String, (&str, usize)> = BTreeMap::new();
    for (_, step) in record.steps() {
        let Undo::MoveTasks { mount, tasks, .. } = &step.undo else { continue };
        for TaskState { task, group, .. } in tasks {
            let home = format!("{mount}{}", group.trim_end_matches('/'));
            if !host.exists(&home) && tasks::is_alive(host, *task)? {
                tasks::confirm_missing(host, &home)?;
                homes.entry(home).or_insert((mount, 0)).1 += 1;
            }
        }
    }
    if homes.is_empty() {
        return Ok(findings);
    }
    let cpusets = Cpusets::find(host)?;
    for (home, (mount, count)) in &homes {
        let nearest = match cpusets.as_ref().filter(|cpusets| cpusets.root() == *mount) {
            Some(cpusets) => cpusets.nearest(host, home)?,
            None => (*mount).to_owned(),
        };
        let text =
            format!("{home} no longer exists, and {} came from it", count_noun(*count, "task"));
        let hint = format!("undo moves them to {nearest}, the nearest group that accepts tasks");
        findings.push(Finding::note("groups", text).with_hint(hint));
    }
    Ok(findings)
}

fn report_lost(path: &str) -> Finding {
    let text =
        format!("{path} no longer exists: another program or an interrupted undo removed it");
    let hint = "its restrictions are no longer active: undo, then apply again";
    Finding::warning("groups", text).with_hint(hint)
}
