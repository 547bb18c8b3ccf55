//! What culprits are called: read while they still exist.

use std::collections::BTreeMap;

use pinfold_host::{CgroupPaths, Host, Occupant, OtherTask, RawGap, paths, proc_cgroup};
use pinfold_model::Tid;

/// Names of interrupts, groups and machines.
#[derive(Clone, Debug)]
pub struct Names {
    /// Drivers by number of the interrupt.
    pub interrupts: BTreeMap<u64, String>,
    /// Paths of cgroups by their IDs.
    pub groups: CgroupPaths,
    /// Path of the cgroup by thread, if its ID has none.
    pub cgroups: BTreeMap<Tid, Option<String>>,
    /// Machines by process.
    pub machines: BTreeMap<Tid, String>,
    /// The name of an exit that KVM handled.
    pub exits: fn(u64) -> String,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            interrupts: BTreeMap::new(),
            groups: CgroupPaths::default(),
            cgroups: BTreeMap::new(),
            machines: BTreeMap::new(),
            exits: |reason| format!("{reason:#x}"),
        }
    }
}

impl Names {
    /// Without any yet.
    pub fn new(host: &dyn Host) -> Self {
        Self { groups: CgroupPaths::new(host), ..Self::default() }
    }

    /// Path of the cgroup of a task; `None` for the root, or if it is unknown.
    pub fn cgroup(&self, task: &OtherTask) -> Option<String> {
        match self.groups.path(task.cgroup_id) {
            Some(path) => {
                Some(path).filter(|path| !path.is_empty() && *path != "/").map(str::to_owned)
            }
            None => self.cgroups.get(&task.tid).cloned().flatten(),
        }
    }

    /// Reads the names that a gap needs.
    pub fn learn(&mut self, host: &dyn Host, gap: &RawGap) {
        for slice in &gap.slices {
            match &slice.occupant {
                Occupant::Interrupt(number) => {
                    self.interrupts.entry(*number).or_insert_with(|| {
                        let actions = host.read_text(&paths::irq_actions(*number));
                        actions.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
                    });
                }
                Occupant::Task(task) => {
                    if task.cgroup_id > 0 {
                        self.groups.learn(task.cgroup_id);
                        if self.groups.path(task.cgroup_id).is_some() {
                            continue;
                        }
                    }
                    self.cgroups.entry(task.tid).or_insert_with(|| {
                        let text = host.read_text(&paths::process_file(task.tid, "cgroup")).ok()?;
                        let groups = proc_cgroup::parse(&text).ok()?;
                        let v1 = proc_cgroup::v1_path(&groups, "cpu");
                        let path = v1.or_else(|| proc_cgroup::v2_path(&groups))?;
                        (path != "/").then(|| path.to_owned())
                    });
                }
                Occupant::Idle(_)
                | Occupant::Vector(_)
                | Occupant::Softirq(_)
                | Occupant::Function(..) => {}
            }
        }
    }
}

/// `other`, `other, nice -15`, `fifo:50`, `idle`.
pub fn policy(task: &OtherTask) -> String {
    let priority = 99_u32.saturating_sub(task.priority);
    let nice = match i64::from(task.priority) - 120 {
        0 => String::new(),
        // It has inherited a real-time priority, so its own is not known.
        below if below < -20 => String::new(),
        nice => format!(", nice {nice}"),
    };
    // `SCHED_*`; a deadline task has the priority −1.
    match task.policy & 0xff {
        0 => format!("other{nice}"),
        1 => format!("fifo:{priority}"),
        2 => format!("rr:{priority}"),
        3 => format!("batch{nice}"),
        5 => "idle".to_owned(),
        6 => "deadline".to_owned(),
        7 => format!("ext{nice}"),
        number => format!("policy {number}"),
    }
}
