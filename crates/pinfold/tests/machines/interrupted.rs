//! Ctrl-C at points of an `apply` and an `undo`: strace sends the signal with the Nth call. And
//! what the command of a `run` left in the background, after its end and after kills at random
//! moments.

use std::collections::BTreeSet;
use std::ops::Deref;

use crate::common::machine::Machine;
use crate::common::{Checked as _, MINUTE_NS, Sandbox, assert_parts, is_missing, run, skip, until};
use pinfold_host::process::{self, Output, Signaled, Spawn, Stdio};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, files, paths};
use pinfold_model::{CpuSet, Tid};
use pinfold_vm::qemu::QmpTransport as _;
use serde_json::json;

/// More calls than any of this makes.
const MANY: u32 = 60;

/// Its machine has two vCPUs and two iothreads.
struct TestMachine(Machine);

impl Deref for TestMachine {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.0
    }
}

impl TestMachine {
    /// A machine whose Pinfold can be traced.
    fn new() -> Option<Self> {
        if is_missing(&["strace"]) {
            return None;
        }
        let traced = run("strace", ["-o", "/dev/null", "true"]);
        if !traced.status.success() {
            skip(format!("strace may not trace here: {}", traced.stderr_text()));
            return None;
        }
        Some(Self(Machine::new("-smp 2 -object iothread,id=a -object iothread,id=b")?))
    }

    /// The masks that its threads have; there may be more threads each time.
    fn masks(&self) -> BTreeSet<CpuSet> {
        self.0.masks().into_values().collect()
    }

    /// `status` names a placement of which an apply or an undo was killed.
    fn is_broken_off(&self) {
        let status = self.run(&["status"]);
        let shown = status.stdout_text();
        assert_eq!(status.status.code(), Some(1), "{shown}");
        assert!(shown.contains("its apply or undo was interrupted"), "{shown}");
    }

    /// Makes a thread while the machine is placed.
    fn add_iothread(&self, number: u32) {
        let mut qmp = self.connect();
        let made = json!({"qom-type": "iothread", "id": format!("new{number}")});
        qmp.execute("object-add", Some(made)).expect("an iothread");
    }

    /// Runs it with a signal at the Nth of these calls.
    fn signaled(&self, signal: &str, calls: &str, nth: u32, arguments: &[&str]) -> Output {
        let (trace, log) = (format!("trace={calls}"), self.path("strace"));
        let inject = format!("inject={calls}:signal={signal}:when={nth}");
        // Without the process that waits for the end of the machine, for which strace would wait.
        let wrap = ["strace", "-f", "-b", "execve", "-o", &log, "-e", &trace, "-e", &inject];
        self.run_by(&wrap, arguments)
    }

    fn interrupted(&self, calls: &str, nth: u32, arguments: &[&str]) -> Output {
        let output = self.signaled("INT", calls, nth, arguments);
        let log = files::read_text(&self.path("strace")).expect("strace's log");
        assert!(log.contains("SIGINT") || output.status.success(), "{}", output.stderr_text());
        output
    }
}

#[test]
fn an_apply_that_is_interrupted_is_undone_whole() {
    let Some(scene) = TestMachine::new() else { return };
    let before = scene.masks();
    let qmp = scene.qmp();
    let apply = ["apply", "--qmp", &qmp, "--strategy", "compact"];
    for calls in ["sched_setaffinity", "fsync,fdatasync"] {
        let done = (1..MANY).find(|nth| {
            let output = scene.interrupted(calls, *nth, &apply);
            if output.status.success() {
                return true;
            }
            let said = output.stderr_text();
            assert_eq!(output.status.code(), Some(130), "at {calls} {nth}: {said}");
            assert!(said.contains("was reverted"), "{said}");
            assert_eq!(scene.masks(), before, "at {calls} {nth}");
            let status = scene.run(&["status"]);
            assert_eq!(status.stdout_text().trim(), "no placement is active");
            false
        });
        // The signal came at each of its calls, of which there are some, before none was left.
        assert!(done.is_some_and(|nth| nth > 1), "{calls}: {done:?}");
        scene.run(&["undo"]).expect_success();
        assert_eq!(scene.masks(), before);
    }
}

/// The first plan has the vCPUs on both CPUs, the second has all threads on one.
#[test]
fn a_plan_that_is_replaced_stays_or_the_next_one_does() {
    let Some(scene) = TestMachine::new() else { return };
    let before = scene.masks();
    if !before.iter().any(|mask| mask.len() > 1) {
        return skip("two plans need two CPUs");
    }
    let qmp = scene.qmp();
    let first = ["apply", "--qmp", &qmp, "--strategy", "compact"];
    let pins = ["--pin", "vcpu=0", "--pin", "emulator=0", "--pin", "iothread=0"];
    let second = [&first[..], &pins].concat();
    let apply = |words: &[&str]| {
        let applied = scene.run(words).expect_success();
        applied.stderr_text()
    };
    apply(&first);
    let placed = scene.masks();
    scene.run(&[&second[..], &["--keep"]].concat()).expect_code(3);
    assert_eq!(scene.masks(), placed);
    let dry = scene.run(&[&second[..], &["--dry-run"]].concat());
    assert!(dry.stdout_text().contains("set affinity of task"), "{}", dry.stdout_text());
    assert_eq!(scene.masks(), placed);
    assert_parts(&apply(&second), &[&format!("the plan of {} was replaced", scene.name)]);
    let replaced = scene.masks();
    assert_ne!(replaced, placed);
    apply(&first);
    assert_eq!(scene.masks(), placed, "and back");
    for calls in ["sched_setaffinity", "fsync,fdatasync"] {
        let done = (1..MANY).find(|nth| {
            let output = scene.interrupted(calls, *nth, &second);
            if output.status.success() {
                return true;
            }
            let said = output.stderr_text();
            assert_eq!(output.status.code(), Some(130), "at {calls} {nth}: {said}");
            assert!(said.contains("the earlier placement is active again"), "{said}");
            assert_eq!(scene.masks(), placed, "at {calls} {nth}");
            let status = scene.run(&["status"]).stdout_text();
            assert!(status.contains("1 placement is active, as planned"), "{status}");
            false
        });
        assert!(done.is_some_and(|nth| nth > 1), "{calls}: {done:?}");
        assert_eq!(scene.masks(), replaced);
        apply(&first);
    }
    kills_are_named_and_undone(&scene, &first, &second);
}

/// Kills of the second apply and of an undo.
fn kills_are_named_and_undone(scene: &TestMachine, first: &[&str], second: &[&str]) {
    scene.run(&["undo", &scene.name]).expect_success();
    let before = scene.masks();
    for nth in 1..4 {
        assert!(scene.run(first).status.success());
        // It inherits a mask of the first plan.
        scene.add_iothread(nth);
        scene.signaled("KILL", "sched_setaffinity", nth, second);
        assert_eq!(left_masks(scene), before, "killed at {nth}");
    }
    assert!(scene.run(first).status.success());
    scene.signaled("KILL", "sched_setaffinity", 2, &["undo", &scene.name]);
    assert_eq!(left_masks(scene), before);
}

fn left_masks(scene: &TestMachine) -> BTreeSet<CpuSet> {
    scene.is_broken_off();
    scene.run(&["undo", "--left"]).expect_success();
    scene.masks()
}

#[test]
fn an_undo_that_is_interrupted_is_finished() {
    let Some(scene) = TestMachine::new() else { return };
    let before = scene.masks();
    let qmp = scene.qmp();
    for nth in 1..=2 {
        scene.run(&["apply", "--qmp", &qmp, "--strategy", "compact"]).expect_success();
        scene.interrupted("sched_setaffinity", nth, &["undo"]).expect_success();
        let log = scene.read("strace");
        assert!(log.contains("SIGINT"), "the signal came at call {nth}");
        assert_eq!(scene.masks(), before);
    }
}

/// Each process of the chain starts its successor and exits; the mask that they inherit is in the
/// file `mask`, until there is a file `stop`.
const CHAIN: &str = "#!/bin/sh
cd \"$1\" || exit
grep Cpus_allowed_list: /proc/self/status > mask.$$ && mv mask.$$ mask
[ -e stop ] || \"$0\" \"$1\" &
";

/// A sandbox with the script of a chain of processes.
struct Descendants(Sandbox);

impl Descendants {
    fn new() -> Option<Self> {
        let own = LiveHost::new().expect("a host").affinity(process::own_pid()).expect("a mask");
        if own.len() < 2 || !process::is_root() {
            skip("a group of its own needs root, and a narrow mask two CPUs");
            return None;
        }
        let scene = Self(Sandbox::new());
        files::write_program(&scene.0.path("chain"), CHAIN.as_bytes()).expect("written");
        Some(scene)
    }

    fn run(&self, options: &[&str], command: &str) -> Spawn {
        let words = [&["run", "--cores", "1"], options, &["--", "sh", "-c", command]].concat();
        self.0.spawn(&words).stdout(Stdio::Null)
    }

    /// The mask of the chain's latest process.
    fn mask(&self) -> Option<CpuSet> {
        let text = files::read_text(&self.0.path("mask")).ok()?;
        CpuSet::parse_list(text.split_whitespace().nth(1)?).ok()
    }

    fn pid_in(&self, name: &str) -> Option<Tid> {
        files::read_text(&self.0.path(name)).ok()?.trim().parse().ok().map(Tid)
    }
}

impl Drop for Descendants {
    fn drop(&mut self) {
        files::write_atomic(&self.0.path("stop"), b"").expect("written");
        // The last process of the chain still writes to the folder.
        SystemClock.sleep_ns(300_000_000);
    }
}

#[test]
fn what_a_command_leaves_in_the_background_is_named_and_gets_its_cpus_back() {
    let Some(scene) = Descendants::new() else { return };
    let host = LiveHost::new().expect("a host");
    let before = host.affinity(process::own_pid()).expect("a mask");
    let (pid, lost) = (scene.0.path("pid"), scene.0.path("lost"));
    let command = format!(
        "exec > /dev/null 2>&1; sleep 600 & echo $! > {pid}; (setsid sh -c 'echo $$ > {lost}; exec sleep 600' &); sleep 0.3"
    );
    let left = || [scene.pid_in("pid"), scene.pid_in("lost")].map(|pid| pid.expect("a PID"));
    let said = scene
        .run(&[], &command)
        .stderr(Stdio::Pipe)
        .capture(MINUTE_NS)
        .expect("it runs")
        .expect_code(0);
    assert!(said.contains("2 processes of the command continue in the background"), "{said}");
    for pid in left() {
        assert!(said.contains(&format!("{pid} (sleep)")), "{said}");
        assert_eq!(host.affinity(pid).expect("it runs"), before, "{pid}");
        process::signal(pid, Signaled::Kill).expect("it runs");
    }
    let groups = host.read_text(&paths::own_cgroup()).expect("groups");
    assert!(!groups.contains("pinfold-command"), "{groups}");
    let output =
        scene.run(&["--kill-left"], &command).stderr(Stdio::Pipe).capture(MINUTE_NS).expect("runs");
    let said = output.stderr_text();
    assert!(said.contains("2 processes of the command are ended"), "{said}");
    for pid in left() {
        assert!(!host.exists(&paths::process_stat(pid)), "{pid}: {said}");
    }
}

#[test]
fn kills_of_run_at_random_moments_leave_no_descendant_pinned() {
    let Some(scene) = Descendants::new() else { return };
    let host = LiveHost::new().expect("a host");
    let before = host.affinity(process::own_pid()).expect("a mask");
    let (folder, pid) = (scene.0.path(""), scene.0.path("pid"));
    let command =
        format!("sleep 600 & echo $! > {pid}; {} {folder}; exec sleep 8", scene.0.path("chain"));
    let mut random = 7_u64;
    for number in 0..6 {
        for name in ["stop", "mask", "pid"] {
            if files::exists(&scene.0.path(name)) {
                files::remove(&scene.0.path(name)).expect("removed");
            }
        }
        let mut run = scene.run(&[], &command).stderr(Stdio::Null).start().expect("it starts");
        assert!(until(|| scene.mask().is_some()), "{number}: the chain runs");
        // The constants of Knuth's generator.
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        SystemClock.sleep_ns(random >> 36);
        run.kill().expect("it runs");
        let pinned = scene.mask().expect("a mask");
        assert_eq!(pinned.len(), 1, "{number}: the chain is pinned while the command runs");
        let undone = scene.0.run(&["undo", "--left"]);
        assert!(undone.status.success(), "{number}: {}", undone.stderr_text());
        // A process that was started before the undo wrote its mask to a file of its own.
        SystemClock.sleep_ns(200_000_000);
        for _ in 0..20 {
            assert_eq!(scene.mask(), Some(before.clone()), "{number}: the chain is pinned");
            SystemClock.sleep_ns(5_000_000);
        }
        let child = scene.pid_in("pid").expect("a PID");
        assert_eq!(host.affinity(child).expect("it runs"), before, "{number}");
        process::signal(child, Signaled::Kill).expect("it runs");
        files::write_atomic(&scene.0.path("stop"), b"").expect("written");
        let status = scene.0.run(&["status"]).stdout_text();
        assert_eq!(status.trim(), "no placement is active");
        SystemClock.sleep_ns(200_000_000);
    }
}
