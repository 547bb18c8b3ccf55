//! The part of the kernel's command line that may be published: parameters that control the use of
//! CPUs and memory, without names of disks, networks or users. Captures, report pages and exports
//! use this list.
//!
//! <https://docs.kernel.org/admin-guide/kernel-parameters.html>

/// Parameters that are shown, by name.
const SHOWN: [&str; 37] = [
    "amd_iommu",
    "amd_pstate",
    "cgroup_disable",
    "cgroup_no_v1",
    "clocksource",
    "default_hugepagesz",
    "hugepages",
    "hugepagesz",
    "idle",
    "intel_idle.max_cstate",
    "intel_iommu",
    "intel_pstate",
    "iommu",
    "iommu.passthrough",
    "iommu.strict",
    "irqaffinity",
    "isolcpus",
    "maxcpus",
    "mitigations",
    "nohz",
    "nohz_full",
    "nosmt",
    "nosoftlockup",
    "nr_cpus",
    "numa",
    "numa_balancing",
    "possible_cpus",
    "processor.max_cstate",
    "rcu_nocb_poll",
    "rcu_nocbs",
    "skew_tick",
    "systemd.unified_cgroup_hierarchy",
    "threadirqs",
    "transparent_hugepage",
    "tsc",
    "vfio-pci.ids",
    "workqueue.unbound_cpus",
];

/// Reduces a kernel command line to the parameters that control the use of CPUs and memory.
pub fn filter_boot_parameters(text: &str) -> String {
    let kept: Vec<&str> = text
        .split_ascii_whitespace()
        // What follows `--` is for the init process.
        .take_while(|word| *word != "--")
        .filter(|word| SHOWN.contains(&word.split('=').next().unwrap_or(word)))
        .collect();
    kept.join(" ")
}

/// The same, with a placeholder if no parameter remains.
#[must_use]
pub fn shown_parameters(text: &str) -> String {
    match filter_boot_parameters(text) {
        kept if kept.is_empty() => "none for CPUs or memory".to_owned(),
        kept => kept,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_networks_and_users_are_not_shown() {
        check(
            "root=UUID=1-2 isolcpus=2-3 user.name=alice nohz_full=2-3",
            "isolcpus=2-3 nohz_full=2-3",
        );
        check("ip=10.0.0.1 luks.uuid=5e hostname=x nosmt -- isolcpus=1 token=secret", "nosmt");
        check("root=/dev/vda1 ro quiet", "none for CPUs or memory");
        check("", "none for CPUs or memory");
    }

    fn check(text: &str, kept: &str) {
        assert_eq!(shown_parameters(text), kept, "{text}")
    }
}
