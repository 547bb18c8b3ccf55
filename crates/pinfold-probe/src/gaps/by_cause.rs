//! The time of each cause, summed over the parts of all gaps.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::escape;

use super::{Cause, Gap};

/// From this number of tasks on, those with one name are one culprit: a shell that starts a process
/// a time, or a compiler.
const MANY: usize = 3;

/// What one cause took from the threads of a machine, process or group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CauseTime<'a> {
    /// As [`Gap::subject`].
    pub subject: &'a str,
    /// As [`Cause::culprit`]; of several tasks with one name, the name with their number.
    pub name: Cow<'a, str>,
    /// True for several tasks with one name.
    pub is_many: bool,
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
    let gaps: Vec<&Gap> = gaps.collect();
    let tasks = Tasks::from_gaps(&gaps);
    let mut sums: BTreeMap<(&str, Cow<'a, str>), CauseTime<'a>> = BTreeMap::new();
    for gap in gaps {
        for (name, part) in culprits(gap, &tasks) {
            let key = (gap.subject.as_str(), name.clone());
            let sum = sums.entry(key).or_insert_with(|| CauseTime {
                subject: &gap.subject,
                name,
                is_many: tasks.count(gap, part.cause).is_some(),
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

/// The tasks that took time from a machine, process or group, by their name.
struct Tasks<'a>(BTreeMap<(&'a str, &'a str), BTreeSet<u32>>);

impl<'a> Tasks<'a> {
    fn from_gaps(gaps: &[&'a Gap]) -> Self {
        let mut tasks: BTreeMap<(&str, &str), BTreeSet<u32>> = BTreeMap::new();
        for gap in gaps {
            for part in &gap.parts {
                if let Cause::Thread { name, tid, machine: None, is_own: false, .. } = &part.cause {
                    tasks.entry((&gap.subject, name)).or_default().insert(*tid);
                }
            }
        }
        Self(tasks)
    }

    /// The number of tasks with the name of this one, if they are many.
    fn count(&self, gap: &Gap, cause: &Cause) -> Option<usize> {
        let Cause::Thread { name, machine: None, is_own: false, .. } = cause else { return None };
        let tids = self.0.get(&(gap.subject.as_str(), name.as_str()))?;
        Some(tids.len()).filter(|count| *count >= MANY)
    }

    fn culprit<'c>(&self, gap: &Gap, cause: &'c Cause) -> Cow<'c, str> {
        match (self.count(gap, cause), cause) {
            (Some(count), Cause::Thread { name, .. }) => {
                format!("{} ({count} tasks)", escape::name(name)).into()
            }
            (_, _) => cause.culprit(),
        }
    }
}

/// The culprits of one gap.
fn culprits<'a>(gap: &'a Gap, tasks: &Tasks<'_>) -> BTreeMap<Cow<'a, str>, Taken<'a>> {
    let mut found: BTreeMap<Cow<'_, str>, Taken<'_>> = BTreeMap::new();
    for part in &gap.parts {
        // The longest part is the first.
        let taken = found.entry(tasks.culprit(gap, &part.cause));
        let taken = taken.or_insert(Taken { cause: &part.cause, ns: 0 });
        taken.ns = taken.ns.saturating_add(part.ns);
    }
    found
}
