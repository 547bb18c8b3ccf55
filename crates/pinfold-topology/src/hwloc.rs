//! hwloc's tree, read live, from XML in memory or from a synthetic description.
//!
//! This is the only file that knows hwloc. It is also the one place outside the door to
//! the kernel that looks at the running machine: hwloc reads the live system itself.
//! Everything leaves here as [`Tree`], plain values in hwloc's logical order.
//!
//! The library may open files and environment variables of its own (`HWLOC_XMLFILE`,
//! `HWLOC_SYNTHETIC`, …); when these redirect it to another machine, [`live`] says so
//! instead of passing that machine off as this one.
//! <https://www.open-mpi.org/projects/hwloc/doc/v2.9.0/>

use std::collections::BTreeMap;

use hwlocality::Topology as Raw;
use hwlocality::cpu::cpuset::CpuSet as RawSet;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::{CacheAssociativity, ObjectAttributes};
use hwlocality::object::types::ObjectType;
use hwlocality::topology::builder::{BuildFlags, TopologyBuilder, TypeFilter};
use hwlocality::topology::export::xml::XMLExportFlags;
use pinfold_model::{CpuSet, MAX_PUS, NodeId, PuId};

/// Identity of an object within one tree (hwloc's global persistent index).
pub(crate) type Key = u64;

/// hwloc's tree as plain values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    /// Online PUs in logical order.
    pub pus: Vec<TreePu>,
    /// Size in bytes and ways of each level-3 cache.
    pub l3_sizes: BTreeMap<Key, (u64, u32)>,
    /// NUMA nodes in logical order.
    pub nodes: Vec<TreeNode>,
    /// All PUs that the source knows, online or not.
    pub complete: CpuSet,
    /// PUs that the source says may be used.
    pub allowed: CpuSet,
    /// Sets of PUs that the source describes as one kind of core.
    pub kinds: Vec<TreeKind>,
    /// Name of the CPU model.
    pub cpu_model: Option<String>,
}

/// One PU and the objects above it.
#[derive(Clone, Debug)]
pub(crate) struct TreePu {
    pub os: PuId,
    pub core: Option<Key>,
    pub l2: Option<Key>,
    pub l3: Option<Key>,
    pub package: Option<Key>,
}

/// One of hwloc's CPU kinds, with what its source wrote about it.
#[derive(Clone, Debug, Default)]
pub(crate) struct TreeKind {
    pub pus: CpuSet,
    /// `CoreType`: `IntelCore`, `IntelAtom`, …
    pub core_type: Option<String>,
    /// `LinuxCapacity`: the scheduler's capacity, 1024 at most.
    pub capacity: Option<u64>,
    /// `FrequencyMaxMHz` in kHz.
    pub highest_khz: Option<u64>,
}

/// One NUMA node.
#[derive(Clone, Debug)]
pub(crate) struct TreeNode {
    pub id: NodeId,
    pub pus: CpuSet,
    pub memory_bytes: u64,
}

/// Why hwloc gave no tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// hwloc rejects the text.
    Rejected,
    /// hwloc failed; the text is its own.
    Failed(String),
    /// The environment redirects hwloc away from this machine.
    Redirected,
    /// The tree holds a number that no kernel gives.
    OutOfRange(String),
}

/// The running machine, all PUs whether this process may use them or not.
pub(crate) fn live() -> Result<Tree, Refusal> {
    // What is left out here is either read by ourselves (kinds) or not used (distances,
    // memory attributes); it is most of hwloc's reading. `DONT_CHANGE_BINDING` keeps
    // hwloc's x86 part from moving this thread over all PUs.
    let flags = BuildFlags::INCLUDE_DISALLOWED
        | BuildFlags::DONT_CHANGE_BINDING
        | BuildFlags::IGNORE_DISTANCES
        | BuildFlags::IGNORE_MEMORY_ATTRIBUTES
        | BuildFlags::IGNORE_CPU_KINDS;
    let raw = load(lean(TopologyBuilder::new())?, flags)?;
    if raw.is_this_system() { tree(&raw) } else { Err(Refusal::Redirected) }
}

/// A machine as hwloc's XML describes it. The caller has checked the text: hwloc itself
/// trusts what it is given.
pub(crate) fn from_xml(text: &str) -> Result<Tree, Refusal> {
    let builder = TopologyBuilder::new().from_xml(text).map_err(|_| Refusal::Rejected)?;
    tree(&load(lean(builder)?, BuildFlags::INCLUDE_DISALLOWED)?)
}

/// A machine as a synthetic description draws it. The caller has bounded its size.
pub(crate) fn from_synthetic(text: &str) -> Result<Tree, Refusal> {
    let builder = TopologyBuilder::new().from_synthetic(text).map_err(|_| Refusal::Rejected)?;
    tree(&load(lean(builder)?, BuildFlags::INCLUDE_DISALLOWED)?)
}

/// hwloc's XML of the running machine, with everything that hwloc finds out except
/// I/O devices (they carry serial numbers and addresses).
pub(crate) fn live_xml() -> Result<String, Refusal> {
    let flags = BuildFlags::INCLUDE_DISALLOWED | BuildFlags::DONT_CHANGE_BINDING;
    let raw = load(TopologyBuilder::new(), flags)?;
    if !raw.is_this_system() {
        return Err(Refusal::Redirected);
    }
    let xml = raw.export_xml(XMLExportFlags::empty()).map_err(failed)?;
    Ok(xml.as_str().to_owned())
}

/// Types that placement does not look at are not read: on a big machine the small caches
/// alone are thousands of files. Groups stay, since NUMA nodes may hang on them, and level-2
/// caches where they are not just another name for the cores.
fn lean(mut builder: TopologyBuilder) -> Result<TopologyBuilder, Refusal> {
    for unused in [ObjectType::L1Cache, ObjectType::L4Cache, ObjectType::L5Cache, ObjectType::Die] {
        builder = builder.with_type_filter(unused, TypeFilter::KeepNone).map_err(failed)?;
    }
    builder.with_type_filter(ObjectType::L2Cache, TypeFilter::KeepStructure).map_err(failed)
}

fn load(builder: TopologyBuilder, flags: BuildFlags) -> Result<Raw, Refusal> {
    builder.with_flags(flags).map_err(failed)?.build().map_err(failed)
}

fn failed(error: impl std::fmt::Display) -> Refusal {
    Refusal::Failed(error.to_string())
}

fn tree(raw: &Raw) -> Result<Tree, Refusal> {
    let mut tree = Tree {
        complete: set(&raw.complete_cpuset())?,
        allowed: set(&raw.allowed_cpuset())?,
        kinds: kinds(raw)?,
        cpu_model: cpu_model(raw),
        ..Tree::default()
    };
    for pu in raw.objects_with_type(ObjectType::PU) {
        let above = |ty| pu.first_ancestor_with_type(ty);
        let l3 = above(ObjectType::L3Cache);
        if let Some(cache) = l3 {
            tree.l3_sizes.insert(cache.global_persistent_index(), cache_size(cache));
        }
        tree.pus.push(TreePu {
            os: PuId(os_index(pu, "PU")?),
            core: above(ObjectType::Core).map(TopologyObject::global_persistent_index),
            l2: above(ObjectType::L2Cache).map(TopologyObject::global_persistent_index),
            l3: l3.map(TopologyObject::global_persistent_index),
            package: above(ObjectType::Package).map(TopologyObject::global_persistent_index),
        });
    }
    for node in raw.objects_with_type(ObjectType::NUMANode) {
        tree.nodes.push(TreeNode {
            id: NodeId(os_index(node, "NUMA node")?),
            pus: node.cpuset().map_or_else(|| Ok(CpuSet::new()), |pus| set(&pus))?,
            memory_bytes: memory_bytes(node),
        });
    }
    Ok(tree)
}

fn os_index(object: &TopologyObject, what: &str) -> Result<u32, Refusal> {
    object
        .os_index()
        .and_then(|index| u32::try_from(index).ok())
        .filter(|index| *index < MAX_PUS)
        .ok_or_else(|| Refusal::OutOfRange(format!("a {what} has no usable OS index")))
}

fn set(raw: &RawSet) -> Result<CpuSet, Refusal> {
    let too_large = || Refusal::OutOfRange("a set of PUs is infinite or too large".to_owned());
    if raw.weight().is_none() {
        return Err(too_large());
    }
    raw.iter_set()
        .map(|index| {
            u32::try_from(usize::from(index))
                .ok()
                .filter(|index| *index < MAX_PUS)
                .map(PuId)
                .ok_or_else(too_large)
        })
        .collect()
}

/// Bytes and ways, 0 where unknown; a fully associative cache has none to divide.
fn cache_size(cache: &TopologyObject) -> (u64, u32) {
    let Some(ObjectAttributes::Cache(attributes)) = cache.attributes() else { return (0, 0) };
    let ways = match attributes.associativity() {
        CacheAssociativity::Ways(ways) => u32::try_from(ways.get()).unwrap_or(0),
        CacheAssociativity::Unknown | CacheAssociativity::Full => 0,
    };
    (attributes.size().map_or(0, u64::from), ways)
}

fn memory_bytes(node: &TopologyObject) -> u64 {
    match node.attributes() {
        Some(ObjectAttributes::NUMANode(attributes)) => {
            attributes.local_memory().map_or(0, u64::from)
        }
        _ => 0,
    }
}

fn kinds(raw: &Raw) -> Result<Vec<TreeKind>, Refusal> {
    let Ok(kinds) = raw.cpu_kinds() else {
        return Ok(Vec::new());
    };
    kinds
        .map(|kind| {
            let info = |name: &str| {
                let info = kind.infos.iter().find(|info| info.name().to_bytes() == name.as_bytes());
                info.map(|info| info.value().to_string_lossy().into_owned())
            };
            let number = |name: &str| info(name)?.parse::<u64>().ok().filter(|value| *value > 0);
            Ok(TreeKind {
                pus: set(&kind.cpuset)?,
                core_type: info("CoreType"),
                capacity: number("LinuxCapacity"),
                highest_khz: number("FrequencyMaxMHz").and_then(|mhz| mhz.checked_mul(1000)),
            })
        })
        .collect()
}

/// The model of the first package that names one; the machine's own on single-model trees.
fn cpu_model(raw: &Raw) -> Option<String> {
    raw.objects_with_type(ObjectType::Package)
        .chain(std::iter::once(raw.root_object()))
        .find_map(|object| object.info("CPUModel"))
        .map(|model| model.to_string_lossy().trim().to_owned())
        .filter(|model| !model.is_empty())
}
