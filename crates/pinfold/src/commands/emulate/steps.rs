//! `pinfold emulate up --dry-run`: prints the steps of a platform without executing them.

use pinfold_host::LiveHost;
use pinfold_model::text::counted;
use pinfold_model::{Change, EmulationPlan, Step, Topology};
use pinfold_run::{Failure, host, inputs};
use pinfold_speed::{Facts, VnodeCgroup};

use super::supervisor;
use crate::cli::emulate::UpArgs;
use crate::output::{say, show};

/// Prints the steps, and what the methods start and write while the vnodes are active.
pub fn print(arguments: &UpArgs) -> Result<(), Failure> {
    let host = host::live()?;
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

/// The steps and actions of a platform.
#[derive(Default)]
struct Planned {
    steps: Vec<Step>,
    /// The actions by vnode.
    at_work: Vec<(String, String)>,
    cautions: Vec<String>,
}

/// The steps of all vnodes. The steps of each vnode are planned for the state after those of the
/// previous ones, without executing any: a step that two of them need appears once.
fn of(host: &LiveHost, plan: &EmulationPlan) -> Result<Planned, Failure> {
    let topology: Topology = inputs::topology(host, None)?;
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
