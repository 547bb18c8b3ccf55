//! The report: one self-contained HTML page that answers where a virtual machine runs best.
//!
//! ```text
//! Page (plain data) ──► headline, sections, charts (texts, SVG) ──► template ──► HTML
//!                  └──► summary_text ──► plain text
//! ```
//! The binary fills a [`Page`] and hands it to [`render`] or [`summary_text`];
//! nothing here touches the host, the store, a clock or randomness. The page
//! needs no network, no script and no font file; it follows the reader's light
//! or dark scheme, the width of the window and the printer. All meaning that
//! colour carries is also carried by words, markers or line styles.
//!
//! **Size budget**: 500 KB for a run of six candidates, five metrics and four
//! load states on up to 64 PUs (a test holds it); raw samples stay in the store,
//! the page gets 61 points per curve ([`Curve::from_samples`]).

mod axis;
mod charts;
mod curve;
mod document;
mod error;
mod files;
pub mod format;
mod headline;
mod page;
mod parquet;
mod rules;
mod sections;
mod series;
mod study;
mod svg;
pub mod terminal;
mod text;

pub use document::render;
pub use error::ReportError;
pub use files::{TableFiles, WrittenTable};
pub use page::{
    Answer, Asked, BlockRow, BlockValues, Candidate, CandidateId, CandidateKind, Comparison, Curve,
    Distribution, Emitted, FailedStart, Page, Provenance, Quantile, Ranking, RankingRow, RoleRow,
    RoleTable, Stage, Verdict,
};
pub use parquet::TableError;
pub use rules::contradictions;
pub use study::{
    Agreement, ClaimRow, Line, MeasuredFigure, PageTable, Pair, Panel, Picture, PictureKind, Scale,
    Spot, Spread, StudyPage, contradictions as study_contradictions, render_study,
};
pub use text::{Summary, summary, summary_text};
