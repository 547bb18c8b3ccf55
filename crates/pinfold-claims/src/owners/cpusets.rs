//! Partitions of cpusets, and cgroups that have fewer CPUs than their parent: `AllowedCPUs` of
//! units, containers.
//!
//! ```text
//! /sys/fs/cgroup/rt.slice/cpuset.cpus.partition    isolated
//! /sys/fs/cgroup/rt.slice/cpuset.cpus.effective    4-7
//! ```
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html#cpuset>. The kernel gives the CPUs of a
//! partition to no other group. Groups that Pinfold, libvirt or a known kubelet made are left out:
//! their CPUs are claimed by the machines.

use pinfold_host::mountinfo::{self, Version};
use pinfold_host::{Host, paths, proc_cgroup};
use pinfold_model::{CpuSet, Tid};

use super::{kubelet, libvirt};
use crate::claim::{Claim, Exclusivity, Kind, Owner, OwnerSort, Source};
use crate::context::Context;
use crate::map::Claims;

/// A partition.
pub const PARTITION: Kind =
    Kind { name: "partition", noun: "cpuset partition", sort: OwnerSort::Partition };

/// A unit, container or other cgroup.
pub const UNIT: Kind = Kind { name: "unit", noun: "cgroup", sort: OwnerSort::Pool };

/// What is read.
pub const READS: &str = "cpuset.cpus.partition and cpuset.cpus.effective of cgroups";

/// Depth below which no group is read.
const DEEPEST: usize = 12;

/// What the files of a group say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Group {
    /// The CPUs belong to a partition.
    Partition,
    /// The group has a part of its parent's CPUs.
    Narrowed,
    /// The group has the CPUs of its parent.
    Same,
    /// A partition that the kernel refused, with its reason.
    Refused(String),
}

impl Group {
    /// The state of a group with these CPUs, below a parent with `above`. `partition` is the text
    /// of `cpuset.cpus.partition`, if there is one.
    #[must_use]
    pub fn parse(partition: Option<&str>, cpus: &CpuSet, above: &CpuSet) -> Self {
        let text = partition.unwrap_or("member").trim();
        let kind = text.split(' ').next().unwrap_or_default();
        if ["root", "isolated"].contains(&kind) {
            return match text.split_once("invalid") {
                Some((_, why)) => Group::Refused(why.trim_matches([' ', '(', ')']).to_owned()),
                None => Group::Partition,
            };
        }
        if !cpus.is_empty() && cpus.is_subset(above) && cpus != above {
            Group::Narrowed
        } else {
            Group::Same
        }
    }
}

/// The cgroup of a process for cpusets, as a path below the root of the hierarchy.
#[must_use]
pub fn group_of(host: &dyn Host, process: Tid) -> Option<String> {
    let text = host.read_text(&paths::process_cgroup(process)).ok()?;
    let memberships = proc_cgroup::parse(&text).ok()?;
    let path = proc_cgroup::v1_path(&memberships, "cpuset");
    path.or_else(|| proc_cgroup::v2_path(&memberships)).map(str::to_owned)
}

/// True if a claim is that of a partition to which a group belongs.
pub(crate) fn contains(claim: &Claim, group: &str) -> bool {
    claim.owner.kind == &PARTITION
        && claim.source.unit.as_ref().is_some_and(|unit: &String| {
            group
                .strip_prefix(unit.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
}

/// Reads the groups of a hierarchy.
struct Walk<'w, 'h> {
    context: &'w Context<'h>,
    version: Version,
    root: String,
    /// Parts of names whose groups are left out.
    skipped: Vec<&'static str>,
}

/// Adds the claims of all groups.
pub fn read(context: &Context<'_>, claims: &mut Claims) {
    let Ok(Some(mount)) = mountinfo::controller(context.host, "cpuset") else { return };
    let mut skipped = vec!["pinfold"];
    if claims.has_kind(&libvirt::KIND) {
        skipped.extend(["machine-qemu", "libvirt"]);
    }
    if claims.has_kind(&kubelet::CONTAINER) || claims.has_kind(&kubelet::POOL) {
        skipped.push("kubepods");
    }
    let root = mount.mount.path.trim_end_matches('/').to_owned();
    let walk = Walk { context, version: mount.version, root, skipped };
    let cpus = walk.cpus("").unwrap_or_else(|| context.online.clone());
    walk.below("", &cpus, 0, claims);
}

impl Walk<'_, '_> {
    /// The effective CPUs of a group.
    fn cpus(&self, group: &str) -> Option<CpuSet> {
        let path = format!("{}{group}", self.root);
        let file = match self.version {
            Version::V1 => paths::cpuset_effective_cpus(&path),
            Version::V2 => paths::cpuset_cpus_effective(&path),
        };
        let text = self.context.host.read_text(&file).ok()?;
        CpuSet::parse_list(&text).ok()
    }

    /// Adds the claims of the groups below one with these CPUs.
    fn below(&self, group: &str, above: &CpuSet, depth: usize, claims: &mut Claims) {
        // Without the list of a group, a process without its permission still has the others.
        let names = self.context.host.list(&format!("{}{group}", self.root)).unwrap_or_default();
        for name in names.iter().filter(|name| may_be_group(name)) {
            if self.skipped.iter().any(|part| name.starts_with(part)) {
                continue;
            }
            let child = format!("{group}/{name}");
            // A group without cpuset files has the CPUs of its parent, and so have those below it.
            let Some(cpus) = self.cpus(&child) else { continue };
            self.add(&child, &cpus, above, claims);
            if depth < DEEPEST {
                self.below(&child, &cpus, depth + 1, claims);
            }
        }
    }

    fn add(&self, group: &str, cpus: &CpuSet, above: &CpuSet, claims: &mut Claims) {
        let path = format!("{}{group}", self.root);
        let partition = match self.version {
            Version::V1 => None,
            Version::V2 => self.context.host.read_text(&paths::cpuset_partition(&path)).ok(),
        };
        let name = group.rsplit('/').next().unwrap_or(group);
        let source = Source::unit(group);
        match Group::parse(partition.as_deref(), cpus, above) {
            Group::Partition => {
                let value = partition.unwrap_or_default().trim().to_owned();
                let owner = Owner::new(&PARTITION, name);
                let source = source.with_value(format!("cpuset.cpus.partition={value}"));
                claims.add(&owner, cpus.clone(), Exclusivity::Exclusive, &source);
            }
            Group::Narrowed => {
                let owner = Owner::new(&UNIT, name);
                claims.add(&owner, cpus.clone(), Exclusivity::Shared, &source);
            }
            Group::Refused(why) => {
                self.context.refuse(
                    claims,
                    &source,
                    format!("the kernel refuses the partition: {why}"),
                );
            }
            Group::Same => {}
        }
    }
}

/// False for the names of the files of controllers.
fn may_be_group(name: &str) -> bool {
    const FILES: [&str; 14] = [
        "cgroup.",
        "cpu.",
        "cpuset.",
        "memory.",
        "io.",
        "pids.",
        "hugetlb.",
        "rdma.",
        "misc.",
        "irq.",
        "dmem.",
        "debug.",
        "notify_on_release",
        "release_agent",
    ];
    name != "tasks" && !FILES.iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests;
