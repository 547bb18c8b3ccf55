//! The results as a table, for the terminal and for `lab.md` and `actuators.md`.

use pinfold_host::files;

use crate::actuators;
use crate::cases::{Case, Verdict};
use crate::error::LabError;

/// The lines around the table in a document.
const BEGIN: &str = "<!-- begin: written by cargo xtask lab -->";
const END: &str = "<!-- end -->";

/// One case under one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Name of the case.
    pub case: String,
    /// The release of the kernel.
    pub kernel: String,
    /// The result.
    pub verdict: Verdict,
}

const HEAD: &str = "| case | kernel | result | what was tried |\n|---|---|---|---|\n";

/// The table as Markdown, in the order of the rows.
#[must_use]
pub fn markdown(rows: &[Row]) -> String {
    HEAD.to_owned() + &rows.iter().map(line).collect::<String>()
}

/// Writes the rows into the table of `lab.md` in a folder, in place of those with the same case and
/// kernel. Other rows are kept, unless no complete run would write them, because such rows would
/// never be replaced. The table of `actuators.md` follows from all of them.
///
/// # Errors
/// [`LabError::Wrong`] if a document has no marks, [`LabError::Host`].
pub fn record(folder: &str, rows: &[Row]) -> Result<(), LabError> {
    fn marker_error(path: &str) -> LabError {
        LabError::wrong(path, format!("has no lines {BEGIN} and {END}"))
    }
    let cases = format!("{folder}/lab.md");
    let new = replace_rows(&files::read_text(&cases)?, rows).ok_or_else(|| marker_error(&cases))?;
    let derived = format!("{folder}/actuators.md");
    let old = files::read_text(&derived)?;
    let (head, table, tail) = parts(&old).ok_or_else(|| marker_error(&derived))?;
    let (_, rows, _) = parts(&new).ok_or_else(|| marker_error(&cases))?;
    files::write_atomic(&cases, new.as_bytes())?;
    let wanted = actuators::markdown(rows);
    if table.trim() != wanted.trim() {
        let text = format!("{head}{BEGIN}\n{wanted}{END}{tail}");
        files::write_atomic(&derived, text.as_bytes())?;
    }
    Ok(())
}

/// The text before, between and after the marks.
fn parts(text: &str) -> Option<(&str, &str, &str)> {
    let (head, rest) = text.split_once(BEGIN)?;
    let (table, tail) = rest.split_once(END)?;
    Some((head, table, tail))
}

fn line(row: &Row) -> String {
    let (word, what) = match &row.verdict {
        Verdict::Passed(what) => ("passed", what),
        Verdict::Failed(what) => ("**failed**", what),
        Verdict::Skipped(what) => ("skipped", what),
    };
    let what = what.lines().next().unwrap_or_default().replace('|', "\\|");
    format!("{}{word} | {what} |\n", key(row))
}

/// The start of the line of a row.
fn key(row: &Row) -> String {
    format!("| {} | {} | ", row.case, row.kernel)
}

/// True if a complete run of the lab writes such a line.
fn is_written(line: &str) -> bool {
    let mut cells = line.trim_start_matches("| ").split(" | ");
    let (case, kernel) = (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
    Case::is_in_whole_run(case, kernel)
}

fn replace_rows(old: &str, rows: &[Row]) -> Option<String> {
    let (head, table, tail) = parts(old)?;
    let body = table.trim_start().strip_prefix(HEAD).unwrap_or_default();
    let mut lines: Vec<String> = body
        .lines()
        .filter(|line| !rows.iter().any(|row| line.starts_with(&key(row))) && is_written(line))
        .map(|line| format!("{line}\n"))
        .collect();
    lines.extend(rows.iter().filter(|row| is_written(&key(row))).map(line));
    lines.sort();
    Some(format!("{head}{BEGIN}\n{HEAD}{}{END}{tail}", lines.concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: &str, kernel: &str, verdict: Verdict) -> Row {
        Row { case: case.to_owned(), kernel: kernel.to_owned(), verdict }
    }

    #[test]
    fn rows_take_the_place_of_their_like() {
        let kernel = "6.1.0-56-cloud-amd64";
        let old = format!("before\n{BEGIN}\n{END}\nafter\n");
        let first = [
            row("systemd", kernel, Verdict::Passed("1".into())),
            row("cpufreq", kernel, Verdict::Skipped("2".into())),
        ];
        let text = replace_rows(&old, &first).unwrap();
        let second = [row("systemd", kernel, Verdict::Failed("x | y\nmore".into()))];
        let text = replace_rows(&text, &second).unwrap();
        let table = format!(
            "{HEAD}| cpufreq | {kernel} | skipped | 2 |\n| systemd | {kernel} | **failed** | x \\| y |\n"
        );
        assert_eq!(text, format!("before\n{BEGIN}\n{table}{END}\nafter\n"));
        assert_eq!(replace_rows("no marks", &first), None);
    }

    #[test]
    fn rows_that_no_whole_run_would_write_again_are_dropped() {
        let full = "6.1.0-56-amd64";
        let old: String = [
            ("isolate, undo: 2 CPUs", full),
            ("isolate, undo: 2 CPUs", "6.1.0-56-cloud-amd64"),
            ("systemd", full),
            ("cgroup v1: undo killed", full),
            ("cgroup v1: undo killed", "6.1.0-56-cloud-amd64"),
            ("a case of former times", "6.1.0-56-cloud-amd64"),
            ("cpufreq", "6.12.107+deb13-arm64"),
            ("real KVM, nested", "6.12.107+deb13-arm64"),
        ]
        .map(|(case, kernel)| format!("| {case} | {kernel} | passed | x |\n"))
        .concat();
        let text = replace_rows(&format!("{BEGIN}\n{HEAD}{old}{END}"), &[]).unwrap();
        let cases = text.lines().filter_map(|line| line.strip_suffix(" | passed | x |"));
        let expected = [
            "| cgroup v1: undo killed | 6.1.0-56-cloud-amd64",
            "| isolate, undo: 2 CPUs | 6.1.0-56-cloud-amd64",
            "| real KVM, nested | 6.12.107+deb13-arm64",
            "| systemd | 6.1.0-56-amd64",
        ];
        assert_eq!(cases.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_documents_hold_what_would_be_written() {
        let cases = include_str!("../../docs/lab.md");
        assert_eq!(replace_rows(cases, &[]).unwrap(), cases, "run cargo xtask lab");
        let (_, rows, _) = parts(cases).unwrap();
        let (_, table, _) = parts(include_str!("../../docs/actuators.md")).unwrap();
        assert_eq!(table.trim(), actuators::markdown(rows).trim(), "run cargo xtask lab");
    }
}
