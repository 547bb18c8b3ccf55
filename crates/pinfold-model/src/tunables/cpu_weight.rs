//! CPU weight of the machine's cgroup relative to its siblings
//! (<https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu>).

use super::{FormatAnswer, FormatRule, HOST_SETTING, Setting, Tunable, Value, Values};

/// The row of this tunable. Apply writes it in the terms of the group's cgroup version.
pub static TUNABLE: Tunable = Tunable {
    key: "cpu-weight",
    field: "cpu_weight",
    name: "cgroup cpu",
    meaning: "CPU weight of the machine's cgroup; the default is 100",
    values: Values::Number { least: 1, most: 10_000, form: "1..10000", zero: "0" },
    doctor: "cgroups",
    example: "200",
    said: &[
        ("libvirt", FormatRule::By(|it, _| weight(it, "cputune", "<shares>{}</shares>", " write"))),
        (
            "virsh",
            FormatRule::By(|it, _| {
                let line = "virsh schedinfo --domain \"$domain\" --set cpu_shares={} \"$@\"";
                weight(it, "", line, "")
            }),
        ),
        ("cmdline", super::policy::NO_THREADS_YET),
        (
            "systemd",
            FormatRule::Lines(
                "slice",
                &["CPUWeight={}"],
                "against the other slices below pinfold.slice, whose own weight is 100",
            ),
        ),
        ("tuned", OF_GROUP),
        ("proxmox", FormatRule::By(|it, _| weight(it, "", "qm set \"$vmid\" --cpuunits {}", ""))),
        (
            "kubevirt",
            FormatRule::Nothing(
                "the kubelet computes it from resources.requests.cpu, which dedicated CPUs fix",
            ),
        ),
        (
            "nova",
            FormatRule::By(|it, _| {
                let line = "openstack flavor set \"$flavor\" --property quota:cpu_shares={}";
                weight(it, "flavor", line, "")
            }),
        ),
    ],
    ..HOST_SETTING
};

/// The answer of a format without cgroups.
pub(super) const OF_GROUP: FormatRule =
    FormatRule::Nothing("it is a property of the machine's group (`--emit systemd`)");

/// A line with the weight, and the number that means the same in cgroup v1.
fn weight(setting: &Setting, place: &'static str, line: &str, write: &str) -> FormatAnswer {
    let Value::Number(weight) = setting.value else { return FormatAnswer::host() };
    let shares = (weight.saturating_mul(1024) / 100).max(2);
    FormatAnswer::lines(place, vec![line.replace("{}", &weight.to_string())])
        .with_difference(format!("for cgroup v2; on a host with cgroup v1{write} {shares}"))
}
