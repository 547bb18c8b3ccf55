//! What hwloc does not say, read from the kernel's files through the door.
//!
//! Each file is read once. A file that is not there is an answer (the kernel has no such
//! feature); a file that is there and cannot be read or understood becomes a finding, so
//! that nothing is taken for empty that is only unknown.
//! <https://docs.kernel.org/admin-guide/cputopology.html>

use std::collections::{BTreeMap, BTreeSet};

use pinfold_host::{Host, HostError, paths, proc_status};
use pinfold_model::{
    CoreKind, CpuSet, Finding, HugePages, NodeId, PciDevice, PuId, Tid, scrubbed_parameters,
};

use crate::groups::{self, Groups};
use crate::hypervisor;

/// The host's own word on its CPUs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// Online CPUs; `None` if the source does not tell.
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
    /// CPUs by kind where the kernel has a PMU for each kind.
    pub core_kinds: Vec<(CoreKind, CpuSet)>,
    /// The scheduler's capacities, read only where there are no such PMUs.
    pub capacities: BTreeMap<PuId, u64>,
    /// CPUs whose frequency changes together.
    pub frequency_domains: Vec<CpuSet>,
    /// Highest frequency of CPUs in kHz.
    pub highest_khz: BTreeMap<PuId, u64>,
    /// The firmware's preference among CPUs, higher is preferred.
    pub core_ranking: BTreeMap<PuId, u32>,
    /// PCI devices by address.
    pub devices: Vec<PciDevice>,
    /// The kernel's boot parameters, word by word.
    pub boot_parameters: Vec<String>,
    /// CPUs of the own group's cpuset; where the group cannot be seen, those of the mask, which
    /// the kernel keeps inside it.
    pub cpuset: Option<CpuSet>,
    /// The own affinity mask.
    pub mask: Option<CpuSet>,
    /// NUMA nodes with CPUs.
    pub nodes_with_cpus: Option<BTreeSet<NodeId>>,
    /// NUMA nodes with memory.
    pub nodes_with_memory: Option<BTreeSet<NodeId>>,
    /// Huge pages by node; nodes of which the source does not tell are left out.
    pub huge_pages: BTreeMap<NodeId, Vec<HugePages>>,
    /// Name of the CPU model.
    pub model: Option<String>,
    /// Name of the hypervisor below this machine.
    pub hypervisor: Option<String>,
    /// What could not be read.
    pub findings: Vec<Finding>,
}

impl Facts {
    /// Reads them all.
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

/// Reads optional files and keeps account of those that failed.
pub(crate) struct Reader<'h> {
    pub host: &'h dyn Host,
    pub findings: Vec<Finding>,
}

impl Reader<'_> {
    /// The trimmed text of a file; `None` if it is not there, or was noted as unreadable.
    pub(crate) fn text(&mut self, path: &str) -> Option<String> {
        match self.host.read_text(path) {
            Ok(text) => Some(text.trim().to_owned()),
            Err(error) => {
                self.failed(path, &error);
                None
            }
        }
    }

    /// A file that holds a list of CPUs. `(null)` is what old kernels write for an empty set.
    pub(crate) fn list(&mut self, path: &str) -> Option<CpuSet> {
        let text = self.text(path)?;
        if text == "(null)" {
            return Some(CpuSet::new());
        }
        match CpuSet::parse_list(&text) {
            Ok(set) => Some(set),
            Err(error) => {
                self.findings.push(Finding::warning(path, error.to_string()));
                None
            }
        }
    }

    fn nodes(&mut self, state: &str) -> Option<BTreeSet<NodeId>> {
        // Every machine has such a node: a blank file says nothing.
        let list = self.list(&paths::node_state(state)).filter(|list| !list.is_empty())?;
        Some(list.iter().map(|number| NodeId(number.0)).collect())
    }

    /// Notes a failure, unless the file is simply not there.
    pub(crate) fn failed(&mut self, path: &str, error: &HostError) {
        if !error.is_gone() {
            self.findings.push(Finding::warning(path, because(error)));
        }
    }
}

/// An error with the kernel's answer, for a sentence.
pub(crate) fn because(error: &HostError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// <https://docs.kernel.org/admin-guide/perf/index.html>: one PMU per core kind on hybrid
/// Intel machines. The low-power kind came with Arrow Lake.
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

/// The scheduler's view of how much a CPU can do, 1024 at most.
fn capacities(reader: &mut Reader<'_>, online: &CpuSet) -> BTreeMap<PuId, u64> {
    numbers(reader, online, "cpu_capacity")
}

/// A number of each CPU. Without the first CPU's file no CPU has one.
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

/// A cpufreq policy and the CPUs whose frequency it changes together.
struct Policy {
    name: String,
    pus: CpuSet,
}

/// All policies. One directory per policy is less to read than one link per CPU.
fn policies(reader: &mut Reader<'_>) -> Vec<Policy> {
    let directory = paths::cpufreq_dir();
    let names = match reader.host.list(&directory) {
        Ok(names) => names,
        Err(error) => {
            reader.failed(&directory, &error);
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

/// What the drivers say that the hardware can, whatever limits are set.
fn highest_khz(reader: &mut Reader<'_>, policies: &[Policy]) -> BTreeMap<PuId, u64> {
    of_policies(reader, policies, "cpuinfo_max_freq", |khz| *khz > 0)
}

/// The firmware's preference among cores. amd-pstate keeps the ranking that it got (Linux 6.9,
/// <https://docs.kernel.org/admin-guide/pm/amd-pstate.html>); without it the ranking is in the
/// highest performance of ACPI CPPC, which asks each CPU.
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

/// A number of each policy that has it, for all its CPUs.
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

/// The boot parameters that concern CPUs and memory, as a capture has them.
fn boot_parameters(reader: &mut Reader<'_>) -> Vec<String> {
    let text = reader.text(&paths::kernel_cmdline()).unwrap_or_default();
    let shown = scrubbed_parameters(&text);
    let words = shown.split_ascii_whitespace();
    words.filter(|word| !word.contains(char::is_control)).map(str::to_owned).collect()
}

/// Each device and the node that the firmware gives for it; -1 is none.
fn pci_devices(reader: &mut Reader<'_>) -> Vec<PciDevice> {
    let directory = paths::pci_devices_dir();
    let names = match reader.host.list(&directory) {
        Ok(names) => names,
        Err(error) => {
            reader.failed(&directory, &error);
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

/// The pools of each node with memory.
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
            Err(error) => reader.failed(&directory, &error),
        }
    }
    found
}

/// `hugepages-2048kB` with its `nr_hugepages` and `free_hugepages`.
fn pool(reader: &mut Reader<'_>, directory: &str, name: &str) -> Option<HugePages> {
    let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    let mut number = |file: &str| reader.text(&format!("{directory}/{name}/{file}"))?.parse().ok();
    let (total, free) = (number("nr_hugepages")?, number("free_hugepages")?);
    Some(HugePages { page_bytes: kib.checked_mul(1024)?, total, free })
}

/// The kernel separates these by blanks, not by commas.
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
    // A capture holds no groups, whose names may be personal; it says what they allow.
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
            reader.findings.push(Finding::warning("cgroup cpuset", because(&error)));
            mask.cloned()
        }
    }
}

/// The mask of the calling thread; that of a capture is in its `status`.
fn own_mask(reader: &mut Reader<'_>) -> Option<CpuSet> {
    if reader.host.is_live() {
        return match reader.host.affinity(Tid(0)) {
            Ok(mask) => Some(mask),
            Err(error) => {
                reader.findings.push(Finding::warning("affinity", because(&error)));
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

/// `model name` on x86 and RISC-V, `cpu` on POWER; Arm names no model.
fn model_name(cpuinfo: &str) -> Option<String> {
    ["model name", "cpu"]
        .iter()
        .find_map(|key| cpuinfo_field(cpuinfo, key))
        .map(|model| model.split_ascii_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|model| !model.is_empty())
}

/// The first value of a key in `/proc/cpuinfo`.
pub(crate) fn cpuinfo_field<'t>(cpuinfo: &'t str, key: &str) -> Option<&'t str> {
    cpuinfo.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests;
