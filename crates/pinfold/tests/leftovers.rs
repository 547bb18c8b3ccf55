//! Temporary files of a process that was killed: `status` names them, `undo` removes them.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

mod common;

use common::until;
use pinfold_host::process::{Output, Signaled, Spawn, Stdio, capture};
use pinfold_host::{SystemClock, user};

const PINFOLD: &str = env!("CARGO_BIN_EXE_pinfold");
const MINUTE_NS: u64 = 60_000_000_000;

fn pinfold(state: &str, words: &[&str]) -> Output {
    capture(PINFOLD, [&["--state-dir", state], words].concat(), MINUTE_NS).expect("it runs")
}

#[test]
fn a_killed_tune_leaves_a_folder_that_status_names_and_undo_removes() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (state, store, page) = (file("state"), file("store"), file("page"));
    let mut tune = Spawn::new(PINFOLD)
        .args(["--state-dir", &state, "tune", "--demo", "--budget", "7m"])
        .args(["--strategies", "none,compact", "--store", &store, "--report", &page])
        .stdin(Stdio::Null)
        .stdout(Stdio::Null)
        .stderr(Stdio::Null)
        .own_group()
        .die_with_parent(true)
        .start()
        .expect("it starts");
    let prefix = format!("pinfold-{}-", tune.pid());
    let memory = || user::list("/dev/shm").unwrap_or_default();
    let scratch = || memory().into_iter().find(|name| name.starts_with(&prefix));
    let (mut name, mut ended) = (None, false);
    until(|| {
        name = scratch();
        ended = tune.try_wait().expect("its state").is_some();
        name.is_some() || ended
    });
    let Some(name) = name.filter(|_| !ended) else {
        return println!("skipped: tune cannot work here");
    };
    tune.signal(Signaled::Kill).expect("it runs");
    assert!(tune.wait_for(&SystemClock, MINUTE_NS).expect("its state").is_some());
    let path = format!("/dev/shm/{name}");
    assert!(user::is_dir(&path), "a killed process removes nothing");
    let status = pinfold(&state, &["status"]).stdout_text();
    assert!(status.contains(&path), "{status}");
    let json = pinfold(&state, &["status", "--json"]).stdout_text();
    assert!(json.contains("\"leftovers\":") && json.contains(&path), "{json}");
    let undone = pinfold(&state, &["undo"]);
    assert!(undone.status.success() && undone.stderr_text().contains(&path));
    assert!(scratch().is_none());
    assert!(!pinfold(&state, &["status"]).stdout_text().contains(&path));
}

/// The socket of a supervisor that was killed.
#[test]
fn a_socket_at_which_no_process_listens_is_removed_by_undo() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state").to_string_lossy().into_owned();
    assert!(pinfold(&state, &["status"]).status.success());
    let socket = format!("{state}/emulate.sock");
    // The listener goes, its name stays.
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("a socket"));
    let status = pinfold(&state, &["status"]).stdout_text();
    assert!(status.contains(&socket), "{status}");
    assert!(pinfold(&state, &["undo"]).status.success());
    assert!(!user::exists(&socket));
}
