//! Converts the analysis of a study to a page and to data files, and compares two analyses.

mod markdown;
mod marks;
mod nodes;
mod published;
mod sequence;

use std::collections::{BTreeMap, BTreeSet};

use pinfold_host::files;
use pinfold_model::text::{count_noun, select_verb};
use pinfold_model::{Method, PlotKind, Unit, natural_order, shown_parameters};
use pinfold_report::{
    AaPair, Agreement, Brackets, ChartPoint, ClaimRow, Line, MeasuredFigure, PageTable, Picture,
    Scale, Spread, StudyPage, TableError, TableFiles, format,
};
use pinfold_stats::{Interval, Verdict};
use pinfold_study::store::{self, RunRecord, Store, StudyProgress};
use pinfold_study::study::NodeTable;
use pinfold_study::study::{
    self as library, Analysis, DisplayedStatistic, FactorEffect, Groups, HostFacts, Loaded, Plot,
    QUICK, Selection, Study, Summary, Table,
};

pub use self::markdown::write_markdown;
use self::marks::Axes;
use crate::{Exit, Failure, time};

/// The meaning of a ratio on the page.
const RATIO: &str = "ratio to the baseline (median of the blocks’ ratios)";

/// The page of an analysis, with its nodes if there were several.
///
/// # Errors
/// [`Failure`] if a plot or a table selects nothing that was measured.
pub fn page(analysis: &Analysis, nodes: &NodeTable) -> Result<StudyPage, Failure> {
    let (loaded, run) = (&analysis.loaded, &analysis.run);
    let study = &loaded.study;
    let pictures = study.plots.iter().map(|plot| picture(analysis, plot));
    let tables = study.tables.iter().map(|table| page_table(analysis, table));
    let mut skipped: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (index, cell) in loaded.cells.all.iter().enumerate() {
        if let Some(reason) = &cell.skipped {
            skipped.entry(reason).or_default().push(loaded.cells.all[index].name(study));
        }
    }
    let skipped = skipped.into_iter().map(|(reason, cells)| {
        let more = cells.len().saturating_sub(3);
        let shown = cells.iter().take(3).cloned().collect::<Vec<_>>().join("; ");
        let more = if more > 0 { format!("; and {more} more cells") } else { String::new() };
        (reason.to_owned(), shown + &more)
    });
    let failed = analysis.failures.iter().map(|(cell, count, message)| {
        (loaded.cells.all[*cell].name(study), format!("{}: {message}", count_noun(*count, "trial")))
    });
    let mut page = StudyPage {
        title: if study.title.is_empty() { study.name.clone() } else { study.title.clone() },
        question: study.question.clone(),
        source: study.source.clone(),
        baseline: baseline(analysis),
        banner: banner(analysis),
        date: time::date(run.finished_unix_s.unwrap_or(run.created_unix_s)),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        claims: claims(analysis),
        pictures: pictures.chain(nodes::picture(nodes).map(Ok)).collect::<Result<_, _>>()?,
        tables: published::table(analysis)
            .map(Ok)
            .into_iter()
            .chain(tables)
            .collect::<Result<_, _>>()?,
        measured: analysis.estimates.iter().map(|one| measured_figure(analysis, one)).collect(),
        summary_name: study.summary.name().to_owned(),
        pairs: analysis.noise.iter().map(|one| pair(analysis, one)).collect(),
        no_pairs: marks::no_pairs(analysis),
        evidence: nodes::tables(nodes),
        trials: (analysis.progress.ok, analysis.progress.failed),
        skipped_cells: loaded.cells.all.iter().filter(|cell| cell.skipped.is_some()).count(),
        executed_by: count_by_accelerator(analysis).into_keys().collect(),
        skipped: skipped.collect(),
        lab: study.lab.iter().map(|row| (row.case.clone(), row.shows.clone())).collect(),
        failed: failed.collect(),
        findings: nodes.warnings.iter().cloned().chain(findings(analysis)).collect(),
        how: how(analysis),
        repeat: loaded.record.command.clone(),
        file: loaded.record.toml.clone(),
    };
    let wrong = pinfold_report::study_contradictions(&page);
    page.findings.splice(0..0, wrong.into_iter().map(|text| {
        format!(
            "problem: numbers of this page: {text}; do not rely on them, and report this as a bug \
             of Pinfold, with the store"
        )
    }));
    Ok(page)
}

/// The levels of the baseline.
fn baseline(analysis: &Analysis) -> Option<String> {
    let levels = &analysis.loaded.study.baseline;
    let words = levels.iter().map(|(name, level)| format!("{name} {}", level.text));
    (!levels.is_empty()).then(|| words.collect::<Vec<_>>().join(", "))
}

fn banner(analysis: &Analysis) -> Option<String> {
    let name = analysis.loaded.record.form.preset();
    let preset = name.and_then(|name| Some((name, analysis.loaded.study.presets.get(name)?)));
    let form = preset.map(|(name, preset)| match name {
        QUICK => format!("Quick form: {}", preset.note),
        _ => format!("Preset {name}: {}", preset.note),
    });
    let unfinished = (analysis.run.finished_unix_s.is_none())
        .then(|| "Not finished: these are the trials so far".to_owned());
    let texts: Vec<String> = unfinished.into_iter().chain(form).collect();
    (!texts.is_empty()).then(|| texts.join(". "))
}

fn claims(analysis: &Analysis) -> Vec<ClaimRow> {
    analysis
        .loaded
        .study
        .claims
        .iter()
        .map(|claim| {
            let judged = analysis.judge(claim);
            ClaimRow {
                source: claim.source.clone(),
                is_own: claim.is_own,
                place: claim.place.clone(),
                see: judged.see,
                is_measured: judged.is_measured,
                agree: match judged.agree {
                    Ok(true) => Agreement::Agrees,
                    Ok(false) => Agreement::Differs,
                    Err(why) => Agreement::NotSettled(why),
                },
                rule: match &claim.only {
                    None => claim.agree.text.clone(),
                    Some(only) => format!("{}; of the cells with {}", claim.agree.text, only.text),
                },
            }
        })
        .collect()
}

fn groups(
    analysis: &Analysis,
    name: &str,
    selection: &Selection,
    by: &[&str],
) -> Result<Groups, Failure> {
    analysis.groups(selection, by).map_err(|why| failure(name, &why))
}

fn scale(selection: &Selection, groups: &Groups) -> Scale {
    match selection.shown {
        DisplayedStatistic::Value | DisplayedStatistic::Sum => {
            Scale::Of(groups.unit.unwrap_or(Unit::Count))
        }
        DisplayedStatistic::Ratio => Scale::Ratio(RATIO),
        DisplayedStatistic::Error => Scale::Points,
    }
}

/// Texts in the order of the study's levels; those of labels in natural order, numbers by size.
fn order_levels(analysis: &Analysis, name: &str, mut found: Vec<String>) -> Vec<String> {
    let study = &analysis.loaded.study;
    let known: Vec<&str> = match study.factor(name) {
        Some(factor) => factor.levels.iter().map(|level| level.text.as_str()).collect(),
        None => study.workloads.iter().map(|one| one.name.as_str()).collect(),
    };
    let mut seen = BTreeSet::new();
    found.retain(|text| seen.insert(text.clone()));
    found.sort_by(|a, b| {
        known
            .iter()
            .position(|level| level == a)
            .cmp(&known.iter().position(|level| level == b))
            .then_with(|| natural_order(a, b))
    });
    found
}

/// A level with the name of its factor if it is a number.
fn label_of(analysis: &Analysis, factor: &str, level: &str) -> String {
    match level.parse::<f64>() {
        Ok(_) => format!("{factor} {level}"),
        Err(_) => level_text(&analysis.loaded.study, &analysis.loaded.facts, factor, level),
    }
}

/// A level as the page shows it: without cpufreq the method `gov` is another one.
fn level_text(study: &Study, facts: &HostFacts, factor: &str, level: &str) -> String {
    let is_method = study.factor(factor).is_some_and(|one| one.effect == FactorEffect::Method);
    let works = Method::from_name(level).and_then(Method::works_without_frequencies);
    if is_method && works == Some(true) && !facts.cpufreq {
        format!("{level} (freezer only: no cpufreq)")
    } else {
        level.to_owned()
    }
}

/// The lines of a percentile plot over the share of all samples.
fn percentiles(analysis: &Analysis, plot: &Plot) -> Result<Picture, Failure> {
    let axes = [plot.panel.as_deref().unwrap_or(""), plot.series.as_deref().unwrap_or("")];
    let curves =
        analysis.curves(&plot.selection, &axes).map_err(|why| failure(&plot.name, &why))?;
    let axes = Axes::new(analysis, [axes[0], axes[1], ""], curves.iter().map(|(key, _)| key));
    let picture = axes.picture(analysis, plot, |title| {
        let lines = curves.iter().filter(|(key, _)| key[0] == *title);
        let lines = lines.map(|(key, curve)| {
            // The largest of n samples is at 1 - 1/n.
            let last = 1.0 - 1.0 / (curve.samples.max(2) as f64);
            let spots = curve.points.iter().map(|point| ChartPoint {
                x: point.quantile.min(last).to_string(),
                value: point.value,
                range: None,
            });
            Line { name: label_of(analysis, axes.names[1], &key[1]), spots: spots.collect() }
        });
        lines.collect()
    });
    Ok(Picture {
        x: "share of samples at or below".to_owned(),
        x_unit: None,
        log: (false, plot.log_y),
        ..picture
    })
}

fn failure(name: &str, why: &str) -> Failure {
    Failure::new(Exit::Input, format!("{name}: {why}"))
}

/// Why a plot or a table is empty: each reason once.
fn reasons(analysis: &Analysis, selections: &[Selection]) -> Vec<String> {
    let mut reasons: Vec<String> = Vec::new();
    for selection in selections {
        for reason in analysis.reasons_of_absence(selection) {
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
    }
    reasons
}

fn picture(analysis: &Analysis, plot: &Plot) -> Result<Picture, Failure> {
    match plot.kind {
        PlotKind::Lines | PlotKind::Bars => {}
        PlotKind::Percentiles => return percentiles(analysis, plot),
        PlotKind::Sequence => return sequence::picture(analysis, plot),
    }
    let (panel, series) = (plot.panel.as_deref(), plot.series.as_deref());
    let names = [panel.unwrap_or(""), series.unwrap_or(""), plot.x.as_str()];
    let found = groups(analysis, &plot.name, &plot.selection, &names)?;
    let axes = Axes::new(analysis, names, found.points.iter().map(|(key, _)| key));
    let mut picture = axes.picture(analysis, plot, |title| {
        let lines = axes.found[1].iter().map(|line| Line {
            name: label_of(analysis, names[1], line),
            spots: found
                .points
                .iter()
                .filter(|(key, _)| key[0] == *title && key[1] == *line)
                .map(|(key, point)| ChartPoint {
                    x: key[2].clone(),
                    value: point.value,
                    range: point.range,
                })
                .collect(),
        });
        lines.collect()
    });
    for (panel, title) in picture.panels.iter_mut().zip(&axes.found[0]) {
        panel.ideal = ideal(plot, &found, title);
        panel.source = marks::of_source(analysis, plot, &axes, title);
    }
    Ok(Picture {
        scale: scale(&plot.selection, &found),
        along: axes.found[2].clone(),
        mark: mark(analysis, plot),
        joined: plot.selection.shown != DisplayedStatistic::Sum
            && found.points.iter().any(|(_, point)| point.cells > 1),
        brackets: marks::brackets(found.points.iter().map(|(_, point)| point)),
        ..picture
    })
}

/// The expected values of a panel; errors are relative to them.
fn ideal(plot: &Plot, found: &Groups, panel: &str) -> Vec<(String, f64)> {
    let shows_ratio = plot.selection.shown != DisplayedStatistic::Error;
    let of_panel = found.ideals.iter().filter(|(key, _)| shows_ratio && key[0] == panel);
    let mut ideal: Vec<(String, f64)> =
        of_panel.map(|(key, ideal)| (key[2].clone(), *ideal)).collect();
    ideal.dedup_by(|a, b| a.0 == b.0);
    ideal
}

/// The value of the mark is the same for all cells: it is computed for the first.
fn mark(analysis: &Analysis, plot: &Plot) -> Option<(String, f64)> {
    let loaded = &analysis.loaded;
    let cell = loaded.cells.all.first()?;
    let scope = library::CellScope { study: &loaded.study, cell, facts: &loaded.facts };
    let rule = plot.mark.as_ref()?;
    rule.expr.number(&scope).ok().map(|number| (rule.text.clone(), number))
}

/// A number of a table, with its range.
fn table_field(scale: Scale, point: &library::Point) -> String {
    let range = point
        .range
        .map(|(low, high)| format!("[{}, {}]", show_number(low, scale), show_number(high, scale)));
    // Lines may be broken before the range, and nowhere else.
    [Some(show_number(point.value, scale)), range]
        .map(|text| text.map(|text| text.replace(' ', "\u{a0}")))
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" ")
}

fn show_number(number: f64, scale: Scale) -> String {
    match scale {
        // A small count without decimals that it cannot have.
        Scale::Of(Unit::Count) if number.fract() == 0.0 && (0.0..1e4).contains(&number) => {
            format!("{number:.0}")
        }
        Scale::Of(_) | Scale::Ratio(_) | Scale::Points => scale.show(number),
    }
}

/// The names of a row of a table.
fn row_names(analysis: &Analysis, factors: &[String], key: &[String]) -> Vec<String> {
    let Loaded { study, facts, .. } = &analysis.loaded;
    let names = factors.iter().zip(key);
    names.map(|(factor, level)| level_text(study, facts, factor, level)).collect()
}

/// The name of the column of a selection.
fn column_name(table: &Table, index: usize, scale: Scale) -> String {
    match table.headings.get(index).map(String::as_str) {
        None => scale_name(scale),
        Some("deviation") => "σ".to_owned(),
        Some(heading) => heading.to_owned(),
    }
}

/// The numbers of a table, as text.
#[derive(Default)]
struct TableNumbers {
    columns: Vec<String>,
    /// Names of each row, and its numbers by column.
    rows: Vec<(Vec<String>, BTreeMap<String, String>)>,
    /// True if a number stands for several cells.
    several: bool,
    /// Number of blocks of each number.
    blocks: Vec<u32>,
}

impl TableNumbers {
    fn new(analysis: &Analysis, table: &Table) -> Result<Self, Failure> {
        let mut names: Vec<&str> = table.rows.iter().map(String::as_str).collect();
        let rows = names.len();
        let mut numbers = Self::default();
        if let (Some(first), true) = (table.selections.first(), table.has_skipped_rows) {
            let keys = analysis.all_keys(first, &names).into_iter();
            numbers.rows = keys
                .map(|key: Vec<String>| (row_names(analysis, &table.rows, &key), BTreeMap::new()))
                .collect();
        }
        names.extend(table.columns.as_deref());
        for (index, selection) in table.selections.iter().enumerate() {
            let found = groups(analysis, &table.name, selection, &names)?;
            let scale = scale(selection, &found);
            let own = column_name(table, index, scale);
            match &table.columns {
                None => numbers.columns.push(own.clone()),
                Some(name) => {
                    let texts = found.points.iter().map(|(key, _)| key[rows].clone()).collect();
                    numbers.columns = order_levels(analysis, name, texts);
                }
            }
            for (key, point) in &found.points {
                numbers.several |= point.cells > 1;
                numbers.blocks.push(point.blocks);
                let row = row_names(analysis, &table.rows, key);
                let column = key.get(rows).unwrap_or(&own).clone();
                let text = table_field(scale, point);
                match numbers.rows.iter_mut().find(|(known, _)| *known == row) {
                    Some((_, fields)) => {
                        fields.insert(column, text);
                    }
                    None => numbers.rows.push((row, BTreeMap::from([(column, text)]))),
                }
            }
        }
        Ok(numbers)
    }
}

fn page_table(analysis: &Analysis, table: &Table) -> Result<PageTable, Failure> {
    let TableNumbers { columns, rows, several, blocks } = TableNumbers::new(analysis, table)?;
    let is_empty = rows.iter().all(|(_, fields)| fields.is_empty());
    let mut note = table_note(table, several, Brackets::from_blocks(blocks));
    if rows.iter().any(|(_, fields)| fields.is_empty()) {
        let why = reasons(analysis, &table.selections).join("; ");
        note.push_str(&format!(" Rows without numbers were not measured: {why}."));
    }
    let body = rows.into_iter().filter(|_| !is_empty).map(|(mut row, fields)| {
        row.extend(columns.iter().map(|one| fields.get(one).cloned().unwrap_or_else(missing)));
        row
    });
    let body: Vec<Vec<String>> = body.collect();
    let names = columns.iter().map(|column| match &table.columns {
        Some(factor) => label_of(analysis, factor, column),
        None => column.clone(),
    });
    let header: Vec<String> = table.rows.iter().cloned().chain(names).collect();
    let missing = if is_empty { reasons(analysis, &table.selections) } else { Vec::new() };
    let page = PageTable::new(&table.name, &table.title, table.rows.len(), &header, body);
    Ok(PageTable { note, missing, ..page })
}

fn missing() -> String {
    format::MISSING.to_owned()
}

/// The meaning of the numbers of a table, and of those in brackets.
fn table_note(table: &Table, several: bool, brackets: Brackets) -> String {
    fn shows(shown: DisplayedStatistic, table: &Table) -> bool {
        table.selections.iter().any(|selection| selection.shown == shown)
    }
    let mut note = String::new();
    if shows(DisplayedStatistic::Ratio, table) {
        note.push_str(&format!("Each number is the {RATIO}. "));
    }
    if shows(DisplayedStatistic::Error, table) {
        note.push_str(&format!(
            "Each number is the {RATIO} minus the ideal one, in percentage points. "
        ));
    }
    note.push_str(&if shows(DisplayedStatistic::Sum, table) {
        "Each number is the sum over all cells that it stands for, and over all blocks; in brackets the sum of their intervals or ranges.".to_owned()
    } else if several {
        "Where it stands for several cells it is their median, with the smallest and the largest in brackets.".to_owned()
    } else {
        format!("In brackets {}.", brackets.text())
    });
    note
}

fn scale_name(scale: Scale) -> String {
    match scale {
        Scale::Of(_) => "value".to_owned(),
        Scale::Ratio(_) => "ratio".to_owned(),
        Scale::Points => scale.label().to_owned(),
    }
}

/// An estimate with the source's summary and its verdict.
fn measured_figure(analysis: &Analysis, one: &library::Estimate) -> MeasuredFigure {
    let study = &analysis.loaded.study;
    let mean = &one.mean;
    let spread = |known: Option<Spread>| Some((mean.mean, known.unwrap_or(Spread::Unknown)));
    MeasuredFigure {
        cell: analysis.loaded.cells.all[one.cell].name(study),
        figure: figure_name(&one.figure),
        unit: one.unit,
        blocks: u32::try_from(one.starts.len()).unwrap_or(u32::MAX),
        median: one.median,
        interval: one.interval,
        summary: match study.summary {
            Summary::Median => None,
            Summary::Mean => spread(mean.deviation.map(Spread::Deviation)),
            Summary::MeanInterval => {
                spread(mean.interval.map(|(low, high)| Spread::Interval(low, high)))
            }
        },
        comparison: one
            .comparison
            .map(|with| comparison(with.interval, Some(with.p_holm), &with.verdict)),
    }
}

fn comparison(
    Interval { ratio, low, high }: Interval,
    p_holm: Option<f64>,
    verdict: &Verdict,
) -> pinfold_report::Comparison {
    use pinfold_report::Verdict as DisplayedStatistic;
    let verdict = match verdict {
        Verdict::Better => DisplayedStatistic::Better,
        Verdict::Same => DisplayedStatistic::Same,
        Verdict::Worse => DisplayedStatistic::Worse,
        Verdict::Unknown { .. } => DisplayedStatistic::Unknown(
            verdict.to_string().trim_start_matches("unknown: ").to_owned(),
        ),
    };
    pinfold_report::Comparison { ratio, low, high, p_holm, verdict }
}

/// Name of a figure with its labels.
#[must_use]
pub fn figure_name(figure: &library::FigureName) -> String {
    let labels: Vec<String> =
        figure.labels.iter().map(|(name, value)| format!(" {name} {value}")).collect();
    format!("{}{}", figure.probe, labels.concat())
}

/// The comparison of the twin of a cell with the cell.
fn pair(analysis: &Analysis, one: &library::Noise) -> AaPair {
    AaPair {
        cell: analysis.loaded.cells.all[one.cell].name(&analysis.loaded.study),
        figure: figure_name(&one.figure),
        unit: analysis
            .estimates
            .iter()
            .find(|known: &&library::Estimate| known.figure == one.figure)
            .map_or(Unit::Count, |known| known.unit),
        blocks: one.blocks,
        comparison: comparison(one.interval, None, &one.verdict),
    }
}

fn findings(analysis: &Analysis) -> Vec<String> {
    let mut findings: Vec<String> = host_changes(&analysis.run)
        .into_iter()
        .map(|change| format!("the host changed between sessions: {change}"))
        .collect();
    if let Some(early) = &analysis.loaded.early {
        findings.push(format!("it ended after {} blocks: {}", early.blocks, early.reason));
    }
    let (wrong, judged) = analysis.false_verdicts();
    if wrong > 0 {
        findings.push(format!(
            "{wrong} of {judged} A/A pairs {} a false verdict (a difference between two identical \
             sides)",
            select_verb(wrong, "has", "have")
        ));
    }
    findings.extend(analysis.absent.iter().map(|((figure, why), trials)| {
        format!("{figure} could not be measured ({}): {why}", count_noun(*trials, "trial"))
    }));
    findings.extend(
        analysis
            .findings
            .iter()
            .map(|(finding, trials)| format!("in {}: {finding}", count_noun(*trials, "trial"))),
    );
    let unsteady: u32 = analysis.estimates.iter().map(|one| one.unsteady).sum();
    let looked: u32 = analysis.estimates.iter().map(|one| one.looked_at).sum();
    if unsteady > 0 {
        findings.push(format!(
            "{unsteady} of {looked} runs with enough samples did not reach a steady state"
        ));
    }
    findings
}

fn how(analysis: &Analysis) -> Vec<(String, String)> {
    let (loaded, run) = (&analysis.loaded, &analysis.run);
    let (study, origin, progress) = (&loaded.study, &run.origin, analysis.progress);
    let took_s = progress.duration_ns as f64 / 1e9;
    let mut rows = vec![
        row("host", format!(
            "{}, {} of {}, {}{}",
            origin.cpu_model, count_noun(loaded.facts.pus, "CPU"), count_noun(loaded.facts.cores, "core"),
            count_noun(loaded.facts.nodes, "NUMA node"),
            origin.hypervisor.as_ref().map_or_else(String::new, |name| format!(", itself a machine of {name}")),
        )),
        row("kernel", origin.kernel.clone()),
        row("kernel parameters", shown_parameters(&origin.cmdline)),
        row("design", format!(
            "{} cells in randomised complete blocks, seed {}: {} blocks, {} per cell and block, {}",
            loaded.cells.running().count(), study.seed, study.repetitions, count_noun(study.starts, "start"),
            count_noun(study.warm_up, "warm-up run"),
        )),
        row("trials", format!(
            "{} measured, {} failed, in {}; each {}",
            progress.ok, progress.failed, time::seconds(took_s),
            besides_workload(loaded, progress),
        )),
        row("values", "a start gives the median of its samples, of a tail the largest; a block the median of its starts, a cell the median of its blocks".to_owned()),
        row("intervals", "95 %, by bootstrap of blocks and of the starts in them, 10,000 draws, fixed seed; below 6 blocks the smallest and the largest block instead; ratios are medians of the blocks' ratios".to_owned()),
        row("verdicts", format!(
            "exact paired sign-flip test, level {}, Holm's correction over the cells that are compared with one; the same within {} %",
            library::ALPHA, study.margin * 100.0,
        )),
        row("sessions", run.sessions.len().to_string()),
        row("topology", origin.fingerprint.clone()),
    ];
    rows.extend(
        loaded
            .is_shown_as_another
            .then(|| row("study file", "statements, charts and tables of a later text".to_owned())),
    );
    rows.extend(guests(analysis));
    let commands = study
        .workloads
        .iter()
        .map(|workload| row(&workload.name, workload.program.words().join(" ")));
    rows.extend(commands);
    rows
}

fn row(label: &str, text: String) -> (String, String) {
    (label.to_owned(), text)
}

/// What executed the cells, with the number of cells.
fn count_by_accelerator(analysis: &Analysis) -> BTreeMap<String, usize> {
    let (loaded, origin) = (&analysis.loaded, &analysis.run.origin);
    let mut by: BTreeMap<String, usize> = BTreeMap::new();
    for (_, cell) in loaded.cells.running() {
        let what = match cell.guest(&loaded.study) {
            Ok(Some(guest)) => {
                let isa = guest.isa.map_or_else(String::new, |isa| format!("{isa} guests, "));
                format!("{isa}{}", guest.accelerator)
            }
            Ok(None) | Err(_) => origin.accelerator.to_string(),
        };
        *by.entry(what).or_default() += 1;
    }
    by
}

/// What executed the cells, if some are guests.
fn guests(analysis: &Analysis) -> Vec<(String, String)> {
    let origin = &analysis.run.origin;
    let by = count_by_accelerator(analysis);
    let counted: Vec<String> = by.iter().map(|(what, cells)| format!("{what}: {cells}")).collect();
    let mut rows = vec![row("cells by accelerator", counted.join("; "))];
    if by.keys().any(|what| what.contains("TCG")) {
        rows.push(row(
            "TCG",
            "TCG results do not carry over to KVM or to a machine of that kind".to_owned(),
        ));
    }
    rows.extend(origin.qemu.iter().map(|version| row("QEMU", version.clone())));
    rows.extend(origin.guest_kernel.iter().map(|kernel| row("kernels of guests", kernel.clone())));
    rows
}

/// Writes each table as CSV, and as Parquet with that feature; returns their names and sizes.
///
/// # Errors
/// [`Failure`] if a file cannot be written.
pub fn export(
    store: &Store,
    analysis: &Analysis,
    folder: &str,
) -> Result<Vec<(String, usize)>, Failure> {
    let tables = library::tables(store, analysis)?;
    let samples = library::samples(store, analysis.run.id)?;
    files::make_dirs(folder)?;
    let mut written = Vec::new();
    for table in &tables {
        let files = TableFiles::from_table(table).map_err(|error| table_failure(&error))?;
        written.push((table.name.clone(), save(files, folder, &table.name)?));
    }
    let mut files: Option<(String, TableFiles)> = None;
    for piece in samples {
        let piece = piece?;
        let added = match &mut files {
            Some((_, files)) => files.push(&piece),
            None => TableFiles::from_table(&piece).map(|begun| files = Some((piece.name, begun))),
        };
        added.map_err(|error| table_failure(&error))?;
    }
    if let Some((name, files)) = files {
        let rows = save(files, folder, &name)?;
        written.push((name, rows));
    }
    Ok(written)
}

/// Writes the files of a table and returns its number of rows.
fn save(files: TableFiles, folder: &str, name: &str) -> Result<usize, Failure> {
    let table = files.finish().map_err(|error| table_failure(&error))?;
    files::write_atomic(&format!("{folder}/{name}.csv"), table.csv.as_bytes())?;
    if let Some(bytes) = &table.parquet {
        files::write_atomic(&format!("{folder}/{name}.parquet"), bytes)?;
    }
    Ok(table.rows)
}

fn table_failure(error: &TableError) -> Failure {
    Failure::from_error(Exit::Host, error, None)
}

/// The differences between two runs, as messages for the user.
#[must_use]
pub fn differences(first: &Analysis, second: &Analysis) -> Vec<String> {
    let mut lines = store::host_changes(&first.run.origin, &second.run.origin)
        .iter()
        .map(|change| {
            change.replace(" then, ", " in the first, ").replace(" now", " in the second")
        })
        .collect::<Vec<_>>();
    if first.loaded.record.toml != second.loaded.record.toml {
        lines.push("their study files differ".to_owned());
    }
    let (first, second) = (&first.loaded.record.form, &second.loaded.record.form);
    if first != second {
        lines.push(format!("the form of the first is {first}, of the second {second}"));
    }
    lines
}

/// Writes a page.
///
/// # Errors
/// [`Failure`] if it cannot be written.
pub fn write(page: &StudyPage, path: &str) -> Result<(), Failure> {
    let html = pinfold_report::render_study(page)
        .map_err(|error| Failure::from_error(Exit::Host, &error, error.hint()))?;
    files::write_atomic(path, html.as_bytes()).map_err(Failure::from)
}

/// Mean overhead of a trial in addition to its workload (ms).
#[must_use]
pub fn overhead_ms(progress: StudyProgress) -> f64 {
    let done = (progress.ok + progress.failed).max(1);
    progress.duration_ns.saturating_sub(progress.work_ns) as f64 / 1e6 / done as f64
}

/// The overhead as text. For the trials of a guest it is mostly its boot.
#[must_use]
pub fn besides_workload(loaded: &Loaded, progress: StudyProgress) -> String {
    let boots =
        loaded.cells.running().any(|(_, cell)| matches!(cell.guest(&loaded.study), Ok(Some(_))));
    let among = if boots { ", including the boots of its guests" } else { "" };
    format!("{:.1} ms outside the workload{among}", overhead_ms(progress))
}

/// Changes of the host between the sessions of a run.
#[must_use]
pub fn host_changes(run: &RunRecord) -> Vec<String> {
    let pairs = run.sessions.windows(2);
    pairs.flat_map(|pair| store::host_changes(&pair[0].origin, &pair[1].origin)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gov_without_cpufreq_is_called_what_it_is() {
        let text = include_str!("../../../../studies/cpu-emulation.toml");
        let study = library::from_toml(text).unwrap();
        let check = |cpufreq: bool, factor: &str, level: &str, expected: &str| {
            let facts = HostFacts { pus: 2, cores: 2, nodes: 1, packages: 1, smt: false, cpufreq };
            assert_eq!(level_text(&study, &facts, factor, level), expected);
        };
        check(false, "method", "gov", "gov (freezer only: no cpufreq)");
        check(true, "method", "gov", "gov");
        check(false, "method", "hogs", "hogs");
        check(false, "variant", "gov", "gov");
    }
}
