//! The settings and candidates of a run, as the store has them.

use super::budget::{Prediction, predict};
use super::config::{ConfirmPlan, TuneConfig};
use super::create::{KIND, no_baseline};
use crate::error::RunError;
use crate::store::{CandidateRecord, CandidateRole, RunId, Store, StoreError};

/// Settings and candidates of a run, read from the store.
pub(super) struct Loaded {
    pub config: TuneConfig,
    pub records: Vec<CandidateRecord>,
    pub confirm: Option<ConfirmPlan>,
    pub baseline: usize,
    pub twin: usize,
    /// Candidates besides baseline and twin with a placement of their own.
    pub distinct: Vec<usize>,
}

impl Loaded {
    pub(super) fn read(store: &Store, run: RunId) -> Result<Self, RunError> {
        let record = store.run(run)?;
        if record.kind != KIND {
            let path = store.path().to_owned();
            let found = record.kind;
            return Err(StoreError::Kind { path, run, found, wanted: KIND }.into());
        }
        let config =
            serde_json::from_str(&record.config_json).map_err(RunError::document("settings"))?;
        let confirm = record.confirm_json.as_deref().map(serde_json::from_str);
        let records = store.candidates(run)?;
        let baseline = with_role(&records, CandidateRole::Baseline).ok_or_else(no_baseline)?;
        let twin = with_role(&records, CandidateRole::Twin).ok_or_else(no_baseline)?;
        let distinct = (0..records.len()).filter(|&index| {
            records[index].role == CandidateRole::Candidate && records[index].same_as.is_none()
        });
        Ok(Self {
            config,
            confirm: confirm.transpose().map_err(RunError::document("outcome of the screening"))?,
            baseline,
            twin,
            distinct: distinct.collect(),
            records,
        })
    }

    pub(super) fn prediction(&self) -> Result<Prediction, RunError> {
        predict(&self.config, u32::try_from(self.distinct.len()).unwrap_or(u32::MAX))
    }
}

fn with_role(records: &[CandidateRecord], role: CandidateRole) -> Option<usize> {
    records.iter().position(|record| record.role == role)
}
