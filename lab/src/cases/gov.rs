//! Vnodes with a real cpufreq driver. With `gov` the frequencies of the domain alternate, and
//! speeds below the lowest one use the freezer; `freq` uses only the nearest frequency. The
//! governor is restored, also after a kill.

use super::vnodes::{PLATFORM, UP, mount, put, signal};
use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::guest_files::MODULES;

/// Core 1, CPUs 2 and 3, is one domain.
const SCALED: &str = "/sys/devices/system/cpu/cpu2/cpufreq";
const FROZEN: &str = "/sys/fs/cgroup/pinfold-vnode-one/cgroup.freeze";
const INSERT: &str = "insmod MODULES/acpi_cpufreq.ko; insmod MODULES/cpufreq_userspace.ko
    for c in 0 1 2 3; do echo schedutil > /sys/devices/system/cpu/cpu$c/cpufreq/scaling_governor; done";
const GOVERNORS: &str =
    "cat /sys/devices/system/cpu/cpu[0-3]/cpufreq/scaling_governor | tr '\\n' ' '";
const GROUPS: &str = "find /sys/fs/cgroup -mindepth 1 -name 'pinfold-*'; \
    cat /sys/fs/cgroup/cgroup.subtree_control";
const BEFORE: &str = "schedutil schedutil schedutil schedutil";
const DURING: &str = "schedutil schedutil userspace userspace";

pub(super) fn frequencies(guest: &mut Guest) -> Result<String, LabError> {
    let there = format!("[ -f {MODULES}/cpufreq_userspace.ko ]");
    if !guest.run(&["/bin/busybox", "sh", "-c", &there])?.success() {
        return Err(LabError::Missing {
            what: format!("the governor userspace of {}", guest.release),
            hint: "the kernel's package has no such module".to_owned(),
        });
    }
    mount(guest)?;
    guest.shell(&INSERT.replace("MODULES", MODULES))?;
    let groups = guest.shell(GROUPS)?;
    shows(guest, "before", BEFORE)?;

    up(guest, "gov", "90%")?;
    let mixed = read_distinct(guest, &format!("{SCALED}/scaling_setspeed"))?;
    let between = ["2000000", "2400000"].map(str::to_owned);
    if mixed != between {
        return Err(LabError::wrong("frequencies that alternate", format!("{mixed:?}")));
    }
    guest.background("exec pinfold emulate exec one -- /bin/busybox sh -c 'echo $$ > /tmp/loop; while :; do :; done'")?;
    guest.pinfold(&["emulate", "set", "one", "--speed", "30%"])?;
    let frozen = read_distinct(guest, FROZEN)?;
    if frozen != ["0", "1"].map(str::to_owned) {
        return Err(LabError::wrong("freezer below the lowest frequency", format!("{frozen:?}")));
    }
    guest.pinfold(&["emulate", "down"])?;
    shows(guest, "down", BEFORE)?;

    up(guest, "gov", "30%")?;
    signal(guest, "KILL")?;
    guest.shell("usleep 500000")?;
    let frozen = read_distinct(guest, FROZEN)?;
    let mut wrong = Vec::new();
    if frozen != ["0".to_owned()] {
        wrong.push(format!("{FROZEN} holds {frozen:?} behind a supervisor that was killed"));
    }
    expect_none("the sentinel", wrong)?;
    guest.pinfold(&["undo", "--all"])?;
    shows(guest, "undo after a kill", BEFORE)?;

    up(guest, "freq", "70%")?;
    let nearest = read_distinct(guest, &format!("{SCALED}/scaling_setspeed"))?;
    if nearest != ["1600000".to_owned()] {
        return Err(LabError::wrong(
            "the nearest level to 70 % of 2.4 GHz",
            format!("{nearest:?}"),
        ));
    }
    guest.pinfold(&["emulate", "down"])?;
    shows(guest, "down", BEFORE)?;
    guest.shell("kill -9 $(cat /tmp/loop)")?;
    let left = guest.shell(GROUPS)?;
    if left == groups {
        Ok("gov: 2.0 and 2.4 GHz in turns for 90 %, the freezer for 30 %, thawed by the \
             sentinel after a kill; freq: 1.6 GHz for 70 %; the governor of its domain alone, and back"
            .to_owned())
    } else {
        Err(LabError::wrong("groups after all", left))
    }
}

fn up(guest: &mut Guest, method: &str, speed: &str) -> Result<(), LabError> {
    put(
        guest,
        &format!(
            "[[vnode]]\nname = \"one\"\ncores = 1\nspeed = \"{speed}\"\nmethod = \"{method}\"\n"
        ),
    )?;
    guest.pinfold(&UP)?;
    shows(guest, PLATFORM, DURING)
}

/// The governors of all CPUs.
fn shows(guest: &mut Guest, what: &str, wanted: &str) -> Result<(), LabError> {
    let found = guest.shell(GOVERNORS)?;
    if found.trim() == wanted {
        Ok(())
    } else {
        Err(LabError::wrong(format!("governors: {what}"), found))
    }
}

/// The distinct contents of a file during at least two seconds.
fn read_distinct(guest: &mut Guest, path: &str) -> Result<Vec<String>, LabError> {
    let text =
        guest.shell(&format!("for i in $(seq 60); do cat {path}; usleep 33000; done | sort -u"))?;
    Ok(text.lines().map(str::to_owned).collect())
}
