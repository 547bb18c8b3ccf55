//! Values for plots, tables and claims: selects and groups cells, and converts them to value, ratio
//! or error.

use crate::study::Loaded;
use std::collections::BTreeMap;

use pinfold_model::Unit;
use pinfold_model::text::count_noun;
use pinfold_stats::{QuantilePoint, median, median_interval, quantile_curve};

use super::INTERVAL_BLOCKS;
use super::analyse::{Analysis, Comparison, Estimate};
use super::cells::{Cell, CellScope};
use super::expr::{Argument, Bounds, Expr, ExprError, Scope, Value};
use super::file::{Claim, DisplayedStatistic, PublishedValue, Rule, Selection, Study, Workload};
use super::statistics::split;
use super::template;

/// One value with its range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The value, ratio or error.
    pub value: f64,
    /// For one cell its 95 % interval, or the range of too few blocks; for several the smallest and
    /// the largest of their values.
    pub range: Option<(f64, f64)>,
    /// Number of cells.
    pub cells: usize,
    /// Number of blocks; the minimum over its cells.
    pub blocks: u32,
}

/// The value of a cell, with its levels and labels.
struct CellValue<'a> {
    estimate: &'a Estimate,
    value: f64,
    range: Option<(f64, f64)>,
    blocks: u32,
    ideal: Option<f64>,
    shown: DisplayedStatistic,
}

/// The key of a group: levels in the order of the requested names.
pub type Key = Vec<String>;

/// The result of a selection.
#[derive(Clone, Debug, PartialEq)]
pub struct Groups {
    /// Unit of a value; `None` for ratios and errors.
    pub unit: Option<Unit>,
    /// One value per group, in the order of the study's levels.
    pub points: Vec<(Key, Point)>,
    /// The expected value of each group, if the study has one.
    pub ideals: BTreeMap<Key, f64>,
}

/// The percentiles of samples.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleCurve {
    /// Dense towards the largest sample, which is the last point.
    pub points: Vec<QuantilePoint>,
    /// Number of samples.
    pub samples: u64,
}

impl Analysis {
    /// The values of a selection, grouped by factors, `workload` or labels of the figure.
    ///
    /// # Errors
    /// A message: an expression has no value for a cell.
    pub fn groups(&self, selection: &Selection, names: &[&str]) -> Result<Groups, String> {
        let picked = self.pick(selection)?;
        let mut unit = None;
        let mut order: Vec<Key> = Vec::new();
        let mut groups: BTreeMap<Key, Vec<&CellValue<'_>>> = BTreeMap::new();
        for one in &picked {
            unit = unit.or(Some(one.estimate.unit));
            let key: Key = names.iter().map(|name| self.level(one.estimate, name)).collect();
            if !groups.contains_key(&key) {
                order.push(key.clone());
            }
            groups.entry(key).or_default().push(one);
        }
        let mut ideals = BTreeMap::new();
        let mut points = Vec::new();
        for key in order {
            let Some(members) = groups.get(&key) else { continue };
            let wanted: Vec<f64> = members.iter().filter_map(|one| one.ideal).collect();
            if let Some(ideal) = median(&wanted) {
                ideals.insert(key.clone(), ideal);
            }
            points.extend(join_cells(members).map(|point| (key, point)));
        }
        let has_unit =
            matches!(selection.shown, DisplayedStatistic::Value | DisplayedStatistic::Sum);
        let unit = unit.filter(|_| has_unit);
        Ok(Groups { unit, points, ideals })
    }

    /// The percentiles of all samples of a selection, grouped in the same way.
    ///
    /// # Errors
    /// A message: an expression has no value for a cell.
    pub fn curves(
        &self,
        selection: &Selection,
        names: &[&str],
    ) -> Result<Vec<(Key, SampleCurve)>, String> {
        let mut groups: Vec<(Key, Vec<f64>)> = Vec::new();
        for one in self.pick(selection)? {
            let key: Key = names.iter().map(|name| self.level(one.estimate, name)).collect();
            match groups.iter_mut().find(|(known, _)| *known == key) {
                Some((_, samples)) => samples.extend(&one.estimate.pooled),
                None => groups.push((key, one.estimate.pooled.clone())),
            }
        }
        Ok(groups
            .into_iter()
            .map(|(key, samples)| {
                let points = quantile_curve(&samples);
                (key, SampleCurve { points, samples: samples.len() as u64 })
            })
            .collect())
    }

    /// The samples of one trial of each group of a selection, in their order: of the first cell of
    /// the group, and its first trial.
    ///
    /// # Errors
    /// A message: an expression has no value for a cell.
    pub fn sequences(
        &self,
        selection: &Selection,
        names: &[&str],
    ) -> Result<Vec<(Key, &[f64])>, String> {
        let mut groups: Vec<(Key, &[f64])> = Vec::new();
        for one in self.pick(selection)? {
            let key: Key = names.iter().map(|name| self.level(one.estimate, name)).collect();
            let samples = one.estimate.sequence.as_slice();
            if !samples.is_empty() && groups.iter().all(|(known, _)| *known != key) {
                groups.push((key, samples));
            }
        }
        Ok(groups)
    }

    /// The keys of all cells of a selection, skipped ones too, in the order of the study's levels.
    pub fn all_keys(&self, selection: &Selection, names: &[&str]) -> Vec<Key> {
        let study = &self.loaded.study;
        let mut keys: Vec<Key> = Vec::new();
        for (_, cell) in self.select_cells(selection) {
            let key: Key = names
                .iter()
                .map(|name: &&str| cell.level(study, name).unwrap_or_default().to_owned())
                .collect();
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }

    /// Why a selection has no values: the reasons of the cells that it selects, each once.
    pub fn reasons_of_absence(&self, selection: &Selection) -> Vec<String> {
        let Self { absent, failures, .. } = self;
        let cells: Vec<(usize, &Cell)> = self.select_cells(selection).collect();
        if cells.is_empty() {
            return vec!["no cell of this study is selected".to_owned()];
        }
        let wanted = split(&selection.figure).map_or(&*selection.figure, |(figure, _)| figure);
        if !self.loaded.study.has_figure_source(wanted) {
            return vec!["this form of the study leaves its workload out".to_owned()];
        }
        let skipped = cells.iter().filter_map(|(_, cell)| cell.skipped.clone());
        let failed = failures.iter().filter(|(cell, ..)| cells.iter().any(|(one, _)| one == cell));
        let absent = absent.keys().filter(|(figure, _)| figure == wanted);
        let absent = absent.map(|(_, why)| why.clone());
        let mut reasons: Vec<String> = Vec::new();
        let found = skipped.chain(failed.map(|(.., message)| format!("failed: {message}")));
        for reason in found.chain(absent) {
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
        if reasons.is_empty() {
            reasons.push(match selection.shown {
                DisplayedStatistic::Value | DisplayedStatistic::Sum => {
                    "none of its cells has this figure yet".to_owned()
                }
                DisplayedStatistic::Ratio | DisplayedStatistic::Error => {
                    "none of its cells was compared with its baseline yet".to_owned()
                }
            });
        }
        reasons
    }

    /// The cells of a selection with their indices, skipped ones too, of the workloads that give
    /// its figure.
    pub(super) fn select_cells<'a>(
        &'a self,
        selection: &'a Selection,
    ) -> impl Iterator<Item = (usize, &'a Cell)> {
        let loaded = &self.loaded;
        let study = &loaded.study;
        let figure = split(&selection.figure).map_or(&*selection.figure, |(figure, _)| figure);
        let is_own = study.workloads.iter().any(|workload| has_figure(figure, workload));
        loaded.cells.all.iter().enumerate().filter(move |(_, cell)| {
            let workload = cell.workload(study);
            // One without figures of its own gives those of the lines that it prints.
            if is_own && !workload.figures.is_empty() && !has_figure(figure, workload) {
                return false;
            }
            let scope = CellScope { study: &loaded.study, cell, facts: &loaded.facts };
            let only = selection.only.as_ref();
            only.is_none_or(|only| only.expr.evaluate_bool(&scope).unwrap_or(false))
        })
    }

    fn level(&self, estimate: &Estimate, name: &str) -> String {
        let cell = &self.loaded.cells.all[estimate.cell];
        let level = cell.level(&self.loaded.study, name).map(str::to_owned);
        level.or_else(|| estimate.figure.labels.get(name).cloned()).unwrap_or_default()
    }

    fn pick(&self, selection: &Selection) -> Result<Vec<CellValue<'_>>, String> {
        let Self { loaded, estimates, .. } = self;
        let mut picked = Vec::new();
        for estimate in estimates {
            let labels = &estimate.figure.labels;
            let named = estimate.figure.probe == selection.figure
                && selection.labels.iter().all(|(name, wanted)| labels.get(name) == Some(wanted));
            if !named {
                continue;
            }
            let cell = &loaded.cells.all[estimate.cell];
            let scope = CellScope { study: &loaded.study, cell, facts: &loaded.facts };
            if let Some(only) = &selection.only
                && !only.expr.evaluate_bool(&scope).map_err(|error| explain(cell, loaded, error))?
            {
                continue;
            }
            let ideal = selection
                .ideal
                .as_ref()
                .map(|rule| rule.expr.number(&scope).map_err(|error| explain(cell, loaded, error)));
            let ideal = ideal.transpose()?;
            if selection.baseline == loaded.study.baseline {
                picked.extend(cell_value(estimate, selection.shown, ideal));
                continue;
            }
            let Some((comparison, ratio)) = self.compare_with(estimate, &selection.baseline) else {
                continue;
            };
            picked.extend(cell_value_with(
                estimate,
                selection.shown,
                ideal,
                comparison,
                Some(ratio),
            ));
        }
        Ok(picked)
    }

    /// Evaluates a claim on the results.
    pub fn judge(&self, claim: &Claim) -> ClaimResult {
        let scope = ClaimScope { analysis: self, only: claim.only.as_ref() };
        let see = template::fill(&claim.see, &|text: &str| match Expr::parse(text)
            .and_then(|expr| expr.evaluate(&scope))
        {
            Ok(Value::Number(number)) if number.is_finite() => Some(number.to_string()),
            Ok(Value::Number(_)) | Err(_) => Some("(not measured)".to_owned()),
            Ok(other @ (Value::Text(_) | Value::Truth(_))) => Some(other.to_string()),
        })
        .unwrap_or_else(|why| why);
        let agree = match claim.agree.expr.decide(&scope) {
            Ok(Some(agrees)) => Ok(agrees),
            Ok(None) => Err("the interval contains the limit".to_owned()),
            Err(error) => Err(error.why),
        };
        ClaimResult { see, is_measured: claim.agree.expr.evaluate_bool(&scope).is_ok(), agree }
    }

    /// The number of this run next to a value of the source.
    ///
    /// # Errors
    /// Why it was not measured.
    pub fn measured_number(&self, published: &PublishedValue) -> Result<MeasuredNumber, String> {
        let scope = ClaimScope { analysis: self, only: None };
        let expr = &published.ours.expr;
        let value = expr.number(&scope).map_err(|error| error.why)?;
        Ok(MeasuredNumber { value, interval: expr.bounds(&scope).ok() })
    }
}

fn has_figure(figure: &str, workload: &Workload) -> bool {
    workload.figures.iter().any(|one| one.name == figure)
}

fn explain(cell: &Cell, loaded: &Loaded, error: ExprError) -> String {
    format!("{} (for {})", error.why, cell.name(&loaded.study))
}

/// A number of this run, with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredNumber {
    /// The number.
    pub value: f64,
    /// Its 95 % interval, widened by the noise floor; `None` without enough blocks.
    pub interval: Option<Bounds>,
}

/// The evaluation of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimResult {
    /// What this study observes.
    pub see: String,
    /// True if all that its rule asks for was measured.
    pub is_measured: bool,
    /// True if the results agree with the claim, over the whole of their intervals and the noise
    /// floor; or why this is not settled.
    pub agree: Result<bool, String>,
}

fn cell_value(
    estimate: &Estimate,
    shown: DisplayedStatistic,
    ideal: Option<f64>,
) -> Option<CellValue<'_>> {
    cell_value_with(estimate, shown, ideal, estimate.comparison, estimate.ratio)
}

/// The value of a cell with this comparison, or with this ratio if there is no interval.
fn cell_value_with(
    estimate: &Estimate,
    shown: DisplayedStatistic,
    ideal: Option<f64>,
    comparison: Option<Comparison>,
    ratio: Option<f64>,
) -> Option<CellValue<'_>> {
    let blocks = u32::try_from(estimate.starts.len()).unwrap_or(u32::MAX);
    let (value, range, blocks) = match (shown, comparison) {
        (DisplayedStatistic::Value, _) => (estimate.median, estimate.interval, blocks),
        (DisplayedStatistic::Sum, _) => {
            let starts: Vec<f64> = estimate.starts.values().flatten().copied().collect();
            let count = starts.len() as f64;
            let range = estimate.interval.map(|(low, high)| (low * count, high * count));
            (starts.iter().sum(), range, blocks)
        }
        (DisplayedStatistic::Ratio, Some(with)) => {
            (with.interval.ratio, Some((with.interval.low, with.interval.high)), with.blocks)
        }
        (DisplayedStatistic::Error, Some(with)) => {
            let wanted = ideal?;
            let range = (points(wanted, with.interval.low), points(wanted, with.interval.high));
            (points(wanted, with.interval.ratio), Some(range), with.blocks)
        }
        (DisplayedStatistic::Ratio, None) => (ratio?, None, blocks),
        (DisplayedStatistic::Error, None) => ((ratio? - ideal?) * 100.0, None, blocks),
    };
    Some(CellValue { estimate, value, range, blocks, ideal, shown })
}

fn points(wanted: f64, ratio: f64) -> f64 {
    (ratio - wanted) * 100.0
}

fn join_cells(members: &[&CellValue<'_>]) -> Option<Point> {
    let values: Vec<f64> = members.iter().map(|one| one.value).collect();
    let blocks = members.iter().map(|one| one.blocks).min().unwrap_or(0);
    let is_sum = members.iter().all(|one| one.shown == DisplayedStatistic::Sum);
    let range = match members {
        [only] => only.range,
        several if is_sum => {
            let ranges: Option<Vec<(f64, f64)>> = several.iter().map(|one| one.range).collect();
            ranges.map(|ranges| {
                ranges.iter().fold((0.0, 0.0), |sum, range| (sum.0 + range.0, sum.1 + range.1))
            })
        }
        _ => {
            let smallest = values.iter().copied().reduce(f64::min);
            smallest.zip(values.iter().copied().reduce(f64::max))
        }
    };
    let value = if is_sum { Some(values.iter().sum()) } else { median(&values) };
    Some(Point { value: value?, range, cells: members.len(), blocks })
}

/// The scope of the expressions in claims.
pub(super) struct ClaimScope<'a> {
    pub(super) analysis: &'a Analysis,
    /// The cells that its functions select from.
    pub(super) only: Option<&'a Rule>,
}

impl Scope for ClaimScope<'_> {
    fn value(&self, name: &str) -> Option<Value> {
        let loaded = &self.analysis.loaded;
        let value = loaded.study.values.get(name).map(|level| level.value.clone());
        value.or_else(|| loaded.facts.value(name))
    }

    fn call(&self, function: &str, arguments: &[Argument]) -> Option<Result<Value, ExprError>> {
        let (first, picks) = arguments.split_first()?;
        let cells = match self.cells(function, first, picks) {
            Ok(cells) => cells,
            Err(error) => return Some(Err(error)),
        };
        if let "smallest_at" | "largest_at" = function {
            return Some(Ok(Value::Text(self.place(function, &cells))));
        }
        let values: Vec<f64> = match function {
            "variation" => deviations(&cells),
            _ => cells.iter().map(|one| one.value).collect(),
        };
        let number = reduce_cells(function, &values, &values);
        Some(Ok(Value::Number(number.low)))
    }

    fn bounds(&self, function: &str, arguments: &[Argument]) -> Option<Result<Bounds, ExprError>> {
        let (first, picks) = arguments.split_first()?;
        let at = first.value.at();
        Some(self.cells(function, first, picks).and_then(|cells| {
            if function == "variation" {
                return variation(&cells).map_err(|why| ExprError::new(at, why));
            }
            let ranges = cells.iter().map(|one| self.range(one));
            let ranges: Vec<Bounds> =
                ranges.collect::<Result<_, _>>().map_err(|why| ExprError::new(at, why))?;
            let lows: Vec<f64> = ranges.iter().map(|range| range.low).collect();
            let highs: Vec<f64> = ranges.iter().map(|range| range.high).collect();
            Ok(reduce_cells(function, &lows, &highs))
        }))
    }
}

/// How far each block of each cell is from the median of its cell, as a share of it.
fn deviations(cells: &[CellValue<'_>]) -> Vec<f64> {
    cells
        .iter()
        .flat_map(|one| {
            let blocks = one.estimate.starts.values().filter_map(|starts| median(starts));
            blocks.map(|block| (block / one.estimate.median - 1.0).abs()).collect::<Vec<f64>>()
        })
        .filter(|share| share.is_finite())
        .collect()
}

/// The interval of the median of [`deviations`].
///
/// # Errors
/// A cell has too few blocks for any test.
fn variation(cells: &[CellValue<'_>]) -> Result<Bounds, String> {
    for one in cells {
        enough_blocks(u32::try_from(one.estimate.starts.len()).unwrap_or(u32::MAX))?;
    }
    let interval = median_interval(&deviations(cells));
    let (low, high) = interval.ok_or_else(|| "no block has a value".to_owned())?;
    Ok(Bounds { low, high })
}

/// # Errors
/// A message with the number of blocks.
fn enough_blocks(blocks: u32) -> Result<(), String> {
    (blocks >= INTERVAL_BLOCKS).then_some(()).ok_or_else(|| {
        let counted = count_noun(blocks as usize, "block");
        format!("{counted}, a verdict needs at least {INTERVAL_BLOCKS}")
    })
}

/// The value of a function over cells, from the ends of their intervals.
fn reduce_cells(function: &str, lows: &[f64], highs: &[f64]) -> Bounds {
    match function {
        "smallest" => Bounds { low: smallest(lows), high: smallest(highs) },
        "largest" => Bounds { low: largest(lows), high: largest(highs) },
        "sum" => Bounds { low: lows.iter().sum(), high: highs.iter().sum() },
        "spread" => Bounds {
            low: (largest(lows) - smallest(highs)).max(0.0),
            high: largest(highs) - smallest(lows),
        },
        _ => Bounds { low: middle(lows), high: middle(highs) },
    }
}

fn smallest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

fn middle(values: &[f64]) -> f64 {
    median(values).unwrap_or(f64::NAN)
}

impl ClaimScope<'_> {
    /// The interval of a cell, widened by its noise floor: what the same measurement repeated can
    /// differ by.
    ///
    /// # Errors
    /// It has no interval, or too few blocks for any test.
    fn range(&self, one: &CellValue<'_>) -> Result<Bounds, String> {
        enough_blocks(one.blocks)?;
        let Some((low, high)) = one.range else {
            return Err(format!("{} has no interval", one.estimate.figure.probe));
        };
        let floor = self.noise_floor(one.estimate);
        Ok(match one.shown {
            DisplayedStatistic::Value | DisplayedStatistic::Sum => Bounds { low, high },
            DisplayedStatistic::Ratio => Bounds { low: low * floor.low, high: high * floor.high },
            DisplayedStatistic::Error => {
                let ideal = one.ideal.unwrap_or_default() * 100.0;
                Bounds {
                    low: (low + ideal) * floor.low - ideal,
                    high: (high + ideal) * floor.high - ideal,
                }
            }
        })
    }

    /// From 1 to the median ratio of the A/A pair of the cell that this one is compared with; if
    /// that has none, to the smallest and the largest ratio of all pairs of its figure.
    fn noise_floor(&self, estimate: &Estimate) -> Bounds {
        let Analysis { noise, loaded, .. } = self.analysis;
        let baseline = loaded.cells.all.get(estimate.cell).and_then(|cell| cell.baseline);
        let own =
            noise.iter().find(|pair| Some(pair.cell) == baseline && pair.figure == estimate.figure);
        let others =
            noise.iter().filter(|pair| own.is_none() && pair.figure.probe == estimate.figure.probe);
        own.into_iter().chain(others).fold(Bounds::exact(1.0), |floor, pair| Bounds {
            low: floor.low.min(pair.interval.ratio),
            high: floor.high.max(pair.interval.ratio),
        })
    }

    fn cells(
        &self,
        function: &str,
        first: &Argument,
        picks: &[Argument],
    ) -> Result<Vec<CellValue<'_>>, ExprError> {
        let at = first.value.at();
        let study = &self.analysis.loaded.study;
        let figure = first.value.as_name().unwrap_or_default();
        let mut wanted: Vec<(&str, Value)> = Vec::new();
        let mut of = None;
        for pick in picks {
            let value = pick.value.evaluate(self)?;
            match pick.name.as_deref() {
                Some("of") => of = Some(value.to_string()),
                Some(name) => wanted.push((name, value)),
                None => {}
            }
        }
        let shown = match (function, of.as_deref()) {
            ("value" | "variation", _) | (_, Some("value")) => DisplayedStatistic::Value,
            ("sum", _) => DisplayedStatistic::Sum,
            ("error", _) | (_, Some("error")) => DisplayedStatistic::Error,
            (_, _) => DisplayedStatistic::Ratio,
        };
        let selection = Selection {
            figure: figure.to_owned(),
            labels: BTreeMap::new(),
            only: self.only.cloned(),
            shown,
            baseline: study.baseline.clone(),
            ideal: ideal_of(study, figure),
        };
        let mut picked = self.analysis.pick(&selection).map_err(|why| ExprError::new(at, why))?;
        picked.retain(|one| {
            wanted.iter().all(|(name, value)| self.is_level(one.estimate, name, value))
        });
        if picked.is_empty() {
            let why = format!("{function}({figure}, …): no matching cell was measured");
            return Err(ExprError::new(at, why));
        }
        Ok(picked)
    }

    /// The levels that distinguish the cell with the smallest or largest of these values.
    fn place(&self, function: &str, cells: &[CellValue<'_>]) -> String {
        let found = match function {
            "smallest_at" => cells.iter().min_by(by_value),
            _ => cells.iter().max_by(by_value),
        };
        let Some(found) = found else { return String::new() };
        let factors = self.analysis.loaded.study.factors.iter().map(|factor| factor.name.as_str());
        let mut columns: Vec<Vec<String>> = Vec::new();
        let mut words = Vec::new();
        for name in ["workload"].into_iter().chain(factors) {
            let column: Vec<String> =
                cells.iter().map(|one| self.analysis.level(one.estimate, name)).collect();
            let is_same = column.iter().all(|level| *level == column[0]);
            // A factor that follows from another one has the same levels.
            if !is_same && !columns.contains(&column) {
                words.push(format!("{name} {}", self.analysis.level(found.estimate, name)));
                columns.push(column);
            }
        }
        words.join(", ")
    }

    fn is_level(&self, estimate: &Estimate, name: &str, wanted: &Value) -> bool {
        let loaded = &self.analysis.loaded;
        let cell = &loaded.cells.all[estimate.cell];
        let scope = CellScope { study: &loaded.study, cell, facts: &loaded.facts };
        match scope.value(name) {
            Some(value) if loaded.study.is_factor_name(name) => value == *wanted,
            Some(_) | None => {
                estimate.figure.labels.get(name).is_some_and(|text| *text == wanted.to_string())
            }
        }
    }
}

fn by_value(a: &&CellValue<'_>, b: &&CellValue<'_>) -> std::cmp::Ordering {
    a.value.total_cmp(&b.value)
}

/// The expected value of a figure, from the first plot or table that has one.
fn ideal_of(study: &Study, figure: &str) -> Option<Rule> {
    let plots = study.plots.iter().map(|plot| &plot.selection);
    let tables = study.tables.iter().flat_map(|table| &table.selections);
    let mut all = plots.chain(tables);
    all.find_map(|one| one.ideal.clone().filter(|_| one.figure == figure))
}
