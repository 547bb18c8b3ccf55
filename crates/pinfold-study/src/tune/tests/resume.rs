//! Interruption and resumption: the same design, no start twice, the same report.

use std::collections::BTreeSet;

use pinfold_model::Origin;

use super::super::*;
use super::world::{Trouble, World, config};
use crate::fixture;
use crate::store::{HostChange, Phase};

const FIVE: [(&str, f64, f64); 5] = [
    ("none", 5e6, 100.0),
    ("a", 1e6, 100.0),
    ("b", 2e6, 100.0),
    ("c", 3e6, 100.0),
    ("d", 9e6, 100.0),
];

fn world() -> World {
    let mut world = World::new(&FIVE);
    world.machine.troubles.insert((Phase::Screening, 1, 2), Trouble::Once);
    world.machine.troubles.insert((Phase::Confirmation, 4, 1), Trouble::Twice);
    world
}

/// Runs to the end, stopped after each of `stops` starts.
fn interrupted_at(stops: &[usize]) -> (World, TuneReport) {
    let mut world = world();
    let created = world.create(&config(Goal::Latency)).unwrap();
    let mut open = created.run;
    for &stop in stops {
        world.stop_after(stop);
        let outcome = world.go(open).unwrap();
        let Outcome::Interrupted { done, total } = outcome else {
            panic!("not interrupted after {stop} starts");
        };
        assert!(done < total);
        let report = analyse(&world.store, open.id()).unwrap();
        assert_eq!((report.finished, u64::from(report.design.done)), (false, done));
        open = world.reopen(open.id(), fixture::origin(), HostChange::Refuse);
    }
    assert_eq!(world.go(open).unwrap(), Outcome::Finished);
    let report = analyse(&world.store, open.id()).unwrap();
    (world, report)
}

#[test]
fn an_interrupted_run_ends_with_the_same_report() {
    let (whole, expected) = interrupted_at(&[]);
    for stops in [vec![1], vec![16], vec![17], vec![3, 4, 20], vec![30, 31, 32, 33, 50]] {
        let (world, report) = interrupted_at(&stops);
        assert_eq!(report, expected, "stopped after {stops:?}");
        assert_eq!(world.machine.requests, whole.machine.requests, "stopped after {stops:?}");
    }
}

#[test]
fn a_finished_start_is_never_repeated() {
    let (mut world, report) = interrupted_at(&[5, 29]);
    let made = world.machine.requests.len();
    let retries = report.failures.len();
    assert_eq!(made, report.design.done as usize + retries);
    // Once more on a finished run: there is nothing to do.
    let open = world.reopen(report.run, fixture::origin(), HostChange::Refuse);
    assert_eq!(world.go(open).unwrap(), Outcome::Finished);
    assert_eq!(world.machine.requests.len(), made);
    assert_eq!(analyse(&world.store, report.run).unwrap(), report);
}

#[test]
fn a_start_that_the_stop_signal_killed_is_made_again() {
    let mut world = world();
    let created = world.create(&config(Goal::Latency)).unwrap();
    // The signal reaches the machine too, in the middle of a start, which then fails.
    let order = &analyse(&world.store, created.run.id()).unwrap().design.screening[0];
    let (victim, at) = (order[2].slot.candidate, 3);
    world.machine.troubles.insert((Phase::Screening, 0, victim), Trouble::Once);
    world.stop_after(at);
    assert!(matches!(world.go(created.run).unwrap(), Outcome::Interrupted { done: 2, .. }));
    let open = world.reopen(created.run.id(), fixture::origin(), HostChange::Refuse);
    world.go(open).unwrap();
    let report = analyse(&world.store, open.id()).unwrap();
    assert_eq!(
        report
            .failures
            .iter()
            .find(|failure: &&Failure| failure.phase == Phase::Screening && failure.block == 0),
        None,
        "it says nothing about the plan"
    );
}

#[test]
fn each_block_has_its_own_order_and_holds_everyone_once() {
    let (_, report) = interrupted_at(&[]);
    let kept = report.design.confirm.as_ref().unwrap().kept.clone();
    assert_eq!(kept, [1, 2, 3]);
    for order in &report.design.screening {
        assert_eq!(participants(order), BTreeSet::from([0, 1, 2, 3, 4]));
    }
    for order in &report.design.confirmation {
        assert_eq!((participants(order), order.len()), (BTreeSet::from([0, 1, 2, 3, 5]), 5));
    }
    let orders: BTreeSet<Vec<usize>> = report
        .design
        .confirmation
        .iter()
        .map(|order| order.iter().map(|start| start.slot.candidate).collect())
        .collect();
    assert!(orders.len() > 4);
}

fn participants(order: &[PlannedStart]) -> BTreeSet<usize> {
    order.iter().map(|start| start.slot.candidate).collect()
}

#[test]
fn a_change_of_host_that_was_accepted_is_reported() {
    let mut world = world();
    let created = world.create(&config(Goal::Latency)).unwrap();
    world.stop_after(9);
    world.go(created.run).unwrap();
    let moved = Origin { kernel: "7.0.0".to_owned(), ..fixture::origin() };
    let open = world.reopen(created.run.id(), moved, HostChange::Accept);
    world.go(open).unwrap();
    let report = analyse(&world.store, open.id()).unwrap();
    let finding = report.findings.iter().find(|finding| finding.subject == "host").unwrap();
    assert!(finding.text.contains("kernel: 6.12.1 then, 7.0.0 now"), "{finding}");
}
