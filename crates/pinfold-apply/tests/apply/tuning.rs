//! The host's tunables on simulated hosts: set, read back, refused, killed at every step, undone.

use std::collections::BTreeSet;

use crate::common::{Bench, Case, assert_same, break_at, set, with_pin_groups};
use pinfold_apply::{ApplyError, Point, no_movable_irq, plan_steps};
use pinfold_host::{Host as _, HostMut as _, paths};
use pinfold_model::tunables::huge_pages;
use pinfold_model::{
    Change, CpuSet, IrqPlan, IsolationScope, MemoryPlan, NodeId, PuId, Tid, Tuning,
};
use pinfold_sim::{SimBuilder, SimHost, SimPages, SimTask, WriteRule};

const DEVICE: &str = "0000:05:00.0";
const ENOSPC: i32 = 28;
const MANAGED: u32 = 33;

/// A host with every tunable: interrupts of which one is managed, two nodes, two cpufreq policies.
fn tunables(builder: SimBuilder) -> SimBuilder {
    let mut builder = builder
        .nodes(2)
        .file(&format!("{}/31", paths::pci_msi_irqs(DEVICE)), "msix\n")
        .file(&format!("{}/32", paths::pci_msi_irqs(DEVICE)), "msix\n")
        .file(&format!("{}/{MANAGED}", paths::pci_msi_irqs(DEVICE)), "msix\n")
        .writable_file(&paths::irq_file(31, "smp_affinity_list"), WriteRule::List, "0-7\n")
        .writable_file(&paths::irq_file(32, "smp_affinity_list"), WriteRule::List, "2\n")
        .writable_file(&paths::irq_file(MANAGED, "smp_affinity_list"), WriteRule::Managed, "2-3\n")
        .writable_file(&paths::default_smp_affinity(), WriteRule::Mask, "ff\n")
        .writable_file(&paths::workqueue_cpumask(), WriteRule::Mask, "ff\n")
        .writable_file(&paths::sysctl_kernel("numa_balancing"), WriteRule::Integer, "1\n")
        .writable_file(&paths::thp_file("enabled"), WriteRule::Choice, "always [madvise] never\n")
        .writable_file(&paths::ksm_run(), WriteRule::Integer, "1\n")
        .writable_file(&paths::node_huge_pages(NodeId(1), 2 << 20), WriteRule::Pool(64), "3\n");
    for pu in CpuSet::first_n(8).iter() {
        let policy = if pu.0 < 4 { "0 1 2 3\n" } else { "4 5 6 7\n" };
        builder = builder.file(&paths::cpufreq_file(pu, "affected_cpus"), policy).writable_file(
            &paths::cpu_resume_latency(pu),
            WriteRule::Text,
            "0\n",
        );
    }
    for pu in [0, 2, 4, 6].map(PuId) {
        builder = builder
            .writable_file(
                &paths::cpufreq_file(pu, "scaling_governor"),
                WriteRule::Text,
                "schedutil\n",
            )
            .writable_file(
                &paths::cpufreq_file(pu, "scaling_min_freq"),
                WriteRule::Integer,
                "800000\n",
            )
            .writable_file(
                &paths::cpufreq_file(pu, "scaling_max_freq"),
                WriteRule::Integer,
                "3600000\n",
            );
    }
    builder
}

fn tuning() -> Tuning {
    Tuning::from_words(&[
        "new-irqs=0,4",
        "workqueues=0,4",
        "numa-balancing=off",
        "thp=never",
        "ksm=unmerge",
        "wake-up-us=0",
        "governor=performance",
        "min-khz=500000",
        "max-khz=700000",
        "huge-pages=1:2048:16",
    ])
    .unwrap()
}

/// The machine alone in a group with a cpuset, a third of its pages on the wrong node.
fn case() -> Case {
    case_with(|builder| builder)
}

fn case_with(more: impl FnOnce(SimBuilder) -> SimBuilder) -> Case {
    let vm = SimTask::new(crate::common::VM, "qemu-system-x86")
        .in_group("/machine.slice/vm1.scope")
        .child_of(400)
        .with_pages(0, SimPages { movable: 100, in_use: 7 })
        .with_pages(1, SimPages { movable: 200, in_use: 0 });
    let none = CpuSet::new;
    let builder = more(tunables(crate::common::v2_builder()))
        .clears_populated()
        .group("/machine.slice", none(), none())
        .group("/machine.slice/vm1.scope", none(), none())
        .task(vm)
        .task(thread(501, "CPU 0/KVM"))
        .task(thread(502, "IO disk"))
        .task(
            SimTask::new(503, "kvm-nx-lpage-recovery-500")
                .kernel_thread()
                .in_group("/machine.slice/vm1.scope"),
        );
    let host = builder.build();
    let donor = crate::common::v2();
    let mut target = donor.target.clone();
    for (task, _) in &mut target.threads {
        *task = host.task(Tid(task.tid.0)).unwrap().id();
    }
    target.own.clear();
    let mut plan = crate::common::plan("2,6", "0,4");
    plan.tuning = tuning();
    plan.irqs.push(IrqPlan {
        device: DEVICE.to_owned(),
        pus: set("0,4"),
        reason: "as the test says".to_owned(),
    });
    plan.vnodes[0].memory = Some(MemoryPlan {
        nodes: vec![NodeId(1)],
        bytes: None,
        page_bytes: None,
        is_preferred: false,
        reason: "as the test says".to_owned(),
    });
    Case { name: "tunables", host, target, plan }
}

fn thread(tid: u32, name: &str) -> SimTask {
    SimTask::new(tid, name).thread_of(crate::common::VM).in_group("/machine.slice/vm1.scope")
}

fn read(host: &SimHost, path: &str) -> String {
    host.read_text(path).unwrap().trim().to_owned()
}

/// libvirt puts each vCPU into a group of its own, from which the guest's memory is allocated.
#[test]
fn the_groups_of_all_vcpus_get_the_nodes() {
    let machine = "/sys/fs/cgroup/machine.slice/vm1.scope";
    let case = with_pin_groups(case(), machine);
    let (bench, before) = (Bench::new(), case.host.snapshot());
    bench.apply(&case).unwrap();
    for group in ["emulator", "vcpu0", "iothread1"] {
        check_file(paths::cpuset_mems(&format!("{machine}/{group}")), "1", &case);
    }
    assert!(bench.undo(&case).is_complete());
    assert_same(&before, &case.host, "undo");
}

#[test]
fn every_tunable_is_set_and_comes_back_byte_for_byte() {
    let case = case();
    let (bench, before) = (Bench::new(), case.host.snapshot());
    let dry = plan_steps(&case.host, &case.plan, &case.target).unwrap();
    let applied = bench.apply(&case).unwrap();
    check_file(irq_list(31), "0,4", &case);
    check_file(irq_list(32), "0,4", &case);
    check_file(irq_list(MANAGED), "2-3", &case);
    check_file(paths::default_smp_affinity(), "11", &case);
    check_file(paths::workqueue_cpumask(), "11", &case);
    check_file(paths::sysctl_kernel("numa_balancing"), "0", &case);
    check_file(paths::thp_file("enabled"), "always madvise [never]", &case);
    check_file(paths::ksm_run(), "2", &case);
    check_file(paths::node_huge_pages(NodeId(1), 2 << 20), "16", &case);
    check_file(paths::cpu_resume_latency(PuId(6)), "n/a", &case);
    check_file(paths::cpu_resume_latency(PuId(7)), "0", &case);
    check_file(paths::cpufreq_file(PuId(0), "scaling_governor"), "performance", &case);
    check_file(paths::cpufreq_file(PuId(0), "scaling_max_freq"), "700000", &case);
    check_file(paths::cpufreq_file(PuId(4), "scaling_min_freq"), "500000", &case);
    check_file(paths::cpuset_mems("/sys/fs/cgroup/machine.slice/vm1.scope"), "1", &case);
    let reported = |part: &str| {
        assert!(applied.findings.iter().any(|one| one.text.contains(part)), "{applied:?}");
    };
    reported("the kernel manages this interrupt itself");
    reported("400 KiB of task 500 were moved, 28 KiB stay");
    reported("16 KiB of page tables (VmPTE), and those of KVM, stay where they were allocated");
    assert_eq!(
        dry.steps.iter().filter(|step| step.change.to_string().contains("/33/")).count(),
        1,
        "tried once, and printed"
    );
    assert_eq!(
        applied.steps.iter().filter(|step| step.change.to_string().contains("/33/")).count(),
        0
    );
    let tries = case.host.changes().iter().filter(|one| one.contains("/irq/33/")).count();
    assert_eq!(tries, 0, "the kernel refused it");
    let report = bench.undo(&case);
    assert!(report.is_complete() && report.changed.is_empty(), "{report:?}");
    assert_eq!(report.equivalent.len(), 1, "the pages: {report:?}");
    assert_same(&before, &case.host, "undo");
}

fn check_file(path: String, expected: &str, case: &Case) {
    assert_eq!(read(&case.host, &path), expected, "{path}");
}

fn irq_list(number: u32) -> String {
    paths::irq_file(number, "smp_affinity_list")
}

/// A machine that was started under the policy of its node needs no group and no move; under that
/// of another node it does.
#[test]
fn memory_that_was_bound_at_the_start_gives_no_step() {
    assert_eq!((of_memory(None, 1), of_memory(Some(0), 1), of_memory(Some(1), 1)), (2, 2, 0));
}

fn of_memory(started_on: Option<u32>, node: u32) -> usize {
    let mut case = case();
    case.target.started_on = started_on.map(NodeId);
    case.plan.vnodes[0].memory.as_mut().unwrap().nodes = vec![NodeId(node)];
    let steps = plan_steps(&case.host, &case.plan, &case.target).unwrap().steps;
    steps
        .iter()
        .filter(|step| {
            matches!(step.change, Change::MovePages { .. })
                || step.change.to_string().contains("cpuset.mems")
        })
        .count()
}

#[test]
fn a_kill_at_every_point_is_undone_and_an_undo_twice_is_one() {
    let steps = plan_steps(&case().host, &case().plan, &case().target).unwrap().steps.len();
    assert!(steps > 20, "{steps}");
    for index in 0..steps {
        for point in [Point::BeforeJournal, Point::AfterJournal, Point::AfterChange] {
            let case = case();
            let (bench, before) = (Bench::new(), case.host.snapshot());
            let what = format!("{point:?} of step {index}");
            let error = match bench.apply_watched(&case, &mut break_at(index, point)) {
                Err(error) => error,
                // The refused one is never done.
                Ok(_) if point == Point::AfterChange => continue,
                Ok(_) => panic!("{what} did not break off"),
            };
            assert!(matches!(error, ApplyError::Abandoned { .. }), "{what}: {error}");
            let report = bench.undo(&case);
            assert!(report.is_complete() && report.changed.is_empty(), "{what}: {report:?}");
            assert_same(&before, &case.host, &what);
            bench.undo(&case);
            assert_same(&before, &case.host, &what);
        }
    }
}

#[test]
fn a_host_that_dies_after_some_changes_is_restored_later() {
    for allowed in 0.. {
        let case = case();
        let (bench, before) = (Bench::new(), case.host.snapshot());
        case.host.fail_after(allowed, 5);
        let result = bench.apply(&case);
        case.host.clear_faults();
        if result.is_ok() {
            assert!(allowed > 20, "{allowed}");
            break;
        }
        let report = bench.undo(&case);
        assert!(report.is_complete() && report.changed.is_empty(), "{allowed}: {report:?}");
        assert_same(&before, &case.host, &format!("dead after {allowed} changes"));
    }
}

#[test]
fn what_is_refused_is_reported_with_a_hint_or_ends_a_plan_that_requires_it() {
    let every = plan_steps(&case().host, &case().plan, &case().target).unwrap().steps;
    let files: BTreeSet<String> = every
        .into_iter()
        .filter_map(|step| step.change.as_write_file().map(|(path, _)| path.to_owned()))
        .filter(|path| *path != paths::irq_file(MANAGED, "smp_affinity_list"))
        .collect();
    assert!(files.len() > 15, "{files:?}");
    // EPERM, EBUSY, EINVAL, ENOSPC, EROFS.
    for errno in [1, 16, 22, ENOSPC, 30] {
        for file in &files {
            let mut case = case();
            let what = format!("errno {errno} for {file}");
            let (bench, before) = (Bench::new(), case.host.snapshot());
            case.host.fail_on(&format!("write {file} "), errno);
            let applied = bench.apply(&case).unwrap();
            let finding = applied.findings.iter().find(|one| one.text.contains(file.as_str()));
            assert!(finding.is_some_and(|one| one.hint.is_some()), "{what}: {applied:?}");
            assert!(bench.undo(&case).is_complete(), "{what}");
            assert_same(&before, &case.host, &what);
            case.plan.tuning.required = true;
            if !file.ends_with("smp_affinity_list") {
                // Of its interrupts one is refused, which would end it before.
                case.plan.irqs.clear();
                let error = Bench::new().apply(&case).unwrap_err();
                assert!(error.to_string().contains(file.as_str()), "{what}: {error}");
            }
            let error = Bench::new().apply(&case).unwrap_err();
            assert!(error.undone().is_some_and(pinfold_apply::UndoReport::is_complete), "{what}");
            assert_same(&before, &case.host, &what);
        }
    }
}

#[test]
fn a_read_only_sys_leaves_a_host_without_tunables_and_as_it_was() {
    const EROFS: i32 = 30;
    let case = case();
    let (bench, before) = (Bench::new(), case.host.snapshot());
    case.host.fail_on("write /sys/", EROFS);
    let applied = bench.apply(&case).unwrap();
    let read_only = applied.findings.iter().filter(|one| one.text.contains("ead-only"));
    assert!(read_only.clone().count() > 10, "{applied:?}");
    for finding in read_only {
        let hint = finding.hint.as_deref().unwrap_or_default();
        assert!(hint.contains("outside a container"), "{finding:?}");
    }
    // Masks need no file below /sys.
    assert!(applied.steps.iter().any(|step| matches!(step.change, Change::SetAffinity { .. })));
    case.host.clear_faults();
    assert!(bench.undo(&case).is_complete());
    assert_same(&before, &case.host, "read-only /sys");
}

#[test]
fn memory_nodes_that_are_refused_are_reported_and_pages_move_all_the_same() {
    const EROFS: i32 = 30;
    let mut case = case();
    let (bench, before) = (Bench::new(), case.host.snapshot());
    let nodes = paths::cpuset_mems("/sys/fs/cgroup/machine.slice/vm1.scope");
    case.host.fail_on(&format!("write {nodes} "), EROFS);
    let applied = bench.apply(&case).unwrap();
    let reported = applied.findings.iter().find(|one| one.text.contains("cpuset.mems")).unwrap();
    assert!(
        reported.hint.as_ref().unwrap().contains("bind the machine's memory in QEMU"),
        "{reported:?}"
    );
    assert!(applied.findings.iter().any(|one| one.text.contains("of task 500 were moved")));
    assert!(bench.undo(&case).is_complete());
    assert_same(&before, &case.host, "nodes refused");
    case.plan.tuning.required = true;
    // Of its interrupts one is refused, which would end it before.
    case.plan.irqs.clear();
    let error = Bench::new().apply(&case).unwrap_err();
    let hint = error.hint().unwrap();
    assert!(hint.contains("in QEMU") && !hint.contains("--isolate"), "{error}: {hint}");
    assert_same(&before, &case.host, "nodes required");
}

#[test]
fn interrupts_that_irqbalance_owns_are_reported() {
    let case = case();
    case.host.add_task(SimTask::new(940, "irqbalance"));
    let planned = plan_steps(&case.host, &case.plan, &case.target).unwrap();
    let reported =
        planned.findings.iter().find(|one| one.text.contains("irqbalance is running")).unwrap();
    assert!(reported.hint.as_ref().unwrap().contains("--banirq"), "{reported:?}");
}

#[test]
fn a_tunable_that_vanishes_before_it_is_written_is_named_and_nothing_is_half_done() {
    for (file, errno) in [("cpuset.mems", 19), ("cpuset.mems", 2), ("scaling_governor", 19)] {
        let case = case();
        let (bench, before) = (Bench::new(), case.host.snapshot());
        let steps = plan_steps(&case.host, &case.plan, &case.target).unwrap().steps;
        let path = steps
            .iter()
            .filter_map(|step| step.change.as_write_file().map(|(path, _)| path.to_owned()))
            .find(|path| path.ends_with(file))
            .unwrap();
        case.host.fail_on(&format!("write {path}"), errno);
        match bench.apply(&case) {
            Ok(applied) => assert!(applied.findings.iter().any(|one| one.text.contains(&path))),
            Err(error) => assert!(error.to_string().contains(&path), "{error}"),
        }
        case.host.clear_faults();
        assert!(bench.undo(&case).is_complete());
        assert_same(&before, &case.host, &path);
    }
}

#[test]
fn what_a_host_lacks_is_a_finding_unless_it_is_required() {
    let mut case = crate::common::v2();
    case.plan.tuning = tuning();
    let applied = Bench::new().apply(&case).unwrap();
    assert!(applied.findings.iter().any(|one| one.text.contains("this host has no")));
    case.plan.tuning.required = true;
    let error = plan_steps(&case.host, &case.plan, &case.target).unwrap_err();
    assert!(error.to_string().contains("this host has no") && error.hint().is_some(), "{error}");
}

#[test]
fn fewer_huge_pages_than_asked_are_reported_and_undone() {
    let mut case = case();
    case.plan.tuning.unset(&huge_pages::TUNABLE);
    case.plan.tuning.add("huge-pages=1:2048:100").unwrap();
    let (bench, before) = (Bench::new(), case.host.snapshot());
    let applied = bench.apply(&case).unwrap();
    assert!(applied.findings.iter().any(|one| one.text.contains("is 64, not the requested 100")));
    assert!(bench.undo(&case).is_complete());
    assert_same(&before, &case.host, "undo");
}

#[test]
fn what_another_program_set_since_is_left() {
    let case = case();
    let bench = Bench::new();
    bench.apply(&case).unwrap();
    let file = paths::irq_file(31, "smp_affinity_list");
    case.host.write(&file, b"7").unwrap();
    let report = bench.undo(&case);
    assert!(report.changed.iter().any(|one| one.text.contains(&file)), "{report:?}");
    assert_eq!(read(&case.host, &file), "7");
}

#[test]
fn a_number_that_another_program_set_since_is_left_and_reported() {
    let pool = paths::node_huge_pages(NodeId(1), 2 << 20);
    let most = paths::cpufreq_file(PuId(0), "scaling_max_freq");
    // Of the pool 3 were there and 16 were asked, of the frequency 3600000 and 700000.
    for (file, number) in [(&pool, "50"), (&pool, "1"), (&most, "600000"), (&most, "4000000")] {
        let case = case();
        let bench = Bench::new();
        bench.apply(&case).unwrap();
        case.host.write(file, number.as_bytes()).unwrap();
        let report = bench.undo(&case);
        assert!(report.is_complete(), "{file} {number}: {report:?}");
        let reported = report.changed.iter().any(|one| one.text.contains(file.as_str()));
        assert!(reported, "{file} {number}: {report:?}");
        assert_eq!(read(&case.host, file), number, "{file}");
    }
}

#[test]
fn what_the_kernel_made_of_a_number_is_ours() {
    let pool = paths::node_huge_pages(NodeId(1), 2 << 20);
    let most = paths::cpufreq_file(PuId(0), "scaling_max_freq");
    // 700000 become 400000, which is not on the way from 3600000.
    let mut case =
        case_with(|builder| builder.writable_file(&most, WriteRule::Steps(400_000), "3600000\n"));
    case.plan.tuning.unset(&huge_pages::TUNABLE);
    case.plan.tuning.add("huge-pages=1:2048:100").unwrap();
    let (bench, before) = (Bench::new(), case.host.snapshot());
    bench.apply(&case).unwrap();
    assert_eq!(read(&case.host, &pool), "64");
    assert_eq!(read(&case.host, &most), "400000");
    let record = bench.journals().read(&crate::common::id(&case)).unwrap().unwrap();
    let tunables = pinfold_apply::read_tunables(&case.host, &record).unwrap();
    assert!(tunables.iter().all(|tunable| tunable.ok), "{tunables:?}");
    let report = bench.undo(&case);
    assert!(report.is_complete() && report.changed.is_empty(), "{report:?}");
    assert_same(&before, &case.host, "rounded");
}

#[test]
fn a_device_without_an_address_or_interrupts_is_reported() {
    let cases = [
        ("eth0", "not a PCI address"),
        ("node 1", "no active interrupt"),
        ("0000:09:00.0", "no active interrupt"),
    ];
    for (device, part) in cases {
        let mut case = case();
        case.plan.irqs[0].device = device.to_owned();
        let planned = plan_steps(&case.host, &case.plan, &case.target).unwrap();
        assert!(planned.findings.iter().any(|one| one.text.contains(part)), "{device}");
    }
}

#[test]
fn interrupts_of_a_node_and_of_the_whole_host_are_moved() {
    let moved = |devices: &[(&str, &str)]| {
        let mut case = case_with(|builder| {
            builder
                .file(&paths::pci_numa_node(DEVICE), "1\n")
                .writable_file(&irq_list(7), WriteRule::List, "0-7\n")
                .writable_file(&irq_list(8), WriteRule::List, "0-7\n")
                .file(&format!("{}/7", paths::pci_msi_irqs("0000:0a:00.0")), "msi\n")
                .file(&paths::pci_numa_node("0000:0a:00.0"), "0\n")
        });
        case.plan.irqs = devices
            .iter()
            .map(|(device, pus)| IrqPlan {
                device: (*device).to_owned(),
                pus: set(pus),
                reason: "as the test says".to_owned(),
            })
            .collect();
        let (bench, before) = (Bench::new(), case.host.snapshot());
        bench.apply(&case).unwrap();
        let now = [7, 8, 31, 32, MANAGED].map(|number| read(&case.host, &irq_list(number)));
        bench.undo(&case);
        assert_same(&before, &case.host, "undo");
        now
    };
    assert_eq!(moved(&[("node 1", "0")]), ["0-7", "0-7", "0", "0", "2-3"]);
    assert_eq!(moved(&[(IrqPlan::ALL, "0,4")]), ["0,4", "0,4", "0,4", "0,4", "2-3"]);
    // An interrupt with CPUs of its own is not moved twice.
    let named = [(IrqPlan::ALL, "0,4"), ("0000:0a:00.0", "0")];
    assert_eq!(moved(&named), ["0", "0,4", "0,4", "0,4", "2-3"]);
}

#[test]
fn irq_all_moves_what_can_be_moved_and_names_what_stays() {
    let mut case = case();
    case.plan.tuning = Tuning::default();
    case.plan.tuning.required = true;
    case.plan.vnodes[0].memory = None;
    case.plan.irqs[0].device = IrqPlan::ALL.to_owned();
    let (bench, before) = (Bench::new(), case.host.snapshot());
    assert_eq!(no_movable_irq(&case.host).unwrap(), None);
    assert_same(&before, &case.host, "the question");
    let applied = bench.apply(&case).unwrap();
    let texts: Vec<&str> = applied.findings.iter().map(|one| one.text.as_str()).collect();
    let expected = "irq:all: the kernel manages 1 of 3 interrupts; not moved: 33";
    assert_eq!(texts, [expected]);
    assert_eq!(
        [31, 32, MANAGED]
            .map(|number| read(&case.host, &paths::irq_file(number, "smp_affinity_list"))),
        ["0,4", "0,4", "2-3"]
    );
    assert!(bench.undo(&case).is_complete());
    assert_same(&before, &case.host, "undo");
    // A device that is named is not all of them.
    case.plan.irqs[0].device = DEVICE.to_owned();
    let error = Bench::new().apply(&case).unwrap_err();
    assert!(matches!(error, ApplyError::Step { .. }), "{error}");
    assert_same(&before, &case.host, "a device");
}

#[test]
fn host_isolation_moves_what_can_be_moved_off_the_exclusive_cpus() {
    let mut case = case();
    case.plan.tuning = Tuning::default();
    case.plan.tuning.required = true;
    case.plan.vnodes[0].memory = None;
    case.plan.irqs.clear();
    case.plan.isolation = IsolationScope::Host;
    case.plan.exclusive = set("2,6");
    case.plan.housekeeping = set("0-1,3-5,7");
    let (bench, before) = (Bench::new(), case.host.snapshot());
    let applied = bench.apply(&case).unwrap();
    let expected = "--isolate host: the kernel manages 1 of 3 interrupts; not moved: 33";
    assert_eq!(applied.findings.iter().filter(|one| one.text == expected).count(), 1);
    assert_eq!(interrupt_masks(&case), ["0-1,3-5,7", "0-1,3-5,7", "2-3"]);
    assert!(bench.undo(&case).is_complete());
    assert_same(&before, &case.host, "undo");
    // The user's own choice for a device has priority.
    let reason = "as the test says".to_owned();
    case.plan.irqs.push(IrqPlan { device: IrqPlan::ALL.to_owned(), pus: set("0"), reason });
    let bench = Bench::new();
    bench.apply(&case).unwrap();
    assert_eq!(interrupt_masks(&case), ["0", "0", "2-3"]);
    bench.undo(&case);
    assert_same(&before, &case.host, "undo of irq:all");
    // Nothing changes for tasks of Pinfold alone.
    case.plan.irqs.clear();
    case.plan.isolation = IsolationScope::Own;
    Bench::new().apply(&case).unwrap();
    assert_eq!(interrupt_masks(&case), ["0-7", "2", "2-3"]);
}

fn interrupt_masks(case: &Case) -> [String; 3] {
    [31, 32, MANAGED].map(|number| read(&case.host, &paths::irq_file(number, "smp_affinity_list")))
}

#[test]
fn irq_all_is_refused_where_the_kernel_manages_every_interrupt() {
    let mut case = case_with(|builder| managed(managed(builder, 31), 32));
    case.plan.tuning = Tuning::default();
    case.plan.tuning.required = true;
    case.plan.vnodes[0].memory = None;
    case.plan.irqs[0].device = IrqPlan::ALL.to_owned();
    let before = case.host.snapshot();
    let expected = "irq:all: the kernel manages all 3 interrupts; none was moved";
    assert_eq!(no_movable_irq(&case.host).unwrap().unwrap().text, expected);
    let error = Bench::new().apply(&case).unwrap_err();
    assert!(error.to_string().contains(expected), "{error}");
    assert_same(&before, &case.host, "refused");
    case.plan.tuning.required = false;
    let bench = Bench::new();
    let applied = bench.apply(&case).unwrap();
    assert_eq!(applied.findings.iter().filter(|one| one.text == expected).count(), 1);
    assert!(bench.undo(&case).is_complete());
    assert_same(&before, &case.host, "undo");
}

fn managed(builder: SimBuilder, number: u32) -> SimBuilder {
    builder.writable_file(&paths::irq_file(number, "smp_affinity_list"), WriteRule::Managed, "2\n")
}
