//! Study files: parses TOML into a [`Study`], and reports errors with line and column.

mod preset;
mod published;
mod report;
mod workload;

use std::collections::{BTreeMap, BTreeSet};

use pinfold_config::ConfigError;
use pinfold_config::fault::Fault;
use pinfold_config::keys::Keys;
use pinfold_config::value::{self, Value as Toml, ValueKind};
use pinfold_model::{CpuSet, Isa, Method, STRATEGY_NAMES, Variant};

use super::expr::{Expr, ExprError, Value};
use super::file::{
    AS_IS, BUILT_IN, Factor, FactorEffect, GUEST, HOST_FACTS, LabRow, Level, NATIVE, NONE, Probe,
    Rule, SAME_PROGRAM, Skip, Stop, Study, Summary,
};
use super::template;

const STUDY: &[&str] = &[
    "name",
    "title",
    "question",
    "source",
    "seed",
    "repetitions",
    "starts",
    "warm-up",
    "time-limit",
    "budget",
    "stop",
    "pus",
    "share-housekeeping",
    "margin",
    "values",
    "factor",
    "together",
    "share",
    "constraints",
    "skip",
    "baseline",
    "lab",
    "workload",
    "probes",
    "summary",
    "plot",
    "table",
    "claim",
    "published",
    "quick",
    "preset",
];
const FACTOR: &[&str] = &["name", "levels", "tunable"];
const SKIP: &[&str] = &["when", "reason"];
const STOP: &[&str] = &["figure", "half-width", "at-least"];
/// Maximum number of cells.
const MOST_CELLS: usize = 1_000_000;
const USUAL_LIMIT_NS: u64 = 600_000_000_000;

/// Parses a study file.
///
/// # Errors
/// [`ConfigError`] with line and column: not TOML, an unknown or missing key, a value of the wrong
/// type or out of range, an unknown factor, a factor without levels, a syntax error in an
/// expression, a workload without figures.
pub fn from_toml(text: &str) -> Result<Study, ConfigError> {
    value::parse_toml(text)
        .and_then(|root| study(Keys::new(root, "the study", STUDY)?))
        .map(|study| Study { text: text.to_owned(), ..study })
        .map_err(|fault| ConfigError::in_file(text, fault))
}

fn study(mut keys: Keys) -> Result<Study, Fault> {
    let (name, name_at) = study_name(&mut keys)?;
    let factors = factors(&mut keys)?;
    let mut study = Study {
        text: String::new(),
        title: text(&mut keys, "title")?,
        question: text(&mut keys, "question")?,
        source: text(&mut keys, "source")?,
        seed: whole(&mut keys, "seed", 0)?.map_or(1, u64::from),
        repetitions: whole(&mut keys, "repetitions", 1)?.unwrap_or(10),
        starts: whole(&mut keys, "starts", 1)?.unwrap_or(1),
        warm_up: whole(&mut keys, "warm-up", 0)?.unwrap_or(0),
        budget_ns: time(&mut keys, "budget")?,
        stop: None,
        pus: pus(&mut keys)?,
        share_housekeeping: truth(&mut keys, "share-housekeeping")?,
        margin: share(&mut keys, "margin")?.unwrap_or(0.02),
        values: match keys.take("values") {
            Some(table) => named_levels(table, "values")?,
            None => BTreeMap::new(),
        },
        factors,
        together: Vec::new(),
        share: Vec::new(),
        constraints: Vec::new(),
        skips: Vec::new(),
        baseline: BTreeMap::new(),
        workloads: Vec::new(),
        probes: probes(&mut keys)?,
        summary: summary(&mut keys)?,
        plots: Vec::new(),
        tables: Vec::new(),
        claims: Vec::new(),
        published: Vec::new(),
        lab: lab_rows(&mut keys)?,
        presets: BTreeMap::new(),
        preset: None,
        name,
    };
    cells(&mut keys, &mut study)?;
    let limit_ns = time(&mut keys, "time-limit")?.unwrap_or(USUAL_LIMIT_NS);
    study.workloads = workload::workloads(&mut keys, &study, limit_ns)?;
    study.stop = keys.take("stop").map(|table| stop(table, &study)).transpose()?;
    report::report(&mut keys, &mut study)?;
    published::read_published(&mut keys, &mut study)?;
    study.presets = preset::presets(&mut keys, &study)?;
    let product = study.factors.iter().try_fold(study.workloads.len(), |product, factor| {
        product.checked_mul(factor.levels.len())
    });
    match product {
        Some(cells) if cells <= MOST_CELLS => Ok(study),
        Some(_) | None => Err(Fault::new(
            name_at,
            format!("the levels of all factors make more than {MOST_CELLS} cells"),
        )
        .with_hint("remove levels, or split the study in two")),
    }
}

fn text(keys: &mut Keys, key: &str) -> Result<String, Fault> {
    keys.text(key).map(|found| found.map(|(text, _)| text).unwrap_or_default())
}

/// `[[lab]]`: what the lab shows functionally.
fn lab_rows(keys: &mut Keys) -> Result<Vec<LabRow>, Fault> {
    keys.tables("lab")?
        .into_iter()
        .map(|table| {
            let mut keys = Keys::new(table, "lab", &["case", "shows"])?;
            let (case, _) = keys.take_required("case")?.into_text("case")?;
            let (shows, _) = keys.take_required("shows")?.into_text("shows")?;
            Ok(LabRow { case, shows })
        })
        .collect()
}

fn study_name(keys: &mut Keys) -> Result<(String, usize), Fault> {
    let (name, at) = keys.take_required("name")?.into_text("name")?;
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        return Err(Fault::new(
            at,
            format!("name: {name:?} may contain only letters, digits and -"),
        ));
    }
    Ok((name, at))
}

fn truth(keys: &mut Keys, key: &str) -> Result<bool, Fault> {
    match keys.take(key) {
        None => Ok(false),
        Some(Toml { what: ValueKind::Truth(truth), .. }) => Ok(truth),
        Some(value) => Err(value.kind_fault(key, "true or false")),
    }
}

/// The keys that select, order and compare cells.
fn cells(keys: &mut Keys, study: &mut Study) -> Result<(), Fault> {
    study.together = factor_names(keys, "together", study)?;
    study.share = read_shared(keys, study)?;
    let constraints = keys.texts("constraints")?;
    study.constraints = constraints
        .into_iter()
        .map(|(text, at)| cell_rule(text, at, study, "constraints"))
        .collect::<Result<_, _>>()?;
    for table in keys.tables("skip")? {
        let mut keys = Keys::new(table, "skip", SKIP)?;
        let (when, at) = keys.take_required("when")?.into_text("when")?;
        let (reason, _) = keys.take_required("reason")?.into_text("reason")?;
        study.skips.push(Skip { when: cell_rule(when, at, study, "when")?, reason });
    }
    if let Some(table) = keys.take("baseline") {
        study.baseline = baseline(table, study)?;
    }
    Ok(())
}

/// The levels that others are compared with.
fn baseline(table: Toml, study: &Study) -> Result<BTreeMap<String, Level>, Fault> {
    let at = table.at;
    let ValueKind::Table(entries) = table.what else {
        return Err(table.kind_fault("baseline", "a table of factors and levels"));
    };
    let mut baseline = BTreeMap::new();
    for (name, at, value) in entries {
        let factor = study.factor(&name).ok_or_else(|| no_factor(&name, at, study))?;
        let level = level(&name, value)?;
        if !factor.levels.iter().any(|known| known.value == level.value) {
            return Err(no_level(factor, &level, at));
        }
        baseline.insert(name, level);
    }
    if baseline.is_empty() {
        return Err(Fault::new(at, "baseline: it names no factor".to_owned()));
    }
    Ok(baseline)
}

fn no_level(factor: &Factor, level: &Level, at: usize) -> Fault {
    let known: Vec<&str> = factor.levels.iter().map(|one| one.text.as_str()).collect();
    Fault::new(at, format!("{} has no level {:?}", factor.name, level.text))
        .with_hint(format!("its levels are {}", known.join(", ")))
}

fn no_factor(name: &str, at: usize, study: &Study) -> Fault {
    let known: Vec<&str> = study.factors.iter().map(|factor| factor.name.as_str()).collect();
    Fault::new(at, format!("there is no factor {name:?}"))
        .with_hint(format!("the factors are {}", known.join(", ")))
}

fn factor_names(keys: &mut Keys, key: &str, study: &Study) -> Result<Vec<String>, Fault> {
    let names = keys.texts(key)?;
    names
        .into_iter()
        .map(
            |(name, at)| {
                if study.is_factor_name(&name) {
                    Ok(name)
                } else {
                    Err(no_factor(&name, at, study))
                }
            },
        )
        .collect()
}

/// Factors of which one start can run several levels in sequence.
fn read_shared(keys: &mut Keys, study: &Study) -> Result<Vec<String>, Fault> {
    let sized = study
        .factors
        .iter()
        .any(|one| matches!(one.effect, FactorEffect::Cores | FactorEffect::Vcpus));
    let placed = study.factors.iter().any(|one| one.effect == FactorEffect::Strategy);
    let texts = keys.texts("share")?;
    texts
        .into_iter()
        .map(|(name, at)| {
            if !study.is_factor_name(&name) {
                return Err(no_factor(&name, at, study));
            }
            let can = study.factor(&name).is_none_or(|factor| match factor.effect {
                FactorEffect::Variable
                | FactorEffect::Speed
                | FactorEffect::HostLoad
                | FactorEffect::GuestLoad => true,
                FactorEffect::Threads => sized || !placed,
                FactorEffect::Strategy
                | FactorEffect::Cores
                | FactorEffect::Vcpus
                | FactorEffect::Method
                | FactorEffect::Variant
                | FactorEffect::Isa
                | FactorEffect::Accelerator
                | FactorEffect::MemoryNode
                | FactorEffect::Neighbour
                | FactorEffect::Neighbours
                | FactorEffect::NeighbourKind
                | FactorEffect::Emulator
                | FactorEffect::Machines
                | FactorEffect::OtherMachines
                | FactorEffect::PageTableLevels
                | FactorEffect::Tunable(_) => false,
            });
            if can {
                Ok(name)
            } else {
                Err(Fault::new(at, format!("share: each level of {name} needs a separate start"))
                    .with_hint(
                        "a start can share the workload, loads, speeds and variables of commands",
                    ))
            }
        })
        .collect()
}

/// An expression over the factors of a cell, the constants and the host.
fn cell_rule(text: String, at: usize, study: &Study, key: &str) -> Result<Rule, Fault> {
    let rule = rule(text, at, key)?;
    for (name, place) in rule.expr.names() {
        if !study.is_known_name(name) {
            return Err(unknown_name(key, name, at + 1 + place, study));
        }
    }
    if let Some((function, _, place)) = rule.expr.calls().first() {
        return Err(Fault::new(at + 1 + place, format!("{key}: there is no function {function}")));
    }
    Ok(rule)
}

fn unknown_name(key: &str, name: &str, at: usize, study: &Study) -> Fault {
    let mut known = vec!["workload"];
    known.extend(study.factors.iter().map(|factor| factor.name.as_str()));
    known.extend(study.values.keys().map(String::as_str));
    Fault::new(at, format!("{key}: there is no factor or value {name}")).with_hint(format!(
        "available: {} and {}; strings are written in quotes",
        known.join(", "),
        HOST_FACTS.join(", ")
    ))
}

/// An expression whose names are not checked.
fn rule(text: String, at: usize, key: &str) -> Result<Rule, Fault> {
    let expr = Expr::parse(&text).map_err(|error| expr_fault(key, at, &error))?;
    Ok(Rule { text, expr, at })
}

/// The position in a quoted text: the quote takes one character.
fn expr_fault(key: &str, at: usize, error: &ExprError) -> Fault {
    Fault::new(at + 1 + error.at, format!("{key}: {}", error.why))
}

fn factors(keys: &mut Keys) -> Result<Vec<Factor>, Fault> {
    let mut factors: Vec<Factor> = Vec::new();
    for table in keys.tables("factor")? {
        // The earlier name of the key.
        let table = table.with_key_renamed("knob", "tunable");
        let mut keys = Keys::new(table, "factor", FACTOR)?;
        let (name, at) = keys.take_required("name")?.into_text("name")?;
        check_name(&name, at)?;
        if factors.iter().any(|other| other.name == name) {
            return Err(Fault::new(at, format!("the factor {name:?} is given twice")));
        }
        let acts = match keys.text("tunable")? {
            Some((tunable, _)) => FactorEffect::Tunable(tunable),
            None => acts(&name),
        };
        let levels = levels(&name, &acts, keys.take_required("levels")?)?;
        factors.push(Factor { name, effect: acts, levels });
    }
    Ok(factors)
}

fn check_name(name: &str, at: usize) -> Result<(), Fault> {
    let starts = name.starts_with(|c: char| c.is_ascii_lowercase());
    if !starts || !name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_') {
        return Err(Fault::new(
            at,
            format!("name: {name:?} may contain only lowercase letters, digits and _"),
        )
        .with_hint("expressions use the name: write n_threads, not n-threads"));
    }
    let words = ["and", "or", "not", "in", "true", "false"];
    if words.contains(&name) || BUILT_IN.contains(&name) || HOST_FACTS.contains(&name) {
        return Err(Fault::new(at, format!("name: {name} means something else in expressions")));
    }
    Ok(())
}

fn acts(name: &str) -> FactorEffect {
    match name {
        "strategy" => FactorEffect::Strategy,
        "cores" => FactorEffect::Cores,
        "n_threads" => FactorEffect::Threads,
        "n_vcpu" => FactorEffect::Vcpus,
        "speed" => FactorEffect::Speed,
        "method" => FactorEffect::Method,
        "variant" => FactorEffect::Variant,
        "smt" => FactorEffect::Tunable("smt".to_owned()),
        "host_load" => FactorEffect::HostLoad,
        "guest_load" => FactorEffect::GuestLoad,
        "isa" => FactorEffect::Isa,
        "accelerator" => FactorEffect::Accelerator,
        "memory_node" => FactorEffect::MemoryNode,
        "neighbour" => FactorEffect::Neighbour,
        "neighbours" => FactorEffect::Neighbours,
        "neighbour_kind" => FactorEffect::NeighbourKind,
        "emulator" => FactorEffect::Emulator,
        "machines" => FactorEffect::Machines,
        "other_machines" => FactorEffect::OtherMachines,
        "page_table_levels" => FactorEffect::PageTableLevels,
        _ => FactorEffect::Variable,
    }
}

fn levels(name: &str, acts: &FactorEffect, value: Toml) -> Result<Vec<Level>, Fault> {
    let at = value.at;
    let ValueKind::List(items) = value.what else {
        return Err(value.kind_fault("levels", "a list"));
    };
    if items.is_empty() {
        return Err(Fault::new(at, format!("the factor {name} has no levels"))
            .with_hint("a factor without levels gives no cells: write at least one"));
    }
    let mut levels: Vec<Level> = Vec::new();
    for item in items {
        let at = item.at;
        let level = level(name, item)?;
        check_level(acts, &level, at)?;
        if levels.iter().any(|other| other.text == level.text || other.value == level.value) {
            return Err(Fault::new(at, format!("{name} has the level {:?} twice", level.text)));
        }
        levels.push(level);
    }
    Ok(levels)
}

fn level(name: &str, value: Toml) -> Result<Level, Fault> {
    let (text, read) = match &value.what {
        ValueKind::Text(text) => {
            let part = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
            let part = part.filter(|number| number.is_finite());
            let read = match part {
                Some(number) => Value::Number(number / 100.0),
                None => Value::Text(text.clone()),
            };
            (text.clone(), read)
        }
        ValueKind::Number(number) => {
            #[expect(clippy::cast_precision_loss, reason = "levels must be small numbers")]
            let read = *number as f64;
            (number.to_string(), Value::Number(read))
        }
        ValueKind::Fraction(text) => match text.parse::<f64>() {
            Ok(number) if number.is_finite() => (text.clone(), Value::Number(number)),
            Ok(_) | Err(_) => return Err(value.kind_fault(name, "a finite number")),
        },
        ValueKind::Truth(truth) => (truth.to_string(), Value::Truth(*truth)),
        ValueKind::List(_) | ValueKind::Table(_) | ValueKind::Date => {
            return Err(value.kind_fault(name, "a string, a number, true or false"));
        }
    };
    Ok(Level { text, value: read })
}

fn check_level(acts: &FactorEffect, level: &Level, at: usize) -> Result<(), Fault> {
    match acts {
        FactorEffect::Variable | FactorEffect::Tunable(_) => Ok(()),
        FactorEffect::Strategy => one_of(level, at, "strategy", &STRATEGY_NAMES),
        FactorEffect::Method => {
            let mut names = vec![NONE];
            names.extend(Method::ALL.map(Method::name));
            one_of(level, at, "method", &names)
        }
        FactorEffect::Variant => one_of(level, at, "variant", &Variant::ALL.map(Variant::name)),
        FactorEffect::Cores
        | FactorEffect::Threads
        | FactorEffect::Vcpus
        | FactorEffect::Neighbours
        | FactorEffect::Machines => require_count(1.0, at, level),
        FactorEffect::Speed => match level.number() {
            Some(number) if number > 0.0 && number <= 1.0 => Ok(()),
            Some(_) | None => {
                Err(Fault::new(at, format!("{} is not a speed above 0 and at most 1", level.text))
                    .with_hint("write a share such as 0.4 or \"40%\""))
            }
        },
        FactorEffect::HostLoad => one_of(level, at, "load", &["idle", "loaded"]),
        FactorEffect::GuestLoad => one_of(level, at, "load", &["idle", "loaded", "loaded-no-disk"]),
        FactorEffect::Isa => {
            let mut names = vec![NATIVE];
            names.extend(Isa::ALL.map(Isa::name));
            one_of(level, at, "instruction set", &names)
        }
        FactorEffect::Accelerator => {
            one_of(level, at, "accelerator", &[NATIVE, "kvm", "tcg", "tcg-single"])
        }
        FactorEffect::MemoryNode if matches!(level.text.as_str(), "any" | "near" | "far") => Ok(()),
        FactorEffect::MemoryNode => require_count(0.0, at, level),
        FactorEffect::Emulator => {
            one_of(level, at, "place of an emulator", &["usual", "real-time", "apart"])
        }
        FactorEffect::Neighbour => {
            one_of(level, at, "place of a neighbour", &[NONE, "same-node", "other-node"])
        }
        FactorEffect::NeighbourKind => one_of(level, at, "kind of neighbour", &["thread", GUEST]),
        FactorEffect::OtherMachines => {
            one_of(level, at, "load of a machine", &["loaded", SAME_PROGRAM])
        }
        FactorEffect::PageTableLevels => {
            one_of(level, at, "number of page-table levels", &[AS_IS, "4", "5"])
        }
    }
}

fn require_count(least: f64, at: usize, level: &Level) -> Result<(), Fault> {
    match level.number() {
        Some(number) if number >= least && number.fract() == 0.0 && number <= 1e6 => Ok(()),
        Some(_) | None => {
            Err(Fault::new(at, format!("{} is not a whole number of at least {least}", level.text)))
        }
    }
}

fn one_of(level: &Level, at: usize, what: &str, known: &[&str]) -> Result<(), Fault> {
    if known.contains(&level.text.as_str()) {
        Ok(())
    } else {
        Err(Fault::new(at, format!("there is no {what} {:?}", level.text))
            .with_hint(format!("available: {}", known.join(", "))))
    }
}

fn named_levels(table: Toml, key: &str) -> Result<BTreeMap<String, Level>, Fault> {
    let ValueKind::Table(entries) = table.what else {
        return Err(table.kind_fault(key, "a table of names and values"));
    };
    let mut named = BTreeMap::new();
    for (name, at, value) in entries {
        check_name(&name, at)?;
        named.insert(name.clone(), level(&name, value)?);
    }
    Ok(named)
}

fn pus(keys: &mut Keys) -> Result<Option<CpuSet>, Fault> {
    let Some((text, at)) = keys.text("pus")? else { return Ok(None) };
    let pus = CpuSet::parse_list(&text).map_err(|error| {
        Fault::new(at, format!("pus: {error}")).with_hint("write OS indexes, such as 0-3,8")
    })?;
    if pus.is_empty() {
        Err(Fault::new(at, "pus: the list is empty".to_owned()))
    } else {
        Ok(Some(pus))
    }
}

fn whole(keys: &mut Keys, key: &str, least: u32) -> Result<Option<u32>, Fault> {
    let Some(value) = keys.take(key) else { return Ok(None) };
    let count = value.count(key)?;
    if count < least || count > 1_000_000 {
        Err(value.kind_fault(key, &format!("a number from {least} to 1000000")))
    } else {
        Ok(Some(count))
    }
}

/// A share: `0.02` or `"2%"`.
fn share(keys: &mut Keys, key: &str) -> Result<Option<f64>, Fault> {
    let Some(value) = keys.take(key) else { return Ok(None) };
    let at = value.at;
    let level = level(key, value)?;
    match level.number() {
        Some(number) if number > 0.0 && number < 1.0 => Ok(Some(number)),
        Some(_) | None => {
            Err(Fault::new(at, format!("{key}: {} is not a share between 0 and 1", level.text))
                .with_hint("write 0.02 or \"2%\""))
        }
    }
}

fn time(keys: &mut Keys, key: &str) -> Result<Option<u64>, Fault> {
    let Some((text, at)) = keys.text(key)? else { return Ok(None) };
    match template::duration_ns(&text) {
        Some(ns) if ns > 0 => Ok(Some(ns)),
        Some(_) | None => Err(Fault::new(at, format!("{key}: {text:?} is not a time above zero"))
            .with_hint("write a time with its unit, such as 90s, 10min or 2h")),
    }
}

fn probes(keys: &mut Keys) -> Result<Vec<Probe>, Fault> {
    let names = keys.texts("probes")?;
    let found = names.into_iter().map(|(name, at)| {
        Probe::ALL.into_iter().find(|probe| probe.name() == name).ok_or_else(|| {
            let known = Probe::ALL.map(Probe::name).join(", ");
            Fault::new(at, format!("there is no probe {name:?}"))
                .with_hint(format!("available: {known}; other programs are workloads"))
        })
    });
    let found = found.collect::<Result<BTreeSet<Probe>, _>>()?;
    Ok(found.into_iter().collect())
}

fn summary(keys: &mut Keys) -> Result<Summary, Fault> {
    let known = [Summary::Median, Summary::Mean, Summary::MeanInterval];
    let Some((text, at)) = keys.text("summary")? else { return Ok(Summary::Median) };
    known.into_iter().find(|one| one.name() == text).ok_or_else(|| {
        Fault::new(at, format!("there is no summary {text:?}"))
            .with_hint(format!("available: {}", known.map(Summary::name).join(", ")))
    })
}

fn stop(table: Toml, study: &Study) -> Result<Stop, Fault> {
    let mut keys = Keys::new(table, "stop", STOP)?;
    let (figure, at) = keys.take_required("figure")?.into_text("figure")?;
    report::check_figure(&figure, at, study)?;
    let at_least = whole(&mut keys, "at-least", 2)?.unwrap_or(5);
    Ok(Stop { figure, half_width: share(&mut keys, "half-width")?.unwrap_or(0.02), at_least })
}
