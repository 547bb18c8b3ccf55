//! CPUs that go offline: requested by the plan, or while a plan is active.

use std::collections::BTreeMap;

use pinfold_model::text::cpus_text;

use super::shapes::{self, MONITOR, ROOT};
use super::{Extent, kill};
use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::snapshot::Snapshot;

const PLAN: &str = "/tmp/plan.json";
const UNDO: [&str; 2] = ["undo", "--all"];
/// Reads the online CPUs and the SMT control, independently of Pinfold.
const ONLINE: &str = "cd /sys/devices/system/cpu; cat online smt/control";

pub(super) fn smt(guest: &mut Guest, extent: Extent) -> Result<String, LabError> {
    let vm = shapes::start(guest, 2, "")?;
    plan(guest)?;
    let before = Snapshot::take(guest, ROOT, false)?;
    let apply = ["apply", "--qmp", MONITOR, "--plan", PLAN, "--knob", "smt=off"];
    let dry = guest.pinfold(&[&apply[..], &["--dry-run"]].concat())?;
    same(guest, &before, "a dry run changed the host")?;
    guest.pinfold(&apply)?;
    shows(guest, "0,2,4,6\noff\n")?;
    let status = guest.pinfold(&["status", "--json"])?;
    let said = shapes::ReportedPlacement::parse(&status)?;
    let during = Snapshot::take(guest, ROOT, false)?;
    expect_none("isolation is not so", shapes::intruders(&during, vm, &said))?;
    guest.pinfold(&UNDO)?;
    shows(guest, "0-7\non\n")?;
    same(guest, &before, "undo left a trace")?;
    if !dry.contains("smt/control") {
        return Err(LabError::wrong("the dry run does not print the switch", dry));
    }
    let before = Snapshot::take(guest, ROOT, false)?;
    let alone = cpus_text(&said.alone);
    let killed = kill::kill_at_calls(guest, &apply, extent, &|guest, what| {
        shows(guest, "0-7\non\n")?;
        same(guest, &before, what)
    })?;
    let under = under_a_plan(guest, &before)?;
    let watched = check_watch(guest)?;
    let before = Snapshot::take(guest, ROOT, false)?;
    let one = one_offline(guest, &before)?;
    let refused = check_refusal(guest, &before)?;
    Ok(format!(
        "SMT off, vCPUs on {alone}, and on again; {one}; {killed}; {under}; {watched}; {refused}"
    ))
}

fn plan(guest: &mut Guest) -> Result<(), LabError> {
    let words = ["--vm", "name=vm,vcpus=2", "-s", "low-latency", "--isolate", "host"];
    let command = [&["/usr/bin/pinfold", "plan"], &words[..], &["--avoid", "1,3,5,7", "--json"]];
    let plan = guest.run(&command.concat())?.stdout_text();
    guest.shell(&format!("cat > {PLAN} <<'END'\n{plan}\nEND"))?;
    Ok(())
}

fn shows(guest: &mut Guest, expected: &str) -> Result<(), LabError> {
    let text = guest.shell(ONLINE)?;
    if text == expected {
        Ok(())
    } else {
        Err(LabError::wrong("CPUs and SMT", format!("{text:?}, not {expected:?}")))
    }
}

fn same(guest: &mut Guest, before: &Snapshot, what: &str) -> Result<(), LabError> {
    let after = Snapshot::take(guest, ROOT, false)?;
    expect_none(what, differences(&after, before, &shapes::near(&after)))
}

/// The thread of an interrupt has the mask of the CPU that the kernel has chosen from the
/// interrupt's list; it chooses again whenever a CPU goes offline or the list is written.
pub(super) fn differences(
    after: &Snapshot,
    before: &Snapshot,
    near: &BTreeMap<String, String>,
) -> Vec<String> {
    let mut found = after.differences(before, near);
    found.retain(|one| !one.contains("(irq/"));
    found
}

/// Another program takes siblings offline, then the CPU of a vCPU, while the plan is active.
fn under_a_plan(guest: &mut Guest, before: &Snapshot) -> Result<String, LabError> {
    guest.pinfold(&["apply", "--qmp", MONITOR, "--plan", PLAN])?;
    guest.shell("cd /sys/devices/system/cpu; echo off > smt/control; echo on > smt/control")?;
    if forgets_masks(&guest.release) {
        // The kernel then gives every task its whole cpuset: status reports it, and the plan is
        // applied again.
        let drifted = !guest.run(&["/usr/bin/pinfold", "status"])?.success();
        if !drifted {
            return Err(LabError::wrong("masks that 6.1 overwrites", "status calls them planned"));
        }
        guest.pinfold(&UNDO)?;
        guest.pinfold(&["apply", "--qmp", MONITOR, "--plan", PLAN])?;
    }
    let status = guest.pinfold(&["status", "--json"])?;
    let said = shapes::ReportedPlacement::parse(&status)?;
    let pu = said.alone.first().ok_or_else(|| LabError::wrong("CPUs of the plan", status))?;
    guest.shell(&format!("echo 0 > /sys/devices/system/cpu/cpu{pu}/online"))?;
    // It exits with 1 if there is drift.
    let status = guest.run(&["/usr/bin/pinfold", "status"])?.stdout_text();
    let reported = format!("CPU {pu} is offline: vcpu(0)");
    if !status.contains(&reported) {
        return Err(LabError::wrong(format!("status does not say {reported:?}"), status));
    }
    let undone = guest.pinfold(&UNDO)?;
    guest.shell(&format!("echo 1 > /sys/devices/system/cpu/cpu{pu}/online"))?;
    let after = Snapshot::take(guest, ROOT, false)?;
    let mut near = shapes::near(&after);
    near.extend(while_offline(&after));
    let mut found = differences(&after, before, &near);
    let all = found.len();
    // A kernel that stores no mask with an offline CPU restores it without: undo reports the tasks.
    found.retain(|one| {
        let task = one.split(" (").next().unwrap_or(one);
        !undone.contains(&format!("the mask of {task} is ")) || !undone.contains("without CPU ")
    });
    let short = all - found.len();
    expect_none("undo while a CPU was offline", found)?;
    let short = match short {
        0 => String::new(),
        many => format!(" ({many} masks without that CPU, which undo reports)"),
    };
    Ok(format!("SMT off and on and a CPU offline under a plan are named, and undone{short}"))
}

/// Another program takes the CPU of a vCPU offline while `pinfold watch` runs: the vCPU gets another
/// one, and nothing brings the CPU online.
fn check_watch(guest: &mut Guest) -> Result<String, LabError> {
    guest.pinfold(&["apply", "--qmp", MONITOR, "--plan", PLAN])?;
    let status = guest.pinfold(&["status", "--json"])?;
    let said = shapes::ReportedPlacement::parse(&status)?;
    let pu = said.alone.first().ok_or_else(|| LabError::wrong("CPUs of the plan", status))?;
    let line = format!("CPU {pu} went offline; vcpu(0) now runs on CPU");
    let found = guest.shell(&format!(
        "pinfold watch --all >/run/watch.txt 2>&1 &
         until grep -q '^watching 1 placement' /run/watch.txt; do usleep 200000; done
         echo 0 > /sys/devices/system/cpu/cpu{pu}/online
         for _ in $(seq 100); do
             ! grep -qF '{line}' /run/watch.txt || break
             usleep 200000
         done
         kill $!
         cat /run/watch.txt /sys/devices/system/cpu/cpu{pu}/online
         echo 1 > /sys/devices/system/cpu/cpu{pu}/online"
    ))?;
    if !found.contains(&line) || !found.ends_with("\n0\n") {
        return Err(LabError::wrong(format!("watch does not say {line:?}"), found));
    }
    guest.pinfold(&UNDO)?;
    Ok(format!("vCPU 0 leaves CPU {pu}, which goes offline under watch"))
}

/// True before Linux 6.2.
fn forgets_masks(release: &str) -> bool {
    shapes::version(release) < (6, 2)
}

/// Undo restored the explicit list of that time, which was not all CPUs.
fn while_offline(after: &Snapshot) -> BTreeMap<String, String> {
    let path = format!("{ROOT}/init.scope/cpuset.cpus");
    let now = after.knobs.get(&path).filter(|list| list.trim() != "");
    now.map(|list| (path, list.clone())).into_iter().collect()
}

/// A plan takes one unused CPU offline.
fn one_offline(guest: &mut Guest, before: &Snapshot) -> Result<String, LabError> {
    guest.pinfold(&["apply", "--qmp", MONITOR, "--plan", PLAN, "--knob", "offline=7"])?;
    shows(guest, "0-6\non\n")?;
    guest.pinfold(&UNDO)?;
    shows(guest, "0-7\non\n")?;
    let after = Snapshot::take(guest, ROOT, false)?;
    let mut near = shapes::near(&after);
    near.extend(while_offline(&after));
    expect_none("undo of an offline CPU left a trace", differences(&after, before, &near))?;
    Ok("CPU 7 offline by the plan, and back".to_owned())
}

/// The CPU of a vCPU is not taken offline.
fn check_refusal(guest: &mut Guest, before: &Snapshot) -> Result<String, LabError> {
    let words = ["apply", "--qmp", MONITOR, "--plan", PLAN, "--knob", "offline=4"];
    let mut command = vec!["/usr/bin/pinfold"];
    command.extend(words);
    let output = guest.run(&command)?;
    let said = format!("{}{}", output.stdout_text(), output.stderr_text());
    if output.success() || !said.contains("the plan takes CPU 4 offline") {
        return Err(LabError::wrong("offline=4 is not refused", said));
    }
    let after = Snapshot::take(guest, ROOT, false)?;
    let mut near = shapes::near(&after);
    near.extend(while_offline(&after));
    expect_none("a refused plan left a trace", differences(&after, before, &near))?;
    Ok("a vCPU's CPU is refused".to_owned())
}
