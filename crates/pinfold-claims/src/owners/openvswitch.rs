//! Poll-mode threads of Open vSwitch, and the lcores of its DPDK.
//!
//! The configuration is in the database `conf.db`, a log of JSON transactions:
//!
//! ```text
//! OVSDB JSON 124 3f0ba5…
//! {"_date":1,"Open_vSwitch":{"7e9…":{"other_config":["map",[["pmd-cpu-mask","0x6"]]]}}}
//! ```
//! A later record replaces the columns of a row, or, with `"_is_diff":true` (Open vSwitch 2.16),
//! changes the keys of a map: one with the same value is removed, another is set. `null` removes
//! the row. <https://docs.openvswitch.org/en/latest/ref/ovsdb.5/>. If the database has no mask or
//! cannot be read, the names of the threads show their CPUs: `pmd-c02/id:8`.

use std::collections::BTreeMap;

use pinfold_model::CpuSet;
use serde_json::Value;

use crate::claim::{Claim, Exclusivity, Kind, Owner, OwnerCategory, Source};
use crate::claim_set::Claims;
use crate::context::Context;
use crate::programs::OPENVSWITCH;

/// Open vSwitch.
pub const KIND: Kind = Kind { name: "openvswitch", noun: "", sort: OwnerCategory::Program };

/// What is read.
pub const READS: &str = "conf.db of Open vSwitch, threads of ovs-vswitchd";

const FILES: [&str; 2] = ["/var/lib/openvswitch/conf.db", "/etc/openvswitch/conf.db"];
const TABLE: &str = "Open_vSwitch";
const COLUMN: &str = "other_config";

/// Maximum number of characters of a value in a finding.
const LONGEST_SNIPPET: usize = 80;

/// The masks, with the owner and how the CPUs are used.
const MASKS: [(&str, &str, Exclusivity); 2] = [
    ("pmd-cpu-mask", "Open vSwitch poll-mode threads", Exclusivity::Exclusive),
    ("dpdk-lcore-mask", "Open vSwitch lcores", Exclusivity::Shared),
];

/// A value of `other_config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The line of the record that set it.
    pub line: u32,
    /// The value.
    pub text: String,
}

/// What the database says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Database {
    /// The last values of `other_config` of the table `Open_vSwitch`, by key.
    pub values: BTreeMap<String, Setting>,
    /// A sentence with the line for each change that cannot be parsed; what was set before stays.
    pub faults: Vec<String>,
    /// What is wrong with the first damaged record, and its line. What comes before it counts, as
    /// it does for ovsdb-server; the rest is not read.
    pub damage: Option<String>,
}

/// The rows of the table by their UUIDs, and what could not be parsed.
#[derive(Default)]
struct Rows {
    values: BTreeMap<String, BTreeMap<String, Setting>>,
    faults: Vec<String>,
}

/// Parses the database.
#[must_use]
pub fn parse(text: &str) -> Database {
    let mut rows = Rows::default();
    let damage = read_records(text, &mut rows).err();
    let Rows { values, faults } = rows;
    Database { values: values.into_values().flatten().collect(), faults, damage }
}

/// Applies the records up to the first damaged one, which is an error with its line.
fn read_records(text: &str, rows: &mut Rows) -> Result<(), String> {
    let mut lines = (1..).zip(text.split('\n')).filter(|(_, text)| !text.is_empty()).peekable();
    if lines.peek().is_none() {
        return Err("line 1: the file is empty".to_owned());
    }
    while let Some((line, head)) = lines.next() {
        if head.starts_with("OVSDB CLUSTER") {
            return Err(format!("line {line}: a clustered database, which Pinfold cannot read"));
        }
        let Some(rest) = head.strip_prefix("OVSDB JSON ") else {
            return Err(format!("line {line}: not an OVSDB record"));
        };
        let length = rest.split(' ').next().unwrap_or_default();
        let Some((body_line, body)) = lines.next() else {
            return Err(format!("line {line}: the record has no content"));
        };
        // It counts the end of the line too.
        let found = body.len() + 1;
        if length.parse() != Ok(found) {
            let length: String = length.chars().take(LONGEST_SNIPPET).collect();
            return Err(format!(
                "line {line}: the record has a length of {length:?}, but its line has {found} bytes"
            ));
        }
        // Records of other tables, which are most of a large log, need not be parsed. A removed row
        // is null.
        if !body.contains(TABLE) || !(body.contains(COLUMN) || body.contains("null")) {
            continue;
        }
        match serde_json::from_str::<Value>(body) {
            // The first record is the schema.
            Ok(record) if record.get("tables").is_some() => {}
            Ok(record) => rows.apply(&record, body_line),
            Err(why) => return Err(format!("line {body_line}: {why}")),
        }
    }
    Ok(())
}

impl Rows {
    /// Applies one record.
    fn apply(&mut self, record: &Value, line: u32) {
        let is_diff = record.get("_is_diff").and_then(Value::as_bool).unwrap_or(false);
        let Some(table) = record.get(TABLE) else { return };
        let Some(table) = table.as_object() else {
            return self.refuse(line, TABLE, "an object of rows", table);
        };
        for (uuid, row) in table {
            match row {
                Value::Null => {
                    self.values.remove(uuid);
                }
                Value::Object(columns) => {
                    let Some(column) = columns.get(COLUMN) else { continue };
                    match pairs(column) {
                        Some(pairs) => self.set(uuid, &pairs, is_diff, line),
                        None => self.refuse(line, COLUMN, "a map of strings", column),
                    }
                }
                Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                    self.refuse(line, "a row of Open_vSwitch", "an object", row);
                }
            }
        }
    }

    /// Replaces or changes the values of a row.
    fn set(&mut self, uuid: &str, pairs: &[Pair<'_>], is_diff: bool, line: u32) {
        let is_new = !self.values.contains_key(uuid);
        let values = self.values.entry(uuid.to_owned()).or_default();
        if !is_diff || is_new {
            values.clear();
        }
        for Pair { key, text } in pairs {
            let is_removed = is_diff && values.get(*key).is_some_and(|known| known.text == *text);
            if is_removed {
                values.remove(*key);
            } else {
                values.insert((*key).to_owned(), Setting { line, text: (*text).to_owned() });
            }
        }
    }

    fn refuse(&mut self, line: u32, what: &str, expected: &str, value: &Value) {
        let value = value.to_string();
        let mut short: String = value.chars().take(LONGEST_SNIPPET).collect();
        if short.len() < value.len() {
            short.push('…');
        }
        self.faults.push(format!(
            "line {line}: {what} is not {expected}, so what was set before it stays: {short}"
        ));
    }
}

/// A key of a map and its value.
struct Pair<'v> {
    key: &'v str,
    text: &'v str,
}

/// The pairs of a map of strings: `["map",[["key","value"]]]`; `None` for anything else.
fn pairs(column: &Value) -> Option<Vec<Pair<'_>>> {
    let [kind, pairs] = column.as_array()?.as_slice() else { return None };
    let pairs = pairs.as_array().filter(|_| kind == "map")?;
    let parsed = pairs.iter().map(|pair| match pair.as_array()?.as_slice() {
        [key, text] => Some(Pair { key: key.as_str()?, text: text.as_str()? }),
        _ => None,
    });
    parsed.collect()
}

/// The CPU of a poll-mode thread by its name, which the thread's mask must confirm.
#[must_use]
pub fn cpu_of_thread(name: &str) -> Option<u32> {
    let (cpu, id) = name.strip_prefix("pmd-c")?.split_once("/id:")?;
    id.parse::<u32>().ok()?;
    cpu.parse().ok()
}

/// Adds the CPUs of Open vSwitch.
pub fn read(context: &Context<'_>, claims: &mut Claims) {
    let mut values = BTreeMap::new();
    let mut file = FILES[0];
    for path in FILES {
        // One of both is often a link to the other.
        let target = context.host.link(path).unwrap_or_default();
        if FILES.contains(&target.as_str()) {
            continue;
        }
        let Some(text) = context.text(path, claims) else { continue };
        let database = parse(&text);
        let source = Source::file(path, None);
        context.refuse_all(claims, &source, &database.faults);
        if let Some(why) = database.damage {
            context.refuse(claims, &source, format!("{why}, so the rest of the file is unknown"));
        }
        if !database.values.is_empty() {
            (values, file) = (database.values, path);
            break;
        }
    }
    for (key, name, exclusivity) in MASKS {
        let Some(Setting { line, text }) = values.get(key) else { continue };
        let source = Source::file(file, Some(*line)).with_value(format!("{key}={text}"));
        match CpuSet::parse_mask(text) {
            Ok(cpus) => {
                let owner = Owner::new(&KIND, name);
                // The file stays when the program is stopped.
                let active = context.runs(&[OPENVSWITCH]);
                let claim = Claim::new(&owner, cpus, exclusivity, &source);
                context.add(claims, Claim { active, ..claim });
            }
            Err(error) => context.refuse(claims, &source, format!("{key}: {error}")),
        }
    }
    if !values.contains_key(MASKS[0].0) {
        add_threads(context, claims);
    }
}

/// Adds the CPUs of poll-mode threads by their names and masks.
fn add_threads(context: &Context<'_>, claims: &mut Claims) {
    for process in context.processes().iter().filter(|process| process.program == OPENVSWITCH) {
        let mut cpus = CpuSet::new();
        for thread in process.threads(context.host) {
            if cpu_of_thread(&thread.name).is_some() && thread.cpus.len() == 1 {
                cpus.add(&thread.cpus);
            }
        }
        let owner = Owner::new(&KIND, MASKS[0].1).of_process(process.pid);
        claims.add(&owner, cpus, Exclusivity::Exclusive, &Source::process(process.pid));
    }
}

#[cfg(test)]
mod tests;
