//! The view model: everything on the page, as plain data.
//!
//! The binary fills a [`Page`] from a finished study and passes it to [`crate::render`]. This
//! module does not access the host, the store, a clock or randomness: the date of the page is a
//! string like any other, statistics are computed before. Missing numbers are `None` or empty,
//! never a sentinel; numbers that are not finite are shown as `–`.

use pinfold_model::{Finding, LoadState, Metric, Origin, Plan, RoleStats, Topology};

/// A whole report page.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// Name of the virtual machine that was placed.
    pub vm: String,
    /// A banner across the top of the page (`EXAMPLE DATA`), if the numbers need one.
    pub banner: Option<String>,
    /// The comparison that answers the question.
    pub answer: Conclusion,
    /// The request of the user.
    pub asked: RequestSummary,
    /// Topology of the host.
    pub topology: Topology,
    /// The candidates, in the order of tables and charts; [`CandidateId`] is an index into this
    /// list.
    pub candidates: Vec<Candidate>,
    /// Percentile curves, one entry per metric and load state.
    pub distributions: Vec<Distribution>,
    /// Values of each block, one entry per metric and load state.
    pub blocks: Vec<BlockValues>,
    /// Rankings, one entry per metric and load state.
    pub rankings: Vec<Ranking>,
    /// Kernel statistics of the VM's threads, one entry per load state.
    pub roles: Vec<RoleTable>,
    /// The winner's plan in output formats for other programs.
    pub emitted: Vec<ExportedPlan>,
    /// Starts without a result.
    pub failed_starts: Vec<FailedStart>,
    /// Findings about host, plans and run.
    pub findings: Vec<Finding>,
    /// Origin of the numbers.
    pub provenance: Provenance,
}

/// Index of a candidate in [`Page::candidates`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CandidateId(pub usize);

/// The comparison of the headline; its figures are in the ranking of the same metric and load
/// state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conclusion {
    /// The best candidate; `None` if none is significantly better than the baseline.
    pub winner: Option<CandidateId>,
    /// The metric that decides.
    pub metric: Metric,
    /// The load state that decides.
    pub load: LoadState,
    /// What pins alone gain; `None` if no such placement was measured.
    pub pins_alone: Option<PinsAlone>,
}

/// The best placement that pins threads and excludes no other task, against the baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PinsAlone {
    /// The placement.
    pub candidate: CandidateId,
    /// Ratio of the deciding metric to the baseline's, the median over blocks.
    pub ratio: f64,
    /// Its 95 % interval; `None` if it was only screened.
    pub interval: Option<(f64, f64)>,
    /// Number of blocks.
    pub blocks: u32,
}

/// The request of the user.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestSummary {
    /// The command line as it was typed.
    pub command: String,
    /// The goal: `latency`, `throughput`, `balanced`.
    pub goal: String,
    /// The longest permitted stall (ns), drawn as a line in the charts.
    pub max_gap_ns: Option<f64>,
    /// The time budget, as text.
    pub budget: Option<String>,
    /// The duration of the run, as text.
    pub took: Option<String>,
    /// The guest, as text: vCPUs, memory, disks.
    pub guest: String,
    /// Load states that were measured.
    pub loads: Vec<LoadState>,
    /// Number of blocks of the race (the screening phase).
    pub screening_blocks: u32,
    /// Number of blocks of the confirmation phase.
    pub confirmation_blocks: u32,
    /// Further rows: label and text.
    pub more: Vec<(String, String)>,
}

/// Role of a candidate in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandidateKind {
    /// The candidate that the others are compared with.
    Baseline,
    /// The baseline under another name: the A/A pair, which gives the noise floor.
    Repeat,
    /// A placement that might win.
    Layout,
}

/// The last stage that a candidate reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReachedStage {
    /// Measured in the confirmation phase.
    Confirmed,
    /// Dropped in the race, because it could not win any more.
    Dropped,
    /// Left out after the race without a test, because the number of confirmed candidates is
    /// limited.
    Screened,
    /// Never gave a result.
    Failed,
}

/// One placement that was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its name, usually the strategy's.
    pub name: String,
    /// Names of other candidates with the same placement, which were not measured separately.
    pub alike: Vec<String>,
    /// Role in the run.
    pub kind: CandidateKind,
    /// The last stage that it reached.
    pub stage: ReachedStage,
    /// Plan of the placement.
    pub plan: Plan,
    /// True if it keeps [`RequestSummary::max_gap_ns`]; `None` if there is no limit or no
    /// measurement.
    pub keeps_limit: Option<bool>,
}

/// Percentile curves of one metric in one load state.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// The metric.
    pub metric: Metric,
    /// The load state.
    pub load: LoadState,
    /// One curve per candidate.
    pub curves: Vec<Curve>,
}

/// One percentile curve; see [`Curve::from_samples`], and [`Curve::from_arrivals`] for stalls.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// The candidate.
    pub candidate: CandidateId,
    /// Points, by ascending share.
    pub points: Vec<Quantile>,
    /// The largest sample.
    pub max: Option<f64>,
    /// Number of samples, or of arrival times, of the curve.
    pub samples: u64,
}

/// One point of a distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantile {
    /// Share of samples (for stalls: of arrivals) at or below `value`, 0 to 1.
    pub share: f64,
    /// The value, in the metric's unit.
    pub value: f64,
}

/// The value of each block for one metric in one load state.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockValues {
    /// The metric.
    pub metric: Metric,
    /// The load state.
    pub load: LoadState,
    /// The statistic of a block: `longest gap of the block`.
    pub statistic: String,
    /// One row per candidate.
    pub rows: Vec<BlockRow>,
}

/// The blocks of one candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockRow {
    /// The candidate.
    pub candidate: CandidateId,
    /// One value per block, in the metric's unit.
    pub values: Vec<f64>,
}

/// A ranking of the candidates by one metric in one load state.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranking {
    /// The metric.
    pub metric: Metric,
    /// The load state.
    pub load: LoadState,
    /// The statistic of a block: `longest gap of the block`.
    pub statistic: String,
    /// The rows, best first.
    pub rows: Vec<RankingRow>,
}

/// One row of a ranking.
#[derive(Clone, Debug, PartialEq)]
pub struct RankingRow {
    /// The candidate.
    pub candidate: CandidateId,
    /// Number of blocks (VM starts) in the statistics.
    pub blocks: u32,
    /// Median of the blocks.
    pub median: Option<f64>,
    /// Value of the worst block.
    pub worst: Option<f64>,
    /// The comparison with the baseline; `None` for the baseline itself, and where no comparison is
    /// possible.
    pub comparison: Option<Comparison>,
}

/// A paired comparison with the baseline.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Candidate divided by baseline: below 1 the candidate's value is smaller.
    pub ratio: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end of the 95 % interval.
    pub high: f64,
    /// p-value after Holm's correction.
    pub p_holm: Option<f64>,
    /// The verdict.
    pub verdict: Verdict,
}

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Better than the baseline.
    Better,
    /// The interval is within the equivalence margin.
    Same,
    /// Worse than the baseline.
    Worse,
    /// The data do not decide, for this reason (`3 starts, 8 needed`).
    Unknown(String),
}

/// The kernel's statistics of the VM's threads in one load state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleTable {
    /// The load state.
    pub load: LoadState,
    /// One row per candidate and role.
    pub rows: Vec<RoleRow>,
}

/// One role of one candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleRow {
    /// The candidate.
    pub candidate: CandidateId,
    /// Time that the sums cover (ns); `None` if it was not recorded.
    pub observed_ns: Option<u64>,
    /// Sums of the kernel's counters.
    pub stats: RoleStats,
}

/// The winner's plan in an output format for another program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedPlan {
    /// The format: `libvirt XML`, `QEMU start script`.
    pub title: String,
    /// How to use it, in a sentence.
    pub usage: String,
    /// The text, byte for byte.
    pub text: String,
}

/// A VM start that failed at least once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedStart {
    /// The candidate.
    pub candidate: CandidateId,
    /// The block, from 1.
    pub block: u32,
    /// Error message of the start.
    pub why: String,
    /// True if the second attempt succeeded, so that there is a result.
    pub recovered: bool,
}

/// Origin of every number of the page.
#[derive(Clone, Debug, PartialEq)]
pub struct Provenance {
    /// Host, kernel, QEMU, guest kernel, accelerator, version and seed.
    pub origin: Origin,
    /// Path of the store with the raw samples.
    pub store: String,
    /// Name of the run in the store.
    pub run: String,
    /// The command that repeats the run.
    pub repeat: String,
    /// End of the run, as text.
    pub date: String,
}

impl Page {
    /// The candidate with this id.
    pub fn candidate(&self, id: CandidateId) -> Option<&Candidate> {
        self.candidates.get(id.0)
    }

    /// Name of a candidate; its number if the id does not exist.
    #[must_use]
    pub fn name(&self, id: CandidateId) -> String {
        match self.candidate(id) {
            Some(candidate) => candidate.name.clone(),
            None => format!("candidate {}", id.0),
        }
    }

    /// The baseline's id.
    pub fn baseline(&self) -> Option<CandidateId> {
        self.candidates
            .iter()
            .position(|candidate| candidate.kind == CandidateKind::Baseline)
            .map(CandidateId)
    }

    /// The ranking of a metric in a load state.
    #[must_use]
    pub fn ranking(&self, metric: Metric, load: LoadState) -> Option<&Ranking> {
        self.rankings.iter().find(|ranking| ranking.metric == metric && ranking.load == load)
    }

    /// The ranking that answers the question.
    pub fn deciding(&self) -> Option<&Ranking> {
        self.ranking(self.answer.metric, self.answer.load)
    }
}

impl Ranking {
    /// The row of a candidate.
    #[must_use]
    pub fn row(&self, id: CandidateId) -> Option<&RankingRow> {
        self.rows.iter().find(|row| row.candidate == id)
    }
}
