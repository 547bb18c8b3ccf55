//! What a host gives to guests as a whole: devices to pass through, idle states, memory that may
//! be swapped or merged, a scheduler of its own.

/// Directory of the IOMMU groups,
/// <https://docs.kernel.org/driver-api/vfio.html#groups-devices-and-iommus>.
#[must_use]
pub fn iommu_groups() -> String {
    "/sys/kernel/iommu_groups".to_owned()
}

/// Directory of the devices of one group, by PCI address.
#[must_use]
pub fn iommu_group_devices(group: &str) -> String {
    format!("/sys/kernel/iommu_groups/{group}/devices")
}

/// Directory of the devices that a PCI driver has, among other entries.
#[must_use]
pub fn pci_driver(driver: &str) -> String {
    format!("/sys/bus/pci/drivers/{driver}")
}

/// A parameter of a module.
#[must_use]
pub fn module_parameter(module: &str, name: &str) -> String {
    format!("/sys/module/{module}/parameters/{name}")
}

/// A file of the idle driver, such as `current_driver`,
/// <https://docs.kernel.org/admin-guide/pm/cpuidle.html>.
#[must_use]
pub fn cpuidle_file(name: &str) -> String {
    format!("/sys/devices/system/cpu/cpuidle/{name}")
}

/// Swap areas in use.
#[must_use]
pub fn swaps() -> String {
    "/proc/swaps".to_owned()
}

/// Whether a BPF scheduler runs, <https://docs.kernel.org/scheduler/sched-ext.html>.
#[must_use]
pub fn sched_ext_state() -> String {
    "/sys/kernel/sched_ext/state".to_owned()
}

/// The name of the BPF scheduler that runs.
#[must_use]
pub fn sched_ext_ops() -> String {
    "/sys/kernel/sched_ext/root/ops".to_owned()
}

/// Where a capture keeps the names of the questions of `doctor` that it can answer.
#[must_use]
pub fn captured_answers() -> String {
    "/pinfold/doctor".to_owned()
}

/// The NUMA node of a device, by its directory below `/sys` (`devices/pci0000:00/0000:00:1f.0`).
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

/// Tasks that run or want to, as means of one, five and fifteen minutes.
#[must_use]
pub fn load_average() -> String {
    "/proc/loadavg".to_owned()
}

/// Seconds since boot, and those that the CPUs were idle.
#[must_use]
pub fn uptime() -> String {
    "/proc/uptime".to_owned()
}
