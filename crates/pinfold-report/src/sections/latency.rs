//! Percentile plots and dot plots, grouped by metric as small multiples.

use pinfold_model::Metric;

use super::Name;
use crate::charts::{dots, percentile};
use crate::page::{CandidateId, Page};

/// All charts of one kind and metric.
pub(crate) struct Multiples {
    pub(crate) title: &'static str,
    /// The statistic of a block, for dot plots.
    pub(crate) statistic: String,
    pub(crate) charts: Vec<Chart>,
}

/// One chart with its caption.
pub(crate) struct Chart {
    pub(crate) caption: String,
    pub(crate) svg: String,
}

/// The chart of the deciding comparison.
pub(crate) struct DecidingChart {
    pub(crate) statistic: String,
    pub(crate) caption: String,
    pub(crate) svg: String,
}

/// The metric as a heading.
pub(crate) fn heading(metric: Metric) -> &'static str {
    match metric {
        Metric::SpinGap => "Spin-gaps",
        Metric::Wakeup => "Timer wake-ups",
        Metric::ComputeRate => "Compute rate",
        Metric::IoAhci => "Block reads, emulated AHCI",
        Metric::IoVirtio => "Block reads, virtio",
        Metric::RunDelay => "Waits for a CPU, per window of 10 ms",
    }
}

/// Percentile plots.
pub(crate) fn percentiles(page: &Page) -> Vec<Multiples> {
    Metric::ALL
        .into_iter()
        .filter_map(|metric| {
            let shared = percentile::shared_axes(page, metric)?;
            let of_this = page.distributions.iter().filter(|it| it.metric == metric);
            let charts = of_this.map(|distribution| Chart {
                caption: distribution.load.to_string(),
                svg: percentile::draw(page, distribution, &shared),
            });
            let charts = charts.collect();
            Some(Multiples { title: heading(metric), statistic: String::new(), charts })
        })
        .collect()
}

/// Dot plots.
pub(crate) fn block_dots(page: &Page) -> Vec<Multiples> {
    Metric::ALL
        .into_iter()
        .filter_map(|metric| {
            let shared = dots::shared_axes(page, metric)?;
            let decides = (page.answer.metric, page.answer.load);
            let of_this = || {
                let of_metric = page.blocks.iter().filter(move |it| it.metric == metric);
                of_metric.filter(move |it| (it.metric, it.load) != decides)
            };
            let statistic = of_this().next().map(|it| it.statistic.clone()).unwrap_or_default();
            let charts = of_this().map(|blocks| Chart {
                caption: blocks.load.to_string(),
                svg: dots::draw(page, blocks, &shared),
            });
            let charts: Vec<Chart> = charts.collect();
            (!charts.is_empty()).then(|| Multiples { title: heading(metric), statistic, charts })
        })
        .collect()
}

/// The chart of the deciding comparison, with one mark for each start; its id is unique on the
/// page.
pub(crate) fn deciding_chart(page: &Page) -> Option<DecidingChart> {
    let (metric, load) = (page.answer.metric, page.answer.load);
    let shared = dots::shared_axes(page, metric)?;
    let blocks = page.blocks.iter().find(|it| it.metric == metric && it.load == load)?;
    Some(DecidingChart {
        statistic: format!("{}: {}", heading(metric), blocks.statistic),
        caption: load.to_string(),
        svg: dots::draw(page, blocks, &shared),
    })
}

/// The legend: every candidate that appears in a chart.
pub(crate) fn legend(page: &Page) -> Vec<Name> {
    let mut shown: Vec<CandidateId> = page
        .distributions
        .iter()
        .flat_map(|distribution| distribution.curves.iter().map(|curve| curve.candidate))
        .chain(page.blocks.iter().flat_map(|blocks| blocks.rows.iter().map(|row| row.candidate)))
        .collect();
    shown.sort();
    shown.dedup();
    shown.into_iter().map(|id| Name::new(page, id)).collect()
}
