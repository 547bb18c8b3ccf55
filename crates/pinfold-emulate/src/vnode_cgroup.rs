//! The cgroups of a vnode: one directory in each hierarchy that its method needs.

mod affinity_lock;
mod attach;
mod disk;
mod per_core;
mod runtime_toggle;

use std::collections::BTreeSet;

use pinfold_host::{Host, HostError, paths};
use pinfold_model::text::cpus_text;
use pinfold_model::{Attach, Change, CpuSet, Method, Step, Tid, Undo};

use crate::hierarchies::{Hierarchies, MountedHierarchy};
use crate::node::Node;
use crate::{SpeedError, cleanup, methods};

pub(crate) use disk::caution as disk_caution;
pub use disk::limited_disk;
pub use per_core::Part;

/// Prefix of the names of vnodes' groups.
pub const GROUP_PREFIX: &str = "pinfold-vnode-";

/// The cgroups of one vnode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VnodeCgroup {
    /// Directory in the cpuset hierarchy; `None` if there is none.
    pub cpuset: Option<String>,
    /// Directory in the hierarchy of the cpu controller.
    pub cpu: Option<String>,
    /// Directory in the freezer hierarchy.
    pub freezer: Option<String>,
    /// Directory in the `perf_event` hierarchy.
    pub perf: Option<String>,
    /// Directory of Pinfold's own in the hierarchy of io (blkio), if its disk is limited.
    pub io: Option<String>,
    /// Child groups among which its threads are distributed; empty for most methods.
    pub parts: Vec<Part>,
    /// True if the groups already existed and belong to another program; the one in cpuset may be
    /// Pinfold's.
    pub is_attached: bool,
    /// Those of the directories that are cgroup v2.
    pub(crate) unified: BTreeSet<String>,
    // The group that processes join, if the groups belong to another program.
    pub(crate) entry: Option<String>,
}

impl VnodeCgroup {
    /// The directories without duplicates.
    pub fn directories(&self) -> Vec<String> {
        let all = [&self.cpuset, &self.cpu, &self.freezer, &self.perf, &self.io];
        let once: BTreeSet<&String> = all.into_iter().flatten().collect();
        once.into_iter().cloned().collect()
    }

    /// The files through which a process joins the vnode.
    #[must_use]
    pub fn entries(&self) -> Vec<String> {
        self.entry_groups().iter().map(|group| paths::cgroup_procs(group)).collect()
    }

    /// The groups that a process joins. A new thread is in the groups of its creator; if there are
    /// parts, processes join the first one.
    fn entry_groups(&self) -> Vec<String> {
        if let Some(entry) = &self.entry {
            return self.cpuset.iter().chain(&self.io).chain([entry]).cloned().collect();
        }
        let Some(part) = self.parts.first() else { return self.directories() };
        let of_part: BTreeSet<&String> = [Some(&part.cpu), part.cpuset.as_ref(), self.io_outside()]
            .into_iter()
            .flatten()
            .collect();
        of_part.into_iter().cloned().collect()
    }

    /// Plans the groups of a vnode and all steps that its method needs: they create the groups,
    /// move an existing process into them, and prepare the host.
    ///
    /// # Errors
    /// [`SpeedError::Unavailable`] if the host lacks something that the method needs,
    /// [`SpeedError::Occupied`] if one of the groups already exists, [`SpeedError::Unattached`] if
    /// the group or process cannot become the vnode.
    pub fn plan(
        host: &dyn Host,
        hierarchies: &Hierarchies,
        node: &Node,
    ) -> Result<(Self, Vec<Step>), SpeedError> {
        if let (Some(memory), None) = (node.memory_node, &hierarchies.cpuset) {
            return Err(SpeedError::Unbound { vnode: node.name.clone(), node: memory });
        }
        if node.disk.is_some() {
            limited_disk(host, hierarchies, node)?;
        }
        let (cgroup, mut steps) = match &node.attach {
            Some(Attach::Group(path)) => {
                let mut cgroup = attach::group(host, hierarchies, node, path)?;
                let mut steps = cgroup.hold(host, hierarchies, node)?;
                steps.extend(cgroup.limit_disk(host, hierarchies, node)?);
                steps.extend(cgroup.count_missed(host, hierarchies, node)?);
                (cgroup, steps)
            }
            Some(Attach::Process(_)) => {
                let (cgroup, mut steps) = Self::own(host, hierarchies, node)?;
                steps.extend(cgroup.count_missed(host, hierarchies, node)?);
                (cgroup, steps)
            }
            // Names are resolved before.
            Some(Attach::Named { .. }) | None => Self::own(host, hierarchies, node)?,
        };
        steps.extend(methods::steps(host, node)?);
        steps.extend(cgroup.toggle_steps(host, node)?);
        Ok((cgroup, steps))
    }

    /// Steps for processes that were created since the vnode was planned, or while others were
    /// moved: they move them into the groups, or set their masks to the vnode's CPUs. Empty if none
    /// are left.
    ///
    /// # Errors
    /// As [`VnodeCgroup::plan`].
    pub fn count_missed(
        &self,
        host: &dyn Host,
        hierarchies: &Hierarchies,
        node: &Node,
    ) -> Result<Vec<Step>, SpeedError> {
        let (processes, doors, reason) = match (&node.attach, &self.perf) {
            (Some(Attach::Process(pid)), _) => (
                attach::process(host, node, *pid)?,
                self.entry_groups(),
                format!("process {pid} and its children become vnode {}", node.name),
            ),
            (Some(Attach::Group(path)), Some(group)) => (
                cleanup::pids(host, group)?,
                self.cpuset.iter().chain(&self.io).cloned().collect(),
                format!("group {path} becomes vnode {}", node.name),
            ),
            (Some(Attach::Group(_) | Attach::Named { .. }) | None, _) => return Ok(Vec::new()),
        };
        // Without cpuset, only affinity masks restrict them to the vnode's CPUs.
        if hierarchies.cpuset.is_none() {
            let mut steps = attach::moves(host, hierarchies, &doors, &processes, &reason)?;
            steps.extend(affinity_lock::masks(host, &processes, &node.pus(), &reason)?);
            return Ok(steps);
        }
        attach::moves(host, hierarchies, &doors, &processes, &reason)
    }

    /// Plans what joins this vnode, which is active: the group or process of `node`, which is
    /// otherwise this vnode. A group stays as it is and has an own `VnodeCgroup`; a process is moved
    /// into the groups of the vnode.
    ///
    /// # Errors
    /// As [`VnodeCgroup::plan`].
    pub fn add(
        &self,
        host: &dyn Host,
        hierarchies: &Hierarchies,
        node: &Node,
    ) -> Result<(Self, Vec<Step>), SpeedError> {
        let mut steps = Vec::new();
        let cgroup = match &node.attach {
            Some(Attach::Group(path)) => {
                let mut cgroup = attach::group(host, hierarchies, node, path)?;
                match &hierarchies.cpuset {
                    Some(place) if place.unified => {
                        steps.extend(cgroup.hold(host, hierarchies, node)?);
                    }
                    Some(_) => cgroup.cpuset.clone_from(&self.cpuset),
                    None => {}
                }
                match &hierarchies.io {
                    Some(place) if place.unified => {
                        steps.extend(cgroup.limit_disk(host, hierarchies, node)?);
                    }
                    Some(_) | None => cgroup.io.clone_from(&self.io),
                }
                cgroup
            }
            Some(Attach::Process(_) | Attach::Named { .. }) | None => self.clone(),
        };
        steps.extend(cgroup.count_missed(host, hierarchies, node)?);
        Ok((cgroup, steps))
    }

    /// What another program has set as the CPUs of an attached group since, empty if it has removed
    /// the list or disabled its controller; `None` if they are still those of the vnode.
    ///
    /// # Errors
    /// [`SpeedError::Host`] if they cannot be read.
    pub fn changed_cpus(
        &self,
        host: &dyn Host,
        hierarchies: &Hierarchies,
        pus: &CpuSet,
    ) -> Result<Option<String>, SpeedError> {
        let is_set = hierarchies.cpuset.as_ref().is_some_and(|place| place.unified);
        let Some(group) = self.perf.as_ref().filter(|_| is_set && self.is_attached) else {
            return Ok(None);
        };
        let path = paths::cpuset_cpus(group);
        // systemd disables controllers that none of its units needs.
        let text = if host.exists(&path) { host.read_text(&path)? } else { String::new() };
        let is_kept = CpuSet::parse_list(text.trim()).is_ok_and(|found| found == *pus);
        Ok((!is_kept).then(|| text.trim().to_owned()))
    }

    /// The steps that restrict a process to the CPUs of the vnode before it enters. Empty if a
    /// cpuset does that.
    ///
    /// # Errors
    /// [`SpeedError`] if its masks cannot be read.
    pub fn restrict(
        &self,
        host: &dyn Host,
        process: Tid,
        node: &str,
        pus: &CpuSet,
    ) -> Result<Vec<Step>, SpeedError> {
        if self.cpuset.is_some() {
            return Ok(Vec::new());
        }
        let reason = format!("process {process} enters vnode {node}");
        Ok(affinity_lock::masks(host, &[process], pus, &reason)?)
    }

    fn own(
        host: &dyn Host,
        hierarchies: &Hierarchies,
        node: &Node,
    ) -> Result<(Self, Vec<Step>), SpeedError> {
        let needs = methods::info(node.method).groups;
        let name = format!("{GROUP_PREFIX}{}", node.name);
        let mut cgroup = Self::default();
        let mut steps: Vec<Step> = Vec::new();
        let mut made = |place: &Option<MountedHierarchy>, what: &str, wanted: bool| {
            let place = match (place, wanted) {
                (_, false) => return Ok(None),
                (Some(place), true) => place,
                (None, true) => return Err(missing(node, what)),
            };
            let path = paths::cgroup_file(&place.root, &name);
            if host.exists(&path) {
                return Err(SpeedError::Occupied { path });
            }
            let reason = format!("vnode {} has groups of its own", node.name);
            if !steps
                .iter()
                .any(|step| matches!(&step.change, Change::MakeGroup { path: at } if *at == path))
            {
                let undo = Undo::RemoveGroup { path: path.clone() };
                steps.push(Step { change: Change::MakeGroup { path: path.clone() }, undo, reason });
            }
            if place.unified {
                cgroup.unified.insert(path.clone());
            }
            Ok(Some(path))
        };
        // Without cpuset, only affinity masks restrict the vnode to its CPUs.
        let cpuset = made(&hierarchies.cpuset, "cpuset", hierarchies.cpuset.is_some())?;
        let cpu = made(&hierarchies.cpu, "cpu", needs.cpu)?;
        let freezer = made(&hierarchies.freezer, "freezer", needs.freezer)?;
        let perf = made(&hierarchies.perf, "perf_event", needs.perf)?;
        let io = made(&hierarchies.io, "io", node.disk.is_some())?;
        let mut cgroup = Self { cpuset, cpu, freezer, perf, io, ..cgroup };
        let mut first = enabling(host, hierarchies, needs.cpu, node.disk.is_some())?;
        first.append(&mut steps);
        first.extend(cgroup.confining(host, hierarchies, node)?);
        first.extend(cgroup.limit_disk(host, hierarchies, node)?);
        first.extend(cgroup.divide(host, hierarchies, node)?);
        Ok((cgroup, first))
    }

    /// The steps that set CPUs and memory nodes of the cpuset group.
    fn confining(
        &self,
        host: &dyn Host,
        hierarchies: &Hierarchies,
        node: &Node,
    ) -> Result<Vec<Step>, SpeedError> {
        let (Some(group), Some(place)) = (&self.cpuset, &hierarchies.cpuset) else {
            return Ok(Vec::new());
        };
        confine(host, place, node, group, &node.pus())
    }
}

/// The steps for a cpuset group before it accepts a task.
fn confine(
    host: &dyn Host,
    place: &MountedHierarchy,
    node: &Node,
    group: &str,
    pus: &CpuSet,
) -> Result<Vec<Step>, SpeedError> {
    let mut steps = Vec::new();
    let nodes = match (node.memory_node, place.unified) {
        (Some(memory), _) => Some(memory.to_string()),
        // A v1 group without memory nodes accepts no task.
        (None, false) => {
            let path = paths::cpuset_mems(&place.root);
            Some(host.read_text(&path)?.trim().to_owned())
        }
        (None, true) => None,
    };
    if let Some(nodes) = nodes {
        let reason = format!("memory of vnode {}", node.name);
        steps.push(write(group, paths::cpuset_mems(group), &nodes, reason));
    }
    let reason = format!("vnode {} has {} here", node.name, cpus_text(pus));
    steps.push(write(group, paths::cpuset_cpus(group), &pus.to_string(), reason));
    Ok(steps)
}

/// A write to a file of one of Pinfold's groups, which needs no undo because the group is removed.
fn write(group: &str, path: String, value: &str, reason: String) -> Step {
    Step {
        change: Change::WriteFile { path, value: value.as_bytes().to_vec() },
        undo: Undo::RemoveGroup { path: group.to_owned() },
        reason,
    }
}

/// In v2, controllers are enabled for groups one level at a time.
fn enabling(
    host: &dyn Host,
    hierarchies: &Hierarchies,
    with_cpu: bool,
    with_disk: bool,
) -> Result<Vec<Step>, HostError> {
    let mut steps = Vec::new();
    // The kernel attributes what it writes back to the group that memory counts it for.
    let places = [
        (&hierarchies.cpuset, "cpuset", true),
        (&hierarchies.cpu, "cpu", with_cpu),
        (&hierarchies.io, "io", with_disk),
        (&hierarchies.memory, "memory", with_disk),
    ];
    for (place, name, is_wanted) in places {
        let Some(place) = place.as_ref().filter(|place| is_wanted && place.unified) else {
            continue;
        };
        let path = paths::cgroup_subtree_control(&place.root);
        let original = host.read(&path)?;
        let held = String::from_utf8_lossy(&original);
        if held.split_ascii_whitespace().any(|at| at == name) {
            continue;
        }
        steps.push(Step {
            change: Change::WriteFile {
                path: path.clone(),
                value: format!("+{name}").into_bytes(),
            },
            undo: Undo::WriteFile { path, original },
            reason: format!("groups of vnodes need {name}"),
        });
    }
    Ok(steps)
}

fn missing(node: &Node, controller: &str) -> SpeedError {
    SpeedError::Unavailable {
        vnode: node.name.clone(),
        method: node.method,
        why: format!("there is no writable cgroup hierarchy with {controller}"),
        hint: match node.method {
            Method::Stall | Method::Fracas | Method::Quota | Method::Gov | Method::Lim => {
                "mount it, run outside the container, or use another method: `pinfold emulate methods`"
            }
            Method::Hogs | Method::Freq | Method::Inject => {
                "mount it, or run outside the container"
            }
        }
        .to_owned(),
    }
}
