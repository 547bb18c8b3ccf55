//! What spin-gap saw of stalls that are known: by time, not by length.
//!
//! A stall is seen if a gap covers at least half of it; which gap of the run happens to be about
//! as long says nothing. The two clocks agree to some microseconds, and a gap begins some more
//! after its stall was due, so that the whole of a stall cannot be asked for.

use pinfold_probe::benchmarks::Gap;
use pinfold_study::stats::median;

use super::stalls::Stall;
use crate::Failure;

/// What spin-gap saw of the stalls, block by block.
#[derive(Default)]
pub struct Seen {
    /// Median of the gaps.
    pub gaps: Vec<f64>,
    /// Median of the stalls that they cover.
    pub logs: Vec<f64>,
    injected: usize,
    unseen: usize,
    within: usize,
    furthest: f64,
}

impl Seen {
    /// The gaps and the stalls of a run.
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

    /// A sentence on them.
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

/// The gap that covers most of a stall, if it is half of it at least.
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
    use super::{Gap, Seen, Stall};

    #[test]
    fn a_stall_is_seen_by_the_gap_at_its_time_and_not_by_one_of_its_length() {
        let gap = |start_ns, length_ns| Gap { start_ns, length_ns };
        let gaps = [gap(10_000, 1_000.0), gap(50_020, 1_040.0), gap(90_000, 1_000.0)];
        let stall = |due| Stall { due, length: 1_000.0 };
        let mut seen = Seen::default();
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
