//! Charts of block characters, for terminals with at least 40 columns.
//!
//! ```text
//!  2.36 ms ┤                                    █
//!          │                                 ▂▅▇█
//!  12.0 µs ┤▁▁▁▁▁▁▁▁▂▂▂▂▃▃▃▃▃▃▄▄▄▄▄▄▅▅▅▅▅▆▆▆▆████
//!          └┬──────────┬──────────┬──────────┬──┬
//!          min        50         90         99  max
//! ```

mod lines;

use pinfold_model::Unit;

use crate::format;

pub use lines::lines;

/// Number of rows of a chart, without its axis.
const ROWS: usize = 8;
/// Number of columns of the labels on the left, with the axis.
const LEFT: usize = 11;
/// Minimum width of a chart.
const LEAST_WIDTH: usize = 40;
/// Up to this ratio of the largest to the smallest value the axis is linear.
const LINEAR_RATIO: f64 = 4.0;
/// Probabilities below 10⁻⁹ are not drawn.
const RAREST: f64 = 1e-9;
const COLUMN: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const LINE: [char; 8] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];

/// The percentile plot of points `(quantile, value)` in ascending order, the last of them the
/// maximum. The x axis is −log10(1 − p). `None` without two different points.
pub fn percentiles(points: &[(f64, f64)], unit: Unit, width: usize) -> Option<String> {
    fn value_at(end: f64, inner: usize, largest: f64, body: &[(f64, f64)], column: usize) -> f64 {
        let wanted = end * column as f64 / (inner - 1) as f64;
        let after = body.partition_point(|(quantile, _)| place(*quantile) < wanted);
        let right = body.get(after).or(body.last());
        right.map_or(largest, |(_, value)| *value)
    }

    let (body, largest) = match points {
        [body @ .., (_, largest)] if !body.is_empty() => (body, *largest),
        [..] => return None,
    };
    let end = body.last().map(|(quantile, _)| place(*quantile))?.max(0.3);
    let columns = width.max(LEAST_WIDTH) - LEFT;
    let inner = columns - 2; // the last two show the maximum
    let mut values: Vec<f64> =
        (0..inner).map(|column| value_at(end, inner, largest, body, column)).collect();
    values.extend([largest, largest]);
    let marks = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999];
    let names = ["min", "50", "90", "99", "99.9", "99.99", "99.999"];
    let mut ticks = Vec::new();
    for (quantile, name) in marks.into_iter().zip(names) {
        if place(quantile) <= end {
            ticks.push((index(place(quantile) / end * (inner - 1) as f64), name.to_owned()));
        }
    }
    ticks.push((columns - 1, "max".to_owned()));
    Some(picture(&values, &ticks, |value| format::tick(value, unit)))
}

fn place(quantile: f64) -> f64 {
    -(1.0 - quantile).max(1e-12).log10()
}

/// The probability that an arrival at a random time waits longer than each length: points
/// `(length, probability)` with ascending lengths. `None` without two points.
pub fn arrivals(points: &[(f64, f64)], unit: Unit, width: usize) -> Option<String> {
    fn value_at(
        shortest: f64,
        decades: f64,
        columns: usize,
        likely: &[(f64, f64)],
        column: usize,
    ) -> f64 {
        let length = shortest * 10_f64.powf(decades * column as f64 / (columns - 1) as f64);
        let after = likely.partition_point(|(one, _)| *one < length);
        likely.get(after).or(likely.last()).map_or(0.0, |(_, p)| *p)
    }

    let likely: Vec<(f64, f64)> =
        points.iter().copied().filter(|(length, p)| *p >= RAREST && *length > 0.0).collect();
    let (&(shortest, _), &(longest, _)) = (likely.first()?, likely.last()?);
    let columns = width.max(LEAST_WIDTH) - LEFT;
    if longest <= shortest {
        return None;
    }
    let decades = (longest / shortest).log10();
    let values: Vec<f64> =
        (0..columns).map(|column| value_at(shortest, decades, columns, &likely, column)).collect();
    let mut ticks = vec![(0, format::tick(round_for_axis(shortest), unit))];
    let first_decade = shortest.log10().floor() + 1.0;
    for step in 0..12 {
        let length = 10_f64.powf(first_decade + f64::from(step));
        let share = (length / shortest).log10() / decades;
        if share < 0.95 {
            ticks.push((index(share * (columns - 1) as f64), format::tick(length, unit)));
        }
    }
    ticks.push((columns - 1, format::tick(round_for_axis(longest), unit)));
    Some(picture(&values, &ticks, |p| likelihood(round_for_axis(p))))
}

fn likelihood(p: f64) -> String {
    match p {
        p if p >= 1e-4 => format::percent(p),
        p if p >= 1e-7 => format!("{} ppm", format::significant(p * 1e6)),
        p => format!("{} ppb", format::significant(p * 1e9)),
    }
}

/// Samples in the order in which they were taken; a column shows the largest of its samples; the x
/// axis is their index. `None` with fewer than two.
pub fn over_time(samples: &[f64], unit: Unit, width: usize) -> Option<String> {
    if samples.len() < 2 {
        return None;
    }
    let columns = width.max(LEAST_WIDTH) - LEFT;
    let values: Vec<f64> = (0..columns).map(|column| value_at(samples, columns, column)).collect();
    let ticks: Vec<(usize, String)> = (0..=4)
        .map(|quarter| {
            let sample = quarter * (samples.len() - 1) / 4;
            (quarter * (columns - 1) / 4, format::count(sample as u64))
        })
        .collect();
    Some(picture(&values, &ticks, |value| format::tick(value, unit)))
}

fn value_at(samples: &[f64], columns: usize, column: usize) -> f64 {
    let first = column * samples.len() / columns;
    let end = ((column + 1) * samples.len() / columns).max(first + 1);
    samples.get(first..end).unwrap_or_default().iter().copied().fold(0.0, f64::max)
}

/// A horizontal bar that is full at 1.
pub fn bar(share: f64, width: usize) -> String {
    let eighths = index(share.clamp(0.0, 1.0) * (width * LINE.len()) as f64);
    let mut text = "█".repeat(eighths / LINE.len());
    if let Some(rest) = (eighths % LINE.len()).checked_sub(1) {
        text.push(LINE[rest]);
    }
    text
}

/// Vertical bars with the heights of the values.
fn picture(values: &[f64], ticks: &[(usize, String)], label: impl Fn(f64) -> String) -> String {
    fn value_at(is_log: bool, least: f64, most: f64, share: f64) -> f64 {
        if is_log {
            least * ((share - 0.125) / 0.875 * (most / least).ln()).exp()
        } else {
            share * most
        }
    }

    let positive = || values.iter().copied().filter(|value| value.is_finite() && *value > 0.0);
    let (least, most) =
        (positive().fold(f64::INFINITY, f64::min), positive().fold(0.0_f64, f64::max));
    let is_log = most > least * LINEAR_RATIO;
    let mut text = String::new();
    for row in (0..ROWS).rev() {
        let middle = row == ROWS / 2;
        let name = match (row + 1 == ROWS, middle, row == 0) {
            (true, _, _) => label(value_at(is_log, least, most, 1.0)),
            (_, true, _) => {
                label(round_for_axis(value_at(is_log, least, most, (row + 1) as f64 / ROWS as f64)))
            }
            (_, _, true) => label(round_for_axis(value_at(is_log, least, most, 1.0 / ROWS as f64))),
            (false, false, false) => String::new(),
        };
        let mark = if name.is_empty() { '│' } else { '┤' };
        let mut line = format!("{name:>0$} {mark}", LEFT - 2);
        for value in values {
            let eighths = index(share(most, is_log, least, *value) * (ROWS * 8) as f64);
            let here = eighths.saturating_sub(row * 8).min(8);
            line.push(COLUMN[here]);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.push_str(&axis(values.len(), ticks));
    text
}

fn share(most: f64, is_log: bool, least: f64, value: f64) -> f64 {
    match (value > 0.0 && most > 0.0, is_log) {
        (false, _) => 0.0,
        // The smallest value has an eighth of the height.
        (true, true) => 0.125 + 0.875 * (value / least).ln() / (most / least).ln(),
        (true, false) => value / most,
    }
}

/// The x axis and its labels. A label that would touch another one is left out, the last one never
/// is.
fn axis(columns: usize, ticks: &[(usize, String)]) -> String {
    let mut line: Vec<char> = vec!['─'; columns];
    let mut names: Vec<char> = vec![' '; LEFT + columns];
    let (last, first) = match ticks {
        [first @ .., last] => (last, first),
        [] => return String::new(),
    };
    let mut put = |tick: &(usize, String), limit: usize, from: usize| {
        let (place, name) = tick;
        let start = start_of(columns, *place, name);
        if start < from || start + width(name) > limit {
            return from;
        }
        line[(*place).min(columns - 1)] = '┬';
        for (offset, letter) in name.chars().enumerate() {
            names[start + offset] = letter;
        }
        start + width(name) + 1
    };
    let limit = start_of(columns, last.0, &last.1).saturating_sub(1);
    let mut from = 0;
    for tick in first {
        from = put(tick, limit, from);
    }
    put(last, usize::MAX, 0);
    let names: String = names.into_iter().collect();
    let line: String = line.into_iter().collect();
    format!("{:>1$}{line}\n{2}\n", "└", LEFT, names.trim_end())
}

/// Centred under its column, within the chart.
fn start_of(columns: usize, place: usize, name: &str) -> usize {
    (LEFT + place).saturating_sub(width(name) / 2).min(LEFT + columns - width(name))
}

fn width(name: &str) -> usize {
    name.chars().count()
}

/// Two significant digits suffice for an axis.
fn round_for_axis(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10_f64.powf(1.0 - value.log10().floor());
    (value * scale).round() / scale
}

#[expect(clippy::cast_possible_truncation, reason = "places in a picture")]
#[expect(clippy::cast_sign_loss, reason = "never below zero")]
fn index(place: f64) -> usize {
    place.round().max(0.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points() -> Vec<(f64, f64)> {
        let body = (0_u32..=40).map(|step| {
            let beyond = 10_f64.powf(-f64::from(step) / 10.0);
            (1.0 - beyond, 4_000.0 / beyond.sqrt())
        });
        body.chain([(1.0, 2_360_000.0)]).collect()
    }

    #[test]
    fn pictures_keep_their_width() {
        let gaps: Vec<(f64, f64)> =
            (0..40).map(|n| (1_000.0 * 1.3_f64.powi(n), 0.5_f64.powi(n + 1))).collect();
        for width in [1, 40, 80, 120, 200] {
            let pictures = [
                percentiles(&points(), Unit::Nanoseconds, width).unwrap(),
                arrivals(&gaps, Unit::Nanoseconds, width).unwrap(),
            ];
            for picture in pictures {
                assert_eq!(picture.lines().count(), ROWS + 2, "{picture}");
                for line in picture.lines() {
                    assert!(line.chars().count() <= width.max(LEAST_WIDTH), "{width}\n{picture}");
                }
                assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
            }
        }
    }

    #[test]
    fn a_percentile_plot_names_its_ends() {
        let picture = percentiles(&points(), Unit::Nanoseconds, 80).unwrap();
        for word in ["2.36 ms ┤", "min", "50", "90", "99", "99.9", "max"] {
            assert!(picture.contains(word), "{word}\n{picture}");
        }
        let top = picture.lines().next().unwrap();
        assert!(top.ends_with("██"), "{picture}");
    }

    #[test]
    fn what_cannot_be_drawn_is_none() {
        assert_eq!(percentiles(&[], Unit::Nanoseconds, 80), None);
        assert_eq!(percentiles(&[(1.0, 5.0)], Unit::Nanoseconds, 80), None);
        assert_eq!(arrivals(&[], Unit::Nanoseconds, 80), None);
        assert_eq!(arrivals(&[(5.0, 0.0), (9.0, 0.0)], Unit::Nanoseconds, 80), None);
        // All zeros give a flat chart, not an error.
        let flat = percentiles(&[(0.0, 0.0), (1.0, 0.0)], Unit::Nanoseconds, 80).unwrap();
        assert!(!flat.contains('█') && !flat.contains("NaN"), "{flat}");
    }

    #[test]
    fn time_goes_from_left_to_right_and_no_peak_is_lost() {
        assert_eq!(over_time(&[], Unit::Nanoseconds, 80), None);
        assert_eq!(over_time(&[5.0], Unit::Nanoseconds, 80), None);
        let mut samples = vec![1e6; 10_000];
        samples[9_999] = 3e6;
        let picture = over_time(&samples, Unit::Nanoseconds, 80).unwrap();
        let lines: Vec<&str> = picture.lines().collect();
        assert_eq!(lines.len(), ROWS + 2, "{picture}");
        assert!(lines[0].contains("3 ms"), "{picture}");
        assert_eq!(lines[0].matches('█').count(), 1, "{picture}");
        assert!(lines[0].ends_with('█'), "the peak is the last\n{picture}");
        assert!(lines[ROWS + 1].trim_start().starts_with('0'), "{picture}");
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{picture}");
        assert!(over_time(&[1.0, 2.0], Unit::Nanoseconds, 1).is_some());
    }

    #[test]
    fn bars_grow_by_eighths() {
        check(0.0, "");
        check(1.0, "████");
        check(2.0, "████");
        check(0.5, "██");
        check(0.53, "██▏");
        check(0.03, "▏");
    }

    fn check(share: f64, text: &str) {
        assert_eq!(bar(share, 4), text)
    }
}
