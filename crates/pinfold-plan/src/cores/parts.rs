//! The parts of a machine with unequal cores: kinds of cores, L3 caches of different sizes.
//!
//! A part is a set of cores that are equal under the request's [`Preference`]. Parts are numbered
//! from the preferred one, 0, to the weakest. A virtual machine stays inside one part if one has
//! room, and the host's tasks use the weakest.
//!
//! An L3 cache counts as *large* if it has at least 64 MiB and twice the size of the next smaller
//! one: stacked caches (96 MiB next to 32 MiB) do, the 16 MiB next to 8 MiB of a mobile CPU with
//! compact cores do not. CPU names are not read.
//!
//! Cores without an L3 cache, if other cores have one, are weaker than others of their kind.
//!
//! Frequencies are compared per die (L3 domain and kind of core), because the cores of one die
//! differ only by binning. If no frequency is known, the die without the large cache counts as the
//! faster one: a stacked cache has always had a lower maximum clock.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{CoreKind, L3Id, PackageId, Preference, Topology};

use crate::cores::available_core::AvailableCore;
use crate::text::mib;

/// A smaller L3 cache is never a reason to move a guest by default.
const LARGE_BYTES: u64 = 64 << 20;

/// Sort key of cores; the smallest is the preferred part. The last number is 1 for cores without
/// the large cache that are otherwise equal under another preference.
type Key = (u64, CoreKind, u64, u64);
/// The cores that share a frequency range.
type Die = (Option<L3Id>, PackageId, CoreKind);

/// Sizes and frequencies of a topology.
pub(crate) struct Parts<'t> {
    topology: &'t Topology,
    sizes: BTreeMap<L3Id, u64>,
    large: Option<u64>,
    /// True if the machine has caches of different, known sizes.
    pub sizes_differ: bool,
}

impl<'t> Parts<'t> {
    /// Reads them from a topology.
    pub fn from_topology(topology: &'t Topology) -> Self {
        let sizes: BTreeMap<L3Id, u64> =
            topology.l3.iter().map(|domain| (domain.id, domain.size_bytes)).collect();
        let distinct: BTreeSet<u64> = sizes.values().copied().collect();
        let sizes_differ = distinct.len() > 1;
        let mut falling = distinct.into_iter().rev();
        let largest = falling.next().zip(falling.next());
        let large = largest
            .filter(|(first, second)| *first >= LARGE_BYTES && *second > 0 && *first >= 2 * second)
            .map(|(first, _)| first);
        Self { topology, sizes, large, sizes_differ }
    }

    /// Size of a core's L3 cache in bytes; 0 if there is none or its size is unknown.
    fn size(&self, core: &AvailableCore) -> u64 {
        core.l3.and_then(|l3| self.sizes.get(&l3).copied()).unwrap_or(0)
    }

    /// Numbers the parts of the cores, and puts the fastest cores of each first if requested.
    pub fn number(&self, cores: &mut [AvailableCore], preference: Preference) {
        let keys = self.keys(cores, preference);
        let distinct: BTreeSet<Key> = keys.iter().copied().collect();
        let numbered: BTreeMap<Key, u32> = distinct.into_iter().zip(0..).collect();
        for (core, key) in cores.iter_mut().zip(keys) {
            core.part = numbered.get(&key).copied().unwrap_or(0);
            if preference == Preference::Frequency {
                core.speed = self.speed(core);
            }
        }
    }

    /// True if a preference itself distinguishes any of the cores.
    pub fn decides(&self, cores: &[AvailableCore], preference: Preference) -> bool {
        let mut keys =
            self.keys(cores, preference).into_iter().map(
                |(first, kind, speed, _)| match preference {
                    Preference::Cache => (first, CoreKind::Uniform, 0),
                    Preference::Auto
                    | Preference::Frequency
                    | Preference::Efficiency
                    | Preference::None => (first, kind, speed),
                },
            );
        let first = keys.next();
        keys.any(|key| Some(key) != first)
    }

    fn keys(&self, cores: &[AvailableCore], preference: Preference) -> Vec<Key> {
        let speeds = match preference {
            Preference::Frequency => self.speeds(cores),
            Preference::Auto | Preference::Cache | Preference::Efficiency | Preference::None => {
                BTreeMap::new()
            }
        };
        cores.iter().map(|core| self.key(core, preference, &speeds)).collect()
    }

    fn key(
        &self,
        core: &AvailableCore,
        preference: Preference,
        speeds: &BTreeMap<Die, u64>,
    ) -> Key {
        let size = self.size(core);
        let small = u64::from(self.large.is_some_and(|large| size < large));
        // The low-power cores of some mobile CPUs, although the topology may call them efficiency
        // cores.
        let outside = u64::from(core.l3.is_none() && !self.sizes.is_empty());
        match preference {
            Preference::Auto => (small, core.kind, outside, 0),
            Preference::Cache => (u64::MAX - size, core.kind, 0, 0),
            Preference::Frequency => {
                let speed = speeds.get(&die(core)).copied().unwrap_or(0);
                (outside, core.kind, u64::MAX - speed, small)
            }
            Preference::Efficiency => {
                (u64::from(core.kind == CoreKind::Performance), core.kind, outside, small)
            }
            Preference::None => (0, CoreKind::Uniform, 0, 0),
        }
    }

    /// Speed of each die: that of its fastest core.
    fn speeds(&self, cores: &[AvailableCore]) -> BTreeMap<Die, u64> {
        let mut speeds = BTreeMap::new();
        let unknown = cores.iter().all(|core| self.speed(core) == 0);
        for core in cores {
            let speed = if unknown {
                u64::from(self.large.is_some_and(|large| self.size(core) < large))
            } else {
                self.speed(core)
            };
            let entry = speeds.entry(die(core)).or_insert(0);
            *entry = speed.max(*entry);
        }
        speeds
    }

    /// A number that is larger for faster cores of one kind: by the highest frequency, then by the
    /// firmware's ranking; 0 if nothing is known.
    fn speed(&self, core: &AvailableCore) -> u64 {
        let topology = self.topology;
        core.pus
            .iter()
            .map(|pu| {
                let khz = topology.highest_khz.get(pu).copied().unwrap_or(0);
                let ranking = topology.core_ranking.get(pu).copied().unwrap_or(0);
                khz << 32 | u64::from(ranking)
            })
            .max()
            .unwrap_or(0)
    }

    /// Description of the cores of one part: `the efficiency cores`, `L3 0 (96 MiB)`.
    pub fn name<'s>(&self, cores: impl Iterator<Item = &'s AvailableCore>) -> String {
        let (mut kinds, mut l3s) = (BTreeSet::new(), BTreeSet::new());
        for core in cores {
            kinds.insert(kind_name(core.kind));
            l3s.extend(core.l3);
        }
        let kinds: Vec<&str> = kinds.into_iter().flatten().collect();
        let caches: Vec<String> = l3s
            .into_iter()
            .map(|l3| match self.sizes.get(&l3) {
                None | Some(0) => format!("L3 {l3}"),
                Some(bytes) => format!("L3 {l3}, {}", mib(*bytes)),
            })
            .collect();
        let caches = caches.join(" and ");
        match (kinds.as_slice(), self.sizes_differ && !caches.is_empty()) {
            ([], _) => caches,
            (kinds, true) => format!("the {} cores of {caches}", kinds.join(" and ")),
            (kinds, false) => format!("the {} cores", kinds.join(" and ")),
        }
    }
}

fn die(core: &AvailableCore) -> Die {
    (core.l3, core.package, core.kind)
}

fn kind_name(kind: CoreKind) -> Option<&'static str> {
    match kind {
        CoreKind::Uniform => None,
        CoreKind::Performance => Some("performance"),
        CoreKind::Efficiency => Some("efficiency"),
        CoreKind::LowPower => Some("low-power"),
    }
}
