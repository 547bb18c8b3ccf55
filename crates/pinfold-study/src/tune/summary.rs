//! Reduces the raw samples of a start to one value per metric and load state.
//!
//! | metric | value per start | floor |
//! |---|---|---|
//! | spin-gap | the longest stall on any vCPU: maximum over equal observation time | 1 µs |
//! | wake-up | 99 % quantile over all vCPUs, from 100 samples on | 1 µs |
//! | compute rate | median over all windows and vCPUs | 1 per second |
//! | I/O latency | median | 1 ns |
//! | run delay | the longest wait of any vCPU in one window | 1 µs |
//!
//! Values below the floor are raised to the floor: log ratios need positive numbers, and a
//! benchmark that saw no stall only shows that there was none above its own floor.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{LoadState, Metric, Series};
use pinfold_stats::{median, quantile};

use super::config::TuneConfig;
use super::starter::{StartRequest, StartResult};
use crate::store::{CellResult, Phase, RunId, StartRecord, StartStatus, Store, StoreError};

/// Minimum number of wake-ups for a 99 % quantile.
const WAKEUP_SAMPLES: usize = 100;

/// One metric of one start in one load state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Summary {
    /// The value of the metric.
    pub value: f64,
    /// Observation time, summed over the vCPUs (ns).
    pub observed_ns: u64,
    /// The part of it in stalls (ns): a spin that ends within a stall is longer by it.
    pub taken_ns: u64,
    /// Number of dropped samples.
    pub dropped: u64,
}

/// A metric in a load state.
pub(super) type CellKey = (LoadState, Metric);

/// All results of one phase of a run, as one value per start.
#[derive(Debug, Default)]
pub(super) struct Summaries {
    /// The values, by candidate and block.
    values: BTreeMap<usize, BTreeMap<u32, BTreeMap<CellKey, Summary>>>,
    /// All starts of the phase that have ended.
    pub starts: Vec<StartRecord>,
    /// Number of series with each flag.
    pub flags: BTreeMap<String, u32>,
    /// Number of series, with flags or without.
    pub series: u32,
}

/// The floor of a metric, in its unit.
pub(super) fn floor_of(metric: Metric) -> f64 {
    match metric {
        Metric::SpinGap | Metric::Wakeup | Metric::RunDelay => 1_000.0,
        Metric::ComputeRate | Metric::IoAhci | Metric::IoVirtio => 1.0,
    }
}

/// The value of the samples of one metric, over all vCPUs.
pub(super) fn value_of(metric: Metric, samples: &[f64]) -> Option<f64> {
    let value = match metric {
        Metric::SpinGap | Metric::RunDelay => Some(samples.iter().copied().fold(0.0, f64::max)),
        Metric::Wakeup if samples.len() < WAKEUP_SAMPLES => None,
        Metric::Wakeup => quantile(samples, 0.99),
        Metric::ComputeRate | Metric::IoAhci | Metric::IoVirtio => median(samples),
    };
    value.map(|value| value.max(floor_of(metric)))
}

fn summarise(cell: &CellResult) -> BTreeMap<CellKey, Summary> {
    Metric::ALL
        .into_iter()
        .filter_map(|metric| {
            let series: Vec<&Series> =
                cell.series.iter().filter(|series| series.metric == metric).collect();
            if series.is_empty() {
                return None;
            }
            let samples: Vec<f64> =
                series.iter().flat_map(|series| series.samples.iter().copied()).collect();
            let value = value_of(metric, &samples)?;
            let observed_ns = series.iter().map(|series| series.observed_ns).sum();
            let dropped = series.iter().map(|series| series.dropped).sum();
            let taken_ns = match metric {
                Metric::SpinGap => whole_ns(samples.iter().sum()),
                Metric::Wakeup
                | Metric::ComputeRate
                | Metric::IoAhci
                | Metric::IoVirtio
                | Metric::RunDelay => 0,
            };
            Some(((cell.load, metric), Summary { value, observed_ns, taken_ns, dropped }))
        })
        .collect()
}

impl Summaries {
    /// Reads one phase of a run, one start at a time, ignoring blocks from `blocks` on.
    pub(super) fn load(
        store: &Store,
        run: RunId,
        phase: Phase,
        blocks: u32,
    ) -> Result<Self, StoreError> {
        let mut summaries = Self::default();
        for start in store.starts(run)? {
            let slot = start.record.slot;
            if slot.phase != phase || slot.block >= blocks {
                continue;
            }
            let cells = match start.record.status {
                StartStatus::Ok => store.cells(start.id)?,
                StartStatus::Failed => Vec::new(),
            };
            summaries.add(start.record, &cells);
        }
        Ok(summaries)
    }

    /// Adds a start that has ended.
    pub(super) fn add(&mut self, start: StartRecord, cells: &[CellResult]) {
        match start.status {
            StartStatus::Ok => {
                self.record_flags(cells);
                self.add_numbers(start, cells.iter().flat_map(summarise).collect());
            }
            StartStatus::Failed => self.starts.push(start),
        }
    }

    /// Adds a start with known values.
    pub(super) fn add_numbers(&mut self, start: StartRecord, numbers: BTreeMap<CellKey, Summary>) {
        let slot = start.slot;
        self.values.entry(slot.candidate).or_default().insert(slot.block, numbers);
        self.starts.push(start);
    }

    /// The first blocks of a race followed by the first blocks of the confirmation, as one sequence
    /// of blocks.
    pub(super) fn chain(&self, raced: u32, confirmation: &Self, confirmed: u32) -> Self {
        let mut all = Self::default();
        for (side, first, blocks) in [(self, 0, raced), (confirmation, raced, confirmed)] {
            for (candidate, by_block) in &side.values {
                let own = all.values.entry(*candidate).or_default();
                let there = by_block.range(..blocks);
                own.extend(there.map(|(block, cells)| (first + block, cells.clone())));
            }
            let starts = side.starts.iter().filter(|start| start.slot.block < blocks).cloned();
            all.starts.extend(starts);
        }
        all
    }

    /// The data of a race: the logarithm of the goal's value in each of the first blocks, smaller
    /// is better.
    pub(super) fn participant_values(
        &self,
        config: &TuneConfig,
        candidate: usize,
        blocks: u32,
    ) -> Vec<Option<f64>> {
        let metric = config.metric();
        let values = self.by_block(candidate, (config.goal_load(), metric));
        (0..blocks)
            .map(|block| {
                let log = values.get(&block).map(|summary| summary.value.ln());
                log.map(|log| if metric.higher_is_better() { -log } else { log })
            })
            .collect()
    }

    /// True if the starts of all these candidates in a block have ended, successfully or not.
    pub(super) fn has_ended(&self, block: u32, who: &[usize]) -> bool {
        who.iter().all(|candidate| {
            self.starts
                .iter()
                .any(|start| start.slot.block == block && start.slot.candidate == *candidate)
        })
    }

    fn record_flags(&mut self, cells: &[CellResult]) {
        for series in cells.iter().flat_map(|cell| &cell.series) {
            self.series += 1;
            // `preempted 12` and `preempted 3` are the same flag.
            let kinds: BTreeSet<String> = series.flags.iter().map(|flag| kind(flag)).collect();
            for kind in kinds {
                *self.flags.entry(kind).or_insert(0) += 1;
            }
        }
    }

    /// The values of a candidate by block.
    pub(super) fn by_block(&self, candidate: usize, key: CellKey) -> BTreeMap<u32, Summary> {
        let blocks = self.values.get(&candidate).into_iter().flatten();
        blocks.filter_map(|(&block, cells)| Some((block, *cells.get(&key)?))).collect()
    }

    /// The values of a candidate, in block order.
    pub(super) fn values(&self, candidate: usize, key: CellKey) -> Vec<f64> {
        self.by_block(candidate, key).into_values().map(|summary| summary.value).collect()
    }

    /// The metrics and load states that any start measured.
    pub(super) fn keys(&self) -> BTreeSet<CellKey> {
        let starts = self.values.values().flat_map(BTreeMap::values);
        starts.flat_map(|cells| cells.keys().copied()).collect()
    }

    /// Blocks in which the start of the candidate has ended, successfully or not.
    pub(super) fn ended_blocks(&self, candidate: usize) -> BTreeSet<u32> {
        let own = self.starts.iter().filter(|start| start.slot.candidate == candidate);
        own.map(|start| start.slot.block).collect()
    }

    /// Number of the candidate's starts that were measured.
    pub(super) fn count_measured(&self, candidate: usize) -> u32 {
        let blocks = self.values.get(&candidate).map_or(0, BTreeMap::len);
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }

    /// Number of the candidate's starts that failed.
    pub(super) fn failures(&self, candidate: usize) -> u32 {
        let failed = self.starts.iter().filter(|start| {
            start.slot.candidate == candidate && start.status == StartStatus::Failed
        });
        u32::try_from(failed.count()).unwrap_or(u32::MAX)
    }
}

fn kind(flag: &str) -> String {
    flag.split_whitespace().next().unwrap_or(flag).to_owned()
}

/// Share of its period for which the spin-gap benchmark of a tuning run spins.
const DUTY: f64 = 0.5;

/// Observation times that differ by no more than this share are equal.
const EQUAL_TIME: f64 = 0.1;

/// True if this ratio of observation times does not affect a longest wait.
pub(super) fn is_equal_time(ratio: f64) -> bool {
    (ratio - 1.0).abs() <= EQUAL_TIME
}

/// Mean intended observation time of one side's blocks, relative to the other's; `None` if a side
/// has none. The intended time is between the observed time without its stalls and all of it. If
/// both ranges overlap, the stalls may be the only difference, and the ratio is 1.
pub(super) fn time_ratio(
    own: &BTreeMap<u32, Summary>,
    base: &BTreeMap<u32, Summary>,
) -> Option<f64> {
    let (own, base) = (range(own)?, range(base)?);
    Some(match () {
        () if own.0 > base.1 => own.0 / base.1,
        () if base.0 > own.1 => own.1 / base.0,
        () => 1.0,
    })
}

fn range(side: &BTreeMap<u32, Summary>) -> Option<(f64, f64)> {
    let most: u64 = side.values().map(|one| one.observed_ns).sum();
    let taken: u64 = side.values().map(|one| one.taken_ns).sum();
    let blocks = side.len() as f64;
    let least = f64::max(most.saturating_sub(taken) as f64, most as f64 * DUTY);
    (most > 0).then(|| (least / blocks, most as f64 / blocks))
}

/// Nanoseconds of a sum of samples; 0 if it is not a valid time.
fn whole_ns(sum: f64) -> u64 {
    let time = std::time::Duration::try_from_secs_f64(sum / 1e9).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Checks that a start measured what was requested, with valid values.
///
/// # Errors
/// The reason, as the message of a failed start.
pub(super) fn check_result(request: &StartRequest, result: &StartResult) -> Result<(), String> {
    for load in &request.load_states {
        match result.cells.iter().filter(|cell| cell.load == *load).count() {
            1 => {}
            0 => return Err(format!("the boot did not measure \"{load}\"")),
            times => return Err(format!("the boot measured \"{load}\" {times} times")),
        }
    }
    if let Some(other) = result.cells.iter().find(|cell| !request.load_states.contains(&cell.load))
    {
        return Err(format!("the boot measured \"{}\", which was not requested", other.load));
    }
    for cell in &result.cells {
        if cell.series.is_empty() {
            return Err(format!("the boot produced no samples for \"{}\"", cell.load));
        }
        for series in &cell.series {
            check_series(series).map_err(|why| {
                format!(
                    "{} of vCPU {} in \"{}\" {why}",
                    series.metric.name(),
                    series.cpu,
                    cell.load
                )
            })?;
        }
    }
    Ok(())
}

fn check_series(series: &Series) -> Result<(), String> {
    if series.observed_ns == 0 || series.duration_ns == 0 {
        return Err("observed no time".to_owned());
    }
    match series.samples.iter().find(|sample| !(sample.is_finite() && **sample >= 0.0)) {
        None => Ok(()),
        Some(sample) => Err(format!("holds the value {sample}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(observed_ns: u64, taken_ns: u64) -> BTreeMap<u32, Summary> {
        BTreeMap::from([(0, Summary { value: 1.0, observed_ns, taken_ns, dropped: 0 })])
    }

    #[test]
    fn times_differ_only_where_gaps_cannot_be_the_reason() {
        check((100, 0), (100, 0), Some(1.0));
        check((150, 0), (100, 0), Some(1.5));
        // 60 of the 150 are in stalls: the intended time may have been 100.
        check((150, 60), (100, 0), Some(1.0));
        check((100, 0), (150, 60), Some(1.0));
        // Stalls fill at most the pauses between the spins.
        check((400, 400), (100, 0), Some(2.0));
        check((100, 0), (400, 400), Some(0.5));
        check((100, 0), (0, 0), None);
    }

    fn check(own: (u64, u64), base: (u64, u64), expected: Option<f64>) {
        assert_eq!(time_ratio(&side(own.0, own.1), &side(base.0, base.1)), expected);
    }
}
