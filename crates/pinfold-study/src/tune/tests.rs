//! Whole runs against a simulated machine: seeded distributions, a clock that only advances when a
//! start takes time, failures on demand.

mod bad;
mod goals;
mod race;
mod resume;
mod world;

use std::sync::atomic::Ordering;

use pinfold_model::{LoadState, Metric, Severity};
use pinfold_stats::Verdict;

use super::*;
use world::{World, config};

/// Metrics of a guest with an agent: all but the run delay.
const MEASURED: usize = Metric::ALL.len() - 1;

#[test]
fn finds_the_better_layout_and_says_how_sure() {
    let mut world = World::new(&[
        ("none", 5e6, 100.0),
        ("compact", 2e6, 100.0),
        ("max-performance", 4.8e6, 100.0),
        ("low-latency", 0.2e6, 99.0),
        ("scatter", 9e6, 101.0),
    ]);
    let report = world.tune(&config(Goal::Latency)).unwrap();
    assert!(report.finished);
    let names: Vec<&str> = report.ranking.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names[..2], ["low-latency", "compact"]);
    assert_eq!(report.ranking.len(), 4, "three and none were confirmed: {names:?}");
    let winner = report.winner.as_ref().unwrap();
    assert_eq!(winner.name, "low-latency");
    let contrast = winner.against_baseline.as_ref().unwrap();
    assert_eq!(contrast.verdict, Verdict::Better);
    assert!(contrast.interval.unwrap().contains(0.04), "{contrast:?}");
    let p = contrast.p_holm.unwrap();
    let raw = pinfold_stats::smallest_p(u32::try_from(report.design.confirmation.len()).unwrap());
    assert!(p <= 0.05 && p > raw, "corrected for the number of comparisons: {p}, {raw}");
    assert!(!winner.within_noise);
    // The screening dropped the worst candidate and reports it.
    let dropped: Vec<&str> =
        report.screening.iter().filter(|row| !row.kept).map(|row| row.name.as_str()).collect();
    assert_eq!(dropped, ["scatter"]);
    assert!(report.screening.iter().all(|row| row.blocks == 3));
    // Every start of the design was run, and its rows have every metric and load state.
    assert_eq!(report.design.done, report.design.planned);
    let row = &report.ranking[0];
    assert_eq!(row.cells.len(), 4 * MEASURED);
    let cell = row.cell(Metric::SpinGap, LoadState::BOTH).unwrap();
    assert_eq!(cell.blocks.len(), report.design.confirmation.len());
    assert_eq!(cell.worst, cell.blocks.iter().copied().fold(0.0, f64::max));
    let baseline = report.ranking.iter().find(|row| row.is_baseline).unwrap();
    assert!(baseline.cells.iter().all(|cell| cell.against_baseline.is_none()));
}

#[test]
fn the_report_is_computed_from_the_store_alone() {
    let mut world = World::new(&[("none", 5e6, 100.0), ("compact", 1e6, 100.0)]);
    let report = world.tune(&config(Goal::Latency)).unwrap();
    let run = report.run;
    let again = crate::store::Store::open(world.store.path()).unwrap();
    assert_eq!(analyse(&again, run).unwrap(), report);
}

#[test]
fn without_choice_no_time_is_spent_on_screening() {
    let mut world = World::new(&[("none", 5e6, 100.0), ("compact", 1e6, 100.0)]);
    let report = world.tune(&config(Goal::Latency)).unwrap();
    assert!(report.screening.is_empty() && report.design.screening.is_empty());
    assert!(report.findings.iter().any(|finding| finding.subject == "screening"));
    assert_eq!(report.design.planned as usize, report.design.confirmation.len() * 3);
}

#[test]
fn three_starts_never_give_a_verdict() {
    let mut world = World::new(&[
        ("none", 50e6, 100.0),
        ("compact", 1e6, 100.0),
        ("low-latency", 0.01e6, 100.0),
    ]);
    world.stop_after(3 * 4);
    let report = world.tune(&config(Goal::Latency)).unwrap();
    assert!(!report.finished);
    let winner = report.winner.as_ref().unwrap();
    assert_eq!(winner.name, "low-latency");
    let contrast = winner.against_baseline.as_ref().unwrap();
    assert_eq!(contrast.verdict, Verdict::Unknown { have: 3, need: 8 });
    assert_eq!(contrast.verdict.to_string(), "unknown: 3 blocks, 8 needed");
    let verdicts = report.ranking.iter().flat_map(|row| &row.cells);
    for contrast in verdicts.filter_map(|cell| cell.against_baseline.as_ref()) {
        assert!(matches!(contrast.verdict, Verdict::Unknown { .. }), "{contrast:?}");
    }
    assert!(report.findings.iter().any(|finding| finding.text.contains("is not shown")));
    assert!(report.findings.iter().any(|finding| finding.text.contains("12 of")));
}

#[test]
fn equal_layouts_on_a_quiet_host_are_the_same() {
    let mut world = World::new(&[("none", 1e6, 100.0), ("compact", 1e6, 100.0)]);
    world.noise = 0.002;
    let report = world.tune(&config(Goal::Latency)).unwrap();
    let compact = report.ranking.iter().find(|row| !row.is_baseline).unwrap();
    let cell = compact.cell(Metric::SpinGap, LoadState::BOTH).unwrap();
    assert_eq!(cell.against_baseline.as_ref().unwrap().verdict, Verdict::Same);
    assert_eq!(report.aa.len(), 4 * MEASURED);
    let aa = report
        .aa
        .iter()
        .find(|row| row.metric == Metric::SpinGap && row.load == LoadState::BOTH)
        .unwrap();
    assert_eq!(aa.contrast.verdict, Verdict::Same);
    let interval = aa.contrast.interval.unwrap();
    assert!(interval.low > 0.98 && interval.high < 1.02, "{interval:?}");
    assert_eq!(
        report.findings.iter().find(|finding| {
            finding.subject == "A/A pair" && finding.severity == Severity::Warning
        }),
        None
    );
}

#[test]
fn a_baseline_that_differs_from_itself_is_reported() {
    let mut world = World::new(&[("none", 1e6, 100.0), ("compact", 0.5e6, 100.0)]);
    let created = world.create(&config(Goal::Latency)).unwrap();
    // The machine cannot distinguish the twin from the baseline; the design can.
    world.stop.store(true, Ordering::SeqCst);
    world.go(created.run).unwrap();
    let design = analyse(&world.store, created.run.id()).unwrap().design;
    let twin = world.candidates.len();
    world.machine.spoiled =
        design.confirmation.iter().map(|order| place(order, twin) < place(order, 0)).collect();
    world.stop.store(false, Ordering::SeqCst);
    world.go(created.run).unwrap();
    let report = analyse(&world.store, created.run.id()).unwrap();
    let warning = report
        .findings
        .iter()
        .find(|finding| finding.text.starts_with("the baseline differs from itself in spin-gap"))
        .unwrap();
    assert!(warning.hint.is_some() || warning.severity == Severity::Note);
    let aa = report.aa.iter().find(|row| row.load == report.goal_load).unwrap();
    assert_eq!(aa.metric, Metric::SpinGap);
    assert_eq!(aa.contrast.verdict, Verdict::Worse);
}

fn place(order: &[PlannedStart], who: usize) -> usize {
    order.iter().position(|start| start.slot.candidate == who).unwrap()
}

#[test]
fn equal_placements_are_started_once() {
    let mut world = World::new(&[
        ("none", 5e6, 100.0),
        ("compact", 1e6, 100.0),
        ("sequential", 1e6, 100.0),
        ("float", 1e6, 100.0),
    ]);
    world.place_like("sequential", "compact");
    world.place_like("float", "none");
    let created = world.create(&config(Goal::Latency)).unwrap();
    let expected = [pair("sequential", "compact"), pair("float", "none")];
    assert_eq!(created.same_as, expected);
    assert_eq!(created.prediction.candidates, 1);
    world.go(created.run).unwrap();
    let report = analyse(&world.store, created.run.id()).unwrap();
    assert_eq!(report.same_as, expected);
    assert_eq!(report.ranking.len(), 2);
    assert!(world.list_started().iter().all(|&candidate| candidate < 2));
}

fn pair(one: &str, other: &str) -> (String, String) {
    (one.to_owned(), other.to_owned())
}

#[test]
fn progress_counts_up_and_predicts() {
    let mut world = World::new(&[
        ("none", 5e6, 100.0),
        ("a", 1e6, 100.0),
        ("b", 2e6, 100.0),
        ("c", 3e6, 100.0),
        ("d", 4e6, 100.0),
    ]);
    // The fit has no freedom: one observation time, one number of blocks.
    let config = TuneConfig {
        observation: ObservationRange { min_s: 1.0, max_s: 1.0 },
        confirm_blocks: BlockRange { min: 8, max: 8 },
        ..config(Goal::Latency)
    };
    let created = world.create(&config).unwrap();
    world.go(created.run).unwrap();
    let seen = world.seen.clone();
    let last = seen.last().unwrap();
    assert_eq!((last.done, last.left_s), (last.total, 0.0));
    assert_eq!(last.done, u64::from(created.prediction.starts()));
    assert!(seen.windows(2).all(|pair| pair[0].done <= pair[1].done));
    // The simulated starts take the predicted time, so that the sum is exact.
    let first = seen.first().unwrap();
    let after_first = created.prediction.seconds() - created.prediction.start_s;
    assert!((first.left_s - after_first).abs() < 1e-6);
    let middle = &seen[seen.len() / 2];
    let rest = (middle.total - middle.done) as f64 * created.prediction.start_s;
    assert!((middle.left_s - rest).abs() < 1e-6);
    assert!(created.prediction.seconds() <= world.budget_s);
    let report = analyse(&world.store, created.run.id()).unwrap();
    assert!((report.design.spent_s - created.prediction.seconds()).abs() < 1e-3);
}

#[test]
fn raw_samples_and_scheduler_statistics_can_be_drawn() {
    let mut world = World::new(&[("none", 5e6, 100.0), ("compact", 1e6, 100.0)]);
    let report = world.tune(&config(Goal::Latency)).unwrap();
    let blocks = report.design.confirmation.len();
    let gaps = pool_samples(&world.store, report.run, 0, LoadState::BOTH, Metric::SpinGap).unwrap();
    assert_eq!(gaps.samples.len(), 2 * 120 * blocks, "two vCPUs per block");
    let curve = gaps.gap_curve(60);
    assert_eq!(curve.len(), 60);
    assert!(curve.windows(2).all(|pair| {
        pair[0].wait_ns < pair[1].wait_ns
            && pair[0].arrival_probability >= pair[1].arrival_probability
    }));
    let wakeups =
        pool_samples(&world.store, report.run, 1, LoadState::BOTH, Metric::Wakeup).unwrap();
    assert!(wakeups.gap_curve(10).is_empty());
    let totals = role_totals(&world.store, report.run, 1, LoadState::BOTH).unwrap();
    assert_eq!(totals.time_ns, Some(1_000 * blocks as u64));
    let roles = totals.roles;
    assert_eq!(roles.len(), 2);
    assert_eq!(roles[0].run_ns, 900 * blocks as u64);
    assert_eq!(roles[0].migrations, Some(3 * blocks as u64));
}
