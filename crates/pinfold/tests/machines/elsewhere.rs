//! `undo`, `status` and `watch` from other namespaces, and where the cgroups are hidden: no thread
//! that runs is called gone, and no journal is closed before its masks are back. From another
//! state folder no virtual machine is placed a second time.

use std::collections::BTreeMap;

use crate::common::until;
use pinfold_host::process::{Child, Output, Spawn, capture, find_program, is_root};
use pinfold_host::{Host as _, LiveHost, files, paths};
use pinfold_model::{CpuSet, Tid};

const PINFOLD: &str = env!("CARGO_BIN_EXE_pinfold");
const MINUTE_NS: u64 = 60_000_000_000;

struct TestMachine {
    folder: tempfile::TempDir,
    host: LiveHost,
    qemu: Child,
}

impl TestMachine {
    /// A stopped QEMU with threads to place; or why there is none.
    fn new() -> Result<Self, String> {
        find_program("qemu-system-x86_64").ok_or("qemu-system-x86_64 is not installed")?;
        let folder = tempfile::tempdir().expect("a folder");
        let line = "-S -M q35 -accel tcg,thread=multi -display none -nodefaults -m 64M -smp 2 -name guest=t,debug-threads=on -qmp";
        let socket = format!("unix:{}/qmp,server=on,wait=off", folder.path().display());
        let words = line.split(' ').chain([socket.as_str()]);
        let qemu = crate::common::machine::start_qemu(Spawn::new("qemu-system-x86_64").args(words));
        let scene = Self { folder, host: LiveHost::new().expect("a host"), qemu };
        assert!(until(|| scene.masks().len() > 2), "QEMU makes its vCPUs");
        Ok(scene)
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    fn masks(&self) -> BTreeMap<Tid, CpuSet> {
        let tids = self.host.list(&paths::task_dir(self.qemu.pid())).expect("threads");
        let tids = tids.iter().filter_map(|tid| tid.parse().ok().map(Tid));
        tids.filter_map(|tid| Some((tid, self.host.affinity(tid).ok()?))).collect()
    }

    /// The masks that are not as in `before`. QEMU makes and ends worker threads as it likes: a new
    /// one has to have a mask that a thread had before. The main thread is always among them.
    fn changed(&self, before: &BTreeMap<Tid, CpuSet>) -> BTreeMap<Tid, CpuSet> {
        let mut now = self.masks();
        assert!(now.contains_key(&self.qemu.pid()), "{now:?}");
        now.retain(|tid, mask| match before.get(tid) {
            Some(known) => known != mask,
            None => !before.values().any(|known| known == mask),
        });
        now
    }

    /// Runs it behind a command that leads to another view of the host.
    fn pinfold(&self, from: &[&str], words: &[&str]) -> Output {
        self.pinfold_with("state", from, words)
    }

    /// The same with another state folder.
    fn pinfold_with(&self, state: &str, from: &[&str], words: &[&str]) -> Output {
        let state = self.file(state);
        let words = [&["env"], from, &[PINFOLD, "--state-dir", &state], words].concat();
        capture(words[0], &words[1..], MINUTE_NS).expect("it runs")
    }
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
fn placed_machine() -> Result<(TestMachine, BTreeMap<Tid, CpuSet>), String> {
    if find_program("unshare").is_none() || !is_root() {
        return Err("only root makes namespaces, with unshare".to_owned());
    }
    let scene = TestMachine::new()?;
    let before = scene.masks();
    let words = ["apply", "--qmp", &scene.file("qmp"), "--strategy", "compact"];
    let applied = scene.pinfold(&[], &words);
    assert!(applied.status.success(), "{}", applied.stderr_text());
    Ok((scene, before))
}

#[test]
fn no_view_of_the_host_makes_undo_call_a_running_thread_gone() {
    let (scene, before) = match placed_machine() {
        Ok(placed) => placed,
        Err(why) => return println!("skipped: {why}"),
    };
    let placed = scene.masks();
    assert_ne!(scene.changed(&before), BTreeMap::new(), "compact places each vCPU on one CPU");
    for (name, view) in VIEWS {
        if !capture(view[0], [&view[1..], &["true"]].concat(), MINUTE_NS)
            .is_ok_and(|output| output.status.success())
        {
            println!("skipped: {name} cannot be made here");
            continue;
        }
        for words in [&["undo", "--all"][..], &["undo"], &["status"], &["watch"]] {
            if name.starts_with("no ") && words[0] == "watch" {
                // It sees all that it watches: masks need no cgroup.
                continue;
            }
            let output = scene.pinfold(view, words);
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
    let undone = scene.pinfold(&[], &["undo"]);
    assert!(undone.status.success(), "{}", undone.stderr_text());
    assert_eq!(scene.changed(&before), BTreeMap::new(), "{}", undone.stderr_text());
}

/// Two folders that know nothing of each other: whatever the order of the undos, the host is as
/// before.
#[test]
fn a_machine_is_not_placed_twice_from_two_state_folders() {
    let scene = match TestMachine::new() {
        Ok(scene) => scene,
        Err(why) => return println!("skipped: {why}"),
    };
    let before = scene.masks();
    let qmp = scene.file("qmp");
    let apply = |state, strategy| {
        scene.pinfold_with(state, &[], &["apply", "--qmp", &qmp, "--strategy", strategy])
    };
    let undo = |state| scene.pinfold_with(state, &[], &["undo", "--all"]);
    for order in [["a", "b"], ["b", "a"]] {
        let first = apply("a", "compact");
        assert!(first.status.success(), "{}", first.stderr_text());
        let placed = scene.masks();
        let second = apply("b", "none");
        let said = second.stderr_text();
        assert_eq!(second.status.code(), Some(3), "{said}");
        let hint = format!("--state-dir {} undo", scene.file("a"));
        assert!(said.contains("another state directory") && said.contains(&hint), "{said}");
        assert_eq!(scene.changed(&placed), BTreeMap::new(), "a refused apply changes nothing");
        let pid = scene.qemu.pid().to_string();
        let reset = scene.pinfold_with("b", &[], &["undo", "--reset", &pid]);
        assert_eq!(reset.status.code(), Some(3), "{}", reset.stderr_text());
        assert_eq!(scene.changed(&placed), BTreeMap::new(), "a refused reset changes nothing");
        for state in order {
            let undone = undo(state);
            assert!(undone.status.success(), "{state}: {}", undone.stderr_text());
        }
        assert_eq!(scene.changed(&before), BTreeMap::new(), "undone in the order {order:?}");
    }
    // The other folder is free again.
    assert!(apply("b", "compact").status.success());
    a_removed_folder_still_holds_the_machine(&scene, &before);
    let third = apply("a", "compact");
    assert!(third.status.success(), "{}", third.stderr_text());
    assert!(undo("a").status.success());
}

/// The state folder `b`, with an active placement, is removed.
fn a_removed_folder_still_holds_the_machine(scene: &TestMachine, before: &BTreeMap<Tid, CpuSet>) {
    let qmp = scene.file("qmp");
    // The process that waits for the end of the machine may write its own file there meanwhile.
    assert!(until(|| files::remove_tree(&scene.file("b")).is_ok()), "it is not removed");
    let refused = scene.pinfold_with("a", &[], &["apply", "--qmp", &qmp, "-s", "none"]);
    let said = refused.stderr_text();
    let pid = scene.qemu.pid().to_string();
    assert_eq!(refused.status.code(), Some(3), "{said}");
    assert!(said.contains("is missing: ") && said.contains("undo --reset"), "{said}");
    let status = scene.pinfold_with("b", &[], &["status"]);
    assert_eq!(status.status.code(), Some(3), "{}", status.stderr_text());
    assert!(status.stderr_text().contains("is missing: "), "{}", status.stderr_text());
    let undone = scene.pinfold_with("b", &[], &["undo", "--all"]);
    let said = undone.stderr_text();
    assert_eq!(undone.status.code(), Some(5), "{said}");
    let missing =
        format!("process {pid} is placed already, and the journal of that placement is missing");
    assert!(said.contains(&missing) && said.contains(&format!("undo --reset {pid}")), "{said}");
    let reset = scene.pinfold_with("b", &[], &["undo", "--reset", &pid]);
    assert!(reset.status.success(), "{}", reset.stderr_text());
    assert_eq!(scene.changed(before), BTreeMap::new(), "{}", reset.stderr_text());
    let again = scene.pinfold_with("b", &[], &["undo"]);
    assert!(again.status.success(), "{}", again.stderr_text());
}

/// Where the journal is hidden, or start times have another origin, the mark still holds.
#[test]
fn a_machine_is_not_placed_twice_from_another_mount_or_time_namespace() {
    let (scene, before) = match placed_machine() {
        Ok(placed) => placed,
        Err(why) => return println!("skipped: {why}"),
    };
    let placed = scene.masks();
    let qmp = scene.file("qmp");
    let hide = |path: &str| format!("mount -t tmpfs t {path} && \"$@\"");
    let (no_journal, no_run) = (hide(&scene.file("state")), hide("/run"));
    let views: [&[&str]; 3] = [
        &["unshare", "-m", "sh", "-c", &no_journal, "-"],
        &["unshare", "-m", "sh", "-c", &no_run, "-"],
        &["unshare", "-T", "--boottime", "100000", "-f"],
    ];
    for view in views {
        let second =
            scene.pinfold_with("other", view, &["apply", "--qmp", &qmp, "--strategy", "none"]);
        let said = second.stderr_text();
        assert_eq!(second.status.code(), Some(3), "{view:?}: {said}");
        assert!(said.contains("is placed already"), "{view:?}: {said}");
        assert_eq!(scene.changed(&placed), BTreeMap::new(), "{view:?}: nothing is changed");
    }
    let undone = scene.pinfold(&[], &["undo"]);
    assert!(undone.status.success(), "{}", undone.stderr_text());
    assert_eq!(scene.changed(&before), BTreeMap::new(), "{}", undone.stderr_text());
}
