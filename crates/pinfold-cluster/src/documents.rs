//! The documents between the collector and the nodes. Everything that nodes return is validated.
//!
//! A job is one JSON document. A result is one line of JSON, followed by a line
//! `pinfold-end SHA256` with the digest of the first line: a truncated or overwritten file does not
//! have it. Output of a node's prolog before the result is skipped.

use std::collections::BTreeSet;

use pinfold_model::{Figure, Origin};
use pinfold_run::{Exit, Failure};
use pinfold_study::SchemaError;
use pinfold_study::measured::check_finite;
use pinfold_study::store::TrialRecord;
use pinfold_study::study::{HostFacts, PresetSelection, TrialSlot};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::parts::Part;

/// Version of this program.
pub const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");

const JOB: &str = "pinfold-job/1";
const RESULT: &str = "pinfold-result/1";
const OPTIONS: &str = "pinfold-cluster/1";
const END: &str = "pinfold-end ";

/// How the tasks of a run are submitted; kept in its store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    format: String,
    /// Name of the batch system; `None` for the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
    /// Identifies the tasks and results of this run.
    pub key: String,
    /// A folder that all nodes share, with the same path.
    pub shared: Option<String>,
    /// Path of the program on the nodes, if it is installed there.
    pub program: Option<String>,
    /// The partition; `None` for the default one.
    pub partition: Option<String>,
    /// Number of nodes at a time, or a list of nodes, as on the command line.
    pub nodes: Option<String>,
    /// Time limit of a task, in the scheduler's format.
    pub time: Option<String>,
}

impl Options {
    /// Options of a run with this key.
    pub fn new(key: String) -> Self {
        Self { format: OPTIONS.to_owned(), key, ..Self::default() }
    }

    /// The options as JSON for the store.
    ///
    /// # Errors
    /// [`SchemaError`] if they cannot be written.
    pub fn to_json(&self) -> Result<String, SchemaError> {
        Ok(serde_json::to_string(self)?)
    }
}

/// Parses options from the store.
///
/// # Errors
/// [`SchemaError`] if they have another version.
pub fn read_options(text: &str) -> Result<Options, SchemaError> {
    let options: Options = serde_json::from_str(text)?;
    if options.format == OPTIONS {
        Ok(options)
    } else {
        Err(SchemaError::Word { what: "format", word: options.format })
    }
}

/// A document after its format.
#[derive(Serialize, Deserialize)]
struct Formatted<T> {
    format: String,
    #[serde(flatten)]
    document: T,
}

/// The document that a node receives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobDocument {
    /// Key of the run.
    pub key: String,
    /// Version of Pinfold that wrote it.
    pub pinfold: String,
    /// The study file's text.
    #[serde(rename = "study")]
    pub toml: String,
    /// The form that is run.
    #[serde(rename = "quick")]
    pub form: PresetSelection,
    /// The answer of the first node; `None` in the job of that node.
    pub scouted: Option<NodeProperties>,
}

/// The properties of a node on which the design depends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeProperties {
    /// Facts for expressions.
    pub facts: HostFacts,
    /// For each cell, why it is not run.
    pub skipped: Vec<Option<String>>,
}

impl JobDocument {
    /// The document as JSON.
    ///
    /// # Errors
    /// [`SchemaError`] if it cannot be written.
    pub fn to_json(&self) -> Result<String, SchemaError> {
        Ok(serde_json::to_string(&Formatted { format: JOB.to_owned(), document: self })?)
    }

    /// Parses a document.
    ///
    /// # Errors
    /// [`SchemaError`] if it is malformed, or of another version.
    pub fn from_json(text: &str) -> Result<Self, SchemaError> {
        let Formatted { format, document } = serde_json::from_str(text)?;
        if format == JOB {
            Ok(document)
        } else {
            Err(SchemaError::Word { what: "format", word: format })
        }
    }
}

/// Identification of a result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultIdentity {
    /// Version of Pinfold on the node.
    pub pinfold: String,
    /// Key of the run.
    pub key: String,
    /// Digest of the study and its form, from [`study_digest`].
    pub study: String,
    /// The part; `None` for the first node, which only reports its properties.
    pub part: Option<u32>,
    /// Attempt, 1 or 2.
    pub attempt: u32,
    /// Name of the node.
    pub node: String,
    /// Id of the job.
    pub job: String,
    /// The CPUs that the job can use.
    pub mask: String,
    /// Host and software of the node.
    pub origin: Origin,
    /// Start (seconds since 1970).
    pub began_unix_s: u64,
}

/// The contents of a result.
#[derive(Clone, Debug, PartialEq)]
pub enum ResultContent {
    /// The properties of the node.
    Scouted(NodeProperties),
    /// All trials of a part.
    Trials(Vec<(TrialRecord, Vec<Figure>)>),
    /// None: the node differs from the first one, or its version of Pinfold differs.
    Refused(String),
}

/// A complete result.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskResult {
    /// Node, job and run of the result.
    pub head: ResultIdentity,
    /// What the node returned.
    pub given: ResultContent,
}

#[derive(Serialize, Deserialize)]
struct ResultV1 {
    format: String,
    #[serde(flatten)]
    head: ResultIdentity,
    #[serde(default)]
    scouted: Option<NodeProperties>,
    #[serde(default)]
    refused: Option<String>,
    #[serde(default)]
    trials: Vec<TrialV1>,
}

#[derive(Serialize, Deserialize)]
struct TrialV1 {
    #[serde(flatten)]
    record: TrialRecord,
    figures: Vec<Figure>,
}

/// The members that every version of a result has.
#[derive(Deserialize)]
struct ResultHeader {
    format: Option<String>,
    pinfold: Option<String>,
    key: Option<String>,
    node: Option<String>,
    study: Option<String>,
    #[serde(default)]
    refused: Option<String>,
}

/// Why a result is rejected.
#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    /// It is incomplete.
    #[error("it is incomplete: {0}")]
    Torn(&'static str),
    /// It is not a result.
    #[error("it is not a result of this format")]
    Json(#[from] serde_json::Error),
    /// It has another format.
    #[error("its format is {0:?}, not {RESULT:?}")]
    Format(String),
    /// Another version of Pinfold wrote it.
    #[error("node {node} runs Pinfold {found}, but this is {own}")]
    Version {
        /// Name of the node.
        node: String,
        /// Version on the node.
        found: String,
        /// Version of this program.
        own: String,
    },
    /// It belongs to another run.
    #[error("it belongs to the run {found}, not to {own}")]
    Run {
        /// Key of the other run.
        found: String,
        /// Key of this run.
        own: String,
    },
    /// It belongs to another study.
    #[error("it belongs to another study, or to another form of this study (digest {0})")]
    Study(String),
    /// The node differs from the first one.
    #[error("node {node} cannot be used: {why}")]
    Node {
        /// Name of the node.
        node: String,
        /// The differences from the first node.
        why: String,
    },
    /// It has an invalid value.
    #[error("{field} {why}")]
    Value {
        /// Location of the value.
        field: String,
        /// What is wrong with the value.
        why: String,
    },
}

impl ResultError {
    /// True if no further result can be better, so that the study must stop.
    pub fn ends_the_study(&self) -> bool {
        match self {
            ResultError::Version { .. } | ResultError::Node { .. } => true,
            ResultError::Torn(_)
            | ResultError::Json(_)
            | ResultError::Format(_)
            | ResultError::Run { .. }
            | ResultError::Study(_)
            | ResultError::Value { .. } => false,
        }
    }

    /// A hint for the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            ResultError::Version { .. } => Some(
                "install one version on all nodes, omit --program so that this version is copied, \
                 or exclude the node with --nodes LIST",
            ),
            ResultError::Node { .. } => Some(
                "cells are comparable only on equal nodes: select those with --nodes LIST or \
                 --partition, and continue with `pinfold study resume`",
            ),
            ResultError::Torn(_)
            | ResultError::Json(_)
            | ResultError::Format(_)
            | ResultError::Run { .. }
            | ResultError::Study(_)
            | ResultError::Value { .. } => None,
        }
    }
}

/// The failure for a result that ends the study.
pub fn failure_of(error: &ResultError) -> Failure {
    let failure = Failure::from_error(Exit::Host, error, None);
    match error.hint() {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    }
}

/// Digest of the text of a study and the form that is run.
pub fn study_digest(toml: &str, form: &PresetSelection) -> String {
    hex(format!("{form}\n{toml}").as_bytes())
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A result as text.
///
/// # Errors
/// [`SchemaError`] if it cannot be written.
pub fn result_text(answer: &TaskResult) -> Result<String, SchemaError> {
    let (scouted, refused, trials) = match &answer.given {
        ResultContent::Scouted(scouted) => (Some(scouted.clone()), None, Vec::new()),
        ResultContent::Refused(why) => (None, Some(why.clone()), Vec::new()),
        ResultContent::Trials(trials) => {
            let documents = trials.iter().map(|(record, figures)| TrialV1 {
                record: record.clone(),
                figures: figures.clone(),
            });
            (None, None, documents.collect())
        }
    };
    let (format, head) = (RESULT.to_owned(), answer.head.clone());
    let line = serde_json::to_string(&ResultV1 { format, head, scouted, refused, trials })?;
    Ok(seal(&line))
}

/// A line followed by the line with its digest.
pub fn seal(line: &str) -> String {
    format!("{line}\n{END}{}\n", hex(line.as_bytes()))
}

/// Parses a result of the run with this key and study.
///
/// # Errors
/// [`ResultError`]: incomplete, foreign, of another run, study or version, or with invalid values.
pub fn read_result(
    text: &str,
    key: &str,
    study: &str,
    own: &str,
) -> Result<TaskResult, ResultError> {
    let mut lines = text.trim_end_matches('\n').lines().rev();
    let end = lines.next().and_then(|line| line.strip_prefix(END));
    let end = end.ok_or(ResultError::Torn("its last line, with its digest, is missing"))?;
    let line = lines.next().ok_or(ResultError::Torn("it contains only its last line"))?;
    if hex(line.as_bytes()) != end {
        return Err(ResultError::Torn("its digest is not that of its content"));
    }
    let plate: ResultHeader = serde_json::from_str(line)?;
    let format = plate.format.unwrap_or_default();
    if !format.starts_with(RESULT.trim_end_matches('1')) {
        return Err(ResultError::Format(format));
    }
    if let Some(found) = plate.key.filter(|found| found != key) {
        return Err(ResultError::Run { found, own: key.to_owned() });
    }
    if plate.pinfold.as_deref() != Some(own) {
        return Err(ResultError::Version {
            node: plate.node.unwrap_or_default(),
            found: plate.pinfold.unwrap_or_default(),
            own: own.to_owned(),
        });
    }
    if format != RESULT {
        return Err(ResultError::Format(format));
    }
    // Before the rest is read: they decide what becomes of the run.
    if let Some(found) = plate.study.filter(|found| found != study) {
        return Err(ResultError::Study(found));
    }
    if let Some(why) = plate.refused {
        return Err(ResultError::Node { node: plate.node.unwrap_or_default(), why });
    }
    let mut reader = serde_json::Deserializer::from_str(line);
    let read: ResultV1 = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let field = error.path().to_string();
        // In the members that each version has, the path is not known.
        if error.inner().is_data() && field.starts_with("trials") {
            ResultError::Value { field, why: format!("is not valid: {}", error.inner()) }
        } else {
            ResultError::Json(error.into_inner())
        }
    })?;
    reader.end()?;
    if read.head.key != key {
        return Err(ResultError::Run { found: read.head.key, own: key.to_owned() });
    }
    if read.head.study != study {
        return Err(ResultError::Study(read.head.study));
    }
    read.into_answer()
}

impl ResultV1 {
    fn into_answer(self) -> Result<TaskResult, ResultError> {
        let (node, attempt) = (&self.head.node, self.head.attempt);
        if node.is_empty()
            || node.len() > 255
            || !node.chars().all(|c: char| c.is_ascii_alphanumeric() || "-_.".contains(c))
        {
            return Err(wrong("node", format!("is {node:?}, which is not a valid name")));
        }
        if !(1..=2).contains(&attempt) {
            return Err(wrong("attempt", format!("is {attempt}")));
        }
        let given = match self.scouted {
            Some(scouted) => ResultContent::Scouted(scouted),
            None => {
                let trials = self.trials.into_iter().enumerate().map(|(index, trial)| {
                    trial
                        .into_trial(node)
                        .map_err(|why| wrong("trials", format!("[{index}]: {why}")))
                });
                ResultContent::Trials(trials.collect::<Result<_, _>>()?)
            }
        };
        Ok(TaskResult { head: self.head, given })
    }
}

fn wrong(field: &str, why: String) -> ResultError {
    ResultError::Value { field: field.to_owned(), why }
}

impl TrialV1 {
    fn into_trial(self, node: &str) -> Result<(TrialRecord, Vec<Figure>), String> {
        let record = TrialRecord { node: node.to_owned(), ..self.record };
        if !record.ok && record.error.is_none() {
            return Err("it failed without a reason".to_owned());
        }
        if record.ok && self.figures.is_empty() {
            return Err("it succeeded but measured nothing".to_owned());
        }
        self.figures.iter().try_for_each(check_finite)?;
        Ok((record, self.figures))
    }
}

/// Checks that the trials are those of a part, each once and in its position.
///
/// # Errors
/// [`ResultError::Value`] for the first that is not.
pub(super) fn check_part(
    part: &Part,
    trials: &[(TrialRecord, Vec<Figure>)],
) -> Result<(), ResultError> {
    let wanted: BTreeSet<(TrialSlot, u32)> = part.trials().collect();
    let mut found = BTreeSet::new();
    for (record, _) in trials {
        let slot = TrialSlot::from_record(record);
        let name = format!("block {}, cell {}, place {}", slot.block, slot.cell, record.position);
        if !wanted.contains(&(slot, record.position)) {
            return Err(fail(part, format!("lacks the trial of {name}")));
        }
        if !found.insert((slot, record.position)) {
            return Err(fail(part, format!("holds the trial of {name} twice")));
        }
    }
    if found.len() == wanted.len() {
        Ok(())
    } else {
        Err(fail(part, format!("holds {} of its {} trials", found.len(), wanted.len())))
    }
}

fn fail(part: &Part, why: String) -> ResultError {
    ResultError::Value { field: format!("part {}", part.number), why }
}
