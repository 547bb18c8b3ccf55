//! Percentile plot: the tail of the samples.
//!
//! The x axis is the percentile as −log10(1 − p), the y axis the value on a logarithmic scale.
//! There is one line per candidate. Its largest sample is a marker at `1 - 1/n`, joined with a
//! dotted line because nothing is known in between.

use pinfold_model::Metric;

use super::{Shared, chart_id};
use crate::axis::LogAxis;
use crate::format;
use crate::page::{Curve, Distribution, Page, Quantile};
use crate::series::Series;
use crate::svg::{Svg, TextAnchor};

const WIDTH: f64 = 440.0;
const HEIGHT: f64 = 282.0;
const LEFT: f64 = 52.0;
/// Width for the labels next to the lines: constant part, and per letter.
const RIGHT: (f64, f64) = (28.0, 7.4);
/// Length in letters of the longest label that fits without a wider chart.
const LONGEST_LABEL: usize = 16;
/// Width of a letter of a tick label.
const LETTER: f64 = 6.2;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 44.0;
/// Minimum vertical distance of the labels next to the lines.
const LABEL_STEP: f64 = 14.0;
/// Percentiles with ticks, and with markers on the lines.
const TICKS: [(f64, &str); 8] = [
    (0.5, "50 %"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (0.9999, "99.99 %"),
    (0.999_99, "5 nines"),
    (0.999_999, "6 nines"),
    (0.999_999_9, "7 nines"),
];

/// A curve with its appearance and its pixels.
struct Drawn {
    series: Series,
    line: Vec<(f64, f64)>,
    marks: Vec<(f64, f64)>,
    max: Option<(f64, f64)>,
    title: String,
}

/// Position of `share` on the x axis.
fn nines(share: f64) -> f64 {
    -(1.0 - share.clamp(0.0, 0.999_999_999)).log10()
}

/// Position of the largest of `samples` on the x axis.
fn place_of_max(samples: u64) -> f64 {
    (samples.max(2) as f64).log10()
}

/// The data that all distributions of a metric share; `None` if there is nothing to draw.
pub(crate) fn shared_axes(page: &Page, metric: Metric) -> Option<Shared> {
    let curves = || {
        page.distributions
            .iter()
            .filter(move |distribution| distribution.metric == metric)
            .flat_map(|distribution| &distribution.curves)
    };
    let values =
        curves().flat_map(|curve| curve.points.iter().map(|point| point.value).chain(curve.max));
    let tail = curves().map(|curve| place_of_max(curve.samples)).fold(2.0, f64::max);
    let values = LogAxis::over(values, (HEIGHT - BOTTOM, TOP))?;
    let limit = page.asked.max_gap_ns.filter(|_| metric.is_gap());
    let longest = curves()
        .map(|curve: &Curve| page.name(curve.candidate).chars().count())
        .max()
        .unwrap_or(LONGEST_LABEL);
    let right = WIDTH - RIGHT.0 - RIGHT.1 * longest.min(LONGEST_LABEL) as f64;
    let width = WIDTH + RIGHT.1 * longest.saturating_sub(LONGEST_LABEL) as f64;
    Some(Shared { values, tail, left: LEFT, right, width, limit })
}

/// The population of the shares. The stalls of different placements are different populations: the
/// better placement has fewer, and its percentiles would have another meaning. Arrivals at random
/// times are the same population for all.
fn population(metric: Metric) -> (&'static str, &'static str) {
    match metric {
        Metric::SpinGap => ("share of arrivals that wait at most this long", "moments"),
        Metric::Wakeup
        | Metric::ComputeRate
        | Metric::IoAhci
        | Metric::IoVirtio
        | Metric::RunDelay => ("share of samples at or below", "samples"),
    }
}

/// The plot of one metric in one load state.
pub(crate) fn draw(page: &Page, distribution: &Distribution, shared: &Shared) -> String {
    let metric = distribution.metric;
    let id = chart_id("percentiles", distribution.metric, distribution.load);
    let title = format!("Percentiles of {}, {}", distribution.metric.name(), distribution.load);
    let drawn: Vec<Drawn> =
        distribution.curves.iter().map(|curve| prepare(page, curve, shared, metric)).collect();
    let description: Vec<&str> = drawn.iter().map(|curve| curve.title.as_str()).collect();
    let mut svg = Svg::open(&id, (shared.width, HEIGHT), &title, &description.join("; "));
    axes(&mut svg, shared, metric);
    // The winner last, on top of the others.
    for winner in [false, true] {
        for curve in drawn.iter().filter(|curve| curve.series.winner == winner) {
            draw_curve(&mut svg, curve);
        }
    }
    labels(&mut svg, &drawn, shared.right);
    svg.close()
}

fn x_of(nines: f64, shared: &Shared) -> f64 {
    LEFT + (nines / shared.tail).clamp(0.0, 1.0) * (shared.right - LEFT)
}

fn prepare(page: &Page, curve: &Curve, shared: &Shared, metric: Metric) -> Drawn {
    let unit = metric.unit();
    let series = page.series(curve.candidate);
    let line: Vec<(f64, f64)> =
        curve.points.iter().filter(drawable).map(|point| place(shared, point)).collect();
    let marks = TICKS
        .iter()
        .filter_map(|(share, _)| value_at(curve, *share))
        .map(|point| place(shared, point))
        .collect();
    let finite_max = curve.max.filter(|value| value.is_finite());
    let max = finite_max
        .map(|value| (x_of(place_of_max(curve.samples), shared), shared.values.pixel(value)));
    let title = format!(
        "{}: median {}, 99 % {}, longest {} of {} {}",
        series.name,
        format::maybe(value_for(0.5, curve), unit),
        format::maybe(value_for(0.99, curve), unit),
        format::maybe(finite_max, unit),
        format::count(curve.samples),
        population(metric).1
    );
    Drawn { series, line, marks, max, title }
}

fn value_for(share: f64, curve: &Curve) -> Option<f64> {
    value_at(curve, share).map(|point| point.value)
}

fn place(shared: &Shared, point: &Quantile) -> (f64, f64) {
    (x_of(nines(point.share), shared), shared.values.pixel(point.value))
}

fn value_at(curve: &Curve, share: f64) -> Option<&Quantile> {
    let nearest = curve.points.iter().filter(drawable).min_by(|a, b| {
        f64::total_cmp(
            &(nines(a.share) - nines(share)).abs(),
            &(nines(b.share) - nines(share)).abs(),
        )
    })?;
    ((nines(nearest.share) - nines(share)).abs() < 0.06).then_some(nearest)
}

fn drawable(point: &&Quantile) -> bool {
    point.value.is_finite() && point.share.is_finite()
}

fn axes(svg: &mut Svg, shared: &Shared, metric: Metric) {
    let unit = metric.unit();
    let (right, bottom) = (shared.right, HEIGHT - BOTTOM);
    for tick in shared.values.ticks() {
        let y = shared.values.pixel(tick.value);
        svg.line(if tick.labelled { "grid" } else { "grid minor" }, (LEFT, y), (right, y));
        if tick.labelled {
            let label = format::tick(tick.value, unit);
            svg.text("tick", TextAnchor::End, (LEFT - 7.0, y + 4.0), &label);
        }
    }
    let mut free = LEFT;
    for (share, label) in TICKS.iter().filter(|(share, _)| nines(*share) <= shared.tail + 0.01) {
        let x = x_of(nines(*share), shared);
        svg.line("grid", (x, TOP), (x, bottom));
        let half = LETTER * label.chars().count() as f64 / 2.0;
        if x - half >= free {
            svg.text("tick", TextAnchor::Middle, (x, bottom + 16.0), label);
            free = x + half + LETTER;
        }
    }
    svg.line("axis", (LEFT, bottom), (right, bottom));
    let middle = (LEFT + right) / 2.0;
    svg.text("axis-title", TextAnchor::Middle, (middle, HEIGHT - 8.0), population(metric).0);
    if let Some(limit) = shared.limit.filter(|limit| shared.values.holds(*limit)) {
        let y = shared.values.pixel(limit);
        svg.line("limit", (LEFT, y), (right, y));
        let label = format!("limit {}", format::tick(limit, unit));
        svg.text("limit-label", TextAnchor::Start, (LEFT + 5.0, y - 5.0), &label);
    }
}

fn draw_curve(svg: &mut Svg, curve: &Drawn) {
    svg.open_group(&curve.series.classes(), Some(&curve.title));
    svg.polyline("line", &curve.line);
    if let (Some(last), Some(max)) = (curve.line.last(), curve.max) {
        svg.line("beyond", *last, max);
    }
    let marker = curve.series.marker;
    for mark in curve.marks.iter().chain(curve.max.as_ref()) {
        svg.path(marker.class(), *mark, marker.path());
    }
    svg.close_group();
}

/// Names next to the ends of the lines, moved apart where they would overlap.
fn labels(svg: &mut Svg, drawn: &[Drawn], right: f64) {
    let x = right + 14.0;
    let mut ends: Vec<(&Drawn, (f64, f64))> = drawn
        .iter()
        .filter_map(|curve| Some((curve, curve.max.or(curve.line.last().copied())?)))
        .collect();
    ends.sort_by(|a, b| f64::total_cmp(&a.1.1, &b.1.1));
    let wanted: Vec<f64> = ends.iter().map(|(_, end)| end.1).collect();
    let places = spread(&wanted, LABEL_STEP, (TOP + 4.0, HEIGHT - BOTTOM));
    for ((curve, end), y) in ends.iter().zip(places) {
        svg.open_group(&curve.series.classes(), Some(&curve.title));
        svg.polyline("leader", &[(end.0 + 6.0, end.1), (x - 7.0, y), (x - 3.0, y)]);
        svg.text("label", TextAnchor::Start, (x, y + 4.0), &curve.series.name);
        svg.close_group();
    }
}

/// Moves ascending positions apart to a distance of at least `step`, inside `bounds` if they fit.
fn spread(wanted: &[f64], step: f64, bounds: (f64, f64)) -> Vec<f64> {
    let mut places: Vec<f64> = Vec::with_capacity(wanted.len());
    for place in wanted {
        let least = places.last().map_or(bounds.0, |last| last + step);
        places.push(place.max(least));
    }
    let mut most = bounds.1;
    for place in places.iter_mut().rev() {
        *place = place.min(most);
        most = *place - step;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_move_apart_and_stay_inside() {
        check(&[], &[]);
        check(&[20.0], &[20.0]);
        check(&[20.0, 22.0], &[20.0, 30.0]);
        check(&[48.0, 49.0, 50.0], &[30.0, 40.0, 50.0]);
        check(&[-5.0, 0.0], &[0.0, 10.0]);
    }

    fn check(wanted: &[f64], expected: &[f64]) {
        assert_eq!(spread(wanted, 10.0, (0.0, 50.0)), expected);
    }

    #[test]
    fn nines_of_shares() {
        fn check(share: f64, expected: f64) {
            assert!((nines(share) - expected).abs() < 1e-6);
        }

        check(0.0, 0.0);
        check(0.9, 1.0);
        check(0.999, 3.0);
        check(1.0, 9.0);
    }
}
