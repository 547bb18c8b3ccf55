//! The nodes of a run: their properties, and the differences between their results.
//!
//! The ratios of a block compare results of the same node, so they do not include differences
//! between nodes. The values do, and the differences are computed here: each value of a cell and
//! block divided by the median of its cell over all nodes. A node differs if the exact sign-flip
//! test is significant at the level of the study's verdicts, with Holm's correction over the nodes,
//! and the difference exceeds the study's margin.

use std::collections::BTreeMap;

use pinfold_model::{Origin, shown_parameters};
use pinfold_stats::{holm, median, sign_flip};

use super::ALPHA;
use super::analyse::{Analysis, FigureName, interval_or_range};
use crate::error::RunError;
use crate::store::Store;

/// A node with fixed properties.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeRow {
    /// Name of the node.
    pub name: String,
    /// Host and software.
    pub origin: Origin,
    /// The CPUs that its jobs could use.
    pub masks: Vec<String>,
    /// Number of its jobs.
    pub jobs: usize,
    /// Number of its trials.
    pub trials: u64,
    /// Number of its failed trials.
    pub failed: u64,
}

/// The results of a node for a figure, relative to those of all nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFigure {
    /// The figure that was measured.
    pub figure: FigureName,
    /// Name of the node.
    pub node: String,
    /// Number of its cells and blocks.
    pub values: usize,
    /// The median of the node's values, each divided by the median of its cell.
    pub ratio: f64,
    /// Its 95 % interval, of fewer than six values their range; `None` with one value.
    pub interval: Option<(f64, f64)>,
    /// True if the node differs.
    pub differs: bool,
}

/// The comparison of the nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeTable {
    /// The nodes; a node whose properties changed has several rows.
    pub nodes: Vec<NodeRow>,
    /// By figure and node.
    pub figures: Vec<NodeFigure>,
    /// Warnings for the reader.
    pub warnings: Vec<String>,
}

/// The nodes of a run; empty for a run on one machine.
///
/// # Errors
/// [`RunError`] if the store cannot be read.
pub fn node_table(store: &Store, analysis: &Analysis) -> Result<NodeTable, RunError> {
    let run = analysis.run.id;
    let mut rows: BTreeMap<i64, NodeRow> = BTreeMap::new();
    for (id, name, origin) in store.nodes(run)? {
        let row = NodeRow { name, origin, masks: Vec::new(), jobs: 0, trials: 0, failed: 0 };
        rows.insert(id, row);
    }
    if rows.is_empty() {
        return Ok(NodeTable::default());
    }
    let places = store.trial_deliveries(run)?;
    let mut jobs = std::collections::BTreeSet::new();
    for (id, trial) in store.trials(run)? {
        let Some(place) = places.get(&id) else { continue };
        let Some(row) = rows.get_mut(&place.identity) else { continue };
        row.trials += 1;
        row.failed += u64::from(!trial.ok);
        row.jobs += usize::from(jobs.insert((place.identity, place.job.clone())));
        if !row.masks.contains(&place.mask) {
            row.masks.push(place.mask.clone());
        }
    }
    let nodes: Vec<NodeRow> = rows.into_values().collect();
    let figures = figures(analysis);
    let mut warnings = identities(&nodes);
    for one in figures.iter().filter(|one| one.differs) {
        let percent = (one.ratio - 1.0) * 100.0;
        warnings.push(format!(
            "node {} differs in {}: {percent:+.1} % against the median of all nodes ({} values)",
            one.node, one.figure.probe, one.values
        ));
    }
    Ok(NodeTable { nodes, figures, warnings })
}

/// The properties in which the nodes differ.
fn identities(nodes: &[NodeRow]) -> Vec<String> {
    let columns: [(&str, Vec<String>); 6] = [
        ("topology", nodes.iter().map(|row| row.origin.fingerprint.clone()).collect()),
        ("kernel", nodes.iter().map(|row| row.origin.kernel.clone()).collect()),
        (
            "kernel parameters",
            nodes.iter().map(|row| shown_parameters(&row.origin.cmdline)).collect(),
        ),
        ("processor", nodes.iter().map(|row| row.origin.cpu_model.clone()).collect()),
        (
            "hypervisor",
            nodes
                .iter()
                .map(|row| row.origin.hypervisor.clone().unwrap_or("none".to_owned()))
                .collect(),
        ),
        ("allowed CPUs", nodes.iter().map(|row| row.masks.join(" or ")).collect()),
    ];
    let mut warnings = Vec::new();
    for (what, values) in columns {
        let mut by_value: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (value, row) in values.iter().zip(nodes) {
            by_value.entry(value).or_default().push(&row.name);
        }
        if by_value.len() > 1 {
            let shown: Vec<String> = by_value
                .iter()
                .map(|(value, names)| format!("{value} on {}", some(names)))
                .collect();
            warnings.push(format!("the nodes differ in {what}: {}", shown.join("; ")));
        }
    }
    warnings
}

fn some(names: &[&str]) -> String {
    match names.len() {
        0..=5 => names.join(", "),
        many => format!("{} and {} more", names[..5].join(", "), many - 5),
    }
}

fn figures(analysis: &Analysis) -> Vec<NodeFigure> {
    let mut values: BTreeMap<&FigureName, BTreeMap<&str, Vec<f64>>> = BTreeMap::new();
    for one in &analysis.estimates {
        let mut names: Vec<&String> = one.nodes.values().collect();
        names.sort_unstable();
        names.dedup();
        if names.len() < 2 || one.median <= 0.0 {
            continue;
        }
        for (block, starts) in &one.starts {
            let (Some(node), Some(value)) = (one.nodes.get(block), median(starts)) else {
                continue;
            };
            let of_figure = values.entry(&one.figure).or_default();
            of_figure.entry(node).or_default().push(value / one.median);
        }
    }
    let mut rows = Vec::new();
    for (figure, nodes) in values {
        let tested: Vec<f64> = nodes.values().map(|values| node_p_value(values)).collect();
        for ((node, values), p) in nodes.iter().zip(holm(&tested)) {
            let Some(ratio) = median(values) else { continue };
            let margin = analysis.loaded.study.margin;
            rows.push(NodeFigure {
                figure: figure.clone(),
                node: (*node).to_owned(),
                values: values.len(),
                ratio,
                interval: interval_or_range(values),
                differs: p < ALPHA && (ratio - 1.0).abs() > margin,
            });
        }
    }
    rows
}

/// Probability of such values for a node that does not differ from the others.
fn node_p_value(values: &[f64]) -> f64 {
    let logs: Option<Vec<f64>> =
        values.iter().map(|value| (*value > 0.0).then(|| value.ln())).collect();
    logs.and_then(|logs| sign_flip(&logs)).unwrap_or(1.0)
}
