//! Core kinds: which PUs are fast and which are small. Pure.
//!
//! In this order, the first that tells anything: the kernel's PMU sets (`cpu_core`,
//! `cpu_atom`, `cpu_lowpower`), the core types that an hwloc XML names, and the
//! scheduler's `cpu_capacity`. Frequencies are not used: boost ranking makes equal cores
//! differ, and fast and small cores may share a maximum.

use std::collections::BTreeMap;

use pinfold_model::{CoreKind, CpuSet, PuId};

use crate::facts::Facts;
use crate::hwloc::Tree;

/// A core counts as fast from this share of the largest capacity on, in percent. Equal
/// cores of one machine differ by a few percent through binning; the "prime" core of a
/// phone is 15 % above its big siblings; a small core has less than two thirds.
const FAST_FROM_PERCENT: u64 = 75;

/// The kind of each PU; empty if all are alike or nothing tells.
pub(crate) fn of_pus(tree: &Tree, facts: &Facts) -> BTreeMap<PuId, CoreKind> {
    let named: Vec<(CoreKind, &CpuSet)> = if facts.core_kinds.is_empty() {
        tree.core_types.iter().filter_map(|(name, pus)| Some((of_type(name)?, pus))).collect()
    } else {
        facts.core_kinds.iter().map(|(kind, pus)| (*kind, pus)).collect()
    };
    let online: CpuSet = tree.pus.iter().map(|pu| pu.os).collect();
    let kinds =
        if named.is_empty() { by_capacity(facts, &online) } else { by_set(&named, &online) };
    let mut distinct: Vec<CoreKind> = kinds.values().copied().collect();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() > 1 { kinds } else { BTreeMap::new() }
}

fn of_type(name: &str) -> Option<CoreKind> {
    match name {
        "IntelCore" => Some(CoreKind::Performance),
        "IntelAtom" => Some(CoreKind::Efficiency),
        "IntelLowPower" => Some(CoreKind::LowPower),
        _ => None,
    }
}

fn by_set(named: &[(CoreKind, &CpuSet)], online: &CpuSet) -> BTreeMap<PuId, CoreKind> {
    named
        .iter()
        .flat_map(|(kind, pus)| {
            let kind = *kind;
            pus.intersection(online).iter().map(move |pu| (pu, kind)).collect::<Vec<_>>()
        })
        .collect()
}

fn by_capacity(facts: &Facts, online: &CpuSet) -> BTreeMap<PuId, CoreKind> {
    let known = facts.capacities.iter().filter(|(pu, _)| online.contains(**pu));
    let largest = known.clone().map(|(_, capacity)| *capacity).max().unwrap_or(0);
    known
        .map(|(pu, capacity)| {
            let fast = capacity.saturating_mul(100) >= largest.saturating_mul(FAST_FROM_PERCENT);
            (*pu, if fast { CoreKind::Performance } else { CoreKind::Efficiency })
        })
        .collect()
}
