//! A placement whose plan is replaced while its state directory is full: the earlier plan stays, or
//! the new one is applied whole.

use std::collections::BTreeMap;

use crate::common::machine::{Machine, start_quietly};
use crate::common::{Checked as _, assert_parts, is_missing, run, skip, until};
use pinfold_host::files;
use pinfold_host::process::{Child, Output, Spawn, is_root};

/// A machine whose state directory is a file system of 1 MiB, in a mount namespace of its own.
struct SmallDisk {
    machine: Machine,
    /// Keeps the namespace.
    holder: Child,
}

impl SmallDisk {
    fn new() -> Option<Self> {
        if !is_root() {
            skip("only root can mount a small file system");
            return None;
        }
        if is_missing(&["unshare", "nsenter"]) {
            return None;
        }
        if !run("unshare", ["-m", "mount", "-t", "tmpfs", "none", "/mnt"]).status.success() {
            skip("no file system can be mounted here");
            return None;
        }
        let machine = Machine::new("-smp 2")?;
        let state = machine.path("state");
        let script = format!(
            "mkdir {state} && mount -t tmpfs -o size=1m,mode=700 none {state} && \
             touch {state}/mounted && exec sleep 600"
        );
        let holder = start_quietly(Spawn::new("unshare").args(["-m", "sh", "-c", &script]));
        let mounted = format!("/proc/{}/root{state}/mounted", holder.pid());
        assert!(until(|| files::exists(&mounted)), "the file system is mounted");
        Some(Self { machine, holder })
    }

    fn run(&self, words: &[&str]) -> Output {
        let pid = self.holder.pid().to_string();
        self.machine.run_by(&["nsenter", "-m", "-t", &pid], words)
    }

    /// Leaves so many free pages in the file system.
    fn fill(&self, free: u32) {
        let (pid, state) = (self.holder.pid().to_string(), self.machine.path("state"));
        let script = format!(
            "dd if=/dev/zero of={state}/ballast bs=4k 2>/dev/null; \
             truncate -s -{} {state}/ballast",
            free * 4096
        );
        let filled = run("nsenter", ["-m", "-t", &pid, "sh", "-c", &script]);
        filled.expect_success();
    }
}

#[test]
fn a_plan_is_replaced_whole_or_stays_if_the_state_directory_is_full() {
    let Some(scene) = SmallDisk::new() else { return };
    let machine = &scene.machine;
    let before = machine.masks();
    if !before.values().any(|mask| mask.len() > 1) {
        return skip("two plans need two CPUs");
    }
    let qmp = machine.qmp();
    let first = ["apply", "--qmp", &qmp, "--strategy", "compact"];
    let second = [&first[..], &["--pin", "vcpu=0", "--pin", "emulator=0"]].concat();
    scene.run(&first).expect_success();
    let placed = machine.masks();
    let mut count = 0;
    for free in [0, 1, 2, 3, 4, 8, 16, 32, 64, 128] {
        scene.fill(free);
        let output = scene.run(&second);
        if output.status.success() {
            break;
        }
        count += 1;
        let said = output.expect_code(3);
        let journal = format!("{}/journal/{}", machine.path("state"), machine.pid());
        assert_parts(&said, &[&journal, "space", "the earlier placement is active"]);
        assert_eq!(machine.changed(&placed), BTreeMap::new(), "{free} free pages: {said}");
        let status = scene.run(&["status"]).stdout_text();
        assert_parts(&status, &["1 placement is active, as planned"]);
    }
    assert!(count > 0, "the first plan is replaced on a full disk");
    assert_ne!(machine.changed(&placed), BTreeMap::new(), "the second plan is active");
    scene.fill(0);
    scene.run(&["undo"]).expect_success();
    assert_eq!(machine.changed(&before), BTreeMap::new());
}
