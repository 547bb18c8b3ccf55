//! Overhead of the methods: taken from stored calibrations, measured at the start, updated later.

use std::cell::RefCell;
use std::collections::BTreeMap;

use pinfold_host::{Clock, with_causes};
use pinfold_model::{Command, CpuSet, PuId};

use super::VnodeController;
use crate::calibrate::{Found, Sample, witness};
use crate::cost::{Cost, Costs, KnownCost, SHARES, Source};
use crate::emulation::Emulation;
use crate::node::Node;
use crate::stored_costs::{Calibration, Calibrations};
use crate::vnode_cgroup::VnodeCgroup;
use crate::{HelperSpawner, SpeedError};

type Started<'h> = (Node, VnodeCgroup, Box<dyn Emulation + 'h>);

/// Passes its overhead to each method that needs it: from stored calibrations, or measured now, for
/// all methods at once. Returns the CPUs of all these methods.
///
/// # Errors
/// [`SpeedError`] of a method. An overhead that cannot be measured is no error: it is reported.
pub(super) fn calibrate(
    outer: (&dyn HelperSpawner, &dyn Clock),
    started: &mut [Started<'_>],
) -> Result<CpuSet, SpeedError> {
    let (outside, clock) = outer;
    let (mut looks, mut places) = (Vec::new(), Vec::new());
    for (place, (node, enclosure, emulation)) in started.iter().enumerate() {
        let periods_ns = SHARES.map(|share| emulation.turn_to_witness(share));
        if periods_ns.iter().any(Option::is_some) {
            looks.push(Sample {
                entries: enclosure.entries(),
                pus: node.pus(),
                periods_ns,
                takes_cpu_time: emulation.takes_cpu_time(),
            });
            places.push(place);
        }
    }
    let together = looks.iter().map(|look| &look.pus).collect::<CpuSet>();
    if looks.is_empty() {
        return Ok(together);
    }
    let kept = outside.recall();
    let mut wanted: Vec<&mut Started<'_>> = started
        .iter_mut()
        .enumerate()
        .filter(|(place, _)| places.contains(place))
        .map(|(_, one)| one)
        .collect();
    let now_ns = clock.now_ns();
    let holding: Option<Vec<_>> = wanted
        .iter()
        .map(|(node, ..)| kept.holding(turn(node), (&node.pus(), &together), now_ns))
        .collect();
    if let Some(costs) = holding {
        for ((.., emulation), costs) in wanted.into_iter().zip(costs) {
            emulation.learn(&measured(costs))?;
        }
        return Ok(together);
    }
    let found = measure(outer, &looks, &mut wanted)?;
    for ((node, _, emulation), costs) in wanted.into_iter().zip(&found.costs) {
        let known = completed(&kept, node, costs);
        report_missing(outside, node, &known, found.failed.as_ref());
        emulation.learn(&known)?;
        keep((outside, clock), node, (emulation.as_ref(), costs.keys(), &together));
    }
    Ok(together)
}

fn turn(node: &Node) -> (pinfold_model::Method, u64) {
    (node.method, node.period())
}

fn measured(costs: BTreeMap<PuId, Cost>) -> Costs {
    costs.into_iter().map(|(pu, cost)| (pu, KnownCost::measured(cost))).collect()
}

/// Measures with reference runs while the methods take different shares.
fn measure(
    outer: (&dyn HelperSpawner, &dyn Clock),
    looks: &[Sample],
    wanted: &mut [&mut Started<'_>],
) -> Result<Found, SpeedError> {
    let wanted = RefCell::new(wanted);
    let each = |what: &mut dyn FnMut(&mut dyn Emulation) -> Result<(), SpeedError>| {
        let mut wanted = wanted.borrow_mut();
        wanted.iter_mut().try_for_each(|(.., emulation)| what(emulation.as_mut()))
    };
    // A method is only asked to take a share at which it is measured.
    let mut take = |share| {
        each(&mut |emulation| match emulation.turn_to_witness(share) {
            Some(_) => emulation.take(share),
            None => Ok(()),
        })
    };
    let mut beat = || {
        let now = outer.1.now_ns();
        each(&mut |emulation| emulation.turn(now).map(|_| ()))
    };
    witness(outer, looks, &mut take, &mut beat)
}

/// The measured costs, and for the other CPUs the last known ones.
fn completed(kept: &Calibrations, node: &Node, costs: &BTreeMap<PuId, Cost>) -> Costs {
    let one = |pu: PuId| match (costs.get(&pu), kept.last(turn(node), pu)) {
        (Some(cost), _) => KnownCost::measured(*cost),
        (None, Some(cost)) => KnownCost { cost, source: Source::LastKnown },
        (None, None) => KnownCost::default(),
    };
    node.pus().iter().map(|pu| (pu, one(pu))).collect()
}

fn report_missing(
    outside: &dyn HelperSpawner,
    node: &Node,
    known: &Costs,
    failed: Option<&SpeedError>,
) {
    for (source, what) in [
        (Source::LastKnown, "the last known cost counts"),
        (Source::Unknown, "the cost is not known and counts as nothing"),
    ] {
        let next = match source {
            Source::Unknown => format!(
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
        outside.report(&format!(
            "vnode {}: the cost of {} on CPU {pus} could not be measured, because other tasks ran \
             there{why}: {what}, until the CPU is idle{next}",
            node.name, node.method
        ));
    }
}

fn keep<'p>(
    (outside, clock): (&dyn HelperSpawner, &dyn Clock),
    node: &Node,
    (emulation, pus, together): (&dyn Emulation, impl Iterator<Item = &'p PuId>, &CpuSet),
) {
    let costs = emulation.costs();
    let costs: BTreeMap<PuId, Cost> = pus.filter_map(|pu| Some((*pu, *costs.get(pu)?))).collect();
    if costs.is_empty() {
        return;
    }
    let (method, period_ns) = turn(node);
    outside.keep(&Calibration {
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
            let door = (self.host as &dyn pinfold_host::Host, self.outside);
            let costs = renewal.turn(door, (&one.entries, &turns), now_ns);
            if costs.is_empty() {
                continue;
            }
            one.emulation.renew(&costs)?;
            match one.emulation.set(&one.node.cores) {
                // If a new cost puts the current speed out of reach, the speed stays.
                Ok(()) | Err(SpeedError::OutOfReach { .. }) => {}
                Err(error) => return Err(error),
            }
            let all = one.emulation.costs();
            keep(
                (self.outside, self.clock),
                &one.node,
                (one.emulation.as_ref(), all.keys(), &self.together),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
