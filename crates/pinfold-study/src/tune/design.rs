//! Randomised complete blocks: every candidate once per block, in random order, with the load
//! states of each start in random order too.
//!
//! The order depends only on the seed, the phase, the block and the participants: a resumed run
//! rebuilds the same design.

use pinfold_model::LoadState;
use pinfold_stats::random::Pcg32;

use crate::store::{Phase, Slot};

/// One start of the design.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedStart {
    /// Phase, block and candidate.
    pub slot: Slot,
    /// Load states in their order.
    pub load_states: Vec<LoadState>,
}

/// The starts of one block in their order.
pub(super) fn block_order(
    seed: u64,
    phase: Phase,
    block: u32,
    participants: &[usize],
    load_states: &[LoadState],
) -> Vec<PlannedStart> {
    let stream = match phase {
        Phase::Screening => 1_u64 << 32,
        Phase::Confirmation => 2_u64 << 32,
    };
    let mut generator = Pcg32::new(seed, stream | u64::from(block));
    let mut order = participants.to_vec();
    generator.shuffle(&mut order);
    let starts = order.into_iter().map(|candidate| {
        let mut load_states = load_states.to_vec();
        generator.shuffle(&mut load_states);
        PlannedStart { slot: Slot { phase, block, candidate }, load_states }
    });
    starts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_complete_random_and_repeatable() {
        let participants = [0, 2, 3, 5];
        let block =
            |seed, phase, block| block_order(seed, phase, block, &participants, &LoadState::ALL);
        let mut orders = std::collections::BTreeSet::new();
        for number in 0..20 {
            let starts = block(9, Phase::Screening, number);
            let mut candidates: Vec<usize> =
                starts.iter().map(|start| start.slot.candidate).collect();
            orders.insert(candidates.clone());
            candidates.sort_unstable();
            assert_eq!(candidates, participants);
            for start in &starts {
                let mut loads = start.load_states.clone();
                loads.sort_unstable();
                let mut all = LoadState::ALL.to_vec();
                all.sort_unstable();
                assert_eq!(loads, all);
            }
            assert_eq!(starts, block(9, Phase::Screening, number));
        }
        assert!(orders.len() > 8, "{} different orders of 24", orders.len());
        assert_ne!(block(9, Phase::Screening, 0), block(10, Phase::Screening, 0));
    }
}
