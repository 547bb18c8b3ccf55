//! Cache and bandwidth use of a machine with a resctrl group, as `resctrl` counts it.
//!
//! ```text
//! mon_data/mon_L3_00/llc_occupancy   bytes in the cache now
//! mon_data/mon_L3_00/mbm_total_bytes bytes to and from memory since the group was made
//! ```
//! A counter may be `Unavailable` for a while, and CPUs without monitoring have no such files.
//! <https://docs.kernel.org/filesystems/resctrl.html>

use pinfold_host::{Host, HostError, paths};

use crate::actuators;
use crate::journal::Record;
use crate::tasks;

/// One counter of the machine's resctrl group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Domain and name of the counter: `mon_L3_00/llc_occupancy`.
    pub name: String,
    /// Value in bytes; `None` if the kernel cannot read it now.
    pub bytes: Option<u64>,
}

/// All counters of the machine. Empty if the placement has no resctrl group or the CPU has no
/// monitoring.
///
/// # Errors
/// [`HostError`] if a counter exists and cannot be read.
pub fn read_counters(host: &dyn Host, record: &Record) -> Result<Vec<Counter>, HostError> {
    let made = record.steps().filter(|(index, _)| !record.is_void(*index));
    let mut made = made.filter_map(|(_, step)| step.change.made_group());
    let Some(group) = made.find(|path| actuators::is_in_resctrl(path)) else {
        return Ok(Vec::new());
    };
    let folder = paths::resctrl_file(group, "mon_data");
    let mut counters = Vec::new();
    for domain in tasks::ignore_gone(host.list(&folder))?.unwrap_or_default() {
        let folder = paths::resctrl_file(&folder, &domain);
        for name in tasks::ignore_gone(host.list(&folder))?.unwrap_or_default() {
            let text = tasks::ignore_gone(host.read_text(&paths::resctrl_file(&folder, &name)))?;
            let bytes = text.and_then(|text| text.trim().parse().ok());
            counters.push(Counter { name: format!("{domain}/{name}"), bytes });
        }
    }
    Ok(counters)
}
