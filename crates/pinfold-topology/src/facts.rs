//! Data that hwloc does not provide, read from the kernel's files through [`Host`].
//!
//! Each file is read once. A missing file is a result (the kernel lacks the feature). A file that
//! exists and cannot be read or parsed becomes a finding, so that unknown data is not taken for
//! empty. <https://docs.kernel.org/admin-guide/cputopology.html>

use std::collections::{BTreeMap, BTreeSet};

use pinfold_host::{Host, node_meminfo, paths, proc_status};
use pinfold_model::{
    CoreKind, CpuSet, Finding, HugePages, NodeId, PciDevice, PuId, Tid, filter_boot_parameters,
};

use crate::groups::{self, Groups};
use crate::hypervisor;
use crate::reader::{Reader, cpuinfo_field, describe_error};

/// CPU data from the host's kernel files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// Online CPUs; `None` if the source does not report them.
    pub online: Option<CpuSet>,
    /// CPUs that are present, online or not.
    pub present: Option<CpuSet>,
    /// CPUs isolated at boot or by partitions.
    pub isolated: CpuSet,
    /// CPUs without a periodic tick.
    pub nohz_full: CpuSet,
    /// Content of `smt/control`.
    pub smt_control: Option<String>,
    /// Content of `smt/active`.
    pub smt_active: Option<String>,
    /// CPUs by kind, if the kernel has a PMU for each kind.
    pub core_kinds: Vec<(CoreKind, CpuSet)>,
    /// The scheduler's capacities; only read if there are no such PMUs.
    pub capacities: BTreeMap<PuId, u64>,
    /// CPUs whose frequency changes together.
    pub frequency_domains: Vec<CpuSet>,
    /// Highest frequency of CPUs in kHz.
    pub highest_khz: BTreeMap<PuId, u64>,
    /// The firmware's preference among CPUs; higher is preferred.
    pub core_ranking: BTreeMap<PuId, u32>,
    /// PCI devices by address.
    pub devices: Vec<PciDevice>,
    /// The kernel's boot parameters, one per entry.
    pub boot_parameters: Vec<String>,
    /// CPUs in this process's cpuset. If its cgroup is not visible, the CPUs of its affinity mask,
    /// which the kernel keeps within the cpuset.
    pub cpuset: Option<CpuSet>,
    /// The affinity mask of this process.
    pub mask: Option<CpuSet>,
    /// NUMA nodes with CPUs.
    pub nodes_with_cpus: Option<BTreeSet<NodeId>>,
    /// NUMA nodes with memory.
    pub nodes_with_memory: Option<BTreeSet<NodeId>>,
    /// Free memory in bytes by node; nodes without data in the source are left out.
    pub free_bytes: BTreeMap<NodeId, u64>,
    /// Huge pages by node; nodes without data in the source are left out.
    pub huge_pages: BTreeMap<NodeId, Vec<HugePages>>,
    /// Name of the processor model.
    pub model: Option<String>,
    /// Name of the hypervisor under this machine.
    pub hypervisor: Option<String>,
    /// Files that could not be read.
    pub findings: Vec<Finding>,
}

impl Facts {
    /// Reads all data.
    pub(crate) fn read(host: &dyn Host) -> Self {
        let mut reader = Reader { host, findings: Vec::new() };
        let online = reader.list(&paths::cpu_online());
        let cpuinfo = reader.text(&paths::cpuinfo()).unwrap_or_default();
        let core_kinds = core_kinds(&mut reader);
        let capacities = match (&online, core_kinds.is_empty()) {
            (Some(online), true) => capacities(&mut reader, online),
            (None, _) | (_, false) => BTreeMap::new(),
        };
        let nodes_with_memory = reader.nodes("has_memory");
        let policies = policies(&mut reader);
        let mask = own_mask(&mut reader);
        let highest_khz = highest_khz(&mut reader, &policies);
        let core_ranking = core_ranking(&mut reader, &policies, online.as_ref());
        Self {
            free_bytes: free_bytes(&mut reader, nodes_with_memory.as_ref()),
            huge_pages: huge_pages(&mut reader, nodes_with_memory.as_ref()),
            present: reader.list(&paths::cpu_present()),
            isolated: reader.list(&paths::cpu_isolated()).unwrap_or_default(),
            nohz_full: reader.list(&paths::cpu_nohz_full()).unwrap_or_default(),
            smt_control: reader.text(&paths::smt_control()),
            smt_active: reader.text(&paths::smt_active()),
            core_kinds,
            capacities,
            highest_khz,
            core_ranking,
            frequency_domains: policies.into_iter().map(|policy| policy.pus).collect(),
            devices: pci_devices(&mut reader),
            boot_parameters: boot_parameters(&mut reader),
            cpuset: own_cpuset(&mut reader, mask.as_ref()),
            mask,
            nodes_with_cpus: reader.nodes("has_cpu"),
            nodes_with_memory,
            model: model_name(&cpuinfo),
            hypervisor: hypervisor::name(&cpuinfo, &mut reader),
            online,
            findings: reader.findings,
        }
    }
}

/// One PMU per core kind on hybrid Intel machines; the low-power kind was added with Arrow Lake.
/// <https://docs.kernel.org/admin-guide/perf/index.html>
fn core_kinds(reader: &mut Reader<'_>) -> Vec<(CoreKind, CpuSet)> {
    [
        (CoreKind::Performance, "cpu_core"),
        (CoreKind::Efficiency, "cpu_atom"),
        (CoreKind::LowPower, "cpu_lowpower"),
    ]
    .into_iter()
    .filter_map(|(kind, pmu)| Some((kind, reader.list(&paths::pmu_cpus(pmu))?)))
    .collect()
}

/// The scheduler's capacity of each CPU, 1024 at most.
fn capacities(reader: &mut Reader<'_>, online: &CpuSet) -> BTreeMap<PuId, u64> {
    numbers(reader, online, "cpu_capacity")
}

/// A number per CPU. If the first CPU has no such file, no CPU has one.
fn numbers<N: std::str::FromStr>(
    reader: &mut Reader<'_>,
    online: &CpuSet,
    file: &str,
) -> BTreeMap<PuId, N> {
    let mut numbers = BTreeMap::new();
    for pu in online.iter() {
        let Some(number) = number(reader, &paths::cpu_file(pu, file)) else { break };
        numbers.insert(pu, number);
    }
    numbers
}

fn number<N: std::str::FromStr>(reader: &mut Reader<'_>, path: &str) -> Option<N> {
    let text = reader.text(path)?;
    let number = text.parse().ok();
    if number.is_none() {
        reader.findings.push(Finding::warning(path, format!("{text:?} is not a number")));
    }
    number
}

/// A cpufreq policy and the CPUs whose frequency changes together.
struct Policy {
    name: String,
    pus: CpuSet,
}

/// All policies. Reading one directory per policy is less than one link per CPU.
fn policies(reader: &mut Reader<'_>) -> Vec<Policy> {
    let directory = paths::cpufreq_dir();
    let names = match reader.host.list(&directory) {
        Ok(names) => names,
        Err(error) => {
            reader.record_failure(&directory, &error);
            return Vec::new();
        }
    };
    let mut policies: Vec<Policy> = names
        .into_iter()
        .filter(|name| name.starts_with("policy"))
        .filter_map(|name| Some(Policy { pus: related_cpus(reader, &name)?, name }))
        .collect();
    policies.sort_by_key(|policy| policy.pus.first());
    policies
}

/// The highest frequency that the hardware supports according to the driver, regardless of limits.
fn highest_khz(reader: &mut Reader<'_>, policies: &[Policy]) -> BTreeMap<PuId, u64> {
    of_policies(reader, policies, "cpuinfo_max_freq", |khz| *khz > 0)
}

/// The firmware's preference among cores. amd-pstate stores the ranking that it received (Linux
/// 6.9, <https://docs.kernel.org/admin-guide/pm/amd-pstate.html>). Without it, the ranking is the
/// highest performance of ACPI CPPC, which is read per CPU.
fn core_ranking(
    reader: &mut Reader<'_>,
    policies: &[Policy],
    online: Option<&CpuSet>,
) -> BTreeMap<PuId, u32> {
    let ranking = of_policies(reader, policies, "amd_pstate_prefcore_ranking", |rank| *rank > 0);
    match online {
        Some(online) if ranking.is_empty() => numbers(reader, online, "acpi_cppc/highest_perf"),
        Some(_) | None => ranking,
    }
}

/// A number of each policy that has it, for all CPUs of the policy.
fn of_policies<N: std::str::FromStr + Copy>(
    reader: &mut Reader<'_>,
    policies: &[Policy],
    file: &str,
    is_known: impl Fn(&N) -> bool,
) -> BTreeMap<PuId, N> {
    let mut numbers = BTreeMap::new();
    for policy in policies {
        let path = paths::cpufreq_policy_file(&policy.name, file);
        if let Some(value) = number(reader, &path).filter(&is_known) {
            numbers.extend(policy.pus.iter().map(|pu| (pu, value)));
        }
    }
    numbers
}

/// The boot parameters that concern CPUs and memory, as in a capture.
fn boot_parameters(reader: &mut Reader<'_>) -> Vec<String> {
    let text = reader.text(&paths::kernel_cmdline()).unwrap_or_default();
    let shown = filter_boot_parameters(&text);
    let words = shown.split_ascii_whitespace();
    words.filter(|word| !word.contains(char::is_control)).map(str::to_owned).collect()
}

/// The PCI devices and the node that the firmware reports for each; -1 means none.
fn pci_devices(reader: &mut Reader<'_>) -> Vec<PciDevice> {
    let directory = paths::pci_devices_dir();
    let names = match reader.host.list(&directory) {
        Ok(names) => names,
        Err(error) => {
            reader.record_failure(&directory, &error);
            return Vec::new();
        }
    };
    let mut devices: Vec<PciDevice> = names
        .into_iter()
        .map(|address| {
            let node = reader.text(&paths::pci_numa_node(&address));
            let node = node.and_then(|node| node.parse().ok()).map(NodeId);
            PciDevice { address, node }
        })
        .collect();
    devices.sort();
    devices
}

/// The free memory of each node with memory.
fn free_bytes(reader: &mut Reader<'_>, nodes: Option<&BTreeSet<NodeId>>) -> BTreeMap<NodeId, u64> {
    let mut found = BTreeMap::new();
    for node in nodes.into_iter().flatten() {
        let path = paths::node_file(*node, "meminfo");
        let Some(text) = reader.text(&path) else { continue };
        match node_meminfo::free_bytes(&text) {
            Ok(free) => found.extend(free.map(|free| (*node, free))),
            Err(error) => reader.findings.push(Finding::warning(path, error.to_string())),
        }
    }
    found
}

/// The huge page pools of each node with memory.
fn huge_pages(
    reader: &mut Reader<'_>,
    nodes: Option<&BTreeSet<NodeId>>,
) -> BTreeMap<NodeId, Vec<HugePages>> {
    let mut found = BTreeMap::new();
    for node in nodes.into_iter().flatten() {
        let directory = paths::node_hugepages_dir(*node);
        match reader.host.list(&directory) {
            Ok(names) => {
                let pools = names.iter().filter_map(|name| pool(reader, &directory, name));
                let mut pools: Vec<HugePages> = pools.collect();
                pools.sort_by_key(|pool| pool.page_bytes);
                found.insert(*node, pools);
            }
            Err(error) => reader.record_failure(&directory, &error),
        }
    }
    found
}

/// Reads `nr_hugepages` and `free_hugepages` of a pool such as `hugepages-2048kB`.
fn pool(reader: &mut Reader<'_>, directory: &str, name: &str) -> Option<HugePages> {
    let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    let mut number = |file: &str| reader.text(&format!("{directory}/{name}/{file}"))?.parse().ok();
    let (total, free) = (number("nr_hugepages")?, number("free_hugepages")?);
    Some(HugePages { page_bytes: kib.checked_mul(1024)?, total, free })
}

/// The kernel separates these CPUs by blanks, not by commas.
fn related_cpus(reader: &mut Reader<'_>, policy: &str) -> Option<CpuSet> {
    let path = paths::cpufreq_policy_file(policy, "related_cpus");
    let list = reader.text(&path)?.split_ascii_whitespace().collect::<Vec<_>>().join(",");
    match CpuSet::parse_list(&list) {
        Ok(set) => Some(set).filter(|set| !set.is_empty()),
        Err(error) => {
            reader.findings.push(Finding::warning(path, error.to_string()));
            None
        }
    }
}

fn own_cpuset(reader: &mut Reader<'_>, mask: Option<&CpuSet>) -> Option<CpuSet> {
    // A capture contains no cgroups, whose names may be personal, but the CPUs of the cpuset.
    if !reader.host.exists(&paths::own_cgroup()) {
        return reader.list(&paths::captured_cpuset());
    }
    let found =
        Groups::read(reader.host).and_then(|groups| groups::effective_cpus(reader.host, &groups));
    match found {
        Ok(groups::Cpuset::Of(cpuset)) => Some(cpuset),
        Ok(groups::Cpuset::None) => None,
        Ok(groups::Cpuset::Hidden) => mask.cloned(),
        Err(error) => {
            reader.findings.push(Finding::warning("cgroup cpuset", describe_error(&error)));
            mask.cloned()
        }
    }
}

/// The mask of the calling thread; in a capture, the mask is in its `status`.
fn own_mask(reader: &mut Reader<'_>) -> Option<CpuSet> {
    if reader.host.is_live() {
        return match reader.host.affinity(Tid(0)) {
            Ok(mask) => Some(mask),
            Err(error) => {
                reader.findings.push(Finding::warning("affinity", describe_error(&error)));
                None
            }
        };
    }
    let status = reader.text(&paths::own_status())?;
    let list = proc_status::field(&status, "Cpus_allowed_list")?;
    match CpuSet::parse_list(list) {
        Ok(mask) => Some(mask),
        Err(error) => {
            reader.findings.push(Finding::warning("affinity", error.to_string()));
            None
        }
    }
}

/// `model name` on x86 and RISC-V, `cpu` on POWER; Arm has no model name.
fn model_name(cpuinfo: &str) -> Option<String> {
    ["model name", "cpu"]
        .iter()
        .find_map(|key| cpuinfo_field(cpuinfo, key))
        .map(|model| model.split_ascii_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|model| !model.is_empty())
}

#[cfg(test)]
mod tests;
