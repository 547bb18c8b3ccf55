//! A real cpufreq driver with two adjacent CPUs that share a frequency: governor and limits of the
//! plan's CPUs are set, also with a kill in between, and restored; those of the others do not
//! change.

use super::shapes::{self, MONITOR};
use super::{Extent, kill};
use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::guest_files::MODULES;

const APPLY: [&str; 5] = ["apply", "--qmp", MONITOR, "--strategy", "low-latency"];
const KNOBS: [&str; 6] =
    ["--knob", "governor=performance", "--knob", "max-khz=2000000", "--knob", "min-khz=2000000"];
const UNDO: [&str; 2] = ["undo", "--all"];
/// Reads the values of every CPU, independently of Pinfold.
const FILES: &str = "cd /sys/devices/system/cpu; for c in 0 1 2 3; do \
    echo $c $(cat cpu$c/cpufreq/scaling_governor cpu$c/cpufreq/scaling_min_freq cpu$c/cpufreq/scaling_max_freq); done";
const BEFORE: &str = "schedutil 1600000 2400000";
const PLANNED: &str = "performance 2000000 2000000";

pub(super) fn set(guest: &mut Guest, extent: Extent) -> Result<String, LabError> {
    guest.shell(&format!(
        "insmod {MODULES}/acpi_cpufreq.ko; for c in 0 1 2 3; do \
         echo schedutil > /sys/devices/system/cpu/cpu$c/cpufreq/scaling_governor; done"
    ))?;
    shapes::start(guest, 1, "")?;
    let topo = guest.pinfold(&["topo"])?;
    if !topo.contains("2 domains: {0-1} {2-3}") {
        return Err(LabError::wrong("topo does not show the frequency domains", topo));
    }
    let all_before = [BEFORE; 4];
    shows(guest, "before", &all_before)?;
    let apply = [APPLY.as_slice(), &KNOBS].concat();
    guest.pinfold(&[apply.as_slice(), &["--dry-run"]].concat())?;
    shows(guest, "a dry run changed the host", &all_before)?;
    guest.pinfold(&apply)?;
    // The vCPU and the emulator are on core 1, which is one domain.
    shows(guest, "active tunables", &[BEFORE, BEFORE, PLANNED, PLANNED])?;
    guest.pinfold(&UNDO)?;
    shows(guest, "undo left a trace", &all_before)?;
    check_refusal(guest)?;
    shows(guest, "a refused tunable", &all_before)?;
    let killed =
        kill::kill_at_calls(guest, &apply, extent, &|guest, what| shows(guest, what, &all_before))?;
    let driver = guest.shell("cat /sys/devices/system/cpu/cpu0/cpufreq/scaling_driver")?;
    Ok(format!("governor and limits of one domain of {}; {killed}", driver.trim()))
}

/// A value that the driver does not support is reported with the supported ones, and is an error
/// for a plan that requires it.
fn check_refusal(guest: &mut Guest) -> Result<(), LabError> {
    let apply = [APPLY.as_slice(), &["--knob", "governor=warp"]].concat();
    let reported = guest.pinfold(&apply)?;
    guest.pinfold(&UNDO)?;
    let required = [apply.as_slice(), &["--knob", "required=yes"]].concat();
    let words = [&["/usr/bin/pinfold"], required.as_slice()].concat();
    let ended = guest.run(&words)?.success();
    let mut wrong = Vec::new();
    if !(reported.contains("warp") && reported.contains("scaling_available_governors")) {
        wrong.push(format!("not reported with a hint: {reported}"));
    }
    if ended {
        wrong.push("a plan that requires it was applied".to_owned());
    }
    expect_none("an unknown governor", wrong)
}

fn shows(guest: &mut Guest, what: &str, expected: &[&str; 4]) -> Result<(), LabError> {
    let text = guest.shell(FILES)?;
    let wanted: String = (0..).zip(expected).map(|(pu, holds)| format!("{pu} {holds}\n")).collect();
    if text == wanted {
        Ok(())
    } else {
        Err(LabError::wrong(what, format!("{text}expected\n{wanted}")))
    }
}
