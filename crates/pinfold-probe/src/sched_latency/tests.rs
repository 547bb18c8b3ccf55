//! Merging of the statistics, and the result on a host that has only sums.

use pinfold_host::{SimClock, Slice, SnapshotHost, WAIT_BUCKETS};

use super::*;

fn task(tid: u32) -> TaskId {
    TaskId { tid: Tid(tid), start_time: 5 }
}

/// A machine 7 with a vCPU 8 and a thread 9 without a role, each with these sums.
fn machine(sums: &[(u32, &str)]) -> SnapshotHost {
    let mut tree = SnapshotHost::new();
    for (tid, schedstat) in sums {
        // The start time is the 22nd field.
        let stat = format!("{tid} (qemu) S 1 {}5 {}\n", "0 ".repeat(17), "0 ".repeat(30));
        let status = "Name:\tqemu\nTgid:\t7\nPPid:\t1\nUid:\t0\t0\t0\t0\n";
        for of in [format!("/proc/{tid}"), format!("/proc/7/task/{tid}")] {
            tree.insert_file(&format!("{of}/stat"), stat.clone());
            tree.insert_file(&format!("{of}/status"), status);
        }
        tree.insert_file(&format!("/proc/{tid}/task/{tid}/schedstat"), *schedstat);
        tree.insert_file(&format!("/proc/{tid}/task/{tid}/stat"), stat);
    }
    tree
}

fn account(tid: u32, waits: &[u64]) -> SchedAccount {
    let mut buckets = vec![0; WAIT_BUCKETS];
    buckets[0] = waits.len() as u64;
    SchedAccount {
        tid: Tid(tid),
        process: Some(Tid(7)),
        creator: None,
        has_ended: false,
        count: waits.len() as u64,
        sum_ns: waits.iter().sum(),
        preempted: 0,
        unseen: 0,
        moves: 1,
        moves_waiting: 0,
        worst: waits.iter().max().map(|wait| WorstWait {
            wait_ns: *wait,
            until_ns: 1_000 + wait,
            arrived_ns: 1_000,
            pu: PuId(3),
            moves: 0,
            slices: Vec::new(),
        }),
        open_ns: None,
        buckets,
        wakers: Vec::new(),
        runners: Vec::new(),
    }
}

fn slice(name: &str, tid: u32, from_ns: u64, until_ns: u64) -> Slice {
    Slice { name: name.to_owned(), tid: Tid(tid), from_ns, until_ns }
}

fn reading(accounts: Vec<SchedAccount>) -> SchedReading {
    SchedReading {
        began_ns: 100,
        ended_ns: 10_100,
        accounts,
        lost_new_threads: 0,
        nameless: 0,
        missed: 0,
    }
}

fn new_watched() -> TracedThreads {
    let host = machine(&[(7, "0 0 0"), (8, "0 0 0")]);
    TracedThreads::read(&host, &[(task(7), Role::Emulator), (task(8), Role::Vcpu(0))]).unwrap()
}

#[test]
fn the_culprit_is_who_ran_longest_while_the_thread_waited_there() {
    let worst = WorstWait {
        wait_ns: 900,
        until_ns: 2_000,
        arrived_ns: 1_500,
        pu: PuId(3),
        moves: 1,
        slices: vec![
            slice("before", 1, 0, 1_400),
            slice("hog", 2, 1_400, 1_700),
            slice("other", 3, 1_700, 1_900),
            slice("hog", 2, 1_900, 2_000),
        ],
    };
    let worst = worst_of(Tid(8), &worst, 100);
    assert_eq!(worst.tasks_on_cpu, [tenant("hog", 2, 300), tenant("other", 3, 200)]);
    assert_eq!(
        worst.to_string(),
        "0.001 ms of thread 8 on CPU 3, 0.002 ms after the start; hog (2) ran 0.000 ms; \
         it moved 1 time, 0.001 ms were here"
    );
}

fn tenant(name: &str, tid: u32, ns: u64) -> RunningTask {
    RunningTask { name: name.to_owned(), tid: Tid(tid), ns, machine: None }
}

#[test]
fn threads_are_joined_by_role_and_children_are_strangers() {
    let born = |tid, maker, process| SchedAccount {
        creator: Some((maker, Tid(7))),
        process: Some(Tid(process)),
        ..account(tid, &[5])
    };
    let accounts = vec![
        account(7, &[10, 30]),
        account(8, &[20]),
        born(9, 0, 7),
        born(10, 0, 10), // a child process
        born(11, 3, 10), // and a thread of it
    ];
    let found = of_reading(&new_watched(), &reading(accounts), &[(Tid(7), Tid(12))]);
    assert_eq!(found.roles.len(), 2);
    let emulator = found.roles.iter().find(|one| one.role == Role::Emulator).unwrap();
    assert_eq!((emulator.threads, emulator.born, emulator.count), (2, 1, 3));
    assert_eq!((emulator.sum_ns, emulator.migrations), (45, Some(2)));
    let waits = emulator.waits.as_ref().unwrap();
    assert_eq!(waits.histogram.max_ns(), Some(30));
    assert_eq!(waits.worst.as_ref().unwrap().tid, Tid(7));
    assert_eq!(
        found.lost,
        [
            "2 threads of child processes of the machine, not counted as its own",
            "1 thread of the machine, never seen"
        ]
    );
    assert_eq!(emulator.share(found.duration_ns), Some(45.0 / 20_000.0));
}

#[test]
fn what_a_group_s_tasks_make_is_of_the_group() {
    let host = machine(&[(7, "0 0 0")]);
    let watched = TracedThreads::read(&host, &[(task(7), Role::Task)]).unwrap();
    let child =
        SchedAccount { creator: Some((0, Tid(7))), process: Some(Tid(10)), ..account(10, &[5]) };
    let found = of_reading(&watched, &reading(vec![account(7, &[1]), child]), &[]);
    assert_eq!((found.roles[0].threads, found.roles[0].born), (2, 1));
    assert_eq!(found.lost, [""; 0]);
}

#[test]
fn nothing_is_reported_of_no_waits() {
    let found = of_reading(&new_watched(), &reading(vec![account(7, &[]), account(8, &[])]), &[]);
    let figures = found.figures();
    let of = |quantity: &str| {
        figures.iter().filter(|one| one.labels["quantity"] == quantity).collect::<Vec<_>>()
    };
    for absent in ["p50", "p90", "p99", "p99.9", "max", "mean", "still-waiting"] {
        assert!(of(absent).is_empty(), "{absent}");
    }
    assert_eq!(of("waits").iter().map(|one| one.samples[0]).collect::<Vec<_>>(), [0.0, 0.0]);
    assert!(figures.iter().all(|one| !one.samples.is_empty()));
}

#[test]
fn a_wait_without_an_end_is_reported() {
    let mut starved = account(8, &[]);
    starved.open_ns = Some(9_000);
    let found = of_reading(&new_watched(), &reading(vec![starved]), &[]);
    assert_eq!(found.roles[0].waits.as_ref().unwrap().open, [(Tid(8), 9_000)]);
    assert_eq!(found.roles[0].share(found.duration_ns), Some(0.9));
    let figures = found.figures();
    let open = figures.iter().find(|one| one.labels["quantity"] == "still-waiting").unwrap();
    assert_eq!((open.samples[0], open.flags[0].as_str()), (9_000.0, "thread 8"));
}

#[test]
fn a_captured_machine_gives_sums_and_says_so() {
    let threads = [(task(7), Role::Emulator), (task(8), Role::Vcpu(0))];
    let clock = SimClock::at(0);
    let before = machine(&[(7, "1 10 1"), (8, "1 20 2"), (9, "1 30 3")]);
    let watching = start(&before, &clock, &threads).unwrap();
    assert!(!watching.sees_each_wait());
    clock.sleep_ns(1_000);
    // Thread 9 has ended, thread 11 was created.
    let after = machine(&[(7, "1 15 2"), (8, "1 120 7"), (11, "1 4 1")]);
    let found = watching.stop(&after, &clock).unwrap();
    let Level::Schedstat { why } = &found.level else { panic!("{found:?}") };
    assert_eq!(why, "this is not the running machine");
    assert_eq!(found.duration_ns, 1_000);
    let [vcpu, emulator] = &found.roles[..] else { panic!("{found:?}") };
    assert_eq!((&vcpu.role, vcpu.count, vcpu.sum_ns), (&Role::Vcpu(0), 5, 100));
    assert_eq!((emulator.threads, emulator.born, emulator.ended), (3, 1, 1));
    assert_eq!((emulator.count, emulator.sum_ns, emulator.migrations), (2, 9, None));
    assert!(emulator.waits.is_none());
    assert!(found.lost[0].starts_with("distribution, longest wait, which task ran instead"));
    assert!(found.lost.last().unwrap().starts_with("1 threads that exited"));
    let figures = found.figures();
    assert!(figures.iter().all(|one| one.flags == ["sums-only: this is not the running machine"]));
    assert!(figures.iter().all(|one| one.labels["quantity"] != "max"));
    assert!(figures.iter().any(|one| one.labels["quantity"] == "slices"));
}

#[test]
fn no_threads_and_ended_threads() {
    let host = machine(&[(7, "0 0 0")]);
    let clock = SimClock::at(0);
    let error = start(&host, &clock, &[]).unwrap_err().to_string();
    assert_eq!(error, "there is no thread to observe");
    let error = start(&host, &clock, &[(task(99), Role::Task)]).unwrap_err().to_string();
    assert_eq!(error, "all 1 threads to observe have exited");
    // A later task with the same number is another task.
    let later = TaskId { start_time: 6, ..task(7) };
    assert!(matches!(
        start(&host, &clock, &[(later, Role::Task)]),
        Err(WatchError::Gone { threads: 1 })
    ));
    let one = start(&host, &clock, &[(task(7), Role::Task), (task(99), Role::Task)]).unwrap();
    let found = one.stop(&host, &clock).unwrap();
    assert!(found.lost.iter().any(|lost| lost.starts_with("1 threads had exited before")));
}
