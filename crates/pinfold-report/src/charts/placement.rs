//! The placement chart: packages, NUMA nodes, L3 domains, cores and CPUs of the host as nested
//! boxes, with the threads on each CPU under one plan.
//!
//! It consists of HTML boxes that wrap and not of SVG, because the same chart must be legible with
//! 1 and with 256 CPUs, on a phone and on paper, and its texts must stay texts. Boxes are nested by
//! their sets of CPUs, so NUMA nodes may be larger or smaller than packages. Boxes with the same
//! CPUs are merged and have both names. A set that partially overlaps another (on no known machine)
//! is left out of the chart.

use std::fmt::Write as _;

use pinfold_model::{CoreKind, CpuSet, Plan, Pu, PuId, Topology};

use crate::format;
use crate::svg::escape;

/// Up to this number of CPUs, three charts are side by side.
const ROOMY_TO: usize = 8;
/// Up to this number of CPUs, two charts are side by side.
const MIDDLE_TO: usize = 16;
/// Up to this number of CPUs, cells still contain words; charts take the full width and are folded.
const DENSE_TO: usize = 64;

/// Size of the cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// A few CPUs.
    Roomy,
    /// A common machine.
    Middle,
    /// A server: one chart across the page, short words.
    Dense,
    /// A large server: a letter or a number per CPU, words as tool tips.
    Small,
}

impl Scale {
    pub(crate) fn from_topology(topology: &Topology) -> Self {
        match topology.pus.len() {
            pus if pus <= ROOMY_TO => Scale::Roomy,
            pus if pus <= MIDDLE_TO => Scale::Middle,
            pus if pus <= DENSE_TO => Scale::Dense,
            _ => Scale::Small,
        }
    }

    /// True if only the most important charts are unfolded.
    pub(crate) fn folds(self) -> bool {
        match self {
            Scale::Roomy | Scale::Middle => false,
            Scale::Dense | Scale::Small => true,
        }
    }

    /// The CSS class.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Scale::Roomy => "roomy",
            Scale::Middle => "middle",
            Scale::Dense => "dense",
            Scale::Small => "small",
        }
    }
}

/// A box of the chart.
#[derive(Debug)]
struct Block {
    class: &'static str,
    labels: Vec<String>,
    pus: CpuSet,
    inside: Vec<Block>,
}

/// The threads on a CPU.
#[derive(Debug, Default)]
struct CpuBox {
    /// Indexes of the vCPUs that may run here.
    vcpus: Vec<u32>,
    /// True if one of them may run only here.
    pinned: bool,
    /// The emulator threads, iothreads and other roles.
    others: Vec<String>,
    host: bool,
    exclusive: bool,
}

/// The chart of a plan on its host.
pub(crate) fn draw(topology: &Topology, plan: &Plan) -> String {
    let scale = Scale::from_topology(topology);
    let mut html = String::new();
    let blocks = nest(topology);
    put_blocks(
        &mut html,
        &blocks,
        &|html, pu| put_pu(html, pu, &seat(plan, pu.os), scale),
        topology,
    );
    html
}

/// What the chart cannot show: offline CPUs and NUMA nodes without CPUs.
pub(crate) fn asides(topology: &Topology) -> Vec<String> {
    let mut asides = Vec::new();
    if !topology.offline.is_empty() {
        asides.push(format!("offline: CPU {}", topology.offline));
    }
    if !topology.isolated.is_empty() {
        asides.push(format!("isolated at boot: CPU {}", topology.isolated));
    }
    if !topology.nohz_full.is_empty() {
        asides.push(format!("without a periodic tick: CPU {}", topology.nohz_full));
    }
    let online = topology.online();
    if !online.is_subset(&topology.allowed) {
        asides.push(format!(
            "not available to Pinfold: CPU {}",
            online.difference(&topology.allowed)
        ));
    }
    for node in topology.nodes.iter().filter(|node| node.pus.is_empty()) {
        let memory = format::bytes(node.memory_bytes);
        asides.push(format!("NUMA node {} has no CPU, {memory} of memory", node.id));
    }
    asides
}

/// The boxes, outermost first, nested by their CPUs.
fn nest(topology: &Topology) -> Vec<Block> {
    let mut blocks: Vec<(usize, Block)> = Vec::new();
    for package in &topology.packages {
        add(&mut blocks, 0, "package", format!("Package {}", package.id), &package.pus);
    }
    for node in &topology.nodes {
        let memory = match node.memory_bytes {
            0 => "no memory".to_owned(),
            size => format::bytes(size),
        };
        add(&mut blocks, 1, "node", format!("NUMA {} · {memory}", node.id), &node.pus);
    }
    for l3 in &topology.l3 {
        let size = match l3.size_bytes {
            0 => String::new(),
            size => format!(" · {}", format::bytes(size)),
        };
        add(&mut blocks, 2, "l3", format!("L3 {}{size}", l3.id), &l3.pus);
    }
    let draw_cores = topology.has_smt();
    for core in topology.cores.iter().filter(|_| draw_cores) {
        add(
            &mut blocks,
            3,
            "core",
            format!("core {}{}", core.id, kind_suffix(core.kind)),
            &core.pus,
        );
    }
    // Largest first; among equal ones the outer kind first. The sort keeps the order of the tables.
    blocks.sort_by_key(|(rank, block)| (usize::MAX - block.pus.len(), *rank));
    let mut roots = Vec::new();
    for (_, block) in blocks {
        insert(&mut roots, block);
    }
    roots
}

fn add(
    blocks: &mut Vec<(usize, Block)>,
    rank: usize,
    class: &'static str,
    label: String,
    pus: &CpuSet,
) {
    if !pus.is_empty() {
        let block = Block { class, labels: vec![label], pus: pus.clone(), inside: Vec::new() };
        blocks.push((rank, block));
    }
}

/// Inserts a block into the smallest one that contains it; equal ones are merged, except cores,
/// which stay separate boxes.
fn insert(level: &mut Vec<Block>, block: Block) {
    if let Some(outer) = level.iter_mut().find(|outer| block.pus.is_subset(&outer.pus)) {
        if outer.pus == block.pus && outer.inside.is_empty() && block.class != "core" {
            outer.labels.extend(block.labels);
        } else {
            insert(&mut outer.inside, block);
        }
    } else if level.iter().all(|other| other.pus.is_disjoint(&block.pus)) {
        level.push(block);
    }
}

fn kind_suffix(kind: CoreKind) -> &'static str {
    match kind {
        CoreKind::Uniform => "",
        CoreKind::Performance => " P",
        CoreKind::Efficiency => " E",
        CoreKind::LowPower => " LP",
    }
}

fn put_blocks(
    html: &mut String,
    blocks: &[Block],
    put: &dyn Fn(&mut String, &Pu),
    topology: &Topology,
) {
    for block in blocks {
        let mut label = escape(&block.labels.join(" · "));
        // Small cells have no CPU number, so the innermost box with a label has it.
        let innermost = block.class != "core" && block.inside.iter().all(|it| it.class == "core");
        if innermost && Scale::from_topology(topology) == Scale::Small {
            label.push_str(&format!(" · CPU {}", block.pus));
        }
        html.push_str(&format!("<div class=\"box {}\"><p>{label}</p><div>", block.class));
        put_blocks(html, &block.inside, put, topology);
        let nested = block.inside.iter().map(|inner| &inner.pus).collect::<CpuSet>();
        for pu in &topology.pus {
            if block.pus.contains(pu.os) && !nested.contains(pu.os) {
                put(html, pu);
            }
        }
        html.push_str("</div></div>\n");
    }
}

/// The threads that may run on a CPU under a plan.
fn seat(plan: &Plan, pu: PuId) -> CpuBox {
    let mut seat = CpuBox {
        host: plan.housekeeping.contains(pu),
        exclusive: plan.exclusive.contains(pu),
        ..CpuBox::default()
    };
    for (_, thread) in plan.threads().filter(|(_, thread)| thread.pus.contains(pu)) {
        match (thread.role.vcpu(), thread.role.iothread()) {
            (Some(index), _) => {
                seat.vcpus.push(index);
                seat.pinned |= thread.pus.len() == 1;
            }
            (None, Some(_)) => seat.others.push(thread.role.describe()),
            (None, None) => seat.others.push(thread.role.to_string()),
        }
    }
    seat
}

impl CpuBox {
    fn class(&self) -> String {
        let main = match (self.vcpus.is_empty(), self.pinned, self.others.is_empty(), self.host) {
            (false, true, _, _) => "pinned",
            (false, false, _, _) => "floating",
            (true, _, false, _) => "helper",
            (true, _, true, true) => "host",
            (true, _, true, false) => "free",
        };
        format!("pu {main}{}", if self.exclusive { " exclusive" } else { "" })
    }

    /// All threads on the CPU, as words.
    fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if !self.vcpus.is_empty() {
            let floats = if self.pinned { "" } else { " ↔" };
            words.push(format!("vCPU {}{floats}", ranges(&self.vcpus)));
        }
        words.extend(self.others.iter().cloned());
        if self.host {
            words.push("host".to_owned());
        }
        if self.exclusive {
            words.push("exclusive".to_owned());
        }
        if words.is_empty() {
            words.push("unused".to_owned());
        }
        words
    }

    /// All threads on the CPU, as a few letters, for small cells.
    fn letters(&self) -> String {
        let mut letters = match self.vcpus.as_slice() {
            [] => String::new(),
            [one] if self.pinned => one.to_string(),
            _ => "∗".to_owned(),
        };
        if self.vcpus.is_empty() {
            letters.push_str(if self.others.is_empty() { "" } else { "E" });
            letters.push_str(if self.host { "H" } else { "" });
        }
        letters
    }
}

fn put_pu(html: &mut String, pu: &Pu, seat: &CpuBox, scale: Scale) {
    let written = match scale {
        Scale::Small => {
            let title = escape(&format!("CPU {}: {}", pu.os, seat.words().join(", ")));
            write!(html, "<i class=\"{}\" title=\"{title}\">{}</i>", seat.class(), seat.letters())
        }
        Scale::Roomy | Scale::Middle | Scale::Dense => {
            let kind = kind_suffix(pu.kind);
            write!(html, "<div class=\"{}\"><b>CPU {}{kind}</b>", seat.class(), pu.os).and_then(
                |()| {
                    // In dense charts, the double frame replaces the word.
                    for word in seat
                        .words()
                        .iter()
                        .filter(|word| scale != Scale::Dense || *word != "exclusive")
                    {
                        write!(html, "<span>{}</span>", escape(word))?;
                    }
                    html.write_str("</div>")
                },
            )
        }
    };
    // Writing to a String cannot fail.
    written.unwrap_or(());
}

/// Ascending numbers as `0-3,5`.
fn ranges(numbers: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => parts.push((*number, *number)),
        }
    }
    let words: Vec<String> = parts
        .into_iter()
        .map(
            |(first, last)| {
                if first == last { first.to_string() } else { format!("{first}–{last}") }
            },
        )
        .collect();
    words.join(", ")
}

#[cfg(test)]
mod tests;
