//! The guest topology, derived from the pins of its vCPUs.
//!
//! A guest that is shown siblings schedules around them; a guest that is shown wrong siblings
//! schedules badly. So the topology contains only what matches the pins. If no uniform topology
//! matches, it has fewer levels, and a finding reports this.

use pinfold_model::text::select_verb;
use pinfold_model::{CoreId, CoreKind, CpuSet, Finding, GuestTopology, PackageId, PuId, Topology};

use crate::cores::alternatives::{PlacementOptions, severity};
use crate::cores::available::AvailableCpus;

/// SMT siblings in the guest topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuestSmt {
    /// Siblings as in the pins.
    Mirror,
    /// No siblings: the strategy gives each vCPU its own core.
    None,
    /// No siblings: the request hides them.
    Hidden,
}

/// A topology of one socket and one thread per core.
pub(crate) fn flat(vcpus: usize, reason: impl Into<String>) -> GuestTopology {
    shape(1, vcpus, 1, reason.into())
}

/// The topology that matches pins to single CPUs, in vCPU order, with findings about what it cannot
/// express.
pub(crate) fn matching(
    available: &AvailableCpus<'_>,
    pins: &[PuId],
    smt: GuestSmt,
) -> (GuestTopology, Vec<Finding>) {
    let mut findings = Vec::new();
    let choice =
        PlacementOptions { index: available.index(), usable: &available.usable, vcpus: pins.len() };
    let pus: &CpuSet = &pins.iter().copied().collect();
    let cores = runs(available, pins);
    if repeats(pins) {
        findings.extend(hidden_by_sharing(available, pus, &choice));
        findings.extend(mixed_kinds(&cores, &choice));
        return (
            flat(pins.len(), "vCPUs share CPUs, so the topology of the host does not apply"),
            findings,
        );
    }
    let scattered = repeats(&cores.iter().map(|run| run.id).collect::<Vec<_>>());
    let threads = match smt {
        GuestSmt::None | GuestSmt::Hidden => 1,
        GuestSmt::Mirror if scattered => 1,
        GuestSmt::Mirror => uniform(cores.iter().map(|run| run.pins)).unwrap_or(1),
    };
    let shared = cores.iter().filter(|run| run.pins > 1).count();
    if threads == 1 && smt != GuestSmt::Hidden && !scattered && shared > 0 {
        findings.push(uneven(&cores, pus, &choice));
    }
    if threads == 1 && scattered {
        let text = "siblings have vCPUs that are not consecutive, so the guest sees one thread per \
                    core and does not know which of its CPUs share a core";
        findings.push(finding_of(
            "guest topology",
            text.to_owned(),
            choice.with_true_siblings(pus),
        ));
    }
    findings.extend(mixed_kinds(&cores, &choice));
    let packages: Vec<PackageId> =
        pins.iter().filter_map(|pin| available.pu(*pin)).map(|pu| pu.package).collect();
    let (sockets, why) = sockets(available.topology, &packages);
    let per_socket = pins.len() / threads / sockets;
    let siblings = match threads {
        1 if smt == GuestSmt::Hidden => "no SMT is shown, because the request says so",
        1 if scattered => "no SMT is shown, because siblings do not have consecutive vCPUs",
        1 if shared > 0 => "no SMT is shown, because not all cores have the same number of vCPUs",
        1 => "no SMT is shown, because each vCPU has a core of its own",
        _ => "vCPUs on siblings are shown as threads of one core",
    };
    (shape(sockets, per_socket, threads, format!("{siblings}; {why}")), findings)
}

/// Consecutive pins on one core.
struct Run {
    kind: CoreKind,
    id: CoreId,
    pins: usize,
}

fn runs(available: &AvailableCpus<'_>, pins: &[PuId]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for pu in pins.iter().filter_map(|pin| available.pu(*pin)) {
        match runs.last_mut() {
            Some(run) if run.id == pu.core => run.pins += 1,
            _ => runs.push(Run { kind: pu.kind, id: pu.core, pins: 1 }),
        }
    }
    runs
}

/// The guest's sockets, with the reason, for the `packages` of its vCPUs in their order: one for
/// each package if all carry as many neighbours, else one. Never more than the host has packages.
pub(crate) fn sockets(topology: &Topology, packages: &[PackageId]) -> (usize, String) {
    let mut runs: Vec<(PackageId, usize)> = Vec::new();
    for package in packages {
        match runs.last_mut() {
            Some((last, count)) if last == package => *count += 1,
            _ => runs.push((*package, 1)),
        }
    }
    let ids: Vec<PackageId> = runs.iter().map(|(package, _)| *package).collect();
    let names: Vec<String> = ids.iter().map(PackageId::to_string).collect();
    if repeats(&ids) {
        return (1, "one socket, because consecutive vCPUs are in different packages".to_owned());
    }
    // A virtual machine without a topology of its own: each CPU is a package, which says nothing
    // about caches.
    if runs.len() > 1 && topology.packages.len() == topology.cores.len() {
        return (1, "one socket, because each package of the host is a single core".to_owned());
    }
    let names = names.join(", ");
    match (runs.len(), uniform(runs.iter().map(|(_, count)| *count))) {
        (0 | 1, _) => (1, format!("one socket, because all vCPUs are in package {names}")),
        (count, Some(_)) => (count, format!("one socket for each of the packages {names}")),
        (_, None) => (
            1,
            format!(
                "one socket, because the packages {names} do not have the same number of \
                         vCPUs"
            ),
        ),
    }
}

/// A finding whose severity depends on whether another placement avoids the cost.
fn finding_of(subject: &str, text: String, avoidable: bool) -> Finding {
    Finding { severity: severity(avoidable), ..Finding::note(subject, text) }
}

/// Host siblings that carry vCPUs of a guest whose vCPUs share CPUs.
fn hidden_by_sharing(
    available: &AvailableCpus<'_>,
    pus: &CpuSet,
    choice: &PlacementOptions<'_>,
) -> Option<Finding> {
    pus.iter().any(|pu| !available.siblings(pu).is_disjoint(pus)).then(|| {
        let text = "siblings have vCPUs, but the guest sees one thread per core, because vCPUs \
                    share CPUs: it does not know which of its CPUs share a core";
        finding_of("guest topology", text.to_owned(), choice.with_true_siblings(pus))
    })
}

fn uneven(cores: &[Run], pus: &CpuSet, choice: &PlacementOptions<'_>) -> Finding {
    let vcpus = choice.vcpus;
    let widest = cores.iter().map(|run| run.pins).max().unwrap_or(1);
    let partial: Vec<String> =
        cores.iter().filter(|run| run.pins < widest).map(|run| run.id.to_string()).collect();
    let (core, has) = match partial.len() {
        1 => ("core", "has"),
        _ => ("cores", "have"),
    };
    finding_of(
        "guest topology",
        format!(
            "{core} {} {has} fewer of the {vcpus} vCPUs than the others, so the guest sees one \
             thread per core and does not know which of its CPUs share a core",
            partial.join(", ")
        ),
        choice.with_true_siblings(pus),
    )
}

fn mixed_kinds(cores: &[Run], choice: &PlacementOptions<'_>) -> Option<Finding> {
    let fastest = cores.iter().map(|run| run.kind).min()?;
    let slower: usize = cores.iter().filter(|run| run.kind != fastest).map(|run| run.pins).sum();
    let all: usize = cores.iter().map(|run| run.pins).sum();
    (slower > 0).then(|| {
        let text = format!(
            "{slower} of {all} vCPUs {} on slower cores than the others, which no guest topology \
             can express: the guest assumes that all its CPUs are equally fast",
            select_verb(slower, "lies", "lie")
        );
        finding_of("core kinds", text, choice.of_one_kind())
    })
}

fn repeats<T: Copy + Ord>(items: &[T]) -> bool {
    let mut sorted = items.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).any(|pair| pair.first() == pair.last())
}

/// The common value, if all are equal.
fn uniform(mut values: impl Iterator<Item = usize>) -> Option<usize> {
    let first = values.next()?;
    values.all(|value| value == first).then_some(first)
}

fn shape(sockets: usize, cores: usize, threads: usize, reason: String) -> GuestTopology {
    // Numbers of CPUs are below MAX_PUS, numbers of vCPUs below MAX_VCPUS.
    GuestTopology {
        sockets: narrow(sockets),
        cores: narrow(cores),
        threads: narrow(threads),
        reason,
    }
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
