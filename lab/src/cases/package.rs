//! The `.deb` in a host with systemd: installed, used, removed while a machine is isolated and
//! its services run, and purged. Nothing may be left but what the package names.

use std::collections::BTreeMap;

use super::systemd::{APPLY, PREPARE, look, near};
use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::guest_files::PACKAGE;

/// All files of the host's own, without dpkg's records.
const FILES: &str = "find / -xdev ! -type d | grep -v -E '^/(dev|proc|run|sys|tmp)/|^/var/(lib/dpkg|log)/' \
    | sort";
const UNITS: &str = "pinfold.service pinfold-recover.service";

pub(super) fn installed_and_removed(guest: &mut Guest) -> Result<String, LabError> {
    let prepare = PREPARE.replace("MACHINE", &guest.machine());
    guest.shell(&prepare)?;
    guest.shell("mkdir -p /var/lib/dpkg/info /var/lib/dpkg/updates")?;
    let files = guest.shell(FILES)?;
    dpkg(guest, &format!("--install {PACKAGE}"))?;
    let more = guest.shell(FILES)?;
    for unit in ["/usr/lib/systemd/system/pinfold@.service", "/usr/bin/pinfold"] {
        if !more.lines().any(|file| file == unit) {
            return Err(LabError::wrong(format!("there is no {unit}"), more));
        }
    }
    let mut before = look(guest)?;
    guest.pinfold(&APPLY)?;
    guest.shell(&format!("systemctl enable --now {UNITS}"))?;
    guest.pinfold(&["status"])?;

    let reported = dpkg(guest, "--remove pinfold")?;
    let explicit = near(&mut before, &reported)?;
    expect_none("the removal left a trace", look(guest)?.differences(&before, &BTreeMap::new()))?;
    if !reported.contains("/var/lib/pinfold stays") {
        return Err(LabError::wrong("the removal does not name the state", reported));
    }
    let now = guest.shell(FILES)?;
    let left = now
        .lines()
        .filter(|file| !files.lines().any(|old| old == *file))
        .filter(|file| !file.starts_with("/var/lib/pinfold/"));
    expect_none("the removal left files", left.map(str::to_owned).collect())?;
    dpkg(guest, "--purge pinfold")?;
    let now = guest.shell(FILES)?;
    expect_none(
        "the purge left files",
        now.lines()
            .filter(|file| !files.lines().any(|old| old == *file))
            .map(str::to_owned)
            .collect(),
    )?;
    Ok(format!(
        "{} files by dpkg; a machine was isolated and two services ran: all was reverted at the \
         removal ({explicit} lists by name), state stayed, and was purged",
        more.lines().count().saturating_sub(files.lines().count())
    ))
}

/// dpkg itself, not the applet of busybox with its name; a minimal system has no `ldconfig`.
fn dpkg(guest: &mut Guest, words: &str) -> Result<String, LabError> {
    guest.shell(&format!("PATH=/usr/bin:/bin /usr/bin/dpkg --force-bad-path {words} 2>&1"))
}
