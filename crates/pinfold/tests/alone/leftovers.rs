//! Temporary files of a process that was killed: `status` names them, `undo` removes them.

use crate::common::{MINUTE_NS, Sandbox, skip, take_turn, until};
use pinfold_host::process::{Signaled, Stdio};
use pinfold_host::{SystemClock, files};

/// One after the other: each `undo` removes what it finds. So does every other Pinfold of this
/// user, which may come first.
#[test]
fn what_killed_processes_leave_is_named_by_status_and_removed_by_undo() {
    let _turn = take_turn();
    a_folder_in_memory();
    a_socket_at_which_no_process_listens();
}

/// The folder of a `tune` that was killed.
fn a_folder_in_memory() {
    let sandbox = Sandbox::new();
    let (store, page) = (sandbox.path("store"), sandbox.path("page"));
    let words = ["tune", "--demo", "--budget", "7m", "--strategies", "none,compact"];
    let tune = sandbox.spawn(&[&words[..], &["--store", &store, "--report", &page]].concat());
    let tune = tune.stdout(Stdio::Null).stderr(Stdio::Null).own_group().die_with_parent(true);
    let mut tune = tune.start().expect("it starts");
    let prefix = format!("pinfold-{}-", tune.pid());
    let scratch = || {
        files::list("/dev/shm")
            .unwrap_or_default()
            .into_iter()
            .find(|name| name.starts_with(&prefix))
    };
    let (mut name, mut ended) = (None, false);
    until(|| {
        name = scratch();
        ended = tune.try_wait().expect("its state").is_some();
        name.is_some() || ended
    });
    let Some(name) = name.filter(|_| !ended) else {
        return skip("tune cannot work here");
    };
    tune.signal(Signaled::Kill).expect("it runs");
    assert!(tune.wait_for(&SystemClock, MINUTE_NS).expect("its state").is_some());
    let path = format!("/dev/shm/{name}");
    let status = sandbox.run(&["status"]).stdout_text();
    assert!(status.contains(&path) || scratch().is_none(), "{status}");
    let json = sandbox.run(&["status", "--json"]).stdout_text();
    assert!(json.contains("\"leftovers\":"), "{json}");
    assert!(json.contains(&path) || scratch().is_none(), "{json}");
    sandbox.print(&["undo"]);
    assert!(scratch().is_none());
    assert!(!sandbox.run(&["status"]).stdout_text().contains(&path));
}

/// The socket of a supervisor that was killed, and that of a `run --cores`.
fn a_socket_at_which_no_process_listens() {
    let sandbox = Sandbox::new();
    let state = sandbox.path("state");
    // A directory as the supervisor makes it.
    drop(pinfold_host::files::StateDir::open(&state).expect("a directory"));
    let path = |name: &str| format!("{state}/{name}");
    let sockets = ["emulate.sock", "run-4194999.sock", "run-4194997-1.sock"].map(path);
    for socket in &sockets {
        // The listener goes, its name stays.
        drop(std::os::unix::net::UnixListener::bind(socket).expect("a socket"));
    }
    let held = path("run-4194998.sock");
    let listener = std::os::unix::net::UnixListener::bind(&held).expect("a socket");
    let status = sandbox.run(&["status"]).stdout_text();
    assert!(sockets.iter().all(|socket| status.contains(socket)), "{status}");
    assert!(!status.contains(&held), "{status}");
    sandbox.print(&["undo"]);
    assert!(!sockets.iter().any(|socket| files::exists(socket)));
    assert!(files::exists(&held), "a process listens there");
    drop(listener);
}
