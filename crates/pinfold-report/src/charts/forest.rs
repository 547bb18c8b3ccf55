//! Forest plot: ratios with their intervals and a reference line at 1.
//!
//! One small drawing per row of a ranking, all on the axis of the table, whose header has the
//! ticks. An interval that includes 1 is not a significant difference.

use pinfold_model::Unit;

use crate::axis::LogAxis;
use crate::format;
use crate::page::{Comparison, Ranking, Verdict};
use crate::svg::{Svg, TextAnchor};

const WIDTH: f64 = 190.0;
const HEIGHT: f64 = 24.0;
const EDGE: f64 = 10.0;
/// Minimum width of the axis as a ratio, so that noise does not look like a difference.
const NARROWEST: f64 = 1.25;

/// The axis of a ranking; it always includes 1.
pub(crate) fn axis(ranking: &Ranking) -> Option<LogAxis> {
    let ends = ranking
        .rows
        .iter()
        .filter_map(|row| row.comparison.as_ref())
        .flat_map(|comparison| [comparison.ratio, comparison.low, comparison.high])
        .chain([NARROWEST, 1.0 / NARROWEST]);
    LogAxis::over(ends, (EDGE, WIDTH - EDGE))
}

/// The header of the column: ticks, and which side is better.
pub(crate) fn head(axis: &LogAxis, id: &str, higher_is_better: bool) -> String {
    let (left, right) = if higher_is_better { ("worse", "better") } else { ("better", "worse") };
    let description = format!("ratios below 1 are {left}, above 1 {right}");
    let mut svg = Svg::open(id, (WIDTH, 34.0), "Axis of ratios against the baseline", &description);
    let one = axis.pixel(1.0);
    if one - EDGE > 42.0 {
        svg.text("side", TextAnchor::End, (one - 6.0, 10.0), &format!("← {left}"));
    }
    if WIDTH - EDGE - one > 42.0 {
        svg.text("side", TextAnchor::Start, (one + 6.0, 10.0), &format!("{right} →"));
    }
    svg.line("one", (one, 0.0), (one, 17.0));
    let mut ticks: Vec<f64> =
        axis.ticks().iter().filter(|tick| tick.labelled).map(|tick| tick.value).collect();
    // 1 first: labels that would touch it are left out.
    ticks.sort_by(|a, b| f64::total_cmp(&(a.ln().abs()), &(b.ln().abs())));
    let mut kept: Vec<f64> = Vec::new();
    for tick in ticks {
        if kept.iter().all(|other| (axis.pixel(*other) - axis.pixel(tick)).abs() >= 34.0) {
            kept.push(tick);
        }
    }
    for tick in kept {
        let x = axis.pixel(tick).clamp(14.0, WIDTH - 14.0);
        let label = format!("{}×", format::tick(tick, Unit::Count));
        svg.text("tick", TextAnchor::Middle, (x, 28.0), &label);
    }
    svg.close()
}

/// The drawing of one row.
pub(crate) fn row(axis: &LogAxis, id: &str, name: &str, comparison: &Comparison) -> String {
    let interval = interval(comparison);
    let title = format!("{name} against the baseline: {interval}");
    let mut svg = Svg::open(id, (WIDTH, HEIGHT), &title, verdict_word(&comparison.verdict));
    let y = HEIGHT / 2.0;
    let one = axis.pixel(1.0);
    svg.line("one", (one, 0.0), (one, HEIGHT));
    svg.open_group(&format!("ratio {}", verdict_class(&comparison.verdict)), None);
    if comparison.low.is_finite() && comparison.high.is_finite() {
        let (low, high) = (axis.pixel(comparison.low), axis.pixel(comparison.high));
        svg.line("bar", (low, y), (high, y));
        svg.line("bar", (low, y - 4.0), (low, y + 4.0));
        svg.line("bar", (high, y - 4.0), (high, y + 4.0));
    }
    if comparison.ratio.is_finite() {
        svg.rect("estimate", (axis.pixel(comparison.ratio) - 4.0, y - 4.0), (8.0, 8.0));
    }
    svg.close_group();
    svg.close()
}

/// `0.0807× (0.0660× to 0.110×)`.
pub(crate) fn interval(comparison: &Comparison) -> String {
    format!(
        "{} ({} to {})",
        format::ratio(comparison.ratio),
        format::ratio(comparison.low),
        format::ratio(comparison.high)
    )
}

/// The verdict as one word.
pub(crate) fn verdict_word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Same => "same",
        Verdict::Worse => "worse",
        Verdict::Unknown(_) => "unknown",
    }
}

/// The verdict as a symbol that needs no colour.
pub(crate) fn verdict_sign(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "▲",
        Verdict::Same => "=",
        Verdict::Worse => "▼",
        Verdict::Unknown(_) => "?",
    }
}

/// The verdict as a CSS class.
pub(crate) fn verdict_class(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "v-better",
        Verdict::Same => "v-same",
        Verdict::Worse => "v-worse",
        Verdict::Unknown(_) => "v-unknown",
    }
}
