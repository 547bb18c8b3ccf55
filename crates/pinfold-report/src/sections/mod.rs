//! The sections of the page as rows of finished texts: the template only places them.

pub(crate) mod facts;
pub(crate) mod gaps;
pub(crate) mod honesty;
pub(crate) mod placements;
pub(crate) mod ranking;
pub(crate) mod roles;

use crate::page::{CandidateId, CandidateKind, Page, Stage};
use crate::series::Series;

/// A candidate's name with the key to its look in the charts.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    pub(crate) name: String,
    /// A small drawing of line and marker.
    pub(crate) key: String,
    /// What is to be known besides the name: `best`, `baseline`, `A/A`.
    pub(crate) tags: Vec<&'static str>,
    pub(crate) winner: bool,
}

impl Name {
    pub(crate) fn of(page: &Page, id: CandidateId) -> Self {
        let series = page.series(id);
        let mut tags = Vec::new();
        if series.winner {
            tags.push("best");
        }
        if let Some(candidate) = page.candidate(id) {
            match candidate.kind {
                CandidateKind::Baseline => tags.push("baseline"),
                CandidateKind::Repeat => tags.push("A/A"),
                CandidateKind::Layout => {}
            }
            match candidate.stage {
                Stage::Confirmed => {}
                Stage::Dropped => tags.push("dropped early"),
                Stage::Screened => tags.push("screened only"),
                Stage::Failed => tags.push("failed"),
            }
        }
        Self { key: key(&series), name: series.name, tags, winner: series.winner }
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
