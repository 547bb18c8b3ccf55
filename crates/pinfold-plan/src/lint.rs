//! What is wrong with a placement that a person wrote, and what to write instead.
//!
//! A placement comes from a plan, a libvirt domain file or a running machine; each becomes
//! a [`Layout`] that remembers where every value is written. [`lint`] checks one or several
//! layouts of one host against its topology, and the rest of a domain file that decides latency.
//! Each [`Diagnostic`] says what is wrong, where, what it costs and what to write instead, in the language
//! of the layout. The advice is one placement that has been planned for this very layout and
//! reviewed in turn, so that all of it together gives a file without warnings: [`fix`] writes it.
//! Only what topology and layout show is judged; what it costs in numbers is for measuring.

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
mod overlap;
mod pages;
mod picture;
mod processor;
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
pub use fix::{Fixed, fix};
pub use layout::{GuestShape, Language, Layout, MemoryOf, Pages, Pin};
pub use picture::picture;
pub use render::{counts, render};

use crate::definition;
use crate::domain_file::{Place, parse, place};
use lookup::{LintContext, Lookup};
use repair::Repair;

/// One thing that is wrong with a placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// How much it matters: a problem does not start or can hang; a warning costs; a note is
    /// good to know.
    pub severity: Severity,
    /// Its short name, for scripts: `guest-siblings-lie`.
    pub name: &'static str,
    /// The machine, by name.
    pub vm: String,
    /// What is wrong, as a sentence without full stop.
    pub what: String,
    /// Where it is written.
    pub places: Vec<Place>,
    /// Why it costs, as a sentence without full stop.
    pub cost: String,
    /// What to write instead, line by line, in the layout's language.
    pub instead: Vec<String>,
    /// True if no change of the layout removes it, because there is no placement without it.
    pub is_final: bool,
    /// The changes of single elements that remove it; empty where that takes another placement, or
    /// a person's decision.
    pub(crate) repairs: Vec<Repair>,
}

impl Diagnostic {
    /// Names file and line in each place: where nothing is written that of the whole machine.
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

/// A review of layouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LintReport {
    /// What is wrong, worst first; empty if nothing is.
    pub flaws: Vec<Diagnostic>,
    /// For each layout a strategy that places it without a warning, if it has to be placed anew.
    pub strategies: Vec<Option<&'static str>>,
}

/// More layouts than this get advice that does not know of each other: it takes a plan for each.
const MOST_ADVISED: usize = 16;

/// What is wrong with `layouts`, all of one host, worst first; empty if nothing is.
#[must_use]
pub fn lint(layouts: &[Layout], topology: &Topology) -> Vec<Diagnostic> {
    lint_under(layouts, topology, &Request::of(Vec::new())).flaws
}

/// The same, with advice that keeps the user's conditions: PUs to avoid, PUs for the host.
///
/// A machine that runs and a written layout of the same name are one machine: what runs is
/// reviewed together with the others, what is written says where its memory should be.
#[must_use]
pub fn lint_under(layouts: &[Layout], topology: &Topology, conditions: &Request) -> LintReport {
    let lookup = Lookup::of(topology, conditions);
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

/// What is wrong with one layout, worst first, without advice.
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

/// What is wrong with where a layout puts its threads and its memory.
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
