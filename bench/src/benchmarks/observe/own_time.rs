//! The programs' own time: what the kernel says that it spent in them.
//!
//! With `BPF_ENABLE_STATS` (Linux 5.8) it reads a clock before and after each call and adds up,
//! for each program, in `/proc/PID/fdinfo`. Other tenants and the work's own chances are not in
//! it; the way to the program and the cache lines that it takes from the work are not either.

use aya::sys::Stats;
use pinfold_host::{Host as _, LiveHost, paths};

use crate::Failure;

/// The time spent so far in all programs that this process holds (ns).
fn spent_ns(host: &LiveHost) -> Result<u64, Failure> {
    let mut sum = 0;
    for name in host.list(&format!("{}/fdinfo", paths::own_dir()))? {
        // The listing's own number is closed by now.
        let Ok(text) = host.read_text(&paths::own_fdinfo(name.parse()?)) else { continue };
        if let Some(ns) = text.lines().find_map(|line| line.strip_prefix("run_time_ns:")) {
            sum += ns.trim().parse::<u64>()?;
        }
    }
    Ok(sum)
}

/// Does the work, while programs that are open have their time taken; how long they took (ns).
pub fn of(host: &LiveHost, work: &dyn Fn() -> Result<(), Failure>) -> Result<u64, Failure> {
    let timed = aya::sys::enable_stats(Stats::RunTime)?;
    let before = spent_ns(host)?;
    work()?;
    let spent = spent_ns(host)?.saturating_sub(before);
    drop(timed);
    Ok(spent)
}
