//! The replacement text: the lines in which a layout and its target differ, each with the finding
//! that it belongs to.
//!
//! Every changed line is quoted exactly once, so that applying all of them gives the target.

use std::collections::BTreeMap;
use std::sync::Arc;

use pinfold_model::text::{count_noun, pus_text};
use pinfold_model::{
    Command, CpuSet, IsolationScope, Plan, Request, RoleClass, Severity, Topology,
};
use pinfold_plan::boot::{self, isolation_parameters};
use pinfold_plan::command;
use pinfold_plan::domain_file::parse;
use pinfold_plan::layout::{Layout, SourceFormat};
use pinfold_plan::plan_if_possible;
use roxmltree::Node;

use super::lookup::{CpuIndex, LintContext, is_real_time};
use super::one_layout::of_one;
use super::repair::{Parents, Repair};
use super::target::{self, Target, asks_for_another_place};
use super::{Diagnostic, memory, own_pins, repair, replan_command};

/// A line that is replaced, added or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    /// Tag of its element, as in libvirt's format.
    tag: String,
    /// The present line; `None` if it is added.
    old: Option<String>,
    /// The new line; `None` if it is removed.
    new: Option<String>,
    /// The opening tags of the elements that it is to stand in, if it is new.
    parents: Vec<String>,
}

impl Change {
    fn line(&self) -> String {
        match (&self.new, &self.old) {
            (Some(new), _) => new.clone(),
            (None, old) => format!("remove {}", old.as_deref().unwrap_or_default()),
        }
    }
}

/// Adds the replacement text to each diagnostic of one layout; returns the target that is quoted.
pub(super) fn add_advice(
    diagnostics: &mut [Diagnostic],
    view: &LintContext<'_, '_>,
    conditions: &Request,
) -> Option<Target> {
    let target = target_of(diagnostics, view, conditions);
    let Some(target) = target else {
        let shares = diagnostics.iter().map(|_| Share::default()).collect();
        write(diagnostics, shares, view);
        return None;
    };
    let asking: Vec<usize> =
        (0..diagnostics.len()).filter(|at| asks_for_another_place(&diagnostics[*at])).collect();
    let (target, then) = with_new_repairs(target, diagnostics, view);
    let mut changes = changes(view, &target.layout);
    judge_by(diagnostics, &then, &changes);
    let repairs = diagnostics.iter().flat_map(|diagnostic| &diagnostic.repairs);
    let repaired: Vec<&String> = repairs.filter_map(|repair| repair.line.as_ref()).collect();
    changes.retain(|change| change.new.as_ref().is_none_or(|new| !repaired.contains(&new)));
    let shares = share_out(diagnostics, &asking, &changes);
    write(diagnostics, shares, view);
    Some(target)
}

/// The same where too many machines need another placement for advice on each.
pub(super) fn give_together(
    diagnostics: &mut [Diagnostic],
    view: &LintContext<'_, '_>,
    machines: usize,
) {
    let line = format!(
        "plan the {machines} machines that need another placement together: a placement for one \
         alone could take the CPUs of another"
    );
    for diagnostic in diagnostics.iter_mut().filter(|diagnostic| asks_for_another_place(diagnostic))
    {
        diagnostic.instead.push(line.clone());
    }
    let shares = diagnostics.iter().map(|_| Share::default()).collect();
    write(diagnostics, shares, view);
}

/// The target, if a diagnostic asks for another placement; of those that no placement removes it is
/// said.
fn target_of(
    diagnostics: &mut [Diagnostic],
    view: &LintContext<'_, '_>,
    conditions: &Request,
) -> Option<Target> {
    if !diagnostics.iter().any(asks_for_another_place) {
        return None;
    }
    match target::find(view, conditions) {
        Ok(target) => {
            if !target.left.is_empty() {
                let line = without_target(view, conditions);
                mark_final(diagnostics, &line, |diagnostic| target.left.contains(&diagnostic.name));
            }
            Some(target)
        }
        Err(why) => {
            let line = match why {
                Some(error) => format!("cannot change this file: {error}"),
                None => without_target(view, conditions),
            };
            mark_final(diagnostics, &line, |_| true);
            None
        }
    }
}

/// Writes the advice of each diagnostic, in their order: what one adds is there for the next.
fn write(diagnostics: &mut [Diagnostic], shares: Vec<Share<'_>>, view: &LintContext<'_, '_>) {
    let mut parents = Parents::from_xml(view.layout.text.as_deref());
    for (diagnostic, share) in diagnostics.iter_mut().zip(shares) {
        if !diagnostic.repairs.is_empty() {
            diagnostic.instead = repair::with_replacement(&diagnostic.repairs, &mut parents);
        }
        diagnostic.instead.extend(join_changes(&share.changes, &mut parents));
        diagnostic.instead.extend(share.settled);
    }
}

/// If unbound memory is the only diagnostic that another placement would remove, it is bound to the
/// nodes of the vCPUs, which keep their pins.
pub(super) fn bind_in_place(diagnostics: &mut [Diagnostic], view: &LintContext<'_, '_>) {
    let mut asking = diagnostics.iter_mut().filter(|diagnostic| asks_for_another_place(diagnostic));
    if let (Some(only), None) = (asking.next(), asking.next())
        && only.name == "memory-not-bound"
    {
        only.repairs = memory::binding(view).into_iter().collect();
    }
}

/// Of what has advice of its own, the advice for the placement that is advised: what is true of the
/// present pins need not be true of those.
fn judge_by(diagnostics: &mut [Diagnostic], then: &[Diagnostic], changes: &[Change]) {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for diagnostic in diagnostics.iter_mut().filter(has_own_advice) {
        let before = seen.entry(diagnostic.name).or_default();
        let same = then.iter().filter(|other| other.name == diagnostic.name).nth(*before);
        *before += 1;
        match same {
            Some(same) => {
                diagnostic.repairs.clone_from(&same.repairs);
                diagnostic.instead.clone_from(&same.instead);
            }
            None if diagnostic
                .repairs
                .iter()
                .any(|repair: &Repair| changes.iter().any(|change| change.new == repair.line)) => {}
            None => {
                diagnostic.repairs.clear();
                diagnostic.instead = vec![NO_LONGER.to_owned()];
            }
        }
    }
}

fn has_own_advice(diagnostic: &&mut Diagnostic) -> bool {
    let is_noted = diagnostic.severity == Severity::Note && !diagnostic.instead.is_empty();
    !diagnostic.is_final
        && !OPEN.contains(&diagnostic.name)
        && (is_noted || !diagnostic.repairs.is_empty())
}

const NO_LONGER: &str = "nothing: this does not apply to the suggested placement";

/// The target with what its own check still has to say of the rest of its file, where the check of
/// the file did not: what becomes untrue by the new pins.
fn with_new_repairs(
    target: Target,
    diagnostics: &[Diagnostic],
    view: &LintContext<'_, '_>,
) -> (Target, Vec<Diagnostic>) {
    let then = of_one(&LintContext::new(&target.layout, view.lookup), None);
    let repairs: Vec<_> = then
        .iter()
        .filter(|diagnostic| {
            diagnostic.severity >= Severity::Warning
                && diagnostics.iter().all(|known| known.name != diagnostic.name)
        })
        .flat_map(|diagnostic| &diagnostic.repairs)
        .collect();
    let text = target.layout.text.as_deref().filter(|_| !repairs.is_empty());
    let changed = text.and_then(|text| repair::apply(text, repairs).ok());
    let layout = changed.and_then(|text| Layout::of_text(&text, &target.layout.source).ok());
    let target = Target { layout: layout.unwrap_or(target.layout), ..target };
    (target, then)
}

/// The findings about CPUs of vCPUs that the host's tasks may use.
const OPEN: [&str; 2] = ["not-isolated", "sibling-left-to-host"];

/// How to exclude the host's tasks from the CPUs of vCPUs.
pub(super) struct Isolation<'a> {
    topology: &'a Topology,
    /// The user's conditions with isolation scope `host`.
    isolated: Request,
    kernel_parameters: Option<String>,
    /// The answer for each plan, shared by its layouts.
    plans: Vec<(Arc<Plan>, String)>,
}

impl<'a> Isolation<'a> {
    /// For machines that have the CPUs `held` after the advice is followed: a host has one kernel
    /// command line, for the cores of all of them.
    pub fn new(lookup: &CpuIndex<'a>, held: &CpuSet, conditions: &Request) -> Self {
        let cores = lookup.whole_cores(held).intersection(&lookup.online);
        let host = lookup.online.difference(&cores);
        let kernel_parameters = (!host.is_empty() && !cores.is_empty()).then(|| {
            let siblings = boot::possible_siblings(&cores, lookup.topology);
            let mut line = isolation_parameters(&cores.union(&siblings));
            line.push(format!("irqaffinity={host}"));
            let old = boot::describe_replaced_parameters(&line, &lookup.topology.boot_parameters);
            let line = line.join(" ");
            format!("the kernel parameters `{line}`{old} exclude them from boot on")
        });
        let isolated = Request { isolation: IsolationScope::Host, ..conditions.clone() };
        Self { topology: lookup.topology, isolated, kernel_parameters, plans: Vec::new() }
    }

    /// Adds the advice to each diagnostic about CPUs that the host's tasks may use: a command, and
    /// the kernel parameters. The command keeps the pins of `placed`, the layout after the advice
    /// is followed, and leaves the cores of the `others` alone.
    pub fn advise(
        &mut self,
        diagnostics: &mut [Diagnostic],
        view: &LintContext<'_, '_>,
        placed: &Layout,
        others: &CpuSet,
    ) {
        for diagnostic in
            diagnostics.iter_mut().filter(|diagnostic| OPEN.contains(&diagnostic.name))
        {
            let command = self.command(view, placed, others);
            diagnostic.instead.push(match &self.kernel_parameters {
                Some(parameters) => format!("{command}; {parameters}"),
                None => command,
            });
        }
    }

    fn command(&mut self, view: &LintContext<'_, '_>, placed: &Layout, others: &CpuSet) -> String {
        let layout = view.layout;
        let apply = match (&layout.language, &layout.plan) {
            (SourceFormat::Running(option), _) => Command::new(format!("apply {option}")),
            (SourceFormat::Libvirt, _) => Command::new("apply --libvirt").arg(&layout.name),
            (SourceFormat::Plan, Some(plan)) => return self.for_plan(plan),
            (SourceFormat::Plan, None) => return NO_PLAN_KEEPS_OFF.to_owned(),
        };
        let mut conditions = self.isolated.clone();
        conditions.avoid.add(others);
        let mut request = target::request(view, &conditions);
        for vnode in &mut request.vnodes {
            vnode.pins = own_pins::pin_requests(placed);
        }
        // The policies of the file stay under a strategy that sets none.
        let mut strategies = [strategy_of(view), None, Some("balanced")].into_iter();
        let Some(strategy) = strategies.find(|strategy| {
            plan_if_possible(strategy.unwrap_or("auto"), self.topology, &request).is_some()
        }) else {
            return NO_PLAN_KEEPS_OFF.to_owned();
        };
        let apply = command::with_strategy(&apply.to_string(), strategy);
        let apply = command::add_request_options(&apply, &conditions) + &own_pins::options(placed);
        let undo = Command::new("undo");
        format!(
            "`{apply}` keeps these pins and excludes other tasks from these CPUs until `{undo}`"
        )
    }

    fn for_plan(&mut self, plan: &Arc<Plan>) -> String {
        if let Some((_, known)) = self.plans.iter().find(|(known, _)| Arc::ptr_eq(known, plan)) {
            return known.clone();
        }
        let text =
            match replan_command::arguments_without(plan, self.topology, &self.isolated, &OPEN) {
                Some(again) => {
                    format!("`{again}` makes a plan that excludes them while it is applied")
                }
                None => NO_PLAN_KEEPS_OFF.to_owned(),
            };
        self.plans.push((Arc::clone(plan), text.clone()));
        text
    }
}

/// The strategy of a layout, as far as it shows: the mark in the file, or a real-time policy of its
/// vCPUs, which `apply` would only give under `realtime`.
fn strategy_of<'v>(view: &'v LintContext<'_, '_>) -> Option<&'v str> {
    view.layout
        .defined_by
        .as_deref()
        .or_else(|| view.vcpus().any(|(_, pin)| is_real_time(pin.policy)).then_some("realtime"))
}

const NO_PLAN_KEEPS_OFF: &str = "no plan for all these vCPUs excludes the host's tasks from them: \
                                 plan fewer vCPUs, so that the host has its own CPUs";

/// Marks diagnostics that no placement removes.
fn mark_final(diagnostics: &mut [Diagnostic], line: &str, which: impl Fn(&Diagnostic) -> bool) {
    for diagnostic in diagnostics
        .iter_mut()
        .filter(|diagnostic| asks_for_another_place(diagnostic) && which(diagnostic))
    {
        diagnostic.is_final = true;
        diagnostic.instead.push(line.to_owned());
    }
}

/// The advice if no placement of this number of vCPUs is without faults.
fn without_target(view: &LintContext<'_, '_>, conditions: &Request) -> String {
    if view.layout.vcpus == 0 {
        return "request fewer cores, or use another strategy".to_owned();
    }
    let vcpus = count_noun(view.layout.vcpus as usize, "vCPU");
    let place = match target::home(view, &conditions.avoid) {
        Some(node) => format!("node {node} of this host"),
        None => "this host".to_owned(),
    };
    // What is true of the CPUs that are left need not be true of the host.
    let excluded = conditions.avoid.intersection(&view.lookup.online);
    let is_limited = !excluded.is_empty() || conditions.free.is_some();
    let place = match (excluded.is_empty(), is_limited) {
        (false, _) => format!("{place} without {}", pus_text(&excluded)),
        (true, true) => format!("{place} without the CPUs that stay free"),
        (true, false) => place,
    };
    let none = format!("no placement of {vcpus} on {place} is free of warnings");
    match target::other_count(view, conditions) {
        Some(count) => {
            format!("{none}; there is one for {0}: configure {0}", count_noun(count, "vCPU"))
        }
        None if view.layout.cells.len() > 1 => {
            format!("{none}: remove the pins, or assign other vCPUs to the guest's cells")
        }
        None if is_limited => {
            format!("{none}: exclude fewer CPUs, remove the pins, or use another host")
        }
        None => format!("{none}: remove the pins, or use another host"),
    }
}

/// The elements that a diagnostic concerns.
fn tags(name: &str) -> &'static [&'static str] {
    match name {
        "emulator-on-vcpu" => &["emulatorpin"],
        "iothread-on-vcpu" | "iothread-far" => &["iothreadpin"],
        "fifo-starves" => &["emulatorpin", "iothreadpin"],
        "topology-count" | "guest-siblings-lie" | "guest-siblings-hidden" => {
            &["topology", "feature", "cache", "vcpupin", "vcpu"]
        }
        // Pins do not change the number of sockets.
        "guest-sockets-lie" => &["topology", "feature", "cache"],
        "memory-far" | "memory-not-bound" | "absent-node" => &["memory", "memnode"],
        "nodes-hidden" | "cell-crosses-nodes" => &["cell", "memnode", "memory", "vcpupin"],
        "absent-pu" | "cpu-excluded" | "pin-of-nothing" => {
            &["vcpupin", "emulatorpin", "iothreadpin", "vcpu"]
        }
        _ => &["vcpupin", "vcpu"],
    }
}

/// What a diagnostic quotes of the changes.
#[derive(Default)]
struct Share<'c> {
    changes: Vec<&'c Change>,
    /// That lines under another diagnostic settle it.
    settled: Option<String>,
}

/// Each change under the first diagnostic that it belongs to, of those `asking` for another
/// placement; what belongs to none under the first.
fn share_out<'c>(
    diagnostics: &mut [Diagnostic],
    asking: &[usize],
    changes: &'c [Change],
) -> Vec<Share<'c>> {
    let mut shares: Vec<Share<'_>> = diagnostics.iter().map(|_| Share::default()).collect();
    let mut quoted: Vec<Option<&'static str>> = vec![None; changes.len()];
    let mut waiting = Vec::new();
    let still = asking.iter().copied().filter(|at| asks_for_another_place(&diagnostics[*at]));
    let asking: Vec<usize> = still.collect();
    for index in asking.iter().copied() {
        let name = diagnostics[index].name;
        let about = tags(name);
        let mine: Vec<usize> =
            (0..changes.len()).filter(|at| about.contains(&changes[*at].tag.as_str())).collect();
        let new: Vec<usize> = mine.iter().copied().filter(|at| quoted[*at].is_none()).collect();
        let elsewhere = mine.iter().find_map(|at| quoted[*at]);
        shares[index].changes.extend(new.iter().map(|at| &changes[*at]));
        new.iter().for_each(|at| quoted[*at] = Some(name));
        // Another topology cures these by itself.
        let is_cured = ["topology-count", "guest-sockets-lie"].contains(&name)
            && new.iter().any(|at| changes[*at].tag == "topology");
        match elsewhere {
            Some(_) if is_cured => {}
            Some(elsewhere) => shares[index].settled = Some(settled_by(elsewhere)),
            None if new.is_empty() => waiting.push(index),
            None => {}
        }
    }
    let rest = changes.iter().zip(&quoted).filter(|(_, by)| by.is_none());
    let first = asking.first().copied();
    if let Some(first) = first {
        // One that waits has no lines of its own: those of the others are all it can show.
        if waiting.first() == Some(&first) {
            diagnostics[first].instead.clear();
        }
        shares[first].changes.extend(rest.map(|(change, _)| change));
    }
    let by = quoted.iter().flatten().next().copied().or(first.map(|first| diagnostics[first].name));
    for index in waiting {
        let is_empty = diagnostics[index].instead.is_empty() && shares[index].changes.is_empty();
        if Some(index) != first || is_empty {
            diagnostics[index].instead.clear();
            shares[index].settled = by.map(settled_by);
        }
    }
    shares
}

fn settled_by(by: &str) -> String {
    format!("the lines under {by} fix this too")
}

/// The lines of several changes: those in place of others, then the new ones of each parent, which
/// is named once.
fn join_changes(changes: &[&Change], parents: &mut Parents<'_>) -> Vec<String> {
    let mut groups: Vec<(&[String], Vec<String>)> = vec![(&[], Vec::new())];
    for change in changes {
        let path = change.parents.as_slice();
        match groups.iter_mut().find(|(known, _)| *known == path) {
            Some((_, lines)) => lines.push(change.line()),
            None => groups.push((path, vec![change.line()])),
        }
    }
    groups
        .into_iter()
        .flat_map(|(path, lines)| {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            let place = (!path.is_empty()).then(|| parents.describe_position(&path));
            place.into_iter().chain(lines).collect::<Vec<_>>()
        })
        .collect()
}

fn changes(view: &LintContext<'_, '_>, target: &Layout) -> Vec<Change> {
    match (&view.layout.text, &target.text) {
        (Some(old), Some(new)) => difference(&of_text(old), &of_text(new)),
        _ => difference(&of_layout(view, view.layout), &of_layout(view, target)),
    }
}

/// One line of a layout.
#[derive(Clone, Debug)]
struct Line {
    tag: String,
    /// Identifies the element among the children of its parent.
    key: String,
    text: String,
    parents: Vec<Parent>,
}

/// An element that contains a line.
#[derive(Clone, Debug)]
struct Parent {
    tag: String,
    key: String,
    /// Its opening tag.
    opening: String,
}

impl Line {
    /// Its elements from the outermost on, each with the key that distinguishes it from its
    /// siblings: each of two disks has a `<driver>`.
    fn path(&self) -> Vec<(&str, &str)> {
        let parents = self.parents.iter().map(|one| (one.tag.as_str(), one.key.as_str()));
        parents.chain([(self.tag.as_str(), self.key.as_str())]).collect()
    }
}

/// The additions, replacements and removals that turn the old lines into the new ones.
fn difference(old: &[Line], new: &[Line]) -> Vec<Change> {
    fn texts(lines: &[Line]) -> BTreeMap<Vec<(&str, &str)>, &str> {
        lines.iter().map(|line| (line.path(), line.text.as_str())).collect()
    }
    let (before, after) = (texts(old), texts(new));
    // An element that gets its first child, or loses its last one, stays: that child is the change.
    let put = new
        .iter()
        .filter(|line: &&Line| {
            before.get(&line.path()) != Some(&line.text.as_str()) && !holds(old, line)
        })
        .map(|line| {
            let old = before.get(&line.path()).map(|text| (*text).to_owned());
            let parents = match &old {
                None => line.parents.iter().map(|one| one.opening.clone()).collect(),
                Some(_) => Vec::new(),
            };
            Change { tag: line.tag.clone(), old, new: Some(line.text.clone()), parents }
        });
    let gone = old
        .iter()
        .filter(|line: &&Line| !after.contains_key(&line.path()) && !holds(new, line))
        .map(|line| Change {
            tag: line.tag.clone(),
            old: Some(line.text.clone()),
            new: None,
            parents: Vec::new(),
        });
    put.chain(gone).collect()
}

fn holds(lines: &[Line], line: &Line) -> bool {
    let path = line.path();
    lines.iter().any(|other| other.path().len() > path.len() && other.path().starts_with(&path))
}

/// The elements of a domain file without child elements.
fn of_text(xml: &str) -> Vec<Line> {
    let Ok(document) = parse(xml) else { return Vec::new() };
    let source = |node: &Node<'_, '_>| {
        let text = document.input_text().get(node.range()).unwrap_or_default();
        text.split_whitespace().collect::<Vec<_>>().join(" ").replace('"', "'")
    };
    document
        .descendants()
        .filter(is_leaf)
        .map(|node: Node<'_, '_>| {
            let above = node.ancestors().skip(1);
            let above = above.filter(|above| above.is_element() && !above.has_tag_name("domain"));
            let mut parents: Vec<Parent> = above
                .map(|node| Parent {
                    tag: node.tag_name().name().to_owned(),
                    key: key(&node),
                    opening: source(&node)
                        .split_once('>')
                        .map_or("", |(opening, _)| opening.trim_matches(['<', '/', ' ']))
                        .to_owned(),
                })
                .collect();
            parents.reverse();
            Line {
                tag: node.tag_name().name().to_owned(),
                key: key(&node),
                // libvirt's own additions are no difference.
                text: source(&node).replace(" dies='1'", "").replace(" clusters='1'", ""),
                parents,
            }
        })
        .collect()
}

fn is_leaf(node: &Node<'_, '_>) -> bool {
    node.is_element() && !node.children().any(|child| child.is_element())
}

/// Identifies an element among those of its tag in its parent: its target and, for several with the
/// same target, its index.
fn key(node: &Node<'_, '_>) -> String {
    const NAMES: [&str; 7] = ["vcpu", "vcpus", "iothread", "iothreads", "cellid", "id", "name"];
    let of = |node: &Node<'_, '_>| {
        NAMES.iter().find_map(|name| node.attribute(*name).map(str::to_owned))
    };
    let own = of(node);
    let before = node.prev_siblings().skip(1);
    let alike = before.filter(|other| other.tag_name() == node.tag_name() && of(other) == own);
    format!("{} {}", own.as_deref().unwrap_or_default(), alike.count())
}

/// The pins, the guest topology and the memory of a layout without text.
fn of_layout(view: &LintContext<'_, '_>, layout: &Layout) -> Vec<Line> {
    fn line(tag: &str, key: String, text: String) -> Line {
        Line { tag: tag.to_owned(), key, text, parents: Vec::new() }
    }

    let mut lines = Vec::new();
    for pin in &layout.pins {
        let tag = match pin.role.kind().class {
            RoleClass::Vcpu => "vcpupin",
            RoleClass::Device => "iothreadpin",
            RoleClass::Main | RoleClass::Pool | RoleClass::Task => "emulatorpin",
        };
        if let Some(pus) = &pin.pus {
            lines.push(line(tag, pin.role.to_string(), view.write_pin(&pin.role, pus)));
        }
    }
    if let Some(guest) = &layout.guest {
        let (sockets, threads) = (guest.sockets.max(1) as usize, guest.threads.max(1) as usize);
        let cores = (layout.vcpus as usize / threads / sockets).max(1);
        lines.push(line("topology", String::new(), view.write_shape(sockets, cores, threads)));
    }
    for memory in layout.memory.iter().filter(|memory| memory.cell.is_none()) {
        if let Some(nodes) = &memory.nodes {
            lines.push(line("memory", String::new(), view.write_memory(nodes)));
        }
    }
    lines
}
