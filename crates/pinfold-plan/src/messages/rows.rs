//! Combines the threads of a plan into the smallest number of rows.
//!
//! Consecutive vCPUs are combined into one row, whose CPUs are in their order. If reasons differ
//! only in numbers, the first one is used.

use pinfold_model::{CpuSet, Plan, Policy, PuId, Role, ThreadPlan, VnodePlan};

/// Threads with the same placement.
pub(crate) struct Row {
    /// The threads: `vCPU 0-15`, `emulator`.
    pub(crate) who: String,
    /// Their CPUs: a set, or one for each vCPU, in the order of the vCPUs.
    pub(crate) cpus: String,
    /// Their scheduling policy, if the plan sets one.
    pub(crate) policy: Option<Policy>,
    /// Reason of the placement.
    pub(crate) reason: String,
}

/// Property that threads of a row have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommonProperty {
    /// The kind of placement.
    Placement,
    /// Also the reason, except for numbers in it.
    Reason,
}

/// The rows of all threads.
pub(crate) fn rows(plan: &Plan, alike: CommonProperty) -> Vec<Row> {
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

/// True if a thread belongs to the row of `group`: one mask for all threads, or one CPU for each.
/// The first two threads decide which of these applies.
fn joins(group: &[&ThreadPlan], next: &ThreadPlan, alike: CommonProperty) -> bool {
    let (Some(first), Some(last)) = (group.first(), group.last()) else { return false };
    let (Role::Vcpu(before), Role::Vcpu(index)) = (&last.role, &next.role) else { return false };
    let second = group.get(1).map_or(next, |second| second);
    let places = if first.pus == second.pus {
        first.pus == next.pus
    } else {
        first.pus.len() == 1 && next.pus.len() == 1
    };
    before.checked_add(1) == Some(*index)
        && places
        && first.policy == next.policy
        && (alike == CommonProperty::Placement
            || (skeleton(&first.reason) == skeleton(&next.reason)))
}

fn row(plan: &Plan, vnode: &VnodePlan, group: &[&ThreadPlan]) -> Row {
    let reasons: Vec<&str> = group.iter().map(|thread| thread.reason.as_str()).collect();
    let (who, cpus, policy) = match group {
        [first, .., last] => {
            let name =
                if plan.vnodes.len() > 1 { format!("{} ", vnode.name) } else { String::new() };
            let cpus = if group.iter().all(|thread| thread.pus == first.pus) {
                first.pus.to_string()
            } else {
                in_order(group)
            };
            let who = format!("{name}vcpu({}-{})", first.role.short(), last.role.short());
            (who, cpus, first.policy)
        }
        [only] => (plan.role_name(vnode, &only.role), only.pus.to_string(), only.policy),
        [] => (String::new(), String::new(), None),
    };
    Row { who, cpus, policy, reason: merge_reasons(&reasons) }
}

/// The CPU of each thread, in the order of the threads.
fn in_order(group: &[&ThreadPlan]) -> String {
    let cpus: Vec<u32> =
        group.iter().filter_map(|thread| thread.pus.first()).map(|pu| pu.0).collect();
    let rises = cpus.windows(2).all(|pair| matches!(pair, [a, b] if a < b));
    if rises {
        CpuSet::from_iter(cpus.into_iter().map(PuId)).to_string()
    } else {
        cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
    }
}

/// A sentence without its numbers. Lists and fractions (`0-3`, `2.5`) count as words, not numbers.
fn skeleton(sentence: &str) -> String {
    sentence
        .split(' ')
        .map(|word| {
            let number = word.trim_matches(|letter: char| !letter.is_ascii_digit());
            match number.parse::<u32>() {
                Ok(_) => word.replacen(number, "#", 1),
                Err(_) => word.to_owned(),
            }
        })
        .collect::<Vec<_>>()
        .join(" ")
}

/// Combines reasons with the same skeleton.
fn merge_reasons(reasons: &[&str]) -> String {
    let Some(first) = reasons.first() else { return String::new() };
    if reasons.iter().all(|other| other == first) {
        (*first).to_owned()
    } else {
        format!("{first}; the same for the others")
    }
}

#[cfg(test)]
mod tests {
    use pinfold_model::{Request, VcpuCount};
    use pinfold_samples::machine::dual_x5540;

    use super::*;
    use crate::plan;

    /// `vcpu(0-2): 8, 9, 8` for vCPUs on these CPUs.
    #[track_caller]
    fn check_rows(strategy: &str, pins: &[&str], expected: &[&str]) {
        let count = VcpuCount::Exactly(u32::try_from(pins.len()).unwrap());
        let topology = dual_x5540().build();
        let mut plan = plan(strategy, &topology, &Request::vm("vm", count)).unwrap();
        for (thread, pin) in plan.vnodes[0].threads.iter_mut().zip(pins) {
            thread.pus = CpuSet::parse_list(pin).unwrap();
            thread.reason = "as asked".to_owned();
        }
        for alike in [CommonProperty::Placement, CommonProperty::Reason] {
            let rows = rows(&plan, alike);
            let vcpus = rows.iter().filter(|row| row.who.starts_with("vcpu"));
            let found: Vec<String> =
                vcpus.map(|row| format!("{}: {}", row.who, row.cpus)).collect();
            assert_eq!(found, expected, "{pins:?}");
        }
    }

    #[test]
    fn a_row_names_the_cpu_of_each_of_its_vcpus() {
        check(&["8", "9", "8"], &["vcpu(0-2): 8, 9, 8"]);
        check(&["0", "8", "1", "0", "8"], &["vcpu(0-4): 0, 8, 1, 0, 8"]);
        check(&["3", "3", "3"], &["vcpu(0-2): 3"]);
        check(&["3", "3", "4", "3"], &["vcpu(0-1): 3", "vcpu(2-3): 4, 3"]);
        check(&["3", "4", "4"], &["vcpu(0-2): 3, 4, 4"]);
        check(&["0-3", "0-3", "4"], &["vcpu(0-1): 0-3", "vcpu(2): 4"]);
        check(&["4", "0-3", "4"], &["vcpu(0): 4", "vcpu(1): 0-3", "vcpu(2): 4"]);
        check(&["1", "2", "3"], &["vcpu(0-2): 1-3"]);
    }

    fn check(pins: &[&str], expected: &[&str]) {
        check_rows("compact", pins, expected)
    }

    /// Strategies that start again at their first CPU.
    #[test]
    fn a_row_of_more_vcpus_than_cpus_names_them_all() {
        let topology = dual_x5540().build();
        for strategy in ["compact", "sequential"] {
            let request = Request::vm("vm", VcpuCount::Exactly(18));
            let plan = plan(strategy, &topology, &request).unwrap();
            let all: Vec<String> =
                plan.vnodes[0].vcpus().map(|vcpu| vcpu.pus.to_string()).collect();
            let row = rows(&plan, CommonProperty::Placement).remove(0);
            assert_eq!((row.who.as_str(), row.cpus), ("vcpu(0-17)", all.join(", ")), "{strategy}");
        }
    }

    #[test]
    fn of_reasons_that_differ_in_numbers_the_first_is_written() {
        fn check(reasons: &[&str], expected: &str) {
            assert_eq!(merge_reasons(reasons), expected)
        }

        let cores = ["CPU 0 of core 0 (L3 0, 96 MiB)", "CPU 16 of core 0 (L3 0, 96 MiB)"];
        check(&cores, "CPU 0 of core 0 (L3 0, 96 MiB); the same for the others");
        check(&["one"], "one");
        check(&["on 0-3 at 2.5 GHz", "on 0-3 at 2.5 GHz"], "on 0-3 at 2.5 GHz");
        assert_eq!(skeleton(cores[0]), skeleton(cores[1]));
        assert_ne!(skeleton("on 0-3"), skeleton("on 4-7"));
        assert_ne!(skeleton("at 2.5 GHz"), skeleton("at 2.7 GHz"));
    }
}
