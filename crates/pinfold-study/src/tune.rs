//! Tuning: finds the best placement of one virtual machine on this host.
//!
//! ```text
//! candidates ─► race (2 blocks or more) ─► at most 3 kept ─► confirmation (8 blocks or more,
//!               each candidate once          + none            fresh data, + none again)
//!               per block, random order                            │
//!               dropped: cannot win any more                       ▼  analyse: store → report
//! ```
//!
//! [`create`] checks the request, merges candidates with the same placement, fits the design into
//! the budget and writes the run into the store. [`run`] runs the starts that the store does not
//! have yet, so the same call resumes an interrupted run. [`analyse`] computes the report from the
//! store alone.
//!
//! All randomness comes from the run's seed. A [`Starter`] starts the machines.
//!
//! ```
//! use pinfold_study::tune::{self, Costs, Goal, TuneConfig};
//!
//! let costs = Costs { start_s: 5.0, state_s: 1.0, per_observed_s: 1.0 };
//! let config = TuneConfig::new(Goal::Latency, 3_600.0, 1, costs);
//! // Twelve placements, of which at most three are confirmed with fresh data.
//! let prediction = tune::predict(&config, 12)?;
//! assert!(prediction.confirmed <= 3 && prediction.seconds() <= 3_600.0);
//! # Ok::<(), pinfold_study::RunError>(())
//! ```

mod analyse;
mod budget;
mod config;
mod create;
mod curves;
mod design;
mod engine;
mod findings;
mod loaded;
mod ranking;
mod report;
mod schedule;
mod starter;
mod summary;

pub use crate::engine::{Event, Outcome, Progress, TrialError, Update};
pub use crate::store::CellResult;
pub use analyse::analyse;
pub use budget::{Prediction, predict};
pub use config::{
    BALANCED_SHARE, BlockRange, ConfirmPlan, Costs, Goal, MOST_RACE_BLOCKS, ObservationRange,
    RACE_ALPHA, TuneConfig,
};
pub use create::{Candidate, Created, KIND, NONE, TWIN_NAME, create};
pub use curves::{Pooled, RoleTotals, pool_samples, role_totals};
pub use design::PlannedStart;
pub use engine::{Environment, MAX_FAILURES_IN_A_ROW, run};
pub use ranking::RankEntry;
pub use report::{
    AaRow, CellReport, Contrast, Design, Failure, RankingRow, ScreeningRow, TuneReport, Winner,
};
pub use schedule::Dropped;
pub use starter::{StartRequest, StartResult, Starter};

#[cfg(test)]
mod tests;
