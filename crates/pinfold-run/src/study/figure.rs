//! Figures of a trial: with one sample, and without any.

use std::collections::BTreeMap;

use pinfold_model::{Family, Figure, Unit};
use pinfold_study::study::ABSENT;

/// A figure with one sample.
pub fn one_figure(name: &str, unit: Unit, sample: f64, duration_ns: u64) -> Figure {
    Figure {
        probe: name.to_owned(),
        labels: BTreeMap::new(),
        unit,
        family: Family::Count,
        cpu: None,
        duration_ns,
        samples: vec![sample],
        dropped: 0,
        disturbed: 0,
        flags: Vec::new(),
    }
}

/// A figure that this host does not provide.
pub fn absent(name: &str, unit: Unit, why: &str) -> Figure {
    Figure {
        samples: Vec::new(),
        flags: vec![format!("{ABSENT}{why}")],
        ..one_figure(name, unit, 0.0, 0)
    }
}
