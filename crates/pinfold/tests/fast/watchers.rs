//! Watchers that are refused: a second one by name, and one whose file of domains has a fault.

use crate::common::{Checked as _, Sandbox, run, until};
use pinfold_host::files::{self, StateDir};
use pinfold_host::process::Signaled;

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

#[test]
fn the_file_of_domains_is_checked_at_the_start_and_after_each_change() {
    const GOOD: &str = "[[domain]]\nname = \"no-such\"\n";
    let sandbox = Sandbox::new();
    let file = sandbox.path("domains.toml");
    let watch = ["watch", "--domains", &file];
    sandbox.refuse(&watch, 2, &format!("{file} does not exist"));
    for (more, part) in [
        ("strategy = \"blanced\"", "line 3, column 12: strategy: \"blanced\" is not a strategy"),
        ("[[domain]]\nname = \"no-such\"", "\"no-such\" has 2 rows: lines 1, 3"),
        ("[domains]", "domains.toml: line 3"),
    ] {
        sandbox.write("domains.toml", format!("{GOOD}{more}\n"));
        sandbox.refuse(&watch, 2, part);
    }
    sandbox.write("domains.toml", GOOD);
    run("chmod", ["0666", &file]).expect_success();
    sandbox.refuse(&watch, 2, "domains.toml: can be written by others");
    run("chmod", ["0644", &file]).expect_success();
    let mut child = sandbox.start_logged(&watch);
    let said = || files::read_text(&sandbox.path("said")).unwrap_or_default();
    let says = |part: &str| assert!(until(|| said().contains(part)), "{part}: {}", said());
    says("watching 0 placements");
    sandbox.write("domains.toml", format!("{GOOD}avoid = \"x\"\n"));
    says("line 3, column 9: avoid: \"x\"");
    let stay = "the rows that were read before stay in use";
    says(stay);
    child.signal(Signaled::HangUp).expect("it is asked to read again");
    assert!(until(|| said().matches(stay).count() == 2), "{}", said());
    sandbox.write("domains.toml", format!("{GOOD}[[domain]]\nname = \"neither\"\n"));
    says("domains.toml was read again: 2 rows");
    files::remove(&file).expect("it is removed");
    says("does not exist; the rows");
    child.kill().expect("it ends");
}
