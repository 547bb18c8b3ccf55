//! The kernel's statistics in `/proc`, for use where perf events are refused.

use pinfold_host::{Host, HostError, paths, proc_stat, proc_status, schedstat};
use pinfold_model::Tid;

use super::{Counted, Outcome, Quantity, Source};
use crate::roles::read_migrations;

/// The cumulative statistics of one thread at one moment; `None` where the kernel does not have
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ThreadTotals {
    pub(super) start_time: u64,
    pub(super) run_ns: Option<u64>,
    pub(super) migrations: Option<u64>,
    pub(super) switches: Option<u64>,
    pub(super) faults: Option<u64>,
}

/// Reads the statistics of a thread; `None` if it has ended.
pub(super) fn read(host: &dyn Host, tid: Tid) -> Result<Option<ThreadTotals>, HostError> {
    match read_all(host, tid) {
        Ok(standing) => Ok(Some(standing)),
        Err(error) if error.is_gone() && !host.exists(&paths::task_stat(tid, tid)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_all(host: &dyn Host, tid: Tid) -> Result<ThreadTotals, HostError> {
    let path = paths::task_stat(tid, tid);
    let text = host.read_text(&path)?;
    let stat = proc_stat::parse(&text).map_err(|error| error.at(&path))?;
    let path = paths::task_status(tid, tid);
    let status = proc_status::parse(&host.read_text(&path)?).map_err(|error| error.at(&path))?;
    let path = paths::task_schedstat(tid, tid);
    let run_ns = match host.read_text(&path) {
        Ok(text) => Some(schedstat::parse(&text).map_err(|error| error.at(&path))?.run_ns),
        // The kernel does not have this file.
        Err(error) if error.is_gone() => None,
        Err(error) => return Err(error),
    };
    let switches = status.voluntary_switches.zip(status.involuntary_switches);
    Ok(ThreadTotals {
        start_time: stat.start_time,
        run_ns,
        migrations: read_migrations(host, tid, tid)?,
        switches: switches.map(|(voluntary, involuntary)| voluntary + involuntary),
        faults: faults(&text),
    })
}

/// Fields 10 and 12 of `stat`: minor and major page faults.
/// <https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html>
fn faults(stat: &str) -> Option<u64> {
    // The name in parentheses may contain any character; the third field follows the last
    // parenthesis.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(field(10, &fields)? + field(12, &fields)?)
}

fn field(number: usize, fields: &[&str]) -> Option<u64> {
    fields.get(number - 3)?.parse::<u64>().ok()
}

/// True if `/proc` has this quantity.
pub(super) fn has(quantity: Quantity) -> bool {
    !quantity.needs_pmu()
}

/// The difference, summed over all threads that still exist.
pub(super) fn since(
    quantity: Quantity,
    pairs: &[(ThreadTotals, ThreadTotals)],
    why: String,
) -> Outcome {
    let (source, of): (Source, fn(&ThreadTotals) -> Option<u64>) = match quantity {
        Quantity::RunTime => (Source::Schedstat, |one| one.run_ns),
        Quantity::Migrations => (Source::Sched, |one| one.migrations),
        Quantity::ContextSwitches => (Source::Status, |one| one.switches),
        Quantity::PageFaults => (Source::Stat, |one| one.faults),
        Quantity::Cycles
        | Quantity::GuestCycles
        | Quantity::HostCycles
        | Quantity::Instructions
        | Quantity::GuestInstructions
        | Quantity::HostInstructions
        | Quantity::L1dMisses
        | Quantity::LlcMisses => return Outcome::Absent(why),
    };
    // A thread with the same number but another start time is another thread.
    let same: Vec<_> =
        pairs.iter().filter(|(before, now)| before.start_time == now.start_time).collect();
    if same.is_empty() {
        return Outcome::Absent(format!("{why}; and all threads of this role have ended"));
    }
    let mut value = 0_u64;
    for (before, now) in same {
        let (Some(before), Some(now)) = (of(before), of(now)) else {
            return Outcome::Absent(format!("{why}; and this kernel's /proc does not report it"));
        };
        value += now.saturating_sub(before);
    }
    Outcome::Counted(Counted { value, source, running_share: 1.0, instead_of: Some(why) })
}
