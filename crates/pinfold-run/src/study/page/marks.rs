//! Values of the source in a chart, and what it says about the part that was measured.

use pinfold_model::Unit;
use pinfold_report::{Brackets, INTERVAL_BLOCKS, Line, Panel, Picture, Scale, SourceMark};
use pinfold_study::study::{self as library, Analysis, Key, Plot, Point};

use super::{label_of, level_text, order_levels, reasons};

// The page and the analysis agree on what has an interval.
const _: () = assert!(INTERVAL_BLOCKS == library::INTERVAL_BLOCKS);

/// The texts of a chart's axes: of its panels, lines and x axis.
pub(super) struct Axes<'a> {
    /// Factors or labels of panels, lines and the x axis.
    pub(super) names: [&'a str; 3],
    /// Their levels that were measured, in the order of the study.
    pub(super) found: [Vec<String>; 3],
}

impl<'a> Axes<'a> {
    /// The axes with the levels of these keys; an axis without a name has none beyond its keys.
    pub(super) fn new<'k>(
        analysis: &Analysis,
        names: [&'a str; 3],
        keys: impl Iterator<Item = &'k Key> + Clone,
    ) -> Self {
        let found = [0, 1, 2].map(|index| {
            let levels = keys.clone().filter_map(|key| key.get(index).cloned());
            order_levels(analysis, names[index], levels.collect())
        });
        Self { names, found }
    }

    /// A chart of values with a panel for each level, and what all kinds have in common.
    pub(super) fn picture(
        &self,
        analysis: &Analysis,
        plot: &Plot,
        lines_of: impl Fn(&String) -> Vec<Line>,
    ) -> Picture {
        let [panels, lines, _] = &self.found;
        let panels = panels.iter().map(|level| Panel {
            title: match level.as_str() {
                "" => plot.title.clone(),
                level => label_of(analysis, self.names[0], level),
            },
            lines: lines_of(level),
            ideal: Vec::new(),
            source: Vec::new(),
        });
        let unit = analysis.estimates.iter().find(|one| one.figure.probe == plot.selection.figure);
        let selection = std::slice::from_ref(&plot.selection);
        Picture {
            name: plot.name.clone(),
            title: plot.title.clone(),
            kind: plot.kind,
            scale: Scale::Of(unit.map_or(Unit::Count, |one| one.unit)),
            x: plot.x.clone(),
            x_unit: plot.x_unit,
            panels: panels.collect(),
            along: Vec::new(),
            names: lines.iter().map(|line| label_of(analysis, self.names[1], line)).collect(),
            log: (plot.log_x, plot.log_y),
            mark: None,
            joined: false,
            brackets: Brackets::Intervals,
            only: only(analysis, plot, self),
            missing: if lines.is_empty() { reasons(analysis, selection) } else { Vec::new() },
        }
    }
}

/// The brackets of numbers of this analysis.
pub(super) fn brackets<'a>(points: impl IntoIterator<Item = &'a Point>) -> Brackets {
    Brackets::from_blocks(points.into_iter().map(|point| point.blocks))
}

/// The source's values in a panel.
pub(super) fn of_source(
    analysis: &Analysis,
    plot: &Plot,
    axes: &Axes<'_>,
    panel: &str,
) -> Vec<SourceMark> {
    let published = analysis.loaded.study.published.iter();
    published
        .filter_map(|value| {
            let key = analysis.group_of(value, &plot.selection, &axes.names)?;
            let is_drawn = key[0] == panel
                && key.iter().zip(&axes.found).all(|(text, found)| found.contains(text));
            is_drawn.then(|| SourceMark {
                line: label_of(analysis, axes.names[1], &key[1]),
                x: key[2].clone(),
                value: value.value,
            })
        })
        .collect()
}

/// `Only memory_node near was measured`, if the chart compares and has one side alone.
pub(super) fn only(analysis: &Analysis, plot: &Plot, axes: &Axes<'_>) -> String {
    let loaded = &analysis.loaded;
    let sides = axes.names.iter().zip(&axes.found).filter_map(|(name, found)| {
        let level = analysis.only_level(&plot.selection, name, found)?;
        Some(format!("{name} {}", level_text(&loaded.study, &loaded.facts, name, level)))
    });
    let sides: Vec<String> = sides.collect();
    if sides.is_empty() { String::new() } else { format!("Only {} was measured", sides.join(", ")) }
}

/// Why the run has no A/A pair; empty if it has some.
pub(super) fn no_pairs(analysis: &Analysis) -> String {
    let (loaded, study) = (&analysis.loaded, &analysis.loaded.study);
    let twins = analysis.estimates.iter().any(|one| !one.twins.is_empty());
    let why = if !analysis.noise.is_empty() {
        ""
    } else if !loaded.cells.running().any(|(index, _)| loaded.cells.has_twin(index, study)) {
        "no baseline cell can run here, and only they are measured twice"
    } else if study.repetitions < 2 {
        "an A/A value needs two blocks, this run has one"
    } else if twins {
        "no baseline cell has two blocks with both of its measurements"
    } else {
        "no second measurement of a baseline cell succeeded"
    };
    why.to_owned()
}
