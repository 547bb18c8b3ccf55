//! The table of exits from known sums.

use std::collections::BTreeMap;

use pinfold_host::{Address, DurationStats, ExitKey, ExitSource, SnapshotHost, ThreadExits, paths};

use crate::watch::require_initial_namespace;

use super::*;
use crate::table::{Origin, Watched, report_missed, table};

fn sums(values: &[u64]) -> DurationStats {
    DurationStats {
        count: values.len() as u64,
        sum_ns: values.iter().sum(),
        shortest_ns: values.iter().copied().min().unwrap_or(u64::MAX),
        longest_ns: values.iter().copied().max().unwrap_or(0),
        squares: values.iter().map(|value| u128::from(*value).pow(2)).sum(),
    }
}

fn svm(reason: u64, is_mmio: bool) -> ExitKey {
    ExitKey { reason: 2 << 32 | reason, is_mmio, is_ipi: false }
}

fn watched(vcpu: u32, exits: &[(ExitKey, &[u64])]) -> Watched {
    let exits = exits.iter().map(|(key, values)| (*key, sums(values))).collect();
    let exits = ThreadExits {
        guest: sums(&[100, 300]),
        asleep: sums(&[]),
        preempted: sums(&[50]),
        exits,
        addresses: BTreeMap::from([((Address::Port(0x5a0), true), u64::from(vcpu) + 1)]),
        events: 10,
        ..ThreadExits::default()
    };
    Watched { vcpu, exits, has_ended: false }
}

/// Time of an observed thread with a single exit of 1 ns: all of it is in the rows.
const WHOLE_NS: u64 = 100 + 300 + 50 + 1;
const X86: Origin = Origin { source: ExitSource::Hardware, architecture: Some(Architecture::X86) };

fn row<'t>(vcpu: &'t Vcpu, name: &str) -> &'t Row {
    vcpu.rows.iter().find(|row| row.name == name).unwrap()
}

#[test]
fn rows_hold_what_craciun_has() {
    let threads = [
        watched(0, &[(svm(0x72, false), &[2, 4, 4, 4, 5, 5, 7, 9]), (svm(0x400, true), &[500])]),
        watched(1, &[(svm(0x72, false), &[40])]),
    ];
    let table = table(X86, 1_000, &threads);
    let cpuid = row(&table.vcpus[0], "cpuid");
    let times = cpuid.times.unwrap();
    assert_eq!((cpuid.count, times.shortest_ns, times.longest_ns, times.sum_ns), (8, 2, 9, 40));
    assert_eq!((times.mean_ns, times.share, cpuid.per_second), (5.0, 0.04, 8e6));
    // Σ(x − 5)² = 32, over n − 1 = 7.
    let deviation = times.deviation_ns.unwrap();
    assert!((deviation - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12, "{deviation}");
    let mmio = row(&table.vcpus[0], "npf (MMIO)");
    assert_eq!(mmio.times.unwrap().deviation_ns, None, "one sample has no deviation");
    assert_eq!(table.vcpus[0].rows[0].name, "npf (MMIO)", "the longest sum stands first");
    let all = row(&table.total, "cpuid").times.unwrap();
    assert_eq!((all.shortest_ns, all.longest_ns, all.sum_ns, all.share), (2, 40, 80, 0.04));
    assert_eq!((table.total.exits(), table.events), (10, Some(20)));
    assert_eq!(row(&table.total, "TIMEINGUEST").count, 4);
    assert_eq!(row(&table.total, "DESCHEDULED: preempted").count, 2);
    assert!(!table.total.rows.iter().any(|row| row.name.contains("asleep")), "no row of zeros");
    assert_eq!(table.addresses.len(), 1);
    assert_eq!((table.addresses[0].count, table.addresses[0].is_write), (3, true));
    // The vCPUs have 510 ns of 1,000 and 10 ns in no row.
    let reported: Vec<&str> = table.findings.iter().map(|found| found.text.as_str()).collect();
    assert!(
        reported.len() == 1 && reported[0].starts_with("26 % of the time is in no row"),
        "{reported:?}"
    );
    assert_eq!(table.cost_share(), None);
}

#[test]
fn what_is_less_than_whole_is_reported() {
    check(|thread| thread.exits.exits.clear(), "no exits occurred");
    check(|thread| thread.exits.guest = sums(&[400 - 46]), "10 % of the time is in no row");
    check(|thread| thread.exits.unpaired = 7, "7 events not counted");
    check(|thread| thread.exits.no_room = 5, "5 exits lost");
    check(|thread| thread.exits.no_address = 4, "4 accesses");
    check(|thread| thread.has_ended = true, "vCPU 3 ended");
}

fn check(change: fn(&mut Watched), part: &str) {
    let mut thread = watched(3, &[(svm(0x72, false), &[1])]);
    change(&mut thread);
    let table = table(X86, WHOLE_NS, &[thread]);
    let reported: Vec<&str> = table.findings.iter().map(|found| found.text.as_str()).collect();
    assert!(reported.len() == 1 && reported[0].contains(part), "{reported:?}");
}

#[test]
fn events_that_were_kept_from_the_programs_are_reported() {
    assert_eq!(report_missed(0), None);
    assert!(report_missed(3).unwrap().text.starts_with("3 events of the host"));
}

#[test]
fn that_risc_v_reports_no_addresses_is_reported() {
    let of = Origin { source: ExitSource::Hardware, architecture: Some(Architecture::RiscV) };
    let reported = |reason: u64| {
        let key = ExitKey { reason, is_mmio: false, is_ipi: false };
        let mut thread = watched(0, &[(key, &[1])]);
        thread.exits.addresses.clear();
        let findings = table(of, WHOLE_NS, &[thread]).findings;
        findings.into_iter().map(|found| found.text).collect::<Vec<_>>()
    };
    let said = reported(23);
    assert!(said.len() == 1 && said[0].contains("makes no event for them"), "{said:?}");
    assert!(reported(10).is_empty(), "a call is no access");
}

#[test]
fn an_empty_observation_has_no_numbers() {
    let nothing = Watched { vcpu: 0, exits: ThreadExits::default(), has_ended: false };
    let table = table(X86, 0, &[nothing]);
    assert!(table.total.rows.is_empty() && figures(&table).is_empty());
    assert_eq!(table.findings.len(), 1);
}

#[test]
fn figures_have_a_sample_for_each_number() {
    let table = table(X86, 1_000, &[watched(0, &[(svm(0x72, false), &[3])])]);
    let all = figures(&table);
    let of = |statistic: &str, vcpu: &str| {
        all.iter().find(|figure| {
            figure.labels["type"] == "cpuid"
                && figure.labels["statistic"] == statistic
                && figure.labels["vcpu"] == vcpu
        })
    };
    assert_eq!(of("count", "all").map(|figure| figure.samples.clone()), Some(vec![1.0]));
    assert_eq!(of("mean", "0").and_then(|figure| figure.cpu), Some(0));
    assert!(of("deviation", "all").is_none(), "one sample has no deviation");
    assert!(all.iter().all(|figure| figure.labels["level"] == "A"));
    let never = all.iter().filter(|figure| figure.labels["type"] == "DESCHEDULED: asleep");
    let never: Vec<(&str, f64)> = never
        .filter(|figure| figure.labels["vcpu"] == "all")
        .map(|figure| (figure.labels["statistic"].as_str(), figure.samples[0]))
        .collect();
    assert_eq!(never, [("count", 0.0), ("per-second", 0.0), ("share", 0.0)]);
}

#[test]
fn a_container_is_distinguished() {
    fn check(target: &str, is_container: bool) {
        let path = paths::own_pid_namespace();
        let text = format!("pinfold-capture 1\nlink {path} -> {target}\n");
        let host = SnapshotHost::parse(&text).unwrap();
        assert_eq!(require_initial_namespace(&host).is_err(), is_container, "{target}");
    }

    check("pid:[4026531836]", false);
    check("pid:[4026532000]", true);
}
