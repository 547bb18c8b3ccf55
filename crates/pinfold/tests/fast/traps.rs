//! The page of traps is complete, and the tests that it names are there.

use std::collections::BTreeSet;

use crate::common::ROOT;
use pinfold_host::files;

const TRAPS: usize = 30;

/// Names of all tests below a folder.
fn tests_below(folder: &str, found: &mut BTreeSet<String>) {
    for name in files::list(folder).expect("a folder") {
        let path = format!("{folder}/{name}");
        if name.ends_with(".rs") {
            let text = files::read_text(&path).expect("text");
            found.extend(text.split("#[test]").skip(1).filter_map(name_of));
        } else if !name.contains('.') && files::list(&path).is_ok() {
            tests_below(&path, found);
        }
    }
}

/// The name of the function that follows the attribute.
fn name_of(rest: &str) -> Option<String> {
    let (_, rest) = rest.split_once("fn ")?;
    rest.split_once('(').map(|(name, _)| name.to_owned())
}

/// The words in backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn every_trap_has_its_test_or_its_reason() {
    let mut tests = BTreeSet::new();
    for folder in ["crates", "bench", "lab"] {
        tests_below(&format!("{ROOT}/{folder}"), &mut tests);
    }
    assert!(tests.contains("every_trap_has_its_test_or_its_reason"), "the search finds itself");
    let page = files::read_text(&format!("{ROOT}/docs/traps.md")).expect("the page");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| #"))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    assert_eq!(rows.len(), TRAPS);
    for (number, row) in (1..).zip(&rows) {
        let [first, _, what, named] = row[..] else { panic!("row {number}: {row:?}") };
        assert_eq!(first, number.to_string());
        for name in quoted(named) {
            assert!(tests.contains(name), "trap {number}: there is no test {name}");
        }
        let has_reason = what.contains("not handled:") || what.contains("does not apply because");
        assert!(quoted(named).next().is_some() || has_reason, "trap {number} has neither");
    }
}
