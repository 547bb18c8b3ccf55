//! Names of programs that may own CPUs.

use pinfold_vm::hypervisors;

/// The switch of Open vSwitch.
pub const OPENVSWITCH: &str = "ovs-vswitchd";

/// Programs of SPDK's event framework, each of whose CPUs has a thread that polls.
const SPDK: [&str; 6] = ["spdk_tgt", "nvmf_tgt", "iscsi_tgt", "vhost_tgt", "bdevperf", "reactor_0"];
/// A benchmark of SPDK without that framework, which has options of its own.
const SPDK_PERF: &str = "spdk_nvme_perf";
const DPDK: [&str; 4] = ["testpmd", "l2fwd", "l3fwd", "pktgen"];

/// The value of an option, as `--option VALUE`, `--option=VALUE` or, for one letter, `-oVALUE`. The
/// last one counts.
#[must_use]
pub fn option<'a>(arguments: &'a [String], name: &str) -> Option<&'a str> {
    let mut last = None;
    let mut arguments = arguments.iter().skip(1).take_while(|argument| *argument != "--");
    while let Some(argument) = arguments.next() {
        let Some(rest) = argument.strip_prefix(name) else { continue };
        if rest.is_empty() {
            last = arguments.next().map(String::as_str).or(last);
        } else if let Some(value) = rest.strip_prefix('=') {
            last = Some(value);
        } else if !name.starts_with("--") {
            last = Some(rest);
        }
    }
    last
}

/// True for the programs of SPDK.
#[must_use]
pub fn is_spdk(name: &str) -> bool {
    SPDK.contains(&name) || name.starts_with("spdk_")
}

/// True for SPDK's benchmark of NVMe devices.
#[must_use]
pub fn is_spdk_perf(name: &str) -> bool {
    name == SPDK_PERF
}

/// True for the programs of SPDK that poll on a CPU also if no option names one.
#[must_use]
pub fn polls_by_default(name: &str) -> bool {
    SPDK.contains(&name) || is_spdk_perf(name)
}

/// True for the programs of DPDK. Others that use it are found by their options.
#[must_use]
pub fn is_dpdk(name: &str) -> bool {
    DPDK.contains(&name) || name.starts_with("dpdk-")
}

/// True if a program of this name may own CPUs.
#[must_use]
pub fn may_own_cpus(name: &str) -> bool {
    hypervisors::find_by_program(name).is_some()
        || is_spdk(name)
        || is_dpdk(name)
        || name == OPENVSWITCH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_also_if_the_kernel_has_cut_them() {
        for name in ["qemu-system-x86_64", "qemu-system-x86", ".qemu-system-aarch64-wrapped"] {
            let found = hypervisors::find_by_program(name).expect("QEMU");
            let is_vcpu = |thread: &str| found.role_of(thread).is_vcpu();
            assert!(is_vcpu("CPU 0/KVM") && is_vcpu("ALL CPUs/TCG"), "{name}");
            assert!(!is_vcpu("IO mon_iothread"));
        }
        for name in ["cloud-hypervisor", "cloud-hyperviso", "firecracker", "spdk_nvme_perf"] {
            assert!(may_own_cpus(name), "{name}");
        }
        for name in ["cloud-hyper", "bash", "qemu-img", "ovs-vsctl", ""] {
            assert!(!may_own_cpus(name), "{name}");
        }
    }
}
