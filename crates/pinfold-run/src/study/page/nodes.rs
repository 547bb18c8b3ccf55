//! The nodes of a study on its page: their properties and their differences.

use pinfold_model::PlotKind;

use std::collections::BTreeMap;

use pinfold_report::{Brackets, ChartPoint, Line, PageTable, Panel, Picture, Scale, format};
use pinfold_study::study::NodeTable;

use super::figure_name;

/// Maximum number of nodes in the chart; the table has all of them.
const MOST_DRAWN: usize = 40;
/// Maximum number of rows on the page.
const MOST_ROWS: usize = 400;

/// The results of each node relative to those of all nodes, if there were several.
pub fn picture(nodes: &NodeTable) -> Option<Picture> {
    let mut along: Vec<String> = nodes.figures.iter().map(|one| one.node.clone()).collect();
    along.sort_unstable();
    along.dedup();
    along.truncate(MOST_DRAWN);
    if along.len() < 2 {
        return None;
    }
    let mut by_figure: BTreeMap<String, Vec<ChartPoint>> = BTreeMap::new();
    for one in nodes.figures.iter().filter(|one| along.contains(&one.node)) {
        let spot = ChartPoint { x: one.node.clone(), value: one.ratio, range: one.interval };
        by_figure.entry(figure_name(&one.figure)).or_default().push(spot);
    }
    let panels = by_figure.into_iter().map(|(title, spots)| Panel {
        title,
        lines: vec![Line { name: name(), spots }],
        ideal: Vec::new(),
        source: Vec::new(),
    });
    Some(Picture {
        name: "nodes".to_owned(),
        title: "The nodes: what each measured over the median of all".to_owned(),
        kind: PlotKind::Bars,
        scale: Scale::Ratio("ratio to the median of all nodes"),
        x: name(),
        x_unit: None,
        along,
        names: vec![name()],
        log: (false, false),
        mark: None,
        joined: false,
        brackets: brackets(nodes),
        only: String::new(),
        panels: panels.collect(),
        missing: Vec::new(),
    })
}

fn name() -> String {
    "node".to_owned()
}

/// What the brackets of the nodes' results are.
fn brackets(nodes: &NodeTable) -> Brackets {
    let values = nodes.figures.iter().map(|one| u32::try_from(one.values).unwrap_or(u32::MAX));
    Brackets::from_blocks(values)
}

/// The nodes, and their results by figure.
pub fn tables(nodes: &NodeTable) -> Vec<PageTable> {
    if nodes.nodes.is_empty() {
        return Vec::new();
    }
    let who = nodes.nodes.iter().map(|row| {
        let origin = &row.origin;
        vec![
            row.name.clone(),
            row.jobs.to_string(),
            row.trials.to_string(),
            row.failed.to_string(),
            row.masks.join(" or "),
            origin.cpu_model.clone(),
            origin.kernel.clone(),
            origin.fingerprint.clone(),
        ]
    });
    let header = ["node", "jobs", "trials", "failed", "CPUs", "processor", "kernel", "topology"];
    let table = PageTable::new("nodes", "The nodes", 1, &header, who.take(MOST_ROWS).collect());
    let mut tables = vec![table.with_note(
        "a block's ratios compare what one node measured; a node that changed has a row for each \
         of its forms",
    )];
    if !nodes.figures.is_empty() {
        let rows = nodes.figures.iter().map(|one| {
            let interval = one.interval.map_or_else(String::new, |(low, high)| {
                format!(" [{}, {}]", format::significant(low), format::significant(high))
            });
            vec![
                one.node.clone(),
                figure_name(&one.figure),
                one.values.to_string(),
                format!("{}{interval}", format::significant(one.ratio)),
                if one.differs { "differs" } else { "like the others, or too few to compare" }
                    .to_owned(),
            ]
        });
        let over = format!("over the median of all [{}]", brackets(nodes).header());
        let header = ["node", "figure", "values", &over, "verdict"];
        let (title, rows) = ("How far the nodes differ", rows.take(MOST_ROWS).collect());
        let table = PageTable::new("node-differences", title, 2, &header, rows);
        tables.push(table.with_note(
            "exact sign-flip test with Holm's correction over the nodes, and by more than the \
             study's margin",
        ));
    }
    tables
}
