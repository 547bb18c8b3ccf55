//! Overhead of the methods: taken from stored calibrations, measured at the start, updated later.
//!
//! A start does not wait for a full calibration unless the user asks for it: a stored cost is used,
//! or one that is measured in 0.04 s, or the usual one.

use std::collections::BTreeMap;

use pinfold_host::{Clock, with_causes};
use pinfold_model::{CpuSet, PuId, Speed};

use super::VnodeController;
use crate::calibrate::{
    Found, HelperTimes, Measured, Sample, measure_costs, measure_costs_briefly,
};
use crate::cost::{Cost, Costs, KnownCost, SHARES, Source};
use crate::emulation::Emulation;
use crate::node::Node;
use crate::recalibration::TakenCores;
use crate::stored_costs::{Calibration, Calibrations, CostKey};
use crate::vnode_cgroup::VnodeCgroup;
use crate::{Effort, HelperSpawner, SpeedError};

/// Half of the full speed, in millionths.
const HALF: u32 = 500_000;

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
        let periods_ns = SHARES.map(|share| emulation.calibration_period(share));
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
    let kept = spawner.load_calibrations();
    let all = started.iter_mut().enumerate().filter(|(place, _)| places.contains(place));
    let mut wanted = Wanted { all: all.map(|(_, one)| one).collect(), clock };
    let now_ns = clock.now_ns();
    let effort = spawner.effort();
    let holding = wanted.all.iter().map(|(node, ..)| {
        kept.holding(key(node), &node.pus(), &together, now_ns).filter(|one| match effort {
            Effort::Brief => true,
            Effort::Full => !one.is_brief,
            Effort::Again => false,
        })
    });
    if let Some(stored) = holding.collect::<Option<Vec<&Calibration>>>() {
        for ((node, _, emulation), stored) in wanted.all.into_iter().zip(stored) {
            let known = stored_costs(stored);
            report_brief(spawner, node, &known);
            emulation.set_costs(&known)?;
        }
        return Ok(together);
    }
    if effort == Effort::Brief {
        begin_briefly(spawner, &kept, &looks, wanted, &together)?;
        return Ok(together);
    }
    let found = measure_costs(spawner, clock, &looks, &mut wanted)?;
    for ((node, _, emulation), costs) in wanted.all.into_iter().zip(&found.costs) {
        let known = complete(&kept, node, costs);
        report_missing(spawner, node, &known, found.failed.as_ref());
        emulation.set_costs(&known)?;
        let mut used = emulation.costs();
        used.retain(|pu, _| costs.contains_key(pu));
        keep(spawner, clock, node, &used, &together);
    }
    Ok(together)
}

fn key(node: &Node) -> CostKey {
    CostKey { method: node.method, period_ns: node.period() }
}

/// Starts without a full calibration. Vnodes at full speed are measured at half of it: their speed
/// may change later.
fn begin_briefly(
    spawner: &dyn HelperSpawner,
    kept: &Calibrations,
    looks: &[Sample],
    mut wanted: Wanted<'_, '_>,
    together: &CpuSet,
) -> Result<(), SpeedError> {
    let clock = wanted.clock;
    let slowest = wanted.all.iter().flat_map(|(node, ..)| &node.cores).map(|(_, speed)| *speed);
    let slowest = slowest.min().filter(|speed| *speed != Speed::FULL);
    let share = Speed::FULL.millionths() - slowest.map_or(HALF, Speed::millionths);
    let nearest = (0..SHARES.len())
        .filter(|at| looks.iter().all(|look| look.periods_ns.get(*at).is_some_and(Option::is_some)))
        .min_by_key(|at| SHARES.get(*at).map_or(u32::MAX, |one| one.abs_diff(share)));
    let found = match nearest {
        Some(at) => measure_costs_briefly(spawner, clock, looks, at, &mut wanted)?,
        None => Found::default(),
    };
    for (place, (node, _, emulation)) in wanted.all.into_iter().enumerate() {
        let costs = found.costs.get(place).cloned().unwrap_or_default();
        let pus = node.pus();
        let known = pus.iter().map(|pu| {
            let last = kept.last(key(node), pu);
            let last = last.map(|cost| KnownCost { cost, source: Source::LastKnown });
            let brief = costs.get(&pu).map(|cost| KnownCost { cost: *cost, source: Source::Brief });
            (pu, brief.or(last).unwrap_or_else(KnownCost::usual))
        });
        let known: Costs = known.collect();
        report_brief(spawner, node, &known);
        emulation.set_costs(&known)?;
        let mut used = emulation.costs();
        used.retain(|pu, _| costs.contains_key(pu));
        keep(spawner, clock, node, &used, together);
    }
    Ok(())
}

/// The costs of a stored calibration.
fn stored_costs(stored: &Calibration) -> Costs {
    let source = if stored.is_brief { Source::Brief } else { Source::Measured };
    stored.costs.iter().map(|(pu, cost)| (*pu, KnownCost { cost: *cost, source })).collect()
}

/// Reports the costs that are not measured fully, and how large the error may be. Nothing is said
/// about a vnode at full speed.
fn report_brief(spawner: &dyn HelperSpawner, node: &Node, known: &Costs) {
    let is_slow = node.cores.iter().any(|(_, speed)| *speed != Speed::FULL);
    for (source, what) in [
        (Source::Brief, "was measured briefly"),
        (Source::LastKnown, "is that of an earlier start"),
        (Source::Usual, "is not measured yet, and the usual cost is used"),
    ] {
        let pus = known.iter().filter(|(_, known)| known.source == source);
        let pus: CpuSet = pus.map(|(pu, _)| *pu).collect();
        if pus.is_empty() || !is_slow {
            continue;
        }
        let error = source.error_points(node.period()).map_or_else(String::new, |points| {
            format!(": the speed may be wrong by up to {points} points")
        });
        spawner.report(&format!(
            "vnode {}: the cost of {} on CPU {pus} {what}{error}; it is refined while the CPU is \
             idle, and --calibrate measures it fully (8 s)",
            node.name, node.method
        ));
    }
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
        taking.try_for_each(|emulation| match emulation.calibration_period(share) {
            Some(_) => emulation.steal_share(share),
            None => Ok(()),
        })
    }

    fn beat(&mut self) -> Result<(), SpeedError> {
        let now_ns = self.clock.now_ns();
        self.all.iter_mut().try_for_each(|(.., emulation)| emulation.tick(now_ns).map(|_| ()))
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
        (Some(cost), _) => KnownCost::from_measurement(*cost),
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
            Source::OtherCpu | Source::Usual | Source::Unknown => "; --calibrate measures it again",
            Source::Measured | Source::Brief | Source::LastKnown => "",
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

/// Stores costs; those that were not measured are left out.
fn keep(
    spawner: &dyn HelperSpawner,
    clock: &dyn Clock,
    node: &Node,
    costs: &Costs,
    together: &CpuSet,
) {
    let is_brief = costs.values().any(|known| known.source == Source::Brief);
    let measured = costs.iter().filter(|(_, known)| match known.source {
        Source::Measured | Source::Brief => true,
        Source::LastKnown | Source::OtherCpu | Source::Usual | Source::Unknown => false,
    });
    let costs: BTreeMap<PuId, Cost> = measured.map(|(pu, known)| (*pu, known.cost)).collect();
    if costs.is_empty() {
        return;
    }
    let CostKey { method, period_ns } = key(node);
    spawner.store_calibration(&Calibration {
        method,
        period_ns,
        together: together.clone(),
        measured_ns: clock.now_ns(),
        is_brief,
        costs,
    });
}

impl VnodeController<'_> {
    /// Measures costs again where that is due.
    pub(super) fn renew(&mut self, now_ns: u64) -> Result<(), SpeedError> {
        for one in &mut self.running {
            let Some(renewal) = &mut one.recalibration else { continue };
            let turns = one.emulation.taken_shares();
            let taken = TakenCores { entries: &one.entries, turns: &turns };
            let costs = renewal.turn(self.host, self.spawner, taken, now_ns);
            one.emulation.hold_periods(renewal.is_running());
            if costs.is_empty() {
                continue;
            }
            one.emulation.replace_costs(&costs)?;
            match one.emulation.set(&one.node.cores) {
                // If a new cost puts the current speed out of reach, the speed stays.
                Ok(()) | Err(SpeedError::OutOfReach { .. }) => {}
                Err(error) => return Err(error),
            }
            let used = one.emulation.costs();
            keep(self.spawner, self.clock, &one.node, &used, &self.together);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
