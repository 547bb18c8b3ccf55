//! `<memory>`, `<numatune>` and `<memoryBacking>` of a merged file.
//!
//! A binding that matches the plan stays unchanged, including its mode. The file's cells keep their
//! nodes; a plan with their vCPUs on other nodes is refused.

use pinfold_model::{CpuSet, NodeId, PuId, Role, Topology, VnodePlan};
use pinfold_plan::capacity::with_cpus;
use pinfold_plan::domain_file::{Cell, DomainError, Located, RESTRICTIVE, STRICT};
use pinfold_plan::guest_numa::{cells, node_list, shares};
use roxmltree::Node;

use super::super::libvirt::{
    kept_pages, memnode_line, memory_line, memory_mode, numatune_lines, page_line, unit,
};
use super::{Cells, Merge, block, child, error_at};

impl<'a, 'x> Merge<'a, 'x> {
    /// The cells that the plan's memory gives to a guest without cells; the memory size is the
    /// plan's or the file's.
    pub(super) fn cells(
        &self,
        vnode: &VnodePlan,
        topology: &Topology,
    ) -> Result<Cells, DomainError> {
        let none = Cells { cells: Vec::new(), sizes: Vec::new() };
        let cells = cells(vnode, topology);
        let Some(memory) = vnode.memory.as_ref().filter(|_| !cells.is_empty()) else {
            return Ok(none);
        };
        let Some(bytes) = memory.bytes.or(self.domain.memory_bytes) else {
            return Ok(none);
        };
        let page = memory.page_bytes.or(self.domain.page_bytes).unwrap_or(unit(memory));
        match shares(&cells, bytes, page) {
            Some(sizes) => Ok(Cells { cells, sizes }),
            // The size was not chosen for this plan, so it is no reason to refuse it.
            None if memory.bytes.is_none() => Ok(none),
            None => Err(DomainError {
                hint: Some("request memory that is a multiple of the page size for each cell"),
                ..error_at(
                    child(self.root, "memory").unwrap_or(self.root),
                    format!(
                        "{bytes} bytes of memory cannot be divided among {} NUMA cells in whole \
                         pages of {page} bytes",
                        cells.len(),
                    ),
                )
            }),
        }
    }

    pub(super) fn memory(
        &mut self,
        vnode: &VnodePlan,
        topology: &Topology,
        cells: &Cells,
    ) -> Result<(), DomainError> {
        self.size(vnode)?;
        if self.domain.cells.is_empty() {
            self.binding(vnode, topology, cells)
        } else {
            self.bound_cells(vnode, topology)?
        }
        self.backing(vnode);
        Ok(())
    }

    /// `<memoryBacking>`: the page size, and what keeps the pages of real-time vCPUs in memory.
    fn backing(&mut self, vnode: &VnodePlan) {
        let old = child(self.root, "memoryBacking");
        let mut lines: Vec<String> = Vec::new();
        if let Some(page) = vnode.memory.as_ref().and_then(|memory| memory.page_bytes) {
            match old.and_then(|old| child(old, "hugepages")) {
                None => lines.extend(block("hugepages", &[page_line(page)])),
                Some(pages) => self.pages(pages, page_line(page)),
            }
        }
        let kept = kept_pages(vnode).iter().filter(|name| !has_child(&old, name));
        lines.extend(kept.map(|name| format!("<{name}/>")));
        match old {
            _ if lines.is_empty() => {}
            None => self.after_vcpu(&block("memoryBacking", &lines)),
            Some(old) => self.edits.insert_into(old, &lines),
        }
    }

    /// The page size of `<hugepages>`.
    fn pages(&mut self, node: Node<'a, 'x>, line: String) {
        let gone: Vec<_> = node
            .children()
            .filter(|child| is_page(child) && super::source(*child) != line)
            .collect();
        let comments =
            gone.into_iter().map(|old| self.exchange(old, "the request asks for this page size"));
        let mut lines: Vec<String> = comments.collect();
        lines.push(line);
        self.edits.exchange(node, is_page, &lines);
    }

    /// `<memory>` and `<currentMemory>`, if the requested size differs from the file's.
    fn size(&mut self, vnode: &VnodePlan) -> Result<(), DomainError> {
        let asked = vnode.memory.as_ref().and_then(|memory| memory.bytes);
        let Some(bytes) = asked.filter(|bytes| Some(*bytes) != self.domain.memory_bytes) else {
            return Ok(());
        };
        let line = format!("<memory unit='b'>{bytes}</memory>");
        let Some(node) = child(self.root, "memory") else {
            self.insert_after(&["name"], &[line]);
            return Ok(());
        };
        if let Some(numa) = child(self.root, "cpu").and_then(|cpu| child(cpu, "numa")) {
            return Err(DomainError {
                hint: Some("request the memory that the cells have, or change their sizes first"),
                ..error_at(
                    numa,
                    format!("the cells of the file do not have the requested {bytes} bytes"),
                )
            });
        }
        self.swap(node, line, "the request asks for this size");
        if let Some(node) = child(self.root, "currentMemory") {
            let line = format!("<currentMemory unit='b'>{bytes}</currentMemory>");
            self.swap(node, line, "the request asks for this size");
        }
        Ok(())
    }

    /// `<numatune>` of a guest without cells of its own.
    fn binding(&mut self, vnode: &VnodePlan, topology: &Topology, cells: &Cells) {
        let lines = numatune_lines(vnode, topology, &cells.cells);
        let Some(bound) = &self.domain.memory else {
            match child(self.root, "numatune") {
                Some(node) if !lines.is_empty() => self.bind(node, &lines, None),
                None if !lines.is_empty() => self.after_vcpu(&block("numatune", &lines)),
                Some(_) | None => {}
            }
            return;
        };
        let Some(node) = child(self.root, "numatune") else { return };
        let planned = vnode.memory.as_ref().map(|memory| memory.nodes.clone());
        let planned = planned.unwrap_or_else(|| nodes_of(vnode, topology, None));
        let Some(nodes) = &bound.value.nodes else {
            let why = "<vcpu> is static now, so numad places neither vCPUs nor memory";
            self.bind(node, &lines, Some(why));
            return;
        };
        if lacks(nodes, topology) {
            let lines = if lines.is_empty() {
                vec![format!(
                    "<memory mode='{}' nodeset='{}'/>",
                    bound.value.mode,
                    node_list(&planned)
                )]
            } else {
                lines
            };
            let why = format!("this host has no node {}", node_list(nodes));
            self.bind(node, &lines, Some(&why));
            return;
        }
        // Memory that is bound to nodes without CPUs was put there on purpose.
        let elsewhere = with_cpus(nodes, topology).is_empty();
        if cells.is_empty() && (elsewhere || planned == *nodes || lines.is_empty()) {
            return;
        }
        let lines = if cells.is_empty() {
            vec![format!(
                "<memory mode='{}' nodeset='{}'/>",
                memory_mode(&bound.value.mode, planned.len()),
                node_list(&planned)
            )]
        } else {
            lines
        };
        self.bind(node, &lines, Some("the memory follows the vCPUs"));
    }

    /// Replaces the content of `<numatune>`; `why` is written as a comment if there was a binding.
    fn bind(&mut self, node: Node<'a, 'x>, lines: &[String], why: Option<&str>) {
        let old: Vec<Node<'a, 'x>> =
            node.children().filter(|child| child.is_element() && ours(child)).collect();
        if old.iter().map(|node| super::source(*node)).eq(lines.iter().map(String::as_str)) {
            return;
        }
        let mut all = Vec::new();
        for gone in
            old.iter().filter(|node| !lines.iter().any(|line| line == super::source(**node)))
        {
            if let Some(why) = why {
                all.push(self.exchange(*gone, why));
            }
        }
        all.extend(lines.iter().cloned());
        self.edits.exchange(node, ours, &all);
    }

    /// The binding of each cell of the file to the node of its vCPUs. A binding to existing nodes
    /// stays unchanged.
    fn bound_cells(&mut self, vnode: &VnodePlan, topology: &Topology) -> Result<(), DomainError> {
        let whole = self.domain.memory.as_ref();
        // libvirt accepts `restrictive` only for all bindings or for none.
        let restrictive = whole.is_some_and(|bound| bound.value.mode == RESTRICTIVE);
        let mode = if restrictive { RESTRICTIVE } else { STRICT };
        let numad = whole.is_some_and(|bound| bound.value.nodes.is_none());
        let whole = whole.and_then(|bound| bound.value.nodes.clone());
        let mut missing: Vec<String> = Vec::new();
        let mut anew = numad || whole.as_ref().is_some_and(|nodes| lacks(nodes, topology));
        for cell in self.domain.cells.iter().filter(|cell| !cell.value.vcpus.is_empty()) {
            let there = nodes_of(vnode, topology, Some(&cell.value));
            let own = self.domain.memnode(cell.value.id).map(|memnode| &memnode.nodes);
            let bound = own.or(whole.as_ref());
            let usable = bound.map(|nodes| with_cpus(nodes, topology)).unwrap_or_default();
            if !usable.is_empty() && !there.iter().all(|node| usable.contains(node)) {
                return Err(fail_torn(cell, &usable, &there));
            }
            let known = bound.is_some_and(|nodes| !lacks(nodes, topology));
            if known && (own.is_some() || usable.len() < 2) {
                continue;
            }
            anew |= own.is_some();
            if !there.is_empty() {
                missing.push(memnode_line(cell.value.id, mode, &there));
            }
        }
        let several = topology.nodes.iter().filter(|node| node.memory_bytes > 0).count() > 1;
        if anew {
            self.rewrite_memnodes(vnode, topology, missing);
        } else if several && !missing.is_empty() {
            self.add_memnodes(vnode, missing);
        }
        Ok(())
    }

    fn add_memnodes(&mut self, vnode: &VnodePlan, mut lines: Vec<String>) {
        let why = "each cell is bound to the node of its vCPUs";
        match child(self.root, "numatune") {
            None => {
                lines.splice(0..0, vnode.memory.as_ref().map(memory_line));
                self.notes.push(format!("<numatune> is new: {why}"));
                self.after_vcpu(&block("numatune", &lines));
            }
            Some(node) => {
                self.notes.push(format!("<memnode> is new: {why}"));
                self.edits.insert_into(node, &lines);
            }
        }
    }

    /// Rewrites `<numatune>`: numad's placement and nodes that this host lacks are removed, every
    /// other binding stays.
    fn rewrite_memnodes(&mut self, vnode: &VnodePlan, topology: &Topology, missing: Vec<String>) {
        let Some(node) = child(self.root, "numatune") else { return };
        let planned = match &vnode.memory {
            Some(memory) => memory.nodes.clone(),
            None => nodes_of(vnode, topology, None),
        };
        let mut lines: Vec<String> = Vec::new();
        for old in node.children().filter(|old| old.is_element()) {
            let nodes = old.attribute("nodeset").and_then(|list| CpuSet::parse_list(list).ok());
            let nodes: Option<Vec<NodeId>> =
                nodes.map(|set| set.iter().map(|PuId(number)| NodeId(number)).collect());
            let stays = nodes.is_some_and(|nodes| !lacks(&nodes, topology));
            match old.tag_name().name() {
                "memory" | "memnode" if stays => lines.push(super::source(old).to_owned()),
                "memory" => {
                    let mode =
                        memory_mode(old.attribute("mode").unwrap_or("strict"), planned.len());
                    lines
                        .push(format!("<memory mode='{mode}' nodeset='{}'/>", node_list(&planned)));
                }
                _ => {}
            }
        }
        lines.extend(missing);
        self.bind(node, &lines, Some("each cell is bound to the node of its vCPUs"));
    }
}

fn has_child(old: &Option<Node<'_, '_>>, name: &str) -> bool {
    old.is_some_and(|old| child(old, name).is_some())
}

fn is_page(node: &Node<'_, '_>) -> bool {
    node.has_tag_name("page")
}

fn ours(node: &Node<'_, '_>) -> bool {
    ["memory", "memnode"].contains(&node.tag_name().name())
}

/// True if the host lacks one of these nodes.
fn lacks(nodes: &[NodeId], topology: &Topology) -> bool {
    nodes.iter().any(|id| topology.nodes.iter().all(|node| node.id != *id))
}

/// The host nodes of the vCPUs of a cell, or of all.
fn nodes_of(vnode: &VnodePlan, topology: &Topology, cell: Option<&Cell>) -> Vec<NodeId> {
    let vcpus: Vec<_> = vnode.vcpus().filter(|thread| is_of_cell(cell, &thread.role)).collect();
    let nodes = topology.nodes.iter();
    let used = nodes.filter(|node| vcpus.iter().any(|vcpu| !vcpu.pus.is_disjoint(&node.pus)));
    used.map(|node| node.id).collect()
}

fn is_of_cell(cell: Option<&Cell>, role: &Role) -> bool {
    match (role, cell) {
        (Role::Vcpu(index), Some(cell)) => cell.vcpus.contains(PuId(*index)),
        (_, _) => cell.is_none(),
    }
}

fn fail_torn(cell: &Located<Cell>, bound: &[NodeId], there: &[NodeId]) -> DomainError {
    let why = format!(
        "cell {} has its memory on node {}, but the plan has its vCPUs on node {}",
        cell.value.id,
        node_list(bound),
        node_list(there)
    );
    DomainError {
        line: cell.place.line.unwrap_or(1),
        column: 1,
        why,
        hint: Some("plan for this file only (--into without --request or --vm), or swap its cells"),
    }
}
