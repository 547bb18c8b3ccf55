//! Stored costs of methods, which make a new calibration at the next start unnecessary.
//!
//! A cost is valid on one machine until its next boot; whoever stores it ensures that. It was
//! measured on several CPUs at once and is valid for these CPUs together, because the cost on one
//! CPU alone differs from that on two. Times are those of `CLOCK_MONOTONIC`.

use std::collections::BTreeMap;

use pinfold_model::{CpuSet, Method, PuId};

use crate::cost::Cost;

/// Validity of a cost: a start measures again after a day.
pub const CALIBRATION_HOLDS_NS: u64 = 24 * 3_600 * 1_000_000_000;
/// Maximum number of stored calibrations.
const MOST: usize = 64;

/// Costs of a method on CPUs that were measured at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calibration {
    /// The method.
    pub method: Method,
    /// Period in nanoseconds.
    pub period_ns: u64,
    /// All CPUs that were measured together, including those of other vnodes.
    pub together: CpuSet,
    /// Time of the measurement (`CLOCK_MONOTONIC`, ns).
    pub measured_ns: u64,
    /// True if it was measured at one share only.
    pub is_brief: bool,
    /// Costs on the vnode's CPUs that were not busy.
    pub costs: BTreeMap<PuId, Cost>,
}

/// What a cost depends on, apart from the CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CostKey {
    pub(crate) method: Method,
    pub(crate) period_ns: u64,
}

impl Calibration {
    fn key(&self) -> CostKey {
        CostKey { method: self.method, period_ns: self.period_ns }
    }
}

/// All stored calibrations, the newest last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calibrations(pub Vec<Calibration>);

impl Calibrations {
    /// Adds a calibration. It replaces an earlier one of the same method and CPUs; if there are too
    /// many, the oldest is dropped.
    pub fn add(&mut self, new: Calibration) {
        self.0.retain(|old| {
            let is_same = old.key() == new.key() && old.together == new.together;
            !(is_same && old.costs.keys().all(|pu| new.costs.contains_key(pu)))
        });
        self.0.push(new);
        self.0.drain(..self.0.len().saturating_sub(MOST));
    }

    /// The costs on all of these CPUs, if they were measured together with the same other CPUs
    /// within the last day.
    pub(crate) fn holding(
        &self,
        key: CostKey,
        pus: &CpuSet,
        together: &CpuSet,
        now_ns: u64,
    ) -> Option<&Calibration> {
        self.0.iter().rev().find(|one| {
            let age_ns = now_ns.checked_sub(one.measured_ns);
            one.key() == key
                && one.together == *together
                && age_ns.is_some_and(|age_ns| age_ns < CALIBRATION_HOLDS_NS)
                && pus.iter().all(|pu| one.costs.contains_key(&pu))
        })
    }

    /// The last known cost on a CPU, regardless of its age and of the other CPUs.
    pub(crate) fn last(&self, key: CostKey, pu: PuId) -> Option<Cost> {
        let of = self.0.iter().rev().filter(|one| one.key() == key);
        of.filter_map(|one| one.costs.get(&pu)).next().copied()
    }

    /// The largest cost in the newest calibration of any CPUs, at the first share.
    pub(crate) fn of_any_cpu(&self, key: CostKey) -> Option<Cost> {
        let newest = self.0.iter().rev().find(|one| one.key() == key)?;
        newest.costs.values().max_by_key(|cost| cost.extra_ns).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(pus: &[u32], together: u32, measured_ns: u64) -> Calibration {
        Calibration {
            method: Method::Stall,
            period_ns: 200_000,
            together: CpuSet::first_n(together),
            measured_ns,
            is_brief: false,
            costs: pus
                .iter()
                .map(|pu| (PuId(*pu), Cost { entry_ns: measured_ns, ..Cost::default() }))
                .collect(),
        }
    }

    const STALL: CostKey = CostKey { method: Method::Stall, period_ns: 200_000 };
    const HOGS: CostKey = CostKey { method: Method::Hogs, period_ns: 200_000 };

    #[test]
    fn a_cost_holds_a_day_for_the_same_cpus_method_and_period() {
        let kept = Calibrations(vec![one(&[0, 1], 2, 1_000)]);
        let check = |key, pus: u32, together: u32, now_ns: u64, expected: bool| {
            let found =
                kept.holding(key, &CpuSet::first_n(pus), &CpuSet::first_n(together), now_ns);
            assert_eq!(found.is_some(), expected, "{key:?} {pus} {together} {now_ns}");
        };
        check(STALL, 2, 2, 2_000, true);
        check(STALL, 1, 2, 2_000, true);
        check(STALL, 1, 1, 2_000, false);
        check(STALL, 3, 3, 2_000, false);
        check(HOGS, 2, 2, 2_000, false);
        check(CostKey { period_ns: 500_000, ..STALL }, 2, 2, 2_000, false);
        check(STALL, 2, 2, 999, false);
        check(STALL, 2, 2, 1_000 + CALIBRATION_HOLDS_NS, false);
    }

    #[test]
    fn the_last_cost_is_known_however_old_it_is() {
        let mut kept = Calibrations::default();
        kept.add(one(&[0, 1], 2, 1));
        kept.add(one(&[0], 1, 5));
        assert_eq!(
            (last_cost(&kept, 0), last_cost(&kept, 1), last_cost(&kept, 2)),
            (Some(5), Some(1), None)
        );
        assert_eq!(kept.last(HOGS, PuId(0)), None);
        assert_eq!((any_cost(&kept, STALL), any_cost(&kept, HOGS)), (Some(5), None));
    }

    fn last_cost(kept: &Calibrations, pu: u32) -> Option<u64> {
        kept.last(STALL, PuId(pu)).map(|cost| cost.entry_ns)
    }

    fn any_cost(kept: &Calibrations, key: CostKey) -> Option<u64> {
        kept.of_any_cpu(key).map(|cost| cost.entry_ns)
    }

    #[test]
    fn the_newest_replaces_what_it_measured_again() {
        let mut kept = Calibrations::default();
        kept.add(one(&[0, 1], 2, 1));
        kept.add(one(&[0], 2, 2));
        assert_eq!(kept.0.len(), 2, "CPU 1 was busy the second time");
        kept.add(one(&[0, 1], 2, 3));
        assert_eq!(kept.0, [one(&[0, 1], 2, 3)]);
        (0..100).for_each(|at| kept.add(one(&[0], 3 + at, at.into())));
        assert_eq!(kept.0.len(), MOST);
        assert_eq!(kept.0.last(), Some(&one(&[0], 102, 99)));
    }
}
