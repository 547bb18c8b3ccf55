//! Apply and undo on simulated hosts: the host is afterwards as it was, whatever happens between.

use std::ops::ControlFlow;

use crate::common::{Bench, Case, assert_same, break_at, cases, set};
use pinfold_apply::{ApplyError, Point, plan_steps, undo_observed};
use pinfold_host::files::StateDir;
use pinfold_host::{Host as _, HostMut as _};
use pinfold_model::{IsolationScope, Tid};
use pinfold_sim::SimHost;

fn label(case: &Case) -> String {
    format!("{}, isolate {}", case.name, case.plan.isolation)
}

#[test]
fn undo_restores_every_host_under_every_scope() {
    for case in cases() {
        let what = label(&case);
        let bench = Bench::new();
        let before = case.host.snapshot();
        let dry = plan_steps(&case.host, &case.plan, &case.target).unwrap();
        let applied = bench.apply(&case).unwrap_or_else(|error| panic!("{what}: {error}"));
        let forgets = case.name.contains("before 6.2");
        if forgets {
            // Masks that the kernel overwrote were set a second time.
            assert!(applied.steps.starts_with(&dry.steps), "{what}");
        } else {
            assert_eq!(dry.steps, applied.steps, "{what}: the dry run is the very apply");
        }
        assert_eq!(case.host.affinity(Tid(501)).unwrap(), case.plan.exclusive, "{what}");
        for tid in [500, 502, 503] {
            assert_eq!(case.host.affinity(Tid(tid)).unwrap(), case.plan.housekeeping, "{what}");
        }
        let again = plan_steps(&case.host, &case.plan, &case.target).unwrap();
        assert_eq!(again.steps, [], "{what}: what is right needs no step");
        let report = bench.undo(&case);
        assert!(report.is_complete() && report.changed.is_empty(), "{what}: {report:?}");
        assert_same(&before, &case.host, &what);
        assert!(bench.reopen(&case).record().has_ended(), "{what}");
    }
}

#[test]
fn isolation_keeps_others_off() {
    for case in cases() {
        let what = label(&case);
        let bench = Bench::new();
        let applied = bench.apply(&case).unwrap();
        match case.plan.isolation {
            IsolationScope::None => {
                assert!(!is_off(600, &case) && applied.group.is_none(), "{what}")
            }
            IsolationScope::Own => {
                assert!(is_off(600, &case) && is_off(601, &case) && is_off(610, &case), "{what}");
                assert!(!is_off(400, &case), "{what}: only what Pinfold started is moved");
                if case.name == "v2 no room" {
                    assert!(
                        applied.findings.iter().any(|finding| finding
                            .text
                            .contains("the masks of the loads exclude these CPUs instead")),
                        "{what}"
                    );
                } else {
                    assert!(applied.group.is_some_and(|group| case.host.exists(&group)), "{what}");
                }
            }
            IsolationScope::Host => {
                for tid in [600, 610, 400, 300] {
                    assert!(is_off(tid, &case), "{what}: task {tid}");
                }
                let kernel_threads_off = is_off(10, &case);
                assert!(kernel_threads_off, "{what}");
                assert!(
                    case.plan.exclusive == set("1") || !is_off(22, &case),
                    "{what}: bound for good"
                );
            }
        }
    }
}

fn is_off(tid: u32, case: &Case) -> bool {
    case.host.affinity(Tid(tid)).unwrap().is_disjoint(&case.plan.exclusive)
}

/// Before Linux 7.0 a group with tasks cannot be told to inherit again, and what others have set
/// forbids to make it anew.
#[test]
fn what_cannot_be_emptied_is_given_all_and_reported() {
    let case = crate::common::v2_in_use(crate::common::v2_builder()).with(IsolationScope::Host);
    let (bench, before) = (Bench::new(), case.host.snapshot());
    let applied = bench.apply(&case).unwrap();
    assert!(
        applied.findings.iter().any(|finding| finding.text.contains("will list all CPUs there"))
    );
    let report = bench.undo(&case);
    assert!(report.is_complete() && report.changed.is_empty(), "{report:?}");
    let asked = ["init.scope", "system.slice", "user.slice", "machine.slice"];
    assert_eq!(report.equivalent.len(), 3, "{report:?}");
    let after = case.host.snapshot();
    for part in asked.iter().chain(&["task", "narrow", "only6", "machine"]) {
        assert_eq!(line(&before, part), line(&after, part), "the effect is the same");
    }
    assert!(after.contains("init.scope/cpuset.cpus: \"0-7\\n\""), "{after}");
    assert!(after.contains("narrow.slice/cpuset.cpus: \"0-3\\n\""), "{after}");
}

fn line(text: &str, part: &str) -> String {
    text.lines()
        .filter(|line: &&str| !line.contains("cpuset.cpus: ") && !line.contains("exclusive"))
        .filter(|line| line.contains(part))
        .collect::<String>()
}

/// The same while a CPU is offline: the groups have it when it comes back.
#[test]
fn what_is_given_all_has_pus_that_come_later() {
    let case = crate::common::v2_in_use(crate::common::v2_builder()).with(IsolationScope::Host);
    let all = "/sys/fs/cgroup/init.scope/cpuset.cpus";
    let effective = format!("{all}.effective");
    case.host.set_online(&set("0-6"));
    let bench = Bench::new();
    bench.apply(&case).unwrap();
    let report = bench.undo(&case);
    assert!(report.is_complete() && report.changed.is_empty(), "{report:?}");
    assert_eq!(case.host.read(&effective).unwrap(), b"0-6\n");
    case.host.set_online(&set("0-7"));
    assert_eq!(case.host.read(all).unwrap(), b"0-7\n");
    assert_eq!(case.host.read(&effective).unwrap(), b"0-7\n");
}

/// A CPU that was offline during `apply` comes online before `undo`.
#[test]
fn undo_restores_pus_that_were_offline_at_apply() {
    for (case, untouched) in cases().into_iter().zip(cases()) {
        let what = label(&case);
        let bench = Bench::new();
        case.host.set_online(&set("0-6"));
        untouched.host.set_online(&set("0-6"));
        bench.apply(&case).unwrap_or_else(|error| panic!("{what}: {error}"));
        case.host.set_online(&set("0-7"));
        untouched.host.set_online(&set("0-7"));
        let report = bench.undo(&case);
        assert!(report.is_complete() && report.changed.is_empty(), "{what}: {report:?}");
        assert_same(&untouched.host.snapshot(), &case.host, &what);
    }
}

/// The group of the machine is as narrow as the isolation of another machine makes it for a time.
#[test]
fn undo_releases_threads_whose_cpuset_was_narrower_at_apply() {
    let case = || crate::common::v2_in_use(crate::common::v2_builder()).with(IsolationScope::None);
    let (case, untouched) = (case(), case());
    let cpus = "/sys/fs/cgroup/machine.slice/cpuset.cpus";
    let narrow = case.plan.pus();
    let bench = Bench::new();
    for host in [&case.host, &untouched.host] {
        host.write(cpus, narrow.to_string().as_bytes()).unwrap();
    }
    bench.apply(&case).unwrap();
    for host in [&case.host, &untouched.host] {
        host.write(cpus, b"0-7").unwrap();
    }
    let report = bench.undo(&case);
    assert!(report.is_complete() && report.changed.is_empty(), "{report:?}");
    assert_same(&untouched.host.snapshot(), &case.host, "in a narrow group");
    assert_eq!(case.host.affinity(Tid(501)).unwrap(), set("0-7"));
}

/// What happens on a host while a plan is in force.
fn live_on(host: &SimHost, seed: u32) {
    fork(400, 800, host);
    fork(800, 801, host);
    fork(600, 802, host);
    assert!(host.clone_thread(Tid(300), Tid(803)));
    assert!(host.clone_thread(Tid(500), Tid(804)));
    assert!(host.clone_thread(Tid(600), Tid(805)));
    if host.task(Tid(700)).is_some() {
        fork(700, 806, host);
    }
    // An orphan, whose parent is now init.
    fork(300, 807, host);
    fork(807, 808, host);
    host.exit(Tid(807));
    match seed % 3 {
        0 => host.exit(Tid(503)),
        1 => host.exit(Tid(610)),
        _ => host.exit(Tid(601)),
    }
}

fn fork(parent: u32, child: u32, host: &SimHost) {
    assert!(host.fork(Tid(parent), Tid(child)));
}

#[test]
fn a_kill_at_every_point_of_every_step_is_undone() {
    for case in cases() {
        let steps = plan_steps(&case.host, &case.plan, &case.target).unwrap().steps.len();
        for index in 0..steps {
            for point in [Point::BeforeJournal, Point::AfterJournal, Point::AfterChange] {
                let what = format!("{}, {point:?} of step {index}", label(&case));
                let case = Case { host: case.host.clone(), ..case.clone() };
                let expected = case.host.clone();
                let bench = Bench::new();
                let error = bench.apply_watched(&case, &mut break_at(index, point)).unwrap_err();
                assert!(matches!(error, ApplyError::Abandoned { .. }), "{what}: {error}");
                let seed = u32::try_from(index).unwrap();
                live_on(&case.host, seed);
                live_on(&expected, seed);
                let report = bench.undo(&case);
                assert!(report.is_complete() && report.changed.is_empty(), "{what}: {report:?}");
                assert_same(&expected.snapshot(), &case.host, &what);
            }
        }
    }
}

#[test]
fn an_undo_that_is_killed_anywhere_is_finished_by_the_next() {
    for case in cases() {
        let steps = plan_steps(&case.host, &case.plan, &case.target).unwrap().steps.len();
        for index in 0..steps {
            let what = format!("{}, undo killed before step {index}", label(&case));
            let case = Case { host: case.host.clone(), ..case.clone() };
            let expected = case.host.clone();
            let bench = Bench::new();
            bench.apply(&case).unwrap();
            live_on(&case.host, 1);
            live_on(&expected, 1);
            let killed = undo_observed(&case.host, &mut bench.reopen(&case), &mut |at, _| {
                if at == index { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert!(!killed.is_complete(), "{what}");
            let report = bench.undo(&case);
            assert!(report.is_complete() && report.changed.is_empty(), "{what}: {report:?}");
            assert_same(&expected.snapshot(), &case.host, &what);
        }
    }
}

/// A machine that refuses everything from one change on is the hardest kill: it also cuts a
/// move of many tasks in the middle, and lets the undo that follows do nothing at all.
#[test]
fn a_host_that_refuses_everything_from_some_change_on_is_restored_later() {
    for case in cases() {
        for allowed in 0.. {
            let what = format!("{}, dead after {allowed} changes", label(&case));
            let case = Case { host: case.host.clone(), ..case.clone() };
            let before = case.host.snapshot();
            let bench = Bench::new();
            case.host.fail_after(allowed, libc_eio());
            let result = bench.apply(&case);
            case.host.clear_faults();
            let Err(error) = result else { break };
            assert!(error.to_string().contains("step"), "{what}: {error}");
            if !error.undone().is_some_and(pinfold_apply::UndoReport::is_complete) {
                let report = bench.undo(&case);
                assert!(report.is_complete() && report.changed.is_empty(), "{what}: {report:?}");
            }
            assert_same(&before, &case.host, &what);
        }
    }
}

#[test]
fn an_undo_that_is_refused_from_some_change_on_is_finished_later() {
    for case in cases() {
        for allowed in 0.. {
            let what = format!("{}, undo dead after {allowed} changes", label(&case));
            let case = Case { host: case.host.clone(), ..case.clone() };
            let expected = case.host.clone();
            let bench = Bench::new();
            bench.apply(&case).unwrap();
            live_on(&case.host, 1);
            live_on(&expected, 1);
            let before = expected.snapshot();
            case.host.fail_after(allowed, libc_eio());
            let first = bench.undo(&case);
            case.host.clear_faults();
            if first.is_complete() {
                assert_same(&before, &case.host, &what);
                break;
            }
            let report = bench.undo(&case);
            assert!(report.is_complete() && report.changed.is_empty(), "{what}: {report:?}");
            assert_same(&before, &case.host, &what);
        }
    }
}

fn libc_eio() -> i32 {
    5
}

/// EPERM, EACCES, EBUSY, EINVAL, ENOSPC, EOPNOTSUPP.
const ERRNOS: [i32; 6] = [1, 13, 16, 22, 28, 95];

#[test]
fn a_refusal_of_any_change_restores_the_host() {
    for case in cases() {
        let rehearsal = Case { host: case.host.clone(), ..case.clone() };
        Bench::new().apply(&rehearsal).unwrap();
        for (at, change) in rehearsal.host.changes().into_iter().enumerate() {
            // Each change with one of them, in turn, or with all of them.
            let errnos = ERRNOS.into_iter().cycle().skip(at % ERRNOS.len());
            let all = u32::try_from(ERRNOS.len()).unwrap();
            for errno in errnos.take(crate::common::times(1, all) as usize) {
                let what = format!("{}, errno {errno} for {change}", label(&case));
                let case = Case { host: case.host.clone(), ..case.clone() };
                let before = case.host.snapshot();
                let bench = Bench::new();
                case.host.fail_on(&change, errno);
                let result = bench.apply(&case);
                case.host.clear_faults();
                if let Err(error) = &result {
                    check_message(error, errno, &what);
                }
                // A kernel thread that cannot be moved is a finding; and the undo of a mask can
                // hit the same fault.
                let done = result.as_ref().err().and_then(ApplyError::undone);
                if !done.is_some_and(pinfold_apply::UndoReport::is_complete) {
                    let report = bench.undo(&case);
                    assert!(report.is_complete(), "{what}: {report:?}");
                }
                assert_same(&before, &case.host, &what);
                assert!(bench.reopen(&case).record().has_ended(), "{what}");
            }
        }
    }
}

fn check_message(error: &ApplyError, errno: i32, what: &str) {
    let ApplyError::Step { change, source, .. } = error else {
        panic!("{what}: {error}");
    };
    if matches!(source, pinfold_host::HostError::Kept { .. }) {
        assert!(error.to_string().contains(change.as_str()), "{what}: {error}");
        return;
    }
    assert_eq!(source.errno(), Some(errno), "{what}");
    assert!(error.to_string().contains(change.as_str()), "{what}: {error}");
    assert!(error.hint().is_some() || errno == 95, "{what}: no way out for {error}");
}

#[test]
fn cycles_on_simulated_hosts_leave_nothing_behind() {
    // About 10,000 over all hosts and scopes.
    let cases = cases();
    let each = crate::common::times(360, 10_000).div_ceil(u32::try_from(cases.len()).unwrap());
    for case in &cases {
        let what = format!("{}, isolate {}", case.name, case.plan.isolation);
        let before = case.host.snapshot();
        let bench = Bench::new();
        let folder = bench.folder.path().join("state/journal");
        let files = || StateDir::open(folder.to_str().unwrap()).unwrap().list().unwrap().len();
        for _ in 0..each {
            bench.apply(case).unwrap();
            let report = bench.undo(case);
            assert!(report.is_complete() && report.changed.is_empty(), "{what}: {report:?}");
            assert_same(&before, &case.host, &what);
            // At most 32 journals that have ended, the last one, and their lock.
            assert!(files() <= 34, "{what}: the journal's folder has grown to {}", files());
        }
    }
}
