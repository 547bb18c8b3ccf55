//! Parts of blocks: the smallest units of a design that can run on different nodes.

use std::collections::BTreeMap;

use pinfold_study::study::{Cell, Cells, Study, TrialSlot, design};

/// A part of a block: its starts in the block's order, each trial with its position in that order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its number in the study, from 0.
    pub number: u32,
    /// Its block, from 0.
    pub block: u32,
    /// Its starts, in the order of the block.
    pub starts: Vec<Vec<(TrialSlot, u32)>>,
}

impl Part {
    /// Its trials with their positions in the block's order.
    pub fn trials(&self) -> impl Iterator<Item = (TrialSlot, u32)> {
        self.starts.iter().flatten().copied()
    }
}

/// The division of a study's blocks into parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// By cell, the part of each block that contains it; `None` for a cell that is not run.
    of_cell: Vec<Option<u32>>,
    per_block: u32,
    blocks: u32,
}

impl Parts {
    /// The parts of a study.
    pub fn new(study: &Study, cells: &Cells) -> Self {
        let mut sets = Sets((0..cells.all.len()).collect());
        for (index, cell) in cells.running() {
            let baseline = cell.baseline.filter(|base| cells.all[*base].skipped.is_none());
            if let Some(base) = baseline {
                sets.join(index, base);
            }
        }
        // The cells of a start, and those that belong together, are the same in each block.
        for start in design::block(study, cells, 0) {
            if let Some(first) = start.trials.first() {
                start.trials.iter().for_each(|slot| sets.join(first.cell, slot.cell));
            }
        }
        if !study.together.is_empty() {
            let names = study.factors.iter().map(|factor| factor.name.clone());
            let others: Vec<String> = std::iter::once("workload".to_owned())
                .chain(names)
                .filter(|name| !study.together.contains(name))
                .collect();
            let mut seen: BTreeMap<_, usize> = BTreeMap::new();
            for (index, cell) in cells.running() {
                let first = *seen.entry(Cell::key(cell, study, &others)).or_insert(index);
                sets.join(first, index);
            }
        }
        let mut numbers: BTreeMap<usize, u32> = BTreeMap::new();
        let mut of_cell = vec![None; cells.all.len()];
        for (index, _) in cells.running() {
            let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
            of_cell[index] = Some(*numbers.entry(sets.root(index)).or_insert(next));
        }
        let per_block = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        Self { of_cell, per_block, blocks: study.repetitions }
    }

    /// Number of parts in each block.
    pub fn per_block(&self) -> u32 {
        self.per_block
    }

    /// Number of parts in the study.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.per_block.saturating_mul(self.blocks)
    }

    /// The block of a part.
    pub fn block_of(&self, number: u32) -> u32 {
        number.checked_div(self.per_block).unwrap_or(0)
    }

    /// The part of a trial.
    #[must_use]
    pub fn part_of(&self, slot: TrialSlot) -> Option<u32> {
        let within = self.of_cell.get(slot.cell).copied().flatten()?;
        slot.block.checked_mul(self.per_block)?.checked_add(within)
    }

    /// All parts of a block.
    pub fn block(&self, study: &Study, cells: &Cells, block: u32) -> Vec<Part> {
        let first = block.saturating_mul(self.per_block);
        let mut parts: Vec<Part> = (0..self.per_block)
            .map(|index| Part { number: first + index, block, starts: Vec::new() })
            .collect();
        let mut position = 0;
        for start in design::block(study, cells, block) {
            let within = start.trials.first().and_then(|slot| self.of_cell[slot.cell]);
            let mut placed = Vec::with_capacity(start.trials.len());
            for slot in start.trials {
                placed.push((slot, position));
                position += 1;
            }
            if let Some(part) = within.and_then(|within| parts.get_mut(within as usize)) {
                part.starts.push(placed);
            }
        }
        parts
    }

    /// The part with this number.
    pub fn part(&self, study: &Study, cells: &Cells, number: u32) -> Option<Part> {
        let block = self.block_of(number);
        if number >= self.count() {
            return None;
        }
        self.block(study, cells, block).into_iter().find(|part| part.number == number)
    }
}

/// Disjoint sets of numbers (union-find).
struct Sets(Vec<usize>);

impl Sets {
    fn root(&mut self, mut of: usize) -> usize {
        while self.0[of] != of {
            self.0[of] = self.0[self.0[of]];
            of = self.0[of];
        }
        of
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a.max(b)] = a.min(b);
    }
}
