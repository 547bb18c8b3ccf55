//! The appearance of a candidate in all charts: a CSS class, a marker and a line style.
//!
//! Colour is never the only difference. The class sets colour and dashes (see `assets/page.css`),
//! the markers have different shapes, and charts write the name next to the line. The baseline and
//! its repeat are grey in all charts.

use crate::page::{CandidateId, CandidateKind, Page};

/// Number of colours in the style sheet.
const COLOURS: usize = 7;

/// Appearance of one candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// CSS class that sets `--c` and the dashes.
    pub(crate) class: String,
    pub(crate) marker: Marker,
    pub(crate) winner: bool,
}

/// Shape of a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    TriangleDown,
    Hexagon,
    Cross,
    Plus,
    Ring,
}

const MARKERS: [Marker; COLOURS] = [
    Marker::Circle,
    Marker::Square,
    Marker::Triangle,
    Marker::Diamond,
    Marker::TriangleDown,
    Marker::Hexagon,
    Marker::Plus,
];

impl Marker {
    /// Path data relative to the marker's centre.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Marker::Circle | Marker::Ring => "m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z",
            Marker::Square => "m-3.2 -3.2h6.4v6.4h-6.4z",
            Marker::Triangle => "m0 -4.2l4 7h-8z",
            Marker::TriangleDown => "m0 4.2l4 -7h-8z",
            Marker::Diamond => "m0 -4.6l4.2 4.6l-4.2 4.6l-4.2 -4.6z",
            Marker::Hexagon => "m-2 -3.6h4l2 3.6l-2 3.6h-4l-2 -3.6z",
            Marker::Cross => "m-3 -3l6 6m0 -6l-6 6",
            Marker::Plus => "m-4 0h8m-4 -4v8",
        }
    }

    /// CSS class: markers that consist of strokes must not be filled.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Marker::Cross | Marker::Plus | Marker::Ring => "mark open",
            Marker::Circle
            | Marker::Square
            | Marker::Triangle
            | Marker::Diamond
            | Marker::TriangleDown
            | Marker::Hexagon => "mark",
        }
    }
}

/// Class and marker of the n-th line of a chart without a baseline; repeated colours are paler and
/// have other markers.
pub(crate) fn style_of_line(index: usize) -> (String, Marker) {
    let colour = index % COLOURS;
    let again = if index < COLOURS { "" } else { " more" };
    (format!("s{colour}{again}"), MARKERS[(index + index / COLOURS) % COLOURS])
}

impl Page {
    /// Appearance of a candidate.
    pub(crate) fn series(&self, id: CandidateId) -> Series {
        let layouts_before = self
            .candidates
            .iter()
            .take(id.0)
            .filter(|candidate| candidate.kind == CandidateKind::Layout)
            .count();
        let colour = layouts_before % COLOURS;
        let (class, marker) = match self.candidate(id).map(|candidate| candidate.kind) {
            Some(CandidateKind::Baseline) => ("base".to_owned(), Marker::Cross),
            Some(CandidateKind::Repeat) => ("again".to_owned(), Marker::Ring),
            Some(CandidateKind::Layout) | None => (format!("s{colour}"), MARKERS[colour]),
        };
        let winner = self.answer.winner == Some(id);
        Series { name: self.name(id), class, marker, winner }
    }
}

impl Series {
    /// All CSS classes of the candidate's group in a chart.
    pub(crate) fn classes(&self) -> String {
        format!("series {}{}", self.class, if self.winner { " win" } else { "" })
    }
}
