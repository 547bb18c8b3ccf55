//! The charts, one file per kind; each is a pure function from the view model to markup.

pub(crate) mod dots;
pub(crate) mod forest;
pub(crate) mod percentile;
pub(crate) mod placement;

use pinfold_model::{LoadState, Metric};

use crate::axis::LogAxis;

/// Id of a chart on the page: unique by kind, metric and load state.
pub(crate) fn chart_id(kind: &str, metric: Metric, load: LoadState) -> String {
    format!("{kind}-{}-{}{}", metric.name(), bit(load.host), bit(load.guest))
}

fn bit(loaded: bool) -> char {
    if loaded { '1' } else { '0' }
}

/// The data that charts of one metric share, so that they can be compared visually.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    /// The value axis; charts set its pixels.
    pub(crate) values: LogAxis,
    /// End of the percentile axis, as `-log10(1 - share)`.
    pub(crate) tail: f64,
    /// Left edge of the plot.
    pub(crate) left: f64,
    /// Right edge of the plot, left of the labels.
    pub(crate) right: f64,
    /// Width of the picture with its labels.
    pub(crate) width: f64,
    /// The requested limit, drawn as a line.
    pub(crate) limit: Option<f64>,
}
