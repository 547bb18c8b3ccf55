//! Lines and bars over a factor, with intervals.
//!
//! The x axis of lines is numeric if all its texts are numbers, else categorical; that of bars is
//! always categorical. All panels of a chart have the same axes.

use pinfold_model::{PlotKind, Unit};

use super::labels::{self, Labels};
use super::model::{ChartPoint, Line, Panel, Picture, Scale, SourceMark};
use crate::axis::LogAxis;
use crate::format;
use crate::series::{Marker, style_of_line};
use crate::svg::{Svg, TextAnchor};

const WIDTH: f64 = 440.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 24.0;
/// Vertical position of the x axis.
const FLOOR: f64 = 224.0;
/// Height of the title of the x axis.
const TITLE: f64 = 25.0;
/// Shares with a tick.
const PERCENTILES: [(f64, &str); 8] = [
    (0.0, "0 %"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (0.9999, "99.99 %"),
    (0.999_99, "5 nines"),
    (0.999_999, "6 nines"),
    (0.999_999_9, "7 nines"),
];
/// Number of steps on a linear axis, at most.
const TICKS: f64 = 5.0;
/// Room above the largest number of a linear axis that does not end at a tick, as a share of the
/// axis.
const ROOM_ABOVE: f64 = 0.08;
/// Half of the width of a whisker's end.
const FOOT: f64 = 2.5;

/// Bar, or line and marker, with this appearance, for the legend.
pub(super) fn key(kind: PlotKind, index: usize) -> String {
    let (class, marker) = style_of_line(index);
    let drawing = match kind {
        PlotKind::Bars => {
            "<rect class=\"mark\" x=\"9\" y=\"2\" width=\"16\" height=\"10\"/>".to_owned()
        }
        PlotKind::Lines | PlotKind::Percentiles | PlotKind::Sequence => format!(
            "<line class=\"line\" x1=\"1\" y1=\"7\" x2=\"33\" y2=\"7\"/>\
             <path class=\"{}\" d=\"M17 7{}\"/>",
            marker.class(),
            marker.path()
        ),
    };
    format!(
        "<svg class=\"key\" viewBox=\"0 0 34 14\" aria-hidden=\"true\"><g class=\"series {class}\">\
         {drawing}</g></svg>"
    )
}

/// The hollow mark of the source's values, for the legend.
pub(super) fn source_key() -> String {
    format!(
        "<svg class=\"key\" viewBox=\"0 0 34 14\" aria-hidden=\"true\"><g class=\"series base\">\
         <path class=\"{}\" d=\"M17 7{}\"/></g></svg>",
        Marker::Ring.class(),
        Marker::Ring.path()
    )
}

/// The y axis.
enum YAxis {
    Log(LogAxis),
    Linear { low: f64, high: f64 },
}

impl YAxis {
    fn from_picture(picture: &Picture) -> Option<Self> {
        let lines = picture.panels.iter().flat_map(|panel| &panel.lines);
        let spots = lines.flat_map(|line| &line.spots);
        let numbers = spots.flat_map(|point| {
            let (low, high) = point.range.unwrap_or((point.value, point.value));
            [point.value, low, high]
        });
        let ideals = picture.panels.iter().flat_map(|panel| &panel.ideal).map(|(_, ideal)| *ideal);
        let source = picture.panels.iter().flat_map(|panel| &panel.source).map(|mark| mark.value);
        let numbers = numbers.chain(source);
        let all: Vec<f64> = match picture.scale {
            // The axis of errors includes zero.
            Scale::Points => numbers.chain([0.0]).collect(),
            Scale::Of(_) | Scale::Ratio(_) => numbers.chain(ideals).collect(),
        };
        let all = all.into_iter().filter(|number| number.is_finite());
        if picture.log.1 {
            return LogAxis::over(all, (FLOOR, TOP)).map(YAxis::Log);
        }
        let (low, high) = all.fold((0.0_f64, f64::MIN), |(low, high), n| (low.min(n), high.max(n)));
        if high == f64::MIN {
            return None;
        }
        let step = step((high - low).max(f64::MIN_POSITIVE) / TICKS);
        let low = (low / step).floor() * step;
        let end = (high / step).ceil() * step;
        let high = end.min(high + ROOM_ABOVE * (high - low)).max(low + step);
        Some(YAxis::Linear { low, high })
    }

    fn pixel(&self, value: f64) -> f64 {
        match self {
            YAxis::Log(axis) => axis.pixel(value),
            YAxis::Linear { low, high } => {
                let share = ((value - low) / (high - low)).clamp(0.0, 1.0);
                FLOOR - share * (FLOOR - TOP)
            }
        }
    }

    /// The base of bars.
    fn floor(&self) -> f64 {
        match self {
            YAxis::Log(_) => FLOOR,
            YAxis::Linear { .. } => self.pixel(0.0),
        }
    }

    fn ticks(&self) -> Vec<f64> {
        match self {
            YAxis::Log(axis) => axis
                .ticks()
                .into_iter()
                .filter(|tick| tick.labelled)
                .map(|tick| tick.value)
                .collect(),
            YAxis::Linear { low, high } => steps(*low, *high),
        }
    }
}

/// The ticks of a linear axis.
fn steps(low: f64, high: f64) -> Vec<f64> {
    let step = step((high - low).max(f64::MIN_POSITIVE) / TICKS);
    let mut ticks = Vec::new();
    let mut value = (low / step).ceil() * step;
    while value <= high + step * 1e-6 && ticks.len() < 20 {
        // Sums of tenths accumulate rounding errors.
        ticks.push((value / step).round() * step);
        value += step;
    }
    ticks
}

/// The smallest of 1, 2, 5 times a power of ten that is at least this.
fn step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|digit| digit * power)
        .find(|step| *step >= least * 0.999)
        .unwrap_or(power * 10.0)
}

/// Scale of the x axis.
#[derive(Clone, Copy, PartialEq)]
enum Spacing {
    Linear,
    Log,
    /// −log10(1 − share).
    Nines,
}

impl Spacing {
    fn scale(self, number: f64) -> f64 {
        match self {
            Spacing::Linear => number,
            Spacing::Log => number.ln(),
            Spacing::Nines => -(1.0 - number.clamp(0.0, 0.999_999_999)).log10(),
        }
    }
}

/// The x axis.
struct XAxis<'p> {
    texts: Vec<&'p str>,
    /// The scaled ends and the scale, if the axis is numeric.
    numbers: Option<((f64, f64), Spacing)>,
    /// True if its texts are not its ticks.
    is_dense: bool,
}

impl<'p> XAxis<'p> {
    fn from_picture(picture: &'p Picture) -> Self {
        let log = picture.log.0;
        let spaced = if log { Spacing::Log } else { Spacing::Linear };
        let lines = picture.panels.iter().flat_map(|panel| &panel.lines);
        let of_spots = lines.flat_map(|line| &line.spots).map(|point| point.x.as_str());
        let (texts, spacing): (Vec<&str>, Spacing) = match picture.kind {
            PlotKind::Percentiles => (of_spots.collect(), Spacing::Nines),
            PlotKind::Sequence => (of_spots.collect(), spaced),
            PlotKind::Lines | PlotKind::Bars => {
                (picture.along.iter().map(String::as_str).collect(), spaced)
            }
        };
        let numbers: Option<Vec<f64>> = texts.iter().map(|text| number_of(text)).collect();
        let numbers = numbers.filter(|numbers| {
            picture.kind != PlotKind::Bars
                && numbers.len() > 1
                && (!log || numbers.iter().all(|number| *number > 0.0))
        });
        let ends = numbers.map(|numbers| {
            let scaled = numbers.into_iter().map(|number| spacing.scale(number));
            scaled.fold((f64::MAX, f64::MIN), |(low, high), n| (low.min(n), high.max(n)))
        });
        let is_dense = picture.kind == PlotKind::Sequence && !log;
        Self { texts, numbers: ends.map(|ends| (ends, spacing)), is_dense }
    }

    /// The pixel of a number, if the axis is numeric.
    fn at(&self, number: f64) -> Option<f64> {
        let ((low, high), spacing) = self.numbers?;
        let share = (spacing.scale(number) - low) / (high - low);
        let inset = 14.0;
        Some(LEFT + inset + share * (WIDTH - LEFT - RIGHT - 2.0 * inset))
    }

    fn place(&self, text: &str) -> Option<f64> {
        match self.numbers {
            Some(_) => self.at(number_of(text)?),
            None => {
                let index = self.texts.iter().position(|known| *known == text)?;
                Some(LEFT + (index as f64 + 0.5) * self.room())
            }
        }
    }

    /// Positions and labels of the ticks.
    fn labels(&self, unit: Option<Unit>) -> Labels {
        if let Some(((_, high), Spacing::Nines)) = self.numbers {
            let there =
                PERCENTILES.iter().filter(|(share, _)| Spacing::Nines.scale(*share) <= high);
            let ticks = there.filter_map(|(at, word)| Some((self.at(*at)?, (*word).to_owned())));
            return labels::of_scale(ticks.collect());
        }
        if let Some(((low, high), _)) = self.numbers.filter(|_| self.is_dense) {
            let unit = unit.unwrap_or(Unit::Count);
            let ticks = steps(low, high).into_iter();
            let ticks = ticks.filter_map(|at| Some((self.at(at)?, format::tick(at, unit))));
            return labels::of_scale(ticks.collect());
        }
        let ticks =
            self.texts.iter().filter_map(|text| Some((self.place(text)?, word(unit, text))));
        match self.numbers {
            Some(_) => labels::of_scale(ticks.collect()),
            None => labels::of_names(ticks.collect(), self.room()),
        }
    }

    /// Width of one category.
    fn room(&self) -> f64 {
        (WIDTH - LEFT - RIGHT) / self.texts.len().max(1) as f64
    }
}

fn word(unit: Option<Unit>, text: &str) -> String {
    match (unit, number_of(text)) {
        (Some(unit), Some(number)) => format::tick(number, unit),
        (_, _) => text.to_owned(),
    }
}

/// Both axes of the panels.
struct Axes<'a> {
    along: XAxis<'a>,
    up: YAxis,
}

/// `40%` is 0.4.
fn number_of(text: &str) -> Option<f64> {
    let (digits, scale) = match text.strip_suffix('%') {
        Some(digits) => (digits, 100.0),
        None => (text, 1.0),
    };
    digits.trim().parse::<f64>().ok().filter(|number| number.is_finite()).map(|n| n / scale)
}

/// The panels of a chart.
pub(super) struct Panels {
    /// Title and markup of each panel.
    pub(super) panels: Vec<(String, String)>,
    /// The labels that the numbers on the x axis stand for.
    pub(super) numbered: Vec<String>,
}

/// Draws the panels, all with the same axes.
pub(super) fn panels(picture: &Picture) -> Panels {
    let along = XAxis::from_picture(picture);
    let labels = along.labels(picture.x_unit);
    let axes = YAxis::from_picture(picture).map(|up| Axes { along, up });
    Panels {
        panels: picture
            .panels
            .iter()
            .enumerate()
            .map(|(index, panel)| {
                (panel.title.clone(), draw(picture, index, panel, axes.as_ref(), &labels))
            })
            .collect(),
        numbered: labels.numbered_names(),
    }
}

fn draw(
    picture: &Picture,
    index: usize,
    panel: &Panel,
    axes: Option<&Axes<'_>>,
    labels: &Labels,
) -> String {
    let id = format!("{}-{index}", picture.name);
    let description: Vec<String> = panel.lines.iter().map(|line| describe(picture, line)).collect();
    let title = format!("{}, {}", picture.title, panel.title);
    let height = FLOOR + labels.height() + TITLE;
    let mut svg = Svg::open(&id, (WIDTH, height), &title, &description.join("; "));
    if let Some(axes) = axes {
        draw_axes(&mut svg, picture, axes);
        labels.draw(&mut svg, FLOOR);
        ideal(&mut svg, panel, axes);
        for line in &panel.lines {
            let place = picture.names.iter().position(|name| *name == line.name).unwrap_or(0);
            let (class, _) = style_of_line(place);
            svg.open_group(&format!("series {class}"), Some(&describe(picture, line)));
            match picture.kind {
                PlotKind::Lines => draw_line(&mut svg, line, place, axes),
                PlotKind::Percentiles | PlotKind::Sequence => {
                    draw_dense(&mut svg, line, place, axes);
                }
                PlotKind::Bars => draw_bars(&mut svg, picture, line, place, axes),
            }
            svg.close_group();
        }
        for mark in &panel.source {
            draw_source(&mut svg, picture, mark, axes);
        }
    }
    let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
    svg.text("axis-title", TextAnchor::Middle, (middle, height - 8.0), &picture.x);
    svg.close()
}

fn describe(picture: &Picture, line: &Line) -> String {
    let spots: Vec<String> = line
        .spots
        .iter()
        .map(|point| format!("{} {}: {}", picture.x, point.x, picture.scale.show(point.value)))
        .collect();
    format!("{}: {}", line.name, spots.join(", "))
}

fn draw_axes(svg: &mut Svg, picture: &Picture, axes: &Axes<'_>) {
    let Axes { along, up } = axes;
    for tick in up.ticks() {
        let y = up.pixel(tick);
        svg.line("grid", (LEFT, y), (WIDTH - RIGHT, y));
        svg.text("tick", TextAnchor::End, (LEFT - 6.0, y + 3.5), &picture.scale.tick(tick));
    }
    svg.line("axis", (LEFT, up.floor()), (WIDTH - RIGHT, up.floor()));
    svg.text("axis-title", TextAnchor::Start, (2.0, TOP - 12.0), picture.scale.label());
    svg.text("axis-title", TextAnchor::End, (WIDTH - RIGHT, TOP - 3.0), &picture.only);
    if let Some(x) = picture.mark.as_ref().and_then(|(_, mark)| along.at(*mark))
        && (LEFT..=WIDTH - RIGHT).contains(&x)
    {
        svg.line("limit", (x, TOP), (x, FLOOR));
    }
}

fn ideal(svg: &mut Svg, panel: &Panel, axes: &Axes<'_>) {
    let Axes { along, up } = axes;
    let places = panel.ideal.iter();
    let mut points: Vec<(f64, f64)> =
        places.filter_map(|(text, ideal)| Some((along.place(text)?, up.pixel(*ideal)))).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    svg.open_group("series base", Some("requested value"));
    match points.as_slice() {
        // Isolated points have no line between them; each is drawn separately.
        [(x, y)] => {
            let half = along.room() / 2.0;
            svg.polyline("line", &[(x - half, *y), (x + half, *y)]);
        }
        points => svg.polyline("line", points),
    }
    svg.close_group();
}

fn whisker(svg: &mut Svg, x: f64, point: &ChartPoint, up: &YAxis) {
    let Some((low, high)) = point.range else { return };
    let (bottom, top) = (up.pixel(low), up.pixel(high));
    svg.line("leader", (x, bottom), (x, top));
    for y in [bottom, top] {
        svg.line("leader", (x - FOOT, y), (x + FOOT, y));
    }
}

fn draw_line(svg: &mut Svg, line: &Line, place: usize, axes: &Axes<'_>) {
    let Axes { along, up } = axes;
    let (_, marker) = style_of_line(place);
    let mut points: Vec<(f64, f64, &ChartPoint)> = line
        .spots
        .iter()
        .filter_map(|point| Some((along.place(&point.x)?, up.pixel(point.value), point)))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let path: Vec<(f64, f64)> = points.iter().map(|(x, y, _)| (*x, *y)).collect();
    svg.polyline("line", &path);
    for (x, y, point) in points {
        whisker(svg, x, point, up);
        svg.path(marker.class(), (x, y), marker.path());
    }
}

/// A line with few markers, because its points are dense, on a band of their ranges.
fn draw_dense(svg: &mut Svg, line: &Line, place: usize, axes: &Axes<'_>) {
    let Axes { along, up } = axes;
    let (_, marker) = style_of_line(place);
    let spots = line.spots.iter();
    let path: Vec<(f64, f64)> = spots
        .clone()
        .filter_map(|point: &ChartPoint| Some((along.place(&point.x)?, up.pixel(point.value))))
        .collect();
    let ranges =
        spots.filter_map(|point| Some((along.place(&point.x)?, point.range?))).collect::<Vec<_>>();
    let lows = ranges.iter().map(|(x, (low, _))| (*x, up.pixel(*low)));
    let highs = ranges.iter().rev().map(|(x, (_, high))| (*x, up.pixel(*high)));
    svg.polyline("band", &lows.chain(highs).collect::<Vec<_>>());
    svg.polyline("line", &path);
    let every = 10;
    let marked = path.iter().enumerate().filter(|(index, _)| index % every == 0).map(|(_, at)| at);
    let last = path.last().filter(|_| !(path.len() - 1).is_multiple_of(every));
    for at in marked.chain(last) {
        svg.path(marker.class(), *at, marker.path());
    }
}

/// A value of the source: a ring in the colour of its line.
fn draw_source(svg: &mut Svg, picture: &Picture, mark: &SourceMark, axes: &Axes<'_>) {
    let Axes { along, up } = axes;
    let place = picture.names.iter().position(|name| *name == mark.line);
    let (Some(place), Some(middle)) = (place, along.place(&mark.x)) else { return };
    let shift = match picture.kind {
        PlotKind::Bars => bar_shift(picture, place) * bar_width(picture, along),
        PlotKind::Lines | PlotKind::Percentiles | PlotKind::Sequence => 0.0,
    };
    let (class, _) = style_of_line(place);
    let says = format!("source, {}, {} {}: ", mark.line, picture.x, mark.x);
    let says = says + &picture.scale.show(mark.value);
    svg.open_group(&format!("series {class}"), Some(&says));
    let at = (middle + shift, up.pixel(mark.value));
    svg.path(Marker::Ring.class(), at, Marker::Ring.path());
    svg.close_group();
}

/// Width of a bar with its gap.
fn bar_width(picture: &Picture, along: &XAxis<'_>) -> f64 {
    along.room() * 0.86 / picture.names.len().max(1) as f64
}

/// Distance of a group's bar from the middle of its category, in widths.
fn bar_shift(picture: &Picture, place: usize) -> f64 {
    place as f64 + 0.5 - picture.names.len() as f64 / 2.0
}

fn draw_bars(svg: &mut Svg, picture: &Picture, line: &Line, place: usize, axes: &Axes<'_>) {
    let Axes { along, up } = axes;
    let width = bar_width(picture, along);
    for point in &line.spots {
        let Some(middle) = along.place(&point.x) else { continue };
        let x = middle + bar_shift(picture, place) * width;
        let (floor, y) = (up.floor(), up.pixel(point.value));
        let (top, height) = (y.min(floor), (y - floor).abs());
        svg.rect("mark", (x - width * 0.45, top), (width * 0.9, height.max(0.5)));
        whisker(svg, x, point, up);
        let shown = picture.scale.show(point.value);
        if width > 6.0 * shown.chars().count() as f64 {
            // Above the whisker, which would cross it.
            let end = point.range.map_or(top, |(_, high)| up.pixel(high).min(top));
            svg.text("tick", TextAnchor::Middle, (x, end - 4.0), &shown);
        }
    }
}
