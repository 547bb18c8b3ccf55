//! Checks a plan against the rules for all plans and against a topology.
//!
//! A plan may come from an edited file, or from another machine. [`faults`] are violations on any
//! host: [`crate::schema::from_json`] refuses them. [`validate()`] reports differences between a
//! plan and this host; a finding of severity `problem` means that the plan must not be applied.

use std::collections::BTreeSet;

use pinfold_model::text::pus_text;
use pinfold_model::tunables::{self, Value};
use pinfold_model::{
    CpuSet, Finding, IsolationScope, Plan, Policy, Role, Severity, ThreadPlan, Topology, Tuning,
    VnodePlan,
};

use crate::analysis::host_match::{HostMatch, fit};
use crate::cores::online;
use crate::text::verb;

/// The plan itself, in findings about its CPUs.
const PLAN: &str = "the plan";

/// Reasons against applying `plan` on the host of `topology`; empty if there are none. The plan's
/// own findings are not repeated.
///
/// ```
/// use pinfold_model::{Request, VcpuCount};
///
/// let topology = pinfold_samples::from_description("core:4 pu:2");
/// let request = Request::vm("guest", VcpuCount::Exactly(2));
/// let plan = pinfold_plan::plan("compact", &topology, &request)?;
/// assert!(pinfold_plan::validate(&plan, &topology).is_empty());
/// // On a smaller host it names CPUs that do not exist.
/// let smaller = pinfold_samples::from_description("core:1 pu:1");
/// assert!(!pinfold_plan::validate(&plan, &smaller).is_empty());
/// # Ok::<(), pinfold_plan::PlanError>(())
/// ```
pub fn validate(plan: &Plan, topology: &Topology) -> Vec<Finding> {
    let broken = faults(plan)
        .into_iter()
        .map(|fault| Finding::problem("plan", format!("{}: {}", fault.field, fault.why)));
    let mut findings: Vec<Finding> = broken.collect();
    findings.extend(another_host(plan, topology));
    let named = plan.pus().union(&plan.exclusive);
    findings.extend(absent(&named, PLAN, topology));
    for setting in tunables::settings(plan) {
        if let (true, Value::Cpus(pus)) = (setting.tunable.values.is_of_host(), &setting.value) {
            let others = pus.difference(&named);
            findings.extend(absent(&others, &setting.to_string(), topology));
        }
    }
    findings.extend(tunables::validate_tunables(plan, topology));
    findings.extend(absent_host(plan, topology));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

/// The differences between the plan's host and this one.
fn another_host(plan: &Plan, topology: &Topology) -> Option<Finding> {
    let differences = match fit(plan, topology) {
        HostMatch::Same => return None,
        HostMatch::OtherOnline => {
            return note(
                "the online CPUs have changed since the plan was made; the CPUs that it uses have \
                 not",
            );
        }
        HostMatch::Offline(_) => {
            return note(
                "`pinfold apply` brings the CPUs online that the plan uses, and then compares this \
                 host with the host of the plan",
            );
        }
        HostMatch::Other(differences) => differences,
    };
    let why = if differences.is_empty() {
        String::new()
    } else {
        format!(": {}", differences.join("; "))
    };
    let text = format!(
        "the plan was made for the host {}, this host is {}{why}",
        plan.fingerprint, topology.fingerprint
    );
    let finding = Finding::warning("fingerprint", text);
    Some(finding.with_hint("create a new plan with the same strategy and request"))
}

fn note(text: &str) -> Option<Finding> {
    Some(Finding::note("fingerprint", text))
}

/// A violation of a rule for all plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Path of the field in the JSON format.
    pub field: String,
    /// The fault.
    pub why: String,
}

/// The violations of a plan on any host.
pub(crate) fn faults(plan: &Plan) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut fault = |field: &str, why: String| {
        faults.push(Fault { field: field.to_owned(), why });
    };
    if plan.vnodes.is_empty() {
        fault("vnodes", "the plan places nothing".to_owned());
    }
    let mut names: BTreeSet<&str> = BTreeSet::new();
    for (place, vnode) in plan.vnodes.iter().enumerate() {
        if !names.insert(&vnode.name) {
            fault(&format!("vnodes[{place}].name"), format!("{:?} is planned twice", vnode.name));
        }
        for (field, why) in vnode_faults(plan, vnode) {
            fault(&format!("vnodes[{place}].{field}"), why);
        }
    }
    for (place, irq) in plan.irqs.iter().enumerate() {
        if irq.pus.is_empty() {
            let why = format!("the interrupts of {} have no CPU", irq.device);
            fault(&format!("irqs[{place}].pus"), why);
        }
    }
    for (field, why) in tuning_faults(&plan.tuning) {
        fault(&format!("tuning.{field}"), why);
    }
    if plan.housekeeping.is_empty() {
        fault("housekeeping_pus", "the host's own tasks would have no CPU".to_owned());
    }
    let both = plan.housekeeping.intersection(&plan.exclusive);
    if !both.is_empty() {
        fault(
            "exclusive_pus",
            format!("{} {} also in housekeeping_pus", pus_text(&both), verb(&both, "is", "are")),
        );
    }
    if plan.isolation == IsolationScope::None && !plan.exclusive.is_empty() {
        fault(
            "exclusive_pus",
            "the isolation is none, so nothing is excluded from any CPU".to_owned(),
        );
    }
    if let Some(why) = starved_host(plan) {
        fault("housekeeping_pus", why);
    }
    faults
}

/// Values that no kernel accepts, by field of the tuning.
fn tuning_faults(tuning: &Tuning) -> Vec<(String, String)> {
    let mut faults = Vec::new();
    for (tunable, value) in tuning.iter() {
        if let Some((part, why)) = tunable.values.find_violation(value) {
            let dot = if part.is_empty() { "" } else { "." };
            faults.push((format!("{}{dot}{part}", tunable.field), why));
        }
        faults.extend((tunable.fault)(value, tuning).map(|why| (tunable.field.to_owned(), why)));
    }
    faults
}

/// The violations of one vnode, by field within it.
fn vnode_faults(plan: &Plan, vnode: &VnodePlan) -> Vec<(String, String)> {
    let mut faults = Vec::new();
    let mut roles: BTreeSet<&Role> = BTreeSet::new();
    for (place, thread) in vnode.threads.iter().enumerate() {
        if thread.pus.is_empty() {
            let why = format!("{} has no CPU to run on", thread.role);
            faults.push((format!("threads[{place}].pus"), why));
        }
        if !roles.insert(&thread.role) {
            let why = format!("{} is planned twice", thread.role);
            faults.push((format!("threads[{place}].role"), why));
        }
    }
    // The numbers of a machine's vCPUs may have gaps after hot-plugging.
    if !vnode.vcpus().map(|thread| &thread.role).is_sorted() {
        let why = "the vCPUs are not in ascending order";
        faults.push(("threads".to_owned(), why.to_owned()));
    }
    if vnode.memory.as_ref().is_some_and(|memory| memory.nodes.is_empty()) {
        faults.push(("memory.nodes".to_owned(), "the memory has no node".to_owned()));
    }
    faults.extend(
        crate::analysis::starvation::find_starvation(plan, vnode)
            .map(|why| ("threads".to_owned(), why)),
    );
    faults.extend(guest_fault(vnode).map(|why| ("guest".to_owned(), why)));
    faults
}

fn guest_fault(vnode: &VnodePlan) -> Option<String> {
    let guest = vnode.guest.as_ref()?;
    let product =
        guest.sockets.checked_mul(guest.cores).and_then(|cores| cores.checked_mul(guest.threads));
    let vcpus = vnode.vcpus().count();
    let fits = product.is_some_and(|product| product as usize == vcpus);
    (!fits).then(|| {
        let (sockets, cores, threads) = (guest.sockets, guest.cores, guest.threads);
        format!("{sockets}×{cores}×{threads} is not the number of vCPUs, {vcpus}")
    })
}

/// The fault, if a spinning real-time thread on the last housekeeping CPU can stop the host.
pub(crate) fn starved_host(plan: &Plan) -> Option<String> {
    let mut burdened = CpuSet::new();
    let threads = plan.vnodes.iter().flat_map(|vnode| &vnode.threads);
    threads
        .filter(|thread: &&ThreadPlan| thread.policy.is_some_and(Policy::is_real_time))
        .for_each(|thread| burdened.add(&thread.pus));
    let left = plan.housekeeping.difference(&burdened);
    (!plan.housekeeping.is_empty() && left.is_empty()).then(|| {
        format!(
            "real-time threads may run on all of {}, so no CPU is left for the host only",
            plan.housekeeping
        )
    })
}

/// The CPUs of `whole` (the plan, or a tunable as `KEY=VALUE`) that cannot be used.
fn absent(named: &CpuSet, whole: &str, topology: &Topology) -> Vec<Finding> {
    let anew = match whole {
        PLAN => "create a new plan on this host",
        _ => "`pinfold topo` shows the CPUs of this host",
    };
    let online = topology.online();
    let offline = named.intersection(&topology.offline);
    let unknown = named.difference(&online).difference(&offline);
    let foreign = named.intersection(&online).difference(&topology.allowed);
    let waiting = (!offline.is_empty()).then(|| {
        let is = verb(&offline, "is offline", "are offline");
        let text = format!("{} of {whole} {is}, usable once online", pus_text(&offline));
        Finding::warning("offline", text)
            .with_hint(format!("bring them online: `{}`", online::command(&offline)))
    });
    [
        waiting,
        cpus_problem(
            &unknown,
            verb(&unknown, "does not exist on this host", "do not exist on this host"),
            anew,
            whole,
        ),
        cpus_problem(
            &foreign,
            "must not be used: not in the cpuset of this process's cgroup",
            "start Pinfold in a cgroup with a wider cpuset, or create a new plan",
            whole,
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn cpus_problem(pus: &CpuSet, what: &str, hint: &str, whole: &str) -> Option<Finding> {
    let text = format!("{} of {whole} {what}", pus_text(pus));
    (!pus.is_empty()).then(|| Finding::problem("CPUs", text).with_hint(hint))
}

fn absent_host(plan: &Plan, topology: &Topology) -> Option<Finding> {
    let online = topology.online();
    let gone = plan.housekeeping.difference(&online);
    if gone.is_empty() {
        return None;
    }
    let all = gone == plan.housekeeping;
    let severity = if all { Severity::Problem } else { Severity::Warning };
    let text =
        format!("{} of the host's CPUs {} not online", pus_text(&gone), verb(&gone, "is", "are"));
    Some(Finding { severity, ..Finding::note("housekeeping", text) }.with_hint("create a new plan"))
}
