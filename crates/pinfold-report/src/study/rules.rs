//! Consistency rules for the numbers of a study's page, independent of the measured values.

use pinfold_model::{PlotKind, Unit};

use super::model::{ChartPoint, Line, MeasuredFigure, Picture, Scale, Spread, StudyPage};
use crate::rules::{ROUNDING, of_comparison};

/// Every number of the page that is impossible or contradicts another: one sentence each.
pub fn contradictions(page: &StudyPage) -> Vec<String> {
    let mut found = Vec::new();
    for one in &page.measured {
        found.extend(of_figure(one).map(|why| format!("{} of {}: {why}", one.figure, one.cell)));
    }
    for pair in &page.pairs {
        let higher_is_better = pair.unit.higher_is_better() == Some(true);
        let why = of_comparison(&pair.comparison, higher_is_better);
        found.extend(why.map(|why| format!("A/A pair, {} of {}: {why}", pair.figure, pair.cell)));
    }
    for picture in &page.pictures {
        for line in picture.panels.iter().flat_map(|panel| &panel.lines) {
            let why = of_line(picture, line);
            found.extend(why.map(|why| format!("{}, {}: {why}", picture.title, line.name)));
        }
    }
    found
}

/// The unit must allow the value: shares up to 1, nothing below 0.
fn of_value(unit: Unit, value: f64) -> Option<String> {
    let most = if unit == Unit::Share { 1.0 + ROUNDING } else { f64::MAX };
    (!(0.0..=most).contains(&value)).then(|| format!("a value of {value} ({})", unit.name()))
}

fn of_range(what: &str, value: f64, range: Option<(f64, f64)>) -> Option<String> {
    let (low, high) = range?;
    let room = ROUNDING * value.abs();
    (!(low - room <= value && value <= high + room))
        .then(|| format!("a {what} of {value} outside {low} to {high}"))
}

fn of_figure(one: &MeasuredFigure) -> Option<String> {
    if one.blocks == 0 {
        return Some("no block behind it".to_owned());
    }
    let (mean, spread) = one.summary.unzip();
    let (deviation, interval) = match spread {
        Some(Spread::Deviation(deviation)) => (Some(deviation), None),
        Some(Spread::Interval(low, high)) => (None, Some((low, high))),
        Some(Spread::Unknown) | None => (None, None),
    };
    let ends = [one.interval, interval].into_iter().flatten().flat_map(|(low, high)| [low, high]);
    of_value(one.unit, one.median)
        .or_else(|| ends.filter_map(|end| of_value(one.unit, end)).next())
        .or_else(|| of_range("median", one.median, one.interval))
        .or_else(|| of_value(one.unit, mean?))
        .or_else(|| of_range("mean", mean?, interval))
        .or_else(|| deviation.filter(|it| *it < 0.0).map(|it| format!("a deviation of {it}")))
        .or_else(|| {
            let higher_is_better = one.unit.higher_is_better() == Some(true);
            of_comparison(one.comparison.as_ref()?, higher_is_better)
        })
}

fn of_line(picture: &Picture, line: &Line) -> Option<String> {
    let spots = &line.spots;
    if let Some(why) = spots.iter().find_map(|point| {
        let value = match picture.scale {
            Scale::Of(unit) => of_value(unit, point.value),
            Scale::Ratio(_) => of_value(Unit::Count, point.value),
            Scale::Points => {
                (!point.value.is_finite()).then(|| format!("an error of {}", point.value))
            }
        };
        value.or_else(|| of_range("number", point.value, point.range))
    }) {
        return Some(why);
    }
    if picture.kind == PlotKind::Sequence {
        return (!spots.windows(2).all(|pair| {
            number_at(&pair[0]).is_some() && number_at(&pair[0]) <= number_at(&pair[1])
        }))
        .then(|| "a sample before an earlier one".to_owned());
    }
    if picture.kind != PlotKind::Percentiles {
        return None;
    }
    if let Some(wrong) = spots.iter().find(|point| share(point).is_none()) {
        return Some(format!("a share of {}", wrong.x));
    }
    (!spots.windows(2).all(|pair: &[ChartPoint]| {
        share(&pair[0]) <= share(&pair[1]) && pair[0].value <= pair[1].value
    }))
    .then(|| "a quantile below one of a smaller share".to_owned())
}

fn number_at(point: &ChartPoint) -> Option<f64> {
    point.x.parse::<f64>().ok()
}

fn share(point: &ChartPoint) -> Option<f64> {
    point.x.parse::<f64>().ok().filter(|it| (0.0..=1.0).contains(it))
}
