//! Choosing cores that lie near each other.
//!
//! Cores are taken tier by tier: the fastest kind first, within it cores that are
//! alike in SMT width, within them cores that the user isolated at boot. From the
//! tier that is not needed whole, the cores come from the smallest domain that has
//! enough of them: L3 within a node, node, L3, package, machine. Among domains of
//! equal size the one that already holds chosen cores wins, then one without the
//! host core (the host's tasks then do not share that cache), then hwloc's order.

use pinfold_model::{CoreId, CoreKind};

use crate::ground::Spot;

/// What is counted when cores are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// One vCPU per core.
    Cores,
    /// One vCPU per PU.
    Threads,
}

impl Count {
    /// How many vCPUs a core can carry.
    pub fn of(self, spot: &Spot) -> usize {
        match self {
            Count::Cores => 1,
            Count::Threads => spot.pus.len(),
        }
    }
}

/// How many vCPUs `cores` can carry together.
pub(crate) fn capacity(cores: &[Spot], count: Count) -> usize {
    cores.iter().map(|spot| count.of(spot)).sum()
}

/// How many vCPUs the cores carry that `auto` uses: those of the fastest kind, and,
/// where PUs are counted, of the SMT width that most of them have.
pub(crate) fn auto_capacity(cores: &[Spot], count: Count) -> usize {
    let tiers = tiers(cores, count);
    let Some(first) = tiers.first() else { return 0 };
    tiers.iter().filter(|tier| tier.alike(first)).map(|tier| capacity(&tier.cores, count)).sum()
}

/// Cores for `need` vCPUs, in hwloc's order; fewer if there are not enough.
/// `host` is the core that the host keeps, if the strategy keeps one.
pub(crate) fn nearest(cores: &[Spot], need: usize, count: Count, host: Option<&Spot>) -> Vec<Spot> {
    let mut chosen: Vec<Spot> = Vec::new();
    let mut left = need;
    for tier in tiers(cores, count) {
        if left == 0 {
            break;
        }
        let part = nearest_in_tier(&tier.cores, left, count, &Anchors { chosen: &chosen, host });
        left = left.saturating_sub(capacity(&part, count));
        chosen.extend(part);
    }
    // `cores` is in hwloc's order; so is the answer.
    let place = |spot: &Spot| cores.iter().position(|core| core.core == spot.core);
    chosen.sort_by_key(place);
    chosen
}

/// Cores that are alike.
struct Tier {
    kind: CoreKind,
    width: usize,
    cores: Vec<Spot>,
}

impl Tier {
    fn alike(&self, other: &Tier) -> bool {
        (self.kind, self.width) == (other.kind, other.width)
    }
}

/// The tiers in the order in which they are used.
fn tiers(cores: &[Spot], count: Count) -> Vec<Tier> {
    let width = |spot: &Spot| count.of(spot);
    let mut kinds: Vec<CoreKind> = cores.iter().map(|spot| spot.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let mut tiers = Vec::new();
    for kind in kinds {
        let of_kind = |spot: &&Spot| spot.kind == kind;
        let mut widths: Vec<usize> = cores.iter().filter(of_kind).map(width).collect();
        widths.sort_unstable();
        widths.dedup();
        // The width that carries most vCPUs first; the wider one of equals.
        let carried = |wanted: usize| {
            cores.iter().filter(of_kind).map(width).filter(|&w| w == wanted).sum::<usize>()
        };
        widths.sort_by_key(|&wanted| std::cmp::Reverse((carried(wanted), wanted)));
        for wanted in widths {
            for isolated in [true, false] {
                let alike = |spot: &&Spot| width(spot) == wanted && spot.isolated == isolated;
                let cores: Vec<Spot> =
                    cores.iter().filter(of_kind).filter(alike).cloned().collect();
                if !cores.is_empty() {
                    tiers.push(Tier { kind, width: wanted, cores });
                }
            }
        }
    }
    tiers
}

/// What the cores to be chosen should be near to, and away from.
struct Anchors<'a> {
    chosen: &'a [Spot],
    host: Option<&'a Spot>,
}

/// A domain's identity at one level; `None` if the core is in no such domain.
type Key = Option<[Option<u32>; 2]>;

/// From the smallest domain to the whole machine.
const LEVELS: [fn(&Spot) -> Key; 5] = [
    |spot| Some([spot.l3.map(|l3| l3.0), spot.node.map(|node| node.0)]),
    |spot| spot.node.map(|node| [Some(node.0), None]),
    |spot| spot.l3.map(|l3| [Some(l3.0), None]),
    |spot| Some([Some(spot.package.0), None]),
    |_| Some([None, None]),
];

fn nearest_in_tier(cores: &[Spot], need: usize, count: Count, near: &Anchors<'_>) -> Vec<Spot> {
    for key in LEVELS {
        let fitting =
            domains(cores, key, near).into_iter().find(|domain| capacity(domain, count) >= need);
        if let Some(domain) = fitting {
            return take(by_smaller_domains(domain, near), need, count);
        }
    }
    cores.to_vec()
}

/// The cores grouped by domain, the preferred domain first.
fn domains(cores: &[Spot], key: fn(&Spot) -> Key, near: &Anchors<'_>) -> Vec<Vec<Spot>> {
    let mut groups: Vec<(Key, Vec<Spot>)> = Vec::new();
    for spot in cores {
        let own = key(spot);
        if own.is_none() {
            continue;
        }
        match groups.iter_mut().find(|(other, _)| *other == own) {
            Some((_, group)) => group.push(spot.clone()),
            None => groups.push((own, vec![spot.clone()])),
        }
    }
    // Stable: equals stay in hwloc's order.
    groups.sort_by_key(|(own, _)| {
        let away = !near.chosen.iter().any(|spot| key(spot) == *own);
        let with_host = near.host.is_some_and(|host| key(host) == *own);
        (away, with_host)
    });
    groups.into_iter().map(|(_, group)| group).collect()
}

/// The cores of one domain such that its smaller domains stay together, preferred ones first.
fn by_smaller_domains(domain: Vec<Spot>, near: &Anchors<'_>) -> Vec<Spot> {
    let mut nodes = domains(&domain, LEVELS[1], near);
    nodes.push(domain.into_iter().filter(|spot| spot.node.is_none()).collect());
    nodes.iter().flat_map(|node| domains(node, LEVELS[0], near).concat()).collect()
}

fn take(cores: Vec<Spot>, need: usize, count: Count) -> Vec<Spot> {
    let mut taken = Vec::new();
    let mut have = 0;
    for spot in cores {
        if have >= need {
            break;
        }
        have += count.of(&spot);
        taken.push(spot);
    }
    taken
}

/// The core with this id among `cores`.
pub(crate) fn find(cores: &[Spot], core: Option<CoreId>) -> Option<&Spot> {
    cores.iter().find(|spot| Some(spot.core) == core)
}
