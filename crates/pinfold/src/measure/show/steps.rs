//! Finds the steps of a sweep over sizes, for comparison with the cache sizes that the kernel
//! reports.
//!
//! sysfs (in a guest: its hypervisor) reports the size of a cache, not how much of it a program
//! gets. The cost of a block is its median time per byte or per load. The cost of a level is that
//! of its cheapest block, the cost of the next level is that of its middle block; there is a step
//! if the latter is at least 1.5 times the former. The level ends at the last block before two
//! consecutive ones that cost more than the geometric mean of both. Larger blocks that should fit
//! by the reported size are slower than their level. A sweep that does not reach the next level has
//! no step.

use std::collections::BTreeMap;

use pinfold_model::{Family, Figure};
use pinfold_report::format;
use pinfold_stats::median;

use super::{Pooled, Words, common, own_words, words_of};

/// Minimum ratio of the costs of two levels for a step.
const CLEAR: f64 = 1.5;

/// A block of a sweep.
#[derive(Clone, Debug)]
struct Block {
    bytes: u64,
    level: String,
    cost: f64,
}

/// The end of a level.
#[derive(Debug, PartialEq)]
struct Step {
    level: String,
    /// The largest block that is as fast as the level; `None` if not even the smallest is.
    measured: Option<u64>,
    /// The smallest and the largest block that are slower although the reported size includes them.
    slower: Option<(u64, u64)>,
}

/// A line for each sweep that has a step.
pub fn lines(all: &[Pooled]) -> Vec<String> {
    let mut sweeps: BTreeMap<(Words, String), Vec<Block>> = BTreeMap::new();
    for one in all {
        if let Some((name, caches, block)) = block(&one.figure) {
            sweeps.entry((name, caches)).or_default().push(block);
        }
    }
    let shared = common(sweeps.keys().map(|(name, _)| name.clone()));
    let mut lines = Vec::new();
    for ((name, caches), mut blocks) in sweeps {
        blocks.sort_by_key(|block| block.bytes);
        let steps = steps(&blocks);
        if !steps.is_empty() {
            let who = own_words(name, &shared).join(", ");
            let who = if who.is_empty() { who } else { format!(" of {who}") };
            let reported: Vec<String> = steps.iter().map(|step| report(step, &caches)).collect();
            lines.push(format!("steps{who}: {}", reported.join("; ")));
        }
    }
    lines
}

/// The sweep of a figure, the reported caches, and its block; `None` for a figure without a sweep,
/// or with concurrent loads.
fn block(figure: &Figure) -> Option<(Words, String, Block)> {
    let mut labels = figure.labels.clone();
    let bytes = labels.remove("bytes")?.parse().ok()?;
    let level = labels.remove("level")?;
    let caches = labels.get("caches")?.clone();
    if figure.family != Family::Capacity || labels.contains_key("loads") {
        return None;
    }
    let middle = median(&figure.samples).filter(|middle| *middle > 0.0)?;
    let cost = if figure.unit.higher_is_better()? { 1.0 / middle } else { middle };
    Some((words_of(&figure.probe, &labels), caches, Block { bytes, level, cost }))
}

/// The steps of a sweep with blocks in ascending order.
fn steps(blocks: &[Block]) -> Vec<Step> {
    let levels: Vec<&[Block]> = blocks.chunk_by(|one, next| one.level == next.level).collect();
    let ends = levels.windows(2).filter_map(|pair| match pair {
        [own, next] => step(own, next),
        [..] => None,
    });
    ends.collect()
}

fn step(own: &[Block], next: &[Block]) -> Option<Step> {
    let costs: Vec<f64> = next.iter().map(|block| block.cost).collect();
    let least = own.iter().map(|block| block.cost).fold(f64::INFINITY, f64::min);
    let behind = median(&costs)?;
    if behind < CLEAR * least {
        return None;
    }
    let limit = (least * behind).sqrt();
    let row: Vec<&Block> = own.iter().chain(next).collect();
    let is_slow = |place: usize| row.get(place).is_none_or(|block| block.cost > limit);
    let end = (0..row.len()).find(|place| is_slow(*place) && is_slow(place + 1))?;
    let slower = own.get(end..).filter(|rest| !rest.is_empty());
    Some(Step {
        level: own.first()?.level.clone(),
        measured: end.checked_sub(1).and_then(|last| row.get(last)).map(|block| block.bytes),
        slower: slower.and_then(|rest| Some((rest.first()?.bytes, rest.last()?.bytes))),
    })
}

/// Text of a step: `L3 reported 32 MiB, measured 4 MiB (…)`.
fn report(step: &Step, caches: &str) -> String {
    let reported = caches.split(", ").filter_map(|cache| cache.split_once(' '));
    let reported = reported.filter(|(level, _)| *level == step.level).find_map(|(_, size)| {
        Some(format::bytes(size.strip_suffix('K')?.parse::<u64>().ok()?.checked_mul(1024)?))
    });
    let reported = reported.map_or_else(String::new, |size| format!(" reported {size},"));
    let measured = match step.measured {
        Some(bytes) => format!("measured {}", format::bytes(bytes)),
        None => "no block size reaches its level".to_owned(),
    };
    let slower = step.slower.map_or_else(String::new, |(least, most)| {
        if least == most {
            format!(" (slower than their level: {})", format::bytes(least))
        } else {
            let (least, most) = (format::bytes(least), format::bytes(most));
            format!(" (slower than their level: {least} to {most})")
        }
    });
    format!("{}{reported} {measured}{slower}", step.level)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of 1, 2, 4, … MiB.
    fn sweep(text: &str) -> Vec<Block> {
        let words = text.split_whitespace().enumerate();
        words
            .map(|(place, word)| {
                let (level, cost) = word.split_once(':').unwrap();
                let level = level.to_owned();
                Block { bytes: 1 << (20 + place), level, cost: cost.parse().unwrap() }
            })
            .collect()
    }

    fn reported(text: &str) -> String {
        let steps = steps(&sweep(text));
        steps.iter().map(|one| report(one, "L2 1024K, L3 32768K")).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn steps_are_where_blocks_get_slower_not_where_sysfs_reports() {
        // The program gets 4 MiB of the reported 32.
        assert_eq!(
            reported("L2:4 L3:20 L3:21 L3:70 L3:85 L3:90 memory:100 memory:101"),
            "L2 reported 1 MiB, measured 1 MiB; \
             L3 reported 32 MiB, measured 4 MiB (slower than their level: 8 MiB to 32 MiB)"
        );
        assert_eq!(
            reported("L3:20 L3:20 L3:20 L3:20 L3:21 L3:22 memory:90 memory:101"),
            "L3 reported 32 MiB, measured 32 MiB"
        );
        // One disturbed block does not end a level, and more than the reported size may be
        // available.
        assert_eq!(
            reported("L3:20 L3:90 L3:20 L3:20 L3:21 L3:22 memory:22 memory:100 memory:101"),
            "L3 reported 32 MiB, measured 64 MiB"
        );
    }

    #[test]
    fn what_is_not_clear_is_not_reported() {
        assert_eq!(reported("L2:4 L3:5 L3:5"), "");
        assert_eq!(reported("L3:20 L3:21"), "", "the sweep ends before memory");
        assert_eq!(reported("memory:100 memory:101"), "");
        assert_eq!(reported(""), "");
    }
}
