//! Figures out of what a program prints.
//!
//! Nothing is believed: a program that prints nothing, a figure that is not there, a number that
//! is none or not finite is an error that names it and shows the beginning of the output.

use std::collections::BTreeMap;

use pinfold_model::Figure;
use serde_json::Value as Json;

use super::expr::{Expr, Scope, Value};
use super::file::{FigureRule, Source};
use crate::stats::median;

/// So much of an output is shown in an error.
const SHOWN: usize = 120;

/// Reads the figures of one run; each has one sample per place where it was found.
///
/// # Errors
/// In words, with the figure's name.
pub fn extract(
    rules: &[FigureRule],
    output: &str,
    duration_ns: u64,
) -> Result<Vec<Figure>, String> {
    if output.trim().is_empty() {
        return Err("it printed nothing".to_owned());
    }
    let mut documents = None;
    rules
        .iter()
        .map(|rule| {
            let samples = match &rule.source {
                Source::Regex(regex) => by_regex(regex, output)?,
                Source::Json(expr) => {
                    let documents = documents.get_or_insert_with(|| documents_of(output));
                    by_json(expr, documents, &rule.name)?
                }
            };
            if samples.is_empty() {
                return Err(format!(
                    "it printed no figure {}, but: {}",
                    rule.name,
                    beginning(output)
                ));
            }
            if let Some(sample) = samples.iter().find(|sample| !sample.is_finite()) {
                return Err(format!("the figure {} is {sample}", rule.name));
            }
            Ok(Figure {
                probe: rule.name.clone(),
                labels: BTreeMap::new(),
                unit: rule.unit,
                family: rule.family,
                cpu: None,
                duration_ns,
                samples,
                dropped: 0,
                disturbed: 0,
                flags: Vec::new(),
            })
        })
        .collect()
}

fn beginning(output: &str) -> String {
    let text = output.trim();
    match text.char_indices().nth(SHOWN) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?} …", &text[..end]),
    }
}

fn by_regex(regex: &regex_lite::Regex, output: &str) -> Result<Vec<f64>, String> {
    regex
        .captures_iter(output)
        .filter_map(|captures| captures.get(1))
        .map(|found| {
            let text = found.as_str().trim();
            text.parse().map_err(|_| format!("{text:?} stands where a number should"))
        })
        .collect()
}

/// The whole output as one document, or each of its lines that is one.
fn documents_of(output: &str) -> Vec<Json> {
    match serde_json::from_str(output) {
        Ok(document) => vec![document],
        Err(_) => output.lines().filter_map(|line| serde_json::from_str(line).ok()).collect(),
    }
}

fn by_json(expr: &Expr, documents: &[Json], figure: &str) -> Result<Vec<f64>, String> {
    let mut samples = Vec::new();
    for document in documents {
        if let Some(Json::Array(items)) = expr.as_name().and_then(|name| field(document, name)) {
            for item in items {
                samples
                    .push(item.as_f64().ok_or_else(|| format!("{figure}: {item} is no number"))?);
            }
            continue;
        }
        let scope = Document(document);
        if expr.names().iter().any(|(name, _)| scope.value(name).is_none()) {
            continue;
        }
        samples.push(expr.number(&scope).map_err(|error| format!("{figure}: {}", error.why))?);
    }
    Ok(samples)
}

/// `workers.0` is the first item of `workers`.
fn field<'d>(document: &'d Json, path: &str) -> Option<&'d Json> {
    path.split('.').try_fold(document, |inside, step| match inside {
        Json::Object(fields) => fields.get(step),
        Json::Array(items) => items.get(step.parse::<usize>().ok()?),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => None,
    })
}

/// `burst_ns.median` is the median of the list `burst_ns`; there are `mean`, `sum` and `count` too.
fn summary(document: &Json, path: &str) -> Option<Value> {
    let (path, what) = path.rsplit_once('.')?;
    let Json::Array(items) = field(document, path)? else { return None };
    let numbers: Vec<f64> = items.iter().map(Json::as_f64).collect::<Option<_>>()?;
    let (count, sum) = (numbers.len() as f64, numbers.iter().sum::<f64>());
    let number = match what {
        "median" => median(&numbers)?,
        "mean" => sum / count,
        "sum" => sum,
        "count" => count,
        _ => return None,
    };
    Some(Value::Number(number))
}

struct Document<'d>(&'d Json);

impl Scope for Document<'_> {
    fn value(&self, name: &str) -> Option<Value> {
        let Some(found) = field(self.0, name) else { return summary(self.0, name) };
        match found {
            Json::Number(number) => number.as_f64().map(Value::Number),
            Json::String(text) => Some(Value::Text(text.clone())),
            Json::Bool(truth) => Some(Value::Truth(*truth)),
            Json::Null | Json::Array(_) | Json::Object(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use pinfold_model::{Family, Unit};

    use super::*;

    fn rule(source: Source) -> FigureRule {
        FigureRule {
            name: "rate".to_owned(),
            unit: Unit::PerSecond,
            family: Family::Capacity,
            source,
        }
    }

    fn json(text: &str) -> FigureRule {
        rule(Source::Json(Expr::parse(text).unwrap()))
    }

    fn regex(text: &str) -> FigureRule {
        rule(Source::Regex(Box::new(regex_lite::Regex::new(text).unwrap())))
    }

    #[test]
    fn numbers_are_found() {
        let check = |rule: FigureRule, output: &str, expected: &[f64]| {
            let figures = extract(&[rule], output, 7).unwrap();
            assert_eq!((figures[0].samples.as_slice(), figures[0].duration_ns), (expected, 7));
        };
        check(json("units / elapsed_ns * 1e9"), r#"{"units":6,"elapsed_ns":2e9}"#, &[3.0]);
        check(json("a.b.1"), r#"{"a":{"b":[4,5]}}"#, &[5.0]);
        check(json("u / b.median + b.count"), r#"{"u":6,"b":[1,2,9]}"#, &[6.0]);
        check(json("windows"), "hello\n{\"windows\":[1,2]}\n{\"windows\":[3]}", &[1.0, 2.0, 3.0]);
        check(json("x"), "{\"y\":1}\n{\"x\":2}\nnot json", &[2.0]);
        check(regex(r"time: ([0-9.]+) s"), "time: 1.5 s, then time: 2 s", &[1.5, 2.0]);
    }

    #[test]
    fn what_is_not_there_is_named() {
        let check = |rule: FigureRule, output: &str, expected: &str| {
            assert_eq!(extract(&[rule], output, 0).unwrap_err(), expected);
        };
        check(json("x"), " \n", "it printed nothing");
        check(json("x"), "{\"y\":1}", "it printed no figure rate, but: \"{\\\"y\\\":1}\"");
        check(regex("t=([0-9a-zN]+)"), "t=NaN", "the figure rate is NaN");
        check(regex("t=(.*)"), "t=fast", "\"fast\" stands where a number should");
        check(json("x / y"), "{\"x\":1,\"y\":0}", "the figure rate is inf");
        check(json("x + 1"), "{\"x\":\"a\"}", "rate: a is a text, not a number");
        check(json("x"), "{\"x\":[1,\"b\"]}", "rate: \"b\" is no number");
        let long = "z".repeat(500);
        let shown = format!("it printed no figure rate, but: \"{}\" …", "z".repeat(120));
        check(json("x"), &long, &shown);
    }
}
