//! The scheduling policy of a role's threads (`sched(7)`).

use super::{FormatAnswer, FormatRule, HOST_SETTING, Scope, Setting, Tunable, Value, Values};
use crate::{Policy, VnodePlan};

/// The row of this tunable. Apply sets it with the placement of the threads.
pub static TUNABLE: Tunable = Tunable {
    key: "policy",
    of: "ROLE",
    name: "policy",
    meaning: "scheduling policy of these threads",
    values: Values::Policy,
    doctor: "real-time scheduling",
    example: "fifo:1",
    said: &[
        ("libvirt", FormatRule::Elsewhere),
        // chrt can set most of them, also without Pinfold.
        ("qemu", FormatRule::Elsewhere),
        ("virsh", FormatRule::Elsewhere),
        ("cmdline", NO_THREADS_YET),
        ("systemd", FormatRule::By(|setting, _| answer_policy(setting, systemd))),
        (
            "tuned",
            FormatRule::Nothing(
                "[scheduler] group.NAME= matches threads by name and does not restore their masks afterwards",
            ),
        ),
        ("proxmox", FormatRule::Elsewhere),
        (
            "kubevirt",
            FormatRule::By(|it, scope| {
                answer_policy(it, |role, policy| kubevirt(role, policy, scope))
            }),
        ),
        (
            "nova",
            FormatRule::By(|it, scope| answer_policy(it, |role, policy| nova(role, policy, scope))),
        ),
    ],
    ..HOST_SETTING
};

/// The answer of the kernel's command line for properties of threads.
pub(super) const NO_THREADS_YET: FormatRule =
    FormatRule::Nothing("it is a property of the machine's threads, which do not exist at boot");

fn answer_policy(setting: &Setting, answer: impl Fn(&str, Policy) -> FormatAnswer) -> FormatAnswer {
    if let Value::Policy(policy) = setting.value {
        answer(&setting.of, policy)
    } else {
        FormatAnswer::host()
    }
}

/// The policy of all tasks of a process group (`systemd.exec(5)`).
fn systemd(role: &str, policy: Policy) -> FormatAnswer {
    if !role.starts_with("task") {
        return FormatAnswer::nothing(
            "CPUSchedulingPolicy= is for all threads of a service; `pinfold apply` gives each its own",
        );
    }
    let lines = match policy {
        Policy::Other { nice } => more("other", format!("Nice={nice}")),
        Policy::Batch { nice } => more("batch", format!("Nice={nice}")),
        Policy::Idle => vec!["CPUSchedulingPolicy=idle".to_owned()],
        Policy::Fifo { priority } => more("fifo", format!("CPUSchedulingPriority={priority}")),
        Policy::RoundRobin { priority } => more("rr", format!("CPUSchedulingPriority={priority}")),
        Policy::Deadline { .. } | Policy::Slice { .. } | Policy::Unknown { .. } => {
            return FormatAnswer::nothing("CPUSchedulingPolicy= has no such policy");
        }
    };
    FormatAnswer::lines("service", lines)
}

fn more(name: &str, second: String) -> Vec<String> {
    vec![format!("CPUSchedulingPolicy={name}"), second]
}

/// `realtime` is a child of `cpu` if the plan fulfils its requirements.
fn kubevirt(role: &str, policy: Policy, scope: &Scope<'_>) -> FormatAnswer {
    let is_ready = scope.is_pinned()
        && scope.vnode.is_some_and(|vnode: &VnodePlan| {
            vnode.memory.as_ref().is_some_and(|memory| memory.page_bytes.is_some())
        });
    match (policy, is_ready) {
        (Policy::Fifo { priority: 1 }, true) if role.starts_with("vcpu") => {
            FormatAnswer::lines("cpu", Vec::new()).with_difference("realtime under cpu, for vCPUs")
        }
        (_, true) => FormatAnswer::nothing(
            "realtime gives vCPUs fifo:1, no other threads and no other policy",
        ),
        (_, false) => FormatAnswer::nothing(
            "realtime needs dedicated CPUs, numa: guestMappingPassthrough and huge pages, and gives vCPUs fifo:1",
        ),
    }
}

fn nova(role: &str, policy: Policy, scope: &Scope<'_>) -> FormatAnswer {
    match (policy, scope.is_pinned(), role.starts_with("vcpu")) {
        (Policy::Fifo { priority }, true, true) => FormatAnswer::lines(
            "nova.conf",
            vec![format!("# realtime_scheduler_priority = {priority}")],
        )
        .with_difference("hw:cpu_realtime gives it to vCPUs"),
        (_, true, _) => {
            FormatAnswer::nothing("hw:cpu_realtime gives vCPUs fifo, and no other policy or thread")
        }
        (_, false, _) => FormatAnswer::nothing("hw:cpu_realtime needs dedicated CPUs"),
    }
}
