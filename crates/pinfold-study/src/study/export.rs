//! All tables of a study as data: cells, trials, samples, estimates, and those of the report.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{ColumnKind, DataTable, Datum, Origin, PlotKind};

use super::analyse::Analysis;
use super::file::{Plot, Selection};
use crate::error::RunError;
use crate::store::{RunId, Store, TrialId};

/// Number of trials whose samples are in memory at a time.
const PIECE: usize = 1_000;

/// All tables of an analysed run except [`samples`]: cells, trials, estimates, noise, and those of
/// the report.
///
/// # Errors
/// [`RunError`] if the store cannot be read.
pub fn tables(store: &Store, analysis: &Analysis) -> Result<Vec<DataTable>, RunError> {
    let run = analysis.run.id;
    let mut tables =
        vec![cells(analysis), trials(store, run, analysis)?, estimates(analysis), noise(analysis)];
    let study = &analysis.loaded.study;
    for plot in &study.plots {
        let x = Some(plot.x.as_str()).filter(|x| !x.is_empty());
        let names = [plot.panel.as_deref(), plot.series.as_deref(), x];
        let names: Vec<&str> = names.into_iter().flatten().collect();
        tables.push(match plot.kind {
            PlotKind::Lines | PlotKind::Bars => {
                selected_table(analysis, &plot.name, &plot.selection, &names)
            }
            PlotKind::Percentiles => percentiles(analysis, plot, &names),
            PlotKind::Sequence => sequences(analysis, plot, &names[..names.len() - 1]),
        });
    }
    for table in &study.tables {
        let mut names: Vec<&str> = table.rows.iter().map(String::as_str).collect();
        names.extend(table.columns.as_deref());
        for (index, selection) in table.selections.iter().enumerate() {
            let name = match table.headings.get(index) {
                None => table.name.clone(),
                Some(heading) => format!("{}-{heading}", table.name),
            };
            tables.push(selected_table(analysis, &name, selection, &names));
        }
    }
    Ok(tables)
}

fn table(name: &str, columns: &[(&str, ColumnKind)]) -> DataTable {
    DataTable {
        name: name.to_owned(),
        columns: columns.iter().map(|(name, kind)| ((*name).to_owned(), *kind)).collect(),
        rows: Vec::new(),
    }
}

use ColumnKind::{Number, Text, Truth, Whole};

/// Adds the columns of the factors before the others.
fn with_factors(analysis: &Analysis, name: &str, columns: &[(&str, ColumnKind)]) -> DataTable {
    let mut table = table(name, &[("cell", Whole), ("workload", Text)]);
    let factors = analysis.loaded.study.factors.iter();
    table.columns.extend(factors.map(|factor| (factor.name.clone(), Text)));
    table.columns.extend(columns.iter().map(|(name, kind)| ((*name).to_owned(), *kind)));
    table
}

fn levels(analysis: &Analysis, cell: usize) -> Vec<Datum> {
    let (study, known) = (&analysis.loaded.study, &analysis.loaded.cells.all[cell]);
    let mut row = vec![Datum::whole(cell as u64), Datum::text(known.workload(study).name.clone())];
    row.extend(
        study
            .factors
            .iter()
            .map(|factor| known.level(study, &factor.name).map_or(Datum::Nothing, Datum::text)),
    );
    row
}

fn cells(analysis: &Analysis) -> DataTable {
    let mut table = with_factors(analysis, "cells", &[("baseline_cell", Whole), ("skipped", Text)]);
    for (index, cell) in analysis.loaded.cells.all.iter().enumerate() {
        let mut row = levels(analysis, index);
        row.push(cell.baseline.map_or(Datum::Nothing, |cell| Datum::whole(cell as u64)));
        row.push(cell.skipped.clone().map_or(Datum::Nothing, Datum::Text));
        table.rows.push(row);
    }
    table
}

fn trials(store: &Store, run: RunId, analysis: &Analysis) -> Result<DataTable, RunError> {
    let columns = [
        ("trial", Whole),
        ("block", Whole),
        ("start", Whole),
        ("second_look", Truth),
        ("position", Whole),
        ("node", Text),
        ("ok", Truth),
        ("attempts", Whole),
        ("error", Text),
        ("began_unix_s", Whole),
        ("duration_ns", Whole),
        ("work_ns", Whole),
        ("job", Text),
        ("allowed_pus", Text),
        ("topology", Text),
        ("kernel", Text),
    ];
    let mut table = with_factors(analysis, "trials", &columns);
    let places = store.trial_deliveries(run)?;
    let nodes: BTreeMap<i64, Origin> =
        store.nodes(run)?.into_iter().map(|(id, _, origin)| (id, origin)).collect();
    for (id, trial) in store.trials(run)? {
        let mut row = levels(analysis, trial.cell);
        row.extend([
            Datum::Whole(id.0),
            Datum::whole(u64::from(trial.block)),
            Datum::whole(u64::from(trial.start)),
            Datum::Truth(trial.twin),
            Datum::whole(u64::from(trial.position)),
            Datum::Text(trial.node),
            Datum::Truth(trial.ok),
            Datum::whole(u64::from(trial.attempts)),
            trial.error.map_or(Datum::Nothing, Datum::Text),
            Datum::whole(trial.began_unix_s),
            Datum::whole(trial.duration_ns),
            Datum::whole(trial.work_ns),
        ]);
        // For a run on one machine, the origin of the run is used.
        let place = places.get(&id);
        let node = place.and_then(|place| nodes.get(&place.identity));
        row.extend([
            text(place.map(|place| &place.job)),
            text(place.map(|place| &place.mask)),
            text(node.map(|node| &node.fingerprint)),
            text(node.map(|node| &node.kernel)),
        ]);
        table.rows.push(row);
    }
    Ok(table)
}

fn text(text: Option<&String>) -> Datum {
    text.map_or(Datum::Nothing, Datum::text)
}

/// The samples of a run: a table in pieces of this number of trials, at least one piece.
///
/// # Errors
/// [`RunError`] if the store cannot be read.
pub fn samples(
    store: &Store,
    run: RunId,
) -> Result<impl Iterator<Item = Result<DataTable, RunError>>, RunError> {
    let trials: Vec<TrialId> = store.trials(run)?.into_iter().map(|(id, _)| id).collect();
    let mut pieces: Vec<Vec<TrialId>> = trials.chunks(PIECE).map(<[TrialId]>::to_vec).collect();
    if pieces.is_empty() {
        pieces.push(Vec::new());
    }
    Ok(pieces.into_iter().map(|trials| samples_of(store, &trials)))
}

fn samples_of(store: &Store, trials: &[TrialId]) -> Result<DataTable, RunError> {
    let columns = [
        ("trial", Whole),
        ("figure", Text),
        ("labels", Text),
        ("unit", Text),
        ("family", Text),
        ("cpu", Whole),
        ("index", Whole),
        ("value", Number),
        ("dropped", Whole),
        ("disturbed", Whole),
        ("flags", Text),
    ];
    let mut table = table("samples", &columns);
    for id in trials {
        for figure in store.figures(*id)? {
            let labels = labels_text(&figure.labels);
            for (index, sample) in (0_u64..).zip(&figure.samples) {
                table.rows.push(vec![
                    Datum::Whole(id.0),
                    Datum::text(figure.probe.clone()),
                    Datum::text(labels.clone()),
                    Datum::text(figure.unit.name()),
                    Datum::text(figure.family.name()),
                    figure.cpu.map_or(Datum::Nothing, |cpu| Datum::whole(u64::from(cpu))),
                    Datum::whole(index),
                    Datum::Number(*sample),
                    Datum::whole(figure.dropped),
                    Datum::whole(figure.disturbed),
                    Datum::text(figure.flags.join(" ")),
                ]);
            }
        }
    }
    Ok(table)
}

fn labels_text(labels: &std::collections::BTreeMap<String, String>) -> String {
    let pairs: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join(" ")
}

fn estimates(analysis: &Analysis) -> DataTable {
    let columns = [
        ("figure", Text),
        ("labels", Text),
        ("unit", Text),
        ("blocks", Whole),
        ("starts", Whole),
        ("median", Number),
        ("median_low", Number),
        ("median_high", Number),
        ("mean", Number),
        ("deviation", Number),
        ("mean_low", Number),
        ("mean_high", Number),
        ("ratio", Number),
        ("ratio_low", Number),
        ("ratio_high", Number),
        ("p_holm", Number),
        ("verdict", Text),
        ("unsteady_trials", Whole),
    ];
    let mut table = with_factors(analysis, "estimates", &columns);
    for one in &analysis.estimates {
        let mut row = levels(analysis, one.cell);
        let (low, high) = one.interval.unzip();
        let (mean_low, mean_high) = one.mean.interval.unzip();
        let interval = one.comparison.map(|with| with.interval);
        row.extend([
            Datum::text(one.figure.probe.clone()),
            Datum::text(labels_text(&one.figure.labels)),
            Datum::text(one.unit.name()),
            Datum::whole(one.starts.len() as u64),
            Datum::whole(one.mean.count as u64),
            Datum::Number(one.median),
            Datum::number(low),
            Datum::number(high),
            Datum::Number(one.mean.mean),
            Datum::number(one.mean.deviation),
            Datum::number(mean_low),
            Datum::number(mean_high),
            Datum::number(interval.map(|one| one.ratio)),
            Datum::number(interval.map(|one| one.low)),
            Datum::number(interval.map(|one| one.high)),
            Datum::number(one.comparison.map(|with| with.p_holm)),
            one.comparison.map_or(Datum::Nothing, |with| Datum::text(with.verdict.to_string())),
            Datum::whole(u64::from(one.unsteady)),
        ]);
        table.rows.push(row);
    }
    table
}

fn noise(analysis: &Analysis) -> DataTable {
    let columns = [
        ("figure", Text),
        ("labels", Text),
        ("blocks", Whole),
        ("ratio", Number),
        ("ratio_low", Number),
        ("ratio_high", Number),
        ("verdict", Text),
    ];
    let mut table = with_factors(analysis, "noise", &columns);
    for one in &analysis.noise {
        let mut row = levels(analysis, one.cell);
        row.extend([
            Datum::text(one.figure.probe.clone()),
            Datum::text(labels_text(&one.figure.labels)),
            Datum::whole(u64::from(one.blocks)),
            Datum::Number(one.interval.ratio),
            Datum::Number(one.interval.low),
            Datum::Number(one.interval.high),
            Datum::text(one.verdict.to_string()),
        ]);
        table.rows.push(row);
    }
    table
}

/// The values of a plot or a table of the report, one row each.
fn selected_table(
    analysis: &Analysis,
    name: &str,
    selection: &Selection,
    names: &[&str],
) -> DataTable {
    let mut seen = BTreeSet::new();
    let fresh: Vec<&str> = names.iter().copied().filter(|name| seen.insert(*name)).collect();
    let mut table = table(name, &[]);
    table.columns.extend(fresh.iter().map(|name| ((*name).to_owned(), Text)));
    for column in [("value", Number), ("low", Number), ("high", Number), ("ideal", Number)] {
        table.columns.push((column.0.to_owned(), column.1));
    }
    table.columns.extend([("cells".to_owned(), Whole), ("blocks".to_owned(), Whole)]);
    // An expression without a value was rejected when the file was read.
    let Ok(groups) = analysis.groups(selection, &fresh) else { return table };
    for (key, point) in &groups.points {
        let (low, high) = point.range.unzip();
        let mut row: Vec<Datum> = key.iter().map(Datum::text).collect();
        row.extend([
            Datum::Number(point.value),
            Datum::number(low),
            Datum::number(high),
            Datum::number(groups.ideals.get(key).copied()),
            Datum::whole(point.cells as u64),
            Datum::whole(u64::from(point.blocks)),
        ]);
        table.rows.push(row);
    }
    table
}

/// The lines of a percentile plot, one row per point; the last row of each line is the largest
/// sample.
fn percentiles(analysis: &Analysis, plot: &Plot, names: &[&str]) -> DataTable {
    let mut table = table(&plot.name, &[]);
    table.columns.extend(names.iter().map(|name| ((*name).to_owned(), Text)));
    let rest = [("share", Number), ("value", Number), ("samples", Whole)];
    table.columns.extend(rest.map(|(name, kind)| (name.to_owned(), kind)));
    // As above.
    let Ok(curves) = analysis.curves(&plot.selection, names) else { return table };
    for (key, curve) in &curves {
        for point in &curve.points {
            let mut row: Vec<Datum> = key.iter().map(Datum::text).collect();
            row.extend([Datum::Number(point.quantile), Datum::Number(point.value)]);
            row.push(Datum::whole(curve.samples));
            table.rows.push(row);
        }
    }
    table
}

/// The lines of a sequence, one row per sample; `time` is the sum of the samples before it.
fn sequences(analysis: &Analysis, plot: &Plot, names: &[&str]) -> DataTable {
    let mut table = table(&plot.name, &[]);
    table.columns.extend(names.iter().map(|name| ((*name).to_owned(), Text)));
    let rest = [("order", Whole), ("time", Number), ("value", Number)];
    table.columns.extend(rest.map(|(name, kind)| (name.to_owned(), kind)));
    // As above.
    let Ok(sequences) = analysis.sequences(&plot.selection, names) else { return table };
    for (key, samples) in &sequences {
        let mut time = 0.0;
        for (order, sample) in (1_u64..).zip(*samples) {
            let mut row: Vec<Datum> = key.iter().map(Datum::text).collect();
            row.extend([Datum::whole(order), Datum::Number(time), Datum::Number(*sample)]);
            table.rows.push(row);
            time += sample;
        }
    }
    table
}
