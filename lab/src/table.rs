//! The results as a table, for the terminal and for `docs/lab.md`.

use pinfold_host::user;

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

/// The table as Markdown, in the order of the rows.
#[must_use]
pub fn markdown(rows: &[Row]) -> String {
    let mut text = String::from("| case | kernel | result | what was tried |\n|---|---|---|---|\n");
    for row in rows {
        let (word, what) = match &row.verdict {
            Verdict::Passed(what) => ("passed", what),
            Verdict::Failed(what) => ("**failed**", what),
            Verdict::Skipped(what) => ("skipped", what),
        };
        let what = what.lines().next().unwrap_or_default().replace('|', "\\|");
        text.push_str(&format!("| {} | {} | {word} | {what} |\n", row.case, row.kernel));
    }
    text
}

/// Puts the table between the marks of a document.
///
/// # Errors
/// [`LabError::Wrong`] if the document has no marks, [`LabError::Host`].
pub fn record(document: &str, rows: &[Row]) -> Result<(), LabError> {
    let old = user::read_text(document)?;
    let new = replaced(&old, &markdown(rows))
        .ok_or_else(|| LabError::wrong(document, format!("has no lines {BEGIN} and {END}")))?;
    Ok(user::write_atomic(document, new.as_bytes())?)
}

fn replaced(old: &str, table: &str) -> Option<String> {
    let (head, rest) = old.split_once(BEGIN)?;
    let (_, tail) = rest.split_once(END)?;
    Some(format!("{head}{BEGIN}\n{table}{END}{tail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_stands_between_its_marks() {
        let rows = [Row {
            case: "a".to_owned(),
            kernel: "6.1".to_owned(),
            verdict: Verdict::Failed("x | y\nmore".to_owned()),
        }];
        let old = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let new = replaced(&old, &markdown(&rows)).unwrap();
        assert!(new.starts_with("before\n") && new.ends_with("\nafter\n"), "{new}");
        assert!(new.contains("| a | 6.1 | **failed** | x \\| y |\n"), "{new}");
        assert!(!new.contains("old"), "{new}");
        assert_eq!(replaced("no marks", ""), None);
    }
}
