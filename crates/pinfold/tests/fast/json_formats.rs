//! `docs/json.md` has every format of the product, and every key of what the program prints.

use std::collections::BTreeSet;

use crate::common::{Checked as _, ROOT, Sandbox, pinfold};
use pinfold_host::files;
use serde_json::Value;

/// Keys whose objects have CPUs or parameters as keys.
const MAPS: [&str; 4] = ["core_ranking", "described", "highest_khz", "labels"];
/// Commands whose output is known or small on every host; `DIR` is a directory of the test's own.
const COMMANDS: [&str; 17] = [
    "version --json",
    "topo --json --input example:ryzen-7950x3d",
    "topo --json",
    "doctor --json",
    "advise --vcpus 1 --json",
    "claims --json --seconds 0",
    "claims --json --input ../../docs/examples/several-machines.capture",
    "plan --list --json",
    "plan --vcpus 2 -s low-latency-rt --isolate host --input example:ryzen-7950x3d --json",
    "plan --check example:windows-gpu --input example:ryzen-7950x3d --json",
    "--state-dir DIR status --json",
    "--state-dir DIR journal --json",
    "--state-dir DIR emulate status --json",
    "emulate methods --json",
    "measure --list --json",
    "measure wakeup --seconds 0.1 --blocks 2 --save DIR/a.json --json",
    "compare DIR/a.json DIR/a.json --json",
];

fn page() -> String {
    files::read_text(&format!("{ROOT}/docs/json.md")).expect("the page")
}

/// True for the name of a format with its version: `pinfold-plan/1`.
fn is_format(text: &str) -> bool {
    let parts = text.strip_prefix("pinfold-").and_then(|rest| rest.split_once('/'));
    let Some((name, version)) = parts else { return false };
    !version.is_empty()
        && name.chars().all(|c| c.is_ascii_lowercase() || c == '-')
        && version.chars().all(|c| c.is_ascii_digit())
}

/// The formats between two such characters.
fn formats(text: &str, quote: char) -> impl Iterator<Item = String> {
    text.split(quote).filter(|part| is_format(part)).map(str::to_owned)
}

/// A source of the product, without its tests.
struct Source {
    path: String,
    text: String,
}

/// Adds the sources below a folder.
fn add_sources_below(folder: &str, found: &mut Vec<Source>) {
    for name in files::list(folder).expect("a folder") {
        let path = format!("{folder}/{name}");
        if files::is_dir(&path) && name != "tests" {
            add_sources_below(&path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            let text = files::read_text(&path).expect("text");
            let text = text.split("\nmod tests {").next().expect("a first part").to_owned();
            found.push(Source { path, text });
        }
    }
}

/// The sources of all crates.
fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    for name in files::list(&format!("{ROOT}/crates")).expect("the crates") {
        add_sources_below(&format!("{ROOT}/crates/{name}/src"), &mut found);
    }
    found
}

/// The keys that a source writes: fields of its types with `Serialize`, keys in `json!`.
fn keys_of_source(text: &str) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let (mut is_written, mut is_type, mut attribute) = (false, false, "");
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
        let words = line.strip_prefix("pub ").or_else(|| line.split_once(") ").map(|two| two.1));
        let words = words.unwrap_or(line);
        if line.starts_with("#[derive(") {
            is_written = line.contains("Serialize");
        } else if line.starts_with("#[serde(") {
            attribute = line;
        } else if words.starts_with("struct ") {
            is_type = is_written && line.ends_with('{');
        } else if line == "}" {
            (is_written, is_type) = (false, false);
        } else if let Some((field, _)) = words.split_once(": ").filter(|_| is_type) {
            let renamed =
                attribute.split_once("rename = \"").and_then(|two| two.1.split('"').next());
            let key = renamed.unwrap_or(field.trim_start_matches("r#"));
            keys.extend((!attribute.contains("flatten")).then(|| key.to_owned()));
            attribute = "";
        }
        let quoted: Vec<&str> = line.split('"').skip(1).collect();
        let pairs = quoted.windows(2).step_by(2).filter(|pair| pair[1].starts_with(": "));
        keys.extend(pairs.map(|pair| pair[0].to_owned()));
    }
    keys
}

/// The part of the page below the heading of a format.
fn section<'p>(page: &'p str, format: &str) -> &'p str {
    let (_, rest) = page.split_once(&format!("\n### {format}\n")).expect("a heading of the format");
    rest.split("\n##").next().expect("a first part")
}

/// The words between backticks: keys, and parts of paths of keys.
fn keys_of_page(text: &str) -> impl Iterator<Item = &str> {
    let spans = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    spans.flat_map(|span| span.split(|c: char| !(c.is_ascii_alphanumeric() || "_-".contains(c))))
}

/// The keys of a document, and the documents within it, which have formats of their own.
#[derive(Default)]
struct Keys<'v> {
    keys: BTreeSet<&'v str>,
    inner: Vec<&'v Value>,
}

impl<'v> Keys<'v> {
    fn add(&mut self, value: &'v Value) {
        match value {
            Value::Object(members) => {
                for (key, member) in members {
                    self.keys.insert(key);
                    if member.get("format").is_some() {
                        self.inner.push(member);
                    } else if !MAPS.contains(&key.as_str()) {
                        self.add(member);
                    }
                }
            }
            Value::Array(members) => members.iter().for_each(|member| self.add(member)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

/// Compares a document, and those within it, with the page.
fn check(page: &str, document: &Value, command: &str) {
    let format = document["format"].as_str().expect("a format");
    let (_, shared) = page.split_once("\n## Shared objects\n").expect("shared objects");
    let shared = shared.split("\n## ").next().expect("a first part");
    let known = keys_of_page(shared).chain(keys_of_page(section(page, format)));
    let known: BTreeSet<&str> = known.chain(["format"]).collect();
    let mut printed = Keys::default();
    printed.add(document);
    let missing: Vec<&&str> = printed.keys.difference(&known).collect();
    assert!(missing.is_empty(), "{command}: docs/json.md does not have {missing:?} of {format}");
    printed.inner.iter().for_each(|inner| check(page, inner, command));
}

#[test]
fn the_page_has_the_formats_of_the_product() {
    let sources = sources();
    let product = sources.iter().flat_map(|source| formats(&source.text, '"'));
    let product: BTreeSet<String> = product.collect();
    let page = page();
    let documented: BTreeSet<String> = formats(&page, '`').collect();
    assert_eq!(product, documented, "left: crates/*/src, right: docs/json.md");
    let (_, table) = page.split_once("\n## All formats\n").expect("the table");
    let table: BTreeSet<String> =
        formats(table.split("\n## ").next().expect("a first part"), '`').collect();
    let headings = page.lines().filter_map(|line| line.strip_prefix("### "));
    let headings: BTreeSet<String> = headings.map(str::to_owned).collect();
    assert_eq!(table, headings, "left: table of docs/json.md, right: its sections");
}

#[test]
fn the_page_has_the_keys_that_the_program_prints() {
    let (page, home) = (page(), Sandbox::new());
    for command in COMMANDS {
        let line = command.replace("DIR", &home.root());
        let output = pinfold(line.split(' '));
        assert!(!output.stdout.is_empty(), "{command}: {}", output.stderr_text());
        let document = output.json();
        check(&page, &document, command);
    }
}

#[test]
fn the_page_has_the_keys_that_the_sources_write() {
    let page = page();
    let (_, shared) = page.split_once("\n## Shared objects\n").expect("shared objects");
    let shared = shared.split("\n## ").next().expect("a first part");
    let (mut count, mut missing) = (0, Vec::new());
    for Source { path, text } in sources() {
        // Earlier versions are read, not written.
        let formats = formats(&text, '"').filter(|one| page.contains(&format!("\n### {one}\n")));
        let formats: BTreeSet<String> = formats.collect();
        let sections = formats.iter().map(|format| section(&page, format));
        let known = sections.chain([shared]).flat_map(keys_of_page).chain(["format"]);
        let known: BTreeSet<&str> = known.collect();
        let keys = keys_of_source(&text);
        if !formats.is_empty() {
            let unknown = keys.iter().filter(|key| !known.contains(key.as_str()));
            missing.extend(unknown.map(|key| format!("{path}: {key} of {formats:?}")));
            count += keys.len();
        }
    }
    assert!(missing.is_empty(), "docs/json.md does not have {missing:#?}");
    assert!(count > 200, "only {count} keys were found");
}
