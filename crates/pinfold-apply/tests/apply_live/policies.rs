//! Scheduling policies of real processes, which are this test's own: set, taken back, refused.

use std::sync::MutexGuard;

use crate::common::{Bench, PLAN_TEXT, plan, set};
use pinfold_apply::{NewJournal, Target, apply, undo};
use pinfold_host::process::{self, Child, Spawn, Stdio};
use pinfold_host::{Host as _, HostMut as _, LiveHost, SystemClock, osrelease, paths, proc_stat};
use pinfold_model::{Plan, Policy, Role, TaskId, Tid};

const US: u64 = 1000;
const CPU: &str = "/sys/fs/cgroup/cpu";

/// A process of this test's own, which ends with it.
fn sleeper(host: &LiveHost) -> (Child, TaskId) {
    let child =
        Spawn::new("sleep").args(["300"]).stdin(Stdio::Null).die_with_parent(true).start().unwrap();
    let text = host.read_text(&paths::process_stat(child.pid())).unwrap();
    let task = proc_stat::parse(&text).unwrap().task();
    (child, task)
}

/// The process as a machine that has an emulator and nothing else.
fn emulator(task: TaskId, policy: Policy) -> (Plan, Target) {
    let mut plan = plan("0", "1");
    plan.vnodes[0].threads.retain(|thread| thread.role == Role::Emulator);
    plan.vnodes[0].threads[0].policy = Some(policy);
    plan.housekeeping = set("0");
    plan.exclusive = set("");
    let threads = vec![(task, Role::Emulator)];
    (plan, Target::new(task.tid, threads))
}

/// A cpu group of the test's own, removed when its last process has ended.
struct Group(LiveHost, String);

impl Drop for Group {
    fn drop(&mut self) {
        drop(self.0.remove_dir(&self.1));
    }
}

fn live() -> Option<(MutexGuard<'static, ()>, LiveHost)> {
    let turn = crate::take_turn();
    let host = LiveHost::new().unwrap();
    let enough = host.affinity(Tid(0)).unwrap();
    if process::is_root() && set("0-1").is_subset(&enough) {
        return Some((turn, host));
    }
    eprintln!("skipped: policies of own processes need root and CPUs 0 and 1");
    None
}

#[test]
fn policies_of_a_real_process_are_set_and_come_back() {
    let Some((_turn, host)) = live() else { return };
    let (bench, clock) = (Bench::new(), SystemClock);
    let state =
        pinfold_host::files::StateDir::open(&format!("{}/s", bench.folder.path().display()));
    let journals = pinfold_apply::Journals::open(&state.unwrap(), &clock).unwrap();
    let policies = [
        Policy::Other { nice: 7 },
        Policy::Batch { nice: 3 },
        Policy::Idle,
        Policy::RoundRobin { priority: 1 },
        Policy::Slice { nice: Some(2), slice_ns: 500_000 },
    ];
    for policy in policies.into_iter().filter(|policy| is_supported(&host, *policy)) {
        let (mut child, task) = sleeper(&host);
        let (mask, before) = (host.affinity(task.tid).unwrap(), host.policy(task.tid).unwrap());
        let (plan, target) = emulator(task, policy);
        let new =
            NewJournal { vm_name: "vm1", plan: PLAN_TEXT, target: &target, supervised: false };
        let mut journal = journals.begin(&host, &new).unwrap();
        apply(&host, &plan, &target, &mut journal, &mut pinfold_apply::no_observer()).unwrap();
        assert_eq!(host.policy(task.tid).unwrap(), policy);
        assert!(undo(&host, &mut journal).is_complete());
        assert_eq!(host.policy(task.tid).unwrap(), before, "{policy}");
        assert_eq!(host.affinity(task.tid).unwrap(), mask);
        child.kill().unwrap();
    }
}

/// Kernels before Linux 6.12 accept a slice and ignore it.
fn is_supported(host: &LiveHost, policy: Policy) -> bool {
    let release = host.read_text(&paths::kernel_release()).unwrap();
    !matches!(policy, Policy::Slice { .. }) || osrelease::version(&release) >= Some((6, 12))
}

#[test]
fn a_slice_that_a_thread_had_comes_back() {
    let Some((_turn, host)) = live() else { return };
    let (mut child, task) = sleeper(&host);
    let before = Policy::Slice { nice: Some(4), slice_ns: 900_000 };
    host.set_policy(task.tid, before).unwrap();
    let expected = if is_supported(&host, before) { before } else { Policy::Other { nice: 4 } };
    assert_eq!(host.policy(task.tid).unwrap(), expected);
    for policy in [Policy::Other { nice: 0 }, Policy::Fifo { priority: 1 }] {
        host.set_policy(task.tid, policy).unwrap();
        assert_eq!(host.policy(task.tid).unwrap(), policy);
        host.set_policy(task.tid, expected).unwrap();
        assert_eq!(host.policy(task.tid).unwrap(), expected);
    }
    // The default is none of its own.
    host.set_policy(task.tid, Policy::Other { nice: 4 }).unwrap();
    assert_eq!(host.policy(task.tid).unwrap(), Policy::Other { nice: 4 });
    child.kill().unwrap();
}

#[test]
fn a_real_group_without_run_time_gets_it_and_loses_it_again() {
    let Some((_turn, host)) = live() else { return };
    if !host.exists(&paths::cpu_rt_runtime(CPU)) {
        eprintln!("skipped: this kernel has no cpu.rt_runtime_us (RT_GROUP_SCHED with cgroup v1)");
        return;
    }
    let path = format!("{CPU}/pinfold-test-{}", process::own_pid());
    host.make_dir(&path).unwrap();
    let group = Group(LiveHost::new().unwrap(), path);
    let (mut child, task) = sleeper(&host);
    let before = host.policy(task.tid).unwrap();
    host.write(&paths::cgroup_procs(&group.1), task.tid.to_string().as_bytes()).unwrap();
    let fifo = Policy::Fifo { priority: 1 };
    let refused = host.set_policy(task.tid, fifo).unwrap_err();
    assert_eq!(refused.errno(), Some(1), "the kernel's EPERM, which the steps prevent");
    let file = paths::cpu_rt_runtime(&group.1);
    let (bench, clock) = (Bench::new(), SystemClock);
    let state =
        pinfold_host::files::StateDir::open(&format!("{}/s", bench.folder.path().display()));
    let journals = pinfold_apply::Journals::open(&state.unwrap(), &clock).unwrap();
    let (plan, target) = emulator(task, fifo);
    let new = NewJournal { vm_name: "vm1", plan: PLAN_TEXT, target: &target, supervised: false };
    let mut journal = journals.begin(&host, &new).unwrap();
    apply(&host, &plan, &target, &mut journal, &mut pinfold_apply::no_observer()).unwrap();
    assert_eq!(host.policy(task.tid).unwrap(), fifo);
    assert_ne!(host.read_text(&file).unwrap(), "0\n");
    assert!(undo(&host, &mut journal).is_complete());
    assert_eq!(host.read_text(&file).unwrap(), "0\n");
    assert_eq!(host.policy(task.tid).unwrap(), before);
    child.kill().unwrap();
}

#[test]
fn a_real_kernel_refuses_the_deadlines_that_are_refused() {
    let Some((_turn, host)) = live() else { return };
    let (mut child, task) = sleeper(&host);
    host.set_affinity(task.tid, &set("1")).unwrap();
    let policy = Policy::Deadline {
        runtime_ns: 1000 * US,
        deadline_ns: 100_000 * US,
        period_ns: 100_000 * US,
    };
    let answer = host.set_policy(task.tid, policy).unwrap_err();
    assert_eq!(answer.errno(), Some(1), "{answer}");
    // On all CPUs it is given, and then keeps them.
    host.set_affinity(task.tid, &host.affinity(Tid(0)).unwrap()).unwrap();
    if host.set_policy(task.tid, policy).is_ok() {
        let answer = host.set_affinity(task.tid, &set("1")).unwrap_err();
        assert_eq!(answer.errno(), Some(16), "{answer}");
    }
    child.kill().unwrap();
}
