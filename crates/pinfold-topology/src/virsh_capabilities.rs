//! The host in the XML that `virsh capabilities` prints. Pure.
//!
//! ```text
//! <capabilities><host>
//!   <cpu><model>EPYC-Milan</model><vendor>AMD</vendor></cpu>
//!   <topology><cells num='1'><cell id='0'>
//!     <memory unit='KiB'>16266956</memory>
//!     <cpus num='2'><cpu id='0' socket_id='0' die_id='0' core_id='0' siblings='0-1'/> … </cpus>
//!   </cell></cells></topology>
//!   <cache><bank id='0' level='3' type='both' size='8' unit='MiB' cpus='0-7'/></cache>
//! </host></capabilities>
//! ```
//! An offline CPU has an `id` only. libvirt lists memory, siblings and caches where it knows them
//! (<https://libvirt.org/formatcaps.html>); kinds of cores, frequencies and isolation it does not.

use std::collections::BTreeMap;

use pinfold_model::{CpuSet, MAX_PUS, NodeId, PuId};
use roxmltree::{Document, Node};

use crate::hwloc::{Tree, TreeNode};
use crate::sysfs::{Cache, CpuAncestors, assemble};

/// The outermost element.
const ROOT: &str = "capabilities";

/// True if the text is such a document.
pub(crate) fn is_capabilities(text: &str) -> bool {
    Document::parse(text).is_ok_and(|document| document.root_element().has_tag_name(ROOT))
}

/// A CPU with the ID of its package; offline CPUs have none.
struct Cpu {
    pu: PuId,
    socket: Option<u32>,
    siblings: CpuSet,
}

/// Reads the tree; the error contains the line.
pub(crate) fn tree(text: &str) -> Result<Tree, String> {
    let document = Document::parse(text).map_err(|error| error.to_string())?;
    let host = child(document.root_element(), "host").ok_or("it has no <host>")?;
    let cells = child(host, "topology").and_then(|topology| child(topology, "cells"));
    let cells = cells.ok_or("its <host> has no <topology> with <cells>")?;
    let mut cpus: BTreeMap<PuId, Cpu> = BTreeMap::new();
    let mut nodes = Vec::new();
    for cell in children(cells, "cell") {
        let mut pus = CpuSet::new();
        for node in children(cell, "cpus").flat_map(|list| children(list, "cpu")) {
            let cpu = cpu(node)?;
            if cpu.socket.is_some() {
                pus.insert(cpu.pu);
            }
            let pu = cpu.pu;
            if cpus.insert(pu, cpu).is_some() {
                return Err(describe_fault(node, &format!("CPU {pu} is listed twice")));
            }
        }
        let memory = child(cell, "memory").map_or(Ok(0), bytes)?;
        nodes.push(TreeNode { id: NodeId(number(cell, "id")?), pus, memory_bytes: memory });
    }
    nodes.sort_by_key(|node| node.id);
    if let Some(pair) = nodes.windows(2).find(|pair| pair[0].id == pair[1].id) {
        return Err(format!("the cell {} is listed twice", pair[0].id));
    }
    let online: CpuSet =
        cpus.values().filter(|cpu| cpu.socket.is_some()).map(|cpu| cpu.pu).collect();
    let caches = caches(host)?;
    let around = cpus.values().filter(|cpu| cpu.socket.is_some());
    let around = around.map(|cpu| CpuAncestors {
        pu: cpu.pu,
        core: cpu.siblings.intersection(&online),
        package: Some(
            cpus.values()
                .filter(|other| other.socket == cpu.socket)
                .map(|other| other.pu)
                .collect(),
        ),
        l2: None,
        l3: caches.iter().find(|(pus, _)| pus.contains(cpu.pu)).cloned(),
        node: nodes.iter().find(|node| node.pus.contains(cpu.pu)).map(|node| node.pus.clone()),
    });
    let around = around.collect();
    let complete = cpus.keys().copied().collect();
    Ok(Tree { cpu_model: model(host), allowed: online, ..assemble(around, nodes, complete) })
}

fn cpu(node: Node<'_, '_>) -> Result<Cpu, String> {
    let pu = PuId(number(node, "id")?);
    if pu.0 >= MAX_PUS {
        return Err(describe_fault(node, &format!("CPU {pu} exceeds the limit of any kernel")));
    }
    let socket = match node.attribute("socket_id") {
        Some(_) => Some(number(node, "socket_id")?),
        None => None,
    };
    let siblings = match node.attribute("siblings") {
        Some(list) => CpuSet::parse_list(list)
            .map_err(|why| describe_fault(node, &format!("siblings: {why}")))?,
        None => CpuSet::single(pu),
    };
    if !siblings.contains(pu) {
        return Err(describe_fault(node, &format!("the siblings of CPU {pu} do not include it")));
    }
    Ok(Cpu { pu, socket, siblings })
}

/// The level-3 caches: their CPUs, and their size in bytes with unknown ways.
fn caches(host: Node<'_, '_>) -> Result<Vec<Cache>, String> {
    let banks = children(host, "cache").flat_map(|cache| children(cache, "bank"));
    let banks = banks.filter(|bank| {
        bank.attribute("level") == Some("3") && bank.attribute("type") != Some("code")
    });
    banks
        .map(|bank| {
            let list = bank.attribute("cpus").unwrap_or_default();
            let pus = CpuSet::parse_list(list)
                .map_err(|why| describe_fault(bank, &format!("cpus: {why}")))?;
            let size = u64::from(number(bank, "size")?);
            Ok((pus, (scale(bank, size)?, 0)))
        })
        .collect()
}

/// The processor model after its vendor, such as `AMD EPYC-Milan`.
fn model(host: Node<'_, '_>) -> Option<String> {
    let cpu = child(host, "cpu")?;
    let words: Vec<&str> = ["vendor", "model"]
        .map(|name| child(cpu, name).and_then(|node| node.text()).map(str::trim))
        .into_iter()
        .flatten()
        .collect();
    (!words.is_empty()).then(|| words.join(" "))
}

/// The number in an element, in bytes.
fn bytes(node: Node<'_, '_>) -> Result<u64, String> {
    let text = node.text().unwrap_or_default().trim();
    let count =
        text.parse().map_err(|_| describe_fault(node, &format!("{text:?} is not a number")))?;
    scale(node, count)
}

/// A number in bytes, by the `unit` of its element; KiB without one.
fn scale(node: Node<'_, '_>, count: u64) -> Result<u64, String> {
    let unit = node.attribute("unit").unwrap_or("KiB");
    let shift = match unit {
        "B" | "b" | "bytes" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return Err(describe_fault(node, &format!("{unit:?} is not a unit of memory"))),
    };
    count
        .checked_mul(1 << shift)
        .ok_or_else(|| describe_fault(node, &format!("{count} {unit} is too large")))
}

fn number(node: Node<'_, '_>, name: &str) -> Result<u32, String> {
    let text = node.attribute(name).unwrap_or_default();
    let tag = node.tag_name().name();
    text.parse()
        .map_err(|_| describe_fault(node, &format!("{name}={text:?} of <{tag}> is not a number")))
}

fn describe_fault(node: Node<'_, '_>, why: &str) -> String {
    format!("line {}: {why}", node.document().text_pos_at(node.range().start).row)
}

fn child<'a, 'input>(node: Node<'a, 'input>, name: &'static str) -> Option<Node<'a, 'input>> {
    children(node, name).next()
}

fn children<'a, 'input>(
    node: Node<'a, 'input>,
    name: &'static str,
) -> impl Iterator<Item = Node<'a, 'input>> {
    node.children().filter(move |child| child.has_tag_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes in one package; CPU 8 is offline.
    fn document(cpu_3: &str) -> String {
        format!(
            "<capabilities>\n<host>\n<cpu><arch>x86_64</arch><model>EPYC-Milan</model>\
             <vendor>AMD</vendor></cpu>\n<topology>\n<cells num='2'>\n<cell id='1'>\n\
             <memory unit='KiB'>1024</memory>\n<cpus num='4'>\n\
             <cpu id='2' socket_id='0' die_id='0' core_id='1' siblings='2,6'/>\n{cpu_3}\n\
             <cpu id='6' socket_id='0' die_id='0' core_id='1' siblings='2,6'/>\n<cpu id='8'/>\n\
             </cpus>\n</cell>\n<cell id='0'>\n<memory unit='KiB'>2048</memory>\n<cpus num='2'>\n\
             <cpu id='0' socket_id='0' die_id='0' core_id='0' siblings='0,4'/>\n\
             <cpu id='4' socket_id='0' die_id='0' core_id='0' siblings='0,4'/>\n\
             </cpus>\n</cell>\n</cells>\n</topology>\n\
             <cache><bank id='0' level='3' type='both' size='8' unit='MiB' cpus='0,4'/></cache>\n\
             </host>\n</capabilities>"
        )
    }

    #[test]
    fn the_host_of_libvirt_is_a_tree() {
        let text = document("<cpu id='3' socket_id='0' core_id='2' siblings='3'/>");
        assert!(is_capabilities(&text) && !is_capabilities("<topology/>"));
        let tree = tree(&text).expect("a tree");
        let order: Vec<u32> = tree.pus.iter().map(|pu| pu.os.0).collect();
        assert_eq!(order, [0, 4, 2, 6, 3]);
        let cores: Vec<_> = tree.pus.iter().map(|pu| pu.core).collect();
        assert!(cores[0] == cores[1] && cores[1] != cores[2] && cores[3] != cores[4], "{cores:?}");
        assert!(tree.pus.iter().all(|pu| pu.package == tree.pus[0].package));
        assert_eq!(tree.pus.iter().filter(|pu| pu.l3.is_some()).count(), 2);
        assert_eq!(tree.l3_sizes.values().copied().collect::<Vec<_>>(), [(8 << 20, 0)]);
        let sets = [&tree.complete, &tree.allowed].map(ToString::to_string);
        assert_eq!(sets, ["0,2-4,6,8", "0,2-4,6"]);
        let nodes = tree.nodes.iter().map(|node| (node.id.0, node.memory_bytes));
        assert_eq!(nodes.collect::<Vec<_>>(), [(0, 2 << 20), (1, 1 << 20)]);
        assert_eq!(tree.cpu_model.as_deref(), Some("AMD EPYC-Milan"));
    }

    #[test]
    fn a_fault_is_named_with_its_line() {
        check("<cpu socket_id='0'/>", "line 10: id=\"\" of <cpu> is not a number");
        check("<cpu id='2' socket_id='0'/>", "line 10: CPU 2 is listed twice");
        check(
            "<cpu id='99999' socket_id='0'/>",
            "line 10: CPU 99999 exceeds the limit of any kernel",
        );
        check(
            "<cpu id='3' socket_id='0' siblings='7'/>",
            "line 10: the siblings of CPU 3 do not include it",
        );
        let bare = tree("<capabilities><host/></capabilities>").expect_err("no cells");
        assert_eq!(bare, "its <host> has no <topology> with <cells>");
    }

    fn check(cpu_3: &str, expected: &str) {
        let error = tree(&document(cpu_3)).expect_err(cpu_3);
        assert_eq!(error, expected);
    }
}
