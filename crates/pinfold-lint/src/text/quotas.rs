//! CFS bandwidth limits of pinned threads.

use pinfold_model::text::count_noun;

use super::{Fault, FaultText};

/// Whose run time is limited.
#[derive(Clone, Copy)]
pub(crate) enum Limited {
    Vcpu,
    Machine,
    Emulator,
    Iothread,
}

/// A quota of each period, in microseconds, on a number of CPUs.
pub(crate) struct QuotaFault {
    pub whose: Limited,
    pub quota: i64,
    pub period: i64,
    pub cpus: i64,
}

impl Fault for QuotaFault {
    fn words(&self) -> FaultText {
        let (name, whose, cost) = match self.whose {
            Limited::Vcpu => (
                "vcpu-quota",
                "each vCPU",
                "a vCPU that used its quota stops until the period ends, although no other task \
                 wants its CPU: the guest sees it as a stall, and waits for locks that it held",
            ),
            Limited::Machine => (
                "global-quota",
                "the whole machine",
                "when all its threads together used the quota, all stop until the period ends",
            ),
            Limited::Emulator => (
                "emulator-quota",
                "the emulator",
                "when its threads used the quota, every device that QEMU emulates waits until the \
                 period ends, and so does each vCPU that needs one",
            ),
            Limited::Iothread => (
                "iothread-quota",
                "each iothread",
                "when it has used the quota, its disks complete no request until the period ends; \
                 a polling iothread uses it up without any request",
            ),
        };
        let cpus = match self.cpus {
            1 => String::new(),
            count => format!(" on {}", count_noun(usize::try_from(count).unwrap_or(0), "CPU")),
        };
        let (quota, period) = (milliseconds(self.quota), milliseconds(self.period));
        FaultText::new(name, format!("{whose} may run for {quota} of each {period}{cpus}"), cost)
    }
}

/// Formats microseconds as milliseconds.
fn milliseconds(microseconds: i64) -> String {
    match microseconds % 1000 {
        0 => format!("{} ms", microseconds / 1000),
        rest => format!("{}.{rest:03} ms", microseconds / 1000),
    }
}
