//! Steal time: which blocks it affected, and how the samples were treated.
//!
//! Windows of a capacity in which a tick was stolen are left out and counted earlier. No sample of
//! a tail is left out, because a user sees stalls that the hypervisor causes. So an affected tail
//! is reported and not corrected.

use std::fmt;

use pinfold_model::Figure;
use pinfold_model::text::count_noun;

use super::MeasuredBlock;

/// Steal time during a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StealTime {
    /// Ticks (10 ms each) that the hypervisor took from the measured CPUs.
    pub ticks: u64,
    /// Number of blocks with steal time.
    pub contaminated: usize,
    /// Number of blocks for which the kernel has no steal time.
    pub unknown: usize,
    /// Number of all blocks.
    pub blocks: usize,
    /// Number of windows that were left out for this reason.
    pub windows: u64,
}

impl StealTime {
    /// The steal time of these blocks.
    pub fn from_blocks(blocks: &[MeasuredBlock]) -> Self {
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

    /// True if a block is affected or unknown.
    pub fn is_reportable(&self) -> bool {
        self.contaminated > 0 || self.unknown > 0
    }
}

impl fmt::Display for StealTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ticks, contaminated, unknown, blocks, windows } = self;
        if *unknown == *blocks {
            return f.write_str("not reported by the kernel");
        }
        let (ticks, all) = (count_noun(*ticks, "tick"), count_noun(*blocks, "block"));
        write!(f, "{ticks} of 10 ms in {contaminated} of {all}")?;
        if *windows > 0 {
            write!(f, ", {} left out", count_noun(*windows, "window"))?;
        }
        match unknown {
            0 => Ok(()),
            _ => write!(f, ", {} unknown", count_noun(*unknown, "block")),
        }
    }
}

/// Number of windows of a figure that steal time affected, from the flags of `pinload`.
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
        check(&[block(Some(0), &["preempted 3"])], false, "0 ticks of 10 ms in 0 of 1 block");
        let three = [block(Some(0), &[]), block(Some(3), &["stolen-windows 2"]), block(None, &[])];
        let reported = "3 ticks of 10 ms in 1 of 3 blocks, 4 windows left out, 1 block unknown";
        check(&three, true, reported);
        check(&[block(None, &[])], true, "not reported by the kernel");
        // In a guest the value comes from the guest's kernel, even if the host had no steal time.
        let reported = "0 ticks of 10 ms in 1 of 1 block, 2 windows left out";
        check(&[block(Some(0), &["stolen-windows 1"])], true, reported);
    }

    fn check(blocks: &[MeasuredBlock], worth: bool, reported: &str) {
        let stolen = StealTime::from_blocks(blocks);
        assert_eq!((stolen.is_reportable(), stolen.to_string().as_str()), (worth, reported));
    }
}
