//! Values of the source in a chart, and what it says about the part that was measured.

use pinfold_report::{Brackets, INTERVAL_BLOCKS, SourceMark};
use pinfold_study::study::{self as library, Analysis, Plot, Point};

use super::{labelled, shown_level};

// The page and the analysis agree on what has an interval.
const _: () = assert!(INTERVAL_BLOCKS == library::INTERVAL_BLOCKS);

/// The texts of a chart's axes: of its panels, lines and x axis.
pub(super) struct Axes<'a> {
    /// Factors or labels of panels, lines and the x axis.
    pub(super) names: [&'a str; 3],
    /// Their levels that were measured.
    pub(super) found: [&'a [String]; 3],
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
                && key.iter().zip(axes.found).all(|(text, found)| found.contains(text));
            is_drawn.then(|| SourceMark {
                line: labelled(analysis, axes.names[1], &key[1]),
                x: key[2].clone(),
                value: value.value,
            })
        })
        .collect()
}

/// `Only memory_node near was measured`, if the chart compares and has one side alone.
pub(super) fn only(analysis: &Analysis, plot: &Plot, axes: &Axes<'_>) -> String {
    let loaded = &analysis.loaded;
    let sides = axes.names.iter().zip(axes.found).filter_map(|(name, found)| {
        let level = analysis.only_level(&plot.selection, name, found)?;
        Some(format!("{name} {}", shown_level(&loaded.study, &loaded.facts, name, level)))
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
