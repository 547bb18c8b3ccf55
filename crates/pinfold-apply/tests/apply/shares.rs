//! Shares of caches and bandwidth on simulated hosts: set, read back, refused, undone.

use crate::common::{Bench, Case, assert_same, break_at};
use pinfold_apply::{Counter, Point, plan_steps};
use pinfold_host::{Host as _, HostMut as _, paths};

fn case(shares: &[&str], classes: usize) -> Case {
    let mut case = crate::common::alone("shares", crate::common::v2_builder().resctrl(2, classes));
    for share in shares {
        case.plan.tuning.add(&format!("share={share}")).unwrap();
    }
    case
}

fn group(case: &Case) -> String {
    let root = paths::resctrl_dir();
    let names = case.host.list(&root).unwrap();
    let name = names.iter().find(|name| name.starts_with("pinfold-")).unwrap();
    paths::resctrl_file(&root, name)
}

#[test]
fn threads_get_their_shares_and_are_the_roots_again() {
    let case = case(&["L3:0=f0", "L3:1=7", "MB:1=50"], 4);
    let (bench, before) = (Bench::new(), case.host.snapshot());
    let applied = bench.apply(&case).unwrap();
    let group = group(&case);
    let schemata = case.host.read_text(&paths::resctrl_file(&group, "schemata")).unwrap();
    assert_eq!(schemata, "    MB:0=100;1= 50\n    L3:0=0f0;1=007\n");
    let tasks = case.host.read_text(&paths::resctrl_file(&group, "tasks")).unwrap();
    assert_eq!(tasks, "500\n501\n502\n");
    assert!(plan_steps(&case.host, &case.plan, &case.target).unwrap().steps.is_empty());
    let journal = bench.reopen(&case);
    let counters = pinfold_apply::read_counters(&case.host, journal.record()).unwrap();
    let expected = Counter { name: "mon_L3_00/llc_occupancy".to_owned(), bytes: Some(65_536) };
    assert_eq!(counters, [expected]);
    drop(journal);
    assert!(bench.undo(&case).is_complete());
    assert_same(&before, &case.host, "undone");
    for index in 0..applied.steps.len() {
        for point in [Point::AfterJournal, Point::AfterChange] {
            let case = self::case(&["L3:0=f0", "L3:1=7", "MB:1=50"], 4);
            let bench = Bench::new();
            assert!(bench.apply_watched(&case, &mut break_at(index, point)).is_err());
            assert!(bench.undo(&case).is_complete());
            assert_same(&before, &case.host, &format!("killed at step {index}, {point:?}"));
        }
    }
}

#[test]
fn what_the_kernel_refuses_is_reported_with_its_own_words() {
    check(&["L3:0=505"], 4, "non-consecutive");
    check(&["MB:0=5"], 4, "out of range");
    check(&["L3:7=f"], 4, "this host has no L3:7");
    check(&["L2:0=f"], 4, "this host has no L2:0");
    check(&["L3:0=f"], 1, "No space left");
}

fn check(shares: &[&str], classes: usize, part: &str) {
    let mut case = case(shares, classes);
    let (bench, before) = (Bench::new(), case.host.snapshot());
    let applied = bench.apply(&case).unwrap();
    let reported = applied.findings.iter().find(|one| one.text.contains(part));
    assert!(reported.is_some_and(|one| one.hint.is_some()), "{part}: {:?}", applied.findings);
    assert!(bench.undo(&case).is_complete());
    assert_same(&before, &case.host, part);
    case.plan.tuning.required = true;
    let error = Bench::new().apply(&case).unwrap_err();
    assert!(error.hint().is_some() || error.undone().is_some(), "{error}");
    assert_same(&before, &case.host, part);
}

#[test]
fn bandwidth_that_is_rounded_is_reported() {
    let case = case(&["MB:0=44"], 4);
    let applied = Bench::new().apply(&case).unwrap();
    let reported =
        applied.findings.iter().any(|one| one.text.contains("MB:0=50, not the requested MB:0=44"));
    assert!(reported, "{:?}", applied.findings);
}

#[test]
fn a_host_without_it_and_threads_of_another_program_are_reported() {
    let mut lacking = crate::common::v2();
    lacking.plan.tuning.add("share=L3:0=f").unwrap();
    let planned = plan_steps(&lacking.host, &lacking.plan, &lacking.target).unwrap();
    let reported = planned.findings.iter().find(|one| one.subject == "resctrl").unwrap();
    assert!(reported.hint.as_ref().unwrap().contains("mount -t resctrl"), "{reported:?}");
    let taken = case(&["L3:0=f"], 4);
    let other = paths::resctrl_file(&paths::resctrl_dir(), "qemu-1-vm-vcpus_0");
    taken.host.make_dir(&other).unwrap();
    taken.host.write(&paths::resctrl_file(&other, "tasks"), b"501").unwrap();
    let planned = plan_steps(&taken.host, &taken.plan, &taken.target).unwrap();
    assert!(planned.findings.iter().any(|one| one.text.contains("thread 501 is in")));
    assert!(!planned.steps.iter().any(|step| {
        let (made, written) = (step.change.made_group(), step.change.as_write_file());
        made.or(written.map(|(path, _)| path)).is_some_and(|path| path.contains("resctrl"))
    }));
}

#[test]
fn every_refusal_of_a_group_leaves_the_host_as_it_was() {
    for errno in [1, 16, 22, 28, 30] {
        let case = case(&["L3:0=f"], 4);
        let (bench, before) = (Bench::new(), case.host.snapshot());
        case.host.fail_on(&format!("make_dir {}", paths::resctrl_dir()), errno);
        let applied = bench.apply(&case).unwrap();
        let reported = applied.findings.iter().find(|one| one.subject == "resctrl");
        assert!(reported.is_some_and(|one| one.hint.is_some()), "{errno}: {:?}", applied.findings);
        case.host.clear_faults();
        assert!(bench.undo(&case).is_complete());
        assert_same(&before, &case.host, &format!("errno {errno}"));
    }
}
