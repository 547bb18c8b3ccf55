//! Real-time rights end when the Pinfold that gave them is killed or stopped, on a real QEMU of
//! this test's own.

use std::ops::Deref;

use crate::common::machine::{Machine, QEMU, find_thread};
use crate::common::{Checked as _, SECOND_NS, Sandbox, is_missing, run, skip, until};
use pinfold_host::process::{self, Child, Signaled, Spawn};
use pinfold_host::{Clock, Host, HostMut as _, LiveHost, SystemClock, files, paths, proc_stat};
use pinfold_model::{Policy, Tid};

const ROUND_ROBIN: Policy = Policy::RoundRobin { priority: 1 };

/// A machine whose guest never runs, and the Pinfold that watches it.
struct WatchedMachine {
    machine: Machine,
    pinfold: Child,
    vcpu: Tid,
}

impl Deref for WatchedMachine {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

fn why_not(host: &LiveHost) -> Option<&'static str> {
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
        if let Some(why) = why_not(&LiveHost::new().expect("a host")) {
            skip(why);
            return None;
        }
        let machine = Machine::new("-smp 1")?;
        let qmp = machine.qmp();
        let apply =
            ["apply", "--qmp", &qmp, "--strategy", "compact", "--tunable", "policy:vcpu=rr:1"];
        let pinfold = machine.start(&[&apply, words].concat());
        let vcpu = machine.thread("CPU 0/").expect("a vCPU");
        Some(Self { machine, pinfold, vcpu })
    }

    /// The watch over all placements.
    fn watch(&self) -> Child {
        self.start(&["watch"])
    }

    /// The policy that QEMU has from this process, whatever that is.
    fn former(&self) -> Policy {
        self.host.policy(Tid(0)).expect("a policy")
    }

    fn policy(&self) -> Policy {
        self.host.policy(self.vcpu).expect("a policy")
    }

    fn guards(&self) -> Vec<Tid> {
        guards(&self.host, &self.path("state"))
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

#[test]
fn a_supervisor_that_is_killed_leaves_no_real_time_thread() {
    let Some(mut stage) = WatchedMachine::set() else { return };
    assert_eq!(stage.guards().len(), 1);
    stage.pinfold.signal(Signaled::Kill).expect("killed");
    assert!(until(|| stage.policy() == stage.former()), "it is {}", stage.policy());
    assert!(until(|| stage.guards().is_empty()), "the guard stays");
}

#[test]
fn a_supervisor_that_is_stopped_loses_the_rights_and_gets_them_back() {
    let Some(mut stage) = WatchedMachine::set() else { return };
    stage.pinfold.signal(Signaled::Stop).expect("stopped");
    assert!(until(|| stage.policy() == stage.former()), "it is {}", stage.policy());
    stage.pinfold.signal(Signaled::Continue).expect("goes on");
    assert!(until(|| stage.policy() == ROUND_ROBIN), "it is {}", stage.policy());
    assert_eq!(stage.guards().len(), 1, "it is guarded again");
    stage.pinfold.signal(Signaled::Terminate).expect("asked to end");
    assert!(until(|| matches!(stage.pinfold.try_wait(), Ok(Some(_)))), "it does not end");
    assert_eq!(stage.policy(), stage.former());
    assert!(until(|| stage.guards().is_empty()), "the guard stays");
}

#[test]
fn a_guard_that_is_killed_is_replaced() {
    let Some(mut stage) = WatchedMachine::set() else { return };
    let killed = stage.guards();
    for pid in &killed {
        pinfold_host::process::signal(*pid, Signaled::Kill).expect("killed");
    }
    // One that is killed is listed until it comes to a CPU to end there.
    assert!(
        until(|| {
            let now = stage.guards();
            now.len() == 1 && now != killed
        }),
        "no other guard"
    );
    stage.pinfold.signal(Signaled::Kill).expect("killed");
    assert!(until(|| stage.policy() == stage.former()), "it is {}", stage.policy());
}

#[test]
fn a_watch_guards_what_apply_left_and_its_end_takes_the_rights() {
    let Some(mut stage) = WatchedMachine::without_rights(&[]) else { return };
    let applied = stage.pinfold.wait_for(&SystemClock, 60 * SECOND_NS).expect("it ends");
    assert!(applied.is_some_and(|status| status.success()), "{applied:?}");
    assert_eq!((stage.policy(), stage.guards().len()), (ROUND_ROBIN, 0), "there is no watchdog");
    let mut watch = stage.watch();
    assert!(until(|| stage.guards().len() == 1), "no guard");
    let [guard] = stage.guards()[..] else { panic!("not one guard") };
    run("kill", ["-HUP", &watch.pid().to_string()]).expect_success();
    watch.signal(Signaled::Stop).expect("stopped");
    assert!(until(|| stage.policy() == stage.former()), "it is {}", stage.policy());
    watch.signal(Signaled::Continue).expect("goes on");
    assert!(until(|| stage.policy() == ROUND_ROBIN), "it is {}", stage.policy());
    let now = stage.guards();
    assert_eq!(now, [guard], "who reads everything again keeps its guard");
    watch.signal(Signaled::Kill).expect("killed");
    assert!(until(|| stage.policy() == stage.former()), "it is {}", stage.policy());
    assert!(until(|| stage.guards().is_empty()), "the guard stays");

    let mut watch = stage.watch();
    assert!(until(|| stage.policy() == ROUND_ROBIN), "it is {}", stage.policy());
    watch.terminate().expect("asked to end");
    assert!(until(|| stage.policy() == stage.former()), "it is {}", stage.policy());
}

#[test]
fn a_watch_guards_when_the_one_who_did_has_ended() {
    let Some(mut stage) = WatchedMachine::set() else { return };
    let mut watch = stage.watch();
    let guarded = stage.guards();
    // Longer than a beat of the watch.
    SystemClock.sleep_ns(3 * SECOND_NS);
    let now = stage.guards();
    assert_eq!((guarded.len(), &now), (1, &guarded), "its own supervisor has a guard");
    stage.pinfold.signal(Signaled::Kill).expect("killed");
    assert!(
        until(|| {
            let now = stage.guards();
            now.len() == 1 && now != guarded
        }),
        "no guard of the watch"
    );
    assert!(until(|| stage.policy() == ROUND_ROBIN), "it is {}", stage.policy());
    watch.signal(Signaled::Kill).expect("killed");
    assert!(until(|| stage.policy() == stage.former()), "it is {}", stage.policy());
}

#[test]
fn a_tuning_that_is_stopped_loses_the_rights_and_the_start() {
    let host = LiveHost::new().expect("a host");
    if let Some(why) = why_not(&host) {
        return skip(why);
    }
    if is_missing(&[QEMU]) {
        return;
    }
    let sandbox = Sandbox::new();
    let (pid_file, store, state) =
        (sandbox.path("pid"), sandbox.path("store"), sandbox.path("state"));
    let words = ["tune", "--budget", "4m", "--settle", "1s", "--strategies", "low-latency-rt"];
    let machine = ["--store", &store, "--", QEMU, "-machine", "q35", "-accel", "tcg,thread=multi"];
    let more = ["-display", "none", "-nodefaults", "-smp", "1", "-m", "64M"];
    let name = ["-name", "guest=t,debug-threads=on", "-pidfile", &pid_file];
    let mut tune = sandbox.start_logged(&[&words[..], &machine, &more, &name].concat());
    let real_time = || {
        let pid = files::read_text(&pid_file).ok()?.trim().parse().ok().map(Tid)?;
        let vcpu = find_thread(&host, pid, "CPU 0/")?;
        (host.policy(vcpu).ok()? == ROUND_ROBIN).then_some(vcpu)
    };
    let found = until(|| real_time().is_some());
    let vcpu = real_time().filter(|_| found).expect("a real-time vCPU");
    assert_eq!(guards(&host, &state).len(), 1);
    tune.signal(Signaled::Stop).expect("stopped");
    let former = host.policy(Tid(0)).expect("a policy");
    assert!(
        until(|| host.policy(vcpu).expect("the machine stays") == former),
        "it is {}",
        host.policy(vcpu).expect("the machine stays")
    );
    tune.signal(Signaled::Continue).expect("goes on");
    let is_told =
        until(|| sandbox.read("said").contains("lost its real-time priority: this start does not"));
    assert!(is_told, "the start counts: {}", sandbox.read("said"));
    tune.terminate().expect("asked to end");
    assert!(until(|| matches!(tune.try_wait(), Ok(Some(_)))), "it does not end");
    assert!(until(|| guards(&host, &state).is_empty()), "the guard stays");
}

/// What the kernel keeps beside a policy: the nice value, on a real thread.
#[test]
fn the_nice_value_of_an_idle_thread_comes_back() {
    if !process::is_root() {
        return skip("the idle policy is given up again only by root");
    }
    let Some(machine) = Machine::new("-smp 1") else { return };
    let vcpu = machine.thread("CPU 0/").expect("a vCPU");
    let path = paths::task_stat(vcpu, vcpu);
    let nice = || proc_stat::at(&machine.host, &path).expect("stat").expect("it runs").nice;
    for policy in [Policy::Other { nice: 7 }, Policy::Idle] {
        machine.host.set_policy(vcpu, policy).expect("set");
    }
    let (qmp, strategy) = (machine.qmp(), ["--strategy", "compact"]);
    let apply = ["apply", "--qmp", &qmp, "--tunable", "policy:vcpu=batch:0"];
    machine.run(&[&apply[..], &strategy].concat()).expect_success();
    assert_eq!(
        (machine.host.policy(vcpu).expect("a policy"), nice()),
        (Policy::Batch { nice: 0 }, 0)
    );
    machine.run(&["undo"]).expect_success();
    assert_eq!((machine.host.policy(vcpu).expect("a policy"), nice()), (Policy::Idle, 7));
}
