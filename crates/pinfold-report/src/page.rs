//! The view model: everything that the page shows, as plain data.
//!
//! The binary fills a [`Page`] from a finished study and hands it to
//! [`crate::render`]. Nothing here knows the host, the store, a clock or
//! randomness: the date of the page is a text like any other, statistics come
//! ready made. Numbers that are missing are `None` or empty, never a magic
//! value; numbers that are not finite are shown as `–`.

use pinfold_model::{Finding, LoadState, Metric, Origin, Plan, RoleStats, Topology};

/// A whole report page.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// Name of the virtual machine that was placed.
    pub vm: String,
    /// A label across the top of the page (`EXAMPLE DATA`), if the numbers need one.
    pub banner: Option<String>,
    /// Which comparison answers the question.
    pub answer: Answer,
    /// What was asked.
    pub asked: Asked,
    /// The host.
    pub topology: Topology,
    /// What was tried, in the order of tables and charts; [`CandidateId`] counts from here.
    pub candidates: Vec<Candidate>,
    /// Percentile curves, one entry per metric and load state.
    pub distributions: Vec<Distribution>,
    /// Values of single blocks, one entry per metric and load state.
    pub blocks: Vec<BlockValues>,
    /// Rankings, one entry per metric and load state.
    pub rankings: Vec<Ranking>,
    /// What the host's kernel says of the VM's threads, one entry per load state.
    pub roles: Vec<RoleTable>,
    /// The winner in forms that other programs take.
    pub emitted: Vec<Emitted>,
    /// Starts that gave no number.
    pub failed_starts: Vec<FailedStart>,
    /// Findings about host, plans and run.
    pub findings: Vec<Finding>,
    /// Where the numbers come from.
    pub provenance: Provenance,
}

/// Place of a candidate in [`Page::candidates`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CandidateId(pub usize);

/// Which comparison the headline speaks of; its figures are in the ranking of
/// the same metric and load state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The best candidate; `None` if none is shown to be better than the baseline.
    pub winner: Option<CandidateId>,
    /// The metric that decides.
    pub metric: Metric,
    /// The load state that decides.
    pub load: LoadState,
}

/// What the user asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// The command line as it was typed.
    pub command: String,
    /// The goal: `latency`, `throughput`, `balanced`.
    pub goal: String,
    /// The longest gap that is allowed (ns), drawn as a line in the charts.
    pub max_gap_ns: Option<f64>,
    /// The time budget in words.
    pub budget: Option<String>,
    /// How long it took, in words.
    pub took: Option<String>,
    /// The guest in words: vCPUs, memory, disks.
    pub guest: String,
    /// Load states that were measured.
    pub loads: Vec<LoadState>,
    /// Blocks of the race (the screening phase).
    pub screening_blocks: u32,
    /// Blocks of the confirmation phase.
    pub confirmation_blocks: u32,
    /// Anything else worth a row: label and text.
    pub more: Vec<(String, String)>,
}

/// Why a candidate takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandidateKind {
    /// What the others are compared with.
    Baseline,
    /// The baseline once more under another name: the A/A pair, the noise floor.
    Repeat,
    /// A placement that might win.
    Layout,
}

/// How far a candidate came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Measured in the confirmation phase.
    Confirmed,
    /// Dropped in the race, because it could not win any more.
    Dropped,
    /// Left out after the race without proof: no more are confirmed.
    Screened,
    /// Never gave a number.
    Failed,
}

/// One placement that was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its name, usually the strategy's.
    pub name: String,
    /// Names of other candidates with the same placement, which were not measured again.
    pub alike: Vec<String>,
    /// Why it takes part.
    pub kind: CandidateKind,
    /// How far it came.
    pub stage: Stage,
    /// Its plan.
    pub plan: Plan,
    /// Whether it keeps [`Asked::max_gap_ns`]; `None` if that was not asked or not measured.
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

/// One percentile curve; see [`Curve::from_samples`], and [`Curve::from_arrivals`] for gaps.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Whose curve it is.
    pub candidate: CandidateId,
    /// Points by ascending share.
    pub points: Vec<Quantile>,
    /// The largest sample.
    pub max: Option<f64>,
    /// Number of samples, or of moments of arrival, behind the curve.
    pub samples: u64,
}

/// One point of a distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantile {
    /// Share of samples (of arrivals, for gaps) at or below `value`, 0 to 1.
    pub share: f64,
    /// The value, in the metric's unit.
    pub value: f64,
}

/// What each block said about one metric in one load state.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockValues {
    /// The metric.
    pub metric: Metric,
    /// The load state.
    pub load: LoadState,
    /// What stands for a block: `longest gap of the block`.
    pub statistic: String,
    /// One row per candidate.
    pub rows: Vec<BlockRow>,
}

/// The blocks of one candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockRow {
    /// Whose blocks.
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
    /// What stands for a block: `longest gap of the block`.
    pub statistic: String,
    /// Best first.
    pub rows: Vec<RankingRow>,
}

/// One line of a ranking.
#[derive(Clone, Debug, PartialEq)]
pub struct RankingRow {
    /// Who.
    pub candidate: CandidateId,
    /// Number of blocks (VM starts) behind the figures.
    pub blocks: u32,
    /// Median of the blocks.
    pub median: Option<f64>,
    /// Worst block.
    pub worst: Option<f64>,
    /// Against the baseline; `None` for the baseline itself and where nothing can be compared.
    pub comparison: Option<Comparison>,
}

/// A paired comparison with the baseline.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Candidate divided by baseline: below 1 is shorter.
    pub ratio: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end of the 95 % interval.
    pub high: f64,
    /// Probability of such a difference by chance, after Holm's correction.
    pub p_holm: Option<f64>,
    /// The verdict.
    pub verdict: Verdict,
}

/// What a comparison shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Better than the baseline.
    Better,
    /// The interval lies within the margin of sameness.
    Same,
    /// Worse than the baseline.
    Worse,
    /// The data do not tell; why and what would be needed (`3 starts, 8 needed`).
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
    /// Who.
    pub candidate: CandidateId,
    /// Time that the sums cover (ns); `None` if it was not recorded.
    pub observed_ns: Option<u64>,
    /// The sums.
    pub stats: RoleStats,
}

/// The winner in a form that another program takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// What it is: `libvirt XML`, `QEMU start script`.
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
    /// What happened.
    pub why: String,
    /// True if the second attempt succeeded, so that its numbers are there.
    pub recovered: bool,
}

/// Where every number of the page comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Provenance {
    /// Host, kernel, QEMU, guest kernel, accelerator, version and seed.
    pub origin: Origin,
    /// Path of the store that holds the raw samples.
    pub store: String,
    /// Name of the run in the store.
    pub run: String,
    /// The exact command that repeats the run.
    pub repeat: String,
    /// When the run ended, in words.
    pub date: String,
}

impl Page {
    /// The candidate with this id.
    #[must_use]
    pub fn candidate(&self, id: CandidateId) -> Option<&Candidate> {
        self.candidates.get(id.0)
    }

    /// Name of a candidate; an id that does not exist is named by its number.
    #[must_use]
    pub fn name(&self, id: CandidateId) -> String {
        match self.candidate(id) {
            Some(candidate) => candidate.name.clone(),
            None => format!("candidate {}", id.0),
        }
    }

    /// The baseline's id.
    #[must_use]
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
    #[must_use]
    pub fn deciding(&self) -> Option<&Ranking> {
        self.ranking(self.answer.metric, self.answer.load)
    }
}

impl Ranking {
    /// The line of a candidate.
    #[must_use]
    pub fn row(&self, id: CandidateId) -> Option<&RankingRow> {
        self.rows.iter().find(|row| row.candidate == id)
    }
}
