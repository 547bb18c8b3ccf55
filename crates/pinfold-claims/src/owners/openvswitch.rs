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

/// The last values of `other_config` of the table `Open_vSwitch`, by key.
///
/// What comes before a damaged record counts, as it does for ovsdb-server; the second value says
/// what is wrong with it, and in which line.
pub fn parse(text: &str) -> (BTreeMap<String, Setting>, Option<String>) {
    let mut rows: BTreeMap<String, BTreeMap<String, Setting>> = BTreeMap::new();
    let mut error = None;
    let mut lines = (1..).zip(text.lines());
    while let Some((line, head)) = lines.next() {
        if head.is_empty() {
            continue;
        }
        if head.starts_with("OVSDB CLUSTER") {
            error = Some(format!("line {line}: a clustered database, which Pinfold cannot read"));
            break;
        }
        if !head.starts_with("OVSDB JSON ") {
            error = Some(format!("line {line}: not an OVSDB record"));
            break;
        }
        let Some((line, body)) = lines.next() else {
            error = Some(format!("line {line}: the record has no content"));
            break;
        };
        // Records of other tables, which are most of a large log, need not be parsed.
        if !body.contains(COLUMN) || !body.contains(TABLE) {
            continue;
        }
        match serde_json::from_str::<Value>(body) {
            // The first record is the schema.
            Ok(record) if record.get("tables").is_some() => {}
            Ok(record) => apply(&record, line, &mut rows),
            Err(why) => {
                error = Some(format!("line {line}: {why}"));
                break;
            }
        }
    }
    (rows.into_values().flatten().collect(), error)
}

fn apply(record: &Value, line: u32, rows: &mut BTreeMap<String, BTreeMap<String, Setting>>) {
    let is_diff = record.get("_is_diff").and_then(Value::as_bool).unwrap_or(false);
    let Some(table) = record.get(TABLE).and_then(Value::as_object) else { return };
    for (uuid, row) in table {
        if row.is_null() {
            rows.remove(uuid);
            continue;
        }
        let Some(column) = row.get(COLUMN) else { continue };
        let is_new = !rows.contains_key(uuid);
        let values = rows.entry(uuid.clone()).or_default();
        let pairs = pairs(column);
        if !is_diff || is_new {
            *values = pairs
                .into_iter()
                .map(|(key, text)| (key.to_owned(), Setting { line, text: text.to_owned() }))
                .collect();
            continue;
        }
        for (key, text) in pairs {
            let is_removed = values.get(key).is_some_and(|known| known.text == text);
            if is_removed {
                values.remove(key);
            } else {
                values.insert(key.to_owned(), Setting { line, text: text.to_owned() });
            }
        }
    }
}

/// The pairs of a map of strings: `["map",[["key","value"]]]`.
fn pairs(column: &Value) -> Vec<(&str, &str)> {
    let is_map = column.get(0).and_then(Value::as_str) == Some("map");
    let pairs = column.get(1).filter(|_| is_map).and_then(Value::as_array);
    pairs
        .into_iter()
        .flatten()
        .filter_map(|pair| Some((pair.get(0)?.as_str()?, pair.get(1)?.as_str()?)))
        .collect()
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
        let (found, error) = parse(&text);
        if let Some(why) = error {
            context.refuse(
                claims,
                &Source::file(path, None),
                format!("{why}, so the rest of the file is unknown"),
            );
        }
        if !found.is_empty() {
            (values, file) = (found, path);
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
