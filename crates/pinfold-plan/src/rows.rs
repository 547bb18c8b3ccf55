//! The threads of a plan in as few rows as say the same.
//!
//! vCPUs that follow each other go into one row, whose CPUs are in their order. Reasons that
//! differ in nothing but numbers become one, with all of the numbers in it:
//!
//! ```text
//! PU 0 is a thread of core 0   ┐
//! PU 16 is a thread of core 0  ├ PU 0-1,16 is a thread of core 0-1
//! PU 1 is a thread of core 1   ┘
//! ```

use pinfold_model::{CpuSet, Plan, Policy, PuId, Role, ThreadPlan, VnodePlan};

/// Threads that are placed alike.
pub(crate) struct Row {
    /// Which threads: `vCPU 0-15`, `emulator`.
    pub(crate) who: String,
    /// Their CPUs: a set, or one for each vCPU, in the order of the vCPUs.
    pub(crate) cpus: String,
    /// Their scheduling policy, if the plan sets one.
    pub(crate) policy: Option<Policy>,
    /// Why.
    pub(crate) reason: String,
}

/// What must be alike within a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alike {
    /// The kind of placement.
    Placement,
    /// The reason too, but for numbers in it.
    Reason,
}

/// The rows of all threads.
pub(crate) fn rows(plan: &Plan, alike: Alike) -> Vec<Row> {
    let mut groups: Vec<(&VnodePlan, Vec<&ThreadPlan>)> = Vec::new();
    for (vnode, thread) in plan.threads() {
        match groups.last_mut() {
            Some((of, group)) if of.name == vnode.name && joins(group, thread, alike) => {
                group.push(thread);
            }
            Some(_) | None => groups.push((vnode, vec![thread])),
        }
    }
    groups.iter().map(|(vnode, group)| row(plan, vnode, group)).collect()
}

fn joins(group: &[&ThreadPlan], next: &ThreadPlan, alike: Alike) -> bool {
    let [first, .., last] = group else {
        return group.first().is_some_and(|only| follows((only, only), next, alike));
    };
    follows((first, last), next, alike)
}

fn follows((first, last): (&ThreadPlan, &ThreadPlan), next: &ThreadPlan, alike: Alike) -> bool {
    let (Role::Vcpu(before), Role::Vcpu(index)) = (&last.role, &next.role) else { return false };
    let is_single = |thread: &ThreadPlan| thread.pus.len() == 1;
    // One mask for all, or one CPU for each: a row of two vCPUs on one CPU is the former.
    let places = (first.pus == last.pus && last.pus == next.pus)
        || (is_single(first)
            && is_single(next)
            && (first.pus != last.pus || first.role == last.role));
    let reasons = || Skeleton::of(&first.reason).text == Skeleton::of(&next.reason).text;
    before.checked_add(1) == Some(*index)
        && places
        && first.policy == next.policy
        && (alike == Alike::Placement || reasons())
}

fn row(plan: &Plan, vnode: &VnodePlan, group: &[&ThreadPlan]) -> Row {
    let reasons: Vec<&str> = group.iter().map(|thread| thread.reason.as_str()).collect();
    let (who, cpus, policy) = match group {
        [first, .., last] => {
            let name =
                if plan.vnodes.len() > 1 { format!("{} ", vnode.name) } else { String::new() };
            let cpus = match first.pus == last.pus {
                true => first.pus.to_string(),
                false => in_order(group),
            };
            let who = format!("{name}vcpu({}-{})", first.role.short(), last.role.short());
            (who, cpus, first.policy)
        }
        [only] => (plan.role_name(vnode, &only.role), only.pus.to_string(), only.policy),
        [] => (String::new(), String::new(), None),
    };
    Row { who, cpus, policy, reason: merged(&reasons) }
}

/// The CPU of each thread, in the threads' order.
fn in_order(group: &[&ThreadPlan]) -> String {
    let cpus: Vec<u32> =
        group.iter().filter_map(|thread| thread.pus.first()).map(|pu| pu.0).collect();
    let rises = cpus.windows(2).all(|pair| matches!(pair, [a, b] if a < b));
    match rises {
        true => CpuSet::from_iter(cpus.into_iter().map(PuId)).to_string(),
        false => cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// A sentence without its numbers, and these.
struct Skeleton {
    text: String,
    numbers: Vec<u32>,
}

impl Skeleton {
    /// Lists and fractions (`0-3`, `2.5`) are words, not numbers.
    fn of(sentence: &str) -> Self {
        let (mut text, mut numbers) = (String::new(), Vec::new());
        for (index, word) in sentence.split(' ').enumerate() {
            if index > 0 {
                text.push(' ');
            }
            let number = word.trim_matches(|letter: char| !letter.is_ascii_digit());
            match number.parse::<u32>() {
                Ok(value) => {
                    text.push_str(&word.replacen(number, "\u{0}", 1));
                    numbers.push(value);
                }
                Err(_) => text.push_str(word),
            }
        }
        Self { text, numbers }
    }
}

/// Sentences of one skeleton as one.
fn merged(sentences: &[&str]) -> String {
    let skeletons: Vec<Skeleton> = sentences.iter().map(|one| Skeleton::of(one)).collect();
    let Some(first) = skeletons.first() else { return String::new() };
    if skeletons.iter().any(|one| one.text != first.text) {
        return sentences.first().copied().unwrap_or_default().to_owned();
    }
    let mut parts = first.text.split('\u{0}');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for (at, part) in parts.enumerate() {
        let mut values: Vec<u32> =
            skeletons.iter().filter_map(|one| one.numbers.get(at)).copied().collect();
        values.sort_unstable();
        values.dedup();
        text.push_str(&ranges(&values));
        text.push_str(part);
    }
    text
}

/// Numbers in ascending order as `0-7,16`.
fn ranges(values: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for value in values {
        match runs.last_mut() {
            Some((_, end)) if end.checked_add(1) == Some(*value) => *end = *value,
            Some(_) | None => runs.push((*value, *value)),
        }
    }
    let text = runs.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    text.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_that_differ_in_numbers_become_one() {
        let check = |sentences: &[&str], expected: &str| assert_eq!(merged(sentences), expected);
        check(
            &[
                "PU 0 of core 0 (L3 0, 96 MiB)",
                "PU 16 of core 0 (L3 0, 96 MiB)",
                "PU 1 of core 1 (L3 0, 96 MiB)",
            ],
            "PU 0-1,16 of core 0-1 (L3 0, 96 MiB)",
        );
        check(&["one"], "one");
        check(&["on 0-3 at 2.5 GHz", "on 0-3 at 2.5 GHz"], "on 0-3 at 2.5 GHz");
        assert_ne!(Skeleton::of("on 0-3").text, Skeleton::of("on 4-7").text);
        assert_ne!(Skeleton::of("at 2.5 GHz").text, Skeleton::of("at 2.7 GHz").text);
    }
}
