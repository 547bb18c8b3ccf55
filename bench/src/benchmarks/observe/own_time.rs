//! The programs' own time, as measured by the kernel.
//!
//! With `BPF_ENABLE_STATS` (Linux 5.8), the kernel reads a clock before and after each call and
//! sums the time for each program in `/proc/PID/fdinfo`. This excludes other virtual machines and
//! the variation of the work, and also the overhead of calling the program and the cache lines that
//! it evicts.

use aya::sys::Stats;
use pinfold_host::{Host as _, LiveHost, paths};

use crate::arguments::Failure;

/// The time spent so far in all BPF programs of this process (ns).
fn spent_ns(host: &LiveHost) -> Result<u64, Failure> {
    let mut sum = 0;
    for name in host.list(&format!("{}/fdinfo", paths::own_dir()))? {
        // The descriptor of the directory listing is closed by now.
        let Ok(text) = host.read_text(&paths::own_fdinfo(name.parse()?)) else { continue };
        if let Some(ns) = text.lines().find_map(|line| line.strip_prefix("run_time_ns:")) {
            sum += ns.trim().parse::<u64>()?;
        }
    }
    Ok(sum)
}

/// Runs the work while the time of open programs is measured; returns their time (ns).
pub fn of(host: &LiveHost, work: &dyn Fn() -> Result<(), Failure>) -> Result<u64, Failure> {
    let timed = aya::sys::enable_stats(Stats::RunTime)?;
    let before = spent_ns(host)?;
    work()?;
    let spent = spent_ns(host)?.saturating_sub(before);
    drop(timed);
    Ok(spent)
}
