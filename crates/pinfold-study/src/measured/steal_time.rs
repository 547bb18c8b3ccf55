//! Stolen time: which blocks the hypervisor below contaminated, and what became of it.
//!
//! Windows of a capacity in which a tick was stolen are left out before they come here, and
//! counted; of a tail nothing is left out, because a stall that the hypervisor made is one that a
//! user meets. So a contaminated tail is told, not cleaned.

use std::fmt;

use pinfold_model::Figure;
use pinfold_model::text::counted;

use super::MeasuredBlock;

/// What was stolen while something was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stolen {
    /// Ticks (10 ms each) that the hypervisor took from the PUs that were measured on.
    pub ticks: u64,
    /// Blocks in which there was one.
    pub contaminated: usize,
    /// Blocks of which the kernel does not tell.
    pub unknown: usize,
    /// All blocks.
    pub blocks: usize,
    /// Windows that were left out because of it.
    pub windows: u64,
}

impl Stolen {
    /// Of these blocks.
    #[must_use]
    pub fn of(blocks: &[MeasuredBlock]) -> Self {
        let mut all = Self { blocks: blocks.len(), ..Self::default() };
        for block in blocks {
            let windows: u64 = block.figures.iter().map(windows).sum();
            let ticks = block.surroundings.steal_ticks;
            all.ticks += ticks.unwrap_or(0);
            all.windows += windows;
            all.contaminated += usize::from(ticks.is_some_and(|ticks| ticks > 0) || windows > 0);
            all.unknown += usize::from(ticks.is_none());
        }
        all
    }

    /// True if a block is contaminated, or nobody can tell.
    #[must_use]
    pub fn is_worth_telling(&self) -> bool {
        self.contaminated > 0 || self.unknown > 0
    }
}

impl fmt::Display for Stolen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ticks, contaminated, unknown, blocks, windows } = self;
        if *unknown == *blocks {
            return f.write_str("not reported by the kernel");
        }
        let (ticks, all) = (counted(*ticks, "tick"), counted(*blocks, "block"));
        write!(f, "{ticks} of 10 ms in {contaminated} of {all}")?;
        if *windows > 0 {
            write!(f, ", {} left out", counted(*windows, "window"))?;
        }
        match unknown {
            0 => Ok(()),
            _ => write!(f, ", {} unknown", counted(*unknown, "block")),
        }
    }
}

/// Windows of a figure that a stolen tick spoiled, as `pinload` flags them.
fn windows(figure: &Figure) -> u64 {
    let reported = figure.flags.iter().filter_map(|flag| flag.strip_prefix("stolen-windows "));
    reported.filter_map(|number| number.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pinfold_model::{Family, SystemNoise, Unit};

    use super::*;

    fn block(steal_ticks: Option<u64>, flags: &[&str]) -> MeasuredBlock {
        let figure = Figure {
            probe: "bandwidth".to_owned(),
            labels: BTreeMap::new(),
            unit: Unit::BytesPerSecond,
            family: Family::Capacity,
            cpu: None,
            duration_ns: 1,
            samples: vec![1.0],
            dropped: 0,
            disturbed: 9,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        };
        let surroundings = SystemNoise { steal_ticks, pressure_us: None };
        MeasuredBlock { figures: vec![figure.clone(), figure], surroundings }
    }

    #[test]
    fn ticks_blocks_and_windows_are_counted() {
        let check = |blocks: &[MeasuredBlock], worth: bool, reported: &str| {
            let stolen = Stolen::of(blocks);
            assert_eq!((stolen.is_worth_telling(), stolen.to_string().as_str()), (worth, reported));
        };
        check(&[block(Some(0), &["preempted 3"])], false, "0 ticks of 10 ms in 0 of 1 block");
        let three = [block(Some(0), &[]), block(Some(3), &["stolen-windows 2"]), block(None, &[])];
        let reported = "3 ticks of 10 ms in 1 of 3 blocks, 4 windows left out, 1 block unknown";
        check(&three, true, reported);
        check(&[block(None, &[])], true, "not reported by the kernel");
        // In a guest its own kernel tells, although its host lost nothing.
        let reported = "0 ticks of 10 ms in 1 of 1 block, 2 windows left out";
        check(&[block(Some(0), &["stolen-windows 1"])], true, reported);
    }
}
