//! Real-time rights end when the Pinfold that gave them is killed or stopped, on a real QEMU of
//! this test's own.

use crate::common::{PINFOLD, SECOND_NS, Sandbox, until};
use pinfold_host::process::{Child, Signaled, Spawn, Stdio, capture, find_program};
use pinfold_host::{Clock, Host, HostMut as _, LiveHost, SystemClock, files, paths};
use pinfold_model::{Policy, Tid};

const ROUND_ROBIN: Policy = Policy::RoundRobin { priority: 1 };

/// A machine whose guest never runs, and the Pinfold that watches it.
struct WatchedMachine {
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
        return Some("a host with a real-time vCPU needs two CPUs");
    }
    let child = Spawn::new("sleep").args(["60"]).die_with_parent(true).start().expect("sleep");
    let refused = host.set_policy(child.pid(), ROUND_ROBIN).is_err();
    refused.then_some("this user or group may not have real-time threads")
}

impl WatchedMachine {
    /// The stage with the vCPU as a real-time thread, or nothing where that cannot be.
    fn set() -> Option<Self> {
        let stage = Self::without_rights(&["--watch"])?;
        assert!(until(|| stage.policy() == ROUND_ROBIN), "the vCPU is not real-time");
        Some(stage)
    }

    /// The same when `apply` with these further words has just been started.
    fn without_rights(words: &[&str]) -> Option<Self> {
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
            .args(["--state-dir", &path("state"), "apply", "--qmp", &path("qmp")])
            .args(words)
            .args(["--strategy", "compact", "--knob", "policy:vcpu=rr:1"])
            .stdin(Stdio::Null)
            .die_with_parent(true)
            .start()
            .expect("pinfold starts");
        let vcpu = vcpu(&host, qemu.pid()).expect("a vCPU");
        Some(Self { host, qemu, pinfold, vcpu, folder })
    }

    /// The watch over all placements.
    fn watch(&self) -> Child {
        let state = self.folder.path().join("state").to_string_lossy().into_owned();
        Spawn::new(PINFOLD)
            .args(["--state-dir", &state, "watch"])
            .stdin(Stdio::Null)
            .die_with_parent(true)
            .start()
            .expect("pinfold starts")
    }

    /// The policy that QEMU has from this process, whatever that is.
    fn former(&self) -> Policy {
        self.host.policy(Tid(0)).expect("a policy")
    }

    fn policy(&self) -> Policy {
        self.host.policy(self.vcpu).expect("a policy")
    }

    fn guards(&self) -> usize {
        let state = self.folder.path().join("state").to_string_lossy().into_owned();
        guards(&self.host, &state).len()
    }
}

/// The guards of a state directory, as the kernel lists them.
fn guards(host: &LiveHost, state: &str) -> Vec<Tid> {
    let pids = host.list(&paths::proc_dir()).expect("processes");
    let pids = pids.iter().filter_map(|pid| pid.parse().ok()).map(Tid);
    pids.filter(|pid| {
        let words = host.read_text(&paths::process_cmdline(*pid)).unwrap_or_default();
        words.contains(state) && words.contains("\0guard\0")
    })
    .collect()
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
#[test]
fn a_supervisor_that_is_killed_leaves_no_real_time_thread() {
    let Some(mut stage) = WatchedMachine::set() else { return };
    assert_eq!(stage.guards(), 1);
    stage.pinfold.signal(Signaled::Kill).expect("killed");
    assert!(until(|| stage.policy() == stage.former()), "it is {}", stage.policy());
    assert!(until(|| stage.guards() == 0), "the guard stays");
    stage.qemu.kill().expect("QEMU ends");
}

#[test]
fn a_supervisor_that_is_stopped_loses_the_rights_and_gets_them_back() {
    let Some(mut stage) = WatchedMachine::set() else { return };
    stage.pinfold.signal(Signaled::Stop).expect("stopped");
    assert!(until(|| stage.policy() == stage.former()), "it is {}", stage.policy());
    stage.pinfold.signal(Signaled::Continue).expect("goes on");
    assert!(until(|| stage.policy() == ROUND_ROBIN), "it is {}", stage.policy());
    assert_eq!(stage.guards(), 1, "it is guarded again");
    stage.pinfold.signal(Signaled::Terminate).expect("asked to end");
    assert!(until(|| matches!(stage.pinfold.try_wait(), Ok(Some(_)))), "it does not end");
    assert_eq!(stage.policy(), stage.former());
    assert!(until(|| stage.guards() == 0), "the guard stays");
    stage.qemu.kill().expect("QEMU ends");
}

#[test]
fn a_guard_that_is_killed_is_replaced() {
    let Some(mut stage) = WatchedMachine::set() else { return };
    let state = stage.folder.path().join("state").to_string_lossy().into_owned();
    let killed = guards(&stage.host, &state);
    for pid in &killed {
        pinfold_host::process::signal(*pid, Signaled::Kill).expect("killed");
    }
    // One that is killed is listed until it comes to a CPU to end there.
    assert!(
        until(|| {
            let now = guards(&stage.host, &state);
            now.len() == 1 && now != killed
        }),
        "no other guard"
    );
    stage.pinfold.signal(Signaled::Kill).expect("killed");
    assert!(until(|| stage.policy() == stage.former()), "it is {}", stage.policy());
    stage.qemu.kill().expect("QEMU ends");
}

#[test]
fn a_watch_guards_what_apply_left_and_its_end_takes_the_rights() {
    let Some(mut stage) = WatchedMachine::without_rights(&[]) else { return };
    let applied = stage.pinfold.wait_for(&SystemClock, 60 * SECOND_NS).expect("it ends");
    assert!(applied.is_some_and(|status| status.success()), "{applied:?}");
    assert_eq!((stage.policy(), stage.guards()), (ROUND_ROBIN, 0), "nobody guards it");
    let mut watch = stage.watch();
    assert!(until(|| stage.guards() == 1), "no guard");
    let [guard] = guards(&stage.host, &stage.folder.path().to_string_lossy())[..] else {
        panic!("not one guard")
    };
    let reported =
        capture("kill", ["-HUP", &watch.pid().to_string()], SECOND_NS).expect("kill runs");
    assert!(reported.status.success(), "{}", reported.stderr_text());
    watch.signal(Signaled::Stop).expect("stopped");
    assert!(until(|| stage.policy() == stage.former()), "it is {}", stage.policy());
    watch.signal(Signaled::Continue).expect("goes on");
    assert!(until(|| stage.policy() == ROUND_ROBIN), "it is {}", stage.policy());
    let now = guards(&stage.host, &stage.folder.path().to_string_lossy());
    assert_eq!(now, [guard], "who reads everything again keeps its guard");
    watch.signal(Signaled::Kill).expect("killed");
    assert!(until(|| stage.policy() == stage.former()), "it is {}", stage.policy());
    assert!(until(|| stage.guards() == 0), "the guard stays");

    let mut watch = stage.watch();
    assert!(until(|| stage.policy() == ROUND_ROBIN), "it is {}", stage.policy());
    watch.terminate().expect("asked to end");
    assert!(until(|| stage.policy() == stage.former()), "it is {}", stage.policy());
    stage.qemu.kill().expect("QEMU ends");
}

#[test]
fn a_watch_guards_when_the_one_who_did_has_ended() {
    let Some(mut stage) = WatchedMachine::set() else { return };
    let mut watch = stage.watch();
    let guarded = guards(&stage.host, &stage.folder.path().to_string_lossy());
    // Longer than a beat of the watch.
    SystemClock.sleep_ns(3 * SECOND_NS);
    let now = guards(&stage.host, &stage.folder.path().to_string_lossy());
    assert_eq!((guarded.len(), &now), (1, &guarded), "its own supervisor has a guard");
    stage.pinfold.signal(Signaled::Kill).expect("killed");
    assert!(
        until(|| {
            let now = guards(&stage.host, &stage.folder.path().to_string_lossy());
            now.len() == 1 && now != guarded
        }),
        "no guard of the watch"
    );
    assert!(until(|| stage.policy() == ROUND_ROBIN), "it is {}", stage.policy());
    watch.signal(Signaled::Kill).expect("killed");
    assert!(until(|| stage.policy() == stage.former()), "it is {}", stage.policy());
    stage.qemu.kill().expect("QEMU ends");
}

#[test]
fn a_tuning_that_is_stopped_loses_the_rights_and_the_start() {
    let host = LiveHost::new().expect("a host");
    if let Some(why) = why_not(&host) {
        return println!("skipped: {why}");
    }
    let sandbox = Sandbox::new();
    let (pid_file, state, store, reported) =
        (sandbox.path("pid"), sandbox.path("state"), sandbox.path("store"), sandbox.path("told"));
    let mut tune = Spawn::new("sh")
        .args(["-c", "exec \"$@\" 2>\"$0\"", &reported, PINFOLD])
        .args(["--state-dir", &state, "tune", "--budget", "4m", "--settle", "1s"])
        .args(["--strategies", "low-latency-rt", "--store", &store, "--"])
        .args(["qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi"])
        .args(["-display", "none", "-nodefaults", "-smp", "1", "-m", "64M"])
        .args(["-name", "guest=t,debug-threads=on", "-pidfile", &pid_file])
        .stdin(Stdio::Null)
        .stdout(Stdio::Null)
        .die_with_parent(true)
        .start()
        .expect("pinfold starts");
    let real_time = || {
        let pid = files::read_text(&pid_file).ok()?.trim().parse().ok().map(Tid)?;
        let vcpu = vcpu(&host, pid)?;
        (host.policy(vcpu).ok()? == ROUND_ROBIN).then_some(vcpu)
    };
    let found = until(|| real_time().is_some());
    let vcpu = real_time().filter(|_| found).expect("a real-time vCPU");
    assert_eq!(guards(&host, &state).len(), 1);
    tune.signal(Signaled::Stop).expect("stopped");
    let policy = || host.policy(vcpu).expect("the machine stays");
    let former = host.policy(Tid(0)).expect("a policy");
    assert!(until(|| policy() == former), "it is {}", policy());
    tune.signal(Signaled::Continue).expect("goes on");
    let reported = || files::read_text(&reported).unwrap_or_default();
    let is_told = until(|| reported().contains("lost its real-time priority: this start does not"));
    assert!(is_told, "the start counts: {}", reported());
    tune.terminate().expect("asked to end");
    assert!(until(|| matches!(tune.try_wait(), Ok(Some(_)))), "it does not end");
    assert!(until(|| guards(&host, &state).is_empty()), "the guard stays");
}
