//! The error of the files that people write: position, fault and hint.

use thiserror::Error;

use crate::fault::Fault;

/// An error in a file, or in words of the command line with the same syntax.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}{why}", place.map_or_else(String::new, |(line, column)| format!("line {line}, column {column}: ")))]
pub struct ConfigError {
    /// Line and column in a file, both from 1; `None` for words of the command line.
    pub place: Option<(usize, usize)>,
    /// The fault.
    pub why: String,
    hint: Option<String>,
}

impl ConfigError {
    /// What the user can do about the error, if anything.
    pub fn hint(&self) -> Option<String> {
        self.hint.clone()
    }

    /// A fault in a file's text, with its line and column.
    #[must_use]
    pub fn in_file(text: &str, fault: Fault) -> Self {
        let before = text.get(..fault.at).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|letter| *letter != '\n').count() + 1;
        Self { place: Some((line, column)), why: fault.why, hint: fault.hint }
    }
}

impl From<Fault> for ConfigError {
    fn from(fault: Fault) -> Self {
        Self { place: None, why: fault.why, hint: fault.hint }
    }
}
