//! Names of programs that may own CPUs.

use pinfold_vm::hypervisors;

/// The switch of Open vSwitch.
pub const OPENVSWITCH: &str = "ovs-vswitchd";

const SPDK: [&str; 7] =
    ["spdk_tgt", "nvmf_tgt", "iscsi_tgt", "vhost_tgt", "bdevperf", "spdk_nvme_perf", "reactor_0"];
const DPDK: [&str; 4] = ["testpmd", "l2fwd", "l3fwd", "pktgen"];

/// The value of an option, as `--option VALUE`, `--option=VALUE` or, for one letter, `-oVALUE`.
#[must_use]
pub fn option<'a>(arguments: &'a [String], name: &str) -> Option<&'a str> {
    let mut arguments = arguments.iter().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--" {
            return None;
        }
        let Some(rest) = argument.strip_prefix(name) else { continue };
        if rest.is_empty() {
            return arguments.next().map(String::as_str);
        }
        if let Some(value) = rest.strip_prefix('=') {
            return Some(value);
        }
        if !name.starts_with("--") {
            return Some(rest);
        }
    }
    None
}

/// True for the programs of SPDK.
#[must_use]
pub fn is_spdk(name: &str) -> bool {
    SPDK.contains(&name) || name.starts_with("spdk_")
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
