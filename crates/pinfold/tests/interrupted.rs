//! Ctrl-C at points of an `apply` and an `undo`: strace sends the signal with the Nth call.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

mod common;
#[path = "common/qemu.rs"]
mod qemu;

use std::collections::BTreeSet;

use common::until;
use pinfold_host::process::{Child, Output, Spawn, capture, find_program};
use pinfold_host::{Host as _, LiveHost, files, paths};
use pinfold_model::{CpuSet, Tid};

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
        let mask = |tid: &String| self.host.affinity(Tid(number(tid))).expect("a mask");
        self.tids().iter().map(mask).collect()
    }

    fn pinfold(&self, wrap: &[&str], arguments: &[&str]) -> Output {
        let state = self.file("state");
        let words = [&["env"], wrap, &[PINFOLD, "--state-dir", &state], arguments].concat();
        capture(words[0], &words[1..], MINUTE_NS).expect("it runs")
    }

    /// Runs it with a signal at the Nth of these calls.
    fn interrupted(&self, calls: &str, nth: u32, arguments: &[&str]) -> Output {
        let (trace, log) = (format!("trace={calls}"), self.file("strace"));
        let inject = format!("inject={calls}:signal=INT:when={nth}");
        let wrap = ["strace", "-f", "-o", &log, "-e", &trace, "-e", &inject];
        let output = self.pinfold(&wrap, arguments);
        let log = files::read_text(&log).expect("strace's log");
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

#[test]
fn an_undo_that_is_interrupted_is_finished() {
    let scene = match TestMachine::new() {
        Ok(scene) => scene,
        Err(why) => return println!("skipped: {why}"),
    };
    let before = scene.masks();
    let qmp = scene.file("qmp");
    for nth in 1..=2 {
        let applied = scene.pinfold(&[], &["apply", "--qmp", &qmp, "--strategy", "compact"]);
        assert!(applied.status.success(), "{}", applied.stderr_text());
        let undone = scene.interrupted("sched_setaffinity", nth, &["undo"]);
        assert!(undone.status.success(), "{}", undone.stderr_text());
        let log = files::read_text(&scene.file("strace")).expect("strace's log");
        assert!(log.contains("SIGINT"), "the signal came at call {nth}");
        assert_eq!(scene.masks(), before);
    }
}
