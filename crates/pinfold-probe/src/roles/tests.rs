//! Snapshots of a captured machine and their differences.

use pinfold_host::SnapshotHost;

use super::*;

struct Thread {
    tid: u32,
    start: u64,
    run: u64,
    delay: u64,
    switches: (u64, u64),
    migrations: Option<u64>,
}

const fn thread(tid: u32, run: u64, delay: u64) -> Thread {
    Thread {
        tid,
        start: 70,
        run,
        delay,
        switches: (run / 10, delay / 10),
        migrations: Some(run / 100),
    }
}

/// A machine whose process 40 has these threads.
fn machine(threads: &[Thread]) -> SnapshotHost {
    let mut tree = SnapshotHost::new();
    tree.insert_dir("/proc/40/task");
    for thread in threads {
        let tid = thread.tid;
        let file = |name| paths::task_file(Tid(40), Tid(tid), name);
        let stat = format!(
            "{tid} (CPU 0/TCG) S 1 40 40 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 3 0 {} 0 0 0 0 0 0 0 0 0 0 \
             0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n",
            thread.start
        );
        tree.insert_file(&file("stat"), stat);
        tree.insert_file(&file("schedstat"), format!("{} {} 5\n", thread.run, thread.delay));
        let status = format!(
            "Name:\tqemu\nTgid:\t40\nPPid:\t1\nUid:\t0\t0\t0\t0\nvoluntary_ctxt_switches:\t{}\n\
             nonvoluntary_ctxt_switches:\t{}\n",
            thread.switches.0, thread.switches.1
        );
        tree.insert_file(&file("status"), status);
        if let Some(migrations) = thread.migrations {
            tree.insert_file(
                &file("sched"),
                format!("qemu ({tid}, #threads: 1)\nse.exec_start : 1.5\nse.nr_migrations    :  {migrations}\n"),
            );
        }
    }
    tree
}

fn task(tid: u32) -> TaskId {
    TaskId { tid: Tid(tid), start_time: 70 }
}

fn roles() -> Vec<(TaskId, Role)> {
    vec![(task(40), Role::Emulator), (task(41), Role::Vcpu(0)), (task(42), Role::Vcpu(1))]
}

fn since(before: &[Thread], after: &[Thread]) -> Vec<RoleStats> {
    let take = |threads| snapshot(&machine(threads), Tid(40), &roles()).unwrap();
    take(after).since(&take(before))
}

fn stats(role: Role, threads: u32, run_ns: u64, run_delay_ns: u64) -> RoleStats {
    RoleStats {
        role,
        threads,
        run_ns,
        run_delay_ns,
        migrations: Some(run_ns / 100),
        voluntary_switches: run_ns / 10,
        involuntary_switches: run_delay_ns / 10,
        lost_threads: 0,
    }
}

#[test]
fn differences_are_summed_by_role() {
    let found = since(
        &[thread(40, 100, 10), thread(41, 1000, 50), thread(42, 1000, 50), thread(43, 0, 0)],
        &[thread(40, 200, 20), thread(41, 3000, 90), thread(42, 1000, 50), thread(43, 700, 70)],
    );
    let expected = [
        stats(Role::Vcpu(0), 1, 2000, 40),
        stats(Role::Vcpu(1), 1, 0, 0),
        stats(Role::Emulator, 2, 800, 80), // includes the thread without a role
    ];
    assert_eq!(found, expected);
}

#[test]
fn new_threads_count_from_their_start_and_ended_ones_are_counted() {
    let found = since(
        &[thread(40, 100, 10), thread(41, 1000, 50), thread(44, 5000, 0)],
        &[thread(40, 100, 10), thread(45, 300, 30)],
    );
    let lost = |role, threads, run, delay| RoleStats {
        lost_threads: 1,
        ..stats(role, threads, run, delay)
    };
    assert_eq!(found, [lost(Role::Vcpu(0), 0, 0, 0), lost(Role::Emulator, 2, 300, 30)]);
}

#[test]
fn a_number_that_was_used_again_is_another_thread() {
    let again = Thread { start: 99, ..thread(41, 10, 0) };
    let found = since(&[thread(41, 1000, 50)], &[again]);
    let lost = RoleStats { lost_threads: 1, ..stats(Role::Vcpu(0), 0, 0, 0) };
    let born = RoleStats { migrations: Some(0), ..stats(Role::Emulator, 1, 10, 0) };
    assert_eq!(found, [lost, born]);
}

#[test]
fn a_kernel_without_the_sched_file_does_not_report_migrations() {
    let found = since(
        &[Thread { migrations: None, ..thread(41, 100, 0) }],
        &[Thread { migrations: None, ..thread(41, 300, 0) }],
    );
    assert_eq!(found, [RoleStats { migrations: None, ..stats(Role::Vcpu(0), 1, 200, 0) }]);
}

#[test]
fn missing_files_are_errors_that_name_the_file() {
    check("/proc/40/task/41/schedstat");
    check("/proc/40/task/41/status");
    check("/proc/40/task");
}

fn check(missing: &str) {
    let mut tree = machine(&[thread(41, 1, 1)]);
    assert!(tree.remove(missing));
    let text = snapshot(&tree, Tid(40), &roles()).unwrap_err().to_string();
    assert!(text.contains(missing), "{text}");
}
