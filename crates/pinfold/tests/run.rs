//! `run`, `apply`, `status` and `undo` on a real QEMU of this test's own.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stdout, reason = "a test that cannot run says so")]

use pinfold_host::process::{Spawn, Stdio, capture, find_program};
use pinfold_host::{Clock, Host, LiveHost, SystemClock};

const PINFOLD: &str = env!("CARGO_BIN_EXE_pinfold");
const SECOND_NS: u64 = 1_000_000_000;
const QEMU: [&str; 12] = [
    "qemu-system-x86_64",
    "-machine",
    "q35",
    "-accel",
    "tcg,thread=multi",
    "-display",
    "none",
    "-nodefaults",
    "-smp",
    "1",
    "-m",
    "64M",
];

fn qemu_is_missing() -> bool {
    let missing = find_program("qemu-system-x86_64").is_none();
    if missing {
        println!("skipped: qemu-system-x86_64 is not installed");
    }
    missing
}

fn pinfold(state: &str, arguments: &[&str]) -> pinfold_host::process::Output {
    let mut words = vec!["--state-dir", state];
    words.extend(arguments);
    capture(PINFOLD, words, 60 * SECOND_NS).expect("pinfold runs")
}

#[test]
fn apply_status_undo_on_a_running_machine() {
    if qemu_is_missing() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state").to_string_lossy().into_owned();
    let socket = folder.path().join("qmp").to_string_lossy().into_owned();
    let mut qemu = Spawn::new(QEMU[0])
        .args(&QEMU[1..])
        .args(["-S", "-name", "guest=t,debug-threads=on", "-qmp"])
        .args([format!("unix:{socket},server=on,wait=off")])
        .stdin(Stdio::Null)
        .die_with_parent(true)
        .start()
        .expect("QEMU starts");
    let host = LiveHost::new().expect("a host");
    let until = SystemClock.now_ns() + 20 * SECOND_NS;
    while !pinfold_host::user::exists(&socket) && SystemClock.now_ns() < until {
        SystemClock.sleep_ns(SECOND_NS / 50);
    }
    let masks = |host: &LiveHost| -> Vec<(String, String)> {
        let folder = pinfold_host::paths::task_dir(qemu.pid());
        let tids = host.list(&folder).expect("threads");
        tids.into_iter()
            .map(|tid| {
                let number = tid.parse().expect("a number");
                let mask = host.affinity(pinfold_model::Tid(number)).expect("a mask");
                (tid, mask.to_string())
            })
            .collect()
    };
    let place = ["apply", "--qmp", &socket, "--strategy", "compact"];
    // The socket is there before the threads are; QEMU answers when they are.
    let ready = pinfold(&state, &[&place[..], &["--dry-run"]].concat());
    assert!(ready.status.success(), "{}", ready.stderr_text());
    let before = masks(&host);
    let dry = pinfold(&state, &[&place[..], &["--dry-run"]].concat());
    assert!(dry.status.success(), "{}", dry.stderr_text());
    assert_eq!(masks(&host), before, "a dry run changes nothing");
    let applied = pinfold(&state, &place);
    assert!(applied.status.success(), "{}", applied.stderr_text());
    let second = pinfold(&state, &place);
    assert_eq!(second.status.code(), Some(3), "{}", second.stderr_text());
    assert!(second.stderr_text().contains("pinfold undo"), "{}", second.stderr_text());
    let status = pinfold(&state, &["status"]);
    assert!(status.status.success(), "{}{}", status.stdout_text(), status.stderr_text());
    assert!(status.stdout_text().contains("vcpu(0)"), "{}", status.stdout_text());
    let undone = pinfold(&state, &["undo"]);
    assert!(undone.status.success(), "{}", undone.stderr_text());
    assert_eq!(masks(&host), before, "everything is as it was");
    qemu.kill().expect("QEMU ends");
}

#[test]
fn a_qemu_that_does_not_start_shows_its_own_message() {
    if qemu_is_missing() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().to_string_lossy().into_owned();
    let words = ["run", "--strategy", "compact", "--", QEMU[0], "-no-such-option"];
    let output = pinfold(&state, &words);
    assert_eq!(output.status.code(), Some(4), "{}", output.stderr_text());
    assert!(output.stderr_text().contains("no-such-option"), "{}", output.stderr_text());
}
