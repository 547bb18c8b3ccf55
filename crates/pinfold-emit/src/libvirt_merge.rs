//! Merges a plan into an existing libvirt domain file.
//!
//! Only placement-related elements are replaced: `<vcpu>`, `<iothreads>`, the pins and schedulers
//! in `<cputune>`, `<topology>` and the cells in `<cpu>`, the nodes in `<numatune>`, the page size
//! in `<memoryBacking>`. If more than pins is replaced, a comment before the element contains the
//! old content. Every other byte stays: comments, quotes, the order of elements, other children of
//! the same parents (`<shares>`, `<cachetune>`, `<feature>`). The parser gives the byte range of
//! each element; text is replaced in these ranges, never generated from a tree. Merging twice has
//! the same result as merging once.

mod cpu;
pub(crate) mod edits;
mod memory;

use self::edits::Edits;
use crate::libvirt_merge::cputune_edits::CputuneChanges;
use pinfold_model::text::cpus_text;
use pinfold_model::{Plan, Role, Topology, VnodePlan};
use pinfold_plan::command;
use pinfold_plan::definition::{NAMESPACE, StrategyRecord};
use pinfold_plan::domain_file::{
    Domain, DomainError, Manager, Target, error_at, is_libvirt_element, parse,
};
use pinfold_plan::guest_numa::GuestCell;
use roxmltree::Node;

use super::libvirt::{PinElement, comment_text, cputune_edits, scheduler_line};

/// Maximum length of the file's text in a comment or a note.
const LONGEST_SHOWN: usize = 200;

/// A domain file after merging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The complete file.
    pub text: String,
    /// Parts of the plan that libvirt cannot express, and elements of the file that were replaced.
    pub notes: Vec<String>,
}

/// Merges the plan of one virtual machine into its domain file.
///
/// ```
/// use pinfold_model::{Request, VcpuCount};
///
/// let topology = pinfold_samples::from_description("core:4 pu:2");
/// let request = Request::vm("vm", VcpuCount::Exactly(2));
/// let plan = pinfold_plan::plan("compact", &topology, &request)?;
/// let xml = "<domain type='kvm'>\n  <name>vm</name>\n  <vcpu>2</vcpu>\n</domain>\n";
/// let merged = pinfold_emit::merge_libvirt_domain(xml, &plan, &plan.vnodes[0], &topology)?;
/// assert!(merged.text.contains("<cputune>"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`DomainError`] with line and column: the file is refused as by [`Domain::read`], or what it
/// says of single vCPUs does not fit the plan's number of them.
pub fn merge_libvirt_domain(
    xml: &str,
    plan: &Plan,
    vnode: &VnodePlan,
    topology: &Topology,
) -> Result<Merged, DomainError> {
    let domain = Domain::read(xml)?;
    let document = parse(xml)?;
    let root = document.root_element();
    let count = vnode.vcpus().count();
    let leaves_reserve = domain.has_reserve() && domain.enabled_vcpus.len() == count;
    let renumbered = leaves_reserve.then(|| with_numbers_of(&domain, vnode));
    let vnode = renumbered.as_ref().unwrap_or(vnode);
    if count == 0 {
        return Err(error_at(root, "the plan has no vCPU, so there is nothing to merge"));
    }
    let bytes = vnode.memory.as_ref().and_then(|memory| memory.bytes).or(domain.memory_bytes);
    if let Some(why) = domain.memory_excess(bytes, topology) {
        let mut error = error_at(child(root, "memory").unwrap_or(root), why);
        error.hint = Some("give the machine less memory, or use another host");
        return Err(error);
    }
    let mut merge = Merge { edits: Edits::new(xml), root, domain: &domain, notes: Vec::new() };
    let cells = if domain.cells.is_empty() && !leaves_reserve {
        merge.cells(vnode, topology)?
    } else {
        Cells { cells: Vec::new(), sizes: Vec::new() }
    };
    if let Some((manager, _)) = Manager::from_root(root) {
        merge.notes.push(format!(
            "{} writes this file, and changes are lost at the next start: {}",
            manager.name(),
            manager.with_replacement()
        ));
    }
    merge.mark(StrategyRecord::new(plan, vnode));
    let all = if leaves_reserve { domain.vcpus.value as usize } else { count };
    merge.vcpu(all)?;
    let iothreads = merge.iothreads(vnode);
    let tuned = cputune_edits::tune_domain(plan, vnode, topology);
    merge.cputune(vnode, &iothreads, &tuned, all);
    merge.notes.extend(tuned.notes);
    merge.memory(vnode, topology, &cells)?;
    if leaves_reserve {
        merge.notes.push(format!(
            "{} of the {all} vCPUs are hot-pluggable; they have no pin and float",
            all - count
        ));
    }
    merge.cpu(vnode, topology, &cells, leaves_reserve);
    if !plan.exclusive.is_empty() {
        merge.notes.push(format!(
            "libvirt cannot exclude other tasks from {}: run `{}` on the running domain",
            cpus_text(&plan.exclusive),
            command::apply_isolated(&domain.name, Some(&plan.strategy))
        ));
    }
    let Merge { edits, notes, .. } = merge;
    Ok(Merged { text: edits.apply(), notes })
}

struct Merge<'a, 'x> {
    edits: Edits<'x>,
    root: Node<'a, 'x>,
    domain: &'a Domain,
    notes: Vec<String>,
}

impl<'a, 'x> Merge<'a, 'x> {
    /// The strategy mark in `<metadata>`; removes a mark of an earlier placement.
    fn mark(&mut self, mark: Option<StrategyRecord>) {
        let line = mark.as_ref().map(StrategyRecord::line);
        let Some(metadata) = child(self.root, "metadata") else {
            if let Some(line) = line {
                let names = ["description", "title", "genid", "uuid", "name"];
                self.insert_after(&names, &block("metadata", &[line]));
            }
            return;
        };
        let old = metadata.children().find(is_mark);
        match (old, line) {
            (_, Some(line)) => self.edits.exchange(metadata, is_mark, &[line]),
            (Some(old), None) => {
                let alone = metadata.children().filter(Node::is_element).count() == 1;
                self.edits.remove(if alone { metadata } else { old });
            }
            (None, None) => {}
        }
    }

    fn vcpu(&mut self, count: usize) -> Result<(), DomainError> {
        let line = format!("<vcpu placement='static'>{count}</vcpu>");
        let Some(node) = child(self.root, "vcpu") else {
            self.new_element(&[line]);
            return Ok(());
        };
        let same = u32::try_from(count) == Ok(self.domain.vcpus.value);
        if !same {
            if let Some(fixed) = child(self.root, "vcpus") {
                let why = format!(
                    "<vcpus> lists {} single vCPUs, the plan has {count}",
                    self.domain.vcpus.value
                );
                let mut error = error_at(fixed, why);
                error.hint = Some("plan for as many vCPUs as the domain has, or remove <vcpus>");
                return Err(error);
            }
            if let Some(cell) = self.domain.cells.first() {
                return Err(DomainError {
                    line: cell.place.line.unwrap_or(1),
                    column: 1,
                    why: format!(
                        "the guest's NUMA cells have {} vCPUs, the plan has {count}",
                        self.domain.vcpus.value
                    ),
                    hint: Some("plan for as many vCPUs as the domain has, or remove <numa>"),
                });
            }
        }
        let free = node.attribute("cpuset").is_none()
            && matches!(node.attribute("placement"), None | Some("static"));
        if same && free {
            return Ok(());
        }
        // The plan does not determine the number of vCPUs that are online at boot.
        let online = node.attribute("current").and_then(|text| text.trim().parse::<usize>().ok());
        let line = match online.filter(|online| (1..count).contains(online)) {
            Some(online) => format!("<vcpu placement='static' current='{online}'>{count}</vcpu>"),
            None => line,
        };
        let why = if same {
            "every thread has its own pin"
        } else {
            "the plan has another number of vCPUs"
        };
        self.swap(node, line, why);
        Ok(())
    }

    /// The file's iothreads by number, each with the plan's role for it, if there is one.
    fn iothreads(&mut self, vnode: &VnodePlan) -> Vec<(u32, Option<Role>)> {
        let planned: Vec<&Role> = vnode
            .threads
            .iter()
            .map(|thread| &thread.role)
            .filter(|role| role.iothread().is_some())
            .collect();
        let mut numbers = self.domain.iothreads.clone();
        if planned.len() > numbers.len() {
            let line = format!("<iothreads>{}</iothreads>", planned.len());
            match child(self.root, "iothreads") {
                Some(node) => self.swap(node, line, "the plan has more iothreads"),
                None => self.insert_after(&["vcpus", "vcpu"], &[line]),
            }
            let mut next = 1;
            while numbers.len() < planned.len() {
                if !numbers.contains(&next) {
                    numbers.push(next);
                }
                next += 1;
            }
            numbers.sort_unstable();
        }
        // Iothreads with libvirt's own names first, the others in order.
        let mut rest: Vec<&Role> = planned
            .iter()
            .filter(|role| {
                !numbers.iter().any(|number| ***role == Target::Iothread(*number).role())
            })
            .copied()
            .collect();
        rest.reverse();
        let mut pairs = Vec::new();
        for number in &numbers {
            let role = match planned.iter().find(|role| ***role == Target::Iothread(*number).role())
            {
                Some(role) => Some((*role).clone()),
                None => rest.pop().cloned(),
            };
            if let Some(role) =
                role.as_ref().filter(|role| **role != Target::Iothread(*number).role())
            {
                self.notes
                    .push(format!("libvirt's iothread {number} corresponds to {role} of the plan"));
            }
            pairs.push((*number, role));
        }
        pairs
    }

    fn cputune(
        &mut self,
        vnode: &VnodePlan,
        iothreads: &[(u32, Option<Role>)],
        tuned: &cputune_edits::CputuneChanges,
        vcpus: usize,
    ) {
        let mut lines = Vec::new();
        let mut schedulers = Vec::new();
        for thread in vnode.vcpus() {
            if let Role::Vcpu(index) = thread.role {
                lines.push(format!("<vcpupin vcpu='{index}' cpuset='{}'/>", thread.pus));
                schedule(
                    vnode,
                    &mut schedulers,
                    PinElement::Vcpu(index),
                    &thread.role,
                    &mut self.notes,
                );
            }
        }
        if let Some(emulator) = vnode.thread(&Role::Emulator) {
            lines.push(format!("<emulatorpin cpuset='{}'/>", emulator.pus));
            schedule(
                vnode,
                &mut schedulers,
                PinElement::Emulator,
                &Role::Emulator,
                &mut self.notes,
            );
        }
        for (number, role) in iothreads {
            // An iothread that is not in the plan follows the emulator.
            let role = role.as_ref().unwrap_or(&Role::Emulator);
            if let Some(thread) = vnode.thread(role) {
                lines.push(format!("<iothreadpin iothread='{number}' cpuset='{}'/>", thread.pus));
                if thread.role != Role::Emulator {
                    schedule(
                        vnode,
                        &mut schedulers,
                        PinElement::Iothread(*number),
                        role,
                        &mut self.notes,
                    );
                }
            }
        }
        for thread in &vnode.threads {
            if matches!(thread.role, Role::Vhost(_)) {
                let (role, pus) = (&thread.role, &thread.pus);
                self.notes.push(format!("libvirt has no pin for {role}: the plan wants {pus}"));
            }
        }
        self.write_cputune(lines, schedulers, tuned, vcpus);
    }

    /// Replaces the pins, schedulers and tunables of `<cputune>`; comments contain the old
    /// schedulers and tunables.
    fn write_cputune(
        &mut self,
        mut lines: Vec<String>,
        schedulers: Vec<String>,
        tuned: &cputune_edits::CputuneChanges,
        vcpus: usize,
    ) {
        // A plan without policies keeps those of the file, unless the number of vCPUs has changed.
        let names = ["vcpupin", "emulatorpin", "iothreadpin"];
        let kept = schedulers.is_empty() && self.domain.vcpus.value as usize == vcpus;
        let sched = ["vcpusched", "emulatorsched", "iothreadsched"];
        let why = if schedulers.is_empty() {
            "the number of vCPUs differs, and the plan has no policy"
        } else {
            "the plan defines its own policies"
        };
        lines.extend(schedulers);
        lines.extend(tuned.lines.iter().cloned());
        let Some(node) = child(self.root, "cputune") else {
            self.after_vcpu(&block("cputune", &lines));
            return;
        };
        let mut comments = Vec::new();
        for old in node
            .children()
            .filter(|child| is_ours(&names, tuned, kept, &sched, child) && is_gone(&lines, child))
        {
            if is_named(&sched, &old) {
                comments.push(self.exchange(old, why));
            } else if is_named(&tuned.names, &old) {
                comments.push(self.exchange(old, "the plan has this tunable"));
            }
        }
        lines.splice(0..0, comments);
        self.edits.exchange(node, |node| is_ours(&names, tuned, kept, &sched, node), &lines);
    }

    /// Replaces one element, with a comment before it that contains the old one.
    fn swap(&mut self, node: Node<'a, 'x>, line: String, why: &str) {
        let comment = self.exchange(node, why);
        self.edits.replace(node, &[comment, line]);
    }

    /// Adds a note about a replaced element; returns the comment for the file.
    fn exchange(&mut self, node: Node<'_, '_>, why: &str) -> String {
        let old: Vec<&str> = source(node).split_whitespace().collect();
        let mut old = old.join(" ");
        if old.chars().count() > LONGEST_SHOWN {
            old = old.chars().take(LONGEST_SHOWN).collect::<String>() + "…";
        }
        let row = node.document().text_pos_at(node.range().start).row;
        self.notes.push(format!("line {row}: {old} was replaced: {why}"));
        format!("<!-- Pinfold: {} -->", comment_text(&format!("{why}; before: {old}")))
    }

    /// Adds a new element of the domain at the usual position.
    fn after_vcpu(&mut self, lines: &[String]) {
        self.insert_after(&["iothreadids", "iothreads", "vcpus", "vcpu"], lines);
    }

    fn new_element(&mut self, lines: &[String]) {
        self.insert_after(&["currentMemory", "memory", "name"], lines);
    }

    fn insert_after(&mut self, names: &[&str], lines: &[String]) {
        match names.iter().find_map(|name| child(self.root, name)) {
            Some(node) => self.edits.insert_after(node, lines),
            None => self.edits.insert_into(self.root, lines),
        }
    }
}

fn schedule(
    vnode: &VnodePlan,
    schedulers: &mut Vec<String>,
    place: PinElement,
    role: &Role,
    notes: &mut Vec<String>,
) {
    let Some(policy) = vnode.thread(role).and_then(|thread| thread.policy) else {
        return;
    };
    match scheduler_line(policy, &place) {
        Ok(Some(line)) => schedulers.push(line),
        Ok(None) => {}
        Err(why) => notes.push(format!("{role}: {why}")),
    }
}

fn is_ours(
    names: &[&str],
    tuned: &CputuneChanges,
    kept: bool,
    sched: &[&str],
    node: &Node<'_, '_>,
) -> bool {
    let name = node.tag_name().name();
    names.contains(&name) || tuned.names.contains(&name) || (!kept && sched.contains(&name))
}

fn is_gone(lines: &[String], child: &Node<'_, '_>) -> bool {
    !lines.iter().any(|line| line == source(*child))
}

fn is_named(names: &[&str], node: &Node<'_, '_>) -> bool {
    names.contains(&node.tag_name().name())
}

fn is_mark(node: &Node<'_, '_>) -> bool {
    node.has_tag_name((NAMESPACE, "placement"))
}

/// The vnode with the numbers of the file's existing vCPUs; plans number them without gaps.
fn with_numbers_of(domain: &Domain, vnode: &VnodePlan) -> VnodePlan {
    let numbers: Vec<u32> = domain.enabled_vcpus.iter().map(|vcpu| vcpu.0).collect();
    let mut vnode = vnode.clone();
    for thread in &mut vnode.threads {
        let number = thread.role.vcpu().and_then(|index| numbers.get(index as usize));
        if let Some(number) = number {
            thread.role = Role::Vcpu(*number);
        }
    }
    vnode
}

/// The guest's NUMA cells with their sizes in bytes; empty if the guest has none.
struct Cells {
    cells: Vec<GuestCell>,
    sizes: Vec<u64>,
}

impl Cells {
    fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }
}

/// The text of an element in the file.
fn source<'x>(node: Node<'_, 'x>) -> &'x str {
    node.document().input_text().get(node.range()).unwrap_or_default()
}

/// An element with children, one line each.
fn block(open: &str, lines: &[String]) -> Vec<String> {
    let name = open.split(' ').next().unwrap_or(open);
    let mut block = vec![format!("<{open}>")];
    block.extend(lines.iter().map(|line| format!("  {line}")));
    block.push(format!("</{name}>"));
    block
}

fn child<'a, 'x>(node: Node<'a, 'x>, name: &str) -> Option<Node<'a, 'x>> {
    node.children().find(|child| is_libvirt_element(child, name))
}
