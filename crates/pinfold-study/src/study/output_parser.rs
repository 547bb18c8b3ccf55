//! Parses figures from the output of a program.
//!
//! All output is validated. An empty output, a missing figure, or a value that is not a finite
//! number is an error that names it and shows the beginning of the output.

use std::collections::BTreeMap;

use pinfold_model::{Family, Figure};
use pinfold_stats::{Mean, median};
use serde_json::Value as Json;

use super::expr::{Expr, Scope, Value};
use super::file::{FigureRule, Source, Stream};

/// Number of characters of the output that an error shows.
const SHOWN: usize = 120;

/// The output of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Output<'a> {
    /// Its standard output.
    pub stdout: &'a str,
    /// Its standard error.
    pub stderr: &'a str,
}

impl<'a> Output<'a> {
    fn of(self, stream: Stream) -> &'a str {
        match stream {
            Stream::Stdout => self.stdout,
            Stream::Stderr => self.stderr,
        }
    }

    /// The text of a stream.
    fn text(self, stream: Stream) -> Result<&'a str, String> {
        let text = self.of(stream);
        if !text.trim().is_empty() {
            return Ok(text);
        }
        let mut why = format!("it printed nothing to {}", stream.name());
        let others = Stream::ALL.into_iter().filter(|other| *other != stream);
        for other in others.filter(|other| !self.of(*other).trim().is_empty()) {
            why.push_str(&format!(
                ", but it printed to {} (set from = {:?} to read that): {}",
                other.name(),
                other.name(),
                beginning(self.of(other))
            ));
        }
        Err(why)
    }
}

/// The label for a path into a document: its last component.
pub(super) fn label_of(path: &str) -> &str {
    path.rsplit_once('.').map_or(path, |(_, last)| last)
}

/// Reads the figures of one run. Each has one sample per occurrence; a rule with labels gives one
/// figure for each combination of label values.
///
/// # Errors
/// A message with the name of the figure.
pub fn extract(
    rules: &[FigureRule],
    output: Output<'_>,
    duration_ns: u64,
) -> Result<Vec<Figure>, String> {
    let mut documents: BTreeMap<Stream, Vec<Json>> = BTreeMap::new();
    let mut figures = Vec::new();
    for rule in rules {
        let text = output.text(rule.from)?;
        let mut found: Vec<(BTreeMap<String, String>, Vec<f64>)> = Vec::new();
        match &rule.source {
            Source::Regex(regex) => found.push((BTreeMap::new(), by_regex(regex, text)?)),
            Source::Json(expr) => {
                let documents = documents.entry(rule.from).or_insert_with(|| documents_of(text));
                by_json(expr, rule, documents, &mut found)?;
            }
        }
        // A tail may be empty: nothing happened.
        found.retain(|(_, samples)| !samples.is_empty() || rule.family == Family::Tail);
        if found.is_empty() {
            return Err(format!(
                "it printed no figure {} to {}, but: {}",
                rule.name,
                rule.from.name(),
                beginning(text)
            ));
        }
        for (labels, samples) in found {
            if let Some(sample) = samples.iter().find(|sample| !sample.is_finite()) {
                return Err(format!("the figure {} is {sample}", rule.name));
            }
            figures.push(Figure {
                probe: rule.name.clone(),
                labels,
                unit: rule.unit,
                family: rule.family,
                cpu: None,
                duration_ns,
                samples,
                dropped: 0,
                disturbed: 0,
                flags: Vec::new(),
            });
        }
    }
    Ok(figures)
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
            text.parse().map_err(|_| format!("expected a number, but found {text:?}"))
        })
        .collect()
}

/// The whole output as one document, or each line that is a document.
fn documents_of(output: &str) -> Vec<Json> {
    match serde_json::from_str(output) {
        Ok(document) => vec![document],
        Err(_) => output.lines().filter_map(|line| serde_json::from_str(line).ok()).collect(),
    }
}

/// Adds the samples of each document to those with the same labels.
fn by_json(
    expr: &Expr,
    rule: &FigureRule,
    documents: &[Json],
    found: &mut Vec<(BTreeMap<String, String>, Vec<f64>)>,
) -> Result<(), String> {
    for document in documents {
        let scope = Document(document);
        if let Some(only) = &rule.only
            && !(has_values(&scope, only)
                && only.evaluate_bool(&scope).map_err(|error| explain(rule, &error.why))?)
        {
            continue;
        }
        let Some(labels) = labels(&rule.labels, &scope) else { continue };
        let mut samples = Vec::new();
        match expr.as_name().and_then(|name| field(document, name)) {
            Some(Json::Array(items)) => {
                for item in items {
                    let sample = item.as_f64();
                    samples.push(
                        sample.ok_or_else(|| explain(rule, &format!("{item} is not a number")))?,
                    );
                }
            }
            Some(_) | None if has_values(&scope, expr) => {
                samples.push(expr.number(&scope).map_err(|error| explain(rule, &error.why))?);
            }
            // The mean of an empty list has no value; a missing list is an error.
            Some(_) | None if expr.names().iter().all(|(name, _)| scope.has(name)) => {}
            Some(_) | None => continue,
        }
        match found.iter_mut().find(|(known, _)| *known == labels) {
            Some((_, all)) => all.extend(samples),
            None => found.push((labels, samples)),
        }
    }
    Ok(())
}

fn has_values(scope: &Document<'_>, expr: &Expr) -> bool {
    expr.names().iter().all(|(name, _)| scope.value(name).is_some())
}

fn explain(rule: &FigureRule, why: &dyn std::fmt::Display) -> String {
    format!("{}: {why}", rule.name)
}

/// The labels of a document; `None` if it lacks one of them.
fn labels(paths: &[String], scope: &Document<'_>) -> Option<BTreeMap<String, String>> {
    paths
        .iter()
        .map(|path| Some((label_of(path).to_owned(), scope.value(path)?.to_string())))
        .collect()
}

/// `workers.0` is the first item of `workers`.
fn field<'d>(document: &'d Json, path: &str) -> Option<&'d Json> {
    path.split('.').try_fold(document, |inside, step| match inside {
        Json::Object(fields) => fields.get(step),
        Json::Array(items) => items.get(step.parse::<usize>().ok()?),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => None,
    })
}

/// `burst_ns.median` is the median of the list `burst_ns`; `mean`, `deviation` (of the sample),
/// `min`, `max`, `sum` and `count` work likewise.
fn summary(document: &Json, path: &str) -> Option<Value> {
    let (path, what) = path.rsplit_once('.')?;
    let Json::Array(items) = field(document, path)? else { return None };
    let numbers: Vec<f64> = items.iter().map(Json::as_f64).collect::<Option<_>>()?;
    let (count, sum) = (numbers.len() as f64, numbers.iter().sum::<f64>());
    let number = match what {
        "median" => median(&numbers)?,
        "mean" => Mean::from_values(&numbers)?.mean,
        "sum" => sum,
        "count" => count,
        "min" => numbers.iter().copied().reduce(f64::min)?,
        "max" => numbers.iter().copied().reduce(f64::max)?,
        "deviation" => Mean::from_values(&numbers)?.deviation?,
        _ => return None,
    };
    Some(Value::Number(number))
}

struct Document<'d>(&'d Json);

impl Document<'_> {
    /// True for a field, and for a statistic of a list, even if the list is empty.
    fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
            || name.rsplit_once('.').is_some_and(|(path, _)| self.is_list(path))
    }

    fn is_list(&self, path: &str) -> bool {
        matches!(field(self.0, path), Some(Json::Array(_)))
    }
}

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
    use pinfold_model::Unit;

    use super::*;

    fn rule(source: Source) -> FigureRule {
        FigureRule {
            name: "rate".to_owned(),
            unit: Unit::PerSecond,
            family: Family::Capacity,
            from: Stream::Stdout,
            source,
            only: None,
            labels: Vec::new(),
        }
    }

    fn stdout(stdout: &str) -> Output<'_> {
        Output { stdout, ..Output::default() }
    }

    fn json(text: &str) -> FigureRule {
        rule(Source::Json(Expr::parse(text).unwrap()))
    }

    fn regex(text: &str) -> FigureRule {
        rule(Source::Regex(Box::new(regex_lite::Regex::new(text).unwrap())))
    }

    #[test]
    fn numbers_are_found() {
        check(json("units / elapsed_ns * 1e9"), r#"{"units":6,"elapsed_ns":2e9}"#, &[3.0]);
        check(json("a.b.1"), r#"{"a":{"b":[4,5]}}"#, &[5.0]);
        check(json("u / b.median + b.count"), r#"{"u":6,"b":[1,2,9]}"#, &[6.0]);
        check(json("windows"), "hello\n{\"windows\":[1,2]}\n{\"windows\":[3]}", &[1.0, 2.0, 3.0]);
        check(json("x"), "{\"y\":1}\n{\"x\":2}\nnot json", &[2.0]);
        check(json("a.min + a.max + a.deviation"), r#"{"a":[1,3,5]}"#, &[8.0]);
        check(regex(r"time: ([0-9.]+) s"), "time: 1.5 s, then time: 2 s", &[1.5, 2.0]);
    }

    fn check(rule: FigureRule, output: &str, expected: &[f64]) {
        let figures = extract(&[rule], stdout(output), 7).unwrap();
        assert_eq!((figures[0].samples.as_slice(), figures[0].duration_ns), (expected, 7));
    }

    #[test]
    fn a_tail_may_be_empty() {
        fn check(family: Family, text: &str, expected: Result<&[f64], &str>) {
            let rule = FigureRule { family, ..json(text) };
            let found = extract(&[rule], stdout("{\"samples\":[]}"), 0);
            let found = found.map(|figures| figures[0].samples.clone());
            assert_eq!(found, expected.map(<[f64]>::to_vec).map_err(str::to_owned), "{text}");
        }

        let nothing = "it printed no figure rate to stdout, but: \"{\\\"samples\\\":[]}\"";
        check(Family::Tail, "samples", Ok(&[]));
        check(Family::Tail, "samples.max", Ok(&[]));
        check(Family::Tail, "samples.sum", Ok(&[0.0]));
        check(Family::Tail, "sample.max", Err(nothing));
        check(Family::Capacity, "samples", Err(nothing));
        check(Family::Capacity, "samples.mean", Err(nothing));
    }

    #[test]
    fn documents_are_picked_and_distinguished() {
        let lines = concat!(
            "{\"of\":\"pass\",\"labels\":{\"bytes\":\"4096\",\"cpu\":1},\"samples\":[1,2]}\n",
            "{\"of\":\"other\",\"labels\":{\"bytes\":\"4096\",\"cpu\":1},\"samples\":[9]}\n",
            "{\"of\":\"pass\",\"labels\":{\"bytes\":\"8192\",\"cpu\":1},\"samples\":[3]}\n",
            "{\"of\":\"pass\",\"labels\":{\"bytes\":\"4096\",\"cpu\":2},\"samples\":[4]}\n",
            "{\"of\":\"pass\",\"labels\":{},\"samples\":[5]}\n",
        );
        let only = Some(Expr::parse("of == 'pass'").unwrap());
        let rule = FigureRule { only, labels: vec!["labels.bytes".to_owned()], ..json("samples") };
        let figures = extract(&[rule], stdout(lines), 7).unwrap();
        let found: Vec<(&str, &[f64])> = figures
            .iter()
            .map(|figure| (figure.labels["bytes"].as_str(), figure.samples.as_slice()))
            .collect();
        assert_eq!(found, [("4096", &[1.0, 2.0, 4.0][..]), ("8192", &[3.0])]);
        let only = Some(Expr::parse("of == 'nothing'").unwrap());
        let nothing =
            extract(&[FigureRule { only, ..json("samples") }], stdout(lines), 7).unwrap_err();
        assert!(nothing.starts_with("it printed no figure rate to stdout, but: "), "{nothing}");
    }

    #[test]
    fn what_is_not_there_is_named() {
        fn check(rule: FigureRule, output: &str, expected: &str) {
            assert_eq!(extract(&[rule], stdout(output), 0).unwrap_err(), expected);
        }

        check(json("x"), " \n", "it printed nothing to stdout");
        check(
            json("x"),
            "{\"y\":1}",
            "it printed no figure rate to stdout, but: \"{\\\"y\\\":1}\"",
        );
        check(regex("t=([0-9a-zN]+)"), "t=NaN", "the figure rate is NaN");
        check(regex("t=(.*)"), "t=fast", "expected a number, but found \"fast\"");
        check(json("x / y"), "{\"x\":1,\"y\":0}", "the figure rate is inf");
        check(json("x + 1"), "{\"x\":\"a\"}", "rate: a is a string, not a number");
        check(json("x"), "{\"x\":[1,\"b\"]}", "rate: \"b\" is not a number");
        let long = "z".repeat(500);
        let shown = format!("it printed no figure rate to stdout, but: \"{}\" …", "z".repeat(120));
        check(json("x"), &long, &shown);
    }

    #[test]
    fn each_figure_is_read_from_its_stream() {
        let output = Output { stdout: "{\"x\":1}", stderr: " 12 cycles\n" };
        let figures = extract(&[json("x"), from_stderr()], output, 0).unwrap();
        assert_eq!((figures[0].samples[0], figures[1].samples[0]), (1.0, 12.0));
        let silent = extract(&[from_stderr()], stdout("hello"), 0).unwrap_err();
        let expected = "it printed nothing to stderr, but it printed to stdout (set from = \"stdout\" to read that): \"hello\"";
        assert_eq!(silent, expected);
        let other = Output { stderr: "12 instructions", ..Output::default() };
        let other = extract(&[from_stderr()], other, 0).unwrap_err();
        assert_eq!(other, "it printed no figure rate to stderr, but: \"12 instructions\"");
    }

    fn from_stderr() -> FigureRule {
        FigureRule { from: Stream::Stderr, ..regex("([0-9]+) cycles") }
    }
}
