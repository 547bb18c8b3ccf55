//! At no step of a change is an exclusive CPU in two masks, and other tasks leave it before a vCPU
//! comes.

use std::ops::ControlFlow;

use crate::common::{Bench, Case, PLAN_TEXT, VM, alone, assert_same, pin, plan, set, times, v2};
use crate::common::{v1, v1_forgetful, v2_builder, v2_forgetful, v2_in_root};
use pinfold_apply::order::{Move, MoveAction, order_moves};
use pinfold_apply::{
    Event, ManagedSetting, NotReplaced, Point, Replacement, Rules, Target, no_observer, replace,
    undo_observed,
};
use pinfold_host::{Host as _, HostMut as _};
use pinfold_model::{CpuSet, IsolationScope, Lifetime, Plan, PuId, Role, ThreadPlan, Tid};
use pinfold_sim::{SimHost, SimTask};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((z ^ (z >> 31)) % u64::from(limit)).unwrap()
    }
}

const CPUS: u32 = 8;

/// Exclusive CPUs of each vCPU, and the housekeeping CPUs.
#[derive(Clone, Debug)]
struct Placement {
    vcpus: Vec<CpuSet>,
    rest: CpuSet,
}

impl Placement {
    /// CPU 0 is a housekeeping CPU of each.
    fn random(random: &mut Random, vcpus: u32) -> Self {
        let mut free: Vec<u32> = (1..CPUS).collect();
        let mut take = || {
            let count = u32::try_from(free.len()).unwrap();
            CpuSet::single(PuId(free.swap_remove(random.below(count) as usize)))
        };
        let mut masks: Vec<CpuSet> = (0..vcpus).map(|_| take()).collect();
        // Some have two.
        let (first, second) = (take(), take());
        masks[0].add(&first);
        if vcpus > 1 {
            masks[1].add(&second);
        }
        let mut placement = Self { vcpus: masks, rest: CpuSet::new() };
        placement.rest = set("0-7").difference(&placement.exclusive());
        placement
    }

    fn exclusive(&self) -> CpuSet {
        self.vcpus.iter().collect()
    }

    fn plan(&self, isolation: IsolationScope) -> Plan {
        let mut made = plan("1", "0");
        fn thread(role: Role, pus: &CpuSet) -> ThreadPlan {
            ThreadPlan {
                role,
                pus: pus.clone(),
                policy: None,
                reason: "as the test says".to_owned(),
            }
        }
        let vcpus = (0..).zip(&self.vcpus).map(|(index, pus)| thread(Role::Vcpu(index), pus));
        let rest = [Role::Emulator, Role::Iothread("disk".to_owned())];
        let rest = rest.map(|role| thread(role, &self.rest));
        made.vnodes[0].threads = vcpus.chain(rest).collect();
        (made.housekeeping, made.exclusive) = (self.rest.clone(), self.exclusive());
        made.isolation = isolation;
        made
    }

    /// What libvirt keeps of it.
    fn kept(&self) -> Vec<ManagedSetting> {
        fn one(key: String, role: Role, cpus: &CpuSet) -> ManagedSetting {
            ManagedSetting {
                setting: pin(&key, Lifetime::Running),
                value: cpus.to_string(),
                rules: Rules::Masks(role),
                reason: "as the test says".to_owned(),
            }
        }
        let vcpus = (0..).zip(&self.vcpus);
        let vcpus = vcpus.map(|(n, cpus)| one(format!("vcpupin {n}"), Role::Vcpu(n), cpus));
        vcpus.chain([one("emulatorpin".to_owned(), Role::Emulator, &self.rest)]).collect()
    }
}

fn vcpu(index: u32) -> Tid {
    Tid(510 + index)
}

/// A machine with these vCPUs, whose threads may use all CPUs.
fn machine(vcpus: u32, is_libvirts: bool) -> Case {
    let builder = v2_builder().task(SimTask::new(504, "worker").thread_of(VM));
    let builder = (0..vcpus).fold(builder, |builder, index| {
        builder.task(SimTask::new(vcpu(index).0, "CPU/KVM").thread_of(VM))
    });
    let mut case = alone("a machine", builder);
    let vcpus = (0..vcpus).map(|index| (id(vcpu(index), &case), Role::Vcpu(index)));
    let rest = [
        (id(Tid(VM), &case), Role::Emulator),
        (id(Tid(502), &case), Role::Iothread("disk".to_owned())),
    ];
    case.target.threads = vcpus.chain(rest).collect();
    if is_libvirts {
        for (task, role) in &case.target.threads {
            let key = if let Role::Vcpu(index) = role {
                format!("vcpupin {index}")
            } else {
                "emulatorpin".to_owned()
            };
            if role.is_vcpu() || *role == Role::Emulator {
                case.host.add_libvirt_pin(pin(&key, Lifetime::Running), Some("0-7"), &[task.tid]);
            }
        }
    }
    case
}

fn id(tid: Tid, case: &Case) -> pinfold_model::TaskId {
    case.host.task(tid).unwrap().id()
}

/// Each exclusive CPU of both placements is in the mask of one vCPU alone, or of other threads.
#[track_caller]
fn expect_one_owner(host: &SimHost, exclusive: &CpuSet, what: &str) {
    let threads = [VM, 501, 502, 504].into_iter().chain((0..6).map(|index| vcpu(index).0));
    let masks = threads.map(Tid).filter_map(|tid| Some((tid, host.affinity(tid).ok()?)));
    let masks: Vec<(Tid, CpuSet)> = masks.collect();
    for cpu in exclusive.iter() {
        let owners = masks.iter().filter(|(_, mask)| mask.contains(cpu));
        let owners: Vec<Tid> = owners.map(|(tid, _)| *tid).collect();
        let has_vcpu = owners.iter().any(|tid| *tid >= vcpu(0));
        assert!(!has_vcpu || owners.len() == 1, "{what}: CPU {cpu} is in the masks of {owners:?}");
    }
}

/// Two placements of a machine.
struct Change {
    case: Case,
    old: Placement,
    new: Placement,
    what: String,
}

impl Change {
    fn random(seed: u64) -> Self {
        let mut random = Random(seed);
        let vcpus = 1 + random.below(5);
        let (old, new) =
            (Placement::random(&mut random, vcpus), Placement::random(&mut random, vcpus));
        let is_libvirts = random.below(4) == 0;
        let mut case = machine(vcpus, is_libvirts);
        let scope = [IsolationScope::None, IsolationScope::Host][random.below(2) as usize];
        case.plan = old.plan(scope);
        if is_libvirts {
            case.target.kept = old.kept();
        }
        let what = format!("seed {seed}, {:?} then {:?}", old.vcpus, new.vcpus);
        Self { case, old, new, what }
    }

    fn exclusive(&self) -> CpuSet {
        self.old.exclusive().union(&self.new.exclusive())
    }

    fn plan(&self) -> Plan {
        self.new.plan(self.case.plan.isolation)
    }

    fn target(&self) -> Target {
        let is_libvirts = !self.case.target.kept.is_empty();
        let kept = if is_libvirts { self.new.kept() } else { Vec::new() };
        Target { kept, ..self.case.target.clone() }
    }

    /// Asserts it after each step.
    fn observe(&self) -> impl FnMut(&Event<'_>) -> ControlFlow<()> {
        |event| {
            if event.point == Point::AfterChange {
                let what = format!("{} after {}", self.what, event.step.change);
                expect_one_owner(&self.case.host, &self.exclusive(), &what);
            }
            ControlFlow::Continue(())
        }
    }
}

/// A plan that replaces another one.
#[test]
fn a_replacement_shares_no_exclusive_cpu() {
    for seed in 0..u64::from(times(200, 10_000)) {
        let change = Change::random(seed);
        let (case, what) = (&change.case, &change.what);
        let (before, bench) = (case.host.snapshot(), Bench::new());
        bench.apply(case).unwrap_or_else(|error| panic!("{what}: {error}"));
        expect_one_owner(&case.host, &change.exclusive(), what);
        let (plan, target) = (change.plan(), change.target());
        let replacement = Replacement { plan: &plan, text: PLAN_TEXT, target: &target };
        let mut journal = bench.reopen(case);
        let steps = u64::try_from(journal.record().step_count()).unwrap();
        // Each third one is killed somewhere, and goes on.
        let last = usize::try_from(steps + seed % 7).unwrap();
        let mut observe = change.observe();
        let killed = replace(&case.host, replacement, &mut journal, &mut |event| {
            observe(event)?;
            if seed.is_multiple_of(3) && event.index == last && event.point == Point::AfterChange {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        match killed {
            Ok(_) => {}
            Err(NotReplaced::Abandoned) => {
                replace(&case.host, replacement, &mut journal, &mut no_observer()).unwrap();
            }
            Err(error) => panic!("{what}: {error}"),
        }
        for (index, cpus) in (0..).zip(&change.new.vcpus) {
            assert_eq!(case.host.affinity(vcpu(index)).unwrap(), *cpus, "{what}");
        }
        drop(journal);
        let report = bench.undo(case);
        assert!(report.is_complete() && report.changed.is_empty(), "{what}: {report:?}");
        assert_same(&before, &case.host, what);
    }
}

/// A machine that its owner has pinned by hand gets a plan, which is undone.
#[test]
fn a_first_plan_and_its_undo_share_no_exclusive_cpu() {
    for seed in 0..u64::from(times(200, 10_000)) {
        let mut change = Change::random(seed);
        change.case.target.kept.clear();
        change.case.plan = change.plan();
        let (case, what) = (&change.case, &change.what);
        let threads = [VM, 501, 502, 504].map(Tid).map(|tid| (tid, &change.old.rest));
        let vcpus = (0..).zip(&change.old.vcpus).map(|(index, cpus)| (vcpu(index), cpus));
        for (tid, cpus) in threads.into_iter().chain(vcpus) {
            case.host.set_affinity(tid, cpus).unwrap();
        }
        let (before, bench) = (case.host.snapshot(), Bench::new());
        bench
            .apply_watched(case, &mut change.observe())
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let report = undo_observed(&case.host, &mut bench.reopen(case), &mut |_, step| {
            let what = format!("{what} before the undo of {}", step.change);
            expect_one_owner(&case.host, &change.exclusive(), &what);
            ControlFlow::Continue(())
        });
        assert!(report.is_complete() && report.changed.is_empty(), "{what}: {report:?}");
        assert_same(&before, &case.host, what);
    }
}

/// Some of the moves wait, and as few as possible are parked.
#[test]
fn moves_that_wait_for_each_other_are_parked() {
    fn check(moves: &[(&str, &str)], housekeeping: &str, expected: &[MoveAction]) {
        let moves =
            moves.iter().map(|(before, after)| Move { before: set(before), after: set(after) });
        let moves: Vec<Move> = moves.collect();
        assert_eq!(order_moves(&moves, &set(housekeeping)), expected, "{moves:?}");
    }
    use MoveAction::Go;

    check(&[("0-7", "2"), ("0-7", "3")], "0-1", &[Go(0), Go(1)]);
    check(&[("2", "3"), ("3", "4"), ("4", "5")], "0-1", &[Go(2), Go(1), Go(0)]);
    check(&[("2", "3"), ("3", "2")], "0-1", &[MoveAction::Park(0, set("0-1")), Go(1), Go(0)]);
    let circles = [("2", "3"), ("3", "2"), ("4", "5"), ("5", "6"), ("6", "4")];
    let expected = [
        MoveAction::Park(0, set("0")),
        Go(1),
        Go(0),
        MoveAction::Park(2, set("0")),
        Go(4),
        Go(3),
        Go(2),
    ];
    check(&circles, "0", &expected);
    // The emulator gets the CPU that a vCPU leaves.
    check(&[("0-1", "0-2"), ("2", "3")], "0-2", &[Go(1), Go(0)]);
    // There is no place to wait.
    check(&[("0", "1"), ("1", "0")], "0", &[Go(0), Go(1)]);
    check(&[], "0", &[]);
}

/// The tasks of the host have left the CPUs when the vCPU comes, and are there again only when it
/// has gone.
#[test]
fn other_tasks_leave_before_a_vcpu_comes() {
    for case in [v1(), v1_forgetful(), v2(), v2_forgetful(), v2_in_root()] {
        let case = case.with(IsolationScope::Host);
        let bench = Bench::new();
        let (host, what) = (&case.host, case.name);
        let others = [300, 310, 400, 600, 610].map(Tid);
        let others: Vec<Tid> = others.into_iter().filter(|tid| host.task(*tid).is_some()).collect();
        let wide = host.affinity(Tid(501)).unwrap();
        let expect = |what: &str| {
            if host.affinity(Tid(501)).unwrap() == wide {
                return;
            }
            for tid in &others {
                let mask = host.affinity(*tid).unwrap();
                assert!(mask.is_disjoint(&case.plan.exclusive), "{what}: {tid} may use {mask}");
            }
        };
        bench
            .apply_watched(&case, &mut |event| {
                if event.point == Point::AfterChange {
                    expect(&format!("{what} after {}", event.step.change));
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_ne!(host.affinity(Tid(501)).unwrap(), wide, "{what}");
        let report = undo_observed(host, &mut bench.reopen(&case), &mut |_, step| {
            expect(&format!("{what} before the undo of {}", step.change));
            ControlFlow::Continue(())
        });
        assert!(report.is_complete(), "{what}: {report:?}");
    }
}
