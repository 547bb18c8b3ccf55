//! `undo`, `status` and `watch` from other namespaces, and where the cgroups are hidden: no thread
//! that runs is called gone, and no journal is closed before its masks are back. From another
//! state folder no virtual machine is placed a second time.

use std::collections::BTreeMap;

use crate::common::machine::Machine;
use crate::common::{Checked as _, PINFOLD, assert_parts, is_missing, run, skip, until};
use pinfold_host::files;
use pinfold_host::process::{Output, is_root};
use pinfold_model::{CpuSet, Tid};

/// Runs Pinfold with a state directory, behind a command that leads to another view of the host.
fn run_from(machine: &Machine, state: &str, from: &[&str], words: &[&str]) -> Output {
    run("env", [from, &[PINFOLD, "--state-dir", &machine.path(state)], words].concat())
}

/// Commands that run another one where it sees other numbers, times or files.
const VIEWS: [(&str, &[&str]); 6] = [
    (
        "no cgroupfs",
        &["unshare", "-m", "sh", "-c", "mount -t tmpfs t /sys/fs/cgroup && \"$@\"", "-"],
    ),
    ("no sysfs", &["unshare", "-m", "sh", "-c", "mount -t tmpfs t /sys && \"$@\"", "-"]),
    ("PID namespace", &["unshare", "-fp"]),
    ("PID namespace with its /proc", &["unshare", "-fp", "--mount-proc"]),
    ("time namespace", &["unshare", "-T", "--boottime", "100000"]),
    ("cgroup namespace", &["unshare", "-C"]),
];

/// A machine that `compact` has placed, and its masks before.
fn placed_machine() -> Option<(Machine, BTreeMap<Tid, CpuSet>)> {
    if !is_root() {
        skip("only root makes namespaces");
        return None;
    }
    if is_missing(&["unshare"]) {
        return None;
    }
    let machine = Machine::new("-smp 2")?;
    let before = machine.masks();
    machine.print(&["apply", "--qmp", &machine.qmp(), "--strategy", "compact"]);
    Some((machine, before))
}

#[test]
fn no_view_of_the_host_makes_undo_call_a_running_thread_gone() {
    let Some((scene, before)) = placed_machine() else { return };
    let placed = scene.masks();
    assert_ne!(scene.changed(&before), BTreeMap::new(), "compact places each vCPU on one CPU");
    for (name, view) in VIEWS {
        if !run("env", [view, &["true"]].concat()).status.success() {
            skip(format!("{name} cannot be made here"));
            continue;
        }
        for words in [&["undo", "--all"][..], &["undo"], &["status"], &["watch"]] {
            if name.starts_with("no ") && words[0] == "watch" {
                // It sees all that it watches: masks need no cgroup.
                continue;
            }
            let output = run_from(&scene, "state", view, words);
            let said = output.stderr_text();
            let wanted: &[i32] = if words[0] == "undo" { &[5] } else { &[3] };
            let is_harmless = name.starts_with("no ") && words[0] == "status";
            let code = output.status.code().expect("a code");
            assert!(wanted.contains(&code) || is_harmless, "{name}: {words:?}: {code}: {said}");
            assert!(!said.contains("gone"), "{name}: {words:?}: {said}");
            let reason = name.split(' ').next().unwrap_or(name);
            assert!(name.starts_with("no ") || said.contains(reason), "{name}: {said}");
            assert_eq!(scene.changed(&placed), BTreeMap::new(), "{name}: {words:?}");
        }
    }
    let undone = scene.run(&["undo"]).expect_success();
    assert_eq!(scene.changed(&before), BTreeMap::new(), "{}", undone.stderr_text());
}

/// Two folders that know nothing of each other: whatever the order of the undos, the host is as
/// before.
#[test]
fn a_machine_is_not_placed_twice_from_two_state_folders() {
    let Some(scene) = Machine::new("-smp 2") else { return };
    let before = scene.masks();
    let qmp = scene.qmp();
    let apply = |state, strategy| {
        run_from(&scene, state, &[], &["apply", "--qmp", &qmp, "--strategy", strategy])
    };
    for order in [["a", "b"], ["b", "a"]] {
        apply("a", "compact").expect_success();
        let placed = scene.masks();
        let said = apply("b", "none").expect_code(3);
        let hint = format!("--state-dir {} undo", scene.path("a"));
        assert!(said.contains("another state directory") && said.contains(&hint), "{said}");
        assert_eq!(scene.changed(&placed), BTreeMap::new(), "a refused apply changes nothing");
        let pid = scene.qemu.pid().to_string();
        let reset = run_from(&scene, "b", &[], &["undo", "--reset", &pid]);
        reset.expect_code(3);
        assert_eq!(scene.changed(&placed), BTreeMap::new(), "a refused reset changes nothing");
        for state in order {
            let undone = run_from(&scene, state, &[], &["undo", "--all"]);
            assert!(undone.status.success(), "{state}: {}", undone.stderr_text());
        }
        assert_eq!(scene.changed(&before), BTreeMap::new(), "undone in the order {order:?}");
    }
    // The other folder is free again.
    assert!(apply("b", "compact").status.success());
    a_removed_folder_still_holds_the_machine(&scene, &before);
    apply("a", "compact").expect_success();
    assert!(run_from(&scene, "a", &[], &["undo", "--all"]).status.success());
}

/// The state folder `b`, with an active placement, is removed.
fn a_removed_folder_still_holds_the_machine(scene: &Machine, before: &BTreeMap<Tid, CpuSet>) {
    let qmp = scene.qmp();
    // The process that waits for the end of the machine may write its own file there meanwhile.
    assert!(until(|| files::remove_tree(&scene.path("b")).is_ok()), "it is not removed");
    let refused = run_from(scene, "a", &[], &["apply", "--qmp", &qmp, "-s", "none"]);
    let said = refused.stderr_text();
    let pid = scene.qemu.pid().to_string();
    assert_eq!(refused.status.code(), Some(3), "{said}");
    assert!(said.contains("is missing: ") && said.contains("undo --reset"), "{said}");
    assert_parts(&run_from(scene, "b", &[], &["status"]).expect_code(3), &["is missing: "]);
    let said = run_from(scene, "b", &[], &["undo", "--all"]).expect_code(5);
    let missing = format!(
        "process {pid} already has a placement, and the journal of that placement is missing"
    );
    assert!(said.contains(&missing) && said.contains(&format!("undo --reset {pid}")), "{said}");
    let reset = run_from(scene, "b", &[], &["undo", "--reset", &pid]).expect_success();
    assert_eq!(scene.changed(before), BTreeMap::new(), "{}", reset.stderr_text());
    run_from(scene, "b", &[], &["undo"]).expect_success();
}

/// Where the journal is hidden, or start times have another origin, the mark still holds.
#[test]
fn a_machine_is_not_placed_twice_from_another_mount_or_time_namespace() {
    let Some((scene, before)) = placed_machine() else { return };
    let placed = scene.masks();
    let qmp = scene.qmp();
    let (no_journal, no_run) = (hide(&scene.path("state")), hide("/run"));
    let views: [&[&str]; 3] = [
        &["unshare", "-m", "sh", "-c", &no_journal, "-"],
        &["unshare", "-m", "sh", "-c", &no_run, "-"],
        &["unshare", "-T", "--boottime", "100000", "-f"],
    ];
    for view in views {
        let second =
            run_from(&scene, "other", view, &["apply", "--qmp", &qmp, "--strategy", "none"]);
        let said = second.stderr_text();
        assert_eq!(second.status.code(), Some(3), "{view:?}: {said}");
        assert!(said.contains("already has a placement"), "{view:?}: {said}");
        assert_eq!(scene.changed(&placed), BTreeMap::new(), "{view:?}: nothing is changed");
    }
    let undone = scene.run(&["undo"]).expect_success();
    assert_eq!(scene.changed(&before), BTreeMap::new(), "{}", undone.stderr_text());
}

fn hide(path: &str) -> String {
    format!("mount -t tmpfs t {path} && \"$@\"")
}
