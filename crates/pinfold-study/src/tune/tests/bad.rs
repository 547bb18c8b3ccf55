//! Bad input and failures: a failed start is retried once, then reported.

use pinfold_model::{LoadState, Metric, Severity};
use pinfold_stats::Verdict;

use super::super::*;
use super::world::{Trouble, World, candidate, config};
use crate::store::{NewRun, Phase, RunId};

const THREE: [(&str, f64, f64); 3] =
    [("none", 5e6, 100.0), ("compact", 1e6, 100.0), ("low-latency", 0.2e6, 100.0)];

#[test]
fn a_failure_is_retried_once_and_reported() {
    let mut world = World::new(&THREE);
    world.machine.troubles.insert((Phase::Confirmation, 2, 1), Trouble::Once);
    let report = world.tune(&config(Goal::Latency)).unwrap();
    let failure = Failure {
        phase: Phase::Confirmation,
        block: 2,
        name: "compact".to_owned(),
        message: "it stumbled".to_owned(),
        recovered: true,
    };
    assert_eq!(report.failures, [failure]);
    assert_eq!(report.winner.as_ref().unwrap().name, "low-latency");
    assert_eq!(
        world.seen.iter().filter(|seen| matches!(&seen.event, Event::Retries { .. })).count(),
        1
    );
    let compact = report.ranking.iter().find(|row| row.name == "compact").unwrap();
    let cell = compact.cell(Metric::SpinGap, LoadState::BOTH).unwrap();
    assert_eq!(cell.against_baseline.as_ref().unwrap().verdict, Verdict::Better);
}

#[test]
fn a_candidate_that_failed_in_the_confirmation_is_unknown() {
    let mut world = World::new(&THREE);
    world.machine.troubles.insert((Phase::Confirmation, 2, 2), Trouble::Twice);
    let report = world.tune(&config(Goal::Latency)).unwrap();
    let blocks = u32::try_from(report.design.confirmation.len()).unwrap();
    let row = report.ranking.iter().find(|row| row.name == "low-latency").unwrap();
    assert_eq!((row.blocks, row.standing.failures), (blocks - 1, 1));
    for cell in &row.cells {
        let verdict = cell.against_baseline.as_ref().unwrap().verdict;
        assert_eq!(verdict, Verdict::Unknown { have: blocks - 1, need: blocks });
    }
    // The best one that can be shown comes first.
    assert_eq!(report.winner.as_ref().unwrap().name, "compact");
    let warning = report.findings.iter().find(|found| found.text.contains("failed twice")).unwrap();
    assert_eq!((warning.subject.as_str(), warning.severity), ("low-latency", Severity::Warning));
    assert_eq!(
        world.seen.iter().filter(|seen| matches!(&seen.event, Event::Failed { .. })).count(),
        1
    );
}

#[test]
fn when_the_baseline_fails_nothing_is_known() {
    let mut world = World::new(&THREE);
    world.machine.troubles.insert((Phase::Confirmation, 0, 0), Trouble::Twice);
    let report = world.tune(&config(Goal::Latency)).unwrap();
    for row in report.ranking.iter().filter(|row| !row.is_baseline) {
        let cell = row.cell(Metric::SpinGap, LoadState::BOTH).unwrap();
        let verdict = cell.against_baseline.as_ref().unwrap().verdict;
        assert!(matches!(verdict, Verdict::Unknown { .. }), "{}", row.name);
    }
}

#[test]
fn a_candidate_that_never_starts_is_screened_out_and_reported() {
    let mut world = World::new(&[
        ("none", 5e6, 100.0),
        ("a", 1e6, 100.0),
        ("b", 2e6, 100.0),
        ("broken", 0.1e6, 100.0),
        ("c", 3e6, 100.0),
    ]);
    world.machine.broken.insert(3);
    let report = world.tune(&config(Goal::Latency)).unwrap();
    assert_eq!(report.design.confirm.as_ref().unwrap().kept, [1, 2, 4]);
    assert_eq!(report.failures.len(), 3);
    assert!(report.findings.iter().any(|found| is_reported(&found)));
}

fn is_reported(found: &&pinfold_model::Finding) -> bool {
    found.subject == "broken" && found.severity == Severity::Problem
}

#[test]
fn a_machine_that_cannot_start_at_all_ends_the_run() {
    let mut world = World::new(&THREE);
    world.machine.broken.extend([0, 1, 2]);
    let error = world.tune(&config(Goal::Latency)).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("4 starts in a row failed, the last one (low-latency): "), "{text}");
    assert!(text.ends_with("it never starts") && error.hint().is_some());
    assert_eq!(world.machine.requests.len(), 8, "each start was tried twice");
}

#[test]
fn a_fatal_failure_is_not_held_against_the_candidate() {
    let mut world = World::new(&THREE);
    let created = world.create(&config(Goal::Latency)).unwrap();
    for candidate in 0..3 {
        let slot = (Phase::Confirmation, 0, candidate);
        world.machine.troubles.insert(slot, Trouble::Fatal);
    }
    let error = world.go(created.run).unwrap_err();
    assert_eq!(error.to_string(), "cannot start the virtual machine: there is no QEMU");
    assert_eq!(error.hint().as_deref(), Some("install it"));
    assert!(world.store.starts(created.run.id()).unwrap().is_empty());
    world.machine.troubles.clear();
    assert_eq!(world.go(created.run).unwrap(), Outcome::Finished);
    let report = analyse(&world.store, created.run.id()).unwrap();
    assert!(report.failures.is_empty());
}

#[test]
fn impossible_results_are_failures() {
    fn check(trouble: Trouble, expected: &str) {
        let mut world = World::new(&THREE);
        world.machine.troubles.insert((Phase::Confirmation, 1, 1), trouble);
        let report = world.tune(&config(Goal::Latency)).unwrap();
        let [failure] = &report.failures[..] else { panic!("{:?}", report.failures) };
        assert!(!failure.recovered);
        assert!(failure.message.contains(expected), "{}", failure.message);
    }
    check(Trouble::NotANumber, "spin-gap of vCPU 0 in \"");
    check(Trouble::NotANumber, "holds the value NaN");
    check(Trouble::MissingState, "the boot did not measure \"");
}

#[test]
fn lost_samples_cannot_make_a_layout_better() {
    let mut world = World::new(&THREE);
    world.machine.troubles.insert((Phase::Confirmation, 1, 1), Trouble::Drops);
    let report = world.tune(&config(Goal::Latency)).unwrap();
    assert!(matches!(verdict(&report, "compact", Metric::SpinGap), Verdict::Unknown { .. }));
    assert_eq!(verdict(&report, "low-latency", Metric::SpinGap), Verdict::Better);
    assert!(report.findings.iter().any(|found| found.text.contains("were lost")));
    // If samples of the baseline were dropped, its true stalls are even longer.
    let mut world = World::new(&THREE);
    world.machine.troubles.insert((Phase::Confirmation, 1, 0), Trouble::Drops);
    let report = world.tune(&config(Goal::Latency)).unwrap();
    let winner = report.winner.as_ref().unwrap();
    assert_eq!(winner.against_baseline.as_ref().unwrap().verdict, Verdict::Better);
}

fn verdict(report: &TuneReport, name: &str, metric: Metric) -> Verdict {
    let row = report.ranking.iter().find(|row| row.name == name).unwrap();
    row.cell(metric, LoadState::BOTH).unwrap().against_baseline.as_ref().unwrap().verdict
}

#[test]
fn requests_that_cannot_be_compared_are_refused() {
    fn check(change: &dyn Fn(&mut World), expected: &str) {
        let mut world = World::new(&THREE);
        change(&mut world);
        let error = world.create(&config(Goal::Latency)).unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert!(error.hint().is_some());
        assert!(world.store.runs().unwrap().is_empty());
    }
    check(&|world| drop(world.candidates.remove(0)), "the candidates lack the baseline \"none\"");
    check(
        &|world| world.candidates.push(candidate("compact", 9, 2)),
        "two candidates are called \"compact\"",
    );
    check(
        &|world| world.candidates.push(candidate(TWIN_NAME, 9, 2)),
        "two candidates are called \"none (again)\"",
    );
    check(
        &|world| world.candidates.push(candidate("wide", 9, 3)),
        "\"wide\" has 3 vCPUs, the baseline has 2",
    );
    check(
        &|world| {
            world.place_like("compact", "none");
            world.place_like("low-latency", "none");
        },
        "no candidate places the machine differently from the baseline",
    );
}

#[test]
fn other_runs_and_numbers_are_reported() {
    let mut world = World::new(&THREE);
    let error = analyse(&world.store, RunId(5)).unwrap_err();
    assert!(error.to_string().ends_with("has no run 5"), "{error}");
    let origin = crate::fixture::origin();
    let new = NewRun {
        created_unix_s: 0,
        kind: "study",
        config_json: "{}",
        origin: &origin,
        seed: 0,
        candidates: &[],
    };
    let run = world.store.create_run(&new).unwrap();
    let error = analyse(&world.store, run.id()).unwrap_err();
    assert!(error.to_string().ends_with("is a study, not a tune"), "{error}");
    assert!(error.hint().is_some());
}
