//! A real `kill -9` at every point of every step, on the machine that the tests run on.
//!
//! Everything touched is the test's own: a cpuset group that it makes, and processes that are
//! this very program, started again with a role in an environment variable: a machine with some
//! threads, a load, and a Pinfold that applies a plan to both and kills itself on the way.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test may panic, and says on stderr why it was skipped"
)]

mod common;

use std::io::{Read as _, Write as _};
use std::ops::ControlFlow;

use common::{PLAN_TEXT, plan, set};
use pinfold_apply::{
    Event, Journals, NewJournal, Point, Target, UndoReport, apply, plan_steps, status, undo,
};
use pinfold_host::process::{self, Child, Signaled, Spawn, Stdio};
use pinfold_host::user::StateDir;
use pinfold_host::{Clock as _, Host, HostMut as _, LiveHost, SystemClock, mountinfo, paths};
use pinfold_host::{proc_cgroup, proc_stat};
use pinfold_model::{CpuSet, IsolationScope, Plan, Policy, Role, TaskId, Tid};

const ROLE: &str = "PINFOLD_TEST_ROLE";
const ARGUMENTS: &str = "PINFOLD_TEST_ARGUMENTS";
const POINTS: [Point; 3] = [Point::BeforeJournal, Point::AfterJournal, Point::AfterChange];

/// What this program is when it was started by one of the tests below; else nothing.
#[test]
fn actor() {
    match std::env::var(ROLE).as_deref() {
        Ok("machine") => be_machine(3),
        Ok("load") => be_machine(1),
        Ok("pinfold") => be_pinfold(),
        Ok(_) | Err(_) => {}
    }
}

/// Some threads that do nothing until the test's end of the pipe is closed.
fn be_machine(threads: usize) {
    let held: Vec<_> = (0..threads).map(|_| std::thread::spawn(std::thread::park)).collect();
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest).unwrap();
    for thread in held {
        thread.thread().unpark();
        thread.join().unwrap();
    }
}

/// Applies and kills itself: `STATE MACHINE LOAD STEP POINT`.
fn be_pinfold() {
    let arguments = std::env::var(ARGUMENTS).unwrap();
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let number = |at: usize| arguments[at].parse::<u32>().unwrap();
    let (host, clock) = (LiveHost::new().unwrap(), SystemClock);
    let target = target(&host, Tid(number(1)), Tid(number(2)));
    let journals = Journals::open(&StateDir::open(arguments[0]).unwrap(), &clock).unwrap();
    let new = NewJournal { vm_name: "vm1", plan: PLAN_TEXT, target: &target };
    let mut journal = journals.begin(&host, &new).unwrap();
    let (index, point) = (arguments[3].parse::<usize>().unwrap(), POINTS[number(4) as usize]);
    apply(&host, &live_plan(), &target, &mut journal, &mut |event: &Event<'_>| {
        if event.index == index && event.point == point {
            process::signal(process::own_pid(), Signaled::Kill).unwrap();
        }
        ControlFlow::Continue(())
    })
    .unwrap();
}

/// The first PU for the host, the second for the vCPU. A batch policy harms nobody.
fn live_plan() -> Plan {
    let mut plan = plan("1", "0");
    plan.vnodes[0].threads[0].policy = Some(Policy::Batch { nice: 0 });
    plan.isolation = IsolationScope::Own;
    plan
}

fn target(host: &LiveHost, machine: Tid, load: Tid) -> Target {
    let id = |tid: Tid| {
        let text = host.read_text(&paths::process_stat(tid)).unwrap();
        proc_stat::parse(&text).unwrap().task()
    };
    let threads = threads(host, machine);
    Target {
        pid: machine,
        threads: vec![
            (id(machine), Role::Emulator),
            (id(threads[1]), Role::Vcpu(0)),
            (id(threads[2]), Role::Iothread("disk".to_owned())),
        ],
        own: vec![id(load)],
        kept: Vec::new(),
    }
}

fn threads(host: &LiveHost, pid: Tid) -> Vec<Tid> {
    let names = host.list(&paths::task_dir(pid)).unwrap();
    let mut tids: Vec<u32> = names.iter().map(|name| name.parse().unwrap()).collect();
    tids.sort_unstable();
    tids.into_iter().map(Tid).collect()
}

/// The test's own part of the machine; it goes away with this value.
struct Stage {
    host: LiveHost,
    group: String,
    children: Vec<Child>,
    state: tempfile::TempDir,
}

impl Stage {
    /// The stage, or why there is none on this machine.
    fn set(name: &str) -> Result<Self, String> {
        let host = LiveHost::new().map_err(|error| error.to_string())?;
        if !process::is_root() {
            return Err("only root can make cpuset groups".to_owned());
        }
        let online = list(&host, &paths::cpu_online());
        if !set("0-1").is_subset(&online) {
            return Err(format!("PUs 0 and 1 are needed, {online} are online"));
        }
        let found = mountinfo::controller(&host, "cpuset").map_err(|error| error.to_string())?;
        let Some(found) = found.filter(|found| found.version == mountinfo::Version::V1) else {
            return Err("no cpuset hierarchy of cgroup v1".to_owned());
        };
        let group = format!("{}/pinfold-test-{name}-{}", found.mount.path, process::own_pid());
        host.make_dir(&group).map_err(|error| error.to_string())?;
        let stage = Self { host, group, children: Vec::new(), state: tempfile::tempdir().unwrap() };
        let root = &found.mount.path;
        for file in [paths::cpuset_effective_mems(root), paths::cpuset_effective_cpus(root)] {
            let value = stage.host.read(&file).unwrap();
            let own = file.replace("effective_", "").replace(root, &stage.group);
            stage.host.write(&own, &value).unwrap();
        }
        Ok(stage)
    }

    /// Starts this program in a role, in the group, and waits until it has all its threads.
    fn start(&mut self, role: &str, threads: usize) -> Tid {
        let child = self.spawn(role, "").cgroup_files(vec![paths::cgroup_procs(&self.group)]);
        let child = child.stdin(Stdio::Pipe).start().unwrap();
        let pid = child.pid();
        self.children.push(child);
        for _ in 0..500 {
            if self::threads(&self.host, pid).len() >= threads {
                return pid;
            }
            SystemClock.sleep_ns(10_000_000);
        }
        panic!("{role} has not come up");
    }

    fn spawn(&self, role: &str, arguments: &str) -> Spawn {
        let program = std::env::current_exe().unwrap();
        Spawn::new(program.to_str().unwrap())
            .args(["--exact", "actor", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(ARGUMENTS, arguments)
            .stdout(Stdio::Null)
            .stderr(Stdio::Null)
            .die_with_parent(true)
    }

    fn state(&self) -> String {
        format!("{}/state", self.state.path().display())
    }

    fn journals(&self) -> Journals<'static> {
        Journals::open(&StateDir::open(&self.state()).unwrap(), &SystemClock).unwrap()
    }

    /// Everything that the plan could change, of everybody who is on the stage.
    fn picture(&self) -> String {
        let mut lines: Vec<String> = Vec::new();
        for child in &self.children {
            for tid in threads(&self.host, child.pid()) {
                let groups = self.host.read_text(&paths::process_cgroup(tid)).unwrap();
                let groups = proc_cgroup::parse(&groups).unwrap();
                lines.push(format!(
                    "thread {tid}: group {:?}, mask {}, policy {}",
                    proc_cgroup::v1_path(&groups, "cpuset"),
                    self.host.affinity(tid).unwrap(),
                    self.host.policy(tid).unwrap()
                ));
            }
        }
        for name in self.host.list(&self.group).unwrap() {
            let path = paths::cgroup_file(&self.group, &name);
            match self.host.read_text(&path) {
                Ok(text) if name.starts_with("cpuset.") => lines.push(format!("{name}: {text:?}")),
                Ok(_) | Err(_) => lines.push(name),
            }
        }
        // A load average of the group, not a knob.
        lines.retain(|line| !line.starts_with("cpuset.memory_pressure:"));
        lines.join("\n")
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for child in &mut self.children {
            if let Err(error) = child.kill() {
                eprintln!("{error}");
            }
        }
        for _ in 0..100 {
            if self.host.remove_dir(&self.group).is_ok() {
                return;
            }
            SystemClock.sleep_ns(10_000_000);
        }
        eprintln!("{} could not be removed", self.group);
    }
}

fn list(host: &LiveHost, path: &str) -> CpuSet {
    CpuSet::parse_list(&host.read_text(path).unwrap()).unwrap()
}

fn id(task: TaskId) -> String {
    format!("{}-{}", task.tid, task.start_time)
}

#[test]
fn a_real_kill_at_every_point_of_every_step_is_undone() {
    let mut stage = match Stage::set("kill") {
        Ok(stage) => stage,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let (machine, load) = (stage.start("machine", 5), stage.start("load", 3));
    // One thread had a mask of its own before.
    let narrow = *threads(&stage.host, load).last().unwrap();
    stage.host.set_affinity(narrow, &set("1")).unwrap();
    let target = target(&stage.host, machine, load);
    let steps = plan_steps(&stage.host, &live_plan(), &target).unwrap().steps.len();
    assert!(steps >= 9, "{steps} steps are too few for this test");
    let before = stage.picture();
    for index in 0..steps {
        for (number, point) in POINTS.iter().enumerate() {
            let what = format!("killed at {point:?} of step {index}");
            let arguments = format!("{} {machine} {load} {index} {number}", stage.state());
            let mut pinfold = stage.spawn("pinfold", &arguments).start().unwrap();
            let ended = pinfold.wait_for(&SystemClock, 20_000_000_000).unwrap();
            let ended = process::describe(ended.expect("it kills itself"));
            assert!(ended.contains('9') || ended.contains("KILL"), "{what}: {ended}");
            let id = id(target.threads[0].0);
            if stage.journals().list().unwrap().iter().all(|summary| summary.id != id) {
                assert_eq!((index, *point), (0, Point::BeforeJournal), "{what}");
                assert_eq!(before, stage.picture(), "{what}");
                continue;
            }
            let mut journal = stage.journals().reopen(&id).unwrap().unwrap();
            let known = journal.record().step_count() > index;
            assert!(known || *point == Point::BeforeJournal, "{what}");
            let report = undo(&stage.host, &mut journal);
            assert!(report.is_complete() && report.changed.is_empty(), "{what}: {report:?}");
            assert_eq!(before, stage.picture(), "{what}");
        }
    }
}

#[test]
fn a_plan_is_in_force_on_real_threads_and_taken_back() {
    let mut stage = match Stage::set("apply") {
        Ok(stage) => stage,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let (machine, load) = (stage.start("machine", 5), stage.start("load", 3));
    let (target, plan) = (target(&stage.host, machine, load), live_plan());
    let before = stage.picture();
    let journals = stage.journals();
    let new = NewJournal { vm_name: "vm1", plan: PLAN_TEXT, target: &target };
    let mut journal = journals.begin(&stage.host, &new).unwrap();
    let dry = plan_steps(&stage.host, &plan, &target).unwrap();
    let applied = apply(&stage.host, &plan, &target, &mut journal, &mut |_: &Event<'_>| {
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(dry.steps, applied.steps);
    let group = applied.group.unwrap();
    assert_eq!(group.rsplit_once('/').unwrap().0, stage.group, "made below the loads' group");
    assert_eq!(list(&stage.host, &paths::cpuset_effective_cpus(&group)), set("0"));
    assert!(status(&stage.host, &plan, &target).unwrap().is_as_planned());
    assert!(
        threads(&stage.host, load)
            .iter()
            .all(|tid| { stage.host.affinity(*tid).unwrap() == set("0") })
    );
    // A load that is started later joins the group, and goes with it.
    let late = stage.spawn("load", "").cgroup_files(vec![paths::cgroup_procs(&group)]);
    let mut late = late.stdin(Stdio::Pipe).start().unwrap();
    let report: UndoReport = undo(&stage.host, &mut journal);
    assert!(report.is_complete() && report.changed.is_empty(), "{report:?}");
    let groups = stage.host.read_text(&paths::process_cgroup(late.pid())).unwrap();
    let groups = proc_cgroup::parse(&groups).unwrap();
    let at = proc_cgroup::v1_path(&groups, "cpuset").unwrap();
    assert!(stage.group.ends_with(at), "the late load is in {at}");
    assert_eq!(stage.host.affinity(late.pid()).unwrap(), set("0-1"));
    late.stdin().unwrap().write_all(b"end").unwrap();
    late.kill().unwrap();
    assert_eq!(before, stage.picture());
}
