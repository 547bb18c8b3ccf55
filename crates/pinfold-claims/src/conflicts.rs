//! CPUs that two owners use although at least one of them should have them alone.

use std::collections::{BTreeMap, HashMap};

use pinfold_model::text::cpus_text;
use pinfold_model::{CpuSet, Finding, IsolationScope, Plan, PuId, Role, Tid, VnodePlan};

use crate::claim::{Claim, Exclusivity, Owner, OwnerCategory, Source};
use crate::claim_set::{ByCpu, Claims};
use crate::owners::cpusets;

/// Subject of the finding about a CPU that two owners use although one keeps it exclusively.
pub const USED_TWICE: &str = "cpu-used-twice";

/// Two owners that use the same CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict<'c> {
    /// The CPUs.
    pub cpus: CpuSet,
    /// The owner that was found first.
    pub first: &'c Owner,
    /// The other owner.
    pub second: &'c Owner,
}

/// CPUs that the same owners use although at least one of them should have them alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedCpus {
    /// The CPUs.
    pub cpus: CpuSet,
    /// The owners, as text.
    pub users: Vec<String>,
    /// The processes of the other owners, as far as they are known.
    pub processes: Vec<Tid>,
    /// What the user can do.
    hint: &'static str,
}

impl SharedCpus {
    /// The warning about them, with all users.
    #[must_use]
    pub fn finding(&self) -> Finding {
        let text = format!(
            "{} used {}, and at least one of them should have {} alone",
            with_verb(&self.cpus),
            self.by_users(),
            if self.cpus.len() == 1 { "it" } else { "them" }
        );
        Finding::warning(USED_TWICE, text).with_hint(self.hint)
    }

    /// The note about those of them that are not used by all these users any more; `None` if
    /// there are none. `left` is what is used twice now.
    #[must_use]
    pub fn resolved(&self, left: &[Self]) -> Option<Finding> {
        let mut resolved = self.cpus.clone();
        for one in left {
            if self.users.iter().all(|user| one.users.contains(user)) {
                resolved = resolved.difference(&one.cpus);
            }
        }
        if resolved.is_empty() {
            return None;
        }
        let (cpus, users) = (with_verb(&resolved), self.by_users());
        let text = format!("resolved: {cpus} no longer used {users} together");
        Some(Finding::note(USED_TWICE, text))
    }

    /// `by a, by b and by c`.
    fn by_users(&self) -> String {
        let by: Vec<String> = self.users.iter().map(|user| format!("by {user}")).collect();
        let (last, others) = by.split_last().map_or(("", &[][..]), |(last, rest)| (last, rest));
        format!("{} and {last}", others.join(", "))
    }
}

/// What several owners reported about the CPUs that each of them shares: each set of CPUs once, with
/// all its users, as [`Claims::used_twice`] has them.
#[must_use]
pub fn merge_shared(shared: &[SharedCpus]) -> Vec<SharedCpus> {
    let mut users: BTreeMap<&str, CpuSet> = BTreeMap::new();
    for one in shared {
        one.users.iter().for_each(|user| users.entry(user.as_str()).or_default().add(&one.cpus));
    }
    let parts = by_users(users.into_iter().collect());
    let mut merged: Vec<SharedCpus> = Vec::new();
    for (cpus, names) in parts {
        let sources = shared.iter().filter(|one| !one.cpus.is_disjoint(&cpus));
        let mut processes: Vec<Tid> =
            sources.clone().flat_map(|one| one.processes.iter().copied()).collect();
        processes.sort_unstable();
        processes.dedup();
        let Some(hint) = sources.map(|one| one.hint).next() else { continue };
        let users = names.into_iter().map(str::to_owned).collect();
        merged.push(SharedCpus { cpus, users, processes, hint });
    }
    merged.sort_by_key(|one| one.cpus.first());
    merged
}

/// The parts of the CPUs of some owners, each with its owners.
fn by_users<O: Copy>(users: Vec<(O, CpuSet)>) -> Vec<(CpuSet, Vec<O>)> {
    let mut parts: Vec<(CpuSet, Vec<O>)> = Vec::new();
    for (owner, mut rest) in users {
        let mut next = Vec::new();
        for (part, mut owners) in parts {
            let both = part.intersection(&rest);
            rest = rest.difference(&both);
            let alone = part.difference(&both);
            if alone.is_empty() {
                owners.push(owner);
                next.push((both, owners));
                continue;
            }
            if !both.is_empty() {
                next.push((both, [owners.as_slice(), &[owner]].concat()));
            }
            next.push((alone, owners));
        }
        if !rest.is_empty() {
            next.push((rest, vec![owner]));
        }
        parts = next;
    }
    parts
}

/// CPUs that a machine shares with owners.
fn shared(name: String, cpus: CpuSet, owners: &[&Owner]) -> SharedCpus {
    let users = std::iter::once(name).chain(owners.iter().map(ToString::to_string)).collect();
    let processes = owners.iter().filter_map(|owner| owner.process).collect();
    SharedCpus { cpus, users, processes, hint: hint(owners) }
}

/// The parts of some CPUs of a plan, each with the names of the machines that have threads on it
/// (`used` has the CPUs of each machine); all machines for exclusive CPUs without a thread.
fn users_in<'p>(plan: &'p Plan, used: &[CpuSet], cpus: &CpuSet) -> Vec<(CpuSet, Vec<&'p str>)> {
    let mut users: BTreeMap<PuId, Vec<&str>> = cpus.iter().map(|cpu| (cpu, Vec::new())).collect();
    for (vnode, used) in plan.vnodes.iter().zip(used) {
        for cpu in used.intersection(cpus).iter() {
            users.entry(cpu).or_default().push(&vnode.name);
        }
    }
    let mut places: HashMap<Vec<&str>, usize> = HashMap::new();
    let mut parts: Vec<(CpuSet, Vec<&str>)> = Vec::new();
    for (cpu, mut names) in users {
        if names.is_empty() {
            names = plan.vnodes.iter().map(|vnode| vnode.name.as_str()).collect();
        }
        let place = *places.entry(names).or_insert_with_key(|names| {
            parts.push((CpuSet::new(), names.clone()));
            parts.len() - 1
        });
        parts[place].0.insert(cpu);
    }
    parts
}

fn hint(owners: &[&Owner]) -> &'static str {
    if owners.iter().any(|owner| owner.kind == &cpusets::UNIT) {
        "the processes of the cgroup can run nowhere else: give it other CPUs (AllowedCPUs= of its \
         unit, or cpuset.cpus), or give the machine others; `pinfold claims` shows its path"
    } else if owners.last().is_some_and(|owner| owner.journal.is_some()) {
        "undo one of the placements, or apply it again with fewer vCPUs or other CPUs"
    } else {
        "give one of them other CPUs; `pinfold claims` shows where they are set"
    }
}

/// The CPUs of conflicts, each set with all its users.
#[must_use]
pub(crate) fn all_users<'c>(conflicts: &[Conflict<'c>]) -> Vec<(CpuSet, Vec<&'c Owner>)> {
    let mut users: Vec<(&Owner, CpuSet)> = Vec::new();
    let mut places: HashMap<OwnerKey<'_>, usize> = HashMap::new();
    for Conflict { cpus, first, second } in conflicts {
        for owner in [*first, *second] {
            let place = *places.entry(owner_key(owner)).or_insert_with(|| {
                users.push((owner, CpuSet::new()));
                users.len() - 1
            });
            users[place].1.add(cpus);
        }
    }
    let mut parts = by_users(users);
    parts.sort_by_key(|(cpus, _)| cpus.first());
    parts
}

/// The warnings about conflicts: one for each set of CPUs, with all its users.
#[must_use]
pub(crate) fn findings(conflicts: &[Conflict<'_>]) -> Vec<Finding> {
    let findings = all_users(conflicts).into_iter().map(|(cpus, owners)| {
        let users = owners.iter().map(ToString::to_string).collect();
        SharedCpus { cpus, users, processes: Vec::new(), hint: hint(&owners) }.finding()
    });
    findings.collect()
}

impl Claims {
    /// The conflicts between active owners, in the order of their claims. Where more than two use
    /// a CPU they are not all pairs, but each owner is in one with each of its CPUs.
    #[must_use]
    pub fn used_twice(&self) -> Vec<Conflict<'_>> {
        self.used_twice_by(&self.by_cpu())
    }

    /// The same, from the claims of each CPU.
    pub(crate) fn used_twice_by(&self, by_cpu: &ByCpu) -> Vec<Conflict<'_>> {
        let mut found: BTreeMap<(usize, usize), CpuSet> = BTreeMap::new();
        let bound = self.with_bound_threads();
        for (cpus, claims) in by_cpu.groups() {
            for (pair, twice) in bound.contradictions(claims, &cpus) {
                found.entry(pair).or_default().add(&twice);
            }
        }
        let mut conflicts: Vec<Conflict<'_>> = Vec::new();
        let mut places: HashMap<[OwnerKey<'_>; 2], usize> = HashMap::new();
        for ((first, second), cpus) in found {
            let (first, second) = (&self.known[first].owner, &self.known[second].owner);
            let place = *places.entry([owner_key(first), owner_key(second)]).or_insert_with(|| {
                conflicts.push(Conflict { cpus: CpuSet::new(), first, second });
                conflicts.len() - 1
            });
            conflicts[place].cpus.add(&cpus);
        }
        conflicts
    }

    /// The claims with the CPUs on which threads run although others keep them all.
    fn with_bound_threads(&self) -> Self {
        let kept = KeptCpus::from_claims(self.known.iter());
        let mut bound = self.clone();
        for claim in &mut bound.known {
            claim.bound = kept.bound_of(claim, &CpuSet::new());
        }
        bound
    }

    /// Pairs of claims of some CPUs that contradict each other: as many as name each claim with all
    /// the CPUs on which it is contradicted. 5,000 owners of a CPU are 12 million pairs.
    fn contradictions(&self, claims: &[usize], cpus: &CpuSet) -> Vec<((usize, usize), CpuSet)> {
        let (exclusive, shared): (Vec<usize>, Vec<usize>) =
            claims.iter().partition(|claim| self.known[**claim].exclusivity.is_exclusive());
        let isolated = exclusive.iter().copied();
        let isolated =
            isolated.filter(|claim| self.known[*claim].exclusivity == Exclusivity::Exclusive);
        let isolated: Vec<usize> = isolated.collect();
        let mut found = Vec::new();
        for one in claims.iter().copied() {
            // Two shared claims do not contradict each other.
            let (others, more, mut left) = if self.known[one].exclusivity.is_exclusive() {
                (&exclusive, &shared, cpus.clone())
            } else if isolated.is_empty() {
                (&isolated, &exclusive, cpus.intersection(&self.known[one].bound))
            } else {
                (&isolated, &exclusive, cpus.clone())
            };
            for other in others.iter().chain(more).copied().filter(|other| *other != one) {
                if left.is_empty() {
                    break;
                }
                let pair = (one.min(other), one.max(other));
                let twice = contradiction(&self.known[pair.0], &self.known[pair.1], cpus);
                if !twice.is_disjoint(&left) {
                    left = left.difference(&twice);
                    found.push((pair, twice));
                }
            }
        }
        found
    }

    /// Adds the claims of a plan.
    pub fn add_plan(&mut self, owner: &Owner, plan: &Plan) {
        let own = OwnCpus::from_plan(plan);
        let source = Source { process: owner.process, ..Source::default() };
        self.add(owner, own.isolated, Exclusivity::Exclusive, &source);
        self.add(owner, own.dedicated, Exclusivity::Dedicated, &source);
        let (mut over, mut vcpus) = (CpuSet::new(), 0);
        for (_, thread) in plan.threads().filter(|(_, one)| is_floating(&one.role, &one.pus)) {
            over.add(&thread.pus);
            vcpus += 1;
        }
        let (over, rest) = (own.shared.intersection(&over), own.shared.difference(&over));
        let floating = Claim::floating(owner, over, vcpus, &source);
        let rest = Claim::new(owner, rest, Exclusivity::Shared, &source);
        for claim in [floating, rest] {
            self.push(Claim { bound: own.bound.intersection(&claim.cpus), ..claim });
        }
    }

    /// The claims of all but machines of these names and their pools. A machine that runs is
    /// another one, unless [`Claims::with_own_names`] says that it is the same.
    #[must_use]
    pub fn without_names(&self, names: &[&str]) -> Vec<&Claim> {
        let managers: Vec<_> = self
            .known
            .iter()
            .filter(|claim| is_machine_of(claim, names))
            .filter_map(|claim| claim.owner.manager)
            .collect();
        self.known
            .iter()
            .filter(|claim: &&Claim| {
                let is_other = claim.active && !self.are_names_own;
                (is_other || !is_machine_of(claim, names)) && !managers.contains(&claim.owner.kind)
            })
            .collect()
    }

    /// A note for each running machine that is planned again under one of these names.
    #[must_use]
    pub fn planned_again(&self, names: &[&str]) -> Vec<Finding> {
        let mut machines: BTreeMap<&str, CpuSet> = BTreeMap::new();
        for claim in self.known.iter().filter(|claim| claim.active && self.are_names_own) {
            let name = claim.owner.name.as_str();
            if claim.owner.kind.sort == OwnerCategory::Machine && names.contains(&name) {
                machines.entry(name).or_default().add(&claim.cpus);
            }
        }
        let findings = machines.into_iter().map(|(name, cpus)| {
            let text = format!(
                "{name} is running; this is a new plan for it, which may use its {} again",
                cpus_text(&cpus)
            );
            Finding::note("claims", text).with_hint("give another machine another name")
        });
        findings.collect()
    }

    /// A warning for each set of CPUs that the machine `name` shares under `plan` with the same
    /// owners although one of them keeps it exclusively; a note for an owner that does not run.
    #[must_use]
    pub fn conflicts(&self, name: &str, plan: &Plan) -> Vec<Finding> {
        let shared = self.shared_cpus(name, plan).into_iter().map(|shared| shared.finding());
        shared.chain(self.reserved_cpus(plan)).collect()
    }

    /// The same for a plan of one or more machines: each warning names those of them that use the
    /// CPUs.
    #[must_use]
    pub fn conflicts_of_machines(&self, plan: &Plan) -> Vec<Finding> {
        let used: Vec<CpuSet> = plan.vnodes.iter().map(VnodePlan::pus).collect();
        let parts = self.shared_parts(plan).into_iter();
        let parts = parts.flat_map(|(cpus, owners)| {
            let users = users_in(plan, &used, &cpus).into_iter();
            users.map(move |(cpus, names)| shared(names.join(", "), cpus, &owners).finding())
        });
        parts.chain(self.reserved_cpus(plan)).collect()
    }

    /// The CPUs that the machine `name` shares under `plan` with owners that run, although one of
    /// them keeps them exclusively.
    #[must_use]
    pub fn shared_cpus(&self, name: &str, plan: &Plan) -> Vec<SharedCpus> {
        let parts = self.shared_parts(plan).into_iter();
        parts.map(|(cpus, owners)| shared(name.to_owned(), cpus, &owners)).collect()
    }

    /// The CPUs that a plan shares with owners that run, in parts with the same owners.
    fn shared_parts(&self, plan: &Plan) -> Vec<(CpuSet, Vec<&Owner>)> {
        let users = self.users_of(plan).into_iter().filter(|(claim, _)| claim.active);
        by_users(users.map(|(claim, cpus)| (&claim.owner, cpus)).collect())
    }

    /// A note for each owner that does not run and has CPUs of `plan`.
    #[must_use]
    pub fn reserved_cpus(&self, plan: &Plan) -> Vec<Finding> {
        let users = self.users_of(plan).into_iter().filter(|(claim, _)| !claim.active);
        let findings = users.map(|(claim, cpus)| {
            let Claim { owner, source, .. } = claim;
            let text = format!("{} reserved for {owner}, which is not running", with_verb(&cpus));
            Finding::note("claims", format!("{text}: {source}"))
        });
        findings.collect()
    }

    /// The claims of other owners with the CPUs of a plan that are used twice by them.
    fn users_of(&self, plan: &Plan) -> Vec<(&Claim, CpuSet)> {
        let names: Vec<&str> = plan.vnodes.iter().map(|vnode| vnode.name.as_str()).collect();
        let others = self.without_names(&names);
        let mut own = OwnCpus::from_plan(plan);
        let exclusive = own.isolated.union(&own.dedicated);
        let kept = KeptCpus::from_claims(others.iter().copied());
        // A vCPU that floats only over CPUs that others keep is bound to them.
        for (_, thread) in plan.threads() {
            if is_floating(&thread.role, &thread.pus) && thread.pus.is_subset(&kept.all) {
                own.shared.add(&thread.pus);
                own.bound.add(&thread.pus.difference(&exclusive));
            }
        }
        let used = exclusive.union(&own.shared);
        let mut twice: Vec<(&Claim, CpuSet)> = Vec::new();
        let mut places: HashMap<OwnerKey<'_>, usize> = HashMap::new();
        for claim in others {
            let bound = kept.bound_of(claim, &exclusive).intersection(&own.dedicated);
            let cpus = match claim.exclusivity {
                Exclusivity::Preferred => continue,
                Exclusivity::Exclusive => claim.cpus.intersection(&used),
                Exclusivity::Dedicated => {
                    let delayed = own.bound.difference(&claim.bound);
                    claim.cpus.intersection(&exclusive.union(&delayed))
                }
                // Isolation from the host moves such tasks, unless they can run nowhere else.
                Exclusivity::Shared if claim.owner.kind.sort != OwnerCategory::Machine => {
                    claim.bound.intersection(&exclusive)
                }
                // Isolation from the host excludes threads that have other CPUs too.
                Exclusivity::Shared
                    if plan.isolation == IsolationScope::Host
                        && !claim.cpus.is_subset(&own.isolated) =>
                {
                    bound
                }
                Exclusivity::Shared => claim.cpus.intersection(&own.isolated).union(&bound),
            };
            let place = *places.entry(owner_key(&claim.owner)).or_insert_with(|| {
                twice.push((claim, CpuSet::new()));
                twice.len() - 1
            });
            twice[place].1.add(&cpus);
        }
        twice.retain(|(_, cpus)| !cpus.is_empty());
        twice
    }
}

/// The CPUs that active owners keep.
struct KeptCpus<'c> {
    all: CpuSet,
    by_owner: HashMap<OwnerKey<'c>, CpuSet>,
}

impl<'c> KeptCpus<'c> {
    fn from_claims(claims: impl Iterator<Item = &'c Claim>) -> Self {
        let mut kept = Self { all: CpuSet::new(), by_owner: HashMap::new() };
        for claim in claims.filter(|claim| claim.active && claim.exclusivity.is_exclusive()) {
            kept.all.add(&claim.cpus);
            kept.by_owner.entry(owner_key(&claim.owner)).or_default().add(&claim.cpus);
        }
        kept
    }

    /// The CPUs on which the threads of a claim run although others keep them: those of a machine
    /// that has no other CPU, with these that are kept too.
    fn bound_of(&self, claim: &Claim, more: &CpuSet) -> CpuSet {
        if claim.exclusivity != Exclusivity::Shared
            || claim.owner.kind.sort != OwnerCategory::Machine
            || claim.bound == claim.cpus
        {
            return claim.bound.clone();
        }
        let own = self.by_owner.get(&owner_key(&claim.owner));
        let others = own.map_or_else(|| self.all.clone(), |own| self.all.difference(own));
        if claim.cpus.is_subset(&others.union(more)) {
            claim.cpus.clone()
        } else {
            claim.bound.clone()
        }
    }
}

fn is_machine_of(claim: &&Claim, names: &[&str]) -> bool {
    claim.owner.kind.sort == OwnerCategory::Machine && names.contains(&claim.owner.name.as_str())
}

/// What distinguishes owners.
pub(crate) type OwnerKey<'c> =
    (&'static str, &'c str, Option<Tid>, Option<&'c str>, Option<&'static str>);

pub(crate) fn owner_key(owner: &Owner) -> OwnerKey<'_> {
    let Owner { kind, name, process, journal, manager } = owner;
    (kind.name, name, *process, journal.as_deref(), manager.map(|kind| kind.name))
}

/// Those of some CPUs of two claims on which they contradict each other.
fn contradiction(first: &Claim, second: &Claim, cpus: &CpuSet) -> CpuSet {
    fn is_exclusive(one: &Claim, other: &Claim) -> bool {
        one.exclusivity == Exclusivity::Exclusive
            && (other.exclusivity != Exclusivity::Shared
                || other.owner.kind.sort == OwnerCategory::Machine)
    }

    if first.owner == second.owner || is_member(first, second) || is_member(second, first) {
        return CpuSet::new();
    }
    let both = first.exclusivity.is_exclusive() && second.exclusivity.is_exclusive();
    if both || is_exclusive(first, second) || is_exclusive(second, first) {
        return cpus.clone();
    }
    // The other one is shared. A thread that can run nowhere else delays it, unless one of its own
    // machine does so already.
    let (dedicated, other) =
        if first.exclusivity.is_exclusive() { (first, second) } else { (second, first) };
    cpus.intersection(&other.bound).difference(&dedicated.bound)
}

/// True if an owner takes its CPUs from a pool. The kernel keeps all others out of a partition.
fn is_member(owner: &Claim, pool: &Claim) -> bool {
    pool.owner.kind.sort == OwnerCategory::Partition || owner.owner.manager == Some(pool.owner.kind)
}

fn is_floating(role: &Role, cpus: &CpuSet) -> bool {
    role.is_vcpu() && cpus.len() > 1
}

/// `CPU 3 is`, or `the CPUs 1-3 are`.
#[must_use]
pub fn with_verb(cpus: &CpuSet) -> String {
    let verb = if cpus.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", pinfold_model::text::pus_text(cpus))
}

/// The CPUs of a plan by how exclusively it uses them.
struct OwnCpus {
    isolated: CpuSet,
    dedicated: CpuSet,
    shared: CpuSet,
    /// The other CPUs that are the only one of a thread.
    bound: CpuSet,
}

impl OwnCpus {
    /// A CPU of several vCPUs, or of vCPUs that float over several CPUs, may be shared.
    fn from_plan(plan: &Plan) -> Self {
        let (mut dedicated, mut several) = (CpuSet::new(), CpuSet::new());
        let mut bound = CpuSet::new();
        if !pinfold_plan::has_pins(plan) {
            // One CPU that was left: the mask of its threads looks like a pin.
            let single =
                plan.threads().map(|(_, thread)| &thread.pus).filter(|cpus| cpus.len() == 1);
            let shared = single.collect::<CpuSet>();
            return Self { isolated: CpuSet::new(), dedicated, bound: shared.clone(), shared };
        }
        let pins_all = !pinfold_plan::pins_nothing(&plan.strategy);
        let counted: Vec<_> =
            plan.threads().filter(|(_, thread)| pins_all || thread.is_manual()).collect();
        for (vnode, thread) in &counted {
            if is_counted(vnode, &thread.role, &thread.pus) {
                several.add(&dedicated.intersection(&thread.pus));
                dedicated.add(&thread.pus);
            }
            if thread.pus.len() == 1 {
                bound.add(&thread.pus);
            }
        }
        let moved = plan.moved.iter().map(|(_, cpus)| cpus);
        moved.clone().filter(|cpus| cpus.len() == 1).for_each(|cpus| bound.add(cpus));
        let isolated = plan.exclusive.clone();
        let dedicated = dedicated.difference(&several).difference(&isolated);
        let used = counted.iter().map(|(_, thread)| &thread.pus).collect::<CpuSet>();
        let used = moved.fold(used, |used, cpus| used.union(cpus));
        let shared = used.difference(&isolated).difference(&dedicated);
        let bound = bound.intersection(&shared);
        Self { isolated, dedicated, shared, bound }
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
