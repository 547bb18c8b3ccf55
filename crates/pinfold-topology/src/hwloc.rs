//! hwloc's tree, read from the live system, from XML in memory or from a synthetic description.
//!
//! This is the only file that uses hwloc. It is also the only code outside of `pinfold-host` that
//! accesses the running machine, because hwloc reads the live system itself. Its result is a
//! [`Tree`]: plain values in hwloc's logical order.
//!
//! The library may use files and environment variables (`HWLOC_XMLFILE`, `HWLOC_SYNTHETIC`, …). If
//! these redirect it to another machine, [`live`] reports that instead of returning that machine.
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

/// Identity of an object within one tree (hwloc's global persistent index, `gp_index`).
pub(crate) type Key = u64;

/// hwloc's tree as plain values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    /// Online PUs in logical order.
    pub pus: Vec<TreePu>,
    /// Size in bytes and number of ways of each level-3 cache.
    pub l3_sizes: BTreeMap<Key, (u64, u32)>,
    /// NUMA nodes in logical order.
    pub nodes: Vec<TreeNode>,
    /// All PUs of the source, online or not.
    pub complete: CpuSet,
    /// PUs that the source allows.
    pub allowed: CpuSet,
    /// Sets of PUs that the source describes as one core kind.
    pub kinds: Vec<CpuKind>,
    /// Name of the processor model.
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

/// One of hwloc's CPU kinds, with its attributes.
#[derive(Clone, Debug, Default)]
pub(crate) struct CpuKind {
    pub pus: CpuSet,
    /// `CoreType`: `IntelCore`, `IntelAtom`, …
    pub core_type: Option<String>,
    /// `LinuxCapacity`: the scheduler's capacity, 1024 at most.
    pub capacity: Option<u64>,
    /// `FrequencyMaxMHz` in kHz.
    pub highest_khz: Option<u64>,
}

/// A NUMA node.
#[derive(Clone, Debug)]
pub(crate) struct TreeNode {
    pub id: NodeId,
    pub pus: CpuSet,
    pub memory_bytes: u64,
}

/// Why hwloc returned no tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HwlocError {
    /// hwloc rejects the text.
    Rejected,
    /// hwloc failed, with its error message.
    Failed(String),
    /// Environment variables redirect hwloc to another machine.
    Redirected,
    /// The tree contains a number that no kernel uses.
    OutOfRange(String),
}

/// The running machine with all PUs, including those that this process may not use.
pub(crate) fn live() -> Result<Tree, HwlocError> {
    refuse_redirection()?;
    // The excluded parts are read by Pinfold itself (kinds) or not used (distances, memory
    // attributes); they are most of hwloc's work. `DONT_CHANGE_BINDING` keeps hwloc's x86 backend
    // from moving this thread over all PUs.
    let flags = BuildFlags::INCLUDE_DISALLOWED
        | BuildFlags::DONT_CHANGE_BINDING
        | BuildFlags::IGNORE_DISTANCES
        | BuildFlags::IGNORE_MEMORY_ATTRIBUTES
        | BuildFlags::IGNORE_CPU_KINDS;
    let raw = load(filter_object_types(TopologyBuilder::new())?, flags)?;
    if raw.is_this_system() { tree(&raw) } else { Err(HwlocError::Redirected) }
}

/// A machine from hwloc's XML. The caller has checked the text, because hwloc trusts its input.
pub(crate) fn from_xml(text: &str) -> Result<Tree, HwlocError> {
    let builder = TopologyBuilder::new().from_xml(text).map_err(|_| HwlocError::Rejected)?;
    tree(&load(filter_object_types(builder)?, BuildFlags::INCLUDE_DISALLOWED)?)
}

/// A machine from a synthetic description. The caller has limited its size.
pub(crate) fn from_synthetic(text: &str) -> Result<Tree, HwlocError> {
    let builder = TopologyBuilder::new().from_synthetic(text).map_err(|_| HwlocError::Rejected)?;
    tree(&load(filter_object_types(builder)?, BuildFlags::INCLUDE_DISALLOWED)?)
}

/// Refuses another machine before hwloc reads it: its file may have no end.
fn refuse_redirection() -> Result<(), HwlocError> {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_redirected = ["HWLOC_XMLFILE", "HWLOC_SYNTHETIC"].into_iter().any(is_set);
    if is_redirected { Err(HwlocError::Redirected) } else { Ok(()) }
}

/// hwloc's XML of the running machine, with all data that hwloc collects except I/O devices (they
/// contain serial numbers and addresses).
pub(crate) fn live_xml() -> Result<String, HwlocError> {
    refuse_redirection()?;
    let flags = BuildFlags::INCLUDE_DISALLOWED | BuildFlags::DONT_CHANGE_BINDING;
    let raw = load(TopologyBuilder::new(), flags)?;
    if !raw.is_this_system() {
        return Err(HwlocError::Redirected);
    }
    let xml = raw.export_xml(XMLExportFlags::empty()).map_err(fail)?;
    Ok(xml.as_str().to_owned())
}

/// Excludes object types that Pinfold does not use: on a large machine, the small caches alone take
/// thousands of files. Groups stay, because NUMA nodes may be attached to them. Level-2 caches stay
/// where they are not identical to the cores.
fn filter_object_types(mut builder: TopologyBuilder) -> Result<TopologyBuilder, HwlocError> {
    for unused in [ObjectType::L1Cache, ObjectType::L4Cache, ObjectType::L5Cache, ObjectType::Die] {
        builder = builder.with_type_filter(unused, TypeFilter::KeepNone).map_err(fail)?;
    }
    builder.with_type_filter(ObjectType::L2Cache, TypeFilter::KeepStructure).map_err(fail)
}

fn load(builder: TopologyBuilder, flags: BuildFlags) -> Result<Raw, HwlocError> {
    builder.with_flags(flags).map_err(fail)?.build().map_err(fail)
}

fn fail(error: impl std::fmt::Display) -> HwlocError {
    HwlocError::Failed(error.to_string())
}

fn tree(raw: &Raw) -> Result<Tree, HwlocError> {
    let mut tree = Tree {
        complete: set(&raw.complete_cpuset())?,
        allowed: set(&raw.allowed_cpuset())?,
        kinds: kinds(raw)?,
        cpu_model: cpu_model(raw),
        ..Tree::default()
    };
    for pu in raw.objects_with_type(ObjectType::PU) {
        let l3 = ancestor(pu, ObjectType::L3Cache);
        if let Some(cache) = l3 {
            tree.l3_sizes.insert(cache.global_persistent_index(), cache_size(cache));
        }
        tree.pus.push(TreePu {
            os: PuId(os_index(pu, "PU")?),
            core: ancestor(pu, ObjectType::Core).map(TopologyObject::global_persistent_index),
            l2: ancestor(pu, ObjectType::L2Cache).map(TopologyObject::global_persistent_index),
            l3: l3.map(TopologyObject::global_persistent_index),
            package: ancestor(pu, ObjectType::Package).map(TopologyObject::global_persistent_index),
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

fn ancestor(pu: &TopologyObject, ty: ObjectType) -> Option<&TopologyObject> {
    pu.first_ancestor_with_type(ty)
}

fn os_index(object: &TopologyObject, what: &str) -> Result<u32, HwlocError> {
    object
        .os_index()
        .and_then(|index| u32::try_from(index).ok())
        .filter(|index| *index < MAX_PUS)
        .ok_or_else(|| HwlocError::OutOfRange(format!("a {what} has no usable OS index")))
}

fn set(raw: &RawSet) -> Result<CpuSet, HwlocError> {
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

fn too_large() -> HwlocError {
    HwlocError::OutOfRange("a set of PUs is infinite or too large".to_owned())
}

/// Size in bytes and number of ways, 0 if unknown; a fully associative cache has no ways.
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

fn kinds(raw: &Raw) -> Result<Vec<CpuKind>, HwlocError> {
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
            Ok(CpuKind {
                pus: set(&kind.cpuset)?,
                core_type: info("CoreType"),
                capacity: number("LinuxCapacity"),
                highest_khz: number("FrequencyMaxMHz").and_then(|mhz| mhz.checked_mul(1000)),
            })
        })
        .collect()
}

/// The model of the first package that has one; else that of the machine.
fn cpu_model(raw: &Raw) -> Option<String> {
    raw.objects_with_type(ObjectType::Package)
        .chain(std::iter::once(raw.root_object()))
        .find_map(|object| object.info("CPUModel"))
        .map(|model| model.to_string_lossy().trim().to_owned())
        .filter(|model| !model.is_empty())
}
