//! A part of the real machine that is a test's own: a cpuset group that it makes, and processes
//! that are the test's own program, started again with a role in an environment variable.

use std::io::Read as _;
use std::sync::MutexGuard;

use pinfold_apply::{Journals, Target};
use pinfold_host::files::StateDir;
use pinfold_host::process::{self, Child, Spawn, Stdio};
use pinfold_host::{Clock as _, Host, HostMut as _, LiveHost, SystemClock, mountinfo, paths};
use pinfold_host::{proc_cgroup, proc_stat};
use pinfold_model::{CpuSet, IsolationScope, Plan, Policy, Role, TaskId, Tid};

use crate::common::{plan, set};

pub const ROLE: &str = "PINFOLD_TEST_ROLE";
pub const ARGUMENTS: &str = "PINFOLD_TEST_ARGUMENTS";

/// Some threads that do nothing until the test's end of the pipe is closed.
pub fn be_machine(threads: usize) {
    let held: Vec<_> = (0..threads).map(|_| std::thread::spawn(std::thread::park)).collect();
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest).unwrap();
    for thread in held {
        thread.thread().unpark();
        thread.join().unwrap();
    }
}

/// The first CPU for the host, the second for the vCPU. A batch policy slows no other task.
pub fn live_plan() -> Plan {
    let mut plan = plan("1", "0");
    plan.vnodes[0].threads[0].policy = Some(Policy::Batch { nice: 0 });
    plan.isolation = IsolationScope::Own;
    plan
}

pub fn target(host: &LiveHost, machine: Tid, load: Tid) -> Target {
    let threads = threads(host, machine);
    Target {
        pid: machine,
        threads: vec![
            (task_id(machine, host), Role::Emulator),
            (task_id(threads[1], host), Role::Vcpu(0)),
            (task_id(threads[2], host), Role::Iothread("disk".to_owned())),
        ],
        own: vec![task_id(load, host)],
        kept: Vec::new(),
        started_on: None,
        known_threads: None,
        left: std::collections::BTreeSet::new(),
        pins: Vec::new(),
    }
}

fn task_id(tid: Tid, host: &LiveHost) -> TaskId {
    let text = host.read_text(&paths::process_stat(tid)).unwrap();
    proc_stat::parse(&text).unwrap().task()
}

pub fn threads(host: &LiveHost, pid: Tid) -> Vec<Tid> {
    let names = host.list(&paths::task_dir(pid)).unwrap();
    let mut tids: Vec<u32> = names.iter().map(|name| name.parse().unwrap()).collect();
    tids.sort_unstable();
    tids.into_iter().map(Tid).collect()
}

/// The test's own part of the machine; it goes away with this value.
pub struct TestHost {
    pub host: LiveHost,
    pub group: String,
    pub children: Vec<Child>,
    pub state: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl TestHost {
    /// The stage, or why there is none on this machine.
    pub fn set(name: &str) -> Result<Self, String> {
        let turn = crate::take_turn();
        let host = LiveHost::new().map_err(|error| error.to_string())?;
        if !process::is_root() {
            return Err("only root can make cpuset groups".to_owned());
        }
        let online = list(&host, &paths::cpu_online());
        if !set("0-1").is_subset(&online) {
            return Err(format!("CPUs 0 and 1 are needed, {online} are online"));
        }
        let found = mountinfo::controller(&host, "cpuset").map_err(|error| error.to_string())?;
        let Some(found) = found.filter(|found| found.version == mountinfo::Version::V1) else {
            return Err("no cpuset hierarchy of cgroup v1".to_owned());
        };
        let group = format!("{}/pinfold-test-{name}-{}", found.mount.path, process::own_pid());
        host.make_dir(&group).map_err(|error| error.to_string())?;
        let state = tempfile::tempdir().unwrap();
        let stage = Self { host, group, children: Vec::new(), state, _turn: turn };
        let root = &found.mount.path;
        for file in [paths::cpuset_effective_mems(root), paths::cpuset_effective_cpus(root)] {
            let value = stage.host.read(&file).unwrap();
            let own = file.replace("effective_", "").replace(root, &stage.group);
            stage.host.write(&own, &value).unwrap();
        }
        Ok(stage)
    }

    /// Starts this program in a role, in the group, and waits until it has all its threads.
    pub fn start(&mut self, role: &str, threads: usize) -> Tid {
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

    pub fn spawn(&self, role: &str, arguments: &str) -> Spawn {
        let program = std::env::current_exe().unwrap();
        Spawn::new(program.to_str().unwrap())
            .args(["--exact", "actor", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(ARGUMENTS, arguments)
            .stdout(Stdio::Null)
            .stderr(Stdio::Null)
            .die_with_parent(true)
    }

    pub fn state(&self) -> String {
        format!("{}/state", self.state.path().display())
    }

    pub fn journals(&self) -> Journals<'static> {
        Journals::open(&StateDir::open(&self.state()).unwrap(), &SystemClock).unwrap()
    }

    /// Everything that the plan could change, of everybody who is on the stage.
    pub fn picture(&self) -> String {
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
        // A load average of the group, not a tunable.
        lines.retain(|line| !line.starts_with("cpuset.memory_pressure:"));
        lines.join("\n")
    }
}

impl Drop for TestHost {
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

pub fn list(host: &LiveHost, path: &str) -> CpuSet {
    CpuSet::parse_list(&host.read_text(path).unwrap()).unwrap()
}

pub fn id(task: TaskId) -> String {
    format!("{}-{}", task.tid, task.start_time)
}
