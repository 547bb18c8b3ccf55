//! `pinfold quiet`: what it plans, what it refuses, and a command that it runs without changing the
//! host.

use pinfold_host::process::is_root;

use crate::common::{Checked as _, Sandbox, pinfold};

#[test]
fn the_plan_of_jobs_has_the_profile_and_cores_of_their_own() {
    let sandbox = Sandbox::new();
    let state = sandbox.root();
    let base = ["--state-dir", &state, "quiet", "--ignore-claims", "--isolate", "none"];
    let one = pinfold([&base[..], &["--dry-run", "--", "true"]].concat());
    let text = one.stdout_text();
    let note = one.expect_code(0);
    assert!(text.contains("vnodes for true") && text.contains("profile latency"), "{text}{note}");
    // A tunable of the user has priority.
    let words = ["--tunable", "timer-migration=on", "--dry-run", "--", "true"];
    let text = pinfold([&base[..], &words].concat()).stdout_text();
    assert!(!text.contains("timer-migration=off"), "{text}");
}

#[test]
fn bad_input_is_refused_before_anything_changes() {
    let sandbox = Sandbox::new();
    let state = sandbox.root();
    check(&["--job", "ls"], 2, "--job: expected NAME: COMMAND, got \"ls\"", &state);
    check(&["--job", "a: true", "--job", "a: true"], 2, "--job: a is given twice", &state);
    check(&["--job", "a:"], 2, "no command was given", &state);
    check(&["--profile", "latensy", "--dry-run", "--", "true"], 2, "did you mean latency?", &state);
    check(&["--", "no-such-benchmark"], 127, "no-such-benchmark", &state);
}

fn check(words: &[&str], code: i32, said: &str, state: &str) {
    let words = [&["--state-dir", state, "quiet"], words].concat();
    let text = pinfold(words).expect_code(code);
    assert!(text.contains(said), "{text}");
}

#[test]
fn the_plan_of_a_killed_process_is_removed() {
    let sandbox = Sandbox::new();
    let state = sandbox.root();
    // No process has a number this large.
    let (left, own) = (sandbox.path("quiet-4194305.json"), sandbox.path("quiet-1.json"));
    for file in [&left, &own] {
        pinfold_host::files::write_atomic(file, b"{}").expect("a file");
    }
    let text = pinfold(["--state-dir", &state, "undo", "--all"]).expect_code(0);
    assert!(text.contains("quiet-4194305.json") && !text.contains("quiet-1.json"), "{text}");
    assert!(!pinfold_host::files::exists(&left) && pinfold_host::files::exists(&own));
}

#[test]
fn the_exit_code_is_that_of_the_command() {
    let sandbox = Sandbox::new();
    let state = sandbox.root();
    // No tunable: the rest of the profile would change the whole host.
    let words = ["--state-dir", &state, "quiet", "--ignore-claims", "--isolate", "none"];
    let words = [&words[..], &["--profile", "none", "--", "sh", "-c", "exit 7"]].concat();
    let text = pinfold(words).expect_code(7);
    assert!(text.contains("quiet: CPU") && text.contains("other tasks took the CPU"), "{text}");
    if is_root() {
        let is_observed = text.contains(" of at least 0.1 ms") && text.contains("migration");
        assert!(is_observed || text.contains("gaps cannot be observed"), "{text}");
    }
}
