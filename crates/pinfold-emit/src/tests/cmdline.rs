//! Kernel parameters.

use pinfold_model::{
    IsolationScope, MemoryRequest, Plan, Request, Topology, Tuning, VcpuCount, VmRequest,
    VnodeRequest,
};
use pinfold_plan::plan;
use pinfold_samples::machine::dual_e5_2670;

use crate::cmdline;

/// What a plan needs of huge pages.
#[test]
fn huge_pages_are_counted_for_the_kernel_command_line() {
    let request = Request {
        isolation: IsolationScope::Host,
        ..Request::from_vnodes(vec![VnodeRequest {
            memory: Some(MemoryRequest { bytes: 16 << 30, page_bytes: Some(1 << 30) }),
            ..VnodeRequest::vm("rt", VmRequest::from_vcpus(VcpuCount::Exactly(4)))
        }])
    };
    let mut topology = dual_e5_2670().build();
    topology.nodes.iter_mut().for_each(|node| node.memory_bytes = 64 << 30);
    let mut layout = plan("realtime", &topology, &request).unwrap();
    let node = layout.vnodes[0].memory.as_ref().unwrap().nodes[0];
    let tunable = format!("`--tunable huge-pages={node}:1048576:16`");
    assert!(unfolded(&layout, &topology).contains(&tunable), "{}", unfolded(&layout, &topology));
    layout.tuning = Tuning::from_words(&[&format!("huge-pages={node}:1048576:16")]).unwrap();
    assert!(
        !unfolded(&layout, &topology).contains("--tunable huge-pages"),
        "{}",
        unfolded(&layout, &topology)
    );
}

fn unfolded(layout: &Plan, topology: &Topology) -> String {
    cmdline(layout, topology).replace("\n# ", " ")
}
