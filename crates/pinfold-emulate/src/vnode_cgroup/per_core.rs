//! Parts of a vnode: one group per core, or one group for all of them.
//!
//! ```text
//! pinfold-vnode-web            version 1: in cpu and in cpuset; version 2: one tree,
//!   pinfold-core-2             whose lower groups are threaded
//!   pinfold-burn-2             fracas only: the burner next to it
//!   pinfold-core-3
//!   pinfold-burn-3
//! ```
//! Fracas as published (Buchert 2011, Fig. 4) has one group for the tasks of all cores, `all`, and
//! a group around each burner:
//! ```text
//! pinfold-vnode-web
//!   pinfold-all
//!   pinfold-burn-2
//!   pinfold-burn-3
//! ```

use std::collections::BTreeSet;

use pinfold_host::{Host, paths};
use pinfold_model::{Change, CpuSet, Method, PuId, Step, Undo, Variant};

use super::{VnodeCgroup, confine, missing, write};
use crate::SpeedError;
use crate::hierarchies::{Hierarchies, MountedHierarchy};
use crate::node::Node;

/// Groups for some cores of a vnode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The cores' CPUs.
    pub pus: CpuSet,
    /// Group of the vnode's threads in the hierarchy of the cpu controller.
    pub cpu: String,
    /// Group of the vnode's threads in the cpuset hierarchy; in v2 the same as `cpu`.
    pub cpuset: Option<String>,
    /// Groups of the burners, siblings of `cpu`: one for each CPU in ascending order, or one for
    /// all; empty without burners.
    pub burns: Vec<String>,
    /// True if `cpu` is cgroup v2.
    pub(crate) unified: bool,
}

impl Part {
    /// Its CPU, if it has only one.
    pub(crate) fn pu(&self) -> Option<PuId> {
        let mut pus = self.pus.iter();
        pus.next().filter(|_| pus.next().is_none())
    }
}

/// Names of the groups of a part.
struct Names {
    pus: CpuSet,
    /// `None` for the vnode's own group.
    tasks: Option<String>,
    burns: Vec<String>,
}

fn names(node: &Node) -> Vec<Names> {
    let burns = match node.method {
        Method::Fracas => true,
        Method::Quota => false,
        Method::Stall
        | Method::Hogs
        | Method::Gov
        | Method::Freq
        | Method::Lim
        | Method::Inject => return Vec::new(),
    };
    match node.variant {
        Variant::Corrected | Variant::Unsynchronised => node
            .pus()
            .iter()
            .map(|pu| Names {
                pus: CpuSet::single(pu),
                tasks: Some(format!("pinfold-core-{pu}")),
                burns: burners(burns, &CpuSet::single(pu)),
            })
            .collect(),
        Variant::AsPublished => vec![all_cores(node, burners(burns, &node.pus()))],
        Variant::CommonBurnerGroup => vec![all_cores(node, vec!["pinfold-burn".to_owned()])],
    }
}

fn burners(burns: bool, pus: &CpuSet) -> Vec<String> {
    pus.iter().filter(|_| burns).map(|pu| format!("pinfold-burn-{pu}")).collect()
}

fn all_cores(node: &Node, burns: Vec<String>) -> Names {
    Names { pus: node.pus(), tasks: (!burns.is_empty()).then(|| "pinfold-all".to_owned()), burns }
}

impl VnodeCgroup {
    /// The parts of a vnode and the steps that create them.
    pub(super) fn divide(
        &mut self,
        host: &dyn Host,
        hierarchies: &Hierarchies,
        node: &Node,
    ) -> Result<Vec<Step>, SpeedError> {
        let names = names(node);
        let (Some(cpu), Some(place)) = (self.cpu.clone(), &hierarchies.cpu) else {
            return Ok(Vec::new());
        };
        let mut draft = Draft { host, node, steps: Vec::new(), made: BTreeSet::new() };
        if names.iter().any(|one| one.tasks.is_some()) {
            if hierarchies.cpuset.is_none() {
                return Err(missing(node, "cpuset"));
            }
            draft.enable(&cpu, place, "cpu");
            if let (Some(group), Some(place)) = (&self.cpuset, &hierarchies.cpuset) {
                draft.enable(group, place, "cpuset");
            }
        }
        for Names { pus, tasks, burns } in names {
            let in_cpu = draft.group(place, &cpu, tasks.as_deref());
            let mut in_cpuset = None;
            if let (Some(group), Some(place)) = (&self.cpuset, &hierarchies.cpuset) {
                let made = draft.group(place, group, tasks.as_deref());
                if tasks.is_some() {
                    draft.steps.extend(confine(host, place, node, &made, &pus)?);
                }
                in_cpuset = Some(made);
            }
            let burns = burns.iter().map(|name| draft.group(place, &cpu, Some(name))).collect();
            let unified = place.unified;
            self.parts.push(Part { pus, cpu: in_cpu, cpuset: in_cpuset, burns, unified });
        }
        Ok(draft.steps)
    }
}

struct Draft<'a> {
    host: &'a dyn Host,
    node: &'a Node,
    steps: Vec<Step>,
    made: BTreeSet<String>,
}

impl Draft<'_> {
    /// Enables a controller for the children of one of Pinfold's groups, which has no tasks yet.
    fn enable(&mut self, group: &str, place: &MountedHierarchy, controller: &str) {
        if place.unified {
            let reason = format!("parts of vnode {} need {controller}", self.node.name);
            let path = paths::cgroup_subtree_control(group);
            self.steps.push(write(group, path, &format!("+{controller}"), reason));
        }
    }

    /// Creates a child of one of Pinfold's groups; threaded in v2, so that threads can be moved.
    fn group(&mut self, place: &MountedHierarchy, above: &str, name: Option<&str>) -> String {
        let Some(name) = name else { return above.to_owned() };
        let path = paths::cgroup_file(above, name);
        if !self.made.insert(path.clone()) || self.host.exists(&path) {
            return path;
        }
        let reason = format!("vnode {} is divided", self.node.name);
        self.steps.push(Step {
            change: Change::MakeGroup { path: path.clone() },
            undo: Undo::RemoveGroup { path: path.clone() },
            reason: reason.clone(),
        });
        if place.unified {
            self.steps.push(write(&path, paths::cgroup_type(&path), "threaded", reason));
        }
        path
    }
}
