//! Statistics of readings: errors, evenness, stops. Pure.

use pinfold_probe::cpu_speed::Stop;
use pinfold_stats::{median, median_interval, quantile};

/// Achieved minus requested speed, in points of full speed.
pub fn error_points(achieved: f64, asked: f64) -> f64 {
    (achieved - asked) * 100.0
}

/// Root mean square of the deviation of a window's progress (1 is full speed) from its mean.
/// `None` without a whole window or a full speed.
pub fn unevenness(windows: &[u64], per_ms: f64, width: usize) -> Option<f64> {
    if per_ms <= 0.0 || width == 0 {
        return None;
    }
    let progress: Vec<f64> = windows
        .chunks_exact(width)
        .map(|chunk| chunk.iter().sum::<u64>() as f64 / (per_ms * width as f64))
        .collect();
    let count = progress.len() as f64;
    let mean = progress.iter().sum::<f64>() / count;
    let square = progress.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / count;
    (!progress.is_empty()).then(|| square.sqrt())
}

/// Number and length of a worker's stops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stops {
    /// Number per second.
    pub per_second: f64,
    /// The 50 %, 95 % and 99 % quantiles and the maximum of their length (ns).
    pub quantiles_ns: [f64; 4],
}

/// The quantiles in [`Stops::quantiles_ns`].
const PARTS: [f64; 4] = [0.5, 0.95, 0.99, 1.0];

/// The stops in this number of milliseconds; `None` if there were none.
pub fn stops(stops: &[Stop], span_ms: usize) -> Option<Stops> {
    let lengths: Vec<f64> = stops.iter().map(|stop| stop.length_ns as f64).collect();
    let [half, most, nearly_all, all] = PARTS.map(|part| quantile(&lengths, part));
    Some(Stops {
        per_second: lengths.len() as f64 * 1e3 / span_ms as f64,
        quantiles_ns: [half?, most?, nearly_all?, all?],
    })
}

/// A median with its 95 % interval, as `0.10 [0.07, 0.14]`.
pub fn median_text(values: &[f64], digits: usize) -> String {
    let Some(middle) = median(values) else { return "–".to_owned() };
    match median_interval(values) {
        Some((low, high)) => format!("{middle:.digits$} [{low:.digits$}, {high:.digits$}]"),
        None => format!("{middle:.digits$} [one run]"),
    }
}

/// A quantile, `–` for no values.
pub fn quantile_text(values: &[f64], part: f64, digits: usize) -> String {
    quantile(values, part).map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
}

/// A median with its sign.
pub fn signed_text(values: &[f64]) -> String {
    median(values).map_or_else(|| "–".to_owned(), |value| format!("{value:+.2}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_in_points_of_full_speed() {
        assert!((error_points(0.52, 0.5) - 2.0).abs() < 1e-9);
        assert!((error_points(0.04, 0.05) + 1.0).abs() < 1e-9);
    }

    #[test]
    fn unevenness_by_width() {
        // Runs in every other millisecond: half speed, with the largest unevenness, and even in
        // windows of two.
        let windows = [10, 0, 10, 0, 10, 0, 10];
        assert_eq!(unevenness(&windows[..6], 10.0, 1), Some(0.5));
        assert_eq!(unevenness(&windows, 10.0, 2), Some(0.0));
        assert_eq!(unevenness(&windows, 10.0, 8), None);
        assert_eq!(unevenness(&windows, 0.0, 1), None);
        assert_eq!(unevenness(&windows, 10.0, 0), None);
    }

    #[test]
    fn stops_by_length() {
        let many: Vec<Stop> = (0..=100).map(|length_ns| Stop { start_ns: 0, length_ns }).collect();
        let found = Stops { per_second: 202.0, quantiles_ns: [50.0, 95.0, 99.0, 100.0] };
        assert_eq!(stops(&many, 500), Some(found));
        assert_eq!(stops(&[], 500), None);
    }

    #[test]
    fn medians_with_their_interval() {
        assert_eq!(median_text(&[0.5; 5], 2), "0.50 [0.50, 0.50]");
        assert_eq!(median_text(&[0.5], 1), "0.5 [one run]");
        assert_eq!(median_text(&[], 1), "–");
        assert_eq!(signed_text(&[-0.125, -0.25, 3.0]), "-0.12");
        assert_eq!(quantile_text(&[1.0, 2.0, 3.0], 1.0, 1), "3.0");
    }
}
