//! Kernel boot parameters: which of them a host already has, and which offline CPUs they should
//! include. Pure functions.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{CoreKind, CpuSet, Plan, Policy, PuId, Smt, Topology, VnodePlan};

/// Relation of a parameter to the host's command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootParameterState {
    /// The command line does not contain it.
    New,
    /// The command line contains it with this value.
    There,
    /// The command line contains it with another value; its words as they are there.
    Other(String),
}

/// Compares a parameter such as `isolcpus=domain,4-7`, or the pair `hugepagesz=2M hugepages=512`,
/// with the words of a kernel command line.
pub fn compare_boot_parameter(parameter: &str, booted: &[String]) -> BootParameterState {
    let words: Vec<&str> = parameter.split(' ').collect();
    let mut found: Vec<(String, bool)> = Vec::new();
    match words.as_slice() {
        // A number of pages refers to the size before it.
        [size, pages] => {
            let pairs = booted.windows(2).filter_map(|pair| match pair {
                [first, second] if is_same(first, size) && name(second) == name(pages) => {
                    Some((format!("{first} {second}"), is_same(second, pages)))
                }
                _ => None,
            });
            found.extend(pairs);
        }
        _ => {
            let named = booted.iter().filter(|word| name(word) == name(parameter));
            found.extend(named.map(|word| (word.clone(), is_same(word, parameter))));
        }
    }
    if found.is_empty() {
        return BootParameterState::New;
    }
    if found.iter().all(|(_, same)| *same) {
        return BootParameterState::There;
    }
    let words: Vec<String> = found.into_iter().map(|(words, _)| words).collect();
    BootParameterState::Other(words.join(" "))
}

/// The words of a host's kernel command line that these parameters replace, for messages: ` in
/// place of isolcpus=4-7`, or an empty text.
pub fn describe_replaced_parameters(parameters: &[String], booted: &[String]) -> String {
    let old =
        parameters.iter().filter_map(|parameter| match compare_boot_parameter(parameter, booted) {
            BootParameterState::Other(old) => Some(old),
            BootParameterState::New | BootParameterState::There => None,
        });
    let old: Vec<String> = old.collect();
    if old.is_empty() { String::new() } else { format!(" in place of {}", old.join(" ")) }
}

/// The kernel treats `-` and `_` in names alike.
fn name(word: &str) -> String {
    let name = word.split_once('=').map_or(word, |(name, _)| name);
    name.replace('-', "_")
}

/// True if two words are equivalent: flags in any order, and CPU lists in any notation.
fn is_same(one: &str, other: &str) -> bool {
    name(one) == name(other)
        && (one == other || value(one).is_some_and(|it| Some(it) == value(other)))
}

/// Flags and CPUs of a value such as `managed_irq,domain,4-7`; `None` for other values.
fn value(word: &str) -> Option<(BTreeSet<&str>, CpuSet)> {
    let (_, value) = word.split_once('=')?;
    let mut flags: BTreeSet<&str> = value.split(',').take_while(is_flag).collect();
    let list: Vec<&str> = value.split(',').skip_while(is_flag).collect();
    if name(word) == "isolcpus" && flags.is_empty() {
        flags.insert("domain");
    }
    Some((flags, CpuSet::parse_list(&list.join(",")).ok()?))
}

fn is_flag(part: &&str) -> bool {
    part.starts_with(|first: char| first.is_ascii_alphabetic())
}

/// The CPUs that a word such as `isolcpus=domain,4-7` lists; empty if it lists none.
pub fn cpus(word: &str) -> CpuSet {
    value(word).map(|(_, cpus)| cpus).unwrap_or_default()
}

/// The CPUs that kernel parameters isolate for a plan, whether or not the plan itself excludes
/// other tasks from them: its exclusive CPUs, and all CPUs of the cores of real-time vCPUs. Empty
/// if the plan shares all CPUs with the host.
#[must_use]
pub fn boot_isolated(plan: &Plan, topology: &Topology) -> CpuSet {
    cpus_isolated_at_boot(&plan.vnodes, &plan.exclusive, &plan.housekeeping, topology)
}

/// The same for an incomplete plan: its vnodes, its exclusive CPUs, the host's CPUs.
pub(crate) fn cpus_isolated_at_boot(
    vnodes: &[VnodePlan],
    exclusive: &CpuSet,
    housekeeping: &CpuSet,
    topology: &Topology,
) -> CpuSet {
    let mut real_time = CpuSet::new();
    let mut of_vcpus = CpuSet::new();
    for vcpu in vnodes.iter().flat_map(VnodePlan::vcpus) {
        if vcpu.policy.is_some_and(Policy::is_real_time) {
            real_time.add(&vcpu.pus);
        }
        of_vcpus.add(&vcpu.pus);
    }
    let mut held = exclusive.union(&of_vcpus.difference(housekeeping));
    held.add(&real_time);
    fn siblings(pus: &CpuSet, topology: &Topology) -> CpuSet {
        let cores = topology.cores.iter().filter(|core| !core.pus.is_disjoint(pus));
        cores.map(|core| &core.pus).collect::<CpuSet>()
    }
    held.add(&siblings(&held, topology).intersection(&topology.isolated));
    // A plan with exclusive CPUs has assigned the others to the host.
    let whole = held.union(&siblings(&real_time, topology).intersection(housekeeping));
    if exclusive.is_empty() && !housekeeping.is_subset(&whole) { whole } else { held }
}

/// The offline CPUs that may be siblings of `reserved` ones. The kernel hides the core of an
/// offline CPU. So each of them may be a sibling if a wholly reserved core shows fewer threads than
/// others of its kind, or if SMT is off.
pub fn possible_siblings(reserved: &CpuSet, topology: &Topology) -> CpuSet {
    if topology.offline.is_empty() {
        return CpuSet::new();
    }
    let mut widest: BTreeMap<CoreKind, usize> = BTreeMap::new();
    for core in &topology.cores {
        let most = widest.entry(core.kind).or_default();
        *most = core.pus.len().max(*most);
    }
    let lacks_one = topology.cores.iter().filter(|core| core.pus.is_subset(reserved)).any(|core| {
        let smt_is_off = topology.smt == Smt::Off
            && (!matches!(core.kind, CoreKind::Efficiency | CoreKind::LowPower));
        widest.get(&core.kind).is_some_and(|most| core.pus.len() < *most) || smt_is_off
    });
    if lacks_one { topology.offline.clone() } else { CpuSet::new() }
}

/// The parameters that exclude tasks and kernel work from some CPUs.
pub fn isolation_parameters(reserved: &CpuSet) -> Vec<String> {
    let mut line = vec![format!("isolcpus=managed_irq,domain,{reserved}")];
    let tickless = without_boot_pu(reserved);
    if !tickless.is_empty() {
        line.push(format!("nohz_full={tickless}"));
        line.push(format!("rcu_nocbs={tickless}"));
    }
    line
}

/// The same CPUs without the boot CPU, which keeps time for the others.
pub fn without_boot_pu(pus: &CpuSet) -> CpuSet {
    pus.difference(&CpuSet::single(PuId(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_compared_by_what_they_say() {
        check("nohz_full=1-3", "quiet isolcpus=1-3", BootParameterState::New);
        check("nohz_full=1-3", "nohz-full=1,2,3", BootParameterState::There);
        check("nohz_full=1-3", "nohz_full=1-2", other("nohz_full=1-2"));
        let isolcpus = "isolcpus=managed_irq,domain,1-3";
        check(isolcpus, "isolcpus=domain,managed_irq,1,2-3", BootParameterState::There);
        check(isolcpus, "isolcpus=1-3", other("isolcpus=1-3"));
        check("isolcpus=domain,1-3", "isolcpus=1-3", BootParameterState::There);
        check(isolcpus, "isolcpus=2 isolcpus=3", other("isolcpus=2 isolcpus=3"));
        check(
            "transparent_hugepage=never",
            "transparent_hugepage=never",
            BootParameterState::There,
        );
        let pages = "hugepagesz=1G hugepages=0:4";
        check(pages, "hugepagesz=2M hugepages=9", BootParameterState::New);
        check(pages, "hugepagesz=1G hugepages=4", other("hugepagesz=1G hugepages=4"));
        check(pages, "hugepagesz=1G hugepages=0:4 nosmt", BootParameterState::There);
        check("nosmt", "nosmt", BootParameterState::There);
    }

    fn check(parameter: &str, booted: &str, expected: BootParameterState) {
        let words: Vec<String> = booted.split_whitespace().map(str::to_owned).collect();
        assert_eq!(
            compare_boot_parameter(parameter, &words),
            expected,
            "{parameter} on {booted:?}"
        );
    }

    fn other(words: &str) -> BootParameterState {
        BootParameterState::Other(words.to_owned())
    }
}
