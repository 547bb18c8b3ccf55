//! CFS bandwidth limit of the machine's cgroup
//! (<https://docs.kernel.org/scheduler/sched-bwc.html>).

use super::cpu_weight::OF_GROUP;
use super::{
    CpuQuota, FormatAnswer, FormatRule, HOST_SETTING, Scope, Setting, Tunable, Value, Values,
};
use crate::Tuning;

impl CpuQuota {
    /// CPUs' worth of time, in parts of this size.
    fn parts(self, of_cpu: u128) -> u128 {
        u128::from(self.quota_us) * of_cpu / u128::from(self.period_us.max(1))
    }

    /// The same, rounded up.
    fn parts_up(self, of_cpu: u128) -> u128 {
        (u128::from(self.quota_us) * of_cpu).div_ceil(u128::from(self.period_us.max(1)))
    }
}

/// The limit of a plan.
pub fn quota(tuning: &Tuning) -> Option<CpuQuota> {
    let Some(Value::Quota(quota)) = tuning.get(&TUNABLE) else { return None };
    Some(*quota)
}

/// The row of this tunable. Apply writes it in the terms of the group's cgroup version.
pub static TUNABLE: Tunable = Tunable {
    key: "cpu-quota",
    field: "cpu_quota",
    name: "cgroup cpu",
    meaning: "CPU time of the machine's cgroup, and the period, in µs",
    values: Values::Quota,
    doctor: "cgroups",
    example: "50000/100000",
    said: &[
        ("libvirt", FormatRule::By(|it, _| answer_quota(it, libvirt))),
        ("virsh", FormatRule::By(|it, _| answer_quota(it, virsh))),
        ("cmdline", super::policy::NO_THREADS_YET),
        ("systemd", FormatRule::By(|it, _| answer_quota(it, systemd))),
        ("tuned", OF_GROUP),
        ("proxmox", FormatRule::By(|it, _| answer_quota(it, proxmox))),
        ("kubevirt", FormatRule::By(|it, scope| answer_quota(it, |quota| kubevirt(quota, scope)))),
        ("nova", FormatRule::By(|it, scope| answer_quota(it, |quota| nova(quota, scope)))),
    ],
    ..HOST_SETTING
};

fn answer_quota(setting: &Setting, answer: impl Fn(CpuQuota) -> FormatAnswer) -> FormatAnswer {
    if let Value::Quota(quota) = setting.value { answer(quota) } else { FormatAnswer::host() }
}

fn libvirt(CpuQuota { quota_us, period_us }: CpuQuota) -> FormatAnswer {
    let lines = [
        format!("<global_period>{period_us}</global_period>"),
        format!("<global_quota>{quota_us}</global_quota>"),
    ];
    FormatAnswer::lines("cputune", lines.to_vec())
}

fn virsh(CpuQuota { quota_us, period_us }: CpuQuota) -> FormatAnswer {
    FormatAnswer::lines("", vec![set("period", period_us), set("quota", quota_us)])
}

fn set(what: &str, us: u64) -> String {
    format!("virsh schedinfo --domain \"$domain\" --set global_{what}={us} \"$@\"")
}

/// In percent of one CPU's time, with the two decimals that systemd supports.
fn systemd(quota: CpuQuota) -> FormatAnswer {
    let hundredths = quota.parts(10_000).max(1);
    let (whole, rest) = (hundredths / 100, hundredths % 100);
    let percent = match rest {
        0 => whole.to_string(),
        rest => format!("{whole}.{rest:02}"),
    };
    let period = format!("CPUQuotaPeriodSec={}us", quota.period_us);
    FormatAnswer::lines("slice", vec![format!("CPUQuota={percent}%"), period])
}

fn proxmox(quota: CpuQuota) -> FormatAnswer {
    let hundredths = quota.parts_up(100);
    let limit = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    FormatAnswer::line(format!("qm set \"$vmid\" --cpulimit {limit}"))
        .with_difference("CPUs' worth of time; qm has no option for the period: it is 100 ms")
}

/// A limit in thousandths of a CPU. Dedicated CPUs require a limit that is a whole number of CPUs.
fn kubevirt(quota: CpuQuota, scope: &Scope<'_>) -> FormatAnswer {
    if scope.is_pinned() {
        return FormatAnswer::nothing(
            "dedicatedCpuPlacement: true fixes the pod's limit to whole CPUs",
        );
    }
    let thousandths = quota.parts_up(1000);
    let lines = ["requests:", "limits:"]
        .iter()
        .flat_map(|kind| [(*kind).to_owned(), format!("  cpu: {thousandths}m")]);
    FormatAnswer::lines("resources", lines.collect())
        .with_difference("of the whole pod, per 100 ms")
}

/// Nova's quota is per vCPU, the plan's for all threads together.
fn nova(quota: CpuQuota, scope: &Scope<'_>) -> FormatAnswer {
    let vcpus = u64::try_from(scope.vcpus()).unwrap_or(u64::MAX).max(1);
    let each = (quota.quota_us / vcpus).max(1000);
    FormatAnswer::lines("flavor", vec![line("period", quota.period_us), line("quota", each)])
        .with_difference(format!("for each of {vcpus} vCPUs, and no limit for the emulator"))
}

fn line(what: &str, us: u64) -> String {
    format!("openstack flavor set \"$flavor\" --property quota:cpu_{what}={us}")
}
