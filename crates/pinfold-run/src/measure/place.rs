//! The placement of a probe on this machine: CPUs, a node, a role of a plan, a vnode.

use pinfold_host::paths;
use pinfold_model::text::{cpus_text, select_verb};
use pinfold_model::{CpuSet, NodeId, Plan, Policy, ThreadPlan};
use pinfold_plan::{HostMatch, command};
use pinfold_probe::benchmarks::SchedPolicy;
use pinfold_probe::loads::Placement;

use super::{MeasurementContext, ProbeOptions};
use crate::emulate::ipc;
use crate::{Exit, Failure, host, inputs, plans};

/// Where a probe is to run on this machine.
#[derive(Clone, Copy)]
pub struct PlaceRequest<'a> {
    /// In the place that the plan in this file gives to a role.
    pub plan: Option<&'a str>,
    /// The vnode of the plan; without a plan, one that is up.
    pub vnode: Option<&'a str>,
    /// The role of the plan; `None` for its vCPUs, or its tasks.
    pub role: Option<&'a str>,
    /// CPUs and policy of the command line.
    pub how: &'a ProbeOptions,
    /// The state directory.
    pub state: Option<&'a str>,
}

/// A placement on this machine.
#[derive(Clone, Debug)]
pub struct HostPlace {
    /// The CPUs; never empty.
    pub pus: CpuSet,
    /// The scheduling policy.
    pub policy: SchedPolicy,
    /// The cgroups and the mask.
    pub placement: Placement,
    /// Description of the placement.
    pub text: String,
}

impl HostPlace {
    /// Finds the placement that is asked for.
    ///
    /// # Errors
    /// [`Failure`] if there is none.
    pub fn find(bench: &MeasurementContext, request: &PlaceRequest<'_>) -> Result<Self, Failure> {
        match (request.plan, request.vnode) {
            (Some(file), _) => {
                let plan = inputs::read_plan(file)?;
                Self::of_plan(bench, &plan, file, request)
            }
            (None, Some(vnode)) => Self::of_vnode(bench, vnode, request),
            (None, None) => Self::of_words(bench, request.how),
        }
    }

    /// `--cpus`, `--node`, or all CPUs.
    pub fn of_words(bench: &MeasurementContext, how: &ProbeOptions) -> Result<Self, Failure> {
        let topology = &bench.topology;
        let pus = match (&how.cpus, how.node) {
            (Some(list), _) => inputs::pus("--cpus", list)?,
            (None, Some(node)) => {
                let found = topology.nodes.iter().find(|one| one.id == NodeId(node));
                found.map(|node| node.pus.clone()).ok_or_else(|| {
                    Failure::new(Exit::Input, format!("--node: this machine has no node {node}"))
                        .with_hint("`pinfold topo` shows them")
                })?
            }
            (None, None) => topology.inherited_cpus(),
        };
        let option = if how.node.is_some() { "--node" } else { "--cpus" };
        require_usable(bench, option, &pus)?;
        let policy = policy(how)?.unwrap_or(SchedPolicy::Other);
        Ok(Self::on(pus, policy, Vec::new(), None))
    }

    /// The placement of a role in a plan.
    pub fn of_plan(
        bench: &MeasurementContext,
        plan: &Plan,
        file: &str,
        request: &PlaceRequest<'_>,
    ) -> Result<Self, Failure> {
        // Offline CPUs are rejected with the command that brings them online.
        if let HostMatch::Other(differences) = pinfold_plan::fit(plan, &bench.topology) {
            return Err(plans::another_host(file, &differences).with_hint(format!(
                "create it again on this host: `{}`",
                command::plan_command(plan)
            )));
        }
        let names: Vec<&str> = plan.vnodes.iter().map(|one| one.name.as_str()).collect();
        let found = match request.vnode {
            Some(name) => plan.vnodes.iter().find(|one| one.name == name),
            None => plan.vnodes.first().filter(|_| plan.vnodes.len() == 1),
        };
        let found = found.ok_or_else(|| {
            let asked = request.vnode.map_or("it has several vnodes".to_owned(), |name| {
                format!("it has no vnode {name:?}")
            });
            wrong_file(asked, file)
                .with_hint(format!("name one with --vnode: {}", names.join(", ")))
        })?;
        let wanted = request.role.unwrap_or(match found.vcpus().next() {
            Some(_) => "vcpu",
            None => "task",
        });
        let threads: Vec<&ThreadPlan> =
            found.threads.iter().filter(|thread| thread.role.is_called(wanted)).collect();
        let (Some(first), Some(pus)) = (threads.first(), union(&threads)) else {
            let roles: Vec<String> =
                found.threads.iter().map(|thread| thread.role.to_string()).collect();
            return Err(wrong_file(format!("{} has no role {wanted:?}", found.name), file)
                .with_hint(format!("its roles are {}", roles.join(", "))));
        };
        if threads.iter().any(|thread| thread.policy != first.policy) {
            return Err(wrong_file(format!("the roles {wanted} have several policies"), file)
                .with_hint("choose one with --role"));
        }
        require_usable(bench, file, &pus)?;
        let policy = match (policy(request.how)?, first.policy) {
            (Some(policy), _) => policy,
            (None, planned) => planned_policy(planned).map_err(|why| wrong_file(why, file))?,
        };
        let text = format!("as {wanted} of {} under {}", found.name, plan.strategy);
        Ok(Self::on(pus, policy, Vec::new(), Some(text)))
    }

    /// A vnode of an active platform.
    fn of_vnode(
        bench: &MeasurementContext,
        name: &str,
        request: &PlaceRequest<'_>,
    ) -> Result<Self, Failure> {
        let how = request.how;
        let (files, pus) = ipc::place_of(&host::state(request.state)?, name)?;
        let pus = match &how.cpus {
            Some(list) => {
                let asked = inputs::pus("--cpus", list)?;
                let strange = asked.difference(&pus);
                if !strange.is_empty() {
                    let text = format!("--cpus: the vnode {name} has no {}", cpus_text(&strange));
                    return Err(
                        Failure::new(Exit::Input, text).with_hint(format!("its CPUs are {pus}"))
                    );
                }
                asked
            }
            None => pus,
        };
        require_usable(bench, "--vnode", &pus)?;
        let policy = policy(how)?.unwrap_or(SchedPolicy::Other);
        Ok(Self::on(pus, policy, files, Some(format!("in the vnode {name}"))))
    }

    fn on(
        pus: CpuSet,
        policy: SchedPolicy,
        cgroup_files: Vec<String>,
        why: Option<String>,
    ) -> Self {
        let plural = if pus.len() == 1 { "CPU" } else { "CPUs" };
        let mut text = format!("{plural} {pus}, {}", policy_text(policy));
        if let Some(why) = why {
            text = format!("{text}, {why}");
        }
        let placement = Placement { cgroup_files, affinity: Some(pus.clone()) };
        Self { pus, policy, placement, text }
    }
}

fn wrong_file(why: String, file: &str) -> Failure {
    Failure::new(Exit::Input, format!("{file}: {why}"))
}

fn union(threads: &[&ThreadPlan]) -> Option<CpuSet> {
    let mut all = CpuSet::new();
    threads.iter().for_each(|thread| all.add(&thread.pus));
    (!all.is_empty()).then_some(all)
}

/// CPUs that exist, are online, and may be used by this process.
fn require_usable(bench: &MeasurementContext, option: &str, pus: &CpuSet) -> Result<(), Failure> {
    let topology = &bench.topology;
    if pus.is_empty() {
        return Err(Failure::new(Exit::Input, format!("{option}: there is no CPU to measure on")));
    }
    inputs::require_known(option, pus, topology)?;
    let offline = pus.intersection(&topology.offline);
    if let Some(first) = offline.iter().next() {
        let path = paths::cpu_is_online(first);
        let verb = select_verb(offline.len(), "is", "are");
        let text = format!("{option}: {} {verb} offline", cpus_text(&offline));
        return Err(Failure::new(Exit::Host, text)
            .with_hint(format!("bring it online (`echo 1 > {path}`) or name others")));
    }
    let barred = pus.difference(&topology.allowed);
    if !barred.is_empty() {
        let text = format!("{option}: this process may not run on {}", cpus_text(&barred));
        return Err(Failure::new(Exit::Host, text).with_hint(format!(
            "the cpuset of its cgroup allows only {}; start it in another cgroup",
            topology.allowed
        )));
    }
    Ok(())
}

/// The policy on the command line, if there is one.
pub fn policy(how: &ProbeOptions) -> Result<Option<SchedPolicy>, Failure> {
    let Some(text) = how.policy.as_deref() else { return Ok(None) };
    let fifo = text.strip_prefix("fifo:").and_then(|number| number.parse::<u8>().ok());
    match (text, fifo) {
        ("other", _) => Ok(Some(SchedPolicy::Other)),
        (_, Some(priority @ 1..=98)) => Ok(Some(SchedPolicy::Fifo(priority))),
        // The supervisor of a real-time benchmark needs a higher priority.
        (_, Some(priority)) => {
            Err(Failure::new(Exit::Input, format!("--policy: priority {priority} is out of range"))
                .with_hint("use fifo:1 to fifo:98"))
        }
        (_, None) => Err(Failure::new(Exit::Input, format!("--policy {text:?} is not a policy"))
            .with_hint("write other, or fifo:N with N from 1 to 98")),
    }
}

fn planned_policy(planned: Option<Policy>) -> Result<SchedPolicy, String> {
    match planned {
        None | Some(Policy::Other { .. } | Policy::Slice { .. }) => Ok(SchedPolicy::Other),
        Some(Policy::Fifo { priority } | Policy::RoundRobin { priority }) => {
            Ok(SchedPolicy::Fifo(priority))
        }
        Some(
            other @ (Policy::Batch { .. }
            | Policy::Idle
            | Policy::Deadline { .. }
            | Policy::Unknown { .. }),
        ) => Err(format!("no probe can run under the policy {other}")),
    }
}

/// The policy as on the command line.
pub fn policy_text(policy: SchedPolicy) -> String {
    match policy {
        SchedPolicy::Other => "other".to_owned(),
        SchedPolicy::Fifo(priority) => format!("fifo:{priority}"),
    }
}
