//! Studies: an experiment described by a file, run as a randomised, blocked, resumable design.
//!
//! ```text
//! file ─► [`Study`] ─► cells (levels × workloads, constraints) ─► blocks of starts ─► trials
//!         from_toml     skipped with a reason where the host cannot        │
//!                                                  [`Runner`] runs each ◄──┤ engine: store ─► resume
//!                                                                          ▼
//!                                              analyse: store → intervals, verdicts, claims
//! ```
//!
//! The store has the text of the file: [`run`], `resume` and [`analyse`] need nothing else. A
//! [`Runner`] places and runs the workloads; this module does not access the host. All randomness
//! comes from the study's seed.
//!
//! ```
//! use pinfold_study::study;
//!
//! let study = study::from_toml(
//!     "name = 'speed'\ntitle = 'Speed'\nrepetitions = 6\n\
//!      [[factor]]\nname = 'size'\nlevels = [1, 2]\n\
//!      [[workload]]\nname = 'a'\ncommand = ['a', '--size={size}']\nlasts = '1s'\n\
//!      [[workload.figure]]\nname = 'rate'\nunit = 'per-second'\njson = 'rate'\n",
//! )?;
//! assert_eq!(study.factors[0].levels.len(), 2);
//! # Ok::<(), pinfold_config::ConfigError>(())
//! ```

mod analyse;
mod cells;
pub mod design;
mod diff;
mod engine;
mod export;
pub mod expr;
mod file;
mod nodes;
mod output_parser;
mod predict;
mod preset_selection;
mod published_marks;
mod read;
mod record;
mod runner;
mod select;
mod statistics;
mod template;

/// Level of verdicts: the probability of a false better or worse among the cells that are compared
/// with one cell.
pub const ALPHA: f64 = 0.05;

/// The smallest number of blocks with a 95 % interval, and with which a statement can be settled:
/// five cannot reach [`ALPHA`]. Below it the bootstrap covers the median far less often, so the
/// bounds are the range of the blocks.
pub const INTERVAL_BLOCKS: u32 = 6;

pub use crate::engine::{Event, NextStep, Outcome, Progress, TrialError, Update};
pub use analyse::{
    ABSENT, APPLY, Analysis, Comparison, Estimate, FINDING, FigureName, Noise, analyse,
    analyse_with_text, findings,
};
pub use cells::{Cell, CellScope, Cells, GuestRequest};
pub use design::{PlannedStart, TrialSlot};
pub use diff::{AnalysisDiff, Difference, diff};
pub use engine::{Environment, MAX_FAILURES_IN_A_ROW, Spent, reason_to_stop, run, run_starts};
pub use export::{samples, tables};
pub use file::{
    AS_IS, BOOT, BUILT_IN, Claim, DisplayedStatistic, Factor, FactorEffect, FigureRule, HostFacts,
    LabRow, Level, NATIVE, NONE, ORDER, Plot, Preset, Probe, Program, PublishedValue, QUICK, Rule,
    SAME_PROGRAM, Selection, Skip, Source, Stop, Stream, Study, Summary, TIME, Table, Workload,
};
pub use nodes::{NodeFigure, NodeRow, NodeTable, node_table};
pub use output_parser::{Output, extract};
pub use predict::{Prediction, predict};
pub use preset_selection::PresetSelection;
pub use read::from_toml;
pub use record::{
    EarlyEnd, KIND, Loaded, NewStudy, StudyRecord, cell_mismatch_error, cells, create, create_with,
    require_no_unfinished_run,
};
pub use runner::{Finished, Runner, StartRequest, TrialRequest, TrialResult};
pub use select::{ClaimResult, Groups, Key, MeasuredNumber, Point, SampleCurve};
pub use statistics::SampleStatistic;

#[cfg(test)]
mod tests;
