//! `pinfold quiet`: what it plans, what it refuses, and a command that it runs without changing the
//! host.

use pinfold_host::process::is_root;
use pinfold_host::{Host as _, LiveHost};
use pinfold_model::{CpuSet, Tid};

use crate::common::{Checked as _, Sandbox, pinfold, skip};

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
    check(&["--job", "a: sh -c 'true"], 2, "a quote is not closed", &state);
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

/// The command reads its own mask, then that of each thread of the process that runs it.
#[test]
fn no_thread_of_pinfold_is_on_the_cpus_of_the_command() {
    let own = LiveHost::new().expect("this host").affinity(Tid(0)).expect("a mask");
    if own.len() < 2 {
        return skip("this process may use only one CPU");
    }
    let sandbox = Sandbox::new();
    let state = sandbox.root();
    let words = ["--state-dir", &state, "quiet", "--ignore-claims", "--isolate", "none"];
    let script =
        "sed -n 's/^Cpus_allowed_list:[^0-9]*//p' /proc/self/status /proc/$PPID/task/*/status";
    let output = pinfold([&words[..], &["--profile", "none", "--", "sh", "-c", script]].concat());
    let masks = output.stdout_text();
    output.expect_code(0);
    let masks: Vec<CpuSet> =
        masks.lines().map(|list| CpuSet::parse_list(list).expect("a list")).collect();
    let [command, threads @ ..] = masks.as_slice() else { panic!("no mask") };
    assert_eq!(command.len(), 1, "a core of its own: {command}");
    assert!(threads.len() > 1, "the one that waits and the observer: {threads:?}");
    for mask in threads {
        assert!(mask.is_disjoint(command) && !mask.is_empty(), "{mask} and {command}");
    }
}

#[test]
fn if_a_job_fails_the_others_are_terminated() {
    let sandbox = Sandbox::new();
    let state = sandbox.root();
    let words = ["--state-dir", &state, "quiet", "--ignore-claims", "--isolate", "none"];
    let jobs = ["--job", "bad: sh -c 'exit 7'", "--job", "endless: tail -f /dev/null"];
    let text = pinfold([&words[..], &["--profile", "none"], &jobs].concat()).expect_code(7);
    for name in ["bad", "endless"] {
        assert!(text.contains(&format!("quiet: {name}: CPU ")), "{text}");
    }
    let left = pinfold_host::files::list(&state).expect("the state directory");
    let left: Vec<&String> = left.iter().filter(|name| name.contains('.')).collect();
    assert!(left.is_empty(), "plans and sockets: {left:?}");
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
