//! What the environment of a start follows from: this host, and the levels of a cell.

use pinfold_emulate::Facts;
use pinfold_host::LiveHost;
use pinfold_model::Topology;
use pinfold_study::study::{Cell, FactorEffect, Level, Study};

/// The data about this host.
#[derive(Clone, Copy)]
pub struct HostFacts<'a> {
    pub host: &'a LiveHost,
    pub topology: &'a Topology,
    pub facts: &'a Facts,
}

/// A cell with its study, which has its levels.
#[derive(Clone, Copy)]
pub struct CellLevels<'a> {
    pub study: &'a Study,
    pub cell: &'a Cell,
}

impl<'a> CellLevels<'a> {
    /// The level of the factor that acts on this.
    pub fn acting(self, acts: &FactorEffect) -> Option<&'a Level> {
        self.cell.level_with_effect(self.study, acts)
    }
}
