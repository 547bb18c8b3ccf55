//! Two watchers: the second one is refused by name.

use crate::common::Sandbox;
use pinfold_host::files::StateDir;

#[test]
fn a_second_watch_is_refused_with_a_hint() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("state");
    let state = StateDir::open(&path).expect("a state");
    let held = state.lock("watch.lock").expect("a lock");
    assert!(held.is_some());
    let part = "another `pinfold watch` is running on this state directory";
    sandbox.refuse(&["watch"], 3, part);
    sandbox.refuse(&["watch"], 3, "stop it first");
}
