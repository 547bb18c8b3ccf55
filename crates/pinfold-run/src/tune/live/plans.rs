//! The candidates of a search on a running machine: placements of strategies, and settings.

use pinfold_claims::Claims;
use pinfold_host::{Host as _, LiveHost};
use pinfold_model::{Finding, Plan, Request, Topology};
use pinfold_plan::PlanError;

use super::placed::Placed;
use super::{Next, Options, settings};
use crate::target::{Definition, Vm};
use crate::tune::candidates::strategy_names;
use crate::vcpus::Vcpus;
use crate::{Exit, Failure, planning};

/// What the candidates are made from.
#[derive(Clone, Copy)]
pub(super) struct Source<'s> {
    pub options: &'s Options,
    pub host: &'s LiveHost,
    pub vm: &'s Vm,
    pub topology: &'s Topology,
    pub claims: &'s Claims,
}

/// The candidates that fit and are not as the machine is now; those that are left out are in the
/// findings.
pub(super) fn candidates(source: Source<'_>) -> Result<(Vec<Placed>, Vec<Finding>), Failure> {
    let Source { options, host, vm, topology, claims: _ } = source;
    let mut findings = vm.findings.clone();
    let mut candidates = Vec::new();
    if options.settings.is_empty() || !options.strategies.is_empty() {
        candidates = placements(source, &mut findings)?;
    }
    if !options.settings.is_empty() {
        let settings = settings::candidates(&options.settings, host, vm, topology, &mut findings)?;
        candidates.extend(settings);
    }
    if candidates.is_empty() {
        let others = findings.iter().skip(vm.findings.len());
        let words: Vec<String> =
            others.map(|one| format!("{} {}", one.subject, one.text)).collect();
        let (what, hint) = if options.settings.is_empty() {
            ("placement", "`pinfold plan --list` lists the strategies, --strategies selects some")
        } else {
            ("setting", "docs/tunables.md has the keys and values of --try")
        };
        let text = format!("there is no other {what} to try: {}", words.join("; "));
        return Err(Failure::new(Exit::No, text).with_hint(hint));
    }
    Ok((candidates, findings))
}

/// The placements of the strategies.
fn placements(source: Source<'_>, findings: &mut Vec<Finding>) -> Result<Vec<Placed>, Failure> {
    let Source { options, host, vm, topology, claims } = source;
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
            let next = Some(Next::Apply(arguments(options, &name)));
            let (is_setting, same) = (false, Vec::new());
            candidates.push(Placed { name, is_setting, plan, target, same, next });
        }
    }
    Ok(candidates)
}

/// The arguments of `apply` for a strategy.
fn arguments(options: &Options, strategy: &str) -> Vec<String> {
    let mut words = vec!["--strategy".to_owned(), strategy.to_owned()];
    if !options.avoid.is_empty() {
        words.extend(["--avoid".to_owned(), options.avoid.to_string()]);
    }
    if options.ignore_claims {
        words.push("--ignore-claims".to_owned());
    }
    words
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
