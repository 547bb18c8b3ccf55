//! Tuning: find the best placement of one virtual machine on this host.
//!
//! ```text
//! candidates ─► screening (3 blocks) ─► at most 3 kept ─► confirmation (8 blocks or more,
//!               each candidate once       + none            fresh data, + none again)
//!               per block, random order                         │
//!                                                               ▼  analyse: store → report
//! ```
//!
//! [`create`] checks the request, merges candidates with the same placement, fits the
//! design into the budget and writes the run into the store. [`run`] does the starts
//! that the store does not hold yet, so that going on after an interruption is the same
//! call. [`analyse`] computes the report from the store alone.
//!
//! Everything random comes from the run's seed. What starts a machine is a [`Starter`].

mod analyse;
mod budget;
mod config;
mod create;
mod curves;
mod design;
mod engine;
mod error;
mod findings;
mod ranking;
mod report;
mod starter;
mod summary;

pub use crate::schema::ConfirmPlan;
pub use crate::store::CellResult;
pub use analyse::analyse;
pub use budget::{Prediction, predict};
pub use config::{
    BALANCED_SHARE, BlockRange, Costs, Goal, LEAST_CONFIRM_BLOCKS, ObservationRange, TuneConfig,
};
pub use create::{Candidate, Created, KIND, NONE, TWIN_NAME, create};
pub use curves::{Pooled, pooled, role_totals};
pub use design::PlannedStart;
pub use engine::{Environment, MAX_FAILURES_IN_A_ROW, Outcome, run};
pub use error::TuneError;
pub use ranking::Standing;
pub use report::{
    AaRow, CellReport, Contrast, Design, Failure, RankingRow, RunnerUp, ScreeningRow, TuneReport,
    Winner,
};
pub use starter::{
    Event, Progress, StartError, StartFailure, StartRequest, StartResult, Starter, Update,
};

#[cfg(test)]
mod tests;
