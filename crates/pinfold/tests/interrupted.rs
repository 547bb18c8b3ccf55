//! Ctrl-C at points of an `apply` and an `undo`: strace sends the signal with the Nth call. And
//! what the command of a `run` left in the background, after its end and after kills at random
//! moments.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stdout, reason = "a test that cannot run says so")]

mod common;
#[path = "common/qemu.rs"]
mod qemu;

use std::collections::BTreeSet;

use common::until;
use pinfold_host::process::{self, Child, Output, Signaled, Spawn, Stdio, capture, find_program};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, files, paths};
use pinfold_model::{CpuSet, Tid};
use pinfold_vm::qemu::{Qmp, QmpTransport as _};
use serde_json::json;

const PINFOLD: &str = env!("CARGO_BIN_EXE_pinfold");
const MINUTE_NS: u64 = 60_000_000_000;
/// More calls than any of this makes.
const MANY: u32 = 60;

struct TestMachine {
    folder: tempfile::TempDir,
    host: LiveHost,
    qemu: Child,
}

impl TestMachine {
    /// A stopped QEMU with threads to place; or why there is none.
    fn new() -> Result<Self, String> {
        for program in ["strace", "qemu-system-x86_64"] {
            find_program(program).ok_or_else(|| format!("{program} is not installed"))?;
        }
        let traced = capture("strace", ["-o", "/dev/null", "true"], MINUTE_NS).expect("strace");
        if !traced.status.success() {
            return Err(format!("strace may not trace here: {}", traced.stderr_text()));
        }
        let folder = tempfile::tempdir().expect("a folder");
        let line = "-S -M q35 -accel tcg,thread=multi -display none -nodefaults -m 64M -smp 2 -name guest=t,debug-threads=on -object iothread,id=a -object iothread,id=b -qmp";
        let socket = format!("unix:{}/qmp,server=on,wait=off", folder.path().display());
        let words = line.split(' ').chain([socket.as_str()]);
        let qemu = qemu::start(Spawn::new("qemu-system-x86_64").args(words));
        let scene = Self { folder, host: LiveHost::new().expect("a host"), qemu };
        assert!(until(|| scene.has_thread("(CPU 1/TCG)")), "QEMU makes its vCPUs");
        Ok(scene)
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    fn tids(&self) -> Vec<String> {
        self.host.list(&paths::task_dir(self.qemu.pid())).expect("threads")
    }

    fn has_thread(&self, name: &str) -> bool {
        let stat = |tid: &String| self.host.read_text(&paths::process_stat(Tid(number(tid))));
        self.tids().iter().any(|tid| stat(tid).is_ok_and(|text| text.contains(name)))
    }

    /// The masks that its threads have; there may be more threads each time.
    fn masks(&self) -> BTreeSet<CpuSet> {
        self.tids()
            .iter()
            .map(|tid| self.host.affinity(Tid(number(tid))).expect("a mask"))
            .collect()
    }

    /// `status` names a placement of which an apply or an undo was killed.
    fn is_broken_off(&self) {
        let status = self.pinfold(&[], &["status"]);
        let shown = status.stdout_text();
        assert_eq!(status.status.code(), Some(1), "{shown}");
        assert!(shown.contains("its apply or undo was interrupted"), "{shown}");
    }

    /// Makes a thread while the machine is placed.
    fn add_iothread(&self, number: u32) {
        let patience_ns = MINUTE_NS;
        let mut qmp = Qmp::connect(&self.file("qmp"), patience_ns, SystemClock).expect("QMP");
        let made = json!({"qom-type": "iothread", "id": format!("new{number}")});
        qmp.execute("object-add", Some(made)).expect("an iothread");
    }

    fn pinfold(&self, wrap: &[&str], arguments: &[&str]) -> Output {
        let state = self.file("state");
        let words = [&["env"], wrap, &[PINFOLD, "--state-dir", &state], arguments].concat();
        capture(words[0], &words[1..], MINUTE_NS).expect("it runs")
    }

    /// Runs it with a signal at the Nth of these calls.
    fn signaled(&self, signal: &str, calls: &str, nth: u32, arguments: &[&str]) -> Output {
        let (trace, log) = (format!("trace={calls}"), self.file("strace"));
        let inject = format!("inject={calls}:signal={signal}:when={nth}");
        // Without the process that waits for the end of the machine, for which strace would wait.
        let wrap = ["strace", "-f", "-b", "execve", "-o", &log, "-e", &trace, "-e", &inject];
        self.pinfold(&wrap, arguments)
    }

    fn interrupted(&self, calls: &str, nth: u32, arguments: &[&str]) -> Output {
        let output = self.signaled("INT", calls, nth, arguments);
        let log = files::read_text(&self.file("strace")).expect("strace's log");
        assert!(log.contains("SIGINT") || output.status.success(), "{}", output.stderr_text());
        output
    }
}

fn number(tid: &str) -> u32 {
    tid.parse().expect("a number")
}

#[test]
fn an_apply_that_is_interrupted_is_undone_whole() {
    let scene = match TestMachine::new() {
        Ok(scene) => scene,
        Err(why) => return println!("skipped: {why}"),
    };
    let before = scene.masks();
    let qmp = scene.file("qmp");
    let apply = ["apply", "--qmp", &qmp, "--strategy", "compact", "--ignore-claims"];
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
            let status = scene.pinfold(&[], &["status"]);
            assert_eq!(status.stdout_text().trim(), "no placement is active");
            false
        });
        // The signal came at each of its calls, of which there are some, before none was left.
        assert!(done.is_some_and(|nth| nth > 1), "{calls}: {done:?}");
        let undone = scene.pinfold(&[], &["undo"]);
        assert!(undone.status.success(), "{}", undone.stderr_text());
        assert_eq!(scene.masks(), before);
    }
}

/// The first plan has the vCPUs on both CPUs, the second has all threads on one.
#[test]
fn a_plan_that_is_replaced_stays_or_the_next_one_does() {
    let scene = match TestMachine::new() {
        Ok(scene) => scene,
        Err(why) => return println!("skipped: {why}"),
    };
    let before = scene.masks();
    if !before.iter().any(|mask| mask.len() > 1) {
        return println!("skipped: two plans need two CPUs");
    }
    let qmp = scene.file("qmp");
    let first = ["apply", "--qmp", &qmp, "--strategy", "compact", "--ignore-claims"];
    let pins = ["--pin", "vcpu=0", "--pin", "emulator=0", "--pin", "iothread=0"];
    let second = [&first[..], &pins].concat();
    let apply = |words: &[&str]| {
        let applied = scene.pinfold(&[], words);
        assert!(applied.status.success(), "{}", applied.stderr_text());
        applied.stderr_text()
    };
    apply(&first);
    let placed = scene.masks();
    let kept = scene.pinfold(&[], &[&second[..], &["--keep"]].concat());
    assert_eq!(kept.status.code(), Some(3), "{}", kept.stderr_text());
    assert_eq!(scene.masks(), placed);
    let dry = scene.pinfold(&[], &[&second[..], &["--dry-run"]].concat());
    assert!(dry.stdout_text().contains("set affinity of task"), "{}", dry.stdout_text());
    assert_eq!(scene.masks(), placed);
    let said = apply(&second);
    assert!(said.contains("the plan of t was replaced"), "{said}");
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
            let status = scene.pinfold(&[], &["status"]).stdout_text();
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
    let left = || {
        scene.is_broken_off();
        let undone = scene.pinfold(&[], &["undo", "--left"]);
        assert!(undone.status.success(), "{}", undone.stderr_text());
        scene.masks()
    };
    let undone = scene.pinfold(&[], &["undo", "t"]);
    assert!(undone.status.success(), "{}", undone.stderr_text());
    let before = scene.masks();
    for nth in 1..4 {
        assert!(scene.pinfold(&[], first).status.success());
        // It inherits a mask of the first plan.
        scene.add_iothread(nth);
        scene.signaled("KILL", "sched_setaffinity", nth, second);
        assert_eq!(left(), before, "killed at {nth}");
    }
    assert!(scene.pinfold(&[], first).status.success());
    scene.signaled("KILL", "sched_setaffinity", 2, &["undo", "t"]);
    assert_eq!(left(), before);
}

#[test]
fn an_undo_that_is_interrupted_is_finished() {
    let scene = match TestMachine::new() {
        Ok(scene) => scene,
        Err(why) => return println!("skipped: {why}"),
    };
    let before = scene.masks();
    let qmp = scene.file("qmp");
    for nth in 1..=2 {
        let applied = scene
            .pinfold(&[], &["apply", "--qmp", &qmp, "--strategy", "compact", "--ignore-claims"]);
        assert!(applied.status.success(), "{}", applied.stderr_text());
        let undone = scene.interrupted("sched_setaffinity", nth, &["undo"]);
        assert!(undone.status.success(), "{}", undone.stderr_text());
        let log = files::read_text(&scene.file("strace")).expect("strace's log");
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

/// A folder with a state directory and the script of a chain of processes.
struct Descendants {
    folder: tempfile::TempDir,
}

impl Descendants {
    fn new() -> Option<Self> {
        let own = LiveHost::new().expect("a host").affinity(process::own_pid()).expect("a mask");
        if own.len() < 2 || !process::is_root() {
            println!("skipped: a group of its own needs root, and a narrow mask two CPUs");
            return None;
        }
        let scene = Self { folder: tempfile::tempdir().expect("a folder") };
        files::write_program(&scene.file("chain"), CHAIN.as_bytes()).expect("written");
        Some(scene)
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    fn run(&self, options: &[&str], command: &str) -> Spawn {
        let state = self.file("state");
        let words = ["--state-dir", &state, "run", "--cores", "1"];
        let words = [&words, options, &["--", "sh", "-c", command]].concat();
        Spawn::new(PINFOLD).args(&words).stdin(Stdio::Null).stdout(Stdio::Null)
    }

    fn pinfold(&self, arguments: &[&str]) -> Output {
        let state = self.file("state");
        let words = [&["--state-dir", &state], arguments].concat();
        capture(PINFOLD, words, MINUTE_NS).expect("it runs")
    }

    /// The mask of the chain's latest process.
    fn mask(&self) -> Option<CpuSet> {
        let text = files::read_text(&self.file("mask")).ok()?;
        CpuSet::parse_list(text.split_whitespace().nth(1)?).ok()
    }

    fn pid_in(&self, name: &str) -> Option<Tid> {
        files::read_text(&self.file(name)).ok()?.trim().parse().ok().map(Tid)
    }
}

impl Drop for Descendants {
    fn drop(&mut self) {
        files::write_atomic(&self.file("stop"), b"").expect("written");
        // The last process of the chain still writes to the folder.
        SystemClock.sleep_ns(300_000_000);
    }
}

#[test]
fn what_a_command_leaves_in_the_background_is_named_and_gets_its_cpus_back() {
    let Some(scene) = Descendants::new() else { return };
    let host = LiveHost::new().expect("a host");
    let before = host.affinity(process::own_pid()).expect("a mask");
    let (pid, lost) = (scene.file("pid"), scene.file("lost"));
    let command = format!(
        "exec > /dev/null 2>&1; sleep 600 & echo $! > {pid}; (setsid sh -c 'echo $$ > {lost}; exec sleep 600' &); sleep 0.3"
    );
    let left = || [scene.pid_in("pid"), scene.pid_in("lost")].map(|pid| pid.expect("a PID"));
    let output = scene.run(&[], &command).stderr(Stdio::Pipe).capture(MINUTE_NS).expect("it runs");
    let said = output.stderr_text();
    assert!(output.status.success(), "{said}");
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
    let (folder, pid) = (scene.file(""), scene.file("pid"));
    let command =
        format!("sleep 600 & echo $! > {pid}; {} {folder}; exec sleep 8", scene.file("chain"));
    let mut random = 7_u64;
    for number in 0..6 {
        for name in ["stop", "mask", "pid"] {
            if files::exists(&scene.file(name)) {
                files::remove(&scene.file(name)).expect("removed");
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
        let undone = scene.pinfold(&["undo", "--left"]);
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
        files::write_atomic(&scene.file("stop"), b"").expect("written");
        let status = scene.pinfold(&["status"]).stdout_text();
        assert_eq!(status.trim(), "no placement is active");
        SystemClock.sleep_ns(200_000_000);
    }
}
