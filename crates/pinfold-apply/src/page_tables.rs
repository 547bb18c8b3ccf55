//! On which NUMA nodes the page tables of a machine are: those of its process, and those of the
//! second level (guest physical to host physical addresses) that KVM allocates for it.
//!
//! The kernel allocates a table under the memory policy of the thread that needs it and never moves
//! it. It counts tables by node for the whole host (`nodeN/meminfo`) and for a group with the
//! memory controller (`memory.numa_stat`, cgroup v2), but of a process only the sum (`VmPTE`). So
//! the share of a machine is exact if it has a group of its own; otherwise it is the growth of the
//! host's totals since before its start, to which other processes contribute.

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;

use pinfold_host::{
    Host, HostError, memory_numa_stat, mountinfo, node_meminfo, paths, proc_cgroup, proc_status,
};
use pinfold_model::{CpuSet, Finding, NodeId, Tid};

use crate::cpusets;
use crate::tasks;

/// Subject of the findings.
pub const SUBJECT: &str = "page-tables";
/// Tables on other nodes up to this size are no finding: a process allocates some before it is
/// placed, and shared libraries need some. 16 tables of 4 KiB, which map 32 MiB.
const REMOTE_TABLES_TOLERANCE_KIB: u64 = 64;

/// Page tables on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeTables {
    /// The node.
    pub node: NodeId,
    /// Tables of processes (KiB).
    pub first_kib: u64,
    /// Tables of the second level (KiB); `None` if the kernel does not count them (before Linux
    /// 6.1).
    pub second_kib: Option<u64>,
}

/// The page tables of a running machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineTables {
    /// Sum of its process's own tables (`VmPTE`, KiB); `None` if the kernel does not report it.
    pub process_kib: Option<u64>,
    /// Its own tables by node, if it has a group of its own whose memory the kernel counts.
    pub own: Option<Vec<NodeTables>>,
    /// The tables of all processes of the host, by node.
    pub host: Vec<NodeTables>,
}

impl MachineTables {
    /// Reads the tables of a process; `None` if it has ended.
    ///
    /// # Errors
    /// [`HostError`] if a file exists and cannot be read.
    pub fn read(host: &dyn Host, pid: Tid) -> Result<Option<Self>, HostError> {
        let Some(process_kib) = of_process(host, pid)? else { return Ok(None) };
        Ok(Some(Self { process_kib, own: of_group(host, pid)?, host: of_host(host)? }))
    }

    /// True if the host has several nodes, so that it matters where tables are.
    #[must_use]
    pub fn has_choice(&self) -> bool {
        self.host.len() > 1
    }

    /// A warning if tables of the machine are known to be on other nodes than its memory.
    #[must_use]
    pub fn remote_tables_warning(&self, memory: &[NodeId]) -> Option<Finding> {
        let far = far_kib(memory, self.own.iter().flatten().map(|one| (one.node, sum(one))));
        (far > REMOTE_TABLES_TOLERANCE_KIB).then(|| far_finding(far, memory))
    }
}

impl fmt::Display for MachineTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(own) = &self.own {
            return write!(f, "page tables of its group: {}", by_node(own));
        }
        let host = by_node(&self.host);
        match self.process_kib {
            Some(kib) => write!(
                f,
                "page tables: {kib} KiB (VmPTE), distribution over nodes unknown (the machine has \
                 no cgroup of its own with the memory controller); all processes: {host}"
            ),
            None => write!(f, "page tables: not reported by the kernel; all processes: {host}"),
        }
    }
}

/// How the page tables of a host grew while a machine started, by node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableGrowth {
    /// Each node with the growth of tables of processes and of the second level, in KiB.
    nodes: Vec<(NodeId, i64, Option<i64>)>,
    process_kib: Option<u64>,
}

impl TableGrowth {
    /// The growth since `before`; `process_kib` is `VmPTE` of the machine at the end.
    #[must_use]
    pub fn since(before: &[NodeTables], after: &[NodeTables], process_kib: Option<u64>) -> Self {
        let nodes = after.iter().filter_map(|now| {
            let was = before.iter().find(|was| was.node == now.node)?;
            let second = now.second_kib.zip(was.second_kib).map(|(now, was)| growth(now, was));
            Some((now.node, growth(now.first_kib, was.first_kib), second))
        });
        Self { nodes: nodes.collect(), process_kib }
    }

    /// Tables that other processes allocated or freed meanwhile, at least (KiB): the growth that
    /// differs from the machine's `VmPTE`. For the second level there is no such sum.
    #[must_use]
    pub fn error_kib(&self) -> Option<u64> {
        let grown: i64 = self.nodes.iter().map(|(_, first, _)| first).sum();
        self.process_kib.map(|kib| grown.abs_diff(kib.cast_signed()))
    }

    /// What grew where: a warning if tables are on other nodes than the machine's memory, otherwise
    /// a note. Growth that may be that of other processes is no reason to warn.
    #[must_use]
    pub fn finding(&self, memory: &[NodeId]) -> Finding {
        fn growth_of(kib: i64) -> u64 {
            kib.max(0).unsigned_abs()
        }

        let first = self.nodes.iter().map(|(node, first, _)| (*node, growth_of(*first)));
        let second =
            self.nodes.iter().map(|(node, _, second)| (*node, growth_of(second.unwrap_or(0))));
        let (first, second) = (far_kib(memory, first), far_kib(memory, second));
        let error = self.error_kib().unwrap_or(0);
        if first > REMOTE_TABLES_TOLERANCE_KIB.max(error)
            || (second > REMOTE_TABLES_TOLERANCE_KIB && error <= REMOTE_TABLES_TOLERANCE_KIB)
        {
            let finding = far_finding(first.saturating_add(second), memory);
            return Finding { text: format!("{}; {self}", finding.text), ..finding };
        }
        Finding::note(SUBJECT, self.to_string())
    }
}

fn growth(after: u64, before: u64) -> i64 {
    after.saturating_sub(before).cast_signed() - before.saturating_sub(after).cast_signed()
}

impl fmt::Display for TableGrowth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.nodes.iter().map(|(node, first, second)| {
            let second = second.map_or(String::new(), |kib| format!(" (second level {kib:+} KiB)"));
            format!("node {node} {first:+} KiB{second}")
        });
        let nodes: Vec<String> = nodes.collect();
        write!(
            f,
            "growth of all page tables of the host since before the start: {}",
            nodes.join(", ")
        )?;
        match (self.process_kib, self.error_kib()) {
            (Some(kib), Some(error)) => write!(
                f,
                "; {kib} KiB are the machine's (VmPTE), so other processes changed at least \
                 {error} KiB"
            ),
            _ => write!(f, "; other processes contribute"),
        }
    }
}

/// The page tables of all processes, by node. Nodes that the kernel does not describe are absent.
///
/// # Errors
/// [`HostError`] if a node's `meminfo` cannot be read.
pub fn of_host(host: &dyn Host) -> Result<Vec<NodeTables>, HostError> {
    let online = tasks::ignore_gone(cpusets::list(host, &paths::node_online()))?;
    let mut tables = Vec::new();
    for node in online.as_ref().map(CpuSet::iter).into_iter().flatten().map(|node| NodeId(node.0)) {
        let path = paths::node_file(node, "meminfo");
        let Some(text) = tasks::ignore_gone(host.read_text(&path))? else { continue };
        let found = node_meminfo::page_tables(&text).map_err(|error| error.at(&path))?;
        let node_meminfo::PageTables { first_kib, second_kib } = found;
        tables.push(NodeTables { node, first_kib, second_kib });
    }
    Ok(tables)
}

/// `VmPTE` of a process (KiB), if the kernel reports it; `None` if the process has ended.
///
/// # Errors
/// [`HostError`] if its status cannot be read.
pub fn of_process(host: &dyn Host, pid: Tid) -> Result<Option<Option<u64>>, HostError> {
    let path = paths::process_status(pid);
    let Some(text) = tasks::ignore_gone(host.read_text(&path))? else { return Ok(None) };
    proc_status::page_tables_kib(&text).map(Some).map_err(|error| error.at(&path))
}

/// What a move of pages leaves behind.
pub(crate) fn page_tables_finding(host: &dyn Host, pid: Tid) -> Result<Option<Finding>, HostError> {
    let Some(Some(kib)) = of_process(host, pid)? else { return Ok(None) };
    let text = format!(
        "{kib} KiB of page tables (VmPTE), and those of KVM, stay where they were allocated: the \
         kernel moves no page tables"
    );
    Ok(Some(
        Finding::note(SUBJECT, text).with_hint(
            "start the machine on its node, with `pinfold run` or `numactl --membind=N`",
        ),
    ))
}

/// The tables that are charged to the process's group, if that contains no other process.
fn of_group(host: &dyn Host, pid: Tid) -> Result<Option<Vec<NodeTables>>, HostError> {
    let Some((root, mut group)) = v2_group(host, pid)? else { return Ok(None) };
    // Groups of threads have no memory files; their domain has.
    while group != root && !host.exists(&paths::memory_numa_stat(&group)) {
        let Some((parent, _)) = group.rsplit_once('/') else { return Ok(None) };
        group = parent.to_owned();
    }
    if group == root || !is_alone(host, &group, pid)? {
        return Ok(None);
    }
    let path = paths::memory_numa_stat(&group);
    let Some(text) = tasks::ignore_gone(host.read_text(&path))? else { return Ok(None) };
    let row = |name| memory_numa_stat::row(&text, name).map_err(|error| error.at(&path));
    let Some(first) = row("pagetables")? else { return Ok(None) };
    let second = row("sec_pagetables")?;
    Ok(Some(
        first.into_iter().map(|(node, bytes)| tables_of(node, bytes, second.as_ref())).collect(),
    ))
}

fn tables_of(node: NodeId, bytes: u64, second: Option<&BTreeMap<NodeId, u64>>) -> NodeTables {
    let second_kib = second.and_then(|second| second.get(&node)).map(|bytes| bytes / 1024);
    NodeTables { node, first_kib: bytes / 1024, second_kib }
}

/// The root of cgroup v2 and the process's group in it.
fn v2_group(host: &dyn Host, pid: Tid) -> Result<Option<(String, String)>, HostError> {
    let path = paths::own_mountinfo();
    let mounts = mountinfo::parse(&host.read_text(&path)?).map_err(|error| error.at(&path))?;
    let Some(mount) = mountinfo::v2_mount(&mounts) else { return Ok(None) };
    let path = paths::process_cgroup(pid);
    let Some(text) = tasks::ignore_gone(host.read_text(&path))? else { return Ok(None) };
    let memberships = proc_cgroup::parse(&text).map_err(|error| error.at(&path))?;
    Ok(mount
        .group_dir("/")
        .zip(proc_cgroup::v2_path(&memberships).and_then(|group| mount.group_dir(group))))
}

/// True if no other process is in the group or below it, except kernel threads: those of KVM and
/// vhost join the machine's group.
fn is_alone(host: &dyn Host, group: &str, pid: Tid) -> Result<bool, HostError> {
    let mut groups = vec![group.to_owned()];
    while let Some(group) = groups.pop() {
        // A group of threads does not list processes (`EOPNOTSUPP`); its domain, which is read
        // before it, lists them.
        let members = match host.read_text(&paths::cgroup_procs(&group)) {
            Ok(members) => members,
            Err(error) if error.is_gone() || is_threaded_cgroup_error(&error) => String::new(),
            Err(error) => return Err(error),
        };
        for member in tasks::numbers(members.lines()) {
            if member != pid && !tasks::is_kernel_thread(host, member)? {
                return Ok(false);
            }
        }
        let names = tasks::ignore_gone(host.list(&group))?.unwrap_or_default();
        let below = names.iter().map(|name| paths::cgroup_file(&group, name));
        groups.extend(below.filter(|path| host.exists(&paths::cgroup_procs(path))));
    }
    Ok(true)
}

fn is_threaded_cgroup_error(error: &HostError) -> bool {
    matches!(error, HostError::File { source, .. } if source.kind() == ErrorKind::Unsupported)
}

fn by_node(tables: &[NodeTables]) -> String {
    let nodes = tables.iter().map(|NodeTables { node, first_kib, second_kib }| {
        let second = second_kib.map_or(String::new(), |kib| format!(" (second level {kib} KiB)"));
        format!("node {node} {first_kib} KiB{second}")
    });
    nodes.collect::<Vec<_>>().join(", ")
}

fn sum(tables: &NodeTables) -> u64 {
    tables.first_kib.saturating_add(tables.second_kib.unwrap_or(0))
}

/// The part on other nodes than `memory`; 0 if the memory may be on any.
fn far_kib(memory: &[NodeId], tables: impl Iterator<Item = (NodeId, u64)>) -> u64 {
    tables
        .filter(|(node, _)| !memory.is_empty() && !memory.contains(node))
        .map(|(_, kib)| kib)
        .sum()
}

fn far_finding(kib: u64, memory: &[NodeId]) -> Finding {
    let nodes: Vec<String> = memory.iter().map(ToString::to_string).collect();
    let nodes = nodes.join(",");
    let text = format!(
        "{kib} KiB of page tables are on other nodes than the memory (node {nodes}): TLB misses \
         read them from there"
    );
    Finding::warning(SUBJECT, text).with_hint(
        "the kernel moves no page tables: start the machine on its node, with `pinfold run` or \
         `numactl --membind=N`",
    )
}

#[cfg(test)]
mod tests {
    use pinfold_host::SnapshotHost;

    use super::*;

    fn tables(kib: [(u64, u64); 2]) -> Vec<NodeTables> {
        (0..)
            .zip(kib)
            .map(|(node, (first_kib, second))| NodeTables {
                node: NodeId(node),
                first_kib,
                second_kib: Some(second),
            })
            .collect()
    }

    #[test]
    fn growth_on_a_far_node_is_a_warning_if_it_exceeds_the_error() {
        fn far(finding: &Finding) -> bool {
            finding.text.contains("on other nodes than the memory")
        }

        let before = tables([(1000, 0), (500, 8)]);
        let growth = |kib, process| TableGrowth::since(&before, &tables(kib), Some(process));
        let near = growth([(1004, 0), (1020, 20)], 520);
        assert_eq!(near.error_kib(), Some(4));
        let text = "growth of all page tables of the host since before the start: node 0 +4 KiB \
                    (second level +0 KiB), node 1 +520 KiB (second level +12 KiB); 520 KiB are the \
                    machine's (VmPTE), so other processes changed at least 4 KiB";
        assert_eq!(near.finding(&[NodeId(1)]), Finding::note(SUBJECT, text));
        let wrong = near.finding(&[NodeId(0)]);
        assert!(far(&wrong) && wrong.text.starts_with("532 KiB"), "{wrong}");
        assert!(!far(&near.finding(&[])), "without memory nodes no node is far");
        let noise = growth([(1300, 0), (1020, 20)], 520);
        assert_eq!(noise.error_kib(), Some(300));
        assert!(!far(&noise.finding(&[NodeId(1)])), "{noise}");
        let other_machine = growth([(1400, 400), (1020, 20)], 520);
        assert!(!far(&other_machine.finding(&[NodeId(1)])), "{other_machine}");
        let second_level = growth([(1000, 400), (1020, 20)], 520);
        assert!(far(&second_level.finding(&[NodeId(1)])), "{second_level}");
        let shrunk = growth([(900, 0), (1020, 8)], 520);
        assert_eq!(shrunk.error_kib(), Some(100));
        assert!(shrunk.to_string().contains("node 0 -100 KiB"), "{shrunk}");
    }

    const SCOPE: &str = "/sys/fs/cgroup/vm.scope";

    /// A host with two nodes and a machine whose threads are in groups below its own, as libvirt
    /// makes them; `others` are more processes in the group.
    fn host(others: &str, numa_stat: Option<&str>) -> SnapshotHost {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let files = [
            (paths::node_online(), "0-1\n".to_owned()),
            node(0, 3000),
            node(1, 2000),
            (paths::own_mountinfo(), mounts.to_owned()),
            (paths::process_status(Tid(7)), "Name:\tvm\nVmPTE:\t     532 kB\n".to_owned()),
            (paths::process_cgroup(Tid(7)), "0::/vm.scope/emulator\n".to_owned()),
            stat(8, "qemu", 0x0040_0000),
            stat(9, "kvm-nx-lpage-recovery-7", 0x0020_0000),
            (paths::cgroup_procs(SCOPE), format!("7\n{others}")),
            (paths::cgroup_procs(&format!("{SCOPE}/emulator")), String::new()),
        ];
        let stat = numa_stat.map(|text| (paths::memory_numa_stat(SCOPE), text.to_owned()));
        SnapshotHost::from_files(files.into_iter().chain(stat))
    }

    fn node(node: u32, kib: u32) -> (String, String) {
        let path = paths::node_file(NodeId(node), "meminfo");
        (path, format!("Node {node} PageTables: {kib} kB\nNode {node} SecPageTables: 8 kB\n"))
    }

    fn stat(tid: u32, name: &str, flags: u32) -> (String, String) {
        let rest = "1 2 3 4 5 6 7 8 20 0 1 0 9912 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0";
        let path = paths::task_stat(Tid(tid), Tid(tid));
        (path, format!("{tid} ({name}) S 2 0 0 0 -1 {flags} {rest}\n"))
    }

    #[test]
    fn a_machine_with_a_group_of_its_own_has_tables_by_node() {
        const STAT: &str = "pagetables N0=135168 N1=409600\nsec_pagetables N0=12288 N1=0\n";
        let own = machine_tables("", Some(STAT));
        assert_eq!(own.own, Some(tables([(132, 12), (400, 0)])));
        assert_eq!(machine_tables("9\n", Some(STAT)).own, own.own, "with a kernel thread of KVM");
        assert_eq!(own.host, tables([(3000, 8), (2000, 8)]));
        let text = "page tables of its group: node 0 132 KiB (second level 12 KiB), node 1 400 KiB \
                    (second level 0 KiB)";
        assert_eq!(own.to_string(), text);
        let far = own.remote_tables_warning(&[NodeId(1)]).unwrap();
        assert!(far.text.starts_with("144 KiB of page tables are on other nodes"), "{far}");
        assert_eq!(own.remote_tables_warning(&[NodeId(0), NodeId(1)]), None);
        let old = machine_tables("", Some("anon N0=1 N1=2\n"));
        assert_eq!(old.own, None, "a kernel that does not count them");
        for unknown in [machine_tables("8\n", Some(STAT)), machine_tables("", None)] {
            assert_eq!((unknown.process_kib, &unknown.own), (Some(532), &None));
            assert_eq!(
                unknown.remote_tables_warning(&[NodeId(1)]),
                None,
                "the nodes are not known"
            );
            let text = unknown.to_string();
            assert!(text.starts_with("page tables: 532 KiB (VmPTE), distribution"), "{text}");
            assert!(text.ends_with("node 1 2000 KiB (second level 8 KiB)"), "{text}");
        }
        assert_eq!(MachineTables::read(&host("", None), Tid(8)).unwrap(), None, "it has ended");
    }

    fn machine_tables(others: &str, stat: Option<&str>) -> MachineTables {
        MachineTables::read(&host(others, stat), Tid(7)).unwrap().unwrap()
    }
}
