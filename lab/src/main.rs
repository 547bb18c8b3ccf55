//! `pinfold-lab PINFOLD FOLDER DOCUMENT [WORD…]`: all cases under all kernels, for `cargo xtask lab`.
//!
//! `PINFOLD` is the binary under test, `FOLDER` takes the evidence of failures, `DOCUMENT` gets
//! the table. With words, only cases whose name has one of them are run, and the document
//! stays as it is.

use std::io::Write as _;
use std::process::ExitCode;

use pinfold_lab::cases::{FLAVOURS, Lab};
use pinfold_lab::{Case, Extent, LabError, Row, Verdict, markdown, record};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pinfold, folder, document, words @ ..] = arguments.as_slice() else {
        say("pinfold-lab PINFOLD FOLDER DOCUMENT [WORD…]; `cargo xtask lab` calls it");
        return ExitCode::from(2);
    };
    let rows = run(pinfold, folder, words);
    say(&markdown(&rows));
    let count = |is: fn(&Verdict) -> bool| rows.iter().filter(|row| is(&row.verdict)).count();
    let failed = count(|verdict| matches!(verdict, Verdict::Failed(_)));
    let passed = count(|verdict| matches!(verdict, Verdict::Passed(_)));
    say(&format!("{passed} passed, {failed} failed, {} skipped", rows.len() - passed - failed));
    if words.is_empty()
        && passed + failed > 0
        && let Err(error) = record(document, &rows)
    {
        say(&error.to_string());
        return ExitCode::FAILURE;
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(pinfold: &str, folder: &str, words: &[String]) -> Vec<Row> {
    let mut rows = Vec::new();
    for flavour in FLAVOURS {
        let lab = match Lab::open(pinfold, flavour, &format!("{folder}/{flavour}"), Extent::Full) {
            Ok(lab) => lab,
            Err(error) => {
                rows.push(not_open(flavour, &error));
                continue;
            }
        };
        for case in Case::ALL {
            if !words.is_empty() && !words.iter().any(|word| case.name().contains(word.as_str())) {
                continue;
            }
            for (case, kernel, verdict) in case.run(&lab) {
                let row = Row { case, kernel, verdict };
                say(&match &row.verdict {
                    Verdict::Passed(what) => format!("passed: {}: {what}", row.case),
                    Verdict::Failed(why) => format!("failed: {}: {why}", row.case),
                    Verdict::Skipped(why) => format!("skipped: {}: {why}", row.case),
                });
                rows.push(row);
            }
        }
    }
    rows
}

fn not_open(flavour: &str, error: &LabError) -> Row {
    let verdict = match error.is_skip() {
        true => Verdict::Skipped(error.to_string()),
        false => Verdict::Failed(error.to_string()),
    };
    Row { case: "all".to_owned(), kernel: flavour.to_owned(), verdict }
}

/// A closed standard output leaves nobody to tell.
fn say(text: &str) {
    match writeln!(std::io::stdout(), "{text}") {
        Ok(()) | Err(_) => {}
    }
}
