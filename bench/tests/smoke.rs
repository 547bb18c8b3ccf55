//! Each benchmark runs and prints its table. What the figures are is not asked.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stdout, reason = "a test that cannot run says so")]

use std::path::Path;

use pinfold_host::process::{capture, find_program};

const BENCH: &str = env!("CARGO_BIN_EXE_pinfold-bench");
const MINUTE_NS: u64 = 60_000_000_000;

/// Runs one round of a benchmark; it must print these words.
fn check(name: &str, programs: &[&str], words: &[&str]) {
    if let Some(missing) = programs.iter().find(|program| find_program(program).is_none()) {
        println!("skipped: {missing} is not there, which the benchmark {name} needs");
        return;
    }
    let hosts = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/hosts");
    let arguments = name.split(' ').chain(["--rounds", "1", "--hosts", hosts]);
    let output = capture(BENCH, arguments, 3 * MINUTE_NS).expect("the benchmark runs");
    let said = output.stderr_text();
    let reasons = ["there is no kernel for the demo guest", "`pinfold emulate methods`"];
    if reasons.iter().any(|reason| said.contains(reason)) {
        println!("skipped: {}", said.trim());
        return;
    }
    assert!(output.status.success(), "{said}");
    let text = output.stdout_text();
    for word in words {
        assert!(text.contains(word), "no {word:?} in:\n{text}");
    }
}

#[test]
fn pin_runs() {
    let words = ["## pin: ", "bare system calls", "one fsync", "taskset", "journal on disk"];
    check("pin", &["qemu-system-x86_64", "taskset"], &words);
}

#[test]
fn plan_runs() {
    let words = [
        "## plan: ",
        "| pinfold, scatter |",
        "| hwloc-distrib",
        "| numa-exclusive |",
        "(one more machine)",
    ];
    check("plan", &["hwloc-distrib", "hwloc-calc"], &words);
}

#[test]
fn numad_runs() {
    let pinfold = Path::new(BENCH).with_file_name("pinfold");
    let fetch = "cd \"$(mktemp -d)\" && apt-get -q -o APT::Sandbox::User=root download numad";
    let fetched = capture("sh", ["-c", fetch], MINUTE_NS);
    if !fetched.is_ok_and(|output| output.status.success()) {
        println!("skipped: apt cannot fetch the package numad");
        return;
    }
    let words = ["## numad: ", "numad 0.5", "| numad |", "| pinfold as numad |"];
    check("numad", &["dpkg-deb", &pinfold.to_string_lossy()], &words);
}

#[test]
fn start_runs() {
    let pinfold = Path::new(BENCH).with_file_name("pinfold");
    let words = ["| quota |", "| stall, first |", "| hogs, stored cost |", "`emulate up` and"];
    check("start", &[&pinfold.to_string_lossy()], &words);
}

#[test]
fn programs_runs() {
    let pinfold = Path::new(BENCH).with_file_name("pinfold");
    let words =
        ["## programs: ", "| stall, calibrated | hogs", "| gzip |", "of at most 4 points | "];
    check("programs --quick", &[&pinfold.to_string_lossy(), "gzip", "cpulimit"], &words);
}

#[test]
fn like_runs() {
    let pinfold = Path::new(BENCH).with_file_name("pinfold");
    let words = ["## like: ", "its speed there [95 %]", "1 programs lie in the interval"];
    check("like --quick", &[&pinfold.to_string_lossy(), "gzip"], &words);
}

#[test]
fn watch_runs() {
    let pinfold = Path::new(BENCH).with_file_name("pinfold");
    let words = ["## watch: ", "| CPU time in an hour |", "CPU time of a scrape of 160 vCPUs"];
    check("watch --quick", &["qemu-system-x86_64", &pinfold.to_string_lossy()], &words);
}

#[test]
fn top_runs() {
    if !pinfold_host::process::is_root() {
        println!("skipped: the BPF program needs root");
        return;
    }
    let pinfold = Path::new(BENCH).with_file_name("pinfold");
    let words = ["## top: ", "(500 vCPUs, paused) | BPF |", "(10 vCPUs that run) | /proc |"];
    check("top", &["qemu-system-x86_64", "strace", &pinfold.to_string_lossy()], &words);
}

#[test]
fn scale_runs() {
    let pinfold = Path::new(BENCH).with_file_name("pinfold");
    let words = ["100 nodes, 200 parts", "| merging all results", "| store |"];
    check("scale --quick", &[&pinfold.to_string_lossy()], &words);
}

/// One block, whose interval is none.
#[test]
fn quiet_runs() {
    let words = [
        "## quiet: ",
        "| the same again (A/A) |",
        "| `pinfold quiet`, the load excluded |",
        "not settled",
    ];
    let pinfold = Path::new(BENCH).with_file_name("pinfold");
    check("quiet --quick", &["taskset", &pinfold.to_string_lossy()], &words);
}

#[test]
fn first_second_runs() {
    let words = ["## first-second: ", "| Pinfold: stopped, placed, let go | 0 of 1 |", "taskset"];
    check("first-second", &["qemu-system-x86_64", "taskset"], &words);
}
