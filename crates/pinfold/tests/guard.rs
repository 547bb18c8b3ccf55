//! Real-time rights end when the Pinfold that gave them is killed or stopped, on a real QEMU of
//! this test's own.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stdout, reason = "a test that cannot run says so")]

use pinfold_host::process::{Child, Signaled, Spawn, Stdio, find_program};
use pinfold_host::{Clock, Host, HostMut as _, LiveHost, SystemClock, paths};
use pinfold_model::{Policy, Tid};

const PINFOLD: &str = env!("CARGO_BIN_EXE_pinfold");
const SECOND_NS: u64 = 1_000_000_000;
const ROUND_ROBIN: Policy = Policy::RoundRobin { priority: 1 };

/// A machine whose guest never runs, and the Pinfold that watches it.
struct Stage {
    host: LiveHost,
    qemu: Child,
    pinfold: Child,
    vcpu: Tid,
    folder: tempfile::TempDir,
}

fn why_not(host: &LiveHost) -> Option<&'static str> {
    if find_program("qemu-system-x86_64").is_none() {
        return Some("qemu-system-x86_64 is not installed");
    }
    if host.affinity(Tid(0)).expect("a mask").len() < 2 {
        return Some("a host with a real-time vCPU needs two PUs");
    }
    let child = Spawn::new("sleep").args(["60"]).die_with_parent(true).start().expect("sleep");
    let refused = host.set_policy(child.pid(), ROUND_ROBIN).is_err();
    refused.then_some("this user or group may not have real-time threads")
}

impl Stage {
    /// The stage with the vCPU as a real-time thread, or nothing where that cannot be.
    fn set() -> Option<Self> {
        let host = LiveHost::new().expect("a host");
        if let Some(why) = why_not(&host) {
            println!("skipped: {why}");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        let qemu = Spawn::new("qemu-system-x86_64")
            .args(["-machine", "q35", "-accel", "tcg,thread=multi", "-display", "none"])
            .args(["-nodefaults", "-smp", "1", "-m", "64M", "-S"])
            .args(["-name", "guest=t,debug-threads=on", "-qmp"])
            .args([format!("unix:{},server=on,wait=off", path("qmp"))])
            .stdin(Stdio::Null)
            .die_with_parent(true)
            .start()
            .expect("QEMU starts");
        let ready = until(|| vcpu(&host, qemu.pid()).is_some());
        assert!(ready, "QEMU has no vCPU");
        let pinfold = Spawn::new(PINFOLD)
            .args(["--state-dir", &path("state"), "apply", "--qmp", &path("qmp"), "--watch"])
            .args(["--strategy", "compact", "--knob", "policy:vcpu=rr:1"])
            .stdin(Stdio::Null)
            .die_with_parent(true)
            .start()
            .expect("pinfold starts");
        let vcpu = vcpu(&host, qemu.pid()).expect("a vCPU");
        let stage = Self { host, qemu, pinfold, vcpu, folder };
        assert!(until(|| stage.policy() == ROUND_ROBIN), "the vCPU is not real-time");
        Some(stage)
    }

    fn policy(&self) -> Policy {
        self.host.policy(self.vcpu).expect("a policy")
    }

    /// The guard, as the kernel lists it.
    fn guards(&self) -> usize {
        let state = self.folder.path().join("state").to_string_lossy().into_owned();
        let pids = self.host.list(&paths::proc_dir()).expect("processes");
        let words = pids
            .iter()
            .filter_map(|pid| pid.parse().ok())
            .filter_map(|pid| self.host.read_text(&paths::process_cmdline(Tid(pid))).ok());
        words.filter(|words| words.contains(&state) && words.contains("\0guard\0")).count()
    }
}

fn vcpu(host: &LiveHost, qemu: Tid) -> Option<Tid> {
    let tids = host.list(&paths::task_dir(qemu)).ok()?;
    let mut tids = tids.into_iter().filter_map(|tid| tid.parse().ok()).map(Tid);
    tids.find(|tid| {
        let name = host.read_text(&paths::task_comm(qemu, *tid)).unwrap_or_default();
        name.starts_with("CPU 0/")
    })
}

/// Waits until it is so, far longer than it should take.
fn until(mut so: impl FnMut() -> bool) -> bool {
    let end = SystemClock.now_ns() + 60 * SECOND_NS;
    while SystemClock.now_ns() < end {
        if so() {
            return true;
        }
        SystemClock.sleep_ns(SECOND_NS / 50);
    }
    false
}

#[test]
fn a_supervisor_that_is_killed_leaves_no_real_time_thread() {
    let Some(mut stage) = Stage::set() else { return };
    assert_eq!(stage.guards(), 1);
    stage.pinfold.signal(Signaled::Kill).expect("killed");
    assert!(until(|| stage.policy() == Policy::default()), "it is {}", stage.policy());
    assert!(until(|| stage.guards() == 0), "the guard stays");
    stage.qemu.kill().expect("QEMU ends");
}

#[test]
fn a_supervisor_that_is_stopped_loses_the_rights_and_gets_them_back() {
    let Some(mut stage) = Stage::set() else { return };
    stage.pinfold.signal(Signaled::Stop).expect("stopped");
    assert!(until(|| stage.policy() == Policy::default()), "it is {}", stage.policy());
    stage.pinfold.signal(Signaled::Continue).expect("goes on");
    assert!(until(|| stage.policy() == ROUND_ROBIN), "it is {}", stage.policy());
    assert_eq!(stage.guards(), 1, "it is guarded again");
    stage.pinfold.signal(Signaled::Terminate).expect("asked to end");
    assert!(until(|| matches!(stage.pinfold.try_wait(), Ok(Some(_)))), "it does not end");
    assert_eq!(stage.policy(), Policy::default());
    assert!(until(|| stage.guards() == 0), "the guard stays");
    stage.qemu.kill().expect("QEMU ends");
}

#[test]
fn a_guard_that_is_killed_is_replaced() {
    let Some(mut stage) = Stage::set() else { return };
    let state = stage.folder.path().join("state").to_string_lossy().into_owned();
    let pids = stage.host.list(&paths::proc_dir()).expect("processes");
    for pid in pids.iter().filter_map(|pid| pid.parse().ok()).map(Tid) {
        let words = stage.host.read_text(&paths::process_cmdline(pid)).unwrap_or_default();
        if words.contains(&state) && words.contains("\0guard\0") {
            pinfold_host::process::signal(pid, Signaled::Kill).expect("killed");
        }
    }
    assert!(until(|| stage.guards() == 1), "no guard");
    stage.pinfold.signal(Signaled::Kill).expect("killed");
    assert!(until(|| stage.policy() == Policy::default()), "it is {}", stage.policy());
    stage.qemu.kill().expect("QEMU ends");
}
