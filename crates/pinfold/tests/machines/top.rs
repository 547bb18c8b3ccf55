//! `pinfold top` with a real machine: what it prints, records and shows again.

use crate::common::machine::{Machine, start_quietly};
use crate::common::{
    Checked as _, PINFOLD, Sandbox, TIMEOUT_NS, is_missing, run, until, until_rarely,
};
use pinfold_host::process::{self, Signaled, Spawn};
use pinfold_host::{Host as _, HostMut as _, SystemClock, files};
use pinfold_model::{CpuSet, Policy, Tid};
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

#[test]
fn a_starved_thread_is_shown_with_the_task_that_starves_it() {
    if !process::is_root() {
        return println!("skipped: BPF and real-time policies need root");
    }
    let sandbox = Sandbox::new();
    // The vCPU jumps to itself at its first instruction, and so always wants its CPU.
    let bios = sandbox.write("bios", [0xeb, 0xfe].repeat(1 << 15));
    let options = format!("-M q35 -accel tcg,thread=multi -bios {bios}");
    let Some(machine) = Machine::start_in(sandbox, &options) else { return };
    let vcpu = machine.thread("CPU 0/").expect("a vCPU");
    let cpu: CpuSet = machine.host.affinity(Tid(0)).expect("a mask").iter().take(1).collect();
    machine.host.set_affinity(vcpu, &cpu).expect("it is pinned");
    let hog = Spawn::new("sh").args(["-c", "while :; do :; done"]).die_with_parent(true);
    let hog = hog.affinity(cpu).policy(Some(Policy::Fifo { priority: 1 })).start();
    let hog = hog.expect("a task of a real-time policy");
    let expected = format!("sh ({})", hog.pid());
    let mut last = Value::Null;
    let found = until_rarely(|| {
        last = machine.print_json(&["top", "--once", "--json"]);
        let all = last["machines"].as_array().into_iter().flatten();
        let threads = all.flat_map(|one| one["threads"].as_array().into_iter().flatten());
        let mut found = threads.filter(|thread| thread["tid"] == vcpu.0);
        last["method"] == "proc" || found.any(|thread| thread["because_of"] == expected.as_str())
    });
    if last["method"] == "proc" {
        return println!("skipped: {}", last["notes"]);
    }
    assert!(found, "{expected}: {last}");
}

#[test]
fn without_rights_it_reads_proc_and_says_so() {
    if is_missing(&["setpriv"]) || !process::is_root() {
        return;
    }
    let Some(machine) = Machine::new("-smp 1") else { return };
    let bounds = "--bounding-set=-bpf,-perfmon,-sys_admin";
    let words = ["--no-new-privs", bounds, PINFOLD, "top", "--once", "--json"];
    let found = run("setpriv", words).expect_success().json();
    assert_eq!((&found["method"], &found["kernel_share"]), (&Value::from("proc"), &Value::Null));
    let notes = found["notes"].to_string();
    assert!(
        notes.contains("causes are guessed") && notes.contains("BPF (root and BTF)"),
        "{notes}"
    );
    assert!(found["machines"].to_string().contains(&machine.name), "{found}");
}
