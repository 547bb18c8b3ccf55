//! Partitions of cpusets, and cgroups that have fewer CPUs than their parent: `AllowedCPUs` of
//! units, containers.
//!
//! ```text
//! /sys/fs/cgroup/rt.slice/cpuset.cpus.partition    isolated
//! /sys/fs/cgroup/rt.slice/cpuset.cpus.effective    4-7
//! ```
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html#cpuset>. The kernel gives the CPUs of a
//! partition to no other group. Groups of machines and containers that are known are left out:
//! their CPUs are claimed by these. A group that Pinfold made for a placement that is not known has
//! an owner of its own.

use std::cell::{Cell, OnceCell};

use pinfold_host::mountinfo::{self, Version};
use pinfold_host::{HostError, paths};
use pinfold_model::{CpuSet, Finding, Tid};

use super::{kubelet, libvirt, placements};
use crate::claim::{Claim, Exclusivity, Kind, Owner, OwnerCategory, Source};
use crate::claim_set::Claims;
use crate::context::{Context, group_of};

/// A partition.
pub const PARTITION: Kind =
    Kind { name: "partition", noun: "cpuset partition", sort: OwnerCategory::Partition };

/// A unit, container or other cgroup.
pub const UNIT: Kind = Kind { name: "unit", noun: "cgroup", sort: OwnerCategory::Pool };

/// A group that Pinfold made, for which no active journal can be read here: after a crash, of
/// another user, or of another state directory.
pub const UNREADABLE: Kind =
    Kind { name: "pinfold", noun: "without an active journal here", sort: OwnerCategory::Machine };

/// What is read.
pub const READS: &str = "cpuset.cpus.partition and cpuset.cpus.effective of cgroups";

/// Start of the names of the groups that Pinfold makes.
const OF_PINFOLD: &str = "pinfold-";

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

/// True if a claim is that of a partition to which a group belongs.
pub(crate) fn contains(claim: &Claim, group: &str) -> bool {
    claim.owner.kind == &PARTITION
        && claim.source.unit.as_deref().is_some_and(|unit| is_below(group, unit))
}

/// True for the name of a domain's group on a host without systemd-machined: `qemu-3-web.libvirt-qemu`.
fn is_domain(name: &str) -> bool {
    name.starts_with("qemu-") && name.ends_with(".libvirt-qemu")
}

/// True if a group is another one or below it.
fn is_below(group: &str, above: &str) -> bool {
    let rest = group.strip_prefix(above);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Marks the groups that have only CPUs which machines keep exclusively, and processes that belong to
/// no known owner: these can run nowhere else. A machine's own group is no other user of its CPUs.
pub(crate) fn mark_confined(context: &Context<'_>, claims: &mut Claims) {
    let kept: CpuSet =
        claims.all().iter().filter(|one| is_of_machine(one)).map(|one| &one.cpus).collect();
    let is_candidate =
        |one: &Claim| one.active && one.owner.kind == &UNIT && one.cpus.is_subset(&kept);
    let candidates: Vec<usize> =
        (0..claims.known.len()).filter(|index| is_candidate(&claims.known[*index])).collect();
    if candidates.is_empty() {
        return;
    }
    let Ok(Some(mount)) = mountinfo::controller(context.host, "cpuset") else { return };
    let root = mount.mount.path.trim_end_matches('/');
    let machines = claims.all().iter().filter(|one| is_of_machine(one)).map(|one| {
        let group = one.owner.process.and_then(|process| group_of(context.host, process));
        (group, one.cpus.clone())
    });
    let machines: Vec<(Option<String>, CpuSet)> = machines.collect();
    for index in candidates {
        let Some(unit) = claims.known[index].source.unit.clone() else { continue };
        let is_other =
            |group: &Option<String>| !group.as_ref().is_some_and(|it| is_below(it, &unit));
        let others = machines.iter().filter(|(group, _)| is_other(group));
        let kept: CpuSet = others.map(|(_, cpus)| cpus).collect();
        if claims.known[index].cpus.is_subset(&kept)
            && has_other_process(context, claims, root, &unit, 0)
        {
            let claim = &mut claims.known[index];
            claim.bound = claim.cpus.clone();
        }
    }
}

/// True if a claim is that of a running machine or process group whose process is known. The tasks of
/// an emulated platform are in groups of their own, which it narrows itself.
fn is_of_machine(claim: &Claim) -> bool {
    let owner = &claim.owner;
    let is_machine =
        owner.kind.sort == OwnerCategory::Machine && owner.kind != &placements::PLATFORM;
    claim.active && is_machine && owner.process.is_some() && claim.exclusivity.is_exclusive()
}

/// True if a group, or one below it without CPUs of its own, has a process of no known owner.
fn has_other_process(
    context: &Context<'_>,
    claims: &Claims,
    root: &str,
    group: &str,
    depth: usize,
) -> bool {
    let path = format!("{root}{group}");
    let text = context.host.read_text(&paths::cgroup_procs(&path)).unwrap_or_default();
    let pids = text.lines().filter_map(|line| line.trim().parse().ok()).map(Tid);
    if pids.into_iter().any(|pid| !context.belongs(pid, claims)) {
        return true;
    }
    let names = context.host.list(&path).unwrap_or_default();
    let children = names.iter().filter(|name| may_be_group(name) && !name.starts_with(OF_PINFOLD));
    children.map(|name| format!("{group}/{name}")).any(|child| {
        let unit = Some(child.as_str());
        let is_known = claims.all().iter().any(|claim| claim.source.unit.as_deref() == unit);
        !is_known && depth < DEEPEST && has_other_process(context, claims, root, &child, depth + 1)
    })
}

/// Reads the groups of a hierarchy.
struct Walk<'w, 'h> {
    context: &'w Context<'h>,
    version: Version,
    root: String,
    /// True if libvirt's domains are known.
    has_libvirt: bool,
    /// The groups of the processes of known machines.
    of_machines: Vec<String>,
    /// CPUs of Kubernetes containers that are known.
    of_kubelet: CpuSet,
    /// Number of files of groups that could not be read, and why the first could not.
    unread: Cell<usize>,
    first: OnceCell<HostError>,
}

/// Adds the claims of all groups.
pub fn read(context: &Context<'_>, claims: &mut Claims) {
    let Ok(Some(mount)) = mountinfo::controller(context.host, "cpuset") else { return };
    let has_libvirt = claims.has_kind(&libvirt::KIND);
    let of_kubelet = kubelet::known_cpus(claims);
    let root = mount.mount.path.trim_end_matches('/').to_owned();
    let (unread, first) = (Cell::new(0), OnceCell::new());
    let machines = claims.all().iter().filter(|one| one.owner.kind.sort == OwnerCategory::Machine);
    let processes = machines.filter_map(|one| one.owner.process);
    let of_machines =
        processes.filter_map(|process| group_of(context.host, process)).collect::<Vec<_>>();
    let walk = Walk {
        context,
        version: mount.version,
        root,
        has_libvirt,
        of_machines,
        of_kubelet,
        unread,
        first,
    };
    let cpus = walk.cpus("").unwrap_or_else(|| context.online.clone());
    walk.claim_children("", &cpus, 0, claims);
    if let Some(error) = walk.first.get() {
        let text = match walk.unread.get() {
            1 => format!("the CPUs of a cgroup are not known: {error}"),
            count => format!("the CPUs of {count} cgroups are not known; the first: {error}"),
        };
        claims.report(Finding::warning("claims", text));
    }
}

impl Walk<'_, '_> {
    /// What was read of a group; `None` and counted if that failed while the group exists.
    fn count_failure<T>(&self, read: Result<T, HostError>) -> Option<T> {
        let error = match read {
            Ok(found) => return Some(found),
            Err(error) => error,
        };
        if !error.is_gone() {
            self.unread.set(self.unread.get() + 1);
            self.first.get_or_init(|| error);
        }
        None
    }

    /// The effective CPUs of a group; `None` if it has none of its own.
    fn cpus(&self, group: &str) -> Option<CpuSet> {
        let path = format!("{}{group}", self.root);
        let file = match self.version {
            Version::V1 => paths::cpuset_effective_cpus(&path),
            Version::V2 => paths::cpuset_cpus_effective(&path),
        };
        let text = self.count_failure(self.context.host.read_text(&file))?;
        let cpus = CpuSet::parse_list(&text);
        self.count_failure(
            cpus.map_err(|error| HostError::Unexpected { path: file, why: error.to_string() }),
        )
    }

    /// Adds the claims of the groups below one with these CPUs.
    fn claim_children(&self, group: &str, above: &CpuSet, depth: usize, claims: &mut Claims) {
        let names = self.count_failure(self.context.host.list(&format!("{}{group}", self.root)));
        for name in names.unwrap_or_default().iter().filter(|name| may_be_group(name)) {
            let child = format!("{group}/{name}");
            if self.is_of_domain(name, &child) {
                continue;
            }
            // A group without cpuset files has the CPUs of its parent, and so have those below it.
            let Some(cpus) = self.cpus(&child) else { continue };
            if name.starts_with(OF_PINFOLD) {
                self.add_of_pinfold(&child, &cpus, above, claims);
                continue;
            }
            // The containers in it have their CPUs by the kubelet, or those of all others.
            if !(child.contains("kubepods") && cpus.is_subset(&self.of_kubelet)) {
                self.add(&child, &cpus, above, claims);
            }
            if depth < DEEPEST {
                self.claim_children(&child, &cpus, depth + 1, claims);
            }
        }
    }

    /// True for a group that libvirt made for a known domain, which has groups for its emulator, its
    /// vCPUs and its iothreads below it.
    fn is_of_domain(&self, name: &str, group: &str) -> bool {
        let is_of_libvirt =
            name.starts_with("machine-qemu") || name.starts_with("libvirt") || is_domain(name);
        let is_known = || self.of_machines.iter().any(|own| is_below(own, group));
        is_of_libvirt && (self.has_libvirt || is_known())
    }

    /// Adds the CPUs of a group that Pinfold made, if no placement or platform is known for it and
    /// it has processes.
    fn add_of_pinfold(&self, group: &str, cpus: &CpuSet, above: &CpuSet, claims: &mut Claims) {
        if claims.has_group_of_pinfold(group) || cpus == above || !self.has_processes(group) {
            return;
        }
        // The vCPUs of a machine in it were found by their masks.
        let mut left = cpus.clone();
        for claim in claims.all() {
            let process = claim.owner.process.filter(|_| !claim.cpus.is_disjoint(&left));
            let own = process.and_then(|process| group_of(self.context.host, process));
            if own.is_some_and(|own| is_below(&own, group)) {
                left = left.difference(&claim.cpus);
            }
        }
        let owner = Owner::new(&UNREADABLE, "pinfold");
        claims.add(&owner, left, Exclusivity::Exclusive, &Source::unit(group));
    }

    /// True if a group or one below it has processes.
    fn has_processes(&self, group: &str) -> bool {
        let path = format!("{}{group}", self.root);
        let host = self.context.host;
        if let Ok(text) = host.read_text(&format!("{path}/cgroup.events")) {
            return text.lines().any(|line| line == "populated 1");
        }
        // Version 1, or a capture.
        host.read_text(&format!("{path}/cgroup.procs")).is_ok_and(|text| !text.trim().is_empty())
    }

    fn add(&self, group: &str, cpus: &CpuSet, above: &CpuSet, claims: &mut Claims) {
        let path = format!("{}{group}", self.root);
        let partition = match self.version {
            Version::V1 => None,
            Version::V2 => {
                self.count_failure(self.context.host.read_text(&paths::cpuset_partition(&path)))
            }
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
