//! `pinfold emulate up --dry-run`: the steps of a platform before they are taken.

use pinfold_host::LiveHost;
use pinfold_model::{Change, EmulationPlan, Step, Topology};
use pinfold_speed::{Enclosure, Facts};

use super::supervisor;
use crate::cli::emulate::UpArgs;
use crate::common;
use crate::failure::Failure;
use crate::output::{data, say};

/// Prints them.
pub fn print(arguments: &UpArgs) -> Result<(), Failure> {
    let host = common::host()?;
    let plan = supervisor::plan_of(arguments, &host)?;
    plan.plan.findings.iter().for_each(|finding| say(&finding.to_string()));
    let steps = of(&host, &plan)?;
    for step in &steps {
        data(&format!("{}   ({})", step.change, step.reason));
    }
    say(&format!("{} step(s); nothing was changed", steps.len()));
    Ok(())
}

/// The steps of all vnodes. Each vnode's are planned on the host as the ones before it left it,
/// and none of them was taken: what two of them need is done once.
fn of(host: &LiveHost, plan: &EmulationPlan) -> Result<Vec<Step>, Failure> {
    let topology: Topology = common::topology(host, None)?;
    let facts = Facts::find(host).map_err(|error| supervisor::speed_failure(&error))?;
    let mut steps: Vec<Step> = Vec::new();
    for vnode in &plan.vnodes {
        let node = supervisor::node(vnode, &topology)?;
        let (_, planned) = Enclosure::plan(host, &facts.hierarchies, &node)
            .map_err(|error| supervisor::speed_failure(&error))?;
        for step in planned {
            let is_done = |done: &Step| is_file(done) && done.change == step.change;
            if !steps.iter().any(is_done) {
                steps.push(step);
            }
        }
    }
    Ok(steps)
}

fn is_file(step: &Step) -> bool {
    matches!(step.change, Change::WriteFile { .. })
}
