//! Dot plot: one dot per block, to show the spread of each median.
//!
//! One row per candidate on a common logarithmic axis; the bar marks the median, which is also
//! written at the end of the row. Dots are on three lanes in turn, because the values of blocks are
//! often equal.

use pinfold_model::{Metric, Unit};

use super::{Shared, chart_id};
use crate::axis::LogAxis;
use crate::format;
use crate::page::{BlockRow, BlockValues, Page};
use crate::series::Series;
use crate::svg::{Svg, TextAnchor};

/// Width of the plot area.
const PLOT: f64 = 260.0;
/// Width for names: minimum, gap, and width of a letter.
const LEFT: (f64, f64, f64) = (122.0, 16.0, 6.8);
const RIGHT: f64 = 58.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 44.0;
const ROW: f64 = 26.0;
/// Vertical offsets of successive dots.
const LANES: [f64; 3] = [0.0, -5.0, 5.0];

/// The data that the dot plots of a metric share; `None` if there is nothing to draw.
pub(crate) fn shared_axes(page: &Page, metric: Metric) -> Option<Shared> {
    let values = page
        .blocks
        .iter()
        .filter(|blocks| blocks.metric == metric)
        .flat_map(|blocks| blocks.rows.iter().flat_map(|row| row.values.iter().copied()));
    let rows = page.blocks.iter().filter(|blocks| blocks.metric == metric);
    let letters = rows
        .flat_map(|blocks| &blocks.rows)
        .map(|row| page.name(row.candidate).chars().count())
        .max()
        .unwrap_or(0);
    let left = LEFT.0.max(LEFT.1 + LEFT.2 * letters as f64);
    let right = left + PLOT;
    let values = LogAxis::over(values, (left, right))?;
    let limit = page.asked.max_gap_ns.filter(|_| metric.is_gap());
    Some(Shared { values, tail: 0.0, left, right, width: right + RIGHT, limit })
}

/// The median, ignoring values that are not finite.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get(sorted.len().checked_sub(1)? / 2)?;
    Some(lower + (upper - lower) / 2.0)
}

/// The plot of one metric in one load state.
pub(crate) fn draw(page: &Page, blocks: &BlockValues, shared: &Shared) -> String {
    let unit = blocks.metric.unit();
    let rows: Vec<(Series, &BlockRow)> =
        blocks.rows.iter().map(|row| (page.series(row.candidate), row)).collect();
    let title = format!("{}, {}: {}", blocks.metric.name(), blocks.load, blocks.statistic);
    let description: Vec<String> =
        rows.iter().map(|(series, row)| describe(series, row, unit)).collect();
    let height = TOP + BOTTOM + ROW * rows.len() as f64;
    let id = chart_id("blocks", blocks.metric, blocks.load);
    let mut svg = Svg::open(&id, (shared.width, height), &title, &description.join("; "));
    axis(&mut svg, shared, blocks, height);
    let mut y = TOP + ROW / 2.0;
    for ((series, row), description) in rows.iter().zip(&description) {
        svg.open_group(&series.classes(), Some(description));
        draw_row(&mut svg, series, row, (shared, y));
        svg.text(
            "row-value",
            TextAnchor::End,
            (shared.width - 2.0, y + 4.0),
            &format::maybe(median(&row.values), unit),
        );
        svg.close_group();
        y += ROW;
    }
    svg.close()
}

fn describe(series: &Series, row: &BlockRow, unit: Unit) -> String {
    let worst = row.values.iter().copied().filter(|value| value.is_finite()).reduce(f64::max);
    format!(
        "{}: {} blocks, median {}, largest {}",
        series.name,
        row.values.len(),
        format::maybe(median(&row.values), unit),
        format::maybe(worst, unit)
    )
}

fn axis(svg: &mut Svg, shared: &Shared, blocks: &BlockValues, height: f64) {
    let (bottom, unit) = (height - BOTTOM, blocks.metric.unit());
    for tick in shared.values.ticks() {
        let x = shared.values.pixel(tick.value);
        svg.line(if tick.labelled { "grid" } else { "grid minor" }, (x, TOP), (x, bottom));
        if tick.labelled {
            let label = format::tick(tick.value, unit);
            svg.text("tick", TextAnchor::Middle, (x, bottom + 16.0), &label);
        }
    }
    let middle = f64::midpoint(shared.left, shared.right);
    let name = format!("{}: {}", blocks.metric.name(), blocks.statistic);
    svg.text("axis-title", TextAnchor::Middle, (middle, height - 8.0), &name);
    if let Some(limit) = shared.limit.filter(|limit| shared.values.holds(*limit)) {
        let x = shared.values.pixel(limit);
        svg.line("limit", (x, TOP), (x, bottom));
    }
}

fn draw_row(svg: &mut Svg, series: &Series, row: &BlockRow, place: (&Shared, f64)) {
    let (shared, y) = place;
    let values = &shared.values;
    svg.text("row-label", TextAnchor::End, (shared.left - 12.0, y + 4.0), &series.name);
    svg.line("track", (shared.left, y), (shared.right, y));
    let drawn = row.values.iter().filter(|value| value.is_finite());
    for (value, lane) in drawn.zip(LANES.iter().cycle()) {
        svg.path(series.marker.class(), (values.pixel(*value), y + lane), series.marker.path());
    }
    if let Some(median) = median(&row.values) {
        let x = values.pixel(median);
        svg.line("median", (x, y - 11.0), (x, y + 11.0));
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn medians() {
        check(&[], None);
        check(&[f64::NAN], None);
        check(&[3.0], Some(3.0));
        check(&[3.0, 1.0], Some(2.0));
        check(&[9.0, 1.0, 2.0], Some(2.0));
    }

    fn check(values: &[f64], expected: Option<f64>) {
        assert_eq!(median(values), expected)
    }
}
