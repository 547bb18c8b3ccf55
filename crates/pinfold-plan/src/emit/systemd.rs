//! systemd units: a slice for the machine, a drop-in for its service, and isolation of the host's
//! tasks.
//!
//! `AllowedCPUs=` and `AllowedMemoryNodes=` write the cgroup's cpuset
//! (`systemd.resource-control(5)`); `CPUAffinity=` and `NUMAPolicy=` are the initial settings of
//! QEMU's threads (`systemd.exec(5)`). A unit cannot express single threads: the vCPUs' own pins
//! need `pinfold apply`, which the drop-in names. Each file begins with `# FILE:` and its path.

use pinfold_model::{CpuQuota, IrqPlan, Plan, Policy, Role, Speed, VnodeKind, VnodePlan};

use super::common::{headline, plain_name, reserved};
use super::format::{Format, Syntax};
use super::kernel_files::{IRQS, Setting, setting};
use super::said::{FormatAnswer, Scope};
use crate::guest_numa::node_list;
use crate::tunables::Tunable;

/// The format.
pub(super) const FORMAT: Format = Format {
    name: "systemd",
    summary: "A slice, a service drop-in, and the host's slices",
    is_of_host: false,
    can_merge: false,
    syntax: Syntax::Lines,
    write: |plan, _, _| Ok(systemd((plan, plan.single()?))),
    tunable: words,
};

/// The files, one after the other, each after a line `# FILE: PATH`.
#[must_use]
pub fn systemd((plan, vnode): (&Plan, &VnodePlan)) -> String {
    let name = plain_name(vnode);
    let pus = vnode.pus();
    let mut text = format!("# FILE: /etc/systemd/system/pinfold-{name}.slice\n");
    text.push_str(&format!("# {}\n", headline(plan)));
    text.push_str(&format!("[Unit]\nDescription=CPUs of {name}\n\n[Slice]\nAllowedCPUs={pus}\n"));
    let nodes = vnode.memory.as_ref().map(|memory| node_list(&memory.nodes));
    if let Some(nodes) = &nodes {
        text.push_str(&format!("AllowedMemoryNodes={nodes}\n"));
    }
    let tunables = FORMAT.answers(Scope::of_vnode((plan, vnode)));
    text.push_str(&tunables.text(SLICE));
    text.push('\n');
    text.push_str(&format!(
        "# FILE: /etc/systemd/system/pinfold-{name}.service.d/50-pinfold.conf\n\
         # For the service pinfold-{name}.service; another service's name goes into this path.\n\
         [Service]\nSlice=pinfold-{name}.slice\n"
    ));
    if let Some(emulator) = vnode.thread(&Role::Emulator) {
        text.push_str(&format!(
            "# Every thread begins here, until its own pin is set.\nCPUAffinity=\nCPUAffinity={}\n",
            emulator.pus
        ));
    }
    if let Some(nodes) = &nodes {
        text.push_str(&format!("NUMAPolicy=bind\nNUMAMask={nodes}\n"));
    }
    text.push_str(&tunables.text(SERVICE));
    if vnode.speed != Speed::FULL {
        text.push_str(&format!(
            "# systemd cannot express the speed {}: `pinfold emulate` does. CPUQuota= is no slower CPU.\n",
            vnode.speed
        ));
    }
    let machine = vnode.kind == VnodeKind::VirtualMachine;
    text.push_str(if !machine {
        ""
    } else {
        "# systemd has no word for single threads. The vCPUs' pins, from a QEMU with\n\
         # -qmp unix:%t/pinfold.sock,server=on,wait=off and the plan (`--json`) in a file:\n\
         # ExecStartPost=pinfold apply --qmp %t/pinfold.sock --plan /etc/pinfold/plan.json\n"
    });
    text.push_str(&tunables.missing_text("systemd"));
    text.push('\n');
    for (place, path) in [(SYSCTL, "sysctl.d"), (TMPFILES, "tmpfiles.d")] {
        let lines = tunables.text(place);
        if !lines.is_empty() {
            text.push_str(&format!("# FILE: /etc/{path}/50-pinfold-{name}.conf\n{lines}\n"));
        }
    }
    host(&mut text, plan);
    text
}

/// Excludes the host's own tasks from the vCPUs' CPUs.
fn host(text: &mut String, plan: &Plan) {
    if reserved(plan).is_empty() {
        text.push_str("# This plan shares its PUs with the host: no unit keeps other tasks off.\n");
        return;
    }
    for unit in ["init.scope", "system.slice", "user.slice"] {
        text.push_str(&format!("# FILE: /etc/systemd/system/{unit}.d/50-pinfold.conf\n"));
        if unit == "init.scope" {
            text.push_str(
                "# The host's own tasks. Needs cgroup v2. A reset of AllowedCPUs= is only complete after a\n\
                 # reboot: try `systemctl set-property --runtime system.slice AllowedCPUs=…` first.\n",
            );
        }
        let section = if unit == "init.scope" { "Scope" } else { "Slice" };
        text.push_str(&format!("[{section}]\nAllowedCPUs={}\n\n", plan.housekeeping));
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
}

/// The slice's own section.
const SLICE: &str = "slice";
/// The drop-in of the service.
const SERVICE: &str = "service";
/// A file of sysctl.d.
const SYSCTL: &str = "sysctl";
/// A file of tmpfiles.d.
const TMPFILES: &str = "tmpfiles";

/// systemd's setting for a tunable: a property of the slice, or a file that is written at boot.
pub(super) fn words(tunable: &Tunable<'_>, scope: &Scope<'_>) -> FormatAnswer {
    match tunable {
        Tunable::CpuWeight(weight) => {
            FormatAnswer::lines(SLICE, vec![format!("CPUWeight={weight}")])
                .but("against the other slices below pinfold.slice, whose own weight is 100")
        }
        Tunable::CpuQuota(quota) => FormatAnswer::lines(SLICE, self::quota(*quota)),
        Tunable::Irq(irq) if irq.device == IrqPlan::ALL => {
            FormatAnswer::lines(TMPFILES, vec![written(IRQS, &irq.pus.to_string())])
                .but("the kernel refuses those that it manages itself")
        }
        Tunable::Irq(_) => FormatAnswer::nothing(
            "a device's interrupts have their numbers only when its driver is loaded",
        ),
        Tunable::Policy { role, policy } if role.starts_with("task") => service(*policy),
        Tunable::Policy { .. } => FormatAnswer::nothing(
            "CPUSchedulingPolicy= is for all threads of a service; `pinfold apply` gives each its own",
        ),
        Tunable::Share(_) => FormatAnswer::nothing(
            "resctrl divides caches and bandwidth, and systemd has no unit for it",
        ),
        Tunable::Partition(_) => FormatAnswer::nothing(
            "CPUSetPartition= is in the newest releases only, and for all threads of the slice",
        ),
        Tunable::Required => FormatAnswer::nothing("`pinfold apply` alone checks it"),
        Tunable::NewIrqs(_)
        | Tunable::Workqueues(_)
        | Tunable::NumaBalancing(_)
        | Tunable::TransparentHugePages(_)
        | Tunable::SamePageMerging(_)
        | Tunable::WakeUp(_)
        | Tunable::RealTimeThrottle(_)
        | Tunable::Governor(_)
        | Tunable::MinKhz(_)
        | Tunable::MaxKhz(_)
        | Tunable::HugePages(_)
        | Tunable::Smt(_)
        | Tunable::Offline(_) => match setting(tunable, &scope.pus()) {
            Setting::Files(files) => {
                let lines = files.iter().map(|(path, value)| written(path, value));
                FormatAnswer::lines(TMPFILES, lines.collect())
            }
            Setting::Sysctl(name, value) => {
                FormatAnswer::lines(SYSCTL, vec![format!("{name} = {value}")])
            }
            Setting::Neither => FormatAnswer::host(),
        },
    }
}

/// The policy of all tasks of a process group (`systemd.exec(5)`).
fn service(policy: Policy) -> FormatAnswer {
    let lines = match policy {
        Policy::Other { nice } => {
            vec!["CPUSchedulingPolicy=other".to_owned(), format!("Nice={nice}")]
        }
        Policy::Batch { nice } => {
            vec!["CPUSchedulingPolicy=batch".to_owned(), format!("Nice={nice}")]
        }
        Policy::Idle => vec!["CPUSchedulingPolicy=idle".to_owned()],
        Policy::Fifo { priority } => real_time("fifo", priority),
        Policy::RoundRobin { priority } => real_time("rr", priority),
        Policy::Deadline { .. } | Policy::Unknown(_) => {
            return FormatAnswer::nothing("CPUSchedulingPolicy= has no such policy");
        }
    };
    FormatAnswer::lines(SERVICE, lines)
}

fn real_time(policy: &str, priority: u8) -> Vec<String> {
    vec![format!("CPUSchedulingPolicy={policy}"), format!("CPUSchedulingPriority={priority}")]
}

/// A line of tmpfiles.d that writes to an existing file (`tmpfiles.d(5)`).
fn written(path: &str, value: &str) -> String {
    format!("w {path} - - - - {}", value.replace('%', "%%"))
}

/// A quota in percent of one CPU's time, with the two decimals that systemd supports.
fn quota(quota: CpuQuota) -> Vec<String> {
    let CpuQuota { quota_us, period_us } = quota;
    let hundredths = (u128::from(quota_us) * 10_000 / u128::from(period_us.max(1))).max(1);
    let (whole, rest) = (hundredths / 100, hundredths % 100);
    let percent = match rest {
        0 => whole.to_string(),
        rest => format!("{whole}.{rest:02}"),
    };
    vec![format!("CPUQuota={percent}%"), format!("CPUQuotaPeriodSec={period_us}us")]
}
