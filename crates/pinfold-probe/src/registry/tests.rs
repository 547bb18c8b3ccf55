//! Tests of the registry.

use super::*;
use crate::benchmarks::IoTarget;

fn settings() -> Settings {
    Settings {
        duration_ns: 20_000_000,
        cpus: CpuSet::parse_list("0").unwrap(),
        policy: SchedPolicy::Other,
        period_us: None,
        duty_percent: None,
        keep_awake: false,
        target: None,
        more: Vec::new(),
    }
}

#[test]
fn names_are_unique_and_lead_to_jobs() {
    for (index, probe) in PROBES.iter().enumerate() {
        assert!(PROBES[..index].iter().all(|other| other.name != probe.name), "{}", probe.name);
        assert_eq!(find(probe.name).map(|found| found.name), Some(probe.name));
        assert!(probe.what.len() <= 62, "{}: too long for a line", probe.name);
        let target = probe.reads_a_file().then(|| IoTarget::File("/dev/null".to_owned()));
        let job = probe.job(&Settings { target, ..settings() }).unwrap();
        assert!(!job.argv().is_empty());
        if matches!(probe.make, Make::Instrument(..)) {
            assert!(matches!(job, Job::Instrument(_)));
        }
    }
    assert!(find("spin").is_none());
}

#[test]
fn what_a_probe_does_not_have_is_refused() {
    check("compute", Settings { period_us: Some(1), ..settings() }, "compute has no period");
    check("compute", Settings { keep_awake: true, ..settings() }, "does not keep CPUs awake");
    check("wakeup", Settings { duty_percent: Some(9), ..settings() }, "wakeup has no duty cycle");
    let target = Some(IoTarget::File("/x".to_owned()));
    check("wakeup", Settings { target, ..settings() }, "wakeup reads no file");
    check("io", settings(), "io needs a file");
    check("spin-gap", Settings { more: vec!["--x".to_owned()], ..settings() }, "\"--x\"");
    let policy = SchedPolicy::Fifo(3);
    check("micro-cpu", Settings { policy, ..settings() }, "only under the policy other");
}

fn check(name: &str, settings: Settings, expected: &str) {
    let reported = find(name).unwrap().job(&settings).unwrap_err().to_string();
    assert!(reported.contains(expected), "{reported}");
}

#[test]
fn a_wake_up_has_room_for_every_period() {
    assert_eq!(samples_of(10 * SECOND, 1_000), 11_000);
    assert_eq!(samples_of(1, 1_000), 1_000);
    assert_eq!(samples_of(u64::MAX, 1), 10_000_000);
}

#[test]
fn an_instrument_gets_the_options_that_it_has() {
    let settings = Settings {
        cpus: CpuSet::parse_list("1-3").unwrap(),
        more: vec!["--pages".to_owned(), "huge".to_owned()],
        ..settings()
    };
    let check = |name: &str, expected: &str| {
        assert_eq!(find(name).unwrap().job(&settings).unwrap().argv().join(" "), expected);
    };
    check("bandwidth", "bandwidth --pages huge --cpu 1");
    check("ipc-bandwidth", "ipc-bandwidth --pages huge --seconds 0.020000000 --cpus 1-2");
    check("context-switch", "switch --pages huge --seconds 0.020000000 --cpus 1-3 --policy other");
    let alone = Settings { more: Vec::new(), ..settings };
    assert_eq!(
        find("context-switch").unwrap().job(&alone).unwrap().argv().join(" "),
        "switch --processes 2,4,8,16,24,32,64,96 --kib 0,4 --seconds 0.020000000 --cpus 1-3 --policy other",
        "as its line in the list says"
    );
}
