//! The time of each cause, summed over the parts of all gaps.

use std::borrow::Cow;
use std::collections::BTreeMap;

use pinfold_model::escape;

use super::{Cause, Gap};

/// What one cause took from the threads of a machine, process or group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CauseTime<'a> {
    /// As [`Gap::subject`].
    pub subject: &'a str,
    /// As [`Cause::culprit`].
    pub name: Cow<'a, str>,
    /// The cause of its longest part.
    pub cause: &'a Cause,
    /// Number of gaps with a part of it.
    pub gaps: u64,
    /// Sum of its parts (ns).
    pub ns: u64,
    /// Its longest time in one gap (ns).
    pub longest_ns: u64,
    /// The gap with that time.
    pub longest: &'a Gap,
}

impl Cause {
    /// Its name in sums: threads of another machine count as that machine.
    #[must_use]
    pub fn culprit(&self) -> Cow<'_, str> {
        if let Cause::Thread { machine: Some(machine), is_own: false, .. } = self {
            return format!("machine {}", escape::name(machine)).into();
        }
        self.to_string().into()
    }
}

/// The causes of these gaps, the one with the most time first.
pub fn by_cause<'a>(gaps: impl Iterator<Item = &'a Gap>) -> Vec<CauseTime<'a>> {
    let mut sums: BTreeMap<(&str, Cow<'a, str>), CauseTime<'a>> = BTreeMap::new();
    for gap in gaps {
        for (name, part) in culprits(gap) {
            let key = (gap.subject.as_str(), name.clone());
            let sum = sums.entry(key).or_insert_with(|| CauseTime {
                subject: &gap.subject,
                name,
                cause: part.cause,
                gaps: 0,
                ns: 0,
                longest_ns: 0,
                longest: gap,
            });
            sum.gaps += 1;
            sum.ns = sum.ns.saturating_add(part.ns);
            if part.ns > sum.longest_ns {
                (sum.longest_ns, sum.longest, sum.cause) = (part.ns, gap, part.cause);
            }
        }
    }
    let mut sums: Vec<CauseTime<'a>> = sums.into_values().collect();
    sums.sort_by_key(|sum| std::cmp::Reverse(sum.ns));
    sums
}

/// What a culprit took in one gap.
struct Taken<'a> {
    cause: &'a Cause,
    ns: u64,
}

/// The culprits of one gap.
fn culprits(gap: &Gap) -> BTreeMap<Cow<'_, str>, Taken<'_>> {
    let mut found: BTreeMap<Cow<'_, str>, Taken<'_>> = BTreeMap::new();
    for part in &gap.parts {
        // The longest part is the first.
        let taken = found.entry(part.cause.culprit());
        let taken = taken.or_insert(Taken { cause: &part.cause, ns: 0 });
        taken.ns = taken.ns.saturating_add(part.ns);
    }
    found
}
