//! Schedule of the frequencies of CPUs that change together.

use pinfold_model::{CpuSet, Speed};

use crate::frequency::{Domain, Level, WHOLE};

/// Two alternating levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrequencyPair {
    /// The lower level; `None` means frozen.
    low: Option<Level>,
    high: Level,
    /// Share of the time at the higher level, in billionths.
    pub(super) high_share: u64,
}

impl FrequencyPair {
    pub(super) fn is_frozen_at_times(&self) -> bool {
        self.low.is_none() && self.high_share < WHOLE
    }
}

/// The two levels around a speed, and the share of the higher one. `levels` is not empty and in
/// ascending order of speed; speeds above the highest level use that level.
pub(super) fn mix(levels: &[Level], speed: Speed) -> FrequencyPair {
    let wanted = u64::from(speed.millionths()) * (WHOLE / 1_000_000);
    let above = levels.iter().position(|level| level.share >= wanted);
    let at = above.unwrap_or(levels.len().saturating_sub(1));
    let high = levels.get(at).copied().unwrap_or(Level { khz: 0, share: WHOLE });
    let low = at.checked_sub(1).and_then(|below| levels.get(below)).copied();
    let floor = low.map_or(0, |low| low.share);
    let span = high.share.saturating_sub(floor).max(1);
    let part = wanted.min(high.share).saturating_sub(floor);
    let high_share = u128::from(part) * u128::from(WHOLE) / u128::from(span);
    FrequencyPair { low, high, high_share: u64::try_from(high_share).unwrap_or(WHOLE) }
}

/// Schedule of CPUs that change together.
pub(super) struct FreqSchedule {
    pub(super) domain: Option<Domain>,
    pub(super) pus: CpuSet,
    mix: Option<(FrequencyPair, Speed)>,
    is_high: bool,
    /// Time of the next switch.
    pub(super) until_ns: u64,
    since_ns: u64,
    // Speed of the current phase in billionths of full speed; `None` means frozen.
    phase: Option<u64>,
    // Excess time at the higher level, relative to the mix.
    ahead_ns: i64,
    wanted_ns: u64,
    taken_ns: u64,
}

impl FreqSchedule {
    pub(super) fn new(domain: Option<Domain>, pus: CpuSet, now_ns: u64) -> Self {
        Self {
            domain,
            pus,
            mix: None,
            is_high: false,
            until_ns: u64::MAX,
            since_ns: now_ns,
            phase: Some(WHOLE),
            ahead_ns: 0,
            wanted_ns: 0,
            taken_ns: 0,
        }
    }

    /// Sets a new mix; the next switch is due immediately.
    pub(super) fn set(&mut self, mix: FrequencyPair, speed: Speed) {
        self.mix = Some((mix, speed));
        self.is_high = false;
        self.ahead_ns = 0;
        self.until_ns = 0;
    }

    /// Selects the next phase and its end: `None` if no switch is needed, `Some(None)` for the
    /// freezer.
    pub(super) fn next(&mut self, now_ns: u64, period_ns: u64) -> Option<Option<Level>> {
        let (mix, _) = self.mix?;
        self.settle(now_ns);
        let boundary = (now_ns / period_ns + 1) * period_ns;
        let left = i64::try_from(boundary - now_ns).unwrap_or(i64::MAX);
        let share = i128::from(mix.high_share);
        // Time at the higher level that balances the account at the end of the period.
        let high_ns = i64::try_from(i128::from(left) * share / i128::from(WHOLE)).unwrap_or(left);
        let high_ns = (high_ns - self.ahead_ns).clamp(0, left);
        // A shorter switch costs more than it corrects; the next period makes up for it.
        let grain_ns = i64::try_from(period_ns / 1_000).unwrap_or(0);
        self.is_high = mix.high_share >= WHOLE || high_ns > grain_ns;
        self.until_ns = if mix.high_share >= WHOLE {
            u64::MAX
        } else if self.is_high && left - high_ns > grain_ns {
            now_ns.saturating_add(high_ns.unsigned_abs())
        } else {
            boundary
        };
        Some(if self.is_high { Some(mix.high) } else { mix.low })
    }

    /// Records that this phase is active from now on.
    pub(super) fn enter(&mut self, now_ns: u64, level: Option<Level>) {
        // The time of the switch itself counts for the previous phase.
        self.count(now_ns);
        self.phase = level.map(|level| level.share);
    }

    /// Counts the elapsed time and the excess.
    fn settle(&mut self, now_ns: u64) {
        if let Some((mix, _)) = self.mix.filter(|_| self.until_ns != 0) {
            let passed = i64::try_from(now_ns.saturating_sub(self.since_ns)).unwrap_or(0);
            let due = i128::from(passed) * i128::from(mix.high_share) / i128::from(WHOLE);
            let had = if self.is_high { passed } else { 0 };
            self.ahead_ns += had - i64::try_from(due).unwrap_or(0);
        }
        self.count(now_ns);
    }

    fn count(&mut self, now_ns: u64) {
        (self.wanted_ns, self.taken_ns) = self.account(now_ns);
        self.since_ns = now_ns;
    }

    /// Total time, and the part of it that was taken.
    pub(super) fn account(&self, now_ns: u64) -> (u64, u64) {
        let passed = now_ns.saturating_sub(self.since_ns);
        let missing = WHOLE.saturating_sub(self.phase.unwrap_or(0));
        let taken = u128::from(passed) * u128::from(missing) / u128::from(WHOLE);
        let taken = u64::try_from(taken).unwrap_or(passed);
        (self.wanted_ns.saturating_add(passed), self.taken_ns.saturating_add(taken))
    }

    /// A description for the status.
    pub(super) fn note(&self) -> Option<String> {
        let (mix, _) = self.mix?;
        let high =
            format!("{} of the time {}", percent(mix.high_share), self.level_text(Some(mix.high)));
        Some(match mix.high_share {
            WHOLE => format!("CPU {}: {}", self.pus, self.level_text(Some(mix.high))),
            share => {
                format!(
                    "CPU {}: {high}, {} {}",
                    self.pus,
                    percent(WHOLE - share),
                    self.level_text(mix.low)
                )
            }
        })
    }

    fn level_text(&self, level: Option<Level>) -> String {
        match (level, &self.domain) {
            (None, _) => "frozen".to_owned(),
            (Some(_), None) => "running".to_owned(),
            (Some(level), Some(_)) => format!("at {} MHz", level.khz / 1_000),
        }
    }
}

fn percent(share: u64) -> String {
    let tenths = (share + 500_000) / 1_000_000;
    format!("{}.{}%", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(khz: &[u64]) -> Vec<Level> {
        let most = khz.last().copied().unwrap();
        khz.iter().map(|khz| Level { khz: *khz, share: khz * WHOLE / most }).collect()
    }

    fn speed(millionths: u32) -> Speed {
        Speed::from_millionths(millionths).unwrap()
    }

    /// The example of Buchert 2011 §III.C: 2.1 GHz from 2.0 GHz for 75 % and 2.4 GHz for 25 %.
    #[test]
    fn two_point_one_from_two_and_two_point_four_is_75_and_25_percent() {
        let mix = mix(&levels(&[1_200_000, 2_000_000, 2_400_000]), speed(875_000));
        assert_eq!(mix.low.unwrap().khz, 2_000_000);
        assert_eq!(mix.high.khz, 2_400_000);
        let off = mix.high_share.abs_diff(WHOLE / 4);
        assert!(off < 10, "{}", mix.high_share);
    }

    #[test]
    fn below_the_lowest_it_is_frozen_and_a_level_itself_is_no_mix() {
        let levels = levels(&[1_200_000, 2_400_000]);
        let low = mix(&levels, speed(250_000));
        assert!(low.is_frozen_at_times());
        assert_eq!((low.high.khz, low.high_share), (1_200_000, WHOLE / 2));
        assert_eq!(mix(&levels, speed(500_000)).high_share, WHOLE);
        assert_eq!(mix(&levels, Speed::FULL).high, levels[1]);
        // The highest level was measured to be slower than nominal, but there is no higher one.
        let weak = [Level { khz: 1, share: WHOLE / 2 }, Level { khz: 2, share: WHOLE / 10 * 9 }];
        assert_eq!(mix(&weak, Speed::FULL).high_share, WHOLE);
    }

    /// Simulates a domain in which every switch is late.
    fn play(late_ns: u64, periods: u64) -> (u64, u64) {
        let period = 100_000_000;
        let mut lane = FreqSchedule::new(None, CpuSet::first_n(1), 0);
        lane.set(mix(&levels(&[1]), speed(400_000)), speed(400_000));
        let mut now = 0;
        while now < periods * period {
            let phase = lane.next(now, period).unwrap();
            lane.enter(now, phase);
            now = lane.until_ns + late_ns;
        }
        lane.account(now)
    }

    #[test]
    fn lateness_is_made_good_for() {
        for late_ns in [0, 50_000, 3_000_000] {
            let (wanted, taken) = play(late_ns, 50);
            let speed = (wanted - taken) * 1000 / wanted;
            assert!(speed.abs_diff(400) <= 2, "{late_ns}: {speed}");
        }
    }
}
