//! A plan that replaces another one: the host is then as if the new plan alone had been applied, no
//! placed thread is released in between, and one undo leads back to the state before the first.

use std::ops::ControlFlow;

use crate::common::{Bench, Case, assert_same, break_at, cases};
use pinfold_apply::{
    Applied, Event, NotReplaced, Observer, Point, Replacement, Target, difference, no_observer,
    plan_steps, replace,
};
use pinfold_host::Host as _;
use pinfold_model::{Plan, Tid};
use pinfold_sim::SimHost;

const SECOND: &str = r#"{"strategy":"second"}"#;

/// A host with its first plan, and a plan that replaces it.
struct Pair {
    first: Case,
    plan: Plan,
    target: Target,
}

impl Pair {
    fn label(&self) -> String {
        format!("{}: {} then {}", self.first.name, plan(&self.first.plan), plan(&self.plan))
    }

    /// The same on an independent host.
    fn again(&self) -> Pair {
        let first = Case { host: self.first.host.clone(), ..self.first.clone() };
        Pair { first, plan: self.plan.clone(), target: self.target.clone() }
    }

    /// The host with the second plan alone.
    fn second_alone(&self) -> Option<SimHost> {
        let host = self.first.host.clone();
        let case = Case {
            host,
            plan: self.plan.clone(),
            target: self.target.clone(),
            name: self.first.name,
        };
        Bench::new().apply(&case).ok().map(|_| case.host)
    }

    fn replace(&self, bench: &Bench, observer: &mut Observer<'_>) -> Result<Applied, NotReplaced> {
        let replacement = Replacement { plan: &self.plan, text: SECOND, target: &self.target };
        replace(&self.first.host, replacement, &mut bench.reopen(&self.first), observer)
    }
}

fn plan(plan: &Plan) -> String {
    format!("{} isolate {}", plan.exclusive, plan.isolation)
}

/// The plans that replace the one of a case, by the CPUs of the vCPU and those of the rest.
fn replacements(case: &Case) -> Vec<Plan> {
    let online = case.host.read_text("/sys/devices/system/cpu/online").unwrap();
    let cpus: &[[&str; 2]] = match online.trim() {
        "0-1" => &[["0", "1"], ["1", "0"]],
        _ => &[["3,7", "0,4"], ["2", "0-1,4-5"], ["0,4", "2,6"]],
    };
    let plans = cpus.iter().flat_map(|[vcpu, rest]| {
        crate::common::SCOPES.map(|isolation| Plan { isolation, ..crate::common::plan(vcpu, rest) })
    });
    plans.collect()
}

/// What libvirt keeps is set to the values of the plan.
fn target(case: &Case, plan: &Plan) -> Target {
    let mut target = case.target.clone();
    for kept in &mut target.kept {
        let is_vcpu = kept.setting.key.starts_with("vcpupin");
        let cpus = if is_vcpu { &plan.exclusive } else { &plan.housekeeping };
        kept.value = cpus.to_string();
    }
    target
}

/// Every pair of plans on every host.
fn pairs() -> Vec<Pair> {
    let mut pairs = Vec::new();
    for case in cases() {
        for plan in replacements(&case) {
            let first = Case { host: case.host.clone(), ..case.clone() };
            let target = target(&first, &plan);
            let pair = Pair { first, plan, target };
            // Some hosts cannot be placed so: there is no second plan for them.
            if pair.second_alone().is_some() {
                pairs.push(pair);
            }
        }
    }
    pairs
}

/// Some of the pairs, or all in the whole test: each is tried many times.
fn some_pairs() -> Vec<Pair> {
    pairs().into_iter().step_by(crate::common::times(13, 1) as usize).collect()
}

/// Kernels before 7.0 do not take an empty list for a group with tasks, which then has all CPUs.
fn same_effect(one: &str, other: &str) -> bool {
    with_all(one) == with_all(other)
}

fn with_all(text: &str) -> String {
    let text = text.replace("cpuset.cpus: \"0-7\\n\"", "cpuset.cpus: \"\\n\"");
    text.replace("exclusive.effective: \"0-7\\n\"", "exclusive.effective: \"\\n\"")
}

fn changed_lines(before: &str, host: &SimHost) -> String {
    crate::common::difference(before, &host.snapshot())
}

#[test]
fn the_host_is_as_if_the_second_plan_alone_had_been_applied() {
    let pairs = pairs();
    assert!(pairs.len() > 200, "{} pairs", pairs.len());
    for pair in pairs {
        let (what, host) = (pair.label(), &pair.first.host);
        let before = host.snapshot();
        let alone = pair.second_alone().unwrap().snapshot();
        let bench = Bench::new();
        bench.apply(&pair.first).unwrap_or_else(|error| panic!("{what}: {error}"));
        let record = bench.reopen(&pair.first).record().clone();
        let dry = difference(host, &pair.plan, &pair.target, &bench.journals(), &record).unwrap();
        let placed = pair.first.plan.exclusive.union(&pair.plan.exclusive);
        let replaced = pair.replace(&bench, &mut |_: &Event<'_>| {
            let mask = host.affinity(Tid(501)).unwrap();
            assert!(mask.is_subset(&placed), "{what}: the vCPU was released to {mask}");
            ControlFlow::Continue(())
        });
        let applied = replaced.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(applied.undone, dry.undone.len(), "{what}: the dry run is the same");
        assert!(same_effect(&alone, &host.snapshot()), "{what}: {}", changed_lines(&alone, host));
        assert_eq!(plan_steps(host, &pair.plan, &pair.target).unwrap().steps, [], "{what}");
        assert_eq!(bench.reopen(&pair.first).record().header.plan, SECOND, "{what}");
        let report = bench.undo(&pair.first);
        assert!(report.is_complete() && report.changed.is_empty(), "{what}: {report:?}");
        assert_same(&before, host, &what);
    }
}

/// Tasks that are created under both plans are released too.
#[test]
fn what_is_created_meanwhile_is_released() {
    fn live_on(host: &SimHost, seed: u32) {
        assert!(host.fork(Tid(400), Tid(800 + seed)));
        assert!(host.clone_thread(Tid(500), Tid(810 + seed)));
        if host.task(Tid(600)).is_some() {
            assert!(host.fork(Tid(600), Tid(820 + seed)));
        }
    }
    for pair in some_pairs() {
        let (what, host) = (pair.label(), &pair.first.host);
        let expected = host.clone();
        let bench = Bench::new();
        bench.apply(&pair.first).unwrap();
        live_on(host, 0);
        pair.replace(&bench, &mut no_observer()).unwrap_or_else(|error| panic!("{what}: {error}"));
        live_on(host, 1);
        live_on(&expected, 0);
        live_on(&expected, 1);
        let report = bench.undo(&pair.first);
        assert!(report.is_complete() && report.changed.is_empty(), "{what}: {report:?}");
        assert_same(&expected.snapshot(), host, &what);
    }
}

#[test]
fn a_kill_at_every_point_of_a_replacement_is_undone() {
    for pair in some_pairs() {
        let before = pair.first.host.snapshot();
        let rehearsal = pair.again();
        let bench = Bench::new();
        let first = bench.apply(&rehearsal.first).unwrap().steps.len();
        let applied = rehearsal.replace(&bench, &mut no_observer()).unwrap();
        for index in first..first + applied.steps.len() {
            for point in [Point::BeforeJournal, Point::AfterJournal, Point::AfterChange] {
                let what = format!("{}, {point:?} of step {index}", pair.label());
                let killed = pair.again();
                let bench = Bench::new();
                bench.apply(&killed.first).unwrap();
                let answer = killed.replace(&bench, &mut break_at(index, point));
                assert!(matches!(answer, Err(NotReplaced::Abandoned)), "{what}");
                let report = bench.undo(&killed.first);
                assert!(report.is_complete() && report.changed.is_empty(), "{what}: {report:?}");
                assert_same(&before, &killed.first.host, &what);
            }
        }
    }
}

/// After a failure the first plan is put back, or everything is undone.
#[test]
fn a_replacement_that_the_host_refuses_leaves_a_way_back() {
    const EIO: i32 = 5;
    for pair in some_pairs() {
        let before = pair.first.host.snapshot();
        let first_alone = pair.again();
        Bench::new().apply(&first_alone.first).unwrap();
        let placed = first_alone.first.host.snapshot();
        for allowed in 0.. {
            let what = format!("{}, dead after {allowed} changes", pair.label());
            let pair = pair.again();
            let (bench, host) = (Bench::new(), &pair.first.host);
            bench.apply(&pair.first).unwrap();
            host.fail_after(allowed, EIO);
            let answer = pair.replace(&bench, &mut no_observer());
            host.clear_faults();
            if answer.is_ok() {
                break;
            }
            let first = Replacement {
                plan: &pair.first.plan,
                text: crate::common::PLAN_TEXT,
                target: &pair.first.target,
            };
            let mut journal = bench.reopen(&pair.first);
            replace(host, first, &mut journal, &mut no_observer())
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(
                same_effect(&placed, &host.snapshot()),
                "{what}: {}",
                changed_lines(&placed, host)
            );
            drop(journal);
            let report = bench.undo(&pair.first);
            assert!(report.is_complete() && report.changed.is_empty(), "{what}: {report:?}");
            assert_same(&before, host, &what);
        }
    }
}
