//! Access to the raw samples, for the distributions in the report.

use std::collections::BTreeMap;

use pinfold_model::{LoadState, Metric, Role, RoleStats};
use pinfold_stats::{GapPoint, gap_curve};

use super::loaded::Loaded;
use super::summary::floor_of;
use crate::error::RunError;
use crate::store::{CellResult, Phase, RunId, StartStatus, Store};

/// All samples of one metric of one candidate in one load state, over all confirmation
/// blocks and vCPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Pooled {
    /// The metric.
    pub metric: Metric,
    /// The samples, in the metric's unit, in the order of blocks.
    pub samples: Vec<f64>,
    /// Observation time (ns), summed over blocks and vCPUs.
    pub observed_ns: u64,
}

impl Pooled {
    /// Stalls and arrivals beyond each of `points` lengths, from 1 µs to the longest stall. Empty
    /// for metrics other than stalls.
    pub fn gap_curve(&self, points: usize) -> Vec<GapPoint> {
        match self.metric {
            Metric::SpinGap => {
                gap_curve(&self.samples, self.observed_ns, floor_of(self.metric), points)
            }
            Metric::Wakeup
            | Metric::ComputeRate
            | Metric::IoAhci
            | Metric::IoVirtio
            | Metric::RunDelay => Vec::new(),
        }
    }
}

/// Pools the confirmation's samples of one candidate.
///
/// # Errors
/// [`RunError`] if the store cannot be read.
pub fn pool_samples(
    store: &Store,
    run: RunId,
    candidate: usize,
    load: LoadState,
    metric: Metric,
) -> Result<Pooled, RunError> {
    let mut pooled = Pooled { metric, samples: Vec::new(), observed_ns: 0 };
    each_cell(store, run, candidate, |cell| {
        if cell.load == load {
            let wanted = cell.series.iter().filter(|series| series.metric == metric);
            for series in wanted {
                pooled.samples.extend_from_slice(&series.samples);
                pooled.observed_ns = pooled.observed_ns.saturating_add(series.observed_ns);
            }
        }
    })?;
    Ok(pooled)
}

/// Scheduler statistics of one candidate in one load state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleTotals {
    /// Sums by role.
    pub roles: Vec<RoleStats>,
    /// Time that the sums cover (ns); `None` if a start has none, as in older stores.
    pub time_ns: Option<u64>,
}

/// Sums the confirmation's scheduler statistics of one candidate in one load state, by role.
/// Migrations are `None` if any block does not have them.
///
/// # Errors
/// [`RunError`] if the store cannot be read.
pub fn role_totals(
    store: &Store,
    run: RunId,
    candidate: usize,
    load: LoadState,
) -> Result<RoleTotals, RunError> {
    let mut totals: BTreeMap<Role, RoleStats> = BTreeMap::new();
    let mut time_ns = Some(0_u64);
    each_cell(store, run, candidate, |cell| {
        if cell.load != load {
            return;
        }
        time_ns = time_ns.zip(cell.roles_ns).map(|(sum, own)| sum.saturating_add(own));
        for stats in cell.roles {
            match totals.get_mut(&stats.role) {
                Some(total) => add_role(total, &stats),
                None => drop(totals.insert(stats.role.clone(), stats)),
            }
        }
    })?;
    Ok(RoleTotals { roles: totals.into_values().collect(), time_ns })
}

fn add_role(total: &mut RoleStats, stats: &RoleStats) {
    total.threads = total.threads.max(stats.threads);
    total.run_ns = total.run_ns.saturating_add(stats.run_ns);
    total.run_delay_ns = total.run_delay_ns.saturating_add(stats.run_delay_ns);
    total.migrations = total
        .migrations
        .zip(stats.migrations)
        .map(|(total, migrations)| total.saturating_add(migrations));
    total.voluntary_switches = total.voluntary_switches.saturating_add(stats.voluntary_switches);
    total.involuntary_switches =
        total.involuntary_switches.saturating_add(stats.involuntary_switches);
    total.lost_threads = total.lost_threads.saturating_add(stats.lost_threads);
}

/// Calls `visit` for every cell of the candidate's confirmation, with one start in memory at a
/// time.
pub(super) fn each_cell(
    store: &Store,
    run: RunId,
    candidate: usize,
    mut visit: impl FnMut(CellResult),
) -> Result<(), RunError> {
    let confirm = Loaded::read(store, run)?.confirm;
    let blocks = confirm.map_or(0, |confirm| confirm.blocks);
    for start in store.starts(run)? {
        let slot = start.record.slot;
        let wanted = slot.phase == Phase::Confirmation
            && slot.candidate == candidate
            && slot.block < blocks
            && start.record.status == StartStatus::Ok;
        if wanted {
            store.cells(start.id)?.into_iter().for_each(&mut visit);
        }
    }
    Ok(())
}
