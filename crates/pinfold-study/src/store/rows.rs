//! What the store holds, as values.

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

/// Part of a run. Verdicts come from the confirmation alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Few blocks, many candidates: who is worth confirming.
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

/// The part that a candidate plays in its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandidateRole {
    /// What the others are compared with.
    Baseline,
    /// One of the others.
    Candidate,
    /// The baseline under a second name: its difference from itself is the noise floor.
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

/// A candidate as the store holds it; its index is its place in the run's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidateRecord {
    /// Name, unique in its run.
    pub name: String,
    /// The plan, in the plan's own JSON.
    pub plan_json: String,
    /// Its part.
    pub role: CandidateRole,
    /// Index of an earlier candidate with the same placement; such a one is not started.
    pub same_as: Option<usize>,
}

/// A run that is about to begin.
#[derive(Clone, Debug)]
pub struct NewRun<'a> {
    /// When (seconds since 1970).
    pub created_unix_s: u64,
    /// `tune`.
    pub kind: &'a str,
    /// Its settings, in their own JSON.
    pub config_json: &'a str,
    /// Where and with what.
    pub origin: &'a Origin,
    /// Seed of its design.
    pub seed: u64,
    /// Its candidates in order.
    pub candidates: &'a [CandidateRecord],
}

/// A run as the store holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct RunRecord {
    /// Its number.
    pub id: RunId,
    /// When it began (seconds since 1970).
    pub created_unix_s: u64,
    /// `tune`.
    pub kind: String,
    /// Its settings, in their own JSON.
    pub config_json: String,
    /// Where and with what it began.
    pub origin: Origin,
    /// Seed of its design.
    pub seed: u64,
    /// What the screening settled, in its own JSON; `None` before.
    pub confirm_json: Option<String>,
    /// When its last start was done (seconds since 1970).
    pub finished_unix_s: Option<u64>,
    /// Every time that a Pinfold worked on it.
    pub sessions: Vec<SessionRecord>,
}

/// One opening of a run for work.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionRecord {
    /// When (seconds since 1970).
    pub began_unix_s: u64,
    /// The host at that time.
    pub origin: Origin,
}

/// How a start ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartStatus {
    /// Measured.
    Ok,
    /// Failed, also on the second attempt.
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

/// The place of a start in the design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// Part of the run.
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
    /// Its place in the design.
    pub slot: Slot,
    /// Its place in the block's order, from 0.
    pub position: u32,
    /// How it ended.
    pub status: StartStatus,
    /// Attempts, 1 or 2.
    pub attempts: u32,
    /// Message of the last failed attempt, if any.
    pub error: Option<String>,
    /// When it began (seconds since 1970).
    pub began_unix_s: u64,
    /// How long all its attempts took together (ns).
    pub duration_ns: u64,
}

/// A start as the store holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredStart {
    /// Its number.
    pub id: StartId,
    /// What is known of it.
    pub record: StartRecord,
}

/// What was measured in one load state of a start.
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
    #[must_use]
    pub fn of(load: LoadState, series: Vec<Series>) -> Self {
        Self { load, series, roles: Vec::new(), roles_ns: None }
    }
}

/// What to do when a run goes on under another kernel or topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostChange {
    /// Refuse, naming what changed.
    Refuse,
    /// Go on; the change is recorded and reported.
    Accept,
}
