//! Findings: limitations of a host, a plan or a run, with a hint for the user.

use std::fmt;

/// Severity of a [`Finding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Severity {
    /// Information; no action needed.
    Note,
    /// The result is worse than it could be.
    Warning,
    /// A requested feature is not available.
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

/// Something that the user should know: what it is, why, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// The subject: `smt`, `cgroup cpuset`, `CPU 3`.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_formats::line"))]
    pub subject: String,
    /// The finding and its reason, as a sentence without full stop.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "crate::serde_formats::line"))]
    pub text: String,
    /// What the user can do next, if anything.
    #[cfg_attr(
        feature = "serde",
        serde(default, deserialize_with = "crate::serde_formats::optional_line")
    )]
    pub hint: Option<String>,
}

impl Finding {
    /// A finding that needs no action.
    pub fn note(subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(Severity::Note, subject, text)
    }

    /// A finding about a weaker result.
    pub fn warning(subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(Severity::Warning, subject, text)
    }

    /// A finding about an unavailable feature.
    pub fn problem(subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(Severity::Problem, subject, text)
    }

    /// Adds a hint.
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
