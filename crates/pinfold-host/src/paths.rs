//! Every kernel path that Pinfold uses, each with its page in the kernel's documentation.
//!
//! No other code contains a path of `/proc`, `/sys` or `/dev`: what a kernel renames is changed
//! here. Functions return whole paths. Those of a file in a cgroup take the group's directory,
//! because the mount point of a hierarchy is read from the mount table.

/// Writes a function that returns the whole path for each row: `name(parameters) = "path";`, with
/// the parameters in the text, or `name(parameters) = directory_file(parameters, "file");`.
macro_rules! paths {
    ($($(#[$doc:meta])* $name:ident($($parameter:ident: $kind:ty),*) = $head:tt$(($($rest:tt)*))?;)*) => {
        $($(#[$doc])*
        pub fn $name($($parameter: $kind),*) -> String {
            paths!(@ $head$(($($rest)*))?)
        })*
    };
    (@ $text:literal) => { format!($text) };
    (@ $function:ident($($argument:tt)*)) => { $function($($argument)*) };
}

mod machine;

use pinfold_model::{Lifetime, NodeId, PuId, Tid};

pub use machine::{
    CHANGEABLE, captured_answers, captured_claims, cpuidle_file, debug_sched, devices, discarded,
    interrupts, iommu_group_devices, iommu_groups, irq_actions, kernel_symbols, load_average,
    module_parameter, mounts, numa_node_of_device, open_file, own_cpuset, own_fd, own_fdinfo,
    own_time_offsets, pci_driver, sched_ext_ops, sched_ext_state, swaps, uptime, zeros,
};

// CPUs: https://docs.kernel.org/admin-guide/cputopology.html and
// https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-devices-system-cpu

paths! {
    /// Directory of all CPUs.
    cpu_dir() = "/sys/devices/system/cpu";
    /// List of online CPUs.
    cpu_online() = "/sys/devices/system/cpu/online";
    /// List of present CPUs.
    cpu_present() = "/sys/devices/system/cpu/present";
    /// List of possible CPUs.
    cpu_possible() = "/sys/devices/system/cpu/possible";
    /// List of CPUs isolated at boot (`isolcpus=`).
    cpu_isolated() = "/sys/devices/system/cpu/isolated";
    /// List of CPUs without a periodic tick (`nohz_full=`); absent if the kernel does not support it.
    cpu_nohz_full() = "/sys/devices/system/cpu/nohz_full";
    /// SMT state: `on`, `off`, `forceoff`, `notsupported`, `notimplemented`.
    smt_control() = "/sys/devices/system/cpu/smt/control";
    /// `1` if SMT is in use.
    smt_active() = "/sys/devices/system/cpu/smt/active";
    /// A file below a CPU's directory, such as `topology/core_cpus_list` or `cache/index3/level`.
    cpu_file(pu: PuId, file: &str) = "/sys/devices/system/cpu/cpu{pu}/{file}";
    /// `0` if the CPU is offline; absent where it cannot be taken offline.
    cpu_is_online(pu: PuId) = cpu_file(pu, "online");
    /// CPUs of one core type (`cpu_core`, `cpu_atom`, `cpu_lowpower`) on hybrid Intel machines:
    /// those of its PMU, <https://docs.kernel.org/admin-guide/perf/index.html>.
    pmu_cpus(pmu: &str) = "/sys/devices/{pmu}/cpus";
    /// Directory of the PCI devices, by address,
    /// <https://docs.kernel.org/PCI/sysfs-pci.html>.
    pci_devices_dir() = "/sys/bus/pci/devices";
    /// The NUMA node of a PCI device; -1 where the firmware does not report it,
    /// <https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-pci>.
    pci_numa_node(address: &str) = "/sys/bus/pci/devices/{address}/numa_node";
    /// Directory of the cpufreq policies,
    /// <https://docs.kernel.org/admin-guide/pm/cpufreq.html>.
    cpufreq_dir() = "/sys/devices/system/cpu/cpufreq";
    /// A file of a CPU's cpufreq directory, such as `related_cpus` or `scaling_driver`.
    cpufreq_file(pu: PuId, file: &str) = cpu_file(pu, &format!("cpufreq/{file}"));
    /// Directory of a device's message-signalled interrupts, one entry per interrupt number; absent
    /// while its driver uses none.
    pci_msi_irqs(address: &str) = "/sys/bus/pci/devices/{address}/msi_irqs";
    /// Number of a device's line interrupt; 0 if it has none.
    pci_irq(address: &str) = "/sys/bus/pci/devices/{address}/irq";

    // Interrupts: https://docs.kernel.org/core-api/irq/irq-affinity.html

    /// One directory per interrupt, by number.
    irqs_dir() = "/proc/irq";
    /// A file of an interrupt, such as `smp_affinity_list` or `effective_affinity_list`.
    irq_file(irq: u32, file: &str) = "/proc/irq/{irq}/{file}";
    /// Default affinity mask of interrupts that are set up later.
    default_smp_affinity() = "/proc/irq/default_smp_affinity";
    /// Mask of the CPUs for unbound workqueues,
    /// <https://docs.kernel.org/core-api/workqueue.html>.
    workqueue_cpumask() = "/sys/devices/virtual/workqueue/cpumask";
    /// Wake-up latency limit of a CPU in microseconds; `n/a` disables every idle state, 0 means no
    /// limit, <https://docs.kernel.org/admin-guide/pm/cpuidle.html>.
    cpu_resume_latency(pu: PuId) = cpu_file(pu, "power/pm_qos_resume_latency_us");
}

/// Number of huge pages of one size in a node's pool.
pub fn node_huge_pages(node: NodeId, page_bytes: u64) -> String {
    format!("{}/hugepages-{}kB/nr_hugepages", node_hugepages_dir(node), page_bytes / 1024)
}

paths! {
    /// State of kernel samepage merging: 0, 1 or 2,
    /// <https://docs.kernel.org/admin-guide/mm/ksm.html>.
    ksm_run() = "/sys/kernel/mm/ksm/run";
    /// Pages of each mapping of a process, by NUMA node.
    process_numa_maps(pid: Tid) = process_file(pid, "numa_maps");
    /// v2: CPU weight of a group relative to its siblings, 1 to 10,000.
    cpu_weight(group: &str) = cgroup_file(group, "cpu.weight");
    /// v1: CPU weight of a group relative to its siblings; the default is 1,024.
    cpu_shares(group: &str) = cgroup_file(group, "cpu.shares");
    /// v1: period of a group's CFS quota in microseconds.
    cpu_cfs_period(group: &str) = cgroup_file(group, "cpu.cfs_period_us");
    /// v1: CFS quota of a group per period in microseconds; -1 for no limit.
    cpu_cfs_quota(group: &str) = cgroup_file(group, "cpu.cfs_quota_us");
    /// v2: quota and period in microseconds, or `max` and a period.
    cpu_max(group: &str) = cgroup_file(group, "cpu.max");

    // NUMA: https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-devices-node

    /// Directory of all NUMA nodes.
    node_dir() = "/sys/devices/system/node";
    /// List of online NUMA nodes.
    node_online() = "/sys/devices/system/node/online";
    /// A file of a NUMA node, such as `cpulist`, `distance` or `meminfo`.
    node_file(node: NodeId, file: &str) = "/sys/devices/system/node/node{node}/{file}";
    /// Directory of a node's huge pages, with a folder such as `hugepages-2048kB` per size,
    /// <https://docs.kernel.org/admin-guide/mm/hugetlbpage.html>.
    node_hugepages_dir(node: NodeId) = node_file(node, "hugepages");

    // Tasks: https://docs.kernel.org/filesystems/proc.html

    /// Directory of all processes.
    proc_dir() = "/proc";
    /// A file of a process (or, by TID, of a thread), such as `cmdline`.
    process_file(pid: Tid, file: &str) = "/proc/{pid}/{file}";
    /// `stat` of a process or thread.
    process_stat(pid: Tid) = process_file(pid, "stat");
    /// `status` of a process or thread.
    process_status(pid: Tid) = process_file(pid, "status");
    /// `limits` of a process or thread.
    process_limits(pid: Tid) = process_file(pid, "limits");
    /// `cgroup` of a process or thread.
    process_cgroup(pid: Tid) = process_file(pid, "cgroup");
    /// `cmdline` of a process: arguments, each terminated by a zero byte.
    process_cmdline(pid: Tid) = process_file(pid, "cmdline");
    /// `comm` of a process or thread: its name, at most 15 bytes.
    process_comm(pid: Tid) = process_file(pid, "comm");
    /// Directory of the threads of a process.
    task_dir(pid: Tid) = process_file(pid, "task");
    /// A file of one thread of a process.
    task_file(pid: Tid, tid: Tid, file: &str) = "/proc/{pid}/task/{tid}/{file}";
    /// `stat` of one thread of a process.
    task_stat(pid: Tid, tid: Tid) = task_file(pid, tid, "stat");
    /// `status` of one thread of a process.
    task_status(pid: Tid, tid: Tid) = task_file(pid, tid, "status");
    /// `comm` of one thread of a process.
    task_comm(pid: Tid, tid: Tid) = task_file(pid, tid, "comm");
    /// `schedstat` of one thread of a process,
    /// <https://docs.kernel.org/scheduler/sched-stats.html>.
    task_schedstat(pid: Tid, tid: Tid) = task_file(pid, tid, "schedstat");
    /// `sched` of one thread (`CONFIG_SCHED_DEBUG`): migrations and more.
    task_sched(pid: Tid, tid: Tid) = task_file(pid, tid, "sched");
    /// Mappings of a process: address range, permissions, offset and file of each,
    /// <https://docs.kernel.org/filesystems/proc.html>.
    process_maps(pid: Tid) = process_file(pid, "maps");
    /// Mount namespace of a process, a link: processes with equal links see the same mounts.
    process_mount_namespace(pid: Tid) = process_file(pid, "ns/mnt");
    /// The root directory of a process: a link.
    process_root(pid: Tid) = process_file(pid, "root");
    /// Mount table of the caller's namespace.
    own_mountinfo() = "/proc/self/mountinfo";
    /// `cgroup` of the caller.
    own_cgroup() = "/proc/self/cgroup";
    /// `status` of the caller.
    own_status() = "/proc/self/status";
    /// `stat` of the caller.
    own_stat() = "/proc/self/stat";

    // Kernel-wide: https://docs.kernel.org/admin-guide/sysctl/kernel.html

    /// Boot ID, different after each boot.
    boot_id() = "/proc/sys/kernel/random/boot_id";
}

/// Directories that exist in every mount of sysfs and procfs.
pub const ALWAYS_THERE: [&str; 5] =
    ["/sys/devices", "/sys/kernel", "/sys/module", "/proc/sys", "/proc/irq"];

paths! {
    /// A namespace of this process, by type (`pid`, `time`, `cgroup`).
    own_namespace(kind: &str) = "/proc/self/ns/{kind}";
    /// Kernel release, as `uname -r`.
    kernel_release() = "/proc/sys/kernel/osrelease";
    /// A sysctl below `kernel`, such as `sched_rt_runtime_us` or `numa_balancing`.
    sysctl_kernel(name: &str) = "/proc/sys/kernel/{name}";
    /// The Unix sockets of this network namespace, with their paths.
    net_unix() = "/proc/net/unix";
    /// Boot parameters of the kernel.
    kernel_cmdline() = "/proc/cmdline";
    /// Processor description.
    cpuinfo() = "/proc/cpuinfo";
    /// Memory statistics of the machine.
    meminfo() = "/proc/meminfo";
    /// CPU times and counters of the machine.
    kernel_stat() = "/proc/stat";
    /// CPU pressure: time for which tasks waited for a CPU,
    /// <https://docs.kernel.org/accounting/psi.html>.
    cpu_pressure() = "/proc/pressure/cpu";
    /// Hypervisor type; present under some hypervisors.
    hypervisor_type() = "/sys/hypervisor/type";
    /// Device file of KVM, <https://docs.kernel.org/virt/kvm/api.html>.
    kvm_device() = "/dev/kvm";
}

// cgroup v1: https://docs.kernel.org/admin-guide/cgroup-v1/cpusets.html
// cgroup v2: https://docs.kernel.org/admin-guide/cgroup-v2.html

/// A file of a cgroup.
pub fn cgroup_file(group: &str, file: &str) -> String {
    format!("{}/{file}", group.trim_end_matches('/'))
}

paths! {
    /// v2: controllers that a group may enable.
    cgroup_controllers(group: &str) = cgroup_file(group, "cgroup.controllers");
    /// v2: controllers that are enabled for a group's children.
    cgroup_subtree_control(group: &str) = cgroup_file(group, "cgroup.subtree_control");
    /// Processes of a group, one per line; writing a PID moves that process with all its threads.
    cgroup_procs(group: &str) = cgroup_file(group, "cgroup.procs");
    /// v2: threads of a group; writing a TID moves that thread within a threaded subtree.
    cgroup_threads(group: &str) = cgroup_file(group, "cgroup.threads");
    /// v1: threads of a group; writing a TID moves only that thread.
    cgroup_tasks(group: &str) = cgroup_file(group, "tasks");
    /// v2: memory of a group by NUMA node.
    memory_numa_stat(group: &str) = cgroup_file(group, "memory.numa_stat");
    /// v2: `domain`, `domain threaded`, `domain invalid` or `threaded`.
    cgroup_type(group: &str) = cgroup_file(group, "cgroup.type");
    /// CPUs that a group requests.
    cpuset_cpus(group: &str) = cgroup_file(group, "cpuset.cpus");
    /// Memory nodes that a group requests.
    cpuset_mems(group: &str) = cgroup_file(group, "cpuset.mems");
    /// v2: CPUs that a group effectively has.
    cpuset_cpus_effective(group: &str) = cgroup_file(group, "cpuset.cpus.effective");
    /// v2: memory nodes that a group effectively has.
    cpuset_mems_effective(group: &str) = cgroup_file(group, "cpuset.mems.effective");
    /// v1: CPUs that a group effectively has.
    cpuset_effective_cpus(group: &str) = cgroup_file(group, "cpuset.effective_cpus");
    /// v1: memory nodes that a group effectively has.
    cpuset_effective_mems(group: &str) = cgroup_file(group, "cpuset.effective_mems");
    /// v2: `member`, `root` or `isolated`, with the reason if invalid.
    cpuset_partition(group: &str) = cgroup_file(group, "cpuset.cpus.partition");
    /// v2, root group only: CPUs of all isolated partitions (Linux 6.8).
    cpuset_isolated(group: &str) = cgroup_file(group, "cpuset.cpus.isolated");

    // Further paths that `topo` and `doctor` read.

    /// List of NUMA nodes in a state: `has_cpu`, `has_memory`, `possible`.
    node_state(state: &str) = "/sys/devices/system/node/{state}";
    /// A file of the firmware's DMI tables, such as `sys_vendor`,
    /// <https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-class-dmi>.
    dmi_file(name: &str) = "/sys/devices/virtual/dmi/id/{name}";
    /// Clock sources of this machine; `kvm-clock` and similar ones indicate the hypervisor,
    /// <https://docs.kernel.org/timers/timekeeping.html>.
    clock_sources() = "/sys/devices/system/clocksource/clocksource0/available_clocksource";
    /// A file of a cpufreq policy (`policy0`), such as `related_cpus`.
    cpufreq_policy_file(policy: &str, file: &str) =
        "/sys/devices/system/cpu/cpufreq/{policy}/{file}";
    /// Directory of the caller: a link to its PID.
    own_dir() = "/proc/self";
    /// Resource limits of the caller.
    own_limits() = "/proc/self/limits";
    /// Run time, wait time and number of time slices of the caller,
    /// <https://docs.kernel.org/scheduler/sched-stats.html>.
    own_schedstat() = "/proc/self/schedstat";
    /// File system types that the kernel supports.
    filesystems() = "/proc/filesystems";
    /// Directory of a module that is loaded, or built in with parameters.
    module_dir(module: &str) = "/sys/module/{module}";
    /// Directory of the performance monitoring units (`cpu`, `cpu_core`, `armv8_pmuv3_0`),
    /// <https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-event_source-devices>.
    event_sources() = "/sys/bus/event_source/devices";
    /// Usual mount point of tracefs,
    /// <https://docs.kernel.org/trace/ftrace.html#the-file-system>.
    tracing_dir() = "/sys/kernel/tracing";
    /// Older mount point of tracefs, below debugfs.
    debug_tracing_dir() = "/sys/kernel/debug/tracing";
    /// `format` file of an event such as `sched/sched_switch`, below tracefs,
    /// <https://docs.kernel.org/trace/events.html>.
    event_format(tracing: &str, event: &str) = "{tracing}/events/{event}/format";
    /// Statistics of KVM: a directory `PID-DESCRIPTOR` for each machine, and in it a file for each
    /// counter. <https://docs.kernel.org/virt/kvm/api.html#kvm-get-stats-fd>.
    kvm_statistics() = "/sys/kernel/debug/kvm";
    /// Lockdown mode of the kernel: `none [integrity] confidentiality`; absent without securityfs,
    /// <https://man7.org/linux/man-pages/man7/kernel_lockdown.7.html>.
    lockdown() = "/sys/kernel/security/lockdown";
    /// PID namespace of this process,
    /// <https://man7.org/linux/man-pages/man7/pid_namespaces.7.html>.
    own_pid_namespace() = "/proc/self/ns/pid";
    /// Kernel types for BPF programs (BTF), <https://docs.kernel.org/bpf/btf.html>.
    btf_vmlinux() = "/sys/kernel/btf/vmlinux";
    /// Root of resctrl: cache and bandwidth allocation,
    /// <https://docs.kernel.org/filesystems/resctrl.html>.
    resctrl_dir() = "/sys/fs/resctrl";
}

/// A file of the root group of resctrl or of another group.
pub fn resctrl_file(group: &str, file: &str) -> String {
    format!("{}/{file}", group.trim_end_matches('/'))
}

paths! {
    /// A setting of transparent huge pages,
    /// <https://docs.kernel.org/admin-guide/mm/transhuge.html>.
    thp_file(name: &str) = "/sys/kernel/mm/transparent_hugepage/{name}";
    /// v1: real-time run time of a group per period, in microseconds,
    /// <https://docs.kernel.org/scheduler/sched-rt-group.html>.
    cpu_rt_runtime(group: &str) = cgroup_file(group, "cpu.rt_runtime_us");
    /// v1: period of the real-time run time, in microseconds.
    cpu_rt_period(group: &str) = cgroup_file(group, "cpu.rt_period_us");
    /// v1: whether the scheduler balances load within a cpuset,
    /// <https://docs.kernel.org/admin-guide/cgroup-v1/cpusets.html>.
    cpuset_sched_load_balance(group: &str) = cgroup_file(group, "cpuset.sched_load_balance");
    /// Entry of a capture with hwloc's XML of the captured machine; no kernel path.
    captured_hwloc_xml() = "/pinfold/hwloc.xml";
}

/// The paths below `/sys` and `/proc` that Pinfold and hwloc read of another machine.
#[must_use]
pub fn captured_paths() -> &'static [&'static str] {
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
pub fn is_numa_node_of_pci(path: &str) -> bool {
    path.starts_with("/sys/devices/pci") && path.ends_with("/numa_node")
}

paths! {
    /// Entry of a capture with the CPUs of the cpuset in which it was made; no kernel path.
    captured_cpuset() = "/pinfold/cpuset";
    /// Mount point of POSIX shared memory, a file system in memory,
    /// <https://man7.org/linux/man-pages/man7/shm_overview.7.html>.
    shared_memory() = "/dev/shm";
    /// v2 (Linux 6.7): CPUs that a group reserves for partitions below it.
    cpuset_cpus_exclusive(group: &str) = cgroup_file(group, "cpuset.cpus.exclusive");
    /// Exists if systemd is the init system; `sd_booted(3)` checks it.
    systemd_booted() = "/run/systemd/system";
}

/// Drop-in files in which `systemctl set-property` stores one property of a unit: of a regular
/// unit, and of a transient one (`systemd-run`). No kernel paths, but this crate restores them.
/// <https://www.freedesktop.org/software/systemd/man/latest/systemctl.html>
pub fn systemd_drop_ins(unit: &str, property: &str, lifetime: Lifetime) -> [String; 2] {
    let control = match lifetime {
        Lifetime::Running => "/run/systemd/system.control",
        Lifetime::Lasting => "/etc/systemd/system.control",
    };
    [control, "/run/systemd/transient"].map(|root| format!("{root}/{unit}.d/50-{property}.conf"))
}

paths! {
    /// v1: `THAWED`, `FREEZING` or `FROZEN`,
    /// <https://docs.kernel.org/admin-guide/cgroup-v1/freezer-subsystem.html>.
    freezer_state(group: &str) = cgroup_file(group, "freezer.state");
    /// v2: write `1` to freeze a group's tasks; `cgroup.events` reports when all are frozen.
    cgroup_freeze(group: &str) = cgroup_file(group, "cgroup.freeze");
    /// v2: whether a group has tasks, and whether they are all frozen.
    cgroup_events(group: &str) = cgroup_file(group, "cgroup.events");
    /// Bandwidth statistics of a group: periods and throttled time; in v2 also its CPU time.
    cpu_stat(group: &str) = cgroup_file(group, "cpu.stat");
    /// v2: limits of a group for each disk, `254:0 rbps=1000000 wbps=max riops=max wiops=max`.
    io_max(group: &str) = cgroup_file(group, "io.max");
    /// v1: a limit of a group for each disk, such as `read_bps_device` with `254:0 1000000`,
    /// <https://docs.kernel.org/admin-guide/cgroup-v1/blkio-controller.html>.
    blkio_throttle(group: &str, name: &str) = cgroup_file(group, &format!("blkio.throttle.{name}"));
    /// A file or directory of sysfs, by its path there.
    sysfs(path: &str) = "/sys/{path}";
    /// Link to the directory of a block device, by `major:minor`.
    block_device(number: &str) = "/sys/dev/block/{number}";
    /// v1: CPU time of a group in nanoseconds, if its hierarchy also has `cpuacct`.
    cpuacct_usage(group: &str) = cgroup_file(group, "cpuacct.usage");
}
