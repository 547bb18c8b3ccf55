//! `pinfold journal`: the changes, their times, and the previous values.
//!
//! It only reads. A journal that is damaged, foreign or of a later version of Pinfold is reported
//! with a hint, and the others are still shown.

use std::fmt::Write as _;

use pinfold_apply::{Entry, HISTORY, Journals, Outcome, Record, Summary};
use pinfold_host::{LiveHost, SystemClock};
use pinfold_model::text::{count_noun, select_verb};
use pinfold_model::{Command, Undo};
use pinfold_run::status::JournalState;
use pinfold_run::{Exit, Failure, host, time, undo};
use serde_json::{Value, json};

use crate::cli::JournalArgs;
use crate::output::{self, print_data, print_message, show};
use crate::screen;

/// Lists all journals, or shows one.
pub fn journal(arguments: &JournalArgs, state: Option<&str>) -> Result<(), Failure> {
    let host = host::live()?;
    let clock = SystemClock;
    let state = host::existing_state(state)?;
    let journals = host::existing_journals(state.as_ref(), &clock)?;
    match &arguments.id {
        Some(wanted) => {
            let Some(journals) = journals else { return Err(unknown(wanted)) };
            let found = resolve(&journals, wanted)?;
            match found.as_slice() {
                [only] => one(&host, &journals, &only.id, arguments.json),
                _ => {
                    list(&host, found, arguments.json)?;
                    let journal = Command::new("journal").arg("ID");
                    print_message(&format!("`{journal}` shows the steps of one of them"));
                    Ok(())
                }
            }
        }
        None => {
            let all = journals.as_ref().map_or_else(|| Ok(Vec::new()), Journals::list)?;
            list(&host, all, arguments.json)
        }
    }
}

fn one(host: &LiveHost, journals: &Journals<'_>, id: &str, as_json: bool) -> Result<(), Failure> {
    let record = journals.read(id)?;
    let standing = JournalState::read(host, record.as_ref())?;
    match (record, as_json) {
        (Some(record), true) => {
            print_data(&in_json(id, &record, standing, Depth::Steps).to_string())
        }
        (Some(record), false) => show(&format_record(id, &record, standing)),
        (None, true) => print_data(&empty_json(id).to_string()),
        (None, false) => show(&format!("{id}: {}", words(standing))),
    }
    Ok(())
}

/// The journal with this ID, or those of the machine or group with this name or process ID.
fn resolve(journals: &Journals<'_>, wanted: &str) -> Result<Vec<Summary>, Failure> {
    let mut all = journals.list()?;
    let is_id = all.iter().any(|one| one.id == wanted);
    all.retain(|one| match &one.record {
        _ if is_id => one.id == wanted,
        Ok(Some(record)) => undo::is_machine(&record.header, wanted),
        Ok(None) | Err(_) => false,
    });
    if all.is_empty() { Err(unknown(wanted)) } else { Ok(all) }
}

/// The failure for a name or ID that no journal has.
fn unknown(wanted: &str) -> Failure {
    Failure::new(Exit::Input, format!("there is no journal {wanted:?}")).with_hint(format!(
        "`{}` lists those that are kept: active ones, and the latest {HISTORY} that ended",
        Command::new("journal")
    ))
}

fn list(host: &LiveHost, mut all: Vec<Summary>, as_json: bool) -> Result<(), Failure> {
    let mut table = screen::rows();
    table.set_header(["id", "machine", "begun", "steps", ""]);
    let (mut entries, mut bad) = (Vec::new(), 0_usize);
    // By time; those with unknown time come last.
    all.sort_by_key(|one| match &one.record {
        Ok(Some(record)) => (record.header.created_unix_s, one.id.clone()),
        Ok(None) | Err(_) => (u64::MAX, one.id.clone()),
    });
    for summary in all {
        let record = match summary.record {
            Ok(record) => record,
            Err(error) => {
                bad += 1;
                let why = Failure::from(error);
                print_message(&why.to_string());
                entries.push(json!({ "id": summary.id, "state": "not understood", "why": why.message, "hint": why.hint }));
                table.add_row([output::name(&summary.id).as_str(), "", "", "", "not understood"]);
                continue;
            }
        };
        let standing = JournalState::read(host, record.as_ref())?;
        let Some(record) = record else {
            entries.push(empty_json(&summary.id));
            table.add_row([output::name(&summary.id).as_str(), "", "", "0", words(standing)]);
            continue;
        };
        entries.push(in_json(&summary.id, &record, standing, Depth::Counts));
        table.add_row([
            output::name(&summary.id),
            output::short_name(&record.header.vm_name),
            time::date(record.header.created_unix_s),
            record.step_count().to_string(),
            words(standing).to_owned(),
        ]);
    }
    match (as_json, entries.is_empty()) {
        (true, _) => {
            print_data(&json!({ "format": "pinfold-journals/1", "journals": entries }).to_string());
        }
        (false, true) => print_data("no journals: nothing was applied"),
        (false, false) => print_data(&screen::draw_table(table, 3..4)),
    }
    match bad {
        0 => Ok(()),
        bad => {
            let text = format!("{} cannot be read", count_noun(bad, "journal"));
            let what = select_verb(bad, "its changes stay active", "their changes stay active");
            Err(Failure::new(Exit::Host, text)
                .with_hint(format!("{what} until that is fixed; see above for the reason")))
        }
    }
}

/// The state of a journal in words.
fn words(standing: JournalState) -> &'static str {
    match standing {
        JournalState::Active => "active",
        JournalState::EarlierBoot => "of an earlier boot; `undo --left` removes it",
        JournalState::Reverted => "reverted",
        JournalState::Restarted => "ended by a restart of the host",
        JournalState::NothingDone => "no step was executed",
    }
}

/// The level of detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    Counts,
    Steps,
}

fn format_record(id: &str, record: &Record, standing: JournalState) -> String {
    let header = &record.header;
    let mut text = format!(
        "{id}: {}, process {}, started {} by process {}: {}",
        output::short_name(&header.vm_name),
        header.vm.tid,
        time::date(header.created_unix_s),
        header.supervisor.tid,
        words(standing)
    );
    for entry in &record.entries {
        // Writing to a String cannot fail.
        let written = match entry {
            Entry::Step { index, step, .. } => write!(
                text,
                "\n{index:>4}  {}\n      why: {}\n      before: {}",
                output::name(&step.change.to_string()),
                output::name(&step.reason),
                output::name(&before(&step.undo))
            ),
            Entry::Outcome { index, outcome, detail } if outcome.is_gone(detail.as_deref()) => {
                write!(text, "\n{index:>4}  {WAS_GONE}")
            }
            Entry::Outcome { index, outcome, detail } => {
                let detail = detail.as_ref().map_or_else(String::new, |why| format!(": {why}"));
                write!(text, "\n{index:>4}  {}{}", word(*outcome), output::name(&detail))
            }
            Entry::Masks(masks) => {
                write!(text, "\n      masks of {} recorded", count_noun(masks.len(), "other task"))
            }
            Entry::Plan(new) => write!(
                text,
                "\nanother plan since {}, by process {}",
                time::date(new.unix_s),
                new.supervisor.tid
            ),
            // The outcomes show the same.
            Entry::Applied | Entry::Undoing => continue,
            Entry::End { unix_s, why } => {
                write!(text, "\nended {}: {}", time::date(*unix_s), output::name(why))
            }
        };
        match written {
            Ok(()) | Err(std::fmt::Error) => {}
        }
    }
    if record.torn {
        text.push_str("\nthe last line is incomplete; its step was not executed");
    }
    text
}

/// The outcome of the undo of a step whose task, group or file no longer existed.
const WAS_GONE: &str = "gone, so nothing was restored";

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Done => "done",
        Outcome::Skipped => "skipped, its task had exited",
        Outcome::Failed => "failed",
        Outcome::Restored => "restored",
        Outcome::Kept => "not restored",
        Outcome::Dropped => "restored, because the next plan does not need it",
        Outcome::Yielded => "changed by the owner of the machine since, and left",
    }
}

/// The value before a step.
fn before(undo: &Undo) -> String {
    match undo {
        Undo::WriteFile { original, .. } => {
            format!("{:?}", String::from_utf8_lossy(original))
        }
        Undo::RemoveGroup { .. } => "no such group".to_owned(),
        Undo::MoveTasks { tasks, .. } => match tasks.as_slice() {
            [] => "no tasks".to_owned(),
            [task] => format!("{} in {}", task.task, task.group),
            [task, ..] => {
                format!("{} tasks, the first ({}) in {}", tasks.len(), task.task, task.group)
            }
        },
        Undo::SetAffinity { original, .. } => original.to_string(),
        Undo::SetPolicy { original, nice: Some(nice), .. } => format!("{original}, nice {nice}"),
        Undo::SetPolicy { original, .. } => original.to_string(),
        Undo::WriteSetting { original, .. } => {
            original.clone().unwrap_or_else(|| "no value".to_owned())
        }
        Undo::LeavePages { kib, .. } => {
            let nodes: Vec<String> =
                kib.iter().map(|(node, kib)| format!("{kib} KiB on node {node}")).collect();
            nodes.join(", ")
        }
        Undo::ContinueProcesses { stopped, .. } => {
            format!("{} stopped by other programs", count_noun(stopped.len(), "process"))
        }
    }
}

fn empty_json(id: &str) -> Value {
    json!({ "id": id, "state": words(JournalState::NothingDone), "step_count": 0 })
}

fn in_json(id: &str, record: &Record, standing: JournalState, depth: Depth) -> Value {
    let header = &record.header;
    let mut value = json!({
        "id": id,
        "vm": header.vm_name,
        "pid": header.vm.tid.0,
        "supervisor_pid": header.supervisor.tid.0,
        "boot_id": header.boot_id,
        "begun_unix_s": header.created_unix_s,
        "state": words(standing),
        "step_count": record.step_count(),
        "torn": record.torn,
    });
    if depth == Depth::Steps {
        value["steps"] = record
            .steps()
            .map(|(index, step)| {
                json!({
                    "index": index,
                    "change": step.change.to_string(),
                    "reason": step.reason,
                    "before": before(&step.undo),
                    "outcome": if record.was_gone(index) {
                        Some(WAS_GONE)
                    } else {
                        record.last_outcome(index).map(word)
                    },
                })
            })
            .collect();
    }
    value
}
