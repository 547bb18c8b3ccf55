//! Builds simulated machines.

use std::collections::BTreeMap;
use std::fmt::Display;

use pinfold_host::{SnapshotHost, paths};
use pinfold_model::tunables::{Shape, TUNABLES};
use pinfold_model::{CpuSet, Tid};

use super::machine::bandwidth::CpuV1;
use super::machine::cgroup::{CgroupVersion, Cpuset, Group, Hierarchy, Rules, parent};
use super::machine::cpuset_v1::{self, CpusetV1};
use super::machine::disk::BlkioV1;
use super::machine::freezer::FreezerV1;
use super::machine::resctrl::Resctrl;
use super::machine::unified::Unified;
use super::machine::{Machine, TaskGroups, real_time};
use super::{SimHost, SimTask, WriteRule};

/// PID of Pinfold itself on a simulated machine.
const OWN: u32 = 100;

/// Builds a simulated machine.
#[derive(Clone, Debug)]
pub struct SimBuilder {
    version: CgroupVersion,
    pus: u32,
    threads_per_core: u32,
    online: Option<CpuSet>,
    nodes: u32,
    tree: SnapshotHost,
    rules: Vec<(String, WriteRule, String)>,
    groups: Vec<(String, Cpuset)>,
    tasks: Vec<SimTask>,
    forgets_masks: bool,
    clears_populated: bool,
    local_partitions: bool,
    real_time: Option<Vec<(String, i64)>>,
    speed_groups: bool,
    resctrl: Option<Resctrl>,
}

impl SimBuilder {
    /// A machine with this number of CPUs in one package and one NUMA node, one CPU per core, with
    /// the tasks init, kthreadd and Pinfold itself (process 100).
    pub fn new(version: CgroupVersion, pus: u32) -> Self {
        Self {
            version,
            pus,
            threads_per_core: 1,
            online: None,
            nodes: 1,
            tree: SnapshotHost::new(),
            rules: vec![
                integer(paths::sysctl_kernel("numa_balancing"), "0"),
                integer(paths::sysctl_kernel("sched_rt_runtime_us"), "950000"),
                integer(paths::sysctl_kernel("sched_rt_period_us"), "1000000"),
            ],
            groups: Vec::new(),
            tasks: vec![
                SimTask::new(1, "systemd").child_of(0).started(1),
                SimTask::new(2, "kthreadd").kernel_thread().child_of(0).started(1),
                SimTask::new(OWN, "pinfold"),
            ],
            forgets_masks: false,
            clears_populated: false,
            local_partitions: false,
            real_time: None,
            speed_groups: false,
            resctrl: None,
        }
    }

    /// Cores with this number of threads; CPU n and CPU n + cores are siblings, as on most x86
    /// machines.
    #[must_use]
    pub fn smt(mut self, threads_per_core: u32) -> Self {
        self.threads_per_core = threads_per_core.max(1);
        self
    }

    /// The CPUs that are online; all by default.
    #[must_use]
    pub fn online(mut self, online: CpuSet) -> Self {
        self.online = Some(online);
        self
    }

    /// This number of nodes with memory; all CPUs are on the first.
    #[must_use]
    pub fn nodes(mut self, nodes: u32) -> Self {
        self.nodes = nodes.max(1);
        self
    }

    /// Adds a task. It replaces an earlier one with the same TID.
    #[must_use]
    pub fn task(mut self, task: SimTask) -> Self {
        self.tasks.retain(|other| other.tid != task.tid);
        self.tasks.push(task);
        self
    }

    /// Adds a cpuset group and its missing ancestors. In v2 the controller is enabled for it, and
    /// empty sets have their meaning in v2.
    #[must_use]
    pub fn group(mut self, path: &str, cpus: CpuSet, mems: CpuSet) -> Self {
        self.groups.push((path.to_owned(), Cpuset { cpus, mems, ..Cpuset::default() }));
        self
    }

    /// Adds a read-only file.
    #[must_use]
    pub fn file(mut self, path: &str, content: &str) -> Self {
        self.tree.insert_file(path, content);
        self
    }

    /// Adds a writable file.
    #[must_use]
    pub fn writable_file(mut self, path: &str, rule: WriteRule, content: &str) -> Self {
        self.rules.push((path.to_owned(), rule, content.to_owned()));
        self
    }

    /// Adds the files of all tunables for this machine's CPUs, as they are after a boot.
    #[must_use]
    pub fn tunables(mut self) -> Self {
        let all = CpuSet::first_n(self.pus);
        for tunable in TUNABLES {
            let value = tunable.values.parse(tunable.key, tunable.example, &all);
            let (Some(kernel), Ok(value)) = (tunable.kernel, value) else { continue };
            let usual = match kernel.shape {
                Shape::Mask => &all.to_mask(),
                Shape::List => &all.to_string(),
                Shape::Text | Shape::Choice | Shape::Rounded | Shape::Integer => kernel.usual,
            };
            for (path, _) in tunable.files(&value, &all) {
                self = self.writable_file(
                    &path,
                    WriteRule::from_kernel(kernel),
                    &format!("{usual}\n"),
                );
            }
        }
        self.hotplug()
    }

    /// Uses the files of a captured machine; files that the builder creates (CPU directories,
    /// tasks, cgroups) replace them.
    #[must_use]
    pub fn tree(mut self, tree: SnapshotHost) -> Self {
        self.tree = tree;
        self
    }

    /// Simulates `CONFIG_RT_GROUP_SCHED` with a v1 `cpu` controller: all tasks are in its root
    /// group, and these groups have the given run time in microseconds per second. Parents must
    /// come before their children.
    #[must_use]
    pub fn real_time_groups(mut self, groups: &[(&str, i64)]) -> Self {
        self.real_time =
            Some(groups.iter().map(|(path, runtime)| ((*path).to_owned(), *runtime)).collect());
        self
    }

    /// Adds v1 hierarchies of `cpu`, `freezer` and `blkio`. Version 2 has them by default.
    #[must_use]
    pub fn speed_groups(mut self) -> Self {
        self.speed_groups = true;
        self
    }

    /// Adds cpufreq: one policy per set of CPUs, with these frequencies in kHz, ascending. All
    /// start at the highest frequency, under the governor `performance`.
    #[must_use]
    pub fn cpufreq(mut self, policies: &[CpuSet], khz: &[u64]) -> Self {
        let words: Vec<String> = khz.iter().rev().map(u64::to_string).collect();
        let (least, most) = (khz.first().copied().unwrap_or(0), khz.last().copied().unwrap_or(0));
        for pus in policies {
            let Some(first) = pus.iter().next() else { continue };
            let policy = format!("policy{first}");
            let path = |name: &str| paths::cpufreq_policy_file(&policy, name);
            let mut put =
                |name: &str, text: String| self.tree.insert_file(&path(name), format!("{text}\n"));
            put("related_cpus", list(pus));
            put("affected_cpus", list(pus));
            put("cpuinfo_min_freq", least.to_string());
            put("cpuinfo_max_freq", most.to_string());
            put("scaling_available_frequencies", words.join(" "));
            put("scaling_available_governors", "performance userspace schedutil".to_owned());
            let governor =
                (path("scaling_governor"), WriteRule::Governor, "performance\n".to_owned());
            let speed =
                (path("scaling_setspeed"), WriteRule::Frequency, "<unsupported>\n".to_owned());
            self.rules.extend([governor, speed]);
        }
        self
    }

    /// Adds a mounted `resctrl` with L3 ways and memory bandwidth of this number of domains, and
    /// this number of classes of service including that of the root group.
    #[must_use]
    pub fn resctrl(mut self, domains: u32, classes: usize) -> Self {
        self.resctrl = Some(Resctrl::new(domains, classes));
        self
    }

    /// Simulates a kernel before 6.2: cgroup moves and cpuset changes reset affinity masks.
    #[must_use]
    pub fn resets_affinity(mut self) -> Self {
        self.forgets_masks = true;
        self
    }

    /// Simulates Linux 7.0 or later: in v2, `cpuset.cpus` and `cpuset.mems` of a group with tasks
    /// may be cleared, back to the parent's. Before, that was `ENOSPC`, as in v1.
    #[must_use]
    pub fn clears_populated(mut self) -> Self {
        self.clears_populated = true;
        self
    }

    /// Simulates a kernel before 6.7: the parent of a partition must be a partition too, and there
    /// is no `cpuset.cpus.exclusive`.
    #[must_use]
    pub fn local_partitions(mut self) -> Self {
        self.local_partitions = true;
        self
    }

    /// Allows all CPUs except the first to be taken offline, individually or by switching SMT off.
    #[must_use]
    pub fn hotplug(mut self) -> Self {
        for pu in CpuSet::first_n(self.pus).iter().skip(1) {
            self.rules.push((paths::cpu_is_online(pu), WriteRule::Online(pu), "1\n".to_owned()));
        }
        let cores = self.cores();
        if self.threads_per_core > 1 {
            self.rules.push((paths::smt_control(), WriteRule::Smt(cores), "on\n".to_owned()));
        }
        self
    }

    /// Builds the machine. A group that only a task names is created, without its own cpuset in v2
    /// and with its parent's whole cpuset in v1.
    #[must_use]
    pub fn build(self) -> SimHost {
        let possible = CpuSet::first_n(self.pus);
        let online = self.online.clone().unwrap_or_else(|| possible.clone());
        let (hierarchies, cpuset_index) = self.hierarchies(&online);
        let count = hierarchies.len();
        let mut machine = Machine {
            possible,
            online,
            cores: self.cores(),
            mems: CpuSet::first_n(self.nodes),
            relax_levels: 2,
            own: Tid(OWN),
            tasks: BTreeMap::new(),
            newest: Tid(0),
            hierarchies,
            cpuset_index,
            tree: self.files(),
            rules: self.rules.iter().map(|(path, rule, _)| (path.clone(), *rule)).collect(),
            forgets_masks: self.forgets_masks,
            clears_populated: self.clears_populated,
            local_partitions: self.local_partitions,
            settings: BTreeMap::new(),
            resctrl: self.resctrl.clone(),
        };
        machine.show_topology();
        for task in self.tasks {
            let mut groups = vec!["/".to_owned(); count];
            groups[cpuset_index].clone_from(&task.group);
            machine.newest = task.tid;
            machine.tasks.insert(task.tid, TaskGroups { task, groups });
        }
        SimHost::from_machine(machine)
    }

    fn hierarchies(&self, online: &CpuSet) -> (Vec<Hierarchy>, usize) {
        let mut hierarchies = match self.version {
            CgroupVersion::V1 => {
                let root = cpuset_v1::root_group(online.clone(), CpuSet::first_n(self.nodes));
                vec![
                    hierarchy("/sys/fs/cgroup/cpuset", 3, &["cpuset"], root),
                    hierarchy("/sys/fs/cgroup/unified", 0, &[], Group::default()),
                ]
            }
            CgroupVersion::V2 => {
                let controllers = ["cpuset", "cpu", "io", "memory", "pids"];
                vec![hierarchy("/sys/fs/cgroup", 0, &controllers, Group::default())]
            }
        };
        for (path, cpuset) in &self.groups {
            ensure_group(&mut hierarchies[0], path);
            if self.version == CgroupVersion::V2 {
                enable_above(&mut hierarchies[0], path);
            }
            if let Some(group) = hierarchies[0].groups.get_mut(path) {
                group.cpuset = cpuset.clone();
            }
        }
        for task in &self.tasks {
            ensure_group(&mut hierarchies[0], &task.group);
        }
        if self.speed_groups && self.version == CgroupVersion::V1 {
            for (name, id) in [("cpu", 1), ("freezer", 6), ("blkio", 7)] {
                let mount = format!("/sys/fs/cgroup/{name}");
                hierarchies.push(hierarchy(&mount, id, &[name], Group::default()));
            }
        }
        if let Some(groups) = &self.real_time {
            let root = real_time::root_group();
            let controllers = [real_time::CONTROLLER];
            let mut made = hierarchy("/sys/fs/cgroup/cpu", 1, &controllers, root);
            for (path, runtime) in groups {
                made.groups.insert(path.clone(), real_time::with_runtime(*runtime));
            }
            hierarchies.push(made);
        }
        (hierarchies, 0)
    }

    fn cores(&self) -> u32 {
        (self.pus / self.threads_per_core).max(1)
    }

    /// The files that no rule changes: possible CPUs, SMT, boot ID, kernel.
    fn files(&self) -> SnapshotHost {
        let mut tree = self.tree.clone();
        let all = CpuSet::first_n(self.pus);
        put(paths::cpu_possible(), &all, &mut tree);
        put(paths::cpu_present(), &all, &mut tree);
        put(paths::cpu_isolated(), &"", &mut tree);
        put(paths::smt_active(), &u8::from(self.threads_per_core > 1), &mut tree);
        put(
            paths::smt_control(),
            &if self.threads_per_core > 1 { "on" } else { "notsupported" },
            &mut tree,
        );
        put(paths::node_online(), &CpuSet::first_n(self.nodes), &mut tree);
        put(paths::boot_id(), &"0f4c5a52-6a3e-4c1b-9a55-3f2d6f1b7c10", &mut tree);
        put(paths::kernel_release(), &"6.12.0-sim", &mut tree);
        for (path, _, content) in &self.rules {
            tree.insert_file(path, content.as_str());
        }
        tree
    }
}

fn put(path: String, value: &dyn Display, tree: &mut SnapshotHost) {
    tree.insert_file(&path, format!("{value}\n"));
}

fn hierarchy(mount: &str, id: u32, controllers: &[&'static str], root: Group) -> Hierarchy {
    Hierarchy {
        version: if id == 0 { CgroupVersion::V2 } else { CgroupVersion::V1 },
        rules: rules(id, controllers),
        mount: mount.to_owned(),
        id,
        controllers: controllers.to_vec(),
        groups: BTreeMap::from([("/".to_owned(), root)]),
    }
}

fn integer(path: String, value: &str) -> (String, WriteRule, String) {
    (path, WriteRule::Integer, format!("{value}\n"))
}

fn list(pus: &CpuSet) -> String {
    pus.iter().map(|pu| pu.to_string()).collect::<Vec<_>>().join(" ")
}

/// The rules of a hierarchy with this ID and these controllers; the unified one has ID 0.
fn rules(id: u32, controllers: &[&str]) -> &'static dyn Rules {
    match controllers {
        _ if id == 0 => &Unified,
        ["cpuset"] => &CpusetV1,
        [real_time::CONTROLLER] => &CpuV1,
        ["blkio"] => &BlkioV1,
        _ => &FreezerV1,
    }
}

fn ensure_group(hierarchy: &mut Hierarchy, path: &str) {
    if hierarchy.groups.contains_key(path) {
        return;
    }
    let Some(above) = parent(path).map(str::to_owned) else {
        return;
    };
    ensure_group(hierarchy, &above);
    let mut group = Group::default();
    if hierarchy.version == CgroupVersion::V1
        && let Some(from) = hierarchy.groups.get(&above)
    {
        group.cpuset = from.cpuset.clone();
    }
    hierarchy.groups.insert(path.to_owned(), group);
}

fn enable_above(hierarchy: &mut Hierarchy, path: &str) {
    let mut at = path;
    while let Some(above) = parent(at) {
        if let Some(group) = hierarchy.groups.get_mut(above) {
            group.subtree_control.insert("cpuset");
        }
        at = above;
    }
}
