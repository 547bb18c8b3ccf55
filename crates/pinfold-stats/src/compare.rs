//! Comparison of two sets of figures: ratio, interval, verdict.
//!
//! Both sides are lists of blocks; block *i* of one side is compared with block *i* of the other,
//! which was measured at about the same time. Figures are matched if probe and labels are the same,
//! except for the labels that describe the machine ([`DESCRIPTIVE`]);
//! figures of several CPUs with the same labels are one population. Unmatched figures are reported.
//! The ratio is always the first side divided by the second.
//!
//! A capacity is compared by its best window and its median. A tail is compared by its median, its
//! 99.9 % quantile (from 10,000 samples on) and its largest sample. Scheduling stalls are compared
//! as arrivals see them ([`ComparedStatistic`]). All rows are one family of tests (Holm). There is no verdict
//! for a contended machine, or without a steady state, or on a largest sample if one side was
//! observed for longer.

mod compared_statistic;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use pinfold_model::text::count_noun;
use pinfold_model::{Family, Figure, Unit, natural_labels};

use self::compared_statistic::{PairedValues, aspects};
use crate::{
    Block, CONTENDED_SHARE, Direction, Evidence, Interval, Rule, SteadyState, Verdict,
    blocks_needed, holm, median, ratio_interval, sign_flip, steady,
};

pub use self::compared_statistic::ComparedStatistic;

/// The probability of a false better or worse among all rows.
pub const ALPHA: f64 = 0.05;
/// Ratios within 2 % count as the same.
pub const MARGIN: f64 = 0.02;

/// Probes whose figures have no better direction: fewer exits may mean less work.
const NEUTRAL: [&str; 1] = ["exits"];

/// Labels that describe the machine or what the kernel gave there: its caches, the level that holds
/// a block, the widest vectors, the node of the pages. They are not part of a figure's identity.
pub const DESCRIPTIVE: [&str; 8] = [
    "caches",
    "interferer_cpu",
    "interferer_node",
    "level",
    "node",
    "page_sets",
    "placement",
    "width",
];

/// Largest number of unmatched figures of a side that are listed one by one.
const MOST_LISTED: usize = 3;

/// Identifies a figure on both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Name of the probe.
    pub probe: String,
    /// Labels of the figure that are not [`DESCRIPTIVE`].
    pub labels: BTreeMap<String, String>,
}

impl Ord for Key {
    /// By probe and labels, numbers by size.
    fn cmp(&self, other: &Self) -> Ordering {
        self.probe.cmp(&other.probe).then_with(|| natural_labels(&self.labels, &other.labels))
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.probe)?;
        self.labels.iter().try_for_each(|(name, text)| write!(f, " {name}={text}"))
    }
}

/// One of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first, the numerator of the ratio.
    First,
    /// The second, the reference.
    Second,
}

/// Result of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Better, same, worse or unknown: the first side against the second.
    Verdict(Verdict),
    /// More than a fifth of this side's windows were disturbed; the share.
    Contended(Side, f64),
    /// This side did not reach a steady state in most blocks.
    NotSteady(Side),
    /// This quantity has no better direction.
    NoDirection,
    /// In some block a side has no value, or zero, so there is no ratio.
    NoRatio(Side),
    /// The observation times of the sides (ns, over all CPUs) differ, and the statistic depends on
    /// them.
    UnequalTime(u64, u64),
    /// The sample memory of this side was full: the lost samples may matter.
    Lost(Side),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Verdict(verdict) => verdict.fmt(f),
            Outcome::Contended(side, share) => {
                write!(
                    f,
                    "contended: {:.0} % of the windows of {} were excluded",
                    share * 100.0,
                    word(side)
                )
            }
            Outcome::NotSteady(side) => write!(f, "no steady state in {}", word(side)),
            Outcome::NoDirection => f.write_str("–"),
            Outcome::NoRatio(side) => write!(f, "no ratio: no values above zero in {}", word(side)),
            Outcome::UnequalTime(first, second) => {
                write!(f, "no verdict: {:.3} s against {:.3} s", seconds(first), seconds(second))
            }
            Outcome::Lost(side) => write!(f, "no verdict: samples were lost in {}", word(side)),
        }
    }
}

fn word(side: &Side) -> &str {
    match side {
        Side::First => "the first",
        Side::Second => "the second",
    }
}

fn seconds(ns: &u64) -> f64 {
    *ns as f64 / 1e9
}

/// One statistic of one figure, on both sides.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The figure that is compared.
    pub key: Key,
    /// Its labels that describe the machine, of the first and of the second side.
    pub described: BTreeMap<String, [String; 2]>,
    /// Unit of the values.
    pub unit: Unit,
    /// The statistic that is compared.
    pub aspect: ComparedStatistic,
    /// Values below this are not distinguishable from zero, and were raised to it.
    pub floor: Option<f64>,
    /// Median over the first side's blocks.
    pub first: Option<f64>,
    /// Median over the second side's blocks.
    pub second: Option<f64>,
    /// Median of the blocks' ratios.
    pub ratio: Option<f64>,
    /// Its 95 % interval, with at least two blocks.
    pub interval: Option<Interval>,
    /// p-value of the exact paired test after Holm's correction.
    pub p_holm: Option<f64>,
    /// Verdict, or why there is none.
    pub outcome: Outcome,
}

/// All rows, and the unmatched figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Number of blocks that both sides have.
    pub blocks: u32,
    /// Number of blocks from which a verdict is possible.
    pub needed: u32,
    /// The rows, by figure.
    pub rows: Vec<Row>,
    /// What could not be compared, one sentence each.
    pub unmatched: Vec<String>,
}

/// One statistic of one figure in every block; `None` where a block does not have it.
type Values = Vec<Option<f64>>;

/// The data of one figure on one side.
struct Population {
    unit: Unit,
    family: Family,
    described: BTreeMap<String, BTreeSet<String>>,
    blocks: Vec<Merged>,
}

/// The figures of one block with the same key, merged.
#[derive(Default)]
struct Merged {
    samples: Vec<f64>,
    observed_ns: u64,
    dropped: u64,
    disturbed: u64,
    is_unsteady: bool,
    is_there: bool,
}

/// Compares two sides.
///
/// ```
/// use pinfold_stats::compare::compare;
///
/// let comparison = compare(&[Vec::new(), Vec::new()], &[Vec::new()]);
/// assert!(comparison.rows.is_empty());
/// assert!(comparison.unmatched[0].contains("the first has 2 blocks, the second 1"));
/// ```
pub fn compare(first: &[Vec<Figure>], second: &[Vec<Figure>]) -> Comparison {
    let count = first.len().min(second.len());
    let (ours, theirs) = (populations(&first[..count]), populations(&second[..count]));
    let mut unmatched = lonely(&ours, &theirs, "the first");
    unmatched.extend(lonely(&theirs, &ours, "the second"));
    if first.len() != second.len() {
        unmatched.push(format!(
            "the first has {}, the second {}: only the first {count} of each are compared",
            count_noun(first.len(), "block"),
            second.len()
        ));
    }
    let mut drafts = Vec::new();
    for (key, one) in &ours {
        let Some(other) = theirs.get(key) else { continue };
        if (one.unit, one.family) != (other.unit, other.family) {
            unmatched.push(format!(
                "{key} is in {} on one side and in {} on the other",
                one.unit.name(),
                other.unit.name()
            ));
            continue;
        }
        let all = aspects(&key.probe, one, other).into_iter();
        drafts.extend(all.map(|aspect| draft(key, aspect, one, other)));
    }
    let blocks = u32::try_from(count).unwrap_or(u32::MAX);
    judge(drafts, blocks, unmatched)
}

/// A row before the correction for multiple tests.
struct Draft {
    row: Row,
    p: Option<f64>,
    direction: Option<Direction>,
    trouble: Option<Outcome>,
}

fn judge(mut drafts: Vec<Draft>, blocks: u32, unmatched: Vec<String>) -> Comparison {
    let tested: Vec<f64> = drafts.iter().filter_map(|draft| draft.p).collect();
    let family = u32::try_from(tested.len()).unwrap_or(u32::MAX);
    let needed = blocks_needed(family, ALPHA);
    let rule = Rule { alpha: ALPHA, margin: MARGIN, blocks_needed: needed };
    let mut corrected = holm(&tested).into_iter();
    for draft in &mut drafts {
        draft.row.p_holm = draft.p.and_then(|_| corrected.next());
        let unknown = Verdict::Unknown { have: blocks, need: needed };
        draft.row.outcome = match (draft.trouble.take(), draft.direction) {
            (Some(trouble), _) => trouble,
            (None, None) => Outcome::NoDirection,
            (None, Some(direction)) => match (draft.row.interval, draft.row.p_holm) {
                (Some(interval), Some(p_holm)) => Outcome::Verdict(Verdict::from_evidence(
                    &Evidence { blocks, interval, p_holm },
                    direction,
                    &rule,
                )),
                (_, _) => Outcome::Verdict(unknown),
            },
        };
    }
    let rows = drafts.into_iter().map(|draft| draft.row).collect();
    Comparison { blocks, needed, rows, unmatched }
}

fn draft(key: &Key, aspect: ComparedStatistic, one: &Population, other: &Population) -> Draft {
    let both = PairedValues::new(key, aspect, one, other);
    let missing = match (lacking(&both.raised.0), lacking(&both.raised.1)) {
        (true, _) => Some(Side::First),
        (false, true) => Some(Side::Second),
        (false, false) => None,
    };
    let pairs: Vec<Block> = both
        .raised
        .0
        .iter()
        .zip(&both.raised.1)
        .filter_map(|(one, other)| Some(Block::pair((*one)?, (*other)?)))
        .collect();
    let ratios: Vec<f64> = pairs.iter().filter_map(Block::ratio).collect();
    let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let is_whole = missing.is_none();
    let is_tested = is_whole && both.trouble.is_none();
    Draft {
        row: Row {
            key: key.clone(),
            described: describe_labels(one, other),
            unit: aspect.unit(one.unit),
            aspect,
            floor: both.floor,
            first: middle(&both.seen.0),
            second: middle(&both.seen.1),
            ratio: median(&ratios).filter(|_| is_whole),
            interval: ratio_interval(&pairs).filter(|_| is_whole),
            p_holm: None,
            outcome: Outcome::NoDirection,
        },
        p: sign_flip(&logs).filter(|_| is_tested),
        direction: aspect.direction(one.unit).filter(|_| !NEUTRAL.contains(&key.probe.as_str())),
        trouble: missing
            .map(Outcome::NoRatio)
            .or(both.trouble)
            .or_else(|| no_verdict_reason(one, other)),
    }
}

fn lacking(values: &Values) -> bool {
    values.iter().any(|value| value.is_none_or(|v| v <= 0.0))
}

fn middle(values: &Values) -> Option<f64> {
    let there: Vec<f64> = values.iter().flatten().copied().collect();
    median(&there)
}

/// The labels that describe the machine, side by side; `–` where a side has none.
fn describe_labels(one: &Population, other: &Population) -> BTreeMap<String, [String; 2]> {
    fn text(side: &Population, name: &String) -> String {
        match side.described.get(name) {
            Some(texts) => texts.iter().cloned().collect::<Vec<_>>().join(" or "),
            None => "–".to_owned(),
        }
    }

    let names: BTreeSet<&String> = one.described.keys().chain(other.described.keys()).collect();
    names.into_iter().map(|name| (name.clone(), [text(one, name), text(other, name)])).collect()
}

/// The reason why the data allow no verdict, if there is one.
fn no_verdict_reason(one: &Population, other: &Population) -> Option<Outcome> {
    let sides = [(Side::First, one), (Side::Second, other)];
    let contended = sides.iter().find_map(|(side, all)| {
        all.contended_share().map(|share| Outcome::Contended(*side, share))
    });
    contended.or_else(|| {
        sides.iter().find_map(|(side, all)| all.is_unsteady().then_some(Outcome::NotSteady(*side)))
    })
}

impl Population {
    fn contended_share(&self) -> Option<f64> {
        let (kept, disturbed) = self.blocks.iter().fold((0.0, 0.0), |(kept, disturbed), block| {
            (kept + block.samples.len() as f64, disturbed + block.disturbed as f64)
        });
        let share = disturbed / f64::max(kept + disturbed, 1.0);
        (self.family == Family::Capacity && share > CONTENDED_SHARE).then_some(share)
    }

    fn is_unsteady(&self) -> bool {
        2 * self.blocks.iter().filter(|block| block.is_unsteady).count() > self.blocks.len()
    }
}

/// The figures that only one side has; many of them by the first and the last.
fn lonely(
    here: &BTreeMap<Key, Population>,
    there: &BTreeMap<Key, Population>,
    side: &str,
) -> Vec<String> {
    let keys: Vec<&Key> = here.keys().filter(|key| !there.contains_key(*key)).collect();
    match &keys[..] {
        [first, .., last] if keys.len() > MOST_LISTED => {
            vec![format!("only {side} has {} figures, from {first} to {last}", keys.len())]
        }
        _ => keys.iter().map(|key| format!("only {side} has {key}")).collect(),
    }
}

fn populations(blocks: &[Vec<Figure>]) -> BTreeMap<Key, Population> {
    let mut all: BTreeMap<Key, Population> = BTreeMap::new();
    for (index, figures) in blocks.iter().enumerate() {
        for figure in figures {
            let (described, labels): (BTreeMap<_, _>, BTreeMap<_, _>) = figure
                .labels
                .clone()
                .into_iter()
                .partition(|(name, _)| DESCRIPTIVE.contains(&name.as_str()));
            let key = Key { probe: figure.probe.clone(), labels };
            let population = all.entry(key).or_insert_with(|| Population {
                unit: figure.unit,
                family: figure.family,
                described: BTreeMap::new(),
                blocks: blocks.iter().map(|_| Merged::default()).collect(),
            });
            for (name, text) in described {
                population.described.entry(name).or_default().insert(text);
            }
            let merged = &mut population.blocks[index];
            let samples = match figure.family {
                Family::Capacity => {
                    let found = steady(&figure.samples);
                    merged.is_unsteady |= matches!(found, SteadyState::No { .. });
                    found.of_samples(&figure.samples)
                }
                Family::Tail | Family::Count | Family::Place => &figure.samples,
            };
            merged.samples.extend_from_slice(samples);
            merged.observed_ns = merged.observed_ns.saturating_add(figure.duration_ns);
            merged.dropped = merged.dropped.saturating_add(figure.dropped);
            merged.disturbed += figure.disturbed;
            merged.is_there = true;
        }
    }
    // A figure that is missing in a block cannot be paired there.
    all.retain(|_, population| population.blocks.iter().all(|block| block.is_there));
    all
}
