//! Names of programs that may own CPUs.

/// Length to which the kernel cuts the name of a process, in bytes.
const LONGEST_NAME: usize = 15;

/// A program that runs virtual machines.
pub struct Hypervisor {
    /// True for the file name of the program, or for the name of its process.
    is: fn(&str) -> bool,
    /// Start of the names of its vCPU threads.
    pub vcpu: &'static str,
    /// The option that names a machine.
    pub name: &'static str,
}

const HYPERVISORS: [Hypervisor; 4] = [
    Hypervisor { is: pinfold_qemu::is_qemu, vcpu: "CPU ", name: "-name" },
    Hypervisor { is: |name| is_called(name, "cloud-hypervisor"), vcpu: "vcpu", name: "--name" },
    Hypervisor { is: |name| is_called(name, "crosvm"), vcpu: "crosvm_vcpu", name: "--name" },
    Hypervisor { is: |name| is_called(name, "firecracker"), vcpu: "fc_vcpu", name: "--id" },
];

/// The switch of Open vSwitch.
pub const OPENVSWITCH: &str = "ovs-vswitchd";

const SPDK: [&str; 7] =
    ["spdk_tgt", "nvmf_tgt", "iscsi_tgt", "vhost_tgt", "bdevperf", "spdk_nvme_perf", "reactor_0"];
const DPDK: [&str; 4] = ["testpmd", "l2fwd", "l3fwd", "pktgen"];

/// True if a name is this program's, also if it is cut.
fn is_called(name: &str, program: &str) -> bool {
    name == program || (name.len() == LONGEST_NAME && program.starts_with(name))
}

/// The hypervisor of this name.
#[must_use]
pub fn hypervisor(name: &str) -> Option<&'static Hypervisor> {
    HYPERVISORS.iter().find(|hypervisor| (hypervisor.is)(name))
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
    hypervisor(name).is_some() || is_spdk(name) || is_dpdk(name) || name == OPENVSWITCH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_also_if_the_kernel_has_cut_them() {
        for name in ["qemu-system-x86_64", "qemu-system-x86", ".qemu-system-aarch64-wrapped"] {
            assert_eq!(hypervisor(name).map(|found| found.vcpu), Some("CPU "), "{name}");
        }
        for name in ["cloud-hypervisor", "cloud-hyperviso", "firecracker", "spdk_nvme_perf"] {
            assert!(may_own_cpus(name), "{name}");
        }
        for name in ["cloud-hyper", "bash", "qemu-img", "ovs-vsctl", ""] {
            assert!(!may_own_cpus(name), "{name}");
        }
    }
}
