//! Nothing that spins outlives its supervisor or goes on while that is silent.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};

use crate::common::{MS, PATIENCE, a_pu, eventually, program, stderr_of, work_ns};
use pinfold_host::process::{Child, Spawn, Stdio, task_alive};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, paths, proc_stat};
use pinfold_model::{TaskId, Tid};

#[test]
fn a_load_pauses_without_heartbeats_goes_on_with_them_and_ends_with_the_pipe() {
    let program = program();
    let host = LiveHost::new().unwrap();
    let mut child = program.start("load cpu --threads 2 --seconds 600 --supervised");
    let pid = child.pid();
    let mut stdin = child.stdin().unwrap();
    stdin.write_all(b"\n").unwrap();
    assert!(eventually(|| work_ns(&host, pid) > 0), "it works");
    // Paused: no CPU time is used between looks that are 300 ms apart, three times.
    assert!(
        eventually(|| {
            let first = work_ns(&host, pid);
            (0..3).all(|_| {
                SystemClock.sleep_ns(300 * MS);
                work_ns(&host, pid) == first
            })
        }),
        "it pauses without heartbeats"
    );
    let asleep = work_ns(&host, pid);
    stdin.write_all(b"\n").unwrap();
    assert!(eventually(|| work_ns(&host, pid) > asleep), "a beat wakes it");
    drop(stdin);
    let status = child.wait_for(&SystemClock, PATIENCE).unwrap();
    assert!(status.is_some_and(|status| status.success()), "{}", stderr_of(&mut child));
}

/// Of two loads that were started together, the one with the shorter limit pauses, while the other
/// still works. A busy machine delays both.
#[test]
fn a_load_pauses_after_the_silence_that_was_set_and_needs_no_other_end() {
    let program = program();
    let host = LiveHost::new().unwrap();
    let [mut longer, mut shorter] = ["60", "0.09"].map(|silence: &str| {
        program.start(&format!("load cpu --threads 1 --silence {silence} --supervised"))
    });
    let ends = [longer.stdin().unwrap(), shorter.stdin().unwrap()];
    let pid = shorter.pid();
    assert!(
        eventually(|| {
            let first = work_ns(&host, pid);
            SystemClock.sleep_ns(200 * MS);
            first > 0 && work_ns(&host, pid) == first
        }),
        "it pauses without heartbeats"
    );
    let worked = work_ns(&host, longer.pid());
    assert!(eventually(|| work_ns(&host, longer.pid()) > worked), "the other one goes on");
    drop(ends);
    let (pauses, gap_ns) = report(shorter);
    assert!(pauses == 1 && gap_ns >= 90 * MS, "{pauses} pauses, {gap_ns} ns");
    assert_eq!(report(longer), (0, 0), "it has not paused");
}

fn report(mut load: Child) -> (u64, u64) {
    let status = load.wait_for(&SystemClock, PATIENCE).unwrap();
    assert!(status.is_some_and(|status| status.success()), "{}", stderr_of(&mut load));
    let mut text = String::new();
    load.stdout().unwrap().read_to_string(&mut text).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    (report["pauses"].as_u64().unwrap(), report["longest_gap_ns"].as_u64().unwrap())
}

#[test]
fn supervised_benchmarks_end_when_no_one_beats_or_the_pipe_ends() {
    let program = program();
    let check = |close: bool, expected: &str| {
        let mut child = program
            .start(&format!("spin-gap --seconds 600 --cpus {} --duty 5 --supervised", a_pu()));
        let stdin = child.stdin().unwrap();
        let kept = (!close).then_some(stdin);
        let status = child.wait_for(&SystemClock, PATIENCE).unwrap();
        let text = stderr_of(&mut child);
        assert_eq!(status.and_then(|status| status.code()), Some(3), "{text}");
        assert!(text.contains(expected), "{text}");
        drop(kept);
    };
    check(false, "no heartbeat for 1.5 s");
    check(true, "the supervisor is gone");
}

#[test]
fn a_fifo_spinner_ends_when_its_parent_is_killed() {
    let program = program();
    let host = LiveHost::new().unwrap();
    let script = format!(
        "{} spin-gap --seconds 600 --cpus {} --policy fifo:2 --duty 5 & echo $!; wait",
        program.pinload.path(),
        a_pu()
    );
    let mut shell = Spawn::new("/bin/sh")
        .args(["-c", script.as_str()])
        .stdin(Stdio::Null)
        .stdout(Stdio::Pipe)
        .start()
        .unwrap();
    let mut line = String::new();
    BufReader::new(shell.stdout().unwrap()).read_line(&mut line).unwrap();
    let pid = Tid(line.trim().parse().unwrap());
    assert!(eventually(|| work_ns(&host, pid) > 0), "it spins");
    let stat = proc_stat::parse(&host.read_text(&paths::process_stat(pid)).unwrap()).unwrap();
    let spinner: TaskId = stat.task();
    shell.kill().unwrap();
    assert!(eventually(|| !task_alive(&host, spinner).unwrap()), "it ends with its parent");
}
