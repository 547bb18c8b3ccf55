//! Where no cpuset restricts a vnode, a process that outlives it has its own mask again.

use crate::common::{Checked as _, MINUTE_NS, PINFOLD, Sandbox, take_turn, until};
use pinfold_host::files;
use pinfold_host::process::{self, Child, Output, Signaled, Spawn, Stdio};
use pinfold_host::{Host as _, LiveHost};
use pinfold_model::{CpuSet, Tid};

/// Hides all cgroups from the command that follows.
const WITHOUT_CGROUPS: &str = r#"umount -R -l /sys/fs/cgroup && exec "$@""#;

struct Platform {
    host: LiveHost,
    folder: tempfile::TempDir,
    supervisor: Child,
}

impl Platform {
    fn new() -> Option<Self> {
        let probe = ["-m", "sh", "-c", WITHOUT_CGROUPS, "-", "chrt", "-f", "1", "true"];
        let can = process::capture("unshare", probe, MINUTE_NS);
        if !can.is_ok_and(|output| output.status.success()) {
            println!("skipped: no mount namespace, or no real-time rights");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        let text = "share-housekeeping = true\n[[vnode]]\nname = \"bare\"\ncores = 1\nspeed = \"60%\"\nmethod = \"hogs\"\n";
        files::write_atomic(&path("platform.toml"), text.as_bytes()).expect("a file");
        let supervisor = Spawn::new("unshare")
            .args(["-m", "sh", "-c", WITHOUT_CGROUPS, "-", PINFOLD, "--state-dir", &path("state")])
            .args(["emulate", "up", "--foreground", &path("platform.toml")])
            .stdin(Stdio::Null)
            .die_with_parent(true)
            .own_group()
            .start()
            .expect("pinfold starts");
        let platform = Self { host: LiveHost::new().expect("a host"), folder, supervisor };
        assert!(until(|| platform.pinfold(&["emulate", "status"]).status.success()), "not up");
        Some(platform)
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    fn pinfold(&self, words: &[&str]) -> Output {
        let own = ["--state-dir".to_owned(), self.file("state")];
        let words = own.into_iter().chain(words.iter().map(|word| (*word).to_owned()));
        process::capture(PINFOLD, words, MINUTE_NS).expect("pinfold runs")
    }

    fn mask(&self, pid: Tid) -> CpuSet {
        self.host.affinity(pid).expect("a mask")
    }

    /// A shell in the vnode, and its child, which writes its number into a file.
    fn command(&self) -> (Child, Tid) {
        let script = format!("sleep 300 & echo $! > '{}'; wait", self.file("pid"));
        let command = Spawn::new(PINFOLD)
            .args(["--state-dir", &self.file("state"), "emulate", "exec", "bare", "--"])
            .args(["sh", "-c", &script])
            .stdin(Stdio::Null)
            .die_with_parent(true)
            .own_group()
            .start()
            .expect("it starts");
        let pid = || files::read_text(&self.file("pid")).ok()?.trim().parse().ok().map(Tid);
        assert!(until(|| pid().is_some()), "the command has begun");
        (command, pid().expect("a number"))
    }
}

#[test]
fn a_process_has_its_mask_again_after_down_and_after_a_crash() {
    let _turn = take_turn();
    let own = LiveHost::new().expect("a host").affinity(process::own_pid()).expect("a mask");
    if own.len() < 2 {
        return println!("skipped: a mask that shows needs two CPUs");
    }
    for is_killed in [false, true] {
        let Some(mut platform) = Platform::new() else { return };
        let (mut command, child) = platform.command();
        let both = [command.pid(), child];
        for pid in both {
            assert_eq!(platform.mask(pid).len(), 1, "the vnode has one CPU");
        }
        let ended = if is_killed {
            platform.supervisor.signal(Signaled::Kill).expect("killed");
            platform.supervisor.wait().expect("an end");
            platform.pinfold(&["undo", "--left"])
        } else {
            platform.pinfold(&["emulate", "down"])
        };
        assert!(ended.status.success(), "{}", ended.stderr_text());
        for pid in both {
            assert!(until(|| platform.mask(pid) == own), "{} of {pid}", platform.mask(pid));
        }
        command.kill().expect("an end");
    }
}

/// What `run --speed` leaves in the background is named, and not pinned.
#[test]
fn what_a_slow_command_leaves_has_its_cpus_again() {
    let _turn = take_turn();
    let host = LiveHost::new().expect("a host");
    let own = host.affinity(process::own_pid()).expect("a mask");
    if own.len() < 2 || !process::is_root() {
        return println!("skipped: a mask that shows needs two CPUs, a quota needs root");
    }
    let sandbox = Sandbox::new();
    let script = format!(
        "exec >/dev/null 2>&1; sleep 300 & echo $! > {}; (setsid sh -c 'echo $$ > {}; exec sleep 300' &); sleep 0.5",
        sandbox.path("child"),
        sandbox.path("lost")
    );
    let state = sandbox.path("state");
    let words = ["--state-dir", &state, "run", "--cores", "1", "--speed", "60%"];
    let words = [&words[..], &["--method", "quota", "--", "sh", "-c", &script]].concat();
    let said = process::capture(PINFOLD, words, MINUTE_NS).expect("pinfold runs").expect_code(0);
    assert!(said.contains("2 processes of the command continue in the background"), "{said}");
    for name in ["child", "lost"] {
        let pid =
            Tid(files::read_text(&sandbox.path(name)).expect("a PID").trim().parse().expect("one"));
        let mask = host.affinity(pid).expect("it runs");
        process::signal(pid, Signaled::Kill).expect("it runs");
        assert_eq!(mask, own, "{name}");
    }
}
