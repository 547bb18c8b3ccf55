//! Every kernel path that Pinfold uses, each with its page in the kernel's documentation.
//!
//! No other code contains a path of `/proc`, `/sys` or `/dev`: what a kernel renames is changed
//! here. Functions return whole paths. Those of a file in a cgroup take the group's directory,
//! because the mount point of a hierarchy is read from the mount table.

mod machine;

use pinfold_model::{Lifetime, NodeId, PuId, Tid};

pub use machine::{
    CHANGEABLE, captured_answers, captured_claims, cpuidle_file, debug_sched, devices, interrupts,
    iommu_group_devices, iommu_groups, irq_actions, kernel_symbols, load_average, module_parameter,
    mounts, numa_node_of_device, own_cpuset, own_fdinfo, own_time_offsets, pci_driver,
    sched_ext_ops, sched_ext_state, swaps, uptime,
};

// CPUs: https://docs.kernel.org/admin-guide/cputopology.html and
// https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-devices-system-cpu

/// Directory of all CPUs.
#[must_use]
pub fn cpu_dir() -> String {
    "/sys/devices/system/cpu".to_owned()
}

/// List of online CPUs.
#[must_use]
pub fn cpu_online() -> String {
    "/sys/devices/system/cpu/online".to_owned()
}

/// List of present CPUs.
#[must_use]
pub fn cpu_present() -> String {
    "/sys/devices/system/cpu/present".to_owned()
}

/// List of possible CPUs.
#[must_use]
pub fn cpu_possible() -> String {
    "/sys/devices/system/cpu/possible".to_owned()
}

/// List of CPUs isolated at boot (`isolcpus=`).
#[must_use]
pub fn cpu_isolated() -> String {
    "/sys/devices/system/cpu/isolated".to_owned()
}

/// List of CPUs without a periodic tick (`nohz_full=`); absent if the kernel does not support it.
#[must_use]
pub fn cpu_nohz_full() -> String {
    "/sys/devices/system/cpu/nohz_full".to_owned()
}

/// SMT state: `on`, `off`, `forceoff`, `notsupported`, `notimplemented`.
#[must_use]
pub fn smt_control() -> String {
    "/sys/devices/system/cpu/smt/control".to_owned()
}

/// `1` if SMT is in use.
#[must_use]
pub fn smt_active() -> String {
    "/sys/devices/system/cpu/smt/active".to_owned()
}

/// A file below a CPU's directory, such as `topology/core_cpus_list` or `cache/index3/level`.
#[must_use]
pub fn cpu_file(pu: PuId, file: &str) -> String {
    format!("/sys/devices/system/cpu/cpu{pu}/{file}")
}

/// `0` if the CPU is offline; absent where it cannot be taken offline.
#[must_use]
pub fn cpu_is_online(pu: PuId) -> String {
    cpu_file(pu, "online")
}

/// CPUs of one core type (`cpu_core`, `cpu_atom`, `cpu_lowpower`) on hybrid Intel machines:
/// those of its PMU, <https://docs.kernel.org/admin-guide/perf/index.html>.
#[must_use]
pub fn pmu_cpus(pmu: &str) -> String {
    format!("/sys/devices/{pmu}/cpus")
}

/// Directory of the PCI devices, by address,
/// <https://docs.kernel.org/PCI/sysfs-pci.html>.
#[must_use]
pub fn pci_devices_dir() -> String {
    "/sys/bus/pci/devices".to_owned()
}

/// The NUMA node of a PCI device; -1 where the firmware does not report it,
/// <https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-pci>.
#[must_use]
pub fn pci_numa_node(address: &str) -> String {
    format!("{}/{address}/numa_node", pci_devices_dir())
}

/// Directory of the cpufreq policies,
/// <https://docs.kernel.org/admin-guide/pm/cpufreq.html>.
#[must_use]
pub fn cpufreq_dir() -> String {
    "/sys/devices/system/cpu/cpufreq".to_owned()
}

/// A file of a CPU's cpufreq directory, such as `related_cpus` or `scaling_driver`.
#[must_use]
pub fn cpufreq_file(pu: PuId, file: &str) -> String {
    cpu_file(pu, &format!("cpufreq/{file}"))
}

/// Directory of a device's message-signalled interrupts, one entry per interrupt number; absent
/// while its driver uses none.
#[must_use]
pub fn pci_msi_irqs(address: &str) -> String {
    format!("{}/{address}/msi_irqs", pci_devices_dir())
}

/// Number of a device's line interrupt; 0 if it has none.
#[must_use]
pub fn pci_irq(address: &str) -> String {
    format!("{}/{address}/irq", pci_devices_dir())
}

// Interrupts: https://docs.kernel.org/core-api/irq/irq-affinity.html

/// One directory per interrupt, by number.
#[must_use]
pub fn irqs_dir() -> String {
    "/proc/irq".to_owned()
}

/// A file of an interrupt, such as `smp_affinity_list` or `effective_affinity_list`.
#[must_use]
pub fn irq_file(irq: u32, file: &str) -> String {
    format!("/proc/irq/{irq}/{file}")
}

/// Default affinity mask of interrupts that are set up later.
#[must_use]
pub fn default_smp_affinity() -> String {
    "/proc/irq/default_smp_affinity".to_owned()
}

/// Mask of the CPUs for unbound workqueues,
/// <https://docs.kernel.org/core-api/workqueue.html>.
#[must_use]
pub fn workqueue_cpumask() -> String {
    "/sys/devices/virtual/workqueue/cpumask".to_owned()
}

/// Wake-up latency limit of a CPU in microseconds; `n/a` disables every idle state, 0 means no
/// limit, <https://docs.kernel.org/admin-guide/pm/cpuidle.html>.
#[must_use]
pub fn cpu_resume_latency(pu: PuId) -> String {
    cpu_file(pu, "power/pm_qos_resume_latency_us")
}

/// Number of huge pages of one size in a node's pool.
#[must_use]
pub fn node_huge_pages(node: NodeId, page_bytes: u64) -> String {
    format!("{}/hugepages-{}kB/nr_hugepages", node_hugepages_dir(node), page_bytes / 1024)
}

/// State of kernel samepage merging: 0, 1 or 2,
/// <https://docs.kernel.org/admin-guide/mm/ksm.html>.
#[must_use]
pub fn ksm_run() -> String {
    "/sys/kernel/mm/ksm/run".to_owned()
}

/// Pages of each mapping of a process, by NUMA node.
#[must_use]
pub fn process_numa_maps(pid: Tid) -> String {
    process_file(pid, "numa_maps")
}

/// v2: CPU weight of a group relative to its siblings, 1 to 10,000.
#[must_use]
pub fn cpu_weight(group: &str) -> String {
    cgroup_file(group, "cpu.weight")
}

/// v1: CPU weight of a group relative to its siblings; the default is 1,024.
#[must_use]
pub fn cpu_shares(group: &str) -> String {
    cgroup_file(group, "cpu.shares")
}

/// v1: period of a group's CFS quota in microseconds.
#[must_use]
pub fn cpu_cfs_period(group: &str) -> String {
    cgroup_file(group, "cpu.cfs_period_us")
}

/// v1: CFS quota of a group per period in microseconds; -1 for no limit.
#[must_use]
pub fn cpu_cfs_quota(group: &str) -> String {
    cgroup_file(group, "cpu.cfs_quota_us")
}

/// v2: quota and period in microseconds, or `max` and a period.
#[must_use]
pub fn cpu_max(group: &str) -> String {
    cgroup_file(group, "cpu.max")
}

// NUMA: https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-devices-node

/// Directory of all NUMA nodes.
#[must_use]
pub fn node_dir() -> String {
    "/sys/devices/system/node".to_owned()
}

/// List of online NUMA nodes.
#[must_use]
pub fn node_online() -> String {
    "/sys/devices/system/node/online".to_owned()
}

/// A file of a NUMA node, such as `cpulist`, `distance` or `meminfo`.
#[must_use]
pub fn node_file(node: NodeId, file: &str) -> String {
    format!("/sys/devices/system/node/node{node}/{file}")
}

/// Directory of a node's huge pages, with a folder such as `hugepages-2048kB` per size,
/// <https://docs.kernel.org/admin-guide/mm/hugetlbpage.html>.
#[must_use]
pub fn node_hugepages_dir(node: NodeId) -> String {
    node_file(node, "hugepages")
}

// Tasks: https://docs.kernel.org/filesystems/proc.html

/// Directory of all processes.
#[must_use]
pub fn proc_dir() -> String {
    "/proc".to_owned()
}

/// A file of a process (or, by TID, of a thread), such as `cmdline`.
#[must_use]
pub fn process_file(pid: Tid, file: &str) -> String {
    format!("/proc/{pid}/{file}")
}

/// `stat` of a process or thread.
#[must_use]
pub fn process_stat(pid: Tid) -> String {
    process_file(pid, "stat")
}

/// `status` of a process or thread.
#[must_use]
pub fn process_status(pid: Tid) -> String {
    process_file(pid, "status")
}

/// `cgroup` of a process or thread.
#[must_use]
pub fn process_cgroup(pid: Tid) -> String {
    process_file(pid, "cgroup")
}

/// `cmdline` of a process: arguments, each terminated by a zero byte.
#[must_use]
pub fn process_cmdline(pid: Tid) -> String {
    process_file(pid, "cmdline")
}

/// `comm` of a process or thread: its name, at most 15 bytes.
#[must_use]
pub fn process_comm(pid: Tid) -> String {
    process_file(pid, "comm")
}

/// Directory of the threads of a process.
#[must_use]
pub fn task_dir(pid: Tid) -> String {
    process_file(pid, "task")
}

/// A file of one thread of a process.
#[must_use]
pub fn task_file(pid: Tid, tid: Tid, file: &str) -> String {
    format!("/proc/{pid}/task/{tid}/{file}")
}

/// `stat` of one thread of a process.
#[must_use]
pub fn task_stat(pid: Tid, tid: Tid) -> String {
    task_file(pid, tid, "stat")
}

/// `status` of one thread of a process.
#[must_use]
pub fn task_status(pid: Tid, tid: Tid) -> String {
    task_file(pid, tid, "status")
}

/// `comm` of one thread of a process.
#[must_use]
pub fn task_comm(pid: Tid, tid: Tid) -> String {
    task_file(pid, tid, "comm")
}

/// `schedstat` of one thread of a process,
/// <https://docs.kernel.org/scheduler/sched-stats.html>.
#[must_use]
pub fn task_schedstat(pid: Tid, tid: Tid) -> String {
    task_file(pid, tid, "schedstat")
}

/// `sched` of one thread (`CONFIG_SCHED_DEBUG`): migrations and more.
#[must_use]
pub fn task_sched(pid: Tid, tid: Tid) -> String {
    task_file(pid, tid, "sched")
}

/// Mappings of a process: address range, permissions, offset and file of each,
/// <https://docs.kernel.org/filesystems/proc.html>.
#[must_use]
pub fn process_maps(pid: Tid) -> String {
    process_file(pid, "maps")
}

/// Mount namespace of a process, a link: processes with equal links see the same mounts.
#[must_use]
pub fn process_mount_namespace(pid: Tid) -> String {
    process_file(pid, "ns/mnt")
}

/// The root directory of a process: a link.
#[must_use]
pub fn process_root(pid: Tid) -> String {
    process_file(pid, "root")
}

/// Mount table of the caller's namespace.
#[must_use]
pub fn own_mountinfo() -> String {
    "/proc/self/mountinfo".to_owned()
}

/// `cgroup` of the caller.
#[must_use]
pub fn own_cgroup() -> String {
    "/proc/self/cgroup".to_owned()
}

/// `status` of the caller.
#[must_use]
pub fn own_status() -> String {
    "/proc/self/status".to_owned()
}

/// `stat` of the caller.
#[must_use]
pub fn own_stat() -> String {
    "/proc/self/stat".to_owned()
}

// Kernel-wide: https://docs.kernel.org/admin-guide/sysctl/kernel.html

/// Boot ID, different after each boot.
#[must_use]
pub fn boot_id() -> String {
    "/proc/sys/kernel/random/boot_id".to_owned()
}

/// Directories that exist in every mount of sysfs and procfs.
pub const ALWAYS_THERE: [&str; 5] =
    ["/sys/devices", "/sys/kernel", "/sys/module", "/proc/sys", "/proc/irq"];

/// A namespace of this process, by type (`pid`, `time`, `cgroup`).
#[must_use]
pub fn own_namespace(kind: &str) -> String {
    format!("/proc/self/ns/{kind}")
}

/// Kernel release, as `uname -r`.
#[must_use]
pub fn kernel_release() -> String {
    "/proc/sys/kernel/osrelease".to_owned()
}

/// A sysctl below `kernel`, such as `sched_rt_runtime_us` or `numa_balancing`.
#[must_use]
pub fn sysctl_kernel(name: &str) -> String {
    format!("/proc/sys/kernel/{name}")
}

/// Boot parameters of the kernel.
#[must_use]
pub fn kernel_cmdline() -> String {
    "/proc/cmdline".to_owned()
}

/// Processor description.
#[must_use]
pub fn cpuinfo() -> String {
    "/proc/cpuinfo".to_owned()
}

/// Memory statistics of the machine.
#[must_use]
pub fn meminfo() -> String {
    "/proc/meminfo".to_owned()
}

/// CPU times and counters of the machine.
#[must_use]
pub fn kernel_stat() -> String {
    "/proc/stat".to_owned()
}

/// CPU pressure: time for which tasks waited for a CPU,
/// <https://docs.kernel.org/accounting/psi.html>.
#[must_use]
pub fn cpu_pressure() -> String {
    "/proc/pressure/cpu".to_owned()
}

/// Hypervisor type; present under some hypervisors.
#[must_use]
pub fn hypervisor_type() -> String {
    "/sys/hypervisor/type".to_owned()
}

/// Device file of KVM, <https://docs.kernel.org/virt/kvm/api.html>.
#[must_use]
pub fn kvm_device() -> String {
    "/dev/kvm".to_owned()
}

// cgroup v1: https://docs.kernel.org/admin-guide/cgroup-v1/cpusets.html
// cgroup v2: https://docs.kernel.org/admin-guide/cgroup-v2.html

/// A file of a cgroup.
#[must_use]
pub fn cgroup_file(group: &str, file: &str) -> String {
    format!("{}/{file}", group.trim_end_matches('/'))
}

/// v2: controllers that a group may enable.
#[must_use]
pub fn cgroup_controllers(group: &str) -> String {
    cgroup_file(group, "cgroup.controllers")
}

/// v2: controllers that are enabled for a group's children.
#[must_use]
pub fn cgroup_subtree_control(group: &str) -> String {
    cgroup_file(group, "cgroup.subtree_control")
}

/// Processes of a group, one per line; writing a PID moves that process with all its threads.
#[must_use]
pub fn cgroup_procs(group: &str) -> String {
    cgroup_file(group, "cgroup.procs")
}

/// v2: threads of a group; writing a TID moves that thread within a threaded subtree.
#[must_use]
pub fn cgroup_threads(group: &str) -> String {
    cgroup_file(group, "cgroup.threads")
}

/// v1: threads of a group; writing a TID moves only that thread.
#[must_use]
pub fn cgroup_tasks(group: &str) -> String {
    cgroup_file(group, "tasks")
}

/// v2: memory of a group by NUMA node.
#[must_use]
pub fn memory_numa_stat(group: &str) -> String {
    cgroup_file(group, "memory.numa_stat")
}

/// v2: `domain`, `domain threaded`, `domain invalid` or `threaded`.
#[must_use]
pub fn cgroup_type(group: &str) -> String {
    cgroup_file(group, "cgroup.type")
}

/// CPUs that a group requests.
#[must_use]
pub fn cpuset_cpus(group: &str) -> String {
    cgroup_file(group, "cpuset.cpus")
}

/// Memory nodes that a group requests.
#[must_use]
pub fn cpuset_mems(group: &str) -> String {
    cgroup_file(group, "cpuset.mems")
}

/// v2: CPUs that a group effectively has.
#[must_use]
pub fn cpuset_cpus_effective(group: &str) -> String {
    cgroup_file(group, "cpuset.cpus.effective")
}

/// v2: memory nodes that a group effectively has.
#[must_use]
pub fn cpuset_mems_effective(group: &str) -> String {
    cgroup_file(group, "cpuset.mems.effective")
}

/// v1: CPUs that a group effectively has.
#[must_use]
pub fn cpuset_effective_cpus(group: &str) -> String {
    cgroup_file(group, "cpuset.effective_cpus")
}

/// v1: memory nodes that a group effectively has.
#[must_use]
pub fn cpuset_effective_mems(group: &str) -> String {
    cgroup_file(group, "cpuset.effective_mems")
}

/// v2: `member`, `root` or `isolated`, with the reason if invalid.
#[must_use]
pub fn cpuset_partition(group: &str) -> String {
    cgroup_file(group, "cpuset.cpus.partition")
}

/// v2, root group only: CPUs of all isolated partitions (Linux 6.8).
#[must_use]
pub fn cpuset_isolated(group: &str) -> String {
    cgroup_file(group, "cpuset.cpus.isolated")
}

// Further paths that `topo` and `doctor` read.

/// List of NUMA nodes in a state: `has_cpu`, `has_memory`, `possible`.
#[must_use]
pub fn node_state(state: &str) -> String {
    format!("/sys/devices/system/node/{state}")
}

/// A file of the firmware's DMI tables, such as `sys_vendor`,
/// <https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-class-dmi>.
#[must_use]
pub fn dmi_file(name: &str) -> String {
    format!("/sys/devices/virtual/dmi/id/{name}")
}

/// Clock sources of this machine; `kvm-clock` and similar ones indicate the hypervisor,
/// <https://docs.kernel.org/timers/timekeeping.html>.
#[must_use]
pub fn clock_sources() -> String {
    "/sys/devices/system/clocksource/clocksource0/available_clocksource".to_owned()
}

/// A file of a cpufreq policy (`policy0`), such as `related_cpus`.
#[must_use]
pub fn cpufreq_policy_file(policy: &str, file: &str) -> String {
    format!("/sys/devices/system/cpu/cpufreq/{policy}/{file}")
}

/// Directory of the caller: a link to its PID.
#[must_use]
pub fn own_dir() -> String {
    "/proc/self".to_owned()
}

/// Resource limits of the caller.
#[must_use]
pub fn own_limits() -> String {
    "/proc/self/limits".to_owned()
}

/// Run time, wait time and number of time slices of the caller,
/// <https://docs.kernel.org/scheduler/sched-stats.html>.
#[must_use]
pub fn own_schedstat() -> String {
    "/proc/self/schedstat".to_owned()
}

/// File system types that the kernel supports.
#[must_use]
pub fn filesystems() -> String {
    "/proc/filesystems".to_owned()
}

/// Directory of a module that is loaded, or built in with parameters.
#[must_use]
pub fn module_dir(module: &str) -> String {
    format!("/sys/module/{module}")
}

/// Directory of the performance monitoring units (`cpu`, `cpu_core`, `armv8_pmuv3_0`),
/// <https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-event_source-devices>.
#[must_use]
pub fn event_sources() -> String {
    "/sys/bus/event_source/devices".to_owned()
}

/// Usual mount point of tracefs,
/// <https://docs.kernel.org/trace/ftrace.html#the-file-system>.
#[must_use]
pub fn tracing_dir() -> String {
    "/sys/kernel/tracing".to_owned()
}

/// Older mount point of tracefs, below debugfs.
#[must_use]
pub fn debug_tracing_dir() -> String {
    "/sys/kernel/debug/tracing".to_owned()
}

/// `format` file of an event such as `sched/sched_switch`, below tracefs,
/// <https://docs.kernel.org/trace/events.html>.
#[must_use]
pub fn event_format(tracing: &str, event: &str) -> String {
    format!("{tracing}/events/{event}/format")
}

/// Lockdown mode of the kernel: `none [integrity] confidentiality`; absent without securityfs,
/// <https://man7.org/linux/man-pages/man7/kernel_lockdown.7.html>.
#[must_use]
pub fn lockdown() -> String {
    "/sys/kernel/security/lockdown".to_owned()
}

/// PID namespace of this process,
/// <https://man7.org/linux/man-pages/man7/pid_namespaces.7.html>.
#[must_use]
pub fn own_pid_namespace() -> String {
    "/proc/self/ns/pid".to_owned()
}

/// Kernel types for BPF programs (BTF), <https://docs.kernel.org/bpf/btf.html>.
#[must_use]
pub fn btf_vmlinux() -> String {
    "/sys/kernel/btf/vmlinux".to_owned()
}

/// Root of resctrl: cache and bandwidth allocation,
/// <https://docs.kernel.org/filesystems/resctrl.html>.
#[must_use]
pub fn resctrl_dir() -> String {
    "/sys/fs/resctrl".to_owned()
}

/// A file of the root group of resctrl or of another group.
#[must_use]
pub fn resctrl_file(group: &str, file: &str) -> String {
    format!("{}/{file}", group.trim_end_matches('/'))
}

/// A setting of transparent huge pages,
/// <https://docs.kernel.org/admin-guide/mm/transhuge.html>.
#[must_use]
pub fn thp_file(name: &str) -> String {
    format!("/sys/kernel/mm/transparent_hugepage/{name}")
}

/// v1: real-time run time of a group per period, in microseconds,
/// <https://docs.kernel.org/scheduler/sched-rt-group.html>.
#[must_use]
pub fn cpu_rt_runtime(group: &str) -> String {
    cgroup_file(group, "cpu.rt_runtime_us")
}

/// v1: period of the real-time run time, in microseconds.
#[must_use]
pub fn cpu_rt_period(group: &str) -> String {
    cgroup_file(group, "cpu.rt_period_us")
}

/// v1: whether the scheduler balances load within a cpuset,
/// <https://docs.kernel.org/admin-guide/cgroup-v1/cpusets.html>.
#[must_use]
pub fn cpuset_sched_load_balance(group: &str) -> String {
    cgroup_file(group, "cpuset.sched_load_balance")
}

/// Entry of a capture with hwloc's XML of the captured machine; no kernel path.
#[must_use]
pub fn captured_hwloc_xml() -> String {
    "/pinfold/hwloc.xml".to_owned()
}

/// The paths below `/sys` and `/proc` that Pinfold and hwloc read of another machine.
#[must_use]
pub fn foreign_places() -> &'static [&'static str] {
    &[
        "/sys/devices/system/cpu",
        "/sys/devices/system/node",
        "/sys/devices/system/clocksource",
        "/sys/devices/cpu_core/cpus",
        "/sys/devices/cpu_atom/cpus",
        "/sys/devices/cpu_lowpower/cpus",
        "/sys/devices/virtual/dmi/id/sys_vendor",
        "/sys/hypervisor/type",
        "/sys/bus/pci/devices",
        "/proc/cpuinfo",
        "/proc/cmdline",
    ]
}

/// True for the NUMA node file of a PCI device below its bus:
/// `/sys/devices/pci0000:00/…/numa_node`.
#[must_use]
pub fn is_numa_node_of_pci(path: &str) -> bool {
    path.starts_with("/sys/devices/pci") && path.ends_with("/numa_node")
}

/// Entry of a capture with the CPUs of the cpuset in which it was made; no kernel path.
#[must_use]
pub fn captured_cpuset() -> String {
    "/pinfold/cpuset".to_owned()
}

/// Mount point of POSIX shared memory, a file system in memory,
/// <https://man7.org/linux/man-pages/man7/shm_overview.7.html>.
#[must_use]
pub fn shared_memory() -> String {
    "/dev/shm".to_owned()
}

/// v2 (Linux 6.7): CPUs that a group reserves for partitions below it.
#[must_use]
pub fn cpuset_cpus_exclusive(group: &str) -> String {
    cgroup_file(group, "cpuset.cpus.exclusive")
}

/// Exists if systemd is the init system; `sd_booted(3)` checks it.
#[must_use]
pub fn systemd_booted() -> String {
    "/run/systemd/system".to_owned()
}

/// Drop-in files in which `systemctl set-property` stores one property of a unit: of a regular
/// unit, and of a transient one (`systemd-run`). No kernel paths, but this crate restores them.
/// <https://www.freedesktop.org/software/systemd/man/latest/systemctl.html>
#[must_use]
pub fn systemd_drop_ins(unit: &str, property: &str, lifetime: Lifetime) -> [String; 2] {
    let control = match lifetime {
        Lifetime::Running => "/run/systemd/system.control",
        Lifetime::Lasting => "/etc/systemd/system.control",
    };
    [control, "/run/systemd/transient"].map(|root| format!("{root}/{unit}.d/50-{property}.conf"))
}

/// v1: `THAWED`, `FREEZING` or `FROZEN`,
/// <https://docs.kernel.org/admin-guide/cgroup-v1/freezer-subsystem.html>.
#[must_use]
pub fn freezer_state(group: &str) -> String {
    cgroup_file(group, "freezer.state")
}

/// v2: write `1` to freeze a group's tasks; `cgroup.events` reports when all are frozen.
#[must_use]
pub fn cgroup_freeze(group: &str) -> String {
    cgroup_file(group, "cgroup.freeze")
}

/// v2: whether a group has tasks, and whether they are all frozen.
#[must_use]
pub fn cgroup_events(group: &str) -> String {
    cgroup_file(group, "cgroup.events")
}

/// Bandwidth statistics of a group: periods and throttled time; in v2 also its CPU time.
#[must_use]
pub fn cpu_stat(group: &str) -> String {
    cgroup_file(group, "cpu.stat")
}

/// v1: CPU time of a group in nanoseconds, if its hierarchy also has `cpuacct`.
#[must_use]
pub fn cpuacct_usage(group: &str) -> String {
    cgroup_file(group, "cpuacct.usage")
}
