//! Simulates a race on recorded data: the starts that it would have made, and its winner.
//!
//! A [`Matrix`] has the values of a run in which every candidate was started in every block
//! (`pinfold tune --full`). [`replay`] simulates a race on it with the decisions of the engine
//! ([`Schedule`]); [`full`] is the winner of the whole matrix. Text form, one value per line:
//!
//! ```text
//! block,candidate,host,guest,metric,value
//! 0,none,idle,loaded,spin-gap,5123000
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use pinfold_model::{LoadState, Metric};
use pinfold_stats::residuals;

use super::config::TuneConfig;
use super::create::{NONE, TWIN_NAME};
use super::documents::ConfirmPlan;
use super::engine::kept_of;
use super::error::TuneError;
use super::loaded::Loaded;
use super::ranking::rank;
use super::schedule::{Facts, NextAction, Schedule};
use super::summary::{CellKey, Summaries, Summary};
use crate::store::{
    CandidateRecord, CandidateRole, Phase, RunId, Slot, StartRecord, StartStatus, Store,
};

const HEAD: &str = "block,candidate,host,guest,metric,value";

/// Values of every candidate in every block.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Names of the candidates, including [`NONE`] and [`TWIN_NAME`].
    pub names: Vec<String>,
    /// The values by block and candidate.
    blocks: Vec<Vec<BTreeMap<CellKey, f64>>>,
}

/// Why a text is not a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixError {
    /// Line number, from 1; 0 for an error of the text as a whole.
    pub line: usize,
    /// What is wrong with the line.
    pub why: String,
}

impl fmt::Display for MatrixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.why),
            line => write!(f, "line {line}: {}", self.why),
        }
    }
}

impl std::error::Error for MatrixError {}

/// Result of a simulated race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Number of starts.
    pub starts: u32,
    /// Index of the winner.
    pub winner: usize,
    /// Candidates that were dropped by a test, in order.
    pub dropped: Vec<usize>,
    /// Candidates that were left out without a test.
    pub left_out: Vec<usize>,
}

impl Matrix {
    /// The blocks of a run's confirmation in which all its candidates were measured.
    ///
    /// # Errors
    /// [`TuneError`] if the store cannot be read or does not have this run.
    pub fn of_run(store: &Store, run: RunId) -> Result<Self, TuneError> {
        let loaded = Loaded::read(store, run)?;
        let all = Summaries::load(store, run, Phase::Confirmation, u32::MAX)?;
        let mut who = loaded.distinct.clone();
        who.extend([loaded.baseline, loaded.twin]);
        let keys = all.keys();
        let numbers: Vec<BTreeMap<u32, BTreeMap<CellKey, f64>>> = who
            .iter()
            .map(|&candidate| {
                let mut blocks: BTreeMap<u32, BTreeMap<CellKey, f64>> = BTreeMap::new();
                for &key in &keys {
                    for (block, summary) in all.by_block(candidate, key) {
                        blocks.entry(block).or_default().insert(key, rounded(summary.value));
                    }
                }
                blocks
            })
            .collect();
        let last = numbers.iter().filter_map(|blocks| blocks.keys().next_back()).max();
        let block = |block| numbers.iter().map(|blocks| blocks.get(&block).cloned()).collect();
        Ok(Self {
            names: who.iter().map(|&index| loaded.records[index].name.clone()).collect(),
            blocks: last.map_or(0..0, |last| 0..last + 1).filter_map(block).collect(),
        })
    }

    /// Number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// True if there are no blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The matrix without some candidates.
    #[must_use]
    pub fn only(&self, keep: impl Fn(&str) -> bool) -> Self {
        let kept: Vec<usize> = (0..self.names.len()).filter(|&i| keep(&self.names[i])).collect();
        let row =
            |row: &Vec<BTreeMap<CellKey, f64>>| kept.iter().map(|&i| row[i].clone()).collect();
        Self {
            names: kept.iter().map(|&index| self.names[index].clone()).collect(),
            blocks: self.blocks.iter().map(row).collect(),
        }
    }

    /// The matrix with the residuals of the logarithms (after removal of block and candidate
    /// effects) multiplied by `times`. Keys that not all candidates have are unchanged.
    #[must_use]
    pub fn with_spread(&self, times: f64) -> Self {
        let mut wider = self.clone();
        for key in self.keys() {
            let logs: Vec<Vec<f64>> = (0..self.len())
                .filter_map(|block| {
                    let log = |one| self.value(block, one, key).map(f64::ln);
                    (0..self.names.len()).map(log).collect()
                })
                .collect();
            if logs.len() < self.len() {
                continue;
            }
            for (block, rest) in residuals(&logs).iter().enumerate() {
                for (candidate, rest) in rest.iter().enumerate() {
                    let value = (logs[block][candidate] + (times - 1.0) * rest).exp();
                    wider.blocks[block][candidate].insert(key, value);
                }
            }
        }
        wider
    }

    /// Load states and metrics of the matrix.
    #[must_use]
    pub fn keys(&self) -> BTreeSet<(LoadState, Metric)> {
        self.blocks.iter().flatten().flat_map(|cells| cells.keys().copied()).collect()
    }

    /// The value of a candidate in a block.
    #[must_use]
    pub fn value(&self, block: usize, candidate: usize, key: (LoadState, Metric)) -> Option<f64> {
        self.blocks.get(block)?.get(candidate)?.get(&key).copied()
    }

    /// Index of a candidate.
    #[must_use]
    pub fn index(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| known == name)
    }

    /// The text form.
    #[must_use]
    pub fn to_text(&self) -> String {
        let word = |loaded: bool| if loaded { "loaded" } else { "idle" };
        let mut text = format!("{HEAD}\n");
        for (block, row) in self.blocks.iter().enumerate() {
            for (name, cells) in self.names.iter().zip(row) {
                for ((load, metric), value) in cells {
                    let (host, guest) = (word(load.host), word(load.guest));
                    let metric = metric.name();
                    text.push_str(&format!("{block},{name},{host},{guest},{metric},{value}\n"));
                }
            }
        }
        text
    }

    /// Parses the text form; lines that start with `#` are comments.
    ///
    /// # Errors
    /// [`MatrixError`] with the line.
    pub fn from_text(text: &str) -> Result<Self, MatrixError> {
        let mut matrix = Self { names: Vec::new(), blocks: Vec::new() };
        let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#'));
        for (index, line) in lines.filter(|(_, line)| *line != HEAD && !line.is_empty()) {
            matrix.read_line(line).map_err(|why| MatrixError { line: index + 1, why })?;
        }
        let wrong = |why: String| MatrixError { line: 0, why };
        for name in [NONE, TWIN_NAME] {
            if matrix.index(name).is_none() {
                return Err(wrong(format!("it lacks the candidate {name:?}")));
            }
        }
        for (block, row) in matrix.blocks.iter_mut().enumerate() {
            row.resize_with(matrix.names.len(), BTreeMap::new);
            if let Some(at) = row.iter().position(BTreeMap::is_empty) {
                return Err(wrong(format!("{:?} is not in block {block}", matrix.names[at])));
            }
        }
        Ok(matrix)
    }

    fn read_line(&mut self, line: &str) -> Result<(), String> {
        let fields: Vec<&str> = line.split(',').collect();
        let &[block, name, host, guest, metric, value] = fields.as_slice() else {
            return Err(format!("{line:?} has not the six fields {HEAD}"));
        };
        let block: usize = block.parse().map_err(|_| format!("block {block:?} is no number"))?;
        let loaded = |word: &str| match word {
            "loaded" => Ok(true),
            "idle" => Ok(false),
            other => Err(format!("{other:?} is neither idle nor loaded")),
        };
        let load = LoadState { host: loaded(host)?, guest: loaded(guest)? };
        let key = (
            load,
            Metric::from_name(metric).ok_or_else(|| format!("there is no metric {metric:?}"))?,
        );
        let number: Option<f64> = value.parse().ok().filter(|value: &f64| *value > 0.0);
        let number = number.filter(|value| value.is_finite());
        let number = number.ok_or_else(|| format!("{value:?} is no number above 0"))?;
        if block > self.blocks.len() {
            return Err(format!("block {block} follows block {}", self.blocks.len()));
        }
        if block == self.blocks.len() {
            self.blocks.push(Vec::new());
        }
        let candidate = self.index(name).unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        let row = &mut self.blocks[block];
        if row.len() <= candidate {
            row.resize_with(candidate + 1, BTreeMap::new);
        }
        match row[candidate].insert(key, number) {
            None => Ok(()),
            Some(_) => Err(format!("{name} has two numbers for {metric} in block {block}")),
        }
    }

    fn loaded(&self, config: &TuneConfig) -> Option<Loaded> {
        let (baseline, twin) = (self.index(NONE)?, self.index(TWIN_NAME)?);
        let record = |(index, name): (usize, &String)| CandidateRecord {
            name: name.clone(),
            plan_json: String::new(),
            role: match index {
                _ if index == baseline => CandidateRole::Baseline,
                _ if index == twin => CandidateRole::Twin,
                _ => CandidateRole::Candidate,
            },
            same_as: (index == twin).then_some(baseline),
        };
        let rest = (0..self.names.len()).filter(|index| ![baseline, twin].contains(index));
        Some(Loaded {
            config: config.clone(),
            records: self.names.iter().enumerate().map(record).collect(),
            confirm: None,
            baseline,
            twin,
            distinct: rest.collect(),
        })
    }

    /// Adds a start as if it had just been measured.
    fn start(&self, into: &mut Summaries, slot: Slot, recorded: usize) {
        let cells = &self.blocks[recorded][slot.candidate];
        let summary = |value: f64| Summary { value, observed_ns: 1, taken_ns: 0, dropped: 0 };
        let record = StartRecord {
            slot,
            position: 0,
            status: StartStatus::Ok,
            attempts: 1,
            error: None,
            began_unix_s: 0,
            duration_ns: 0,
        };
        into.add_numbers(
            record,
            cells.iter().map(|(key, value)| (*key, summary(*value))).collect(),
        );
    }
}

/// Simulates a race: `order` gives the recorded block for each of its blocks. The confirmation has
/// the minimum number of blocks for a verdict. `None` if there are too few blocks in the order, no
/// such candidates, or values for the goal are missing.
#[must_use]
pub fn replay(matrix: &Matrix, config: &TuneConfig, order: &[usize]) -> Option<Replayed> {
    let mut loaded = matrix.loaded(config)?;
    let (mut screening, mut confirmation) = (Summaries::default(), Summaries::default());
    let mut starts = 0;
    loop {
        let facts = Facts {
            loaded: &loaded,
            screening: &screening,
            confirmation: &confirmation,
            has_time: &|_| true,
        };
        let course = Schedule::of(&facts);
        let (planned, into, at) = match course.turn {
            NextAction::Settle => {
                let kept = kept_of(config, &screening, &course.running);
                let confirmed = u32::try_from(kept.len()).unwrap_or(u32::MAX);
                let blocks = config.least_blocks(confirmed);
                loaded.confirm = Some(ConfirmPlan { kept, blocks, observation_s: 0.0 });
                continue;
            }
            NextAction::Block(Phase::Screening, block) => {
                (&course.screening[block as usize], &mut screening, block as usize)
            }
            NextAction::Block(Phase::Confirmation, block) => {
                let at = course.screening.len() + block as usize;
                (&course.confirmation[block as usize], &mut confirmation, at)
            }
            NextAction::End => {
                let kept = loaded.confirm.as_ref().map(|plan| plan.kept.clone())?;
                let dropped: Vec<usize> = course.dropped.iter().map(|one| one.candidate).collect();
                let is_gone = |one: &&usize| !kept.contains(one) && !dropped.contains(one);
                let left_out = loaded.distinct.iter().filter(is_gone).copied().collect();
                let winner = winner(config, &loaded, &confirmation, &course.running)?;
                return Some(Replayed { starts, winner, dropped, left_out });
            }
        };
        for start in planned.clone() {
            matrix.start(into, start.slot, *order.get(at)?);
            starts += 1;
        }
    }
}

/// The winner of the full matrix: every candidate in each of these blocks.
#[must_use]
pub fn full(matrix: &Matrix, config: &TuneConfig, order: &[usize]) -> Option<Replayed> {
    let loaded = matrix.loaded(config)?;
    let mut all = Summaries::default();
    for (block, recorded) in (0..).zip(order) {
        for candidate in 0..matrix.names.len() {
            matrix.start(
                &mut all,
                Slot { phase: Phase::Confirmation, block, candidate },
                *recorded,
            );
        }
    }
    Some(Replayed {
        starts: u32::try_from(order.len() * matrix.names.len()).unwrap_or(u32::MAX),
        winner: winner(config, &loaded, &all, &loaded.distinct)?,
        dropped: Vec::new(),
        left_out: Vec::new(),
    })
}

fn winner(
    config: &TuneConfig,
    loaded: &Loaded,
    numbers: &Summaries,
    running: &[usize],
) -> Option<usize> {
    let mut who = running.to_vec();
    who.push(loaded.baseline);
    who.sort_unstable();
    let first = rank(config, numbers, &who).into_iter().next()?;
    first.score(config.goal).map(|_| first.candidate)
}

/// Six significant digits: more than any benchmark provides, and shorter.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use pinfold_stats::random::Pcg32;

    use super::super::config::{Costs, Goal};
    use super::*;

    fn matrix(levels: &[(&str, f64)], blocks: usize) -> Matrix {
        let mut generator = Pcg32::new(9, 9);
        let mut text = format!("# made by the test\n{HEAD}\n");
        for block in 0..blocks {
            for (name, level) in levels {
                let gap = level * (0.3 * generator.unit()).exp();
                text.push_str(&format!("{block},{name},loaded,loaded,spin-gap,{gap}\n"));
            }
        }
        Matrix::from_text(&text).unwrap()
    }

    const SIX: [(&str, f64); 7] = [
        ("none", 5e6),
        ("a", 1e6),
        ("b", 3e6),
        ("c", 4e6),
        ("d", 9e6),
        ("e", 7e6),
        (TWIN_NAME, 5e6),
    ];

    fn config() -> TuneConfig {
        let costs = Costs { start_s: 1.0, state_s: 0.0, per_observed_s: 1.0 };
        let usual = TuneConfig::new(Goal::Latency, 100.0, 1, costs);
        TuneConfig { load_states: vec![LoadState::BOTH], ..usual }
    }

    #[test]
    fn a_race_finds_the_winner_of_the_full_matrix_with_fewer_starts() {
        let matrix = matrix(&SIX, 16);
        let order: Vec<usize> = (0..16).collect();
        let whole = full(&matrix, &config(), &order).unwrap();
        assert_eq!((whole.winner, whole.starts), (1, 16 * 7));
        let race = replay(&matrix, &config(), &order).unwrap();
        assert_eq!(race.winner, 1);
        assert!(race.starts < 60, "{race:?}");
        assert_eq!(race, replay(&matrix, &config(), &order).unwrap());
        // Too few blocks for the race and the eight of the confirmation.
        assert_eq!(replay(&matrix, &config(), &order[..8]), None);
        let two = matrix.only(|name| ["none", TWIN_NAME, "b"].contains(&name));
        assert_eq!(replay(&two, &config(), &order).unwrap().starts, 8 * 3);
    }

    #[test]
    fn a_wider_spread_keeps_blocks_and_candidates() {
        let matrix = matrix(&SIX, 16);
        let log = |matrix: &Matrix, block, one| {
            let key = (LoadState::BOTH, Metric::SpinGap);
            matrix.value(block, one, key).unwrap().ln()
        };
        let wider = matrix.with_spread(2.0);
        let mean = |matrix: &Matrix, one| (0..16).map(|b| log(matrix, b, one)).sum::<f64>() / 16.0;
        let sum = |matrix: &Matrix, block| (0..7).map(|one| log(matrix, block, one)).sum::<f64>();
        // The deviation of the difference of two candidates in a block from their mean difference
        // doubles.
        let rest = |matrix: &Matrix, block| {
            log(matrix, block, 1) - log(matrix, block, 4) - mean(matrix, 1) + mean(matrix, 4)
        };
        for block in 0..16 {
            assert!((sum(&matrix, block) - sum(&wider, block)).abs() < 1e-9);
            assert!((2.0 * rest(&matrix, block) - rest(&wider, block)).abs() < 1e-9);
        }
        assert!((mean(&matrix, 3) - mean(&wider, 3)).abs() < 1e-9);
    }

    #[test]
    fn the_text_form_reads_back_and_reports_what_is_wrong() {
        let matrix = matrix(&SIX, 2);
        assert_eq!(Matrix::from_text(&matrix.to_text()).unwrap(), matrix);
        let check = |change: &dyn Fn(&str) -> String, expected: &str| {
            let error = Matrix::from_text(&change(&matrix.to_text())).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        };
        check(&|text| text.replace("1,a,", "7,a,"), "line 10: block 7 follows block 2");
        check(&|text| format!("{text}0,a,idle,idle,spin-gap,-1\n"), "\"-1\" is no number above 0");
        check(&|text| format!("{text}0,a,idle,busy,spin-gap,1\n"), "neither idle nor loaded");
        check(&|text| format!("{text}0,a,idle,idle,fame,1\n"), "there is no metric \"fame\"");
        check(&|text| format!("{text}0,a\n"), "has not the six fields");
        check(&|text| text.replace(",none,", ",nobody,"), "lacks the candidate \"none\"");
        check(&|text| format!("{text}0,z,idle,idle,spin-gap,1\n"), "\"z\" is not in block 1");
    }
}
