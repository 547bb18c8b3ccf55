//! Ranks the candidates by the goal. The same rule selects those to confirm and the winner.

use std::cmp::Ordering;

use pinfold_model::Metric;
use pinfold_stats::median;

use super::config::{BALANCED_SHARE, Goal, TuneConfig};
use super::summary::Summaries;

/// The rank data of a candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct RankEntry {
    /// Index of the candidate.
    pub candidate: usize,
    /// Median over blocks of the longest stall, in the goal's load state (ns).
    pub gap_ns: Option<f64>,
    /// Median over blocks of the compute rate, in the goal's load state (per second).
    pub rate_per_s: Option<f64>,
    /// The longest stall of any block in any load state (ns).
    pub worst_gap_ns: Option<f64>,
    /// True if `worst_gap_ns` exceeds the constraint.
    pub violates: bool,
    /// True if the goal is balanced and the rate is below the required share.
    pub gives_up_rate: bool,
    /// Number of starts that failed.
    pub failures: u32,
}

impl RankEntry {
    /// The value that the goal optimises: a stall in ns or a rate per second.
    pub fn score(&self, goal: Goal) -> Option<f64> {
        match goal {
            Goal::Latency | Goal::Balanced => self.gap_ns,
            Goal::Throughput => self.rate_per_s,
        }
    }
}

/// The candidates from best to worst: first those that keep the constraint, then those without
/// failed starts, then those that keep the rate (balanced only), then by score; ties keep the order
/// of the list.
pub(super) fn rank(
    config: &TuneConfig,
    summaries: &Summaries,
    candidates: &[usize],
) -> Vec<RankEntry> {
    let mut standings: Vec<RankEntry> =
        candidates.iter().map(|&candidate| standing(config, summaries, candidate)).collect();
    if config.goal == Goal::Balanced {
        mark_slow(&mut standings);
    }
    standings.sort_by(|a, b| key(a).cmp(&key(b)).then_with(|| by_score(config.goal, a, b)));
    standings
}

fn key(standing: &RankEntry) -> (bool, bool, bool) {
    (standing.violates, standing.failures > 0, standing.gives_up_rate)
}

fn standing(config: &TuneConfig, summaries: &Summaries, candidate: usize) -> RankEntry {
    let load = config.goal_load();
    let middle = |metric| median(&summaries.values(candidate, (load, metric)));
    let worst_gap_ns = config
        .load_states
        .iter()
        .flat_map(|&load| summaries.values(candidate, (load, config.gap_metric)))
        .max_by(f64::total_cmp);
    let violates = match (worst_gap_ns, config.max_gap_ns) {
        (Some(worst), Some(limit)) => worst > limit as f64,
        (None, _) | (_, None) => false,
    };
    RankEntry {
        candidate,
        gap_ns: middle(config.gap_metric),
        rate_per_s: middle(Metric::ComputeRate),
        worst_gap_ns,
        violates,
        gives_up_rate: false,
        failures: summaries.failures(candidate),
    }
}

fn mark_slow(standings: &mut [RankEntry]) {
    let best = standings.iter().filter_map(|standing| standing.rate_per_s).max_by(f64::total_cmp);
    let Some(best) = best else { return };
    for standing in standings {
        standing.gives_up_rate =
            standing.rate_per_s.is_none_or(|rate| rate < best * BALANCED_SHARE);
    }
}

/// Better scores first, missing ones last.
fn by_score(goal: Goal, a: &RankEntry, b: &RankEntry) -> Ordering {
    match (a.score(goal), b.score(goal)) {
        (Some(a), Some(b)) if goal == Goal::Throughput => b.total_cmp(&a),
        (Some(a), Some(b)) => a.total_cmp(&b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => Ordering::Equal,
    }
}
