//! `pinfold measure sched|counters|locks|exits` as they are typed, on threads of this very test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Checked as _, Sandbox, TIMEOUT_NS, assert_parts, skip};
use pinfold_host::process::{Output, own_pid};
use pinfold_host::{Clock as _, SystemClock};
use serde_json::Value;

fn run(words: &[&str]) -> Output {
    run_in(words, "")
}

/// In a terminal of so many columns.
fn run_in(words: &[&str], columns: &str) -> Output {
    let spawn = Sandbox::with_cache().spawn(words).env("COLUMNS", columns);
    spawn.capture(TIMEOUT_NS).expect("runs")
}

/// Looks at this test, one thread of which sleeps and wakes meanwhile.
fn looked(words: &[&str]) -> Output {
    looked_in(words, "")
}

fn looked_in(words: &[&str], columns: &str) -> Output {
    let over = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&over);
    let napper = std::thread::spawn(move || {
        while !end.load(Ordering::Relaxed) {
            SystemClock.sleep_ns(1_000_000);
        }
    });
    let pid = own_pid().to_string();
    let output = run_in(&[words, &["--process", &pid, "--seconds", "0.5"]].concat(), columns);
    over.store(true, Ordering::Relaxed);
    napper.join().expect("a thread that ends");
    output
}

/// The sample of the role `task` for this quantity.
fn sample(reported: &Value, quantity: &str) -> Option<f64> {
    let figures = reported["measurement"]["blocks"][0]["figures"].as_array().expect("figures");
    figures.iter().find(|one: &&Value| {
        one["labels"]["role"] == "task" && one["labels"]["quantity"] == quantity
    })?["samples"][0]
        .as_f64()
}

#[test]
fn waits_of_a_process() {
    let reported = looked(&["measure", "sched", "--json"]).expect_success().json();
    assert_eq!(reported["format"], "pinfold-observed/2");
    let level = reported["found"][0]["level"].as_str().expect("a level");
    let count = if level == "tracepoints" { "waits" } else { "slices" };
    assert!(sample(&reported, count).expect("a count") > 0.0, "{reported}");
    assert_eq!(sample(&reported, "max").is_some(), level == "tracepoints", "{reported}");
    assert_eq!(reported["found"][0]["why"].is_string(), level == "schedstat");
    let text = looked(&["measure", "sched"]).stdout_text();
    let first =
        if level == "tracepoints" { "all waits were recorded" } else { "only sums are available" };
    assert_parts(&text, &[first, "task"]);
}

#[test]
fn blocks_are_looked_at_one_by_one_and_compared() {
    let sandbox = Sandbox::new();
    let (one, other) = (sandbox.path("a.json"), sandbox.path("b.json"));
    let reported = looked(&["measure", "counters", "--blocks", "3", "--save", &one, "--json"])
        .expect_success()
        .json();
    assert_eq!(reported["found"].as_array().map(Vec::len), Some(3));
    assert_eq!(reported["measurement"]["blocks"].as_array().map(Vec::len), Some(3));
    let text = looked(&["measure", "counters", "--blocks", "2", "--save", &other]).stdout_text();
    assert!(text.contains("block 1 of 2") && text.contains("block 2 of 2"), "{text}");
    let compared = run(&["compare", &one, &other, "--json"]).expect_success().json();
    assert_eq!(compared["blocks"], 2, "{compared}");
    let remarks = compared["unmatched"].to_string();
    assert!(remarks.contains("only the first 2 of each are compared"), "{compared}");
}

#[test]
fn counters_of_a_process() {
    let reported = looked(&["measure", "counters", "--json"]).expect_success().json();
    assert!(sample(&reported, "context-switches").expect("switches") > 0.0, "{reported}");
    for one in reported["found"][0]["absent"].as_array().expect("a list") {
        let quantity = one["quantity"].as_str().expect("a name");
        assert!(sample(&reported, quantity).is_none(), "{quantity} is both");
        assert!(!one["because"].as_str().expect("a reason").is_empty());
    }
    let text = looked(&["measure", "counters"]).stdout_text();
    for one in reported["found"][0]["absent"].as_array().expect("a list") {
        let (name, why) = (one["quantity"].as_str(), one["because"].as_str());
        let head = format!("not available here, because {}: ", why.expect("a reason"));
        let names = text.lines().find_map(|line| line.strip_prefix(head.as_str()));
        let mut names = names.expect("a line with the reason").split(", ");
        assert!(names.any(|one| Some(one) == name), "{name:?}: {text}");
    }
}

#[test]
fn only_the_counters_that_were_asked_for_are_opened() {
    let words = ["measure", "counters", "--quantities", "migrations,context-switches", "--json"];
    let reported = looked(&words).expect_success().json();
    let figures = reported["measurement"]["blocks"][0]["figures"].as_array().expect("figures");
    let names: std::collections::BTreeSet<_> =
        figures.iter().filter_map(|one| one["labels"]["quantity"].as_str()).collect();
    assert_eq!(Vec::from_iter(names), ["context-switches", "migrations"], "{reported}");
    assert!(reported["found"][0]["absent"].as_array().expect("a list").is_empty(), "{reported}");
}

#[test]
fn locks_of_a_process() {
    let output = looked(&["measure", "locks", "--sites"]);
    if output.status.code() == Some(3) {
        return skip(output.stderr_text());
    }
    let text = output.stdout_text();
    assert!(output.status.success(), "{}", output.stderr_text());
    assert!(text.contains("call sites"), "{text}");
}

#[test]
fn eighty_columns_are_enough() {
    for words in [&["sched"][..], &["counters"], &["locks", "--sites"]] {
        let output = looked_in(&[&["measure"], words].concat(), "80");
        if output.status.code() == Some(3) && words[0] == "locks" {
            skip(output.stderr_text());
            continue;
        }
        let text = output.stdout_text();
        assert!(output.status.success(), "{}", output.stderr_text());
        // The name of a function that is longer has nowhere to fold.
        assert!(
            !text.is_empty()
                && text
                    .lines()
                    .all(|line: &str| line.chars().count() <= 80 || !line.trim().contains(' ')),
            "{words:?}:\n{text}"
        );
    }
}

#[test]
fn what_has_no_meaning_is_refused() {
    let (home, pid) = (Sandbox::with_cache(), own_pid().to_string());
    home.refuse_silently(&["measure", "sched"], 2, "no virtual machine was given");
    let words = ["measure", "sched", "--process", &pid, "--cpus", "0"];
    home.refuse_silently(&words, 2, "--cpus has no effect on sched");
    home.refuse_silently(
        &["measure", "locks", "--process", "4194303"],
        2,
        "there is no such process",
    );
    let words = ["measure", "sched", "--process", &pid, "--seconds", "0"];
    home.refuse_silently(&words, 2, "--seconds 0: out of range");
    home.refuse_silently(
        &["measure", "wakeup", "--process", &pid],
        2,
        "wakeup cannot observe threads",
    );
    home.refuse_silently(
        &["measure", "wakeup", "--look", "1s"],
        2,
        "wakeup cannot observe threads",
    );
    let words = ["measure", "sched", "--process", &pid, "--per-vcpu"];
    home.refuse_silently(&words, 2, "--per-vcpu has no effect on sched");
    let words = ["measure", "counters", "--process", &pid, "--sites"];
    home.refuse_silently(&words, 2, "--sites has no effect on counters");
    home.refuse_silently(
        &["measure", "exits", "--process", &pid],
        2,
        "only virtual machines have exits",
    );
    home.refuse_silently(&["measure", "exits"], 2, "no virtual machine was given");
    home.refuse_silently(&["measure", "exits", "--pid", &pid], 4, "not QEMU");
    home.refuse_silently(&["measure", "exit"], 2, "did you mean exits?");
    home.refuse_silently(&["measure", "shed"], 2, "did you mean sched?");
}
