//! `/proc/PID/task/TID/schedstat`: three numbers.
//!
//! ```text
//! 81352041 1206913 327
//! ```
//!
//! Time on a CPU and time runnable but waiting for one (the *run delay*), both in nanoseconds, and
//! the number of time slices. All are zero if the kernel is built without `CONFIG_SCHED_INFO`.
//! <https://docs.kernel.org/scheduler/sched-stats.html>

use super::ProcError;

/// The counters of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedStat {
    /// Time on a CPU.
    pub run_ns: u64,
    /// Time runnable but waiting for a CPU (run delay).
    pub delay_ns: u64,
    /// Number of time slices.
    pub slices: u64,
}

/// Parses the file.
///
/// # Errors
/// [`ProcError`] if it does not consist of three numbers.
pub fn parse(text: &str) -> Result<SchedStat, ProcError> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    let mut next =
        || numbers.next().and_then(Result::ok).ok_or_else(|| ProcError::new("a schedstat", text));
    Ok(SchedStat { run_ns: next()?, delay_ns: next()?, slices: next()? })
}
