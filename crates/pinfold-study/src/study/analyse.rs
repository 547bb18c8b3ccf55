//! Analyses a study from the store alone: estimates per cell and figure, and comparisons with the
//! baseline.
//!
//! The unit of replication is the start. Each trial gives one value per figure: the median of its
//! samples (of the steady part if they reach a steady state); for tails the largest sample, which
//! is what matters there and is never trimmed. The value of a cell is the median of its blocks,
//! each the median of its starts, with a bootstrap interval. Its ratio to the baseline is the
//! median over blocks of the ratio of medians, with the interval of the hierarchical bootstrap
//! (starts, then blocks). Verdicts come from the exact paired test with Holm's correction over the
//! cells that are compared with the same cell. The source's own summary (mean, Student's interval)
//! is reported in addition.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{Family, PlotKind, Unit};
use pinfold_stats::{
    Block, Direction, Evidence, Interval, Mean, Rule, SteadyState, Verdict, blocks_needed, holm,
    median, median_interval, ratio_interval, sign_flip_blocks, steady,
};

use super::file::{Level, Study};
use super::record::Loaded;
use super::statistics::{self, SampleStatistic};
use super::{ALPHA, INTERVAL_BLOCKS};
use crate::error::RunError;
use crate::store::{RunId, RunRecord, Store, StudyProgress};

/// Prefix of the flag of a figure that the host does not provide; the reason follows.
pub const ABSENT: &str = "absent: ";

/// Name of the figure without samples that keeps the findings of an apply with its trial.
pub const APPLY: &str = "apply";

/// Prefix of the flags of this figure; each has one finding.
pub const FINDING: &str = "finding: ";

/// A figure by its name, for a statistic of it followed by `.mean` and the like, and its labels.
pub use pinfold_stats::compare::Key as FigureName;

/// A comparison with the baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Number of blocks in which both were measured.
    pub blocks: u32,
    /// Ratio to the baseline; its bounds are as those of [`Estimate::interval`].
    pub interval: Interval,
    /// p-value of the exact paired test, after Holm's correction.
    pub p_holm: f64,
    /// The verdict.
    pub verdict: Verdict,
}

/// The estimate of one figure in one cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Index of the cell.
    pub cell: usize,
    /// The figure that was measured.
    pub figure: FigureName,
    /// Unit of its values.
    pub unit: Unit,
    /// One value per start, by block.
    pub starts: BTreeMap<u32, Vec<f64>>,
    /// The same for the twin of a baseline cell.
    pub twins: BTreeMap<u32, Vec<f64>>,
    /// The node of each block, if several nodes work on one run.
    pub nodes: BTreeMap<u32, String>,
    /// Median of the blocks, each the median of its starts.
    pub median: f64,
    /// Its 95 % interval, below [`INTERVAL_BLOCKS`] the range of the blocks; `None` with one block.
    pub interval: Option<(f64, f64)>,
    /// The source's summary: mean, deviation, Student's interval.
    pub mean: Mean,
    /// Number of trials whose samples did not reach a steady state.
    pub unsteady: u32,
    /// Number of trials that were checked for a steady state.
    pub looked_at: u32,
    /// All samples of its starts, if a percentile plot shows them.
    pub pooled: Vec<f64>,
    /// The samples of its first trial in their order, if a plot shows them in sequence.
    pub sequence: Vec<f64>,
    /// The comparison with the baseline; `None` for the baseline, and where no comparison is
    /// possible.
    pub comparison: Option<Comparison>,
    /// The median of the blocks' ratios to the baseline; with one block there is no interval.
    pub ratio: Option<f64>,
}

/// The comparison of a baseline cell with its twin: the noise floor.
#[derive(Clone, Debug, PartialEq)]
pub struct Noise {
    /// Index of the cell.
    pub cell: usize,
    /// The figure that was measured.
    pub figure: FigureName,
    /// Ratio of the twin to the cell.
    pub interval: Interval,
    /// Number of blocks.
    pub blocks: u32,
    /// The verdict, as for a single candidate.
    pub verdict: Verdict,
}

/// The analysis of a run.
#[derive(Clone, Debug)]
pub struct Analysis {
    /// The study and its cells.
    pub loaded: Loaded,
    /// The analysed run.
    pub run: RunRecord,
    /// Number and duration of the trials that have ended.
    pub progress: StudyProgress,
    /// The estimates, by cell and figure.
    pub estimates: Vec<Estimate>,
    /// The A/A pairs.
    pub noise: Vec<Noise>,
    /// Figures that the host does not provide: by figure and reason, the number of trials.
    pub absent: BTreeMap<(String, String), u64>,
    /// What placements did not fulfil: by finding, the number of trials.
    pub findings: BTreeMap<String, u64>,
    /// Failed trials by cell, with one of the messages.
    pub failures: Vec<(usize, u64, String)>,
}

/// Analyses a run, finished or not.
///
/// # Errors
/// [`RunError`]: the run is not one of a study, or the store cannot be read.
pub fn analyse(store: &Store, run: RunId) -> Result<Analysis, RunError> {
    analyse_loaded(store, run, Loaded::read(store, run)?)
}

/// The same with the statements, charts and tables of another text of the study.
///
/// # Errors
/// As [`analyse`] and [`Loaded::replace_report_text`].
pub fn analyse_with_text(store: &Store, run: RunId, other: &Study) -> Result<Analysis, RunError> {
    analyse_loaded(store, run, Loaded::read(store, run)?.replace_report_text(other)?)
}

fn analyse_loaded(store: &Store, run: RunId, loaded: Loaded) -> Result<Analysis, RunError> {
    let mut absent = BTreeMap::new();
    let mut estimates = gather(store, run, &Kept::from_study(&loaded.study), &mut absent)?;
    compare(&loaded, &mut estimates);
    let noise = estimates.iter().filter_map(|one| noise_of(one, loaded.study.margin)).collect();
    Ok(Analysis {
        run: store.run(run)?,
        progress: store.study_progress(run)?,
        failures: store.study_failures(run)?,
        findings: findings(store, run)?,
        absent,
        loaded,
        estimates,
        noise,
    })
}

/// The findings of the placements of a run's trials, each with the number of trials.
///
/// # Errors
/// [`RunError`] if the store cannot be read.
pub fn findings(store: &Store, run: RunId) -> Result<BTreeMap<String, u64>, RunError> {
    let mut findings = BTreeMap::new();
    for (flags, trials) in store.apply_flags(run)? {
        for finding in flags.iter().filter_map(|flag| flag.strip_prefix(FINDING)) {
            *findings.entry(finding.to_owned()).or_default() += trials;
        }
    }
    Ok(findings)
}

impl Analysis {
    /// An estimate compared with that of another baseline than the study's, by itself: without
    /// Holm's correction. `None` for this baseline, and where it was not measured.
    pub(super) fn compare_with(
        &self,
        one: &Estimate,
        levels: &BTreeMap<String, Level>,
    ) -> Option<(Option<Comparison>, f64)> {
        let Loaded { cells, study, .. } = &self.loaded;
        let baseline = cells.with_levels(cells.all.get(one.cell)?, study, levels)?;
        let base = self
            .estimates
            .iter()
            .find(|base| is_base(baseline, one, base))
            .filter(|_| baseline != one.cell)?;
        let pairs = Pairs::new(blocks_of(&one.starts, &base.starts), one.unit);
        let ratio = pairs.ratio()?;
        Some((judge(&[pairs], study.margin).pop().flatten(), ratio))
    }

    /// Number of A/A pairs with a false verdict (better or worse), and number of pairs with enough
    /// blocks for a verdict.
    pub fn false_verdicts(&self) -> (usize, usize) {
        (
            self.noise
                .iter()
                .filter(|noise: &&Noise| matches!(noise.verdict, Verdict::Better | Verdict::Worse))
                .count(),
            self.noise.iter().filter(is_judged).count(),
        )
    }
}

fn is_base(baseline: usize, one: &Estimate, base: &&Estimate) -> bool {
    base.cell == baseline && base.figure == one.figure
}

fn is_judged(noise: &&Noise) -> bool {
    match noise.verdict {
        Verdict::Unknown { have, need } => have >= need,
        Verdict::Better | Verdict::Same | Verdict::Worse => true,
    }
}

/// True if all intervals of a figure's ratios have at most this half-width; false if there is none.
pub(super) fn is_narrow(
    store: &Store,
    run: RunId,
    loaded: &Loaded,
    figure: &str,
    half_width: f64,
) -> Result<bool, RunError> {
    let statistics = statistics::wanted_statistics(&loaded.study);
    let kept = Kept { statistics, ..Kept::default() };
    let mut estimates = gather(store, run, &kept, &mut BTreeMap::new())?;
    compare(loaded, &mut estimates);
    let mut ratios = estimates
        .iter()
        .filter(|one| one.figure.probe == figure)
        .filter_map(|one| one.comparison.map(|comparison| comparison.interval))
        .peekable();
    Ok(ratios.peek().is_some()
        && ratios.all(|interval: Interval| {
            (interval.high - interval.low) / 2.0 <= half_width * interval.ratio
        }))
}

/// What is kept of the samples, in addition to one value per start.
#[derive(Default)]
struct Kept {
    /// The figures of which all samples are kept.
    pooled: BTreeSet<String>,
    /// The figures of which the samples of one trial are kept.
    sequences: BTreeSet<String>,
    /// The statistics that become figures.
    statistics: BTreeMap<String, BTreeSet<SampleStatistic>>,
}

impl Kept {
    fn from_study(study: &Study) -> Self {
        Self {
            pooled: figures_of(PlotKind::Percentiles, study),
            sequences: figures_of(PlotKind::Sequence, study),
            statistics: statistics::wanted_statistics(study),
        }
    }
}

fn figures_of(kind: PlotKind, study: &Study) -> BTreeSet<String> {
    let plots = study.plots.iter().filter(|plot| plot.kind == kind);
    plots.map(|plot| plot.selection.figure.clone()).collect()
}

/// The figures of a trial: the samples of all CPUs with the same labels are one figure.
type TrialFigures = BTreeMap<FigureName, (Unit, Family, Vec<f64>)>;

/// Adds the statistics of the samples as figures; a figure that the workload gives is left alone.
fn add_statistics(
    figures: &mut TrialFigures,
    wanted: &BTreeMap<String, BTreeSet<SampleStatistic>>,
) {
    let mut added = TrialFigures::new();
    for (name, (unit, _, samples)) in figures.iter() {
        for statistic in wanted.get(&name.probe).into_iter().flatten() {
            let Some(value) = statistic.of(samples) else { continue };
            let probe = format!("{}.{}", name.probe, statistic.name());
            let name = FigureName { probe, labels: name.labels.clone() };
            added.insert(name, (statistic.unit(*unit), Family::Count, vec![value]));
        }
    }
    added.append(figures);
    *figures = added;
}

/// One value per start for each figure, and the figures that were not available.
fn gather(
    store: &Store,
    run: RunId,
    kept: &Kept,
    absent: &mut BTreeMap<(String, String), u64>,
) -> Result<Vec<Estimate>, RunError> {
    let mut found: BTreeMap<(usize, FigureName), Estimate> = BTreeMap::new();
    for (id, trial) in store.trials(run)? {
        if !trial.ok {
            continue;
        }
        let mut figures = TrialFigures::new();
        for figure in store.figures(id)? {
            if let Some(why) = figure.flags.iter().find_map(|flag| flag.strip_prefix(ABSENT)) {
                *absent.entry((figure.probe.clone(), why.to_owned())).or_default() += 1;
                continue;
            }
            let name = FigureName { probe: figure.probe, labels: figure.labels };
            let entry = figures.entry(name).or_insert((figure.unit, figure.family, Vec::new()));
            entry.2.extend(figure.samples);
        }
        add_statistics(&mut figures, &kept.statistics);
        for (figure, (unit, family, samples)) in figures {
            let steadiness = match family {
                Family::Capacity => steady(&samples),
                Family::Tail | Family::Count | Family::Place => SteadyState::TooFew,
            };
            let settled = steadiness.of_samples(&samples);
            let Some(value) = value_of(family, settled) else { continue };
            let one = found
                .entry((trial.cell, figure.clone()))
                .or_insert_with(|| empty(trial.cell, figure, unit));
            let side = if trial.twin { &mut one.twins } else { &mut one.starts };
            side.entry(trial.block).or_default().push(value);
            if !trial.node.is_empty() {
                one.nodes.insert(trial.block, trial.node.clone());
            }
            if !trial.twin && kept.pooled.contains(&one.figure.probe) {
                one.pooled.extend(&samples);
            }
            if one.sequence.is_empty() && !trial.twin && kept.sequences.contains(&one.figure.probe)
            {
                one.sequence.clone_from(&samples);
            }
            one.looked_at += u32::from(steadiness != SteadyState::TooFew);
            one.unsteady += u32::from(matches!(steadiness, SteadyState::No { .. }));
        }
    }
    Ok(found.into_values().filter_map(summarise).collect())
}

fn value_of(family: Family, samples: &[f64]) -> Option<f64> {
    match family {
        Family::Tail => samples.iter().copied().reduce(f64::max),
        Family::Capacity | Family::Count => median(samples),
        Family::Place => None,
    }
}

fn empty(cell: usize, figure: FigureName, unit: Unit) -> Estimate {
    Estimate {
        cell,
        figure,
        unit,
        starts: BTreeMap::new(),
        twins: BTreeMap::new(),
        nodes: BTreeMap::new(),
        median: 0.0,
        interval: None,
        mean: Mean { count: 0, mean: 0.0, deviation: None, interval: None },
        unsteady: 0,
        looked_at: 0,
        pooled: Vec::new(),
        sequence: Vec::new(),
        comparison: None,
        ratio: None,
    }
}

fn summarise(mut one: Estimate) -> Option<Estimate> {
    let all: Vec<f64> = one.starts.values().flatten().copied().collect();
    let by_block: Vec<f64> = one.starts.values().filter_map(|starts| median(starts)).collect();
    one.median = median(&by_block)?;
    one.mean = Mean::from_values(&all)?;
    one.mean.interval =
        one.mean.interval.map(|interval| possible(one.unit, interval.0, interval.1));
    one.interval = interval_or_range(&by_block);
    Some(one)
}

/// The 95 % interval of the median; of too few values their range.
pub(super) fn interval_or_range(values: &[f64]) -> Option<(f64, f64)> {
    if values.len() >= INTERVAL_BLOCKS as usize {
        return median_interval(values);
    }
    let low = values.iter().copied().reduce(f64::min)?;
    let high = values.iter().copied().reduce(f64::max)?;
    (values.len() > 1).then_some((low, high))
}

/// The median of the blocks' ratios with the same bounds.
fn ratio_bounds(blocks: &[Block]) -> Option<Interval> {
    let interval = ratio_interval(blocks)?;
    if blocks.len() >= INTERVAL_BLOCKS as usize {
        return Some(interval);
    }
    let ratios: Vec<f64> = blocks.iter().filter_map(Block::ratio).collect();
    let (low, high) = interval_or_range(&ratios)?;
    Some(Interval { low, high, ..interval })
}

/// Limits Student's interval to the range of the unit.
fn possible(unit: Unit, low: f64, high: f64) -> (f64, f64) {
    let most = if unit == Unit::Share { 1.0 } else { f64::INFINITY };
    (low.max(0.0), high.min(most))
}

pub(super) fn blocks_of(
    candidate: &BTreeMap<u32, Vec<f64>>,
    baseline: &BTreeMap<u32, Vec<f64>>,
) -> Vec<Block> {
    candidate
        .iter()
        .filter_map(|(block, candidate)| {
            let baseline = baseline.get(block)?.clone();
            Some(Block { candidate: candidate.clone(), baseline })
        })
        .collect()
}

/// Compares each cell with its baseline; the cells with the same baseline are one family.
fn compare(loaded: &Loaded, estimates: &mut [Estimate]) {
    let mut families: BTreeMap<(usize, FigureName), Vec<usize>> = BTreeMap::new();
    for (index, one) in estimates.iter().enumerate() {
        if let Some(baseline) = loaded.cells.all[one.cell].baseline.filter(|base| *base != one.cell)
        {
            families.entry((baseline, one.figure.clone())).or_default().push(index);
        }
    }
    for ((baseline, figure), members) in families {
        let base = estimates.iter().find(|one| one.cell == baseline && one.figure == figure);
        let Some(base) = base.map(|one| one.starts.clone()) else { continue };
        let pairs: Vec<Pairs> = members
            .iter()
            .map(|&index| {
                Pairs::new(blocks_of(&estimates[index].starts, &base), estimates[index].unit)
            })
            .collect();
        let judged = judge(&pairs, loaded.study.margin);
        for ((index, pairs), comparison) in members.into_iter().zip(&pairs).zip(judged) {
            estimates[index].ratio = pairs.ratio();
            estimates[index].comparison = comparison;
        }
    }
}

/// The blocks of one figure, measured on both sides of a comparison.
pub(super) struct Pairs {
    blocks: Vec<Block>,
    direction: Direction,
}

impl Pairs {
    pub(super) fn new(blocks: Vec<Block>, unit: Unit) -> Self {
        Self { blocks, direction: Direction::new(unit.higher_is_better() == Some(true)) }
    }

    /// Median of the blocks' ratios; `None` if one is not a positive number.
    pub(super) fn ratio(&self) -> Option<f64> {
        let ratios: Option<Vec<f64>> = self.blocks.iter().map(Block::ratio).collect();
        median(&ratios?)
    }
}

/// Compares the figures of one family: interval, exact paired test with Holm's correction over the
/// family, verdict. `None` where a ratio is not a positive number, or with fewer than two blocks.
pub(super) fn judge(family: &[Pairs], margin: f64) -> Vec<Option<Comparison>> {
    let tested: Vec<Option<(Interval, f64)>> = family
        .iter()
        .map(|pairs| Some((ratio_bounds(&pairs.blocks)?, sign_flip_blocks(&pairs.blocks)?)))
        .collect();
    let raw: Vec<f64> = tested.iter().flatten().map(|(_, p)| *p).collect();
    let rule = rule(u32::try_from(raw.len()).unwrap_or(u32::MAX), margin);
    let mut corrected = holm(&raw).into_iter();
    family
        .iter()
        .zip(tested)
        .map(|(pairs, tested)| {
            let (interval, _) = tested?;
            let p_holm = corrected.next()?;
            let blocks = u32::try_from(pairs.blocks.len()).unwrap_or(u32::MAX);
            let evidence = Evidence { blocks, interval, p_holm };
            let verdict = Verdict::from_evidence(&evidence, pairs.direction, &rule);
            Some(Comparison { blocks, interval, p_holm, verdict })
        })
        .collect()
}

fn rule(family: u32, margin: f64) -> Rule {
    Rule { alpha: ALPHA, margin, blocks_needed: blocks_needed(family, ALPHA) }
}

fn noise_of(one: &Estimate, margin: f64) -> Option<Noise> {
    let pairs = Pairs::new(blocks_of(&one.twins, &one.starts), one.unit);
    let Comparison { blocks, interval, verdict, .. } = judge(&[pairs], margin).pop()??;
    Some(Noise { cell: one.cell, figure: one.figure.clone(), interval, blocks, verdict })
}
