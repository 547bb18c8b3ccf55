//! The steps of a platform, without executing them.

use crate::{Failure, inputs};
use pinfold_emulate::{Facts, VnodeCgroup};
use pinfold_host::LiveHost;
use pinfold_model::{Change, EmulationPlan, Step, Topology};

use super::supervisor;

/// The steps and actions of a platform.
#[derive(Default)]
pub struct PlannedPlatform {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The actions by vnode.
    pub at_work: Vec<(String, String)>,
    /// Warnings about the chosen methods.
    pub cautions: Vec<String>,
}

/// The steps of all vnodes. The steps of each vnode are planned for the state after those of the
/// previous ones, without executing any: a step that two of them need appears once.
pub fn steps_of(host: &LiveHost, plan: &EmulationPlan) -> Result<PlannedPlatform, Failure> {
    let topology: Topology = inputs::topology(host, None)?;
    let facts = Facts::find(host)?;
    let mut all = PlannedPlatform::default();
    for vnode in &plan.vnodes {
        let node = supervisor::node(vnode, &topology)?;
        let (cgroup, planned) = VnodeCgroup::plan(host, &facts.hierarchies, &node)?;
        for step in planned {
            if !all.steps.iter().any(|done| is_file(done) && done.change == step.change) {
                all.steps.push(step);
            }
        }
        let lines = pinfold_emulate::describe_effects(&node, &cgroup).into_iter();
        all.at_work.extend(lines.map(|line| (node.name.clone(), line)));
        all.cautions.extend(pinfold_emulate::cautions(host, &facts.hierarchies, &node, &cgroup));
    }
    Ok(all)
}

fn is_file(step: &Step) -> bool {
    matches!(step.change, Change::WriteFile { .. })
}
