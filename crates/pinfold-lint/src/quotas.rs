//! CFS bandwidth limits of pinned threads.
//!
//! Source: the kernel's `Documentation/scheduler/sched-bwc.rst`, libvirt's formatdomain ("CPU
//! Tuning").

use pinfold_model::Severity;
use pinfold_model::text::counted;
use pinfold_plan::domain_file::text_of;

use super::Diagnostic;
use super::properties::File;
use super::repair::Repair;

/// Default period of libvirt and the kernel in microseconds.
const USUAL_PERIOD: i64 = 100_000;

struct Limit {
    name: &'static str,
    quota: &'static str,
    period: &'static str,
    whose: &'static str,
    /// Maximum CPU use of the threads per period, in CPUs.
    cpus: i64,
    cost: &'static str,
}

pub(super) fn check(file: &File<'_>, flaws: &mut Vec<Diagnostic>) {
    if file.view.tight.is_empty() {
        return;
    }
    let iothreads = i64::from(
        file.view
            .layout
            .pins
            .iter()
            .any(|pin| matches!(pin.role, pinfold_model::Role::Iothread(_))),
    );
    let limits = [
        Limit {
            name: "vcpu-quota",
            quota: "quota",
            period: "period",
            whose: "each vCPU",
            cpus: 1,
            cost: "a vCPU that used its quota stops until the period ends, although no other task \
                   wants its CPU: the guest sees it as a stall, and waits for locks that it held",
        },
        Limit {
            name: "global-quota",
            quota: "global_quota",
            period: "global_period",
            whose: "the whole machine",
            cpus: i64::from(file.view.layout.vcpus),
            cost: "when all its threads together used the quota, all stop until the period ends",
        },
        Limit {
            name: "emulator-quota",
            quota: "emulator_quota",
            period: "emulator_period",
            whose: "the emulator",
            cpus: 1,
            cost: "when its threads used the quota, every device that QEMU emulates waits until the \
                   period ends, and so does each vCPU that needs one",
        },
        Limit {
            name: "iothread-quota",
            quota: "iothread_quota",
            period: "iothread_period",
            whose: "each iothread",
            cpus: iothreads,
            cost: "when it used the quota, its disks answer no request until the period ends; one that \
                   polls uses it up without any request",
        },
    ];
    flaws.extend(limits.iter().filter_map(|limit| one(file, limit)));
}

fn one(file: &File<'_>, limit: &Limit) -> Option<Diagnostic> {
    let number = |tag: &str| -> Option<i64> { text_of(file.find(&["cputune", tag]))?.parse().ok() };
    let node = file.find(&["cputune", limit.quota])?;
    let quota = number(limit.quota).filter(|quota| *quota > 0)?;
    let period = number(limit.period).filter(|period| *period > 0).unwrap_or(USUAL_PERIOD);
    if quota >= period.saturating_mul(limit.cpus) {
        return None;
    }
    let cpus = match limit.cpus {
        1 => String::new(),
        count => format!(" on {}", counted(usize::try_from(count).unwrap_or(0), "CPU")),
    };
    let what = format!(
        "{} may run for {} of each {}{cpus}",
        limit.whose,
        milliseconds(quota),
        milliseconds(period)
    );
    let mut flaw = file.flaw((Severity::Warning, limit.name), (what, limit.cost), &[node]);
    flaw.repairs = vec![Repair::remove(&["cputune"], limit.quota)];
    Some(flaw)
}

/// Formats microseconds as milliseconds.
fn milliseconds(microseconds: i64) -> String {
    match microseconds % 1000 {
        0 => format!("{} ms", microseconds / 1000),
        rest => format!("{}.{rest:03} ms", microseconds / 1000),
    }
}
