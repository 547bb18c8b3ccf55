//! Computes the report from the store. Only the stored samples and settings are used, so anyone
//! with the file can compute the same verdicts.
//!
//! Holm's correction covers the confirmed candidates, within one metric and load state. The goal's
//! metric in the goal's load state is the question of the run; the others are reported in addition.
//! A comparison with incomplete blocks, because a start failed or a metric is missing, is
//! `unknown`: the failed starts may be the bad ones.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::Metric;
use pinfold_stats::{
    Block, Direction, Evidence, Interval, Rule, Verdict, holm, median, ratio_interval,
    sign_flip_blocks,
};

use super::findings;
use super::loaded::Loaded;
use super::ranking::{RankEntry, rank};
use super::report::{
    AaRow, CellReport, Contrast, Design, Failure, RankingRow, ScreeningRow, TuneReport, Winner,
};
use super::schedule::{Facts, Schedule};
use super::summary::{CellKey, Summaries, Summary, is_equal_time, time_ratio};
use crate::error::RunError;
use crate::store::{Phase, RunId, StartRecord, StartStatus, Store};

/// Computes a run's report from the store alone. For an unfinished run it reports the data so far.
///
/// # Errors
/// [`RunError`] if the store cannot be read or does not have this tuning run.
pub fn analyse(store: &Store, run: RunId) -> Result<TuneReport, RunError> {
    let analysis = Analysis::read(store, run)?;
    let record = store.run(run)?;
    let ranking = analysis.ranking();
    let aa = analysis.aa();
    let mut report = TuneReport {
        run,
        finished: record.finished_unix_s.is_some(),
        origin: record.origin,
        goal_load: analysis.loaded.config.goal_load(),
        winner: analysis.winner(&ranking, &aa),
        ranking,
        aa,
        screening: analysis.screening_rows(),
        dropped: analysis.course.dropped.clone(),
        same_as: analysis.same_as(),
        failures: analysis.failures(),
        findings: Vec::new(),
        design: analysis.design()?,
        config: analysis.loaded.config.clone(),
    };
    report.findings = findings::findings(&report, &analysis.confirmation, &record.sessions);
    Ok(report)
}

struct Analysis {
    loaded: Loaded,
    course: Schedule,
    screening: Summaries,
    confirmation: Summaries,
    /// Confirmed candidates besides the baseline.
    kept: Vec<usize>,
    /// Number of blocks of the confirmation.
    blocks: u32,
}

/// Paired values of one comparison, before the correction.
struct Pairs {
    blocks: Vec<Block>,
    p: Option<f64>,
    /// Some block has only one side, although both were started.
    incomplete: bool,
    /// Samples were dropped: of the candidate, of the baseline.
    dropped: (bool, bool),
    /// Mean observation time over the blocks, relative to the baseline's.
    time: f64,
}

impl Analysis {
    fn read(store: &Store, run: RunId) -> Result<Self, RunError> {
        let loaded = Loaded::read(store, run)?;
        let confirm = loaded.confirm.clone();
        let blocks = confirm.as_ref().map_or(0, |confirm| confirm.blocks);
        let screening = Summaries::load(store, run, Phase::Screening, u32::MAX)?;
        let confirmation = Summaries::load(store, run, Phase::Confirmation, blocks)?;
        let course = Schedule::from_facts(&Facts {
            loaded: &loaded,
            screening: &screening,
            confirmation: &confirmation,
            // Blocks that have not started are not reported.
            has_time: &|_| false,
        });
        Ok(Self {
            course,
            screening,
            confirmation,
            kept: confirm.map(|confirm| confirm.kept).unwrap_or_default(),
            blocks,
            loaded,
        })
    }

    fn name(&self, candidate: usize) -> String {
        self.loaded.records[candidate].name.clone()
    }

    fn ranking(&self) -> Vec<RankingRow> {
        if self.confirmation.keys().is_empty() {
            return Vec::new();
        }
        let contrasts = self.contrasts(&self.kept);
        let mut candidates = self.kept.clone();
        candidates.push(self.loaded.baseline);
        candidates.sort_unstable();
        let mut standings = rank(&self.loaded.config, &self.confirmation, &candidates);
        standings.sort_by_key(|standing| self.is_dropped(standing.candidate));
        standings.into_iter().map(|standing| self.row(standing, &contrasts)).collect()
    }

    /// True if it was dropped in the confirmation.
    fn is_dropped(&self, candidate: usize) -> bool {
        self.is_dropped_in(Phase::Confirmation, candidate)
    }

    fn is_dropped_in(&self, phase: Phase, candidate: usize) -> bool {
        let mut dropped = self.course.dropped.iter();
        dropped.any(|one| one.phase == phase && one.candidate == candidate)
    }

    fn row(
        &self,
        standing: RankEntry,
        contrasts: &BTreeMap<(usize, CellKey), Contrast>,
    ) -> RankingRow {
        let candidate = standing.candidate;
        let cells = self.confirmation.keys().into_iter().filter_map(|key| {
            let (load, metric) = key;
            let blocks = self.confirmation.values(candidate, key);
            let dropped = self.confirmation.by_block(candidate, key).into_values();
            let worse = if metric.higher_is_better() { f64::min } else { f64::max };
            Some(CellReport {
                load,
                metric,
                median: median(&blocks)?,
                worst: blocks.iter().copied().reduce(worse)?,
                blocks,
                dropped: dropped.map(|one| one.dropped).sum(),
                against_baseline: contrasts.get(&(candidate, key)).cloned(),
            })
        });
        RankingRow {
            candidate,
            name: self.name(candidate),
            is_baseline: candidate == self.loaded.baseline,
            score: standing.score(self.loaded.config.goal),
            blocks: self.confirmation.count_measured(candidate),
            dropped: self.is_dropped(candidate),
            cells: cells.collect(),
            standing,
        }
    }

    /// Every comparison with the baseline, corrected over `family` within its key.
    fn contrasts(&self, family: &[usize]) -> BTreeMap<(usize, CellKey), Contrast> {
        let mut contrasts = BTreeMap::new();
        for key in self.confirmation.keys() {
            let pairs: Vec<Pairs> =
                family.iter().map(|&candidate| self.pairs(candidate, key)).collect();
            // A candidate without a p-value still counts as a member of the family.
            let raw: Vec<f64> = pairs.iter().map(|pairs| pairs.p.unwrap_or(1.0)).collect();
            for ((&candidate, pairs), p_holm) in family.iter().zip(&pairs).zip(holm(&raw)) {
                let mut contrast = self.contrast(pairs, p_holm, key.1, family.len());
                if self.is_dropped(candidate) && contrast.pairs < self.blocks {
                    // It was dropped because of these data, so they give no verdict in addition.
                    // Dropping it after the last block had no effect.
                    let (have, need) = (contrast.pairs, self.blocks.max(contrast.pairs + 1));
                    contrast.verdict = Verdict::Unknown { have, need };
                }
                contrasts.insert((candidate, key), contrast);
            }
        }
        contrasts
    }

    fn pairs(&self, candidate: usize, key: CellKey) -> Pairs {
        let own = self.confirmation.by_block(candidate, key);
        let base = self.confirmation.by_block(self.loaded.baseline, key);
        let both_ended: BTreeSet<u32> = self
            .confirmation
            .ended_blocks(candidate)
            .intersection(&self.confirmation.ended_blocks(self.loaded.baseline))
            .copied()
            .collect();
        let blocks: Vec<Block> = own
            .iter()
            .filter_map(|(block, own)| Some(Block::pair(own.value, base.get(block)?.value)))
            .collect();
        Pairs {
            p: sign_flip_blocks(&blocks),
            incomplete: blocks.len() < both_ended.len(),
            dropped: (has_dropped(&own), has_dropped(&base)),
            time: time_ratio(&own, &base).unwrap_or(1.0),
            blocks,
        }
    }

    fn contrast(&self, pairs: &Pairs, p_holm: f64, metric: Metric, family: usize) -> Contrast {
        let config = &self.loaded.config;
        let family = u32::try_from(family).unwrap_or(u32::MAX);
        let have = u32::try_from(pairs.blocks.len()).unwrap_or(u32::MAX);
        let rule = Rule {
            alpha: config.alpha,
            margin: config.margin,
            blocks_needed: config.least_blocks(family),
        };
        let direction = Direction::new(metric.higher_is_better());
        let interval = ratio_interval(&pairs.blocks);
        let verdict = match interval {
            // Not missing at random: neither side may profit from it.
            _ if pairs.incomplete => Verdict::Unknown { have, need: self.blocks.max(have + 1) },
            None => Verdict::Unknown { have, need: rule.blocks_needed },
            Some(interval) => {
                let evidence = Evidence { blocks: have, interval, p_holm };
                let verdict = Verdict::from_evidence(&evidence, direction, &rule);
                let verdict = allow_for_time(verdict, metric, interval, pairs.time, have);
                censor(verdict, metric, pairs.dropped.0, pairs.dropped.1, have)
            }
        };
        Contrast { pairs: have, interval, p_holm: pairs.p.map(|_| p_holm), verdict }
    }

    fn aa(&self) -> Vec<AaRow> {
        self.contrasts(&[self.loaded.twin])
            .into_iter()
            .filter(|(_, contrast)| contrast.pairs > 0)
            .map(|((_, (load, metric)), contrast)| AaRow { load, metric, contrast })
            .collect()
    }

    fn winner(&self, ranking: &[RankingRow], aa: &[AaRow]) -> Option<Winner> {
        let best = ranking.first().filter(|row| row.score.is_some())?;
        let config = &self.loaded.config;
        let (metric, load) = (config.metric(), config.goal_load());
        let against_baseline =
            best.cell(metric, load).and_then(|cell| cell.against_baseline.clone());
        let ratio = against_baseline.as_ref().and_then(|contrast| contrast.interval);
        let noise = aa
            .iter()
            .find(|row| row.metric == metric && row.load == load)
            .and_then(|row| row.contrast.interval);
        Some(Winner {
            candidate: best.candidate,
            name: best.name.clone(),
            within_noise: ratio
                .zip(noise)
                .is_some_and(|(ratio, noise)| noise.contains(ratio.ratio)),
            against_baseline,
        })
    }

    fn screening_rows(&self) -> Vec<ScreeningRow> {
        if self.screening.starts.is_empty() {
            return Vec::new();
        }
        let mut candidates = self.loaded.distinct.clone();
        candidates.push(self.loaded.baseline);
        candidates.sort_unstable();
        let mut standings = rank(&self.loaded.config, &self.screening, &candidates);
        // Fewer blocks: its median cannot be compared with those of the others.
        standings.sort_by_key(|standing| self.is_dropped_in(Phase::Screening, standing.candidate));
        standings
            .into_iter()
            .map(|standing| ScreeningRow {
                ratio: self.screening_ratio(standing.candidate),
                name: self.name(standing.candidate),
                blocks: self.screening.count_measured(standing.candidate),
                kept: standing.candidate == self.loaded.baseline
                    || self.kept.contains(&standing.candidate),
                standing,
            })
            .collect()
    }

    /// Median over the blocks of the screening of the ratio to the baseline, in the goal's metric.
    fn screening_ratio(&self, candidate: usize) -> Option<f64> {
        let key = (self.loaded.config.goal_load(), self.loaded.config.metric());
        let base = self.screening.by_block(self.loaded.baseline, key);
        let own = self.screening.by_block(candidate, key);
        let ratios = own
            .iter()
            .filter_map(|(block, own)| Block::pair(own.value, base.get(block)?.value).ratio());
        median(&ratios.collect::<Vec<f64>>())
    }

    fn same_as(&self) -> Vec<(String, String)> {
        let records = self.loaded.records.iter().enumerate();
        records
            .filter(|(index, _)| *index != self.loaded.twin)
            .filter_map(|(_, record)| Some((record.name.clone(), self.name(record.same_as?))))
            .collect()
    }

    fn all_starts(&self) -> impl Iterator<Item = &StartRecord> {
        self.screening.starts.iter().chain(&self.confirmation.starts)
    }

    fn failures(&self) -> Vec<Failure> {
        let failed = self.all_starts().filter_map(|start| {
            Some(Failure {
                phase: start.slot.phase,
                block: start.slot.block,
                name: self.name(start.slot.candidate),
                message: start.error.clone()?,
                recovered: start.status == StartStatus::Ok,
            })
        });
        failed.collect()
    }

    fn design(&self) -> Result<Design, RunError> {
        let prediction = self.loaded.prediction()?;
        let Schedule { screening, confirmation, .. } = self.course.clone();
        let confirm = self.loaded.confirm.clone();
        let raced: usize = screening.iter().map(Vec::len).sum();
        let planned = match &confirm {
            None => raced + (prediction.confirm_blocks * prediction.block_starts()) as usize,
            Some(_) => raced + confirmation.iter().map(Vec::len).sum::<usize>(),
        };
        let blocks = confirm.as_ref().map_or(prediction.confirm_blocks, |plan| plan.blocks);
        let everybody = u32::try_from(self.loaded.distinct.len() + 2).unwrap_or(u32::MAX);
        Ok(Design {
            screening,
            screening_observation_s: prediction.observation_s,
            confirm,
            confirmation,
            done: u32::try_from(self.all_starts().count()).unwrap_or(u32::MAX),
            planned: u32::try_from(planned).unwrap_or(u32::MAX),
            full: everybody.saturating_mul(blocks),
            spent_s: self.all_starts().map(|start| start.duration_ns as f64 / 1e9).sum(),
        })
    }
}

fn has_dropped(side: &BTreeMap<u32, Summary>) -> bool {
    side.values().any(|one| one.dropped > 0)
}

/// Withdraws a verdict that dropped samples might have changed: a maximum or quantile of the
/// remaining samples may be too small, never too large.
fn censor(
    verdict: Verdict,
    metric: Metric,
    own_lost: bool,
    baseline_lost: bool,
    have: u32,
) -> Verdict {
    let is_tail = match metric {
        Metric::SpinGap | Metric::Wakeup | Metric::RunDelay => true,
        Metric::ComputeRate | Metric::IoAhci | Metric::IoVirtio => false,
    };
    let doubtful = match verdict {
        Verdict::Better => own_lost,
        Verdict::Worse => baseline_lost,
        Verdict::Same => own_lost || baseline_lost,
        Verdict::Unknown { .. } => false,
    };
    if is_tail && doubtful { Verdict::Unknown { have, need: have } } else { verdict }
}

/// A longest wait grows with the observation time, at most in proportion unless the tail is heavier
/// than 1/x. A verdict that the observation times alone could explain is withdrawn.
fn allow_for_time(
    verdict: Verdict,
    metric: Metric,
    interval: Interval,
    time: f64,
    have: u32,
) -> Verdict {
    if !metric.is_gap() || is_equal_time(time) {
        return verdict;
    }
    match verdict {
        Verdict::Better if interval.high < time => verdict,
        Verdict::Worse if interval.low > time => verdict,
        Verdict::Better | Verdict::Worse | Verdict::Same | Verdict::Unknown { .. } => {
            Verdict::Unknown { have, need: have }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_that_unequal_times_explain_is_none() {
        check(Verdict::Better, 0.05, 0.8, 1.0, true);
        check(Verdict::Better, 0.05, 0.8, 0.7, false);
        check(Verdict::Better, 0.05, 0.1, 0.7, true);
        check(Verdict::Better, 0.05, 0.8, 1.5, true);
        check(Verdict::Worse, 1.2, 2.0, 1.5, false);
        check(Verdict::Worse, 1.2, 2.0, 0.7, true);
        check(Verdict::Same, 0.99, 1.01, 1.5, false);
    }

    fn check(verdict: Verdict, low: f64, high: f64, time: f64, stays: bool) {
        let interval = Interval { ratio: f64::midpoint(low, high), low, high };
        let found = allow_for_time(verdict, Metric::SpinGap, interval, time, 8);
        assert_eq!(found == verdict, stays, "{verdict:?} {low} to {high}, time {time}");
        let rate = allow_for_time(verdict, Metric::ComputeRate, interval, time, 8);
        assert_eq!(rate, verdict, "a median does not grow with the time");
    }
}
