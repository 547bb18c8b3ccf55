//! The results as a table, for the terminal and for `lab.md` and `actuators.md`.

use pinfold_host::user;

use crate::actuators;
use crate::cases::Verdict;
use crate::error::LabError;

/// The lines between which the table stands in a document.
const BEGIN: &str = "<!-- begin: written by cargo xtask lab -->";
const END: &str = "<!-- end -->";

/// One case under one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Name of the case.
    pub case: String,
    /// The kernel, by its release.
    pub kernel: String,
    /// What became of it.
    pub verdict: Verdict,
}

const HEAD: &str = "| case | kernel | result | what was tried |\n|---|---|---|---|\n";

/// The table as Markdown, in the order of the rows.
#[must_use]
pub fn markdown(rows: &[Row]) -> String {
    HEAD.to_owned() + &rows.iter().map(line).collect::<String>()
}

/// Puts the rows into the table of `lab.md` in a folder, in the place of those of the same case
/// and kernel; others stay as they are. The table of `actuators.md` follows from all of them.
///
/// # Errors
/// [`LabError::Wrong`] if a document has no marks, [`LabError::Host`].
pub fn record(folder: &str, rows: &[Row]) -> Result<(), LabError> {
    let marked = |path: &str| LabError::wrong(path, format!("has no lines {BEGIN} and {END}"));
    let cases = format!("{folder}/lab.md");
    let new = replaced(&user::read_text(&cases)?, rows).ok_or_else(|| marked(&cases))?;
    let derived = format!("{folder}/actuators.md");
    let old = user::read_text(&derived)?;
    let (head, table, tail) = parts(&old).ok_or_else(|| marked(&derived))?;
    let (_, rows, _) = parts(&new).ok_or_else(|| marked(&cases))?;
    user::write_atomic(&cases, new.as_bytes())?;
    let wanted = actuators::markdown(rows);
    if table.trim() != wanted.trim() {
        let text = format!("{head}{BEGIN}\n{wanted}{END}{tail}");
        user::write_atomic(&derived, text.as_bytes())?;
    }
    Ok(())
}

/// What is before, between and behind the marks.
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

/// What a line begins with.
fn key(row: &Row) -> String {
    format!("| {} | {} | ", row.case, row.kernel)
}

fn replaced(old: &str, rows: &[Row]) -> Option<String> {
    let (head, table, tail) = parts(old)?;
    let body = table.trim_start().strip_prefix(HEAD).unwrap_or_default();
    let is_new = |line: &&str| !rows.iter().any(|row| line.starts_with(&key(row)));
    let mut lines: Vec<String> =
        body.lines().filter(is_new).map(|line| format!("{line}\n")).collect();
    lines.extend(rows.iter().map(line));
    lines.sort();
    Some(format!("{head}{BEGIN}\n{HEAD}{}{END}{tail}", lines.concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_take_the_place_of_their_like() {
        let row =
            |case: &str, verdict| Row { case: case.to_owned(), kernel: "6.1".to_owned(), verdict };
        let old = format!("before\n{BEGIN}\n{END}\nafter\n");
        let first = [row("b", Verdict::Passed("1".into())), row("a", Verdict::Skipped("2".into()))];
        let text = replaced(&old, &first).unwrap();
        let second = [row("b", Verdict::Failed("x | y\nmore".into()))];
        let text = replaced(&text, &second).unwrap();
        let table =
            format!("{HEAD}| a | 6.1 | skipped | 2 |\n| b | 6.1 | **failed** | x \\| y |\n");
        assert_eq!(text, format!("before\n{BEGIN}\n{table}{END}\nafter\n"));
        assert_eq!(replaced("no marks", &first), None);
    }
}
