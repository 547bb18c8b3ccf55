//! The memory of a machine or command that Pinfold starts, on a host with several nodes: the policy
//! under which it starts, and on which nodes its page tables are afterwards.
//!
//! Only a policy that is there before the first allocation reaches everything: page tables, those
//! of KVM, and pages that a device holds cannot be moved later.

use pinfold_apply::page_tables::{self, NodeTables, TableGrowth};
use pinfold_host::{Clock, Host};
use pinfold_model::{Finding, NodeId, Plan, Tid};

use crate::Failure;

/// Pause between two readings of the page tables of a machine that starts.
const PAUSE_NS: u64 = 5_000_000_000;
/// Page tables that still grow after this time are reported as they are.
const LATEST_NS: u64 = 60_000_000_000;

/// The memory nodes of a plan, and the page tables of the host before the start.
#[derive(Clone, Debug, Default)]
pub struct StartMemory {
    /// The nodes; empty if the plan leaves that to the kernel, or the host has one node.
    nodes: Vec<NodeId>,
    /// Empty on a host with one node.
    before: Vec<NodeTables>,
}

impl StartMemory {
    /// Reads the host before the start. The memory is on `node`, or where the plan has it.
    pub fn read(host: &dyn Host, plan: &Plan, node: Option<NodeId>) -> Result<Self, Failure> {
        let before = page_tables::of_host(host)?;
        if before.len() < 2 {
            return Ok(Self::default());
        }
        let memory = plan.vnodes.first().and_then(|vnode| vnode.memory.as_ref());
        let memory = memory.filter(|memory| !memory.is_preferred);
        let planned = memory.map(|memory| memory.nodes.clone()).unwrap_or_default();
        let nodes = node.map_or(planned, |node| vec![node]);
        Ok(Self { nodes, before })
    }

    /// The node to which the memory is bound at the start (`set_mempolicy(2)`). With several memory
    /// nodes the kernel's default stays: pages near the thread that asks for them.
    pub fn node(&self) -> Option<NodeId> {
        match self.nodes.as_slice() {
            [only] => Some(*only),
            _ => None,
        }
    }

    /// Where the page tables of the started process are, on a host with several nodes.
    pub fn tables(&self, host: &dyn Host, pid: Tid) -> Result<Option<Finding>, Failure> {
        if self.before.is_empty() {
            return Ok(None);
        }
        let Some(process_kib) = page_tables::of_process(host, pid)? else { return Ok(None) };
        let after = page_tables::of_host(host)?;
        let growth = TableGrowth::since(&self.before, &after, process_kib);
        Ok(Some(growth.finding(&self.nodes)))
    }
}

/// The report of the page tables of a machine that runs for long: once, when they have stopped
/// growing.
#[derive(Clone, Debug, Default)]
pub struct TableReport {
    /// `None` after the report, and if there is nothing to report.
    memory: Option<StartMemory>,
    next_ns: u64,
    latest_ns: u64,
    last_kib: Option<u64>,
}

impl TableReport {
    /// For a machine that starts now.
    pub fn new(memory: StartMemory, clock: &dyn Clock) -> Self {
        let now = clock.now_ns();
        Self {
            memory: Some(memory).filter(|memory| !memory.before.is_empty()),
            next_ns: now.saturating_add(PAUSE_NS),
            latest_ns: now.saturating_add(LATEST_NS),
            last_kib: None,
        }
    }

    /// The report, when it is due.
    pub fn due(&mut self, host: &dyn Host, pid: Tid, now: u64) -> Result<Option<Finding>, Failure> {
        if self.memory.is_none() || now < self.next_ns {
            return Ok(None);
        }
        self.next_ns = now.saturating_add(PAUSE_NS);
        let kib = page_tables::of_process(host, pid)?.flatten();
        let grows = kib.is_some() && kib != self.last_kib;
        self.last_kib = kib;
        match self.memory.take_if(|_| !grows || now >= self.latest_ns) {
            Some(memory) => memory.tables(host, pid),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use pinfold_host::{SimClock, SnapshotHost};
    use pinfold_model::{MemoryPlan, Request, Severity, VcpuCount};
    use pinfold_sim::{CgroupVersion, SimHost};

    use super::*;

    fn host(nodes: &[u64]) -> SnapshotHost {
        let online =
            ("/sys/devices/system/node/online".to_owned(), format!("0-{}\n", nodes.len() - 1));
        let status = ("/proc/7/status".to_owned(), "Name:\tvm\nVmPTE:\t     400 kB\n".to_owned());
        SnapshotHost::from_files(
            nodes
                .iter()
                .enumerate()
                .map(|(node, kib)| {
                    let path = format!("/sys/devices/system/node/node{node}/meminfo");
                    (
                        path,
                        format!(
                            "Node {node} PageTables: {kib} kB\nNode {node} SecPageTables: 0 kB\n"
                        ),
                    )
                })
                .chain([online, status]),
        )
    }

    fn plan(nodes: &[u32]) -> Plan {
        let topology = pinfold_topology::discover(&SimHost::builder(CgroupVersion::V2, 8).build());
        let request = Request::vm("vm", VcpuCount::Exactly(2));
        let mut plan = pinfold_plan::plan("low-latency", &topology.unwrap(), &request).unwrap();
        let nodes = nodes.iter().copied().map(NodeId).collect();
        let reason = "as the test says".to_owned();
        plan.vnodes[0].memory =
            Some(MemoryPlan { nodes, bytes: None, page_bytes: None, is_preferred: false, reason });
        plan
    }

    #[test]
    fn a_start_is_bound_to_the_only_memory_node_of_a_host_with_several() {
        fn node(host: &SnapshotHost, nodes: &[u32]) -> Option<NodeId> {
            StartMemory::read(host, &plan(nodes), None).unwrap().node()
        }

        assert_eq!(node(&host(&[0, 0]), &[1]), Some(NodeId(1)));
        assert_eq!(node(&host(&[0, 0]), &[0, 1]), None);
        assert_eq!(node(&host(&[0]), &[0]), None, "there is no other node");
        let asked = StartMemory::read(&host(&[0, 0]), &plan(&[1]), Some(NodeId(0))).unwrap();
        assert_eq!(asked.node(), Some(NodeId(0)), "a study's far memory");
    }

    #[test]
    fn tables_on_another_node_are_a_warning() {
        assert_eq!(grown(&[1], [104, 500]).severity, Severity::Note);
        assert_eq!(grown(&[0], [104, 500]).severity, Severity::Warning);
        assert_eq!(grown(&[0, 1], [104, 500]).severity, Severity::Note);
        let alone = StartMemory::read(&host(&[100]), &plan(&[0]), None).unwrap();
        assert_eq!(alone.tables(&host(&[500]), Tid(7)).unwrap(), None, "one node: no output");
    }

    fn grown(nodes: &[u32], after: [u64; 2]) -> Finding {
        let memory = StartMemory::read(&host(&[100, 100]), &plan(nodes), None).unwrap();
        memory.tables(&host(&after), Tid(7)).unwrap().unwrap()
    }

    #[test]
    fn the_report_comes_once_when_the_tables_have_stopped_growing() {
        let memory = StartMemory::read(&host(&[100, 100]), &plan(&[1]), None).unwrap();
        let mut report = TableReport::new(memory, &SimClock::at(0));
        let up = host(&[100, 500]);
        let mut due = |seconds: u64| report.due(&up, Tid(7), seconds * 1_000_000_000).unwrap();
        assert_eq!((due(1), due(5), due(6)), (None, None, None), "one reading is no comparison");
        let text = due(10).map(|finding| finding.text).unwrap_or_default();
        assert!(text.contains("node 1 +400 KiB"), "{text}");
        assert_eq!((due(20), due(90)), (None, None));
    }
}
