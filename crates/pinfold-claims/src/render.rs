//! The claims as text: the machine with the owners of each CPU, then each owner.

use std::collections::{BTreeMap, HashMap, HashSet};

use pinfold_model::text::{count_noun, cpus_text};
use pinfold_model::{CpuSet, PuId, Topology, escape, fold};

use crate::claim::{Claim, Exclusivity, Owner};
use crate::claim_set::{ByCpu, Claims, CpuUsage};
use crate::conflicts::{self, Conflict, OwnerKey, owner_key};

/// Maximum number of owners that the short text names.
const MOST_OWNERS: usize = 4;

/// The claims on a machine, for lines of `columns` columns; `None`: each entry is one line.
#[must_use]
pub fn claims(claims: &Claims, topology: &Topology, columns: Option<usize>) -> String {
    let page = Page::new(claims, topology);
    let mut lines = vec![counts(&page.usage, topology)];
    let mut heading = String::new();
    for part in parts(topology) {
        if part.above != heading {
            lines.push(format!("\n{}", part.above));
            heading.clone_from(&part.above);
        }
        lines.push(fold_text("  ", &format!("{} ({})", part.name, cpus_text(&part.cpus)), columns));
        for row in page.rows(&part.cpus) {
            lines.push(fold_text("    ", &page.text(&row), columns));
        }
    }
    let owners = owners(claims);
    if !owners.is_empty() {
        lines.push("\nowners".to_owned());
        lines.extend(owners.iter().map(|text| fold_text("  ", text, columns)));
    }
    let mut findings = conflicts::findings(&page.conflicts);
    findings.extend(claims.findings().iter().cloned());
    if !findings.is_empty() {
        lines.push(String::new());
        lines.extend(findings.iter().map(|finding| fold_text("", &finding.to_string(), columns)));
    }
    lines.join("\n")
}

/// One or two sentences: how many CPUs the owners have, and how many are free.
#[must_use]
pub fn short(claims: &Claims, topology: &Topology) -> String {
    let online = topology.online();
    let mut by_owner: Vec<(&Owner, CpuSet)> = Vec::new();
    let mut places: HashMap<OwnerKey<'_>, usize> = HashMap::new();
    let active = claims.all().iter().filter(|one| one.active && one.exclusivity.is_exclusive());
    for claim in active {
        let cpus = claim.cpus.intersection(&online);
        let place = *places.entry(owner_key(&claim.owner)).or_insert_with(|| {
            by_owner.push((&claim.owner, CpuSet::new()));
            by_owner.len() - 1
        });
        by_owner[place].1.add(&cpus);
    }
    by_owner.sort_by_key(|(_, cpus)| std::cmp::Reverse(cpus.len()));
    let named = by_owner
        .iter()
        .take(MOST_OWNERS)
        .map(|(owner, cpus)| format!("{} by {}", cpus.len(), escape::name(&owner.to_string())));
    let mut named: Vec<String> = named.collect();
    match by_owner.len().saturating_sub(MOST_OWNERS) {
        0 => {}
        1 => named.push("1 other owner".to_owned()),
        more => named.push(format!("{more} other owners")),
    }
    let counts = counts(&claims.usage(&online), topology);
    if named.is_empty() { counts } else { format!("{counts} ({})", named.join(", ")) }
}

/// The first line: how many CPUs are used how.
fn counts(usage: &CpuUsage, topology: &Topology) -> String {
    let CpuUsage { owned, shared, free, preferred, twice } = usage;
    let mut text = format!(
        "{}: {} owned, {} shared, {} free",
        count_noun(topology.pus.len(), "CPU"),
        owned.len(),
        shared.len(),
        free.len()
    );
    let free_preferred = preferred.intersection(free);
    if !free_preferred.is_empty() {
        text.push_str(&format!(" ({} of them kept for pinned work)", free_preferred.len()));
    }
    if !twice.is_empty() {
        text.push_str(&format!("; {} used twice: {twice}", twice.len()));
    }
    text
}

/// A part of the machine with CPUs that share a level-3 cache; a node, or a package, without one.
struct Part {
    above: String,
    name: String,
    cpus: CpuSet,
}

fn parts(topology: &Topology) -> Vec<Part> {
    let mut found: Vec<Part> = Vec::new();
    let mut cpus = CpuSet::new();
    let by_cpu: BTreeMap<PuId, usize> =
        topology.pus.iter().enumerate().map(|(index, pu)| (pu.os, index)).collect();
    let named = |name: String, set: &CpuSet| {
        let pu = &topology.pus[*by_cpu.get(&set.first()?)?];
        let node = pu.node.map_or(String::new(), |node| format!(", node {node}"));
        let above = format!("package {}{node}", pu.package);
        Some(Part { above, name, cpus: set.clone() })
    };
    for l3 in &topology.l3 {
        found.extend(named(format!("L3 {}", l3.id), &l3.pus));
        cpus.add(&l3.pus);
    }
    for node in &topology.nodes {
        let rest = node.pus.difference(&cpus);
        found.extend(named("CPUs without a level-3 cache".to_owned(), &rest));
        cpus.add(&rest);
    }
    let rest = topology.online().difference(&cpus);
    found.extend(named("CPUs without a level-3 cache".to_owned(), &rest));
    found
}

/// CPUs with the same owners.
struct Row<'c> {
    owners: Vec<&'c Claim>,
    cpus: CpuSet,
    is_twice: bool,
    is_preferred: bool,
}

/// What all rows are made from.
struct Page<'c> {
    claims: &'c Claims,
    usage: CpuUsage,
    conflicts: Vec<Conflict<'c>>,
    by_cpu: ByCpu,
    cores: BTreeMap<PuId, PuId>,
}

impl<'c> Page<'c> {
    fn new(claims: &'c Claims, topology: &Topology) -> Self {
        let by_cpu = claims.by_cpu();
        let conflicts = claims.used_twice_by(&by_cpu);
        let twice = conflicts.iter().map(|conflict| &conflict.cpus).collect();
        Self {
            claims,
            usage: claims.usage_with(&topology.online(), twice),
            conflicts,
            by_cpu,
            cores: topology.pus.iter().map(|pu| (pu.os, PuId(pu.core.0))).collect(),
        }
    }

    /// The CPUs of a part of the machine, by their owners.
    fn rows(&self, cpus: &CpuSet) -> Vec<Row<'c>> {
        let mut found: Vec<(&[usize], Row<'c>)> = Vec::new();
        for cpu in cpus.iter() {
            let indexes = self.by_cpu.of(cpu);
            let is_twice = self.usage.twice.contains(cpu);
            let is_preferred = self.usage.preferred.contains(cpu);
            let same = found.iter_mut().find(|(known, row)| {
                *known == indexes && row.is_twice == is_twice && row.is_preferred == is_preferred
            });
            match same {
                Some((_, row)) => row.cpus.insert(cpu),
                None => {
                    let owners = indexes.iter().map(|index| &self.claims.all()[*index]).collect();
                    let cpus = CpuSet::single(cpu);
                    found.push((indexes, Row { owners, cpus, is_twice, is_preferred }));
                }
            }
        }
        found.into_iter().map(|(_, row)| row).collect()
    }

    fn text(&self, row: &Row<'_>) -> String {
        let cores = row.cpus.iter().filter_map(|cpu| self.cores.get(&cpu).copied());
        let cores: CpuSet = cores.collect();
        let core = if cores.len() == 1 { "core" } else { "cores" };
        let (mut names, mut seen) = (Vec::new(), HashSet::new());
        for claim in &row.owners {
            let name = escape::name(&claim.owner.to_string()).into_owned();
            let name = match claim.exclusivity {
                Exclusivity::Shared => format!("{name}, shared"),
                Exclusivity::Exclusive | Exclusivity::Dedicated | Exclusivity::Preferred => name,
            };
            if seen.insert(name.clone()) {
                names.push(name);
            }
        }
        let owners = match names.as_slice() {
            [] if row.is_preferred => "free, kept for pinned work".to_owned(),
            [] => "free".to_owned(),
            names if row.is_twice => format!("used twice: {}", names.join("; ")),
            names => names.join("; "),
        };
        format!("{} ({core} {cores}): {owners}", cpus_text(&row.cpus))
    }
}

/// A line for each claim.
fn owners(claims: &Claims) -> Vec<String> {
    let lines = claims.all().iter().map(|claim| {
        let Claim { owner, cpus, exclusivity, active, source, .. } = claim;
        let state = if *active { "" } else { ", does not run" };
        let source = escape::name(&source.to_string()).into_owned();
        let source = if source.is_empty() { source } else { format!("; {source}") };
        let name = escape::name(&owner.to_string()).into_owned();
        format!("{name}{state}: {} {}{source}", cpus_text(cpus), exclusivity.word())
    });
    lines.collect()
}

fn fold_text(indent: &str, text: &str, columns: Option<usize>) -> String {
    match columns {
        None => format!("{indent}{text}"),
        Some(columns) => fold::fold_words(indent, &format!("{indent}  "), text, columns),
    }
}

#[cfg(test)]
mod tests;
