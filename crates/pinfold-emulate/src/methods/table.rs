//! The table of methods: what each does, needs and does not support.

use pinfold_model::Method;

use crate::units::{MS, S, US};

/// The hierarchies, in addition to cpuset, in which a vnode needs a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// The hierarchy with the cpu controller.
    pub cpu: bool,
    /// The hierarchy with the freezer.
    pub freezer: bool,
    /// The hierarchy with `perf_event`.
    pub perf: bool,
}

/// Description of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MethodInfo {
    /// The method.
    pub method: Method,
    /// What it does, in one line.
    pub summary: &'static str,
    /// Its source.
    pub source: &'static str,
    /// What it needs of the host.
    pub needs: &'static str,
    /// Its limitations.
    pub limits: &'static str,
    /// The groups that it needs.
    pub groups: Groups,
    /// Default period in nanoseconds; [`Method::periods_ns`] limits it.
    pub usual_period_ns: u64,
}

/// All methods, the preferred one first.
///
/// ```
/// use pinfold_emulate::METHODS;
/// use pinfold_model::Method;
///
/// assert_eq!(METHODS[0].method, Method::Stall);
/// assert!(METHODS.iter().all(|info| !info.needs.is_empty()));
/// ```
pub const METHODS: &[MethodInfo] = &[
    MethodInfo {
        method: Method::Stall,
        summary: "spins in a timer interrupt of the vnode's own tasks",
        source: "Pinfold",
        needs: "Linux 5.17, root (CAP_BPF, CAP_PERFMON), cgroup version 2 mounted, \
                kernel.perf_event_max_sample_rate of 2000 or more",
        limits: "other interrupts wait for up to one stall on these cores; other BPF tracing \
                 programs are not called during a stall; speeds just below 100% need an interrupt \
                 that costs less than the slowdown",
        groups: Groups { cpu: false, freezer: false, perf: true },
        usual_period_ns: 200 * US,
    },
    MethodInfo {
        method: Method::Hogs,
        summary: "a real-time burner on each core, all cores in step",
        source: "CPU-Hogs, Buchert 2011; spin and sleep ratio of Distem",
        needs: "real-time permission (root)",
        limits: "slows whatever runs on the core, not only the vnode; not below the share, usually \
                 5%, that the kernel reserves from real-time threads; not on the last housekeeping \
                 CPU unless requested",
        groups: Groups { cpu: false, freezer: false, perf: false },
        usual_period_ns: 500 * US,
    },
    MethodInfo {
        method: Method::Fracas,
        summary: "a burner on each core in a group next to the vnode's, by weights",
        source: "Fracas, Buchert 2011",
        needs: "root; cgroups with cpu and cpuset; debugfs for the shortest slices",
        limits: "meters a budget: bursts of up to some 10 ms are not slowed; weights bound the \
                 speed: 2 to 262144 of version 1 to 0.0008% to 99.9992%, 1 to 10000 of version 2 \
                 to 0.01% to 99.99%; as published it fails with several tasks; other tasks on \
                 these cores disturb it; real-time tasks are not slowed, or fail with EPERM where \
                 groups have real-time budgets (RT_GROUP_SCHED)",
        groups: Groups { cpu: true, freezer: false, perf: false },
        usual_period_ns: 5 * MS,
    },
    MethodInfo {
        method: Method::Quota,
        summary: "a quota of CPU time for each core",
        source: "cgroup bandwidth: cpu.max, cpu.cfs_quota_us",
        needs: "root; cgroups with cpu and cpuset",
        limits: "meters a budget: bursts shorter than the period are not slowed; periods below 10 \
                 ms are refused, because the kernel hands out slices of 5 ms, and quotas below 1 \
                 ms too; a burst of new threads shares one core for some milliseconds; as \
                 published one thread runs at several times its share; real-time tasks are not \
                 slowed, or fail with EPERM where groups have real-time budgets (RT_GROUP_SCHED)",
        groups: Groups { cpu: true, freezer: false, perf: false },
        usual_period_ns: 100 * MS,
    },
    MethodInfo {
        method: Method::Gov,
        summary: "alternates two hardware frequencies; below the lowest, the freezer",
        source: "CPU-Gov, Buchert 2011",
        needs: "root; a freezer; cpufreq with the governor userspace for more than the freezer",
        limits: "cores of one frequency domain have one speed, and below the lowest frequency all \
                 cores of a vnode; uneven within the period; a task in the kernel freezes late",
        groups: Groups { cpu: false, freezer: true, perf: false },
        usual_period_ns: 100 * MS,
    },
    MethodInfo {
        method: Method::Freq,
        summary: "the nearest hardware frequency",
        source: "cpufreq",
        needs: "root; cpufreq with the governor userspace",
        limits: "only the frequencies that the hardware has; cores of one frequency domain have \
                 one speed; memory is as fast as before",
        groups: Groups { cpu: false, freezer: false, perf: false },
        usual_period_ns: S,
    },
    MethodInfo {
        method: Method::Lim,
        summary: "stops and continues processes by signals",
        source: "CPU-Lim of Wrekavoc, Buchert 2011",
        needs: "root; a cgroup",
        limits: "for comparison with the literature: polling costs CPU time, programs see the \
                 signals, a process that slept or is new runs at full speed, so programs that fork \
                 are hardly slowed, and a process with several threads has the speed of one",
        groups: Groups { cpu: false, freezer: true, perf: false },
        usual_period_ns: 10 * MS,
    },
    MethodInfo {
        method: Method::Inject,
        summary: "replays a recorded load by real-time burners",
        source: "after KRASH",
        needs: "real-time permission (root); a recorded load",
        limits: "its speed is what the load leaves; not above the share, usually 95%, that the \
                 kernel gives real-time threads; not on the last housekeeping CPU unless requested",
        groups: Groups { cpu: false, freezer: false, perf: false },
        usual_period_ns: 10 * MS,
    },
];

/// The description of a method.
#[must_use]
pub fn info(method: Method) -> &'static MethodInfo {
    let found = METHODS.iter().find(|info| info.method == method);
    found.unwrap_or(&METHODS[0])
}
