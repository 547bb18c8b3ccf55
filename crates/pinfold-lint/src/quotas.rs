//! CFS bandwidth limits of pinned threads.
//!
//! Source: the kernel's `Documentation/scheduler/sched-bwc.rst`, libvirt's formatdomain ("CPU
//! Tuning").

use pinfold_model::Severity;
use pinfold_plan::domain_file::text_of;

use super::Diagnostic;
use super::properties::File;
use super::repair::Repair;
use super::text::quotas::{Limited, QuotaFault};

/// Default period of libvirt and the kernel in microseconds.
const USUAL_PERIOD: i64 = 100_000;

struct Limit {
    whose: Limited,
    quota: &'static str,
    period: &'static str,
    /// Maximum CPU use of the threads per period, in CPUs.
    cpus: i64,
}

pub(super) fn check(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) {
    if file.view.tight.is_empty() {
        return;
    }
    let iothreads =
        i64::from(file.view.layout.pins.iter().any(|pin| pin.role.iothread().is_some()));
    let limits = [
        Limit { whose: Limited::Vcpu, quota: "quota", period: "period", cpus: 1 },
        Limit {
            whose: Limited::Machine,
            quota: "global_quota",
            period: "global_period",
            cpus: i64::from(file.view.layout.vcpus),
        },
        Limit {
            whose: Limited::Emulator,
            quota: "emulator_quota",
            period: "emulator_period",
            cpus: 1,
        },
        Limit {
            whose: Limited::Iothread,
            quota: "iothread_quota",
            period: "iothread_period",
            cpus: iothreads,
        },
    ];
    diagnostics.extend(limits.iter().filter_map(|limit| one(file, limit)));
}

fn one(file: &File<'_>, limit: &Limit) -> Option<Diagnostic> {
    let node = file.find(&["cputune", limit.quota])?;
    let quota = number(file, limit.quota).filter(|quota| *quota > 0)?;
    let period = number(file, limit.period).filter(|period| *period > 0).unwrap_or(USUAL_PERIOD);
    if quota >= period.saturating_mul(limit.cpus) {
        return None;
    }
    let fault = QuotaFault { whose: limit.whose, quota, period, cpus: limit.cpus };
    let mut diagnostic = file.diagnostic(Severity::Warning, &fault, &[node]);
    diagnostic.repairs = vec![Repair::remove(&["cputune"], limit.quota)];
    Some(diagnostic)
}

fn number(file: &File<'_>, tag: &str) -> Option<i64> {
    text_of(file.find(&["cputune", tag]))?.parse().ok()
}
