//! `pinfold-lab PINFOLD FOLDER DOCS [WORD…]`: runs all cases under all kernels, for
//! `cargo xtask lab`.
//!
//! `PINFOLD` is the binary under test, `FOLDER` receives the evidence of failures, the documents in
//! `DOCS` get the tables. With words, only cases whose name or kernel contains one of them are run.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use pinfold_lab::cases::{FLAVOURS, Flavour, Lab};
use pinfold_lab::{Case, Extent, LabError, Row, Verdict, markdown, record};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pinfold, folder, docs, words @ ..] = arguments.as_slice() else {
        say("pinfold-lab PINFOLD FOLDER DOCS [WORD…]; `cargo xtask lab` calls it");
        return ExitCode::from(2);
    };
    let (rows, recorded) = run(pinfold, folder, docs, words);
    say(&markdown(&rows));
    let count = |is: fn(&Verdict) -> bool| rows.iter().filter(|row| is(&row.verdict)).count();
    let failed = count(|verdict| matches!(verdict, Verdict::Failed(_)));
    let passed = count(|verdict| matches!(verdict, Verdict::Passed(_)));
    say(&format!("{passed} passed, {failed} failed, {} skipped", rows.len() - passed - failed));
    if let Err(error) = &recorded {
        say(&error.to_string());
    }
    if failed == 0 && recorded.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A lab and one of its cases, for the next free worker.
type Job<'l> = (&'l Lab, Case);

fn run(
    pinfold: &str,
    folder: &str,
    docs: &str,
    words: &[String],
) -> (Vec<Row>, Result<(), LabError>) {
    let wanted = |flavour: &Flavour, case: &Case| {
        let name = format!("{} ({flavour})", case.name());
        if words.is_empty() {
            case.is_tried_with(flavour)
        } else {
            words.iter().any(|word| name.contains(word.as_str()))
        }
    };
    let mut rows = Vec::new();
    let mut labs = Vec::new();
    let all = FLAVOURS.into_iter().flat_map(|(flavour, usual)| {
        [Extent::Full, Extent::Fixed].map(|extent| (flavour, usual, extent))
    });
    for (flavour, usual, extent) in all {
        let cases: Vec<Case> = Case::ALL
            .into_iter()
            .filter(|case| case.fits(&flavour) && wanted(&flavour, case))
            .filter(|case| case.extent_with(&flavour, usual) == extent)
            .collect();
        if cases.is_empty() {
            continue;
        }
        match Lab::open(pinfold, &flavour, &format!("{folder}/{flavour}"), extent) {
            Ok(lab) => labs.push((lab, cases)),
            Err(error) => rows.push(not_open(&flavour, &error)),
        }
    }
    let jobs: Vec<Job<'_>> =
        labs.iter().flat_map(|(lab, cases)| cases.iter().map(move |case| (lab, *case))).collect();
    let (worked, recorded) = work(&jobs, docs);
    rows.extend(worked);
    (rows, recorded)
}

/// Runs the jobs, as many at a time as there are CPUs, and returns the rows in the order of the
/// jobs. The rows of each job are recorded when it ends, so that an interrupted run of hours is not
/// lost.
fn work(jobs: &[Job<'_>], docs: &str) -> (Vec<Row>, Result<(), LabError>) {
    let next = AtomicUsize::new(0);
    let done = Mutex::new((BTreeMap::<usize, Vec<Row>>::new(), Ok(())));
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some((lab, case)) = jobs.get(index) else { break };
                    let results = case.run(lab).into_iter();
                    let rows: Vec<Row> = results
                        .map(|(case, kernel, verdict)| Row { case, kernel, verdict })
                        .collect();
                    rows.iter().for_each(report);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    let (all, recorded) = &mut *done;
                    all.insert(index, rows);
                    let rows: Vec<Row> = all.values().flatten().cloned().collect();
                    // A machine on which all cases were skipped writes no table.
                    if rows.iter().any(|row| !matches!(row.verdict, Verdict::Skipped(_))) {
                        *recorded = record(docs, &rows);
                    }
                }
            });
        }
    });
    let (all, recorded) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    (all.into_values().flatten().collect(), recorded)
}

fn report(row: &Row) {
    let Row { case, kernel, verdict } = row;
    say(&match verdict {
        Verdict::Passed(what) => format!("passed: {case} ({kernel}): {what}"),
        Verdict::Failed(why) => format!("failed: {case} ({kernel}): {why}"),
        Verdict::Skipped(why) => format!("skipped: {case} ({kernel}): {why}"),
    });
}

fn not_open(flavour: &Flavour, error: &LabError) -> Row {
    let verdict = if error.is_skip() {
        Verdict::Skipped(error.to_string())
    } else {
        Verdict::Failed(error.to_string())
    };
    Row { case: "all".to_owned(), kernel: flavour.to_string(), verdict }
}

/// If standard output is closed, there is no one to report to.
fn say(text: &str) {
    match writeln!(std::io::stdout(), "{text}") {
        Ok(()) | Err(_) => {}
    }
}
