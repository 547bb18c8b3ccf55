//! The candidate placements: one per strategy, all with the same number of vCPUs.

use pinfold_model::{Finding, IsolationScope, Request, Topology, VcpuCount, VnodeRequest};
use pinfold_plan::{schema, strategies};
use pinfold_study::tune::{Candidate, NONE};
use pinfold_vm::hypervisors;

use super::Options;
use crate::claims::Claims;
use crate::guest::Subject;
use crate::{Exit, Failure, machine_request, planning};

/// The candidates, `none` first, and the strategies that were left out, with the reason.
///
/// They avoid the CPUs that active placements keep exclusively. Isolation is `own`: the loads are
/// child processes of Pinfold, and no other task is moved.
pub fn candidates(
    options: &Options,
    subject: &Subject,
    topology: &Topology,
    claims: &Claims,
) -> Result<(Vec<Candidate>, Vec<Finding>), Failure> {
    let spec = hypervisors::parse(&subject.argv).spec();
    let vcpus = VcpuCount::Exactly(subject.vcpus);
    let vnode = machine_request::vnode(&spec, vcpus, topology);
    let vnode = VnodeRequest { name: subject.name.clone(), ..vnode };
    let mut request = Request::from_vnodes(vec![vnode]);
    request.avoid = options.avoid.clone();
    request.isolation = IsolationScope::Own;
    let mut candidates = Vec::new();
    let mut findings = Vec::new();
    for name in names(options) {
        match planning::plan(claims, Some(&name), topology, &request) {
            Ok(plan) => {
                let conflicts = claims.conflicts(&subject.name, &plan);
                let new = conflicts.into_iter().filter(|one| !findings.contains(one));
                findings.extend(new.collect::<Vec<_>>());
                candidates.push(Candidate { name, ..Candidate::new(plan, schema::to_json) });
            }
            Err(error @ pinfold_plan::PlanError::UnknownStrategy { .. }) => {
                return Err(Failure::from_error(Exit::Input, &error, error.hint()));
            }
            // Given by the user, or the baseline itself: its refusal is the result.
            Err(error) if name == NONE || !options.strategies.is_empty() => {
                return Err(Failure::from_error(Exit::Input, &error, error.hint()));
            }
            Err(error) => findings.push(Finding::note(name, format!("was not tried: {error}"))),
        }
    }
    Ok((candidates, findings))
}

/// `none` first, without duplicates.
fn names(options: &Options) -> Vec<String> {
    let mut names = strategy_names(&options.strategies);
    names.retain(|name| name != NONE);
    names.insert(0, NONE.to_owned());
    names
}

/// The strategies to try, without duplicates: all, if none is named.
pub fn strategy_names(asked: &[String]) -> Vec<String> {
    if asked.is_empty() {
        return strategies().iter().map(|strategy| strategy.name.to_owned()).collect();
    }
    let mut names: Vec<String> = Vec::new();
    for name in asked {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}
