//! The schedule of a run, computed from the data so far: the next block, and which candidates were
//! dropped and when.
//!
//! It is not stored. It follows from the settings, the seed and the starts that have ended, so a
//! resumed run takes the same decisions.
//!
//! ```text
//! race (screening): all, without the twin; after each block from the second on, candidates that
//!   │               cannot win any more are dropped ([`RaceRule`])
//!   ▼  at most `keep` are left, or its blocks are used up and no other candidate may be the best
//! confirmation: those left, none and its twin; interim analyses continue over all blocks
//! ```
//! Neither the baseline nor its twin is ever dropped: verdicts and the noise floor need them.

use std::collections::BTreeMap;

use pinfold_stats::{ParticipantResults, RaceRule, RaceTest};

use super::config::{BALANCED_SHARE, ConfirmPlan, Goal, TuneConfig};
use super::design::{PlannedStart, block_order};
use super::loaded::Loaded;
use super::ranking::{RankEntry, rank};
use super::summary::Summaries;
use crate::store::Phase;

/// A race continues while a candidate that would be left out at its end has a larger uncorrected
/// p-value of "it is better than the leader".
const LEFT_OUT: f64 = 0.2;

/// A candidate that was dropped before the end of the run, with the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Dropped {
    /// Index of the candidate.
    pub candidate: usize,
    /// Name of the candidate.
    pub name: String,
    /// The phase in which it was dropped.
    pub phase: Phase,
    /// The block after which it was dropped, from 0.
    pub block: u32,
    /// Number of blocks in which it took part, over both phases.
    pub blocks: u32,
    /// Name of the leader that it cannot beat any more.
    pub leader: String,
    /// Median ratio to the leader's value, in the goal's metric.
    pub ratio: f64,
    /// The test that dropped it.
    pub test: RaceTest,
    /// p-value of "it is better than the leader by more than the margin".
    pub p: f64,
    /// Upper limit of the p-value for dropping.
    pub level: f64,
}

/// The next action.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum NextAction {
    /// Run the starts of a block that have not ended.
    Block(Phase, u32),
    /// Decide which candidates are confirmed.
    Settle,
    /// All starts are done.
    End,
}

/// The state of a run.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    /// Blocks of the race, as they were run and as far as they are known.
    pub screening: Vec<Vec<PlannedStart>>,
    /// Blocks of the confirmation, without candidates that are known to be dropped.
    pub confirmation: Vec<Vec<PlannedStart>>,
    /// The dropped candidates, in order.
    pub dropped: Vec<Dropped>,
    /// Candidates besides the baseline that are still in the race.
    pub running: Vec<usize>,
    /// The next action.
    pub turn: NextAction,
}

/// The data that determine a schedule.
pub(super) struct Facts<'a> {
    pub loaded: &'a Loaded,
    pub screening: &'a Summaries,
    pub confirmation: &'a Summaries,
    /// True if there is time for one more block of the race, with this number of candidates.
    pub has_time: &'a dyn Fn(usize) -> bool,
}

/// The results of all candidates so far.
struct InterimResults {
    /// All candidates that ever ran, the baseline last.
    who: Vec<usize>,
    /// The candidates that still run, the best first.
    standings: Vec<RankEntry>,
    /// One lane for each entry of `who`.
    lanes: Vec<ParticipantResults>,
    /// Index of the leader in `who`.
    leader: usize,
}

impl Schedule {
    /// The schedule so far.
    pub(super) fn from_facts(facts: &Facts<'_>) -> Self {
        let mut course = Self {
            screening: Vec::new(),
            confirmation: Vec::new(),
            dropped: Vec::new(),
            running: facts.loaded.distinct.clone(),
            turn: NextAction::End,
        };
        let raced = course.race(facts);
        match (&facts.loaded.confirm, raced) {
            (Some(confirm), _) => course.confirm(facts, confirm),
            (None, Some(turn)) => course.turn = turn,
            (None, None) => course.turn = NextAction::Settle,
        }
        course
    }

    /// The race; returns the next action if it has not ended.
    fn race(&mut self, facts: &Facts<'_>) -> Option<NextAction> {
        let Loaded { config, confirm, .. } = facts.loaded;
        if self.running.len() <= config.keep as usize {
            return None;
        }
        for block in 0.. {
            let begun = facts.screening.starts.iter().any(|start| start.slot.block == block);
            let planned = block < config.screening_blocks;
            if self.running.len() <= config.keep as usize
                || !(begun || planned || self.has_more(config, block, confirm, facts))
            {
                return None;
            }
            if confirm.is_some() && !begun {
                return None;
            }
            let who = self.participants(facts, false);
            self.screening.push(order(facts, Phase::Screening, block, &who));
            if !facts.screening.has_ended(block, &who) {
                // Assuming that no further candidate is dropped.
                for later in block + 1..config.screening_blocks {
                    self.screening.push(order(facts, Phase::Screening, later, &who));
                }
                return Some(NextAction::Block(Phase::Screening, block));
            }
            self.look(facts, Phase::Screening, block);
        }
        None
    }

    fn has_more(
        &self,
        config: &TuneConfig,
        block: u32,
        confirm: &Option<ConfirmPlan>,
        facts: &Facts<'_>,
    ) -> bool {
        config.race.is_some()
            && block < config.most_race_blocks()
            && confirm.is_none()
            && self.is_open(facts, block)
            && (facts.has_time)(self.running.len())
    }

    fn confirm(&mut self, facts: &Facts<'_>, confirm: &ConfirmPlan) {
        self.running = confirm.kept.clone();
        let mut turn = None;
        for block in 0..confirm.blocks {
            let who = self.participants(facts, true);
            self.confirmation.push(order(facts, Phase::Confirmation, block, &who));
            if turn.is_none() {
                if facts.confirmation.has_ended(block, &who) {
                    self.look(facts, Phase::Confirmation, block)
                } else {
                    turn = Some(NextAction::Block(Phase::Confirmation, block))
                }
            }
        }
        self.turn = turn.unwrap_or(NextAction::End);
    }

    fn participants(&self, facts: &Facts<'_>, with_twin: bool) -> Vec<usize> {
        let mut who = self.running.clone();
        who.push(facts.loaded.baseline);
        who.extend(with_twin.then_some(facts.loaded.twin));
        who.sort_unstable();
        who
    }

    /// Drops the candidates that cannot win any more after this block.
    fn look(&mut self, facts: &Facts<'_>, phase: Phase, block: u32) {
        let config = &facts.loaded.config;
        let Some(alpha) = config.race else { return };
        let raced = u32::try_from(self.screening.len()).unwrap_or(u32::MAX);
        let (so_far, blocks) = match phase {
            Phase::Screening => {
                (facts.screening.chain(block + 1, &Summaries::default(), 0), block + 1)
            }
            Phase::Confirmation => {
                let confirmed = facts.screening.chain(raced, facts.confirmation, block + 1);
                (confirmed, raced.saturating_add(block + 1))
            }
        };
        let Some(view) = self.view(facts, &so_far, blocks) else { return };
        let rule =
            RaceRule { alpha, margin: config.margin, blocks: config.interim_analysis_count() };
        for loss in rule.find_eliminations(&view.lanes, view.leader) {
            let candidate = view.who[loss.lane];
            self.running.retain(|one| *one != candidate);
            self.dropped.push(Dropped {
                candidate,
                name: name(facts, candidate),
                phase,
                block,
                blocks,
                leader: name(facts, view.who[view.leader]),
                ratio: if config.metric().higher_is_better() {
                    1.0 / loss.ratio
                } else {
                    loss.ratio
                },
                test: loss.test,
                p: loss.p,
                level: loss.level,
            });
        }
    }

    /// True if a candidate that would be left out now may be the best.
    fn is_open(&self, facts: &Facts<'_>, blocks: u32) -> bool {
        let config = &facts.loaded.config;
        let Some(alpha) = config.race else { return false };
        let so_far = facts.screening.chain(blocks, &Summaries::default(), 0);
        let Some(view) = self.view(facts, &so_far, blocks) else { return false };
        let rule =
            RaceRule { alpha, margin: config.margin, blocks: config.interim_analysis_count() };
        let left_out = view
            .standings
            .iter()
            .filter(|standing| standing.candidate != facts.loaded.baseline)
            .skip(config.keep as usize);
        left_out.map(|standing| standing.candidate).any(|candidate| {
            let lane = view.who.iter().position(|one| *one == candidate);
            lane.and_then(|lane| rule.p_value(&view.lanes, lane, view.leader))
                .is_none_or(|p| p > LEFT_OUT)
        })
    }

    /// The results of all candidates; `None` while there is no leader.
    fn view(&self, facts: &Facts<'_>, so_far: &Summaries, blocks: u32) -> Option<InterimResults> {
        let config = &facts.loaded.config;
        // All candidates that ever ran: those that left still contribute to the variance.
        let mut who = facts.loaded.distinct.clone();
        who.push(facts.loaded.baseline);
        let running: Vec<usize> =
            who.iter().copied().filter(|one| self.is_still_running(facts, *one)).collect();
        let standings = rank(config, so_far, &running);
        let first = standings.first().filter(|one| one.score(config.goal).is_some())?;
        let leader = who.iter().position(|one| *one == first.candidate)?;
        let by_candidate: BTreeMap<usize, &RankEntry> =
            standings.iter().map(|standing| (standing.candidate, standing)).collect();
        let lanes: Vec<ParticipantResults> = who
            .iter()
            .map(|&candidate| {
                let length = if self.is_still_running(facts, candidate) {
                    blocks
                } else {
                    self.left_after(candidate).unwrap_or(0)
                };
                let may_go = self.running.contains(&candidate)
                    && by_candidate
                        .get(&candidate)
                        .is_some_and(|one| is_beaten(config, one, first));
                ParticipantResults {
                    blocks: so_far.participant_values(config, candidate, length),
                    may_go,
                }
            })
            .collect();
        Some(InterimResults { who, standings, lanes, leader })
    }

    fn is_still_running(&self, facts: &Facts<'_>, candidate: usize) -> bool {
        self.running.contains(&candidate) || candidate == facts.loaded.baseline
    }

    /// Number of blocks in which a candidate took part before it left.
    fn left_after(&self, candidate: usize) -> Option<u32> {
        let dropped = self.dropped.iter().find(|dropped| dropped.candidate == candidate);
        // A candidate that was neither kept nor dropped left at the end of the race.
        dropped.map(|dropped| dropped.blocks).or_else(|| u32::try_from(self.screening.len()).ok())
    }
}

fn name(facts: &Facts<'_>, index: usize) -> String {
    facts.loaded.records[index].name.clone()
}

/// True if the leader is at least as good in everything except the goal's value: the constraint and
/// the rate that `balanced` requires. These are compared by observed values, without a test.
fn is_beaten(config: &TuneConfig, one: &RankEntry, leader: &RankEntry) -> bool {
    let gap = config.max_gap_ns.is_none_or(|_| {
        let worst = one.worst_gap_ns.zip(leader.worst_gap_ns);
        (one.violates && !leader.violates) || worst.is_some_and(|(one, leader)| one >= leader)
    });
    let rate = match config.goal {
        Goal::Latency | Goal::Throughput => true,
        Goal::Balanced => {
            let rates = one.rate_per_s.zip(leader.rate_per_s);
            rates.is_none_or(|(one, leader)| leader >= one * BALANCED_SHARE)
        }
    };
    gap && rate
}

fn order(facts: &Facts<'_>, phase: Phase, block: u32, who: &[usize]) -> Vec<PlannedStart> {
    let TuneConfig { seed, load_states, .. } = &facts.loaded.config;
    block_order(*seed, phase, block, who, load_states)
}
