//! Merging of the calls.

use pinfold_host::{OpenCall, SnapshotHost};

use super::*;

fn new_watched() -> TracedThreads {
    let mut host = SnapshotHost::new();
    for tid in [7, 8] {
        let zeros = "0 ".repeat(17);
        let stat = format!("{tid} (qemu) S 1 {zeros}5 {}\n", "0 ".repeat(30));
        host.insert_file(&format!("/proc/{tid}/stat"), stat);
        let status = "Name:\tqemu\nTgid:\t7\nPPid:\t1\nUid:\t0\t0\t0\t0\n";
        host.insert_file(&format!("/proc/{tid}/status"), status);
    }
    TracedThreads::read(&host, &[(task_id(7), Role::Emulator), (task_id(8), Role::Vcpu(0))])
        .unwrap()
}

fn task_id(tid: u32) -> TaskId {
    TaskId { tid: Tid(tid), start_time: 5 }
}

fn place(tid: u32, address: u64, kind: FutexKind, count: u64, sum_ns: u64) -> FutexCallSite {
    FutexCallSite {
        process: Tid(7),
        tid: Tid(tid),
        address,
        kind,
        stack: Vec::new(),
        count,
        sum_ns,
        max_ns: sum_ns,
        again: 0,
    }
}

#[test]
fn calls_are_joined_by_role_and_by_word() {
    let reading = FutexReading {
        began_ns: 0,
        ended_ns: 1_000,
        places: vec![
            place(7, 0x10, FutexKind::Lock, 2, 100),
            place(8, 0x10, FutexKind::Lock, 3, 500),
            place(8, 0x20, FutexKind::Wait, 1, 200),
            place(8, 0x10, FutexKind::Wake, 4, 10),
            place(9, 0x10, FutexKind::Lock, 1, 50), // created during the observation
        ],
        open: vec![OpenCall {
            process: Tid(7),
            tid: Tid(8),
            address: 0x20,
            kind: FutexKind::Wait,
            stack: Vec::new(),
            ns: 90,
        }],
        lost: 0,
        stackless: 0,
        unseen: 2,
        missed: 3,
    };
    let mut symbols = BTreeMap::new();
    let found = of_reading(&SnapshotHost::new(), &new_watched(), &reading, &mut symbols, false);
    let [vcpu, emulator] = &found.roles[..] else { panic!("{found:?}") };
    assert_eq!((&vcpu.role, vcpu.threads), (&Role::Vcpu(0), 1));
    assert_eq!(vcpu.share(FutexKind::Lock, found.duration_ns), Some(0.5));
    assert_eq!(vcpu.share(FutexKind::Wait, found.duration_ns), Some(0.29));
    let waits = vcpu.spent[&FutexKind::Wait];
    assert_eq!((waits.count, waits.open, waits.max_ns), (1, 1, 200));
    assert_eq!((emulator.threads, emulator.spent[&FutexKind::Lock].sum_ns), (2, 150));
    let [lock, condition] = &found.words[..] else { panic!("{:?}", found.words) };
    assert_eq!((lock.address, lock.spent.sum_ns, lock.roles.len()), (0x10, 650, 2));
    assert_eq!((condition.address, condition.spent.sum_ns), (0x20, 290));
    assert!(found.sites.is_none());
    let [unseen, missed] = &found.lost[..] else { panic!("{:?}", found.lost) };
    assert!(unseen.starts_with("2 calls whose beginning was not seen"));
    assert_eq!(
        missed,
        "3 events of the host that occurred while another BPF program ran on their CPU"
    );
}

#[test]
fn no_calls_are_no_maximum() {
    let reading = FutexReading { ended_ns: 1_000, ..FutexReading::default() };
    let mut symbols = BTreeMap::new();
    let found = of_reading(&SnapshotHost::new(), &new_watched(), &reading, &mut symbols, true);
    assert!(found.words.is_empty());
    let figures = found.figures();
    assert!(figures.iter().all(|one| one.labels["quantity"] != "max"));
    assert!(figures.iter().any(|one| one.labels["quantity"] == "calls"));
    let sites = found.sites.unwrap();
    assert_eq!((sites.sites.len(), sites.frame_pointers), (0, None));
}

#[test]
fn a_captured_machine_cannot_be_watched() {
    let mut host = SnapshotHost::new();
    host.insert_file(
        "/proc/7/stat",
        format!("7 (q) S 1 {}5 {}\n", "0 ".repeat(17), "0 ".repeat(30)),
    );
    host.insert_file("/proc/7/status", "Name:\tq\nTgid:\t7\nPPid:\t1\nUid:\t0\t0\t0\t0\n");
    let task = TaskId { tid: Tid(7), start_time: 5 };
    let error = start(&host, &[(task, Role::Task)], false).unwrap_err().to_string();
    let wanted = "lock contention cannot be seen here: this is not the running machine";
    assert_eq!(error, wanted);
    assert!(matches!(start(&host, &[], false), Err(LocksError::Watch(WatchError::NoThreads))));
}
