//! Steps that prepare the host for a method.

use pinfold_host::{Host, HostError, paths};
use pinfold_model::{Change, Method, Step, Undo};

use crate::node::Node;
use crate::{SpeedError, frequency};

/// The shortest slice that kernels accept (`min_sched_granularity_ns` of `kernel/sched/debug.c`).
const SLICE: &[u8] = b"100000";
/// Tunables of slices, newest kernels first; in debugfs since 5.13, before in sysctl.
const TUNABLES: [&str; 3] = ["base_slice_ns", "min_granularity_ns", "latency_ns"];
const SYSCTLS: [&str; 2] = ["sched_min_granularity_ns", "sched_latency_ns"];

/// The steps that a method needs in addition to its groups.
pub(crate) fn steps(host: &dyn Host, node: &Node) -> Result<Vec<Step>, SpeedError> {
    match node.method {
        Method::Fracas => Ok(slices(host, node)?),
        Method::Gov | Method::Freq => frequency::steps(host, node),
        Method::Stall | Method::Hogs | Method::Lim | Method::Quota | Method::Inject => {
            Ok(Vec::new())
        }
    }
}

/// The steps that set the scheduler's slices to the shortest value; none if the kernel does not
/// expose them.
fn slices(host: &dyn Host, node: &Node) -> Result<Vec<Step>, HostError> {
    let mut steps = Vec::new();
    for path in tunables(host) {
        let original = host.read(&path)?;
        if original.trim_ascii() == SLICE {
            continue;
        }
        steps.push(Step {
            change: Change::WriteFile { path: path.clone(), value: SLICE.to_vec() },
            undo: Undo::WriteFile { path, original },
            reason: format!(
                "short scheduler slices let fracas slow the tasks of vnode {} evenly",
                node.name
            ),
        });
    }
    Ok(steps)
}

pub(super) fn tunables(host: &dyn Host) -> Vec<String> {
    let debug = TUNABLES.into_iter().map(paths::debug_sched);
    let all = debug.chain(SYSCTLS.into_iter().map(paths::sysctl_kernel));
    all.filter(|path| host.exists(path)).collect()
}
