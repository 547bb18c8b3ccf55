//! Tests of comparisons.

use pinfold_model::Statistic;

use super::*;

fn figure(label: &str, unit: Unit, family: Family, samples: Vec<f64>) -> Figure {
    Figure {
        probe: "p".to_owned(),
        labels: BTreeMap::from([("size".to_owned(), label.to_owned())]),
        unit,
        family,
        cpu: Some(0),
        duration_ns: 1,
        samples,
        dropped: 0,
        disturbed: 0,
        flags: Vec::new(),
    }
}

fn rates(level: f64, blocks: u32) -> Vec<Vec<Figure>> {
    (0..blocks)
        .map(|block| {
            let drift = 1.0 + f64::from(block % 3) * 0.001;
            vec![figure("4", Unit::PerSecond, Family::Capacity, vec![level * drift])]
        })
        .collect()
}

#[test]
fn twice_as_fast_is_better_from_enough_blocks_on() {
    let found = compare(&rates(200.0, 8), &rates(100.0, 8));
    assert_eq!((found.blocks, found.rows.len()), (8, 2));
    assert!(found.unmatched.is_empty());
    for row in &found.rows {
        assert_eq!(row.ratio, Some(2.0));
        assert_eq!(row.outcome, Outcome::Verdict(Verdict::Better), "{}", row.aspect);
    }
    let few = compare(&rates(200.0, 3), &rates(100.0, 3));
    assert_eq!(few.rows[0].outcome.to_string(), "unknown: 3 blocks, 8 needed");
    let one = compare(&rates(200.0, 1), &rates(100.0, 1));
    assert_eq!((one.rows[0].ratio, one.rows[0].interval), (Some(2.0), None));
    assert_eq!(one.rows[0].outcome.to_string(), "unknown: 1 block, 8 needed");
    let same = compare(&rates(100.0, 8), &rates(100.0, 8));
    assert!(same.rows.iter().all(|row| row.outcome == Outcome::Verdict(Verdict::Same)));
}

/// A figure of one side of `chase`, as pinload labels it.
fn chase(labels: &str) -> Vec<Figure> {
    let labels = labels.split(';').map(|label| label.split_once('=').unwrap());
    let mut figure = figure("", Unit::Nanoseconds, Family::Capacity, vec![2.0]);
    figure.labels = labels.map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
    vec![figure]
}

#[test]
fn what_describes_the_machine_does_not_keep_figures_apart() {
    let found = compare(&side("L1d 64K", "L1d", "random"), &side("L1d 8K", "L2", "random"));
    assert!(found.unmatched.is_empty(), "{:?}", found.unmatched);
    let bytes: Vec<&str> = found.rows.iter().map(|row| row.key.labels["bytes"].as_str()).collect();
    assert_eq!(bytes, ["4096", "4096", "16384", "16384"], "by size, not as texts");
    assert_eq!(found.rows[0].described["level"], ["L1d", "L2"]);
    assert_eq!(found.rows[0].ratio, Some(1.0));
    // The order is the user's choice.
    let found = compare(&side("L1d", "L1d", "random"), &side("L1d", "L1d", "linear"));
    assert_eq!((found.rows.len(), found.unmatched.len()), (0, 4));
}

fn side(caches: &str, level: &str, order: &str) -> Vec<Vec<Figure>> {
    let block: Vec<Figure> = ["16384", "4096"]
        .iter()
        .flat_map(|bytes| {
            chase(&format!("bytes={bytes};caches={caches};level={level};order={order}"))
        })
        .collect();
    vec![block]
}

#[test]
fn of_exits_no_one_says_which_way_is_better() {
    let found = compare(&exits(200.0), &exits(100.0));
    assert_eq!((found.rows.len(), found.rows[0].ratio), (1, Some(2.0)));
    assert_eq!(found.rows[0].outcome, Outcome::NoDirection, "more of them per second is no gain");
}

fn exits(level: f64) -> Vec<Vec<Figure>> {
    let mut blocks = rates(level, 8);
    for figure in blocks.iter_mut().flatten() {
        figure.probe = "exits".to_owned();
        figure.family = Family::Count;
    }
    blocks
}

#[test]
fn what_has_no_partner_is_reported() {
    let found = compare(&rows_with("4", Unit::Count), &rows_with("8", Unit::Count));
    assert!(found.rows.is_empty());
    assert_eq!(found.unmatched, ["only the first has p size=4", "only the second has p size=8"]);
    let found = compare(&rows_with("4", Unit::Count), &rows_with("4", Unit::Bytes));
    assert_eq!(found.unmatched, ["p size=4 is in count on one side and in bytes on the other"]);
    let found = compare(&rates(1.0, 3), &rates(1.0, 2));
    assert_eq!((found.blocks, found.unmatched.len()), (2, 1));
    assert_eq!(compare(&[], &[]).rows, []);
}

fn rows_with(label: &str, unit: Unit) -> Vec<Vec<Figure>> {
    vec![vec![figure(label, unit, Family::Count, vec![1.0])]]
}

#[test]
fn several_cpus_are_one_population() {
    let found = compare(&[block(1.0, 9.0)], &[block(3.0, 2.0)]);
    let max =
        found.rows.iter().find(|row| row.aspect == ComparedStatistic::Of(Statistic::Max)).unwrap();
    assert_eq!((max.first, max.second, max.ratio), (Some(9.0), Some(3.0), Some(3.0)));
}

fn block(a: f64, b: f64) -> Vec<Figure> {
    let mut other = figure("4", Unit::Nanoseconds, Family::Tail, vec![b]);
    other.cpu = Some(1);
    vec![figure("4", Unit::Nanoseconds, Family::Tail, vec![a]), other]
}

#[test]
fn nothing_and_trouble_give_no_verdict() {
    let found = compare(&tail(vec![]), &tail(vec![5.0]));
    for row in &found.rows {
        assert_eq!((row.first, row.ratio, row.interval), (None, None, None));
        assert_eq!(row.outcome.to_string(), "no ratio: no values above zero in the first");
    }
    let mut busy = rates(100.0, 8);
    busy.iter_mut().flatten().for_each(|figure| figure.disturbed = 1);
    let found = compare(&rates(100.0, 8), &busy);
    assert_eq!(
        found.rows[0].outcome.to_string(),
        "contended: 50 % of the windows of the second were excluded"
    );
    let torn: Vec<f64> = (0..600).map(|n| if n < 450 { 100.0 } else { 50.0 }).collect();
    let torn = vec![vec![figure("4", Unit::PerSecond, Family::Capacity, torn)]; 8];
    let level = vec![vec![figure("4", Unit::PerSecond, Family::Capacity, vec![100.0; 600])]; 8];
    let found = compare(&torn, &level);
    assert_eq!(found.rows[0].outcome.to_string(), "no steady state in the first");
    let shares = vec![vec![figure("4", Unit::Share, Family::Count, vec![0.5])]; 8];
    assert_eq!(compare(&shares, &shares).rows[0].outcome, Outcome::NoDirection);
}

fn tail(samples: Vec<f64>) -> Vec<Vec<Figure>> {
    vec![vec![figure("4", Unit::Nanoseconds, Family::Tail, samples)]; 8]
}

const SECOND: u64 = 1_000_000_000;

/// Blocks of one CPU's stalls.
fn gaps(samples: &[f64], seconds: u64) -> Vec<Vec<Figure>> {
    let mut figure = figure("4", Unit::Nanoseconds, Family::Tail, samples.to_vec());
    figure.probe = "spin-gap".to_owned();
    figure.duration_ns = seconds * SECOND;
    vec![vec![figure]; 8]
}

fn row(found: &Comparison, aspect: ComparedStatistic) -> &Row {
    found.rows.iter().find(|row| row.aspect == aspect).unwrap()
}

#[test]
fn gaps_are_compared_as_arrivals_meet_them() {
    // The same two long stalls; the first side has no short ones, so its median over stalls is 250
    // times that of the second, and half of the time is in stalls.
    let mut many = vec![20e3; 500];
    many.extend([5e6, 5e6]);
    let found = compare(&gaps(&[5e6, 5e6], 1), &gaps(&many, 1));
    let taken = row(&found, ComparedStatistic::Taken);
    assert_eq!(taken.unit, Unit::Share);
    assert!((taken.first.unwrap() - 0.01).abs() < 1e-12, "{taken:?}");
    assert!((taken.ratio.unwrap() - 0.5).abs() < 1e-9, "{taken:?}");
    assert_eq!(taken.outcome, Outcome::Verdict(Verdict::Better));
    let same = |aspect| row(&found, aspect).outcome == Outcome::Verdict(Verdict::Same);
    assert!(same(ComparedStatistic::WaitsOver(100)) && same(ComparedStatistic::WaitsOver(1_000)));
    assert!(same(ComparedStatistic::Of(Statistic::Max)));
    assert!(found.rows.iter().all(|row| row.aspect != ComparedStatistic::Of(Statistic::Median)));
}

#[test]
fn a_side_without_a_gap_lies_below_the_floor_and_wins() {
    let found = compare(&gaps(&[], 1), &gaps(&[2e6, 50e3], 1));
    for row in &found.rows {
        assert_eq!(row.outcome, Outcome::Verdict(Verdict::Better), "{}", row.aspect);
        assert_eq!(row.first, Some(0.0));
        assert!(row.floor.is_some_and(|floor| floor > 0.0));
    }
    // One stall of the minimum length in one second.
    assert_eq!(row(&found, ComparedStatistic::Taken).floor, Some(1e-6));
    let quiet = compare(&gaps(&[], 1), &gaps(&[], 1));
    assert!(quiet.rows.iter().all(|row| row.outcome == Outcome::Verdict(Verdict::Same)));
}

#[test]
fn unequal_times_of_looking_give_the_longest_no_verdict() {
    fn tail(seconds: u64) -> Vec<Vec<Figure>> {
        let mut figure = figure("4", Unit::Nanoseconds, Family::Tail, vec![5.0, seconds as f64]);
        figure.duration_ns = seconds * SECOND;
        vec![vec![figure]; 8]
    }

    let max = ComparedStatistic::Of(Statistic::Max);
    let unequal = Outcome::UnequalTime(SECOND, 60 * SECOND);
    let many = vec![100e3; 60];
    let found = compare(&gaps(&[100e3], 1), &gaps(&[&many[..], &[9e6]].concat(), 60));
    let longest = row(&found, max);
    assert_eq!((&longest.outcome, longest.p_holm), (&unequal, None));
    assert_eq!(longest.outcome.to_string(), "no verdict: 1.000 s against 60.000 s");
    assert!(longest.ratio.is_some(), "it is told all the same");
    // The short observation may have missed it.
    assert_eq!(row(&found, ComparedStatistic::WaitsOver(1_000)).outcome, unequal);
    assert!(matches!(row(&found, ComparedStatistic::Taken).outcome, Outcome::Verdict(_)));
    assert_eq!(row(&compare(&tail(1), &tail(60)), max).outcome, unequal);
    assert!(matches!(row(&compare(&tail(60), &tail(61)), max).outcome, Outcome::Verdict(_)));
    // Stalls cannot fill more than the pauses between spins.
    let mut full = [gaps(&[900e6], 1), gaps(&[9_900e6], 10)];
    for figure in full.iter_mut().flatten().flatten() {
        figure.labels.insert("duty-percent".to_owned(), "50".to_owned());
    }
    let outcome = row(&compare(&full[0], &full[1]), max).outcome.clone();
    assert_eq!(outcome, Outcome::UnequalTime(SECOND, 10 * SECOND));
    // A delayed spin lasts longer by its delay: the intended times of both are equal.
    let mut crowded = gaps(&[300e6, 200e6], 1);
    crowded.iter_mut().flatten().for_each(|figure| figure.duration_ns += 400_000_000);
    let found = compare(&gaps(&[], 1), &crowded);
    assert!(found.rows.iter().all(|row| row.outcome == Outcome::Verdict(Verdict::Better)));
}

#[test]
fn lost_gaps_give_no_verdict() {
    let mut full = gaps(&[2e6], 1);
    full.iter_mut().flatten().for_each(|figure| figure.dropped = 1);
    let found = compare(&gaps(&[1e6], 1), &full);
    assert!(found.rows.iter().all(|row| row.outcome == Outcome::Lost(Side::Second)));
}
