//! The result as figures.

use std::collections::BTreeMap;

use pinfold_model::{Family, Figure, Unit};

use super::GapReport;

impl GapReport {
    /// Number, sum and longest of the gaps of each role.
    #[must_use]
    pub fn figures(&self) -> Vec<Figure> {
        let mut roles: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
        for thread in &self.summary.threads {
            roles.entry(&thread.role).or_default();
        }
        for gap in &self.gaps {
            let (count, sum, longest) = roles.entry(&gap.role).or_default();
            *count += 1;
            *sum = sum.saturating_add(gap.length_ns);
            *longest = gap.length_ns.max(*longest);
        }
        let all = roles.into_iter().flat_map(|(role, (count, sum, longest))| {
            [
                self.figure(role, "gaps", Unit::Count, count),
                self.figure(role, "in-gaps", Unit::Nanoseconds, sum),
                self.figure(role, "longest-gap", Unit::Nanoseconds, longest),
            ]
        });
        all.collect()
    }

    fn figure(&self, role: &str, quantity: &str, unit: Unit, value: u64) -> Figure {
        Figure {
            probe: "gaps".to_owned(),
            labels: BTreeMap::from([
                ("role".to_owned(), role.to_owned()),
                ("quantity".to_owned(), quantity.to_owned()),
            ]),
            unit,
            family: Family::Count,
            cpu: None,
            duration_ns: self.summary.duration_ns,
            samples: vec![value as f64],
            dropped: 0,
            disturbed: 0,
            flags: Vec::new(),
        }
    }
}
