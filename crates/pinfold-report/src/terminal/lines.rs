//! Lines of points over a common axis, as characters.
//!
//! ```text
//!   34 µs ┤                                ·····●
//!         │                          ●·····   ··○
//!    1 µs ┤●·······○·······●···○·····
//!         └┬──────────────┬────────────────┬────┬
//!          2              8               64   96
//!          ● kib 0   ○ kib 4
//! ```

use pinfold_model::Unit;

use super::{LEAST_WIDTH, LEFT, LINEAR_RATIO, ROWS, axis, index, round_for_axis};
use crate::format;

/// Markers of the points, by line.
const MARKS: [char; 4] = ['●', '○', '■', '□'];

/// A name, and points `(x, value)` in ascending order of x.
type Line = (String, Vec<(f64, f64)>);

/// A line for each name, over a logarithmic x axis. `None` without two x values or a value above
/// zero.
pub fn lines(series: &[Line], unit: Unit, width: usize) -> Option<String> {
    let series: Vec<Line> = series.iter().map(drawable).collect();
    let frame = Frame::new(&series, width.max(LEAST_WIDTH) - LEFT)?;
    let mut text = String::new();
    for (height, cells) in frame.draw(&series).iter().enumerate().rev() {
        let is_named = [0, ROWS / 2, ROWS - 1].contains(&height);
        let name = if is_named {
            format::tick(round_for_axis(frame.value_at(height)), unit)
        } else {
            String::new()
        };
        let mark = if is_named { '┤' } else { '│' };
        let line = format!("{name:>0$} {mark}{1}", LEFT - 2, cells.iter().collect::<String>());
        text.push_str(&format!("{}\n", line.trim_end()));
    }
    text.push_str(&axis(frame.columns, &frame.ticks(&series)));
    let legend = series.iter().zip(MARKS.into_iter().cycle());
    let legend: Vec<String> = legend.map(|((name, _), mark)| format!("{mark} {name}")).collect();
    text.push_str(&format!("{:1$}{2}\n", "", LEFT, legend.join("   ")));
    Some(text)
}

/// Removes the points that cannot be on logarithmic axes.
fn drawable(line: &Line) -> Line {
    let (name, points) = line;
    let points = points.iter().copied();
    let drawn = points.filter(|(x, value)| *x > 0.0 && *value > 0.0 && value.is_finite());
    (name.clone(), drawn.collect())
}

/// The ranges of the axes.
struct Frame {
    columns: usize,
    /// The first and the last x.
    places: (f64, f64),
    /// The smallest and the largest value.
    values: (f64, f64),
}

impl Frame {
    fn new(series: &[Line], columns: usize) -> Option<Self> {
        let (places, values) = (ends(series, |point| point.0), ends(series, |point| point.1));
        (places.1 > places.0).then_some(Self { columns, places, values })
    }

    fn column(&self, place: f64) -> f64 {
        let (first, last) = self.places;
        (place / first).ln() / (last / first).ln() * (self.columns - 1) as f64
    }

    fn is_log(&self) -> bool {
        self.values.1 > self.values.0 * LINEAR_RATIO
    }

    fn row(&self, value: f64) -> f64 {
        let (least, most) = self.values;
        let share =
            if self.is_log() { (value / least).ln() / (most / least).ln() } else { value / most };
        share * (ROWS - 1) as f64
    }

    fn value_at(&self, row: usize) -> f64 {
        let (least, most) = self.values;
        let share = row as f64 / (ROWS - 1) as f64;
        if self.is_log() { least * (most / least).powf(share) } else { most * share }
    }

    /// The rows, from bottom to top.
    fn draw(&self, series: &[Line]) -> Vec<Vec<char>> {
        let mut grid = vec![vec![' '; self.columns]; ROWS];
        for pair in series.iter().flat_map(|(_, points)| points.windows(2)) {
            let (from, to) = (self.column(pair[0].0), self.column(pair[1].0));
            let (start, end) = (self.row(pair[0].1), self.row(pair[1].1));
            (index(from)..=index(to)).for_each(|column| {
                let share = ((column as f64 - from) / (to - from).max(1.0)).clamp(0.0, 1.0);
                grid[index(start + share * (end - start))][column] = '·';
            });
        }
        // Drawn over the lines, so that none hides a point.
        for ((_, points), mark) in series.iter().zip(MARKS.into_iter().cycle()) {
            for (place, value) in points {
                grid[index(self.row(*value))][index(self.column(*place))] = mark;
            }
        }
        grid
    }

    /// Every x with its label.
    fn ticks(&self, series: &[Line]) -> Vec<(usize, String)> {
        let all = series.iter().flat_map(|(_, points)| points);
        let mut places: Vec<f64> = all.map(|point| point.0).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        places
            .iter()
            .map(|place| (index(self.column(*place)), format::tick(*place, Unit::Count)))
            .collect()
    }
}

fn ends(series: &[(String, Vec<(f64, f64)>)], of: fn(&(f64, f64)) -> f64) -> (f64, f64) {
    let all = series.iter().flat_map(|(_, points)| points).map(of);
    all.fold((f64::INFINITY, 0.0_f64), |(a, b), one| (a.min(one), b.max(one)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_share_an_axis_and_keep_their_width() {
        let two = [line("kib 0", 1.0), line("kib 4", 1.5)];
        for width in [1, 40, 80, 120] {
            let picture = lines(&two, Unit::Nanoseconds, width).unwrap();
            assert_eq!(picture.lines().count(), ROWS + 3, "{picture}");
            assert!(picture.lines().all(|line| line.chars().count() <= width.max(LEAST_WIDTH)));
        }
        let picture = lines(&two, Unit::Nanoseconds, 80).unwrap();
        for word in ["2.9 µs ┤", " 0 ns ┤", "┬", " 16 ", "96\n", "● kib 0   ○ kib 4"] {
            assert!(picture.contains(word), "{word}\n{picture}");
        }
        assert_eq!(
            picture.matches('●').count() + picture.matches('○').count(),
            16 + 2,
            "{picture}"
        );
        // With a ratio above four the axis is logarithmic.
        let steep = lines(&[line("a", 1.0), line("b", 9.0)], Unit::Nanoseconds, 80).unwrap();
        assert!(steep.contains("18 µs ┤") && steep.contains("1 µs ┤"), "{steep}");
        assert_eq!(lines(&[], Unit::Nanoseconds, 80), None);
        let one = ("a".to_owned(), vec![(2.0, 5.0)]);
        assert_eq!(lines(&[one], Unit::Nanoseconds, 80), None);
        let below = ("a".to_owned(), vec![(2.0, -5.0), (4.0, 0.0)]);
        assert_eq!(lines(&[below], Unit::Nanoseconds, 80), None);
    }

    fn line(name: &str, factor: f64) -> (String, Vec<(f64, f64)>) {
        let points = [2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 64.0, 96.0];
        (name.to_owned(), points.map(|x: f64| (x, factor * (1_000.0 + 10.0 * x))).to_vec())
    }
}
