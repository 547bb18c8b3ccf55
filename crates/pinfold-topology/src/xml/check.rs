//! Checks an hwloc XML before it is passed to hwloc.
//!
//! The document must be a tree of known objects with a limited depth and exactly one machine as
//! root. Each object except devices has its four sets (CPUs and NUMA nodes, present and complete),
//! each inside that of its parent: hwloc 2.9 dereferences a null pointer if one is missing. The
//! children of an object divide its CPUs. There is at least one CPU, each CPU and NUMA node occurs
//! once, and no number exceeds Pinfold's limit.
//!
//! Sets are 32-bit hexadecimal words, high first, empty for zero: `0x1,,0x0000000f`.

use std::collections::BTreeSet;

use pinfold_model::{CpuSet, MAX_PUS, PuId};
use roxmltree::{Document, Node};

/// Maximum depth, far more than on any machine: hwloc parses objects recursively.
const MAX_DEPTH: usize = 64;

/// Objects without sets; Pinfold does not use them.
const DEVICES: [&str; 4] = ["Bridge", "PCIDev", "OSDev", "Misc"];

/// Objects with sets.
const PLACES: [&str; 16] = [
    "Machine", "Package", "Die", "Core", "PU", "NUMANode", "MemCache", "Group", "L1Cache",
    "L2Cache", "L3Cache", "L4Cache", "L5Cache", "L1iCache", "L2iCache", "L3iCache",
];

/// Sets of CPUs, and sets of NUMA nodes in the same type, of one object.
#[derive(Clone)]
struct Sets {
    pus: CpuSet,
    complete_pus: CpuSet,
    nodes: CpuSet,
    complete_nodes: CpuSet,
}

impl Sets {
    fn are_inside(&self, outer: &Self) -> bool {
        self.pus.is_subset(&outer.pus)
            && self.complete_pus.is_subset(&outer.complete_pus)
            && self.nodes.is_subset(&outer.nodes)
            && self.complete_nodes.is_subset(&outer.complete_nodes)
    }

    fn are_complete(&self) -> bool {
        self.pus.is_subset(&self.complete_pus) && self.nodes.is_subset(&self.complete_nodes)
    }
}

struct Check<'d, 'i> {
    document: &'d Document<'i>,
    pus: CpuSet,
    nodes: CpuSet,
    allowed_nodes: CpuSet,
    identities: BTreeSet<u64>,
}

/// An object, the sets of its parent, and its depth.
type Open<'d, 'i> = (Node<'d, 'i>, Option<Sets>, usize);

/// True for objects outside of the tree of CPUs and memory.
pub(super) fn is_device(node: Node<'_, '_>) -> bool {
    node.has_tag_name("object") && node.attribute("type").is_some_and(|ty| DEVICES.contains(&ty))
}

/// True for memory, which is attached to an object in addition to its CPU children.
fn is_memory(node: Node<'_, '_>) -> bool {
    node.attribute("type").is_some_and(|ty| ty == "NUMANode" || ty == "MemCache")
}

/// Checks a document; the error contains the line.
pub(super) fn check(document: &Document<'_>) -> Result<(), String> {
    let root = document.root_element();
    let mut check = Check {
        document,
        pus: CpuSet::new(),
        nodes: CpuSet::new(),
        allowed_nodes: CpuSet::new(),
        identities: BTreeSet::new(),
    };
    check.walk(root)?;
    for kind in root.children().filter(|node| node.has_tag_name("cpukind")) {
        check.set(kind, "cpuset")?;
    }
    if !check.allowed_nodes.is_subset(&check.nodes) {
        return Err("more NUMA nodes are allowed than there are".to_owned());
    }
    if check.pus.is_empty() { Err("it has no PU".to_owned()) } else { Ok(()) }
}

impl Check<'_, '_> {
    /// Visits all objects, without recursion.
    fn walk(&mut self, root: Node<'_, '_>) -> Result<(), String> {
        let machines: Vec<Node<'_, '_>> = objects(root).collect();
        match machines.as_slice() {
            [machine] if machine.attribute("type") == Some("Machine") => {}
            _ => return Err("its outermost object is not one machine".to_owned()),
        }
        let mut todo: Vec<Open<'_, '_>> =
            machines.into_iter().map(|node| (node, None, 1)).collect();
        let mut places = Vec::new();
        while let Some((node, around, depth)) = todo.pop() {
            if depth > MAX_DEPTH {
                return Err(self.describe_fault(node, "objects are nested too deeply"));
            }
            if is_device(node) {
                continue;
            }
            let sets = self.object(node, around.as_ref())?;
            if !is_memory(node) && node.attribute("type") != Some("PU") {
                places.push((node, sets.pus.clone()));
            }
            todo.extend(objects(node).map(|child| (child, Some(sets.clone()), depth + 1)));
        }
        // Last, because a fault in a child is more specific.
        places.into_iter().try_for_each(|(node, pus)| self.parts(node, &pus))
    }

    fn object(&mut self, node: Node<'_, '_>, around: Option<&Sets>) -> Result<Sets, String> {
        let kind = node.attribute("type").unwrap_or("");
        if !PLACES.contains(&kind) {
            return Err(self.describe_fault(node, &format!("{kind:?} is not a type of object")));
        }
        if around.is_some() == (kind == "Machine") {
            return Err(self.describe_fault(node, "a machine is inside another object"));
        }
        let sets = Sets {
            pus: self.set(node, "cpuset")?,
            complete_pus: self.set(node, "complete_cpuset")?,
            nodes: self.set(node, "nodeset")?,
            complete_nodes: self.set(node, "complete_nodeset")?,
        };
        if around.is_none() {
            let allowed = self.set(node, "allowed_cpuset")?;
            self.allowed_nodes = self.set(node, "allowed_nodeset")?;
            if !allowed.is_subset(&sets.pus) {
                return Err(self.describe_fault(node, "more is allowed than there is"));
            }
        }
        if !sets.are_complete() || around.is_some_and(|around| !sets.are_inside(around)) {
            return Err(self.describe_fault(node, "a set contains what its parent's set does not"));
        }
        self.identity(node)?;
        match kind {
            "PU" => self.pu(node, &sets)?,
            "NUMANode" => self.numa_node(node, &sets)?,
            _ => {}
        }
        Ok(sets)
    }

    /// Checks that each CPU of an object is in exactly one of its children. The same holds for
    /// offline CPUs, by which hwloc orders the children.
    fn parts(&self, node: Node<'_, '_>, own: &CpuSet) -> Result<(), String> {
        let mut union = CpuSet::new();
        let mut complete = CpuSet::new();
        let mut count = 0;
        for part in objects(node).filter(|part| !is_device(*part) && !is_memory(*part)) {
            let pus = self.set(part, "cpuset")?;
            count += pus.len();
            union = union.union(&pus);
            let pus = self.set(part, "complete_cpuset")?;
            if pus.is_empty() || !pus.is_disjoint(&complete) {
                return Err(self.describe_fault(part, "a part of an object has no PU of its own"));
            }
            complete.add(&pus);
        }
        if union == *own && count == union.len() {
            Ok(())
        } else {
            Err(self.describe_fault(node, "the PUs of an object are not those of its parts"))
        }
    }

    /// Two objects with the same identity would be merged.
    fn identity(&mut self, node: Node<'_, '_>) -> Result<(), String> {
        let Some(text) = node.attribute("gp_index") else {
            return Err(self.describe_fault(node, "an object has no gp_index"));
        };
        match text.parse::<u64>() {
            // hwloc continues to count from the largest identity.
            Ok(identity) if identity < u64::MAX / 2 && self.identities.insert(identity) => Ok(()),
            Ok(_) => Err(self.describe_fault(node, "a gp_index appears twice")),
            Err(_) => Err(self.describe_fault(node, &format!("{text:?} is not a gp_index"))),
        }
    }

    fn pu(&mut self, node: Node<'_, '_>, sets: &Sets) -> Result<(), String> {
        let index = self.os_index(node, "PU")?;
        let own = CpuSet::single(index);
        // An offline CPU is described with an empty set.
        if sets.complete_pus != own || !sets.pus.is_subset(&own) {
            return Err(self.describe_fault(node, "the cpuset of a PU is not its own index"));
        }
        if objects(node).any(|child| !is_device(child)) {
            return Err(self.describe_fault(node, "a PU contains another object"));
        }
        if self.pus.contains(index) {
            return Err(self.describe_fault(node, "a PU appears twice"));
        }
        self.pus.insert(index);
        Ok(())
    }

    fn numa_node(&mut self, node: Node<'_, '_>, sets: &Sets) -> Result<(), String> {
        let index = self.os_index(node, "NUMA node")?;
        if sets.complete_nodes != CpuSet::single(index) {
            return Err(
                self.describe_fault(node, "the nodeset of a NUMA node is not its own index")
            );
        }
        if self.nodes.contains(index) {
            return Err(self.describe_fault(node, "a NUMA node appears twice"));
        }
        self.nodes.insert(index);
        Ok(())
    }

    /// The kernel's number; NUMA nodes follow the same rules as CPUs.
    fn os_index(&self, node: Node<'_, '_>, what: &str) -> Result<PuId, String> {
        node.attribute("os_index")
            .and_then(|index| index.parse::<u32>().ok())
            .filter(|index| *index < MAX_PUS)
            .map(PuId)
            .ok_or_else(|| self.describe_fault(node, &format!("a {what} has no usable os_index")))
    }

    fn set(&self, node: Node<'_, '_>, name: &str) -> Result<CpuSet, String> {
        let text = node
            .attribute(name)
            .ok_or_else(|| self.describe_fault(node, &format!("an object has no {name}")))?;
        parse_set(text).map_err(|why| self.describe_fault(node, &format!("{name}: {why}")))
    }

    fn describe_fault(&self, node: Node<'_, '_>, why: &str) -> String {
        format!("line {}: {why}", self.document.text_pos_at(node.range().start).row)
    }
}

fn objects<'d, 'i>(node: Node<'d, 'i>) -> impl Iterator<Item = Node<'d, 'i>> {
    node.children().filter(|child| child.has_tag_name("object"))
}

/// Parses hwloc's set format; the infinite sets that it can also write are refused.
pub(super) fn parse_set(text: &str) -> Result<CpuSet, String> {
    let words: Vec<&str> = text.split(',').collect();
    if words.len() > (MAX_PUS / 32) as usize {
        return Err(fail(text));
    }
    let mut set = CpuSet::new();
    for (position, word) in (0_u32..).zip(words.iter().rev()) {
        if word.is_empty() {
            continue;
        }
        let digits = word.strip_prefix("0x").ok_or_else(|| fail(text))?;
        let value = u32::from_str_radix(digits, 16).map_err(|_| fail(text))?;
        for bit in (0..32).filter(|bit| value & (1 << bit) != 0) {
            set.insert(PuId(position * 32 + bit));
        }
    }
    Ok(set)
}

fn fail(text: &str) -> String {
    format!("{text:?} is not a set")
}
