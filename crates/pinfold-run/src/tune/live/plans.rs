//! The placements that a search tries on a running machine.

use pinfold_apply::Target;
use pinfold_claims::Claims;
use pinfold_host::{Host as _, LiveHost};
use pinfold_model::{Finding, Plan, Request, Topology};
use pinfold_plan::PlanError;

use super::Options;
use crate::target::{Definition, Vm};
use crate::tune::candidates::strategy_names;
use crate::vcpus::Vcpus;
use crate::{Exit, Failure, planning};

/// A placement that is tried, with the threads of the machine.
pub(super) struct Placed {
    pub plan: Plan,
    pub target: Target,
    /// Other strategies that give the same placement.
    pub same: Vec<String>,
}

/// The placements that fit and are not the present one; those that are left out are in the
/// findings.
pub(super) fn candidates(
    options: &Options,
    host: &LiveHost,
    vm: &Vm,
    topology: &Topology,
    claims: &Claims,
) -> Result<(Vec<Placed>, Vec<Finding>), Failure> {
    let mut findings = vm.findings.clone();
    let vcpus = Vcpus::from_found(&vm.found);
    let mut request = Request::from_vnodes(vec![vm.request(topology)?]);
    request.avoid = options.avoid.clone();
    let mut candidates: Vec<Placed> = Vec::new();
    for name in strategy_names(&options.strategies) {
        let mut plan = match planning::plan(claims, Some(&name), topology, &request) {
            Ok(plan) => plan,
            Err(error @ PlanError::UnknownStrategy { .. }) => {
                return Err(Failure::from_error(Exit::Input, &error, error.hint()));
            }
            Err(error) if !options.strategies.is_empty() => {
                return Err(Failure::from_error(Exit::Input, &error, error.hint()));
            }
            Err(error) => {
                findings.push(Finding::note(name, format!("was not tried: {error}")));
                continue;
            }
        };
        vcpus.renumber_vcpus(&mut plan);
        // Pages do not follow in a window.
        plan.vnodes.iter_mut().for_each(|vnode| vnode.memory = None);
        if pinfold_plan::has_pins(&plan) && vm.found.require_own_threads().is_err() {
            let text = "was not tried: all vCPUs share one thread";
            findings.push(Finding::note(name, text));
        } else if is_present(host, vm, &plan)? {
            findings.push(Finding::note(name, "is the present placement"));
        } else if let Some(known) =
            candidates.iter_mut().find(|known| known.plan.same_placement(&plan))
        {
            known.same.push(name);
        } else {
            let (target, unsupported) = vm.target(&plan, Definition::Untouched)?;
            let new = unsupported.into_iter().filter(|one| !findings.contains(one));
            findings.extend(new.collect::<Vec<_>>());
            candidates.push(Placed { plan, target, same: Vec::new() });
        }
    }
    if candidates.is_empty() {
        let others = findings.iter().skip(vm.findings.len());
        let words: Vec<String> =
            others.map(|one| format!("{} {}", one.subject, one.text)).collect();
        let text = format!("there is no other placement to try: {}", words.join("; "));
        return Err(Failure::new(Exit::No, text)
            .with_hint("`pinfold plan --list` lists the strategies, --strategies selects some"));
    }
    Ok((candidates, findings))
}

/// True if all threads of the machine have the CPUs of the plan, which sets no policy.
fn is_present(host: &LiveHost, vm: &Vm, plan: &Plan) -> Result<bool, Failure> {
    for (task, role) in vm.found.tasks() {
        let thread = plan.vnodes.first().and_then(|vnode| vnode.thread(&role));
        let Some(thread) = thread else { continue };
        if thread.policy.is_some() || host.affinity(task.tid)? != thread.pus {
            return Ok(false);
        }
    }
    Ok(true)
}
