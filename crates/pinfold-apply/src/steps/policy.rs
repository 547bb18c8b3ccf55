//! Whether a user who may lower the priority of a thread may also raise it again: without
//! `CAP_SYS_NICE` only up to the thread's limit of nice values (`sched(7)`, `RLIMIT_NICE`).

use pinfold_host::{HostError, paths, proc_status, process};
use pinfold_model::{Policy, Tid};

use crate::host_state::HostState;

/// `CAP_SYS_NICE`, by its bit in `CapEff`.
const SYS_NICE: u64 = 1 << 23;
/// The line of the limit, of which the first number counts.
const LIMIT: &str = "Max nice priority";
/// `SCHED_IDLE` is below the largest nice value.
const IDLE: i16 = 20;

/// True if a thread with this policy can have it again after the other one.
pub(super) fn may_return(
    state: &HostState<'_>,
    tid: Tid,
    original: Policy,
    policy: Policy,
) -> Result<bool, HostError> {
    let (Some(from), Some(to)) = (rank(original), rank(policy)) else { return Ok(true) };
    if to <= from || is_privileged(state)? {
        return Ok(true);
    }
    let limits = state.text(&paths::process_limits(tid))?;
    Ok(limits.is_none_or(|text| limit(&text).is_none_or(|limit| IDLE - from <= limit)))
}

/// The nice value; larger ones have a lower priority. `None` for policies without one.
fn rank(policy: Policy) -> Option<i16> {
    if policy == Policy::Idle { Some(IDLE) } else { policy.nice().map(i16::from) }
}

/// True where it is not known, too.
fn is_privileged(state: &HostState<'_>) -> Result<bool, HostError> {
    let status = state.text(&paths::process_status(process::own_pid()))?;
    let mask = status.as_deref().and_then(|text| proc_status::field(text, "CapEff"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask, 16).ok());
    Ok(mask.is_none_or(|mask| mask & SYS_NICE != 0))
}

fn limit(limits: &str) -> Option<i16> {
    let line = limits.lines().find_map(|line| line.strip_prefix(LIMIT))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_is_below_all_nice_values() {
        let slice = Policy::Slice { nice: Some(3), slice_ns: 500_000 };
        let ranks = [Policy::Other { nice: -5 }, slice, Policy::Idle].map(rank);
        assert!(ranks.is_sorted() && ranks[2] == Some(20), "{ranks:?}");
        assert_eq!(rank(Policy::Fifo { priority: 1 }), None);
    }

    #[test]
    fn the_soft_limit_counts() {
        let text = "Max file locks  unlimited  unlimited  locks\nMax nice priority  25  40  \n";
        assert_eq!(limit(text), Some(25));
        assert_eq!(limit("Max nice priority  unlimited"), None);
    }
}
