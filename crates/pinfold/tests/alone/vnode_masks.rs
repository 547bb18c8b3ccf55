//! Where no cpuset restricts a vnode, a process that outlives it has its own mask again.

use crate::common::{
    Checked as _, MINUTE_NS, PINFOLD, Sandbox, WITHOUT_CLAIMS, skip, take_turn, until,
};
use pinfold_host::files;
use pinfold_host::process::{self, Child, Signaled, Spawn, Stdio};
use pinfold_host::{Host as _, LiveHost};
use pinfold_model::{CpuSet, Tid};

/// Hides all cgroups from the command that follows.
const WITHOUT_CGROUPS: &str = r#"umount -R -l /sys/fs/cgroup && exec "$@""#;

struct Platform {
    host: LiveHost,
    sandbox: Sandbox,
    supervisor: Child,
}

impl Platform {
    fn new() -> Option<Self> {
        let probe = ["-m", "sh", "-c", WITHOUT_CGROUPS, "-", "chrt", "-f", "1", "true"];
        let can = process::capture("unshare", probe, MINUTE_NS);
        if !can.is_ok_and(|output| output.status.success()) {
            skip("no mount namespace, or no real-time rights");
            return None;
        }
        let sandbox = Sandbox::new();
        let text = "share-housekeeping = true\n[[vnode]]\nname = \"bare\"\ncores = 1\nspeed = \"60%\"\nmethod = \"hogs\"\n";
        let (file, state) = (sandbox.write("platform.toml", text), sandbox.path("state"));
        let wrap = ["-m", "sh", "-c", WITHOUT_CGROUPS, "-", PINFOLD, "--state-dir", &state];
        let spawn = Spawn::new("unshare").args(wrap).args(["emulate", "up", "--foreground", &file]);
        let spawn =
            spawn.env(WITHOUT_CLAIMS, "true").stdin(Stdio::Null).die_with_parent(true).own_group();
        let supervisor = spawn.start().expect("pinfold starts");
        let platform = Self { host: LiveHost::new().expect("a host"), sandbox, supervisor };
        assert!(until(|| platform.sandbox.run(&["emulate", "status"]).status.success()), "not up");
        Some(platform)
    }

    fn mask(&self, pid: Tid) -> CpuSet {
        self.host.affinity(pid).expect("a mask")
    }

    /// A shell in the vnode, and its child, which writes its number into a file.
    fn command(&self) -> (Child, Tid) {
        let script = format!("sleep 300 & echo $! > '{}'; wait", self.sandbox.path("pid"));
        let words = ["emulate", "exec", "bare", "--", "sh", "-c", &script];
        let command = self.sandbox.spawn(&words).die_with_parent(true).own_group();
        let command = command.start().expect("it starts");
        assert!(until(|| self.pid().is_some()), "the command has begun");
        (command, self.pid().expect("a number"))
    }

    fn pid(&self) -> Option<Tid> {
        files::read_text(&self.sandbox.path("pid")).ok()?.trim().parse().ok().map(Tid)
    }
}

#[test]
fn a_process_has_its_mask_again_after_down_and_after_a_crash() {
    let _turn = take_turn();
    let own = LiveHost::new().expect("a host").affinity(process::own_pid()).expect("a mask");
    if own.len() < 2 {
        return skip("a mask that shows needs two CPUs");
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
            platform.sandbox.run(&["undo", "--left"])
        } else {
            platform.sandbox.run(&["emulate", "down"])
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
        return skip("a mask that shows needs two CPUs, a quota needs root");
    }
    let sandbox = Sandbox::new();
    let script = format!(
        "exec >/dev/null 2>&1; sleep 300 & echo $! > {}; (setsid sh -c 'echo $$ > {}; exec sleep 300' &); sleep 0.5",
        sandbox.path("child"),
        sandbox.path("lost")
    );
    let words = ["run", "--cores", "1", "--speed", "60%", "--method", "quota"];
    let said = sandbox.run(&[&words[..], &["--", "sh", "-c", &script]].concat()).expect_code(0);
    assert!(said.contains("2 processes of the command continue in the background"), "{said}");
    for name in ["child", "lost"] {
        let pid = Tid(sandbox.read(name).trim().parse().expect("one"));
        let mask = host.affinity(pid).expect("it runs");
        process::signal(pid, Signaled::Kill).expect("it runs");
        assert_eq!(mask, own, "{name}");
    }
}
