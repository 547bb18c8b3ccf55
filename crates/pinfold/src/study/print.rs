//! The output of `pinfold study`: the size and duration of a study, and its progress.

use std::collections::BTreeMap;

use pinfold_model::text::count_noun;
use pinfold_report::{Brackets, format};
use pinfold_run::study::page::{besides_workload, figure_name, host_changes, overhead_ms};
use pinfold_run::{Exit, Failure, time};
use pinfold_stats::{Interval, blocks_needed};
use pinfold_study::store::{RunId, Store};
use pinfold_study::study::{self, Analysis, Cells, Loaded, Prediction, Study, predict};
use serde_json::json;

use crate::cli::study::CheckArgs;
use crate::output::{print_data, print_message, show};
use crate::screen;

/// Maximum number of cells that are listed for one reason.
const NAMED: usize = 3;

/// Prints the size and duration of a study.
pub fn check(
    arguments: &CheckArgs,
    study: &Study,
    cells: &Cells,
    prediction: &Prediction,
    absent: &[(String, String)],
) {
    if arguments.json {
        print_data(&check_json(study, cells, prediction, absent).to_string());
        return;
    }
    let mut text = screen::fit_width(&format!("{}: {}\n", study.name, study.title));
    let mut row = |label: &str, value: String| {
        text.push_str(&screen::label_text(&format!("  {label:<12} "), &value));
        text.push('\n');
    };
    for factor in &study.factors {
        let levels: Vec<&str> = factor.levels.iter().map(|level| level.text.as_str()).collect();
        row(&factor.name, levels.join(", "));
    }
    let names: Vec<&str> = study.workloads.iter().map(|one| one.name.as_str()).collect();
    row("workload", names.join(", "));
    row(
        "cells",
        format!(
            "{} run, {} skipped, {} excluded by constraints",
            prediction.cells, prediction.skipped, prediction.excluded
        ),
    );
    row(
        "trials",
        format!(
            "{} in {} blocks of {} (the baselines twice: the A/A pair)",
            prediction.trials(),
            prediction.blocks,
            prediction.block_trials
        ),
    );
    row("time", format!("about {}", time::seconds(prediction.seconds())));
    if let Some(verdicts) = verdicts(study, cells) {
        row("verdicts", verdicts);
    }
    let form = arguments.form.form();
    if let Some((name, preset)) = form.preset().and_then(|name| study.presets.get_key_value(name)) {
        row(name, preset.note.clone());
    }
    print_data(&text);
    say_missing(study, cells, absent);
    if arguments.cells {
        for (index, cell) in cells.all.iter().enumerate() {
            let state = match &cell.skipped {
                Some(reason) => format!("skipped: {reason}"),
                None if cells.has_twin(index, study) => "runs twice".to_owned(),
                None => "runs".to_owned(),
            };
            print_data(&screen::label_text(
                &format!("{index:>5}  "),
                &format!("{}  {state}", cell.name(study)),
            ));
        }
    }
}

/// Prints what this host skips, and which probes stay empty on it.
fn say_missing(study: &Study, cells: &Cells, absent: &[(String, String)]) {
    for (reason, names) in list_skipped(study, cells) {
        let more = names.len().saturating_sub(NAMED);
        let mut shown = names.into_iter().take(NAMED).collect::<Vec<_>>().join("; ");
        if more > 0 {
            shown.push_str(&format!("; and {more} more"));
        }
        print_message(&format!("skipped: {reason} ({shown})"));
    }
    absent.iter().for_each(|(probe, why)| print_message(&format!("empty: {probe}: {why}")));
}

/// Whether the blocks suffice for verdicts.
fn verdicts(study: &Study, cells: &Cells) -> Option<String> {
    let family = cells.largest_family()?;
    let needed = blocks_needed(family, pinfold_study::study::ALPHA);
    let has = study.repetitions;
    Some(if has >= needed {
        format!(
            "possible: {family} simultaneous comparisons need {needed} blocks, and it has {has}"
        )
    } else {
        format!(
            "not possible: {family} simultaneous comparisons need {needed} blocks, and it has {has}"
        )
    })
}

fn list_skipped(study: &Study, cells: &Cells) -> BTreeMap<String, Vec<String>> {
    let mut by_reason: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for cell in &cells.all {
        if let Some(reason) = &cell.skipped {
            by_reason.entry(reason.clone()).or_default().push(cell.name(study));
        }
    }
    by_reason
}

fn check_json(
    study: &Study,
    cells: &Cells,
    prediction: &Prediction,
    absent: &[(String, String)],
) -> serde_json::Value {
    let empty: Vec<serde_json::Value> =
        absent.iter().map(|(probe, reason)| json!({ "probe": probe, "reason": reason })).collect();
    let skipped: Vec<serde_json::Value> = list_skipped(study, cells)
        .into_iter()
        .map(|(reason, names)| json!({ "reason": reason, "cells": names }))
        .collect();
    json!({
        "format": "pinfold-study-check/1",
        "name": study.name,
        "cells": prediction.cells,
        "skipped_cells": prediction.skipped,
        "excluded_combinations": prediction.excluded,
        "trials": prediction.trials(),
        "blocks": prediction.blocks,
        "predicted_s": prediction.seconds(),
        "skipped": skipped,
        "empty_probes": empty,
    })
}

/// Prints the size and duration before the trials start.
pub fn announce(store: &Store, run: RunId) -> Result<(), Failure> {
    let loaded = Loaded::read(store, run)?;
    let prediction = predict(&loaded.study, &loaded.cells, &loaded.facts)?;
    let progress = store.study_progress(run)?;
    let done = progress.ok + progress.failed;
    let left = prediction.trials().saturating_sub(done);
    let left_s = prediction.seconds() * left as f64 / prediction.trials().max(1) as f64;
    print_message(&format!(
        "{}: {left} of {} trials to run, {} skipped; predicted: {}. Store: {}",
        loaded.study.name,
        prediction.trials(),
        count_noun(prediction.skipped, "cell"),
        time::seconds(left_s),
        store.path()
    ));
    Ok(())
}

/// Prints how a run ended; failed trials make the command fail too.
pub fn print_end(store: &Store, run: RunId) -> Result<(), Failure> {
    status(store, run, false)?;
    print_message(&format!("Finished; the samples are in {}", store.path()));
    let progress = store.study_progress(run)?;
    match progress.failed {
        0 => Ok(()),
        failed => {
            let text = format!("{failed} of {} trials failed", progress.ok + failed);
            Err(Failure::new(Exit::No, text)
                .with_hint("the reasons are above; the other trials are stored and reported"))
        }
    }
}

/// Prints the progress of a study.
pub fn status(store: &Store, run: RunId, as_json: bool) -> Result<(), Failure> {
    let loaded = Loaded::read(store, run)?;
    let row = store.run(run)?;
    let prediction = predict(&loaded.study, &loaded.cells, &loaded.facts)?;
    let progress = store.study_progress(run)?;
    let failures = store.study_failures(run)?;
    let done = progress.ok + progress.failed;
    let blocks = loaded.early.as_ref().map_or(prediction.blocks, |early| early.blocks);
    let total = prediction.block_trials * u64::from(blocks);
    let trial_s = match done {
        0 => prediction.seconds() / prediction.trials().max(1) as f64,
        done => progress.duration_ns as f64 / 1e9 / done as f64,
    };
    let left_s = total.saturating_sub(done) as f64 * trial_s;
    let changed = host_changes(&row);
    let findings = study::findings(store, run)?;
    let state = match (row.finished_unix_s, &loaded.early) {
        (Some(_), None) => "finished".to_owned(),
        (Some(_), Some(early)) => format!("finished early: {}", early.reason),
        (None, _) => format!("{} left", time::seconds(left_s)),
    };
    if as_json {
        let failures: Vec<serde_json::Value> = failures
            .iter()
            .map(|(cell, count, message)| {
                json!({ "cell": loaded.cells.all[*cell].name(&loaded.study), "trials": count, "message": message })
            })
            .collect();
        print_data(
            &json!({
                "format": "pinfold-study-status/1", "run": run.0, "name": loaded.study.name,
                "quick": loaded.record.form.preset() == Some(study::QUICK),
                "preset": loaded.record.form.preset(), "begun_unix_s": row.created_unix_s,
                "finished_unix_s": row.finished_unix_s, "done": done, "total": total,
                "failed": progress.failed, "skipped_cells": prediction.skipped, "left_s": left_s,
                "overhead_ms_per_trial": overhead_ms(progress), "failures": failures,
                "host_changes": changed, "findings": findings,
            })
            .to_string(),
        );
        return Ok(());
    }
    let form = loaded.record.form.preset().map_or(String::new(), |name| format!(" ({name})"));
    show(&format!(
        "{}{form}, run {run}, started {}: {done} of {total} trials done, {} failed, {} skipped; \
         {state}\noverhead per trial: {}",
        loaded.study.name,
        time::date(row.created_unix_s),
        progress.failed,
        count_noun(prediction.skipped, "cell"),
        besides_workload(&loaded, progress),
    ));
    changed.iter().for_each(|change| print_message(&format!("warning: host: {change}")));
    for (finding, trials) in findings {
        print_message(&format!("in {}: {finding}", count_noun(trials, "trial")));
    }
    report_failures(&loaded, failures);
    Ok(())
}

fn report_failures(loaded: &Loaded, failures: Vec<(usize, u64, String)>) {
    if failures.is_empty() {
        return;
    }
    let mut rows = screen::rows();
    rows.set_header(["failed", "trials", "last message"]);
    for (cell, count, message) in failures {
        rows.add_row([loaded.cells.all[cell].name(&loaded.study), count.to_string(), message]);
    }
    print_data(&screen::draw_table(rows, 1..2));
}

/// The comparison of two runs.
pub fn diff(first: &Analysis, second: &Analysis, as_json: bool) -> String {
    let compared = study::diff(first, second);
    if as_json {
        let rows: Vec<serde_json::Value> = compared
            .both
            .iter()
            .map(|one| {
                let comparison = one.comparison.as_ref();
                json!({
                    "cell": one.cell, "figure": figure_name(&one.figure),
                    "first": one.medians.0, "second": one.medians.1, "ratio": one.ratio,
                    "ratio_low": comparison.map(|it| it.interval.low),
                    "ratio_high": comparison.map(|it| it.interval.high),
                    "blocks": comparison.map(|it| it.blocks),
                    "p_holm": comparison.map(|it| it.p_holm),
                    "verdict": comparison.map(|it| it.verdict.word()),
                })
            })
            .collect();
        let document = json!({
            "format": "pinfold-study-diff/1", "both": rows,
            "only_in_first": compared.alone.0, "only_in_second": compared.alone.1,
        });
        return document.to_string();
    }
    let compared_blocks = compared.both.iter().filter_map(|one| one.comparison.as_ref());
    let blocks = compared_blocks.map(|comparison| comparison.blocks);
    let mut table = screen::rows();
    table.set_header([
        "cell",
        "figure",
        "first",
        "second",
        &format!("second over first [{}]", Brackets::from_blocks(blocks).header()),
        "second against first",
    ]);
    for one in &compared.both {
        let ratio = one.ratio.map_or_else(|| format::MISSING.to_owned(), format::significant);
        let (interval, verdict) = match &one.comparison {
            None => (String::new(), format::MISSING.to_owned()),
            Some(comparison) => {
                let Interval { low, high, .. } = comparison.interval;
                let [low, high] = [low, high].map(format::significant);
                (format!(" [{low}, {high}]"), comparison.verdict.to_string())
            }
        };
        let [a, b] = [one.medians.0, one.medians.1].map(format::significant);
        let (cell, figure) = (one.cell.clone(), figure_name(&one.figure));
        table.add_row([cell, figure, a, b, format!("{ratio}{interval}"), verdict]);
    }
    screen::draw_table(table, 2..5)
}
