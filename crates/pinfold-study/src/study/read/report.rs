//! `[[plot]]`, `[[table]]` and `[[claim]]`: the contents of the report, and the claims of the
//! source.

use std::collections::BTreeMap;

use pinfold_config::fault::Fault;
use pinfold_config::keys::Keys;
use pinfold_config::value::Value as Toml;
use pinfold_model::{PlotKind, Unit};

use super::super::expr::Expr;
use super::super::file::{
    BOOT, Claim, DisplayedStatistic, ORDER, Plot, Probe, Rule, Selection, Study, TIME, Table,
    WHOLE_TIME,
};
use super::super::output_parser::label_of;
use super::super::statistics::{self, SampleStatistic};
use super::super::template;
use super::workload::unit_named;
use super::{cell_rule, expr_fault, named_levels, rule, truth};

const SELECTION: &[&str] = &["figure", "labels", "where", "show", "baseline", "ideal"];
const PLOT: &[&str] = &["name", "title", "kind", "x", "x-unit", "series", "panel", "mark", "log"];
const TABLE: &[&str] =
    &["name", "title", "figures", "statistics", "rows", "columns", "skipped-rows"];
const CLAIM: &[&str] = &["source", "own", "place", "where", "see", "agree"];
/// The labels of exit figures.
const EXIT_LABELS: [&str; 3] = ["type", "statistic", "level"];
/// The labels of figures of sampled futex calls.
const FUTEX_LABELS: [&str; 2] = ["part", "lock"];
/// The statistics of exits, and how the probe labels them.
const EXIT_STATISTICS: [(&str, &str); 8] = [
    ("count", "count"),
    ("min", "shortest"),
    ("max", "longest"),
    ("mean", "mean"),
    ("sum", "sum"),
    ("deviation", "deviation"),
    ("per-second", "per-second"),
    ("share", "share"),
];
/// The functions of claims: each gives one value from the cells that its arguments select.
pub(in super::super) const FUNCTIONS: [&str; 10] = [
    "value",
    "sum",
    "ratio",
    "error",
    "spread",
    "smallest",
    "largest",
    "smallest_at",
    "largest_at",
    "variation",
];

pub(super) fn report(keys: &mut Keys, study: &mut Study) -> Result<(), Fault> {
    let mut names: Vec<String> = Vec::new();
    for table in keys.tables("plot")? {
        let at = table.at;
        let plot = plot(table, study)?;
        check_new_name(&mut names, &plot.name, at)?;
        study.plots.push(plot);
    }
    for table in keys.tables("table")? {
        let at = table.at;
        let table = one_table(table, study)?;
        check_new_name(&mut names, &table.name, at)?;
        study.tables.push(table);
    }
    for table in keys.tables("claim")? {
        let claim = claim(table, study)?;
        study.claims.push(claim);
    }
    Ok(())
}

fn check_new_name(names: &mut Vec<String>, name: &str, at: usize) -> Result<(), Fault> {
    let is_plain = !name.is_empty()
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    if !is_plain || names.iter().any(|known| known == name) {
        return Err(Fault::new(
            at,
            format!("name: {name:?} is in use, or contains other than letters, digits, - and _"),
        ));
    }
    names.push(name.to_owned());
    Ok(())
}

/// The figure must be one of a workload or probe. The figures of workloads that print lines of
/// figures are known only when they run.
pub(super) fn check_figure(name: &str, at: usize, study: &Study) -> Result<(), Fault> {
    let declared = study.workloads.iter().flat_map(|workload| &workload.figures);
    let mut known: Vec<&str> = declared.map(|figure| figure.name.as_str()).collect();
    known.extend([WHOLE_TIME, BOOT]);
    known.extend(Probe::ALL.map(Probe::name));
    let lines = study.workloads.iter().any(|workload| workload.figures.is_empty());
    let figure = statistics::split(name).map_or(name, |(figure, _)| figure);
    if lines || known.contains(&name) || known.contains(&figure) {
        return Ok(());
    }
    known.sort_unstable();
    known.dedup();
    Err(Fault::new(at, format!("no workload gives the figure {name:?}"))
        .with_hint(format!("available: {}", known.join(", "))))
}

fn selection(keys: &mut Keys, study: &Study) -> Result<Selection, Fault> {
    let (figure, at) = keys.take_required("figure")?.into_text("figure")?;
    check_figure(&figure, at, study)?;
    Ok(Selection { figure, ..shared_selection(keys, study, at)? })
}

/// The keys of a selection without the figure.
fn shared_selection(keys: &mut Keys, study: &Study, at: usize) -> Result<Selection, Fault> {
    let labels = match keys.take("labels") {
        None => BTreeMap::new(),
        Some(table) => {
            let levels = named_levels(table, "labels")?;
            levels.into_iter().map(|(name, level)| (name, level.text)).collect()
        }
    };
    let shown = match keys.text("show")? {
        None => DisplayedStatistic::Value,
        Some((text, at)) => match text.as_str() {
            "value" => DisplayedStatistic::Value,
            "sum" => DisplayedStatistic::Sum,
            "ratio" => DisplayedStatistic::Ratio,
            "error" => DisplayedStatistic::Error,
            _ => {
                return Err(Fault::new(at, format!("show: unknown value {text:?}"))
                    .with_hint("available: value, sum, ratio, error"));
            }
        },
    };
    let ideal =
        keys.text("ideal")?.map(|(text, at)| cell_rule(text, at, study, "ideal")).transpose()?;
    let is_compared = matches!(shown, DisplayedStatistic::Ratio | DisplayedStatistic::Error);
    let baseline = keys.take("baseline").map(|table| super::baseline(table, study)).transpose()?;
    if !is_compared && baseline.is_some() {
        return Err(Fault::new(at, "baseline: values are not compared with a baseline".to_owned())
            .with_hint("write show = \"ratio\""));
    }
    let baseline = baseline.unwrap_or_else(|| study.baseline.clone());
    if is_compared && baseline.is_empty() {
        return Err(Fault::new(at, "show: ratios need a [baseline]".to_owned()));
    }
    if shown == DisplayedStatistic::Error && ideal.is_none() {
        return Err(Fault::new(at, "show: an error needs the key \"ideal\"".to_owned()));
    }
    let only =
        keys.text("where")?.map(|(text, at)| cell_rule(text, at, study, "where")).transpose()?;
    Ok(Selection { figure: String::new(), labels, only, shown, baseline, ideal })
}

fn plot(table: Toml, study: &Study) -> Result<Plot, Fault> {
    let at = table.at;
    let mut keys = Keys::new(table, "plot", &[SELECTION, PLOT].concat())?;
    let (name, title) = name_and_title(&mut keys)?;
    let kind = plot_kind(&mut keys)?;
    let log = keys.texts("log")?;
    if let Some((axis, at)) = log.iter().find(|(axis, _)| !matches!(axis.as_str(), "x" | "y")) {
        return Err(Fault::new(*at, format!("log: there is no axis {axis:?}")));
    }
    let x = match kind {
        PlotKind::Sequence => Some(sequence_axis(&mut keys)?),
        PlotKind::Lines | PlotKind::Bars | PlotKind::Percentiles => axis(&mut keys, "x", study)?,
    };
    let plot = Plot {
        name,
        title,
        kind,
        x: match (kind, x) {
            (PlotKind::Lines | PlotKind::Bars | PlotKind::Sequence, x) => {
                x.ok_or_else(|| missing("x"))?
            }
            (PlotKind::Percentiles, None) => String::new(),
            (PlotKind::Percentiles, Some(_)) => {
                return Err(Fault::new(
                    at,
                    "x: leave it out, the x axis of a percentile plot is the percentile".to_owned(),
                ));
            }
        },
        x_unit: keys.text("x-unit")?.map(|(text, at)| unit_named(&text, at)).transpose()?,
        series: axis(&mut keys, "series", study)?,
        panel: axis(&mut keys, "panel", study)?,
        mark: keys
            .text("mark")?
            .map(|(text, at)| cell_rule(text, at, study, "mark"))
            .transpose()?,
        log_x: has(&log, "x"),
        log_y: has(&log, "y"),
        selection: selection(&mut keys, study)?,
    };
    let is_of_samples = matches!(plot.kind, PlotKind::Percentiles | PlotKind::Sequence);
    if is_of_samples && plot.selection.shown != DisplayedStatistic::Value {
        return Err(Fault::new(
            at,
            "show: percentile and sequence plots show values only".to_owned(),
        ));
    }
    let figures = study.workloads.iter().flat_map(|workload| &workload.figures);
    let mut shown = figures.filter(|figure| figure.name == plot.selection.figure);
    if plot.x == TIME && shown.any(|figure| figure.unit != Unit::Nanoseconds) {
        let why = "x: time needs a figure in ns, whose sum is the time";
        return Err(Fault::new(at, why.to_owned()));
    }
    Ok(plot)
}

fn plot_kind(keys: &mut Keys) -> Result<PlotKind, Fault> {
    let Some((text, at)) = keys.text("kind")? else { return Ok(PlotKind::Lines) };
    match text.as_str() {
        "lines" => Ok(PlotKind::Lines),
        "bars" => Ok(PlotKind::Bars),
        "percentiles" => Ok(PlotKind::Percentiles),
        "sequence" => Ok(PlotKind::Sequence),
        _ => Err(Fault::new(at, format!("kind: unknown value {text:?}"))
            .with_hint("available: lines, bars, percentiles, sequence")),
    }
}

fn has(log: &[(String, usize)], axis: &str) -> bool {
    log.iter().any(|(known, _)| known == axis)
}

/// The x axis of a sequence.
fn sequence_axis(keys: &mut Keys) -> Result<String, Fault> {
    match keys.text("x")? {
        None => Ok(ORDER.to_owned()),
        Some((text, _)) if text == ORDER || text == TIME => Ok(text),
        Some((text, at)) => Err(Fault::new(at, format!("x: a sequence has no axis {text:?}"))
            .with_hint("available: order, time")),
    }
}

fn missing(key: &str) -> Fault {
    Fault::new(0, format!("a plot needs the key {key:?}"))
}

fn one_table(table: Toml, study: &Study) -> Result<Table, Fault> {
    let at = table.at;
    let mut keys = Keys::new(table, "table", &[SELECTION, TABLE].concat())?;
    let (name, title) = name_and_title(&mut keys)?;
    let rows = keys.texts("rows")?;
    let rows = rows
        .into_iter()
        .map(|(name, at)| check_axis(name, at, study))
        .collect::<Result<Vec<_>, _>>()?;
    let columns = axis(&mut keys, "columns", study)?;
    let (statistics, figures) = (keys.texts("statistics")?, keys.texts("figures")?);
    let mut table = Table {
        name,
        title,
        selections: Vec::new(),
        headings: Vec::new(),
        has_skipped_rows: truth(&mut keys, "skipped-rows")?,
        rows,
        columns,
    };
    if statistics.is_empty() && figures.is_empty() {
        table.selections.push(selection(&mut keys, study)?);
        return Ok(table);
    }
    if table.columns.is_some() {
        let why = "columns: leave it out, the figures or statistics are the columns";
        return Err(Fault::new(at, why.to_owned()));
    }
    let shared = if statistics.is_empty() {
        shared_selection(&mut keys, study, at)?
    } else {
        selection(&mut keys, study)?
    };
    for (word, at) in statistics {
        table.selections.push(of_statistic(&shared, &word, at)?);
        table.headings.push(word);
    }
    for (figure, at) in figures {
        check_figure(&figure, at, study)?;
        table.selections.push(Selection { figure: figure.clone(), ..shared.clone() });
        table.headings.push(figure);
    }
    Ok(table)
}

/// The selection of a statistic of a figure. Exits have theirs as a label.
fn of_statistic(shared: &Selection, word: &str, at: usize) -> Result<Selection, Fault> {
    let mut selection = shared.clone();
    if selection.figure == Probe::Exits.name() {
        let Some((_, label)) = EXIT_STATISTICS.iter().find(|(known, _)| *known == word) else {
            return Err(no_statistic(word, at, &EXIT_STATISTICS.map(|(known, _)| known)));
        };
        selection.labels.insert("statistic".to_owned(), (*label).to_owned());
        return Ok(selection);
    }
    let name = format!("{}.{word}", selection.figure);
    match statistics::split(&name) {
        Some(_) => Ok(Selection { figure: name, ..selection }),
        None => Err(no_statistic(word, at, &SampleStatistic::ALL.map(SampleStatistic::name))),
    }
}

fn no_statistic(word: &str, at: usize, known: &[&str]) -> Fault {
    Fault::new(at, format!("statistics: {word:?} is not known"))
        .with_hint(format!("available: {}", known.join(", ")))
}

fn name_and_title(keys: &mut Keys) -> Result<(String, String), Fault> {
    let (name, _) = keys.take_required("name")?.into_text("name")?;
    let title = keys.text("title")?.map_or_else(|| name.clone(), |(title, _)| title);
    Ok((name, title))
}

/// A factor, `workload`, or a label of figures that are printed as lines.
fn axis(keys: &mut Keys, key: &str, study: &Study) -> Result<Option<String>, Fault> {
    keys.text(key)?.map(|(name, at)| check_axis(name, at, study)).transpose()
}

fn check_axis(name: String, at: usize, study: &Study) -> Result<String, Fault> {
    let mut figures = study.workloads.iter().flat_map(|workload| &workload.figures);
    let exits = study.probes.contains(&Probe::Exits) && EXIT_LABELS.contains(&name.as_str());
    let futexes = study
        .probes
        .iter()
        .any(|probe: &Probe| matches!(probe, Probe::FutexCycles | Probe::FutexLock))
        && FUTEX_LABELS.contains(&name.as_str());
    let labelled = exits
        || futexes
        || figures.any(|figure| figure.labels.iter().any(|path: &String| label_of(path) == name));
    let lines = study.workloads.iter().any(|workload| workload.figures.is_empty());
    if study.is_factor_name(&name) || labelled || lines {
        Ok(name)
    } else {
        Err(super::no_factor(&name, at, study))
    }
}

fn claim(table: Toml, study: &Study) -> Result<Claim, Fault> {
    let mut keys = Keys::new(table, "claim", CLAIM)?;
    let (source, _) = keys.take_required("source")?.into_text("source")?;
    let place = keys.text("place")?.map(|(text, _)| text).unwrap_or_default();
    let is_own = truth(&mut keys, "own")?;
    let (see, see_at) = keys.take_required("see")?.into_text("see")?;
    let (text, at) = keys.take_required("agree")?.into_text("agree")?;
    let only =
        keys.text("where")?.map(|(text, at)| cell_rule(text, at, study, "where")).transpose()?;
    let agree = rule(text, at, "agree")?;
    check_claim(&agree, study, "agree")?;
    let mut figures = figures_of(&agree.expr);
    check_see(&see, see_at, study, &mut figures)?;
    Ok(Claim { source, is_own, place, only, figures, see, agree })
}

/// The figures that its functions ask for.
pub(super) fn figures_of(expr: &Expr) -> Vec<String> {
    let calls = expr.calls();
    let names = calls.iter().filter_map(|(_, arguments, _)| arguments.first()?.value.as_name());
    names.map(str::to_owned).collect()
}

fn check_see(see: &str, at: usize, study: &Study, figures: &mut Vec<String>) -> Result<(), Fault> {
    let broken = std::cell::RefCell::new(None);
    let found = std::cell::RefCell::new(figures);
    match template::fill(see, &|text: &str| {
        let checked = Expr::parse(text)
            .map_err(|error| Fault::new(at, format!("see: {text}: {}", error.why)))
            .and_then(|expr| {
                found.borrow_mut().extend(figures_of(&expr));
                check_claim(&Rule { text: text.to_owned(), expr, at }, study, "see")
            });
        match checked {
            Ok(()) => Some(String::new()),
            Err(fault) => {
                *broken.borrow_mut() = Some(fault);
                None
            }
        }
    }) {
        Ok(_) => Ok(()),
        Err(why) => {
            Err(broken.into_inner().unwrap_or_else(|| Fault::new(at, format!("see: {why}"))))
        }
    }
}

/// Its functions must be those of claims, and their arguments must select by factors.
pub(super) fn check_claim(rule: &Rule, study: &Study, key: &str) -> Result<(), Fault> {
    fn fault(key: &str, rule: &Rule, at: usize, why: String) -> Fault {
        expr_fault(key, rule.at, &super::ExprError { at, why })
    }

    for (name, at) in rule.expr.names() {
        if !study.values.contains_key(name) && !super::HOST_FACTS.contains(&name) {
            return Err(fault(key, rule, at, format!("there is no value {name}")).with_hint(
                format!(
                    "numbers of cells come from {}: ratio(rate, method = \"hogs\")",
                    FUNCTIONS.join(", ")
                ),
            ));
        }
    }
    for (function, arguments, at) in rule.expr.calls() {
        if !FUNCTIONS.contains(&function) {
            return Err(fault(key, rule, at, format!("there is no function {function}"))
                .with_hint(format!("available: {}", FUNCTIONS.join(", "))));
        }
        let Some((first, picks)) = arguments.split_first() else {
            return Err(fault(key, rule, at, format!("{function} needs the name of a figure")));
        };
        match (&first.name, first.value.as_name()) {
            (None, Some(name)) => check_figure(name, rule.at, study)?,
            (_, _) => {
                return Err(fault(
                    key,
                    rule,
                    at,
                    format!("the first argument of {function} must be the name of a figure"),
                ));
            }
        }
        for pick in picks {
            match &pick.name {
                Some(name) if name == "of" || check_axis(name.clone(), 0, study).is_ok() => {}
                Some(name) => {
                    return Err(fault(
                        key,
                        rule,
                        pick.value.at(),
                        format!("there is no factor {name}"),
                    ));
                }
                None => {
                    return Err(fault(
                        key,
                        rule,
                        pick.value.at(),
                        "write factor = level".to_owned(),
                    ));
                }
            }
        }
    }
    Ok(())
}
