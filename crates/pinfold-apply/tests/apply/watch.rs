//! Watching: births, drift, quarrels and the end of the machine.

use crate::common::{
    Bench, Case, assert_same, pin, set, v1, v1_forgetful, v1_libvirt, v1_machine_group, v2,
    v2_systemd, with_pin_groups,
};
use pinfold_apply::{
    Extent, Journal, MAX_REPAIRS, OnDrift, Roles, Rules, WatchEvent, Watcher, apply, no_observer,
    undo,
};
use pinfold_host::{Host, HostMut as _, paths};
use pinfold_model::text::cpus_text;
use pinfold_model::text::pus_text;
use pinfold_model::{IsolationScope, Lifetime, Policy, Role, TaskId, Tid};
use pinfold_sim::{SimHost, SimTask};

/// Roles as QMP would tell them: what the test has put in.
struct Reported {
    roles: Vec<(TaskId, Role)>,
    asked: u32,
    dead: bool,
}

impl Roles for Reported {
    fn roles(&mut self, _: &dyn Host, _: Tid) -> Result<Vec<(TaskId, Role)>, String> {
        self.asked += 1;
        if self.dead { Err("the socket is dead".to_owned()) } else { Ok(self.roles.clone()) }
    }
}

struct TestMachine<'b> {
    case: &'b Case,
    journal: Journal<'b>,
    watcher: Watcher,
    reported: Reported,
}

impl<'b> TestMachine<'b> {
    fn new(case: &'b Case, bench: &'b Bench) -> Self {
        Self::with(case, bench, OnDrift::Restore)
    }

    fn with(case: &'b Case, bench: &'b Bench, on_drift: OnDrift) -> Self {
        let mut journal = bench.begin(case);
        apply(&case.host, &case.plan, &case.target, &mut journal, &mut no_observer()).unwrap();
        let watcher = Watcher::new(&case.host, &case.plan, &case.target).unwrap();
        let watcher = watcher.on_drift(on_drift);
        let reported = Reported { roles: case.target.threads.clone(), asked: 0, dead: false };
        let mut scene = Self { case, journal, watcher, reported };
        assert_eq!(scene.tick(), []);
        scene
    }

    fn tick(&mut self) -> Vec<WatchEvent> {
        self.look(Extent::TaskEvents)
    }

    fn look(&mut self, extent: Extent) -> Vec<WatchEvent> {
        self.watcher.tick(&self.case.host, &mut self.journal, &mut self.reported, extent).unwrap()
    }

    fn mask(&self, tid: u32) -> String {
        self.case.host.affinity(Tid(tid)).unwrap().to_string()
    }
}

fn start_thread(host: &SimHost, tid: u32) -> TaskId {
    assert!(host.clone_thread(Tid(500), Tid(tid)));
    host.task(Tid(tid)).unwrap().id()
}

#[test]
fn a_quiet_tick_asks_nothing() {
    let (case, bench) = (v1(), Bench::new());
    let mut scene = TestMachine::new(&case, &bench);
    let (changes, steps) = (case.host.changes().len(), scene.journal.record().step_count());
    for _ in 0..20 {
        assert_eq!(scene.tick(), []);
    }
    assert_eq!(scene.reported.asked, 0);
    assert_eq!(case.host.changes().len(), changes);
    assert_eq!(scene.journal.record().step_count(), steps);
}

#[test]
fn a_hotplugged_vcpu_is_placed_at_the_next_tick() {
    let (mut case, bench) = (v1(), Bench::new());
    let mut second = case.plan.vnodes[0].threads[0].clone();
    second.role = Role::Vcpu(1);
    case.plan.vnodes[0].threads.insert(1, second);
    let expected = case.host.clone();
    let mut scene = TestMachine::new(&case, &bench);
    let task = start_thread(&case.host, 510);
    scene.reported.roles.push((task, Role::Vcpu(1)));
    let events = scene.tick();
    let placed = WatchEvent::Placed { task, role: Role::Vcpu(1), pus: set("1") };
    assert!(events.contains(&placed), "{events:?}");
    assert_eq!(scene.mask(510), "1");
    assert_eq!(case.host.policy(Tid(510)).unwrap(), Policy::Fifo { priority: 1 });
    assert_eq!(scene.watcher.target().role(Tid(510)), Some(&Role::Vcpu(1)));
    // It inherited the emulator's mask; without Pinfold it would have had the original.
    assert!(expected.clone_thread(Tid(500), Tid(510)));
    assert!(undo(&case.host, &mut scene.journal).is_complete());
    assert_same(&expected.snapshot(), &case.host, "hotplug");
}

#[test]
fn a_hotplugged_vcpu_of_a_domain_is_placed_through_libvirt() {
    let (mut case, bench) = (v1_libvirt(), Bench::new());
    let mut second = case.plan.vnodes[0].threads[0].clone();
    second.role = Role::Vcpu(1);
    case.plan.vnodes[0].threads.insert(1, second);
    let mut kept = case.target.kept[0].clone();
    kept.setting = pin("vcpupin 1", Lifetime::Running);
    kept.rules = Rules::Masks(Role::Vcpu(1));
    case.target.kept.push(kept.clone());
    let before = case.host.affinity(Tid(500)).unwrap();
    let mut scene = TestMachine::new(&case, &bench);
    let task = start_thread(&case.host, 510);
    case.host.add_libvirt_pin(kept.setting.clone(), None, &[Tid(510)]);
    scene.reported.roles.push((task, Role::Vcpu(1)));
    let placed = WatchEvent::Placed { task, role: Role::Vcpu(1), pus: set("1") };
    let events = scene.tick();
    assert!(events.contains(&placed), "{events:?}");
    assert_eq!(case.host.setting(&kept.setting).unwrap().as_deref(), Some("1"));
    assert_eq!(scene.mask(510), "1");
    assert!(undo(&case.host, &mut scene.journal).is_complete());
    assert_eq!(case.host.affinity(Tid(510)).unwrap(), before, "not the emulator's, which was ours");
}

#[test]
fn a_worker_that_inherited_the_right_mask_needs_no_step_and_is_freed_by_undo() {
    let (case, bench) = (v2().with(IsolationScope::Host), Bench::new());
    let expected = case.host.clone();
    let mut scene = TestMachine::new(&case, &bench);
    let steps = scene.journal.record().step_count();
    start_thread(&case.host, 510);
    assert_eq!(scene.tick(), []);
    assert_eq!(scene.journal.record().step_count(), steps);
    assert!(case.host.clone_thread(Tid(501), Tid(511)));
    assert!(!scene.tick().is_empty(), "a worker of the vCPU follows the emulator");
    assert_eq!(scene.mask(511), "0,4");
    assert!(expected.clone_thread(Tid(500), Tid(510)) && expected.clone_thread(Tid(501), Tid(511)));
    // The worker ran under the vCPU's policy, which the plan does not give to workers.
    assert!(undo(&case.host, &mut scene.journal).is_complete());
    assert_same(&expected.snapshot(), &case.host, "workers");
}

/// As before Linux 6.4: a device is opened, and a child of kthreadd serves it.
#[test]
fn a_vhost_thread_outside_the_process_is_found_by_its_device() {
    let (case, bench) = (v1(), Bench::new());
    let mut scene = TestMachine::new(&case, &bench);
    assert_eq!(scene.look(Extent::Masks), []);
    assert_eq!(scene.reported.asked, 0, "no device, no question");
    assert!(case.host.edit_task(Tid(500), open));
    assert_eq!(scene.look(Extent::Masks), [], "its worker is not there yet");
    assert_eq!(scene.reported.asked, 1);
    case.host.add_task(SimTask::new(700, "vhost-500").kernel_thread());
    let task = case.host.task(Tid(700)).unwrap().id();
    scene.reported.roles.push((task, Role::Vhost(0)));
    assert_eq!(scene.tick(), [], "no birth of the process's reports it");
    let placed = WatchEvent::Placed { task, role: Role::Vhost(0), pus: set("0") };
    assert_eq!(scene.look(Extent::Masks), [placed]);
    assert_eq!(scene.mask(700), "0");
    for _ in 0..5 {
        assert_eq!(scene.look(Extent::Masks), []);
    }
    assert_eq!(scene.reported.asked, 2);
    // A device without a worker is not asked for again and again.
    assert!(case.host.edit_task(Tid(500), open));
    for _ in 0..10 {
        assert_eq!(scene.look(Extent::Masks), []);
    }
    assert_eq!(scene.reported.asked, 5);
}

fn open(task: &mut SimTask) {
    task.descriptors.push("/dev/vhost-net".to_owned())
}

/// A virtiofsd that ends and is started again: no thread of the machine is new.
#[test]
fn a_process_of_the_machine_that_is_started_again_is_placed_again() {
    let (mut case, bench) = (v1(), Bench::new());
    case.target.threads.push(start_virtiofsd(&case, 700));
    let mut scene = TestMachine::new(&case, &bench);
    let place = scene.mask(700);
    assert_eq!((scene.look(Extent::Masks), scene.reported.asked), (vec![], 0));
    case.host.exit(Tid(700));
    scene.reported.roles.retain(|(task, _)| task.tid != Tid(700));
    assert_eq!(scene.look(Extent::Masks), [], "it is not there yet");
    let (task, role) = start_virtiofsd(&case, 710);
    scene.reported.roles.push((task, role.clone()));
    assert_ne!(scene.mask(710), place);
    let placed = WatchEvent::Placed { task, role, pus: set(&place) };
    assert_eq!(scene.look(Extent::Masks), [placed]);
    assert_eq!(scene.mask(710), place);
    let asked = scene.reported.asked;
    assert_eq!((scene.look(Extent::Masks), scene.reported.asked), (vec![], asked));
    assert!(undo(&case.host, &mut scene.journal).is_complete());
    assert_ne!(scene.mask(710), place);
}

fn start_virtiofsd(case: &Case, tid: u32) -> (TaskId, Role) {
    case.host.add_task(SimTask::new(tid, "virtiofsd"));
    (case.host.task(Tid(tid)).unwrap().id(), Role::Worker)
}

#[test]
fn drift_is_repaired_some_times_and_then_left() {
    let (case, bench) = (v1(), Bench::new());
    let before = case.host.snapshot();
    let mut scene = TestMachine::new(&case, &bench);
    for _ in 0..MAX_REPAIRS {
        case.host.set_affinity(Tid(501), &set("0")).unwrap();
        let events = scene.look(Extent::Masks);
        assert!(
            matches!(&events[..], [WatchEvent::Repaired { role: Role::Vcpu(0), .. }]),
            "{events:?}"
        );
        assert_eq!(scene.mask(501), "1");
    }
    case.host.set_affinity(Tid(501), &set("0")).unwrap();
    let events = scene.look(Extent::Masks);
    assert!(
        matches!(&events[..], [WatchEvent::Contested { role: Role::Vcpu(0), .. }]),
        "{events:?}"
    );
    assert_eq!(scene.look(Extent::Masks), [], "told once");
    assert_eq!(scene.mask(501), "0");
    let report = undo(&case.host, &mut scene.journal);
    assert_eq!((report.is_complete(), report.changed.len()), (true, 4), "{report:?}");
    assert_eq!(scene.mask(501), "0", "who changed it last keeps it");
    case.host.set_affinity(Tid(501), &set("0-1")).unwrap();
    assert_same(&before, &case.host, "but for that");
}

/// `virsh vcpupin` by hand: libvirt has another pin than the plan.
#[test]
fn a_pin_that_a_person_set_through_libvirt_stays() {
    let (case, bench) = (v1_libvirt(), Bench::new());
    let mut scene = TestMachine::new(&case, &bench);
    let vcpu = pin("vcpupin 0", Lifetime::Running);
    case.host.add_libvirt_pin(vcpu.clone(), Some("0"), &[Tid(501)]);
    case.host.set_affinity(Tid(501), &set("0")).unwrap();
    let events = scene.look(Extent::Masks);
    let [WatchEvent::Yielded { role: Role::Vcpu(0), found, clue, .. }] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(found, "CPU 0");
    assert!(clue.ends_with(" is 0") && clue.contains("vcpupin 0"), "{clue}");
    for _ in 0..=MAX_REPAIRS {
        assert_eq!(scene.look(Extent::Masks), [], "told once, never fought");
    }
    assert_eq!(
        (scene.mask(501).as_str(), case.host.setting(&vcpu).unwrap().as_deref()),
        ("0", Some("0"))
    );
    let moved: Vec<_> = scene.watcher.change().moved.values().collect();
    assert_eq!(moved, [&(Role::Vcpu(0), set("0"))]);
    // The plan that follows it has nothing to report.
    let mut plan = case.plan.clone();
    (plan.vnodes[0].threads[0].pus, plan.vnodes[0].threads[0].policy) = (set("0"), None);
    let mut target = case.target.clone();
    for kept in &mut target.kept {
        if kept.rules == Rules::Masks(Role::Vcpu(0)) {
            kept.value = "0".to_owned();
        }
    }
    scene.watcher.follow(&plan, &target);
    assert_eq!(scene.look(Extent::Masks), []);
    assert!(scene.watcher.change().is_empty(), "{:?}", scene.watcher.change());
}

const V1_MACHINE: &str = "/sys/fs/cgroup/cpuset/machine/vm1";
const V2_MACHINE: &str = "/sys/fs/cgroup/machine.slice/vm1.scope";

/// What libvirt does for a pin: the list of the group, then the mask of one thread.
fn pin_through_libvirt(case: &Case, machine: &str, group: &str, tid: u32, cpus: &str) {
    let list = paths::cpuset_cpus(&format!("{machine}/{group}"));
    case.host.write(&list, cpus.as_bytes()).unwrap();
    case.host.set_affinity(Tid(tid), &set(cpus)).unwrap();
}

/// The only event of a check, which is that the owner moved a thread.
#[track_caller]
fn expect_yielded(events: &[WatchEvent], role: &Role, found: &str) {
    let [WatchEvent::Yielded { role: of, found: to, .. }] = events else { panic!("{events:?}") };
    assert_eq!((of, to), (role, &pus_text(&set(found))));
}

/// The cases: a kernel that remembers masks and one that does not, and both versions.
fn domains() -> [(Case, &'static str, [&'static str; 4]); 2] {
    // CPUs to which the vCPU is moved, and the emulator: elsewhere, and to some of its own.
    [
        (with_pin_groups(v1_machine_group(), V1_MACHINE), V1_MACHINE, ["0", "1", "0-1", "0"]),
        (with_pin_groups(v2(), V2_MACHINE), V2_MACHINE, ["1", "3", "0,4", "4"]),
    ]
}

/// The hook has placed the domain: libvirt keeps no pin that could be compared.
#[test]
fn a_pin_in_a_group_of_libvirt_is_the_owners_whatever_watch_does_about_drift() {
    for on_drift in [OnDrift::Adopt, OnDrift::Report, OnDrift::Restore] {
        for (case, machine, [vcpu, emulator, ..]) in domains() {
            let bench = Bench::new();
            let mut scene = TestMachine::with(&case, &bench, on_drift);
            pin_through_libvirt(&case, machine, "vcpu0", 501, vcpu);
            expect_yielded(&scene.look(Extent::Groups), &Role::Vcpu(0), vcpu);
            assert_eq!(scene.look(Extent::Groups), [], "once");
            // All threads of the group move; it is one pin.
            pin_through_libvirt(&case, machine, "emulator", 500, emulator);
            expect_yielded(&scene.look(Extent::Groups), &Role::Emulator, emulator);
            for _ in 0..=MAX_REPAIRS {
                assert_eq!(scene.look(Extent::Groups), [], "once");
            }
            let masks = [501, 500, 503].map(|tid| scene.mask(tid));
            assert_eq!(masks, [vcpu, emulator, emulator], "{}", case.name);
            let change = scene.watcher.change();
            assert!(change.repinned_threads.is_empty(), "{change:?}");
            let mut moved: Vec<_> = change.moved.values().cloned().collect();
            moved.dedup();
            let worker = (Role::Worker, set(emulator));
            assert_eq!(
                moved,
                [(Role::Emulator, set(emulator)), (Role::Vcpu(0), set(vcpu)), worker],
                "{}",
                case.name
            );
        }
    }
}

/// A `watch` that was started after the pin finds the same as one that saw it.
#[test]
fn a_pin_to_some_of_the_planned_cpus_is_followed_by_a_watch_that_starts_later_too() {
    for (mut case, machine, [.., wide, narrow]) in domains() {
        case.plan.vnodes[0].threads[1].pus = set(wide);
        let bench = Bench::new();
        let mut scene = TestMachine::with(&case, &bench, OnDrift::Adopt);
        pin_through_libvirt(&case, machine, "emulator", 500, narrow);
        let watcher = Watcher::new(&case.host, &case.plan, &case.target).unwrap();
        let first = scene.look(Extent::Groups);
        scene.watcher = watcher;
        for events in [first, scene.tick()] {
            expect_yielded(&events, &Role::Emulator, narrow);
        }
        assert!(scene.watcher.needs_plan());
        // The domain's own list is a limit, and no pin.
        pin_through_libvirt(&case, machine, "emulator", 500, wide);
        scene.look(Extent::Groups);
        assert!(scene.watcher.change().is_empty(), "{:?}", scene.watcher.change());
    }
}

#[test]
fn a_pin_that_libvirt_keeps_in_its_group_is_followed() {
    let (case, bench) = (with_pin_groups(v1_libvirt(), V1_MACHINE), Bench::new());
    let mut scene = TestMachine::with(&case, &bench, OnDrift::Restore);
    for (key, group, tid, role, cpus) in [
        ("vcpupin 0", "vcpu0", 501, Role::Vcpu(0), "0"),
        ("emulatorpin", "emulator", 500, Role::Emulator, "1"),
    ] {
        pin_through_libvirt(&case, V1_MACHINE, group, tid, cpus);
        case.host.add_libvirt_pin(pin(key, Lifetime::Running), Some(cpus), &[Tid(tid)]);
        let events = scene.look(Extent::Groups);
        expect_yielded(&events, &role, cpus);
        assert_eq!(scene.look(Extent::Groups), [], "once");
        assert_eq!(scene.mask(tid), cpus);
    }
}

/// An `apply` next to it writes through libvirt what the plan has.
#[test]
fn pins_that_become_those_of_the_plan_are_no_news() {
    let (case, bench) = (with_pin_groups(v1_libvirt(), V1_MACHINE), Bench::new());
    let mut scene = TestMachine::with(&case, &bench, OnDrift::Adopt);
    pin_through_libvirt(&case, V1_MACHINE, "vcpu0", 501, "1");
    pin_through_libvirt(&case, V1_MACHINE, "emulator", 500, "0");
    assert_eq!(scene.look(Extent::Groups), []);
}

/// libvirt gives a new vCPU the mask of its group some time after it was created.
#[test]
fn the_first_mask_of_a_new_vcpu_is_no_drift() {
    for on_drift in [OnDrift::Adopt, OnDrift::Restore] {
        let (case, bench) = (with_pin_groups(v1_machine_group(), V1_MACHINE), Bench::new());
        let mut scene = TestMachine::with(&case, &bench, on_drift);
        let task = start_thread(&case.host, 510);
        scene.reported.roles.push((task, Role::Vcpu(1)));
        scene.tick();
        let group = format!("{V1_MACHINE}/vcpu1");
        case.host.make_dir(&group).unwrap();
        case.host.write(&paths::cpuset_mems(&group), b"0").unwrap();
        case.host.write(&paths::cpuset_cpus(&group), b"0-1").unwrap();
        case.host.write(&paths::cgroup_tasks(&group), b"510").unwrap();
        case.host.set_affinity(Tid(510), &set("0-1")).unwrap();
        assert_eq!(scene.look(Extent::Groups), [], "no drift");
        assert_eq!(scene.mask(510), "0", "with the emulator until it has a place");
        assert_eq!(scene.watcher.change().added, [(task, Role::Vcpu(1))]);
    }
}

#[test]
fn drift_is_only_reported_where_that_is_asked_for() {
    let (case, bench) = (v1(), Bench::new());
    let mut scene = TestMachine::new(&case, &bench);
    scene.watcher =
        Watcher::new(&case.host, &case.plan, &case.target).unwrap().on_drift(OnDrift::Report);
    assert_eq!(scene.tick(), []);
    case.host.set_affinity(Tid(501), &set("0")).unwrap();
    let events = scene.look(Extent::Masks);
    assert!(matches!(&events[..], [WatchEvent::Yielded { role: Role::Vcpu(0), .. }]), "{events:?}");
    assert_eq!((scene.look(Extent::Masks), scene.mask(501).as_str()), (vec![], "0"));
    case.host.set_affinity(Tid(501), &set("0-1")).unwrap();
    assert_eq!(scene.look(Extent::Masks).len(), 1, "moved again");
    // Back on its CPU it is as planned, and the next move is another one.
    case.host.set_affinity(Tid(501), &set("1")).unwrap();
    assert_eq!(scene.look(Extent::Masks), []);
    assert!(scene.watcher.change().is_empty());
    case.host.set_policy(Tid(501), Policy::Other { nice: 0 }).unwrap();
    assert_eq!(scene.look(Extent::Masks).len(), 1, "a policy");
    assert!(scene.watcher.change().is_empty(), "no other CPUs");
    // New threads are placed all the same.
    start_thread(&case.host, 510);
    assert!(case.host.clone_thread(Tid(501), Tid(511)));
    scene.tick();
    assert_eq!(scene.mask(511), scene.mask(500), "a worker follows the emulator");
}

#[test]
fn the_owner_wins_by_default() {
    let (case, bench) = (v1(), Bench::new());
    assert_eq!(OnDrift::default(), OnDrift::Adopt);
    let mut scene = TestMachine::with(&case, &bench, OnDrift::Adopt);
    case.host.set_affinity(Tid(501), &set("0")).unwrap();
    let events = scene.look(Extent::Masks);
    let [WatchEvent::Yielded { role: Role::Vcpu(0), planned, found, .. }] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!((planned.as_str(), found.as_str()), ("CPU 1", "CPU 0"));
    assert!(scene.watcher.needs_plan());
    for _ in 0..=MAX_REPAIRS {
        assert_eq!(scene.look(Extent::Masks), [], "once");
    }
    assert_eq!(scene.mask(501), "0");
    let mut plan = case.plan.clone();
    (plan.vnodes[0].threads[0].pus, plan.vnodes[0].threads[0].policy) = (set("0"), None);
    scene.watcher.follow(&plan, &case.target);
    assert_eq!(scene.look(Extent::Masks), [], "it is the plan now");
    assert!(!scene.watcher.needs_plan());
    // Back where Pinfold had placed it: that is the owner's move too.
    case.host.set_affinity(Tid(501), &set("1")).unwrap();
    let events = scene.look(Extent::Masks);
    assert!(matches!(&events[..], [WatchEvent::Yielded { .. }]), "{events:?}");
    assert_eq!(scene.mask(501), "1");
}

/// Back on the CPUs of the first plan, a thread of its owner looks like one that Pinfold placed. It
/// is one if the plan did not follow its owner.
#[test]
fn an_undo_leaves_what_its_owner_moved_away_and_back() {
    for (on_drift, stays) in [(OnDrift::Adopt, true), (OnDrift::Report, false)] {
        for case in [v1(), v1_forgetful(), v2()] {
            let bench = Bench::new();
            let thread = (case.host.affinity(Tid(501)), case.host.policy(Tid(501)));
            let original = (thread.0.unwrap().to_string(), thread.1.unwrap());
            let mut scene = TestMachine::with(&case, &bench, on_drift);
            let planned = scene.mask(501);
            let policy = case.host.policy(Tid(501)).unwrap();
            for (cpus, set_policy) in [("0", Policy::Other { nice: 5 }), (&planned, policy)] {
                case.host.set_affinity(Tid(501), &set(cpus)).unwrap();
                case.host.set_policy(Tid(501), set_policy).unwrap();
                scene.look(Extent::Masks);
                if scene.watcher.needs_plan() {
                    let mut plan = case.plan.clone();
                    let thread = &mut plan.vnodes[0].threads[0];
                    (thread.pus, thread.policy) = (set(cpus), Some(set_policy));
                    scene.watcher.follow(&plan, &case.target);
                }
                assert_eq!(scene.look(Extent::Masks), [], "{}", case.name);
            }
            let report = undo(&case.host, &mut scene.journal);
            let texts: Vec<&str> = report.changed.iter().map(|one| one.text.as_str()).collect();
            assert_eq!((report.is_complete(), texts.len()), (true, if stays { 2 } else { 0 }));
            assert!(texts.iter().all(|text| text.contains("the owner of the machine has set")));
            let after = (scene.mask(501), case.host.policy(Tid(501)).unwrap());
            let expected = if stays { (planned, policy) } else { original.clone() };
            assert_eq!(after, expected, "{} {on_drift:?}", case.name);
            assert_eq!(scene.mask(500), original.0, "{}", case.name);
        }
    }
}

/// The owner changes a thread again while its first change is adopted: back to what Pinfold set, or
/// to something else.
#[test]
fn a_thread_that_is_changed_while_a_change_is_adopted_stays_so() {
    for cpus in ["1", "0-1"] {
        let (case, bench) = (v1(), Bench::new());
        let mut scene = TestMachine::with(&case, &bench, OnDrift::Adopt);
        let task = case.host.task(Tid(501)).unwrap().id();
        let planned = case.host.policy(Tid(501)).unwrap();
        let adopted = Policy::Other { nice: 5 };
        case.host.set_affinity(Tid(501), &set("0")).unwrap();
        case.host.set_policy(Tid(501), adopted).unwrap();
        scene.look(Extent::Masks);
        case.host.set_affinity(Tid(501), &set(cpus)).unwrap();
        case.host.set_policy(Tid(501), planned).unwrap();
        let mut plan = case.plan.clone();
        let thread = &mut plan.vnodes[0].threads[0];
        (thread.pus, thread.policy) = (set("0"), Some(adopted));
        scene.watcher.follow(&plan, &case.target);
        let events = scene.look(Extent::Masks);
        let yielded = events.iter().filter(|event| matches!(event, WatchEvent::Yielded { .. }));
        assert_eq!(yielded.count(), events.len(), "{cpus}: {events:?}");
        assert_eq!(
            (scene.mask(501).as_str(), case.host.policy(Tid(501)).unwrap()),
            (cpus, planned)
        );
        let change = scene.watcher.change();
        assert_eq!(change.moved[&task], (Role::Vcpu(0), set(cpus)));
        assert_eq!(change.policies[&task], (Role::Vcpu(0), planned));
    }
}

/// The watchdog takes real-time policies when its supervisor is suspended.
#[test]
fn a_policy_that_the_watchdog_took_is_given_back_and_one_of_the_owner_stays() {
    for on_drift in [OnDrift::Adopt, OnDrift::Report] {
        let (case, bench) = (v1(), Bench::new());
        let mut scene = TestMachine::with(&case, &bench, on_drift);
        let planned = case.host.policy(Tid(501)).unwrap();
        let taken =
            pinfold_apply::demote_real_time_threads(&case.host, scene.journal.record()).unwrap();
        assert_eq!(taken.len(), 1);
        let events = scene.look(Extent::Masks);
        assert!(matches!(&events[..], [WatchEvent::Repaired { .. }]), "{events:?}");
        assert_eq!(case.host.policy(Tid(501)).unwrap(), planned);
        let other = Policy::Fifo { priority: 7 };
        case.host.set_policy(Tid(501), other).unwrap();
        let events = scene.look(Extent::Masks);
        assert!(matches!(&events[..], [WatchEvent::Yielded { .. }]), "{events:?}");
        assert_eq!(case.host.policy(Tid(501)).unwrap(), other);
        let task = case.host.task(Tid(501)).unwrap().id();
        assert_eq!(scene.watcher.change().policies[&task], (Role::Vcpu(0), other));
        assert_eq!(scene.watcher.needs_plan(), on_drift == OnDrift::Adopt);
    }
}

/// No step was needed at the start: its first move is the owner's all the same.
#[test]
fn a_thread_that_had_its_planned_cpus_before_stays_where_it_is_moved() {
    let (case, bench) = (v1(), Bench::new());
    case.host.set_affinity(Tid(501), &set("1")).unwrap();
    let mut scene = TestMachine::with(&case, &bench, OnDrift::Adopt);
    case.host.set_affinity(Tid(501), &set("0")).unwrap();
    let events = scene.look(Extent::Masks);
    assert!(matches!(&events[..], [WatchEvent::Yielded { .. }]), "{events:?}");
    assert_eq!(scene.mask(501), "0");
}

#[test]
fn one_of_several_threads_of_a_role_stays_alone() {
    let (case, bench) = (v1(), Bench::new());
    let mut scene = TestMachine::with(&case, &bench, OnDrift::Adopt);
    case.host.set_affinity(Tid(503), &set("1")).unwrap();
    let events = scene.look(Extent::Masks);
    assert!(matches!(&events[..], [WatchEvent::Yielded { .. }]), "{events:?}");
    let change = scene.watcher.change().clone();
    assert!(
        change.moved.is_empty() && change.repinned_threads.len() == 1,
        "the others stay: {change:?}"
    );
    assert_eq!(scene.look(Extent::Masks), [], "once");
    // The plan that names it has nothing to report, for `status` neither.
    let mut plan = case.plan.clone();
    plan.moved =
        change.repinned_threads.iter().map(|(task, (_, cpus))| (*task, cpus.clone())).collect();
    scene.watcher.follow(&plan, &case.target);
    assert_eq!(scene.look(Extent::Masks), []);
    assert!(scene.watcher.change().is_empty(), "{:?}", scene.watcher.change());
    let status = pinfold_apply::status(&case.host, &plan, &case.target).unwrap();
    assert!(status.roles.iter().all(|role| role.ok), "{:?}", status.roles);
    // All of them: the plan follows.
    for tid in [500, 503] {
        case.host.set_affinity(Tid(tid), &set("0-1")).unwrap();
    }
    scene.look(Extent::Masks);
    assert_eq!((scene.mask(500), scene.mask(503)), ("0-1".to_owned(), "0-1".to_owned()));
}

/// The kernel resets masks when a machine is moved to another group: nobody's wish.
#[test]
fn a_reset_by_the_kernel_is_corrected() {
    let (case, bench) = (v1_machine_group(), Bench::new());
    let mut scene = TestMachine::with(&case, &bench, OnDrift::Adopt);
    for tid in [500, 501, 502, 503] {
        let file = paths::cgroup_tasks("/sys/fs/cgroup/cpuset/machine/vm2");
        case.host.write(&file, tid.to_string().as_bytes()).unwrap();
        case.host.set_affinity(Tid(tid), &set("0-1")).unwrap();
    }
    let events = scene.look(Extent::Masks);
    assert!(
        events.iter().filter(|event| matches!(event, WatchEvent::Repaired { .. })).count() >= 3,
        "{events:?}"
    );
    assert_eq!(scene.mask(501), "1");
    assert!(scene.watcher.change().is_empty(), "{:?}", scene.watcher.change());
}

/// `virsh setvcpus` and `vcpupin` one after the other, before the thread is seen.
#[test]
fn a_new_vcpu_that_has_a_pin_already_keeps_it() {
    let (case, bench) = (v2(), Bench::new());
    let mut scene = TestMachine::with(&case, &bench, OnDrift::Adopt);
    let task = start_thread(&case.host, 510);
    scene.reported.roles.push((task, Role::Vcpu(1)));
    case.host.set_affinity(Tid(510), &set("5")).unwrap();
    let events = scene.tick();
    assert!(matches!(&events[..], [WatchEvent::Yielded { .. }]), "{events:?}");
    assert_eq!(scene.mask(510), "5");
    let moved = &scene.watcher.change().moved[&task];
    assert_eq!(*moved, (Role::Vcpu(1), set("5")));
    // One without follows the emulator until it is planned, and what libvirt sets then is no pin.
    let task = start_thread(&case.host, 511);
    scene.reported.roles.push((task, Role::Vcpu(2)));
    scene.tick();
    case.host.set_affinity(Tid(511), &set("0-7")).unwrap();
    assert_eq!(scene.look(Extent::Masks), [], "and no drift");
    assert_eq!(scene.mask(511), scene.mask(500));
}

#[test]
fn threads_that_come_go_and_lose_their_cpus_are_a_change_of_the_machine() {
    let (mut case, bench) = (v1(), Bench::new());
    // Planned, but not plugged in yet.
    let mut later = case.plan.vnodes[0].threads[0].clone();
    later.role = Role::Vcpu(7);
    case.plan.vnodes[0].threads.insert(1, later);
    let mut scene = TestMachine::new(&case, &bench);
    assert!(scene.watcher.change().is_empty(), "{:?}", scene.watcher.change());
    let task = start_thread(&case.host, 510);
    scene.reported.roles.push((task, Role::Vcpu(1)));
    scene.tick();
    assert_eq!(scene.watcher.change().added, [(task, Role::Vcpu(1))]);
    let told = scene.watcher.report_unplaced();
    assert!(matches!(&told[..], [one] if one.text.contains("vcpu(1) (thread 510)")), "{told:?}");
    assert_eq!(scene.watcher.report_unplaced(), [], "once");
    case.host.exit(Tid(510));
    scene.tick();
    assert!(scene.watcher.change().is_empty(), "it had no place: {:?}", scene.watcher.change());
    case.host.exit(Tid(501));
    scene.tick();
    assert_eq!(scene.watcher.change().removed, [Role::Vcpu(0)], "but not vCPU 7");
}

#[test]
fn who_may_have_moved_a_thread_is_reported() {
    let (one, other) = (v1(), v2_systemd());
    assert_eq!(clue_of(&one, "0"), "no running program is known to do that");
    assert!(clue_of(&one, "0-1").contains("its mask equals its whole cpuset"), "a reset");
    let clue = clue_of(&other, "0");
    assert!(clue.contains("systemd manages the group as "), "{clue}");
}

fn clue_of(case: &Case, mask: &str) -> String {
    let bench = Bench::new();
    let mut scene = TestMachine::new(case, &bench);
    case.host.set_affinity(Tid(501), &set(mask)).unwrap();
    let events = scene.look(Extent::Masks);
    let [WatchEvent::Repaired { clue, found, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(*found, cpus_text(&set(mask)));
    clue.clone()
}

#[test]
fn a_group_that_a_person_wrote_to_is_reported_and_masks_are_put_right() {
    for on_drift in [OnDrift::Adopt, OnDrift::Report, OnDrift::Restore] {
        narrow_the_group(on_drift);
    }
}

fn narrow_the_group(on_drift: OnDrift) {
    let (case, bench) = (v1_machine_group(), Bench::new());
    let mut scene = TestMachine::with(&case, &bench, on_drift);
    let path = paths::cpuset_cpus("/sys/fs/cgroup/cpuset/machine/vm1");
    assert!(scene.watcher.files().any(|file| *file == path), "{path}");
    assert_eq!(scene.look(Extent::Groups), []);
    case.host.write(&path, b"0").unwrap();
    let events = scene.look(Extent::Groups);
    assert!(
        events.iter().any(|event| {
            matches!(event, WatchEvent::Groups { what, before, after, .. }
            if *what == path && before == "0-1" && after == "0")
        }),
        "{events:?}"
    );
    // The vCPU's CPU is not in it: nothing can be put right, which is said too.
    assert!(events.iter().any(|event| matches!(event, WatchEvent::Finding(_))), "{events:?}");
    assert_eq!((scene.look(Extent::Groups), scene.mask(501)), (vec![], "0".to_owned()), "once");
    assert!(scene.watcher.change().is_empty(), "{:?}", scene.watcher.change());
    case.host.write(&path, b"0-1").unwrap();
    let events = scene.look(Extent::Groups);
    assert!(matches!(&events[..], [WatchEvent::Groups { .. }]), "{events:?}");
    assert_eq!(scene.mask(501), "1", "Linux 6.2 and newer remember the mask");
    assert_eq!(scene.look(Extent::Groups), []);
}

#[test]
fn a_machine_that_was_moved_and_its_group_that_vanished_are_reported() {
    let (case, bench) = (v1_machine_group(), Bench::new());
    let mut scene = TestMachine::new(&case, &bench);
    let mount = "/sys/fs/cgroup/cpuset";
    for tid in [500, 501, 502, 503] {
        let file = paths::cgroup_tasks(&format!("{mount}/machine/vm2"));
        case.host.write(&file, tid.to_string().as_bytes()).unwrap();
    }
    case.host.remove_dir(&format!("{mount}/machine/vm1")).unwrap();
    let events = scene.look(Extent::Groups);
    let moved = |event: &WatchEvent| {
        matches!(event, WatchEvent::Groups { before, after, .. }
            if before.ends_with("/vm1") && after.ends_with("/vm2"))
    };
    assert!(events.iter().any(moved) && events.iter().any(|event: &WatchEvent| matches!(event, WatchEvent::Groups { after, .. } if after == "gone")), "{events:?}");
    assert_eq!(scene.look(Extent::Groups), []);
}

#[test]
fn a_thread_without_a_role_is_asked_for_again_soon() {
    let (case, bench) = (v1(), Bench::new());
    let mut scene = TestMachine::new(&case, &bench);
    assert!(!scene.watcher.has_questions());
    let task = start_thread(&case.host, 510);
    scene.tick();
    assert!(scene.watcher.has_questions(), "its name may come later");
    scene.reported.roles.push((task, Role::Vhost(0)));
    let (host, journal) = (&case.host, &mut scene.journal);
    scene.watcher.repair_drift(host, journal, &mut scene.reported).unwrap();
    assert_eq!(scene.watcher.target().role(Tid(510)), Some(&Role::Vhost(0)));
    scene.watcher.repair_drift(host, journal, &mut scene.reported).unwrap();
    assert!(!scene.watcher.has_questions(), "answered");
    assert_eq!(scene.reported.asked, 2);
}

#[test]
fn a_dead_socket_is_reported_and_new_threads_follow_the_emulator() {
    let (case, bench) = (v1(), Bench::new());
    let mut scene = TestMachine::new(&case, &bench);
    scene.reported.dead = true;
    assert!(case.host.clone_thread(Tid(501), Tid(510)));
    let events = scene.tick();
    assert!(matches!(&events[0], WatchEvent::Finding(finding) if finding.text.contains("dead")));
    assert_eq!(scene.mask(510), "0");
    scene.look(Extent::Masks);
    scene.look(Extent::Masks);
    scene.look(Extent::Masks);
    assert_eq!(scene.reported.asked, 3, "a thread without a role is asked for a few times only");
}

#[test]
fn a_refused_placement_is_reported_and_not_fatal() {
    let (case, bench) = (v1(), Bench::new());
    let mut scene = TestMachine::new(&case, &bench);
    assert!(case.host.clone_thread(Tid(501), Tid(510)));
    case.host.fail_on("set_affinity 510", 22);
    let events = scene.tick();
    assert!(
        matches!(&events[0], WatchEvent::Finding(finding) if finding.text.contains("510")),
        "{events:?}"
    );
}

#[test]
fn the_end_of_the_machine_is_reported_once() {
    let (case, bench) = (v1().with(IsolationScope::Own), Bench::new());
    let expected = case.host.clone();
    let mut scene = TestMachine::new(&case, &bench);
    case.host.exit(Tid(500));
    assert_eq!(scene.tick(), [WatchEvent::Ended]);
    assert_eq!(scene.tick(), []);
    expected.exit(Tid(500));
    assert!(undo(&case.host, &mut scene.journal).is_complete());
    assert_same(&expected.snapshot(), &case.host, "a machine that ended");
}

#[test]
fn a_thread_whose_cpus_are_all_offline_is_stranded() {
    let (case, bench) = (v2(), Bench::new());
    let mut scene = TestMachine::new(&case, &bench);
    let planned = &case.plan.vnodes[0].threads[0].pus;
    case.host.set_online(&set("0-7").difference(planned));
    let events = scene.look(Extent::Masks);
    let offline = |event: &WatchEvent| matches!(event, WatchEvent::Finding(one) if one.text.contains("offline"));
    assert!(events.iter().any(offline), "{events:?}");
    assert_eq!(scene.watcher.change().stranded, [Role::Vcpu(0)]);
    case.host.set_online(&set("0-7"));
    scene.look(Extent::Masks);
    assert!(scene.watcher.change().is_empty(), "{:?}", scene.watcher.change());
}
