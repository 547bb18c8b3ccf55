//! What plots, tables and claims show of a run: statistics of samples, sequences, selections.

use pinfold_model::{PlotKind, Unit};

use super::super::*;
use super::world::{STUDY, World};

/// The analysis of the study with these additional parts of its report.
fn analyse_report(report: &str) -> Analysis {
    let toml = STUDY.replacen("[[plot]]", &format!("{report}[[plot]]"), 1);
    let mut world = World::new();
    let run = world.create(&toml, true).unwrap();
    world.run(run).unwrap();
    analyse(&world.store, run.id()).unwrap()
}

#[test]
fn a_table_of_statistics_has_a_unit_for_each_column() {
    let analysis = analyse_report(
        "[[table]]\nname = \"t\"\nfigure = \"rate\"\nstatistics = [\"count\", \"mean\", \
         \"deviation\"]\nfigures = [\"rate.max\"]\nrows = [\"method\"]\n",
    );
    let table = &analysis.loaded.study.tables[0];
    assert_eq!(table.headings, ["count", "mean", "deviation", "rate.max"]);
    let shown: Vec<Groups> =
        table.selections.iter().map(|one| analysis.groups(one, &["method"]).unwrap()).collect();
    let units: Vec<Option<Unit>> = shown.iter().map(|one| one.unit).collect();
    let rate = Some(Unit::PerSecond);
    assert_eq!(units, [Some(Unit::Count), rate, rate, rate]);
    // Each trial has three samples of the same value.
    for groups in &shown {
        assert_eq!(groups.points.len(), 3, "{groups:?}");
    }
    assert!(
        claim_toml(&shown, 0) == 3.0 && claim_toml(&shown, 2) < 1e-6,
        "{} {}",
        claim_toml(&shown, 0),
        claim_toml(&shown, 2)
    );
    assert!(
        (claim_toml(&shown, 1) - claim_toml(&shown, 3)).abs() < 1.0
            && claim_toml(&shown, 1) > 0.9e6,
        "{} {}",
        claim_toml(&shown, 1),
        claim_toml(&shown, 3)
    );
    assert!(has(&analysis, "rate.mean") && !has(&analysis, "rate.min"));
}

fn claim_toml(shown: &[Groups], column: usize) -> f64 {
    shown[column].points[0].1.value
}

/// Statistics that nothing shows are not computed.
fn has(analysis: &Analysis, name: &str) -> bool {
    analysis.estimates.iter().any(|one| one.figure.probe == name)
}

/// Quota has 0.7 of the speed of no method and stall 0.5, so 1.4 of that of stall.
#[test]
fn a_table_may_have_a_baseline_of_its_own() {
    let own = "baseline = { method = \"stall\" }\n";
    let analysis = analyse_report(&(table("usual", "") + &table("own", own)));
    let [(first, to_none), (second, quota_to_none)] = &ratios(&analysis, 0)[..] else {
        panic!("two")
    };
    assert_eq!((first.as_str(), second.as_str()), ("stall", "quota"));
    let [(name, to_stall)] = &ratios(&analysis, 1)[..] else {
        panic!("{:?}", ratios(&analysis, 1))
    };
    assert_eq!(name, "quota");
    let expected = quota_to_none.value / to_none.value;
    assert!((to_stall.value / expected - 1.0).abs() < 0.05, "{} {expected}", to_stall.value);
    assert!(to_stall.range.is_some());
}

fn ratios(analysis: &Analysis, table: usize) -> Vec<(String, Point)> {
    let selection = &analysis.loaded.study.tables[table].selections[0];
    let points = analysis.groups(selection, &["method"]).unwrap().points;
    points.into_iter().map(|(key, point)| (key[0].clone(), point)).collect::<Vec<_>>()
}

fn table(name: &str, baseline: &str) -> String {
    format!(
        "[[table]]\nname = \"{name}\"\nfigure = \"rate\"\nshow = \"ratio\"\nrows = [\"method\"]\n\
             where = \"cores == 1 and workload == 'a'\"\n{baseline}"
    )
}

/// The cells with eight cores are skipped.
#[test]
fn a_table_may_have_rows_of_skipped_cells() {
    let table = "[[table]]\nname = \"t\"\nfigure = \"rate\"\nrows = [\"cores\"]\nskipped-rows = true\n\
                 where = \"method == 'stall'\"\n";
    let toml = STUDY.replacen("[[plot]]", &format!("{table}[[plot]]"), 1);
    let mut world = World::new();
    let run = world.create(&toml, false).unwrap();
    world.run(run).unwrap();
    let analysis = analyse(&world.store, run.id()).unwrap();
    let table = &analysis.loaded.study.tables[0];
    assert!(table.has_skipped_rows);
    let selection = &table.selections[0];
    assert_eq!(analysis.all_keys(selection, &["cores"]), [["1"], ["2"], ["8"]]);
    assert_eq!(analysis.groups(selection, &["cores"]).unwrap().points.len(), 2);
    assert_eq!(analysis.reasons_of_absence(selection), ["too few CPUs"]);
    let other = Selection { figure: "other.mean".to_owned(), ..selection.clone() };
    let left_out = "this form of the study leaves its workload out";
    assert_eq!(analysis.reasons_of_absence(&other), [left_out]);
}

#[test]
fn a_sequence_is_of_one_trial() {
    let analysis = analyse_report(
        "[[plot]]\nname = \"s\"\nfigure = \"rate\"\nkind = \"sequence\"\nseries = \"method\"\n\
         where = \"workload == 'a'\"\n",
    );
    let plot = &analysis.loaded.study.plots[0];
    assert_eq!((plot.kind, plot.x.as_str()), (PlotKind::Sequence, ORDER));
    let found = analysis.sequences(&plot.selection, &["method"]).unwrap();
    let lengths: Vec<(&str, usize)> =
        found.iter().map(|(key, samples)| (key[0].as_str(), samples.len())).collect();
    assert_eq!(lengths, [("none", 3), ("stall", 3), ("quota", 3)]);
}

#[test]
fn where_of_a_claim_selects_for_all_its_functions() {
    let report = "[[claim]]\nsource = \"s\"\nwhere = \"method == 'quota' and cores == 1\"\n\
         see = \"{round(ratio(rate), 1)}\"\nagree = \"ratio(rate) > 0.6 and value(rate.count) == 3\"\n";
    let toml = STUDY.replacen("[[plot]]", &format!("{report}[[plot]]"), 1);
    let mut world = World::new();
    let run = world.create(&toml, false).unwrap();
    world.run(run).unwrap();
    let analysis = analyse(&world.store, run.id()).unwrap();
    let judged = analysis.judge(&analysis.loaded.study.claims[0]);
    assert_eq!((judged.see.as_str(), judged.agree), ("0.7", Ok(true)));
}

/// A sum is over cells and blocks; the place of the largest is named by what distinguishes it.
#[test]
fn sums_and_the_places_of_the_ends() {
    let analysis = analyse_report(
        "[[claim]]\nsource = \"s\"\n\
         see = \"{smallest_at(rate, workload = 'a')}, {largest_at(rate, workload = 'a')}\"\n\
         agree = \"sum(rate, method = 'stall') > 3.9 * value(rate, method = 'stall')\"\n\
         [[table]]\nname = \"sums\"\nfigure = \"rate\"\nshow = \"sum\"\nrows = [\"method\"]\n",
    );
    let study = &analysis.loaded.study;
    let judged = analysis.judge(&study.claims[0]);
    assert_eq!(judged.see, "method stall, method quota");
    assert_eq!(judged.agree.unwrap_err(), "2 blocks, a verdict needs at least 6");
    let groups = analysis.groups(&study.tables[0].selections[0], &["method"]).unwrap();
    assert_eq!(groups.unit, Some(Unit::PerSecond));
    for (key, point) in &groups.points {
        let of_method = analysis.estimates.iter().filter(|one| {
            one.figure.probe == "rate"
                && analysis.loaded.cells.all[one.cell].level(study, "method") == Some(&key[0])
        });
        let starts = of_method.flat_map(|one| one.starts.values().flatten());
        // Two programs, two blocks.
        assert_eq!((point.cells, starts.clone().count()), (2, 4), "{key:?}");
        let sum: f64 = starts.sum();
        assert!((point.value / sum - 1.0).abs() < 1e-12, "{key:?}");
        let (low, high) = point.range.unwrap();
        assert!(low <= point.value && point.value <= high, "{key:?}");
    }
}

/// A value of the source stands next to the number of this run, with an interval from six blocks
/// on.
#[test]
fn a_value_of_the_source_has_the_number_of_the_run() {
    let rows = row("ratio(rate, method = 'stall', cores = 1)") + &row("ratio(rate, cores = 8)");
    let toml = STUDY.replacen("[[plot]]", &format!("{rows}[[plot]]"), 1);
    let [of_eight_blocks, skipped] = numbers(&toml, false);
    let measured = of_eight_blocks.unwrap();
    let interval = measured.interval.unwrap();
    assert!((measured.value - 0.5).abs() < 0.05, "{measured:?}");
    assert!(interval.low <= measured.value && measured.value <= interval.high, "{measured:?}");
    assert!(skipped.unwrap_err().starts_with("ratio(rate, …): no matching cell"));
    let [of_two_blocks, _] = numbers(&toml, true);
    assert_eq!(of_two_blocks.unwrap().interval, None);
}

fn numbers(toml: &str, is_quick: bool) -> [Result<MeasuredNumber, String>; 2] {
    let mut world = World::new();
    let run = world.create(toml, is_quick).unwrap();
    world.run(run).unwrap();
    let analysis = analyse(&world.store, run.id()).unwrap();
    let published = analysis.loaded.study.published.clone();
    [0, 1].map(|row| analysis.measured_number(&published[row]))
}

fn row(ours: &str) -> String {
    format!(
        "[[published]]\nplace = \"p\"\nquantity = \"q\"\nvalue = 0.5\nunit = \"ratio\"\n\
             ours = \"{ours}\"\n"
    )
}

/// The quick form has two blocks, with which no test can show anything.
#[test]
fn a_claim_is_not_settled_by_two_blocks_nor_at_its_limit() {
    fn claim_toml(agree: &str) -> String {
        format!(
            "[[claim]]\nsource = \"s\"\nwhere = \"method == 'quota'\"\nsee = \"s\"\nagree = \"{agree}\"\n"
        )
    }

    let analysis = analyse_report(&claim_toml("ratio(rate) > 0.6"));
    let judged = analysis.judge(&analysis.loaded.study.claims[0]);
    assert_eq!(judged.agree.unwrap_err(), "2 blocks, a verdict needs at least 6");
    let toml =
        STUDY.replacen("[[plot]]", &format!("{}[[plot]]", claim_toml("ratio(rate) > 0.7")), 1);
    let mut world = World::new();
    let run = world.create(&toml, false).unwrap();
    world.run(run).unwrap();
    let analysis = analyse(&world.store, run.id()).unwrap();
    let judged = analysis.judge(&analysis.loaded.study.claims[0]);
    assert_eq!(judged.agree.unwrap_err(), "the interval contains the limit");
}

/// Ratios are widened by what the baseline that they are compared with differs from itself.
#[test]
fn a_claim_is_widened_by_the_pair_of_its_own_baseline() {
    let claim = "[[claim]]\nsource = \"s\"\nsee = \"s\"\n\
         agree = \"ratio(rate, method = 'quota', cores = 1, workload = 'a') > 0.5\"\n";
    let toml = STUDY.replacen("[[plot]]", &format!("{claim}[[plot]]"), 1);
    let mut world = World::new();
    let run = world.create(&toml, false).unwrap();
    world.run(run).unwrap();
    let mut analysis = analyse(&world.store, run.id()).unwrap();
    let claim = analysis.loaded.study.claims[0].clone();
    let cells = &analysis.loaded.cells.all;
    let own = cells
        .iter()
        .find(|cell: &&Cell| {
            let study = &analysis.loaded.study;
            is(cell, study, "method", "quota")
                && is(cell, study, "cores", "1")
                && cell.workload(study).name == "a"
        })
        .unwrap()
        .baseline
        .unwrap();
    for pair in analysis.noise.iter_mut().filter(|pair| pair.cell != own) {
        pair.interval.ratio = 0.1;
    }
    assert_eq!(analysis.judge(&claim).agree, Ok(true));
    for pair in analysis.noise.iter_mut().filter(|pair| pair.cell == own) {
        pair.interval.ratio = 0.1;
    }
    assert_eq!(analysis.judge(&claim).agree.unwrap_err(), "the interval contains the limit");
}

fn is(cell: &&Cell, study: &Study, factor: &str, level: &str) -> bool {
    cell.level(study, factor) == Some(level)
}

/// The deviation of a block from its cell, with an interval from six blocks on.
#[test]
fn a_claim_can_compare_how_results_vary() {
    fn claim_toml(agree: &str) -> String {
        format!(
            "[[claim]]\nsource = \"s\"\nsee = \"{{round(variation(rate), 9)}}\"\nagree = \"{agree}\"\n"
        )
    }

    let judged = |agree: &str, is_quick: bool| {
        let toml = STUDY.replacen("[[plot]]", &format!("{}[[plot]]", claim_toml(agree)), 1);
        let mut world = World::new();
        let run = world.create(&toml, is_quick).unwrap();
        world.run(run).unwrap();
        let analysis = analyse(&world.store, run.id()).unwrap();
        let judged = analysis.judge(&analysis.loaded.study.claims[0]);
        let deviations = analysis.estimates.iter().filter(|one| one.figure.probe == "rate");
        let deviations: Vec<f64> = deviations
            .flat_map(|one| {
                let blocks = one.starts.values().flatten();
                blocks.map(|block| (block / one.median - 1.0).abs())
            })
            .collect();
        let expected = pinfold_stats::median(&deviations).unwrap();
        assert!((judged.see.parse::<f64>().unwrap() - expected).abs() < 1e-6, "{judged:?}");
        judged.agree
    };
    assert_eq!(judged("variation(rate) < 0.5", false), Ok(true));
    assert_eq!(judged("variation(rate) > 0.5", false), Ok(false));
    let same = "variation(rate, method = 'stall') < variation(rate, method = 'stall')";
    assert_eq!(judged(same, false).unwrap_err(), "the interval contains the limit");
    let few = judged("variation(rate) < 0.5", true).unwrap_err();
    assert_eq!(few, "2 blocks, a verdict needs at least 6");
}

#[test]
fn figures_are_sorted_by_the_size_of_their_labels() {
    let mut names = ["16384", "4096", "1M", "64K"].map(name);
    names.sort();
    assert_eq!(names, ["4096", "16384", "64K", "1M"].map(name));
}

fn name(bytes: &str) -> pinfold_stats::compare::Key {
    FigureName {
        probe: "latency".to_owned(),
        labels: [("bytes".to_owned(), bytes.to_owned())].into(),
    }
}

/// A bracket of two blocks is their range; the bootstrap's would be called 95 % and cover half.
#[test]
fn below_six_blocks_the_bounds_are_the_range() {
    let (of_two, range) = bounds(true);
    assert_eq!(of_two, range);
    let (of_eight, range) = bounds(false);
    assert!(range.0 < of_eight.0 && of_eight.1 < range.1, "{of_eight:?} of {range:?}");
}

fn bounds(is_quick: bool) -> ((f64, f64), (f64, f64)) {
    let mut world = World::new();
    let run = world.create(STUDY, is_quick).unwrap();
    world.run(run).unwrap();
    let analysis = analyse(&world.store, run.id()).unwrap();
    let one = analysis.estimates.into_iter().find(|one| one.comparison.is_some()).unwrap();
    let values: Vec<f64> = one.starts.values().flatten().copied().collect();
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let ratio = one.comparison.unwrap().interval;
    assert!(ratio.low <= ratio.ratio && ratio.ratio <= ratio.high);
    (one.interval.unwrap(), (low, high))
}

/// A value of the source belongs to one point of a chart, or to none.
#[test]
fn a_value_of_the_source_has_its_place_in_a_chart() {
    let plot = "[[plot]]\nname = \"one\"\nfigure = \"rate\"\nshow = \"ratio\"\nx = \"speed\"\n\
                series = \"method\"\npanel = \"cores\"\nwhere = \"workload == 'a'\"\n";
    let rows = [
        "ratio(rate, workload = 'a', method = 'stall', speed = 0.5, cores = 1)",
        // The chart has no workload b, shows ratios, and one point for each number of cores.
        "ratio(rate, workload = 'b', method = 'stall', speed = 0.5, cores = 1)",
        "value(rate, workload = 'a', method = 'stall', speed = 0.5, cores = 1)",
        "ratio(rate, workload = 'a', method = 'stall', speed = 0.5)",
        "ratio(rate, method = 'stall', cores = 1) / ratio(rate, method = 'quota', cores = 1)",
    ];
    let analysis = analyse_report(&(rows.map(|ours| {
        format!(
            "[[published]]\nplace = \"p\"\nquantity = \"q\"\nvalue = 0.5\nunit = \"ratio\"\n\
             ours = \"{ours}\"\n"
        )
    }).concat() + plot));
    let study = &analysis.loaded.study;
    assert_eq!(place(study, &analysis, 0).unwrap(), ["1", "stall", "0.5"]);
    // The quick form has one level of cores, so that the fourth is the same point.
    assert_eq!([1, 2, 4].map(|index| place(study, &analysis, index)), [None, None, None]);
    assert_eq!(place(study, &analysis, 3), place(study, &analysis, 0));
    assert_eq!(check_only(&analysis, study, "method", &["stall"]).as_deref(), Some("stall"));
    assert_eq!(check_only(&analysis, study, "method", &["stall", "quota"]), None);
    assert_eq!(check_only(&analysis, study, "cores", &["1"]), None, "the quick form has no other");
}

fn check_only(analysis: &Analysis, study: &Study, name: &str, found: &[&str]) -> Option<String> {
    let found: Vec<String> = found.iter().map(|level| (*level).to_owned()).collect();
    analysis.only_level(&study.plots[0].selection, name, &found).map(str::to_owned)
}

fn place(study: &Study, analysis: &Analysis, index: usize) -> Option<Vec<String>> {
    let selection = &study.plots[0].selection;
    analysis.group_of(&study.published[index], selection, &["cores", "method", "speed"])
}
