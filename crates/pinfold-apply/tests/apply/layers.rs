//! Several placements that set the same things of the host, reverted in every order.

use crate::common::{Bench, assert_same};
use pinfold_apply::{
    NewJournal, Replacement, Target, UndoReport, apply, no_observer, plan_steps_with_journals,
    replace, undo,
};
use pinfold_host::{Host as _, HostMut as _, paths};
use pinfold_model::{IsolationScope, NodeId, Plan, PuId, Role, Step, Tid, Tuning};
use pinfold_sim::{SimBuilder, SimHost, WriteRule};

/// Processes that are placed one after the other: virtual machines, or what stands for one.
const PLACED: [u32; 3] = [500, 720, 300];
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

fn tunables(builder: SimBuilder) -> SimBuilder {
    builder
        .nodes(2)
        .writable_file(&paths::default_smp_affinity(), WriteRule::Mask, "ff\n")
        .writable_file(&paths::sysctl_kernel("numa_balancing"), WriteRule::Integer, "1\n")
        .writable_file(&paths::thp_file("enabled"), WriteRule::Choice, "always [madvise] never\n")
        .writable_file(&paths::ksm_run(), WriteRule::Integer, "0\n")
        .writable_file(&paths::node_huge_pages(NodeId(1), 2 << 20), WriteRule::Pool(64), "3\n")
        .file(&paths::cpufreq_file(PuId(0), "affected_cpus"), "0 1 2 3 4 5 6 7\n")
        .writable_file(
            &paths::cpufreq_file(PuId(0), "scaling_governor"),
            WriteRule::Text,
            "schedutil\n",
        )
        .writable_file(
            &paths::cpufreq_file(PuId(0), "scaling_max_freq"),
            WriteRule::Integer,
            "3600000\n",
        )
}

/// What a placement asks for; the third asks for some values that the host has by itself.
fn tuning(choice: usize) -> Tuning {
    Tuning::from_words(&[
        ["new-irqs=0,4", "new-irqs=0", "new-irqs=0-7"][choice],
        ["numa-balancing=off", "numa-balancing=on", "numa-balancing=off"][choice],
        ["thp=never", "thp=always", "thp=madvise"][choice],
        ["ksm=run", "ksm=unmerge", "ksm=stop"][choice],
        ["governor=performance", "governor=powersave", "governor=ondemand"][choice],
        ["max-khz=700000", "max-khz=900000", "max-khz=3600000"][choice],
        // The second is more than the host can give.
        ["huge-pages=1:2048:16", "huge-pages=1:2048:200", "huge-pages=1:2048:3"][choice],
    ])
    .unwrap()
}

/// A plan for one process that is all emulator.
fn plan(tuning: Tuning, housekeeping: &str) -> Plan {
    let mut plan = crate::common::plan("2,6", housekeeping);
    plan.vnodes[0].threads.retain(|thread| thread.role == Role::Emulator);
    Plan { tuning, ..plan }
}

fn target(host: &SimHost, pid: u32) -> Target {
    let task = host.task(Tid(pid)).unwrap().id();
    Target::new(Tid(pid), vec![(task, Role::Emulator)])
}

fn place(bench: &Bench, host: &SimHost, pid: u32, plan: &Plan) -> Vec<Step> {
    let target = target(host, pid);
    let new = NewJournal { vm_name: "vm", plan: "{}", target: &target, supervised: false };
    let mut journal = bench.journals().begin(host, &new).unwrap();
    apply(host, plan, &target, &mut journal, &mut no_observer()).unwrap().steps
}

fn revert(bench: &Bench, host: &SimHost, pid: u32) -> UndoReport {
    let task = host.task(Tid(pid)).unwrap().id();
    let id = format!("{}-{}", task.tid, task.start_time);
    let id = crate::common::latest(&bench.journals(), &id).unwrap();
    let report = undo(host, &mut bench.journals().reopen(&id).unwrap().unwrap());
    assert!(report.is_complete(), "{report:?}");
    report
}

/// The host, without the notes of what was written to it.
fn host() -> SimHost {
    let host = tunables(crate::common::v2_builder()).build();
    let emulator = crate::common::v2().host.task(Tid(500)).unwrap();
    host.add_task(emulator.in_group("/"));
    host
}

#[test]
fn three_placements_leave_nothing_in_whatever_order_they_are_reverted() {
    // Every second has each choice at each place.
    for choices in (0..27).step_by(crate::common::times(2, 1) as usize) {
        let choices = [choices / 9, choices / 3 % 3, choices % 3];
        for order in ORDERS {
            let (host, bench) = (host(), Bench::new());
            let before = host.snapshot();
            for (pid, choice) in PLACED.into_iter().zip(choices) {
                place(&bench, &host, pid, &plan(tuning(choice), "0,4"));
            }
            for place in order {
                revert(&bench, &host, PLACED[place]);
            }
            assert_same(&before, &host, &format!("{choices:?} in the order {order:?}"));
        }
    }
}

/// As long as some are active, the last of them has what it asked for.
#[test]
fn what_the_last_one_set_stays_until_it_is_reverted() {
    let merging = ["ksm=stop", "ksm=unmerge", "ksm=run"];
    for order in ORDERS {
        let (host, bench) = (host(), Bench::new());
        host.write(&paths::ksm_run(), b"2").unwrap();
        // 2 → 0 → 2 → 1: the second sets what the host had.
        for (pid, merging) in PLACED.into_iter().zip(merging) {
            place(&bench, &host, pid, &plan(Tuning::from_words(&[merging]).unwrap(), "0,4"));
        }
        let mut active = vec![0, 1, 2];
        for place in order {
            let report = revert(&bench, &host, PLACED[place]);
            let is_last = active.last() == Some(&place);
            active.retain(|other| *other != place);
            let expected = active.last().map_or("2", |last| ["0", "2", "1"][*last]);
            let now = host.read_text(&paths::ksm_run()).unwrap();
            assert_eq!(now.trim(), expected, "{order:?}, {place} reverted: {report:?}");
            let reported = report.changed.iter().any(|one| one.text.contains("has set it since"));
            assert_eq!(reported, !is_last, "{order:?}, {place}: {report:?}");
        }
    }
}

#[test]
fn a_placement_that_was_reverted_and_applied_again_counts_as_a_new_one() {
    let (host, bench) = (host(), Bench::new());
    let before = host.snapshot();
    place(&bench, &host, 500, &plan(tuning(0), "0,4"));
    place(&bench, &host, 720, &plan(tuning(1), "0,4"));
    revert(&bench, &host, 500);
    place(&bench, &host, 500, &plan(tuning(0), "0,4"));
    revert(&bench, &host, 720);
    revert(&bench, &host, 500);
    assert_same(&before, &host, "applied again");
}

/// What another program set between two placements is the original of the second.
#[test]
fn a_value_of_another_program_between_two_placements_comes_back() {
    let (host, bench) = (host(), Bench::new());
    let file = paths::cpufreq_file(PuId(0), "scaling_governor");
    place(&bench, &host, 500, &plan(tuning(0), "0,4"));
    host.write(&file, b"ondemand").unwrap();
    place(&bench, &host, 720, &plan(tuning(1), "0,4"));
    revert(&bench, &host, 500);
    assert_eq!(host.read_text(&file).unwrap().trim(), "powersave");
    revert(&bench, &host, 720);
    assert_eq!(host.read_text(&file).unwrap().trim(), "ondemand");
}

/// Lists of slices, and masks that the one has narrowed under the other, are shared too. A list
/// that the kernel does not take empty while the controller is in use comes back by name.
#[test]
fn two_isolated_placements_leave_no_task_confined_in_either_order() {
    fn confinement(host: &SimHost) -> Vec<String> {
        host.snapshot()
            .lines()
            .filter(|line: &&str| line.starts_with("task ") || line.contains("cpus.effective"))
            .map(str::to_owned)
            .collect()
    }

    for order in [[0, 1], [1, 0]] {
        let (case, bench) = (crate::common::v2(), Bench::new());
        let host = &case.host;
        let before = confinement(host);
        for (pid, housekeeping) in [(500, "0-1,4-5"), (720, "0,4")] {
            let mut plan = plan(Tuning::default(), housekeeping);
            plan.isolation = IsolationScope::Host;
            place(&bench, host, pid, &plan);
        }
        for place in order {
            revert(&bench, host, PLACED[place]);
        }
        let after = confinement(host);
        for line in &before {
            assert!(after.contains(line), "{order:?}: no {line} in {after:#?}");
        }
    }
}

/// What the second plan does not set is as before; what both set has the original of the first.
#[test]
fn tunables_are_replaced_in_both_directions() {
    for [first, second] in [[0, 1], [1, 0], [0, 2], [2, 0]] {
        let host = tunables(crate::common::v2_builder()).build();
        let (bench, before) = (Bench::new(), host.snapshot());
        let target = target(&host, 300);
        let plans = [first, second].map(|choice| plan(tuning(choice), "0,4"));
        let bare = plan(Tuning::default(), "0,4");
        let new = NewJournal {
            vm_name: "vm1",
            plan: crate::common::PLAN_TEXT,
            target: &target,
            supervised: false,
        };
        let journals = bench.journals();
        let mut journal = journals.begin(&host, &new).unwrap();
        apply(&host, &plans[0], &target, &mut journal, &mut no_observer()).unwrap();
        let alone = |plan: &Plan| {
            let host = tunables(crate::common::v2_builder()).build();
            let bench = Bench::new();
            let mut journal = bench.journals().begin(&host, &new).unwrap();
            apply(&host, plan, &target, &mut journal, &mut no_observer()).unwrap();
            host.snapshot()
        };
        for plan in [&plans[1], &bare, &plans[0]] {
            let replacement = Replacement { plan, text: crate::common::PLAN_TEXT, target: &target };
            replace(&host, replacement, &mut journal, &mut no_observer()).unwrap();
            assert_same(&alone(plan), &host, &format!("{first} then {second}"));
        }
        let report = undo(&host, &mut journal);
        assert!(report.is_complete() && report.changed.is_empty(), "{report:?}");
        assert_same(&before, &host, "undone");
    }
}

/// The CPUs of a machine's vCPUs stay its own when another one is isolated next to it, and when one
/// of the two is reverted, also where the kernel overwrites masks with the list of a group.
#[test]
fn a_machine_that_is_isolated_next_to_another_leaves_it_its_cpus() {
    fn isolated(vcpu: &str, rest: &str) -> Plan {
        Plan { isolation: IsolationScope::Host, ..crate::common::plan(vcpu, rest) }
    }
    let (one_first, two_first) = ([500, 720], [720, 500]);
    // Before 6.2 the mask of task 311 is lost with the first machine, and cannot be restored while
    // the second one excludes the task from CPU 6: that undo has to be repeated.
    let cases: [(&str, &[[u32; 2]]); 3] = [
        ("6.1.0-25-amd64\n", &[two_first]),
        ("6.12.0-1-amd64\n", &[one_first, two_first]),
        ("7.0.1\n", &[one_first, two_first]),
    ];
    for (release, orders) in cases {
        for order in orders {
            let case = crate::common::v2();
            case.host.set_file(&paths::kernel_release(), release);
            let case = crate::common::Case { plan: isolated("2,6", "0-1,3-5,7"), ..case };
            let (host, bench) = (&case.host, Bench::new());
            let masks = || [1, 300, 310, 311, 400, 500, 501, 502, 503].map(|tid| mask(tid, host));
            let own = masks();
            bench.apply(&case).unwrap();
            let mut second = isolated("3,7", "0-1,4-5");
            second.vnodes[0].threads.retain(|thread| thread.role == Role::Emulator);
            let (next, journals) = (target(host, 720), bench.journals());
            let dry = plan_steps_with_journals(host, &second, &next, &journals).unwrap().steps;
            let applied = place(&bench, host, 720, &second);
            assert!(changes(&applied).starts_with(&changes(&dry)), "{release}");
            assert_eq!(mask(501, host), "2,6", "{release}");
            assert_eq!(mask(500, host), "0-1,4-5", "{release}");
            assert_eq!(mask(400, host), "0-1,4-5", "{release}");
            revert(&bench, host, order[0]);
            if order[0] == 720 {
                assert_eq!(mask(501, host), "2,6", "{release}");
            }
            revert(&bench, host, order[1]);
            assert_eq!(masks(), own, "{release} {order:?}");
        }
    }
}

fn mask(tid: u32, host: &SimHost) -> String {
    host.affinity(Tid(tid)).unwrap().to_string()
}

fn changes(steps: &[Step]) -> Vec<String> {
    steps.iter().map(|step| step.change.to_string()).collect()
}
