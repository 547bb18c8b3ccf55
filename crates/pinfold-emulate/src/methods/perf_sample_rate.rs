//! The kernel's limit on the interrupt rate of perf timers.
//!
//! The kernel disables an event that has interrupted `kernel.perf_event_max_sample_rate` / HZ times
//! within a tick until the next tick, and the vnode runs at full speed in that time. HZ is not
//! always readable; its maximum is 1,000. The kernel lowers the rate automatically if interrupts of
//! hardware events take more than `kernel.perf_cpu_time_max_percent` of a CPU.
//! <https://docs.kernel.org/admin-guide/sysctl/kernel.html>

use pinfold_host::{Host, HostError, paths};

use crate::units::{S, US};

const RATE: &str = "perf_event_max_sample_rate";
const SHARE: &str = "perf_cpu_time_max_percent";
/// Maximum tick rate (HZ).
const MOST_TICKS: u64 = 1_000;
/// The kernel's default rate.
const USUAL_RATE: u64 = 100_000;

/// The limits of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowed {
    /// Maximum rate in interrupts per second; `None` if the kernel does not report it.
    pub(super) rate: Option<u64>,
    /// True if the kernel may lower the rate automatically.
    may_fall: bool,
}

impl Allowed {
    pub(super) fn find(host: &dyn Host) -> Result<Self, HostError> {
        // At 0 and 100 the kernel never lowers it.
        let may_fall = number(host, SHARE)?.is_some_and(|percent| (1..100).contains(&percent));
        Ok(Self { rate: number(host, RATE)?, may_fall })
    }

    /// The shortest period (ns) that is not throttled, with one interrupt per tick less than the
    /// limit. `None` if every period is throttled.
    pub(super) fn shortest_ns(self) -> Option<u64> {
        match self.rate {
            None => Some(0),
            Some(rate) => S.checked_div(rate.saturating_sub(MOST_TICKS)),
        }
    }

    /// Why interrupts with this period would be throttled; `None` if they are not.
    pub(super) fn refusal(self, longest_ns: u64) -> Option<String> {
        let rate = self.rate?;
        let is_enough = self.shortest_ns().is_some_and(|shortest| shortest <= longest_ns);
        let least = S / longest_ns.max(1) + MOST_TICKS;
        (!is_enough).then(|| {
            format!(
                "kernel.{RATE} is {rate}, but an interrupt every {} µs needs {least}: `sysctl \
                 kernel.{RATE}={USUAL_RATE}`{}",
                longest_ns / US,
                if self.may_fall {
                    format!("; the kernel lowers it while kernel.{SHARE} is not 0")
                } else {
                    String::new()
                }
            )
        })
    }
}

fn number(host: &dyn Host, name: &str) -> Result<Option<u64>, HostError> {
    match host.read_text(&paths::sysctl_kernel(name)) {
        Ok(text) => Ok(text.trim().parse().ok()),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_as_long_as_the_rate_wants() {
        check(100_000, Some(10_101), false);
        check(6_000, Some(200_000), false);
        check(5_000, Some(250_000), false);
        check(2_000, Some(1_000_000), false);
        check(1_999, Some(1_001_001), true);
        check(1_000, None, true);
        check(1, None, true);
        let silent = Allowed { rate: None, may_fall: false };
        assert_eq!((silent.shortest_ns(), silent.refusal(1)), (Some(0), None));
    }

    fn check(rate: u64, shortest_ns: Option<u64>, is_refused: bool) {
        let allowed = Allowed { rate: Some(rate), may_fall: false };
        assert_eq!(allowed.shortest_ns(), shortest_ns, "{rate}");
        assert_eq!(allowed.refusal(1_000_000).is_some(), is_refused, "{rate}");
    }

    #[test]
    fn who_is_refused_hears_a_hint() {
        let allowed = Allowed { rate: Some(1), may_fall: true };
        let expected = "kernel.perf_event_max_sample_rate is 1, but an interrupt every 1000 µs \
                        needs 2000: `sysctl kernel.perf_event_max_sample_rate=100000`; the kernel \
                        lowers it while kernel.perf_cpu_time_max_percent is not 0";
        assert_eq!(allowed.refusal(1_000_000).as_deref(), Some(expected));
    }
}
