//! The kernel's files and sysctls for tunables, for formats that can write any of them.
//!
//! The values are the same as those that `pinfold apply` writes; a test compares the paths.

use pinfold_model::{CpuSet, PuId, SamePageMerging};
use pinfold_plan::Tunable;

/// The affinity of each interrupt, for formats that expand `*`.
pub(super) const IRQS: &str = "/proc/irq/*/smp_affinity_list";
/// Mask of the CPUs for unbound work.
pub(super) const WORKQUEUES: &str = "/sys/devices/virtual/workqueue/cpumask";
/// Mask of the CPUs for the writeback workqueue.
pub(super) const WRITEBACK: &str = "/sys/bus/workqueue/devices/writeback/cpumask";

/// The kernel setting of a tunable.
pub(super) enum Setting {
    /// Path and value of each file, in the order of writing.
    Files(Vec<(String, String)>),
    /// Name and value of a sysctl.
    Sysctl(&'static str, &'static str),
    /// A property of threads, groups or interrupts, which has no file with a fixed name.
    Neither,
}

/// The kernel setting for the tunable; `pus` are the plan's CPUs.
pub(super) fn setting(tunable: &Tunable<'_>, pus: &CpuSet) -> Setting {
    let each = |name: &str, value: &str| {
        Setting::Files(pus.iter().map(|pu| (of_pu(pu, name), value.to_owned())).collect())
    };
    let one = |path: &str, value: String| Setting::Files(vec![(path.to_owned(), value)]);
    match tunable {
        Tunable::NewIrqs(pus) => one("/proc/irq/default_smp_affinity", pus.to_mask()),
        Tunable::Workqueues(pus) => one(WORKQUEUES, pus.to_mask()),
        Tunable::NumaBalancing(on) => {
            Setting::Sysctl("kernel.numa_balancing", if *on { "1" } else { "0" })
        }
        Tunable::RealTimeThrottle(on) => {
            Setting::Sysctl("kernel.sched_rt_runtime_us", if *on { "950000" } else { "-1" })
        }
        Tunable::TransparentHugePages(when) => {
            one("/sys/kernel/mm/transparent_hugepage/enabled", when.word().to_owned())
        }
        Tunable::SamePageMerging(merging) => {
            let number = match merging {
                SamePageMerging::Stop => 0,
                SamePageMerging::Run => 1,
                SamePageMerging::Unmerge => 2,
            };
            one("/sys/kernel/mm/ksm/run", number.to_string())
        }
        // In this file 0 means "no limit" and `n/a` means "no latency at all".
        Tunable::WakeUp(0) => each("power/pm_qos_resume_latency_us", "n/a"),
        Tunable::WakeUp(us) => each("power/pm_qos_resume_latency_us", &us.to_string()),
        Tunable::Governor(name) => each("cpufreq/scaling_governor", name),
        Tunable::MaxKhz(khz) => each("cpufreq/scaling_max_freq", &khz.to_string()),
        Tunable::MinKhz(khz) => each("cpufreq/scaling_min_freq", &khz.to_string()),
        Tunable::HugePages(pool) => {
            let (node, kib) = (pool.node, pool.page_bytes >> 10);
            let folder = format!("/sys/devices/system/node/node{node}/hugepages");
            one(&format!("{folder}/hugepages-{kib}kB/nr_hugepages"), pool.pages.to_string())
        }
        Tunable::Smt(on) => {
            let word = if *on { "on" } else { "off" };
            one("/sys/devices/system/cpu/smt/control", word.to_owned())
        }
        Tunable::Offline(pus) => {
            let file = |pu| (of_pu(pu, "online"), "0".to_owned());
            Setting::Files(pus.iter().map(file).collect())
        }
        Tunable::Policy { .. }
        | Tunable::Irq(_)
        | Tunable::Share(_)
        | Tunable::CpuWeight(_)
        | Tunable::CpuQuota(_)
        | Tunable::Partition(_)
        | Tunable::Required => Setting::Neither,
    }
}

fn of_pu(pu: PuId, name: &str) -> String {
    format!("/sys/devices/system/cpu/cpu{pu}/{name}")
}
