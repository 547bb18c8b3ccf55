//! The rows of the store, as values.

use std::fmt;

use pinfold_model::{LoadState, Origin, RoleStats, Series};

/// Number of a run in its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub i64);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of a start in its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StartId(pub i64);

/// Phase of a run. Only the confirmation gives verdicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Few blocks, many candidates: selects those to confirm.
    Screening,
    /// Many blocks, few candidates, fresh data.
    Confirmation,
}

impl Phase {
    /// Stable name, used in the store.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Phase::Screening => "screening",
            Phase::Confirmation => "confirmation",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Phase> {
        [Phase::Screening, Phase::Confirmation].into_iter().find(|phase| phase.name() == name)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Role of a candidate in its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandidateRole {
    /// The candidate that the others are compared with.
    Baseline,
    /// Any other candidate.
    Candidate,
    /// The baseline under a second name: its difference from the baseline is the noise floor.
    Twin,
}

impl CandidateRole {
    pub(super) fn name(self) -> &'static str {
        match self {
            CandidateRole::Baseline => "baseline",
            CandidateRole::Candidate => "candidate",
            CandidateRole::Twin => "twin",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<CandidateRole> {
        [CandidateRole::Baseline, CandidateRole::Candidate, CandidateRole::Twin]
            .into_iter()
            .find(|role| role.name() == name)
    }
}

/// A candidate in the store; its index is its position in the run's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidateRecord {
    /// Name, unique in its run.
    pub name: String,
    /// The plan, as its JSON.
    pub plan_json: String,
    /// Role in the run.
    pub role: CandidateRole,
    /// Index of an earlier candidate with the same placement; such a candidate is not started.
    pub same_as: Option<usize>,
}

/// A new run.
#[derive(Clone, Debug)]
pub struct NewRun<'a> {
    /// Start of the run (seconds since 1970).
    pub created_unix_s: u64,
    /// Kind of the run, such as `tune`.
    pub kind: &'a str,
    /// Its settings, as JSON.
    pub config_json: &'a str,
    /// Host and software.
    pub origin: &'a Origin,
    /// Seed of its design.
    pub seed: u64,
    /// Its candidates in order.
    pub candidates: &'a [CandidateRecord],
}

/// A run in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct RunRecord {
    /// Its number in the store.
    pub id: RunId,
    /// Start of the run (seconds since 1970).
    pub created_unix_s: u64,
    /// Kind of the run, such as `tune`.
    pub kind: String,
    /// Its settings, as JSON.
    pub config_json: String,
    /// Host and software at the start of the run.
    pub origin: Origin,
    /// Seed of its design.
    pub seed: u64,
    /// Result of the screening, as JSON; `None` before its end.
    pub confirm_json: Option<String>,
    /// End of its last start (seconds since 1970).
    pub finished_unix_s: Option<u64>,
    /// All sessions of the run.
    pub sessions: Vec<SessionRecord>,
}

/// A session: one opening of a run for work.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionRecord {
    /// Start of the session (seconds since 1970).
    pub began_unix_s: u64,
    /// Host and software in this session.
    pub origin: Origin,
}

/// Status of a start that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartStatus {
    /// The start was measured.
    Ok,
    /// Failed, and the second attempt failed too.
    Failed,
}

impl StartStatus {
    pub(super) fn name(self) -> &'static str {
        match self {
            StartStatus::Ok => "ok",
            StartStatus::Failed => "failed",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<StartStatus> {
        [StartStatus::Ok, StartStatus::Failed].into_iter().find(|status| status.name() == name)
    }
}

/// Position of a start in the design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// Phase of the run.
    pub phase: Phase,
    /// Block, from 0.
    pub block: u32,
    /// Index of the candidate.
    pub candidate: usize,
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} block {}, candidate {}", self.phase, self.block + 1, self.candidate)
    }
}

/// A start that has ended, without its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartRecord {
    /// Its position in the design.
    pub slot: Slot,
    /// Its position in the order of the block, from 0.
    pub position: u32,
    /// Whether it was measured or failed.
    pub status: StartStatus,
    /// Number of attempts, 1 or 2.
    pub attempts: u32,
    /// Message of the last failed attempt, if any.
    pub error: Option<String>,
    /// Start of the start (seconds since 1970).
    pub began_unix_s: u64,
    /// Duration of all its attempts together (ns).
    pub duration_ns: u64,
}

/// A start in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredStart {
    /// Its number in the store.
    pub id: StartId,
    /// The start without its samples.
    pub record: StartRecord,
}

/// Result of a start in one load state.
#[derive(Clone, Debug, PartialEq)]
pub struct CellResult {
    /// The load state.
    pub load: LoadState,
    /// Raw samples: one series per metric and vCPU.
    pub series: Vec<Series>,
    /// Scheduler statistics per role.
    pub roles: Vec<RoleStats>,
    /// Time that the scheduler statistics cover (ns); `None` in a store of version 3 or older.
    pub roles_ns: Option<u64>,
}

impl CellResult {
    /// A result without scheduler statistics.
    pub fn new(load: LoadState, series: Vec<Series>) -> Self {
        Self { load, series, roles: Vec::new(), roles_ns: None }
    }
}

/// How to handle a run that is resumed under another kernel or topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostChange {
    /// Refuse, and report the changes.
    Refuse,
    /// Continue; the change is recorded and reported.
    Accept,
}
