//! Databases of Open vSwitch.

use super::*;
use crate::owners::tests::{claims_of, found, host, status};

const PATH: &str = "/etc/openvswitch/conf.db";

/// A log with these records after its schema. The hash is not read.
fn log(records: &[&str]) -> String {
    let schema = r#"{"cksum":"4027775051 26386","name":"Open_vSwitch","tables":{"Open_vSwitch":{"columns":{"other_config":{"type":{"key":"string","value":"string","max":"unlimited","min":0}}}}},"version":"8.3.0"}"#;
    let lines = [schema].into_iter().chain(records.iter().copied());
    let hash = "3f0ba5e1d0c1a5e1f2d3c4b5a697887766554433";
    lines.map(|json| format!("OVSDB JSON {} {hash}\n{json}\n", json.len() + 1)).collect()
}

/// A record that sets `other_config` of the one row.
fn set(pairs: &str, is_diff: bool) -> String {
    let diff = if is_diff { r#""_is_diff":true,"# } else { "" };
    format!(
        r#"{{{diff}"_comment":"ovs-vsctl (invoked by root): ovs-vsctl set Open_vSwitch .","_date":1700000000000,"Open_vSwitch":{{"f5a0b9c8-0000-4d5e-8f7a-112233445566":{{"next_cfg":3,"other_config":["map",[{pairs}]]}}}}}}"#
    )
}

fn values(text: &str) -> Vec<String> {
    let Database { values, faults, damage } = parse(text);
    assert_eq!((damage, faults.len()), (None, 0), "{text}");
    values
        .into_iter()
        .map(|(key, setting)| format!("{key}={} ({})", setting.text, setting.line))
        .collect()
}

#[test]
fn later_records_replace_the_column() {
    let first = set(r#"["dpdk-init","true"],["pmd-cpu-mask","0x6"]"#, false);
    let second = set(r#"["dpdk-init","true"],["pmd-cpu-mask","0xc"]"#, false);
    assert_eq!(values(&log(&[&first])), ["dpdk-init=true (4)", "pmd-cpu-mask=0x6 (4)"]);
    assert_eq!(values(&log(&[&first, &second])), ["dpdk-init=true (6)", "pmd-cpu-mask=0xc (6)"]);
    let removed = r#"{"_date":1,"Open_vSwitch":{"f5a0b9c8-0000-4d5e-8f7a-112233445566":null}}"#;
    assert!(values(&log(&[&first, removed])).is_empty());
}

#[test]
fn differences_change_single_keys() {
    let first = set(r#"["dpdk-init","true"],["pmd-cpu-mask","0x6"]"#, true);
    let changed = set(r#"["pmd-cpu-mask","0xc"],["dpdk-lcore-mask","0x1"]"#, true);
    let removed = set(r#"["pmd-cpu-mask","0xc"]"#, true);
    let both = ["dpdk-init=true (4)", "dpdk-lcore-mask=0x1 (6)", "pmd-cpu-mask=0xc (6)"];
    assert_eq!(values(&log(&[&first, &changed])), both);
    assert_eq!(values(&log(&[&first, &changed, &removed])), both[..2]);
}

#[test]
fn masks_are_claims_with_their_line() {
    let record = set(r#"["dpdk-lcore-mask","1"],["pmd-cpu-mask","0x6"]"#, false);
    let claims = claims_of(&host(8, &[(PATH, log(&[&record]))]));
    let expected = ["Open vSwitch poll-mode threads 1-2 exclusive", "Open vSwitch lcores 0 shared"];
    assert_eq!(found(&claims), expected);
    let source = claims.all()[0].source.to_string();
    assert_eq!(source, format!("{PATH}, line 4: pmd-cpu-mask=0x6"));
}

#[test]
fn damaged_databases_and_masks_are_findings() {
    let record = set(r#"["pmd-cpu-mask","0x6"]"#, false);
    let whole = log(&[&record]);
    let one = ["Open vSwitch poll-mode threads 1-2 exclusive"];
    check(format!("{whole}OVSDB JSON 31 x\n{{\"Open_vSwitch\":{{\"other_config"), &one, "line 6");
    check(format!("{whole}OVSDB JSON 9 x\n"), &one, "no content");
    check(format!("{whole}garbage\n"), &one, "line 5");
    check("OVSDB CLUSTER 5 x\n{}\n".to_owned(), &[], "clustered");
    check(log(&[&record.replace("0x6", "0x66")]), &one, "5-6");
    check(log(&[&record.replace("0x6", "0xg")]), &[], "line 4: pmd-cpu-mask");
    let lcores = record.replace("pmd-cpu-mask", "dpdk-lcore-mask").replace("0x6", "lots");
    let why = "line 4: dpdk-lcore-mask: \"lots\" is not a hexadecimal mask of CPUs: \"s\": is not";
    check(log(&[&lcores]), &[], why);
    for empty in ["", "\n", "\n\n"] {
        check(empty.to_owned(), &[], "line 1: the file is empty");
    }
}

/// A record of the one row.
fn row(value: &str) -> String {
    format!(r#"{{"Open_vSwitch":{{"f5a0b9c8-0000-4d5e-8f7a-112233445566":{value}}}}}"#)
}

/// A record of the column of the one row.
fn column(value: &str) -> String {
    row(&format!(r#"{{"other_config":{value}}}"#))
}

#[test]
fn a_change_that_cannot_be_parsed_leaves_the_value_before() {
    let good = set(r#"["pmd-cpu-mask","0xc"]"#, false);
    let one = ["Open vSwitch poll-mode threads 2-3 exclusive"];
    let strange = [
        column(r#"["map",[["pmd-cpu-mask"],5,["pmd-cpu-mask",7]]]"#),
        column(r#"{"pmd-cpu-mask":"0x30"}"#),
        column(r#"["set",[]]"#),
        column(r#"["map"]"#),
        column("null"),
        row(r#"["other_config"]"#),
        r#"{"Open_vSwitch":"other_config"}"#.to_owned(),
    ];
    for record in &strange {
        check(log(&[&good, record]), &one, "line 6: ");
        // The records after it count.
        let text = log(&[&good, record, &set(r#"["pmd-cpu-mask","0x2"]"#, false)]);
        check(text, &["Open vSwitch poll-mode threads 1 exclusive"], "line 6: ");
    }
    let many = vec![strange[0].as_str(); 5_000];
    let claims = claims_of(&host(4, &[(PATH, log(&many))]));
    assert_eq!(claims.findings().len(), 11);
}

#[test]
fn a_record_of_another_length_ends_the_database() {
    let good = log(&[&set(r#"["pmd-cpu-mask","0xc"]"#, false)]);
    let next = log(&[&set(r#"["pmd-cpu-mask","0x1"]"#, false)]);
    let one = ["Open vSwitch poll-mode threads 2-3 exclusive"];
    for length in ["-5", "3", "100", "99999999999999999999", "", "x"] {
        let text = format!("{good}OVSDB JSON {length} aa\n{{\"Open_vSwitch\":{{}}}}\n{next}");
        check(text, &one, &format!("line 5: the record has a length of \"{length}\""));
    }
    // The end of the last line may be missing.
    assert_eq!(values(good.trim_end()), ["pmd-cpu-mask=0xc (4)"]);
}

fn check(text: String, expected: &[&str], part: &str) {
    let claims = claims_of(&host(4, &[(PATH, text.clone())]));
    assert_eq!(found(&claims), expected, "{text}");
    let finding = claims.findings()[0].to_string();
    assert!(finding.contains(PATH) && finding.contains(part), "{finding}");
}

#[test]
fn threads_show_their_cpus_without_a_database() {
    let files = [
        ("/proc/800/cmdline", "/usr/sbin/ovs-vswitchd\0--pidfile\0".to_owned()),
        ("/proc/800/task/800/status", status("ovs-vswitchd", 800, "0-7")),
        ("/proc/800/task/812/status", status("pmd-c02/id:8", 800, "2")),
        ("/proc/800/task/813/status", status("pmd-c05/id:9", 800, "5")),
        ("/proc/800/task/814/status", status("pmd-c06/id:x", 800, "6")),
    ];
    let claims = claims_of(&host(8, &files));
    assert_eq!(found(&claims), ["Open vSwitch poll-mode threads 2,5 exclusive"]);
}
