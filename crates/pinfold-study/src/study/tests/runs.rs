//! Runs: complete, resumed, retried, ended early; and their analysis.

use crate::error::RunError;
use std::collections::BTreeSet;

use pinfold_model::{Datum, Origin};
use pinfold_stats::{Verdict, blocks_needed};

use super::super::*;
use super::world::{FACTS, STUDY, Trouble, World, origin};
use crate::store::{Store, StoreError};

/// 2 workloads × (baseline twice, stall, quota) on one core, without quota on two: 8 + 6.
const PER_BLOCK: usize = 14;

#[test]
fn cells_are_excluded_skipped_refused_and_compared() {
    let study = from_toml(STUDY).unwrap();
    let world = World::new();
    let cells = cells(&study, &FACTS, &world.machine).unwrap();
    let prediction = predict(&study, &cells, &FACTS).unwrap();
    assert_eq!((cells.all.len(), cells.excluded), (18, 18));
    assert_eq!((prediction.cells, prediction.skipped), (10, 8));
    assert_eq!((prediction.block_trials, prediction.blocks), (PER_BLOCK as u64, 8));
    // The cost of stall is calibrated once for each number of cores, not in each block.
    assert!((prediction.once_s - 16.0).abs() < f64::EPSILON, "{}", prediction.once_s);
    assert!(prediction.block_s < 16.0, "{}", prediction.block_s);
    let reasons: BTreeSet<&str> =
        cells.all.iter().filter_map(|cell| cell.skipped.as_deref()).collect();
    assert_eq!(reasons, BTreeSet::from(["no second quota", "too few CPUs"]));
    for (index, cell) in cells.all.iter().enumerate() {
        let base = &cells.all[cell.baseline.unwrap()];
        assert_eq!((base.workload, base.levels[2]), (cell.workload, cell.levels[2]));
        assert_eq!(cells.is_reference(index), cell.level(&study, "method") == Some("none"));
    }
    assert_eq!(cells.largest_family(), Some(2));
}

#[test]
fn frequencies_are_kept_where_the_kernel_governs_them() {
    let study = from_toml(include_str!("../../../../../studies/qemu-scaling.toml")).unwrap();
    for (cpufreq, level) in [(true, "performance"), (false, "as-is")] {
        let cells = Cells::new(&study, &HostFacts { cpufreq, ..FACTS }).unwrap();
        assert!(cells.running().count() > 0);
        let mut levels = cells.running().map(|(_, cell)| cell.level(&study, "frequency"));
        assert!(levels.all(|found| found == Some(level)), "{level}");
    }
}

#[test]
fn the_quick_form_shortens_time_limits_and_lengthens_none() {
    let (whole, quick): (Vec<u64>, Vec<u64>) = limits("");
    assert_eq!(whole, quick);
    let (whole, quick): (Vec<u64>, Vec<u64>) = limits("time-limit = \"7s\"");
    assert!(whole.iter().all(|limit| *limit > 7_000_000_000), "{whole:?}");
    assert!(quick.iter().all(|limit| *limit == 7_000_000_000), "{quick:?}");
    let (whole, quick): (Vec<u64>, Vec<u64>) = limits("time-limit = \"1000min\"");
    assert_eq!(whole, quick);
}

fn limits(text: &str) -> (Vec<u64>, Vec<u64>) {
    let study = from_toml(&STUDY.replace("[quick]\n", &format!("[quick]\n{text}\n"))).unwrap();
    (
        limits_of(&study),
        limits_of(&study.apply_preset(&PresetSelection::from_preset(Some(QUICK))).unwrap()),
    )
}

fn limits_of(study: &Study) -> Vec<u64> {
    study.workloads.iter().map(|one| one.time_limit_ns).collect()
}

#[test]
fn findings_of_placements_are_counted_by_trial() {
    let mut world = World::new();
    world.machine.findings = vec!["warning: governor: refused", "note: threads: one ended"];
    let run = world.create(STUDY, true).unwrap();
    world.run(run).unwrap();
    let trials = world.machine.ran.len() as u64;
    let expected: Vec<(String, u64)> = ["note: threads: one ended", "warning: governor: refused"]
        .map(|finding| (finding.to_owned(), trials))
        .into();
    let analysis = analyse(&world.store, run.id()).unwrap();
    assert_eq!(analysis.findings.into_iter().collect::<Vec<_>>(), expected);
    assert!(analysis.estimates.iter().all(|one| one.figure.probe == "rate"));
}

#[test]
fn a_selection_without_values_has_the_reasons_of_its_cells() {
    let mut world = World::new();
    let cases = [
        ("cores == 8", "too few CPUs"),
        ("cores == 2 and method == 'quota'", "no second quota"),
        ("cores > 8", "no cell of this study is selected"),
        ("cores == 1", "none of its cells has this figure yet"),
    ];
    let mut plots = String::new();
    for (index, (only, _)) in cases.iter().enumerate() {
        plots += &format!(
            "[[plot]]\nname = \"p{index}\"\nfigure = \"rate\"\nx = \"speed\"\nwhere = \"{only}\"\n"
        );
    }
    let toml = STUDY.replacen("[[plot]]", &(plots + "[[plot]]"), 1);
    let run = world.create(&toml, false).unwrap();
    let analysis = analyse(&world.store, run.id()).unwrap();
    for ((only, expected), plot) in cases.iter().zip(&analysis.loaded.study.plots) {
        let found = analysis.reasons_of_absence(&plot.selection);
        assert_eq!(found.join(", "), *expected, "{only}");
    }
}

#[test]
fn a_run_does_every_trial_once_in_shared_starts() {
    let mut world = World::new();
    let run = world.create(STUDY, false).unwrap();
    assert_eq!(world.run(run).unwrap(), Outcome::Finished);
    let ran: BTreeSet<TrialSlot> = world.machine.ran.iter().copied().collect();
    assert_eq!((world.machine.ran.len(), ran.len()), (8 * PER_BLOCK, 8 * PER_BLOCK));
    // The two workloads share each start.
    assert_eq!(world.machine.starts, 8 * PER_BLOCK / 2);
    let first: Vec<_> = world.machine.ran[..PER_BLOCK].iter().map(|slot| slot.cell).collect();
    let second: Vec<_> =
        world.machine.ran[PER_BLOCK..2 * PER_BLOCK].iter().map(|slot| slot.cell).collect();
    assert_ne!(first, second, "each block has an order of its own");
    let study = from_toml(STUDY).unwrap();
    let cells = Cells::new(&study, &FACTS).unwrap();
    let cores: Vec<_> =
        first.iter().map(|cell| cells.all[*cell].level(&study, "cores").unwrap()).collect();
    let changes = cores.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert_eq!(changes, 1, "what belongs together follows one another: {cores:?}");
    let progress = world.store.study_progress(run.id()).unwrap();
    assert_eq!((progress.ok, progress.failed), (8 * PER_BLOCK as u64, 0));
    assert_eq!(progress.work_ns, 8 * PER_BLOCK as u64 * 990_000_000);
}

#[test]
fn resume_repeats_nothing_and_makes_the_same_design() {
    let mut whole = World::new();
    let run = whole.create(STUDY, false).unwrap();
    whole.run(run).unwrap();
    let mut world = World::new();
    let run = world.create(STUDY, false).unwrap();
    for stop_at in [1, 5, 17, 30] {
        world.machine.stop_at = Some(stop_at);
        let before = world.machine.ran.len() as u64;
        let total = 8 * PER_BLOCK as u64;
        let done = before + stop_at as u64;
        assert_eq!(world.run(run).unwrap(), Outcome::Interrupted { done, total });
        // As after a crash: another process opens the file.
        world.store = Store::open(&world.path).unwrap();
        world.open(run, origin()).unwrap();
    }
    world.machine.stop_at = None;
    assert_eq!(world.run(run).unwrap(), Outcome::Finished);
    assert_eq!(world.machine.ran.len(), 8 * PER_BLOCK);
    assert_eq!(runs_of(&world), runs_of(&whole));
    assert_eq!(world.run(run).unwrap(), Outcome::Finished);
    assert_eq!(world.machine.ran.len(), 8 * PER_BLOCK, "a finished run was run again");
}

fn runs_of(world: &World) -> BTreeSet<TrialSlot> {
    world.machine.ran.iter().copied().collect::<BTreeSet<_>>()
}

#[test]
fn failed_trials_are_tried_once_more_and_recorded() {
    let mut world = World::new();
    let once = "a: method stall, speed 0.5, cores 1";
    let always = "b: method stall, speed 0.5, cores 1";
    world.machine.troubles.insert(once.to_owned(), Trouble::Once);
    world.machine.troubles.insert(always.to_owned(), Trouble::Always);
    let run = world.create(STUDY, false).unwrap();
    assert_eq!(world.run(run).unwrap(), Outcome::Finished);
    let progress = world.store.study_progress(run.id()).unwrap();
    assert_eq!((progress.ok, progress.failed), (8 * (PER_BLOCK as u64 - 1), 8));
    let trials = world.store.trials(run.id()).unwrap();
    let attempts = |ok: bool, attempts: u32| {
        trials.iter().filter(|(_, trial)| trial.ok == ok && trial.attempts == attempts).count()
    };
    assert_eq!((attempts(true, 2), attempts(false, 2), attempts(false, 1)), (8, 8, 0));
    let failures = world.store.study_failures(run.id()).unwrap();
    assert_eq!(failures.len(), 1);
    assert_eq!((failures[0].1, failures[0].2.as_str()), (8, "it broke"));
    let retries = world.seen.iter().filter(|event| matches!(event, Event::Retries { .. })).count();
    assert_eq!(retries, 16);
}

#[test]
fn starts_that_fail_fail_their_trials_and_too_many_end_the_run() {
    let mut world = World::new();
    let cell = "a: method stall, speed 0.5, cores 1";
    world.machine.troubles.insert(cell.to_owned(), Trouble::StartFails);
    let run = world.create(STUDY, false).unwrap();
    world.run(run).unwrap();
    let failed = world.store.study_progress(run.id()).unwrap().failed;
    assert!((8..=16).contains(&failed), "{failed}");

    let mut world = World::new();
    let study = from_toml(STUDY).unwrap();
    for cell in Cells::new(&study, &FACTS).unwrap().all {
        world.machine.troubles.insert(cell.name(&study), Trouble::Always);
    }
    let run = world.create(STUDY, false).unwrap();
    let error = world.run(run).unwrap_err();
    assert!(matches!(&error, RunError::KeepsFailing { count: MAX_FAILURES_IN_A_ROW, .. }));
    assert!(error.hint().is_some());

    let mut world = World::new();
    world.machine.troubles.insert(cell.to_owned(), Trouble::Fatal);
    let run = world.create(STUDY, false).unwrap();
    let error = world.run(run).unwrap_err();
    assert_eq!(error.to_string(), "cannot run the study: no rights");
    assert_eq!(world.store.study_progress(run.id()).unwrap().failed, 0);
}

#[test]
fn budgets_and_narrow_intervals_end_a_run_between_blocks() {
    // A block takes 14 s: three fit into 50.
    let toml = STUDY.replacen("seed = 5", "seed = 5\nbudget = \"50s\"", 1);
    let mut world = World::new();
    let run = world.create(&toml, false).unwrap();
    world.run(run).unwrap();
    let early = analyse(&world.store, run.id()).unwrap().loaded.early.unwrap();
    assert_eq!((early.blocks, world.machine.ran.len()), (3, 3 * PER_BLOCK));
    assert!(early.reason.contains("budget of 50 s"), "{}", early.reason);

    let rule = "stop = { figure = \"rate\", half-width = \"5%\", at-least = 4 }";
    let toml = STUDY.replacen("seed = 5", &format!("seed = 5\n{rule}"), 1);
    let mut world = World::new();
    let run = world.create(&toml, false).unwrap();
    world.run(run).unwrap();
    assert_eq!(analyse(&world.store, run.id()).unwrap().loaded.early.unwrap().blocks, 4);
}

#[test]
fn the_analysis_says_what_the_world_does() {
    let mut world = World::new();
    let run = world.create(STUDY, false).unwrap();
    world.run(run).unwrap();
    let analysis = analyse(&world.store, run.id()).unwrap();
    assert_eq!(analysis.estimates.len(), 10);
    assert!((ratio(&analysis, "stall").interval.ratio - 0.5).abs() < 0.01);
    assert!((ratio(&analysis, "quota").interval.ratio - 0.7).abs() < 0.01);
    // Rates: lower is worse; 8 blocks suffice for two compared at a time.
    assert_eq!(
        (ratio(&analysis, "stall").verdict, ratio(&analysis, "stall").blocks),
        (Verdict::Worse, 8)
    );
    // The twins do not differ from their cells.
    assert_eq!((analysis.noise.len(), analysis.false_verdicts()), (4, (0, 4)));
    let claims = &analysis.loaded.study.claims;
    let judged = analysis.judge(&claims[0]);
    assert_eq!((judged.see.as_str(), judged.agree), ("0.5", Ok(true)));
    let judged = analysis.judge(&claims[1]);
    assert_eq!(judged.see, "(not measured)");
    assert_eq!(judged.agree.unwrap_err(), "value(rate, …): no matching cell was measured");
    let plot = &analysis.loaded.study.plots[0];
    let groups = analysis.groups(&plot.selection, &["method", "speed"]).unwrap();
    let names: Vec<&str> = groups.points.iter().map(|(key, _)| key[0].as_str()).collect();
    assert_eq!(names, ["stall", "quota"]);
    assert_eq!(groups.points[0].1.cells, 4);
    let mut tables = tables(&world.store, &analysis).unwrap();
    tables.extend(samples(&world.store, run.id()).unwrap().map(Result::unwrap));
    for table in &tables {
        assert!(!table.rows.is_empty(), "{}", table.name);
        for row in &table.rows {
            assert_eq!(row.len(), table.columns.len(), "{}", table.name);
        }
    }
    let rows = |name: &str| tables.iter().find(|table| table.name == name).unwrap().rows.len();
    assert_eq!((rows("cells"), rows("trials")), (18, 8 * PER_BLOCK));
    assert_eq!(rows("samples"), 8 * PER_BLOCK * 3);
    assert_eq!(tables[0].rows[0][1], Datum::text("a"));
}

fn ratio(analysis: &Analysis, method: &str) -> Comparison {
    let study = &analysis.loaded.study;
    let one = analysis
        .estimates
        .iter()
        .find(|one| analysis.loaded.cells.all[one.cell].level(study, "method") == Some(method));
    one.unwrap().comparison.unwrap()
}

#[test]
fn the_same_study_twice_shows_no_difference_and_another_machine_one() {
    let mut world = World::new();
    let run = world.create(STUDY, false).unwrap();
    world.run(run).unwrap();
    let mut other = World::new();
    let again = other.create(STUDY, false).unwrap();
    other.run(again).unwrap();
    let first = analyse(&world.store, run.id()).unwrap();
    let second = analyse(&other.store, again.id()).unwrap();
    let compared = diff(&first, &second);
    assert_eq!((compared.both.len(), compared.alone.0.len()), (10, 0));
    let needed = blocks_needed(10, 0.05);
    assert!(needed > 8, "a larger family needs more blocks");
    for row in &compared.both {
        let comparison = row.comparison.unwrap();
        assert!(comparison.interval.low > 0.98 && comparison.interval.high < 1.02, "{row:?}");
        assert_eq!(comparison.verdict, Verdict::Unknown { have: 8, need: needed }, "{row:?}");
    }
    assert_eq!(verdicts(&second, &first, 1.0, 8), [Verdict::Same; 2]);
    assert_eq!(verdicts(&second, &first, 3.0, 8), [Verdict::Better; 2]);
    let unknown = Verdict::Unknown { have: 3, need: blocks_needed(2, 0.05) };
    assert_eq!(verdicts(&second, &first, 3.0, 3), [unknown; 2]);
    let quick = world.create(STUDY, true).unwrap();
    world.run(quick).unwrap();
    let compared = diff(&first, &analyse(&world.store, quick.id()).unwrap());
    assert_eq!((compared.both.len(), compared.alone.0.len()), (6, 4));
}

/// Two cells are a small family, for which eight blocks suffice; three never do.
fn verdicts(second: &Analysis, first: &Analysis, factor: f64, blocks: u32) -> Vec<Verdict> {
    let mut other = second.clone();
    other.estimates.truncate(2);
    for one in &mut other.estimates {
        one.starts.retain(|block, _| *block < blocks);
        one.starts.values_mut().flatten().for_each(|value| *value *= factor);
    }
    let rows = diff(first, &other).both.into_iter();
    rows.map(|row| row.comparison.unwrap().verdict).collect::<Vec<_>>()
}

#[test]
fn a_store_keeps_to_its_study_and_its_host() {
    let mut world = World::new();
    let run = world.create(STUDY, false).unwrap();
    let error = world.create(STUDY, false).unwrap_err();
    assert!(error.to_string().contains("an unfinished run"), "{error}");
    let other = STUDY.replace("name = \"toy\"", "name = \"other\"");
    let error = world.create(&other, false).unwrap_err();
    assert!(error.to_string().ends_with("holds the study \"toy\", not \"other\""), "{error}");
    let loaded = Loaded::read(&world.store, run.id()).unwrap();
    loaded.require_same_text("toy.toml", STUDY).unwrap();
    let error =
        loaded.require_same_text("toy.toml", &STUDY.replace("seed = 5", "seed = 6")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "toy.toml is not the file that the run started with: line 3 differs"
    );
    let moved = Origin { kernel: "7.0".to_owned(), ..origin() };
    let error = world.open(run, moved).unwrap_err();
    let changed = matches!(&error, RunError::Store(StoreError::HostChanged { .. }));
    assert!(changed && error.to_string().contains("kernel: 6.12.1 then, 7.0 now"), "{error}");
}

#[test]
fn a_hundred_thousand_trials_are_counted_by_index() {
    let mut world = World::new();
    let run = world.create(STUDY, true).unwrap();
    let rows = 100_000;
    world.store.fill_with_trials(run.id(), rows).unwrap();
    let progress = world.store.study_progress(run.id()).unwrap();
    assert_eq!(progress.ok, rows);
    let plans = world.store.study_query_plans().unwrap();
    assert!(plans.iter().all(|step| !step.starts_with("SCAN")), "{plans:?}");
}
