//! Shares and quota in the cpu controller of cgroup version 1: set, read by busybox, killed in
//! between, and restored. The other controllers are not used.

use std::collections::BTreeMap;

use super::shapes::{self, MONITOR};
use super::{Extent, kill};
use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::snapshot::Snapshot;

const ROOT: &str = "/sys/fs/cgroup/cpu";
const MOUNT: &str = "mount -t tmpfs none /sys/fs/cgroup; mkdir /sys/fs/cgroup/cpu
    mount -t cgroup -o cpu none /sys/fs/cgroup/cpu; mkdir /sys/fs/cgroup/cpu/vm";
const FILES: &str = "/sys/fs/cgroup/cpu/vm/cpu.shares /sys/fs/cgroup/cpu/vm/cpu.cfs_*";
const APPLY: [&str; 9] = [
    "apply",
    "--qmp",
    MONITOR,
    "--strategy",
    "balanced",
    "--knob",
    "cpu-weight=300",
    "--knob",
    "cpu-quota=45000/50000",
];
const UNDO: [&str; 2] = ["undo", "--all"];
/// A weight of 100 is 1024 in version 1.
const HOLDS: [(&str, &str); 3] =
    [("cpu.shares", "3072"), ("cpu.cfs_quota_us", "45000"), ("cpu.cfs_period_us", "50000")];
/// Only available with `RT_GROUP_SCHED`.
const REAL_TIME: &str = "[ -e /sys/fs/cgroup/cpu/vm/cpu.rt_runtime_us ] && echo y || echo n";

pub(super) fn set(guest: &mut Guest, extent: Extent) -> Result<String, LabError> {
    if !guest.run(&["/bin/busybox", "sh", "-euc", MOUNT])?.success() {
        let what = format!("cpu of cgroup v1 in {}", guest.release);
        let hint = "its configuration has it for cgroup v2 alone".to_owned();
        return Err(LabError::Missing { what, hint });
    }
    let has_real_time = guest.shell(REAL_TIME)?.trim() == "y";
    shapes::start_in(guest, &format!("{ROOT}/vm"), 2, "")?;
    let before = look(guest)?;
    guest.pinfold(&[&APPLY[..], &["--dry-run"]].concat())?;
    same(guest, &before, "a dry run changed the host")?;
    guest.pinfold(&APPLY)?;
    let during = look(guest)?;
    let wrong = HOLDS.iter().filter_map(|(file, holds)| {
        let found = during.knob(&format!("{ROOT}/vm/{file}"));
        (found != *holds).then(|| format!("{file} holds {found:?}, not {holds:?}"))
    });
    expect_none("a tunable is not as requested", wrong.collect())?;
    guest.pinfold(&UNDO)?;
    same(guest, &before, "undo left a trace")?;
    let killed =
        kill::kill_at_calls(guest, &APPLY, extent, &|guest, what| same(guest, &before, what))?;
    let real_time = if has_real_time { "with" } else { "without" };
    Ok(format!("shares and quota, and back; {killed}; {real_time} RT_GROUP_SCHED"))
}

fn look(guest: &mut Guest) -> Result<Snapshot, LabError> {
    Snapshot::take_with(guest, ROOT, false, FILES)
}

fn same(guest: &mut Guest, before: &Snapshot, what: &str) -> Result<(), LabError> {
    expect_none(what, look(guest)?.differences(before, &BTreeMap::new()))
}
