//! The file of `--record`: one JSON object a line, first the summary, then each gap.
//!
//! ```text
//! {"format":"pinfold-gaps/1","summary":{…}}
//! {"tid":42,"role":"vcpu(0)","at_ns":1200,…}
//! ```
//! A file may come from someone else: the number of gaps is bounded, unknown keys are refused, and text is
//! escaped where it is shown.

use pinfold_model::command::{quote, split_words};
use serde::{Deserialize, Serialize};

use super::{Gap, GapReport, MOST, Summary};

/// Format of the first line.
pub const FORMAT: &str = "pinfold-gaps/1";

/// Why a file is refused.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The first line is not that of this format.
    #[error("line 1 is not the beginning of a record of `pinfold measure gaps`: {why}")]
    Beginning {
        /// What is wrong.
        why: String,
    },
    /// Another version.
    #[error("line 1: the format is {found:?}, this version reads {FORMAT}")]
    Version {
        /// The format of the file.
        found: String,
    },
    /// A line is wrong.
    #[error("line {line}: {why}")]
    Line {
        /// Its number.
        line: usize,
        /// What is wrong.
        why: String,
    },
}

#[derive(Serialize)]
struct Head<'a> {
    format: &'a str,
    gaps: usize,
    summary: &'a Summary,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnedHead {
    format: String,
    gaps: usize,
    summary: Summary,
}

#[derive(Deserialize)]
struct Version {
    format: String,
}

/// The file of a report.
///
/// # Errors
/// [`serde_json::Error`], which does not happen.
pub fn to_text(report: &GapReport) -> Result<String, serde_json::Error> {
    let head = Head { format: FORMAT, gaps: report.gaps.len(), summary: &report.summary };
    let mut text = serde_json::to_string(&head)?;
    text.push('\n');
    for gap in &report.gaps {
        text.push_str(&serde_json::to_string(gap)?);
        text.push('\n');
    }
    Ok(text)
}

fn beginning(error: serde_json::Error) -> RecordError {
    RecordError::Beginning { why: error.to_string() }
}

/// Reads a file.
///
/// # Errors
/// [`RecordError`] with the number of the line.
pub fn parse(text: &str) -> Result<GapReport, RecordError> {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let Version { format } = serde_json::from_str(first).map_err(beginning)?;
    if format != FORMAT {
        return Err(RecordError::Version { found: format.chars().take(80).collect() });
    }
    let mut head: OwnedHead = serde_json::from_str(first).map_err(beginning)?;
    debug_assert_eq!(head.format, FORMAT, "compared above");
    if let Some(why) = contradiction(&head.summary) {
        return Err(RecordError::Beginning { why: why.to_owned() });
    }
    // They become a part of commands to copy.
    requote(&mut head.summary.selector);
    head.summary.subjects.iter_mut().for_each(|subject| requote(&mut subject.selector));
    let mut gaps = Vec::new();
    for (index, text) in lines.enumerate() {
        let line = index + 2;
        if gaps.len() > MOST {
            return Err(RecordError::Line { line, why: format!("more than {MOST} gaps") });
        }
        let gap: Gap = serde_json::from_str(text)
            .map_err(|error| RecordError::Line { line, why: error.to_string() })?;
        if gap.length_ns == 0 {
            return Err(RecordError::Line { line, why: "a gap without length".to_owned() });
        }
        gaps.push(gap);
    }
    if gaps.len() != head.gaps {
        let why = format!(
            "the file has {} of {} gaps: it was truncated or concatenated",
            gaps.len(),
            head.gaps
        );
        return Err(RecordError::Line { line: gaps.len() + 1, why });
    }
    Ok(GapReport { summary: head.summary, gaps })
}

/// What cannot be in a summary.
fn contradiction(summary: &Summary) -> Option<&'static str> {
    if summary.duration_ns == 0 {
        return Some("an observation without length");
    }
    (summary.calls == 0 && summary.run_ns > 0).then_some("programs ran that were never called")
}

/// Quotes each word of options for the shell; those of Pinfold stay as they are.
fn requote(selector: &mut String) {
    let words = split_words(selector);
    *selector = words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ");
}
