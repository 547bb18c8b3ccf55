//! The forms of a study: as its file has it, or shortened by one of its presets.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::file::{QUICK, Study};
use crate::error::RunError;

/// The form of a study that is run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "FormV1", into = "FormV1")]
pub enum PresetSelection {
    /// As its file has it.
    #[default]
    Whole,
    /// Shortened by the preset of this name.
    Preset(String),
}

/// The form in documents, which is only true or false in those of versions without other presets.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum FormV1 {
    IsQuick(bool),
    Preset(String),
}

impl PresetSelection {
    /// The form with this preset, or the whole study.
    pub fn from_preset(preset: Option<&str>) -> Self {
        preset.map_or(Self::Whole, |name| Self::Preset(name.to_owned()))
    }

    /// The name of its preset.
    #[must_use]
    pub fn preset(&self) -> Option<&str> {
        match self {
            Self::Whole => None,
            Self::Preset(name) => Some(name),
        }
    }
}

impl fmt::Display for PresetSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.preset().unwrap_or("whole"))
    }
}

impl From<FormV1> for PresetSelection {
    fn from(stored: FormV1) -> Self {
        match stored {
            FormV1::IsQuick(false) => Self::Whole,
            FormV1::IsQuick(true) => Self::Preset(QUICK.to_owned()),
            FormV1::Preset(name) => Self::Preset(name),
        }
    }
}

impl From<PresetSelection> for FormV1 {
    fn from(form: PresetSelection) -> Self {
        match form {
            PresetSelection::Whole => Self::IsQuick(false),
            PresetSelection::Preset(name) if name == QUICK => Self::IsQuick(true),
            PresetSelection::Preset(name) => Self::Preset(name),
        }
    }
}

impl Study {
    /// The study in this form.
    ///
    /// # Errors
    /// [`RunError::Refused`] if it has no such preset.
    pub fn apply_preset(&self, form: &PresetSelection) -> Result<Study, RunError> {
        let mut study = self.clone();
        let Some(name) = form.preset() else { return Ok(study) };
        let preset = self.presets.get(name).ok_or_else(|| self.no_preset(name))?;
        study.preset = Some(name.to_owned());
        study.repetitions = preset.repetitions.unwrap_or(study.repetitions);
        study.starts = preset.starts.unwrap_or(study.starts);
        study.warm_up = preset.warm_up.unwrap_or(study.warm_up);
        study.values.extend(preset.values.clone());
        for factor in &mut study.factors {
            if let Some(levels) = preset.levels.get(&factor.name) {
                factor.levels.clone_from(levels);
            }
        }
        let names = &preset.workloads;
        study.workloads.retain(|one| names.is_empty() || names.contains(&one.name));
        for workload in &mut study.workloads {
            let limit_ns = preset.time_limit_ns.unwrap_or(workload.time_limit_ns);
            workload.time_limit_ns = workload.time_limit_ns.min(limit_ns);
        }
        Ok(study)
    }

    fn no_preset(&self, name: &str) -> RunError {
        let known: Vec<&str> = self.presets.keys().map(String::as_str).collect();
        let key = if name == QUICK { QUICK.to_owned() } else { format!("preset.{name}") };
        let hint = if known.is_empty() {
            format!(
                "it has none: write [{key}] with what it leaves out (note) and its repetitions, \
                 levels and values"
            )
        } else {
            format!("it has {}", known.join(", "))
        };
        RunError::refuse(format!("the study has no preset {name:?}"), &hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_of_versions_without_presets_are_read() {
        for (form, json) in
            [(None, "false"), (Some(QUICK), "true"), (Some("evening"), "\"evening\"")]
        {
            let form = PresetSelection::from_preset(form);
            assert_eq!(serde_json::to_string(&form).unwrap(), json);
            assert_eq!(serde_json::from_str::<PresetSelection>(json).unwrap(), form);
        }
    }
}
