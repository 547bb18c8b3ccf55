//! Division of blocks into parts.

use std::collections::BTreeSet;

use pinfold_study::study::{cells, from_toml};

use super::super::Parts;
use super::world::{FACTS, STUDY, World};

#[test]
fn what_is_compared_stays_together_and_nothing_is_lost() {
    let world = World::new();
    // Cells with the same number of cores belong together, and their workloads share starts.
    check(&world, STUDY, 2);
    let apart = STUDY.replace("together = [\"cores\"]\n", "");
    check(&world, &apart, 2);
    // Each workload on each number of cores has its own baseline.
    check(&world, &apart.replace("share = [\"workload\"]\n", ""), 4);
    let one = STUDY.replace("together = [\"cores\"]", "together = [\"method\"]");
    check(&world, &one, 1);
}

fn check(world: &World, toml: &str, per_block: u32) {
    let study = from_toml(toml).unwrap();
    let cells = cells(&study, &FACTS, &world.machine).unwrap();
    let parts = Parts::new(&study, &cells);
    assert_eq!((parts.per_block(), parts.count()), (per_block, per_block * 8));
    let mut seen = BTreeSet::new();
    let mut positions = BTreeSet::new();
    for block in 0..8 {
        for part in parts.block(&study, &cells, block) {
            assert_eq!(parts.block_of(part.number), block);
            assert_eq!(parts.part(&study, &cells, part.number).as_ref(), Some(&part));
            let within: BTreeSet<usize> = part.trials().map(|(slot, _)| slot.cell).collect();
            for (slot, position) in part.trials() {
                assert_eq!(parts.part_of(slot), Some(part.number));
                assert!(seen.insert(slot) && positions.insert((block, position)));
                let baseline = cells.all[slot.cell].baseline.unwrap();
                assert!(within.contains(&baseline), "{slot:?} is compared with {baseline}");
            }
        }
    }
    assert_eq!(seen.len(), 8 * 14);
    assert_eq!(parts.part(&study, &cells, parts.count()), None);
}
