//! Tests with child processes of the test itself.

use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;

use pinfold_model::{CpuSet, NodeId, PuId};

use super::*;
use crate::{LiveHost, SystemClock};

const SECOND: u64 = 1_000_000_000;

fn shell(script: &str) -> Spawn {
    Spawn::new("sh").args(["-c", script]).stdin(Stdio::Null).stdout(Stdio::Null).stderr(Stdio::Null)
}

fn sleeper() -> Spawn {
    shell("exec sleep 600")
}

fn is_alive(task: TaskId) -> bool {
    task_alive(&LiveHost::new().unwrap(), task).unwrap()
}

#[test]
fn a_child_talks_and_ends() {
    let mut child = Spawn::new("cat").stdin(Stdio::Pipe).stdout(Stdio::Pipe).start().unwrap();
    child.stdin().unwrap().write_all(b"hello").unwrap();
    let mut answer = String::new();
    child.stdout().unwrap().read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "hello");
    assert!(child.wait().unwrap().success());
    assert_eq!(describe(child.wait().unwrap()), "exit code 0");
    assert!(child.stdin().is_none() && child.stderr().is_none());
    child.terminate().unwrap();
    assert!(!is_alive(child.task()));
}

#[test]
fn who_hastens_does_so_alone() {
    std::thread::spawn(|| {
        let host = LiveHost::new().unwrap();
        let before = host.policy(own_tid()).unwrap();
        match raise_priority() {
            Ok(()) => assert_eq!(host.policy(own_tid()).unwrap(), Policy::Other { nice: -20 }),
            // Without permission the policy is unchanged.
            Err(error) => assert_eq!(host.policy(own_tid()).unwrap(), before, "{error}"),
        }
        let mut child = sleeper().start().unwrap();
        let inherited = host.policy(child.pid()).unwrap();
        child.kill().unwrap();
        assert!(matches!(inherited, Policy::Other { nice: 0.. }), "{inherited}");
    })
    .join()
    .unwrap();
}

#[test]
fn waiting_has_an_end() {
    let mut child = sleeper().start().unwrap();
    assert!(child.start_time() > 0);
    assert_eq!(child.wait_for(&crate::SimClock::default(), SECOND).unwrap(), None);
    assert!(is_alive(child.task()));
    child.terminate().unwrap();
    let status = child.wait_for(&SystemClock, 60 * SECOND).unwrap().unwrap();
    assert_eq!(describe(status), "killed by signal 15");
    let mut child = sleeper().start().unwrap();
    assert_eq!(child.kill().unwrap().signal(), Some(9));
}

#[test]
fn dropping_kills_and_detaching_does_not() {
    let child = sleeper().start().unwrap();
    let task = child.task();
    assert!(is_alive(task));
    drop(child);
    assert!(!is_alive(task));
    let task = sleeper().start().unwrap().detach();
    assert!(is_alive(task));
    signal(task.tid, Signaled::Kill).unwrap();
}

#[test]
fn a_task_is_its_number_and_its_start() {
    let child = sleeper().start().unwrap();
    assert!(is_alive(child.task()));
    assert!(!is_alive(TaskId { start_time: child.start_time() + 1, ..child.task() }));
    assert!(!is_alive(TaskId { tid: Tid(0x7fff_fff0), start_time: 1 }));
}

#[test]
fn affinity_and_policy_hold_from_the_first_instruction() {
    let all = crate::raw::sched_getaffinity(Tid(0)).unwrap();
    let one = CpuSet::single(all.iter().last().unwrap());
    let mut child = Spawn::new("sh")
        .args(["-c", "grep Cpus_allowed_list /proc/self/status; nice"])
        .stdout(Stdio::Pipe)
        .affinity(one.clone())
        .policy(Some(Policy::Batch { nice: 7 }))
        .die_with_parent(true)
        .start()
        .unwrap();
    let mut text = String::new();
    child.stdout().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, format!("Cpus_allowed_list:\t{one}\n7\n"));
    assert!(child.wait().unwrap().success());
}

/// Prints the node of its own stack, if the kernel supports NUMA.
#[test]
fn memory_comes_from_the_node_that_was_named() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/numa_maps") else {
        eprintln!("skipped: this kernel has no NUMA");
        return;
    };
    assert!(!maps.contains("bind:0"));
    let mut child = Spawn::new("cat")
        .args(["/proc/self/numa_maps"])
        .stdout(Stdio::Pipe)
        .memory_node(Some(NodeId(0)))
        .start()
        .unwrap();
    let mut text = String::new();
    child.stdout().unwrap().read_to_string(&mut text).unwrap();
    assert!(text.lines().all(|line| line.split(' ').nth(1) == Some("bind:0")), "{text}");
    assert!(child.wait().unwrap().success());
}

#[test]
fn what_fails_before_the_program_is_named() {
    check(Spawn::new("/nonexistent/program"), libc::ENOENT, "cannot run /nonexistent/program");
    check(
        sleeper().affinity(CpuSet::single(PuId(30_000))),
        libc::EINVAL,
        "sched_setaffinity failed for thread 0",
    );
    check(
        sleeper().memory_node(Some(NodeId(900))),
        libc::EINVAL,
        "set_mempolicy failed for thread 0",
    );
    check(
        sleeper().policy(Some(Policy::Fifo { priority: 200 })),
        libc::EINVAL,
        "sched_setattr failed for thread 0",
    );
    check(
        sleeper().cgroup_files(vec!["/dev/null".to_owned(), "/dev/full".to_owned()]),
        libc::ENOSPC,
        "cannot write /dev/full (value \"0\")",
    );
    check(
        sleeper().cgroup_files(vec!["/nonexistent/tasks".to_owned()]),
        libc::ENOENT,
        "cannot open /nonexistent/tasks",
    );
}

fn check(spawn: Spawn, errno: i32, text: &str) {
    let error = spawn.start().unwrap_err();
    assert_eq!((error.errno(), error.to_string().as_str()), (Some(errno), text));
}

#[test]
fn a_child_dies_with_the_thread_that_started_it() {
    let task = std::thread::spawn(|| sleeper().die_with_parent(true).start().unwrap().detach())
        .join()
        .unwrap();
    let clock = SystemClock;
    let gone = (0..500).any(|_| {
        crate::Clock::sleep_ns(&clock, SECOND / 100);
        !is_alive(task)
    });
    assert!(gone);
}

#[test]
fn capturing_output() {
    let output = run("echo out; echo err >&2; exit 3", 30 * SECOND).unwrap();
    assert_eq!((output.stdout_text().as_str(), output.stderr_text().as_str()), ("out\n", "err\n"));
    assert_eq!(output.status.code(), Some(3));
    // More than a pipe buffer, on both streams at once.
    let script = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo 0123456789012345678901234567890123456789; \
                  echo 0123456789012345678901234567890123456789 >&2; done";
    let output = run(script, 60 * SECOND).unwrap();
    assert_eq!((output.stdout.len(), output.stderr.len()), (123_000, 123_000));
    assert_eq!(run("echo $LC_ALL; cat", 30 * SECOND).unwrap().stdout_text(), "C\n");
    let missing = capture::<&str>("/nonexistent/program", [], SECOND).unwrap_err();
    assert_eq!(missing.errno(), Some(libc::ENOENT));
}

fn run(script: &str, timeout: u64) -> Result<Output, HostError> {
    capture("sh", ["-c", script], timeout)
}

#[test]
fn capture_ends_at_its_time_and_takes_descendants_along() {
    fn check(script: &str) {
        let error = capture("sh", ["-c", script], SECOND / 5).unwrap_err();
        assert_eq!(error.errno(), Some(libc::ETIMEDOUT), "{script}");
    }

    check("sleep 600");
    check("sleep 600 & exit 0");
    check("exec >&- 2>&-; sleep 600");
}

#[test]
fn programs_are_found_as_a_shell_does() {
    let shell = find_program("sh").unwrap();
    assert!(shell.starts_with('/') && shell.ends_with("/sh"));
    assert_eq!(find_program(&shell), Some(shell));
    assert_eq!(find_program("no-such-program-anywhere"), None);
    assert_eq!(find_program(""), None);
    assert_eq!(find_program("/etc/passwd"), None);
    assert_eq!(find_program("/etc"), None);
}

#[test]
fn signals_that_have_no_target() {
    fn check(tid: u32, errno: i32) {
        assert_eq!(signal(Tid(tid), Signaled::Continue).unwrap_err().errno(), Some(errno));
    }

    check(0, libc::EINVAL);
    check(u32::MAX, libc::EINVAL);
    check(0x7fff_fff0, libc::ESRCH);
    assert_eq!(is_root(), own_uid() == 0);
}
