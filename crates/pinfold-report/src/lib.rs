//! The report: one self-contained HTML page that shows where a virtual machine runs best.
//!
//! Stability: none; a part of the program, which may change in each release.
//!
//! ```text
//! Page (plain data) ──► headline, sections, charts (texts, SVG) ──► template ──► HTML
//!                  └──► summary ──► texts
//! ```
//!
//! The binary fills a [`Page`] and passes it to [`render`] or [`summary`]; this crate does not
//! access the host, the store, a clock or randomness. The page needs no network, script or font
//! file. It adapts to the light or dark colour scheme, the width of the window, and the printer.
//! All information in colours is also in text, markers or line styles.
//!
//! **Size limit**: 500 KB for a run of six candidates, five metrics and four load states on up to
//! 64 CPUs (checked by a test). Raw samples stay in the store, the page has 61 points per curve
//! ([`Curve::from_samples`]).

mod axis;
mod charts;
mod curve;
mod document;
mod error;
mod files;
pub mod format;
mod headline;
mod page;
#[cfg(feature = "parquet")]
mod parquet;
mod rules;
mod sections;
mod series;
mod study;
mod svg;
mod table_error;
pub mod terminal;
mod text;

pub use document::render;
pub use error::ReportError;
pub use files::{TableFiles, WrittenTable};
pub use page::{
    BlockRow, BlockValues, Candidate, CandidateId, CandidateKind, Comparison, Conclusion, Curve,
    Distribution, ExportedPlan, FailedStart, Page, PinsAlone, Provenance, Quantile, Ranking,
    RankingRow, ReachedStage, RequestSummary, RoleRow, RoleTable, Verdict,
};
pub use rules::contradictions;
pub use study::{
    AaPair, Agreement, Brackets, ChartPoint, ClaimRow, INTERVAL_BLOCKS, Line, MeasuredFigure,
    PageTable, Panel, Picture, Scale, SourceMark, Spread, StudyMarkdown, StudyPage,
    contradictions as study_contradictions, render_study, study_markdown,
};
pub use table_error::TableError;
pub use text::{Summary, summary};
