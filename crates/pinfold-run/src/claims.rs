//! The map of claims: which CPUs belong to which owner, how exclusively, and where this is
//! recorded.
//!
//! Owners are the active placements and platforms of the journals. Another kind of owner needs a
//! variant of [`Owner`] and a function that appends its claims in [`Claims::read`].

use std::fmt;

use pinfold_apply::{Journals, Record};
use pinfold_host::files::StateDir;
use pinfold_host::{LiveHost, SystemClock, process};
use pinfold_model::text::pus_text;
use pinfold_model::{
    Command, CpuSet, Finding, IsolationScope, Plan, Request, Role, Topology, VnodePlan,
};
use pinfold_plan::PlanError;

use crate::emulate::status::{cpus_of, is_platform};
use crate::{Failure, host};

/// Subject of the finding about a CPU that two owners use although one keeps it exclusively.
pub const USED_TWICE: &str = "cpu-used-twice";

/// How a CPU is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusivity {
    /// Other tasks are excluded from them.
    Isolated,
    /// For one vCPU of the owner each, or for its processes.
    Dedicated,
    /// Others may use it too.
    Shared,
}

/// What claims CPUs, with the source of the claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A placed machine or process group, with the ID of its journal.
    Placement {
        /// Name of the machine or group.
        name: String,
        /// ID of the journal.
        id: String,
    },
    /// A platform of slowed vnodes, with the ID of its journal.
    Platform {
        /// ID of the journal.
        id: String,
    },
}

impl Owner {
    fn id(&self) -> &str {
        match self {
            Owner::Placement { id, .. } | Owner::Platform { id } => id,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Placement { name, id } => write!(f, "{name} (placement {id})"),
            Owner::Platform { id } => write!(f, "the emulated platform {id}"),
        }
    }
}

/// CPUs that an owner claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The owner.
    pub owner: Owner,
    /// The CPUs.
    pub cpus: CpuSet,
    /// How they are claimed.
    pub exclusivity: Exclusivity,
}

/// A function that plans a request with a strategy.
type PlanFunction = fn(&str, &Topology, &Request) -> Result<Plan, PlanError>;

/// The claims on the CPUs of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    known: Vec<Claim>,
    /// IDs of journals whose CPUs are not known, because they cannot be read.
    unreadable: Vec<String>,
}

impl Claims {
    /// The claims of this host, from the journals of the state directory at `path` or the usual
    /// one.
    ///
    /// # Errors
    /// That of [`Self::read`].
    pub fn of_existing(live: &LiveHost, path: Option<&str>) -> Result<Self, Failure> {
        let state = host::existing_state(path)?;
        Self::read(live, host::existing_journals(state.as_ref(), &SystemClock)?.as_ref())
    }

    /// The claims in the journals of a state directory.
    ///
    /// # Errors
    /// That of [`Self::read`].
    pub fn of_state(live: &LiveHost, state: &StateDir) -> Result<Self, Failure> {
        Self::read(live, Some(&host::journals(state, &SystemClock)?))
    }

    /// The claims of all active placements and platforms whose processes live.
    pub fn read(live: &LiveHost, journals: Option<&Journals<'_>>) -> Result<Self, Failure> {
        let mut claims = Self::default();
        let Some(journals) = journals else { return Ok(claims) };
        for summary in journals.list()? {
            match &summary.record {
                // One of an earlier boot or of another host places nothing here.
                Ok(Some(record)) if !record.has_ended() && record.require_here(live).is_ok() => {
                    claims.add_record(live, record)?;
                }
                Ok(_) => {}
                Err(_) => claims.unreadable.push(summary.id),
            }
        }
        Ok(claims)
    }

    fn add_record(&mut self, host: &LiveHost, record: &Record) -> Result<(), Failure> {
        let header = &record.header;
        let id = header.id.clone();
        let is_platform = is_platform(&header.plan);
        let process = if is_platform { header.supervisor } else { header.vm };
        if !process::task_alive(host, process)? {
            return Ok(());
        }
        if is_platform {
            match cpus_of(&header.plan) {
                Some(cpus) => self.add(&Owner::Platform { id }, cpus, Exclusivity::Isolated),
                None => self.unreadable.push(id),
            }
        } else {
            match pinfold_plan::schema::from_json(&header.plan) {
                Ok(plan) => {
                    self.add_plan(&Owner::Placement { name: header.vm_name.clone(), id }, &plan);
                }
                Err(_) => self.unreadable.push(id),
            }
        }
        Ok(())
    }

    /// Adds the claims of a plan.
    pub fn add_plan(&mut self, owner: &Owner, plan: &Plan) {
        let own = OwnCpus::from_plan(plan);
        self.add(owner, own.isolated, Exclusivity::Isolated);
        self.add(owner, own.dedicated, Exclusivity::Dedicated);
        self.add(owner, own.shared, Exclusivity::Shared);
    }

    fn add(&mut self, owner: &Owner, cpus: CpuSet, exclusivity: Exclusivity) {
        if !cpus.is_empty() {
            self.known.push(Claim { owner: owner.clone(), cpus, exclusivity });
        }
    }

    /// The claims of all but the owner with a journal.
    #[must_use]
    pub fn without(&self, id: &str) -> Self {
        let mut others = self.clone();
        others.known.retain(|claim| claim.owner.id() != id);
        others
    }

    fn exclusive(&self) -> impl Iterator<Item = &Claim> {
        self.known.iter().filter(|claim| claim.exclusivity != Exclusivity::Shared)
    }

    /// The sets of CPUs that a new plan should avoid, in the order in which they are tried: the
    /// cores of the CPUs that others keep exclusively, then these CPUs alone.
    fn avoided(&self, topology: &Topology) -> Vec<CpuSet> {
        let mut taken = CpuSet::new();
        self.exclusive().for_each(|claim| taken.add(&claim.cpus));
        let mut cores = taken.clone();
        let touched = topology.cores.iter().filter(|core| !core.pus.is_disjoint(&taken));
        touched.for_each(|core| cores.add(&core.pus));
        let mut all = vec![cores, taken];
        all.dedup();
        all.retain(|avoided| !avoided.is_empty());
        all
    }

    /// Plans with the CPUs to avoid, which are as many of the exclusive CPUs of others as leave
    /// enough room.
    ///
    /// # Errors
    /// That of the plan that avoids none of them.
    pub fn plan_around<T, E>(
        &self,
        topology: &Topology,
        plan: impl Fn(&CpuSet) -> Result<T, E>,
    ) -> Result<T, E> {
        for avoided in self.avoided(topology) {
            if let Ok(planned) = plan(&avoided) {
                return Ok(planned);
            }
        }
        plan(&CpuSet::new())
    }

    /// Makes a plan for a request around the claims, with the given strategy or with `auto`.
    ///
    /// # Errors
    /// [`PlanError`] if the strategy cannot place the request even without the claims.
    pub fn plan(
        &self,
        strategy: Option<&str>,
        topology: &Topology,
        request: &Request,
    ) -> Result<Plan, PlanError> {
        match strategy {
            Some("none") => pinfold_plan::plan("none", topology, request),
            Some(_) | None => self.plan_by(pinfold_plan::plan, strategy, topology, request),
        }
    }

    /// Plans as many machines like the one of a request as fit outside the exclusive CPUs of
    /// others.
    ///
    /// # Errors
    /// [`PlanError`] if not even one can be placed.
    pub fn fill(
        &self,
        strategy: Option<&str>,
        topology: &Topology,
        request: &Request,
    ) -> Result<Plan, PlanError> {
        self.plan_by(pinfold_plan::fill, strategy, topology, request)
    }

    /// Calls a planning function around the claims.
    fn plan_by(
        &self,
        plan: PlanFunction,
        strategy: Option<&str>,
        topology: &Topology,
        request: &Request,
    ) -> Result<Plan, PlanError> {
        self.plan_around(topology, |avoided| {
            let around = Request { avoid: request.avoid.union(avoided), ..request.clone() };
            plan(strategy.unwrap_or("auto"), topology, &around)
        })
    }

    /// Adds a finding to a plan for each owner whose exclusive CPUs it avoids or uses.
    pub fn report_in(&self, plan: &mut Plan) {
        if plan.strategy == "none" {
            return;
        }
        let used = plan.pus();
        for claim in self.exclusive().filter(|claim| claim.cpus.is_disjoint(&used)) {
            let text = format!(
                "{} reserved for {}; this plan does not use {}",
                with_verb(&claim.cpus),
                claim.owner,
                if claim.cpus.len() == 1 { "it" } else { "them" }
            );
            plan.findings.push(
                Finding::note("claims", text)
                    .with_hint("--ignore-claims plans as if no placement were active"),
            );
        }
        let names: Vec<&str> = plan.vnodes.iter().map(|vnode| vnode.name.as_str()).collect();
        let conflicts = self.conflicts(&names.join(", "), plan);
        plan.findings.extend(conflicts);
        for id in &self.unreadable {
            let text = format!(
                "the journal {id} cannot be read, so this plan may use the CPUs of its placement"
            );
            let hint = format!("`{}` shows why", Command::new("status"));
            plan.findings.push(Finding::warning("claims", text).with_hint(hint));
        }
    }

    /// A warning for each owner that shares a CPU with the machine `name` under `plan` although one
    /// of the two keeps it exclusively.
    #[must_use]
    pub fn conflicts(&self, name: &str, plan: &Plan) -> Vec<Finding> {
        let own = OwnCpus::from_plan(plan);
        let exclusive = own.isolated.union(&own.dedicated);
        let used = exclusive.union(&own.shared);
        let mut twice: Vec<(&Owner, CpuSet)> = Vec::new();
        for claim in &self.known {
            let contested = match claim.exclusivity {
                Exclusivity::Isolated => &used,
                Exclusivity::Dedicated => &exclusive,
                // Isolation from the host excludes threads that have other CPUs too.
                Exclusivity::Shared
                    if plan.isolation == IsolationScope::Host
                        && !claim.cpus.is_subset(&own.isolated) =>
                {
                    continue;
                }
                Exclusivity::Shared => &own.isolated,
            };
            let cpus = claim.cpus.intersection(contested);
            match twice.iter_mut().find(|(owner, _)| *owner == &claim.owner) {
                Some((_, all)) => all.add(&cpus),
                None => twice.push((&claim.owner, cpus)),
            }
        }
        twice.retain(|(_, cpus)| !cpus.is_empty());
        twice.into_iter().map(|(owner, cpus)| used_twice(&cpus, name, owner)).collect()
    }
}

fn used_twice(cpus: &CpuSet, name: &str, owner: &Owner) -> Finding {
    let text = format!(
        "{} used by {name} and by {owner}, and at least one of them should have {} alone",
        with_verb(cpus),
        if cpus.len() == 1 { "it" } else { "them" }
    );
    Finding::warning(USED_TWICE, text)
        .with_hint("undo one of the placements, or apply it again with fewer vCPUs or other CPUs")
}

/// `CPU 3 is`, or `the CPUs 1-3 are`.
fn with_verb(cpus: &CpuSet) -> String {
    format!("{} {}", pus_text(cpus), if cpus.len() == 1 { "is" } else { "are" })
}

/// The CPUs of a plan by how exclusively it uses them.
struct OwnCpus {
    isolated: CpuSet,
    dedicated: CpuSet,
    shared: CpuSet,
}

impl OwnCpus {
    /// A CPU of several vCPUs, or of vCPUs that float over several CPUs, may be shared.
    fn from_plan(plan: &Plan) -> Self {
        let (mut dedicated, mut several) = (CpuSet::new(), CpuSet::new());
        if plan.strategy == "none" {
            return Self { isolated: CpuSet::new(), dedicated, shared: several };
        }
        for (vnode, thread) in plan.threads() {
            if is_counted(vnode, &thread.role, &thread.pus) {
                several.add(&dedicated.intersection(&thread.pus));
                dedicated.add(&thread.pus);
            }
        }
        let isolated = plan.exclusive.clone();
        let dedicated = dedicated.difference(&several).difference(&isolated);
        let shared = plan.pus().difference(&isolated).difference(&dedicated);
        Self { isolated, dedicated, shared }
    }
}

fn is_counted(vnode: &VnodePlan, role: &Role, cpus: &CpuSet) -> bool {
    match role {
        Role::Vcpu(_) => cpus.len() == 1 && vnode.is_pinned(),
        Role::Task => true,
        Role::Emulator | Role::Iothread(_) | Role::Vhost(_) | Role::Worker => false,
    }
}

#[cfg(test)]
mod tests;
