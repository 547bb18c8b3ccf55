//! Tests of comparisons.

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
        assert_eq!(row.outcome, Outcome::Verdict(Verdict::Better), "{:?}", row.statistic);
    }
    let few = compare(&rates(200.0, 3), &rates(100.0, 3));
    assert_eq!(few.rows[0].outcome.to_string(), "unknown: 3 blocks, 7 needed");
    let one = compare(&rates(200.0, 1), &rates(100.0, 1));
    assert_eq!((one.rows[0].ratio, one.rows[0].interval), (Some(2.0), None));
    assert_eq!(one.rows[0].outcome.to_string(), "unknown: 1 blocks, 7 needed");
    let same = compare(&rates(100.0, 8), &rates(100.0, 8));
    assert!(same.rows.iter().all(|row| row.outcome == Outcome::Verdict(Verdict::Same)));
}

#[test]
fn of_exits_nobody_says_which_way_is_better() {
    let exits = |level: f64| -> Vec<Vec<Figure>> {
        let mut blocks = rates(level, 8);
        for figure in blocks.iter_mut().flatten() {
            figure.probe = "exits".to_owned();
            figure.family = Family::Count;
        }
        blocks
    };
    let found = compare(&exits(200.0), &exits(100.0));
    assert_eq!((found.rows.len(), found.rows[0].ratio), (1, Some(2.0)));
    assert_eq!(found.rows[0].outcome, Outcome::NoDirection, "more of them per second is no gain");
}

#[test]
fn what_has_no_partner_is_told() {
    let with = |label: &str, unit: Unit| vec![vec![figure(label, unit, Family::Count, vec![1.0])]];
    let found = compare(&with("4", Unit::Count), &with("8", Unit::Count));
    assert!(found.rows.is_empty());
    assert_eq!(found.unmatched, ["only the first has p size=4", "only the second has p size=8"]);
    let found = compare(&with("4", Unit::Count), &with("4", Unit::Bytes));
    assert_eq!(found.unmatched, ["p size=4 is in count on one side and in bytes on the other"]);
    let found = compare(&rates(1.0, 3), &rates(1.0, 2));
    assert_eq!((found.blocks, found.unmatched.len()), (2, 1));
    assert_eq!(compare(&[], &[]).rows, []);
}

#[test]
fn several_cpus_are_one_population() {
    let block = |a: f64, b: f64| {
        let mut other = figure("4", Unit::Nanoseconds, Family::Tail, vec![b]);
        other.cpu = Some(1);
        vec![figure("4", Unit::Nanoseconds, Family::Tail, vec![a]), other]
    };
    let found = compare(&[block(1.0, 9.0)], &[block(3.0, 2.0)]);
    let max = found.rows.iter().find(|row| row.statistic == Statistic::Max).unwrap();
    assert_eq!((max.first, max.second, max.ratio), (Some(9.0), Some(3.0), Some(3.0)));
}

#[test]
fn nothing_and_trouble_give_no_verdict() {
    let tail =
        |samples: Vec<f64>| vec![vec![figure("4", Unit::Nanoseconds, Family::Tail, samples)]; 8];
    let found = compare(&tail(vec![]), &tail(vec![5.0]));
    for row in &found.rows {
        assert_eq!((row.first, row.ratio, row.interval), (None, None, None));
        assert_eq!(row.outcome.to_string(), "no ratio: nothing above zero in the first");
    }
    let mut busy = rates(100.0, 8);
    busy.iter_mut().flatten().for_each(|figure| figure.disturbed = 1);
    let found = compare(&rates(100.0, 8), &busy);
    assert_eq!(found.rows[0].outcome.to_string(), "contended: 50 % left out of the second");
    let torn: Vec<f64> = (0..600).map(|n| if n < 450 { 100.0 } else { 50.0 }).collect();
    let torn = vec![vec![figure("4", Unit::PerSecond, Family::Capacity, torn)]; 8];
    let level = vec![vec![figure("4", Unit::PerSecond, Family::Capacity, vec![100.0; 600])]; 8];
    let found = compare(&torn, &level);
    assert_eq!(found.rows[0].outcome.to_string(), "no steady state in the first");
    let shares = vec![vec![figure("4", Unit::Share, Family::Count, vec![0.5])]; 8];
    assert_eq!(compare(&shares, &shares).rows[0].outcome, Outcome::NoDirection);
}
