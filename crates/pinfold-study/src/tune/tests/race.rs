//! Races: candidates that cannot win are dropped early and reported; the baseline and its twin are
//! never dropped.

use std::collections::BTreeSet;

use pinfold_stats::Verdict;

use super::super::*;
use super::world::{Trouble, World, racing};
use crate::fixture;
use crate::store::{HostChange, Phase};

const SEVEN: [(&str, f64, f64); 7] = [
    ("none", 5e6, 100.0),
    ("a", 0.9e6, 100.0),
    ("b", 1e6, 100.0),
    ("c", 1.6e6, 100.0),
    ("d", 9e6, 100.0),
    ("e", 4e6, 100.0),
    ("f", 7e6, 100.0),
];

fn names(rows: &[Dropped]) -> Vec<&str> {
    rows.iter().map(|row| row.name.as_str()).collect()
}

#[test]
fn those_who_cannot_win_are_dropped_and_reported_of() {
    let mut world = World::new(&SEVEN);
    let report = world.tune(&racing(Goal::Latency)).unwrap();
    assert!(report.finished);
    let gone = names(&report.dropped);
    assert!(["d", "e", "f"].iter().all(|name| gone.contains(name)), "{gone:?}");
    for row in &report.dropped {
        assert!(row.p <= row.level && row.ratio > 1.0 && row.blocks >= 2, "{row:?}");
        assert!(report.findings.iter().any(|finding| is_reported(row, &finding)), "{row:?}");
    }
    let winner = report.winner.as_ref().unwrap();
    assert!(["a", "b"].contains(&winner.name.as_str()), "{}", winner.name);
    assert_eq!(winner.against_baseline.as_ref().unwrap().verdict, Verdict::Better);
    // The baseline and its twin are in every block of the confirmation, and so is the winner.
    let candidate = |name| world.candidates.iter().position(|one| one.name == name).unwrap();
    let needed = [0, candidate(winner.name.as_str()), world.candidates.len()];
    for order in &report.design.confirmation {
        let who: BTreeSet<usize> = order.iter().map(|start| start.slot.candidate).collect();
        assert!(needed.iter().all(|one| who.contains(one)), "{who:?}");
    }
    assert!(!report.aa.is_empty());
    // A candidate dropped in the confirmation ranks last and has no verdict.
    for row in report.ranking.iter().filter(|row| row.dropped) {
        let cells = row.cells.iter().filter_map(|cell| cell.against_baseline.as_ref());
        for contrast in cells {
            assert!(matches!(contrast.verdict, Verdict::Unknown { .. }), "{contrast:?}");
        }
    }
    assert!(report.ranking.is_sorted_by_key(|row| row.dropped));
    assert_eq!(report.design.done, report.design.planned);
    assert!(report.design.done * 10 < report.design.full * 8, "{:?}", report.design.done);
    assert!(report.findings.iter().any(|finding| finding.text.contains("for the full matrix")));
}

fn is_reported(row: &Dropped, finding: &&pinfold_model::Finding) -> bool {
    finding.subject == row.name && finding.text.contains("can no longer win")
}

#[test]
fn the_full_matrix_drops_no_one() {
    let mut world = World::new(&SEVEN);
    let full = TuneConfig { budget_s: 800.0, ..racing(Goal::Latency).without_race() };
    let report = world.tune(&full).unwrap();
    assert!(report.dropped.is_empty() && report.screening.is_empty());
    assert_eq!((report.ranking.len(), report.design.done), (7, report.design.full));
}

#[test]
fn a_race_that_is_broken_off_takes_the_same_decisions_again() {
    fn world() -> World {
        let mut world = World::new(&SEVEN);
        world.machine.troubles.insert((Phase::Screening, 1, 2), Trouble::Twice);
        world
    }

    let config = TuneConfig { screening_blocks: 3, ..racing(Goal::Latency) };
    let mut whole = world();
    let expected = whole.tune(&config).unwrap();
    assert!(expected.dropped.len() >= 3);
    for stops in [vec![1, 14], vec![20], (1..45).step_by(9).collect()] {
        let mut world = world();
        let created = world.create(&config).unwrap();
        let mut open = created.run;
        for stop in &stops {
            world.stop_after(*stop);
            assert!(matches!(world.go(open).unwrap(), Outcome::Interrupted { .. }), "{stop}");
            // A candidate that an unfinished run shows as dropped stays dropped.
            let half = analyse(&world.store, open.id()).unwrap();
            assert_eq!(half.dropped[..], expected.dropped[..half.dropped.len()], "{stop}");
            open = world.reopen(open.id(), fixture::origin(), HostChange::Refuse);
        }
        assert_eq!(world.go(open).unwrap(), Outcome::Finished);
        let report = analyse(&world.store, open.id()).unwrap();
        assert_eq!(report.dropped, expected.dropped, "stopped after {stops:?}");
        assert!(report == expected, "stopped after {stops:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_race() {
    assert_eq!(tune_with_noise(0.15), tune_with_noise(0.15));
    assert_ne!(tune_with_noise(0.15), tune_with_noise(0.6), "a wider spread takes longer");
}

fn tune_with_noise(noise: f64) -> Vec<Dropped> {
    let mut world = World::new(&SEVEN);
    world.noise = noise;
    world.tune(&racing(Goal::Latency)).unwrap().dropped
}

#[test]
fn only_what_the_goal_does_not_need_is_dropped() {
    // jumpy has the reference rate, smooth the shortest stalls.
    let five = [
        ("none", 5e6, 100.0),
        ("jumpy", 8e6, 150.0),
        ("smooth", 0.1e6, 90.0),
        ("middle", 1e6, 148.0),
        ("other", 1.2e6, 99.0),
    ];
    let mut world = World::new(&five);
    let report = world.tune(&racing(Goal::Balanced)).unwrap();
    assert_eq!(report.winner.as_ref().unwrap().name, "middle");
    // With a limit that only smooth keeps, the fastest cannot displace it.
    let mut world = World::new(&five);
    let limit = TuneConfig { max_gap_ns: Some(500_000), ..racing(Goal::Throughput) };
    let report = world.tune(&limit).unwrap();
    assert_eq!(report.winner.as_ref().unwrap().name, "smooth");
    assert!(!names(&report.dropped).contains(&"smooth"));
}

#[test]
fn a_race_goes_on_while_there_is_time_and_others_than_the_three_may_be_the_best() {
    let names = ["none", "a", "b", "c", "d", "e", "f", "g"];
    let alike: Vec<(&str, f64, f64)> = names.iter().map(|&name| (name, 1e6, 100.0)).collect();
    let mut world = World::new(&alike);
    // Starts that are faster than predicted leave time.
    (world.noise, world.slowness) = (1.0, 0.2);
    let config = TuneConfig { budget_s: 1_000.0, ..racing(Goal::Latency) };
    let report = world.tune(&config).unwrap();
    let blocks = report.design.screening.len();
    assert!((4..=8).contains(&blocks), "{blocks}");
    assert!(report.findings.iter().any(|finding| finding.text.contains("without a test")));
    assert!(report.design.spent_s <= world.budget_s);
    // The same amount of time, and three that are far ahead of all others.
    let mut world = World::new(&SEVEN);
    world.slowness = 0.4;
    let report = world.tune(&racing(Goal::Latency)).unwrap();
    assert_eq!(report.design.screening.len(), 2);
}
