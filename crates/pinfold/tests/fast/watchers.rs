//! Two watchers: the second one is refused by name.

use pinfold_host::files::StateDir;
use pinfold_host::process::capture;

const PINFOLD: &str = env!("CARGO_BIN_EXE_pinfold");
const MINUTE_NS: u64 = 60_000_000_000;

#[test]
fn a_second_watch_is_refused_with_a_hint() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state").to_string_lossy().into_owned();
    let state = StateDir::open(&path).expect("a state");
    let held = state.lock("watch.lock").expect("a lock");
    assert!(held.is_some());
    let second = capture(PINFOLD, ["--state-dir", &path, "watch"], MINUTE_NS).expect("it runs");
    assert_eq!(second.status.code(), Some(3), "{}", second.stderr_text());
    for part in ["another `pinfold watch` is running on this state directory", "stop it first"] {
        assert!(second.stderr_text().contains(part), "{part}: {}", second.stderr_text());
    }
}
