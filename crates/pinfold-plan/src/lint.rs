//! Finds faults in an existing placement, with replacements.
//!
//! A placement comes from a plan, a libvirt domain file or a running machine. Each becomes a
//! [`Layout`] that records where every value is written. [`lint`] checks one or several layouts of
//! one host against its topology, and the other latency-related parts of a domain file. Each
//! [`Diagnostic`] states the fault, its position, its cost and the replacement, in the language of
//! the layout. The advice is one placement that was planned for this layout and checked again, so
//! that applying all of it gives a file without warnings: [`fix`] writes it. Only facts of topology
//! and layout are checked; costs in numbers need a measurement.

mod advice;
mod again;
mod backing;
mod cores;
mod devices;
mod enlightenments;
mod file;
mod fix;
mod floating;
mod guest;
mod host;
mod layout;
mod lookup;
mod masks;
mod memory;
mod next;
mod overlap;
mod pages;
mod picture;
mod processor;
mod properties;
mod quotas;
mod render;
mod repair;
mod resized;
mod room;
mod target;
mod timers;

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{CpuSet, Request, Severity, Topology};

pub use again::again;
pub use fix::{RepairedFile, fix};
pub use layout::{GuestShape, Language, Layout, MemoryOf, Pages, Pin};
pub use next::next;
pub use picture::picture;
pub use render::{counts, render};

use crate::definition;
use crate::domain_file::{Place, parse, place};
use lookup::{CpuIndex, LintContext};
use repair::Repair;

/// One fault of a placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Severity: a problem does not start or can hang; a warning costs performance; a note is
    /// information.
    pub severity: Severity,
    /// Short name for scripts: `guest-siblings-lie`.
    pub name: &'static str,
    /// Name of the machine.
    pub vm: String,
    /// The fault, as a sentence without full stop.
    pub what: String,
    /// Positions of the values concerned.
    pub places: Vec<Place>,
    /// The cost, as a sentence without full stop.
    pub cost: String,
    /// The replacement, line by line, in the layout's language.
    pub instead: Vec<String>,
    /// True if no change of the layout removes it, because every placement has it.
    pub is_final: bool,
    /// Changes of single elements that remove it; empty if that takes another placement or a
    /// decision of the user.
    pub(crate) repairs: Vec<Repair>,
}

impl Diagnostic {
    /// Adds file and line to each place; a value that is not written gets those of the whole
    /// machine.
    fn is_below(&mut self, root: &Place) {
        if self.places.is_empty() {
            self.places.push(root.clone());
        }
        for place in &mut self.places {
            root.file.clone_into(&mut place.file);
            place.line = place.line.or(root.line);
        }
    }
}

/// Result of checking layouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LintReport {
    /// The faults, worst first; empty if there are none.
    pub flaws: Vec<Diagnostic>,
    /// For each layout a strategy that places it without a warning, if it must be placed anew.
    pub strategies: Vec<Option<&'static str>>,
}

/// Maximum number of layouts whose advice is coordinated, because each needs a plan.
const MOST_ADVISED: usize = 16;

/// The faults of `layouts`, all of one host, worst first; empty if there are none.
#[must_use]
pub fn lint(layouts: &[Layout], topology: &Topology) -> Vec<Diagnostic> {
    lint_under(layouts, topology, &Request::of(Vec::new())).flaws
}

/// The same, with advice that respects the user's conditions: CPUs to avoid, CPUs for the host.
///
/// A running machine and a file with the same name are one machine: the running state is checked
/// together with the others, and the file determines where its memory should be.
#[must_use]
pub fn lint_under(layouts: &[Layout], topology: &Topology, conditions: &Request) -> LintReport {
    let lookup = CpuIndex::of(topology, conditions);
    let views: Vec<_> = layouts.iter().map(|layout| LintContext::of(layout, &lookup)).collect();
    let written: BTreeMap<&str, &Layout> = layouts
        .iter()
        .filter(|layout| !layout.runs())
        .map(|layout| (layout.name.as_str(), layout))
        .collect();
    let running: BTreeSet<&str> =
        layouts.iter().filter(|layout| layout.runs()).map(|layout| layout.name.as_str()).collect();
    let (mut of_views, mut strategies) = (Vec::new(), Vec::new());
    let mut taken: Vec<CpuSet> = views.iter().map(|view| view.held.clone()).collect();
    for (index, view) in views.iter().enumerate() {
        let mut own = of_one(view, written.get(view.layout.name.as_str()).copied());
        let mut conditions = conditions.clone();
        if views.len() <= MOST_ADVISED {
            let others = taken.iter().enumerate().filter(|(other, _)| *other != index);
            others.for_each(|(_, pus)| conditions.avoid.add(&lookup.whole_cores(pus)));
        }
        let target = advice::give(&mut own, view, &conditions);
        if let Some(target) = &target {
            taken[index] = LintContext::of(&target.layout, &lookup).held;
        }
        strategies.push(target.and_then(|target| target.strategy));
        of_views.push(own);
    }
    let claims = |view: &&LintContext<'_, '_>| {
        view.layout.runs() || !running.contains(view.layout.name.as_str())
    };
    let held = views.iter().zip(&taken).filter(|(view, _)| claims(view));
    let held = held.map(|(_, pus)| pus).collect::<CpuSet>();
    let mut isolation = advice::Isolation::new((&lookup, &held), conditions);
    for (view, own) in views.iter().zip(&mut of_views) {
        isolation.advise(own, view);
    }
    let mut flaws: Vec<Diagnostic> = of_views.into_iter().flatten().collect();
    let claims: Vec<_> = views.iter().filter(claims).collect();
    overlap::check(&claims, &lookup, &mut flaws);
    room::check_together(&claims, &mut flaws);
    flaws.sort_by_key(|flaw| std::cmp::Reverse(flaw.severity));
    LintReport { flaws, strategies }
}

/// The faults of one layout, worst first, without advice.
fn of_one(view: &LintContext<'_, '_>, written: Option<&Layout>) -> Vec<Diagnostic> {
    let mut flaws = placement(view, written);
    file::check(view, &mut flaws);
    if !view.layout.runs() {
        let root = view.layout.text.as_deref().and_then(|text| parse(text).ok());
        let root = root.map(|document| place(document.root_element())).unwrap_or_default();
        let root = Place { file: view.layout.source.clone(), ..root };
        flaws.iter_mut().for_each(|flaw| flaw.is_below(&root));
    }
    flaws.sort_by_key(|flaw| std::cmp::Reverse(flaw.severity));
    flaws
}

/// The faults of a layout's thread and memory placement.
fn placement(view: &LintContext<'_, '_>, written: Option<&Layout>) -> Vec<Diagnostic> {
    let mut flaws = Vec::new();
    masks::check(view, &mut flaws);
    floating::check(view, &mut flaws);
    cores::check(view, &mut flaws);
    guest::check(view, &mut flaws);
    memory::check(view, &mut flaws);
    room::check(view, &mut flaws);
    pages::check(view, written, &mut flaws);
    host::check(view, &mut flaws);
    if let Some(strategy) = &view.layout.defined_by {
        let is_cost = |flaw: &&mut Diagnostic| {
            flaw.severity == Severity::Warning && definition::is_cost(strategy, flaw.name)
        };
        for flaw in flaws.iter_mut().filter(is_cost) {
            flaw.severity = Severity::Note;
            flaw.what.push_str(&definition::reason(strategy));
        }
    }
    flaws
}
