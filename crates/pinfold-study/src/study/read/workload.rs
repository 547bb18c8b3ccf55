//! `[[workload]]`: the program, and how to parse its output.

use std::collections::BTreeSet;

use pinfold_config::fault::Fault;
use pinfold_config::keys::Keys;
use pinfold_config::value::Value as Toml;
use pinfold_model::{Family, Unit};

use super::super::file::{
    BUILT_IN, FigureRule, Program, Rule, Source, Stream, Study, WHOLE_TIME, Workload,
};
use super::super::template;
use super::{cell_rule, check_name, rule, time, truth};
use regex_lite::Regex;

const WORKLOAD: &[&str] =
    &["name", "pinload", "command", "guest-program", "lasts", "time-limit", "figure", "roi"];
const FIGURE: &[&str] = &["name", "unit", "family", "from", "json", "regex", "where", "labels"];
/// The line that the PARSEC hooks print at the end of the region of interest.
const ROI: &str = r"\[HOOKS\] Total time spent in ROI:\s*([0-9.]+)\s*s";
pub(super) fn workloads(
    keys: &mut Keys,
    study: &Study,
    limit_ns: u64,
) -> Result<Vec<Workload>, Fault> {
    let mut workloads: Vec<Workload> = Vec::new();
    for table in keys.tables("workload")? {
        let at = table.at;
        let one = workload(table, study, limit_ns)?;
        if workloads.iter().any(|other| other.name == one.name) {
            return Err(Fault::new(at, format!("the workload {:?} is given twice", one.name)));
        }
        workloads.push(one);
    }
    if workloads.is_empty() {
        Err(Fault::new(0, "the study has no [[workload]]".to_owned())
            .with_hint("write [[workload]] with a name and a command, or a pinload subcommand"))
    } else {
        Ok(workloads)
    }
}

fn workload(table: Toml, study: &Study, limit_ns: u64) -> Result<Workload, Fault> {
    let at = table.at;
    let mut keys = Keys::new(table, "workload", WORKLOAD)?;
    let (name, name_at) = keys.take_required("name")?.into_text("name")?;
    if name.is_empty() || name.chars().any(char::is_control) {
        return Err(Fault::new(name_at, "name: it is empty or has a control character".to_owned()));
    }
    let program = program(&mut keys, study, at)?;
    let guest_program = guest_program(&mut keys, study, &program)?;
    let lasts_s = lasts(&mut keys, study)?;
    let time_limit_ns = time(&mut keys, "time-limit")?.unwrap_or(limit_ns);
    let mut figures = Vec::new();
    let mut names = BTreeSet::from([WHOLE_TIME.to_owned()]);
    for table in keys.tables("figure")? {
        let at = table.at;
        let one = figure(table)?;
        if !names.insert(one.name.clone()) {
            return Err(Fault::new(at, format!("the figure {:?} is given twice", one.name)));
        }
        figures.push(one);
    }
    if truth(&mut keys, "roi")? {
        figures.push(roi(at)?);
    }
    Ok(Workload { name, program, guest_program, lasts_s, time_limit_ns, figures })
}

fn roi(at: usize) -> Result<FigureRule, Fault> {
    Ok(FigureRule {
        name: "t_roi".to_owned(),
        unit: Unit::Nanoseconds,
        family: Family::Capacity,
        from: Stream::Stdout,
        source: Source::Regex(Box::new(regex(ROI, at)?)),
        only: None,
        labels: Vec::new(),
    })
}

fn program(keys: &mut Keys, study: &Study, at: usize) -> Result<Program, Fault> {
    let pinload = keys.texts("pinload")?;
    let command = keys.texts("command")?;
    let (words, make): (_, fn(Vec<String>) -> Program) = match (pinload, command) {
        (words, none) if none.is_empty() && !words.is_empty() => (words, Program::Pinload),
        (none, words) if none.is_empty() && !words.is_empty() => (words, Program::Command),
        (_, _) => {
            return Err(Fault::new(at, "a workload has either pinload or command".to_owned())
                .with_hint("write command = [\"/usr/bin/program\", \"--threads={n_threads}\"]"));
        }
    };
    words.iter().try_for_each(|(word, at)| check_braces(word, *at, study))?;
    Ok(make(words.into_iter().map(|(word, _)| word).collect()))
}

fn check_braces(word: &str, at: usize, study: &Study) -> Result<(), Fault> {
    template::fill(word, &|name: &str| {
        let is_known = BUILT_IN.contains(&name) || study.is_known_name(name);
        is_known.then(String::new)
    })
    .map(|_| ())
    .map_err(|why| {
        let names: Vec<&str> = study
            .factors
            .iter()
            .map(|factor| factor.name.as_str())
            .chain(study.values.keys().map(String::as_str))
            .chain(BUILT_IN)
            .collect();
        Fault::new(at, why)
            .with_hint(format!("braces may contain {}; write {{{{ for a brace", names.join(", ")))
    })
}

/// The program that runs in guests instead of a command of the host.
fn guest_program(
    keys: &mut Keys,
    study: &Study,
    program: &Program,
) -> Result<Option<String>, Fault> {
    let Some((path, at)) = keys.text("guest-program")? else { return Ok(None) };
    match program {
        Program::Command(_) => {}
        Program::Pinload(_) => {
            return Err(Fault::new(at, "guest-program: pinload is in every guest".to_owned()));
        }
    }
    check_braces(&path, at, study)?;
    Ok(Some(path))
}

/// A duration such as `"3s"`, or seconds as an expression over factors.
fn lasts(keys: &mut Keys, study: &Study) -> Result<Rule, Fault> {
    let (text, at) = keys.take_required("lasts")?.into_text("lasts")?;
    match template::duration_ns(&text) {
        Some(ns) => rule(format!("{}", ns as f64 / 1e9), at, "lasts"),
        None => cell_rule(text, at, study, "lasts"),
    }
}

fn figure(table: Toml) -> Result<FigureRule, Fault> {
    let at = table.at;
    let mut keys = Keys::new(table, "figure", FIGURE)?;
    let (name, name_at) = keys.take_required("name")?.into_text("name")?;
    check_name(&name, name_at)?;
    let unit = match keys.text("unit")? {
        None => Unit::Count,
        Some((text, at)) => unit_named(&text, at)?,
    };
    let family = match keys.text("family")? {
        None => Family::Capacity,
        Some((text, at)) => {
            // Counts of places are reported and not summarised: studies do not use them.
            let known = [Family::Capacity, Family::Tail, Family::Count];
            known.into_iter().find(|family| family.name() == text).ok_or_else(|| {
                Fault::new(at, format!("there is no family {text:?}"))
                    .with_hint(format!("available: {}", known.map(Family::name).join(", ")))
            })?
        }
    };
    let from = keys.text("from")?;
    let from = from.map_or(Ok(Stream::Stdout), |(text, at)| stream(&text, at))?;
    let source = match (keys.text("json")?, keys.text("regex")?) {
        (Some((text, at)), None) => Source::Json(rule(text, at, "json")?.expr),
        (None, Some((text, at))) => Source::Regex(Box::new(regex(&text, at)?)),
        (Some(_), Some(_)) | (None, None) => {
            return Err(Fault::new(at, "a figure has either json or regex".to_owned())
                .with_hint("json = \"units / elapsed_ns * 1e9\", or regex = 'time: ([0-9.]+)'"));
        }
    };
    let only = keys.text("where")?;
    let labels = keys.texts("labels")?;
    let first = only.iter().chain(&labels).next();
    if let (Source::Regex(_), Some((_, at))) = (&source, first) {
        return Err(Fault::new(*at, "where and labels apply only to figures with json".to_owned()));
    }
    let only = only.map(|(text, at)| rule(text, at, "where")).transpose()?.map(|rule| rule.expr);
    let labels = labels.into_iter().map(|(path, _)| path).collect();
    Ok(FigureRule { name, unit, family, from, source, only, labels })
}

fn stream(text: &str, at: usize) -> Result<Stream, Fault> {
    Stream::ALL.into_iter().find(|stream| stream.name() == text).ok_or_else(|| {
        Fault::new(at, format!("from: there is no stream {text:?}"))
            .with_hint(format!("available: {}", Stream::ALL.map(Stream::name).join(", ")))
    })
}

fn regex(text: &str, at: usize) -> Result<Regex, Fault> {
    let regex = Regex::new(text).map_err(|error| Fault::new(at, format!("regex: {error}")))?;
    match regex.captures_len() {
        0 | 1 => Err(Fault::new(at, "regex: it has no group that holds the number".to_owned())
            .with_hint("put the number in a group, in round brackets: 'time: ([0-9.]+)'")),
        _ => Ok(regex),
    }
}

/// The unit with this name.
pub(super) fn unit_named(text: &str, at: usize) -> Result<Unit, Fault> {
    Unit::from_name(text).ok_or_else(|| {
        Fault::new(at, format!("there is no unit {text:?}"))
            .with_hint(format!("available: {}", Unit::ALL.map(Unit::name).join(", ")))
    })
}
