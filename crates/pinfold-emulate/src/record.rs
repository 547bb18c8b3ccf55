//! Records the load of each CPU for replay by `inject`.
//!
//! Busy time is the time in `/proc/stat` that is neither idle nor iowait. The kernel counts in
//! ticks of 10 ms, so shorter intervals are not accurate.
//! <https://docs.kernel.org/filesystems/proc.html#miscellaneous-kernel-statistics-in-proc-stat>

use std::collections::BTreeMap;

use pinfold_host::{Clock, Host, HostError, paths};
use pinfold_model::{CpuSet, PuId};

use crate::SpeedError;

/// Load over time: start of the interval in nanoseconds, and the load of each CPU in millionths,
/// CPUs ascending.
pub type Load = Vec<(u64, Vec<u32>)>;

/// Indexes of the idle and iowait fields in a line `cpuN`.
const IDLE: [usize; 2] = [3, 4];
/// Number of fields to add up: guest time (the ninth and tenth field) is included in user time.
const COUNTED: usize = 8;

/// Busy ticks and total ticks by CPU.
pub(crate) type Ticks = BTreeMap<PuId, (u64, u64)>;

/// Samples the load of these CPUs once per interval.
///
/// # Errors
/// [`SpeedError::Host`] if the kernel's file cannot be read or does not contain one of the CPUs.
pub fn record(
    host: &dyn Host,
    clock: &dyn Clock,
    pus: &CpuSet,
    interval_ns: u64,
    duration_ns: u64,
) -> Result<Load, SpeedError> {
    let start = clock.now_ns();
    let mut load = Load::new();
    let mut before = ticks(host)?;
    let mut since = 0;
    while since < duration_ns {
        let until = since.saturating_add(interval_ns.max(1)).min(duration_ns);
        clock.sleep_until(start.saturating_add(until));
        let now = ticks(host)?;
        load.push((
            since,
            pus.iter()
                .map(|pu| match (before.get(&pu), now.get(&pu)) {
                    (Some(then), Some(now)) => Ok(share(*then, *now)),
                    _ => Err(HostError::Unexpected {
                        path: paths::kernel_stat(),
                        why: format!("it has no line for CPU {pu}: is the CPU offline?"),
                    }),
                })
                .collect::<Result<_, _>>()?,
        ));
        (before, since) = (now, until);
    }
    Ok(load)
}

/// Busy share between two samples, in millionths.
pub(crate) fn share(then: (u64, u64), now: (u64, u64)) -> u32 {
    let worked = now.0.saturating_sub(then.0);
    let all = now.1.saturating_sub(then.1);
    let share = worked.saturating_mul(1_000_000).checked_div(all).unwrap_or(0);
    u32::try_from(share.min(1_000_000)).unwrap_or(0)
}

pub(crate) fn ticks(host: &dyn Host) -> Result<Ticks, HostError> {
    let path = paths::kernel_stat();
    let text = host.read_text(&path)?;
    let fail = |line: &str| HostError::Unexpected {
        path: path.clone(),
        why: format!("cannot parse the CPU times in {line:?}"),
    };
    let mut ticks = Ticks::new();
    for line in text.lines() {
        let Some((name, rest)) = line.strip_prefix("cpu").and_then(|line| line.split_once(' '))
        else {
            continue;
        };
        // The first line is the sum of all CPUs.
        if name.is_empty() {
            continue;
        }
        let pu = name.parse().map(PuId).map_err(|_| fail(line))?;
        let fields: Result<Vec<u64>, _> =
            rest.split_ascii_whitespace().take(COUNTED).map(str::parse).collect();
        let fields = fields.map_err(|_| fail(line))?;
        let all: u64 = fields.iter().sum();
        let idle: u64 = IDLE.iter().filter_map(|at| fields.get(*at)).sum();
        ticks.insert(pu, (all - idle, all));
    }
    Ok(ticks)
}

#[cfg(test)]
mod tests {
    use pinfold_host::SnapshotHost;

    use super::*;

    #[test]
    fn a_share_is_what_was_not_idle() {
        assert_eq!(share((10, 100), (20, 120)), 500_000);
        assert_eq!(share((10, 100), (10, 100)), 0);
    }

    #[test]
    fn idle_and_waiting_do_not_count_and_guests_not_twice() {
        let mut host = SnapshotHost::new();
        let text = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 4 100 50 8 16 32 64 128\ncpu1 0 0 0 7 0 0 0 0 0 0\nintr 5\n";
        host.insert_file("/proc/stat", text);
        let found = ticks(&host).unwrap();
        assert_eq!(found.get(&PuId(0)), Some(&(63, 213)));
        assert_eq!(found.get(&PuId(1)), Some(&(0, 7)));
    }

    #[test]
    fn a_pu_that_is_not_there_is_named() {
        let mut host = SnapshotHost::new();
        host.insert_file("/proc/stat", "cpu0 1 2 3 4\n");
        let clock = pinfold_host::SimClock::default();
        let error = record(&host, &clock, &CpuSet::single(PuId(5)), 10, 20).unwrap_err();
        assert_eq!(error.to_string(), "/proc/stat: it has no line for CPU 5: is the CPU offline?");
        let load = record(&host, &clock, &CpuSet::single(PuId(0)), 10, 25).unwrap();
        assert_eq!(load, [(0, vec![0]), (10, vec![0]), (20, vec![0])]);
    }
}
