//! Core kinds: which CPUs are fast and which are small. Pure.
//!
//! The first source that distinguishes two kinds counts, in this order: the kernel's PMUs
//! (`cpu_core`, `cpu_atom`, `cpu_lowpower`), the core types in an hwloc XML, the scheduler's
//! capacity (`cpu_capacity`, or `LinuxCapacity` in an XML), the highest frequency, the shape of the
//! cores: cores without SMT that share an L2 cache, next to cores with SMT and an L2 cache each.
//!
//! Frequencies need care: turbo ranking gives equal cores different values, and so does the
//! preferred-core ranking of AMD from which some drivers compute it. Frequencies therefore only
//! count if the cores form two groups with a wide gap between them. (AMD's dense cores, for which
//! the kernel reports nothing else, reach 65 to 72 % of the others.)

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{CoreKind, CpuSet, PuId};

use crate::facts::Facts;
use crate::hwloc::{CpuKind, Key, Tree};

/// Minimum share of the largest capacity for a fast core, in percent. Equal cores of one machine
/// differ by a few percent through binning. The "prime" core of a phone is 15 % above its big
/// siblings; a small core has less than three quarters.
const FAST_FROM_PERCENT: u64 = 75;

/// Maximum share of the slowest fast core's frequency that the fastest small core may have, in
/// percent. Without such a gap there is only one kind. The ranks of equal cores differ by steps of
/// a few percent.
const GAP_PERCENT: u64 = 85;

/// The kind of each CPU; empty if all are equal or no source distinguishes them.
pub(crate) fn classify_cpus(tree: &Tree, facts: &Facts) -> BTreeMap<PuId, CoreKind> {
    let online: CpuSet = tree.pus.iter().map(|pu| pu.os).collect();
    let pmus: Vec<(CoreKind, &CpuSet)> =
        facts.core_kinds.iter().map(|(kind, pus)| (*kind, pus)).collect();
    let types = tree.kinds.iter().filter_map(|kind| Some((of_type(kind)?, &kind.pus)));
    let types: Vec<(CoreKind, &CpuSet)> = types.collect();
    let capacities = of_tree(&facts.capacities, tree, |kind| kind.capacity);
    let frequencies = of_tree(&facts.highest_khz, tree, |kind| kind.highest_khz);
    [
        by_set(&pmus, &online),
        by_set(&types, &online),
        by_share(&capacities, &online),
        by_frequency(&frequencies, &online),
        by_shape(tree, &frequencies),
    ]
    .into_iter()
    .find(|kinds| kinds.values().min() != kinds.values().max())
    .unwrap_or_default()
}

/// Capacities from the kernel's files, else from the tree's kinds.
pub(crate) fn of_tree(
    facts: &BTreeMap<PuId, u64>,
    tree: &Tree,
    value: impl Fn(&CpuKind) -> Option<u64>,
) -> BTreeMap<PuId, u64> {
    if !facts.is_empty() {
        return facts.clone();
    }
    let known = tree.kinds.iter().filter_map(|kind| Some((&kind.pus, value(kind)?)));
    known.flat_map(|(pus, value)| pus.iter().map(move |pu| (pu, value))).collect()
}

/// Converts hwloc's core type: the vendor's name, then the type's.
fn of_type(kind: &CpuKind) -> Option<CoreKind> {
    let word = kind.core_type.as_deref()?.to_ascii_lowercase();
    let word =
        ["intel", "amd"].iter().find_map(|vendor| word.strip_prefix(vendor)).unwrap_or(&word);
    match word {
        "core" | "performance" | "classic" => Some(CoreKind::Performance),
        "atom" | "efficiency" | "dense" | "compact" => Some(CoreKind::Efficiency),
        "lowpower" => Some(CoreKind::LowPower),
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

fn by_share(values: &BTreeMap<PuId, u64>, online: &CpuSet) -> BTreeMap<PuId, CoreKind> {
    let known = values.iter().filter(|(pu, _)| online.contains(**pu));
    let largest = known.clone().map(|(_, value)| *value).max().unwrap_or(0);
    known
        .map(|(pu, value)| {
            let fast = is_at_least(*value, FAST_FROM_PERCENT, largest);
            (*pu, if fast { CoreKind::Performance } else { CoreKind::Efficiency })
        })
        .collect()
}

/// The same by frequency, if it is known for each CPU and there is a gap between two groups.
fn by_frequency(values: &BTreeMap<PuId, u64>, online: &CpuSet) -> BTreeMap<PuId, CoreKind> {
    let kinds = by_share(values, online);
    let of = |kind| kinds.iter().filter(move |(_, one)| **one == kind).map(|(pu, _)| values[pu]);
    let slowest_fast = of(CoreKind::Performance).min();
    let fastest_small = of(CoreKind::Efficiency).max();
    match (fastest_small, slowest_fast) {
        (Some(small), Some(fast))
            if kinds.len() == online.len() && !is_at_least(small, GAP_PERCENT, fast) =>
        {
            kinds
        }
        (Some(_) | None, Some(_) | None) => BTreeMap::new(),
    }
}

/// The kinds by shape: a core without SMT whose L2 cache other cores share is a small one, if the
/// other cores have an L2 cache each and some of them SMT. Known frequencies must not contradict.
fn by_shape(tree: &Tree, highest_khz: &BTreeMap<PuId, u64>) -> BTreeMap<PuId, CoreKind> {
    let mut widths: BTreeMap<Key, usize> = BTreeMap::new();
    let mut sharers: BTreeMap<Key, BTreeSet<Key>> = BTreeMap::new();
    let mut kinds = BTreeMap::new();
    for pu in &tree.pus {
        let (Some(core), Some(l2)) = (pu.core, pu.l2) else { return BTreeMap::new() };
        *widths.entry(core).or_default() += 1;
        sharers.entry(l2).or_default().insert(core);
    }
    let mut has_smt = false;
    for pu in &tree.pus {
        let width = pu.core.and_then(|core| widths.get(&core)).copied().unwrap_or(0);
        let shares = pu.l2.and_then(|l2| sharers.get(&l2)).is_some_and(|cores| cores.len() > 1);
        has_smt |= width > 1;
        match (shares, width) {
            (true, 1) => kinds.insert(pu.os, CoreKind::Efficiency),
            (true, _) => return BTreeMap::new(),
            (false, _) => kinds.insert(pu.os, CoreKind::Performance),
        };
    }
    let khz = |kind| {
        kinds
            .iter()
            .filter(move |(_, one)| **one == kind)
            .filter_map(|(pu, _)| highest_khz.get(pu).copied())
    };
    let small = khz(CoreKind::Efficiency).max();
    let contradicts =
        small.is_some_and(|small| khz(CoreKind::Performance).any(|fast| fast <= small));
    if has_smt && !contradicts { kinds } else { BTreeMap::new() }
}

fn is_at_least(value: u64, percent: u64, whole: u64) -> bool {
    value.saturating_mul(100) >= whole.saturating_mul(percent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hwloc::TreePu;

    fn tree(pus: u32) -> Tree {
        Tree {
            pus: (0..pus)
                .map(|os| TreePu { os: PuId(os), core: None, l2: None, l3: None, package: None })
                .collect(),
            ..Tree::default()
        }
    }

    fn small(kinds: &BTreeMap<PuId, CoreKind>) -> String {
        let small = kinds.iter().filter(|(_, kind)| **kind == CoreKind::Efficiency);
        small.map(|(pu, _)| *pu).collect::<CpuSet>().to_string()
    }

    #[test]
    fn frequencies_make_kinds_only_across_a_wide_gap() {
        // Strix Point: four cores and eight dense cores; Phoenix 2: two and four.
        check(&[5100, 5100, 5100, 5100, 3300, 3300, 3300, 3300], "4-7");
        check(&[4900, 4900, 3500, 3500, 3500, 3500], "2-5");
        // Turbo Boost Max 3.0, and preferred cores of the same type (7950X, 5950X).
        check(&[5800, 5800, 5500, 5500, 5500], "");
        check(&[5881, 5732, 5584, 5436, 5288, 5140, 5083], "");
        // Ranks that a driver took for frequencies: far apart, but without a gap.
        check(&[7100, 6800, 6500, 6200, 5900, 5600, 5300, 5000], "");
        check(&[3000, 3000], "");
    }

    fn check(mhz: &[u64], expected: &str) {
        let highest_khz = (0..).map(PuId).zip(mhz.iter().map(|mhz| mhz * 1000)).collect();
        let facts = Facts { highest_khz, ..Facts::default() };
        let tree = tree(u32::try_from(mhz.len()).unwrap());
        assert_eq!(small(&classify_cpus(&tree, &facts)), expected, "{mhz:?}");
    }

    #[test]
    fn shapes_make_kinds_unless_frequencies_contradict() {
        fn check(shape: &str, mhz: &[u64], expected: &str) {
            let pus = (0..).zip(shape.split(' ')).map(|(os, place)| {
                let (core, l2) = place.split_once(':').unwrap();
                let [core, l2] = [core, l2].map(|text| Some(text.parse().unwrap()));
                TreePu { os: PuId(os), core, l2, l3: None, package: None }
            });
            let tree = Tree { pus: pus.collect(), ..Tree::default() };
            let highest_khz = (0..).map(PuId).zip(mhz.iter().map(|mhz| mhz * 1000)).collect();
            let facts = Facts { highest_khz, ..Facts::default() };
            assert_eq!(small(&classify_cpus(&tree, &facts)), expected, "{shape} {mhz:?}");
        }

        // CORE:L2 of each CPU.
        let hybrid = "0:0 0:0 1:1 1:1 2:2 3:2 4:2 5:2";
        check(hybrid, &[], "4-7");
        check(hybrid, &[4900, 4900, 4900, 4900, 3800, 3800, 3800, 3800], "4-7");
        check(hybrid, &[3800, 3800, 3800, 3800, 3800, 3800, 3800, 3800], "");
        // A performance core with an offline sibling.
        check("0:0 0:0 1:1 2:2 3:2 4:2 5:2", &[], "3-6");
        // No SMT, an L2 cache for two cores each; SMT, and an L2 cache for two cores each.
        check("0:0 1:0 2:1 3:1", &[], "");
        check("0:0 0:0 1:0 1:0 2:1 3:1", &[], "");
        check("0:0 0:0 1:1 1:1", &[], "");
    }

    #[test]
    fn core_types_by_their_words() {
        fn check(words: [&str; 2], expected: &str) {
            fn kind(word: &str, pus: &str) -> CpuKind {
                CpuKind {
                    core_type: Some(word.to_owned()),
                    pus: CpuSet::parse_list(pus).unwrap(),
                    ..CpuKind::default()
                }
            }

            let tree =
                Tree { kinds: vec![kind(words[0], "0-1"), kind(words[1], "2-3")], ..tree(4) };
            assert_eq!(small(&classify_cpus(&tree, &Facts::default())), expected, "{words:?}");
        }

        check(["IntelCore", "IntelAtom"], "2-3");
        check(["AMDPerformance", "AMDEfficiency"], "2-3");
        check(["AMDDense", "AMDClassic"], "0-1");
        check(["IntelCore", "IntelCore"], "");
        check(["Chip", "Fish"], "");
    }

    #[test]
    fn capacities_of_the_tree_stand_in_for_those_of_the_kernel() {
        // Two ranks of each kind, as on the GB10.
        let kinds = vec![kind("0", 718), kind("1", 731), kind("2", 997), kind("3", 1024)];
        let tree = Tree { kinds, ..tree(4) };
        assert_eq!(small(&classify_cpus(&tree, &Facts::default())), "0-1");
        let facts =
            Facts { capacities: [(PuId(0), 1024), (PuId(3), 300)].into(), ..Facts::default() };
        assert_eq!(small(&classify_cpus(&tree, &facts)), "3");
    }

    fn kind(pus: &str, capacity: u64) -> CpuKind {
        CpuKind {
            pus: CpuSet::parse_list(pus).unwrap(),
            capacity: Some(capacity),
            ..CpuKind::default()
        }
    }
}
