//! Paths of host-wide features for guests: devices for passthrough, idle states, swap, module
//! parameters, BPF schedulers.

/// Directory of the IOMMU groups,
/// <https://docs.kernel.org/driver-api/vfio.html#groups-devices-and-iommus>.
#[must_use]
pub fn iommu_groups() -> String {
    "/sys/kernel/iommu_groups".to_owned()
}

/// Directory of the devices of one IOMMU group, by PCI address.
#[must_use]
pub fn iommu_group_devices(group: &str) -> String {
    format!("/sys/kernel/iommu_groups/{group}/devices")
}

/// Directory of a PCI driver; its devices are entries in it.
#[must_use]
pub fn pci_driver(driver: &str) -> String {
    format!("/sys/bus/pci/drivers/{driver}")
}

/// A parameter of a kernel module.
#[must_use]
pub fn module_parameter(module: &str, name: &str) -> String {
    format!("/sys/module/{module}/parameters/{name}")
}

/// A file of the cpuidle driver, such as `current_driver`,
/// <https://docs.kernel.org/admin-guide/pm/cpuidle.html>.
#[must_use]
pub fn cpuidle_file(name: &str) -> String {
    format!("/sys/devices/system/cpu/cpuidle/{name}")
}

/// Active swap areas.
#[must_use]
pub fn swaps() -> String {
    "/proc/swaps".to_owned()
}

/// Whether a BPF scheduler is active, <https://docs.kernel.org/scheduler/sched-ext.html>.
#[must_use]
pub fn sched_ext_state() -> String {
    "/sys/kernel/sched_ext/state".to_owned()
}

/// Name of the active BPF scheduler.
#[must_use]
pub fn sched_ext_ops() -> String {
    "/sys/kernel/sched_ext/root/ops".to_owned()
}

/// Entry of a capture with the claims on its CPUs; no kernel path.
#[must_use]
pub fn captured_claims() -> String {
    "/pinfold/claims.json".to_owned()
}

/// Entry of a capture with the names of the `doctor` questions that it can answer.
#[must_use]
pub fn captured_answers() -> String {
    "/pinfold/doctor".to_owned()
}

/// NUMA node of a device, by its directory below `/sys` (`devices/pci0000:00/0000:00:1f.0`).
#[must_use]
pub fn numa_node_of_device(device: &str) -> String {
    format!("/sys/{device}/numa_node")
}

/// A tunable of the fair scheduler, such as `base_slice_ns`; needs debugfs.
/// <https://docs.kernel.org/scheduler/sched-eevdf.html>
#[must_use]
pub fn debug_sched(name: &str) -> String {
    format!("/sys/kernel/debug/sched/{name}")
}

/// Load averages over one, five and fifteen minutes.
#[must_use]
pub fn load_average() -> String {
    "/proc/loadavg".to_owned()
}

/// Seconds since boot, and idle seconds of all CPUs.
#[must_use]
pub fn uptime() -> String {
    "/proc/uptime".to_owned()
}

/// Offsets of the clocks in the caller's time namespace.
/// <https://man7.org/linux/man-pages/man7/time_namespaces.7.html>
#[must_use]
pub fn own_time_offsets() -> String {
    "/proc/self/timens_offsets".to_owned()
}

/// Where the tunables of a host and most groups are.
pub const CHANGEABLE: [&str; 3] = ["/sys/", "/proc/sys/", "/proc/irq/"];

/// The group of the calling process in the cpuset hierarchy,
/// <https://man7.org/linux/man-pages/man7/cpuset.7.html>.
#[must_use]
pub fn own_cpuset() -> String {
    "/proc/self/cpuset".to_owned()
}

/// The mount table in the old form.
#[must_use]
pub fn mounts() -> String {
    "/proc/mounts".to_owned()
}

/// Directory of the devices.
#[must_use]
pub fn devices() -> String {
    "/sys/devices/".to_owned()
}

/// Functions of the kernel with their addresses, which are 0 where `kernel.kptr_restrict` hides
/// them.
#[must_use]
pub fn kernel_symbols() -> String {
    "/proc/kallsyms".to_owned()
}

/// Names of the drivers of an interrupt, separated by commas.
#[must_use]
pub fn irq_actions(irq: u64) -> String {
    format!("/sys/kernel/irq/{irq}/actions")
}

/// Kernel information about one of the caller's open files.
#[must_use]
pub fn own_fdinfo(number: i32) -> String {
    format!("/proc/self/fdinfo/{number}")
}

/// Number of interrupts on each CPU, <https://docs.kernel.org/filesystems/proc.html>.
#[must_use]
pub fn interrupts() -> String {
    "/proc/interrupts".to_owned()
}
