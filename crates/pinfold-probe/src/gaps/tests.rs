//! The attribution, on gaps that are made up, and the file format.

use std::collections::BTreeSet;

use pinfold_host::cpu_groups::Throttling;
use pinfold_host::{
    FunctionKind, GapKind, GapSlice, GapTotals, Occupant, OtherTask, RawGap, ShortGaps,
    SnapshotHost, SystemClock, WakerTask, paths,
};
use pinfold_model::{PuId, Tid};

use super::attribute::{Context, gaps, parts};
use super::names::Names;
use super::queued::Delays;
use super::{
    Cause, Gap, GapReport, Part, Place, Remedy, Summary, ThreadGaps, ThreadName, lasting, record,
};
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

fn unseen(tid: u32) -> ShortGaps {
    ShortGaps {
        tid: Tid(tid),
        process: Tid(0),
        owner: 0,
        has_ended: false,
        is_unseen: true,
        count: 0,
        sum_ns: 0,
        buckets: Vec::new(),
    }
}

/// Threads 7 to 9 of process 5, on CPU 1: stopped, runnable and asleep since before the
/// observation; their run times do not grow.
#[test]
fn a_thread_that_was_stopped_or_starved_all_the_time_has_a_gap() {
    let tail =
        format!("5 5 0 -1 4194304 {}20 0 1 0 99 {}17 1 0 0", "0 ".repeat(8), "0 ".repeat(15));
    let mut files = Vec::new();
    for (tid, state) in [(7, 'T'), (8, 'R'), (9, 'S')] {
        let tid = Tid(tid);
        files.push((paths::process_stat(tid), format!("{tid} (x) {state} 1 {tail}\n")));
        files.push((paths::process_status(tid), status(tid)));
        files.push((paths::task_schedstat(tid, tid), "100 0 1\n".to_owned()));
    }
    let files = files.iter().map(|(path, text)| (path.as_str(), text.as_str()));
    let host = SnapshotHost::from_files(files);
    let stopped = (7, vec![("stopped".to_owned(), 8_000)]);
    let starved = (8, vec![("hog (20, fifo:50, /jobs)".to_owned(), 8_000)]);
    assert_eq!(lasting_while(&host, 20), [stopped.clone(), starved]);
    assert_eq!(lasting_while(&host, 8), [stopped], "it ran all the time, and no tick counted it");
}

/// The gaps of 8 ms, while this task is on the CPU.
fn lasting_while(host: &SnapshotHost, tid: u32) -> Vec<(u32, Vec<(String, u64)>)> {
    let tids = [Tid(7), Tid(8), Tid(9)];
    let observation = lasting::Observation {
        ran_ns: &lasting::run_times(host, tids.into_iter()),
        ran_at_end_ns: &lasting::run_times(host, tids.into_iter()),
        states: &lasting::states(host, tids.into_iter()),
        began_ns: MS,
        ended_ns: 9 * MS,
    };
    let totals = GapTotals {
        threads: vec![unseen(7), unseen(8), unseen(9)],
        running: [(PuId(1), slice(0, 9_000, task(tid, "hog")))].into(),
        ..GapTotals::default()
    };
    let open = lasting::open_gaps(host, &SystemClock, &totals, &observation);
    open.iter().map(|gap| (gap.tid.0, found(gap, &Quotas::default()))).collect()
}

fn status(tid: Tid) -> String {
    format!("Name:\tx\nTgid:\t5\nPid:\t{tid}\nPPid:\t1\nUid:\t0\t0\t0\t0\n")
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
    let summary =
        Summary { subject: "machine a".to_owned(), duration_ns: 1_000, ..Summary::default() };
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
    let mut other = report();
    other.summary.selector = "--libvirt x; rm -rf '/a b'".to_owned();
    let read = record::parse(&record::to_text(&other).unwrap()).unwrap();
    assert_eq!(read.summary.selector, "--libvirt 'x;' rm -rf '/a b'", "no command of its own");
    other.summary.duration_ns = 0;
    assert!(refused(&record::to_text(&other).unwrap()).contains("without length"));
    let forged = Cause::Softirq { name: "TIMER\nagainst it: x".to_owned(), function: None };
    assert_eq!(forged.to_string().lines().count(), 1);
}

#[test]
fn with_a_higher_bound_shorter_gaps_are_counted_as_below_it() {
    let mut all = report();
    let thread = ThreadGaps {
        subject: String::new(),
        tid: 7,
        role: "vcpu(0)".to_owned(),
        has_ended: false,
        shorter: 2,
        shorter_ns: 10,
        histogram: vec![0; 32],
    };
    all.summary.threads.push(thread);
    all.gaps[0].length_ns = 9_000;
    all.raise_bound(10_000);
    assert_eq!((all.gaps.len(), all.summary.over_ns), (1, 10_000));
    let thread = &all.summary.threads[0];
    assert_eq!((thread.shorter, thread.shorter_ns, thread.histogram[13]), (3, 9_010, 1));
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

const MACHINE: Place<'_> =
    Place { selector: "--pid 5", tid: 7, cpu: 1, elsewhere: "0,2-3", quiet: "2-3" };
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

/// The best remedies.
fn remedies(place: &Place<'_>) -> Vec<String> {
    one_of_each().iter().map(|cause| text_of(best(cause, place))).collect()
}

fn best(cause: &Cause, place: &Place<'_>) -> Remedy {
    cause.remedies(place).swap_remove(0)
}

#[test]
fn each_cause_has_a_command_or_nothing_helps() {
    const NOTHING: [&str; 4] = ["nothing"; 4];
    let apply = "pinfold apply --pid 5";
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
        "taskset -pc 2-3 20",
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
    best(&Cause::Processor { name: "local timer".to_owned(), function }, &PROCESS)
}

fn of_task(name: &str) -> Option<String> {
    best(&named_task(name, false), &PROCESS).text().map(str::to_owned)
}

#[test]
fn remedies_depend_on_the_function_and_on_the_kind_of_task() {
    assert!(matches!(of_timer("apic_timer_fn"), Remedy::Nothing(why) if why.contains("guest")));
    assert_eq!(of_timer("hrtimer_wakeup").text(), Some("taskset -pc 0,2-3 7"));
    let watchdog = of_timer("watchdog_timer_fn");
    assert_eq!(watchdog.text(), Some("sysctl -w kernel.watchdog_cpumask=0,2-3"));
    let call = Cause::Processor { name: "function call IPI".to_owned(), function: None };
    assert!(matches!(best(&call, &MACHINE), Remedy::Nothing(why) if why.contains("ipi_send_cpu")));
    let irq = "echo 0,2-3 | tee /proc/irq/24/smp_affinity_list";
    assert_eq!(of_task("irq/24-nvme").as_deref(), Some(irq));
    assert_eq!(of_task("ksoftirqd/1").as_deref(), Some("taskset -pc 0,2-3 7"));
    assert_eq!(of_task("rcuc/1").as_deref(), Some("rcu_nocbs=1"));
    assert_eq!(of_task("migration/1"), None);
    assert_eq!(of_task("irq/x").as_deref(), Some("taskset -pc 2-3 20"));
    let alone = Place { elsewhere: "", quiet: "", cpu: 0, ..PROCESS };
    assert!(one_of_each()[..3].iter().all(|cause| best(cause, &alone).text().is_none()));
    let v1 = Cause::Quota { group: "/a b".to_owned(), is_v1: true };
    assert_eq!(best(&v1, &alone).text(), Some("echo -1 | tee '/a b/cpu.cfs_quota_us'"));
}

/// What helps against a task if the planner refuses the machine.
fn without_planner(policy: &str, machine: Option<&str>, quiet: &str) -> Remedy {
    let (policy, machine) = (policy.to_owned(), machine.map(str::to_owned));
    let name = "hog".to_owned();
    let cause = Cause::Thread { name, tid: 20, policy, cgroup: None, machine, is_own: false };
    let mut all = cause.remedies(&Place { quiet, ..MACHINE });
    assert_eq!(all[0].text(), Some("pinfold apply --pid 5 --isolate host"));
    all.swap_remove(1)
}

#[test]
fn without_a_plan_a_task_is_moved_or_made_less_important() {
    for (policy, quiet, expected) in [
        ("other, nice -15", "2-3", "taskset -pc 2-3 20"),
        ("other, nice -15", "", "renice -n 19 -p 20"),
        ("fifo:50", "", "chrt --other --pid 0 20"),
    ] {
        assert_eq!(without_planner(policy, None, quiet).text(), Some(expected), "{policy}");
    }
    let machine = without_planner("other", Some("db"), "2-3");
    assert_eq!(machine.text(), Some("pinfold plan --check --all"));
    assert!(
        matches!(without_planner("idle", None, ""), Remedy::Nothing(why) if why.contains("small"))
    );
}

#[test]
fn a_policy_has_its_nice_value() {
    for (policy, priority, expected) in [
        (0, 120, "other"),
        (0, 105, "other, nice -15"),
        (3, 139, "batch, nice 19"),
        (5, 120, "idle"),
        (1, 49, "fifo:50"),
        // It inherited a real-time priority with a lock.
        (0, 49, "other"),
    ] {
        let Occupant::Task(hog) = task(20, "hog") else { panic!("a task") };
        assert_eq!(super::names::policy(&OtherTask { policy, priority, ..hog }), expected);
    }
}

#[test]
fn many_tasks_with_one_name_are_one_culprit() {
    fn task(name: &str, tid: u32) -> Cause {
        let (name, policy) = (name.to_owned(), "other".to_owned());
        Cause::Thread { name, tid, policy, cgroup: None, machine: None, is_own: false }
    }
    let gaps = [
        gap_by("web", vec![(task("date", 50), 40), (task("date", 51), 5), (task("sh", 9), 30)]),
        gap_by("web", vec![(task("date", 52), 30), (task("make", 60), 20), (task("make", 61), 2)]),
    ];
    let found = super::by_cause(gaps.iter());
    let found: Vec<_> = found
        .iter()
        .map(|sum| format!("{} {} {} {}", sum.name, sum.gaps, sum.ns, sum.is_many))
        .collect();
    let expected = [
        "date (3 tasks) 2 75 true",
        "sh (9, other) 1 30 false",
        "make (60, other) 1 20 false",
        "make (61, other) 1 2 false",
    ];
    assert_eq!(found, expected);
}

/// A gap of a machine that waits for tasks of others.
fn gap_by(subject: &str, parts: Vec<(Cause, u64)>) -> Gap {
    let parts: Vec<Part> = parts.into_iter().map(|(cause, ns)| Part { cause, ns }).collect();
    Gap { subject: subject.to_owned(), length_ns: 100, parts, ..report().gaps.remove(0) }
}

fn of_machine(name: &str, tid: u32) -> Cause {
    let policy = "other".to_owned();
    let (thread, machine) = ("CPU 0/TCG".to_owned(), Some(name.to_owned()));
    Cause::Thread { name: thread, tid, policy, cgroup: None, machine, is_own: false }
}

#[test]
fn a_culprit_has_the_sum_of_its_parts_though_it_is_the_main_cause_of_no_gap() {
    let gaps = [
        gap_by(
            "web",
            vec![(of_machine("db", 30), 40), (of_machine("db", 31), 5), (Cause::Stopped, 1)],
        ),
        gap_by("web", vec![(of_machine("mail", 40), 42), (of_machine("db", 31), 30)]),
        gap_by("mail", vec![(of_machine("db", 31), 33)]),
    ];
    assert!(gaps.iter().all(|gap| gap.cause().is_none()), "no single cause");
    let found: Vec<_> = super::by_cause(gaps.iter())
        .into_iter()
        .map(|sum| (sum.subject, sum.name.into_owned(), sum.gaps, sum.ns, sum.longest_ns))
        .collect();
    let expected = [
        ("web", "machine db", 2, 75, 45),
        ("web", "machine mail", 1, 42, 42),
        ("mail", "machine db", 1, 33, 33),
        ("web", "stopped", 1, 1, 1),
    ];
    let expected: Vec<_> = expected
        .into_iter()
        .map(|(subject, name, gaps, ns, longest)| (subject, name.to_owned(), gaps, ns, longest))
        .collect();
    assert_eq!(found, expected);
}
