//! Findings: what a host, a plan or a run is not as one would wish, with the way out.

use std::fmt;

/// How much a [`Finding`] matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Good to know; nothing to do.
    Note,
    /// The result is weaker than it could be.
    Warning,
    /// Something that was asked for cannot be had.
    Problem,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Problem => "problem",
        })
    }
}

/// One thing that the user should know: what, why, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// What it is about, in the field's words: `smt`, `cgroup cpuset`, `PU 3`.
    pub subject: String,
    /// What was found and why, as a sentence without full stop.
    pub text: String,
    /// What the user can do next, if anything.
    pub hint: Option<String>,
}

impl Finding {
    /// A finding that needs nothing done.
    pub fn note(subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(Severity::Note, subject, text)
    }

    /// A finding that weakens the result.
    pub fn warning(subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(Severity::Warning, subject, text)
    }

    /// A finding that denies something that was asked for.
    pub fn problem(subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(Severity::Problem, subject, text)
    }

    /// The same finding with a way out.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    fn new(severity: Severity, subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self { severity, subject: subject.into(), text: text.into(), hint: None }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.severity, self.subject, self.text)?;
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}
