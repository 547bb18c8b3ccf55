//! Names of programs that may own CPUs.

/// Length to which the kernel cuts the name of a process, in bytes.
const LONGEST_NAME: usize = 15;

/// A program that runs virtual machines.
pub struct Hypervisor {
    /// True for the file name of the program, or for the name of its process.
    is: fn(&str) -> bool,
    /// True for the name of a vCPU thread.
    pub is_vcpu: fn(&str) -> bool,
    /// The name of a machine in the arguments of its process.
    pub machine: fn(&[String]) -> Option<String>,
}

const HYPERVISORS: [Hypervisor; 4] = [
    Hypervisor {
        is: pinfold_qemu::is_qemu,
        is_vcpu: |thread| pinfold_qemu::role_of(thread).is_vcpu(),
        machine: |arguments| pinfold_qemu::parse(arguments).name().map(str::to_owned),
    },
    Hypervisor {
        is: |name| is_called(name, "cloud-hypervisor"),
        is_vcpu: |thread| thread.starts_with("vcpu"),
        machine: |_| None,
    },
    Hypervisor {
        is: |name| is_called(name, "crosvm"),
        is_vcpu: |thread| thread.starts_with("crosvm_vcpu"),
        machine: |arguments| option(arguments, "--name").map(str::to_owned),
    },
    Hypervisor {
        is: |name| is_called(name, "firecracker"),
        is_vcpu: |thread| thread.starts_with("fc_vcpu"),
        machine: |arguments| option(arguments, "--id").map(str::to_owned),
    },
];

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
            let found = hypervisor(name).expect("QEMU");
            assert!((found.is_vcpu)("CPU 0/KVM") && (found.is_vcpu)("ALL CPUs/TCG"), "{name}");
            assert!(!(found.is_vcpu)("IO mon_iothread"));
        }
        for name in ["cloud-hypervisor", "cloud-hyperviso", "firecracker", "spdk_nvme_perf"] {
            assert!(may_own_cpus(name), "{name}");
        }
        for name in ["cloud-hyper", "bash", "qemu-img", "ovs-vsctl", ""] {
            assert!(!may_own_cpus(name), "{name}");
        }
    }
}
