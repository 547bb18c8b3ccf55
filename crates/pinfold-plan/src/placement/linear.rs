//! vCPUs along a list of CPUs: the common part of the strategies that are only an order.
//!
//! vCPU i of the first vnode is on the list's CPU i; the next vnode continues where the last one
//! ended. At the end of the list it starts again at the beginning.

use std::collections::BTreeMap;

use pinfold_model::text::pus_text;
use pinfold_model::{CpuSet, PuId};

use crate::cores::available::AvailableCpus;
use crate::error::PlanError;
use crate::guest::topology::GuestSmt;
use crate::placement::builder::{Limits, PlanBuilder};

/// Gives the reason why a CPU follows another.
pub(crate) type SuccessorReason = dyn Fn(&AvailableCpus<'_>, Option<PuId>, PuId) -> String;

/// An order of CPUs.
pub(crate) struct Line<'a> {
    /// The CPUs; not empty.
    pub order: &'a [PuId],
    /// Whether the order is restricted to one kind of core if that has a CPU for each vCPU.
    pub stays_on_one_kind: bool,
    /// SMT siblings in the guest topology.
    pub smt: GuestSmt,
    /// Each CPU's rank, if the vCPUs of a vnode are numbered by rank and not by the order.
    pub sorted: Option<&'a BTreeMap<PuId, usize>>,
    /// Gives the reason for each CPU.
    pub why: &'a SuccessorReason,
    /// CPUs of the emulators and the reason; `None` lets them float.
    pub emulator: Option<(&'a CpuSet, String)>,
}

/// Places all vnodes along an order of CPUs.
///
/// # Errors
/// As [`PlanBuilder::counts`].
pub(crate) fn place_in_order(
    builder: &mut PlanBuilder<'_>,
    line: &Line<'_>,
) -> Result<(), PlanError> {
    let counts = builder.counts(Limits::wrapping(line.order.len()))?;
    let available = builder.available;
    let order = if line.stays_on_one_kind {
        available.of_one_kind(line.order, counts.iter().sum())
    } else {
        line.order.to_vec()
    };
    let order = order.as_slice();
    // The first vCPU on each CPU of the order: vnode and vCPU number.
    let mut first: Vec<(usize, usize)> = Vec::with_capacity(order.len());
    let mut cursor = 0_usize;
    let carried: CpuSet = order.iter().take(counts.iter().sum()).copied().collect();
    for place in builder.choosing_order() {
        let vcpus = counts.get(place).copied().unwrap_or(0);
        let mut pins: Vec<(usize, PuId)> =
            (cursor..cursor + vcpus).map(|slot| (slot, order[slot % order.len()])).collect();
        cursor += vcpus;
        if let (Some(rank), true) = (line.sorted, vcpus <= order.len()) {
            pins.sort_by_cached_key(|(_, pin)| rank.get(pin));
        }
        let own: Vec<PuId> = pins.iter().map(|(_, pin)| *pin).collect();
        let (around, which) = available.around(&own, &carried);
        let mut vnode_builder = builder.open(place);
        for (vcpu, (slot, pin)) in pins.into_iter().enumerate() {
            let reason = match slot.checked_sub(order.len()) {
                Some(before) => {
                    let other = first.get(before % order.len()).copied();
                    let sharer = describe_sharing_vcpu(builder, other);
                    wrap_reason(available, pin, &sharer, order.len())
                }
                None => {
                    let before = slot.checked_sub(1).and_then(|slot| order.get(slot)).copied();
                    (line.why)(available, before, pin)
                }
            };
            if slot < order.len() {
                if first.len() <= slot {
                    first.resize(slot + 1, (place, vcpu));
                }
                first[slot] = (place, vcpu);
            }
            vnode_builder.vcpu(CpuSet::single(pin), reason);
        }
        match &line.emulator {
            Some((pus, why)) => vnode_builder.emulator(pus, || why.clone()),
            None => vnode_builder.emulator(&around, || {
                format!(
                    "the cited setup pins vCPUs only: the emulator floats over {}, {which}",
                    pus_text(&around)
                )
            }),
        }
        builder.finish_vnode(vnode_builder, line.smt)?;
    }
    Ok(())
}

/// Why a vCPU is on a CPU of the order that has one already.
fn wrap_reason(available: &AvailableCpus<'_>, pin: PuId, sharer: &str, cpus: usize) -> String {
    let place = available.place(pin);
    let all = match cpus {
        1 => "the only CPU of the order has".to_owned(),
        count => format!("all {count} CPUs of the order have"),
    };
    format!("wraps around to CPU {pin} ({place}), shared with {sharer}: {all} a vCPU already")
}

/// The vCPU with this vnode and number, in words.
fn describe_sharing_vcpu(builder: &PlanBuilder<'_>, vcpu: Option<(usize, usize)>) -> String {
    match vcpu {
        Some((place, vcpu)) if builder.request.vnodes.len() > 1 => {
            format!("vCPU {vcpu} of {}", builder.vnode(place).name)
        }
        Some((_, vcpu)) => format!("vCPU {vcpu}"),
        None => "another vCPU".to_owned(),
    }
}
