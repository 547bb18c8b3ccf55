//! Plots of the samples of one trial, in their order or by time.

use pinfold_model::Unit;
use pinfold_report::{ChartPoint, Line, Picture};
use pinfold_stats::median;
use pinfold_study::study::{Analysis, Plot, TIME};

use super::marks::Axes;
use super::{failure, label_of};
use crate::Failure;

/// Number of pieces of a line; of each the median, the smallest and the largest sample are drawn.
const PIECES: usize = 100;

/// The lines of a sequence.
pub(super) fn picture(analysis: &Analysis, plot: &Plot) -> Result<Picture, Failure> {
    let axes = [plot.panel.as_deref().unwrap_or(""), plot.series.as_deref().unwrap_or("")];
    let found =
        analysis.sequences(&plot.selection, &axes).map_err(|why| failure(&plot.name, &why))?;
    let axes = Axes::new(analysis, [axes[0], axes[1], ""], found.iter().map(|(key, _)| key));
    let is_timed = plot.x == TIME;
    let picture = axes.picture(analysis, plot, |title| {
        let lines = found.iter().filter(|(key, _)| key[0] == *title);
        let lines = lines.map(|(key, samples)| Line {
            name: label_of(analysis, axes.names[1], &key[1]),
            spots: thin(&spots(samples, is_timed)),
        });
        lines.collect()
    });
    Ok(Picture {
        x: if is_timed { "time since the first sample" } else { "sample" }.to_owned(),
        x_unit: is_timed.then_some(Unit::Nanoseconds),
        ..picture
    })
}

/// Each sample at its number, from 1, or at the sum of the samples before it.
fn spots(samples: &[f64], is_timed: bool) -> Vec<ChartPoint> {
    let mut time = 0.0;
    (1..)
        .zip(samples)
        .map(|(order, sample)| {
            let x = if is_timed { time.to_string() } else { order.to_string() };
            time += sample;
            ChartPoint { x, value: *sample, range: None }
        })
        .collect()
}

/// The median of each piece, with the range of its samples, so that the level shows and no peak is
/// lost.
fn thin(spots: &[ChartPoint]) -> Vec<ChartPoint> {
    if spots.len() <= 2 * PIECES {
        return spots.to_vec();
    }
    let pieces = spots.chunks(spots.len().div_ceil(PIECES));
    let of_piece = pieces.filter_map(|piece| {
        let samples: Vec<f64> = piece.iter().map(|spot| spot.value).collect();
        let least = samples.iter().copied().reduce(f64::min)?;
        let most = samples.iter().copied().reduce(f64::max)?;
        let x = piece[piece.len() / 2].x.clone();
        Some(ChartPoint { x, value: median(&samples)?, range: Some((least, most)) })
    });
    of_piece.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(spots: &[ChartPoint]) -> Vec<f64> {
        spots.iter().map(|spot| spot.x.parse().unwrap()).collect()
    }

    #[test]
    fn samples_stand_at_their_number_or_time_and_no_peak_is_lost() {
        assert_eq!(places(&spots(&[3.0, 2.0, 4.0], false)), [1.0, 2.0, 3.0]);
        assert_eq!(places(&spots(&[3.0, 2.0, 4.0], true)), [0.0, 3.0, 5.0]);
        let mut samples = vec![5.0; 10_000];
        (samples[17], samples[7_000]) = (900.0, 1.0);
        let kept = thin(&spots(&samples, false));
        assert_eq!(kept.len(), PIECES);
        assert!(kept.iter().all(|spot| spot.value == 5.0), "the level is the median");
        let with = |end: (f64, f64)| kept.iter().filter(|spot| spot.range == Some(end)).count();
        assert_eq!((with((5.0, 900.0)), with((1.0, 5.0)), with((5.0, 5.0))), (1, 1, PIECES - 2));
        assert_eq!(thin(&spots(&samples[..2 * PIECES], false)).len(), 2 * PIECES);
        assert!(places(&kept).is_sorted());
    }
}
