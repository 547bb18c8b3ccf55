//! CPU time that the kernel reserves for non-real-time tasks, which a burner cannot take.
//!
//! Before Linux 6.12 this is the part of each `sched_rt_period_us` beyond `sched_rt_runtime_us`, or
//! nothing if that is -1. Since 6.12 each CPU has a deadline server for fair tasks, which is
//! independent of that sysctl: 50 ms per second, unless debugfs sets another time. The sysctl still
//! limits groups on kernels with `RT_GROUP_SCHED`, so the larger of both counts.
//! <https://docs.kernel.org/scheduler/sched-rt-group.html>

use pinfold_host::{Host, HostError, osrelease, paths};
use pinfold_model::{CpuSet, PuId};

/// Millionths of the time.
const WHOLE: u64 = 1_000_000;
/// The first kernel with deadline servers, and their default share.
const SERVED_SINCE: (u32, u32) = (6, 12);
const DEFAULT_DL_SERVER_SHARE: u64 = 50_000;

/// Share of the time that real-time threads cannot get on these CPUs, in millionths.
pub(super) fn millionths(host: &dyn Host, pus: &CpuSet) -> Result<u32, HostError> {
    let mut floor = read_throttled(host)?;
    if osrelease::version(&host.read_text(&paths::kernel_release())?) >= Some(SERVED_SINCE) {
        for pu in pus.iter() {
            floor = floor.max(read_deadline_server_share(host, pu));
        }
    }
    Ok(u32::try_from(floor.min(WHOLE)).unwrap_or(0))
}

/// A share as text: `5%`, `12.5%`.
pub(super) fn describe(millionths: u32) -> String {
    let text = format!("{}.{:04}", millionths / 10_000, millionths % 10_000);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// The share that the sysctls reserve.
fn read_throttled(host: &dyn Host) -> Result<u64, HostError> {
    fn number(host: &dyn Host, name: &str) -> Result<Option<i64>, HostError> {
        match host.read_text(&paths::sysctl_kernel(name)) {
            Ok(text) => Ok(text.trim().parse().ok()),
            Err(error) if error.is_gone() => Ok(None),
            Err(error) => Err(error),
        }
    }

    let runtime = number(host, "sched_rt_runtime_us")?.and_then(|us| u64::try_from(us).ok());
    let period = number(host, "sched_rt_period_us")?.and_then(|us| u64::try_from(us).ok());
    Ok(match (runtime, period) {
        (Some(runtime), Some(period)) => subtract(runtime, period),
        // -1, or a kernel without throttling.
        (None, _) | (_, None) => 0,
    })
}

/// The part of a period beyond the run time, in millionths, rounded up.
fn subtract(runtime: u64, period: u64) -> u64 {
    let free = period.saturating_sub(runtime).saturating_mul(WHOLE);
    free.checked_add(period.saturating_sub(1)).and_then(|sum| sum.checked_div(period)).unwrap_or(0)
}

/// The share of a CPU's deadline server; from debugfs if it is readable.
fn read_deadline_server_share(host: &dyn Host, pu: PuId) -> u64 {
    match (number(&pu, host, "runtime"), number(&pu, host, "period")) {
        (Some(runtime), Some(period)) if period > 0 => {
            subtract(period.saturating_sub(runtime), period)
        }
        (_, _) => DEFAULT_DL_SERVER_SHARE,
    }
}

fn number(pu: &PuId, host: &dyn Host, name: &str) -> Option<u64> {
    let path = paths::debug_sched(&format!("fair_server/cpu{pu}/{name}"));
    host.read_text(&path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use pinfold_sim::{CgroupVersion, SimHost, WriteRule};

    use super::*;

    #[test]
    fn a_share_is_reported_in_percent() {
        assert_eq!([50_000, 125_000, 0, 12].map(describe), ["5%", "12.5%", "0%", "0.0012%"]);
    }

    #[test]
    fn the_floor_is_what_the_throttle_and_the_servers_keep() {
        let check =
            |release: &str, (runtime, period): (&str, &str), server: Option<&str>, floor| {
                let mut builder = SimHost::builder(CgroupVersion::V2, 2)
                    .writable_file(
                        &paths::sysctl_kernel("sched_rt_runtime_us"),
                        WriteRule::Integer,
                        runtime,
                    )
                    .writable_file(
                        &paths::sysctl_kernel("sched_rt_period_us"),
                        WriteRule::Integer,
                        period,
                    );
                if let Some(server) = server {
                    builder = builder
                        .writable_file(&path("runtime"), WriteRule::Integer, server)
                        .writable_file(&path("period"), WriteRule::Integer, "1000000000\n");
                }
                let host = builder.build();
                host.set_file(&paths::kernel_release(), release);
                let got = millionths(&host, &CpuSet::single(PuId(1))).unwrap();
                assert_eq!(got, floor, "{release} {runtime} {period} {server:?}");
            };
        check("6.1.0-25-amd64\n", ("950000\n", "1000000\n"), None, 50_000);
        check("6.1.0-25-amd64\n", ("980000\n", "1000000\n"), None, 20_000);
        check("6.1.0-25-amd64\n", ("300000\n", "900000\n"), None, 666_667);
        check("6.1.0-25-amd64\n", ("-1\n", "1000000\n"), None, 0);
        check("6.12.95-amd64\n", ("-1\n", "1000000\n"), None, 50_000);
        check("6.12.95-amd64\n", ("-1\n", "1000000\n"), Some("20000000\n"), 20_000);
        check("6.12.95-amd64\n", ("-1\n", "1000000\n"), Some("0\n"), 0);
        check("7.0.1\n", ("900000\n", "1000000\n"), Some("20000000\n"), 100_000);
    }

    fn path(name: &str) -> String {
        paths::debug_sched(&format!("fair_server/cpu1/{name}"))
    }
}
