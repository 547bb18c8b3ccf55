//! Randomised complete blocks of a study: each cell once per block (or as often as it has starts),
//! and baseline cells once more.
//!
//! Cells that share a start run in one start, in random order. Starts of cells that belong together
//! follow each other, so that what is compared is close in time; everything else is in random
//! order. The order depends only on the seed, the block and the cells: a resumed run rebuilds the
//! same design.

use std::collections::BTreeMap;

use pinfold_stats::random::Pcg32;

use super::cells::Cells;
use super::file::Study;
use crate::store::TrialRecord;

/// Streams of the generator for studies; those of `tune` are below.
const STREAM: u64 = 3 << 32;

/// Position of a trial in the design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrialSlot {
    /// Block, from 0.
    pub block: u32,
    /// Index of the cell.
    pub cell: usize,
    /// Index of the start of this cell in the block, from 0.
    pub start: u32,
    /// True for the twin of a baseline cell.
    pub twin: bool,
}

impl TrialSlot {
    /// The position of a stored trial.
    pub fn from_record(record: &TrialRecord) -> Self {
        Self { block: record.block, cell: record.cell, start: record.start, twin: record.twin }
    }
}

/// One start of the design with its trials in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedStart {
    /// The trials, in the order in which they run.
    pub trials: Vec<TrialSlot>,
}

/// Number of trials of each block.
pub(super) fn trials_per_block(study: &Study, cells: &Cells) -> u64 {
    let per_start: u64 =
        cells.running().map(|(index, _)| 1 + u64::from(cells.has_twin(index, study))).sum();
    per_start * u64::from(study.starts)
}

/// The starts of one block in their order.
#[must_use]
pub fn block(study: &Study, cells: &Cells, block: u32) -> Vec<PlannedStart> {
    let mut generator = Pcg32::new(study.seed, STREAM | u64::from(block));
    let everything_else: Vec<String> = std::iter::once("workload".to_owned())
        .chain(study.factors.iter().map(|factor| factor.name.clone()))
        .filter(|name| !study.together.contains(name))
        .collect();
    // By cells that belong together, then by cells that share a start.
    let mut groups: BTreeMap<_, BTreeMap<_, PlannedStart>> = BTreeMap::new();
    for (index, cell) in cells.running() {
        // Without the key, all cells belong together.
        let near = cell.key(study, &everything_else);
        let shared = cell.key(study, &study.share);
        for start in 0..study.starts {
            for twin in [false, true] {
                if twin && !cells.has_twin(index, study) {
                    continue;
                }
                let key = (shared.clone(), start, twin);
                let planned = groups.entry(near.clone()).or_default();
                let planned = planned.entry(key).or_insert(PlannedStart { trials: Vec::new() });
                planned.trials.push(TrialSlot { block, cell: index, start, twin });
            }
        }
    }
    let mut groups: Vec<Vec<PlannedStart>> =
        groups.into_values().map(|starts| starts.into_values().collect()).collect();
    generator.shuffle(&mut groups);
    for group in &mut groups {
        generator.shuffle(group);
        for start in group {
            generator.shuffle(&mut start.trials);
        }
    }
    groups.into_iter().flatten().collect()
}
