//! `pinfold top` with a real machine: what it prints, records and shows again.

use crate::common::machine::{Machine, start_quietly};
use crate::common::{Checked as _, PINFOLD, Sandbox, TIMEOUT_NS, is_missing, run, until};
use pinfold_host::process::{self, Signaled, Spawn};
use pinfold_host::{SystemClock, files};
use serde_json::Value;

#[test]
fn a_machine_is_sampled_recorded_and_shown_again() {
    let Some(machine) = Machine::new("-smp 2") else { return };
    let found = machine.print_json(&["top", "--once", "--json"]);
    assert_eq!(found["format"], "pinfold-top/1");
    let machines = found["machines"].as_array().expect("machines");
    let own =
        machines.iter().find(|one| one["name"] == machine.name.as_str()).expect("it is there");
    let threads = own["threads"].as_array().expect("threads");
    for number in 0..2 {
        let tid = machine.thread(&format!("CPU {number}/")).expect("a vCPU").0;
        let thread = threads.iter().find(|thread| thread["tid"] == tid).expect("its thread");
        assert_eq!(thread["role"], format!("vcpu({number})"));
    }
    let text = machine.print(&["top", "--once"]);
    assert!(text.contains(&machine.name) && text.contains("this command: "), "{text}");

    let record = machine.path("record");
    let watching = machine.start(&["top", "--json", "--record", &record]);
    let lines = || files::read_text(&record).unwrap_or_default();
    assert!(until(|| lines().lines().count() >= 2), "{}", lines());
    process::signal(watching.pid(), Signaled::Interrupt).expect("a signal");
    let mut watching = watching;
    let ended = watching.wait_for(&SystemClock, TIMEOUT_NS).expect("it ends");
    assert!(ended.is_some_and(|status| status.success()));
    let shown = machine.run(&["top", "--replay", &record, "--json"]).expect_success();
    assert_eq!(shown.stdout_text(), lines());
    let first: Value = serde_json::from_str(lines().lines().next().expect("a line")).expect("JSON");
    assert!(!first["claims"].as_array().expect("the map of claims").is_empty());

    machine.refuse(&["top", "--once", "--record", &record], 2, "File exists");
    let cut = machine.write("cut", lines().trim_end());
    machine.refuse(&["top", "--replay", &cut], 2, "was cut off");
    machine.refuse(&["top", "--replay", &machine.path("none")], 2, "none");
}

/// Even if nothing sends it `SIGHUP`, as under `nohup`.
#[test]
fn a_terminal_that_is_closed_ends_it() {
    if is_missing(&["script"]) {
        return;
    }
    let sandbox = Sandbox::new();
    let [pids, shown, state] = ["pids", "shown", "state"].map(|name| sandbox.path(name));
    let command =
        format!("trap '' HUP; echo $$ $PPID >{pids}; exec {PINFOLD} --state-dir {state} top");
    let script = "sleep 60 | script -qfec \"$0\" \"$1\"";
    let _terminal = start_quietly(Spawn::new("sh").args(["-c", script, &command, &shown]));
    let text = || String::from_utf8_lossy(&files::read(&shown).unwrap_or_default()).into_owned();
    assert!(until(|| text().contains("\u{1b}[?1049h")), "{}", text());
    let pids = sandbox.read("pids");
    let (pid, terminal) = pids.trim().split_once(' ').expect("two numbers");
    run("kill", ["-KILL", terminal]);
    assert!(until(|| !files::exists(&format!("/proc/{pid}"))), "{pid} goes on");
}
