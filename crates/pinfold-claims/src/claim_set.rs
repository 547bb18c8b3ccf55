//! The claims of a host as a map.

use std::collections::{HashMap, HashSet};

use pinfold_model::{CpuSet, Finding, PuId, Tid};

use crate::claim::{BoundThread, Claim, Exclusivity, Kind, Owner, Source};

/// The claims on the CPUs of a host.
///
/// ```
/// use pinfold_claims::{Claims, Exclusivity, Owner, Source, owners};
/// use pinfold_model::CpuSet;
///
/// let kind = owners::kind("libvirt").ok_or("no such kind")?;
/// let mut claims = Claims::default();
/// let (owner, source) = (Owner::new(kind, "web"), Source::default());
/// claims.add(&owner, CpuSet::parse_list("2-3")?, Exclusivity::Exclusive, &source);
/// let used = claims.usage(&CpuSet::first_n(8));
/// assert_eq!((used.owned.to_string(), used.free.to_string()), ("2-3".into(), "0-1,4-7".into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    pub(crate) known: Vec<Claim>,
    /// IDs of journals whose CPUs are not known, because they cannot be read.
    pub(crate) unreadable: Vec<String>,
    /// What could not be read or parsed.
    findings: Vec<Finding>,
    /// The same findings, each of which is reported once: a file may have a fault for each of
    /// thousands of pins.
    reported: HashSet<Finding>,
    /// The processes of the owners.
    processes: HashSet<Tid>,
    /// Busy threads that plans do not count as owners.
    pub(crate) bound_threads: Vec<BoundThread>,
    /// True if a running machine with a name of a new plan is the machine that is planned.
    pub(crate) are_names_own: bool,
}

/// How each CPU of a host is used, by the active claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuUsage {
    /// CPUs that one or more owners have exclusively.
    pub owned: CpuSet,
    /// Other CPUs that owners share.
    pub shared: CpuSet,
    /// CPUs without an owner.
    pub free: CpuSet,
    /// CPUs that the configuration of the host keeps for pinned work.
    pub preferred: CpuSet,
    /// CPUs that two owners use although at least one should have them alone.
    pub twice: CpuSet,
}

impl Claims {
    /// Adds a claim of an owner that runs; nothing for an empty set.
    pub fn add(&mut self, owner: &Owner, cpus: CpuSet, exclusivity: Exclusivity, source: &Source) {
        self.push(Claim::new(owner, cpus, exclusivity, source));
    }

    /// Adds a claim; nothing for an empty set.
    pub fn push(&mut self, claim: Claim) {
        if !claim.cpus.is_empty() {
            self.processes.extend(claim.owner.process);
            self.known.push(claim);
        }
    }

    /// Adds a finding about something that cannot be read or parsed.
    pub fn report(&mut self, finding: Finding) {
        if self.reported.insert(finding.clone()) {
            self.findings.push(finding);
        }
    }

    /// Removes all findings.
    pub(crate) fn clear_findings(&mut self) {
        self.findings.clear();
        self.reported.clear();
    }

    /// Records that a journal cannot be read.
    pub fn add_unreadable(&mut self, id: String) {
        self.unreadable.push(id);
    }

    /// Records the busy threads that plans do not count as owners.
    pub fn set_bound_threads(&mut self, threads: Vec<BoundThread>) {
        self.bound_threads = threads;
    }

    /// The busy threads on some CPUs that plans do not count as owners.
    pub fn bound_threads_on(&self, cpus: &CpuSet) -> impl Iterator<Item = &BoundThread> {
        self.bound_threads.iter().filter(move |thread| thread.cpu.is_subset(cpus))
    }

    /// The journals that cannot be read.
    #[must_use]
    pub fn unreadable(&self) -> &[String] {
        &self.unreadable
    }

    /// All claims.
    #[must_use]
    pub fn all(&self) -> &[Claim] {
        &self.known
    }

    /// What could not be read or parsed.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// True if an owner with this process is known.
    #[must_use]
    pub fn has_process(&self, process: Tid) -> bool {
        self.processes.contains(&process)
    }

    /// True if an owner of this kind is known.
    #[must_use]
    pub fn has_kind(&self, kind: &Kind) -> bool {
        self.known.iter().any(|claim| claim.owner.kind == kind)
    }

    /// True if a group is one that Pinfold made for a placement or platform that is known, or is
    /// below it.
    pub(crate) fn has_group_of_pinfold(&self, group: &str) -> bool {
        let Some(name) = group.split('/').find_map(|name| name.strip_prefix("pinfold-")) else {
            return false;
        };
        // The groups of a placement have the PID and start time of its machine, some with what they
        // are for (`-vm`, `-part`); its journals add a number to the same ID. Those of a platform
        // have other names.
        let is_of_placement = name.starts_with(|first: char| first.is_ascii_digit());
        self.known.iter().any(|claim| match &claim.owner.journal {
            Some(id) if is_of_placement => id.split('-').take(2).eq(name.split('-').take(2)),
            journal => journal.is_some() && claim.owner.name.is_empty(),
        })
    }

    /// Sets the pool from which the owner with a process takes its CPUs.
    pub(crate) fn set_manager(&mut self, process: Tid, manager: &'static Kind) {
        let own = self.known.iter_mut().filter(|claim| claim.owner.process == Some(process));
        own.for_each(|claim| claim.owner.manager = Some(manager));
    }

    /// The claims of all but the owner with a journal.
    #[must_use]
    pub fn without(&self, id: &str) -> Self {
        self.filter(|claim| claim.owner.journal.as_deref() != Some(id))
    }

    /// The same claims for a plan in which a name means the running machine of that name. Without
    /// this, another user's machine may have the name of one that starts.
    #[must_use]
    pub fn with_own_names(self) -> Self {
        Self { are_names_own: true, ..self }
    }

    pub(crate) fn filter(&self, is_kept: impl Fn(&Claim) -> bool) -> Self {
        let mut others = self.clone();
        others.known.retain(is_kept);
        others.processes = others.known.iter().filter_map(|claim| claim.owner.process).collect();
        others
    }

    /// How each of the CPUs is used.
    #[must_use]
    pub fn usage(&self, online: &CpuSet) -> CpuUsage {
        let conflicts = self.used_twice();
        self.usage_with(online, conflicts.iter().map(|conflict| &conflict.cpus).collect())
    }

    /// The same, with the CPUs that are used twice.
    pub(crate) fn usage_with(&self, online: &CpuSet, twice: CpuSet) -> CpuUsage {
        let mut found = CpuUsage { twice, ..CpuUsage::default() };
        for claim in &self.known {
            let cpus = claim.cpus.intersection(online);
            match claim.exclusivity {
                Exclusivity::Preferred => found.preferred.add(&cpus),
                _ if !claim.active => {}
                Exclusivity::Exclusive | Exclusivity::Dedicated => found.owned.add(&cpus),
                Exclusivity::Shared => found.shared.add(&cpus),
            }
        }
        found.shared = found.shared.difference(&found.owned);
        found.free = online.difference(&found.owned).difference(&found.shared);
        found
    }

    /// The active claims of owners on each CPU.
    pub(crate) fn by_cpu(&self) -> ByCpu {
        let mut claims: Vec<Vec<usize>> = Vec::new();
        for (index, claim) in self.known.iter().enumerate() {
            if claim.active && claim.exclusivity != Exclusivity::Preferred {
                for cpu in claim.cpus.iter() {
                    if claims.len() <= cpu.index() {
                        claims.resize(cpu.index() + 1, Vec::new());
                    }
                    claims[cpu.index()].push(index);
                }
            }
        }
        ByCpu { claims }
    }
}

/// The claims of each CPU, as indexes of [`Claims::all`].
pub(crate) struct ByCpu {
    claims: Vec<Vec<usize>>,
}

impl ByCpu {
    /// The claims of a CPU.
    pub(crate) fn of(&self, cpu: PuId) -> &[usize] {
        self.claims.get(cpu.index()).map_or(&[], Vec::as_slice)
    }

    /// The CPUs with the same claims, together.
    pub(crate) fn groups(&self) -> Vec<(CpuSet, &[usize])> {
        let mut places: HashMap<&[usize], usize> = HashMap::new();
        let mut groups: Vec<(CpuSet, &[usize])> = Vec::new();
        for (cpu, claims) in (0..).map(PuId).zip(&self.claims) {
            if claims.len() > 1 {
                let place = *places.entry(claims).or_insert_with(|| {
                    groups.push((CpuSet::new(), claims));
                    groups.len() - 1
                });
                groups[place].0.insert(cpu);
            }
        }
        groups
    }
}
