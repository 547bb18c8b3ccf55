//! The result as figures.

use std::collections::BTreeMap;

use pinfold_host::FutexKind;
use pinfold_model::{Family, Figure, Unit};

use super::Locks;

/// Name of the probe.
pub const PROBE: &str = "locks";

/// Name of a kind in figures.
pub fn kind_name(kind: FutexKind) -> &'static str {
    match kind {
        FutexKind::Lock => "lock",
        FutexKind::Wait => "wait",
        FutexKind::Wake => "wake",
    }
}

impl Locks {
    /// For each role and kind: calls, time, share of the threads' time, and the longest call if
    /// there was one; for each futex word its time.
    pub fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        for role in &self.roles {
            let name = role.role.to_string();
            for kind in [FutexKind::Lock, FutexKind::Wait, FutexKind::Wake] {
                let spent = role.spent.get(&kind).copied().unwrap_or_default();
                let mut push = |quantity: &str, unit, value: f64| {
                    let labels = [("role", name.as_str()), ("quantity", quantity)];
                    figures.push(self.figure(kind, &labels, unit, value));
                };
                push("calls", Unit::Count, spent.count as f64);
                push("time", Unit::Nanoseconds, spent.sum_ns as f64);
                if let Some(share) = role.share(kind, self.duration_ns) {
                    push("share", Unit::Share, share);
                }
                if spent.count + spent.open > 0 {
                    push("max", Unit::Nanoseconds, spent.max_ns as f64);
                }
            }
        }
        for word in &self.words {
            let address = format!("{:#x}", word.address);
            let process = word.process.to_string();
            let mut labels = vec![
                ("quantity", "time"),
                ("address", address.as_str()),
                ("process", process.as_str()),
            ];
            labels.extend(word.name.as_deref().map(|name| ("name", name)));
            let time = word.spent.sum_ns as f64;
            figures.push(self.figure(word.kind, &labels, Unit::Nanoseconds, time));
        }
        figures
    }

    fn figure(&self, kind: FutexKind, labels: &[(&str, &str)], unit: Unit, value: f64) -> Figure {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let kind = ("kind".to_owned(), kind_name(kind).to_owned());
        Figure {
            probe: PROBE.to_owned(),
            labels: labels.chain([kind]).collect::<BTreeMap<_, _>>(),
            unit,
            family: Family::Count,
            cpu: None,
            duration_ns: self.duration_ns,
            samples: vec![value],
            dropped: 0,
            disturbed: 0,
            flags: Vec::new(),
        }
    }
}
