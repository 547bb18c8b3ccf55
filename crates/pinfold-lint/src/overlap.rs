//! Several machines on one host: CPUs and cores that two of them claim.
//!
//! Claims are compared per CPU and per core, so that the work grows with the machines' masks and
//! not with the number of pairs. CPUs with the same claimants are reported as one diagnostic.

use std::collections::BTreeMap;

use pinfold_model::{CoreId, CpuSet, PuId, Severity};
use pinfold_plan::domain_file::Place;

use super::Diagnostic;
use super::lookup::{CpuIndex, LintContext, places};
use super::text::overlap::{Free, OverlapFault, machine_on};
use super::text::{Fault, FaultText};

/// Maximum number of machines that one diagnostic names.
const MOST_NAMES: usize = 6;

/// Indexes of machines, ascending.
type Claimants = Vec<usize>;

pub(super) fn check(
    views: &[&LintContext<'_, '_>],
    lookup: &CpuIndex<'_>,
    diagnostics: &mut Vec<Diagnostic>,
) {
    if views.len() < 2 {
        return;
    }
    let mut taken = CpuSet::new();
    for view in views {
        taken.add(&view.held);
    }
    let free = Free(lookup.usable.difference(&taken));
    let by_pu = by_pu(views);
    for (claimants, pus) in group_by_core(by_pu.iter().map(|(pu, claimants)| (claimants, *pu))) {
        diagnostics.push(pus_twice(&InvolvedMachines::new(views, claimants), &pus, &free));
    }
    let by_core = by_core(views, lookup);
    // A CPU that all of a core's machines use was already reported.
    let reported =
        |core: CoreId, claimants: &Claimants| {
            lookup.topology.core(core).pus.iter().any(|pu| {
                by_pu.get(&pu).is_some_and(|on| claimants.iter().all(|one| on.contains(one)))
            })
        };
    let open = by_core.iter().filter(|(core, claimants)| !reported(**core, claimants)).flat_map(
        |(core, claimants)| lookup.topology.core(*core).pus.iter().map(move |pu| (claimants, pu)),
    );
    for (claimants, pus) in group_by_core(open) {
        diagnostics.push(cores_twice(&InvolvedMachines::new(views, claimants), &pus, &free));
    }
}

/// The machines that use each CPU.
fn by_pu(views: &[&LintContext<'_, '_>]) -> BTreeMap<PuId, Claimants> {
    let mut found: BTreeMap<PuId, Claimants> = BTreeMap::new();
    for (index, view) in views.iter().enumerate() {
        for pu in view.held.iter() {
            found.entry(pu).or_default().push(index);
        }
    }
    found
}

/// The machines with a vCPU that is pinned to one CPU of this core.
fn by_core(views: &[&LintContext<'_, '_>], lookup: &CpuIndex<'_>) -> BTreeMap<CoreId, Claimants> {
    let mut found: BTreeMap<CoreId, Claimants> = BTreeMap::new();
    for (index, view) in views.iter().enumerate() {
        for pu in view.tight.iter().filter_map(|pu| lookup.pu(pu)) {
            let claimants = found.entry(pu.core).or_default();
            if claimants.last() != Some(&index) {
                claimants.push(index);
            }
        }
    }
    found
}

/// The CPUs of each set of at least two claimants, by their first CPU.
fn group_by_core<'c>(
    claims: impl Iterator<Item = (&'c Claimants, PuId)>,
) -> Vec<(&'c Claimants, CpuSet)> {
    let mut groups: BTreeMap<&Claimants, Vec<PuId>> = BTreeMap::new();
    for (claimants, pu) in claims.filter(|(claimants, _)| claimants.len() > 1) {
        groups.entry(claimants).or_default().push(pu);
    }
    let mut groups: Vec<_> =
        groups.into_iter().map(|(who, pus)| (who, pus.into_iter().collect::<CpuSet>())).collect();
    groups.sort_by_key(|(_, pus)| pus.first());
    groups
}

/// The machines of a diagnostic.
pub(super) struct InvolvedMachines<'v, 'a, 't> {
    named: Vec<&'v LintContext<'a, 't>>,
    count: usize,
}

impl<'v, 'a, 't> InvolvedMachines<'v, 'a, 't> {
    /// Those machines of the list with these indexes.
    pub fn new(views: &[&'v LintContext<'a, 't>], claimants: &[usize]) -> Self {
        let named =
            claimants.iter().take(MOST_NAMES).filter_map(|index| views.get(*index).copied());
        Self { named: named.collect(), count: claimants.len() }
    }

    /// A diagnostic of the first machine.
    pub fn diagnostic(&self, fault: &dyn Fault) -> Diagnostic {
        let FaultText { name, what, cost, instead } = fault.words();
        Diagnostic {
            severity: Severity::Warning,
            name,
            vm: self.named.first().map(|view| view.layout.name.clone()).unwrap_or_default(),
            what,
            places: Vec::new(),
            cost,
            instead,
            is_final: false,
            repairs: Vec::new(),
        }
    }

    /// `"a" and "b"`, or `"a", "b", … and 12 more`.
    pub fn names(&self) -> String {
        self.list_claimants(|view| format!("{:?}", view.layout.name))
    }

    fn list_claimants(&self, say: impl Fn(&LintContext<'_, '_>) -> String) -> String {
        let mut words: Vec<String> = self.named.iter().map(|view| say(view)).collect();
        let more = self.count - words.len();
        if more > 0 {
            words.push(format!("{more} more"));
        }
        let last = words.pop().unwrap_or_default();
        if words.is_empty() { last } else { format!("{} and {last}", words.join(", ")) }
    }

    /// The positions of the values concerned in the file of each machine.
    pub fn places(&self, own: impl Fn(&LintContext<'_, '_>) -> Vec<Place>) -> Vec<Place> {
        self.named
            .iter()
            .flat_map(|view| {
                let source = view.layout.source.clone();
                own(view).into_iter().map(move |place| Place { file: source.clone(), ..place })
            })
            .collect()
    }
}

fn pus_twice(machines: &InvolvedMachines<'_, '_, '_>, pus: &CpuSet, free: &Free) -> Diagnostic {
    let mut diagnostic =
        machines.diagnostic(&OverlapFault::Pus { pus, machines: machines.names(), free });
    diagnostic.places = machines.places(|view| touching(view, pus));
    diagnostic
}

fn cores_twice(machines: &InvolvedMachines<'_, '_, '_>, pus: &CpuSet, free: &Free) -> Diagnostic {
    let mut diagnostic = machines.diagnostic(&OverlapFault::Cores {
        machines: machines.list_claimants(|view: &LintContext<'_, '_>| {
            machine_on(&view.layout.name, &view.tight.intersection(pus))
        }),
        free,
    });
    diagnostic.places = machines.places(|view| touching(view, pus));
    diagnostic
}

/// The positions at which a machine's vCPUs are pinned to some of these CPUs.
fn touching(view: &LintContext<'_, '_>, pus: &CpuSet) -> Vec<Place> {
    let pins = view.vcpus().map(|(_, pin)| pin);
    places(pins.filter(|pin| pin.pus.as_ref().is_some_and(|own| !own.is_disjoint(pus))))
}
