//! `pinfold emulate up --dry-run`: the steps of a platform before they are taken.

use pinfold_host::LiveHost;
use pinfold_model::text::counted;
use pinfold_model::{Change, EmulationPlan, Step, Topology};
use pinfold_speed::{Facts, VnodeCgroup};

use super::supervisor;
use crate::cli::emulate::UpArgs;
use crate::common;
use crate::failure::Failure;
use crate::output::{say, show};

/// Prints them, and what the methods start and write while the vnodes are up.
pub fn print(arguments: &UpArgs) -> Result<(), Failure> {
    let host = common::host()?;
    let plan = supervisor::plan_of(arguments, &host)?;
    plan.plan.findings.iter().for_each(|finding| say(&finding.to_string()));
    let Planned { steps, at_work, cautions } = of(&host, &plan)?;
    for step in &steps {
        show(&format!("{}   ({})", step.change, step.reason));
    }
    for (vnode, line) in &at_work {
        show(&format!("{line}   (as long as vnode {vnode} is up)"));
    }
    cautions.iter().for_each(|caution| say(caution));
    say(&format!("{}; nothing was changed", counted(steps.len(), "step")));
    Ok(())
}

/// What a platform would do.
#[derive(Default)]
struct Planned {
    steps: Vec<Step>,
    /// By vnode.
    at_work: Vec<(String, String)>,
    cautions: Vec<String>,
}

/// The steps of all vnodes. Each vnode's are planned on the host as the ones before it left it,
/// and none of them was taken: what two of them need is done once.
fn of(host: &LiveHost, plan: &EmulationPlan) -> Result<Planned, Failure> {
    let topology: Topology = common::topology(host, None)?;
    let facts = Facts::find(host).map_err(|error| supervisor::speed_failure(&error))?;
    let mut all = Planned::default();
    for vnode in &plan.vnodes {
        let node = supervisor::node(vnode, &topology)?;
        let (enclosure, planned) = VnodeCgroup::plan(host, &facts.hierarchies, &node)
            .map_err(|error| supervisor::speed_failure(&error))?;
        for step in planned {
            let is_done = |done: &Step| is_file(done) && done.change == step.change;
            if !all.steps.iter().any(is_done) {
                all.steps.push(step);
            }
        }
        let lines = pinfold_speed::at_work(&node, &enclosure).into_iter();
        all.at_work.extend(lines.map(|line| (node.name.clone(), line)));
        all.cautions.extend(pinfold_speed::cautions(host, &node, &enclosure));
    }
    Ok(all)
}

fn is_file(step: &Step) -> bool {
    matches!(step.change, Change::WriteFile { .. })
}
