//! The attribution, on gaps that are made up, and the file format.

use std::collections::BTreeSet;

use pinfold_host::cpu_groups::Throttling;
use pinfold_host::{
    FunctionKind, GapKind, GapSlice, Occupant, OtherTask, RawGap, SnapshotHost, WakerTask, paths,
};
use pinfold_model::{PuId, Tid};

use super::attribute::{Context, gaps, parts};
use super::names::Names;
use super::queued::Delays;
use super::{Cause, Gap, GapReport, Part, Place, Remedy, Summary, ThreadName, record};
use crate::quotas::{Phase, Quotas};

const MS: u64 = 1_000_000;

fn task(tid: u32, name: &str) -> Occupant {
    let (tid, process) = (Tid(tid), Tid(tid));
    Occupant::Task(OtherTask {
        tid,
        process,
        name: name.to_owned(),
        policy: 1,
        priority: 49,
        cgroup_id: 0,
    })
}

fn slice(from_us: u64, until_us: u64, occupant: Occupant) -> GapSlice {
    GapSlice { from_ns: from_us * 1000, until_ns: until_us * 1000, occupant }
}

fn function(kind: FunctionKind, name: &str) -> Occupant {
    Occupant::Function(kind, Some(name.to_owned()))
}

fn gap(until_us: u64, slices: Vec<GapSlice>) -> RawGap {
    RawGap {
        tid: Tid(7),
        process: Tid(5),
        from_ns: 0,
        until_ns: until_us * 1000,
        woken_ns: None,
        arrived_ns: 0,
        cpu: PuId(1),
        kind: GapKind::Waiting { is_preempted: true },
        is_throttled: false,
        moves: 0,
        waker: None,
        exit: None,
        kernel_exit: None,
        steal_ns: 0,
        owner: 0,
        is_open: false,
        slices,
    }
}

#[test]
fn a_task_that_has_exited_has_the_group_in_which_it_ran() {
    let mut names = Names::default();
    names.groups.insert(77, "/batch");
    names.groups.insert(78, "/");
    names.cgroups.insert(Tid(20), Some("/moved-later".to_owned()));
    let context = Context {
        names: &names,
        quotas: &Quotas::default(),
        queued: &BTreeSet::new(),
        began_ns: 0,
    };
    for (cgroup_id, expected) in [
        (77, "hog (20, fifo:50, /batch)"),
        (78, "hog (20, fifo:50)"),
        // This group was removed.
        (79, "hog (20, fifo:50, /moved-later)"),
    ] {
        let Occupant::Task(hog) = task(20, "hog") else { panic!("a task") };
        let hog = Occupant::Task(OtherTask { cgroup_id, ..hog });
        let found = &parts(&gap(300, vec![slice(0, 300, hog)]), &context)[0];
        assert_eq!(found.cause.to_string(), expected);
    }
}

fn found(gap: &RawGap, quotas: &Quotas) -> Vec<(String, u64)> {
    let mut names = Names::default();
    names.machines.insert(Tid(30), "web".to_owned());
    names.interrupts.insert(9, "nvme0q1".to_owned());
    names.cgroups.insert(Tid(20), Some("/jobs".to_owned()));
    let context = Context { names: &names, quotas, queued: &BTreeSet::new(), began_ns: 0 };
    let all = parts(gap, &context);
    all.iter().map(|part| (part.cause.to_string(), part.ns / 1000)).collect()
}

#[track_caller]
fn check(gap: &RawGap, expected: &[(&str, u64)]) {
    let expected: Vec<(String, u64)> =
        expected.iter().map(|(cause, us)| ((*cause).to_owned(), *us)).collect();
    assert_eq!(found(gap, &Quotas::default()), expected);
}

#[test]
fn nested_times_count_once() {
    let nested = vec![
        slice(0, 900, task(20, "hog")),
        slice(100, 400, Occupant::Softirq("TIMER")),
        slice(150, 350, function(FunctionKind::Timer, "tcp_timer")),
        slice(200, 250, Occupant::Interrupt(9)),
        slice(600, 700, Occupant::Vector("local timer")),
        slice(610, 690, function(FunctionKind::Hrtimer, "tick")),
    ];
    check(
        &gap(1000, nested),
        &[
            ("hog (20, fifo:50, /jobs)", 500),
            ("softirq TIMER: tcp_timer", 150),
            ("softirq TIMER", 100),
            ("local timer: tick", 80),
            ("interrupt 9 (nvme0q1)", 50),
            ("local timer", 20),
        ],
    );
    // A work item that was preempted and went on.
    let work = vec![
        slice(0, 500, task(40, "kworker/1:0")),
        slice(100, 2000, function(FunctionKind::Work, "drain")),
        slice(500, 1000, task(20, "hog")),
        slice(1000, 2100, task(40, "kworker/1:0")),
    ];
    let all = found(&gap(2100, work), &Quotas::default());
    assert_eq!(all.iter().map(|(_, us)| us).sum::<u64>(), 2100, "{all:?}");
    assert!(all.contains(&("kernel work in kworker/1:0: drain".to_owned(), 400)), "{all:?}");
}

#[test]
fn other_machines_own_threads_and_idle_states_have_their_names() {
    let mut other = gap(300, vec![slice(0, 290, task(30, "CPU 0/TCG"))]);
    check(&other, &[("machine web: CPU 0/TCG (30)", 290)]);
    other.process = Tid(30);
    check(&other, &[("own thread CPU 0/TCG (30, fifo:50)", 290)]);
    check(
        &gap(300, vec![slice(0, 300, Occupant::Idle(Some(3)))]),
        &[("late wake-up from idle state 3", 300)],
    );
    // No idle state takes so long to leave: the reason is another, and is not known.
    check(&gap(9000, vec![slice(0, 9000, Occupant::Idle(Some(3)))]), &[]);
}

#[test]
fn before_a_stopped_thread_was_woken_nothing_else_counts() {
    let slices = vec![slice(0, 5000, task(20, "hog")), slice(6000, 7000, task(21, "late"))];
    let mut stopped = RawGap { woken_ns: Some(6 * MS), ..gap(8000, slices) };
    stopped.kind = GapKind::Stopped;
    check(&stopped, &[("stopped", 6000), ("late (21, fifo:50)", 1000)]);
    stopped.woken_ns = None;
    check(&stopped, &[("stopped", 8000)]);
    stopped.kind = GapKind::Blocked;
    stopped.waker = Some(WakerTask { tid: Tid(3), process: Tid(3), name: "kswapd0".to_owned() });
    check(&stopped, &[("blocked in the kernel until kswapd0 (3)", 8000)]);
    stopped.kind = GapKind::Unseen;
    check(&stopped, &[("not seen by Linux (hypervisor or firmware)", 8000)]);
    // The hypervisor may have begun before the tick was due.
    stopped.steal_ns = 9 * MS;
    check(&stopped, &[("steal: the hypervisor ran something else", 8000)]);
    stopped.steal_ns = 5 * MS;
    let steal = ("steal: the hypervisor ran something else", 5000);
    check(&stopped, &[steal, ("not seen by Linux (hypervisor or firmware)", 3000)]);
}

#[test]
fn out_of_the_guest_a_vcpu_has_its_exit_or_the_thread_that_it_waited_for() {
    let own = slice(0, 900, task(7, "CPU 0/KVM"));
    let mut exit = gap(1000, vec![own, slice(100, 300, Occupant::Interrupt(9))]);
    exit.kind = GapKind::Exit;
    check(&exit, &[("exit handled in the kernel", 800), ("interrupt 9 (nvme0q1)", 200)]);
    exit.kernel_exit = Some(0x72);
    check(&exit, &[("exit 0x72 handled in the kernel", 800), ("interrupt 9 (nvme0q1)", 200)]);
    exit.exit = Some("MMIO".to_owned());
    check(&exit, &[("exit MMIO handled in user space", 800), ("interrupt 9 (nvme0q1)", 200)]);
    exit.kind = GapKind::Awaiting;
    exit.woken_ns = Some(MS - 100_000);
    exit.waker = Some(WakerTask { tid: Tid(6), process: Tid(5), name: "iothread".to_owned() });
    check(&exit, &[("waiting for own thread iothread (6) after exit MMIO", 900)]);
}

#[test]
fn a_wait_that_the_kernel_counted_is_one_though_what_ran_is_not_recorded() {
    let recorded = vec![slice(5000, 6000, task(20, "hog")), slice(6010, 7000, task(21, "late"))];
    let wait = RawGap { woken_ns: None, ..gap(8000, recorded) };
    let queued = BTreeSet::from([(Tid(7), 8 * MS)]);
    let quotas = Quotas::default();
    let context =
        Context { names: &Names::default(), quotas: &quotas, queued: &queued, began_ns: 0 };
    let found = |gap: &RawGap| parts(gap, &context)[0].clone();
    assert_eq!(found(&wait), Part { cause: Cause::Queued, ns: 6 * MS });
    // A CPU that was idle has another reason.
    let idle = RawGap { slices: vec![slice(0, 8000, Occupant::Idle(None))], ..wait.clone() };
    assert_eq!(parts(&idle, &context), []);
    let other = RawGap { tid: Tid(8), ..wait };
    assert_eq!(found(&other).ns, MS, "nothing is known of its hole");
}

#[test]
fn the_kernel_s_account_must_have_grown_by_the_waits() {
    let path = paths::task_schedstat(Tid(7), Tid(7));
    let host = SnapshotHost::from_files([(path.as_str(), "100 5000000 1\n")]);
    let mut delays = Delays::read(&host, [Tid(7)].into_iter());
    let host = SnapshotHost::from_files([(path.as_str(), "200 13000000 2\n")]);
    let asleep = RawGap { kind: GapKind::Stopped, ..gap(90_000, Vec::new()) };
    delays.compare(&host, &[gap(8_100, Vec::new()), asleep]);
    assert_eq!(delays.waits().iter().collect::<Vec<_>>(), [&(Tid(7), 8_100_000)]);
    // It has not grown since.
    delays.compare(&host, &[gap(9_000, Vec::new()), RawGap { tid: Tid(8), ..gap(1, Vec::new()) }]);
    assert_eq!(delays.waits().len(), 1);
}

fn phase(from_ms: u64, until_ms: u64, throttled_ms: u64) -> Phase {
    let throttled = Throttling { periods: 1, ns: throttled_ms * MS };
    Phase { from_ns: from_ms * MS, until_ns: until_ms * MS, throttled }
}

#[test]
fn a_quota_is_the_cause_when_its_group_was_stopped() {
    // Nine levels: the one in the middle has the quota.
    let dirs = ["/9", "/8", "/7", "/6", "/5", "/4", "/3", "/2", "/1"];
    let quotas = Quotas::with(Tid(7), &dirs, &[(7, phase(70, 90, 78)), (7, phase(200, 220, 5))]);
    let idle = gap(80_000, vec![slice(0, 80_000, Occupant::Idle(Some(1)))]);
    assert_eq!(found(&idle, &quotas), [("quota of /2".to_owned(), 78_000)]);
    let busy = gap(80_000, vec![slice(0, 80_000, task(20, "hog"))]);
    assert_eq!(found(&busy, &quotas), [("hog (20, fifo:50, /jobs)".to_owned(), 80_000)]);
    let marked = RawGap { is_throttled: true, ..busy.clone() };
    assert_eq!(found(&marked, &quotas)[0], ("quota of /2".to_owned(), 78_000));
    let woken = RawGap { kind: GapKind::Waiting { is_preempted: false }, ..busy };
    assert_eq!(found(&woken, &quotas)[0].0, "quota of /2");
    // Of another thread, and long after.
    assert_eq!(found(&RawGap { tid: Tid(8), ..idle.clone() }, &quotas), []);
    let later = RawGap { from_ns: 120 * MS, until_ns: 190 * MS, ..idle };
    assert_eq!(found(&later, &quotas), []);
    let unknown = RawGap { is_throttled: true, tid: Tid(8), ..later };
    assert_eq!(found(&unknown, &quotas), [], "the mark alone says too little");
}

fn burst(until_us: u64) -> RawGap {
    RawGap { kind: GapKind::Interrupted, ..gap(until_us, Vec::new()) }
}

#[test]
fn a_burst_that_went_on_is_one_gap() {
    let context = Context {
        names: &Names::default(),
        quotas: &Quotas::default(),
        queued: &BTreeSet::new(),
        began_ns: 0,
    };
    let raw = [burst(300), burst(900), burst(500), RawGap { tid: Tid(8), ..burst(400) }];
    let all = gaps(&raw, &context, &|_| ThreadName::default());
    let lengths: Vec<_> = all.iter().map(|gap| (gap.tid, gap.length_ns / 1000)).collect();
    assert_eq!(lengths, [(7, 900), (8, 400)]);
    assert_eq!((all[0].unexplained_ns(), all[0].cause()), (900_000, None));
}

fn report() -> GapReport {
    let cause = Cause::Interrupt { number: 9, device: "\u{1b}[2J'; rm".to_owned() };
    let gap = Gap {
        subject: String::new(),
        tid: 7,
        role: "vcpu(0)".to_owned(),
        at_ns: 1,
        length_ns: u64::MAX,
        cpu: 1,
        moves: 0,
        is_open: false,
        is_at_least: false,
        parts: vec![Part { cause, ns: u64::MAX }, Part { cause: Cause::Stopped, ns: u64::MAX }],
    };
    let summary = Summary { subject: "machine a".to_owned(), ..Summary::default() };
    GapReport { summary, gaps: vec![gap.clone(), gap] }
}

fn refused(text: &str) -> String {
    record::parse(text).unwrap_err().to_string()
}

#[test]
fn a_record_is_read_as_it_was_written_and_hostile_ones_are_refused() {
    let text = record::to_text(&report()).unwrap();
    assert_eq!(record::parse(&text).unwrap(), report());
    assert_eq!(report().gaps[0].unexplained_ns(), 0, "sums saturate");
    assert!(!report().gaps[0].parts[0].cause.to_string().contains('\u{1b}'));
    assert!(refused("").starts_with("line 1 is not the beginning"));
    assert!(refused("{\"format\":\"pinfold-gaps/9\"}").contains("\"pinfold-gaps/9\""));
    let cut = text.lines().next().unwrap();
    assert_eq!(refused(cut), "line 1: the file has 0 of 2 gaps: it was truncated or concatenated");
    assert!(refused(&text[..text.len() - 9]).starts_with("line 3: EOF"));
    assert!(refused(&text.replacen("\"tid\":7", "\"tid\":-7", 1)).starts_with("line 2: "));
    assert!(refused(&text.replacen("\"moves\"", "\"more\"", 1)).starts_with("line 2: "));
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn named_task(name: &str, is_own: bool) -> Cause {
    let (name, policy) = (name.to_owned(), "other".to_owned());
    Cause::Thread { name, tid: 20, policy, cgroup: None, machine: None, is_own }
}

fn number(cause: &Cause) -> i32 {
    match cause {
        Cause::Interrupt { .. } => 0,
        Cause::Processor { .. } => 1,
        Cause::Softirq { .. } => 2,
        Cause::Thread { .. } => 3,
        Cause::KernelWork { .. } => 4,
        Cause::IdleExit { .. } => 5,
        Cause::Quota { .. } => 6,
        Cause::Stopped => 7,
        Cause::Blocked { .. } => 8,
        Cause::Awaited { .. } => 9,
        Cause::Exit { .. } => 10,
        Cause::Unseen => 11,
        Cause::Steal => 12,
        Cause::Queued => 13,
    }
}

/// One of each kind. A new kind does not compile here before it is in the list, and needs a number.
fn one_of_each() -> Vec<Cause> {
    let all = vec![
        Cause::Interrupt { number: 9, device: "nvme0q1".to_owned() },
        Cause::Processor { name: "local timer".to_owned(), function: some("tick_nohz_handler") },
        Cause::Softirq { name: "NET_RX".to_owned(), function: None },
        named_task("hog", false),
        named_task("hog", true),
        Cause::KernelWork { function: some("drain"), worker: "kworker/1:0".to_owned() },
        Cause::IdleExit { state: Some(3) },
        Cause::Quota { group: "/a b".to_owned(), is_v1: false },
        Cause::Stopped,
        Cause::Blocked { waker: None },
        Cause::Awaited { task: None, exit: None, is_own: true },
        Cause::Awaited { task: None, exit: None, is_own: false },
        Cause::Exit { reason: None, is_kernel: true },
        Cause::Unseen,
        Cause::Steal,
        Cause::Queued,
    ];
    let numbers: BTreeSet<i32> = all.iter().map(number).collect();
    assert!(numbers.into_iter().eq(0..14), "one of each");
    all
}

const MACHINE: Place<'_> = Place { selector: "--pid 5", tid: 7, cpu: 1, elsewhere: "0,2-3" };
const PROCESS: Place<'_> = Place { selector: "", ..MACHINE };

fn text_of(remedy: Remedy) -> String {
    match remedy {
        Remedy::Command(text) => text,
        Remedy::Boot(text) => format!("boot: {text}"),
        Remedy::Nothing(why) => {
            assert!(!why.is_empty());
            "nothing".to_owned()
        }
    }
}

fn remedies(place: &Place<'_>) -> Vec<String> {
    one_of_each().iter().map(|cause| text_of(cause.remedy(place))).collect()
}

#[test]
fn each_cause_has_a_command_or_nothing_helps() {
    const NOTHING: [&str; 4] = ["nothing"; 4];
    let apply = "pinfold apply --pid 5 --strategy low-latency";
    let expected = [
        &format!("{apply} --isolate host --tunable irq:all=housekeeping"),
        "boot: nohz_full=1 rcu_nocbs=1",
        &format!("{apply} --isolate host --tunable irq:all=housekeeping"),
        &format!("{apply} --isolate host"),
        apply,
        &format!("{apply} --isolate host --tunable workqueues=housekeeping"),
        &format!("{apply} --tunable wake-up-us=10"),
        "echo max | tee '/a b/cpu.max'",
        "nothing",
        "nothing",
        apply,
    ];
    let isolate = format!("{apply} --isolate host");
    assert_eq!(remedies(&MACHINE), [&expected[..], &NOTHING, &[&isolate]].concat());
    let expected = [
        "echo 0,2-3 | tee /proc/irq/9/smp_affinity_list",
        "boot: nohz_full=1 rcu_nocbs=1",
        "taskset -pc 0,2-3 7",
        "taskset -pc 0,2-3 20",
        "taskset -pc 0,2-3 20",
        "echo d | tee /sys/devices/virtual/workqueue/cpumask",
        "echo 10 | tee /sys/devices/system/cpu/cpu1/power/pm_qos_resume_latency_us",
        "echo max | tee '/a b/cpu.max'",
        "nothing",
        "nothing",
        "nothing",
    ];
    assert_eq!(remedies(&PROCESS), [&expected[..], &NOTHING, &["nothing"]].concat());
}

fn of_timer(function: &str) -> Remedy {
    let function = some(function);
    Cause::Processor { name: "local timer".to_owned(), function }.remedy(&PROCESS)
}

fn of_task(name: &str) -> Option<String> {
    named_task(name, false).remedy(&PROCESS).text().map(str::to_owned)
}

#[test]
fn remedies_depend_on_the_function_and_on_the_kind_of_task() {
    assert!(matches!(of_timer("apic_timer_fn"), Remedy::Nothing(why) if why.contains("guest")));
    assert_eq!(of_timer("hrtimer_wakeup").text(), Some("taskset -pc 0,2-3 7"));
    let watchdog = of_timer("watchdog_timer_fn");
    assert_eq!(watchdog.text(), Some("sysctl -w kernel.watchdog_cpumask=0,2-3"));
    let call = Cause::Processor { name: "function call IPI".to_owned(), function: None };
    assert!(matches!(call.remedy(&MACHINE), Remedy::Nothing(why) if why.contains("ipi_send_cpu")));
    let irq = "echo 0,2-3 | tee /proc/irq/24/smp_affinity_list";
    assert_eq!(of_task("irq/24-nvme").as_deref(), Some(irq));
    assert_eq!(of_task("ksoftirqd/1").as_deref(), Some("taskset -pc 0,2-3 7"));
    assert_eq!(of_task("rcuc/1").as_deref(), Some("rcu_nocbs=1"));
    assert_eq!(of_task("migration/1"), None);
    assert_eq!(of_task("irq/x").as_deref(), Some("taskset -pc 0,2-3 20"));
    let alone = Place { elsewhere: "", cpu: 0, ..PROCESS };
    assert!(one_of_each()[..5].iter().all(|cause| cause.remedy(&alone).text().is_none()));
    let v1 = Cause::Quota { group: "/a b".to_owned(), is_v1: true };
    assert_eq!(v1.remedy(&alone).text(), Some("echo -1 | tee '/a b/cpu.cfs_quota_us'"));
}
