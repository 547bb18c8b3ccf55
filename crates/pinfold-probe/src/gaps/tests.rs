//! The attribution, on gaps that are made up, and the file format.

use pinfold_host::cpu_groups::Throttling;
use pinfold_host::{FunctionKind, GapKind, GapSlice, Occupant, OtherTask, RawGap, WakerTask};
use pinfold_model::{PuId, Tid};

use super::attribute::{Context, gaps, parts};
use super::names::Names;
use super::{Cause, Gap, GapReport, Part, Summary, record};
use crate::quotas::{Phase, Quotas};

const MS: u64 = 1_000_000;

fn task(tid: u32, name: &str) -> Occupant {
    let (tid, process) = (Tid(tid), Tid(tid));
    Occupant::Task(OtherTask { tid, process, name: name.to_owned(), policy: 1, priority: 49 })
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
        is_open: false,
        slices,
    }
}

fn found(gap: &RawGap, quotas: &Quotas) -> Vec<(String, u64)> {
    let mut names = Names::default();
    names.machines.insert(Tid(30), "web".to_owned());
    names.interrupts.insert(9, "nvme0q1".to_owned());
    names.cgroups.insert(Tid(20), Some("/jobs".to_owned()));
    let context = Context { names: &names, quotas, began_ns: 0 };
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
}

#[test]
fn out_of_the_guest_a_vcpu_has_its_exit_or_the_thread_that_it_waited_for() {
    let own = slice(0, 900, task(7, "CPU 0/KVM"));
    let mut exit = gap(1000, vec![own, slice(100, 300, Occupant::Interrupt(9))]);
    exit.kind = GapKind::Exit;
    check(&exit, &[("exit handled in the kernel", 800), ("interrupt 9 (nvme0q1)", 200)]);
    exit.exit = Some("MMIO".to_owned());
    check(&exit, &[("exit MMIO handled in user space", 800), ("interrupt 9 (nvme0q1)", 200)]);
    exit.kind = GapKind::Awaiting;
    exit.woken_ns = Some(MS - 100_000);
    exit.waker = Some(WakerTask { tid: Tid(6), process: Tid(5), name: "iothread".to_owned() });
    check(&exit, &[("waiting for own thread iothread (6) after exit MMIO", 900)]);
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
    let context = Context { names: &Names::default(), quotas: &Quotas::default(), began_ns: 0 };
    let raw = [burst(300), burst(900), burst(500), RawGap { tid: Tid(8), ..burst(400) }];
    let all = gaps(&raw, &context, &|_, _| "vcpu(0)".to_owned());
    let lengths: Vec<_> = all.iter().map(|gap| (gap.tid, gap.length_ns / 1000)).collect();
    assert_eq!(lengths, [(7, 900), (8, 400)]);
    assert_eq!((all[0].unexplained_ns(), all[0].cause()), (900_000, None));
}

fn report() -> GapReport {
    let cause = Cause::Interrupt { number: 9, device: "\u{1b}[2J'; rm".to_owned() };
    let gap = Gap {
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

#[test]
fn what_keeps_a_cause_away_is_a_command() {
    let [v2, v1] = [false, true].map(|is_v1| Cause::Quota { group: "/a b".to_owned(), is_v1 });
    assert_eq!(v2.remedy("", "").unwrap(), "echo max | tee '/a b/cpu.max'");
    assert_eq!(v1.remedy("", "").unwrap(), "echo -1 | tee '/a b/cpu.cfs_quota_us'");
    let hog = Cause::Thread {
        name: "hog".to_owned(),
        tid: 20,
        policy: "other".to_owned(),
        cgroup: None,
        machine: None,
        is_own: false,
    };
    assert_eq!(hog.remedy("", "0,2-3").unwrap(), "taskset -pc 0,2-3 20");
    let isolate = "pinfold apply --pid 5 --strategy low-latency --isolate host";
    assert_eq!(hog.remedy("--pid 5", "0").unwrap(), isolate);
    assert_eq!(Cause::Unseen.remedy("--pid 5", "0"), None);
}
