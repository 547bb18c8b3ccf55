//! Paths of host-wide features for guests: devices for passthrough, idle states, swap, module
//! parameters, BPF schedulers.

use pinfold_model::Tid;

paths! {
    /// Directory of the IOMMU groups,
    /// <https://docs.kernel.org/driver-api/vfio.html#groups-devices-and-iommus>.
    iommu_groups() = "/sys/kernel/iommu_groups";
    /// Directory of the devices of one IOMMU group, by PCI address.
    iommu_group_devices(group: &str) = "/sys/kernel/iommu_groups/{group}/devices";
    /// Directory of a PCI driver; its devices are entries in it.
    pci_driver(driver: &str) = "/sys/bus/pci/drivers/{driver}";
    /// A parameter of a kernel module.
    module_parameter(module: &str, name: &str) = "/sys/module/{module}/parameters/{name}";
    /// A file of the cpuidle driver, such as `current_driver`,
    /// <https://docs.kernel.org/admin-guide/pm/cpuidle.html>.
    cpuidle_file(name: &str) = "/sys/devices/system/cpu/cpuidle/{name}";
    /// Active swap areas.
    swaps() = "/proc/swaps";
    /// Whether a BPF scheduler is active, <https://docs.kernel.org/scheduler/sched-ext.html>.
    sched_ext_state() = "/sys/kernel/sched_ext/state";
    /// Name of the active BPF scheduler.
    sched_ext_ops() = "/sys/kernel/sched_ext/root/ops";
    /// Entry of a capture with the claims on its CPUs; no kernel path.
    captured_claims() = "/pinfold/claims.json";
    /// Entry of a capture with the names of the `doctor` questions that it can answer.
    captured_answers() = "/pinfold/doctor";
    /// NUMA node of a device, by its directory below `/sys` (`devices/pci0000:00/0000:00:1f.0`).
    numa_node_of_device(device: &str) = "/sys/{device}/numa_node";
    /// A tunable of the fair scheduler, such as `base_slice_ns`; needs debugfs.
    /// <https://docs.kernel.org/scheduler/sched-eevdf.html>
    debug_sched(name: &str) = "/sys/kernel/debug/sched/{name}";
    /// Load averages over one, five and fifteen minutes.
    load_average() = "/proc/loadavg";
    /// Seconds since boot, and idle seconds of all CPUs.
    uptime() = "/proc/uptime";
    /// Offsets of the clocks in the caller's time namespace.
    /// <https://man7.org/linux/man-pages/man7/time_namespaces.7.html>
    own_time_offsets() = "/proc/self/timens_offsets";
}

/// Where the tunables of a host and most groups are.
pub const CHANGEABLE: [&str; 3] = ["/sys/", "/proc/sys/", "/proc/irq/"];

paths! {
    /// The group of the calling process in the cpuset hierarchy,
    /// <https://man7.org/linux/man-pages/man7/cpuset.7.html>.
    own_cpuset() = "/proc/self/cpuset";
    /// The mount table in the old form.
    mounts() = "/proc/mounts";
    /// Directory of the devices.
    devices() = "/sys/devices/";
    /// Functions of the kernel with their addresses, which are 0 where `kernel.kptr_restrict` hides
    /// them.
    kernel_symbols() = "/proc/kallsyms";
    /// Names of the drivers of an interrupt, separated by commas.
    irq_actions(irq: u64) = "/sys/kernel/irq/{irq}/actions";
    /// Kernel information about one of the caller's open files.
    own_fdinfo(number: i32) = "/proc/self/fdinfo/{number}";
    /// Link to an open file of a process, through which another process can open it.
    open_file(pid: Tid, number: i32) = "/proc/{pid}/fd/{number}";
    /// Device whose content is endless zeros.
    zeros() = "/dev/zero";
    /// Device that discards what is written.
    discarded() = "/dev/null";
    /// Symbolic link to one of the caller's open files.
    own_fd(number: i32) = "/proc/self/fd/{number}";
    /// Number of interrupts on each CPU, <https://docs.kernel.org/filesystems/proc.html>.
    interrupts() = "/proc/interrupts";
}
