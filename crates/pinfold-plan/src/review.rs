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
mod render;
mod several;

use pinfold_model::{Severity, Topology};

pub use layout::{GuestShape, Language, Layout, MemoryOf, Pin};
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
#[must_use]
pub fn review(layouts: &[Layout], topology: &Topology) -> Vec<Flaw> {
    let lookup = Lookup::of(topology);
    let mut flaws = Vec::new();
    for layout in layouts {
        let view = lookup::View::of(layout, &lookup);
        masks::check(&view, &mut flaws);
        cores::check(&view, &mut flaws);
        guest::check(&view, &mut flaws);
        memory::check(&view, &mut flaws);
        host::check(&view, &mut flaws);
    }
    several::check(layouts, &lookup, &mut flaws);
    flaws.sort_by_key(|flaw| std::cmp::Reverse(flaw.severity));
    flaws
}
