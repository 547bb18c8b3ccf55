//! From the windows of a search to rows, verdicts and the winner.

use pinfold_probe::histogram::{Histogram, PERCENTILES};
use pinfold_stats::{
    Block, Direction, Evidence, Interval, Rule, Verdict, holm, median, ratio_interval,
    sign_flip_blocks,
};

use super::placed::Placed;
use super::window::Observation;
use super::{ALPHA, MARGIN, PRESENT, PRESENT_AGAIN, Row, WashOut};

/// A placement with its windows.
pub(super) struct Lane {
    pub name: String,
    /// `None` for the present placement.
    pub placed: Option<Placed>,
    /// One for each block; `None` where it has none.
    pub windows: Vec<Option<Observation>>,
    /// Why it was dropped.
    pub dropped: Option<String>,
}

/// The result of all windows.
pub(super) struct Settled {
    pub rows: Vec<Row>,
    pub winner: Option<usize>,
}

impl Lane {
    /// The present placement twice, then the candidates.
    pub fn all(candidates: Vec<Placed>) -> Vec<Self> {
        let present = [PRESENT, PRESENT_AGAIN].map(|name| Self::new(name, None));
        let candidates = candidates.into_iter();
        let candidates = candidates.map(|placed| Self::new(&placed.name.clone(), Some(placed)));
        present.into_iter().chain(candidates).collect()
    }

    fn new(name: &str, placed: Option<Placed>) -> Self {
        Self { name: name.to_owned(), placed, windows: Vec::new(), dropped: None }
    }

    /// Adds the window of the present block.
    pub fn add(&mut self, observed: Observation) {
        if let Some(last) = self.windows.last_mut() {
            *last = Some(observed);
        }
    }

    fn observations(&self) -> impl Iterator<Item = &Observation> {
        self.windows.iter().flatten()
    }

    /// Its figures with those of the present placement, in the blocks that have both.
    fn pairs(&self, present: &Lane) -> Vec<Block> {
        let both = self.windows.iter().zip(&present.windows);
        both.filter_map(|(own, base)| {
            Some(Block::pair(own.as_ref()?.figure, base.as_ref()?.figure))
        })
        .collect()
    }

    fn row(&self) -> Row {
        let figures: Vec<f64> = self.observations().map(|window| window.figure).collect();
        let mut waits = Histogram::default();
        self.observations().filter_map(|one| one.waits.as_ref()).for_each(|one| waits.join(one));
        let shares: Vec<f64> = self.observations().map(|window| window.share).collect();
        Row {
            name: self.name.clone(),
            is_setting: self.placed.as_ref().is_some_and(|placed| placed.is_setting),
            same: self.placed.as_ref().map(|placed| placed.same.clone()).unwrap_or_default(),
            next: self.placed.as_ref().and_then(|placed| placed.next.clone()),
            windows: figures.len(),
            figure: median(&figures),
            ratio: None,
            p_holm: None,
            verdict: None,
            dropped: self.dropped.clone(),
            p99_ns: waits.percentile(PERCENTILES[2]).map(|bounds| bounds.at_most_ns),
            longest_ns: waits.max_ns(),
            share: median(&shares),
        }
    }
}

/// The verdict on each placement against the present one: the exact sign-flip test over the blocks,
/// with Holm's correction over the candidates. The twin is tested alone.
pub(super) fn judge(lanes: &[Lane], direction: Direction, blocks: u32, needed: u32) -> Settled {
    let mut rows: Vec<Row> = lanes.iter().map(Lane::row).collect();
    let pairs: Vec<Vec<Block>> = lanes.iter().map(|lane| lane.pairs(&lanes[0])).collect();
    let tested: Vec<usize> = (2..lanes.len()).filter(|at| lanes[*at].dropped.is_none()).collect();
    let raw: Vec<f64> =
        tested.iter().map(|at| sign_flip_blocks(&pairs[*at]).unwrap_or(1.0)).collect();
    // A dropped candidate was tried too.
    let all = [raw, vec![1.0; lanes.len() - 2 - tested.len()]].concat();
    let corrected = holm(&all);
    let twin = std::iter::once((1, sign_flip_blocks(&pairs[1]).unwrap_or(1.0)));
    for (at, p_holm) in twin.chain(tested.iter().copied().zip(corrected)) {
        let Some(interval) = ratio_interval(&pairs[at]) else {
            rows[at].verdict = Some(Verdict::Unknown { have: blocks, need: needed });
            continue;
        };
        let rule = Rule { alpha: ALPHA, margin: MARGIN, blocks_needed: needed };
        let evidence = Evidence { blocks, interval, p_holm };
        rows[at].ratio = Some(interval);
        rows[at].p_holm = Some(p_holm);
        rows[at].verdict = Some(Verdict::from_evidence(&evidence, direction, &rule));
    }
    let winner = find_winner(&rows, direction);
    Settled { rows, winner }
}

/// The best of those that are shown to be better; none if the twin differs from itself.
fn find_winner(rows: &[Row], direction: Direction) -> Option<usize> {
    if matches!(rows[1].verdict, Some(Verdict::Better | Verdict::Worse)) {
        return None;
    }
    let better = (2..rows.len()).filter(|at| rows[*at].verdict == Some(Verdict::Better));
    better.min_by(|one, other| {
        let [one, other] = [one, other].map(|at| improvement(rows[*at].ratio, direction));
        one.total_cmp(&other)
    })
}

/// The ratio so that smaller is better.
fn improvement(ratio: Option<Interval>, direction: Direction) -> f64 {
    let ratio = ratio.map_or(f64::INFINITY, |interval| interval.ratio);
    match direction {
        Direction::LowerIsBetter => ratio,
        Direction::HigherIsBetter => 1.0 / ratio,
    }
}

/// Median observation time of all windows (ns).
pub(super) fn window_length(lanes: &[Lane]) -> u64 {
    let windows = lanes.iter().flat_map(Lane::observations);
    let mut times: Vec<u64> = windows.map(|window| window.observed_ns).collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0)
}

/// The wash-out of all windows.
pub(super) fn wash_out(lanes: &[Lane]) -> WashOut {
    let windows: Vec<&Observation> = lanes.iter().flat_map(Lane::observations).collect();
    let mut times: Vec<u64> = windows.iter().map(|window| window.wash_out_ns).collect();
    times.sort_unstable();
    WashOut {
        median_ns: times.get(times.len() / 2).copied().unwrap_or(0),
        longest_ns: times.last().copied().unwrap_or(0),
        unsettled: windows.iter().filter(|window| !window.is_settled).count(),
        windows: times.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::FigureSource;
    use super::*;

    fn lane(name: &str, figures: &[f64]) -> Lane {
        let windows = figures.iter().map(|figure| {
            Some(Observation {
                figure: *figure,
                source: FigureSource::LongestWait,
                share: 0.1,
                waits: None,
                observed_ns: 1,
                wash_out_ns: 100,
                is_settled: *figure < 100.0,
            })
        });
        let windows = windows.collect();
        Lane { name: name.to_owned(), placed: None, windows, dropped: None }
    }

    /// Figures near a level, which alternate so that no two lanes are equal.
    fn figures(level: f64, shift: usize) -> Vec<f64> {
        (0..10).map(|block| level * (1.0 + 0.01 * ((block * 7 + shift) % 5) as f64)).collect()
    }

    fn lanes(candidate: f64) -> Vec<Lane> {
        vec![
            lane(PRESENT, &figures(100.0, 0)),
            lane(PRESENT_AGAIN, &figures(100.0, 2)),
            lane("a", &figures(90.0, 1)),
            lane("b", &figures(candidate, 3)),
        ]
    }

    #[test]
    fn the_best_of_the_better_wins() {
        let found = judge(&lanes(60.0), Direction::LowerIsBetter, 10, 8);
        assert_eq!(found.winner, Some(3));
        assert_eq!(found.rows[2].verdict, Some(Verdict::Better));
        assert_eq!(found.rows[0].verdict, None);
        let found = judge(&lanes(60.0), Direction::HigherIsBetter, 10, 8);
        assert_eq!((found.winner, found.rows[3].verdict), (None, Some(Verdict::Worse)));
        let found = judge(&lanes(150.0), Direction::HigherIsBetter, 10, 8);
        assert_eq!(found.winner, Some(3));
    }

    #[test]
    fn too_few_blocks_and_dropped_candidates_do_not_win() {
        let found = judge(&lanes(60.0), Direction::LowerIsBetter, 10, 11);
        assert_eq!(found.winner, None);
        assert_eq!(found.rows[3].verdict, Some(Verdict::Unknown { have: 10, need: 11 }));
        let mut some = lanes(60.0);
        some[3].dropped = Some("it waits".to_owned());
        let found = judge(&some, Direction::LowerIsBetter, 10, 8);
        assert_eq!((found.winner, found.rows[3].verdict), (Some(2), None));
    }

    #[test]
    fn nothing_wins_if_the_present_placement_differs_from_itself() {
        let mut some = lanes(60.0);
        some[1] = lane(PRESENT_AGAIN, &figures(140.0, 2));
        let found = judge(&some, Direction::LowerIsBetter, 10, 8);
        assert_eq!((found.winner, found.rows[1].verdict), (None, Some(Verdict::Worse)));
    }

    #[test]
    fn the_wash_out_is_that_of_all_windows() {
        let found = wash_out(&lanes(60.0));
        assert_eq!((found.windows, found.median_ns, found.longest_ns), (40, 100, 100));
        assert!(found.unsettled > 0 && found.unsettled < 40);
        assert_eq!(window_length(&lanes(60.0)), 1);
    }
}
