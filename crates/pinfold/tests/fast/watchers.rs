//! Two watchers: the second one is refused by name.

use crate::common::{Checked as _, MINUTE_NS, PINFOLD, Sandbox};
use pinfold_host::files::StateDir;
use pinfold_host::process::capture;

#[test]
fn a_second_watch_is_refused_with_a_hint() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("state");
    let state = StateDir::open(&path).expect("a state");
    let held = state.lock("watch.lock").expect("a lock");
    assert!(held.is_some());
    let second = capture(PINFOLD, ["--state-dir", &path, "watch"], MINUTE_NS).expect("it runs");
    second.expect_code(3);
    for part in ["another `pinfold watch` is running on this state directory", "stop it first"] {
        assert!(second.stderr_text().contains(part), "{part}: {}", second.stderr_text());
    }
}
