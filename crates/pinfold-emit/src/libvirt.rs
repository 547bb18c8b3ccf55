//! libvirt's domain XML: `<vcpu>`, `<iothreads>`, `<cputune>`, `<numatune>`, `<cpu>`.
//!
//! A fragment to insert into `<domain>` (`virsh edit NAME`), as documented at
//! <https://libvirt.org/formatdomain.html#cpu-tuning>. libvirt numbers iothreads from 1, so QEMU's
//! ID becomes the position in the plan; a comment names both. The CPU mode `host-passthrough`,
//! `<cache>` and `topoext` apply to `<domain type='kvm'>`. Under TCG (`type='qemu'`) no host CPU
//! can be passed through, and all three must be removed.

pub(super) mod cputune_edits;

use pinfold_model::tunables::FormatAnswer;
use pinfold_model::{
    CpuSet, GuestTopology, IsolationScope, MemoryPlan, NodeId, NotSingleVnode, Plan, Policy, Role,
    ThreadPlan, Topology, Vendor, VnodePlan,
};
use pinfold_plan::definition::StrategyRecord;
use pinfold_plan::domain_file::STRICT;
use pinfold_plan::guest_cache::{Caches, caches};
use pinfold_plan::guest_numa::{GuestCell, cells, node_list, shares};

use super::common::policy;
use super::format::{Format, Syntax};
use super::tunable_answers::Line;

/// The feature that makes QEMU show threads to a guest on an AMD host.
pub const TOPOEXT: &str = "<feature policy='require' name='topoext'/>";

/// The element that shows a guest the host's cache data; QEMU's `host-cache-info=on`.
pub const PASSTHROUGH: &str = "<cache mode='passthrough'/>";

/// The format.
pub(super) const FORMAT: Format = Format {
    name: "libvirt",
    summary: "Domain XML elements",
    is_of_host: false,
    can_merge: true,
    syntax: Syntax::Xml,
    write: |plan, topology, _| libvirt(plan, topology),
    together: None,
    tunable: |_, _| FormatAnswer::host(),
};

/// The plan as a fragment of libvirt's domain XML, with the reason of each pin.
///
/// ```
/// use pinfold_model::{Request, VcpuCount};
///
/// let topology = pinfold_samples::from_description("core:4 pu:2");
/// let request = Request::vm("guest", VcpuCount::Exactly(2));
/// let plan = pinfold_plan::plan("compact", &topology, &request)?;
/// assert!(pinfold_emit::libvirt(&plan, &topology)?.contains("<vcpupin vcpu='0'"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`NotSingleVnode`] if the plan does not place exactly one vnode.
pub fn libvirt(plan: &Plan, topology: &Topology) -> Result<String, NotSingleVnode> {
    let vnode = plan.single_vnode()?;
    let mut xml = Xml::default();
    let vcpus = vnode.vcpus().count();
    xml.comment(&format!("Pinfold: {} for {}", plan.strategy, vnode.name));
    if vcpus == 0 {
        xml.comment("no vCPU is planned: there is nothing for libvirt to pin");
        return Ok(xml.text);
    }
    if let Some(mark) = StrategyRecord::new(plan, vnode) {
        xml.open("<metadata>");
        xml.line(&mark.line());
        xml.close("</metadata>");
    }
    xml.line(&format!("<vcpu placement='static'>{vcpus}</vcpu>"));
    let iothreads = vnode.threads.iter().filter(|thread| thread.role.iothread().is_some());
    let iothreads = iothreads.count();
    if iothreads > 0 {
        xml.line(&format!("<iothreads>{iothreads}</iothreads>"));
    }
    cputune(&mut xml, plan, vnode, topology);
    memory(&mut xml, vnode, topology);
    cpu(&mut xml, vnode, topology);
    Ok(xml.text)
}

fn cputune(xml: &mut Xml, plan: &Plan, vnode: &VnodePlan, topology: &Topology) {
    xml.open("<cputune>");
    // One number per iothread, in the plan's order.
    let mut number = 0_u32;
    let numbered: Vec<(&ThreadPlan, Option<PinElement>)> = vnode
        .threads
        .iter()
        .map(|thread| {
            number += u32::from(thread.role.iothread().is_some());
            (thread, PinElement::new(&thread.role, number))
        })
        .collect();
    for (thread, place) in &numbered {
        pin(xml, thread, place.as_ref());
    }
    // The schedulers follow all pins, so that a real-time thread is never unpinned meanwhile.
    for (thread, place) in &numbered {
        if let (Some(policy), Some(place)) = (thread.policy, place) {
            scheduler(xml, policy, place);
        }
    }
    let tunables = cputune_edits::answers(plan, vnode, topology);
    for line in tunables.lines(cputune_edits::CPUTUNE) {
        match line {
            Line::Comment(text) => xml.comment(&text),
            Line::Text(text) => xml.line(&text),
        }
    }
    tunables.missing("libvirt").iter().for_each(|text| xml.comment(text));
    if !plan.exclusive.is_empty() {
        let scope = match plan.isolation {
            IsolationScope::None | IsolationScope::Own => "own",
            IsolationScope::Host => "host",
        };
        xml.comment(&format!(
            "The plan excludes other tasks from {}. libvirt cannot do this; use \
             `pinfold apply` on the running domain with the strategy {} and the isolation scope \
             {scope}",
            plan.exclusive, plan.strategy
        ));
    }
    xml.close("</cputune>");
}

fn pin(xml: &mut Xml, thread: &ThreadPlan, place: Option<&PinElement>) {
    let number = match place {
        Some(PinElement::Iothread(number)) => format!(", libvirt's number {number}"),
        Some(PinElement::Vcpu(_) | PinElement::Emulator) | None => String::new(),
    };
    xml.comment(&format!("{}{number}: {}", thread.role, thread.reason));
    let pus = &thread.pus;
    match place {
        Some(PinElement::Vcpu(index)) => {
            xml.line(&format!("<vcpupin vcpu='{index}' cpuset='{pus}'/>"));
        }
        Some(PinElement::Emulator) => xml.line(&format!("<emulatorpin cpuset='{pus}'/>")),
        Some(PinElement::Iothread(number)) => {
            xml.line(&format!("<iothreadpin iothread='{number}' cpuset='{pus}'/>"));
        }
        None => xml.comment(&format!(
            "libvirt has no pin for {}: it runs where the emulator does, the plan wants {pus}",
            thread.role
        )),
    }
}

fn scheduler(xml: &mut Xml, policy: Policy, place: &PinElement) {
    match scheduler_line(policy, place) {
        Ok(Some(line)) => xml.line(&line),
        Ok(None) => {}
        Err(why) => xml.comment(&why),
    }
}

/// The element for a policy; `None` for libvirt's default policy.
///
/// # Errors
/// A sentence, if libvirt cannot express it.
pub(super) fn scheduler_line(policy: Policy, place: &PinElement) -> Result<Option<String>, String> {
    let attributes = match policy {
        Policy::Fifo { priority } => format!("scheduler='fifo' priority='{priority}'"),
        Policy::RoundRobin { priority } => format!("scheduler='rr' priority='{priority}'"),
        Policy::Batch { nice: 0 } => "scheduler='batch'".to_owned(),
        Policy::Idle => "scheduler='idle'".to_owned(),
        // libvirt's default.
        Policy::Other { nice: 0 } => return Ok(None),
        Policy::Other { .. }
        | Policy::Batch { .. }
        | Policy::Deadline { .. }
        | Policy::Slice { .. }
        | Policy::Unknown { .. } => {
            return Err(format!("libvirt cannot express the policy {policy} of the plan"));
        }
    };
    Ok(Some(match place {
        PinElement::Vcpu(index) => format!("<vcpusched vcpus='{index}' {attributes}/>"),
        PinElement::Emulator => format!("<emulatorsched {attributes}/>"),
        PinElement::Iothread(number) => {
            format!("<iothreadsched iothreads='{number}' {attributes}/>")
        }
    }))
}

/// `<memoryBacking>` and `<numatune>`.
fn memory(xml: &mut Xml, vnode: &VnodePlan, topology: &Topology) {
    let Some(memory) = &vnode.memory else {
        backing(xml, None, vnode);
        return;
    };
    xml.comment(&format!("memory: {}", memory.reason));
    if let Some(bytes) = memory.bytes {
        xml.line(&format!("<memory unit='b'>{bytes}</memory>"));
    }
    backing(xml, memory.page_bytes, vnode);
    let mut cells = cells(vnode, topology);
    if memory.bytes.is_none_or(|bytes| shares(&cells, bytes, unit(memory)).is_none()) {
        if cells.len() > 1 {
            xml.comment(
                "Shared out over the nodes: with the memory's size in the plan, or merged into a \
                 file that has it, the guest is shown a NUMA cell for each node",
            );
        }
        cells.clear();
    }
    let lines = numatune_lines(vnode, topology, &cells);
    if !lines.is_empty() {
        xml.open("<numatune>");
        lines.iter().for_each(|line| xml.line(line));
        xml.close("</numatune>");
    }
}

/// `<memoryBacking>`, if the plan has huge pages or real-time vCPUs.
fn backing(xml: &mut Xml, page_bytes: Option<u64>, vnode: &VnodePlan) {
    let kept = kept_pages(vnode);
    if page_bytes.is_none() && kept.is_empty() {
        return;
    }
    xml.open("<memoryBacking>");
    if let Some(page) = page_bytes {
        xml.open("<hugepages>");
        xml.line(&page_line(page));
        xml.close("</hugepages>");
    }
    kept.iter().for_each(|name| xml.line(&format!("<{name}/>")));
    xml.close("</memoryBacking>");
}

/// The elements of `<memoryBacking>` with which the host neither swaps nor merges the pages of
/// real-time vCPUs: one that touches such a page waits for the host.
pub(super) fn kept_pages(vnode: &VnodePlan) -> &'static [&'static str] {
    if vnode.vcpus().any(|thread: &ThreadPlan| thread.policy.is_some_and(Policy::is_real_time)) {
        &["nosharepages", "locked"]
    } else {
        &[]
    }
}

/// `<memory>` of `<numatune>`: pages can come only from these nodes, or come from them first.
pub(super) fn memory_line(memory: &MemoryPlan) -> String {
    let mode = mode_of(memory);
    format!("<memory mode='{mode}' nodeset='{}'/>", node_list(&memory.nodes))
}

/// The mode in libvirt. It prefers at most one node.
pub(super) fn mode_of(memory: &MemoryPlan) -> &'static str {
    if memory.is_preferred { policy(memory) } else { STRICT }
}

/// `<memnode>`: a cell's memory on these nodes.
pub fn memnode_line(cell: u32, mode: &str, nodes: &[NodeId]) -> String {
    format!("<memnode cellid='{cell}' mode='{mode}' nodeset='{}'/>", node_list(nodes))
}

/// The children of `<numatune>`: each of the guest's cells bound to its node. Without cells, the
/// whole guest is bound to one node or to several, see [`mode_of_nodes`]. Empty if the vCPUs float
/// over all nodes: the kernel then places both.
pub(super) fn numatune_lines(
    vnode: &VnodePlan,
    topology: &Topology,
    cells: &[GuestCell],
) -> Vec<String> {
    let Some(memory) = &vnode.memory else { return Vec::new() };
    if !cells.is_empty() {
        let memnodes =
            (0_u32..).zip(cells).map(|(id, cell)| memnode_line(id, STRICT, &[cell.node]));
        return std::iter::once(memory_line(memory)).chain(memnodes).collect();
    }
    let filled = topology.nodes.iter().filter(|node| node.memory_bytes > 0).count();
    match memory.nodes.len() {
        1 => vec![memory_line(memory)],
        count
            if count < filled
                || vnode.vcpus().all(|thread| is_on_one_node(topology, &thread.pus)) =>
        {
            let bound = mode_of_nodes(&memory.nodes, topology);
            let mode = if memory.is_preferred { mode_of(memory) } else { bound };
            vec![format!("<memory mode='{mode}' nodeset='{}'/>", node_list(&memory.nodes))]
        }
        _ => Vec::new(),
    }
}

fn is_on_one_node(topology: &Topology, pus: &CpuSet) -> bool {
    topology.nodes.iter().any(|node| pus.is_subset(&node.pus))
}

/// The mode of a binding to these nodes: `interleave` over several, so that no vCPU is far from all
/// of the memory; `strict` if some have no CPUs: the kernel then takes the pages of the nearest
/// nodes first, and the others only for what does not fit.
pub fn mode_of_nodes(nodes: &[NodeId], topology: &Topology) -> &'static str {
    if nodes.len() > 1
        && nodes.iter().all(|id: &NodeId| {
            topology.nodes.iter().any(|node| node.id == *id && !node.pus.is_empty())
        })
    {
        "interleave"
    } else {
        STRICT
    }
}

/// The mode of a binding that moves to other nodes: libvirt's `preferred` accepts one node only.
pub(super) fn memory_mode(mode: &str, nodes: usize) -> &str {
    if mode == "preferred" && nodes > 1 { "interleave" } else { mode }
}

/// `<cell>` elements of `<cpu><numa>`; the sizes are in bytes, in the cells' order.
pub(super) fn cell_lines(cells: &[GuestCell], sizes: &[u64]) -> Vec<String> {
    cells
        .iter()
        .zip(sizes)
        .enumerate()
        .map(|(id, (cell, size))| {
            let kib = size >> 10;
            format!("<cell id='{id}' cpus='{}' memory='{kib}' unit='KiB'/>", cell.vcpus)
        })
        .collect()
}

/// The page size of `<hugepages>`.
pub(super) fn page_line(page_bytes: u64) -> String {
    format!("<page size='{}' unit='KiB'/>", page_bytes >> 10)
}

/// Granularity of cell sizes in bytes: one huge page, or 1 MiB.
pub(super) fn unit(memory: &MemoryPlan) -> u64 {
    memory.page_bytes.unwrap_or(1 << 20)
}

fn cpu(xml: &mut Xml, vnode: &VnodePlan, topology: &Topology) {
    let Some(guest) = &vnode.guest else {
        return;
    };
    xml.comment(&format!("guest topology: {}", guest.reason));
    xml.open("<cpu mode='host-passthrough'>");
    let (vendor, caches) = (Vendor::from_topology(topology), caches(vnode, topology));
    if vendor == Vendor::Unknown && caches.dies > 1 {
        xml.comment(&format!(
            "On an x86 host write dies='{}' cores='{}': a die for each L3 that the vCPUs lie in",
            caches.dies,
            guest.cores / caches.dies
        ));
    }
    xml.line(&topology_line(guest, vendor, caches));
    match (vendor, caches.as_host) {
        (Vendor::Amd | Vendor::Intel, true) => xml.line(PASSTHROUGH),
        (Vendor::Amd | Vendor::Intel, false) => xml.comment(
            "The guest is not shown the host's cache data, which would be wrong for these pins; \
             QEMU describes caches of its own, an L3 for each die",
        ),
        (Vendor::Unknown, _) => {}
    }
    match vendor {
        Vendor::Amd if guest.threads > 1 => xml.line(TOPOEXT),
        Vendor::Unknown if guest.threads > 1 => xml.comment(&format!(
            "On an AMD host add {TOPOEXT} here: without it QEMU hides the threads from the guest. \
             On an Intel host it would not start"
        )),
        Vendor::Amd | Vendor::Intel | Vendor::Unknown => {}
    }
    let sizes = vnode
        .memory
        .as_ref()
        .and_then(|memory| shares(&cells(vnode, topology), memory.bytes?, unit(memory)));
    if let Some(sizes) = sizes {
        xml.open("<numa>");
        cell_lines(&cells(vnode, topology), &sizes).iter().for_each(|line| xml.line(line));
        xml.close("</numa>");
    }
    xml.close("</cpu>");
}

/// `<topology>`, with dies if there are several.
pub(super) fn topology_line(guest: &GuestTopology, vendor: Vendor, caches: Caches) -> String {
    let (sockets, threads) = (guest.sockets, guest.threads);
    match (vendor, caches.dies) {
        (Vendor::Amd | Vendor::Intel, dies) if dies > 1 => format!(
            "<topology sockets='{sockets}' dies='{dies}' cores='{}' threads='{threads}'/>",
            guest.cores / dies
        ),
        (_, _) => {
            format!("<topology sockets='{sockets}' cores='{}' threads='{threads}'/>", guest.cores)
        }
    }
}

/// A role for which libvirt has a pin.
pub(super) enum PinElement {
    Vcpu(u32),
    Emulator,
    Iothread(u32),
}

impl PinElement {
    fn new(role: &Role, iothread: u32) -> Option<Self> {
        let vcpu = role.vcpu().map(Self::Vcpu);
        let own = vcpu.or_else(|| role.iothread().map(|_| Self::Iothread(iothread)));
        own.or_else(|| (*role == Role::Emulator).then_some(Self::Emulator))
    }
}

/// Indented lines of XML.
#[derive(Default)]
struct Xml {
    text: String,
    depth: usize,
}

impl Xml {
    fn line(&mut self, line: &str) {
        self.text.push_str(&"  ".repeat(self.depth));
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn open(&mut self, tag: &str) {
        self.line(tag);
        self.depth += 1;
    }

    fn close(&mut self, tag: &str) {
        self.depth = self.depth.saturating_sub(1);
        self.line(tag);
    }

    fn comment(&mut self, text: &str) {
        self.line(&format!("<!-- {} -->", comment_text(text)));
    }
}

/// Escapes a comment: XML allows neither `--` in it nor `-` at its end, and not every character.
pub(super) fn comment_text(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '-' if safe.ends_with('-') => safe.push_str(" -"),
            '\u{fffe}' | '\u{ffff}' => safe.push(char::REPLACEMENT_CHARACTER),
            other if other.is_control() => safe.push(' '),
            other => safe.push(other),
        }
    }
    safe
}
