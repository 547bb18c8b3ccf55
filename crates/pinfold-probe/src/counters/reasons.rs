//! The reason why a counter is refused, with a hint.

use pinfold_host::{CounterError, Host, paths};

/// Properties of the machine that the reasons depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Machine {
    /// `kernel.perf_event_paranoid`, if it can be read.
    pub(super) paranoid: Option<String>,
    /// Names of the PMUs of the cores; `None` if the kernel does not list them.
    pub(super) pmus: Option<Vec<String>>,
    /// True if the processor's flags include that of a hypervisor.
    pub(super) is_guest: bool,
}

impl Machine {
    pub(super) fn read(host: &dyn Host) -> Self {
        let paranoid = host.read_text(&paths::sysctl_kernel("perf_event_paranoid"));
        let pmus = host.list(&paths::event_sources());
        let flags = host.read_text(&paths::cpuinfo());
        Self {
            paranoid: paranoid.ok().map(|text| text.trim().to_owned()),
            pmus: pmus.ok().map(|names| {
                names
                    .into_iter()
                    .filter(|name| {
                        ["cpu", "armv", "arm_", "riscv", "apple_"]
                            .iter()
                            .any(|start| name.starts_with(start))
                    })
                    .collect()
            }),
            is_guest: flags.is_ok_and(|text| {
                let line = text.lines().find(|line| line.starts_with("flags"));
                line.is_some_and(|line| line.split_ascii_whitespace().any(|f| f == "hypervisor"))
            }),
        }
    }

    /// The reason, with a hint.
    pub(super) fn why(&self, error: &CounterError) -> String {
        match error {
            CounterError::NoPmu => self.no_pmu(),
            CounterError::NoRight => match &self.paranoid {
                Some(value) => format!(
                    "not permitted: kernel.perf_event_paranoid is {value}; CAP_PERFMON is needed, \
                     or a value of at most 1"
                ),
                None => "not permitted: CAP_PERFMON is needed".to_owned(),
            },
            CounterError::TooManyFiles => "too many open files: raise the limit (ulimit -n), or \
                request fewer quantities (--quantities) or threads"
                .to_owned(),
            CounterError::Other(cause) => format!("{error}: {cause}"),
            CounterError::Ended
            | CounterError::NotBuilt
            | CounterError::NotInThisForm
            | CounterError::Busy => error.to_string(),
        }
    }

    fn no_pmu(&self) -> String {
        match &self.pmus {
            Some(pmus) if !pmus.is_empty() => {
                format!("the PMU ({}) has no such event", pmus.join(", "))
            }
            Some(_) | None if self.is_guest => {
                "no PMU: the hypervisor does not expose one to this host".to_owned()
            }
            Some(_) | None => "no PMU: the kernel has no driver for this processor's".to_owned(),
        }
    }
}
