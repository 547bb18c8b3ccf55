//! Settings that libvirt or systemd keep: set through them, told by them, and taken back.

use std::ops::ControlFlow;

use crate::common::{
    Bench, DOMAIN, VM, assert_same, break_at, pin, set, v1_libvirt, v1_machine_group, v2_systemd,
    with_pin_groups,
};
use pinfold_apply::{
    Extent, Journals, NewJournal, OnDrift, Point, RecordedPin, WatchEvent, Watcher, apply,
    group_name, no_observer, plan_steps, undo, undo_host_part, undo_observed,
};
use pinfold_host::{Host as _, HostMut as _, paths};
use pinfold_model::{Change, IsolationScope, Lifetime, Setting, SettingManager, Tid};

fn value(host: &pinfold_sim::SimHost, key: &str, lifetime: Lifetime) -> Option<String> {
    host.setting(&pin(key, lifetime)).unwrap()
}

#[test]
fn what_libvirt_keeps_is_set_through_libvirt_alone() {
    let (case, bench) = (v1_libvirt(), Bench::new());
    let applied = bench.apply(&case).unwrap();
    for lifetime in [Lifetime::Running, Lifetime::Lasting] {
        assert_eq!(value(&case.host, "vcpupin 0", lifetime).as_deref(), Some("1"));
        assert_eq!(value(&case.host, "emulatorpin", lifetime).as_deref(), Some("0"));
    }
    assert!(!applied.steps.iter().any(|step| matches!(&step.change, Change::SetAffinity { task, .. } if [500, 501].contains(&task.tid.0))));
    // A change behind libvirt's back is seen in the kernel and put right through libvirt.
    case.host.set_affinity(Tid(501), &set("0-1")).unwrap();
    let steps = plan_steps(&case.host, &case.plan, &case.target).unwrap().steps;
    assert!(matches!(&steps[..], [step] if step.change.to_string().contains("vcpupin 0")));
}

#[test]
fn a_first_pin_becomes_all_pus_and_that_is_reported() {
    let (case, bench) = (v1_libvirt(), Bench::new());
    case.host.add_libvirt_pin(pin("vcpupin 0", Lifetime::Running), None, &[Tid(501)]);
    let before = case.host.affinity(Tid(501)).unwrap();
    bench.apply(&case).unwrap();
    let report = bench.undo(&case);
    assert!(report.is_complete() && report.changed.is_empty(), "{report:?}");
    assert_eq!(report.equivalent.len(), 1, "{report:?}");
    assert_eq!(value(&case.host, "vcpupin 0", Lifetime::Running).as_deref(), Some("0-1"));
    assert_eq!(case.host.affinity(Tid(501)).unwrap(), before);
}

#[test]
fn what_another_program_pinned_since_is_left_and_reported() {
    let (case, bench) = (v1_libvirt(), Bench::new());
    bench.apply(&case).unwrap();
    case.host.set_setting(&pin("emulatorpin", Lifetime::Lasting), Some("0-1")).unwrap();
    let report = bench.undo(&case);
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(report.changed.len(), 1, "{report:?}");
    assert!(report.changed[0].text.contains("emulatorpin in the definition of"), "{report:?}");
    assert_eq!(value(&case.host, "emulatorpin", Lifetime::Lasting).as_deref(), Some("0-1"));
}

#[test]
fn a_thread_that_its_owner_moved_behind_libvirts_back_stays_there() {
    let (case, bench) = (v1_libvirt(), Bench::new());
    let before = value(&case.host, "vcpupin 0", Lifetime::Running);
    bench.apply(&case).unwrap();
    case.host.set_affinity(Tid(501), &set("0")).unwrap();
    let report = bench.undo(&case);
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(report.changed.len(), 1, "{report:?}");
    assert!(report.changed[0].text.contains("501"), "{report:?}");
    assert_eq!(case.host.affinity(Tid(501)).unwrap(), set("0"));
    let after = value(&case.host, "vcpupin 0", Lifetime::Running);
    assert!(after == before || before.is_none() && after.as_deref() == Some("0-1"), "{after:?}");
}

/// The list of the group is libvirt's pin, and the owner has written to it.
#[test]
fn a_list_that_the_owner_wrote_to_the_group_of_a_thread_stays() {
    let machine = "/sys/fs/cgroup/cpuset/machine/vm1";
    let list = paths::cpuset_cpus(&format!("{machine}/vcpu0"));
    for owner in [None, Some("0")] {
        let (case, bench) = (v1_libvirt(), Bench::new());
        let case = with_pin_groups(case, machine);
        case.host.add_list_of_pin(&pin("vcpupin 0", Lifetime::Running), &list);
        bench.apply(&case).unwrap();
        assert_eq!(case.host.read_text(&list).unwrap().trim(), "1");
        if let Some(cpus) = owner {
            case.host.write(&list, cpus.as_bytes()).unwrap();
            case.host.set_affinity(Tid(501), &set(cpus)).unwrap();
        }
        let report = bench.undo(&case);
        assert!(report.is_complete(), "{report:?}");
        let texts: Vec<&str> = report.changed.iter().map(|one| one.text.as_str()).collect();
        let is_list = |text: &&str| text.starts_with(&*list) && text.contains("stays on 0");
        assert_eq!((texts.len(), texts.iter().all(is_list)), (usize::from(owner.is_some()), true));
        let stays = owner.unwrap_or("0-1");
        assert_eq!(case.host.read_text(&list).unwrap().trim(), stays);
        assert_eq!(case.host.affinity(Tid(501)).unwrap(), set(stays));
        assert_eq!(value(&case.host, "vcpupin 0", Lifetime::Running).as_deref(), Some("0-1"));
    }
}

/// libvirt had no pin. An undo that was killed may have set all CPUs; else the owner has.
#[test]
fn a_pin_to_all_cpus_is_the_owners() {
    let (case, bench) = (v1_libvirt(), Bench::new());
    let vcpu = pin("vcpupin 0", Lifetime::Running);
    case.host.add_libvirt_pin(vcpu.clone(), None, &[Tid(501)]);
    case.host.set_affinity(Tid(501), &set("0")).unwrap();
    bench.apply(&case).unwrap();
    case.host.set_setting(&vcpu, Some("0-1")).unwrap();
    let report = bench.undo(&case);
    assert!(report.is_complete() && report.equivalent.is_empty(), "{report:?}");
    assert!(report.changed[0].text.contains("vcpupin 0"), "{report:?}");
    assert_eq!(case.host.affinity(Tid(501)).unwrap(), set("0-1"));
}

/// When libvirt's pin is restored, libvirt sets the masks of the threads. An undo is killed before
/// it gives the thread the owner's mask again.
#[test]
fn a_mask_of_the_owner_survives_an_undo_that_was_killed() {
    for (thread, own) in [(501, "0"), (VM, "1")] {
        for dies_after in 0.. {
            let what = format!("{thread}, killed after {dies_after} changes");
            let (case, bench) = (v1_libvirt(), Bench::new());
            bench.apply(&case).unwrap();
            case.host.set_affinity(Tid(thread), &set(own)).unwrap();
            case.host.fail_after(dies_after, 5);
            let is_complete = bench.undo(&case).is_complete();
            case.host.clear_faults();
            let report = bench.undo(&case);
            assert!(report.is_complete(), "{what}: {report:?}");
            assert_eq!(case.host.affinity(Tid(thread)).unwrap(), set(own), "{what}: {report:?}");
            if is_complete {
                assert!(dies_after > 2, "{what}");
                break;
            }
            let text = format!("{thread}");
            assert!(
                report.changed.iter().any(|one| one.text.contains(&text)),
                "{what}: {report:?}"
            );
        }
    }
}

/// The hook of libvirt sets masks in the kernel; libvirt has no pin then.
fn placed_by_hook(bench: &Bench) -> (crate::common::Case, Setting) {
    let keeper = SettingManager::LibvirtStatus { file: "/run/libvirt/qemu/vm1.xml".to_owned() };
    let setting = Setting { keeper, ..pin("vcpupin 0", Lifetime::Running) };
    let mut case = v1_machine_group();
    case.host.add_libvirt_pin(setting.clone(), None, &[]);
    let task = case.host.task(Tid(501)).unwrap().id();
    case.target.pins = vec![RecordedPin { task, setting: setting.clone(), value: None }];
    bench.apply(&case).unwrap();
    (case, setting)
}

#[test]
fn a_pin_in_libvirt_stays_even_if_it_equals_the_plan() {
    let planned = set("1");
    for (pin, mask, after) in [
        // Nothing was pinned, the plan's CPU, another CPU, and a pin that was overwritten since.
        (None, "1", "0-1"),
        (Some("1"), "1", "1"),
        (Some("0"), "0", "0"),
        (Some("0"), "1", "0"),
        (Some("0-1"), "1", "0-1"),
    ] {
        let bench = Bench::new();
        let (case, setting) = placed_by_hook(&bench);
        assert_eq!(case.host.affinity(Tid(501)).unwrap(), planned);
        case.host.add_libvirt_pin(setting, pin, &[]);
        case.host.set_affinity(Tid(501), &set(mask)).unwrap();
        let report = bench.undo(&case);
        assert!(report.is_complete(), "{report:?}");
        assert_eq!(case.host.affinity(Tid(501)).unwrap(), set(after), "{pin:?} {mask} {report:?}");
        assert_eq!(case.host.affinity(Tid(VM)).unwrap(), set("0-1"));
    }
}

#[test]
fn watch_restores_no_thread_that_its_owner_pinned_through_libvirt() {
    for (pin, stays) in [(Some("0"), true), (None, false)] {
        let bench = Bench::new();
        let (case, setting) = placed_by_hook(&bench);
        let watcher = Watcher::new(&case.host, &case.plan, &case.target).unwrap();
        let mut watcher = watcher.on_drift(OnDrift::Restore);
        case.host.add_libvirt_pin(setting, pin, &[]);
        case.host.set_affinity(Tid(501), &set("0")).unwrap();
        let mut journal = bench.reopen(&case);
        watcher.tick(&case.host, &mut journal, &mut Silent, Extent::Masks).unwrap();
        let mask = case.host.affinity(Tid(501)).unwrap();
        assert_eq!(mask, set(if stays { "0" } else { "1" }));
    }
}

#[test]
fn a_reboot_leaves_only_the_definition_to_undo() {
    let (case, bench) = (v1_libvirt(), Bench::new());
    bench.apply(&case).unwrap();
    case.host.set_file(&paths::boot_id(), "00000000-0000-0000-0000-000000000002\n");
    // The numbers of the journal belong to others now, and the domain runs with other pins.
    let running = value(&case.host, "vcpupin 0", Lifetime::Running);
    refuses_to_forget_it(&bench.journals(), &case);
    let report = bench.undo(&case);
    assert!(report.is_complete() && report.changed.is_empty(), "{report:?}");
    assert_eq!(report.restored, 2, "{report:?}");
    assert!(report.dropped > 0, "{report:?}");
    assert_eq!(value(&case.host, "vcpupin 0", Lifetime::Lasting), None);
    assert_eq!(value(&case.host, "vcpupin 0", Lifetime::Running), running);
}

/// A power cut leaves of an apply, or of its undo, what had been changed in the definition.
#[test]
fn a_reboot_at_any_point_leaves_nothing_in_the_definition() {
    let case = v1_libvirt();
    let steps = plan_steps(&case.host, &case.plan, &case.target).unwrap().steps.len();
    for index in 0..steps {
        for point in [Point::BeforeJournal, Point::AfterJournal, Point::AfterChange] {
            let (case, bench) = (v1_libvirt(), Bench::new());
            bench.apply_watched(&case, &mut break_at(index, point)).unwrap_err();
            recover(&case, &bench, &format!("apply, {point:?} of step {index}"));
        }
        let (case, bench) = (v1_libvirt(), Bench::new());
        bench.apply(&case).unwrap();
        undo_observed(&case.host, &mut bench.reopen(&case), &mut |at, _| {
            if at == index { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        recover(&case, &bench, &format!("undo, before step {index}"));
    }
}

fn recover(case: &crate::common::Case, bench: &Bench, what: &str) {
    case.host.set_file(&paths::boot_id(), "00000000-0000-0000-0000-000000000002\n");
    let report = bench.undo(case);
    assert!(report.is_complete() && report.changed.is_empty(), "{what}: {report:?}");
    for key in ["vcpupin 0", "emulatorpin"] {
        assert_eq!(value(&case.host, key, Lifetime::Lasting), None, "{what}");
    }
    for one in bench.journals().list().unwrap() {
        assert!(one.record.unwrap().unwrap().was_ended_by_restart(), "{what}");
    }
}

/// A journal with a changed definition is not replaced, also not by one of another boot.
fn refuses_to_forget_it(journals: &Journals<'_>, case: &crate::common::Case) {
    let new = NewJournal { vm_name: "vm1", plan: "{}", target: &case.target, supervised: false };
    let refused = journals.begin(&case.host, &new).err().expect("it is in force");
    assert!(refused.to_string().contains("vm1"), "{refused}");
}

#[test]
fn a_domain_that_ended_is_gone_and_its_successor_is_not_touched() {
    let (case, bench) = (v1_libvirt(), Bench::new());
    bench.apply(&case).unwrap();
    case.host.exit(Tid(500));
    let report = bench.undo(&case);
    assert!(report.is_complete() && report.changed.is_empty(), "{report:?}");
    // The same domain may run again: its pins are those of the new start.
    assert_eq!(value(&case.host, "vcpupin 0", Lifetime::Running).as_deref(), Some("1"));
    assert_eq!(value(&case.host, "vcpupin 0", Lifetime::Lasting), None);
    case.host.forget_settings(DOMAIN);
    assert!(bench.undo(&case).is_complete());
}

/// What the hook does at the end of a domain: libvirt waits for it, and cannot be called.
#[test]
fn the_end_of_a_domain_reverts_the_host_and_leaves_its_definition() {
    let (case, bench) = (v1_libvirt().with(IsolationScope::Own), Bench::new());
    let expected = case.host.clone();
    let group = group_name(case.host.task(Tid(VM)).unwrap().id());
    let mut journal = bench.begin(&case);
    apply(&case.host, &case.plan, &case.target, &mut journal, &mut no_observer()).unwrap();
    assert!(case.host.snapshot().contains(&group));
    for host in [&case.host, &expected] {
        host.exit(Tid(VM));
    }
    let pinned = value(&case.host, "vcpupin 0", Lifetime::Lasting);
    assert_eq!(pinned.as_deref(), Some("1"));
    for hook in ["stopped", "release"] {
        let report = undo_host_part(&case.host, &mut journal);
        assert!(report.is_complete() && report.changed.is_empty(), "{hook}: {report:?}");
        assert_eq!(value(&case.host, "vcpupin 0", Lifetime::Lasting), pinned, "{hook}");
        assert!(!journal.record().has_ended() && !journal.record().is_being_undone(), "{hook}");
        assert!(!case.host.snapshot().contains(&group), "{hook}");
    }
    assert!(undo(&case.host, &mut journal).is_complete());
    assert_eq!(value(&case.host, "vcpupin 0", Lifetime::Lasting), None);
    // Of a domain that has ended libvirt has no pins.
    case.host.forget_settings(DOMAIN);
    expected.forget_settings(DOMAIN);
    assert_same(&expected.snapshot(), &case.host, "the end of a domain");
}

#[test]
fn the_watcher_asks_libvirt_only_when_the_kernel_differs() {
    let (case, bench) = (v1_libvirt(), Bench::new());
    let mut journal = bench.begin(&case);
    let mut observer = pinfold_apply::no_observer();
    pinfold_apply::apply(&case.host, &case.plan, &case.target, &mut journal, &mut observer)
        .unwrap();
    let watcher = Watcher::new(&case.host, &case.plan, &case.target).unwrap();
    let mut watcher = watcher.on_drift(OnDrift::Restore);
    // Every question to libvirt would fail.
    case.host.fail_on("setting", 5);
    let mut roles = Silent;
    assert_eq!(watcher.tick(&case.host, &mut journal, &mut roles, Extent::Masks).unwrap(), []);
    case.host.clear_faults();
    case.host.set_affinity(Tid(501), &set("0-1")).unwrap();
    let events = watcher.tick(&case.host, &mut journal, &mut roles, Extent::Masks).unwrap();
    assert!(matches!(&events[..], [WatchEvent::Repaired { .. }]), "{events:?}");
    assert_eq!(case.host.affinity(Tid(501)).unwrap(), set("1"));
}

struct Silent;

impl pinfold_apply::Roles for Silent {
    fn roles(
        &mut self,
        _: &dyn pinfold_host::Host,
        _: Tid,
    ) -> Result<Vec<(pinfold_model::TaskId, pinfold_model::Role)>, String> {
        Err("nobody tells".to_owned())
    }
}

#[test]
fn systemd_keeps_the_lists_of_its_units() {
    let case = v2_systemd().with(IsolationScope::Host);
    let bench = Bench::new();
    let applied = bench.apply(&case).unwrap();
    let mut asked = Vec::new();
    for step in &applied.steps {
        if let Change::WriteSetting { setting, value, .. } = &step.change {
            asked.push(format!("{} {}={value}", setting.object, setting.key));
        }
    }
    let expected = ["init.scope", "system.slice", "user.slice", "vm2.scope"];
    for unit in expected {
        assert!(asked.contains(&format!("{unit} AllowedCPUs=0,4")), "{unit}: {asked:?}");
    }
    assert_eq!(asked.len(), expected.len(), "the machine's own slice stays: {asked:?}");
}

fn allowed(unit: &str) -> Setting {
    Setting {
        keeper: SettingManager::Systemd,
        object: unit.to_owned(),
        key: "AllowedCPUs".to_owned(),
        lifetime: Lifetime::Running,
    }
}

/// One unit has a list in its own file, one in a file that somebody set at run time, and one was
/// told there to have none.
fn units_with_lists() -> crate::common::Case {
    let case = v2_systemd().with(IsolationScope::Host);
    for unit in ["user.slice", "init.scope"] {
        case.host.add_systemd_unit(allowed(unit), &file(unit), Some("0-6"));
        case.host.write(&file(unit), b"0-6").unwrap();
    }
    case.host.set_setting(&allowed("system.slice"), Some("0-5")).unwrap();
    case.host.set_setting(&allowed("init.scope"), None).unwrap();
    case
}

fn file(unit: &str) -> String {
    paths::cpuset_cpus(&format!("/sys/fs/cgroup/{unit}"))
}

#[test]
fn what_systemd_leaves_in_its_files_is_undone_too() {
    let case = units_with_lists();
    let (bench, before) = (Bench::new(), case.host.snapshot());
    bench.apply(&case).unwrap();
    for unit in ["user.slice", "system.slice", "init.scope", "vm2.scope"] {
        assert_eq!(case.host.setting(&allowed(unit)).unwrap().as_deref(), Some("0,4"), "{unit}");
    }
    let report = bench.undo(&case);
    assert!(report.is_complete() && report.changed.is_empty(), "{report:?}");
    crate::common::assert_same(&before, &case.host, "undo");
}

#[test]
fn an_undo_that_was_killed_before_a_file_was_put_back_is_finished_by_the_next() {
    for dies_after in 0.. {
        let case = units_with_lists();
        let (bench, before) = (Bench::new(), case.host.snapshot());
        bench.apply(&case).unwrap();
        case.host.fail_after(dies_after, 5);
        let is_complete = bench.undo(&case).is_complete();
        case.host.clear_faults();
        let report = bench.undo(&case);
        assert!(report.is_complete() && report.changed.is_empty(), "{dies_after}: {report:?}");
        crate::common::assert_same(
            &before,
            &case.host,
            &format!("killed after {dies_after} changes"),
        );
        if is_complete {
            assert!(dies_after > 8, "{dies_after}");
            break;
        }
    }
}
