//! The sections of the page as rows of finished texts: the template only positions them.

pub(crate) mod facts;
pub(crate) mod latency;
pub(crate) mod limitations;
pub(crate) mod placements;
pub(crate) mod ranking;
pub(crate) mod roles;

use crate::page::{CandidateId, CandidateKind, Page, ReachedStage};
use crate::series::Series;

/// A candidate's name with the key to its appearance in the charts.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    pub(crate) name: String,
    /// A small drawing of line and marker.
    pub(crate) key: String,
    /// Notes on the name: `first`, `baseline`, `A/A`, `= compact-cores`.
    pub(crate) tags: Vec<String>,
    pub(crate) winner: bool,
    pub(crate) is_baseline: bool,
}

impl Name {
    pub(crate) fn new(page: &Page, id: CandidateId) -> Self {
        let series = page.series(id);
        let candidate = page.candidate(id);
        let kind = candidate.and_then(|candidate| match candidate.kind {
            CandidateKind::Baseline => Some("baseline"),
            CandidateKind::Repeat => Some("A/A"),
            CandidateKind::Layout => None,
        });
        let stage = candidate.and_then(|candidate| match candidate.stage {
            ReachedStage::Confirmed => None,
            ReachedStage::Dropped => Some("dropped early"),
            ReachedStage::Screened => Some("screened only"),
            ReachedStage::Failed => Some("failed"),
        });
        let words = [series.winner.then_some("first"), kind, stage].into_iter().flatten();
        let mut tags: Vec<String> = words.map(str::to_owned).collect();
        let is_baseline = page.baseline() == Some(id);
        if let Some(candidate) = candidate.filter(|candidate| !candidate.alike.is_empty()) {
            tags.push(format!("= {}", candidate.alike.join(", ")));
        }
        Self { key: key(&series), name: series.name, tags, winner: series.winner, is_baseline }
    }
}

/// Line and marker of a candidate, for tables and legends.
pub(crate) fn key(series: &Series) -> String {
    format!(
        "<svg class=\"key\" viewBox=\"0 0 34 14\" aria-hidden=\"true\"><g class=\"{}\">\
         <line class=\"line\" x1=\"1\" y1=\"7\" x2=\"33\" y2=\"7\"/>\
         <path class=\"{}\" d=\"M17 7{}\"/></g></svg>",
        series.classes(),
        series.marker.class(),
        series.marker.path()
    )
}
