//! Overhead of the methods: taken from stored calibrations, measured at the start, updated later.

use std::collections::BTreeMap;

use pinfold_host::{Clock, with_causes};
use pinfold_model::{Command, CpuSet, PuId};

use super::VnodeController;
use crate::calibrate::{HelperTimes, Measured, Sample, witness};
use crate::cost::{Cost, Costs, KnownCost, SHARES, Source};
use crate::emulation::Emulation;
use crate::node::Node;
use crate::renewal::TakenCores;
use crate::stored_costs::{Calibration, Calibrations, CostKey};
use crate::vnode_cgroup::VnodeCgroup;
use crate::{HelperSpawner, SpeedError};

type Started<'h> = (Node, VnodeCgroup, Box<dyn Emulation + 'h>);

/// Passes its overhead to each method that needs it: from stored calibrations, or measured now, for
/// all methods at once. Returns the CPUs of all these methods.
///
/// # Errors
/// [`SpeedError`] of a method. An overhead that cannot be measured is no error: it is reported.
pub(super) fn calibrate(
    spawner: &dyn HelperSpawner,
    clock: &dyn Clock,
    started: &mut [Started<'_>],
) -> Result<CpuSet, SpeedError> {
    let (mut looks, mut places) = (Vec::new(), Vec::new());
    for (place, (node, cgroup, emulation)) in started.iter().enumerate() {
        let periods_ns = SHARES.map(|share| emulation.turn_to_witness(share));
        if periods_ns.iter().any(Option::is_some) {
            looks.push(Sample {
                entries: cgroup.entries(),
                pus: node.pus(),
                periods_ns,
                charged_to: emulation.charged_to(),
            });
            places.push(place);
        }
    }
    let together = looks.iter().map(|look| &look.pus).collect::<CpuSet>();
    if looks.is_empty() {
        return Ok(together);
    }
    let kept = spawner.recall();
    let all = started.iter_mut().enumerate().filter(|(place, _)| places.contains(place));
    let mut wanted = Wanted { all: all.map(|(_, one)| one).collect(), clock };
    let now_ns = clock.now_ns();
    let holding: Option<Vec<_>> = wanted
        .all
        .iter()
        .map(|(node, ..)| kept.holding(key(node), &node.pus(), &together, now_ns))
        .collect();
    if let Some(costs) = holding {
        for ((.., emulation), costs) in wanted.all.into_iter().zip(costs) {
            emulation.learn(&measured(costs))?;
        }
        return Ok(together);
    }
    let found = witness(spawner, clock, &looks, &mut wanted)?;
    for ((node, _, emulation), costs) in wanted.all.into_iter().zip(&found.costs) {
        let known = complete(&kept, node, costs);
        report_missing(spawner, node, &known, found.failed.as_ref());
        emulation.learn(&known)?;
        keep(spawner, clock, node, costs_of(emulation.as_ref(), costs.keys()), &together);
    }
    Ok(together)
}

fn key(node: &Node) -> CostKey {
    CostKey { method: node.method, period_ns: node.period() }
}

fn measured(costs: BTreeMap<PuId, Cost>) -> Costs {
    costs.into_iter().map(|(pu, cost)| (pu, KnownCost::measured(cost))).collect()
}

/// The methods that are measured.
struct Wanted<'w, 'h> {
    all: Vec<&'w mut Started<'h>>,
    clock: &'w dyn Clock,
}

impl Measured for Wanted<'_, '_> {
    /// A method is only asked to take a share at which it is measured.
    fn take(&mut self, share: u32) -> Result<(), SpeedError> {
        let mut taking = self.all.iter_mut().map(|(.., emulation)| emulation);
        taking.try_for_each(|emulation| match emulation.turn_to_witness(share) {
            Some(_) => emulation.take(share),
            None => Ok(()),
        })
    }

    fn beat(&mut self) -> Result<(), SpeedError> {
        let now_ns = self.clock.now_ns();
        self.all.iter_mut().try_for_each(|(.., emulation)| emulation.turn(now_ns).map(|_| ()))
    }

    fn helper_times(&self) -> Result<Vec<HelperTimes>, SpeedError> {
        self.all.iter().map(|(.., emulation)| emulation.helper_times()).collect()
    }
}

/// The measured costs, and for the other CPUs the last known ones, or those of another CPU: the
/// largest that was measured now or at the last calibration.
fn complete(kept: &Calibrations, node: &Node, costs: &BTreeMap<PuId, Cost>) -> Costs {
    let largest = costs.values().max_by_key(|cost| cost.extra_ns).copied();
    let of_other = largest.or_else(|| kept.of_any_cpu(key(node)));
    let unknown =
        of_other.map_or(KnownCost::default(), |cost| KnownCost { cost, source: Source::OtherCpu });
    node.pus().iter().map(|pu| (pu, known_cost(costs, unknown, kept, node, pu))).collect()
}

fn known_cost(
    costs: &BTreeMap<PuId, Cost>,
    unknown: KnownCost,
    kept: &Calibrations,
    node: &Node,
    pu: PuId,
) -> KnownCost {
    match (costs.get(&pu), kept.last(key(node), pu)) {
        (Some(cost), _) => KnownCost::measured(*cost),
        (None, Some(cost)) => KnownCost { cost, source: Source::LastKnown },
        (None, None) => unknown,
    }
}

fn report_missing(
    spawner: &dyn HelperSpawner,
    node: &Node,
    known: &Costs,
    failed: Option<&SpeedError>,
) {
    for (source, what) in [
        (Source::LastKnown, "the last known cost is used"),
        (Source::OtherCpu, "its cost is unknown; that of another CPU is used"),
        (Source::Unknown, "the cost is unknown and taken as zero"),
    ] {
        let next = match source {
            Source::OtherCpu | Source::Unknown => format!(
                "; `{}` measures the achieved speed in a node of a platform",
                Command::new("emulate verify NODE")
            ),
            Source::Measured | Source::LastKnown => String::new(),
        };
        let pus = known.iter().filter(|(_, known)| known.source == source);
        let pus: CpuSet = pus.map(|(pu, _)| *pu).collect();
        if pus.is_empty() {
            continue;
        }
        let why = failed.map(|error| format!(" ({})", with_causes(error))).unwrap_or_default();
        spawner.report(&format!(
            "vnode {}: the cost of {} on CPU {pus} could not be measured, because other tasks ran \
             there{why}: {what}, until the CPU is idle{next}",
            node.name, node.method
        ));
    }
}

/// The costs that the emulation uses on these CPUs.
fn costs_of<'p>(
    emulation: &dyn Emulation,
    pus: impl Iterator<Item = &'p PuId>,
) -> BTreeMap<PuId, Cost> {
    let costs = emulation.costs();
    pus.filter_map(|pu| Some((*pu, *costs.get(pu)?))).collect()
}

fn keep(
    spawner: &dyn HelperSpawner,
    clock: &dyn Clock,
    node: &Node,
    costs: BTreeMap<PuId, Cost>,
    together: &CpuSet,
) {
    if costs.is_empty() {
        return;
    }
    let CostKey { method, period_ns } = key(node);
    spawner.keep(&Calibration {
        method,
        period_ns,
        together: together.clone(),
        measured_ns: clock.now_ns(),
        costs,
    });
}

impl VnodeController<'_> {
    /// Measures costs again where that is due.
    pub(super) fn renew(&mut self, now_ns: u64) -> Result<(), SpeedError> {
        for one in &mut self.running {
            let Some(renewal) = &mut one.renewal else { continue };
            let turns = one.emulation.turns();
            let taken = TakenCores { entries: &one.entries, turns: &turns };
            let costs = renewal.turn(self.host, self.spawner, taken, now_ns);
            if costs.is_empty() {
                continue;
            }
            one.emulation.renew(&costs)?;
            match one.emulation.set(&one.node.cores) {
                // If a new cost puts the current speed out of reach, the speed stays.
                Ok(()) | Err(SpeedError::OutOfReach { .. }) => {}
                Err(error) => return Err(error),
            }
            keep(self.spawner, self.clock, &one.node, one.emulation.costs(), &self.together);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
