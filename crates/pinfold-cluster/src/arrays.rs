//! Array jobs for a list of tasks.

use std::collections::BTreeMap;

use pinfold_study::store::TaskRecord;

use crate::collector::PartAttempt;

/// Parts in one array job: element `e` runs part `offset + e`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Offset that is added to the index in the array.
    pub offset: u32,
    /// Indexes in the array.
    pub elements: Vec<u32>,
}

impl Batch {
    /// Its tasks, when the job's id is known.
    pub fn tasks(&self, attempt: u32, job: u64, now_unix_s: u64) -> Vec<TaskRecord> {
        self.elements
            .iter()
            .map(|element| TaskRecord {
                part: self.offset + element,
                attempt,
                job,
                element: *element,
                submitted_unix_s: now_unix_s,
                failed: None,
            })
            .collect()
    }
}

/// Array jobs for these tasks, in order, first attempts first, each with its attempt and with
/// indexes below the limit of the cluster.
pub fn arrays(asks: &[PartAttempt], max_array: u32) -> Vec<(u32, Batch)> {
    let mut by_attempt: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for ask in asks {
        by_attempt.entry(ask.attempt).or_default().push(ask.part);
    }
    let arrays = by_attempt.into_iter().flat_map(|(attempt, parts)| {
        batches(&parts, max_array).into_iter().map(move |batch| (attempt, batch))
    });
    arrays.collect()
}

/// Array jobs for these parts, in order, each with indexes below the limit of the cluster.
pub(crate) fn batches(parts: &[u32], max_array: u32) -> Vec<Batch> {
    let size = max_array.max(1);
    let mut by_offset: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for part in parts {
        by_offset.entry(part - part % size).or_default().push(part % size);
    }
    by_offset.into_iter().map(|(offset, elements)| Batch { offset, elements }).collect()
}
