//! Pins that the owner of a domain sets through libvirt while a plan is active.
//!
//! The libvirt hook sets masks in the kernel, and libvirt keeps the pins that it had. Where these
//! differ from those at the begin of the placement, the owner has set them since (`virsh vcpupin`),
//! even if the thread's mask is the one that Pinfold set.

use pinfold_host::{Host, paths};
use pinfold_model::{CpuSet, Lifetime, Setting, TaskId};

use crate::cpusets;
use crate::journal::Record;
use crate::tasks::RecordedPin;

/// The CPUs to which the owner of the machine has pinned a thread since the placement began;
/// `None` if the owner did not, or if the pins cannot be read: then the masks decide.
pub(crate) fn pin_of_owner(host: &dyn Host, record: &Record, task: TaskId) -> Option<CpuSet> {
    let recorded = record.header.pins.iter().find(|pin| pin.task == task)?;
    let now = host.setting(&recorded.setting).ok()??;
    let cpus = CpuSet::parse_list(&now).ok()?;
    let is_free = || {
        let online = cpusets::list(host, &paths::cpu_online());
        online.is_ok_and(|online| online.is_subset(&cpus))
    };
    let is_theirs =
        recorded.value.as_ref() != Some(&now) && !was_written(record, recorded, &now) && !is_free();
    is_theirs.then_some(cpus)
}

/// True if Pinfold gave the value to the managing program itself.
fn was_written(record: &Record, recorded: &RecordedPin, now: &str) -> bool {
    let Setting { object, key, .. } = &recorded.setting;
    let mut written = record.steps().filter_map(|(_, step)| step.change.as_write_setting());
    written.any(|(setting, value)| {
        setting.lifetime == Lifetime::Running
            && setting.object == *object
            && setting.key == *key
            && value == now
    })
}
