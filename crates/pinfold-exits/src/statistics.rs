//! Level C: KVM's own counters, as reported by QEMU's `query-stats`.
//!
//! ```text
//! {"return": [{"provider": "kvm", "qom-path": "/machine/unattached/device[0]",
//!              "stats": [{"name": "exits", "value": 4711}, {"name": "io_exits", "value": 12},
//!                        {"name": "halt_poll_success_hist", "value": [1, 2]}]}]}
//! ```
//!
//! Counters start at the creation of the machine, so two readings give the counts in between.
//! Counters with `exit` in their name are used; `exits` is the total.
//! <https://www.qemu.org/docs/master/interop/qemu-qmp-ref.html>, `query-stats`.

use std::collections::BTreeMap;

use pinfold_model::Finding;
use serde_json::Value;

use crate::error::ExitsError;
use crate::level::Level;
use crate::table::{ExitTable, Kind, Row, Vcpu};

/// The counter of all exits.
const ALL: &str = "exits";

/// The counters of each vCPU, in the order of the reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    vcpus: Vec<BTreeMap<String, u64>>,
}

impl Statistics {
    /// Parses a reply to `query-stats` with the target `vcpu`.
    ///
    /// # Errors
    /// [`ExitsError::Statistics`] if the format differs or there is no counter of exits.
    pub fn parse(reply: &Value) -> Result<Self, ExitsError> {
        let list = reply.as_array().ok_or_else(|| wrong("the reply is not a list"))?;
        let of_kvm = list.iter().filter(|entry| entry["provider"] == "kvm");
        let mut vcpus = Vec::new();
        for entry in of_kvm {
            let stats = entry["stats"].as_array().ok_or_else(|| wrong("a vCPU has no list"))?;
            let counters: BTreeMap<String, u64> = stats
                .iter()
                .filter_map(|stat| {
                    let name = stat["name"].as_str().filter(|name| name.contains("exit"))?;
                    Some((name.to_owned(), stat["value"].as_u64()?))
                })
                .collect();
            if !counters.contains_key(ALL) {
                return Err(wrong("a vCPU has no counter named exits"));
            }
            vcpus.push(counters);
        }
        if vcpus.is_empty() { Err(wrong("it reports no vCPU of KVM")) } else { Ok(Self { vcpus }) }
    }
}

fn wrong(why: &str) -> ExitsError {
    ExitsError::Statistics { why: why.to_owned() }
}

/// The table of the counts between two readings, `duration_ns` apart.
///
/// # Errors
/// [`ExitsError::Statistics`] if the vCPUs differ, or a counter decreased.
pub fn table_between(
    before: &Statistics,
    after: &Statistics,
    duration_ns: u64,
) -> Result<ExitTable, ExitsError> {
    fn wrong(why: String) -> ExitsError {
        ExitsError::Statistics { why }
    }

    if before.vcpus.len() != after.vcpus.len() {
        let (old, new) = (before.vcpus.len(), after.vcpus.len());
        return Err(wrong(format!("the number of vCPUs changed from {old} to {new}")));
    }
    let mut vcpus = Vec::new();
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for (index, (old, new)) in before.vcpus.iter().zip(&after.vcpus).enumerate() {
        let mut counts = BTreeMap::new();
        for (name, value) in new {
            let since = value.checked_sub(old.get(name).copied().unwrap_or(0));
            let since = since.ok_or_else(|| wrong(format!("{name} of vCPU {index} decreased")))?;
            counts.insert(name.clone(), since);
            let sum = sums.entry(name.clone()).or_default();
            *sum = sum.saturating_add(since);
        }
        vcpus.push(Vcpu { vcpu: u32::try_from(index).ok(), rows: rows(&counts, duration_ns) });
    }
    let time = duration_ns.saturating_mul(vcpus.len() as u64);
    let total = Vcpu { vcpu: None, rows: rows(&sums, time) };
    let mut findings = Vec::new();
    if sums.get(ALL).is_none_or(|count| *count == 0) {
        let text = "no exits occurred during the observation";
        findings.push(Finding::warning("exits", text).with_hint(
            "an idle or stopped guest causes none: give it work, or observe longer (--seconds)",
        ));
    }
    Ok(ExitTable {
        level: Level::C,
        duration_ns,
        total,
        vcpus,
        addresses: Vec::new(),
        events: None,
        cost: None,
        findings,
    })
}

/// Counters overlap (an exit can be in several), so the total is the first row, and the others
/// follow by count.
fn rows(counts: &BTreeMap<String, u64>, time_ns: u64) -> Vec<Row> {
    let seconds = time_ns as f64 / 1e9;
    let mut rows: Vec<Row> = counts
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(name, count)| Row {
            name: if name == ALL { "all exits".to_owned() } else { name.clone() },
            kind: Kind::Exit,
            count: *count,
            per_second: if seconds > 0.0 { *count as f64 / seconds } else { 0.0 },
            times: None,
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse((row.name == "all exits", row.count)));
    rows
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reply(exits: &[u64]) -> Value {
        Value::Array(exits.iter().map(|count| {
            json!({"provider": "kvm", "qom-path": "/machine/unattached/device[0]", "stats": [
                {"name": "exits", "value": count},
                {"name": "io_exits", "value": count / 2},
                {"name": "halt_exits", "value": 3},
                {"name": "pf_taken", "value": 99},
                {"name": "halt_poll_success_hist", "value": [1, 2]},
            ]})
        }).collect())
    }

    #[test]
    fn two_looks_give_counts() {
        fn rows(vcpu: &Vcpu) -> Vec<(String, u64, f64)> {
            vcpu.rows.iter().map(|row| (row.name.clone(), row.count, row.per_second)).collect()
        }

        let table = table_between(&look(&[100, 10]), &look(&[300, 10]), 2_000_000_000).unwrap();
        assert_eq!(
            rows(&table.vcpus[0]),
            [("all exits".to_owned(), 200, 100.0), ("io_exits".to_owned(), 100, 50.0)]
        );
        assert!(table.vcpus[1].rows.is_empty(), "nothing is not a row of zeros");
        assert_eq!(rows(&table.total)[0], ("all exits".to_owned(), 200, 50.0));
        assert!(table.total.rows.iter().all(|row| row.times.is_none()));
        assert_eq!((table.level, table.findings.len()), (Level::C, 0));
        let nothing = table_between(&look(&[5]), &look(&[5]), 1).unwrap();
        assert!(nothing.findings[0].text.contains("no exit"), "{nothing:?}");
    }

    fn look(exits: &[u64]) -> crate::statistics::Statistics {
        Statistics::parse(&reply(exits)).unwrap()
    }

    #[test]
    fn odd_replies_are_refused() {
        check(json!({}), "not a list");
        check(json!([]), "no vCPU");
        check(json!([{"provider": "cryptodev", "stats": []}]), "no vCPU");
        check(json!([{"provider": "kvm"}]), "no list");
        check(
            json!([{"provider": "kvm", "stats": [{"name": "io_exits", "value": 1}]}]),
            "named exits",
        );
        let error = table_between(&look(&[9]), &look(&[8]), 1).unwrap_err();
        assert!(error.to_string().contains("decreased"), "{error}");
        let error = table_between(&look(&[9]), &look(&[9, 9]), 1).unwrap_err();
        assert!(error.to_string().contains("changed from 1 to 2"), "{error}");
    }

    fn check(reply: Value, why: &str) {
        let error = Statistics::parse(&reply).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}
