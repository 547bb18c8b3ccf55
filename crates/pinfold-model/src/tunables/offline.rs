//! CPUs to take offline (<https://docs.kernel.org/core-api/cpu_hotplug.html>).

use super::{FormatRule, HOST_SETTING, KernelFile, Place, Setting, Shape, Tunable, Value, Values};
use crate::text::pus_text;
use crate::{CpuSet, Finding, Plan, PuId, Topology};

/// Key of the tunable that takes all threads of a core but the first offline.
pub(super) const SMT: &str = "smt";

/// The row of this tunable. Apply sets it last, after it has moved what would be lost.
pub static TUNABLE: Tunable = Tunable {
    key: "offline",
    field: "offline_pus",
    name: "CPUs offline",
    meaning: "CPUs that are taken offline",
    values: Values::Cpus { raw: "0" },
    kernel: Some(KernelFile { place: Place::Cpu("online"), shape: Shape::Integer, usual: "1" }),
    example: "3",
    trial_refusal: |_| Some("tasks, interrupts and kernel threads leave a CPU that goes offline"),
    wrong: |setting, plan, topology| {
        let mut findings = unknown(setting, topology);
        findings.extend(boot_cpu(setting));
        findings.extend(in_use(plan, topology));
        findings
    },
    said: &[
        ("cmdline", FormatRule::Nothing("maxcpus= counts CPUs and does not name them")),
        (
            "nova",
            FormatRule::Nothing(
                "cpu_power_management_strategy = cpu_state takes dedicated CPUs offline that are not in use",
            ),
        ),
    ],
    ..HOST_SETTING
};

fn unknown(setting: &Setting, topology: &Topology) -> Vec<Finding> {
    let Value::Cpus(going) = &setting.value else { return Vec::new() };
    let unknown = going.difference(&topology.online()).difference(&topology.offline);
    (!unknown.is_empty())
        .then(|| {
            let text = format!("this host has no {}", pus_text(&unknown));
            Finding::problem("offline", text).with_hint("`pinfold topo` shows its CPUs")
        })
        .into_iter()
        .collect()
}

/// Linux on x86 has no `online` file for the CPU that boots the machine.
fn boot_cpu(setting: &Setting) -> Option<Finding> {
    let Value::Cpus(going) = &setting.value else { return None };
    going.contains(PuId(0)).then(|| {
        let text = "on x86 the kernel keeps CPU 0 online (since Linux 6.5, before that by default)";
        Finding::warning("offline", text).with_hint(
            "remove CPU 0 from the list, and leave it to \
                                                     the host",
        )
    })
}

/// CPUs to be taken offline that the plan's threads use, or that are the host's last ones.
pub(super) fn in_use(plan: &Plan, topology: &Topology) -> Vec<Finding> {
    let mut going = plan.tuning.cpus(&TUNABLE).cloned().unwrap_or_default();
    let is_smt = Tunable::by_key(SMT).and_then(|smt| plan.tuning.switch(smt)) == Some(false);
    if is_smt {
        let siblings = topology.pus.iter().filter(|pu| pu.smt_rank > 0).map(|pu| pu.os);
        siblings.for_each(|pu| going.insert(pu));
    }
    let (key, hint) = if is_smt {
        ("smt", "plan without siblings: --avoid them, or a strategy with one vCPU on a core")
    } else {
        ("offline", "plan around them with --avoid")
    };
    let mut findings = Vec::new();
    let used = plan.pus().intersection(&going);
    if !used.is_empty() {
        let text =
            format!("{} would go offline, and threads of the plan run there", pus_text(&used));
        findings.push(Finding::problem(key, text).with_hint(hint));
    }
    let online: CpuSet = plan.housekeeping.intersection(&topology.online());
    if !going.is_empty() && online.is_subset(&going) {
        let text = "the host would have no CPU left";
        let hint = "leave one of the housekeeping CPUs online";
        findings.push(Finding::problem(key, text).with_hint(hint));
    }
    findings
}
