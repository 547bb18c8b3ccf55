//! The benchmarks under the guest's own kernel: every command of `pinload`, and the error of
//! `pinfold measure` for an offline CPU.

use serde_json::Value;

use crate::error::LabError;
use crate::guest::Guest;

/// Whether it prints figures, the command, its arguments.
const RUNS: &str = include_str!("../../../fixtures/pinload-runs.txt");
/// The last of the shape's two CPUs, on which the commands run and which goes offline.
const CPU: &str = "1";
const FOLDER: &str = "/tmp/benchmarks";
const FILE: &str = "/tmp/benchmarks/blocks";
/// The message of a command on a machine without a quiet interval.
const BUSY: &str = "too busy to measure";

pub(super) fn all(guest: &mut Guest) -> Result<String, LabError> {
    guest.shell(&format!("mkdir -p {FOLDER}; dd if=/dev/zero of={FILE} bs=64k count=1"))?;
    let (mut ran, mut busy) = (0, 0);
    for line in RUNS.lines().filter(|line| !line.starts_with('#')) {
        let (kind, command) =
            line.split_once(' ').ok_or_else(|| LabError::wrong("a short run", line))?;
        let command = command.replace("CPU", CPU).replace("FILE", FILE).replace("FOLDER", FOLDER);
        let output = guest.run(&command.split(' ').collect::<Vec<_>>())?;
        if output.stderr_text().contains(BUSY) {
            busy += 1;
            continue;
        }
        let (reported, said) = (output.stdout_text(), output.stderr_text());
        let is_good = match kind {
            "figures" => pinfold_probe::figures::parse("pinload", &reported)
                .is_ok_and(|figures| !figures.is_empty()),
            _ => reported.starts_with('{'),
        };
        if !output.success() || !is_good {
            return Err(LabError::wrong(
                format!("pinload {command}"),
                format!("{}: {reported}{said}", output.exit),
            ));
        }
        ran += 1;
    }
    let (tracer, refused) = (hwlat(guest)?, offline(guest)?);
    Ok(format!("{ran} short runs, {busy} more on a machine too busy for them; {tracer}; {refused}"))
}

/// The kernel's hwlat tracer gives samples above its threshold where busybox finds it, and
/// elsewhere `pinload` says that it is absent. No tracer is left active.
fn hwlat(guest: &mut Guest) -> Result<String, LabError> {
    let output =
        guest.run(&["hwlat", "--seconds", "3", "--window-ms", "20", "--threshold-us", "1"])?;
    let reported = output.stdout_text();
    let wrong = || LabError::wrong("pinload hwlat", format!("{reported}{}", output.stderr_text()));
    let json: Value = serde_json::from_str(reported.trim()).map_err(|_| wrong())?;
    let tracing = "/sys/kernel/tracing";
    let tracers = guest.shell(&format!("cat {tracing}/available_tracers"))?;
    if !tracers.split_whitespace().any(|tracer| tracer == "hwlat") {
        let is_named = json["absent"].as_str().is_some_and(|why| why.contains("HWLAT_TRACER"));
        return if is_named {
            Ok("this kernel has no hwlat tracer".to_owned())
        } else {
            Err(wrong())
        };
    }
    let samples: Vec<u64> =
        json["samples"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    let active = guest.shell(&format!("cat {tracing}/current_tracer"))?;
    if samples.is_empty() || samples.iter().any(|ns| *ns < 1000) || active.trim() != "nop" {
        return Err(wrong());
    }
    Ok(format!("{} windows of the hwlat tracer with gaps", samples.len()))
}

fn offline(guest: &mut Guest) -> Result<String, LabError> {
    let switch = format!("/sys/devices/system/cpu/cpu{CPU}/online");
    guest.shell(&format!("echo 0 > {switch}"))?;
    let command = ["/usr/bin/pinfold", "measure", "wakeup", "--cpus", CPU];
    let output = guest.run(&command)?;
    guest.shell(&format!("echo 1 > {switch}"))?;
    let said = output.stderr_text();
    if !output.success() && said.contains(&format!("CPU {CPU} is offline")) {
        Ok(format!("measure refuses CPU {CPU}, which is offline"))
    } else {
        Err(LabError::wrong("pinfold measure on an offline CPU", said))
    }
}
