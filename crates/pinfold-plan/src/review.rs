//! What is wrong with a placement that a person wrote, and what to write instead.
//!
//! A placement comes from a plan, a libvirt domain file or a running machine; each becomes
//! a [`Layout`] that remembers where every value is written. [`review`] holds one or several
//! layouts of one host against its topology. Each [`Flaw`] says what is wrong, where, what it
//! costs and what to write instead, in the language of the layout. Only what can be seen from
//! topology and layout is judged; what it costs in numbers is for measuring.

mod cores;
mod guest;
mod host;
mod layout;
mod lookup;
mod masks;
mod memory;
mod pages;
mod render;
mod several;

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{Severity, Topology};

pub use layout::{GuestShape, Language, Layout, MemoryOf, Pages, Pin};
pub use render::render;

use crate::domain_file::Place;
use lookup::Lookup;

/// One thing that is wrong with a placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
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
}

/// What is wrong with `layouts`, all of one host, worst first; empty if nothing is.
///
/// A machine that runs and a written layout of the same name are one machine: what runs is
/// reviewed beside the others, what is written says where its memory should be.
#[must_use]
pub fn review(layouts: &[Layout], topology: &Topology) -> Vec<Flaw> {
    let lookup = Lookup::of(topology);
    let mut flaws = Vec::new();
    let views: Vec<_> = layouts.iter().map(|layout| lookup::View::of(layout, &lookup)).collect();
    let written: BTreeMap<&str, &Layout> = layouts
        .iter()
        .filter(|layout| !layout.runs())
        .map(|layout| (layout.name.as_str(), layout))
        .collect();
    let running: BTreeSet<&str> =
        layouts.iter().filter(|layout| layout.runs()).map(|layout| layout.name.as_str()).collect();
    for view in &views {
        masks::check(view, &mut flaws);
        cores::check(view, &mut flaws);
        guest::check(view, &mut flaws);
        memory::check(view, &mut flaws);
        pages::check(view, written.get(view.layout.name.as_str()).copied(), &mut flaws);
        host::check(view, &mut flaws);
    }
    let claims: Vec<_> = views
        .iter()
        .filter(|view| view.layout.runs() || !running.contains(view.layout.name.as_str()))
        .collect();
    several::check(&claims, &lookup, &mut flaws);
    flaws.sort_by_key(|flaw| std::cmp::Reverse(flaw.severity));
    flaws
}
