//! Detection of known stalls by spin-gap: matched by time, not by length.
//!
//! A stall is detected if a measured one covers at least half of it; a match by length alone would
//! mean nothing. The two clocks agree within some microseconds, and a measured stall starts some
//! microseconds after the injected one was due, so full coverage cannot be required.

use pinfold_probe::benchmarks::Gap;
use pinfold_stats::median;

use super::stalls::Stall;
use crate::arguments::Failure;

/// The detected stalls, block by block.
#[derive(Default)]
pub struct DetectedStalls {
    /// Median of the measured stalls.
    pub gaps: Vec<f64>,
    /// Median of the injected stalls that they cover.
    pub logs: Vec<f64>,
    injected: usize,
    unseen: usize,
    within: usize,
    furthest: f64,
}

impl DetectedStalls {
    /// Adds the measured and the injected stalls of a run.
    pub fn add(&mut self, gaps: &[Gap], stalls: &[Stall]) -> Result<(), Failure> {
        let (mut seen, mut known) = (Vec::new(), Vec::new());
        for stall in stalls {
            let Some(gap) = gap_of(stall, gaps) else { continue };
            let off = (gap.length_ns / stall.length - 1.0).abs();
            self.within += usize::from(off < 0.01);
            self.furthest = self.furthest.max(off);
            seen.push(gap.length_ns);
            known.push(stall.length);
        }
        self.injected += stalls.len();
        self.unseen += stalls.len() - seen.len();
        self.gaps.push(median(&seen).ok_or("spin-gap saw no stall of a run")?);
        self.logs.push(median(&known).ok_or("no stall was injected")?);
        Ok(())
    }

    /// A note on them.
    pub fn note(&self, length_ms: u64) -> String {
        format!(
            "Of {} stalls of {length_ms} ms spin-gap had a gap at the time of {}, and none at that of {}; {} are within 1 % of their length, and the furthest is {:.2} % off.",
            self.injected,
            self.injected - self.unseen,
            self.unseen,
            self.within,
            self.furthest * 100.0
        )
    }
}

/// The measured stall that covers most of an injected one, if it is at least half of it.
fn gap_of<'g>(stall: &Stall, gaps: &'g [Gap]) -> Option<&'g Gap> {
    let covered = |gap: &Gap| {
        let start = gap.start_ns as f64;
        let end = (start + gap.length_ns).min(stall.due + stall.length);
        end - start.max(stall.due)
    };
    let most = gaps.iter().max_by(|one, other| covered(one).total_cmp(&covered(other)))?;
    (covered(most) >= stall.length / 2.0).then_some(most)
}

#[cfg(test)]
mod tests {
    use super::{DetectedStalls, Gap, Stall};

    #[test]
    fn a_stall_is_seen_by_the_gap_at_its_time_and_not_by_one_of_its_length() {
        let gap = |start_ns, length_ns| Gap { start_ns, length_ns };
        let gaps = [gap(10_000, 1_000.0), gap(50_020, 1_040.0), gap(90_000, 1_000.0)];
        let stall = |due| Stall { due, length: 1_000.0 };
        let mut seen = DetectedStalls::default();
        seen.add(&gaps, &[stall(50_000.0), stall(70_000.0), stall(90_400.0)]).unwrap();
        assert_eq!((seen.injected, seen.unseen, seen.within), (3, 1, 1));
        assert_eq!((seen.gaps[0], seen.logs[0]), (1_020.0, 1_000.0));
        assert!((seen.furthest - 0.04).abs() < 1e-9, "{}", seen.furthest);
        let note = seen.note(1);
        assert!(
            note.contains("Of 3 stalls of 1 ms") && note.contains("of 2, and none at that of 1;"),
            "{note}"
        );
        let none = seen.add(&gaps, &[stall(70_000.0)]).unwrap_err().to_string();
        assert_eq!(none, "spin-gap saw no stall of a run");
    }
}
