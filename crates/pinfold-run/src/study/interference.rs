//! The interference in a trial: the NUMA node of its memory, and neighbours that stream through
//! theirs: threads of the host, or another guest.

use pinfold_host::{Host, paths};
use pinfold_model::text::count_noun;
use pinfold_model::{CpuSet, NodeId, PuId, Topology};
use pinfold_probe::loads::{HostLoads, LoadDuration, LoadError, LoadKind, LoadSpec, Placement};
use pinfold_probe::pinload::Pinload;
use pinfold_study::study::{Cell, FactorEffect, Level, NONE, Study};

/// Minimum memory of a neighbour: larger than most caches.
const LEAST_MIB: u64 = 256;
const MIB: u64 = 1 << 20;
/// Time limit of a neighbour (ns).
const LIMIT_NS: u64 = 86_400_000_000_000;

/// The CPUs that are measured.
pub struct Measured {
    /// All of them.
    pub pus: CpuSet,
    /// Those of the vCPUs, if a guest is measured.
    pub vcpus: Option<CpuSet>,
}

/// Memory node and neighbours of a trial.
#[derive(Debug, PartialEq, Eq)]
pub struct Neighbours {
    /// The node that its memory is bound to.
    pub memory: Option<NodeId>,
    /// The CPUs of its neighbours; empty without any.
    pub neighbours: CpuSet,
    /// The CPUs of the cores that its neighbours may use, if they are a guest: its emulator runs
    /// there too.
    pub guest_room: Option<CpuSet>,
}

impl Neighbours {
    /// The interference of a cell next to these CPUs. The cores of a measured guest's emulator are
    /// left free too, if the host has enough others.
    ///
    /// # Errors
    /// Why this host does not support it.
    pub fn new(
        study: &Study,
        cell: &Cell,
        Measured { pus, vcpus }: &Measured,
        topology: &Topology,
    ) -> Result<Self, String> {
        let on = |pus: &CpuSet| Self::place_neighbours(study, cell, pus, topology);
        let Some(vcpus) = vcpus else {
            if cell.has_neighbour_guest(study) {
                let why =
                    "a neighbour guest needs a measured guest, but a program is measured here";
                return Err(why.to_owned());
            }
            return on(pus);
        };
        // Its memory is bound when it starts.
        let found = on(pus).or_else(|_| on(vcpus))?;
        Ok(Self { memory: None, ..found })
    }

    /// The interference of a cell with these CPUs.
    fn place_neighbours(
        study: &Study,
        cell: &Cell,
        pus: &CpuSet,
        topology: &Topology,
    ) -> Result<Self, String> {
        let memory =
            memory_node(cell.level_with_effect(study, &FactorEffect::MemoryNode), pus, topology)?;
        let place = cell
            .level_with_effect(study, &FactorEffect::Neighbour)
            .map_or(NONE, |level| &level.text);
        let count = cell
            .level_with_effect(study, &FactorEffect::Neighbours)
            .map_or(Ok(1), |level| level.text.parse());
        let count: usize = count.map_err(|_| "neighbours is not a whole number".to_owned())?;
        let near = home(pus, topology);
        let cores = match place {
            NONE => Cores::default(),
            "same-node" => free_cores(count, near, pus, topology)?,
            _ => {
                let far = others(near, topology).map(|node| node.id);
                let found = far.map(|node| free_cores(count, Some(node), pus, topology));
                found
                    .reduce(Result::or)
                    .unwrap_or_else(|| Err("this host has only one NUMA node".to_owned()))?
            }
        };
        let guest_room = cell.has_neighbour_guest(study).then_some(cores.room);
        Ok(Self { memory, neighbours: cores.chosen, guest_room })
    }

    /// The node of its neighbours.
    pub fn node(&self, topology: &Topology) -> Option<NodeId> {
        home(&self.neighbours, topology)
    }

    /// Memory of each neighbour (MiB): twice the largest cache, but at most an eighth of the free
    /// memory for all of them together.
    pub fn neighbour_mib(&self, topology: &Topology, free_bytes: Option<u64>) -> u32 {
        let share = free_bytes.unwrap_or(0) / 8 / (self.neighbours.len() as u64).max(1);
        let wanted = (2 * largest_cache(topology)).min(share) / MIB;
        u32::try_from(wanted.max(LEAST_MIB)).unwrap_or(u32::MAX)
    }

    /// A warning if a cache is larger than the memory of the neighbours, so that they may never
    /// access memory.
    pub fn caveat(&self, topology: &Topology, mib: u32) -> Option<String> {
        let all = u64::from(mib) * self.neighbours.len() as u64;
        let cache = largest_cache(topology) / MIB;
        (all > 0 && all <= cache).then(|| {
            format!(
                "neighbours stream through {all} MiB, which fits into a last-level cache of \
                 {cache} MiB: they may never reach memory; free some memory, an eighth of which is \
                 used"
            )
        })
    }

    /// The load of neighbours with this amount of memory each.
    pub fn load(&self, mib: u32) -> LoadSpec {
        let threads = u32::try_from(self.neighbours.len()).unwrap_or(u32::MAX);
        let life = LoadDuration::Limited(LIMIT_NS);
        LoadSpec { kind: LoadKind::Memory { mib }, threads, life }
    }

    /// Starts the neighbours that are threads, each with this amount of memory.
    pub fn start(&self, pinload: &Pinload, mib: u32) -> Result<Option<HostLoads>, LoadError> {
        if self.neighbours.is_empty() || self.guest_room.is_some() {
            return Ok(None);
        }
        let affinity = Some(self.neighbours.clone());
        let placement = Placement { cgroup_files: Vec::new(), affinity };
        HostLoads::start(&pinload.path(), &[self.load(mib)], &placement).map(Some)
    }
}

/// Free memory as reported by the kernel (bytes).
pub fn free_bytes(host: &impl Host) -> Option<u64> {
    let text = host.read_text(&paths::meminfo()).ok()?;
    let reported = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    reported.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

fn largest_cache(topology: &Topology) -> u64 {
    topology.l3.iter().map(|cache| cache.size_bytes).max().unwrap_or(0)
}

/// The node of the first of these CPUs.
fn home(pus: &CpuSet, topology: &Topology) -> Option<NodeId> {
    pus.first().and_then(|pu| topology.pu(pu)).and_then(|pu| pu.node)
}

/// The other nodes with memory, starting with the next one.
fn others(
    near: Option<NodeId>,
    topology: &Topology,
) -> impl Iterator<Item = &pinfold_model::NumaNode> {
    let nodes = &topology.nodes;
    let start = nodes.iter().position(|node| Some(node.id) == near).map_or(0, |place| place + 1);
    let around = nodes.iter().cycle().skip(start).take(nodes.len());
    around.filter(move |node| Some(node.id) != near && node.memory_bytes > 0)
}

/// The node of a level, relative to these CPUs.
///
/// # Errors
/// Why this host has none.
pub fn memory_node(
    level: Option<&Level>,
    pus: &CpuSet,
    topology: &Topology,
) -> Result<Option<NodeId>, String> {
    let near = home(pus, topology);
    match level.map_or("any", |level| level.text.as_str()) {
        "any" => Ok(None),
        "near" => Ok(near),
        "far" => {
            let far = others(near, topology).next();
            let far =
                far.ok_or("this host has only one NUMA node with memory, so none is remote")?;
            Ok(Some(far.id))
        }
        number => {
            let id: u32 = number
                .parse()
                .map_err(|_| format!("memory_node: {number} is not a whole number"))?;
            match topology
                .nodes
                .iter()
                .find(|node: &&pinfold_model::NumaNode| node.id.0 == id && node.memory_bytes > 0)
            {
                Some(node) => Ok(Some(node.id)),
                None => Err(format!("this host has no NUMA node {id} with memory")),
            }
        }
    }
}

/// Cores for neighbours.
#[derive(Default)]
struct Cores {
    /// One CPU of each that is used.
    chosen: CpuSet,
    /// All CPUs of all free ones.
    room: CpuSet,
}

/// This number of cores of a node, without the measured ones.
fn free_cores(
    count: usize,
    node: Option<NodeId>,
    pus: &CpuSet,
    topology: &Topology,
) -> Result<Cores, String> {
    let cores = topology.cores.iter().filter(|core| core.pus.is_disjoint(pus));
    let room = cores
        .clone()
        .flat_map(|core| core.pus.iter().filter(|pu| is_usable(pu, node, topology)))
        .collect();
    let free: Vec<PuId> =
        cores.filter_map(|core| core.pus.iter().find(|pu| is_usable(pu, node, topology))).collect();
    match free.get(..count) {
        Some(chosen) => Ok(Cores { chosen: chosen.iter().copied().collect(), room }),
        None => {
            let place = node.map_or("this host".to_owned(), |node| format!("NUMA node {}", node.0));
            let there = free.len();
            let neighbours = count_noun(count, "neighbour");
            Err(format!("{neighbours} need a core each, but {place} has only {there} free"))
        }
    }
}

fn is_usable(pu: &PuId, node: Option<NodeId>, topology: &Topology) -> bool {
    topology.allowed.contains(*pu)
        && topology.pu(*pu).is_some_and(|pu| node.is_none() || pu.node == node)
}

#[cfg(test)]
mod tests {
    use pinfold_study::study::{self as library, HostFacts};

    use super::*;

    const STUDY: &str = r#"
name = "beside"
[[factor]]
name = "memory_node"
levels = ["any", "near", "far", 1, 7]
[[factor]]
name = "neighbour"
levels = ["none", "same-node", "other-node"]
[[factor]]
name = "neighbours"
levels = [1, 4]
[[workload]]
name = "true"
command = ["true"]
lasts = "1s"
"#;

    /// The interference of a cell, as text.
    fn place_neighbours(synthetic: &str, measured: &str, levels: [&str; 3]) -> String {
        let topology =
            crate::inputs::topology(&crate::host::live().unwrap(), Some(synthetic)).unwrap();
        let study = library::from_toml(STUDY).unwrap();
        let facts =
            HostFacts { pus: 1, cores: 1, nodes: 1, packages: 1, smt: false, cpufreq: false };
        let cells = library::Cells::new(&study, &facts).unwrap();
        let cell = cells
            .all
            .iter()
            .find(|cell: &&Cell| {
                let names = ["memory_node", "neighbour", "neighbours"];
                names
                    .iter()
                    .zip(levels)
                    .all(|(name, level)| cell.level(&study, name) == Some(level))
            })
            .unwrap();
        let measured = Measured { pus: CpuSet::parse_list(measured).unwrap(), vcpus: None };
        match Neighbours::new(&study, cell, &measured, &topology) {
            Err(why) => why,
            Ok(Neighbours { memory, neighbours, .. }) => {
                let memory = memory.map_or("any".to_owned(), |node| node.0.to_string());
                format!("memory {memory}, neighbours {neighbours}")
            }
        }
    }

    #[test]
    fn nodes_and_neighbours_follow_the_topology() {
        check("0", ["any", "none", "1"], "memory any, neighbours ");
        check("0", ["near", "none", "1"], "memory 0, neighbours ");
        check("0", ["far", "none", "1"], "memory 1, neighbours ");
        check("6", ["near", "none", "1"], "memory 1, neighbours ");
        check("6", ["far", "none", "1"], "memory 0, neighbours ");
        check("0", ["7", "none", "1"], "this host has no NUMA node 7 with memory");
        // Never an SMT sibling of a measured CPU, and one CPU per core.
        check("0", ["any", "same-node", "1"], "memory any, neighbours 2");
        check("3", ["any", "same-node", "1"], "memory any, neighbours 0");
        check("0", ["any", "other-node", "1"], "memory any, neighbours 6");
        let too_few = "4 neighbours need a core each, but NUMA node 0 has only 2 free";
        check("0", ["any", "same-node", "4"], too_few);
        let too_few = "4 neighbours need a core each, but NUMA node 1 has only 3 free";
        check("0", ["any", "other-node", "4"], too_few);
    }

    fn check(measured: &str, levels: [&str; 3], expected: &str) {
        let two_nodes = "numa:2 core:3 pu:2";
        assert_eq!(
            place_neighbours(two_nodes, measured, levels),
            expected,
            "{measured} {levels:?}"
        );
    }

    #[test]
    fn neighbours_reach_memory_where_there_is_room() {
        let host = crate::host::live().unwrap();
        let check = |cache: u64, free_gib: u64, count: usize, expected: u32, caveat: bool| {
            let synthetic = format!("numa:1 l3:1(size={}) core:4 pu:1", cache << 20);
            let topology = crate::inputs::topology(&host, Some(&synthetic)).unwrap();
            let neighbours = (1..=count).map(|pu| PuId(u32::try_from(pu).unwrap())).collect();
            let beside = Neighbours { memory: None, neighbours, guest_room: None };
            let mib = beside.neighbour_mib(&topology, Some(free_gib << 30));
            assert_eq!(mib, expected, "{cache} {free_gib} {count}");
            assert_eq!(beside.caveat(&topology, mib).is_some(), caveat, "{cache} {free_gib}");
        };
        check(32, 16, 1, 256, false);
        check(480, 16, 1, 960, false);
        check(480, 16, 3, 682, false);
        // A small machine: the minimum, with a warning.
        check(480, 1, 1, 256, true);
        check(32, 0, 1, 256, false);
    }

    #[test]
    fn one_node_has_no_other() {
        fn check(levels: [&str; 3], expected: &str) {
            assert_eq!(place_neighbours("numa:1 core:2 pu:1", "0", levels), expected, "{levels:?}");
        }

        check(
            ["far", "none", "1"],
            "this host has only one NUMA node with memory, so none is remote",
        );
        let none = "this host has only one NUMA node";
        check(["any", "other-node", "1"], none);
        check(["near", "same-node", "1"], "memory 0, neighbours 1");
    }
}
