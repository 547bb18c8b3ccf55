//! The words of each fault: its name for scripts, what it is, its cost, and advice that needs no
//! plan.
//!
//! A rule decides, and returns a fault with the values that its text names. Each file here has the
//! faults of the rule file with the same name. Elements that replace others, and changes that a
//! plan determines, are the rules' own.

pub(super) mod backing;
pub(super) mod capacity;
pub(super) mod cores;
pub(super) mod devices;
pub(super) mod enlightenments;
pub(super) mod floating;
pub(super) mod guest;
pub(super) mod host;
pub(super) mod manager;
pub(super) mod masks;
pub(super) mod memory;
pub(super) mod overlap;
pub(super) mod pages;
pub(super) mod processor;
pub(super) mod quotas;
pub(super) mod timers;

/// What a rule has found.
pub(super) trait Fault {
    /// Its words.
    fn words(&self) -> FaultText;
}

/// The words of a fault.
pub(super) struct FaultText {
    /// Short name for scripts.
    pub name: &'static str,
    /// The fault, as a sentence without full stop.
    pub what: String,
    /// The cost, as a sentence without full stop.
    pub cost: String,
    /// Advice, line by line.
    pub instead: Vec<String>,
}

impl FaultText {
    fn new(name: &'static str, what: impl Into<String>, cost: impl Into<String>) -> Self {
        Self { name, what: what.into(), cost: cost.into(), instead: Vec::new() }
    }

    fn with_replacement<L: Into<String>>(self, lines: impl IntoIterator<Item = L>) -> Self {
        Self { instead: lines.into_iter().map(Into::into).collect(), ..self }
    }
}
