//! Compares the v1 simulation with the running kernel, error number by error number.
//!
//! The same operations are made in a subtree that the test creates on the live host and on a
//! simulated copy; every result and, after each change, every file must be equal. Only groups below
//! `pinfold-test-PID` and only children of this test are changed.

use std::fmt::Debug;

use pinfold_host::process::{Child, Spawn, own_pid};
use pinfold_host::{HostMut, LiveHost, mountinfo, paths};
use pinfold_model::PuId;

use super::*;

const MOUNT: &str = "/sys/fs/cgroup/cpuset";

/// The live host, its simulated copy, and what was created on them.
struct Pair {
    live: LiveHost,
    sim: SimHost,
    base: String,
    children: Vec<Child>,
}

#[derive(Clone, Copy, Debug)]
enum Task {
    First,
    Second,
}

/// The two machines, or the reason why the comparison is not possible here.
fn pair() -> Result<Pair, &'static str> {
    if !pinfold_host::process::is_root() {
        return Err("only root may make cpuset groups");
    }
    let live = LiveHost::new().map_err(|_| "the kernel has no openat2")?;
    let found = mountinfo::controller(&live, "cpuset").map_err(|_| "the mounts cannot be read")?;
    let found = found.ok_or("no cpuset hierarchy is mounted")?;
    if found.version != mountinfo::Version::V1 || found.mount.path != MOUNT {
        return Err("cpuset is not a v1 hierarchy at its usual place");
    }
    if found.mount.root != "/" || found.mount.is_read_only() {
        return Err("the cpuset hierarchy is not wholly ours");
    }
    let own = live.read_text(&paths::own_cgroup()).map_err(|_| "the own groups cannot be read")?;
    if !own.lines().any(|line| line.ends_with(":cpuset:/")) {
        return Err("the test runs inside a cpuset group");
    }
    let base = format!("{MOUNT}/pinfold-test-{}", own_pid());
    live.make_dir(&base).map_err(|_| "no group can be made in the cpuset hierarchy")?;
    let children: Vec<Child> = (0..2)
        .map(|_| Spawn::new("sleep").args(["600"]).die_with_parent(true).start().unwrap())
        .collect();
    let sim = twin(&live, &children);
    sim.make_dir(&base).unwrap();
    Ok(Pair { live, sim, base, children })
}

fn twin(live: &LiveHost, children: &[Child]) -> SimHost {
    let possible = set(&live.read_text(&paths::cpu_possible()).unwrap());
    let builder = SimHost::builder(CgroupVersion::V1, possible.iter().last().unwrap().0 + 1)
        .online(set(&live.read_text(&paths::cpu_online()).unwrap()));
    let release = live.read_text(&paths::kernel_release()).unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.trim().parse::<u32>().ok());
    let version = (numbers.next().unwrap(), numbers.next().unwrap());
    let builder = if version < (6, 2) { builder.resets_affinity() } else { builder };
    let sim = children
        .iter()
        .fold(builder, |builder, child| builder.task(SimTask::new(child.pid().0, "sleep")))
        .build();
    // Existing groups, next to which a group cannot be exclusive.
    for name in live.list(MOUNT).unwrap() {
        let group = format!("{MOUNT}/{name}");
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let path = paths::cgroup_file(&group, file);
            let is_group = live.exists(&path);
            let value = if is_group { live.read(&path).unwrap() } else { Vec::new() };
            if !value.trim_ascii().is_empty() {
                if !sim.exists(&group) {
                    sim.make_dir(&group).unwrap();
                }
                sim.write(&path, value.trim_ascii()).unwrap();
            }
        }
    }
    sim
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.children.clear();
        for group in ["/a/b", "/a", "/c", ""] {
            let path = format!("{}{group}", self.base);
            if self.live.exists(&path) && self.live.remove_dir(&path).is_err() {
                eprintln!("{path} could not be removed");
            }
        }
    }
}

impl Pair {
    fn same<T: PartialEq + Debug>(
        &self,
        what: &str,
        ask: impl Fn(&dyn HostMut) -> Result<T, HostError>,
    ) {
        assert_eq!(
            ask(&self.sim).map_err(|error| error.errno()),
            ask(&self.live).map_err(|error| error.errno()),
            "simulated (left) and live: {what}"
        );
    }

    /// Compares all files of all groups, except a counter that is not simulated.
    fn same_files(&self, after: &str) {
        for group in ["", "/a", "/a/b", "/c"] {
            let path = format!("{}{group}", self.base);
            self.same(&format!("list {path} after {after}"), |host| host.list(&path));
            let Ok(names) = self.live.list(&path) else { continue };
            for name in names.iter().filter(|name| !name.contains("memory_pressure")) {
                let file = format!("{path}/{name}");
                if !self.live.exists(&format!("{file}/tasks")) {
                    self.same(&format!("{file} after {after}"), |host| host.read_text(&file));
                }
            }
        }
        for child in &self.children {
            self.same(&format!("affinity after {after}"), |host| host.affinity(child.pid()));
        }
    }

    fn make(&self, group: &str) {
        let path = format!("{}{group}", self.base);
        self.same(&format!("make {path}"), |host| host.make_dir(&path));
        self.same_files(&format!("make {group}"));
    }

    fn remove(&self, group: &str) {
        let path = format!("{}{group}", self.base);
        self.same(&format!("remove {path}"), |host| host.remove_dir(&path));
        self.same_files(&format!("remove {group}"));
    }

    fn write(&self, file: &str, value: &str) {
        let path = format!("{}{file}", self.base);
        self.same(&format!("write {value:?} to {file}"), |host| {
            host.write(&path, value.as_bytes())
        });
        self.same_files(&format!("write {value:?} to {file}"));
    }

    fn enter(&self, file: &str, task: Task) {
        let pid = self.pid(task).to_string();
        self.write(file, &pid);
    }

    fn leave(&self, task: Task) {
        let pid = self.pid(task).to_string();
        let path = format!("{MOUNT}/tasks");
        self.same("leave", |host| host.write(&path, pid.as_bytes()));
        self.same_files("leave");
    }

    fn affinity(&self, task: Task, mask: &CpuSet) {
        let pid = self.pid(task);
        self.same(&format!("affinity {mask}"), |host| host.set_affinity(pid, mask));
        self.same_files(&format!("affinity {mask}"));
    }

    fn policy(&self, task: Task, policy: Policy) {
        let pid = self.pid(task);
        self.same(&format!("set policy {policy}"), |host| host.set_policy(pid, policy));
        self.same(&format!("policy after {policy}"), |host| host.policy(pid));
    }

    fn pid(&self, task: Task) -> Tid {
        match task {
            Task::First => self.children[0].pid(),
            Task::Second => self.children[1].pid(),
        }
    }
}

#[test]
fn the_kernel_gives_the_same_answers() {
    let pair = match pair() {
        Ok(pair) => pair,
        Err(why) => {
            eprintln!("skipped: {why}");
            return;
        }
    };
    new_groups_and_lists(&pair);
    nesting_and_exclusion(&pair);
    affinity_within_the_cpuset(&pair);
    children_are_born_inside(&pair);
    policies(&pair);
    removal(&pair);
}

fn new_groups_and_lists(pair: &Pair) {
    pair.make("");
    pair.make("/none/x");
    pair.make("/tasks");
    pair.enter("/tasks", Task::First);
    for value in [
        "0",
        "",
        "x",
        "1-0",
        "0-",
        "^0",
        "99999",
        "99999999999",
        "0 0",
        ",0,",
        "all",
        "N",
        "0-0:0/1",
        "\n",
        " 0 \n",
        "0x0",
        "0-0:1/0",
        "0\u{0}x",
    ] {
        pair.write("/cpuset.cpus", value);
    }
    pair.write("/cpuset.cpus", "0\n");
    pair.enter("/tasks", Task::First);
    for value in ["x", "5000", "\n", "0-1:1/2", "0"] {
        pair.write("/cpuset.mems", value);
    }
    pair.enter("/tasks", Task::First);
    pair.enter("/tasks", Task::First);
    for value in ["", "x", "-1", "99999999", "4294967296", "\n"] {
        pair.write("/tasks", value);
    }
    pair.write("/cpuset.cpus", "\n");
    pair.write("/cpuset.mems", "\n");
    for file in
        ["/cpuset.effective_cpus", "/cpuset.effective_mems", "/cpuset.memory_pressure", "/none"]
    {
        pair.write(file, "0");
    }
    for file in [
        "/cgroup.clone_children",
        "/cpuset.cpu_exclusive",
        "/cpuset.mem_exclusive",
        "/cpuset.mem_hardwall",
        "/cpuset.memory_migrate",
        "/cpuset.memory_spread_page",
        "/cpuset.sched_load_balance",
        "/notify_on_release",
    ] {
        for value in ["x", " 1", "-1", "", "1", "7\n", "0x10", "08", "0"] {
            pair.write(file, value);
        }
    }
    pair.write("/cpuset.sched_relax_domain_level", "-1");
    pair.write("/cpuset.sched_relax_domain_level", "x");
    pair.write("/cpuset.sched_load_balance", "1");
}

fn nesting_and_exclusion(pair: &Pair) {
    pair.write("/cpuset.cpus", "all");
    pair.make("/a");
    pair.make("/a/b");
    pair.make("/c");
    pair.write("/a/b/cpuset.cpus", "0");
    pair.write("/a/cpuset.cpus", "N");
    pair.write("/a/cpuset.mems", "0");
    pair.write("/a/b/cpuset.cpus", "0");
    pair.write("/a/b/cpuset.cpus", "N");
    pair.write("/a/b/cpuset.mems", "0");
    pair.write("/a/cpuset.cpus", "0");
    pair.write("/cpuset.cpus", "0");
    pair.enter("/a/b/cgroup.procs", Task::Second);
    pair.write("/c/cpuset.mems", "0");
    pair.write("/c/cpuset.cpus", "N");
    pair.write("/a/cpuset.cpu_exclusive", "1");
    pair.write("/cpuset.cpu_exclusive", "1");
    pair.write("/c/cpuset.mem_exclusive", "1");
    pair.write("/c/cpuset.mem_hardwall", "1");
    pair.write("/c/cpuset.mem_hardwall", "0");
    pair.write("/cgroup.clone_children", "1");
    pair.write("/cgroup.clone_children", "0");
}

fn affinity_within_the_cpuset(pair: &Pair) {
    let all = pair.live.affinity(own_pid()).unwrap();
    let online = set(&pair.live.read_text(&paths::cpu_online()).unwrap());
    let first = CpuSet::single(online.first().unwrap());
    let last = CpuSet::single(online.iter().last().unwrap());
    for mask in [&first, &last, &online, &all, &CpuSet::new(), &CpuSet::single(PuId(30_000))] {
        pair.affinity(Task::First, mask);
        pair.affinity(Task::Second, mask);
    }
    pair.affinity(Task::First, &first);
    // The cpuset moves away from the mask, and comes back.
    pair.enter("/c/tasks", Task::First);
    pair.write("/c/cpuset.cpus", "all");
    pair.write("/c/cpuset.cpus", "N");
    pair.write("/c/cpuset.cpus", "0");
    pair.leave(Task::First);
    pair.affinity(Task::First, &last);
    pair.enter("/c/tasks", Task::First);
    pair.leave(Task::First);
    pair.affinity(Task::First, &online);
}

/// A child that joins before its exec is in the group from its first instruction.
fn children_are_born_inside(pair: &Pair) {
    let tasks = format!("{}/c/tasks", pair.base);
    let mut child =
        Spawn::new("sleep").args(["600"]).cgroup_files(vec![tasks.clone()]).start().unwrap();
    let groups = pair.live.read_text(&paths::process_cgroup(child.pid())).unwrap();
    let group = pair.base.strip_prefix(MOUNT).unwrap();
    assert!(groups.contains(&format!(":cpuset:{group}/c\n")), "{groups}");
    child.kill().unwrap();
    pair.live.write(&paths::cpuset_cpus(&format!("{}/c", pair.base)), b"\n").unwrap();
    let refused = Spawn::new("sleep").args(["600"]).cgroup_files(vec![tasks.clone()]).start();
    let error = refused.unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOSPC));
    assert_eq!(error.to_string(), format!("cannot write {tasks} (value \"0\")"));
    pair.write("/c/cpuset.cpus", "0");
}

fn policies(pair: &Pair) {
    for policy in [
        Policy::Batch { nice: 5 },
        Policy::Idle,
        Policy::Other { nice: -3 },
        Policy::Fifo { priority: 0 },
        Policy::RoundRobin { priority: 100 },
        Policy::Unknown { number: 99 },
        Policy::Deadline { runtime_ns: 500, deadline_ns: 1_000_000, period_ns: 1_000_000 },
        Policy::Deadline { runtime_ns: 9_000_000, deadline_ns: 1_000_000, period_ns: 1_000_000 },
    ] {
        pair.policy(Task::First, policy);
    }
}

fn removal(pair: &Pair) {
    pair.remove("/a");
    pair.remove("/a/b");
    pair.remove("/none");
    pair.remove("/cpuset.cpus");
    pair.leave(Task::Second);
    pair.remove("/a/b");
    pair.remove("/a");
    pair.remove("/a");
    pair.remove("/c");
}
