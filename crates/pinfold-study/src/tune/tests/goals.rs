//! Goals, the constraint, and the fit into the budget.

use pinfold_model::{LoadState, Metric, Severity};
use pinfold_stats::Verdict;

use super::super::*;
use super::world::{COSTS, World, config};

/// Fast with long stalls, slow with short ones, and one in between.
const TRADE: [(&str, f64, f64); 4] =
    [("none", 5e6, 100.0), ("jumpy", 8e6, 150.0), ("smooth", 0.1e6, 90.0), ("middle", 1e6, 148.0)];

#[test]
fn each_goal_picks_its_own_winner() {
    fn check(goal: Goal, expected: &str, metric: Metric) {
        let mut world = World::new(&TRADE);
        let report = world.tune(&config(goal)).unwrap();
        let winner = report.winner.as_ref().unwrap();
        assert_eq!((winner.name.as_str(), report.config.metric()), (expected, metric), "{goal:?}");
        assert_eq!(report.goal_load, LoadState::BOTH);
        let contrast = winner.against_baseline.as_ref().unwrap();
        assert_eq!(contrast.verdict, Verdict::Better, "{goal:?}");
        assert_eq!(report.ranking[0].score, report.ranking[0].standing.score(goal));
    }
    check(Goal::Latency, "smooth", Metric::SpinGap);
    check(Goal::Throughput, "jumpy", Metric::ComputeRate);
    check(Goal::Balanced, "middle", Metric::SpinGap);
}

#[test]
fn balanced_marks_who_gives_up_throughput() {
    let mut world = World::new(&TRADE);
    let report = world.tune(&config(Goal::Balanced)).unwrap();
    let row = |name: &str| report.ranking.iter().find(|row| row.name == name).unwrap();
    assert!(row("smooth").standing.gives_up_rate && row("none").standing.gives_up_rate);
    assert!(!row("jumpy").standing.gives_up_rate && !row("middle").standing.gives_up_rate);
}

#[test]
fn the_goal_is_judged_in_the_heaviest_state_there_is() {
    fn check(load_states: &[LoadState], expected: LoadState) {
        let load_states = load_states.to_vec();
        let config = TuneConfig { load_states, ..config(Goal::Latency) };
        assert_eq!(config.goal_load(), expected);
    }

    let [idle, host, guest, both] = LoadState::ALL;
    check(&[both, idle], both);
    check(&[idle, guest, host], host);
    check(&[idle, guest], guest);
    check(&[idle], idle);
}

#[test]
fn a_gap_beyond_the_limit_in_any_block_disqualifies() {
    let mut world = World::new(&TRADE);
    let limit = TuneConfig { max_gap_ns: Some(2_000_000), ..config(Goal::Throughput) };
    let report = world.tune(&limit).unwrap();
    assert_eq!(report.winner.as_ref().unwrap().name, "middle");
    let violating: Vec<&str> = report
        .ranking
        .iter()
        .filter(|row| row.standing.violates)
        .map(|row| row.name.as_str())
        .collect();
    assert_eq!(violating, ["jumpy", "none"]);
    assert!(report.ranking[2..].iter().all(|row| row.standing.violates), "they come last");

    let mut world = World::new(&TRADE);
    let strict = TuneConfig { max_gap_ns: Some(1_000), ..config(Goal::Latency) };
    let report = world.tune(&strict).unwrap();
    assert_eq!(report.winner.as_ref().unwrap().name, "smooth");
    let problem = report.findings.iter().find(|finding| finding.subject == "max gap").unwrap();
    assert_eq!(problem.severity, Severity::Problem);
    assert!(problem.hint.is_some());
}

#[test]
fn when_nothing_is_better_the_baseline_wins() {
    let mut world = World::new(&[("none", 1e6, 100.0), ("compact", 6e6, 100.0)]);
    let report = world.tune(&config(Goal::Latency)).unwrap();
    let winner = report.winner.as_ref().unwrap();
    assert_eq!((winner.name.as_str(), &winner.against_baseline), ("none", &None));
    let compact = report.ranking[1].cell(Metric::SpinGap, LoadState::BOTH).unwrap();
    assert_eq!(compact.against_baseline.as_ref().unwrap().verdict, Verdict::Worse);
    assert!(
        report.findings.iter().any(|finding| finding.text.contains("leaving the machine unpinned"))
    );
}

#[test]
fn budgets_become_designs() {
    /// Candidates and budget → screening starts, blocks, observation.
    fn check(candidates: u32, budget_s: f64, expected: (u32, u32, f64)) {
        let config = TuneConfig { budget_s, ..config(Goal::Latency) };
        let found = predict(&config, candidates).unwrap();
        let design = (found.screening_starts, found.confirm_blocks, found.observation_s);
        assert_eq!(design, expected, "{candidates} candidates in {budget_s} s");
        assert!(found.seconds() <= budget_s + 1e-6);
    }
    // A start takes 2 s + 4 · (0.1 s + observation).
    check(1, 153.6, (0, 8, 1.0));
    check(1, 537.6, (0, 8, 5.0));
    check(1, 604.8, (0, 9, 5.0));
    check(1, 1e6, (0, 16, 5.0));
    check(3, 256.0, (0, 8, 1.0));
    check(5, 400.0, (18, 8, 1.12));
    check(5, 1_400.0, (18, 8, 5.0));
}

#[test]
fn too_small_budgets_are_refused_with_what_it_takes() {
    let mut world = World::new(&TRADE);
    let config = TuneConfig { budget_s: 100.0, ..config(Goal::Latency) };
    let error = world.create(&config).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a budget of 100 s is too small: 40 starts of at least 6.4 s need 256 s"
    );
    assert_eq!(
        error.hint().unwrap(),
        "give a budget of at least 256 s, fewer candidates or fewer load states"
    );
    assert!(world.store.runs().unwrap().is_empty(), "nothing was begun");
    let enough = TuneConfig { budget_s: 256.0, ..config };
    assert!(world.create(&enough).is_ok());
}

#[test]
fn slow_starts_shorten_the_confirmation_but_never_below_eight_blocks() {
    let five: Vec<(&str, f64, f64)> =
        ["none", "a", "b", "c", "d"].iter().map(|&name| (name, 1e6, 100.0)).collect();
    // With screening: the confirmation is planned again with the measured durations.
    let mut world = World::new(&five);
    world.slowness = 1.5;
    let config = TuneConfig { budget_s: 900.0, ..config(Goal::Latency) };
    let created = world.create(&config).unwrap();
    world.go(created.run).unwrap();
    let report = analyse(&world.store, created.run.id()).unwrap();
    let confirm = report.design.confirm.clone().unwrap();
    assert!(confirm.observation_s < created.prediction.observation_s);
    assert!(confirm.blocks >= 8);
    assert!(report.design.spent_s < 900.0 * 1.3, "{}", report.design.spent_s);

    // Without screening: the confirmation ends at the end of a block when the time is up.
    let mut world = World::new(&five[..2]);
    world.slowness = 1.5;
    let config = TuneConfig { budget_s: 1_000.0, ..config };
    let created = world.create(&config).unwrap();
    assert_eq!(created.prediction.confirm_blocks, 14);
    world.go(created.run).unwrap();
    let report = analyse(&world.store, created.run.id()).unwrap();
    assert_eq!(report.design.confirmation.len(), 9);
    assert_eq!(report.design.done, report.design.planned);
    assert!(report.finished && report.design.spent_s <= 1_000.0);

    // Much slower than predicted: eight blocks all the same, with a finding.
    let mut world = World::new(&five[..2]);
    world.slowness = 4.0;
    let report = world.tune(&config).unwrap();
    assert_eq!(report.design.confirmation.len(), 8);
    assert!(report.findings.iter().any(|finding| finding.subject == "budget"));
}

#[test]
fn settings_that_make_no_sense_are_named() {
    fn check(change: &dyn Fn(&mut TuneConfig), expected: &str) {
        let mut config = TuneConfig::new(Goal::Latency, 400.0, 1, COSTS);
        config.check().unwrap();
        change(&mut config);
        assert_eq!(config.check().unwrap_err().to_string(), expected);
    }

    check(&|c| c.budget_s = f64::NAN, "the setting budget is not a positive time");
    check(
        &|c| c.observation.min_s = 9.0,
        "the setting observation is not a range of positive times",
    );
    check(&|c| c.screening_blocks = 0, "the setting screening blocks must be at least 1");
    check(
        &|c| c.confirm_blocks.min = 3,
        "the setting confirmation blocks must be at least 8: fewer give no verdict",
    );
    check(
        &|c| c.confirm_blocks.max = 7,
        "the setting confirmation blocks have a maximum below their minimum",
    );
    check(&|c| c.keep = 0, "the setting keep must be at least 1");
    check(&|c| c.load_states.clear(), "the setting load states are empty");
    check(&|c| c.load_states.push(LoadState::BOTH), "the setting load states name one state twice");
    check(&|c| c.costs.start_s = -1.0, "the setting costs are not times");
    check(&|c| c.alpha = 1.0, "the setting alpha is not between 0 and 1");
    check(&|c| c.race = Some(0.0), "the setting race is not between 0 and 1");
    check(&|c| c.margin = -0.1, "the setting margin is not between 0 and 1");
}

#[test]
fn many_kept_candidates_need_more_blocks() {
    let many = TuneConfig { keep: 10, ..config(Goal::Latency) };
    assert_eq!(many.least_blocks(3), 8);
    assert_eq!(many.least_blocks(6), 8);
    assert_eq!(many.least_blocks(7), 9);
}
